//! Evaluation of expressions over columns: a stack machine whose values are whole columns.
//!
//! The idea: literals stay single values, and our own kernels compare numbers with them. Kernels of arrow-rs do the
//! rest wherever they follow the rules of SQL. A test of single values that yields a boolean looks at each value of a
//! dictionary once, not at each row.

pub(super) mod arithmetic;
mod automaton;
pub(super) mod cast;
mod compare;
mod pattern;

use crate::expression::{Comparison, Expression, Instruction};
use crate::run::batch::*;
use crate::run::bounds::{Steps, Stopped, bounded};
use crate::types::{Scalar, Type};
use arrow_arith::boolean;
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Datum, Scalar as ArrowScalar, new_empty_array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_ord::cmp;
use arrow_schema::DataType;
use cast::cast;
use compare::{swapped, with_literal};
use pattern::Pattern;
use std::sync::Arc;

/// Expression that is ready to run.
#[derive(Debug)]
pub(super) struct Compiled {
    actions: Vec<Action>,
    of: Type,
}

/// Step of a compiled expression, which pushes a value on the stack.
#[derive(Debug)]
enum Action {
    /// Column of the operator's input, by its number.
    Column(usize),
    /// Single value for all rows, as an array of one row.
    Literal(ArrayRef),
    /// Result of an earlier expression of the same operator, by its number.
    Made(usize),
    /// Test of the top value against a list.
    InList(List),
    /// Test of the top value against LIKE or a regular expression.
    Pattern(Pattern),
    /// Any instruction that needs no preparation.
    Other(Instruction),
}

/// Values of an IN list, sorted.
#[derive(Debug)]
struct List {
    values: Values,
    has_null: bool,
}

/// Values of a list in the form in which they are compared.
#[derive(Debug)]
enum Values {
    /// Values of up to 8 bytes as integers of the same order.
    Ordered(Vec<i64>),
    Decimal(Vec<i128>),
    Bytes(Vec<Vec<u8>>),
}

/// Value on the stack: a column, or one value for all rows.
#[derive(Clone)]
struct Operand {
    array: ArrayRef,
    is_scalar: bool,
}

impl Compiled {
    /// Prepares the literals, lists and patterns of an expression. `patterns` is the number of LIKE and regular
    /// expressions that the program may still have; each one lowers it.
    pub(super) fn new(expression: &Expression, patterns: &mut usize) -> Result<Compiled, String> {
        let mut count = || {
            *patterns = patterns.checked_sub(1).ok_or("more than 32 patterns in one program")?;
            Ok::<(), String>(())
        };
        let action = |instruction: &Instruction| {
            Ok(match instruction {
                Instruction::Column(column) => Action::Column(usize::from(*column)),
                Instruction::Literal(scalar) => Action::Literal(repeated(scalar, 1)),
                Instruction::InList(values) => Action::InList(List::new(values)),
                Instruction::Like { pattern, escape, ignores_case } => {
                    count()?;
                    Action::Pattern(pattern::like(pattern, *escape, *ignores_case)?)
                }
                Instruction::Matches { pattern } => {
                    count()?;
                    Action::Pattern(pattern::regular(pattern)?)
                }
                other => Action::Other(other.clone()),
            })
        };
        let actions = expression.instructions().iter().map(action).collect::<Result<_, String>>()?;
        Ok(Compiled { actions, of: expression.of() })
    }

    /// Returns the bytes of memory that the compiled patterns take.
    pub(super) fn held_bytes(&self) -> usize {
        let of =
            |action: &Action| if let Action::Pattern(pattern) = action { pattern.held_bytes() } else { 0 };
        self.actions.iter().map(of).sum()
    }

    /// Reuses the result of an earlier expression that is the beginning of this one. `this` is the source of `self`;
    /// `before` are the expressions that run over the same rows before it.
    pub(super) fn share(&mut self, this: &Expression, before: &[Expression]) {
        // The instructions at the beginning compute the lowest value on the stack. Single columns and literals cost
        // nothing, so they are not shared.
        let is_part = |(_, length): &(usize, usize)| *length > 2;
        let lengths =
            before.iter().map(|other| match this.instructions().starts_with(other.instructions()) {
                true => other.instructions().len(),
                false => 0,
            });
        if let Some((number, length)) = lengths.enumerate().filter(is_part).max_by_key(|(_, length)| *length)
        {
            self.actions.splice(..length, [Action::Made(number)]);
        }
    }

    /// Evaluates the expression for these rows. `made` has the results of the earlier expressions.
    pub(super) fn run(
        &self,
        rows: &Rows,
        made: &[ArrayRef],
        limits: &mut Limits<'_>,
    ) -> Result<ArrayRef, Stopped> {
        // Nothing is evaluated without rows, not even an expression of literals, which could fail.
        if rows.count == 0 {
            return Ok(new_empty_array(&data_type(self.of)));
        }
        let mut stack: Vec<Operand> = Vec::new();
        for action in &self.actions {
            limits.steps.take(rows.count)?;
            let result = self.step(action, &mut stack, rows, made, limits)?;
            stack.push(result);
        }
        let Some(last) = stack.pop() else { return Ok(new_empty_array(&data_type(self.of))) };
        match last.is_scalar {
            true => broadcast(&last.array, rows.count, limits.bytes_max),
            false => Ok(last.array),
        }
    }

