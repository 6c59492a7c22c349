//! Cuts rows by the hash of their keys, so that rows with equal keys are in the same part on both sides of a join.

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, RecordBatch, StringViewArray, UInt32Array,
};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::execution::memory_pool::MemoryReservation;
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

    /// The key columns of rows.
    pub(crate) fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// The part of each row.
    fn parts_of(&self, batch: &RecordBatch) -> Result<Vec<u16>> {
        let mut hashes = vec![0; batch.num_rows()];
        create_hashes(&self.keys(batch)?, &self.hash, &mut hashes)?;
        // The high bits, as a fraction of all parts.
        Ok(hashes.iter().map(|hash| (((hash >> 32) * self.parts as u64) >> 32) as u16).collect())
    }
}

/// Batches that are cut at once, so that parts get more than a few rows of each.
pub(crate) struct Block {
    cutter: Cutter,
    batches: Vec<RecordBatch>,
    bytes: usize,
    bytes_max: usize,
    /// For them, and as much again while they are cut.
    _held: MemoryReservation,
}

impl Block {
    /// Of so many bytes, which are taken of what `held` is of even if there are none left: without them nothing would
    /// go on.
    pub(crate) fn new(cutter: Cutter, bytes_max: usize, held: &MemoryReservation) -> Block {
        let held = held.new_empty();
        held.grow(2 * bytes_max);
        Block { cutter, batches: Vec::new(), bytes: 0, bytes_max, _held: held }
    }

    pub(crate) fn parts(&self) -> usize {
        self.cutter.parts
    }

    /// Takes rows; says whether it is full.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> bool {
        self.bytes += bytes_of(&batch);
        self.batches.push(batch);
        self.bytes >= self.bytes_max
    }

    /// The rows of each part that has any; those of parts of which `is_one` says so together, as `None`. All of them
    /// share their memory.
    pub(crate) fn cut(
        &mut self,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<Vec<(Option<usize>, RecordBatch)>> {
        let batches = take(&mut self.batches);
        self.bytes = 0;
        let Some(first) = batches.first() else { return Ok(Vec::new()) };
        let block = concat_batches(&first.schema(), &batches)?;
        drop(batches);
        // Those that are one come behind the others.
        let one = self.cutter.parts;
        let bins: Vec<usize> = (0..one).map(|part| if is_one(part) { one } else { part }).collect();
        let parts = self.cutter.parts_of(&block)?;
        let mut starts = vec![0_u32; one + 2];
        parts.iter().for_each(|part| starts[bins[usize::from(*part)] + 1] += 1);
        for bin in 1..starts.len() {
            starts[bin] += starts[bin - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; parts.len()];
        for (row, part) in parts.iter().enumerate() {
            let next = &mut next[bins[usize::from(*part)]];
            order[*next as usize] = row as u32;
            *next += 1;
        }
        let ordered = take_record_batch(&block, &UInt32Array::from(order))?;
        let slice = |bin: usize| {
            let (start, end) = (starts[bin] as usize, starts[bin + 1] as usize);
            (start < end).then(|| ((bin < one).then_some(bin), ordered.slice(start, end - start)))
        };
        Ok((0..=one).filter_map(slice).collect())
    }
}

/// The same rows in memory of their own.
pub(crate) fn alone(batch: &RecordBatch) -> Result<RecordBatch> {
    let all = UInt32Array::from_iter_values(0..batch.num_rows() as u32);
    let batch = take_record_batch(batch, &all)?;
    // Views hold on to the bytes of others.
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// What rows take, without those beside them in the same memory.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(bytes_of_column).sum()
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
