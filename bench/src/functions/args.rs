//! Arguments of `farpool bench functions`.

use super::row_groups;
use crate::query::wide_table::Transport;
use crate::units;
use farpool_host::waiting::Waiting;
use std::path::PathBuf;

/// Calls of shipped functions (resident, Wasm, native), beside empty round trips, page reads and thread migration.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench functions --calls 1000 --waiting adaptive --waiting park")]
pub(crate) struct FunctionArgs {
    /// Calls of each kind, over all rounds; a tenth of that for first calls
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(super) calls: u32,
    /// Rounds; each round measures every kind once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Waiting mode of clients and nodes: spin, adaptive or park; may be given several times
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_values = ["adaptive", "park"])]
    pub(super) waiting: Vec<Waiting>,
    /// Size of the list that the functions walk
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB")]
    pub(super) size: u64,
    /// Steps of the long walk that compares Wasm with native code; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(super) steps: u64,
    /// Steps of work per value of the table that the function is run over with each placement
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = row_groups::WORK, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) work: Vec<u64>,
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Transport::Tcp, Transport::Shm])]
    pub(super) transports: Vec<Transport>,
    /// Address of an existing pool [default: start one]. The nodes of an existing pool cannot be restarted, so first
    /// calls of functions in the compile cache are not measured
    #[arg(long, value_name = "ADDRESS")]
    pub(super) pool: Option<String>,
    /// Connect to the existing pool without TLS, even on another machine
    #[arg(long, requires = "pool")]
    pub(super) plaintext: bool,
    /// Directory with the functions built by examples/functions/build.sh, with and without --native. Adds native calls,
    /// and scans by modules with and without vector instructions beside native ones. Not for existing pools, whose
    /// nodes do not know the signing key of this run
    #[arg(long, value_name = "DIR", conflicts_with = "pool")]
    pub(super) examples: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}
