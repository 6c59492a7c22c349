//! `farpool csi`: far memory as volumes of pods, for Kubernetes and whatever else speaks the Container Storage
//! Interface (CSI).
//!
//! The idea: two processes on each machine, in pods of their own. The *volume server* mounts: it starts a
//! `farpool mount scratch` for each volume, and puts it into pods. The *driver* answers the kubelet, keeps the records
//! of volumes, and asks the volume server. So only the volume server has privileges, and the driver can be replaced or
//! killed at any moment without a loss: volumes are served by processes outside its control group.
//!
//! `driver` runs the services of CSI: `identity`, `controller` and `node`, which share `state`. `spec` says what a
//! volume may be, and `records` keeps volumes on disk. `volume_server` mounts, by `serving` (a volume's process) and
//! `binding` (a pod's path). `sockets` opens Unix sockets. `figures` shows each volume over HTTP.
//!
//! Invariant: every request may be sent again, and a process may be killed in the middle of any of them.
#![forbid(unsafe_code)]

mod binding;
mod controller;
mod driver;
mod figures;
mod identity;
mod node;
mod records;
mod serving;
mod sockets;
mod spec;
mod state;
mod volume_server;

/// Messages and services of `proto/csi.proto`.
#[allow(clippy::all, dead_code, reason = "generated code")]
mod csi {
    tonic::include_proto!("csi.v1");
}

/// Messages and services of `proto/volume_server.proto`.
#[allow(clippy::all, dead_code, reason = "generated code")]
mod volumes {
    tonic::include_proto!("farpool.csi.v1");
}

use clap::{CommandFactory, Parser, Subcommand};
use farpool_command::exit::{self, Failure};
use farpool_command::settings::{self, declared::Scope};
use farpool_command::{declaration, log};
use std::io::Write;
use std::process::ExitCode;

/// Far memory as volumes of pods, by the Container Storage Interface.
#[derive(Parser)]
#[command(name = "farpool csi", bin_name = "farpool csi", version, max_term_width = 100)]
#[command(
    after_help = "Both run on every machine, in control groups of their own: deploy/helm/farpool starts them."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    settings: settings::Args,
    #[command(flatten)]
    log: log::Args,
}

#[derive(Subcommand)]
enum Command {
    /// Answer the kubelet; needs no privileges
    Driver(Box<driver::Args>),
    /// Mount volumes and keep them mounted; needs root and the right to mount
    VolumeServer(Box<volume_server::Args>),
    /// Print the flags of this program, its settings and the mistakes in them as JSON, for `farpool`
    #[command(hide = true)]
    Describe,
}

/// Subcommands that take settings.
const SCOPE: Scope = Scope { table: &["csi"], without: &[], elsewhere: &[] };

fn main() -> ExitCode {
    let (args, origins) = match settings::parse::<Args>(&SCOPE) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    args.log.begin();
    let done = match &args.command {
        Command::Driver(args) => driver::run(args),
        Command::VolumeServer(args) => volume_server::run(args),
        Command::Describe => describe(&args.settings),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, &origins),
    }
}

fn describe(args: &settings::Args) -> Result<(), Failure> {
    let found = settings::report::SettingsReport::of::<Args>(&SCOPE, args.config.as_deref());
    let mut command = Args::command();
    command.build();
    let told = serde_json::json!({ "report": found.json(), "declaration": declaration::to_json(&command) });
    writeln!(std::io::stdout(), "{told}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_command::settings::report::documented;

    #[test]
    fn declaration_is_sound_and_document_lists_all_settings() {
        Args::command().debug_assert();
        let text = include_str!("../../../docs/configuration.md");
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `[csi")).collect();
        assert_eq!(found.join("\n"), documented::<Args>(&SCOPE).join("\n"), "docs/configuration.md");
    }
}
