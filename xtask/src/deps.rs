//! `cargo xtask deps`: the dependencies among our own crates are exactly those of the table in
//! ARCHITECTURE.md. Development dependencies are free.
//!
//! The table stands between two comments and has two columns: a crate, and the crates it depends on
//! (`-`: none, `any`: whatever it likes, for tests and benches).

use crate::metadata::{self, Package};
use crate::{Findings, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- deps:begin -->";
const END: &str = "<!-- deps:end -->";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Any,
    These(BTreeSet<String>),
}

type Table = BTreeMap<String, Allowed>;

pub(crate) fn run(root: &Path) -> Findings {
    let table = parse(&read(root, FILE)?)?;
    Ok(compare(&table, &metadata::members(root)?))
}

/// Reads the table; every row must be understood.
fn parse(text: &str) -> Result<Table, String> {
    let (_, behind) = text.split_once(BEGIN).ok_or_else(|| format!("{FILE} has no {BEGIN}"))?;
    let (inside, _) = behind.split_once(END).ok_or_else(|| format!("{FILE} has no {END} behind {BEGIN}"))?;
    let rows = inside.lines().map(str::trim).filter(|line| !line.is_empty()).skip(2);
    let mut table = Table::new();
    for row in rows {
        let wrong = || format!("{FILE}: this row is not `| crate | crates |`: {row}");
        let cells = row.strip_prefix('|').and_then(|row| row.strip_suffix('|')).ok_or_else(wrong)?;
        let (name, dependencies) = cells.split_once('|').ok_or_else(wrong)?;
        let name = name.trim().trim_matches('`').to_owned();
        let allowed = match dependencies.trim() {
            "-" => Allowed::These(BTreeSet::new()),
            "any" => Allowed::Any,
            listed => {
                let names: BTreeSet<String> =
                    listed.split(',').map(|one| one.trim().trim_matches('`').to_owned()).collect();
                if names.iter().any(|one| one.is_empty() || one.contains([' ', '|'])) {
                    return Err(wrong());
                }
                Allowed::These(names)
            }
        };
        if name.is_empty() || table.insert(name.clone(), allowed).is_some() {
            return Err(format!("{FILE}: crate {name:?} stands in the table twice or has no name"));
        }
    }
    Ok(table)
}

fn compare(table: &Table, members: &[Package]) -> Vec<String> {
    let names: BTreeSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let mut findings = Vec::new();
    for member in members {
        let name = &member.name;
        let actual: BTreeSet<&str> = member
            .normal_dependencies
            .iter()
            .map(String::as_str)
            .filter(|dependency| names.contains(dependency))
            .collect();
        match table.get(name) {
            None => findings.push(format!("crate {name} is not in the table of {FILE}: add a row")),
            Some(Allowed::Any) => {}
            Some(Allowed::These(allowed)) => {
                for edge in actual.iter().filter(|edge| !allowed.contains(**edge)) {
                    findings.push(format!("{name} -> {edge} is not permitted by the table of {FILE}"));
                }
                for edge in allowed.iter().filter(|edge| !actual.contains(edge.as_str())) {
                    findings.push(format!(
                        "{name} -> {edge} stands in the table of {FILE}, but {name} does not depend on it"
                    ));
                }
            }
        }
    }
    for name in table.keys().filter(|name| !names.contains(name.as_str())) {
        findings.push(format!("crate {name} stands in the table of {FILE}, but there is no such crate"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "words\n<!-- deps:begin -->\n| crate | depends on |\n| --- | --- |\n| `wire` | - |\n\
        | `node` | `wire`, `region` |\n| tests | any |\n<!-- deps:end -->\nmore | words |\n";

    fn member(name: &str, dependencies: &[&str]) -> Package {
        Package {
            id: name.into(),
            name: name.into(),
            version: "0.1.0".into(),
            license: None,
            source: None,
            normal_dependencies: dependencies.iter().map(|one| (*one).to_owned()).collect(),
        }
    }

    #[test]
    fn table_is_read_with_none_some_and_any() {
        let table = parse(TEXT).unwrap();
        assert_eq!(table.len(), 3);
        assert_eq!(table["wire"], Allowed::These(BTreeSet::new()));
        assert_eq!(table["node"], Allowed::These(["wire".into(), "region".into()].into()));
        assert_eq!(table["tests"], Allowed::Any);
    }

    #[test]
    fn row_or_table_that_is_not_understood_is_an_error() {
        assert!(parse("no table").is_err_and(|error| error.contains(BEGIN)));
        assert!(parse("<!-- deps:begin --> | a |").is_err_and(|error| error.contains(END)));
        assert!(parse(&TEXT.replace("| tests | any |", "| tests any |")).is_err());
        assert!(parse(&TEXT.replace("| tests | any |", "| tests | a b |")).is_err());
        assert!(parse(&TEXT.replace("| tests |", "| `wire` |")).is_err_and(|error| error.contains("twice")));
    }

    #[test]
    fn undeclared_edge_is_named() {
        let table = parse(TEXT).unwrap();
        let members = [
            member("wire", &["node", "serde_json"]),
            member("node", &["wire", "region"]),
            member("region", &[]),
            member("tests", &["wire", "node"]),
        ];
        assert_eq!(
            compare(&table, &members),
            [
                "wire -> node is not permitted by the table of ARCHITECTURE.md",
                "crate region is not in the table of ARCHITECTURE.md: add a row",
            ]
        );
    }

    #[test]
    fn declared_edge_or_crate_that_is_not_there_is_named() {
        let table = parse(TEXT).unwrap();
        let found = compare(&table, &[member("wire", &[]), member("node", &["wire"])]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("node -> region stands in the table"));
        assert!(found[1].starts_with("crate tests stands in the table"));
    }
}
