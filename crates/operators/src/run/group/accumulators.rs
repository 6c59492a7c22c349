//! Accumulators of general groups: for each aggregate one column, with one value per group.
//!
//! Think of one sheet of paper for each aggregate, with a numbered line for each group. [`super::groups`] says for
//! each row which line it belongs to, and [`Accumulator::add`] adds the values of a block of rows to their lines. As
//! long as there is room, that is all.
//!
//! When a run has no more room, all lines are output as partial values and the sheets start empty.
//! [`Accumulator::merge`] takes partial values in elsewhere, in any order, so nothing is lost. For that a sum needs
//! more than its visible value: a decimal sum its carries beyond 38 digits, a float sum the part that rounding left
//! out. These travel in a hidden column behind the aggregates. A mean has no accumulator, because a mean of means
//! would be wrong: it is a sum and a count until all is merged.

use crate::limits::DECIMAL_DIGITS_MAX;
use crate::program::AggregateFunction;
use crate::run::batch::*;
use crate::run::bounds::Stopped;
use crate::run::expr::arithmetic::DECIMAL_END;
use crate::run::expr::bytes_at;
use crate::types::{Arithmetic, Type};
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::NullBuffer;
use std::sync::Arc;

/// State of one aggregate, for all groups that are held.
#[derive(Debug)]
pub(super) struct Accumulator {
    state: State,
    /// True for each group that has seen a value that is not NULL. `None` as long as no NULL has come: then every
    /// group has seen one.
    seen: Option<Vec<bool>>,
    groups: usize,
}

#[derive(Debug)]
enum State {
    Count(Vec<i64>),
    /// Sums of whole numbers. They are exact: only 2^63 rows could overflow one.
    Whole {
        sums: Vec<i128>,
        is_unsigned: bool,
    },
    /// Sums of decimals. Each is its carry times 10^38, plus its rest.
    Decimal {
        rests: Vec<i128>,
        carries: Vec<i64>,
        scale: u8,
    },
    /// Sums of floats. Each is a float and, in `rests`, what rounding has left out of it.
    Float {
        sums: Vec<f64>,
        rests: Vec<f64>,
    },
    /// Least or greatest values of types that [`is_ordered`] maps to `i64`.
    Ordered {
        best: Vec<i64>,
        is_max: bool,
        of: Type,
    },
    /// Least or greatest decimals.
    Wide {
        best: Vec<i128>,
        is_max: bool,
        of: Type,
    },
    /// Least or greatest texts and bytes. `bytes` is the length of all of them together.
    Bytes {
        best: Vec<Option<Box<[u8]>>>,
        bytes: usize,
        is_max: bool,
        of: Type,
    },
}

/// Column of an aggregate for a block of rows, in the form that [`Accumulator::add`] needs.
pub(super) enum Input {
    /// No values: rows are counted.
    Rows,
    Ordered(Vec<i64>, Option<NullBuffer>),
    Whole(Vec<i128>, Option<NullBuffer>),
    Float(Vec<f64>, Option<NullBuffer>),
    Other(ArrayRef),
}

impl Accumulator {
    pub(super) fn new(function: AggregateFunction, column: Option<Type>) -> Accumulator {
        let is_max = function == AggregateFunction::Max;
        let state = match (function, column) {
            (AggregateFunction::Count, _) | (_, None) => State::Count(Vec::new()),
            (AggregateFunction::Sum, Some(of)) => match (of.arithmetic(), of) {
                (Some(Arithmetic::Float), _) => State::Float { sums: Vec::new(), rests: Vec::new() },
                (_, Type::Decimal { scale, .. }) => {
                    State::Decimal { rests: Vec::new(), carries: Vec::new(), scale }
                }
                _ => State::Whole { sums: Vec::new(), is_unsigned: !of.is_signed() },
            },
            (_, Some(of)) if is_ordered(of) => State::Ordered { best: Vec::new(), is_max, of },
            (_, Some(of @ Type::Decimal { .. })) => State::Wide { best: Vec::new(), is_max, of },
            (_, Some(of)) => State::Bytes { best: Vec::new(), bytes: 0, is_max, of },
        };
        Accumulator { state, seen: None, groups: 0 }
    }

