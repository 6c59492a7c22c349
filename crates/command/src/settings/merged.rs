//! Merges the sources of settings: a flag of the command line comes before a variable, and a variable before the file.
//! Pure: it reads no file and no environment.
//!
//! The result is the command line with the missing flags added, which the declaration then parses as if somebody had
//! typed them. So a setting is checked by the same code as its flag.

use super::declared::{Flag, Scope, flags};
use super::file::{EntryValue, File, FileEntry};
use super::origin::{Mistake, Origin, Origins};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Environment variables of Farpool that are set and not empty, by name.
pub type Variables = BTreeMap<String, OsString>;

/// Sources of values other than the command line.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// Environment variables.
    pub variables: &'a Variables,
    /// The settings file, if there is one.
    pub file: Option<&'a File>,
}

/// A value that a variable or the file gives to a flag.
#[derive(Debug)]
pub struct FlagValue {
    /// Name of the flag with its dashes.
    pub flag: String,
    /// Arguments that say the same: none for a switch that is off.
    pub arguments: Vec<OsString>,
    /// The value for people.
    pub shown: String,
    /// Where the value was written.
    pub origin: Origin,
}

/// Returns the values of a flag from all sources, the one that counts first.
pub fn values(flag: &Flag<'_>, table: &[String], sources: Sources<'_>) -> Vec<Result<FlagValue, Mistake>> {
    let named = flag.variables.iter();
    let variables = named.filter_map(|name| {
        let value = sources.variables.get(name)?;
        Some(of_words(flag, Origin::Variable(name.clone()), words_of_variable(flag, value)))
    });
    let is_own = |entry: &&FileEntry| entry.key == flag.key && entry.table == table;
    let is_common = |entry: &&FileEntry| entry.key == flag.key && entry.table.is_empty() && flag.is_common();
    let entries = sources.file.map_or(&[][..], |file| &file.entries[..]);
    let entries = entries.iter().filter(is_own).chain(entries.iter().filter(is_common));
    let of_file = entries.map(|entry| {
        let path = sources.file.map(|file| file.path.clone()).unwrap_or_default();
        of_words(flag, Origin::File { path, line: entry.line }, words_of_entry(flag, entry))
    });
    variables.chain(of_file).collect()
}

/// Values of a flag before they are checked: for a switch none (off) or an empty one (on).
type Words = Result<Vec<OsString>, String>;

fn words_of_variable(flag: &Flag<'_>, value: &OsStr) -> Words {
    if flag.is_switch() {
        return match value.to_str() {
            Some("true" | "1") => Ok(vec![OsString::new()]),
            Some("false" | "0") => Ok(Vec::new()),
            _ => Err(format!("{value:?} is neither true nor false; true, 1, false and 0 are permitted")),
        };
    }
    if !flag.is_list() {
        return Ok(vec![value.to_owned()]);
    }
    let parts = value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    Ok(parts.filter(|part| !part.is_empty()).map(|part| OsStr::from_bytes(part).to_owned()).collect())
}

fn words_of_entry(flag: &Flag<'_>, entry: &FileEntry) -> Words {
    let key = flag.key;
    match &entry.value {
        EntryValue::Switch(true) if flag.is_switch() => Ok(vec![OsString::new()]),
        EntryValue::Switch(false) if flag.is_switch() => Ok(Vec::new()),
        _ if flag.is_switch() => Err(format!("{key} is true or false, without quotes")),
        EntryValue::Switch(value) => Err(format!("{key} is {value}; a string in quotes is permitted")),
        EntryValue::One(word) => Ok(vec![word.into()]),
        EntryValue::Many(words) if flag.is_list() => Ok(words.iter().map(OsString::from).collect()),
        EntryValue::Many(_) => Err(format!("{key} takes one value, not an array")),
        EntryValue::Table => Err(format!("{key} is a table; a string in quotes is permitted")),
        EntryValue::Other(what) => Err(format!("{key} is {what}; a string in quotes is permitted")),
    }
}

fn of_words(flag: &Flag<'_>, origin: Origin, words: Words) -> Result<FlagValue, Mistake> {
    let mistake = |problem: String| Mistake { place: origin.to_string(), problem };
    let words = words.map_err(mistake)?;
    let long = format!("--{}", flag.key);
    if flag.is_switch() {
        let arguments: Vec<OsString> = words.iter().map(|_| OsString::from(&long)).collect();
        let shown = if arguments.is_empty() { "false" } else { "true" }.to_owned();
        return Ok(FlagValue { flag: long, arguments, shown, origin });
    }
    for word in &words {
        check(flag.arg, word).map_err(|problem| mistake(format!("{}: {problem}", flag.key)))?;
    }
    let argument = |word: &OsString| {
        let mut argument = OsString::from(format!("{long}="));
        argument.push(word);
        argument
    };
    let arguments = words.iter().map(argument).collect();
    let shown: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(FlagValue { flag: long, arguments, shown: shown.join(";"), origin })
}

