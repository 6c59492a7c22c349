//! Collects the keys of a join's build side, so that the scan on the probe side can run a semi-join beside the data.
//!
//! The idea: DataFusion's dynamic filter for a large build side is the hash table of the join, which cannot be sent to
//! a node. Instead the keys are noted as the build side's rows pass. Once all have passed, each step of the scan sends
//! the keys to the nodes and gets only rows with a partner. The join would drop every row that is left out. If the
//! keys are too many, or not all of them were noted, the scan returns all rows.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use farpool::operators::{KeySet, Type};
use farpool_lock::Mutex;
use futures::StreamExt;
use std::fmt;
use std::sync::Arc;

/// Limit for the rows of keys that are collected. If there are more, the scan gets no keys.
const ROWS_MAX: usize = 1 << 21;
/// Limit for the bytes of the collected keys. If they take more, the scan gets no keys.
const BYTES_MAX: usize = 32 << 20;
/// Inverse of the share of the scan's rows that the keys may be at most. With more keys, the lookup would not pay.
const SHARE: u64 = 4;

/// Keys of a build side, collected from all its partitions.
#[derive(Debug)]
pub(crate) struct JoinKeys {
    schema: SchemaRef,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// Number of times that a partition of the build side started.
    begun: usize,
    /// Number of times that a partition of the build side ended.
    ended: usize,
    partitions: usize,
    /// True if the keys cannot be used: there were too many, or some were not noted.
    is_off: bool,
    /// Set of the keys, made from `batches` on first use.
    set: Option<Arc<KeySet>>,
}

impl JoinKeys {
    pub(crate) fn new(schema: SchemaRef, partitions: usize) -> JoinKeys {
        let noted = Noted {
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
            begun: 0,
            ended: 0,
            partitions,
            is_off: false,
            set: None,
        };
        JoinKeys { schema, noted: Mutex::new(noted) }
    }

    /// Notes that a partition starts. If one starts again, the plan runs a second time and its keys may differ, so all
    /// are dropped.
    fn begin(&self) {
        let mut noted = self.noted.lock();
        noted.begun += 1;
        if noted.begun > noted.partitions {
            noted.give_up();
        }
    }

    fn note(&self, keys: RecordBatch) {
        let mut noted = self.noted.lock();
        noted.rows += keys.num_rows();
        noted.bytes += keys.get_array_memory_size();
        if noted.rows > ROWS_MAX || noted.bytes > BYTES_MAX {
            noted.give_up();
        }
        if !noted.is_off {
            noted.batches.push(keys);
        }
    }

    fn end(&self) {
        self.noted.lock().ended += 1;
    }

    /// Returns the keys as a set of values of these types. `None` if keys are missing, or too many for a scan of this
    /// many rows.
    pub(crate) fn set(&self, types: &[Type], rows: u64) -> Option<Arc<KeySet>> {
        let mut noted = self.noted.lock();
        if noted.is_off || noted.ended != noted.partitions || noted.rows as u64 > rows / SHARE {
            return None;
        }
        if noted.set.is_none() {
            let places: Vec<(usize, Type)> = types.iter().copied().enumerate().collect();
            match KeySet::new(&places, &self.schema, &noted.batches) {
                Ok(set) => noted.set = Some(Arc::new(set)),
                Err(_) => noted.give_up(),
            }
            noted.batches = Vec::new();
        }
        noted.set.clone()
    }
}

impl Noted {
    fn give_up(&mut self) {
        self.is_off = true;
        (self.batches, self.set) = (Vec::new(), None);
    }
}

/// Operator that passes its input on unchanged, and collects the keys of a join from it.
#[derive(Debug)]
pub(crate) struct CollectKeys {
    pub(crate) input: Arc<dyn ExecutionPlan>,
    pub(crate) keys: Vec<Arc<dyn PhysicalExpr>>,
    pub(crate) into: Arc<JoinKeys>,
}

impl DisplayAs for CollectKeys {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match form {
            DisplayFormatType::TreeRender => writeln!(f, "keys={keys}"),
            _ => write!(f, "CollectKeys: keys=[{keys}]"),
        }
    }
}

impl ExecutionPlan for CollectKeys {
    fn name(&self) -> &'static str {
        "CollectKeys"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for key in &self.keys {
            if f(key)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("CollectKeys has one input");
        };
        Ok(Arc::new(CollectKeys { input, keys: self.keys.clone(), into: Arc::clone(&self.into) }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let (keys, into) = (self.keys.clone(), Arc::clone(&self.into));
        into.begin();
        let at_end = Arc::clone(&into);
        let noted = input.inspect(move |batch| {
            let Ok(batch) = batch else { return };
            let column = |key: &Arc<dyn PhysicalExpr>| key.evaluate(batch)?.into_array(batch.num_rows());
            let columns = keys.iter().map(column).collect::<Result<Vec<_>>>();
            let noted =
                columns.and_then(|columns| Ok(RecordBatch::try_new(Arc::clone(&into.schema), columns)?));
            match noted {
                Ok(keys) => into.note(keys),
                // The join evaluates the same keys, and will report the error.
                Err(_) => into.noted.lock().give_up(),
            }
        });
        // Runs after the last batch, and before the join sees the end of the stream.
        let end = futures::stream::poll_fn(move |_| {
            at_end.end();
            std::task::Poll::Ready(None)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, noted.chain(end.fuse()))))
    }
}
