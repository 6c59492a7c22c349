//! Word accumulators: aggregates as 64-bit words that lie beside the key of their group.
//!
//! A meter with few digits is enough as long as one knows that it cannot overflow. Nearly always that is so here:
//! values are small and not NULL. Then a count, a sum, a least or a greatest value is one word (a sum of floats, or a
//! least or greatest decimal, is two), and the accumulators of a group share a cache line with its key. No single
//! addition is checked. Instead, before a block of rows is added, [`WordAccumulators::exceeds`] adds an upper bound of
//! the values' magnitudes to a bound of all sums so far.
//!
//! The bad case is a NULL, or a sum that could exceed 63 bits. Then the accumulators are widened, once: sums to 128
//! bits, those of decimals with their carries, and a word in front has a bit for each aggregate that has seen a value.
//! Wide accumulators are not the rule because they double the bytes of a slot, and so halve the groups that a cache
//! holds, for values that rarely need it.

use super::accumulators::{Accumulator, add_decimal, add_float};
use super::group_table::{BLOCK_ROWS, LANES};
use super::word_keys::Numbers;
use crate::program::{Aggregate, AggregateFunction};
use crate::run::batch::*;
use crate::run::bounds::Stopped;
use crate::run::expr::arithmetic::ones;
use crate::types::{Arithmetic, Type};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::DataType;
use farpool_kernels::update;

/// Layout of the aggregates of a group in words.
#[derive(Debug)]
pub(super) struct WordAccumulators {
    /// Aggregates in the order of the output.
    items: Vec<Item>,
    is_wide: bool,
    /// Words of all accumulators of one group.
    words: usize,
}

#[derive(Debug)]
struct Item {
    function: AggregateFunction,
    /// Column and its type. `None` counts rows.
    column: Option<(usize, Type)>,
    kind: Kind,
    /// Position of its first word among the accumulator words of a group.
    word: usize,
    /// Upper bound of the magnitude of every sum, as long as sums are 64 bits wide.
    magnitude: u64,
}

/// Kind of an accumulator. `Best` is a least or greatest value in one word, `WideBest` a least or greatest decimal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Count,
    Sum { is_unsigned: bool },
    Best { is_max: bool },
    Float,
    Decimal,
    WideBest { is_max: bool },
}

/// Column of an aggregate for a batch, in the form that [`WordAccumulators::add`] needs.
pub(super) struct Input {
    values: Values,
    nulls: Option<NullBuffer>,
}

enum Values {
    /// No values: rows are counted.
    Rows,
    Whole(Numbers),
    Float(Vec<f64>),
    Wide(ScalarBuffer<i128>),
    /// Partial sums of floats, with the hidden column of what rounding left out.
    PartialFloat(ScalarBuffer<f64>, ScalarBuffer<f64>),
    /// Partial sums of decimals, with the hidden column of carries.
    PartialDecimal(ScalarBuffer<i128>, ScalarBuffer<i64>),
}

impl WordAccumulators {
    /// Makes the layout. `None` if an aggregate has values of any length, such as texts.
    pub(super) fn new(aggregates: &[Aggregate], input: &[Type]) -> Option<WordAccumulators> {
        let item = |aggregate: &Aggregate| {
            let column = aggregate.column.map(usize::from).map(|column| (column, input[column]));
            let is_max = aggregate.function == AggregateFunction::Max;
            let kind = match (aggregate.function, column) {
                (AggregateFunction::Count, _) | (_, None) => Kind::Count,
                (AggregateFunction::Sum, Some((_, of))) => match of.arithmetic() {
                    Some(Arithmetic::Float) => Kind::Float,
                    Some(Arithmetic::Decimal) => Kind::Decimal,
                    _ => Kind::Sum { is_unsigned: !of.is_signed() },
                },
                (_, Some((_, of))) if is_ordered(of) => Kind::Best { is_max },
                (_, Some((_, Type::Decimal { .. }))) => Kind::WideBest { is_max },
                _ => return None,
            };
            Some(Item { function: aggregate.function, column, kind, word: 0, magnitude: 0 })
        };
        let items = aggregates.iter().map(item).collect::<Option<Vec<_>>>()?;
        let mut tally = WordAccumulators { items, is_wide: false, words: 0 };
        tally.lay_out();
        Some(tally)
    }

