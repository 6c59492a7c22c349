//! Subcommands that are programs of their own. Hosts that run only brokers and nodes therefore need neither the SQL
//! engine nor the benchmarks.

use crate::Outcome;
use crate::exit::Failure;
use farpool_command::programs;
use farpool_command::settings::{self, declared::CONFIG};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the program; `farpool COMMAND --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Replaces this process by a program of this repository, which the Makefile target `goal` builds. Returns only if the
/// program cannot be run.
pub(crate) fn run(program: &str, goal: &str, args: &Args, settings: &settings::Args) -> Outcome {
    let mut command = Command::new(programs::own(program, goal)?);
    // A flag that stands before the name of the subcommand.
    command.envs(settings.config.iter().map(|file| (CONFIG, file)));
    become_program(command.args(&args.rest))
}

/// Returns what the program `farpool-NAME` says about itself: its flags and its settings. `None` if it is not
/// installed, or of another version.
pub(crate) fn described(name: &str, settings: &settings::Args) -> Option<serde_json::Value> {
    let mut program = Command::new(programs::own(&format!("farpool-{name}"), name).ok()?);
    program.envs(settings.config.iter().map(|file| (CONFIG, file)));
    let output = program.arg("describe").output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// Replaces this process by a program. Returns only if it cannot be run.
pub(crate) fn become_program(command: &mut Command) -> Outcome {
    let error = command.exec();
    Err(Failure::Failed(format!("{} cannot be run: {error}", command.get_program().display())))
}
