//! What `farpool bench functions` is asked for.

use super::row_groups;
use crate::query::wide_table::Transport;
use crate::units;
use farpool_host::waiting::Waiting;
use std::path::PathBuf;

/// Calls of shipped functions: resident, Wasm, native, beside empty round trips, page reads and thread migration.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench functions --calls 1000 --waiting adaptive --waiting park")]
pub(crate) struct FunctionArgs {
    /// Calls of each kind, in all rounds; of first uses a tenth
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(super) calls: u32,
    /// Rounds, in each of which every kind has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// How all sides wait: spin, adaptive, park; may be given several times
    #[arg(long, value_name = "HOW", value_parser = units::waiting, default_values = ["adaptive", "park"])]
    pub(super) waiting: Vec<Waiting>,
    /// Bytes of the list that is walked
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB")]
    pub(super) size: u64,
    /// Steps of the long walk that compares Wasm with native code; 0: none
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(super) steps: u64,
    /// Steps for each value of a table by the function that runs at the node, here, and at both
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = row_groups::WORK, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) work: Vec<u64>,
    /// How the client reaches the node
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Transport::Tcp, Transport::Shm])]
    pub(super) transports: Vec<Transport>,
    /// A pool that is there, by the address of its broker; by default one is started. Its nodes cannot be started
    /// again, so no first use of what a node compiled in an earlier life is measured
    #[arg(long, value_name = "ADDRESS")]
    pub(super) pool: Option<String>,
    /// Reach it without TLS, also beyond this machine
    #[arg(long, requires = "pool")]
    pub(super) plaintext: bool,
    /// A folder of what examples/functions/build.sh makes, with --native and without: for native calls, and for scans
    /// by modules with and without vectors beside native ones. Nodes of a pool that is there do not know the key of
    /// this run
    #[arg(long, value_name = "DIR", conflicts_with = "pool")]
    pub(super) examples: Option<PathBuf>,
    /// For machines: one JSON object
    #[arg(long)]
    pub(super) json: bool,
}
