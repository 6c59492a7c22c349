//! Arranging the rows of a table: which rows lie together in a file, and how they are sorted there.
//!
//! The idea: the manifest has the bounds of some columns over each file. They rule files out only if the rows of a file
//! are alike. So the rows of a table with partitions are divided by the values of some columns, and each file has rows
//! of one partition alone; and each file is sorted by the columns of the table's order. Rows are collected up to a
//! number of bytes, sorted, and written, so that no more memory than that is needed, however large the table: a
//! partition then has several files, each of which is sorted by itself.

use crate::BOUND_BYTES_MAX;
use crate::arrangement::Arrangement;
use crate::manifest::{DataFile, Root};
use crate::statistics::Statistics;
use arrow_array::{Array, RecordBatch};
use arrow_schema::SchemaRef;
use farpool_files::{Error, ErrorKind};
use farpool_operators::run::sorted_by_values;
use std::collections::BTreeSet;

/// Most partitions whose rows one commit adds.
pub const PARTITIONS_MAX: usize = 1_024;
/// Bytes of rows that are collected, as Arrow has them in memory, before they are sorted and written. Sorting takes as
/// much again.
const COLLECTED_BYTES_MAX: usize = 128 << 20;

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Returns bytes that tell the partition of a file from other partitions of the table. Equal for all files of a table
/// without partitions.
pub(crate) fn partition_of(root: &Root, file: &DataFile) -> Vec<u8> {
    let mut key = Vec::new();
    for column in &root.arrangement.partition_by {
        let place = root.bounded.iter().position(|of| of == column);
        // All rows of the file have the same value. There are no bounds if it is NULL.
        let bounds = place.and_then(|place| file.bounds.get(place)).and_then(Option::as_ref);
        if let Some(field) = root.schema.fields().get(usize::from(*column)) {
            Statistics::put(bounds, field.data_type(), &mut key);
        }
    }
    key
}

/// Checks that bounds tell the value of each partition column of a file that was written.
///
/// Errors: a value is too long for that.
pub(crate) fn check_partition(
    arrangement: &Arrangement,
    schema: &SchemaRef,
    bounded: &[u16],
    bounds: &[Option<Statistics>],
) -> Result<(), Error> {
    for column in &arrangement.partition_by {
        let known =
            bounded.iter().zip(bounds).find(|(of, _)| *of == column).and_then(|(_, known)| known.as_ref());
        if known.is_some_and(|known| known.is_min_truncated) {
            let name = schema.field(usize::from(*column)).name();
            let message = format!(
                "column {name:?} divides the table into partitions, and has a value of more than {BOUND_BYTES_MAX} \
                 bytes"
            );
            return Err(invalid(message));
        }
    }
    Ok(())
}

/// Collector of rows that are written in the arrangement of a table.
#[derive(Debug)]
pub(crate) struct Arranger {
    arrangement: Arrangement,
    bytes_max: usize,
    collected: Vec<RecordBatch>,
    bytes: usize,
    /// Partitions of which rows were written.
    partitions: BTreeSet<Box<[u8]>>,
}

impl Arranger {
    pub(crate) fn new(arrangement: Arrangement) -> Arranger {
        let (collected, partitions) = (Vec::new(), BTreeSet::new());
        Arranger { arrangement, bytes_max: COLLECTED_BYTES_MAX, collected, bytes: 0, partitions }
    }

    /// Collects so many times the usual bytes: rows of one file that was compressed come together again.
    pub(crate) fn times(self, factor: usize) -> Arranger {
        Arranger { bytes_max: self.bytes_max * factor, ..self }
    }

    /// Adds rows. Calls `write` with the rows of each file that is to be written.
    pub(crate) fn push(
        &mut self,
        batch: RecordBatch,
        write: impl FnMut(Vec<RecordBatch>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let bytes = |column: &dyn Array| {
            column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
        };
        self.bytes += batch.columns().iter().map(|column| bytes(column.as_ref())).sum::<usize>();
        self.collected.push(batch);
        if self.bytes >= self.bytes_max { self.finish(write) } else { Ok(()) }
    }

    /// Hands over the rows that were collected.
    pub(crate) fn finish(
        &mut self,
        mut write: impl FnMut(Vec<RecordBatch>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.bytes = 0;
        let collected = std::mem::take(&mut self.collected);
        let Arrangement { partition_by, sort_by } = &self.arrangement;
        let columns = [&partition_by[..], &sort_by[..]].concat();
        let sorted = sorted_by_values(&collected, &columns, partition_by.len());
        let sorted = sorted.map_err(|error| invalid(format!("sorting the rows failed: {error}")))?;
        drop(collected);
        for part in sorted {
            self.partitions.insert(part.key);
            if self.partitions.len() > PARTITIONS_MAX {
                let message = format!(
                    "the rows are of more than {PARTITIONS_MAX} partitions; choose columns with fewer values for \
                     partition_by, or add the rows in several steps"
                );
                return Err(invalid(message));
            }
            write(part.batches)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    fn batch(ids: Vec<i64>) -> RecordBatch {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.iter().map(|id| id % 3)));
        RecordBatch::try_from_iter([("key", keys), ("id", Arc::new(Int64Array::from(ids)) as ArrayRef)])
            .expect("a batch")
    }

    #[test]
    fn rows_come_by_partition_in_order_whenever_enough_are_collected() {
        let mut arranger = Arranger::new(Arrangement { partition_by: vec![0], sort_by: vec![1] });
        arranger.bytes_max = 200;
        let mut written: Vec<Vec<i64>> = Vec::new();
        let mut write = |rows: Vec<RecordBatch>| {
            let ids = |batch: &RecordBatch| batch.column(1).as_primitive::<Int64Type>().values().to_vec();
            written.push(rows.iter().flat_map(ids).collect());
            Ok(())
        };
        for from in [10, 0, 20] {
            arranger.push(batch((from..from + 10).rev().collect()), &mut write).expect("written");
        }
        arranger.finish(&mut write).expect("written");
        assert_eq!(written.len(), 6, "twenty rows were enough, and ten were left");
        for rows in &written {
            assert!(rows.is_sorted() && rows.iter().all(|id| id % 3 == rows[0] % 3), "{rows:?}");
        }
        let mut all: Vec<i64> = written.into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..30).collect::<Vec<_>>());
    }

    #[test]
    fn more_partitions_than_are_permitted_are_refused() {
        let mut arranger = Arranger::new(Arrangement { partition_by: vec![1], sort_by: Vec::new() });
        arranger.push(batch((0..=PARTITIONS_MAX as i64).collect()), |_| Ok(())).expect("collected");
        let error = arranger.finish(|_| Ok(())).expect_err("too many");
        assert!(error.to_string().contains("more than 1024 partitions"), "{error}");
    }
}
