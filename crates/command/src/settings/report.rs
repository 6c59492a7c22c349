//! All settings of a program with their values and origins, and all mistakes at once, for `farpool config`.

use super::declared::{CONFIG, Flag, Leaf, PREFIX, Scope, flags, leaves, nearest};
use super::file::{EntryValue, File, FileEntry};
use super::merged::{FlagValue, Sources, chosen, values};
use super::origin::{Mistake, Origin};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The settings of a program and the mistakes in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SettingsReport {
    /// The settings file, if one was read.
    pub file: Option<String>,
    /// Settings of all subcommands.
    pub settings: Vec<Setting>,
    /// All mistakes.
    pub mistakes: Vec<Mistake>,
    /// Programs of their own that have settings in the file or in variables, by the names of their subcommands.
    pub others: Vec<&'static str>,
}

/// A setting of a subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Table in the file; its names are separated by dots.
    pub table: String,
    /// Name in the file.
    pub key: String,
    /// Variable that sets it: the shortest one.
    pub variable: String,
    /// Value that counts, or `None` if there is no default either.
    pub value: Option<String>,
    /// Place where the value was written. `None` for a default.
    pub origin: Option<String>,
}

impl SettingsReport {
    /// Looks at the environment and the settings file of this process.
    pub fn of<T: Parser>(scope: &Scope, config: Option<&Path>) -> SettingsReport {
        let variables = super::environment::variables();
        let mut root = T::command();
        root.build();
        let (file, unreadable) = match super::environment::file(config, &variables) {
            Ok(file) => (file, None),
            Err(mistake) => (None, Some(mistake)),
        };
        let sources = Sources { variables: &variables, file: file.as_ref() };
        let syntax = file.as_ref().map_or(Vec::new(), |file| file.mistakes.clone());
        SettingsReport {
            file: file.as_ref().map(|file| file.path.display().to_string()),
            settings: settings(&root, scope, sources),
            mistakes: unreadable.into_iter().chain(syntax).chain(mistakes(&root, scope, sources)).collect(),
            others: scope.elsewhere.iter().copied().filter(|name| concerns(name, sources)).collect(),
        }
    }

    /// Adds the report of another program over the same file. What both found is kept once.
    pub fn add(&mut self, other: SettingsReport) {
        self.settings.extend(other.settings);
        let new = other.mistakes.into_iter().filter(|mistake| !self.mistakes.contains(mistake));
        self.mistakes.extend(new.collect::<Vec<_>>());
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let setting = |one: &Setting| {
            json!({
                "table": one.table, "key": one.key, "variable": one.variable, "value": one.value,
                "origin": one.origin.as_deref().unwrap_or("default"), "is_default": one.origin.is_none(),
            })
        };
        let mistake = |one: &Mistake| json!({ "place": one.place, "problem": one.problem });
        json!({
            "file": self.file,
            "settings": self.settings.iter().map(setting).collect::<Vec<_>>(),
            "mistakes": self.mistakes.iter().map(mistake).collect::<Vec<_>>(),
        })
    }

    /// Reads what [`json`](Self::json) has returned, in another process. `None` if it is something else.
    pub fn of_json(value: &Value) -> Option<SettingsReport> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let setting = |one: &Value| {
            Some(Setting {
                table: text(&one["table"])?,
                key: text(&one["key"])?,
                variable: text(&one["variable"])?,
                value: text(&one["value"]),
                origin: match one["is_default"].as_bool()? {
                    true => None,
                    false => Some(text(&one["origin"])?),
                },
            })
        };
        let mistake =
            |one: &Value| Some(Mistake { place: text(&one["place"])?, problem: text(&one["problem"])? });
        Some(SettingsReport {
            file: text(&value["file"]),
            settings: value["settings"].as_array()?.iter().map(setting).collect::<Option<_>>()?,
            mistakes: value["mistakes"].as_array()?.iter().map(mistake).collect::<Option<_>>()?,
            others: Vec::new(),
        })
    }
}

/// Reports whether the sources have settings of a subcommand that is a program of its own.
fn concerns(name: &str, sources: Sources<'_>) -> bool {
    let prefix = variable_prefix(name);
    let mut entries = sources.file.iter().flat_map(|file| &file.entries);
    entries.any(|entry| entry.table.first().is_some_and(|table| table == name))
        || sources.variables.keys().any(|variable| variable.starts_with(&prefix))
}

fn variable_prefix(name: &str) -> String {
    format!("{PREFIX}{}_", name.to_ascii_uppercase())
}

