//! Which row groups a query need not read: those whose statistics show that no row of theirs can pass its filters.
//!
//! The idea: an expression is run once for a whole row group, with what each value may be instead of a value: whether
//! it may be NULL, and between which ends it is otherwise. Comparisons of ends give booleans that may be true, false,
//! or either; a filter that may not be true passes no row. What is not understood may be anything, so a group is read
//! unless it is known to be of no use.
//!
//! An error that only rows of such a group would have raised, by a value that does not fit, is not raised.
//!
//! Never here: a byte of a column, or a row.

use crate::FarTable;
use crate::footer::{ColumnChunk, RowGroup};
use crate::statistics::Statistics;
use farpool_operators::run::{as_float, rescaled, widened};
use farpool_operators::{
    Arithmetic, Comparison, Expression, Instruction, KeySet, Operator, Plan, Program, Type, Value,
};
use std::sync::Arc;

/// Whether some row of the group may pass the program's filters, and be found by its semi-joins in these keys. The
/// program is over all columns of the table.
pub fn may_pass(near: &Program, key_sets: &[Arc<KeySet>], group: &RowGroup) -> bool {
    let mut projected: Option<Vec<May>> = None;
    for (operator, step) in near.operators().iter().zip(near.steps()) {
        let column = |place: usize| match &projected {
            Some(columns) => columns.get(place).cloned(),
            None => {
                let of = near.input().get(place)?;
                group.columns.get(place).map(|chunk| of_chunk(*of, chunk, group.rows))
            }
        };
        let result = |expression: &Expression| evaluate(expression, &|place| column(usize::from(place)));
        match operator {
            Operator::Filter(_) => {
                if !step.expressions.iter().all(|filter| result(filter).may_be(true)) {
                    return false;
                }
            }
            Operator::Project(_) => {
                let columns = step.expressions.iter().map(result).collect();
                projected = Some(columns);
            }
            Operator::SemiJoin { keys, number, is_anti: false, .. } => {
                let places = keys.iter().map(|key| column(usize::from(*key)));
                if key_sets.get(usize::from(*number)).is_some_and(|set| !may_be_among(set, places)) {
                    return false;
                }
            }
            Operator::SemiJoin { .. } => {}
            Operator::Group { .. } | Operator::Top { .. } | Operator::Limit(_) => break,
        }
    }
    true
}

impl FarTable {
    /// The row groups that a query has to read, in order. Nothing is asked of any node.
    pub fn groups_that_may_pass(&self, plan: &Plan) -> Vec<usize> {
        (0..self.row_groups().len()).filter(|group| self.may_pass(plan, *group)).collect()
    }

    pub(crate) fn may_pass(&self, plan: &Plan, group: usize) -> bool {
        self.row_groups().get(group).is_some_and(|group| may_pass(&plan.near, &plan.key_sets, group))
    }

    /// Those of these, counted in the session's [`Stats`](farpool_files::Stats): for who reads them now.
    pub(crate) fn groups_for(&self, plan: &Plan, groups: &[usize]) -> Vec<usize> {
        let kept: Vec<usize> = groups.iter().copied().filter(|group| self.may_pass(plan, *group)).collect();
        self.session().count_row_groups(kept.len(), groups.len() - kept.len());
        kept
    }
}

/// A value as it compares. Only those of one type are ever compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Whole numbers, times and decimals; booleans as 0 and 1.
    Integer(i128),
    /// Floats by their places in the total order of IEEE 754, but for -0.0, which is 0.0.
    Float(i64),
    Bytes(Vec<u8>),
}

/// What a value may be, over the rows of a group.
#[derive(Clone, Debug)]
struct May {
    of: Type,
    /// Whether it may be NULL.
    is_null: bool,
    /// Between which ends it is otherwise, both included; without an end anything is there. Nothing: it is never
    /// anything but NULL.
    values: Option<(Option<Key>, Option<Key>)>,
}

/// Whether some row may have keys of the set, whose columns may be these. NULL is like nothing.
fn may_be_among(set: &KeySet, columns: impl Iterator<Item = Option<May>>) -> bool {
    let may_be = |(place, may): (usize, Option<May>)| {
        // Without keys there is nothing to be found.
        let Some(((least, most), of)) = set.ends(place).zip(set.types().get(place).copied()) else {
            return false;
        };
        let Some(May { values, .. }) = may else { return true };
        let Some((from, to)) = values else { return false };
        let (least, most) = (key(of, least), key(of, most));
        let is_apart =
            from.as_ref().is_some_and(|from| most < *from) || to.as_ref().is_some_and(|to| *to < least);
        !is_apart && set.numbers().is_none_or(|numbers| is_any_between(numbers, of, from, to))
    };
    columns.enumerate().all(may_be)
}

