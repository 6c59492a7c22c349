//! Keys of texts or bytes by number: each different text is held once, and a row has the number of its text.
//!
//! The idea: a number of fixed width is a key like any other, so groups by text are found like groups by number. For
//! a dictionary column each value of the dictionary is looked up once, not each row. The numbers do not follow the
//! order of the texts; [`Texts::sorted`] makes numbers that do, once all texts are known.

use super::accumulators::bytes_column;
use crate::run::hash::{Found, Table, hash_bytes};
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

/// Bits of the number of a text.
pub(super) const NUMBER_BITS: u32 = 31;
const NUMBERS_MAX: usize = 1 << NUMBER_BITS;

/// Texts by number.
#[derive(Debug)]
pub(super) struct Texts {
    of: Type,
    seed: u64,
    table: Table,
    bytes: Vec<u8>,
    /// End of each text in `bytes`.
    ends: Vec<usize>,
    /// Most bytes of the texts and the table together.
    bytes_max: usize,
}

impl Texts {
    /// Reports whether keys of this type are held by number.
    pub(super) fn are(of: Type) -> bool {
        matches!(of, Type::Text | Type::Bytes | Type::FixedBytes(_))
    }

    /// Makes an empty set that takes about `bytes_max` bytes at most.
    pub(super) fn new(of: Type, bytes_max: usize, seed: u64) -> Texts {
        let table = Table::new(seed);
        Texts { of, seed, table, bytes: Vec::new(), ends: Vec::new(), bytes_max }
    }

    /// Returns the number of each row's text. `None` if a new text finds no room. A row that is NULL gets the number
    /// of the text that its column stores for it.
    pub(super) fn numbers(&mut self, column: &ArrayRef) -> Option<Vec<i64>> {
        match column.data_type() {
            DataType::Dictionary(..) => {
                let dictionary = column.as_any_dictionary();
                let values = self.numbers(dictionary.values())?;
                match values.is_empty() {
                    true => Some(vec![0; column.len()]),
                    false => Some(dictionary.normalized_keys().iter().map(|key| values[*key]).collect()),
                }
            }
            DataType::FixedSizeBinary(_) => {
                let values = column.as_fixed_size_binary();
                self.each((0..column.len()).map(|row| values.value(row)))
            }
            DataType::Utf8 => {
                let texts = column.as_string::<i32>();
                self.each(values_of(texts.value_offsets(), texts.value_data()))
            }
            _ => {
                let values = column.as_binary::<i32>();
                self.each(values_of(values.value_offsets(), values.value_data()))
            }
        }
    }

    fn each<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) -> Option<Vec<i64>> {
        // Equal texts often follow each other.
        let mut last: Option<(&[u8], i64)> = None;
        let number = |value: &'a [u8]| match last {
            Some((known, number)) if known == value => Some(number),
            _ => {
                let number = i64::from(self.number(value)?);
                last = Some((value, number));
                Some(number)
            }
        };
        values.map(number).collect()
    }

    fn number(&mut self, value: &[u8]) -> Option<u32> {
        let hash = hash_bytes(value, self.seed);
        let slot = match self.table.find(hash, |number| self.at(number) == value) {
            Found::Held(number) => return Some(number),
            Found::Free(slot) => slot,
            Found::Crowded => return None,
        };
        let held = self.bytes.len() + self.ends.len() * size_of::<usize>() + self.table.bytes();
        if held + value.len() > self.bytes_max || self.ends.len() >= NUMBERS_MAX {
            return None;
        }
        let number = self.ends.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
        self.table.put(slot, hash, number).then_some(number)
    }

    fn at(&self, number: u32) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number as usize - 1] };
        &self.bytes[start..self.ends[number as usize]]
    }

    /// Makes a column of the texts with these numbers. `None` becomes NULL.
    pub(super) fn column(&self, numbers: impl Iterator<Item = Option<u32>>) -> ArrayRef {
        bytes_column(self.of, numbers.map(|number| number.map(|number| self.at(number))))
    }

    /// Returns the texts numbered in the order of their bytes, and the new number of each present one. No text can be
    /// added to the result.
    pub(super) fn sorted(&self) -> (Texts, Vec<u32>) {
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_unstable_by_key(|number| self.at(*number));
        let mut ranks = vec![0; order.len()];
        let mut texts = Texts::new(self.of, 0, self.seed);
        texts.bytes.reserve_exact(self.bytes.len());
        for (rank, number) in order.iter().enumerate() {
            ranks[*number as usize] = rank as u32;
            texts.bytes.extend_from_slice(self.at(*number));
            texts.ends.push(texts.bytes.len());
        }
        (texts, ranks)
    }

    /// Drops all texts.
    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.bytes.clear();
        self.ends.clear();
    }
}

fn values_of<'a>(offsets: &'a [i32], bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    offsets.windows(2).map(|ends| &bytes[ends[0] as usize..ends[1] as usize])
}