/// Returns the settings of all subcommands of a built declaration.
fn settings(root: &Command, scope: &Scope, sources: Sources<'_>) -> Vec<Setting> {
    let setting = |leaf: &Leaf<'_>, flag: &Flag<'_>| {
        let found = values(flag, &leaf.table, sources).into_iter().find_map(Result::ok);
        let defaults = flag.arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let default = match flag.is_switch() {
            true => "false".to_owned(),
            false => defaults.collect::<Vec<_>>().join(";"),
        };
        let (value, origin) = match found {
            Some(FlagValue { shown, origin, .. }) => (Some(shown), Some(origin.to_string())),
            None => (Some(default).filter(|value| !value.is_empty()), None),
        };
        let variable = flag.variables.last().cloned().unwrap_or_default();
        Setting { table: leaf.table.join("."), key: flag.key.to_owned(), variable, value, origin }
    };
    let of_leaf = |leaf: Leaf<'_>| -> Vec<Setting> {
        flags(leaf.command, &leaf.table).iter().map(|flag| setting(&leaf, flag)).collect()
    };
    leaves(root, scope).into_iter().flat_map(of_leaf).collect()
}

/// Returns every mistake in the sources, of all subcommands.
pub(crate) fn mistakes(root: &Command, scope: &Scope, sources: Sources<'_>) -> Vec<Mistake> {
    let mut found: Vec<Mistake> = Vec::new();
    if let Some(file) = sources.file {
        found.extend(unknown_keys(root, scope, file, None));
    }
    found.extend(misspelt_variables(root, scope, sources));
    for leaf in leaves(root, scope) {
        let of_flags = flags(leaf.command, &leaf.table);
        let all = of_flags.iter().flat_map(|flag| values(flag, &leaf.table, sources));
        found.extend(all.filter_map(Result::err));
        found.extend(together(&leaf, sources));
    }
    let mut seen = BTreeSet::new();
    found.retain(|mistake| seen.insert(mistake.to_string()));
    found
}

/// Returns the mistakes that only several settings of a subcommand make together: two of them exclude each other, or
/// one needs another.
fn together(leaf: &Leaf<'_>, sources: Sources<'_>) -> Vec<Mistake> {
    let Ok(found) = chosen(leaf.command, &leaf.table, &|_| false, sources) else { return Vec::new() };
    // A flag that is missing without any setting is missing on the command line, not here.
    let missing = |error: &clap::Error| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(flags)) => flags.clone(),
        _ => Vec::new(),
    };
    let parse = |arguments: Vec<std::ffi::OsString>| {
        let command = leaf.command.clone().no_binary_name(true);
        command.try_get_matches_from(arguments).err()
    };
    let arguments: Vec<_> = found.iter().flat_map(|found| found.arguments.clone()).collect();
    let Some(error) = parse(arguments) else { return Vec::new() };
    let places = |text: &str| {
        let about = found.iter().filter(|found| text.contains(&found.flag));
        let places: BTreeSet<String> = about.map(|found| found.origin.to_string()).collect();
        places.into_iter().collect::<Vec<_>>().join(" and ")
    };
    let table = leaf.table.join(".");
    match error.kind() {
        ErrorKind::ArgumentConflict => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let problem = format!("in [{table}] {line}");
            vec![Mistake { place: places(&text), problem }]
        }
        ErrorKind::MissingRequiredArgument => {
            let always = parse(Vec::new()).map_or(Vec::new(), |error| missing(&error));
            let needed: Vec<String> =
                missing(&error).into_iter().filter(|flag| !always.contains(flag)).collect();
            if needed.is_empty() {
                return Vec::new();
            }
            let given: Vec<&str> = found.iter().map(|found| found.flag.as_str()).collect();
            let problem =
                format!("[{table}] has {}, which needs {} as well", given.join(", "), needed.join(", "));
            vec![Mistake { place: places(&given.join(" ")), problem }]
        }
        _ => Vec::new(),
    }
}

/// Returns the keys and tables of the file that do not exist. With `within`, only those that concern the subcommand
/// with this table: those of its table and of the tables around it.
pub fn unknown_keys(root: &Command, scope: &Scope, file: &File, within: Option<&[String]>) -> Vec<Mistake> {
    let known = Known::of(root, scope);
    let is_wanted = |entry: &&FileEntry| {
        let is_own = entry.table.len() >= scope.table.len()
            && entry.table.iter().zip(scope.table).all(|(one, other)| one == other);
        is_own && within.is_none_or(|table| table.starts_with(&entry.table))
    };
    let mistake = |entry: &FileEntry| {
        let names = known.tables.get(&entry.table)?;
        let problem = known.problem(entry, names)?;
        let place = Origin::File { path: file.path.clone(), line: entry.line }.to_string();
        Some(Mistake { place, problem })
    };
    file.entries.iter().filter(is_wanted).filter_map(mistake).collect()
}

