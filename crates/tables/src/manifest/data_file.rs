//! Data file, as a manifest describes it.

use super::{Salt, Totals};
use crate::column_type::check_count;
use crate::schema_mapping::BoundedColumns;
use crate::statistics::Statistics;
use crate::{GROUP_ROWS_MAX, ROW_GROUPS_MAX};
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::PartAt;

/// Data file of a table: a part that has rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFile {
    /// Part.
    pub at: PartAt,
    /// First snapshot that has it.
    pub added: u64,
    /// Number of its rows that the table has.
    pub rows: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Number of its row groups that the table has.
    pub groups: u32,
    /// Number of the list of columns that it was written with ([`FieldIds::lists`](crate::FieldIds::lists)).
    pub columns: u16,
    /// Row groups of the file that the table does not have any more, by number, in order.
    pub left_out: Vec<u32>,
    /// Salt of the file, which no other has; zeros if the table is not encrypted.
    pub salt: Salt,
    /// Bounds of the columns whose bounds the table keeps, over all rows of the file. `None`: not known.
    pub bounds: Vec<Option<Statistics>>,
}

impl DataFile {
    /// Returns what the file adds to the sums.
    pub(super) fn totals(&self) -> Totals {
        Totals { files: 1, rows: self.rows, bytes: self.bytes, groups: self.groups.into() }
    }

    /// Appends the encoded file.
    pub(super) fn put(&self, columns: &BoundedColumns, out: &mut Vec<u8>) {
        self.at.put(out);
        self.added.put(out);
        self.rows.put(out);
        self.bytes.put(out);
        self.groups.put(out);
        self.columns.put(out);
        (self.left_out.len() as u32).put(out);
        self.left_out.iter().for_each(|group| group.put(out));
        self.salt.put(out);
        columns.put_bounds(&self.bounds, out);
    }

    /// Decodes a file whose bounds are of the columns `written`. They become those of `columns`.
    pub(super) fn take(
        written: &BoundedColumns,
        columns: &BoundedColumns,
        from: &mut Cursor<'_>,
    ) -> Result<DataFile, WireError> {
        let (at, added) = (PartAt::take(from)?, u64::take(from)?);
        let (rows, bytes, groups) = (u64::take(from)?, u64::take(from)?, u32::take(from)?);
        if rows > u64::from(groups) * GROUP_ROWS_MAX as u64 {
            return Err(WireError::Value { what: "rows of a data file", found: rows });
        }
        Ok(DataFile {
            at,
            added,
            rows,
            bytes,
            groups,
            columns: u16::take(from)?,
            left_out: take_left_out(groups, from)?,
            salt: Salt::take(from)?,
            bounds: columns.converted(written, &written.take_bounds(from)?),
        })
    }
}

/// Decodes the row groups that are left out of a file, of which the table has `groups` others.
fn take_left_out(groups: u32, from: &mut Cursor<'_>) -> Result<Vec<u32>, WireError> {
    let count = u32::take(from)? as usize;
    let of_file = u64::from(groups) + count as u64;
    if of_file > ROW_GROUPS_MAX as u64 {
        let (found, max) = (of_file, ROW_GROUPS_MAX as u64);
        return Err(WireError::TooMany { what: "row groups of a data file", found, max });
    }
    check_count("row groups that are left out", count, 4, from)?;
    let mut left_out: Vec<u32> = Vec::with_capacity(count);
    for _ in 0..count {
        let group = u32::take(from)?;
        if u64::from(group) >= of_file || left_out.last().is_some_and(|last| *last >= group) {
            return Err(WireError::Value { what: "a row group that is left out", found: group.into() });
        }
        left_out.push(group);
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::super::Entries;
    use super::super::tests::file;
    use super::*;
    use crate::schema_mapping::FieldIds;
    use arrow_schema::Schema;

    #[test]
    fn data_file_that_cannot_be_is_refused() {
        let file = file(3, 4);
        let (most, rows) = (ROW_GROUPS_MAX as u32, GROUP_ROWS_MAX as u64);
        let permitted = [
            DataFile { rows, ..file.clone() },
            DataFile { left_out: vec![0, 2], ..file.clone() },
            DataFile { groups: most - 1, left_out: vec![most - 1], ..file.clone() },
        ];
        let refused = [
            DataFile { rows: rows + 1, ..file.clone() },
            DataFile { left_out: vec![0, 3], ..file.clone() },
            DataFile { left_out: vec![2, 0], ..file.clone() },
            DataFile { groups: most, left_out: vec![0], ..file.clone() },
            DataFile { groups: u32::MAX, ..file },
        ];
        let columns = BoundedColumns::of(&Schema::empty(), &FieldIds::of_new_table(0), &[]);
        let take = |file: &DataFile| {
            let file = DataFile { bounds: Vec::new(), ..file.clone() };
            let (entries, mut bytes) = (Entries::Files(vec![file]), Vec::new());
            entries.put(&columns, &mut bytes);
            Entries::take(&columns, &mut Cursor::new(&bytes)).map(|read| assert_eq!(read, entries))
        };
        assert!(permitted.iter().all(|file| take(file).is_ok()));
        assert!(refused.iter().all(|file| take(file).is_err()));
    }
}
