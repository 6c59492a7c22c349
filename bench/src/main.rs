//! `farpool bench`: measures far memory on this machine, in time and in CPU time.
//!
//! The idea: two figures are comparable only if they come from one run. A run therefore alternates between far memory,
//! its ceiling (memcpy of the same bytes, or an empty round trip) and what a user would use instead, such as Redis or a
//! disk. Every byte that is read is compared with the byte that was written, outside the timed part.
#![forbid(unsafe_code)]

mod functions;
mod harness;
mod io;
mod query;
mod tables;
mod tiers;

use clap::Parser;
use exit::Failure;
use farpool_command::settings::origin::Origins;
use farpool_command::{exit, exposure, input, signals, table, units};
use std::process::ExitCode;

/// Run a benchmark on this machine.
#[derive(Parser)]
#[command(name = "farpool bench", bin_name = "farpool bench", version, propagate_version = true)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Reads and writes over each transport, beside memcpy and, on request, rival systems.
    Io(Box<io::transports::IoArgs>),
    /// Random reads of a file four times the size of local memory: from disk, and through a cache in far memory.
    Cache(io::cache::CacheArgs),
    /// Tickets per second, and the time to set up a lease.
    Leases(io::leases::LeaseArgs),
    /// Calls of shipped functions, beside empty round trips, page reads and thread migration.
    Functions(functions::FunctionArgs),
    /// Speed of grouping rows, with the code that nodes and clients run.
    Groups(query::groups::GroupsArgs),
    /// Hash joins in memory, partitioned and unpartitioned, phase by phase.
    Join(tiers::hash_join::JoinArgs),
    /// Throughput of clients with one outstanding read beside a client with many.
    Fairness(io::fairness::FairnessArgs),
    /// Slowdown of other work on a host while its memory is served.
    Neighbour(io::neighbour::NeighbourArgs),
    /// Commits and readers of the manifest of a table of 10 TiB, with the code of real tables over pages in memory.
    Manifest(tables::manifest::ManifestArgs),
    /// A query over a far table: fetched, shipped and split.
    Scan(query::scan::ScanArgs),
    /// Queries with automatic placement, beside fetch, ship and split.
    Place(query::place::PlaceArgs),
    /// Hash joins over two memory tiers, with a virtual clock, emulated or on two NUMA nodes, beside paper 002.
    Tiers(tiers::two_tiers::TierArgs),
    /// Cost of spinning and parking on CPUs that are idle or busy, and with a single CPU.
    Waiting(io::waiting::WaitingArgs),
    /// Near-data operators, beside memory bandwidth and alternative libraries.
    Operators(query::operators::OperatorArgs),
}

fn main() -> ExitCode {
    let outcome = match &Cli::parse().command {
        Command::Io(args) => io::transports::run(args),
        Command::Cache(args) => io::cache::run(args),
        Command::Leases(args) => io::leases::run(args),
        Command::Functions(args) => functions::run(args),
        Command::Groups(args) => query::groups::run(args),
        Command::Join(args) => tiers::hash_join::run(args),
        Command::Fairness(args) => io::fairness::run(args),
        Command::Neighbour(args) => io::neighbour::run(args),
        Command::Manifest(args) => tables::manifest::run(args),
        Command::Scan(args) => query::scan::run(args),
        Command::Place(args) => query::place::run(args),
        Command::Tiers(args) => tiers::two_tiers::run(args),
        Command::Waiting(args) => io::waiting::run(args),
        Command::Operators(args) => query::operators::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, &Origins::default()),
    }
}

type Outcome = Result<(), Failure>;