/// Whether some of these numbers, in ascending order, is between the ends.
fn is_any_between(numbers: &[i64], of: Type, from: Option<Key>, to: Option<Key>) -> bool {
    let number = |key: Key| match key {
        Key::Float(ordered) => Some(ordered),
        // As [`KeySet::numbers`] says.
        Key::Integer(value) if of == Type::UInt64 => Some((value - (1 << 63)) as i64),
        Key::Integer(value) => i64::try_from(value).ok(),
        Key::Bytes(_) => None,
    };
    let from = from.and_then(number).unwrap_or(i64::MIN);
    let to = to.and_then(number).unwrap_or(i64::MAX);
    numbers.get(numbers.partition_point(|number| *number < from)).is_some_and(|number| *number <= to)
}

fn key_of_float(value: f64) -> Key {
    let value = if value == 0.0 { 0.0 } else { value };
    let bits = value.to_bits().cast_signed();
    Key::Float(bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed())
}

fn float_of_key(ordered: i64) -> f64 {
    f64::from_bits((ordered ^ ((ordered >> 63).cast_unsigned() >> 1).cast_signed()).cast_unsigned())
}

fn key(of: Type, value: &Value) -> Key {
    match value {
        Value::Boolean(value) => Key::Integer((*value).into()),
        Value::Integer(value) => Key::Integer(*value),
        Value::Float(bits) if of == Type::Float32 => key_of_float(widened(f32::from_bits(*bits as u32))),
        Value::Float(bits) => key_of_float(f64::from_bits(*bits)),
        Value::Bytes(bytes) => Key::Bytes(bytes.clone()),
    }
}

/// What a column may be.
fn of_chunk(of: Type, chunk: &ColumnChunk, rows: u32) -> May {
    let is_null = chunk.null_count > 0;
    let Some(known) = &chunk.statistics else {
        return May { of, is_null, values: (chunk.null_count < rows).then_some((None, None)) };
    };
    let Statistics { min, max, is_max_cut, has_nan, .. } = known;
    if *has_nan {
        // Its sign is not known, so it may be below all else or above.
        return May { of, is_null, values: Some((None, None)) };
    }
    let most = match max {
        Value::Bytes(beginning) if *is_max_cut => behind_all(beginning).map(Key::Bytes),
        whole => Some(key(of, whole)),
    };
    // The beginning of the smallest value is no greater than it.
    May { of, is_null, values: Some((Some(key(of, min)), most)) }
}

/// The least bytes that are greater than all that begin so; nothing if there are none.
fn behind_all(beginning: &[u8]) -> Option<Vec<u8>> {
    let last = beginning.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut behind = beginning[..=last].to_vec();
    behind[last] += 1;
    Some(behind)
}

impl May {
    fn anything(of: Type) -> May {
        May { of, is_null: true, values: Some((None, None)) }
    }

    /// Of a boolean: whether it may be this one.
    fn may_be(&self, truth: bool) -> bool {
        self.may_be_key(&Key::Integer(truth.into()))
    }

    fn may_be_key(&self, key: &Key) -> bool {
        let Some((least, most)) = &self.values else { return false };
        least.as_ref().is_none_or(|least| least <= key) && most.as_ref().is_none_or(|most| key <= most)
    }

    /// The only value that it may be besides NULL.
    fn only(&self) -> Option<&Key> {
        match &self.values {
            Some((Some(least), Some(most))) if least == most => Some(least),
            _ => None,
        }
    }
}

/// What a boolean may be.
struct Truth {
    is_null: bool,
    is_false: bool,
    is_true: bool,
}

impl From<Truth> for May {
    fn from(truth: Truth) -> May {
        let Truth { is_null, is_false, is_true } = truth;
        let end = |value: bool| Some(Key::Integer(value.into()));
        let values = (is_false || is_true).then(|| (end(!is_false), end(is_true)));
        May { of: Type::Boolean, is_null, values }
    }
}