    fn lay_out(&mut self) {
        let mut word = usize::from(self.is_wide);
        for item in &mut self.items {
            item.word = word;
            word += item.kind.words(self.is_wide);
        }
        self.words = word;
    }

    /// Returns the accumulator words of a new group.
    pub(super) fn initial(&self) -> Vec<u64> {
        let mut words = vec![0; self.words];
        for item in &self.items {
            match item.kind {
                Kind::Best { is_max: true } => words[item.word] = i64::MIN as u64,
                Kind::Best { is_max: false } => words[item.word] = i64::MAX as u64,
                Kind::WideBest { is_max } => {
                    set_wide(&mut words, item.word, 1, if is_max { i128::MIN } else { i128::MAX });
                }
                _ => {}
            }
        }
        words
    }

    /// Reports whether accumulators have been widened.
    pub(super) fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Widens the layout. The caller converts existing words with [`WordAccumulators::widened`].
    pub(super) fn widen(&mut self) {
        self.is_wide = true;
        self.lay_out();
    }

    /// Fills `new` with the wide form of the narrow words `old`. All aggregates have seen values, because
    /// accumulators stay narrow only until the first NULL.
    pub(super) fn widened(&self, old: &[u64], new: &mut [u64]) {
        new[0] = u64::MAX;
        let mut from = 0;
        for item in &self.items {
            let words = item.kind.words(false);
            match item.kind {
                Kind::Sum { .. } => set_wide(new, item.word, 1, i128::from(old[from] as i64)),
                Kind::Decimal => {
                    set_wide(new, item.word, 1, i128::from(old[from] as i64));
                    new[item.word + 2] = 0;
                }
                _ => new[item.word..item.word + words].copy_from_slice(&old[from..from + words]),
            }
            from += words;
        }
    }

    /// Returns the number of aggregates.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the columns of the aggregates.
    pub(super) fn columns(&self) -> impl Iterator<Item = usize> {
        self.items.iter().filter_map(|item| item.column.map(|(column, _)| column))
    }

    /// Prepares the columns of a batch for [`WordAccumulators::add`].
    pub(super) fn inputs(&self, columns: &[ArrayRef]) -> Vec<Input> {
        let input = |item: &Item| {
            let Some((column, _)) = item.column else { return Input { values: Values::Rows, nulls: None } };
            let column = &columns[column];
            let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
            let values = match (item.kind, column.data_type()) {
                (Kind::Count, _) => Values::Rows,
                (Kind::Sum { .. }, DataType::UInt64) => {
                    let values = column.as_primitive::<UInt64Type>().values();
                    Values::Whole(Numbers::Own(values.iter().map(|value| *value as i64).collect()))
                }
                (Kind::Sum { .. } | Kind::Best { .. }, _) => Values::Whole(Numbers::of(column)),
                (Kind::Float, DataType::Float32) => {
                    let values = column.as_primitive::<Float32Type>().values();
                    Values::Float(values.iter().map(|value| f64::from(*value)).collect())
                }
                (Kind::Float, _) => Values::Float(column.as_primitive::<Float64Type>().values().to_vec()),
                (Kind::Decimal | Kind::WideBest { .. }, _) => {
                    Values::Wide(column.as_primitive::<Decimal128Type>().values().clone())
                }
            };
            Input { values, nulls }
        };
        self.items.iter().map(input).collect()
    }

