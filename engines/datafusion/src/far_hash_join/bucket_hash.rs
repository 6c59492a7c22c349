//! Divides rows into buckets by the hash of their keys: rows with equal keys are in the same bucket on both sides of a
//! join.

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

/// Longest value in bytes that an Arrow view array stores within the view, without a separate buffer.
const INLINE_BYTES: u32 = 12;

/// Assigns rows to buckets by the hash of their keys. Each level uses another hash, so a bucket can be divided again.
#[derive(Clone, Debug)]
pub(crate) struct BucketHash {
    keys: Vec<PhysicalExprRef>,
    buckets: usize,
    hash: RandomState,
}

impl BucketHash {
    pub(crate) fn new(keys: Vec<PhysicalExprRef>, buckets: usize, level: u32) -> BucketHash {
        // The seed differs from those by which DataFusion repartitions and joins. With an equal seed, all rows of one
        // of DataFusion's partitions could fall into few buckets.
        let hash = RandomState::with_seed(0x6661_7270_6f6f_6c00 + u64::from(level));
        BucketHash { keys, buckets, hash }
    }

    /// Evaluates the key columns of a batch.
    pub(crate) fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// Returns the bucket of each row.
    fn buckets_of(&self, batch: &RecordBatch) -> Result<Vec<u16>> {
        let mut hashes = vec![0; batch.num_rows()];
        create_hashes(&self.keys(batch)?, &self.hash, &mut hashes)?;
        // The bucket is the upper 32 bits of the hash, scaled to the number of buckets.
        Ok(hashes.iter().map(|hash| (((hash >> 32) * self.buckets as u64) >> 32) as u16).collect())
    }
}

/// Batches that are collected and then divided into buckets together, so that each bucket gets more than a few rows at
/// a time.
pub(crate) struct Block {
    hash: BucketHash,
    batches: Vec<RecordBatch>,
    bytes: usize,
    bytes_max: usize,
    /// Reservation of memory for the batches, and for the copy of them that dividing makes.
    _held: MemoryReservation,
}

impl Block {
    /// Makes a block that is full at `bytes_max` bytes. Its memory is reserved even if the memory pool has none left,
    /// because a join cannot proceed without a block.
    pub(crate) fn new(hash: BucketHash, bytes_max: usize, held: &MemoryReservation) -> Block {
        let held = held.new_empty();
        held.grow(2 * bytes_max);
        Block { hash, batches: Vec::new(), bytes: 0, bytes_max, _held: held }
    }

    pub(crate) fn buckets(&self) -> usize {
        self.hash.buckets
    }

    /// Adds rows. Returns true if the block is full, so that [`Block::distribute`] must divide it.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> bool {
        self.bytes += bytes_of(&batch);
        self.batches.push(batch);
        self.bytes >= self.bytes_max
    }

    /// Divides the block and returns the rows of each bucket that has any. The buckets for which `is_one` is true are
    /// returned as one batch, with `None` as their number. All returned batches share memory, so one that is kept must
    /// be copied by [`alone`].
    pub(crate) fn distribute(
        &mut self,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<Vec<(Option<usize>, RecordBatch)>> {
        let batches = take(&mut self.batches);
        self.bytes = 0;
        let Some(first) = batches.first() else { return Ok(Vec::new()) };
        let block = concat_batches(&first.schema(), &batches)?;
        drop(batches);
        // Rows of the buckets that are returned as one batch come last.
        let one = self.hash.buckets;
        let bins: Vec<usize> = (0..one).map(|bucket| if is_one(bucket) { one } else { bucket }).collect();
        let buckets = self.hash.buckets_of(&block)?;
        let mut starts = vec![0_u32; one + 2];
        buckets.iter().for_each(|bucket| starts[bins[usize::from(*bucket)] + 1] += 1);
        for bin in 1..starts.len() {
            starts[bin] += starts[bin - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; buckets.len()];
        for (row, bucket) in buckets.iter().enumerate() {
            let next = &mut next[bins[usize::from(*bucket)]];
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

/// Copies a batch into memory of its own, so that keeping it does not keep the batches it was divided with.
pub(crate) fn alone(batch: &RecordBatch) -> Result<RecordBatch> {
    let all = UInt32Array::from_iter_values(0..batch.num_rows() as u32);
    let batch = take_record_batch(batch, &all)?;
    // A view array would keep the buffers of all rows; `gc` copies only the values of its own rows.
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// Returns the bytes that the rows of a batch take, without those of other rows in the same buffers.
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
    // Arrays of types that cannot tell the size of a slice count with all of their buffers.
    let own = column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size());
    own + beyond
}
