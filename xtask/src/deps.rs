//! `cargo xtask deps`: the dependencies among the workspace's crates must be exactly those of the table in
//! ARCHITECTURE.md, and no crate may need a package (crate of others) that the table forbids it. Development
//! dependencies are not checked.
//!
//! The table is between two marking comments and has three columns: a crate; the crates of the workspace that it
//! depends on (`-`: none, `any`: not checked, for tests and benchmarks); and the packages that it may not need,
//! directly or indirectly (`-`: not checked). `arrow` stands for `arrow`, `arrow-array`, and so on.

use crate::metadata::{self, Graph, Package};
use crate::{Findings, read};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

const FILE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- deps:begin -->";
const END: &str = "<!-- deps:end -->";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Any,
    These(BTreeSet<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    allowed: Allowed,
    /// Packages that the crate may not need.
    refused: BTreeSet<String>,
}

type Table = BTreeMap<String, Row>;

pub(crate) fn run(root: &Path) -> Findings {
    let table = parse(&read(root, FILE)?)?;
    let mut findings = compare(&table, &metadata::members(root)?);
    let graph = metadata::graph(root)?;
    findings.extend(check_words(&table, &graph));
    for (name, word) in suspects(&table, &graph) {
        // The package may be needed only because other crates turn a feature on. Asking cargo takes a while, so it is
        // done for suspects only.
        let needs = metadata::needs_of(root, name)?;
        findings.extend(way(&graph, name, word, |package| needs.contains(package)).map(|way| {
            format!("{name} needs {word}, which the table of {FILE} forbids: {}", way.join(" -> "))
        }));
    }
    Ok(findings)
}

/// Reads the table. Fails if a row is malformed.
fn parse(text: &str) -> Result<Table, String> {
    let (_, behind) = text.split_once(BEGIN).ok_or_else(|| format!("{FILE} has no {BEGIN}"))?;
    let (inside, _) = behind.split_once(END).ok_or_else(|| format!("{FILE} has no {END} after {BEGIN}"))?;
    let rows = inside.lines().map(str::trim).filter(|line| !line.is_empty()).skip(2);
    let mut table = Table::new();
    for row in rows {
        let wrong = || format!("{FILE}: this row is not `| crate | crates | packages |`: {row}");
        let cells = row.strip_prefix('|').and_then(|row| row.strip_suffix('|')).ok_or_else(wrong)?;
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let [name, dependencies, refused] = cells[..] else { return Err(wrong()) };
        let name = name.trim_matches('`').to_owned();
        let allowed = match dependencies {
            "any" => Allowed::Any,
            listed => Allowed::These(names(listed).ok_or_else(wrong)?),
        };
        let row = Row { allowed, refused: names(refused).ok_or_else(wrong)? };
        if name.is_empty() || table.insert(name.clone(), row).is_some() {
            return Err(format!("{FILE}: crate {name:?} is in the table twice, or a row has no name"));
        }
    }
    Ok(table)
}

/// Returns the names in a cell of the table. `-` means none.
fn names(cell: &str) -> Option<BTreeSet<String>> {
    let listed = cell.split(',').filter(|_| cell != "-");
    let names: BTreeSet<String> = listed.map(|one| one.trim().trim_matches('`').to_owned()).collect();
    names.iter().all(|one| !one.is_empty() && !one.contains(' ')).then_some(names)
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
        match table.get(name).map(|row| &row.allowed) {
            None => findings.push(format!("crate {name} is not in the table of {FILE}: add a row")),
            Some(Allowed::Any) => {}
            Some(Allowed::These(allowed)) => {
                for edge in actual.iter().filter(|edge| !allowed.contains(**edge)) {
                    findings.push(format!("{name} -> {edge} is not permitted by the table of {FILE}"));
                }
                for edge in allowed.iter().filter(|edge| !actual.contains(edge.as_str())) {
                    findings.push(format!(
                        "{name} -> {edge} is in the table of {FILE}, but {name} does not depend on it"
                    ));
                }
            }
        }
    }
    for name in table.keys().filter(|name| !names.contains(name.as_str())) {
        findings.push(format!("crate {name} is in the table of {FILE}, but there is no such crate"));
    }
    findings
}