    /// Prepares columns of partial values, which have the hidden columns behind them, for [`WordAccumulators::add`].
    pub(super) fn partial_inputs(&self, columns: &[ArrayRef]) -> Vec<Input> {
        let mut hidden = columns[self.items.len()..].iter();
        let input = |(item, column): (&Item, &ArrayRef)| {
            let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
            let wide = || column.as_primitive::<Decimal128Type>().values().clone();
            let values = match item.kind {
                Kind::Count | Kind::Best { .. } => Values::Whole(Numbers::of(column)),
                Kind::Sum { .. } | Kind::WideBest { .. } => Values::Wide(wide()),
                Kind::Float => {
                    let sums = column.as_primitive::<Float64Type>().values().clone();
                    let rests =
                        hidden.next().map(|rests| rests.as_primitive::<Float64Type>().values().clone());
                    Values::PartialFloat(sums, rests.unwrap_or_default())
                }
                Kind::Decimal => {
                    let carries =
                        hidden.next().map(|carries| carries.as_primitive::<Int64Type>().values().clone());
                    Values::PartialDecimal(wide(), carries.unwrap_or_default())
                }
            };
            Input { values, nulls }
        };
        self.items.iter().zip(columns).map(input).collect()
    }

    /// Reports whether accumulators must be widened because this batch has NULLs: narrow ones cannot tell whether a
    /// group has seen a value.
    pub(super) fn lacks(&self, inputs: &[Input]) -> bool {
        let lacks = |(item, input): (&Item, &Input)| item.kind != Kind::Count && input.nulls.is_some();
        !self.is_wide && self.items.iter().zip(inputs).any(lacks)
    }

    /// Reports whether accumulators must be widened because a sum could leave 64 bits with this block of rows. If not,
    /// the bounds of the sums are raised by the block, which the caller must then add.
    pub(super) fn exceeds(&mut self, inputs: &[Input], start: usize, rows: usize) -> bool {
        if self.is_wide {
            return false;
        }
        let mut exceeds = false;
        for (item, input) in self.items.iter_mut().zip(inputs) {
            let is_unsigned = match item.kind {
                Kind::Sum { is_unsigned } => is_unsigned,
                Kind::Decimal => false,
                _ => continue,
            };
            // `ones` is the OR of the magnitudes, so no magnitude is greater. That of a negative value counts one
            // less, hence `+ rows` below.
            let ones = match &input.values {
                Values::Whole(numbers) => {
                    let values = &numbers.all()[start..start + rows];
                    match is_unsigned {
                        true => values.iter().fold(0, |ones, value| ones | *value as u64),
                        false => farpool_kernels::ones(values),
                    }
                }
                Values::Wide(values) => wide_ones(&values[start..start + rows]),
                Values::PartialDecimal(values, carries) => {
                    let carries = carries.get(start..start + rows).unwrap_or_default();
                    match carries.iter().all(|carry| *carry == 0) {
                        true => wide_ones(&values[start..start + rows]),
                        false => u64::MAX,
                    }
                }
                _ => 0,
            };
            let added = u128::from(ones) * rows as u128 + rows as u128 + u128::from(item.magnitude);
            match u64::try_from(added) {
                Ok(magnitude) if magnitude <= i64::MAX as u64 => item.magnitude = magnitude,
                _ => exceeds = true,
            }
        }
        exceeds
    }

