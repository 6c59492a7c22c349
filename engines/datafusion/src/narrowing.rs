//! Dynamic filters: what joins and top-k found out while the query runs, as far as it can be said beside the data.
//!
//! The idea: such a filter never changes the answer, so whatever of it is not understood is left out. It is looked at
//! anew before each step of a scan, so that later steps read less.

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

/// So many values and fewer are compared with one by one.
const LIST_VALUES: usize = 16;

/// What is known now of rows without a partner, over columns of this schema: by filters, and by keys that were noted.
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
        // The same keys may have been noted as they passed.
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

/// Keys that rows have to have in these columns.
#[derive(Clone, Debug)]
struct Keys {
    columns: Vec<usize>,
    /// An array for each column.
    values: Vec<Vec<ArrayRef>>,
}

/// All of which is true of rows that have a partner.
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

    /// What is true of rows for which either is: of keys only if both have them in the same columns.
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

/// What an expression says of rows; nothing if it says nothing that is understood. `Some` of an empty [`Known`] is
/// likewise nothing.
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

/// Returns a condition that rows with either zero pass where one of them might. A top tells the zeros apart, and
/// comparisons do not: `f < 0.0` would drop -0.0. Nothing if a condition is the opposite of one that this changes.
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

/// Of partitioned joins: a branch for each partition, of which any may be a row's.
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

/// The values of a list, by column.
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
    /// Nothing if a key is of a type that has nothing in common with its column's.
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
