//! Tables with titles, as text.

use crate::{Outcome, table};
use std::io::Write;

/// Returns a title, a table and an empty line.
pub(crate) fn lines(title: String, header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let table = table::lines(header, rows).into_iter().map(|line| format!("  {line}"));
    std::iter::once(title).chain(table).chain([String::new()]).collect()
}

/// Writes a title, a table and an empty line.
pub(crate) fn write(out: &mut dyn Write, title: &str, header: &[&str], rows: &[Vec<String>]) -> Outcome {
    for line in lines(title.to_owned(), header, rows) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
