//! The settings file: TOML, read into entries that know their table, key, value and line. It knows no flags.

use super::origin::{Mistake, Origin};
use crate::input;
use std::io;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Settings file that is read if none is named. It need not exist.
pub const DEFAULT_PATH: &str = "/etc/farpool/farpool.toml";
/// Largest settings file, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// A settings file that was read.
#[derive(Debug)]
pub struct File {
    /// Path of the file.
    pub path: PathBuf,
    /// Entries in alphabetic order of their keys, those of a table before the tables in it.
    pub entries: Vec<FileEntry>,
    /// Mistakes in the syntax. The entries are then those that could be read in spite of them.
    pub mistakes: Vec<Mistake>,
}

/// One key of the file.
#[derive(Debug)]
pub struct FileEntry {
    /// Names of the tables around the key: empty at the top, two for `[mount.scratch]`.
    pub table: Vec<String>,
    /// Name of the key.
    pub key: String,
    /// Value of the key.
    pub value: EntryValue,
    /// Line of the key in the file, from 1.
    pub line: usize,
}

/// Values by what flags can take.
#[derive(Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// `true` or `false`.
    Switch(bool),
    /// A string, or a number as the file spells it.
    One(String),
    /// An array of strings and numbers.
    Many(Vec<String>),
    /// A table. Its keys are entries of their own.
    Table,
    /// A value that no flag takes, by its name in TOML.
    Other(&'static str),
}

impl File {
    /// Reads the file that is named, or else the default one. `None` if the default one does not exist.
    pub fn read(named: Option<&Path>) -> Result<Option<File>, Mistake> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let wrong = |problem: String| Mistake { place: path.display().to_string(), problem };
        let text = match input::file(path, BYTES_MAX).and_then(input::text) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => return Ok(None),
            Err(error) => {
                return Err(wrong(format!(
                    "the settings file cannot be read: {error}; --config names another, and --config /dev/null none"
                )));
            }
        };
        let mode = path.metadata().map_err(|error| wrong(error.to_string()))?;
        // Settings name keys that are trusted and programs that are run.
        if mode.is_file() && mode.permissions().mode() & 0o002 != 0 {
            return Err(wrong("everybody may write to the settings file; chmod o-w it".to_owned()));
        }
        Ok(Some(File::parse(path, &text)))
    }

    /// Parses the text of a file.
    pub fn parse(path: &Path, text: &str) -> File {
        let (root, errors) = DeTable::parse_recoverable(text);
        let origin = |span: &Range<usize>| Origin::File { path: path.to_owned(), line: line_of(text, span) };
        let mistakes = errors.iter().map(|error| Mistake {
            place: error.span().map_or(path.display().to_string(), |span| origin(&span).to_string()),
            problem: error.message().to_owned(),
        });
        let mistakes = mistakes.collect();
        let mut entries = Vec::new();
        flatten(text, &mut Vec::new(), root.get_ref(), &mut entries);
        File { path: path.to_owned(), entries, mistakes }
    }
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}

/// Adds the entries of a table, then those of the tables in it.
fn flatten(text: &str, table: &mut Vec<String>, root: &DeTable<'_>, entries: &mut Vec<FileEntry>) {
    for (key, value) in root {
        let line = line_of(text, &key.span());
        let (table, key) = (table.clone(), key.get_ref().to_string());
        entries.push(FileEntry { table, key, value: value_of(value.get_ref()), line });
    }
    for (key, value) in root {
        if let DeValue::Table(inner) = value.get_ref() {
            table.push(key.get_ref().to_string());
            flatten(text, table, inner, entries);
            table.pop();
        }
    }
}

fn value_of(value: &DeValue<'_>) -> EntryValue {
    let word = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    };
    match value {
        DeValue::Boolean(value) => EntryValue::Switch(*value),
        DeValue::Table(_) => EntryValue::Table,
        DeValue::Datetime(_) => EntryValue::Other("a date"),
        DeValue::Integer(number) if number.radix() != 10 => EntryValue::Other("a number that is not decimal"),
        DeValue::Array(values) => {
            let words: Option<Vec<String>> = values.iter().map(|value| word(value.get_ref())).collect();
            words.map_or(
                EntryValue::Other("an array of other things than strings and numbers"),
                EntryValue::Many,
            )
        }
        other => word(other).map_or(EntryValue::Other("of an unknown type"), EntryValue::One),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> File {
        File::parse("f.toml".as_ref(), text)
    }

    #[test]
    fn entries_know_their_table_their_value_and_their_line() {
        let file = parse(
            "pool = 'farpool://a:1'\n\n[mount.scratch]\nquota = \"1GiB\"\nencrypted = true\nx = [1, 'b']\n",
        );
        assert!(file.mistakes.is_empty(), "{:?}", file.mistakes);
        let found = |key: &str| file.entries.iter().find(|entry| entry.key == key).expect(key);
        assert_eq!((found("pool").table.len(), found("pool").line), (0, 1));
        assert_eq!(found("quota").table, ["mount", "scratch"]);
        assert_eq!((&found("quota").value, found("quota").line), (&EntryValue::One("1GiB".into()), 4));
        assert_eq!(found("encrypted").value, EntryValue::Switch(true));
        assert_eq!(found("x").value, EntryValue::Many(vec!["1".into(), "b".into()]));
        assert_eq!(found("scratch").value, EntryValue::Table);
    }

    #[test]
    fn numbers_are_kept_as_they_are_written() {
        let file = parse("a = 0.50\nb = 1_000\nc = 0x10\nd = 2026-11-26\n");
        let values: Vec<&EntryValue> = file.entries.iter().map(|entry| &entry.value).collect();
        assert_eq!(values[..2], [&EntryValue::One("0.50".into()), &EntryValue::One("1000".into())]);
        assert!(matches!(values[2..], [EntryValue::Other(_), EntryValue::Other("a date")]), "{values:?}");
    }

    #[test]
    fn every_mistake_in_the_syntax_is_found_with_its_line() {
        let file = parse("a = \n[node]\nmemory = 1\nmemory = 2\nb = 'x\n");
        let places: Vec<&str> = file.mistakes.iter().map(|mistake| mistake.place.as_str()).collect();
        for line in ["f.toml, line 1", "f.toml, line 4", "f.toml, line 5"] {
            assert!(places.contains(&line), "{:?}", file.mistakes);
        }
    }

    #[test]
    fn file_that_cannot_be_read_is_named_and_a_missing_default_is_not_an_error() {
        let folder = std::env::temp_dir();
        let error = File::read(Some(&folder)).expect_err("a folder");
        assert!(error.to_string().contains(&folder.display().to_string()), "{error}");
        assert!(
            File::read(Some("/dev/null".as_ref()))
                .is_ok_and(|file| file.is_some_and(|f| f.entries.is_empty()))
        );
    }
}
