//! Rows of fixed width, one behind the other, as Farview's tables lie: selection, and projection that touches only
//! the cache lines of the columns asked for ("smart addressing").

use crate::portable;
use std::ops::Range;

/// A row of eight columns of 8 bytes: one cache line.
pub type Row = [i64; 8];

/// What each column of a row must lie in, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// The least that passes.
    pub low: Row,
    /// The greatest that passes.
    pub high: Row,
}

impl Ranges {
    /// Any row passes.
    pub const ALL: Ranges = Ranges { low: [i64::MIN; 8], high: [i64::MAX; 8] };

    /// Whether a row passes.
    #[inline]
    pub fn contain(&self, row: &Row) -> bool {
        row.iter().zip(&self.low).zip(&self.high).fold(true, |all, ((value, low), high)| {
            // Without a branch for each column.
            all & (low <= value) & (value <= high)
        })
    }
}

/// Appends the rows that pass.
pub fn select_rows(rows: &[Row], ranges: &Ranges, into: &mut Vec<Row>) {
    into.reserve(rows.len());
    #[cfg(target_arch = "x86_64")]
    let done = crate::x86::select_rows(rows, ranges, into);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::select_rows(&rows[done..], ranges, into);
}

/// Appends the bytes `columns` of each row of `width` bytes, and reads no others but those of the same cache lines.
///
/// # Panics
/// If the columns do not lie in a row, or the rows are not whole ones.
pub fn project_rows(rows: &[u8], width: usize, columns: Range<usize>, into: &mut Vec<u8>) {
    assert!(
        columns.start <= columns.end && columns.end <= width && width > 0 && rows.len().is_multiple_of(width),
        "bytes {columns:?} of rows of {width} bytes, of which there are {} bytes",
        rows.len()
    );
    into.reserve(rows.len() / width * columns.len());
    // The width is known to the compiler for a few columns: one or two moves instead of a call for each row.
    match columns.len() {
        8 => project_exactly::<8>(rows, width, columns.start, into),
        16 => project_exactly::<16>(rows, width, columns.start, into),
        24 => project_exactly::<24>(rows, width, columns.start, into),
        32 => project_exactly::<32>(rows, width, columns.start, into),
        _ => portable::project_rows(rows, width, columns, into),
    }
}

/// Rows between what is copied and what is asked for from memory meanwhile.
const AHEAD_ROWS: usize = 64;

fn project_exactly<const BYTES: usize>(rows: &[u8], width: usize, start: usize, into: &mut Vec<u8>) {
    let filled = into.len();
    into.resize(filled + rows.len() / width * BYTES, 0);
    let (to, _) = into[filled..].as_chunks_mut::<BYTES>();
    for (row, (from, to)) in rows.chunks_exact(width).zip(to).enumerate() {
        #[cfg(target_arch = "x86_64")]
        crate::x86::prefetch(rows, (row + AHEAD_ROWS) * width + start);
        to.copy_from_slice(&from[start..start + BYTES]);
    }
}
