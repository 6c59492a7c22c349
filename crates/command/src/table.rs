//! Plain text tables with aligned columns; numbers are right-aligned. Unprintable characters of cells are escaped, so
//! that cells of any origin are safe on a terminal.

use farpool_files::shown;

/// Formats a table: header, rule and rows.
pub fn lines(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell).to_string()).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    // A number may be followed by a unit. A cell of more words is a text that begins with a number.
    let is_number = |cell: &str| {
        cell.starts_with(|c: char| c.is_ascii_digit() || c == '-') && cell.split(' ').count() <= 2
    };
    let line = |cells: &mut dyn Iterator<Item = &str>, numbers: bool| {
        let mut out = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            // The first column is a name, even if it begins with a digit.
            if numbers && column > 0 && is_number(cell) {
                out.push_str(&padding);
                out.push_str(cell);
            } else {
                out.push_str(cell);
                out.push_str(&padding);
            }
            out.push_str("  ");
        }
        out.trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied(), false)];
    lines.push(widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "));
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str), true)));
    lines
}