    /// Returns the value that each row of a block adds, if the only aggregate is a sum in one word.
    pub(super) fn only_sum<'v>(
        &self,
        inputs: &'v [Input],
        start: usize,
        rows: usize,
        buffer: &'v mut [i64; BLOCK_ROWS],
    ) -> Option<&'v [i64]> {
        let ([Item { kind: Kind::Sum { .. } | Kind::Decimal, .. }], [input], false) =
            (&*self.items, inputs, self.is_wide)
        else {
            return None;
        };
        match &input.values {
            Values::Whole(values) => values.all().get(start..start + rows),
            Values::Wide(values) => {
                let (values, buffer) = (values.get(start..start + rows)?, buffer.get_mut(..rows)?);
                // `exceeds` has found every magnitude to fit a word.
                buffer.iter_mut().zip(values).for_each(|(word, value)| *word = *value as i64);
                Some(buffer)
            }
            _ => None,
        }
    }

    /// Adds a block of rows from `start` on to the accumulators in `word_accumulators` at these positions, one for each
    /// row.
    ///
    /// # Errors
    /// Partial values whose sum overflows its accumulator.
    pub(super) fn add(
        &self,
        word_accumulators: &mut [u64],
        inputs: &[Input],
        start: usize,
        places: &[u32],
    ) -> Result<(), Stopped> {
        let beyond =
            || Stopped::Columns("a partial count or sum overflows: no table can produce it".to_owned());
        let end = start + places.len();
        for (number, (item, input)) in self.items.iter().zip(inputs).enumerate() {
            let nulls = input.nulls.as_ref();
            if self.is_wide && item.kind != Kind::Count {
                each(nulls, start, places, |_, place| {
                    word_accumulators[place] |= 1 << number;
                    Some(())
                });
            }
            let words = &mut word_accumulators[item.word * LANES..];
            let is_done = match (item.kind, &input.values) {
                (Kind::Count, Values::Rows) if nulls.is_none() => {
                    update(words, places, |_, word| word.wrapping_add(1));
                    Some(())
                }
                (Kind::Count, Values::Rows) => each(nulls, start, places, |_, place| {
                    words[place] = words[place].wrapping_add(1);
                    Some(())
                }),
                (Kind::Count, Values::Whole(counts)) => {
                    let counts = &counts.all()[start..end];
                    each(nulls, start, places, |row, place| {
                        words[place] = (words[place] as i64).checked_add(counts[row])? as u64;
                        Some(())
                    })
                }
                (Kind::Sum { .. }, Values::Whole(values)) if !self.is_wide => {
                    farpool_kernels::add(words, places, &values.all()[start..end]);
                    Some(())
                }
                (Kind::Sum { .. }, Values::Wide(values))
                | (Kind::Decimal, Values::Wide(values) | Values::PartialDecimal(values, _))
                    if !self.is_wide =>
                {
                    let values = &values[start..end];
                    update(words, places, |row, word| word.wrapping_add(values[row] as u64));
                    Some(())
                }
                (Kind::Sum { is_unsigned }, Values::Whole(values)) => {
                    let values = &values.all()[start..end];
                    each(nulls, start, places, |row, place| {
                        let value = values[row];
                        let value = if is_unsigned { i128::from(value as u64) } else { i128::from(value) };
                        let sum = wide_at(words, place).checked_add(value)?;
                        set_wide(words, place, LANES, sum);
                        Some(())
                    })
                }
                (Kind::Sum { .. }, Values::Wide(values)) => {
                    let values = &values[start..end];
                    each(nulls, start, places, |row, place| {
                        let sum = wide_at(words, place).checked_add(values[row])?;
                        set_wide(words, place, LANES, sum);
                        Some(())
                    })
                }
                (Kind::Best { is_max }, Values::Whole(values)) => {
                    let values = &values.all()[start..end];
                    match (nulls, is_max) {
                        (None, true) => {
                            update(words, places, |row, word| (word as i64).max(values[row]) as u64);
                        }
                        (None, false) => {
                            update(words, places, |row, word| (word as i64).min(values[row]) as u64);
                        }
                        _ => {
                            each(nulls, start, places, |row, place| {
                                let (held, value) = (words[place] as i64, values[row]);
                                words[place] = if is_max { held.max(value) } else { held.min(value) } as u64;
                                Some(())
                            });
                        }
                    }
                    Some(())
                }
                (Kind::WideBest { is_max }, Values::Wide(values)) => {
                    let values = &values[start..end];
                    each(nulls, start, places, |row, place| {
                        let (held, value) = (wide_at(words, place), values[row]);
                        set_wide(words, place, LANES, if is_max { held.max(value) } else { held.min(value) });
                        Some(())
                    })
                }
                (Kind::Float, Values::Float(values)) => {
                    let values = &values[start..end];
                    each(nulls, start, places, |row, place| {
                        add_float_at(words, place, values[row]);
                        Some(())
                    })
                }
                (Kind::Float, Values::PartialFloat(sums, rests)) => {
                    each(nulls, start, places, |row, place| {
                        add_float_at(words, place, sums[start + row]);
                        add_float_at(words, place, *rests.get(start + row).unwrap_or(&0.0));
                        Some(())
                    })
                }
                (Kind::Decimal, Values::Wide(values)) => {
                    let values = &values[start..end];
                    each(nulls, start, places, |row, place| add_decimal_at(words, place, values[row], 0))
                }
                (Kind::Decimal, Values::PartialDecimal(values, carries)) => {
                    each(nulls, start, places, |row, place| {
                        let carry = *carries.get(start + row).unwrap_or(&0);
                        add_decimal_at(words, place, values[start + row], carry)
                    })
                }
                // Not reached: `inputs` and `partial_inputs` make the form that matches the kind.
                _ => Some(()),
            };
            is_done.ok_or_else(beyond)?;
        }
        Ok(())
    }

    /// Returns accumulators of general groups with the values of word accumulators. `word(n)` returns the nth
    /// accumulator word of each group.
    pub(super) fn restored(&self, word: impl Fn(usize) -> Vec<u64>) -> Vec<Accumulator> {
        let seen = self.is_wide.then(|| word(0));
        let restored = |(number, item): (usize, &Item)| {
            let mut accumulator = Accumulator::new(item.function, item.column.map(|(_, of)| of));
            let words: Vec<Vec<u64>> =
                (item.word..item.word + item.kind.words(self.is_wide)).map(&word).collect();
            let seen = seen.as_ref().filter(|_| item.kind != Kind::Count);
            let seen = seen.map(|seen| seen.iter().map(|seen| seen >> number & 1 == 1).collect());
            accumulator.restore(&words, seen);
            accumulator
        };
        self.items.iter().enumerate().map(restored).collect()
    }
}

