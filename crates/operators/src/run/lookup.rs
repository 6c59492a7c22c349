//! What semi-joins look up in: the keys of another table, or a Bloom filter of them.
//!
//! Both know keys by the same hash of their values, which is part of the protocol: client and node may be of different
//! versions, and a filter that is read otherwise than it was made would lose rows.

use super::batch::*;
use super::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use super::evaluate::bytes_at;
use super::hash::{fold, hash_bytes};
use crate::limits::FILTER_BYTES_MAX;
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_row::{RowConverter, SortField};
use std::collections::HashSet;

/// Bits that a key sets in a filter.
const BLOOM_BITS_SET: u32 = 6;
/// The seed of the hashes in filters.
const BLOOM_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What comes with a request, by number.
pub type Lookups = Vec<LookupTable>;

/// One thing to look up in.
#[derive(Debug)]
pub enum LookupTable {
    /// Some rows without a partner stay.
    Bloom(Bloom),
    /// Exact.
    Keys(Keys),
}

/// Bits, of which each key has set a few.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bloom {
    words: Vec<u64>,
}

/// Keys, each once.
#[derive(Debug)]
pub struct Keys {
    types: Vec<Type>,
    converter: RowConverter,
    keys: HashSet<Box<[u8]>>,
}

impl Bloom {
    /// An empty one of so many bytes, rounded up to a power of two: 8 to 16 MiB.
    pub fn new(bytes: usize) -> Bloom {
        Bloom { words: vec![0; (bytes.clamp(8, FILTER_BYTES_MAX) / 8).next_power_of_two()] }
    }

    /// One from its bytes, least significant first. Their number is a power of two from 8 to 16 MiB.
    pub fn from_bytes(bytes: &[u8]) -> Result<Bloom, String> {
        if !bytes.len().is_power_of_two() || !(8..=FILTER_BYTES_MAX).contains(&bytes.len()) {
            let found = bytes.len();
            return Err(format!(
                "a filter of {found} bytes: a power of two from 8 to {FILTER_BYTES_MAX} is wanted"
            ));
        }
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        Ok(Bloom { words: bytes.chunks_exact(8).map(word).collect() })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Adds the keys of a batch, all of whose columns are keys. Rows with a NULL have no partner and add nothing.
    pub fn add(&mut self, keys: &RecordBatch) -> Result<(), Stopped> {
        let columns =
            keys.columns().iter().map(|key| plain(key, BATCH_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
        for hash in hashes(&columns).into_iter().flatten() {
            self.bits(hash).for_each(|(word, bit)| self.words[word] |= bit);
        }
        Ok(())
    }

    fn bits(&self, hash: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        // Two halves make as many hashes as are wanted (Kirsch and Mitzenmacher).
        let (first, second, bits) = (hash, hash.rotate_left(32) | 1, self.words.len() * 64);
        (0..BLOOM_BITS_SET).map(move |index| {
            let bit = first.wrapping_add(second.wrapping_mul(u64::from(index))) as usize & (bits - 1);
            (bit / 64, 1 << (bit % 64))
        })
    }

    fn holds(&self, hash: u64) -> bool {
        self.bits(hash).all(|(word, bit)| self.words[word] & bit != 0)
    }
}

impl Keys {
    /// The keys of batches, all of whose columns are keys of these types. Rows with a NULL have no partner.
    pub fn new(types: Vec<Type>, batches: &[RecordBatch]) -> Result<Keys, Stopped> {
        let fields = types.iter().map(|of| SortField::new(data_type(*of))).collect();
        let converter = RowConverter::new(fields).map_err(unexpected)?;
        let mut found = Keys { types, converter, keys: HashSet::new() };
        let mut bytes = 0u64;
        for batch in batches {
            let columns = columns_of(batch, &found.types)?;
            let columns =
                columns.iter().map(|key| plain(key, BATCH_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
            for key in found.rows(&columns)?.into_iter().flatten() {
                bytes += key.len() as u64;
                bounded("bytes of keys", bytes, BATCH_BYTES_MAX as u64)?;
                found.keys.insert(key);
            }
        }
        Ok(found)
    }

    fn rows(&self, columns: &[ArrayRef]) -> Result<Vec<Option<Box<[u8]>>>, Stopped> {
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        let rows = self.converter.convert_columns(&columns).map_err(unexpected)?;
        let key = |row| {
            let is_null = columns.iter().any(|column| column.is_null(row));
            (!is_null).then(|| rows.row(row).data().into())
        };
        Ok((0..rows.num_rows()).map(key).collect())
    }
}

impl LookupTable {
    /// Whether it can be asked for keys of these types.
    pub(super) fn fits(&self, types: &[Type]) -> bool {
        match self {
            LookupTable::Bloom(_) => true,
            LookupTable::Keys(keys) => keys.types == types,
        }
    }

    /// Which rows have a partner.
    pub(super) fn search(&self, columns: &[ArrayRef]) -> Result<BooleanArray, Stopped> {
        let columns = columns.iter().map(|key| plain(key, BATCH_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
        let found: BooleanBuffer = match self {
            LookupTable::Bloom(bloom) => {
                hashes(&columns).into_iter().map(|hash| hash.is_some_and(|hash| bloom.holds(hash))).collect()
            }
            LookupTable::Keys(keys) => {
                let rows = keys.rows(&columns)?;
                rows.iter().map(|key| key.as_ref().is_some_and(|key| keys.keys.contains(key))).collect()
            }
        };
        Ok(BooleanArray::new(found, None))
    }
}

/// A hash of each row; nothing for one with a NULL.
fn hashes(columns: &[ArrayRef]) -> Vec<Option<u64>> {
    let rows = columns.first().map_or(0, |column| column.len());
    let mut hashes: Vec<Option<u64>> = vec![Some(0); rows];
    for column in columns {
        let ordered = match type_of(column.data_type()) {
            Some(of) if is_ordered(of) => Some(ordered_values(column)),
            _ => None,
        };
        for (row, hash) in hashes.iter_mut().enumerate() {
            let Some(state) = *hash else { continue };
            *hash = (!column.is_null(row)).then(|| {
                let value = match (&ordered, column.data_type()) {
                    (Some(values), _) => values[row] as u64,
                    (None, arrow_schema::DataType::Decimal128(..)) => hash_bytes(
                        &column.as_primitive::<Decimal128Type>().value(row).to_le_bytes(),
                        BLOOM_SEED,
                    ),
                    _ => hash_bytes(bytes_at(column, row), BLOOM_SEED),
                };
                fold(state.rotate_left(5) ^ value, BLOOM_SEED)
            });
        }
    }
    hashes
}
