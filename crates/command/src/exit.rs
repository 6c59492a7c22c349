//! Failures and the exit codes they end with.

use crate::settings::origin::Origins;
use farpool_files::ErrorKind;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// Reason why a command did not do its task.
#[derive(Debug)]
pub enum Failure {
    /// A peer or a policy refused.
    Refused(String),
    /// The arguments are invalid.
    Usage(String),
    /// The command was tried and failed.
    Failed(String),
    /// The reader of the output has gone (broken pipe). The command ends with exit code 0.
    NobodyReads,
}

impl Failure {
    /// Wraps an error as [`Failure::Failed`].
    pub fn failed(what: impl fmt::Display) -> Failure {
        Failure::Failed(what.to_string())
    }
}

impl From<farpool_files::Error> for Failure {
    fn from(error: farpool_files::Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Failure::Usage(error.to_string()),
            ErrorKind::Unreachable => Failure::Failed(error.to_string()),
            _ => Failure::Refused(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Failure::NobodyReads } else { Failure::failed(error) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(text) | Failure::Usage(text) | Failure::Failed(text) => f.write_str(text),
            Failure::NobodyReads => Ok(()),
        }
    }
}

/// Prints the failure on standard error, with the origin of the settings that it is about; [`Failure::NobodyReads`]
/// prints nothing. Returns the exit code for it.
pub fn report(failure: &Failure, origins: &Origins) -> ExitCode {
    let code = match failure {
        Failure::NobodyReads => return ExitCode::SUCCESS,
        Failure::Refused(_) => 1,
        Failure::Usage(_) | Failure::Failed(_) => 2,
    };
    let text = failure.to_string();
    eprintln!("farpool: {}", farpool_files::shown_lines(&text));
    for line in origins.explain(&text) {
        eprintln!("farpool: {}", farpool_files::shown(&line));
    }
    ExitCode::from(code)
}