/// Reports whether a word of the table's third column stands for a package.
fn is_of(package: &str, word: &str) -> bool {
    package.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Names the words of the table's third column that stand for no package, since they would forbid nothing.
fn check_words(table: &Table, graph: &Graph) -> Vec<String> {
    let words: BTreeSet<&String> = table.values().flat_map(|row| &row.refused).collect();
    let unknown = words.into_iter().filter(|word| !graph.keys().any(|package| is_of(package, word)));
    unknown
        .map(|word| format!("{word} is in the table of {FILE}, but no crate needs such a package"))
        .collect()
}

/// Returns the crates that may need a forbidden package, each with the word that forbids it.
fn suspects<'a>(table: &'a Table, graph: &Graph) -> Vec<(&'a str, &'a str)> {
    let refused = table.iter().flat_map(|(name, row)| row.refused.iter().map(move |word| (&**name, &**word)));
    refused.filter(|(name, word)| way(graph, name, word, |_| true).is_some()).collect()
}

/// Returns the shortest path from a crate to a package that `word` stands for, over packages that are built.
fn way<'a>(
    graph: &'a Graph,
    from: &'a str,
    word: &str,
    is_built: impl Fn(&str) -> bool,
) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut ways = VecDeque::from([vec![from]]);
    while let Some(way) = ways.pop_front() {
        let last = way.last().and_then(|last| graph.get(*last));
        for next in last.into_iter().flatten().filter(|next| is_built(next)) {
            if seen.insert(next) {
                let longer = [&way[..], &[&**next]].concat();
                if is_of(next, word) {
                    return Some(longer);
                }
                ways.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "words\n<!-- deps:begin -->\n| crate | depends on | may not need |\n| --- | --- | --- |\n\
        | `wire` | - | `arrow`, `tokio` |\n| `node` | `wire`, `region` | `arrow` |\n| tests | any | - |\n\
        <!-- deps:end -->\nmore | words |\n";

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
        assert_eq!(table["wire"].allowed, Allowed::These(BTreeSet::new()));
        assert_eq!(table["wire"].refused, ["arrow".to_owned(), "tokio".to_owned()].into());
        assert_eq!(table["node"].allowed, Allowed::These(["wire".into(), "region".into()].into()));
        assert_eq!(table["tests"], Row { allowed: Allowed::Any, refused: BTreeSet::new() });
    }

    #[test]
    fn row_or_table_that_is_not_understood_is_an_error() {
        assert!(parse("no table").is_err_and(|error| error.contains(BEGIN)));
        assert!(parse("<!-- deps:begin --> | a |").is_err_and(|error| error.contains(END)));
        for row in [
            "| tests any |",
            "| tests | any |",
            "| tests | a b | - |",
            "| tests | - | a, |",
            "| a | - | - | - |",
        ] {
            assert!(parse(&TEXT.replace("| tests | any | - |", row)).is_err(), "{row}");
        }
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
        assert!(found[0].starts_with("node -> region is in the table"));
        assert!(found[1].starts_with("crate tests is in the table"));
    }

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        edges.iter().map(|(from, to)| ((*from).to_owned(), owned(to))).collect()
    }

    #[test]
    fn what_a_crate_may_not_need_is_found_at_any_depth_by_the_shortest_way() {
        let table = parse(TEXT).unwrap();
        let graph = graph(&[
            ("wire", &["bytes"]),
            ("bytes", &["arrow-schema", "arrowhead"]),
            ("node", &["a", "b"]),
            ("a", &["c"]),
            ("b", &["arrow-array"]),
            ("c", &["arrow"]),
            ("tests", &["arrow"]),
        ]);
        assert_eq!(suspects(&table, &graph), [("node", "arrow"), ("wire", "arrow")]);
        assert_eq!(way(&graph, "node", "arrow", |_| true).unwrap(), ["node", "b", "arrow-array"]);
    }

    #[test]
    fn way_over_what_the_crate_by_itself_does_not_build_is_none() {
        let graph = graph(&[("node", &["a", "b"]), ("a", &["arrow"]), ("b", &["arrow"])]);
        assert_eq!(way(&graph, "node", "arrow", |package| package != "a").unwrap(), ["node", "b", "arrow"]);
        assert_eq!(way(&graph, "node", "arrow", |package| package != "arrow"), None);
    }

    #[test]
    fn packages_are_meant_by_their_name_or_what_it_begins_with() {
        assert!(is_of("arrow", "arrow") && is_of("arrow-array", "arrow"));
        assert!(!is_of("arrowhead", "arrow") && !is_of("farpool-arrow", "arrow"));
    }

    #[test]
    fn word_that_means_no_package_is_named() {
        let found = check_words(&parse(TEXT).unwrap(), &graph(&[("wire", &[]), ("arrow-array", &[])]));
        assert_eq!(found, ["tokio is in the table of ARCHITECTURE.md, but no crate needs such a package"]);
    }
}
