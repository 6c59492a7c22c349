//! Checks names of public types: no two of them are equal, and a noun that names types of several crates is in the
//! glossary.

use std::collections::{BTreeMap, BTreeSet};

/// Document whose tables have the words of the project in their first column.
pub(super) const GLOSSARY: &str = "docs/glossary.md";
/// Number of crates with public types whose names end with the same noun, from which on the noun must be in the
/// glossary.
const CRATES_MIN: usize = 3;
/// Keywords that declare a type.
const DECLARES: [&str; 4] = ["struct", "enum", "trait", "type"];

/// Returns the names of the public types of a file.
pub(super) fn public_types<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for window in tokens.windows(3) {
        if let ["pub", declares, name] = window
            && DECLARES.contains(declares)
        {
            found.push(*name);
        }
    }
    found
}

/// Returns the names that public types of several crates have, each with these crates.
pub(super) fn twins(types: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, types) in types {
        types.iter().for_each(|of| crates.entry(of).or_default().push(name));
    }
    let twins = crates.into_iter().filter(|(_, crates)| crates.len() > 1);
    twins.map(|(name, crates)| format!("{name}: {}", crates.join(", "))).collect()
}

/// Returns the nouns with which public types of at least [`CRATES_MIN`] crates end and that the glossary does not have.
pub(super) fn unexplained(types: &BTreeMap<&str, BTreeSet<&str>>, glossary: &str) -> Vec<String> {
    let words = words(glossary);
    let mut crates: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, types) in types {
        for of in types {
            crates.entry(last_noun(of)).or_default().insert(name);
        }
    }
    let is_known = |noun: &str| words.contains(noun) || words.contains(noun.trim_end_matches('s'));
    let missing = crates.into_iter().filter(|(noun, crates)| crates.len() >= CRATES_MIN && !is_known(noun));
    missing.map(|(noun, crates)| format!("{noun}: {}", Vec::from_iter(crates).join(", "))).collect()
}

/// Returns the last word of a name in camel case, in lower case.
fn last_noun(name: &str) -> String {
    name[name.rfind(|c: char| c.is_ascii_uppercase()).unwrap_or(0)..].to_ascii_lowercase()
}

/// Returns the words of the first columns of a document's tables.
fn words(document: &str) -> BTreeSet<&str> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    rows.flat_map(|entry| entry.split([',', ' '])).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn types(of: &[(&'static str, &[&'static str])]) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
        of.iter().map(|(name, types)| (*name, types.iter().copied().collect())).collect()
    }

    #[test]
    fn public_types_are_those_that_others_can_name() {
        let text =
            "pub struct A; pub(crate) enum B {} pub trait C {} enum D {} pub type E = u8; pub fn f() {}";
        assert_eq!(public_types(&tokens(text).all), ["A", "C", "E"]);
    }

    #[test]
    fn name_of_types_of_two_crates_is_found_with_both() {
        let types = types(&[("a", &["Key", "Pool"]), ("b", &["Key"])]);
        assert_eq!(twins(&types), ["Key: a, b"]);
    }

    #[test]
    fn noun_of_three_crates_is_to_be_in_the_glossary() {
        let types = types(&[("a", &["PoolKey", "Arena"]), ("b", &["Key", "ArenaKeys"]), ("c", &["FileKey"])]);
        assert_eq!(unexplained(&types, "| word | meaning |\n| arena | memory |"), ["key: a, b, c"]);
        assert_eq!(unexplained(&types, "| key, lock | two words |"), [""; 0]);
    }
}
