//! `farpool bench`: what far memory costs on this machine, and what it costs the machine.
//!
//! The idea: a figure means something only beside another of the same run. So each point is measured in turns with
//! its ceiling (memcpy of the same bytes, an empty round trip) and with what a user would pick instead, and every
//! byte that is read is compared with what was written, outside the timed part.
#![forbid(unsafe_code)]

mod functions;
mod harness;
mod io;
mod query;
mod tiers;

use clap::Parser;
use exit::Failure;
use farpool_command::{exit, input, reach, signals, table, units};
use std::process::ExitCode;

/// Measure this machine.
#[derive(Parser)]
#[command(name = "farpool bench", bin_name = "farpool bench", version, propagate_version = true)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Far reads and writes over each transport, beside memcpy and, when asked, beside what others use.
    Io(Box<io::transports::IoArgs>),
    /// Random reads of a file four times as large as local memory: from its disk, and through a cache in far memory.
    Cache(io::cache::CacheArgs),
    /// Tickets a second, and the time to set up a lease.
    Leases(io::leases::LeaseArgs),
    /// Calls of shipped functions, beside empty round trips, page reads and thread migration.
    Functions(functions::FunctionArgs),
    /// How fast rows are grouped, by what nodes and clients run.
    Groups(query::groups::GroupsArgs),
    /// Hash joins in memory, partitioned and not, phase by phase.
    Join(tiers::hash_join::JoinArgs),
    /// What clients with one read under way get beside one with many.
    Fairness(io::fairness::FairnessArgs),
    /// What a donor's own work loses while its memory is served.
    Neighbour(io::neighbour::NeighbourArgs),
    /// A query over a far table: fetched, shipped, split.
    Scan(query::scan::ScanArgs),
    /// Queries as the planner chooses to run them, beside fetching, shipping and splitting all of them.
    Place(query::place::PlaceArgs),
    /// Hash joins over two memory tiers, under a virtual clock, emulated or on two nodes, beside paper 002.
    Tiers(tiers::two_tiers::TierArgs),
    /// What spinning and parking cost on CPUs that are idle, busy, or only one.
    Waiting(io::waiting::WaitingArgs),
    /// Near-data operators beside the memory they read, and beside what others would run.
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
        Command::Scan(args) => query::scan::run(args),
        Command::Place(args) => query::place::run(args),
        Command::Tiers(args) => tiers::two_tiers::run(args),
        Command::Waiting(args) => io::waiting::run(args),
        Command::Operators(args) => query::operators::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure),
    }
}

type Outcome = Result<(), Failure>;
