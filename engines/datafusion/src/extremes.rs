//! `min` and `max` of floats in groups, by the total order of IEEE 754.
//!
//! The idea: DataFusion's group accumulators compare floats by `<`. With NaN, or with both zeros, their result depends
//! on the order of the rows, so it would differ between placements. These functions use the total order, which
//! DataFusion's `min` and `max` without groups use too. All other behaviour is DataFusion's.

use datafusion::arrow::array::ArrowPrimitiveType;
use datafusion::arrow::datatypes::{ArrowNativeTypeOp, DataType, FieldRef, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;
use std::cmp::Ordering;
use std::sync::Arc;

/// Returns the `min` and `max` that replace DataFusion's.
pub fn extremes() -> [Arc<AggregateUDF>; 2] {
    let of = |datafusion, better| Arc::new(AggregateUDF::new_from_impl(Extreme { datafusion, better }));
    [of(min_udaf(), Ordering::Less), of(max_udaf(), Ordering::Greater)]
}

/// `min` or `max`, with DataFusion's function to delegate to.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    datafusion: Arc<AggregateUDF>,
    /// Result of comparing a new value with the extreme so far that makes the new value replace it.
    better: Ordering,
}

impl Extreme {
    fn groups<T: ArrowPrimitiveType + Send>(&self, of: &DataType) -> Box<dyn GroupsAccumulator> {
        let better = self.better;
        let worst = match better {
            Ordering::Less => T::Native::MAX_TOTAL_ORDER,
            _ => T::Native::MIN_TOTAL_ORDER,
        };
        let keep = move |held: &mut T::Native, new: T::Native| {
            if new.compare(*held) == better {
                *held = new;
            }
        };
        Box::new(PrimitiveGroupsAccumulator::<T, _>::new(of, keep).with_starting_value(worst))
    }
}

impl AggregateUDFImpl for Extreme {
    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_field.data_type() {
            of @ DataType::Float32 => Ok(self.groups::<Float32Type>(of)),
            of @ DataType::Float64 => Ok(self.groups::<Float64Type>(of)),
            _ => self.datafusion.inner().create_groups_accumulator(args),
        }
    }

    fn name(&self) -> &str {
        self.datafusion.inner().name()
    }

    fn signature(&self) -> &Signature {
        self.datafusion.inner().signature()
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        self.datafusion.inner().return_type(of)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.datafusion.inner().state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.datafusion.inner().accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.datafusion.inner().groups_accumulator_supported(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.datafusion.inner().create_sliding_accumulator(args)
    }

    fn is_descending(&self) -> Option<bool> {
        self.datafusion.inner().is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.datafusion.inner().order_sensitivity()
    }

    fn coerce_types(&self, of: &[DataType]) -> Result<Vec<DataType>> {
        self.datafusion.inner().coerce_types(of)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.datafusion.inner().reverse_expr()
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.datafusion.inner().value_from_stats(statistics)
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.datafusion.inner().set_monotonicity(of)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.datafusion.inner().documentation()
    }
}
