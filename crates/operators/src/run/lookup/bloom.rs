//! Bloom filters of keys, and the hash of keys that they use. Both are part of the protocol: a filter that is read in
//! another way than it was made would lose rows. `spec/pipeline.md` has the same without Rust.
//!
//! The idea: each key sets five bits in one word of 64, so a lookup is one read of memory and one comparison,
//! whatever the size of the filter. Bits spread over the whole filter would need less room for the same share of
//! errors. Here an error costs little, because the rows that pass are looked up in the exact keys later.

use crate::limits::LOOKUP_BYTES_MAX;
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Stopped};
use crate::run::expr::bytes_at;
use crate::run::hash::{fold, hash_bytes};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::DataType;
use std::borrow::Cow;

/// Seed of the hashes in filters, the same for everyone.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a word.
const WORD_BYTES: usize = 8;
/// Rows that are hashed before any of them is looked up.
const ROWS_AT_A_TIME: usize = 1_024;

/// Bloom filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bloom {
    words: Vec<u64>,
}

impl Bloom {
    /// Makes an empty filter of this many bytes, rounded up to whole words and limited to 8 bytes to 16 MiB. With 16
    /// bits per key about one key in 200 passes by mistake, with 8 bits one in 25.
    pub fn new(bytes: usize) -> Bloom {
        Bloom { words: vec![0; bytes.clamp(WORD_BYTES, LOOKUP_BYTES_MAX).div_ceil(WORD_BYTES)] }
    }

    /// Decodes a filter: whole words of 8 bytes, at most 16 MiB.
    pub fn from_bytes(bytes: &[u8]) -> Result<Bloom, String> {
        let found = bytes.len();
        if !found.is_multiple_of(WORD_BYTES) || !(WORD_BYTES..=LOOKUP_BYTES_MAX).contains(&found) {
            return Err(format!(
                "a filter of {found} bytes: multiples of {WORD_BYTES} up to {LOOKUP_BYTES_MAX} are permitted"
            ));
        }
        Ok(Bloom { words: bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect() })
    }

    /// Returns the bytes of memory that the filter takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.words.capacity() * WORD_BYTES
    }

    /// Encodes the filter.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Adds the keys of a batch, all of whose columns are keys. A row with a NULL adds nothing.
    pub fn add(&mut self, keys: &RecordBatch) -> Result<(), Stopped> {
        let columns =
            keys.columns().iter().map(|key| plain(key, BATCH_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
        let keys = Keyed::of(&columns);
        let mut hashes = Vec::new();
        for start in (0..keys.rows).step_by(ROWS_AT_A_TIME) {
            keys.hash(start..keys.rows.min(start + ROWS_AT_A_TIME), &mut hashes);
            for (row, hash) in (start..).zip(&hashes) {
                if keys.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                    let (word, bits) = self.place(*hash);
                    self.words[word] |= bits;
                }
            }
        }
        Ok(())
    }

    /// Returns for each row whether its key may have been added.
    pub(super) fn search(&self, keys: &Keyed<'_>) -> BooleanBuffer {
        let mut hashes = Vec::new();
        let mut words = Vec::with_capacity(keys.rows.div_ceil(64));
        for start in (0..keys.rows).step_by(ROWS_AT_A_TIME) {
            keys.hash(start..keys.rows.min(start + ROWS_AT_A_TIME), &mut hashes);
            let word = |hashes: &[u64]| {
                let bits = hashes.iter().enumerate();
                bits.fold(0, |word, (at, hash)| word | u64::from(self.holds(*hash)) << at)
            };
            words.extend(hashes.chunks(64).map(word));
        }
        BooleanBuffer::new(words.into(), 0, keys.rows)
    }

    /// Returns the word of a hash, and the bits in that word.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u64) {
        // The upper half of the hash chooses the word, the lower half the bits.
        let word = ((hash >> 32) * self.words.len() as u64) >> 32;
        let bit = |at: u32| 1 << (hash >> at & 63);
        (word as usize, bit(0) | bit(6) | bit(12) | bit(18) | bit(24))
    }

    #[inline]
    fn holds(&self, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        self.words[word] & bits == bits
    }
}

