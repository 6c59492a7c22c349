//! `cargo xtask CHECK`: checks of the repository that no compiler makes. There is one module for each check. It returns
//! its findings as sentences, which are printed here. Exit code 0: no findings; 1: findings, or a check could not be
//! made.
#![forbid(unsafe_code)]

mod deps;
mod licenses;
mod metadata;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Findings of a check: sentences that each name the offender and the remedy.
type Findings = Result<Vec<String>, String>;

struct Check {
    name: &'static str,
    about: &'static str,
    run: fn(&Path) -> Findings,
}

const CHECKS: [Check; 3] = [
    Check {
        name: "deps",
        about: "dependencies of the workspace's crates match the table in ARCHITECTURE.md",
        run: deps::run,
    },
    Check {
        name: "licenses",
        about: "licences, sources and versions of all dependencies are those deny.toml permits",
        run: licenses::run,
    },
    Check { name: "tidy", about: "house rules on files, names and the specification", run: tidy::run },
];

/// The only check that is a separate program. Arguments after its name are passed on to it.
const SIMULATOR: (&str, &str) =
    ("sim", "whole pools under faults keep the invariants; --help for its options");

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == SIMULATOR.0) {
        return simulate(&args[1..]);
    }
    let [asked] = &args[..] else { return usage() };
    let Some(check) = CHECKS.iter().find(|check| check.name == asked) else { return usage() };
    match (check.run)(&root()) {
        Ok(findings) if findings.is_empty() => {
            println!("xtask {asked}: ok: {}", check.about);
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                eprintln!("xtask {asked}: {finding}");
            }
            eprintln!("xtask {asked}: {} found", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask {asked}: the check could not run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo xtask CHECK\n\nChecks:");
    for check in &CHECKS {
        eprintln!("  {:<10}{}", check.name, check.about);
    }
    eprintln!("  {:<10}{}", SIMULATOR.0, SIMULATOR.1);
    ExitCode::FAILURE
}

/// Builds and runs the simulator. The simulator is not a dependency of this crate, because it would then be compiled
/// for every check.
fn simulate(args: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(["run", "--release", "--quiet", "--package", "farpool-sim", "--"])
        .args(args);
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask sim: starting cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository's root: the parent of the folder of this crate, which cargo names.
fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("xtask"), PathBuf::from);
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns the text of a file, or an error that names it.
fn read(root: &Path, path: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
}
