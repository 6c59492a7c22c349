//! Selection and projection of rows of fixed width that lie one behind the other, as in Farview's tables. Projection
//! touches only the cache lines of the columns that are asked for ("smart addressing").

use crate::portable;
use std::ops::Range;

/// Row of eight columns of 8 bytes: one cache line.
pub type Row = [i64; 8];

/// Range for each column of a row, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Least value that passes.
    pub low: Row,
    /// Greatest value that passes.
    pub high: Row,
}

impl Ranges {
    /// Ranges that every row passes.
    pub const ALL: Ranges = Ranges { low: [i64::MIN; 8], high: [i64::MAX; 8] };

    /// Reports whether a row passes.
    #[inline]
    pub fn contain(&self, row: &Row) -> bool {
        row.iter().zip(&self.low).zip(&self.high).fold(true, |all, ((value, low), high)| {
            // There is no branch for each column, because this is `&` and not `&&`.
            all & (low <= value) & (value <= high)
        })
    }
}

/// Appends the rows of which every column lies in its range to `into`.
pub fn select_rows(rows: &[Row], ranges: &Ranges, into: &mut Vec<Row>) {
    into.reserve(rows.len());
    #[cfg(target_arch = "x86_64")]
    let done = crate::x86::select_rows(rows, ranges, into);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::select_rows(&rows[done..], ranges, into);
}

/// Appends the bytes `columns` of each row of `width` bytes to `into`. Reads only the cache lines of those bytes.
///
/// # Panics
/// If the columns reach beyond a row, or the last row is not whole.
pub fn project_rows(rows: &[u8], width: usize, columns: Range<usize>, into: &mut Vec<u8>) {
    assert!(
        columns.start <= columns.end && columns.end <= width && width > 0 && rows.len().is_multiple_of(width),
        "bytes {columns:?} of rows of {width} bytes, of which there are {} bytes",
        rows.len()
    );
    let filled = into.len();
    into.resize(filled + rows.len() / width * columns.len(), 0);
    project_into(rows, width, columns, &mut into[filled..]);
}

/// Copies columns out of rows of `width` bytes. Each column is the range of its bytes in a row and the buffer for its
/// values, one behind the other. Reads only the cache lines of the columns.
///
/// # Panics
/// If a column reaches beyond a row, the last row is not whole, or a buffer has not exactly the size of its column.
pub fn split_rows(rows: &[u8], width: usize, columns: &mut [(Range<usize>, &mut [u8])]) {
    assert!(width > 0 && rows.len().is_multiple_of(width), "{} bytes in rows of {width}", rows.len());
    for (column, into) in &*columns {
        assert!(
            column.start <= column.end
                && column.end <= width
                && into.len() == rows.len() / width * column.len(),
            "bytes {column:?} of rows of {width} bytes, of which there are {} bytes, into {} bytes",
            rows.len(),
            into.len()
        );
    }
    // Later columns of a block find in the cache the lines that the first column brought in.
    let block_rows = (BLOCK_BYTES / width).max(BLOCK_ROWS_MIN);
    for (index, block) in rows.chunks(block_rows * width).enumerate() {
        for (column, into) in &mut *columns {
            let from = index * block_rows * column.len();
            let to = from + block.len() / width * column.len();
            project_into(block, width, column.clone(), &mut into[from..to]);
        }
    }
}

/// Bytes of a block of rows: all columns are copied out of it before the next block begins.
const BLOCK_BYTES: usize = 16 << 10;
/// Least number of rows of a block, however wide they are.
const BLOCK_ROWS_MIN: usize = 64;

fn project_into(rows: &[u8], width: usize, columns: Range<usize>, to: &mut [u8]) {
    // The compiler knows the length of common widths, so each row costs one or two moves instead of a call.
    match columns.len() {
        0 => {}
        1 => project_exactly::<1>(rows, width, columns.start, to),
        2 => project_exactly::<2>(rows, width, columns.start, to),
        4 => project_exactly::<4>(rows, width, columns.start, to),
        8 => project_exactly::<8>(rows, width, columns.start, to),
        16 => project_exactly::<16>(rows, width, columns.start, to),
        24 => project_exactly::<24>(rows, width, columns.start, to),
        32 => project_exactly::<32>(rows, width, columns.start, to),
        bytes => {
            let to = to.chunks_exact_mut(bytes);
            rows.chunks_exact(width).zip(to).for_each(|(row, to)| to.copy_from_slice(&row[columns.clone()]));
        }
    }
}

/// Distance in rows from the row that is copied to the one that is prefetched meanwhile.
const AHEAD_ROWS: usize = 64;

fn project_exactly<const BYTES: usize>(rows: &[u8], width: usize, start: usize, to: &mut [u8]) {
    let (to, _) = to.as_chunks_mut::<BYTES>();
    for (row, (from, to)) in rows.chunks_exact(width).zip(to).enumerate() {
        #[cfg(target_arch = "x86_64")]
        crate::x86::prefetch(rows, (row + AHEAD_ROWS) * width + start);
        to.copy_from_slice(&from[start..start + BYTES]);
    }
}