    /// Returns the bytes of state per group, without texts.
    pub(super) fn bytes_each(&self) -> usize {
        match &self.state {
            State::Count(_) | State::Ordered { .. } => 9,
            State::Whole { .. } | State::Wide { .. } | State::Float { .. } | State::Bytes { .. } => 17,
            State::Decimal { .. } => 25,
        }
    }

    /// Returns the bytes of the texts that are held.
    pub(super) fn bytes(&self) -> usize {
        match &self.state {
            State::Bytes { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// Prepares a column for [`Accumulator::add`].
    pub(super) fn input(&self, column: Option<&ArrayRef>) -> Input {
        let Some(column) = column else { return Input::Rows };
        let nulls = column.logical_nulls();
        match &self.state {
            State::Count(_) if nulls.is_none() => Input::Rows,
            State::Ordered { .. } => Input::Ordered(ordered_values(column), nulls),
            State::Whole { is_unsigned: true, .. } => match column.data_type() {
                arrow_schema::DataType::UInt64 => {
                    let values = column.as_primitive::<UInt64Type>().values();
                    Input::Ordered(values.iter().map(|value| *value as i64).collect(), nulls)
                }
                _ => Input::Ordered(ordered_values(column), nulls),
            },
            State::Whole { .. } => Input::Ordered(ordered_values(column), nulls),
            State::Decimal { .. } | State::Wide { .. } => {
                Input::Whole(column.as_primitive::<Decimal128Type>().values().to_vec(), nulls)
            }
            State::Float { .. } => match column.data_type() {
                arrow_schema::DataType::Float32 => {
                    let values = column.as_primitive::<Float32Type>().values();
                    Input::Float(values.iter().map(|value| f64::from(*value)).collect(), nulls)
                }
                _ => Input::Float(column.as_primitive::<Float64Type>().values().to_vec(), nulls),
            },
            State::Count(_) | State::Bytes { .. } => Input::Other(column.clone()),
        }
    }

    /// Makes room for this many groups in all.
    pub(super) fn grow(&mut self, groups: usize) {
        self.groups = groups;
        match &mut self.state {
            State::Count(counts) => counts.resize(groups, 0),
            State::Whole { sums, .. } => sums.resize(groups, 0),
            State::Decimal { rests, carries, .. } => {
                rests.resize(groups, 0);
                carries.resize(groups, 0);
            }
            State::Float { sums, rests } => {
                sums.resize(groups, 0.0);
                rests.resize(groups, 0.0);
            }
            State::Ordered { best, is_max, .. } => {
                best.resize(groups, if *is_max { i64::MIN } else { i64::MAX })
            }
            State::Wide { best, is_max, .. } => {
                best.resize(groups, if *is_max { i128::MIN } else { i128::MAX })
            }
            State::Bytes { best, .. } => best.resize(groups, None),
        }
        if let Some(seen) = &mut self.seen {
            seen.resize(groups, false);
        }
    }

    /// Makes room for this many groups of which none has seen a value.
    pub(super) fn grow_unseen(&mut self, groups: usize) {
        self.grow(groups);
        self.seen = Some(vec![false; groups]);
    }

    /// Drops all groups.
    pub(super) fn clear(&mut self) {
        match &mut self.state {
            State::Count(counts) => counts.clear(),
            State::Whole { sums, .. } => sums.clear(),
            State::Decimal { rests, carries, .. } => {
                rests.clear();
                carries.clear();
            }
            State::Float { sums, rests } => {
                sums.clear();
                rests.clear();
            }
            State::Ordered { best, .. } => best.clear(),
            State::Wide { best, .. } => best.clear(),
            State::Bytes { best, bytes, .. } => {
                best.clear();
                *bytes = 0;
            }
        }
        self.seen = None;
        self.groups = 0;
    }

    /// Replaces the state by words as [`super::word_accumulators`] keeps them: one vector per word of the accumulator,
    /// one element per group.
    pub(super) fn restore(&mut self, words: &[Vec<u64>], seen: Option<Vec<bool>>) {
        let wide = |low: &[u64], high: &[u64]| {
            let one = |(low, high): (&u64, &u64)| (u128::from(*low) | u128::from(*high) << 64) as i128;
            low.iter().zip(high).map(one).collect::<Vec<i128>>()
        };
        let signed = |word: &[u64]| word.iter().map(|value| *value as i64).collect::<Vec<i64>>();
        let floats = |word: &[u64]| word.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<f64>>();
        match (&mut self.state, words) {
            (State::Count(counts), [word]) => *counts = signed(word),
            (State::Whole { sums, .. }, [word]) => {
                *sums = word.iter().map(|value| i128::from(*value as i64)).collect();
            }
            (State::Whole { sums, .. }, [low, high]) => *sums = wide(low, high),
            (State::Decimal { rests, carries, .. }, [word]) => {
                *rests = word.iter().map(|value| i128::from(*value as i64)).collect();
                *carries = vec![0; word.len()];
            }
            (State::Decimal { rests, carries, .. }, [low, high, carry]) => {
                (*rests, *carries) = (wide(low, high), signed(carry));
            }
            (State::Float { sums, rests }, [sum, rest]) => (*sums, *rests) = (floats(sum), floats(rest)),
            (State::Ordered { best, .. }, [word]) => *best = signed(word),
            (State::Wide { best, .. }, [low, high]) => *best = wide(low, high),
            // Not reached: `WordAccumulators` makes words that match the state.
            _ => {}
        }
        self.groups = words.first().map_or(0, Vec::len);
        self.seen = seen;
    }

    /// Adds the rows from `start` on to their groups, of which `groups` has one number per row. `old` is the number
    /// of groups that existed before these rows: if the first NULL comes now, all of those have seen a value.
    pub(super) fn add(&mut self, input: &Input, start: usize, groups: &[u32], old: usize) {
        let nulls = match input {
            Input::Rows => None,
            Input::Ordered(_, nulls) | Input::Whole(_, nulls) | Input::Float(_, nulls) => nulls.as_ref(),
            Input::Other(column) => column.nulls(),
        };
        if nulls.is_some() && self.seen.is_none() {
            let mut seen = vec![true; old];
            seen.resize(self.groups, false);
            self.seen = Some(seen);
        }
        let is_valid = |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(start + row));
        if let (Some(seen), 1, false) = (&mut self.seen, self.groups, groups.is_empty()) {
            seen[0] |= nulls.is_none_or(|nulls| nulls.slice(start, groups.len()).null_count() < groups.len());
        } else if let Some(seen) = &mut self.seen {
            for (row, group) in groups.iter().enumerate() {
                seen[*group as usize] |= is_valid(row);
            }
        }
        match (&mut self.state, input) {
            // One group for all rows: these loops keep the sum in a register.
            (State::Count(counts), Input::Rows) if counts.len() == 1 => counts[0] += groups.len() as i64,
            (State::Whole { sums, is_unsigned: false }, Input::Ordered(values, None)) if sums.len() == 1 => {
                sums[0] +=
                    values[start..start + groups.len()].iter().map(|value| i128::from(*value)).sum::<i128>();
            }
            (State::Ordered { best, is_max, .. }, Input::Ordered(values, None)) if best.len() == 1 => {
                let values = values[start..start + groups.len()].iter().copied();
                best[0] = match is_max {
                    true => values.fold(best[0], i64::max),
                    false => values.fold(best[0], i64::min),
                };
            }
            (State::Count(counts), Input::Rows) => {
                groups.iter().for_each(|group| counts[*group as usize] += 1)
            }
            (State::Count(counts), _) => each(nulls, start, groups, |_, group| counts[group] += 1),
            (State::Whole { sums, is_unsigned }, Input::Ordered(values, _)) => {
                let is_unsigned = *is_unsigned;
                let wide =
                    |value: i64| if is_unsigned { i128::from(value as u64) } else { i128::from(value) };
                match nulls {
                    None => {
                        for (value, group) in values[start..].iter().zip(groups) {
                            sums[*group as usize] += wide(*value);
                        }
                    }
                    Some(_) => each(nulls, start, groups, |row, group| sums[group] += wide(values[row])),
                }
            }
            (State::Decimal { rests, carries, .. }, Input::Whole(values, _)) => {
                each(nulls, start, groups, |row, group| {
                    add_decimal(&mut rests[group], &mut carries[group], values[row]);
                })
            }
            (State::Float { sums, rests }, Input::Float(values, _)) => match nulls {
                None => {
                    for (value, group) in values[start..].iter().zip(groups) {
                        let group = *group as usize;
                        add_float(&mut sums[group], &mut rests[group], *value);
                    }
                }
                Some(_) => each(nulls, start, groups, |row, group| {
                    add_float(&mut sums[group], &mut rests[group], values[row])
                }),
            },
            (State::Ordered { best, is_max, .. }, Input::Ordered(values, _)) => {
                let is_max = *is_max;
                each(nulls, start, groups, move |row, group| {
                    let held = &mut best[group];
                    *held = if is_max { values[row].max(*held) } else { values[row].min(*held) };
                });
            }
            (State::Wide { best, is_max, .. }, Input::Whole(values, _)) => {
                let is_max = *is_max;
                each(nulls, start, groups, move |row, group| {
                    let held = &mut best[group];
                    *held = if is_max { values[row].max(*held) } else { values[row].min(*held) };
                });
            }
            (State::Bytes { best, bytes, is_max, .. }, Input::Other(column)) => {
                let is_max = *is_max;
                each(nulls, start, groups, move |row, group| {
                    let (found, held) = (bytes_at(column, row), &mut best[group]);
                    let is_better = match held {
                        Some(held) => {
                            if is_max {
                                found > &**held
                            } else {
                                found < &**held
                            }
                        }
                        None => true,
                    };
                    if is_better {
                        *bytes -= held.as_ref().map_or(0, |held| held.len());
                        *bytes += found.len();
                        *held = Some(found.into());
                    }
                });
            }
            // Not reached: `input` makes the form that matches the state.
            _ => {}
        }
    }

    /// Adds partial values to these groups. `hidden` is the hidden column of a sum of decimals or floats.
    pub(super) fn merge(
        &mut self,
        value: &ArrayRef,
        hidden: Option<&ArrayRef>,
        groups: &[u32],
    ) -> Result<(), Stopped> {
        let nulls = value.nulls();
        let mut seen = self.seen.take().unwrap_or_else(|| vec![false; self.groups]);
        let overflow =
            || Stopped::Columns("a partial count or sum overflows: no table can produce it".to_owned());
        for (row, group) in groups.iter().enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            let group = *group as usize;
            seen[group] = true;
            match &mut self.state {
                State::Count(counts) => {
                    let count = value.as_primitive::<Int64Type>().value(row);
                    counts[group] = counts[group].checked_add(count).ok_or_else(overflow)?;
                }
                State::Whole { sums, .. } => {
                    let sum = value.as_primitive::<Decimal128Type>().value(row);
                    sums[group] = sums[group].checked_add(sum).ok_or_else(overflow)?;
                }
                State::Decimal { rests, carries, .. } => {
                    add_decimal(
                        &mut rests[group],
                        &mut carries[group],
                        value.as_primitive::<Decimal128Type>().value(row),
                    );
                    let carry = hidden.map_or(0, |hidden| hidden.as_primitive::<Int64Type>().value(row));
                    carries[group] = carries[group].checked_add(carry).ok_or_else(overflow)?;
                }
                State::Float { sums, rests } => {
                    add_float(
                        &mut sums[group],
                        &mut rests[group],
                        value.as_primitive::<Float64Type>().value(row),
                    );
                    let rest = hidden.map_or(0.0, |hidden| hidden.as_primitive::<Float64Type>().value(row));
                    add_float(&mut sums[group], &mut rests[group], rest);
                }
                State::Ordered { .. } | State::Wide { .. } | State::Bytes { .. } => {}
            }
        }
        self.seen = Some(seen);
        if let State::Ordered { .. } | State::Wide { .. } | State::Bytes { .. } = self.state {
            let input = self.input(Some(value));
            self.add(&input, 0, groups, 0);
        }
        Ok(())
    }

    /// Returns the type of the hidden column of the partial values, which carries what an exact merge of a sum needs.
    /// `None` if the aggregate needs none.
    pub(super) fn hidden(&self) -> Option<Type> {
        match self.state {
            State::Decimal { .. } => Some(Type::Int64),
            State::Float { .. } => Some(Type::Float64),
            _ => None,
        }
    }

    /// Returns the partial values of these groups, and their hidden column if there is one.
    pub(super) fn partial(&self, order: &[u32]) -> (ArrayRef, Option<ArrayRef>) {
        let hidden: Option<ArrayRef> = match &self.state {
            State::Decimal { carries, .. } => {
                Some(Arc::new(Int64Array::from_iter_values(picked(carries, order))))
            }
            State::Float { rests, .. } => {
                Some(Arc::new(Float64Array::from_iter_values(picked(rests, order))))
            }
            _ => None,
        };
        let rests = |group: u32| match &self.state {
            State::Decimal { rests, .. } => rests[group as usize],
            _ => 0,
        };
        let value = match &self.state {
            State::Decimal { scale, .. } => {
                decimals(order.iter().map(|group| rests(*group)).collect(), *scale, self.nulls(order))
            }
            State::Float { sums, .. } => {
                let values: Vec<f64> = picked(sums, order).collect();
                Arc::new(Float64Array::new(values.into(), self.nulls(order)))
            }
            // All other partial values are the final values, and need no check.
            _ => self.values(order),
        };
        (value, hidden)
    }

    /// Returns the final values of these groups.
    pub(super) fn whole(&self, order: &[u32]) -> Result<ArrayRef, Stopped> {
        let overflow = |sum: String| Stopped::Overflow { operator: 0, what: format!("a sum of {sum}") };
        match &self.state {
            State::Decimal { rests, carries, scale } => {
                let sum = |group: &u32| {
                    let (rest, carry) = (rests[*group as usize], carries[*group as usize]);
                    let value =
                        i128::from(carry).checked_mul(DECIMAL_END).and_then(|high| high.checked_add(rest));
                    let fits = value.filter(|value| value.unsigned_abs() < DECIMAL_END.unsigned_abs());
                    fits.ok_or_else(|| overflow(format!("{carry} times 10^38 and {rest}")))
                };
                Ok(decimals(order.iter().map(sum).collect::<Result<_, _>>()?, *scale, self.nulls(order)))
            }
            State::Float { sums, rests } => {
                let sum = |group: &u32| {
                    let (sum, rest) = (sums[*group as usize], rests[*group as usize]);
                    if sum.is_finite() { sum + rest } else { sum }
                };
                let values: Vec<f64> = order.iter().map(sum).collect();
                Ok(Arc::new(Float64Array::new(values.into(), self.nulls(order))))
            }
            State::Whole { sums, .. } => {
                match picked(sums, order).find(|sum| sum.unsigned_abs() >= DECIMAL_END.unsigned_abs()) {
                    Some(sum) => Err(overflow(sum.to_string())),
                    None => Ok(self.values(order)),
                }
            }
            _ => Ok(self.values(order)),
        }
    }

    fn nulls(&self, order: &[u32]) -> Option<NullBuffer> {
        let seen = self.seen.as_ref()?;
        let nulls = NullBuffer::from_iter(order.iter().map(|group| seen[*group as usize]));
        (nulls.null_count() > 0).then_some(nulls)
    }

    fn values(&self, order: &[u32]) -> ArrayRef {
        match &self.state {
            State::Count(counts) => Arc::new(Int64Array::from_iter_values(picked(counts, order))),
            State::Whole { sums, .. } => decimals(picked(sums, order).collect(), 0, self.nulls(order)),
            State::Ordered { best, of, .. } => {
                from_ordered(*of, picked(best, order).collect(), self.nulls(order))
            }
            State::Wide { best, of, .. } => {
                let values: Vec<i128> = picked(best, order).collect();
                Arc::new(
                    Decimal128Array::new(values.into(), self.nulls(order)).with_data_type(data_type(*of)),
                )
            }
            State::Bytes { best, of, .. } => {
                bytes_column(*of, order.iter().map(|group| best[*group as usize].as_deref()))
            }
            // Not reached: partial and final values of these two are made by the callers.
            State::Decimal { scale, .. } => decimals(Vec::new(), *scale, None),
            State::Float { .. } => Arc::new(Float64Array::from(Vec::<f64>::new())),
        }
    }
}

/// Calls `with` for each row that is not NULL, with its number and its group.
#[inline]
fn each(nulls: Option<&NullBuffer>, start: usize, groups: &[u32], mut with: impl FnMut(usize, usize)) {
    match nulls {
        None => groups.iter().enumerate().for_each(|(row, group)| with(start + row, *group as usize)),
        Some(nulls) => {
            for (row, group) in groups.iter().enumerate() {
                if nulls.is_valid(start + row) {
                    with(start + row, *group as usize);
                }
            }
        }
    }
}

fn picked<T: Copy>(values: &[T], order: &[u32]) -> impl Iterator<Item = T> {
    order.iter().map(|group| values[*group as usize])
}

fn decimals(values: Vec<i128>, scale: u8, nulls: Option<NullBuffer>) -> ArrayRef {
    let of = Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale };
    Arc::new(Decimal128Array::new(values.into(), nulls).with_data_type(data_type(of)))
}

