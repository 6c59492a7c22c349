//! `farpool config`: the settings of this machine, where they come from, and the mistakes in them.

use crate::exit::Failure;
use crate::{Cli, Outcome, SCOPE, hand_over, settings, table};
use farpool_command::json::JsonLine;
use farpool_command::settings::declared::nearest;
use farpool_command::settings::report::{Setting, SettingsReport};
use std::io::Write;

/// Show and check the settings of this machine: the settings file and the environment.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show values and where they come from: of one subcommand, or all that are no defaults
    Show(ShowArgs),
    /// Check the settings of all subcommands, and print every mistake
    Check(CheckArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  farpool config show\n  farpool config show mount scratch\n\n\
    Exit code: 2 if there are mistakes")]
pub(crate) struct ShowArgs {
    /// Subcommand whose settings are shown, with their defaults
    #[arg(value_name = "SUBCOMMAND")]
    subcommand: Vec<String>,
    /// Print the settings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool config check --config farpool.toml\n\n\
    Exit code: 2 if there are mistakes")]
pub(crate) struct CheckArgs {
    /// Print the mistakes as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command, settings: &settings::Args) -> Outcome {
    let mut report = SettingsReport::of::<Cli>(&SCOPE, settings.config.as_deref());
    let unchecked = add_others(&mut report, settings);
    match command {
        Command::Show(args) => show(args, report, &unchecked),
        Command::Check(args) => check(args, &report, &unchecked),
    }
}

/// Adds the settings of the programs that are installed beside this one. Returns the names of those that are not.
fn add_others(report: &mut SettingsReport, settings: &settings::Args) -> Vec<&'static str> {
    let mut silent = Vec::new();
    for name in SCOPE.elsewhere {
        let described = hand_over::described(name, settings);
        match described.and_then(|described| SettingsReport::of_json(&described["report"])) {
            Some(found) => report.add(found),
            None => silent.push(*name),
        }
    }
    silent
}

fn show(args: &ShowArgs, mut report: SettingsReport, silent: &[&str]) -> Outcome {
    let asked = args.subcommand.join(".");
    if asked.is_empty() {
        report.settings.retain(|setting| setting.origin.is_some());
    } else {
        let tables: Vec<String> = report.settings.iter().map(|setting| setting.table.clone()).collect();
        report.settings.retain(|setting| setting.table == asked);
        if report.settings.is_empty() {
            if let Some(name) =
                silent.iter().find(|name| args.subcommand.first().is_some_and(|first| first == *name))
            {
                return Err(Failure::Failed(format!(
                    "farpool-{name} is not installed; it knows its settings"
                )));
            }
            let cure = match nearest(&asked, tables.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {}?", near.replace('.', " ")),
                None => "farpool --help lists the subcommands".to_owned(),
            };
            return Err(Failure::Usage(format!(
                "{:?} is no subcommand that takes settings; {cure}",
                args.subcommand.join(" ")
            )));
        }
    }
    let mut out = std::io::stdout().lock();
    let row = |one: &Setting| {
        let value = one.value.clone().unwrap_or_else(|| "-".to_owned());
        let origin = one.origin.clone().unwrap_or_else(|| "default".to_owned());
        vec![one.table.clone(), one.key.clone(), value, origin, one.variable.clone()]
    };
    if args.json {
        writeln!(out, "{}", JsonLine(&report.json()))?;
    } else if report.settings.is_empty() {
        writeln!(out, "All values are the defaults; farpool config show SUBCOMMAND shows them.")?;
    } else {
        let rows: Vec<Vec<String>> = report.settings.iter().map(row).collect();
        for line in table::lines(&["table", "key", "value", "origin", "variable"], &rows) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    failed(&report)
}

fn check(args: &CheckArgs, report: &SettingsReport, unchecked: &[&str]) -> Outcome {
    let mut out = std::io::stdout().lock();
    let given = report.settings.iter().filter(|setting| setting.origin.is_some()).count();
    if args.json {
        let mut json = report.json();
        json["unchecked"] = unchecked.into();
        if let Some(fields) = json.as_object_mut() {
            fields.remove("settings");
        }
        writeln!(out, "{}", JsonLine(&json))?;
    } else if report.mistakes.is_empty() {
        let file = report.file.as_deref().unwrap_or("no settings file");
        writeln!(out, "{}: {given} values are set, without a mistake", farpool::shown(file))?;
    }
    for name in unchecked.iter().filter(|name| report.others.contains(name)) {
        writeln!(std::io::stderr(), "farpool: [{name}] was not checked: farpool-{name} is not installed")?;
    }
    out.flush()?;
    failed(report)
}

/// Returns the mistakes as one failure. `Ok` if there are none.
fn failed(report: &SettingsReport) -> Outcome {
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(Failure::Usage(lines.join("\nfarpool: "))),
    }
}
