//! Search for the programs that a command starts, or replaces itself by.

use crate::exit::Failure;
use std::path::PathBuf;

/// Finds a program of this repository: in the directory of this program, or else in `PATH`. The failure names the
/// Makefile target that builds it.
pub fn own(name: &str, goal: &str) -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe()?.with_file_name(name);
    let found = if beside.is_file() { Some(beside) } else { in_path(name) };
    found.ok_or_else(|| {
        Failure::Failed(format!(
            "{name} was found neither beside this program nor in PATH: `make {goal}` builds it"
        ))
    })
}

/// Finds a program in `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_missing_is_named_with_what_builds_it() {
        let Err(Failure::Failed(message)) = own("no-such-program", "everything") else { panic!("found") };
        assert!(message.contains("no-such-program") && message.contains("make everything"), "{message}");
        assert!(in_path("sh").is_some());
    }
}
