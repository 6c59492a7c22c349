//! Bounds of columns over the rows of a data file, for its manifest: the columns that have them, and how they are made.

use crate::footer::RowGroup;
use crate::statistics::Statistics;
use arrow_schema::SchemaRef;

/// Most columns whose bounds a manifest keeps for each data file.
pub const BOUNDED_COLUMNS_MAX: usize = 8;
/// Columns whose bounds a manifest keeps if none are chosen: so many of the first.
const BOUNDED_BY_DEFAULT: usize = 4;

/// Returns the columns whose bounds a manifest keeps if none are chosen: the first ones.
pub(crate) fn bounded_by_default(schema: &SchemaRef) -> Vec<u16> {
    (0..schema.fields().len().min(BOUNDED_BY_DEFAULT) as u16).collect()
}

/// Returns bounds of columns over all rows of row groups.
pub(crate) fn bounds_of(groups: &[RowGroup], bounded: &[u16]) -> Vec<Option<Statistics>> {
    let bounds = |column: &u16| {
        let chunks = groups.iter().map(|group| group.columns.get(usize::from(*column)));
        Statistics::over(chunks.map(|chunk| chunk.and_then(|chunk| chunk.statistics.as_ref())))
    };
    bounded.iter().map(bounds).collect()
}
