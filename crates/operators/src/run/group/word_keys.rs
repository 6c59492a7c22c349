//! Word keys: the key columns of a row packed into one or two words that compare as the keys do.
//!
//! The idea is that of a date written as 2024-05-31: the part that weighs most comes first, each part has a fixed
//! number of digits, and comparing the digits compares the dates. Each key value becomes a whole number of at least 0
//! with a fixed number of bits, and the first key takes the highest bits. A bit above each number is 0 for NULL, so
//! NULL sorts first. Results are sorted by these words, digit by digit.
//!
//! Keys that fill their words completely have no bit for NULL. A single key of 64 bits gets one, and with it a second
//! word, when the first NULL comes. Two keys of 64 bits cannot get one: if a NULL comes, general groups take over.
//! Texts have no fixed width, so each text gets a number ([`Texts`]), and the numbers are exchanged for ranks once
//! all texts are known.

use super::texts::{NUMBER_BITS, Texts};
use crate::run::batch::{from_ordered, is_ordered, key_values, ordered_values};
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::DataType;

/// Layout of the keys in words.
#[derive(Debug)]
pub(super) struct WordKeyLayout {
    fields: Vec<Field>,
    /// Bits of all fields together.
    bits: u32,
    /// True if each field has a bit for NULL.
    has_nulls: bool,
}

#[derive(Debug)]
struct Field {
    of: Type,
    /// Least value of the type, which is subtracted from each value.
    least: i64,
    /// Bits of the number, without the bit for NULL.
    bits: u32,
    /// Bits below this field.
    below: u32,
    /// Texts by number, if the key is of texts or bytes.
    texts: Option<Texts>,
}

/// Whole numbers of a column.
pub(super) enum Numbers {
    /// The column's own buffer, shared.
    Shared(ScalarBuffer<i64>),
    /// Numbers computed from the column.
    Own(Vec<i64>),
}

impl Numbers {
    /// Returns the values as [`ordered_values`] maps them to whole numbers of the same order.
    pub(super) fn of(column: &ArrayRef) -> Numbers {
        Numbers::by(column, ordered_values)
    }

    /// Returns the values of keys as [`key_values`] maps them to whole numbers.
    fn of_keys(column: &ArrayRef) -> Numbers {
        Numbers::by(column, key_values)
    }

    fn by(column: &ArrayRef, values: fn(&ArrayRef) -> Vec<i64>) -> Numbers {
        match column.data_type() {
            DataType::Int64 => Numbers::Shared(column.as_primitive::<Int64Type>().values().clone()),
            _ => Numbers::Own(values(column)),
        }
    }

    /// Returns the numbers, one per row.
    pub(super) fn all(&self) -> &[i64] {
        match self {
            Numbers::Shared(values) => values,
            Numbers::Own(values) => values,
        }
    }
}

/// Keys of a batch as words.
pub(super) enum WordKeys {
    /// Keys of up to 64 bits. The highest bit is flipped, so that they compare as signed numbers.
    One(Numbers),
    /// Keys of up to 128 bits.
    Two(Vec<u128>),
}

const SIGN: u64 = 1 << 63;

impl WordKeyLayout {
    /// Makes the layout. `None` if the keys do not fit two words. The texts of each key take at most `text_bytes_max`
    /// bytes.
    pub(super) fn new(types: &[Type], text_bytes_max: usize, seed: u64) -> Option<WordKeyLayout> {
        if types.is_empty() || !types.iter().all(|of| is_ordered(*of) || Texts::are(*of)) {
            return None;
        }
        let bits: u32 = types.iter().map(|of| 1 + range(*of).0).sum();
        let has_nulls = if types.len() == 1 { bits <= 64 } else { bits <= 128 };
        let mut packing = WordKeyLayout { fields: Vec::new(), bits: 0, has_nulls };
        for of in types.iter().rev() {
            let (bits, least) = range(*of);
            let texts = Texts::are(*of).then(|| Texts::new(*of, text_bytes_max, seed));
            packing.fields.insert(0, Field { of: *of, least, bits, below: packing.bits, texts });
            packing.bits += bits + u32::from(has_nulls);
        }
        (packing.bits <= 128).then_some(packing)
    }

    /// Reports whether a key takes two words.
    pub(super) fn is_long(&self) -> bool {
        self.bits > 64
    }

    /// Reports whether a column has NULLs and the layout has no bits for them.
    pub(super) fn lacks(&self, columns: &[ArrayRef]) -> bool {
        !self.has_nulls && columns.iter().any(|column| column.logical_null_count() > 0)
    }

    /// Adds the bit for NULL. [`WordKeyLayout::longer`] converts the keys of one word that exist.
    pub(super) fn lengthen(&mut self) {
        self.has_nulls = true;
        self.bits = 65;
    }

    /// Converts a key of 64 bits to the layout with a bit for NULL.
    pub(super) fn longer(key: i64) -> u128 {
        u128::from(key as u64 ^ SIGN) | 1 << 64
    }

    /// Reports whether [`WordKeyLayout::lengthen`] can add a bit for NULL.
    pub(super) fn can_lengthen(&self) -> bool {
        self.fields.len() == 1
    }