    fn step(
        &self,
        action: &Action,
        stack: &mut Vec<Operand>,
        rows: &Rows,
        made: &[ArrayRef],
        limits: &mut Limits<'_>,
    ) -> Result<Operand, Stopped> {
        // Not reached: a checked expression never lacks an operand.
        let mut pop = || stack.pop().ok_or_else(|| Stopped::Columns("an operand is missing".to_owned()));
        let instruction = match action {
            Action::Column(column) => return Ok(column_of(rows.columns[*column].clone())),
            Action::Made(number) => return Ok(column_of(made[*number].clone())),
            Action::Literal(value) => return Ok(Operand { array: value.clone(), is_scalar: true }),
            Action::InList(list) => {
                return each_value(pop()?, |values| Ok(list.search(values)));
            }
            Action::Pattern(pattern) => {
                let operand = pop()?;
                return each_value(operand, |values| {
                    limits.steps.take(bytes_of(values))?;
                    let texts = values.as_string::<i32>();
                    Ok(BooleanArray::new(pattern.search(texts), texts.nulls().cloned()))
                });
            }
            Action::Other(instruction) => instruction,
        };
        Ok(match instruction {
            Instruction::Compare(comparison) => {
                let (right, left) = (pop()?, pop()?);
                compare(*comparison, left, right, limits.bytes_max)?
            }
            Instruction::IsNull => {
                let operand = pop()?;
                let nulls = operand.array.logical_nulls();
                let is_null = match nulls {
                    Some(nulls) => !nulls.inner(),
                    None => BooleanBuffer::new_unset(operand.array.len()),
                };
                operand.with(Arc::new(BooleanArray::new(is_null, None)))
            }
            Instruction::And | Instruction::Or => {
                let (right, left) = (pop()?, pop()?);
                let is_scalar = left.is_scalar && right.is_scalar;
                let length = if is_scalar { 1 } else { rows.count };
                let (left, right) = (left.of_length(length, limits)?, right.of_length(length, limits)?);
                let (left, right) = (left.as_boolean(), right.as_boolean());
                let result = match instruction {
                    Instruction::And => boolean::and_kleene(left, right),
                    _ => boolean::or_kleene(left, right),
                };
                Operand { array: Arc::new(result.map_err(unexpected)?), is_scalar }
            }
            Instruction::Not => {
                let operand = pop()?;
                let result = boolean::not(operand.array.as_boolean()).map_err(unexpected)?;
                operand.with(Arc::new(result))
            }
            Instruction::Binary(binary) => {
                let (right, left) = (pop()?, pop()?);
                let is_scalar = left.is_scalar && right.is_scalar;
                let length = if is_scalar { 1 } else { rows.count };
                // The kernels for decimals take a single value for all rows.
                let of_length = |side: Operand| match side.array.data_type() {
                    DataType::Decimal128(..) => Ok(side.array),
                    _ => side.of_length(length, limits),
                };
                let (left, right) = (of_length(left)?, of_length(right)?);
                let array =
                    arithmetic::binary(*binary, &left, &right).map_err(|what| limits.overflow(what))?;
                Operand { array, is_scalar }
            }
            Instruction::Negate => {
                let operand = pop()?;
                let array = arithmetic::negate(&operand.array).map_err(|what| limits.overflow(what))?;
                operand.with(array)
            }
            Instruction::Cast(to) => {
                let operand = pop()?;
                let values = plain(&operand.array, limits.bytes_max)?;
                let from = type_of(values.data_type()).unwrap_or(*to);
                limits.steps.take(bytes_of(&values))?;
                let array = cast(&values, from, *to).map_err(|what| limits.overflow(what))?;
                operand.with(array)
            }
            // Not reached: all other instructions have actions of their own.
            _ => return Err(Stopped::Columns("an instruction that was not prepared".to_owned())),
        })
    }
}

/// Limits of an evaluation.
pub(super) struct Limits<'a> {
    pub(super) steps: &'a mut Steps,
    /// Most bytes of one column.
    pub(super) bytes_max: usize,
    /// Number of the operator in the program, for errors.
    pub(super) operator: usize,
}

impl Limits<'_> {
    fn overflow(&self, what: String) -> Stopped {
        Stopped::Overflow { operator: self.operator, what }
    }
}

fn column_of(array: ArrayRef) -> Operand {
    Operand { array, is_scalar: false }
}

impl Operand {
    fn with(&self, array: ArrayRef) -> Operand {
        Operand { array, is_scalar: self.is_scalar }
    }

    fn of_length(&self, length: usize, limits: &Limits<'_>) -> Result<ArrayRef, Stopped> {
        match self.is_scalar && length != 1 {
            true => broadcast(&self.array, length, limits.bytes_max),
            false => Ok(self.array.clone()),
        }
    }
}

