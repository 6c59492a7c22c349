//! Rows of one partition that are complete before the first of them is read, and can be read again.
//!
//! Some of them are in memory. When the memory that the partitions of one task share is used up, the rest goes to a
//! temporary file of the session, which is in far memory.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SpillFile, TaskContext};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the partitions of one task keep in memory, together.
const MEMORY_BYTES: usize = 8 << 20;

/// Memory that is left to the partitions of one task. Clones share it.
#[derive(Clone)]
pub(crate) struct MemoryLeft(Arc<AtomicUsize>);

impl Default for MemoryLeft {
    fn default() -> MemoryLeft {
        MemoryLeft(Arc::new(AtomicUsize::new(MEMORY_BYTES)))
    }
}

impl MemoryLeft {
    /// Takes this many bytes. Returns false if fewer are left.
    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Function that appends a batch to a file, or ends the file and returns it.
type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Rows of one partition, while they arrive.
pub(crate) struct Keeper {
    /// Schema of the rows. `None` if it is that of the first batch.
    schema: Option<SchemaRef>,
    environment: Arc<RuntimeEnv>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    memory: MemoryLeft,
    batches: Vec<RecordBatch>,
    /// File for the rows behind those in memory. `None` while all are in memory.
    file: Option<(SpillManager, Append)>,
}

/// Rows of one partition, complete.
pub(crate) struct KeptRows {
    batches: Vec<RecordBatch>,
    file: Option<(SpillManager, Arc<dyn SpillFile>)>,
}

impl Keeper {
    /// Makes one for a partition of a task, whose temporary file is one of the session of `context`.
    pub(crate) fn new(
        schema: Option<SchemaRef>,
        context: &TaskContext,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
        memory: MemoryLeft,
    ) -> Keeper {
        let (environment, metrics) = (context.runtime_env(), metrics.clone());
        Keeper { schema, environment, metrics, partition, memory, batches: Vec::new(), file: None }
    }

    /// Adds all rows of a stream, to its end.
    pub(crate) async fn add_all(
        mut self,
        mut rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<KeptRows> {
        while let Some(batch) = rows.next().await {
            self.add(batch?)?;
        }
        self.finish()
    }

    fn add(&mut self, batch: RecordBatch) -> Result<()> {
        if self.file.is_none() && self.memory.take(batch.get_array_memory_size()) {
            self.batches.push(batch);
            return Ok(());
        }
        let append = match &mut self.file {
            Some((_, append)) => append,
            None => {
                let schema = self.schema.clone().unwrap_or_else(|| batch.schema());
                let metrics = SpillMetrics::new(&self.metrics, self.partition);
                let spill = SpillManager::new(Arc::clone(&self.environment), metrics, schema);
                let mut file = spill.create_in_progress_file("rows between stages")?;
                let append: Append = Box::new(move |batch| match batch {
                    Some(batch) => file.append_batch(batch).map(|_| None),
                    None => file.finish(),
                });
                &mut self.file.insert((spill, append)).1
            }
        };
        append(Some(&batch)).map(drop)
    }

    fn finish(self) -> Result<KeptRows> {
        let file = match self.file {
            Some((spill, mut append)) => append(None)?.map(|file| (spill, file)),
            None => None,
        };
        Ok(KeptRows { batches: self.batches, file })
    }
}

impl KeptRows {
    /// Returns the rows, in the order in which they came.
    pub(crate) fn read(&self) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let first = stream::iter(self.batches.clone().into_iter().map(Ok));
        match &self.file {
            None => Ok(first.boxed()),
            Some((spill, file)) => {
                Ok(first.chain(spill.read_spill_as_stream_unbuffered(Arc::clone(file), None)?).boxed())
            }
        }
    }
}
