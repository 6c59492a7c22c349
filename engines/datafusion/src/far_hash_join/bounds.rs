//! Minimum and maximum of the build side's keys, as a filter for scans on the probe side.
//!
//! The idea: the filter only saves work. A row outside the bounds has no partner, and a row inside may still have none,
//! so a weaker filter gives the same answer. Therefore no scan waits for the bounds. The filter passes everything until
//! all partitions (parallel streams) of the build side have ended. If one of them never ends, the filter passes
//! everything for ever.

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::{Accumulator, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use farpool_lock::Mutex;
use std::sync::Arc;

/// Bounds over all partitions of the build side, and the dynamic filter in which they are published.
#[derive(Debug)]
pub(crate) struct Bounds {
    filter: PhysicalExprRef,
    /// Key expressions of the probe side.
    keys: Vec<PhysicalExprRef>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Minimum and maximum of each key so far. `None` if the key has had no values, or is of a type without bounds.
    keys: Vec<Option<(ScalarValue, ScalarValue)>>,
    /// Number of partitions of the build side that have not ended.
    partitions: usize,
}

impl Bounds {
    /// Makes empty bounds for this number of partitions of the build side.
    pub(crate) fn new(filter: PhysicalExprRef, keys: Vec<PhysicalExprRef>, partitions: usize) -> Bounds {
        let known = Known { keys: vec![None; keys.len()], partitions };
        Bounds { filter, keys, known: Mutex::new(known) }
    }

    /// Returns the bounds of one partition, to be filled as its rows pass.
    pub(crate) fn partition(self: &Arc<Bounds>) -> PartitionBounds {
        PartitionBounds { all: Arc::clone(self), keys: Vec::new() }
    }

    fn end(&self, keys: Vec<Option<(ScalarValue, ScalarValue)>>) -> Result<()> {
        let mut known = self.known.lock();
        for (known, new) in known.keys.iter_mut().zip(keys) {
            *known = match (known.take(), new) {
                (None, other) | (other, None) => other,
                (Some((least, greatest)), Some((low, high))) => {
                    let least = if low < least { low } else { least };
                    let greatest = if high > greatest { high } else { greatest };
                    Some((least, greatest))
                }
            };
        }
        known.partitions = known.partitions.saturating_sub(1);
        if known.partitions > 0 {
            return Ok(());
        }
        let Some(filter) = self.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return Ok(()) };
        let within = self.keys.iter().zip(&known.keys).filter_map(|(key, bounds)| {
            let (least, greatest) = bounds.as_ref()?;
            let compare = |sign, value: &ScalarValue| -> PhysicalExprRef {
                Arc::new(BinaryExpr::new(Arc::clone(key), sign, Arc::new(Literal::new(value.clone()))))
            };
            let from = compare(Operator::GtEq, least);
            Some(and(from, compare(Operator::LtEq, greatest)))
        });
        if let Some(within) = within.reduce(and) {
            filter.update(within)?;
        }
        filter.mark_complete();
        Ok(())
    }
}

fn and(left: PhysicalExprRef, right: PhysicalExprRef) -> PhysicalExprRef {
    Arc::new(BinaryExpr::new(left, Operator::And, right)) as Arc<dyn PhysicalExpr>
}

/// Bounds of one partition of the build side.
pub(crate) struct PartitionBounds {
    all: Arc<Bounds>,
    /// Accumulators of each key. `None` for types whose bounds cannot be a filter, such as floats because of NaN.
    keys: Vec<Option<(MinAccumulator, MaxAccumulator)>>,
}

impl PartitionBounds {
    pub(crate) fn note(&mut self, keys: &[ArrayRef]) -> Result<()> {
        if self.keys.is_empty() {
            let accumulators = |key: &ArrayRef| {
                let of = key.data_type();
                let is_ordered = of.is_integer() || of.is_temporal() || of.is_decimal() || of.is_string();
                let both = || Some((MinAccumulator::try_new(of).ok()?, MaxAccumulator::try_new(of).ok()?));
                both().filter(|_| is_ordered)
            };
            self.keys = keys.iter().map(accumulators).collect();
        }
        for (known, key) in self.keys.iter_mut().zip(keys) {
            if let Some((least, greatest)) = known {
                least.update_batch(std::slice::from_ref(key))?;
                greatest.update_batch(std::slice::from_ref(key))?;
            }
        }
        Ok(())
    }

    /// Merges the bounds of this partition into the common ones. The last partition to end publishes the filter.
    pub(crate) fn end(mut self) -> Result<()> {
        let bounds = |(least, greatest): &mut (MinAccumulator, MaxAccumulator)| -> Result<_> {
            let (least, greatest) = (least.evaluate()?, greatest.evaluate()?);
            Ok((!least.is_null() && !greatest.is_null()).then_some((least, greatest)))
        };
        let mut ended = Vec::new();
        for known in &mut self.keys {
            ended.push(known.as_mut().map(bounds).transpose()?.flatten());
        }
        self.all.end(ended)
    }
}
