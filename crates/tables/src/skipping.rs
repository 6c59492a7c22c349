//! Skipping: which row groups a query need not read, because their statistics show that no row passes its filters.
//!
//! The idea: a library need not open a box labelled "1990 to 1999" to look for a book of 2005. Each filter is
//! evaluated once for a whole row group, with ranges in place of values: the smallest and the largest possible value
//! of each column, and whether it can be NULL. Comparing two ranges gives a boolean that can be true, can be false,
//! or both. A filter that cannot be true passes no row, so the group is skipped. An expression that this module does
//! not understand can have any value, so its group is read: the answer may be slower, never wrong.
//!
//! A skipped row group raises no error, also if one of its rows would have raised one because a value does not fit
//! its type.
//!
//! Whole files are judged in the same way, by the bounds that the manifest keeps of some columns.
//!
//! Never here: a byte of a column, or a row.

use crate::FarTable;
use crate::footer::{ColumnChunk, RowGroup};
use crate::statistics::Statistics;
use arrow_schema::Schema;
use farpool_operators::run::{as_float, rescaled, widened};
use farpool_operators::{
    Arithmetic, Comparison, Expression, Instruction, KeySet, Operator, Plan, Program, Type, Value,
};
use std::sync::Arc;

/// Reports whether some row of the group may pass the program's filters and have its keys in the sets of its
/// semi-joins. The columns of the program are all columns of the table.
pub fn may_pass(near: &Program, key_sets: &[Arc<KeySet>], group: &RowGroup) -> bool {
    some_may_pass(near, key_sets, |place, of| {
        group.columns.get(place).map(|chunk| of_chunk(of, chunk, group.rows))
    })
}

/// Bounds of the values in a data file, as its manifest has them.
#[derive(Clone, Copy)]
pub(crate) struct FileBounds<'f> {
    /// Columns of the table.
    pub(crate) schema: &'f Schema,
    /// Numbers of the columns whose bounds are kept.
    pub(crate) bounded: &'f [u16],
    /// Bounds of these columns.
    pub(crate) bounds: &'f [Option<Statistics>],
}

/// Reports whether some row of a data file may pass, as [`may_pass`] does for a row group.
pub(crate) fn file_may_pass(near: &Program, key_sets: &[Arc<KeySet>], file: FileBounds<'_>) -> bool {
    some_may_pass(near, key_sets, |place, of| {
        let is_null = file.schema.fields().get(place)?.is_nullable();
        let kept = file.bounded.iter().position(|column| usize::from(*column) == place);
        // A column without bounds may have any value: of how many nulls there are nothing is known.
        let known = kept.and_then(|kept| file.bounds.get(kept)).and_then(Option::as_ref);
        Some(known.map_or(May { is_null, ..May::anything(of) }, |known| of_bounds(of, known, is_null)))
    })
}