/// Returns a column with this value in each row.
fn broadcast(value: &ArrayRef, rows: usize, bytes_max: usize) -> Result<ArrayRef, Stopped> {
    bounded("bytes of a column", (bytes_of(value) as u64).saturating_mul(rows as u64), bytes_max as u64)?;
    let indices = arrow_array::UInt32Array::from_value(0, rows);
    arrow_select::take::take(value.as_ref(), &indices, None).map_err(unexpected)
}

/// Applies a test to each value of a column, or to each value of its dictionary.
fn each_value(
    operand: Operand,
    test: impl FnOnce(&ArrayRef) -> Result<BooleanArray, Stopped>,
) -> Result<Operand, Stopped> {
    if !matches!(operand.array.data_type(), DataType::Dictionary(..)) {
        let result = test(&operand.array)?;
        return Ok(operand.with(Arc::new(result)));
    }
    let dictionary = operand.array.as_any_dictionary();
    let of_values = test(dictionary.values())?;
    let result = arrow_select::take::take(&of_values, dictionary.keys(), None).map_err(unexpected)?;
    Ok(operand.with(result))
}

fn compare(
    comparison: Comparison,
    left: Operand,
    right: Operand,
    bytes_max: usize,
) -> Result<Operand, Stopped> {
    let kernel = match comparison {
        Comparison::Equal => cmp::eq,
        Comparison::NotEqual => cmp::neq,
        Comparison::Less => cmp::lt,
        Comparison::LessOrEqual => cmp::lt_eq,
        Comparison::Greater => cmp::gt,
        Comparison::GreaterOrEqual => cmp::gt_eq,
    };
    let own = match (left.is_scalar, right.is_scalar) {
        (false, true) => with_literal(&left.array, comparison, &right.array),
        (true, false) => with_literal(&right.array, swapped(comparison), &left.array),
        _ => None,
    };
    if let Some(result) = own {
        return Ok(column_of(Arc::new(result)));
    }
    let one = |operand: &Operand| ArrowScalar::new(with_one_zero(&operand.array));
    match (left.is_scalar, right.is_scalar) {
        (false, true) => {
            let right = one(&right);
            each_value(left, |values| kernel(&with_one_zero(values), &right).map_err(unexpected))
        }
        (true, false) => {
            let left = one(&left);
            each_value(right, |values| kernel(&left, &with_one_zero(values)).map_err(unexpected))
        }
        (is_scalar, _) => {
            let left = with_one_zero(&plain(&left.array, bytes_max)?);
            let right = with_one_zero(&plain(&right.array, bytes_max)?);
            let (left, right): (&dyn Datum, &dyn Datum) = (&left, &right);
            Ok(Operand { array: Arc::new(kernel(left, right).map_err(unexpected)?), is_scalar })
        }
    }
}

impl List {
    fn new(scalars: &[Scalar]) -> List {
        let has_null = scalars.iter().any(|scalar| scalar.value.is_none());
        let columns: Vec<ArrayRef> = scalars
            .iter()
            .filter(|scalar| scalar.value.is_some())
            .map(|scalar| repeated(scalar, 1))
            .collect();
        let values = match scalars.first().map(|scalar| scalar.of) {
            Some(of) if is_ordered(of) => Values::Ordered(sorted(columns.iter().flat_map(key_values))),
            Some(Type::Decimal { .. }) => Values::Decimal(sorted(
                columns.iter().map(|column| column.as_primitive::<Decimal128Type>().value(0)),
            )),
            _ => Values::Bytes(sorted(columns.iter().map(|column| bytes_at(column, 0).to_vec()))),
        };
        List { values, has_null }
    }

    fn search(&self, column: &ArrayRef) -> BooleanArray {
        let rows = column.len();
        let found = match &self.values {
            // An empty list has no type.
            Values::Bytes(list) if list.is_empty() => BooleanBuffer::new_unset(rows),
            Values::Ordered(list) => {
                let values = key_values(column);
                BooleanBuffer::collect_bool(rows, |row| list.binary_search(&values[row]).is_ok())
            }
            Values::Decimal(list) => {
                let values = column.as_primitive::<Decimal128Type>().values();
                BooleanBuffer::collect_bool(rows, |row| list.binary_search(&values[row]).is_ok())
            }
            Values::Bytes(list) => BooleanBuffer::collect_bool(rows, |row| {
                list.binary_search_by(|value| value.as_slice().cmp(bytes_at(column, row))).is_ok()
            }),
        };
        let nulls = match self.has_null {
            // A value that is not in the list may equal the unknown one, so the result is NULL.
            true => NullBuffer::union(column.nulls(), Some(&NullBuffer::new(found.clone()))),
            false => column.nulls().cloned(),
        };
        BooleanArray::new(found, nulls)
    }
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns the bytes of a value of text, bytes or bytes of fixed width.
pub(super) fn bytes_at(column: &ArrayRef, row: usize) -> &[u8] {
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(row).as_bytes(),
        DataType::Binary => column.as_binary::<i32>().value(row),
        DataType::FixedSizeBinary(_) => column.as_fixed_size_binary().value(row),
        _ => &[],
    }
}
