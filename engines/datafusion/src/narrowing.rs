//! Translates dynamic filters into filters and key sets for near-data programs.
//!
//! The idea: a join or a top-k learns while it runs which rows it still needs, and DataFusion passes that down to the
//! scan as a dynamic filter. Such a filter only saves work, so any condition in it that cannot be translated is left
//! out. The filters are read again before each step of a scan, so later steps read less.

use crate::pipeline::Narrowing;
use crate::translate::condition;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, StructArray};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator as Sign;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, Column, DynamicFilterPhysicalExpr, InListExpr, Literal,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use farpool::operators::limits::LOOKUPS_MAX;
use farpool::operators::run::type_of;
use farpool::operators::{Comparison, Instruction, KeySet, Scalar, Type, Value};
use std::sync::Arc;

/// Number of values of an IN list that are compared one by one, at most. A longer list becomes a key set.
const LIST_VALUES: usize = 16;

/// Returns the conditions that exclude rows without a join partner, over columns of `schema`: those that the dynamic
/// filters have now, and the key sets `joins`, which were collected from build sides.
pub(crate) fn narrowing(
    filters: &[Arc<dyn PhysicalExpr>],
    joins: Vec<(Vec<u16>, Arc<KeySet>)>,
    schema: &Schema,
) -> Narrowing {
    let mut known = Known::default();
    for filter in filters {
        if let Some(said) = read(filter, schema) {
            known = known.and(said);
        }
    }
    let mut narrowing = Narrowing { filters: known.filters, joins };
    for keys in known.keys {
        // The same keys may have been collected from the build side already.
        let is_known = |(places, _): &(Vec<u16>, Arc<KeySet>)| {
            places.iter().copied().map(usize::from).eq(keys.columns.iter().copied())
        };
        if !narrowing.joins.iter().any(is_known) {
            narrowing.joins.extend(keys.key_set(schema));
        }
    }
    narrowing.joins.truncate(LOOKUPS_MAX);
    narrowing
}

/// Key values: a row must have one of them in these columns.
#[derive(Clone, Debug)]
struct Keys {
    columns: Vec<usize>,
    /// Values of the keys: for each column, a list of arrays.
    values: Vec<Vec<ArrayRef>>,
}

/// Conditions that are known to hold for all rows with a join partner.
#[derive(Clone, Debug, Default)]
struct Known {
    filters: Vec<Vec<Instruction>>,
    keys: Vec<Keys>,
}

impl Known {
    fn and(mut self, other: Known) -> Known {
        self.filters.extend(other.filters);
        self.keys.extend(other.keys);
        self
    }

    /// Combines the conditions of two filters, at least one of which holds. Keys are kept only if both have them for
    /// the same columns.
    fn or(self, other: Known) -> Known {
        let all = |filters: Vec<Vec<Instruction>>| {
            filters.into_iter().reduce(|mut all, one| {
                all.extend(one);
                all.push(Instruction::And);
                all
            })
        };
        let filters = all(self.filters).zip(all(other.filters)).map(|(mut either, or)| {
            either.extend(or);
            either.push(Instruction::Or);
            either
        });
        let both = |keys: Keys| {
            let same = other.keys.iter().find(|other| other.columns == keys.columns)?;
            let values = keys.values.into_iter().zip(&same.values);
            let values = values.map(|(mut values, more)| {
                values.extend(more.iter().cloned());
                values
            });
            Some(Keys { columns: keys.columns, values: values.collect() })
        };
        Known {
            filters: filters.into_iter().collect(),
            keys: self.keys.into_iter().filter_map(both).collect(),
        }
    }
}

