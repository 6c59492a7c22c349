//! `farpool ls`: lists the published files of a pool.

use crate::pool_args::PoolArgs;
use crate::units::show_bytes;
use crate::{Outcome, table};
use farpool::FileInfo;
use serde_json::json;

/// List the published files of a pool.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool ls tables/ --pool farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    /// List only files whose names begin with this; tables are below tables/
    #[arg(default_value = "")]
    prefix: String,
    #[command(flatten)]
    pool: PoolArgs,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let files = args.pool.open("farpool ls")?.list(&args.prefix)?;
    let json: Vec<_> = files
        .iter()
        .map(|file| {
            json!({ "name": file.name, "bytes": file.bytes, "class": file.class.word(), "lost": file.is_lost })
        })
        .collect();
    let row = |file: &FileInfo| {
        let state = if file.is_lost { "lost" } else { "whole" };
        vec![file.name.clone(), show_bytes(file.bytes), file.class.word().to_owned(), state.to_owned()]
    };
    let text = match files.is_empty() {
        true => vec!["No published files with such names.".to_owned()],
        false => {
            table::lines(&["file", "size", "class", "state"], &files.iter().map(row).collect::<Vec<_>>())
        }
    };
    args.pool.say(&json!({ "files": json }), &text)
}