/// What an expression may leave.
fn evaluate(expression: &Expression, column: &impl Fn(u16) -> Option<May>) -> May {
    let mut stack: Vec<May> = Vec::new();
    for instruction in expression.instructions() {
        // An expression that has been checked never lacks an operand.
        let mut pop = || stack.pop().unwrap_or(May::anything(Type::Boolean));
        let result = match instruction {
            Instruction::Column(place) => column(*place).unwrap_or(May::anything(Type::Boolean)),
            Instruction::Literal(scalar) => May {
                of: scalar.of,
                is_null: scalar.value.is_none(),
                values: scalar.value.as_ref().map(|value| {
                    let key = key(scalar.of, value);
                    (Some(key.clone()), Some(key))
                }),
            },
            Instruction::Compare(comparison) => {
                let (right, left) = (pop(), pop());
                compare(*comparison, &left, &right)
            }
            Instruction::InList(list) => {
                let value = pop();
                let known = || list.iter().filter_map(|scalar| Some(key(scalar.of, scalar.value.as_ref()?)));
                let has_null = list.iter().any(|scalar| scalar.value.is_none());
                let is_true = known().any(|key| value.may_be_key(&key));
                let is_out = value.values.is_some()
                    && value.only().is_none_or(|only| known().all(|known| known != *only));
                let is_null = value.is_null || (is_out && has_null);
                Truth { is_null, is_false: is_out && !has_null, is_true }.into()
            }
            Instruction::IsNull => {
                let value = pop();
                Truth { is_null: false, is_false: value.values.is_some(), is_true: value.is_null }.into()
            }
            Instruction::And | Instruction::Or => {
                let (right, left) = (pop(), pop());
                // What decides alone: false of AND, true of OR.
                let deciding = *instruction == Instruction::Or;
                let is_decided = left.may_be(deciding) || right.may_be(deciding);
                let is_other = left.may_be(!deciding) && right.may_be(!deciding);
                let is_null = (left.is_null && (right.is_null || right.may_be(!deciding)))
                    || (right.is_null && left.may_be(!deciding));
                let (is_false, is_true) =
                    if deciding { (is_other, is_decided) } else { (is_decided, is_other) };
                Truth { is_null, is_false, is_true }.into()
            }
            Instruction::Not => {
                let value = pop();
                Truth { is_null: value.is_null, is_false: value.may_be(true), is_true: value.may_be(false) }
                    .into()
            }
            Instruction::Like { pattern, escape, ignores_case: false } => {
                let value = pop();
                let is_like = may_begin(&value, beginning(pattern, *escape).as_bytes());
                Truth { is_null: value.is_null, is_false: value.values.is_some(), is_true: is_like }.into()
            }
            Instruction::Like { .. } | Instruction::Matches { .. } => {
                let value = pop();
                let is_known = value.values.is_some();
                Truth { is_null: value.is_null, is_false: is_known, is_true: is_known }.into()
            }
            Instruction::Binary(_) => {
                let (_, left) = (pop(), pop());
                May::anything(left.of)
            }
            Instruction::Negate => May::anything(pop().of),
            Instruction::Cast(to) => cast(pop(), *to),
        };
        stack.push(result);
    }
    stack.pop().unwrap_or(May::anything(Type::Boolean))
}

fn compare(comparison: Comparison, left: &May, right: &May) -> May {
    let is_null = left.is_null || right.is_null;
    let (Some(one), Some(other)) = (&left.values, &right.values) else {
        return Truth { is_null, is_false: false, is_true: false }.into();
    };
    // Whether a value of one may be below, or not above, a value of the other.
    let below =
        |(least, _): &(Option<Key>, Option<Key>), (_, most): &(Option<Key>, Option<Key>)| match (least, most)
        {
            (Some(least), Some(most)) => (least < most, least <= most),
            _ => (true, true),
        };
    let ((is_less, is_less_or_equal), (is_greater, is_greater_or_equal)) =
        (below(one, other), below(other, one));
    let is_equal = is_less_or_equal && is_greater_or_equal;
    let is_unequal = left.only().is_none_or(|only| right.only() != Some(only));
    let (is_true, is_false) = match comparison {
        Comparison::Equal => (is_equal, is_unequal),
        Comparison::NotEqual => (is_unequal, is_equal),
        Comparison::Less => (is_less, is_greater_or_equal),
        Comparison::LessOrEqual => (is_less_or_equal, is_greater),
        Comparison::Greater => (is_greater, is_less_or_equal),
        Comparison::GreaterOrEqual => (is_greater_or_equal, is_less),
    };
    Truth { is_null, is_false, is_true }.into()
}

/// Casts that keep the order of values are those of both ends.
fn cast(value: May, to: Type) -> May {
    let from = value.of;
    let is_whole = |of: Type| {
        !matches!(of.arithmetic(), Some(Arithmetic::Float)) && of != Type::Text && of != Type::Bytes
    };
    let is_float = |of: Type| of.arithmetic() == Some(Arithmetic::Float);
    let end = |end: Option<Key>| -> Option<Key> {
        match end? {
            key if from == to => Some(key),
            Key::Integer(value) if is_float(to) => {
                let float = as_float(value, from);
                Some(key_of_float(if to == Type::Float32 { f64::from(float as f32) } else { float }))
            }
            Key::Integer(value) if is_whole(to) && to != Type::Boolean => {
                rescaled(value, from, to).map(Key::Integer)
            }
            Key::Float(ordered) if to == Type::Float32 => {
                Some(key_of_float(f64::from(float_of_key(ordered) as f32)))
            }
            Key::Float(ordered) if to == Type::Float64 => Some(Key::Float(ordered)),
            Key::Bytes(bytes) if to == Type::Bytes => Some(Key::Bytes(bytes)),
            _ => None,
        }
    };
    May { of: to, is_null: value.is_null, values: value.values.map(|(least, most)| (end(least), end(most))) }
}

/// How everything begins that is like the pattern.
fn beginning(pattern: &str, escape: Option<char>) -> String {
    let mut beginning = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            _ if Some(character) == escape => beginning.extend(characters.next()),
            '%' | '_' => break,
            _ => beginning.push(character),
        }
    }
    beginning
}

/// Whether a value may begin so.
fn may_begin(value: &May, beginning: &[u8]) -> bool {
    let Some((least, most)) = &value.values else { return false };
    let is_above =
        |end: &Key| matches!(end, Key::Bytes(end) if **end > *beginning && !end.starts_with(beginning));
    let is_below = |end: &Key| matches!(end, Key::Bytes(end) if **end < *beginning);
    !least.as_ref().is_some_and(is_above) && !most.as_ref().is_some_and(is_below)
}