/// Translates an expression to conditions. Returns `None` if the expression excludes no row, or cannot be translated.
/// An empty [`Known`] excludes no row either.
fn read(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Known> {
    if let Some(dynamic) = expr.downcast_ref::<DynamicFilterPhysicalExpr>() {
        return read(&dynamic.current().ok()?, schema);
    }
    if let Some(literal) = expr.downcast_ref::<Literal>()
        && literal.value() == &ScalarValue::Boolean(Some(true))
    {
        return None;
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>()
        && *binary.op() == Sign::And
    {
        let (left, right) = (read(binary.left(), schema), read(binary.right(), schema));
        return Some(left.unwrap_or_default().and(right.unwrap_or_default()));
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        return read_case(case, schema);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>()
        && !list.negated()
        && list.len() > LIST_VALUES
        && let Some(keys) = read_list(list)
    {
        return Some(Known { filters: Vec::new(), keys: vec![keys] });
    }
    let code = with_both_zeros(condition(expr, schema).ok()?)?;
    Some(Known { filters: vec![code], keys: Vec::new() })
}

/// Weakens comparisons with zero so that both zeros pass if one of them does. A top-k orders -0.0 before 0.0, but
/// comparisons treat them as equal: `f < 0.0` would drop -0.0. Returns `None` if the condition negates a comparison,
/// because the negation would become stronger.
fn with_both_zeros(mut code: Vec<Instruction>) -> Option<Vec<Instruction>> {
    let is_zero = |one: &Instruction| match one {
        Instruction::Literal(Scalar { of: Type::Float32, value: Some(Value::Float(bits)) }) => {
            bits << 33 == 0
        }
        Instruction::Literal(Scalar { of: Type::Float64, value: Some(Value::Float(bits)) }) => bits << 1 == 0,
        _ => false,
    };
    if !code.iter().any(is_zero) {
        return Some(code);
    }
    let is_opposite = |pair: &[Instruction]| pair[1] == Instruction::Not && pair[0] != Instruction::IsNull;
    if code.windows(2).any(is_opposite) {
        return None;
    }
    for one in &mut code {
        if let Instruction::Compare(comparison) = one {
            *comparison = match *comparison {
                Comparison::Less => Comparison::LessOrEqual,
                Comparison::Greater => Comparison::GreaterOrEqual,
                other => other,
            };
        }
    }
    Some(code)
}

/// Translates the filter of a partitioned join: it has a branch for each partition, and a row may belong to any of
/// them.
fn read_case(case: &CaseExpr, schema: &Schema) -> Option<Known> {
    let is_never = |expr: &Arc<dyn PhysicalExpr>| {
        let literal = expr.downcast_ref::<Literal>();
        literal.is_some_and(|literal| literal.value() == &ScalarValue::Boolean(Some(false)))
    };
    let mut any: Option<Known> = None;
    let branches = case.when_then_expr().iter().map(|(_, then)| then).chain(case.else_expr());
    for branch in branches.filter(|branch| !is_never(branch)) {
        let said = read(branch, schema)?;
        any = Some(match any {
            None => said,
            Some(any) => any.or(said),
        });
    }
    any
}

/// Returns the values of a list, by column.
fn read_list(list: &InListExpr) -> Option<Keys> {
    let column = |expr: &Arc<dyn PhysicalExpr>| Some(expr.downcast_ref::<Column>()?.index());
    let value = |item: &Arc<dyn PhysicalExpr>| Some(item.downcast_ref::<Literal>()?.value().clone());
    let values = list.list().iter().map(value).collect::<Option<Vec<_>>>()?;
    let values = ScalarValue::iter_to_array(values).ok()?;
    if let Some(one) = column(list.expr()) {
        return Some(Keys { columns: vec![one], values: vec![vec![values]] });
    }
    let function = list.expr().downcast_ref::<ScalarFunctionExpr>()?;
    let parts = values.as_any().downcast_ref::<StructArray>()?;
    if function.fun().name() != "struct" || parts.null_count() > 0 {
        return None;
    }
    let columns = function.args().iter().map(column).collect::<Option<Vec<_>>>()?;
    Some(Keys { columns, values: parts.columns().iter().map(|values| vec![Arc::clone(values)]).collect() })
}

impl Keys {
    /// Builds the key set. Returns `None` if a key cannot be converted to the type of its column.
    fn key_set(self, schema: &Schema) -> Option<(Vec<u16>, Arc<KeySet>)> {
        let Keys { columns, values } = self;
        let types = columns.iter().map(|column| type_of(schema.fields().get(*column)?.data_type()));
        let types = types.collect::<Option<Vec<_>>>()?;
        let fields =
            values.iter().map(|values| Some(Field::new("key", values.first()?.data_type().clone(), true)));
        let schema = Arc::new(Schema::new(fields.collect::<Option<Vec<_>>>()?));
        let parts = values.first()?.len();
        let part = |part: usize| {
            let columns =
                values.iter().map(|values| values.get(part).cloned()).collect::<Option<Vec<_>>>()?;
            RecordBatch::try_new(Arc::clone(&schema), columns).ok()
        };
        let batches = (0..parts).map(part).collect::<Option<Vec<_>>>()?;
        let places: Vec<_> = types.into_iter().enumerate().collect();
        let set = KeySet::new(&places, &schema, &batches).ok()?;
        Some((columns.into_iter().map(|column| column as u16).collect(), Arc::new(set)))
    }
}