/// Returns the rows of the table of all settings in docs/configuration.md, which tests compare with the declaration.
pub fn documented<T: Parser>(scope: &Scope) -> Vec<String> {
    let mut root = T::command();
    root.build();
    let leaves = leaves(&root, scope);
    let row = |place: String, keys: Vec<String>| format!("| {place} | {} |", keys.join(", "));
    let shown = |flag: &Flag<'_>| format!("`{}`", flag.key);
    let mut common = BTreeSet::new();
    let mut rows = Vec::new();
    for leaf in &leaves {
        let (shared, own): (Vec<_>, Vec<_>) =
            flags(leaf.command, &leaf.table).into_iter().partition(Flag::is_common);
        common.extend(shared.iter().map(shown));
        if !own.is_empty() {
            rows.push(row(format!("`[{}]`", leaf.table.join(".")), own.iter().map(shown).collect()));
        }
    }
    if scope.table.is_empty() {
        rows.insert(0, row("at the top".to_owned(), common.into_iter().collect()));
    }
    rows
}

/// Names that may stand in the tables of the file.
struct Known {
    /// Names in each table; true for tables.
    tables: BTreeMap<Vec<String>, BTreeMap<String, Kind>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Key,
    Table,
}

impl Known {
    fn of(root: &Command, scope: &Scope) -> Known {
        let mut tables: BTreeMap<Vec<String>, BTreeMap<String, Kind>> = BTreeMap::new();
        let mut add = |table: &[String], name: &str, kind| {
            tables.entry(table.to_vec()).or_default().insert(name.to_owned(), kind);
        };
        scope.elsewhere.iter().for_each(|name| add(&[], name, Kind::Table));
        for leaf in leaves(root, scope) {
            for flag in flags(leaf.command, &leaf.table) {
                add(&leaf.table, flag.key, Kind::Key);
                if flag.is_common() {
                    add(&[], flag.key, Kind::Key);
                }
            }
            for (depth, name) in leaf.table.iter().enumerate() {
                add(&leaf.table[..depth], name, Kind::Table);
            }
        }
        Known { tables }
    }

    /// Returns what is wrong with an entry. `None` if nothing is.
    fn problem(&self, entry: &FileEntry, names: &BTreeMap<String, Kind>) -> Option<String> {
        let key = &entry.key;
        let found = names.get(key);
        let is_table = entry.value == EntryValue::Table;
        match found {
            Some(Kind::Table) if !is_table => {
                return Some(format!("{key} is a table: write [{}]", path(entry)));
            }
            // The kind of its value is checked with the value.
            Some(_) => return None,
            None => {}
        }
        let what = if is_table { format!("the table [{}]", path(entry)) } else { format!("the key {key}") };
        let place = match entry.table.is_empty() {
            true => "at the top of the file".to_owned(),
            false => format!("in [{}]", entry.table.join(".")),
        };
        let cure = match nearest(key, names.keys().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => match self.tables_with(key) {
                tables if !tables.is_empty() && !is_table => format!("it belongs into {tables}"),
                _ => format!("permitted are {}", names.keys().cloned().collect::<Vec<_>>().join(", ")),
            },
        };
        let place = if is_table && entry.table.is_empty() { String::new() } else { format!(" {place}") };
        Some(format!("{what} is unknown{place}; {cure}"))
    }

    /// Returns the tables that have a key of this name.
    fn tables_with(&self, key: &str) -> String {
        let with = self.tables.iter().filter(|(_, names)| names.get(key) == Some(&Kind::Key));
        with.map(|(table, _)| format!("[{}]", table.join("."))).collect::<Vec<_>>().join(", ")
    }
}

fn path(entry: &FileEntry) -> String {
    entry.table.iter().chain([&entry.key]).map(String::as_str).collect::<Vec<_>>().join(".")
}

/// Returns the variables that are no settings, but almost. Other variables of this prefix are not ours to judge:
/// Kubernetes, for example, sets `FARPOOL_NODE_PORT` for a service that is called `farpool-node`.
fn misspelt_variables(root: &Command, scope: &Scope, sources: Sources<'_>) -> Vec<Mistake> {
    let leaves = leaves(root, scope);
    let of_flags =
        leaves.iter().flat_map(|leaf| flags(leaf.command, &leaf.table)).flat_map(|flag| flag.variables);
    let known: BTreeSet<String> = of_flags.chain([CONFIG.to_owned()]).collect();
    let others: Vec<String> = scope.elsewhere.iter().map(|name| variable_prefix(name)).collect();
    let meant = |name: &str| {
        let near = known.iter().filter(|known| known.len() >= PREFIX.len() + 4);
        near.map(|known| (strsim::osa_distance(name, known), known))
            .filter(|(distance, _)| *distance <= 2)
            .min()
    };
    let is_anothers = |name: &str| others.iter().any(|prefix| name.starts_with(prefix));
    let unknown = sources.variables.keys().filter(|name| !known.contains(*name) && !is_anothers(name));
    let mistake = |name: &String| {
        let (_, near) = meant(name)?;
        Some(Mistake { place: name.clone(), problem: format!("unknown variable; did you mean {near}?") })
    };
    unknown.filter_map(mistake).collect()
}
