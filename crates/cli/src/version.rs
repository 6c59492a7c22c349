//! `farpool version`: what this program was made from, and which protocol versions it speaks.

use crate::Outcome;
use farpool_command::json::JsonLine;
use farpool_wire::limits::{VERSION_MAX, VERSION_MIN};
use serde_json::json;
use std::io::Write;

/// Show the version of this program, its commit and the protocol versions that it speaks.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool version --json")]
pub(crate) struct Args {
    /// Print the version as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let (commit, target, compiler) =
        (env!("FARPOOL_BUILD_COMMIT"), env!("FARPOOL_BUILD_TARGET"), env!("FARPOOL_BUILD_COMPILER"));
    let mut out = std::io::stdout().lock();
    if args.json {
        let json = json!({
            "version": version, "commit": commit, "target": target, "compiler": compiler,
            "protocol_min": VERSION_MIN, "protocol_max": VERSION_MAX,
        });
        writeln!(out, "{}", JsonLine(&json))?;
    } else {
        writeln!(out, "farpool {version}\ncommit    {commit}\nprotocol  {VERSION_MIN} to {VERSION_MAX}")?;
        writeln!(out, "target    {target}\ncompiler  {compiler}")?;
    }
    Ok(())
}