/// Checks a value by the parser of its flag alone.
fn check(arg: &Arg, value: &OsStr) -> Result<(), String> {
    let mut argument = OsString::from("--value=");
    argument.push(value);
    let mut alone = Arg::new("value").long("value").value_parser(arg.get_value_parser().clone());
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let command = Command::new("check").no_binary_name(true).arg(alone);
    let Err(error) = command.try_get_matches_from([argument]) else { return Ok(()) };
    let shown = value.to_string_lossy();
    Err(match (error.source(), error.get(ContextKind::ValidValue)) {
        // The parsers of this project name the value themselves.
        (Some(inner), _) if inner.to_string().contains(&*shown) => inner.to_string(),
        (Some(inner), _) => format!("{shown:?} is not permitted: {inner}"),
        (None, Some(ContextValue::Strings(values))) => {
            format!("{shown:?} is not permitted; one of {} is", values.join(", "))
        }
        _ => format!("{shown:?} is not permitted"),
    })
}

/// Returns the values that the sources give to the flags of a subcommand. A flag that was given on the command line
/// gets none, and neither does one that conflicts with a flag of higher precedence: `--plaintext` on the command line
/// stands for itself, whatever certificates the file names.
pub fn chosen(
    command: &Command,
    table: &[String],
    is_given: &dyn Fn(&Arg) -> bool,
    sources: Sources<'_>,
) -> Result<Vec<FlagValue>, Vec<Mistake>> {
    let rank = |origin: &Origin| match origin {
        Origin::Default => 0,
        Origin::File { .. } => 1,
        Origin::Variable(_) => 2,
    };
    let mut mistakes = Vec::new();
    let mut found: Vec<(&Arg, FlagValue)> = Vec::new();
    for flag in flags(command, table).into_iter().filter(|flag| !is_given(flag.arg)) {
        match values(&flag, table, sources).into_iter().next() {
            Some(Ok(value)) => found.push((flag.arg, value)),
            Some(Err(mistake)) => mistakes.push(mistake),
            None => {}
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let given: Vec<(&Arg, u8)> =
        command.get_arguments().filter(|arg| is_given(arg)).map(|arg| (arg, 3)).collect();
    let others: Vec<(&Arg, u8)> = found
        .iter()
        .filter(|(_, value)| !value.arguments.is_empty())
        .map(|(arg, value)| (*arg, rank(&value.origin)))
        .chain(given)
        .collect();
    let is_beaten = |arg: &Arg, own: u8| {
        others.iter().any(|(other, other_rank)| *other_rank > own && conflict(command, arg, other))
    };
    let kept = found.into_iter().filter(|(arg, value)| !is_beaten(arg, rank(&value.origin)));
    Ok(kept.map(|(_, value)| value).collect())
}

fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |arg: &Arg, other: &Arg| {
        !arg.is_global_set()
            && command.get_arg_conflicts_with(arg).iter().any(|found| found.get_id() == other.get_id())
    };
    names(one, other) || names(other, one)
}

/// A command line whose missing flags were added.
pub struct Completed {
    /// The arguments, with the name of the program.
    pub arguments: Vec<OsString>,
    /// Where the added flags come from.
    pub origins: Origins,
}

/// The subcommand that a command line names, and what of it was given there.
pub struct Asked<'a> {
    /// Its table, with that of the program.
    pub table: Vec<String>,
    command: &'a Command,
    matches: ArgMatches,
    /// Value of `--config`.
    pub config: Option<std::path::PathBuf>,
}

impl<'a> Asked<'a> {
    /// Finds the subcommand. `None` if it takes no settings, or if the arguments ask for help. `root` is the
    /// declaration after [`Command::build`], and `unbuilt` the same before it.
    pub fn find(
        root: &'a Command,
        unbuilt: Command,
        scope: &Scope,
        arguments: &[OsString],
    ) -> Option<Asked<'a>> {
        // Mistakes are reported later, when the completed arguments are parsed.
        let mut matches = unbuilt.ignore_errors(true).try_get_matches_from(arguments).ok()?;
        let mut table: Vec<String> = scope.table.iter().map(|name| (*name).to_owned()).collect();
        let (mut command, mut config) = (root, None);
        loop {
            let has_config = matches.try_contains_id("config").unwrap_or(false);
            if has_config && matches.value_source("config") == Some(ValueSource::CommandLine) {
                config = matches.get_one("config").cloned();
            }
            let Some((name, inner)) = matches.remove_subcommand() else { break };
            command = command.find_subcommand(&name)?;
            let is_top = table.len() == scope.table.len();
            let is_left_out =
                is_top && (scope.without.contains(&&*name) || scope.elsewhere.contains(&&*name));
            if is_left_out || command.is_hide_set() || name == "help" {
                return None;
            }
            table.push(name);
            matches = inner;
        }
        let is_complete = !command.is_subcommand_required_set();
        is_complete.then_some(Asked { table, command, matches, config })
    }

    /// Adds the flags that the sources have and the arguments lack.
    pub fn complete(&self, arguments: &[OsString], sources: Sources<'_>) -> Result<Completed, Vec<Mistake>> {
        let is_given =
            |arg: &Arg| self.matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let mut origins = Origins::default();
        let mut added = Vec::new();
        for found in chosen(self.command, &self.table, &is_given, sources)? {
            added.extend(found.arguments);
            origins.add(found.flag, found.shown, found.origin);
        }
        // `--` is followed by arguments without a name.
        let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
        let (before, after) = arguments.split_at(end);
        Ok(Completed { arguments: [before, &added[..], after].concat(), origins })
    }
}
