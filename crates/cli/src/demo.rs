//! `farpool demo`: starts the Python module `farpool.demo`. That module runs queries in DuckDB, and starts this program
//! as a broker and nodes.

use crate::{Outcome, hand_over};
use std::process::Command;

/// Run TPC-H queries that exceed their memory limit and spill to far memory.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool demo -- --scale 0.3 --repeat 3\n\
    Needs the Python wheel with its demo extra: pip install 'farpool[demo]'")]
pub(crate) struct Args {
    /// Python interpreter that has the farpool wheel installed
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Arguments of the demo; `farpool demo -- --help` lists them
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let own = std::env::current_exe()?;
    let mut python = Command::new(&args.python);
    hand_over::become_program(python.args(["-m", "farpool.demo"]).args(&args.rest).env("FARPOOL_BIN", own))
}