/// Makes a column of texts, bytes or bytes of fixed width.
pub(super) fn bytes_column<'a>(of: Type, values: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
    match of {
        Type::Text => {
            let mut builder = StringBuilder::new();
            values.for_each(|value| builder.append_option(value.map(String::from_utf8_lossy)));
            Arc::new(builder.finish())
        }
        Type::FixedBytes(width) => {
            let mut builder = FixedSizeBinaryBuilder::new(width as i32);
            for value in values {
                match value {
                    // Never an error: each value comes from a column of this width.
                    Some(value) => drop(builder.append_value(value)),
                    None => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }
        _ => {
            let mut builder = BinaryBuilder::new();
            values.for_each(|value| builder.append_option(value));
            Arc::new(builder.finish())
        }
    }
}

/// Adds a value to a sum of decimals of any size. Afterwards `rest` has at most 38 digits.
#[inline]
pub(super) fn add_decimal(rest: &mut i128, carry: &mut i64, value: i128) {
    let mut value = value;
    // A table may hold more digits than its type says.
    if value.unsigned_abs() >= DECIMAL_END.unsigned_abs() {
        *carry = carry.wrapping_add((value / DECIMAL_END) as i64);
        value %= DECIMAL_END;
    }
    // The sum of two numbers of 38 digits can exceed 128 bits.
    if *rest > 0 && value >= DECIMAL_END - *rest {
        *rest -= DECIMAL_END - value;
        *carry = carry.wrapping_add(1);
    } else if *rest < 0 && value <= -DECIMAL_END - *rest {
        *rest += DECIMAL_END + value;
        *carry = carry.wrapping_sub(1);
    } else {
        *rest += value;
    }
}

/// Adds a value to a sum of floats and collects in `rest` what rounding leaves out (Knuth's TwoSum). A different
/// order of n values then changes `sum + rest` by no more than about n^2 * 2^-106 times the sum of their magnitudes.
#[inline]
pub(super) fn add_float(sum: &mut f64, rest: &mut f64, value: f64) {
    let total = *sum + value;
    let part = total - *sum;
    let lost = (*sum - (total - part)) + (value - part);
    *sum = total;
    // An infinity or NaN has no rounding error to keep.
    *rest += if total.is_finite() { lost } else { 0.0 };
}
