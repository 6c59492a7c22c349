//! `cargo xtask tidy`: house rules on files, names and the specification. Every rule looks at the files git
//! knows, or would if they were added.

use crate::{Findings, read};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Most lines of a source file.
const LINES_MAX: usize = 700;
/// Files that are longer than that already, and how long they may be. Numbers here only go down.
const LINES_RATCHET: [(&str, usize); 0] = [];
/// Names under which everything ends up.
const GRAB_BAGS: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "misc", "shared_utils"];
/// What `lib.rs` must say in its opening comment.
const NEVER: &str = "Never in this crate";
/// Documents that say without Rust what bytes mean, and the files that decide it: a folder and names in it.
const SPECS: [(&str, &str, &[&str]); 4] = [
    (
        "spec/wire.md",
        "crates/wire/src",
        &["catalog", "codec", "control", "data", "frame", "function", "limits", "refusal", "scan"],
    ),
    (
        "spec/pipeline.md",
        "crates/operators/src",
        &[
            "codec",
            "expression",
            "limits",
            "packed",
            "program",
            "run/hash",
            "run/lookup/bloom",
            "run/lookup/mod",
            "types",
        ],
    ),
    ("spec/function.md", "crates/functions", &["src/abi", "sandbox/src/module"]),
    ("spec/table.md", "crates/tables/src", &["column_type", "footer", "layout", "lib", "statistics"]),
];
/// Folders of one machine, in two halves so that this list does not find itself.
const MACHINE_PATHS: [(&str, &str); 5] =
    [("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/"), ("/mn", "t/")];

pub(crate) fn run(root: &Path) -> Findings {
    let mut findings = Vec::new();
    for path in files(root)? {
        findings.extend(check_name(&path));
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        findings.extend(check_machine_paths(&path, &text));
        if is_source(&path) {
            findings.extend(check_length(&path, &text));
        }
        if is_crate_root(&path) {
            findings.extend(check_opening(&path, &text));
        }
    }
    for (document, folder, names) in SPECS {
        let mut sources = Vec::new();
        for name in names {
            let path = format!("{folder}/{name}.rs");
            let text = read(root, &path)?;
            sources.push((path, text));
        }
        findings.extend(check_spec(document, &read(root, document)?, &sources));
    }
    Ok(findings)
}

fn files(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("starting git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let listed = String::from_utf8(output.stdout).map_err(|_| "a file name is not UTF-8")?;
    Ok(listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// `crates/NAME/src/**.rs`, and what `bench` has of it.
fn is_source(path: &str) -> bool {
    let is_measured = path.starts_with("crates/") || path.starts_with("bench/");
    is_measured && path.contains("/src/") && path.ends_with(".rs")
}

/// `crates/NAME/src/lib.rs`.
fn is_crate_root(path: &str) -> bool {
    is_source(path) && path.ends_with("/src/lib.rs") && path.matches('/').count() == 3
}

fn check_name(path: &str) -> Option<String> {
    let bad = path.split('/').find(|part| {
        let stem = part.split('.').next().unwrap_or(part);
        GRAB_BAGS.contains(&stem.to_ascii_lowercase().as_str())
    })?;
    Some(format!("{path}: {bad:?} says nothing about what is in it: name it after that"))
}

fn check_machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (front, back) in MACHINE_PATHS {
            let wanted = format!("{front}{back}");
            // Behind another path's characters it is the middle of one, as in `docs/work/`.
            let is_absolute = |at: usize| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_ascii_alphanumeric() && !"._-})~".contains(c))
            };
            if line.match_indices(&wanted).any(|(at, _)| is_absolute(at)) {
                findings.push(format!("{path}:{}: a path of one machine ({wanted}...)", number + 1));
            }
        }
    }
    findings
}

fn check_length(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let listed = LINES_RATCHET.iter().find(|(listed, _)| *listed == path);
    let max = listed.map_or(LINES_MAX, |(_, max)| *max);
    (lines > max).then(|| format!("{path}: {lines} lines, at most {max} are permitted: split it by subject"))
}

fn check_opening(path: &str, text: &str) -> Option<String> {
    let opening: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let says_never = opening.iter().any(|line| line.contains(NEVER));
    (!says_never).then(|| format!("{path}: its opening `//!` comment does not say \"{NEVER}: ...\""))
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The specification names each file with its digest, so nobody changes one without a look at the other.
fn check_spec(document: &str, spec: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in sources {
        let row = format!("| `{path}` | `{}` |", sha256(text));
        if !spec.lines().any(|line| line == row) {
            findings.push(format!(
                "{path} is not the one {document} was written for: bring {document} up to date, then put this row at \
                 its end:\n{row}"
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grab_bag_is_found_as_file_and_as_folder() {
        for path in
            ["crates/a/src/utils.rs", "crates/common/src/lib.rs", "engines/python/a/helpers.py", "misc/a.md"]
        {
            assert!(check_name(path).is_some(), "{path}");
        }
        for path in ["crates/a/src/units.rs", "docs/uncommon.md", "crates/a/src/miscount.rs"] {
            assert_eq!(check_name(path), None, "{path}");
        }
    }

    #[test]
    fn machine_path_is_found_with_its_line() {
        let (front, back) = MACHINE_PATHS[0];
        let text = format!("first\nlook in {front}{back}me/x\n");
        assert_eq!(
            check_machine_paths("a.md", &text),
            [format!("a.md:2: a path of one machine ({front}{back}...)")]
        );
    }

    #[test]
    fn relative_path_is_not_a_machine_path() {
        let (front, back) = MACHINE_PATHS[0];
        assert!(
            check_machine_paths("a.md", &format!("see docs{front}{back}x and $X_{front}{back}")).is_empty()
        );
    }

    #[test]
    fn length_is_checked_against_the_limit() {
        assert_eq!(check_length("a.rs", &"x\n".repeat(LINES_MAX)), None);
        assert!(check_length("a.rs", &"x\n".repeat(LINES_MAX + 1)).is_some());
    }

    #[test]
    fn only_sources_of_crates_and_benches_are_measured() {
        assert!(is_source("crates/a/src/b/c.rs") && is_source("bench/src/a.rs"));
        assert!(
            !is_source("crates/a/tests/c.rs")
                && !is_source("xtask/src/main.rs")
                && !is_source("crates/a/src/b.md")
        );
        assert!(is_crate_root("crates/a/src/lib.rs"));
        assert!(!is_crate_root("crates/a/src/b/src/lib.rs") && !is_crate_root("crates/a/src/main.rs"));
    }

    #[test]
    fn opening_counts_only_before_the_first_line_of_code() {
        assert_eq!(check_opening("a", "//! What.\n//!\n//! Never in this crate: I/O.\nmod a;\n"), None);
        assert!(check_opening("a", "//! What.\nmod a;\n//! Never in this crate: I/O.\n").is_some());
        assert!(check_opening("a", "mod a;\n").is_some());
    }

    #[test]
    fn digest_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn changed_source_names_itself_and_the_row_to_paste() {
        let sources = [("a.rs".to_owned(), "abc".to_owned())];
        let row = format!("| `a.rs` | `{}` |", sha256("abc"));
        assert!(check_spec("a.md", &format!("text\n{row}\n"), &sources).is_empty());
        let found = check_spec("a.md", "text\n", &sources);
        assert!(found[0].starts_with("a.rs is not the one") && found[0].ends_with(&row), "{found:?}");
    }
}
