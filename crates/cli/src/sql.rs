//! `farpool sql`: hands over to `farpool-sql`, a program of its own, so that who runs brokers and nodes does not build an
//! SQL engine.

use crate::Outcome;
use crate::exit::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

const PROGRAM: &str = "farpool-sql";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What farpool-sql is given: `farpool sql --help` shows it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Becomes that program: the one beside this one, or else that of the path. Returns only if it cannot.
pub(crate) fn run(args: &Args) -> Outcome {
    let beside =
        std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|file| file.is_file());
    let program = beside.unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(&args.rest).exec();
    let program = program.display();
    Err(Failure::Failed(format!(
        "{program} cannot be run: {error}; it is a program of its own, built by `make sql`"
    )))
}
