//! Buckets of both sides of a join: parts of their rows, by a hash of the keys. Buckets of the build side stay in
//! memory while there is room; the other buckets go to files.

use super::bucket_hash::{Block, alone, bytes_of};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, SpillFile};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use std::mem::take;
use std::sync::Arc;

/// Upper limit of the bytes that DataFusion's hash table takes for a row: 16 slots of 17 bytes for 7 rows, and a link
/// of 4 bytes.
const TABLE_BYTES_PER_ROW: usize = 43;

/// Returns the memory that a build side takes: its rows and their hash table, in bytes.
pub(crate) fn needed(rows: usize, bytes: usize) -> usize {
    bytes + rows * TABLE_BYTES_PER_ROW
}

/// Returns the memory that a batch takes as a build side, in bytes.
pub(crate) fn needed_of(batch: &RecordBatch) -> usize {
    needed(batch.num_rows(), bytes_of(batch))
}

/// Factory of the spill files of one side of a join, and the name that describes them.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) manager: SpillManager,
    pub(crate) name: &'static str,
}

type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Spill file of a bucket that is being written.
struct Growing {
    append: Append,
    rows: usize,
    bytes: usize,
}

impl Growing {
    fn new(files: &Files) -> Result<Growing> {
        let mut file = files.manager.create_in_progress_file(files.name)?;
        let append: Append = Box::new(move |batch| match batch {
            Some(batch) => file.append_batch(batch).map(|_| None),
            None => file.finish(),
        });
        Ok(Growing { append, rows: 0, bytes: 0 })
    }

    fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        self.bytes += bytes_of(batch);
        (self.append)(Some(batch))?;
        Ok(())
    }

    fn finish(mut self) -> Result<Bucket> {
        Ok(Bucket { file: (self.append)(None)?, rows: self.rows, bytes: self.bytes })
    }
}

/// Bucket of one side that was written completely. `file` is `None` if the bucket has no rows.
#[derive(Clone, Default)]
pub(crate) struct Bucket {
    file: Option<Arc<dyn SpillFile>>,
    pub(crate) rows: usize,
    bytes: usize,
}

impl Bucket {
    /// Returns the memory that the bucket takes as a build side, in bytes.
    pub(crate) fn needed(&self) -> usize {
        needed(self.rows, self.bytes)
    }

    /// Streams the rows of the bucket.
    pub(crate) fn read(&self, files: &Files) -> Result<SendableRecordBatchStream> {
        match &self.file {
            Some(file) => files.manager.read_spill_as_stream(Arc::clone(file), None),
            None => Ok(Box::pin(EmptyRecordBatchStream::new(Arc::clone(files.manager.schema())))),
        }
    }
}

/// Build side while its rows are divided into buckets.
pub(crate) struct BuildBuckets {
    block: Block,
    files: Files,
    buckets: Vec<BuildBucket>,
}

#[derive(Default)]
struct BuildBucket {
    near: Vec<RecordBatch>,
    /// Bytes of memory that are reserved for the rows in `near`.
    near_bytes: usize,
    file: Option<Growing>,
}

impl BuildBucket {
    fn spill(&mut self, files: &Files, held: &MemoryReservation) -> Result<&mut Growing> {
        let mut file = Growing::new(files)?;
        for batch in take(&mut self.near) {
            file.append(&batch)?;
        }
        held.shrink(take(&mut self.near_bytes));
        Ok(self.file.insert(file))
    }
}

impl BuildBuckets {
    pub(crate) fn new(block: Block, files: Files) -> BuildBuckets {
        let buckets = (0..block.buckets()).map(|_| BuildBucket::default()).collect();
        BuildBuckets { block, files, buckets }
    }

    /// Adds rows of the build side. `held`, the join's reservation, grows by the memory of rows that stay in memory.
    pub(crate) fn push(&mut self, batch: RecordBatch, held: &MemoryReservation) -> Result<()> {
        match self.block.push(batch) {
            true => self.distribute(held),
            false => Ok(()),
        }
    }

