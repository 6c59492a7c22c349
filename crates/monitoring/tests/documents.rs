//! The table of docs/monitoring.md lists every family as the programs show it.

use farpool_monitoring::{Family, families};

#[test]
fn every_family_stands_in_the_documents_as_it_is() {
    let document = include_str!("../../../docs/monitoring.md");
    // Other tables, of paths and alerts, have other columns.
    let kinds = [" | counter | ", " | gauge | ", " | histogram | "];
    let is_row = |line: &&str| line.starts_with("| `") && kinds.iter().any(|kind| line.contains(kind));
    let mut found: Vec<&str> = document.lines().filter(is_row).collect();
    let row = |Family { name, kind, labels, help }: &Family| {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
        format!("| `{name}` | {kind} | {labels} | {help} |")
    };
    let mut rows: Vec<String> = families::ALL.iter().map(|family| row(family)).collect();
    rows.sort_unstable();
    found.sort_unstable();
    for (row, found) in rows.iter().zip(&found) {
        assert_eq!(row, found);
    }
    assert_eq!(rows.len(), found.len());
}
