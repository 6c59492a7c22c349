//! The `farpool` command. Each subcommand has its own file. This file parses the arguments and maps outcomes to exit
//! codes: 0 done, 1 refused (by a peer or by policy), 2 usage error or failure.
#![forbid(unsafe_code)]

mod broker;
mod certs;
mod config;
mod demo;
mod doctor;
mod drain;
mod far_table;
mod function;
mod hand_over;
mod ls;
mod manual;
mod monitored;
mod mount;
mod mount_helper;
mod node;
mod pool_args;
mod status;
mod tiers;
mod top;
mod version;

use clap::{Parser, Subcommand};
use exit::Failure;
use farpool_command::settings::{self, declared::Scope};
use farpool_command::{exit, exposure, input, log, monitoring, signals, supervisor, table, units};
use std::process::ExitCode;

/// Far memory for database engines: idle RAM, leased as files.
#[derive(Parser)]
#[command(name = "farpool", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Try it:  farpool broker --listen 127.0.0.1:7700 &\n         \
    farpool node --name n1 --memory 1GiB --broker farpool://127.0.0.1:7700 &\n         \
    farpool status --pool farpool://127.0.0.1:7700")]
struct Cli {
    #[command(flatten)]
    settings: settings::Args,
    #[command(flatten)]
    log: log::Args,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the broker of a pool: it admits sessions, grants memory and keeps the names of published files.
    Broker(broker::Args),
    /// Run a memory node: donate RAM of this machine to a pool.
    Node(node::Args),
    /// Show a pool: nodes, regions, sessions, tenants, files, traffic.
    Status(status::Args),
    /// Show a pool live: memory, traffic per second, sessions and tenants.
    Top(top::Args),
    /// List the published files of a pool.
    Ls(ls::Args),
    /// Empty a node: its data moves to other nodes, then its process ends.
    Drain(drain::Args),
    /// List, describe and drop the far tables of a pool.
    #[command(subcommand)]
    Table(far_table::Command),
    /// Build, store and call functions that run beside the data.
    #[command(subcommand, name = "fn")]
    Function(function::Command),
    /// Query far tables and local Parquet files in SQL (runs farpool-sql, which contains the SQL engine).
    #[command(disable_help_flag = true)]
    Sql(hand_over::Args),
    /// Give pods far memory as volumes (runs farpool-csi, a driver for the Container Storage Interface).
    #[command(disable_help_flag = true)]
    Csi(hand_over::Args),
    /// Mount far memory as a directory.
    #[command(subcommand)]
    Mount(mount::Command),
    /// Check what this machine offers to Farpool, and say what to change.
    Doctor(doctor::Args),
    /// Show the memory tiers of this machine and their measured bandwidth.
    Tiers(tiers::Args),
    /// Create and list the certificates of a pool.
    #[command(subcommand)]
    Certs(certs::Command),
    /// Run a benchmark on this machine (runs farpool-bench).
    #[command(disable_help_flag = true)]
    Bench(hand_over::Args),
    /// Show and check the settings of this machine: the settings file and the environment.
    #[command(subcommand)]
    Config(config::Command),
    /// Show the version of this program, its commit and the protocol versions that it speaks.
    Version(version::Args),
    /// Print the completions of a shell.
    Completions(manual::CompletionsArgs),
    /// Write the manual pages of all subcommands.
    Man(manual::ManArgs),
    /// Run TPC-H queries that exceed their memory limit and spill to far memory.
    Demo(demo::Args),
}

/// Subcommands that take settings. A benchmark takes none: its figures belong to the command line that was typed.
const SCOPE: Scope = Scope {
    table: &[],
    without: &["bench", "completions", "config", "man", "version"],
    elsewhere: &["sql", "csi"],
};

fn main() -> ExitCode {
    if let Some(code) = mount_helper::run_if_called() {
        return code;
    }
    let (cli, origins) = match settings::parse::<Cli>(&SCOPE) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    cli.log.begin();
    let outcome = match cli.command {
        Command::Broker(args) => broker::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Table(command) => far_table::run(&command),
        Command::Function(command) => function::run(&command),
        Command::Sql(args) => hand_over::run("farpool-sql", "sql", &args, &cli.settings),
        Command::Csi(args) => hand_over::run("farpool-csi", "csi", &args, &cli.settings),
        Command::Mount(command) => mount::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Tiers(args) => tiers::run(&args),
        Command::Certs(command) => certs::run(&command),
        Command::Bench(args) => hand_over::run("farpool-bench", "benches", &args, &cli.settings),
        Command::Config(command) => config::run(&command, &cli.settings),
        Command::Version(args) => version::run(&args),
        Command::Completions(args) => manual::completions(&args, &cli.settings),
        Command::Man(args) => manual::man(&args, &cli.settings),
        Command::Demo(args) => demo::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, &origins),
    }
}

type Outcome = Result<(), Failure>;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farpool_command::settings::declared::{flags, leaves};
    use farpool_command::settings::report::documented;
    use std::collections::BTreeSet;

    /// Variables of programs, tests and builds, which are no settings.
    const TAKEN: [&str; 12] = [
        "FARPOOL_BIN",
        "FARPOOL_COMMIT",
        "FARPOOL_CONFIG",
        "FARPOOL_ETCD",
        "FARPOOL_FUNCTIONS",
        "FARPOOL_POSTGRES",
        "FARPOOL_PROGRAMS",
        "FARPOOL_SANDBOX",
        "FARPOOL_SEED",
        "FARPOOL_SQLITE",
        "FARPOOL_SQL_BIN",
        "FARPOOL_WHEELS",
    ];

    #[test]
    fn declaration_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_variable_belongs_to_one_setting_and_to_nothing_else() {
        let mut root = Cli::command();
        root.build();
        let mut seen: BTreeSet<String> = TAKEN.iter().map(|name| (*name).to_owned()).collect();
        for leaf in leaves(&root, &SCOPE) {
            for flag in flags(leaf.command, &leaf.table) {
                assert!(seen.insert(flag.variables[0].clone()), "{} is taken", flag.variables[0]);
                for other in ["SQL", "CSI"] {
                    let is_taken = flag.variables[0].starts_with(&format!("FARPOOL_{other}_"));
                    assert!(!is_taken, "{} is of another program", flag.variables[0]);
                }
            }
        }
        let commons =
            ["POOL", "CERTS", "TENANT", "PLAINTEXT", "LOG_LEVEL"].map(|name| format!("FARPOOL_{name}"));
        let status = root.find_subcommand("status").expect("status");
        let of_status: Vec<String> =
            flags(status, &["status".to_owned()]).into_iter().flat_map(|flag| flag.variables).collect();
        for common in commons {
            assert!(of_status.contains(&common), "{common}");
            assert!(seen.insert(common.clone()), "{common} is taken");
        }
    }

    #[test]
    fn document_lists_all_settings() {
        let text = include_str!("../../../docs/configuration.md");
        let is_row = |line: &&str| {
            let is_elsewhere = SCOPE.elsewhere.iter().any(|name| line.starts_with(&format!("| `[{name}")));
            (line.starts_with("| `[") && !is_elsewhere) || line.starts_with("| at the top")
        };
        let found: Vec<&str> = text.lines().filter(is_row).collect();
        assert_eq!(found.join("\n"), documented::<Cli>(&SCOPE).join("\n"), "docs/configuration.md");
    }
}
