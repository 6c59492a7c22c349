//! Keys of fixed width in one or two words, which compare as the keys do.
//!
//! The idea: each key becomes a whole number that is at least 0 and compares as its values do, with a bit above it that
//! is 0 for NULL; the first key takes the highest bits. A single key of 64 bits fills a word by itself: it gets
//! its bit, and so a second word, when the first NULL comes.

use super::batch::{from_ordered, is_ordered, ordered_values};
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::DataType;

/// How keys lie in words.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    fields: Vec<Field>,
    /// Bits in all.
    bits: u32,
    has_nulls: bool,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    of: Type,
    /// What is taken from each value.
    least: i64,
    bits: u32,
    /// Bits below it.
    below: u32,
}

/// Whole numbers of a column, its own buffer where that is how they lie.
pub(super) enum Numbers {
    /// The column's.
    Shared(ScalarBuffer<i64>),
    /// Made of it.
    Own(Vec<i64>),
}

impl Numbers {
    /// In the order of the values, as [`ordered_values`] makes them.
    pub(super) fn of(column: &ArrayRef) -> Numbers {
        match column.data_type() {
            DataType::Int64 => Numbers::Shared(column.as_primitive::<Int64Type>().values().clone()),
            _ => Numbers::Own(ordered_values(column)),
        }
    }

    /// One for each row.
    pub(super) fn all(&self) -> &[i64] {
        match self {
            Numbers::Shared(values) => values,
            Numbers::Own(values) => values,
        }
    }
}

/// The keys of a batch.
pub(super) enum Packed {
    /// Of up to 64 bits, the highest of them flipped, so that they compare as numbers with a sign.
    One(Numbers),
    /// Of up to 128.
    Two(Vec<u128>),
}

const SIGN: u64 = 1 << 63;

impl Packing {
    /// Nothing if they do not fit two words.
    pub(super) fn new(types: &[Type]) -> Option<Packing> {
        if types.is_empty() || !types.iter().all(|of| is_ordered(*of)) {
            return None;
        }
        let mut packing = Packing { fields: Vec::new(), bits: 0, has_nulls: true };
        for of in types.iter().rev() {
            let (bits, least) = match of {
                Type::Boolean => (1, 0),
                Type::UInt8 => (8, 0),
                Type::UInt16 => (16, 0),
                Type::UInt32 => (32, 0),
                Type::Int8 => (8, i64::from(i8::MIN)),
                Type::Int16 => (16, i64::from(i16::MIN)),
                Type::Int32 | Type::Date => (32, i64::from(i32::MIN)),
                _ => (64, i64::MIN),
            };
            packing.fields.insert(0, Field { of: *of, least, bits, below: packing.bits });
            packing.bits += bits + 1;
        }
        if types.len() == 1 && packing.bits > 64 {
            packing.has_nulls = false;
            packing.bits = 64;
        }
        (packing.bits <= 128).then_some(packing)
    }

    /// Whether it takes two words.
    pub(super) fn is_long(&self) -> bool {
        self.bits > 64
    }

    /// Whether there is no place for the NULLs of a column.
    pub(super) fn lacks(&self, columns: &[ArrayRef]) -> bool {
        !self.has_nulls && columns.iter().any(|column| column.logical_null_count() > 0)
    }

    /// Makes place for NULL. Keys that were one word are then made two by [`Packing::longer`].
    pub(super) fn lengthen(&mut self) {
        self.has_nulls = true;
        self.bits = 65;
    }

    /// A key of a single word of 64 bits, as it is with a place for NULL.
    pub(super) fn longer(key: i64) -> u128 {
        u128::from(key as u64 ^ SIGN) | 1 << 64
    }

    /// The keys of these columns, which it does not lack anything for.
    pub(super) fn pack(&self, columns: &[ArrayRef]) -> Packed {
        if !self.has_nulls {
            return Packed::One(Numbers::of(&columns[0]));
        }
        let rows = columns[0].len();
        let parts = self.fields.iter().zip(columns).map(|(field, column)| {
            let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
            (*field, Numbers::of(column), nulls)
        });
        // A NULL is 0 in its bit and in all below it.
        if self.is_long() {
            let mut keys = vec![0u128; rows];
            for (field, numbers, nulls) in parts {
                let one = |value: i64| {
                    (1 << field.bits | u128::from(value.wrapping_sub(field.least) as u64)) << field.below
                };
                add(&mut keys, numbers.all(), nulls.as_ref(), |key, value| *key |= one(value));
            }
            return Packed::Two(keys);
        }
        let mut keys = vec![i64::MIN; rows];
        for (field, numbers, nulls) in parts {
            let one =
                |value: i64| (1u64 << field.bits | value.wrapping_sub(field.least) as u64) << field.below;
            add(&mut keys, numbers.all(), nulls.as_ref(), |key, value| *key ^= one(value) as i64);
        }
        Packed::One(Numbers::Own(keys))
    }

    /// The columns of keys of one word.
    pub(super) fn unpack_one(&self, keys: Vec<i64>) -> Vec<ArrayRef> {
        if !self.has_nulls {
            return vec![from_ordered(self.fields[0].of, keys, None)];
        }
        self.unpack(keys.len(), |row| u128::from(keys[row] as u64 ^ SIGN))
    }

    /// The columns of keys of two words.
    pub(super) fn unpack_two(&self, keys: &[u128]) -> Vec<ArrayRef> {
        self.unpack(keys.len(), |row| keys[row])
    }

    fn unpack(&self, rows: usize, key: impl Fn(usize) -> u128) -> Vec<ArrayRef> {
        let column = |field: &Field| {
            let most = u64::MAX >> (64 - field.bits);
            let value =
                |row: usize| (((key(row) >> field.below) as u64) & most).wrapping_add(field.least as u64);
            let values = (0..rows).map(|row| value(row) as i64).collect();
            let is_valid = |row: usize| (key(row) >> (field.below + field.bits)) & 1 == 1;
            let nulls = NullBuffer::from_iter((0..rows).map(is_valid));
            from_ordered(field.of, values, Some(nulls).filter(|nulls| nulls.null_count() > 0))
        };
        self.fields.iter().map(column).collect()
    }
}

fn add<T>(keys: &mut [T], values: &[i64], nulls: Option<&NullBuffer>, add: impl Fn(&mut T, i64)) {
    match nulls {
        None => keys.iter_mut().zip(values).for_each(|(key, value)| add(key, *value)),
        Some(nulls) => {
            for (row, (key, value)) in keys.iter_mut().zip(values).enumerate() {
                if nulls.is_valid(row) {
                    add(key, *value);
                }
            }
        }
    }
}

/// Sorts keys with what belongs to each, in time that grows with their number only.
pub(super) fn sort<T: Ord + Copy>(pairs: &mut Vec<(T, u32)>, byte: impl Fn(T, usize) -> u8) {
    /// Below so many, comparing is quicker.
    const FEW: usize = 4_096;
    if pairs.len() < FEW {
        pairs.sort_unstable_by_key(|pair| pair.0);
        return;
    }
    let mut sorted = pairs.clone();
    for digit in 0..size_of::<T>() {
        let mut ends = [0usize; 256];
        pairs.iter().for_each(|pair| ends[usize::from(byte(pair.0, digit))] += 1);
        if ends.contains(&pairs.len()) {
            continue;
        }
        let mut end = 0;
        for held in &mut ends {
            end += std::mem::replace(held, end);
        }
        for pair in pairs.iter() {
            let place = &mut ends[usize::from(byte(pair.0, digit))];
            sorted[*place] = *pair;
            *place += 1;
        }
        std::mem::swap(pairs, &mut sorted);
    }
}
