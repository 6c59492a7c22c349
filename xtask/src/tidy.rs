//! `cargo xtask tidy`: house rules on files, names and the specification. Every rule covers all files that git tracks
//! or would add, in every folder. Violations of a rule that are tolerated for now are counted in `ratchets`.

mod comments;
mod modules;
mod nouns;
mod ratchets;
mod signatures;
mod tokens;

use crate::{Findings, read};
use ratchets::{Number, Rule};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use tokens::{Tokens, tokens};

/// Suffixes of source files.
const SOURCES: [&str; 9] = [".c", ".cpp", ".h", ".mjs", ".py", ".pyi", ".rs", ".sh", ".tcl"];
/// Greatest number of lines of a source file.
const LINES: Rule =
    Rule { section: "lines", unit: "lines", free: 700, slack: 20, cure: "split it by subject" };
/// Greatest number of columns of a line.
const COLUMNS_MAX: usize = 120;
/// Lines that are wider, counted by crate.
const WIDE: Rule = Rule {
    section: "wide",
    unit: "lines wider than 120 columns",
    free: 0,
    slack: 0,
    cure: "break those that were added here:",
};
/// Modules that import each other, by crate: the number of modules in each cycle.
const CIRCLES: Rule = Rule {
    section: "circles",
    unit: "modules in circles of imports",
    free: 0,
    slack: 0,
    cure: "move what both modules need into one that imports neither:",
};
/// Public functions with a bool parameter, by crate.
const BOOLS: Rule = Rule {
    section: "bools",
    unit: "public functions that take a bool",
    free: 0,
    slack: 0,
    cure: "use an enum or two functions instead:",
};
/// Comments that begin with "What" or "Whether", by crate.
const CLAUSES: Rule = Rule {
    section: "clauses",
    unit: "comments that begin with What or Whether",
    free: 0,
    slack: 0,
    cure: "begin with a verb (Returns ..) or a noun (Deadline of ..):",
};
/// Comments that begin with a bare preposition, by crate.
const PREPOSITIONS: Rule = Rule {
    section: "prepositions",
    unit: "comments that begin with a preposition",
    free: 0,
    slack: 0,
    cure: "begin with a verb (Returns ..) or a noun (Deadline of ..):",
};
/// Names that public types of several crates have, and nouns that the glossary lacks.
const NOUNS: Rule = Rule {
    section: "nouns",
    unit: "names",
    free: 0,
    slack: 0,
    cure: "one name for one thing, and what several crates speak of is in docs/glossary.md:",
};
/// Names of modules in which unrelated code collects.
const GRAB_BAGS: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "misc", "shared_utils"];
/// Phrase that the opening comment of `lib.rs` must contain.
const NEVER: &str = "Never in this crate";
/// Documents that specify bytes independently of Rust, with the files that implement them: a folder, and names of
/// files in it.
const SPECS: [(&str, &str, &[&str]); 4] = [
    (
        "spec/wire.md",
        "crates/wire/src",
        &[
            "catalog",
            "codec",
            "control",
            "data",
            "frame",
            "function",
            "ids",
            "limits",
            "nodes",
            "refusal",
            "repair",
            "scan",
            "segments",
            "snapshots",
        ],
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
    (
        "spec/table.md",
        "crates/tables/src",
        &[
            "arrangement",
            "column_type",
            "footer",
            "layout",
            "lib",
            "manifest",
            "manifest/data_file",
            "schema_mapping",
            "manifest_file",
            "statistics",
        ],
    ),
];
/// Absolute paths of folders that only some machines have. Each is written in two parts, so that this list is not a
/// finding itself.
const MACHINE_PATHS: [(&str, &str); 5] =
    [("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/"), ("/mn", "t/")];

pub(crate) fn run(root: &Path) -> Findings {
    let rules = [&LINES, &WIDE, &CIRCLES, &BOOLS, &CLAUSES, &PREPOSITIONS, &NOUNS];
    let ratchets = ratchets::parse(&read(root, ratchets::FILE)?, &rules)?;
    let paths = files(root)?;
    let crates = crates(root, &paths)?;
    let mut findings = Vec::new();
    let mut sources = BTreeMap::new();
    for path in paths {
        findings.extend(check_name(&path));
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        findings.extend(check_machine_paths(&path, &text));
        if is_source(&path) {
            sources.insert(path, text);
        }
    }
    findings.extend(ratchets.check(&LINES, &long(&sources)));
    findings.extend(ratchets.check(&WIDE, &wide(&crates, &sources)));
    findings.extend(ratchets.check(&CLAUSES, &beginning_with(&comments::CLAUSES, &crates, &sources)));
    findings
        .extend(ratchets.check(&PREPOSITIONS, &beginning_with(&comments::PREPOSITIONS, &crates, &sources)));
    findings.extend(check_comments(&sources));
    let rust = rust(&crates, &sources);
    findings.extend(ratchets.check(&CIRCLES, &circles(&rust)));
    findings.extend(ratchets.check(&BOOLS, &bools(&rust)));
    findings.extend(ratchets.check(&NOUNS, &nouns(&rust, &read(root, nouns::GLOSSARY)?)));
    findings.extend(check_openings(&crates, &sources, &ratchets.without_never));
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

fn is_source(path: &str) -> bool {
    SOURCES.iter().any(|end| path.ends_with(end))
}

/// Returns the names of the crates, by their folders.
fn crates(root: &Path, paths: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut crates = BTreeMap::new();
    for path in paths {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        // git lists a deleted file until its deletion is staged.
        let Ok(text) = read(root, path) else { continue };
        let manifest: toml::Table = text.parse().map_err(|error| format!("{path}: {error}"))?;
        let name = manifest.get("package").and_then(|package| package.get("name"));
        if let Some(name) = name.and_then(toml::Value::as_str) {
            crates.insert(folder.to_owned(), name.to_owned());
        }
    }
    Ok(crates)
}

fn check_name(path: &str) -> Option<String> {
    let bad = path.split('/').find(|part| {
        let stem = part.split('.').next().unwrap_or(part);
        GRAB_BAGS.contains(&stem.to_ascii_lowercase().as_str())
    })?;
    Some(format!("{path}: the name {bad:?} does not say what the file or folder contains: rename it"))
}

fn check_machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (front, back) in MACHINE_PATHS {
            let wanted = format!("{front}{back}");
            // A match after characters of a path is the middle of that path, as in `docs/work/`, and so no absolute
            // path.
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

/// Returns the files with too many lines.
fn long(sources: &BTreeMap<String, String>) -> BTreeMap<String, Number> {
    let lines = sources.iter().map(|(path, text)| (path, text.lines().count()));
    lines
        .filter(|(_, lines)| *lines > LINES.free)
        .map(|(path, lines)| (path.clone(), Number { parts: vec![lines], places: Vec::new() }))
        .collect()
}

/// Returns the lines that are too wide, by crate.
fn wide(crates: &BTreeMap<String, String>, sources: &BTreeMap<String, String>) -> BTreeMap<String, Number> {
    let mut found: BTreeMap<String, Number> = BTreeMap::new();
    for (path, text) in sources {
        for (at, line) in text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX {
                found.entry(owner(crates, path)).or_default().add(format!("{path}:{}", at + 1));
            }
        }
    }
    found
}

/// Counts the comments that begin with one of these words.
fn beginning_with(
    words: &[&str],
    crates: &BTreeMap<String, String>,
    sources: &BTreeMap<String, String>,
) -> BTreeMap<String, Number> {
    let mut found: BTreeMap<String, Number> = BTreeMap::new();
    for (path, text) in sources {
        for (line, said) in comments::openings(path, text) {
            if comments::begins_with(said, words) {
                found.entry(owner(crates, path)).or_default().add(format!("{path}:{line}: {said}"));
            }
        }
    }
    found
}

/// Finds comments that send their reader elsewhere.
fn check_comments(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in sources {
        for (line, said) in comments::openings(path, text) {
            if said.starts_with(comments::ELSEWHERE) {
                findings.push(format!("{path}:{line}: \"{}\": say here what it is", comments::ELSEWHERE));
            }
        }
    }
    findings
}

/// Returns the crate whose folder contains a file, or the topmost folder if there is none.
fn owner(crates: &BTreeMap<String, String>, path: &str) -> String {
    let mut folder = path;
    while let Some((above, _)) = folder.rsplit_once('/') {
        if let Some(name) = crates.get(above) {
            return name.clone();
        }
        folder = above;
    }
    folder.to_owned()
}

/// Returns the tokens of each crate's source files, by their paths within its `src`.
fn rust<'a>(
    crates: &'a BTreeMap<String, String>,
    sources: &'a BTreeMap<String, String>,
) -> BTreeMap<&'a str, Vec<(&'a str, Tokens<'a>)>> {
    let mut rust: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (folder, name) in crates {
        let src = format!("{folder}/src/");
        for (path, text) in sources {
            if let Some(path) = path.strip_prefix(&src).filter(|path| path.ends_with(".rs")) {
                rust.entry(name.as_str()).or_default().push((path, tokens(text)));
            }
        }
    }
    rust
}

