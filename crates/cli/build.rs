//! Tells `farpool version` what it was built from. No date and no path, so that two builds are equal.

use std::path::Path;
use std::process::Command;

/// Variable that names the commit where there is no repository, as in a source archive.
const COMMIT: &str = "FARPOOL_COMMIT";

fn main() {
    println!("cargo::rerun-if-env-changed={COMMIT}");
    let given = std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_repository).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FARPOOL_BUILD_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=FARPOOL_BUILD_TARGET={target}");
    let compiler =
        std::env::var("RUSTC").ok().and_then(|rustc| first_line(&mut Command::new(rustc), &["--version"]));
    println!("cargo::rustc-env=FARPOOL_BUILD_COMPILER={}", compiler.unwrap_or_else(|| "unknown".to_owned()));
}

/// Returns the commit of the repository that this file is in. `None` in a source archive, even one that was unpacked
/// inside another repository.
fn commit_of_repository() -> Option<String> {
    let git = |args: &[&str]| first_line(&mut Command::new("git"), args);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let found = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&found).canonicalize().ok()? != root {
        return None;
    }
    // HEAD is written by a checkout, and its log by a commit.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn first_line(command: &mut Command, args: &[&str]) -> Option<String> {
    let output = command.args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.lines().next()?.to_owned())
}
