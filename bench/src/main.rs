//! `farpool bench`: what far memory costs on this machine, and what it costs the machine.
//!
//! The idea: a figure means something only beside another of the same run. So each point is measured in turns with
//! its ceiling (memcpy of the same bytes, an empty round trip) and with what a user would pick instead, and every
//! byte that is read is compared with what was written, outside the timed part.
#![forbid(unsafe_code)]

mod access;
mod bursts;
mod cache;
mod ciphers;
mod contenders;
mod contents;
mod cpu;
mod cryptopp;
mod empty_rpc;
mod fairness;
mod far;
mod figures;
mod files;
mod functions;
mod groups;
mod heat_map;
mod io;
mod join;
mod joins;
mod key_value;
mod leases;
mod libfabric;
mod machine;
mod measure;
mod neighbour;
mod operators;
mod patterns;
mod place;
mod plot;
mod processes;
mod program;
mod report;
mod rivals;
mod scan;
mod scan_clients;
mod shape;
mod tiers;
mod tiers_figures;
mod tiers_plot;
mod tiers_runner;
mod waiting;
mod wide_table;

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
    Io(Box<io::IoArgs>),
    /// Random reads of a file four times as large as local memory: from its disk, and through a cache in far memory.
    Cache(cache::CacheArgs),
    /// Tickets a second, and the time to set up a lease.
    Leases(leases::LeaseArgs),
    /// Calls of shipped functions, beside empty round trips, page reads and thread migration.
    Functions(functions::FunctionArgs),
    /// How fast rows are grouped, by what nodes and clients run.
    Groups(groups::GroupsArgs),
    /// Hash joins in memory, partitioned and not, phase by phase.
    Join(join::JoinArgs),
    /// What clients with one read under way get beside one with many.
    Fairness(fairness::FairnessArgs),
    /// What a donor's own work loses while its memory is served.
    Neighbour(neighbour::NeighbourArgs),
    /// A query over a far table: fetched, shipped, split.
    Scan(scan::ScanArgs),
    /// Queries as the planner chooses to run them, beside fetching, shipping and splitting all of them.
    Place(place::PlaceArgs),
    /// Hash joins over two memory tiers, under a virtual clock, emulated or on two nodes, beside paper 002.
    Tiers(tiers::TierArgs),
    /// What spinning and parking cost on CPUs that are idle, busy, or only one.
    Waiting(waiting::WaitingArgs),
    /// Near-data operators beside the memory they read, and beside what others would run.
    Operators(operators::OperatorArgs),
}

fn main() -> ExitCode {
    let outcome = match &Cli::parse().command {
        Command::Io(args) => io::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Leases(args) => leases::run(args),
        Command::Functions(args) => functions::run(args),
        Command::Groups(args) => groups::run(args),
        Command::Join(args) => join::run(args),
        Command::Fairness(args) => fairness::run(args),
        Command::Neighbour(args) => neighbour::run(args),
        Command::Scan(args) => scan::run(args),
        Command::Place(args) => place::run(args),
        Command::Tiers(args) => tiers::run(args),
        Command::Waiting(args) => waiting::run(args),
        Command::Operators(args) => operators::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure),
    }
}

type Outcome = Result<(), Failure>;
