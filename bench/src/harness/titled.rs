//! Tables with titles, as text for the reports of benchmarks.

use crate::{Outcome, table};
use std::io::Write;

/// Returns the lines of a title, an indented table and an empty line.
pub(crate) fn lines(title: String, header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let table = table::lines(header, rows).into_iter().map(|line| format!("  {line}"));
    std::iter::once(title).chain(table).chain([String::new()]).collect()
}

/// Writes the lines of a title, an indented table and an empty line.
pub(crate) fn write(out: &mut dyn Write, title: &str, header: &[&str], rows: &[Vec<String>]) -> Outcome {
    for line in lines(title.to_owned(), header, rows) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
