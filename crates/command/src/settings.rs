//! Settings from a file and from environment variables, for every flag of a program.
//!
//! The declaration of the flags is the only list there is: names of keys and variables are derived from it
//! (`declared`), the file is read without knowing it (`file`), and both are merged with the command line (`merged`).
//! Rising precedence: default, file, variable, flag.

pub mod declared;
mod environment;
pub mod file;
pub mod merged;
pub mod origin;
pub mod report;
#[cfg(test)]
mod tests;

use clap::Parser;
use declared::Scope;
use merged::{Asked, Completed, Sources};
use origin::{Mistake, Origins};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flag of every program that takes settings.
#[derive(clap::Args)]
pub struct Args {
    /// Settings file, in TOML [default: /etc/farpool/farpool.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    pub config: Option<PathBuf>,
}

/// Parses the arguments of this process, completed from variables and the settings file. Mistakes, help and version are
/// printed; then the exit code is returned.
pub fn parse<T: Parser>(scope: &Scope) -> Result<(T, Origins), ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let completed = complete::<T>(scope, arguments).map_err(|mistakes| {
        for mistake in &mistakes {
            eprintln!("farpool: {mistake}");
        }
        ExitCode::from(2)
    })?;
    let Completed { arguments, origins } = completed;
    match T::try_parse_from(arguments) {
        Ok(parsed) => Ok((parsed, origins)),
        Err(error) => {
            // Nobody may be reading.
            let _ = error.print();
            let about: String = error.context().map(|(_, value)| format!("{value} ")).collect();
            for line in origins.explain(&about) {
                eprintln!("farpool: {}", farpool_files::shown(&line));
            }
            Err(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
        }
    }
}

/// Parses arguments of a library, completed from variables alone: what a machine's settings file says is for its
/// programs. `Err` is the text of all mistakes.
pub fn parse_words<T: Parser>(scope: &Scope, words: &str) -> Result<T, String> {
    let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
    let mut root = T::command();
    root.build();
    let variables = environment::variables();
    let completed = match Asked::find(&root, T::command(), scope, &arguments) {
        Some(asked) => asked.complete(&arguments, Sources { variables: &variables, file: None }),
        None => return T::try_parse_from(arguments).map_err(|error| error.to_string()),
    };
    let completed = completed
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    T::try_parse_from(completed.arguments).map_err(|error| error.to_string())
}

fn complete<T: Parser>(scope: &Scope, arguments: Vec<OsString>) -> Result<Completed, Vec<Mistake>> {
    let mut root = T::command();
    root.build();
    let Some(asked) = Asked::find(&root, T::command(), scope, &arguments) else {
        return Ok(Completed { arguments, origins: Origins::default() });
    };
    let variables = environment::variables();
    let file = environment::file(asked.config.as_deref(), &variables).map_err(|mistake| vec![mistake])?;
    let sources = Sources { variables: &variables, file: file.as_ref() };
    let mut mistakes = file.as_ref().map_or(Vec::new(), |file| file.mistakes.clone());
    if let Some(file) = &file {
        mistakes.extend(report::unknown_keys(&root, scope, file, Some(&asked.table)));
    }
    match asked.complete(&arguments, sources) {
        Ok(completed) if mistakes.is_empty() => Ok(completed),
        Ok(_) => Err(mistakes),
        Err(others) => Err([mistakes, others].concat()),
    }
}