    /// Packs these key columns, for which [`WordKeyLayout::lacks`] must be false. `None` if new texts take more bytes
    /// than permitted. No group then uses the texts that this call has added.
    pub(super) fn pack(&mut self, columns: &[ArrayRef]) -> Option<WordKeys> {
        let numbers = |(field, column): (&mut Field, &ArrayRef)| match &mut field.texts {
            Some(texts) => texts.numbers(column).map(Numbers::Own),
            None => Some(Numbers::of_keys(column)),
        };
        let numbers: Vec<Numbers> =
            self.fields.iter_mut().zip(columns).map(numbers).collect::<Option<Vec<_>>>()?;
        if self.bits == 64 && !self.has_nulls {
            return numbers.into_iter().next().map(WordKeys::One);
        }
        let rows = columns[0].len();
        let parts = self.fields.iter().zip(columns).zip(&numbers).map(|((field, column), numbers)| {
            let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
            (field, numbers, nulls)
        });
        let bit = u64::from(self.has_nulls);
        // A NULL is 0 in its bit and in all bits of its field.
        if self.is_long() {
            let mut keys = vec![0u128; rows];
            for (field, numbers, nulls) in parts {
                let bit = u128::from(bit).checked_shl(field.bits).unwrap_or(0);
                let one =
                    |value: i64| (bit | u128::from(value.wrapping_sub(field.least) as u64)) << field.below;
                add(&mut keys, numbers.all(), nulls.as_ref(), |key, value| *key |= one(value));
            }
            return Some(WordKeys::Two(keys));
        }
        let mut keys = vec![i64::MIN; rows];
        for (field, numbers, nulls) in parts {
            let one =
                |value: i64| (bit << field.bits | value.wrapping_sub(field.least) as u64) << field.below;
            add(&mut keys, numbers.all(), nulls.as_ref(), |key, value| *key ^= one(value) as i64);
        }
        Some(WordKeys::One(Numbers::Own(keys)))
    }

    /// Drops the texts of keys, after all groups were output.
    pub(super) fn clear(&mut self) {
        self.fields.iter_mut().filter_map(|field| field.texts.as_mut()).for_each(Texts::clear);
    }

    /// Returns a layout in which texts are numbered in their order, and the function that converts keys to it. `None`
    /// if no key is of texts.
    pub(super) fn sorted(&self) -> Option<(WordKeyLayout, impl Fn(u128) -> u128)> {
        self.fields.iter().any(|field| field.texts.is_some()).then(|| {
            let mut ranked = Vec::new();
            let sorted = |field: &Field| {
                let texts = field.texts.as_ref().map(|texts| {
                    let (texts, ranks) = texts.sorted();
                    ranked.push((field.below, ranks));
                    texts
                });
                Field { of: field.of, least: field.least, bits: field.bits, below: field.below, texts }
            };
            let fields = self.fields.iter().map(sorted).collect();
            let has_nulls = self.has_nulls;
            let recoded = move |key: u128| {
                let most = (1u128 << NUMBER_BITS) - 1;
                ranked.iter().fold(key, |key, (below, ranks)| {
                    let is_valid = !has_nulls || key >> (below + NUMBER_BITS) & 1 == 1;
                    let rank = ranks.get(((key >> below) & most) as usize).filter(|_| is_valid);
                    rank.map_or(key, |rank| key & !(most << below) | u128::from(*rank) << below)
                })
            };
            (WordKeyLayout { fields, bits: self.bits, has_nulls }, recoded)
        })
    }

    /// Converts a key of one word to the form of two words.
    pub(super) fn wide(key: i64) -> u128 {
        u128::from(key as u64 ^ SIGN)
    }

    /// Reverses [`WordKeyLayout::wide`].
    pub(super) fn narrow(key: u128) -> i64 {
        (key as u64 ^ SIGN) as i64
    }

    /// Returns the columns of keys of one word.
    pub(super) fn unpack_one(&self, keys: Vec<i64>) -> Vec<ArrayRef> {
        if self.bits == 64 && !self.has_nulls {
            return vec![from_ordered(self.fields[0].of, keys, None)];
        }
        self.unpack(keys.len(), |row| WordKeyLayout::wide(keys[row]))
    }

    /// Returns the columns of keys of two words.
    pub(super) fn unpack_two(&self, keys: &[u128]) -> Vec<ArrayRef> {
        self.unpack(keys.len(), |row| keys[row])
    }

    fn unpack(&self, rows: usize, key: impl Fn(usize) -> u128) -> Vec<ArrayRef> {
        let column = |field: &Field| {
            let most = u64::MAX >> (64 - field.bits);
            let number = |row: usize| ((key(row) >> field.below) as u64) & most;
            let is_valid = |row: usize| !self.has_nulls || (key(row) >> (field.below + field.bits)) & 1 == 1;
            if let Some(texts) = &field.texts {
                return texts.column((0..rows).map(|row| is_valid(row).then(|| number(row) as u32)));
            }
            let values = (0..rows).map(|row| number(row).wrapping_add(field.least as u64) as i64).collect();
            let nulls = NullBuffer::from_iter((0..rows).map(is_valid));
            from_ordered(field.of, values, Some(nulls).filter(|nulls| nulls.null_count() > 0))
        };
        self.fields.iter().map(column).collect()
    }
}

/// Returns the bits that the values of a type take, and the least value.
fn range(of: Type) -> (u32, i64) {
    match of {
        Type::Boolean => (1, 0),
        Type::UInt8 => (8, 0),
        Type::UInt16 => (16, 0),
        Type::UInt32 => (32, 0),
        Type::Int8 => (8, i64::from(i8::MIN)),
        Type::Int16 => (16, i64::from(i16::MIN)),
        Type::Int32 | Type::Date => (32, i64::from(i32::MIN)),
        _ if Texts::are(of) => (NUMBER_BITS, 0),
        _ => (64, i64::MIN),
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

/// Sorts keys with the place of each, by radix sort: in time proportional to their number.
pub(super) fn sort<T: Ord + Copy>(pairs: &mut Vec<(T, u32)>, byte: impl Fn(T, usize) -> u8) {
    /// Number of keys below which a comparison sort is faster.
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
