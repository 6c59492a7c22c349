//! Commands that are programs of their own, so that who runs brokers and nodes builds neither an SQL engine nor
//! benches.

use crate::Outcome;
use crate::exit::Failure;
use farpool_command::programs;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the program is given: --help behind the command shows it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Becomes a program of this repository, which a goal of the Makefile builds. Returns only if it cannot.
pub(crate) fn run(program: &str, goal: &str, args: &Args) -> Outcome {
    become_program(Command::new(programs::own(program, goal)?).args(&args.rest))
}

/// Becomes any program. Returns only if it cannot.
pub(crate) fn become_program(command: &mut Command) -> Outcome {
    let error = command.exec();
    Err(Failure::Failed(format!("{} cannot be run: {error}", command.get_program().display())))
}