/// Reports whether some row may pass. `of_column` has the possible values of a column of the table.
fn some_may_pass(
    near: &Program,
    key_sets: &[Arc<KeySet>],
    of_column: impl Fn(usize, Type) -> Option<May>,
) -> bool {
    let mut projected: Option<Vec<May>> = None;
    for (operator, step) in near.operators().iter().zip(near.steps()) {
        let column = |place: usize| match &projected {
            Some(columns) => columns.get(place).cloned(),
            None => of_column(place, *near.input().get(place)?),
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
    /// Returns the row groups that a query has to read, in ascending order. It sends no request.
    pub fn groups_that_may_pass(&self, plan: &Plan) -> Vec<usize> {
        (0..self.row_groups().len()).filter(|group| self.may_pass(plan, *group)).collect()
    }

    pub(crate) fn may_pass(&self, plan: &Plan, group: usize) -> bool {
        self.row_groups().get(group).is_some_and(|group| may_pass(&plan.near, &plan.key_sets, group))
    }

    /// Returns those of `groups` that the query has to read, and counts kept and skipped ones in the session's
    /// [`Stats`](farpool_files::Stats). Callers read the returned groups now.
    pub(crate) fn groups_for(&self, plan: &Plan, groups: &[usize]) -> Vec<usize> {
        let kept: Vec<usize> = groups.iter().copied().filter(|group| self.may_pass(plan, *group)).collect();
        self.session().count_row_groups(kept.len(), groups.len() - kept.len());
        kept
    }
}

/// A value in the form in which ranges compare it. Only values of the same type are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A whole number, time or decimal; a boolean is 0 or 1.
    Integer(i128),
    /// A float, as its position in the total order of IEEE 754. -0.0 has the position of 0.0.
    Float(i64),
    Bytes(Vec<u8>),
}

/// The possible values of an expression over the rows of a group.
#[derive(Clone, Debug)]
struct May {
    of: Type,
    /// True if the value can be NULL.
    is_null: bool,
    /// The range of values that are not NULL, both ends included; an end that is `None` is unbounded. `None` if the
    /// value is always NULL.
    values: Option<(Option<Key>, Option<Key>)>,
}

/// Reports whether some row may have its key in the set. `columns` are the possible values of the key's columns. NULL
/// equals no key.
fn may_be_among(set: &KeySet, columns: impl Iterator<Item = Option<May>>) -> bool {
    let may_be = |(place, may): (usize, Option<May>)| {
        // An empty set has no ends, and no row is in it.
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

/// Reports whether one of these numbers, which are in ascending order, lies within the range.
fn is_any_between(numbers: &[i64], of: Type, from: Option<Key>, to: Option<Key>) -> bool {
    let number = |key: Key| match key {
        Key::Float(ordered) => Some(ordered),
        // [`KeySet::numbers`] has `UInt64` values less 2^63.
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

/// Returns the possible values of a column in a row group.
fn of_chunk(of: Type, chunk: &ColumnChunk, rows: u32) -> May {
    let is_null = chunk.null_count > 0;
    let Some(known) = &chunk.statistics else {
        return May { of, is_null, values: (chunk.null_count < rows).then_some((None, None)) };
    };
    of_bounds(of, known, is_null)
}

/// Returns the possible values of a column of which bounds are known.
fn of_bounds(of: Type, known: &Statistics, is_null: bool) -> May {
    let Statistics { min, max, is_max_truncated, has_nan, .. } = known;
    if *has_nan {
        // The sign of NaN is not known, and by the sign it orders below or above all other values.
        return May { of, is_null, values: Some((None, None)) };
    }
    let most = match max {
        Value::Bytes(beginning) if *is_max_truncated => prefix_end(beginning).map(Key::Bytes),
        whole => Some(key(of, whole)),
    };
    // If the smallest value was truncated, `min` is a prefix of it and therefore not greater.
    May { of, is_null, values: Some((Some(key(of, min)), most)) }
}

/// Returns the least bytes that are greater than all bytes with this prefix. `None` if there are no such bytes.
fn prefix_end(beginning: &[u8]) -> Option<Vec<u8>> {
    let last = beginning.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut behind = beginning[..=last].to_vec();
    behind[last] += 1;
    Some(behind)
}

impl May {
    fn anything(of: Type) -> May {
        May { of, is_null: true, values: Some((None, None)) }
    }

    /// Reports whether a boolean can have this value.
    fn may_be(&self, truth: bool) -> bool {
        self.may_be_key(&Key::Integer(truth.into()))
    }

    fn may_be_key(&self, key: &Key) -> bool {
        let Some((least, most)) = &self.values else { return false };
        least.as_ref().is_none_or(|least| least <= key) && most.as_ref().is_none_or(|most| key <= most)
    }

    /// Returns the value if only one is possible besides NULL.
    fn only(&self) -> Option<&Key> {
        match &self.values {
            Some((Some(least), Some(most))) if least == most => Some(least),
            _ => None,
        }
    }
}

/// The possible values of a boolean.
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

/// Evaluates an expression over ranges: returns the possible values of its result.
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
                // The value that decides alone: false for AND, true for OR.
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
    // Reports whether some value of one range may be less than, and whether it may be at most, some value of the
    // other.
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

/// Casts a range. Casts that keep the order of values are applied to both ends; after all others any value is
/// possible.
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

/// Returns the prefix of all texts that match a LIKE pattern.
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

/// Reports whether a value may begin with this prefix.
fn may_begin(value: &May, beginning: &[u8]) -> bool {
    let Some((least, most)) = &value.values else { return false };
    let is_above =
        |end: &Key| matches!(end, Key::Bytes(end) if **end > *beginning && !end.starts_with(beginning));
    let is_below = |end: &Key| matches!(end, Key::Bytes(end) if **end < *beginning);
    !least.as_ref().is_some_and(is_above) && !most.as_ref().is_some_and(is_below)
}
