//! Cuts rows by the hash of their keys, so that rows with equal keys are in the same part on both sides of a join.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, RecordBatch, StringViewArray};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::physical_expr::PhysicalExprRef;
use std::mem::take;
use std::sync::Arc;

/// Views of up to so many bytes hold their values themselves.
const INLINE_BYTES: u32 = 12;

/// How rows are cut. A part that is cut again is cut at another level, by another hash.
#[derive(Clone, Debug)]
pub(crate) struct Cutter {
    keys: Vec<PhysicalExprRef>,
    parts: usize,
    hash: RandomState,
}

impl Cutter {
    pub(crate) fn new(keys: Vec<PhysicalExprRef>, parts: usize, level: u32) -> Cutter {
        // Of none of the hashes that DataFusion repartitions and joins by.
        let hash = RandomState::with_seed(0x6661_7270_6f6f_6c00 + u64::from(level));
        Cutter { keys, parts, hash }
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// The key columns of rows.
    pub(crate) fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// Where the rows of each part are: a batch, and a row of it.
    fn places(&self, batches: &[RecordBatch]) -> Result<Vec<Vec<(usize, usize)>>> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let usual = rows / self.parts + rows / self.parts / 8;
        let mut places: Vec<_> = (0..self.parts).map(|_| Vec::with_capacity(usual)).collect();
        let mut hashes = Vec::new();
        for (at, batch) in batches.iter().enumerate() {
            hashes.clear();
            hashes.resize(batch.num_rows(), 0);
            create_hashes(&self.keys(batch)?, &self.hash, &mut hashes)?;
            for (row, hash) in hashes.iter().enumerate() {
                // The high bits, as a fraction of all parts.
                let part = ((hash >> 32) * self.parts as u64) >> 32;
                places[part as usize].push((at, row));
            }
        }
        Ok(places)
    }
}

/// Batches that are cut at once, so that parts get more than a few rows of each.
pub(crate) struct Block {
    cutter: Cutter,
    batches: Vec<RecordBatch>,
    bytes: usize,
    bytes_max: usize,
}

impl Block {
    pub(crate) fn new(cutter: Cutter, bytes_max: usize) -> Block {
        Block { cutter, batches: Vec::new(), bytes: 0, bytes_max }
    }

    /// Takes rows; says whether it is full.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> bool {
        self.bytes += bytes_of(&batch);
        self.batches.push(batch);
        self.bytes >= self.bytes_max
    }

    /// The rows of each part that has any; those of which `is_one` says so together, as `None`.
    pub(crate) fn cut(
        &mut self,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<Vec<(Option<usize>, RecordBatch)>> {
        let batches = take(&mut self.batches);
        self.bytes = 0;
        let mut places = self.cutter.places(&batches)?;
        let together = places.iter_mut().enumerate().filter(|(part, _)| is_one(*part));
        let mut one: Vec<_> = together.flat_map(|(_, places)| take(places)).collect();
        // Memory is read in order then.
        one.sort_unstable();
        let all: Vec<&RecordBatch> = batches.iter().collect();
        let parts = places.iter().enumerate().map(|(part, places)| (Some(part), places));
        parts
            .chain(std::iter::once((None, &one)))
            .filter(|(_, places)| !places.is_empty())
            .map(|(part, places)| Ok((part, compact(interleave_record_batch(&all, places)?)?)))
            .collect()
    }
}

/// The same rows without the bytes of others that views may hold on to.
fn compact(batch: RecordBatch) -> Result<RecordBatch> {
    let is_view = |column: &ArrayRef| matches!(column.data_type(), DataType::Utf8View | DataType::BinaryView);
    if !batch.columns().iter().any(is_view) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// What rows take, without those beside them in the same memory.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| bytes_of_column(column)).sum()
}

fn bytes_of_column(column: &ArrayRef) -> usize {
    fn long(lengths: impl Iterator<Item = u32>) -> usize {
        lengths.filter(|length| *length > INLINE_BYTES).map(|length| length as usize).sum()
    }
    let beyond = match column.data_type() {
        DataType::Utf8View => long(StringViewArray::lengths(column.as_string_view())),
        DataType::BinaryView => long(BinaryViewArray::lengths(column.as_binary_view())),
        _ => 0,
    };
    // What has no size of its own slice counts whole.
    let own = column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size());
    own + beyond
}