impl Kind {
    fn words(self, is_wide: bool) -> usize {
        match self {
            Kind::Count | Kind::Best { .. } => 1,
            Kind::Sum { .. } => 1 + usize::from(is_wide),
            Kind::Float | Kind::WideBest { .. } => 2,
            // A wide one is 128 bits and a word of carries.
            Kind::Decimal => 1 + 2 * usize::from(is_wide),
        }
    }
}

/// Returns the OR of the magnitudes of the values, or `u64::MAX` if it has more than 64 bits.
fn wide_ones(values: &[i128]) -> u64 {
    u64::try_from(ones(values)).unwrap_or(u64::MAX)
}

/// Calls `with` for each row of a block that is not NULL, with its number in the block and its position. Stops at the
/// first `None`.
#[inline(always)]
fn each(
    nulls: Option<&NullBuffer>,
    start: usize,
    places: &[u32],
    mut with: impl FnMut(usize, usize) -> Option<()>,
) -> Option<()> {
    match nulls {
        None => places.iter().enumerate().try_for_each(|(row, place)| with(row, *place as usize)),
        Some(nulls) => places.iter().enumerate().try_for_each(|(row, place)| {
            if nulls.is_valid(start + row) { with(row, *place as usize) } else { Some(()) }
        }),
    }
}

#[inline]
fn wide_at(words: &[u64], place: usize) -> i128 {
    (u128::from(words[place]) | u128::from(words[place + LANES]) << 64) as i128
}

/// Stores 128 bits in two words. The second lies `further` words after the first.
#[inline]
fn set_wide(words: &mut [u64], place: usize, further: usize, value: i128) {
    words[place] = value as u64;
    words[place + further] = (value >> 64) as u64;
}

#[inline]
fn add_float_at(words: &mut [u64], place: usize, value: f64) {
    let (mut sum, mut rest) = (f64::from_bits(words[place]), f64::from_bits(words[place + LANES]));
    add_float(&mut sum, &mut rest, value);
    (words[place], words[place + LANES]) = (sum.to_bits(), rest.to_bits());
}

#[inline]
fn add_decimal_at(words: &mut [u64], place: usize, value: i128, more: i64) -> Option<()> {
    let (mut rest, mut carry) = (wide_at(words, place), words[place + 2 * LANES] as i64);
    add_decimal(&mut rest, &mut carry, value);
    set_wide(words, place, LANES, rest);
    words[place + 2 * LANES] = carry.checked_add(more)? as u64;
    Some(())
}