/// Column of keys in the form in which it is compared.
pub(super) enum KeyColumn<'c> {
    /// Values of up to 8 bytes as numbers.
    Numbers(Cow<'c, [i64]>),
    Decimals(&'c [i128]),
    Bytes(&'c ArrayRef),
}

/// Key columns of rows, without dictionaries.
pub(super) struct Keyed<'c> {
    pub(super) rows: usize,
    /// Bit 1 for each row without a NULL among its keys; `None` if no row has a NULL. A row with a NULL matches
    /// nothing.
    pub(super) nulls: Option<NullBuffer>,
    pub(super) columns: Vec<KeyColumn<'c>>,
    /// Part of a number's 8 bytes that [`Keyed::append`] writes, for each column. Without meaning for columns that
    /// are no numbers.
    widths: Vec<Width>,
}

/// Part of a number's 8 bytes, from the least significant, that tells the values of a type apart.
#[derive(Clone, Copy)]
enum Width {
    First1,
    First2,
    First4,
    /// Floats of 32 bits widened to 64: the low bits of their fractions are all 0 or all 1.
    Last5,
    All,
}

/// Bytes of the length that precedes a text in a row of keys.
const LENGTH_BYTES: usize = 4;

impl Width {
    fn of(column: &ArrayRef) -> Width {
        match column.data_type() {
            DataType::Float32 => Width::Last5,
            DataType::Boolean => Width::First1,
            other => match other.primitive_width() {
                Some(1) => Width::First1,
                Some(2) => Width::First2,
                Some(4) => Width::First4,
                _ => Width::All,
            },
        }
    }

    fn bytes(self) -> usize {
        match self {
            Width::First1 => 1,
            Width::First2 => 2,
            Width::First4 => 4,
            Width::Last5 => 5,
            Width::All => 8,
        }
    }
}

/// Returns the bytes that [`Keyed::append`] writes for all rows of these columns, which have no dictionaries.
pub(super) fn appended_bytes(columns: &[ArrayRef]) -> u64 {
    let of_column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8 | DataType::Binary => bytes_of(column),
        DataType::Decimal128(..) => column.len() * size_of::<i128>(),
        DataType::FixedSizeBinary(_) => bytes_of(column) + column.len() * LENGTH_BYTES,
        _ => column.len() * Width::of(column).bytes(),
    };
    columns.iter().map(|column| of_column(column) as u64).sum()
}

impl<'c> Keyed<'c> {
    pub(super) fn of(columns: &'c [ArrayRef]) -> Keyed<'c> {
        let of_column = |column: &'c ArrayRef| match (type_of(column.data_type()), column.data_type()) {
            (_, DataType::Int64) => {
                KeyColumn::Numbers(Cow::Borrowed(column.as_primitive::<Int64Type>().values()))
            }
            (Some(of), _) if is_ordered(of) => KeyColumn::Numbers(Cow::Owned(key_values(column))),
            (_, DataType::Decimal128(..)) => {
                KeyColumn::Decimals(column.as_primitive::<Decimal128Type>().values())
            }
            _ => KeyColumn::Bytes(column),
        };
        let nulls = columns.iter().fold(None, |all, column| NullBuffer::union(all.as_ref(), column.nulls()));
        Keyed {
            rows: columns.first().map_or(0, |column| column.len()),
            nulls: nulls.filter(|nulls| nulls.null_count() > 0),
            columns: columns.iter().map(of_column).collect(),
            widths: columns.iter().map(Width::of).collect(),
        }
    }

    /// Computes the hash of each of these rows. The hash of a row with a NULL has no meaning.
    fn hash(&self, rows: std::ops::Range<usize>, hashes: &mut Vec<u64>) {
        hashes.clear();
        hashes.resize(rows.len(), 0);
        let next = |state: u64, value: u64| fold(state.rotate_left(5) ^ value, SEED);
        for column in &self.columns {
            match column {
                KeyColumn::Numbers(values) => {
                    let values = values[rows.clone()].iter();
                    hashes
                        .iter_mut()
                        .zip(values)
                        .for_each(|(hash, value)| *hash = next(*hash, *value as u64));
                }
                KeyColumn::Decimals(values) => {
                    for (hash, value) in hashes.iter_mut().zip(&values[rows.clone()]) {
                        *hash = next(*hash, hash_bytes(&value.to_le_bytes(), SEED));
                    }
                }
                KeyColumn::Bytes(column) => {
                    for (hash, row) in hashes.iter_mut().zip(rows.clone()) {
                        *hash = next(*hash, hash_bytes(bytes_at(column, row), SEED));
                    }
                }
            }
        }
    }

    /// Appends the keys of a row to `out`. Two rows have the same bytes if and only if their keys are equal. Numbers
    /// take the bytes of their type: with 8 bytes each, rows of booleans would take 64 times their bytes on the wire.
    #[inline]
    pub(super) fn append(&self, row: usize, out: &mut Vec<u8>) {
        for (column, width) in self.columns.iter().zip(&self.widths) {
            match column {
                KeyColumn::Numbers(values) => {
                    let bytes = values[row].to_le_bytes();
                    // The compiler knows each length, so each append is one store.
                    match width {
                        Width::First1 => out.push(bytes[0]),
                        Width::First2 => out.extend_from_slice(&bytes[..2]),
                        Width::First4 => out.extend_from_slice(&bytes[..4]),
                        Width::Last5 => out.extend_from_slice(&bytes[3..]),
                        Width::All => out.extend_from_slice(&bytes),
                    }
                }
                KeyColumn::Decimals(values) => out.extend_from_slice(&values[row].to_le_bytes()),
                KeyColumn::Bytes(column) => {
                    let bytes = bytes_at(column, row);
                    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                    out.extend_from_slice(bytes);
                }
            }
        }
    }
}