    fn distribute(&mut self, held: &MemoryReservation) -> Result<()> {
        for (bucket, rows) in self.block.distribute(|_| false)? {
            if let Some(bucket) = bucket {
                self.place(bucket, rows, held)?;
            }
        }
        Ok(())
    }

    /// Keeps rows of a bucket in memory, or appends them to its file. If memory is short, the largest bucket in memory
    /// spills first.
    fn place(&mut self, bucket: usize, rows: RecordBatch, held: &MemoryReservation) -> Result<()> {
        let needed = needed_of(&rows);
        loop {
            if let Some(file) = &mut self.buckets[bucket].file {
                return file.append(&rows);
            }
            if held.try_grow(needed).is_ok() {
                self.buckets[bucket].near.push(alone(&rows)?);
                self.buckets[bucket].near_bytes += needed;
                return Ok(());
            }
            let sizes = self.buckets.iter().enumerate().map(|(bucket, of)| (of.near_bytes, bucket));
            match sizes.max() {
                Some((1.., largest)) => self.buckets[largest].spill(&self.files, held)?,
                _ => self.buckets[bucket].spill(&self.files, held)?,
            };
        }
    }

    /// Ends the build side. Returns its rows that stayed in memory, and its buckets that spilled.
    pub(crate) fn finish(mut self, held: &MemoryReservation) -> Result<SpilledBuild> {
        self.distribute(held)?;
        let mut build = SpilledBuild { near: Vec::new(), buckets: Vec::new() };
        for bucket in self.buckets {
            build.near.extend(bucket.near);
            build.buckets.push(bucket.file.map(Growing::finish).transpose()?);
        }
        Ok(build)
    }
}

/// Build side of which some buckets have spilled. `near` are the rows of all other buckets.
pub(crate) struct SpilledBuild {
    pub(crate) near: Vec<RecordBatch>,
    /// Spilled buckets by number; `None` for buckets in memory.
    pub(crate) buckets: Vec<Option<Bucket>>,
}

/// Probe side while its rows are divided into buckets. Rows whose bucket of the build side is in memory are returned at
/// once; the other rows go to files.
pub(crate) struct ProbeBuckets {
    block: Block,
    files: Files,
    /// True for each bucket whose rows go to files, because its build side spilled.
    is_far: Vec<bool>,
    buckets: Vec<Option<Growing>>,
}

impl ProbeBuckets {
    pub(crate) fn new(block: Block, files: Files, is_far: Vec<bool>) -> ProbeBuckets {
        let buckets = is_far.iter().map(|_| None).collect();
        ProbeBuckets { block, files, is_far, buckets }
    }

    /// Adds rows of the probe side. Returns rows that can be joined now, if there are any.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        if !self.is_far.contains(&true) {
            return Ok(Some(batch));
        }
        match self.block.push(batch) {
            true => self.distribute(),
            false => Ok(None),
        }
    }

    /// Divides the rows collected so far. Returns rows that can be joined now, if there are any.
    pub(crate) fn distribute(&mut self) -> Result<Option<RecordBatch>> {
        let mut near = None;
        for (bucket, rows) in self.block.distribute(|bucket| !self.is_far[bucket])? {
            let Some(bucket) = bucket else {
                near = Some(rows);
                continue;
            };
            if self.buckets[bucket].is_none() {
                self.buckets[bucket] = Some(Growing::new(&self.files)?);
            }
            if let Some(file) = &mut self.buckets[bucket] {
                file.append(&rows)?;
            }
        }
        Ok(near)
    }

    /// Ends the probe side, after a last [`ProbeBuckets::distribute`]. Returns its buckets; those without rows have no
    /// file.
    pub(crate) fn finish(self) -> Result<Vec<Bucket>> {
        self.buckets.into_iter().map(|bucket| bucket.map_or(Ok(Bucket::default()), Growing::finish)).collect()
    }
}

/// Returns batches as a stream.
pub(crate) fn stream_of(files: &Files, batches: Vec<RecordBatch>) -> SendableRecordBatchStream {
    let batches = futures::stream::iter(batches.into_iter().map(Ok));
    Box::pin(RecordBatchStreamAdapter::new(Arc::clone(files.manager.schema()), batches))
}
