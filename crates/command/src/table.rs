//! Plain text tables with aligned columns; numbers are right-aligned. Unprintable characters of cells are escaped, so
//! that cells of any origin are safe on a terminal.

use console::Term;
use farpool_files::shown;

/// Columns that a text keeps at least when a table is made to fit: enough to tell names apart.
const SHORTENED_MIN: usize = 12;

/// Formats a table: header, rule and rows. On a terminal the table fits its width; elsewhere nothing is left out.
pub fn lines(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let columns = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    lines_within(header, rows, columns.unwrap_or(usize::MAX))
}

/// Formats a table for a terminal of this many columns.
///
/// If the table is wider, long texts are shortened first. If it is still wider, each row becomes a block of lines with
/// a name and a whole value each.
pub fn lines_within(header: &[&str], rows: &[Vec<String>], columns: usize) -> Vec<String> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell).to_string()).collect()).collect();
    let whole = aligned(header, &rows);
    if width_of(&whole) <= columns {
        return whole;
    }
    let shorter = aligned(header, &shortened(&rows, width_of(&whole) - columns));
    if width_of(&shorter) <= columns { shorter } else { blocks(header, &rows) }
}

fn width_of(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Takes `excess` columns from the texts of a table: from its widest column of texts first. Numbers stay as they are.
fn shortened(rows: &[Vec<String>], mut excess: usize) -> Vec<Vec<String>> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !is_number(cell));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..count).map(width).collect();
    while let Some(widest) = widths.iter_mut().max().filter(|width| excess > 0 && **width > SHORTENED_MIN) {
        (*widest, excess) = (*widest - 1, excess - 1);
    }
    let shorten = |(cell, width): (&String, &usize)| match cell.chars().count() > *width && !is_number(cell) {
        true => cell.chars().take(width - 1).chain(['…']).collect(),
        false => cell.clone(),
    };
    rows.iter().map(|row| row.iter().zip(&widths).map(shorten).collect()).collect()
}

/// Formats each row as lines of a name and a value, with an empty line between rows.
fn blocks(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = header.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let block = |row: &Vec<String>| -> Vec<String> {
        let cells = header.iter().zip(row);
        cells.map(|(name, cell)| format!("{name:width$}  {cell}").trim_end().to_owned()).collect()
    };
    rows.iter().map(block).collect::<Vec<_>>().join(&String::new())
}

/// A number may be followed by a unit. A cell of more words is a text that begins with a number.
fn is_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-') && cell.split(' ').count() <= 2
}

fn aligned(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [&str; 3] = ["node", "address", "free"];

    fn rows() -> Vec<Vec<String>> {
        let row = |name: &str| [name, "memory-node.example.org:7701", "1.50 GiB"].map(str::to_owned).to_vec();
        vec![row("n1"), row("node-with-a-long-name")]
    }

    #[test]
    fn table_that_fits_is_whole() {
        let lines = lines_within(&HEADER, &rows(), 80);
        assert_eq!(lines[2], "n1                     memory-node.example.org:7701  1.50 GiB");
        assert_eq!(lines, lines_within(&HEADER, &rows(), usize::MAX));
    }

    #[test]
    fn texts_of_a_wide_table_are_shortened_and_numbers_are_not() {
        for columns in 37..61 {
            let lines = lines_within(&HEADER, &rows(), columns);
            assert_eq!(lines.len(), 4, "{columns}: {lines:#?}");
            assert!(width_of(&lines) <= columns, "{columns}: {lines:#?}");
            assert!(
                lines[2..].iter().all(|line| line.contains('…') && line.ends_with("1.50 GiB")),
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn rows_of_a_table_that_is_much_too_wide_are_blocks_with_whole_values() {
        let lines = lines_within(&HEADER, &rows(), 30);
        assert_eq!(
            lines[..4],
            ["node     n1", "address  memory-node.example.org:7701", "free     1.50 GiB", ""]
        );
        assert_eq!(lines.len(), 7);
    }
}