/// Returns the modules that import each other, each with its imports from the same cycle.
fn circles(rust: &BTreeMap<&str, Vec<(&str, Tokens<'_>)>>) -> BTreeMap<String, Number> {
    let mut found = BTreeMap::new();
    for (name, files) in rust {
        let circles = modules::circles(files);
        let parts: Vec<usize> = circles.iter().map(Vec::len).collect();
        let of_one = |(module, imports): (String, Vec<String>)| format!("{module} -> {}", imports.join(", "));
        let places = circles.into_iter().flatten().map(of_one).collect();
        if !parts.is_empty() {
            found.insert((*name).to_owned(), Number { parts, places });
        }
    }
    found
}

/// Returns the public functions that take a bool.
fn bools(rust: &BTreeMap<&str, Vec<(&str, Tokens<'_>)>>) -> BTreeMap<String, Number> {
    let mut found: BTreeMap<String, Number> = BTreeMap::new();
    for (name, files) in rust {
        for (path, tokens) in files {
            for function in signatures::with_bools(&tokens.all) {
                found.entry((*name).to_owned()).or_default().add(format!("src/{path}: {function}"));
            }
        }
    }
    found
}

/// Crate for authors of functions. Its public types may have the names of types of other crates, because both describe
/// the same records.
const SDK: &str = "farpool-function";

/// Counts names of public types that two crates have, and nouns of several crates that the glossary lacks.
fn nouns(rust: &BTreeMap<&str, Vec<(&str, Tokens<'_>)>>, glossary: &str) -> BTreeMap<String, Number> {
    let types_of = |files: &Vec<(&str, Tokens<'_>)>| -> BTreeSet<_> {
        files.iter().flat_map(|(_, tokens)| nouns::public_types(&tokens.all)).map(str::to_owned).collect()
    };
    let owned: BTreeMap<&str, BTreeSet<String>> =
        rust.iter().filter(|(name, _)| **name != SDK).map(|(name, files)| (*name, types_of(files))).collect();
    let types: BTreeMap<&str, BTreeSet<&str>> =
        owned.iter().map(|(name, types)| (*name, types.iter().map(String::as_str).collect())).collect();
    let numbers = [("twins", nouns::twins(&types)), ("unexplained", nouns::unexplained(&types, glossary))];
    let number = |places: Vec<String>| Number { parts: vec![places.len()], places };
    let kept = numbers.into_iter().filter(|(_, places)| !places.is_empty());
    kept.map(|(key, places)| (key.to_owned(), number(places))).collect()
}

/// Checks that the `lib.rs` of each crate says what is never in it, except for crates that are listed as not saying
/// so.
fn check_openings(
    crates: &BTreeMap<String, String>,
    sources: &BTreeMap<String, String>,
    without: &BTreeSet<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    let mut silent = BTreeSet::new();
    for (folder, name) in crates {
        let path = format!("{folder}/src/lib.rs");
        let Some(text) = sources.get(&path) else { continue };
        if !says_never(text) {
            silent.insert(name.clone());
            if !without.contains(name) {
                findings.push(format!("{path}: its opening `//!` comment does not say \"{NEVER}: ...\""));
            }
        }
    }
    for name in without.difference(&silent) {
        findings
            .push(format!("{name} is no crate without \"{NEVER}: ...\": delete it in {}", ratchets::FILE));
    }
    findings
}

fn says_never(text: &str) -> bool {
    text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains(NEVER))
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Checks that a specification has the digest of each file that it describes, so that nobody changes one without the
/// other.
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

    fn sources(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn source_is_measured_in_every_folder() {
        for path in ["crates/a/src/b.rs", "python/a/b.py", "python/a/b.pyi", "sdk/c/a.h", "bench/a.sh"] {
            assert!(is_source(path), "{path}");
        }
        for path in ["docs/a.md", "spec/frozen/a.bin", "crates/a/Cargo.toml", "Makefile"] {
            assert!(!is_source(path), "{path}");
        }
    }

    #[test]
    fn file_of_more_lines_than_permitted_is_counted() {
        let (most, more) = ("x\n".repeat(LINES.free), "x\n".repeat(LINES.free + 1));
        let found = long(&sources(&[("a/most.py", &most), ("b/more.c", &more)]));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["b/more.c"]);
        assert_eq!(found["b/more.c"].parts, [LINES.free + 1]);
    }

    #[test]
    fn wide_line_is_counted_for_the_crate_whose_folder_it_is_in() {
        let crates = [("a", "farpool-a"), ("a/b", "farpool-b")]
            .map(|(one, two)| (one.to_owned(), two.to_owned()))
            .into();
        let wide_line = format!("fits\n{}\n{}\n", "ä".repeat(COLUMNS_MAX), "x".repeat(COLUMNS_MAX + 1));
        let paths = ["a/run.py", "a/b/src/lib.rs", "a/b/tests/c/d.rs", "c/d.sh"];
        let found = wide(&crates, &sources(&paths.map(|path| (path, &*wide_line))));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["c", "farpool-a", "farpool-b"]);
        assert_eq!(found["farpool-b"].parts, [2]);
        assert_eq!(found["farpool-b"].places, ["a/b/src/lib.rs:3", "a/b/tests/c/d.rs:3"]);
    }

    #[test]
    fn circles_are_those_of_each_crate_by_its_name() {
        let crates =
            [("a", "farpool-a"), ("a/b", "farpool-b")].map(|(one, two)| (one.to_owned(), two.to_owned()));
        let sources = sources(&[
            ("a/src/lib.rs", "mod c; mod d;"),
            ("a/src/c.rs", "use crate::d::D;"),
            ("a/src/d.rs", "use crate::c::C;"),
            ("a/b/src/lib.rs", "mod c;"),
            ("a/b/src/c.rs", "use crate::d::D;"),
        ]);
        let found = circles(&rust(&crates.into(), &sources));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["farpool-a"]);
        assert_eq!(found["farpool-a"].parts, [2]);
        assert_eq!(found["farpool-a"].places, ["c -> d", "d -> c"]);
    }

    #[test]
    fn bools_of_public_functions_are_counted_by_crate() {
        let crates = [("a".to_owned(), "farpool-a".to_owned())].into();
        let sources = sources(&[
            ("a/src/b.rs", "pub fn c(d: bool) {} pub fn e(f: bool) {}"),
            ("a/tests/g.rs", "pub fn h(i: bool) {}"),
        ]);
        let found = bools(&rust(&crates, &sources));
        assert_eq!(found["farpool-a"].parts, [2]);
        assert_eq!(found["farpool-a"].places, ["src/b.rs: c", "src/b.rs: e"]);
    }

    #[test]
    fn opening_counts_only_before_the_first_line_of_code() {
        assert!(says_never("//! What.\n//!\n//! Never in this crate: I/O.\nmod a;\n"));
        assert!(!says_never("//! What.\nmod a;\n//! Never in this crate: I/O.\n"));
        assert!(!says_never("mod a;\n"));
    }

    #[test]
    fn silent_opening_is_named_unless_listed_and_listed_one_that_speaks_is_named() {
        let crates = [("x/a", "farpool-a"), ("x/b", "farpool-b"), ("c", "c")]
            .map(|(folder, name)| (folder.to_owned(), name.to_owned()))
            .into();
        let never = "//! Never in this crate: I/O.\n";
        let sources = sources(&[("x/a/src/lib.rs", never), ("x/b/src/lib.rs", ""), ("c/src/main.rs", "")]);
        let check = |listed: &[&str]| {
            check_openings(&crates, &sources, &listed.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(check(&["farpool-b"]), [""; 0]);
        assert!(check(&[])[0].starts_with("x/b/src/lib.rs: its opening"));
        assert!(check(&["farpool-a", "farpool-b"])[0].starts_with("farpool-a is no crate without"));
    }

    #[test]
    fn digest_is_that_of_the_standard() {
        // Example of FIPS 180-2, appendix B.1.
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
