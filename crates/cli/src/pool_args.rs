//! Arguments of commands that ask a pool once: the address of the pool and the format of the answer.

use crate::exit::Failure;
use crate::{Outcome, exposure};
use farpool::{Pool, PoolOptions, shown};
use farpool_command::json::JsonLine;
use std::io::Write;

#[derive(clap::Args)]
pub(crate) struct PoolArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Opens a session with this label, which `farpool status` shows.
pub(crate) fn open(args: &exposure::ClientArgs, label: &str) -> Result<Pool, Failure> {
    let exposure = args.exposure()?;
    let options = PoolOptions {
        label: Some(label.to_owned()),
        tls: exposure.tls,
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    Ok(Pool::connect_with(&args.pool, options)?)
}

impl PoolArgs {
    /// Opens a session with this label, which `farpool status` shows.
    pub(crate) fn open(&self, label: &str) -> Result<Pool, Failure> {
        open(&self.exposure, label)
    }

    /// Prints the JSON if `--json` is given, else the text.
    pub(crate) fn say(&self, json: &serde_json::Value, text: &[String]) -> Outcome {
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", JsonLine(json))?,
            false => text.iter().try_for_each(|line| writeln!(out, "{}", shown(line)))?,
        }
        out.flush()?;
        Ok(())
    }
}
