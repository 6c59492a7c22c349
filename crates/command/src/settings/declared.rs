//! Names of settings. Each is derived from the declaration of a flag: `--region-size` of `farpool node` is
//! `region-size` in the table `[node]` of the settings file, and the variable `FARPOOL_NODE_REGION_SIZE`. There is no
//! second list.

use clap::{Arg, ArgAction, Command};

/// Headings of flags that mean the same in every subcommand. In the file they may stand at the top, and their variables
/// have no name of a subcommand: `pool` and `FARPOOL_POOL`.
pub const COMMON: [&str; 2] = ["Connection", "Log"];

/// Prefix of all variables.
pub const PREFIX: &str = "FARPOOL_";

/// Variable that names the settings file.
pub const CONFIG: &str = "FARPOOL_CONFIG";

/// Settings of one program.
pub struct Scope {
    /// Table of the program: empty for `farpool`, `sql` for `farpool-sql`.
    pub table: &'static [&'static str],
    /// Subcommands that take no settings.
    pub without: &'static [&'static str],
    /// Subcommands that are programs of their own and check their tables themselves.
    pub elsewhere: &'static [&'static str],
}

/// A flag that takes a setting.
pub struct Flag<'a> {
    /// Declaration of the flag.
    pub arg: &'a Arg,
    /// Name in the file, which is that of the flag without its dashes.
    pub key: &'a str,
    /// Names of its variables; the first that is set counts.
    pub variables: Vec<String>,
}

impl Flag<'_> {
    /// True if the flag means the same in every subcommand.
    pub fn is_common(&self) -> bool {
        self.arg.get_help_heading().is_some_and(|heading| COMMON.contains(&heading))
    }

    /// True if the flag takes no value.
    pub fn is_switch(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
    }

    /// True if the flag may be given several times.
    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }
}

/// Returns the flags of a subcommand that take settings. `table` is its table, with that of the program.
pub fn flags<'a>(command: &'a Command, table: &[String]) -> Vec<Flag<'a>> {
    let settable = |arg: &&Arg| {
        let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
        // The file cannot name itself, and hidden flags are for our own programs.
        takes && !arg.is_hide_set() && arg.get_id() != "config"
    };
    let flag = |arg: &'a Arg| {
        let mut flag = Flag { arg, key: arg.get_long()?, variables: Vec::new() };
        let words = table.iter().map(String::as_str).chain([flag.key]);
        flag.variables.push(variable(words));
        if flag.is_common() {
            flag.variables.push(variable([flag.key].into_iter()));
        }
        Some(flag)
    };
    command.get_arguments().filter(settable).filter_map(flag).collect()
}

fn variable<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| word.replace('-', "_").to_ascii_uppercase()).collect();
    format!("{PREFIX}{}", words.join("_"))
}

/// A subcommand that does something, with its table in the file.
pub struct Leaf<'a> {
    /// Names of the tables, beginning with those of the program.
    pub table: Vec<String>,
    /// Declaration of the subcommand.
    pub command: &'a Command,
}

/// Returns the subcommands of a built declaration that take settings, in the order of the declaration.
pub fn leaves<'a>(root: &'a Command, scope: &Scope) -> Vec<Leaf<'a>> {
    let mut found = Vec::new();
    let table = scope.table.iter().map(|name| (*name).to_owned()).collect();
    descend(root, table, scope, &mut found);
    found
}

fn descend<'a>(command: &'a Command, table: Vec<String>, scope: &Scope, found: &mut Vec<Leaf<'a>>) {
    for inner in command.get_subcommands() {
        let name = inner.get_name();
        let is_top = table.len() == scope.table.len();
        let is_left_out = is_top && (scope.without.contains(&name) || scope.elsewhere.contains(&name));
        if name == "help" || inner.is_hide_set() || is_left_out {
            continue;
        }
        let table = table.iter().cloned().chain([name.to_owned()]).collect();
        descend(inner, table, scope, found);
    }
    if !command.is_subcommand_required_set() {
        found.push(Leaf { table, command });
    }
}

/// Returns the name that somebody who wrote `wrong` probably meant.
pub fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.map(|name| (strsim::jaro_winkler(&wrong.replace('_', "-"), name), name));
    let best = scored.filter(|(score, _)| *score > 0.8).max_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, name)| name)
}
