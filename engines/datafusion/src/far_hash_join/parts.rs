//! The parts of both sides of a join. Parts of the build side stay in memory while there is room; the others are in
//! files.

use super::cutting::{Block, alone, bytes_of};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, SpillFile};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use std::mem::take;
use std::sync::Arc;

/// Upper limit of the bytes that DataFusion's hash table takes for a row: 16 buckets of 17 bytes for 7 rows, and a link
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

/// Factory of the spill files of one side, and their description.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) manager: SpillManager,
    pub(crate) name: &'static str,
}

type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Spill file of a part that is being written.
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

    fn finish(mut self) -> Result<Part> {
        Ok(Part { file: (self.append)(None)?, rows: self.rows, bytes: self.bytes })
    }
}

/// Part that was written completely. `file` is `None` if it has no rows.
#[derive(Clone, Default)]
pub(crate) struct Part {
    file: Option<Arc<dyn SpillFile>>,
    pub(crate) rows: usize,
    bytes: usize,
}

impl Part {
    /// Returns the memory that the part takes as a build side, in bytes.
    pub(crate) fn needed(&self) -> usize {
        needed(self.rows, self.bytes)
    }

    /// Streams the rows of the part.
    pub(crate) fn read(&self, files: &Files) -> Result<SendableRecordBatchStream> {
        match &self.file {
            Some(file) => files.manager.read_spill_as_stream(Arc::clone(file), None),
            None => Ok(Box::pin(EmptyRecordBatchStream::new(Arc::clone(files.manager.schema())))),
        }
    }
}

/// Build side while it is cut.
pub(crate) struct BuildParts {
    block: Block,
    files: Files,
    parts: Vec<BuildPart>,
}

#[derive(Default)]
struct BuildPart {
    near: Vec<RecordBatch>,
    /// Bytes reserved for `near`.
    near_bytes: usize,
    file: Option<Growing>,
}

impl BuildPart {
    fn spill(&mut self, files: &Files, held: &MemoryReservation) -> Result<&mut Growing> {
        let mut file = Growing::new(files)?;
        for batch in take(&mut self.near) {
            file.append(&batch)?;
        }
        held.shrink(take(&mut self.near_bytes));
        Ok(self.file.insert(file))
    }
}

impl BuildParts {
    pub(crate) fn new(block: Block, files: Files) -> BuildParts {
        let parts = (0..block.parts()).map(|_| BuildPart::default()).collect();
        BuildParts { block, files, parts }
    }

    /// Adds rows. `held` grows by what stays in memory.
    pub(crate) fn push(&mut self, batch: RecordBatch, held: &MemoryReservation) -> Result<()> {
        match self.block.push(batch) {
            true => self.cut(held),
            false => Ok(()),
        }
    }

    fn cut(&mut self, held: &MemoryReservation) -> Result<()> {
        for (part, rows) in self.block.cut(|_| false)? {
            if let Some(part) = part {
                self.place(part, rows, held)?;
            }
        }
        Ok(())
    }

    /// Keeps rows of a part in memory, or appends them to its file. If memory is short, the largest part in memory
    /// spills first.
    fn place(&mut self, part: usize, rows: RecordBatch, held: &MemoryReservation) -> Result<()> {
        let needed = needed_of(&rows);
        loop {
            if let Some(file) = &mut self.parts[part].file {
                return file.append(&rows);
            }
            if held.try_grow(needed).is_ok() {
                self.parts[part].near.push(alone(&rows)?);
                self.parts[part].near_bytes += needed;
                return Ok(());
            }
            let sizes = self.parts.iter().enumerate().map(|(part, of)| (of.near_bytes, part));
            match sizes.max() {
                Some((1.., largest)) => self.parts[largest].spill(&self.files, held)?,
                _ => self.parts[part].spill(&self.files, held)?,
            };
        }
    }

    /// Ends the build side. Returns the rows in memory and the spilled parts.
    pub(crate) fn finish(mut self, held: &MemoryReservation) -> Result<Cut> {
        self.cut(held)?;
        let mut cut = Cut { near: Vec::new(), parts: Vec::new() };
        for part in self.parts {
            cut.near.extend(part.near);
            cut.parts.push(part.file.map(Growing::finish).transpose()?);
        }
        Ok(cut)
    }
}

/// Build side after it was cut.
pub(crate) struct Cut {
    pub(crate) near: Vec<RecordBatch>,
    /// Spilled parts by number; `None` for parts in memory.
    pub(crate) parts: Vec<Option<Part>>,
}

/// Probe side while it is cut. Rows whose build part is in memory are returned at once; the others go to files.
pub(crate) struct ProbeParts {
    block: Block,
    files: Files,
    /// True for each part whose rows go to files.
    is_far: Vec<bool>,
    parts: Vec<Option<Growing>>,
}

impl ProbeParts {
    pub(crate) fn new(block: Block, files: Files, is_far: Vec<bool>) -> ProbeParts {
        let parts = is_far.iter().map(|_| None).collect();
        ProbeParts { block, files, is_far, parts }
    }

    /// Adds rows. Returns rows to join now, if there are any.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        if !self.is_far.contains(&true) {
            return Ok(Some(batch));
        }
        match self.block.push(batch) {
            true => self.cut(),
            false => Ok(None),
        }
    }

    /// Cuts the block. Returns rows to join now, if there are any.
    pub(crate) fn cut(&mut self) -> Result<Option<RecordBatch>> {
        let mut near = None;
        for (part, rows) in self.block.cut(|part| !self.is_far[part])? {
            let Some(part) = part else {
                near = Some(rows);
                continue;
            };
            if self.parts[part].is_none() {
                self.parts[part] = Some(Growing::new(&self.files)?);
            }
            if let Some(file) = &mut self.parts[part] {
                file.append(&rows)?;
            }
        }
        Ok(near)
    }

    /// Ends the probe side, after a last [`ProbeParts::cut`]. Returns its parts; those without rows have no file.
    pub(crate) fn finish(self) -> Result<Vec<Part>> {
        self.parts.into_iter().map(|part| part.map_or(Ok(Part::default()), Growing::finish)).collect()
    }
}

/// Returns batches as a stream.
pub(crate) fn stream_of(files: &Files, batches: Vec<RecordBatch>) -> SendableRecordBatchStream {
    let batches = futures::stream::iter(batches.into_iter().map(Ok));
    Box::pin(RecordBatchStreamAdapter::new(Arc::clone(files.manager.schema()), batches))
}
