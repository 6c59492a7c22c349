//! `farpool demo`: hands over to the measuring program of the Python wheel, which drives DuckDB and starts
//! this very binary as broker and nodes.

use crate::Outcome;
use crate::exit::Failure;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Run TPC-H queries that do not fit their memory limit, spilling to far memory.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool demo -- --scale 0.3 --repeat 3\n\
    Needs the Python wheel with its demo extra: pip install 'farpool[demo]'")]
pub(crate) struct Args {
    /// The Python that has the farpool wheel
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Passed on; `-- --help` lists what there is
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let own = std::env::current_exe()?;
    let status = Command::new(&args.python)
        .args(["-m", "farpool.demo"])
        .args(&args.rest)
        .env("FARPOOL_BIN", own)
        .status()
        .map_err(|error| Failure::Failed(format!("--python {}: {error}", args.python)))?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::Said(u8::try_from(code).unwrap_or(2))),
        (None, signal) => {
            Err(Failure::Failed(format!("the demo was ended by signal {}", signal.unwrap_or(0))))
        }
    }
}
