//! The log of a command: events on standard error, as text for people or as JSON lines for programs.

use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// Heading of these flags. They mean the same in every command.
const LOG: &str = crate::settings::declared::COMMON[1];

/// Flags of every command that may log.
#[derive(clap::Args)]
pub struct Args {
    /// Least severe events to log
    #[arg(long, global = true, value_name = "LEVEL", value_enum, default_value_t = Level::Info, help_heading = LOG)]
    log_level: Level,
    /// Format of the log on standard error; auto is text on a terminal and JSON lines elsewhere
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t = Format::Auto, help_heading = LOG)]
    log_format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Auto,
    Text,
    Json,
}

impl Args {
    /// Makes this process write its events to standard error. Called once, before anything can log.
    pub fn begin(&self) {
        let level = match self.log_level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        };
        let is_terminal = std::io::stderr().is_terminal();
        let is_json = self.log_format == Format::Json || (self.log_format == Format::Auto && !is_terminal);
        // Events of other libraries that are less severe than warnings are of interest to their developers only.
        let events = Targets::new().with_target("farpool", level).with_default(level.min(LevelFilter::WARN));
        // Nobody may read standard error any more, such as that of a mount whose supervisor has ended. The layer would
        // panic when it cannot say there that it cannot write there.
        let layer = fmt::layer().with_writer(std::io::stderr).with_target(false).log_internal_errors(false);
        let events = tracing_subscriber::registry().with(events);
        let begun = if is_json {
            tracing::subscriber::set_global_default(events.with(layer.json().flatten_event(true)))
        } else {
            let is_coloured =
                is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            tracing::subscriber::set_global_default(events.with(layer.with_ansi(is_coloured)))
        };
        debug_assert!(begun.is_ok(), "the log begins once");
    }
}
