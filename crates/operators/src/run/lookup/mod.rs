//! Lookups of semi-joins: the keys of another table, or a Bloom filter of them.

pub(super) mod bloom;
pub(super) mod key_set;
pub(super) mod keys;

use crate::limits::{KEYS_MAX, LOOKUP_KEYS_MAX};
use crate::packed::take_batch;
use crate::program::JoinLookup;
use crate::run::batch::{bytes_of, plain};
use crate::run::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use crate::run::expr::Limits;
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_buffer::{BooleanBuffer, Buffer};
use arrow_schema::DataType;
use bloom::{Bloom, Keyed};
use farpool_wire::WireError;
use keys::Keys;
use std::sync::Arc;

/// Most batches of the packed keys of a lookup.
const BATCHES_MAX: usize = 4_096;
/// Most values (rows times columns) of the keys of a lookup. Only columns of booleans can have more within the bytes
/// of a lookup, and each value costs time.
pub(super) const VALUES_MAX: u64 = 1 << 25;
/// Bytes of memory that a column of a batch takes besides its values: an estimate for its field and array.
const COLUMN_BYTES: u64 = 512;
/// Bytes of text or bytes that are compared in one step.
const BYTES_OF_A_STEP: usize = 8;

/// Lookups of a request. Semi-joins name them by their positions here.
pub type Lookups = Vec<Arc<LookupTable>>;

/// Lookup of a semi-join, ready to be searched.
#[derive(Debug)]
pub enum LookupTable {
    /// Bloom filter: some rows without a match pass too.
    Bloom(Bloom),
    /// Exact keys.
    Keys(Keys),
}

impl LookupTable {
    /// Decodes a lookup (`spec/pipeline.md`, "Lookups"). The sender must not know `seed`.
    ///
    /// # Errors
    /// Bytes that are no lookup, or that would take more than 1 GiB of memory.
    pub fn from_bytes(kind: JoinLookup, bytes: Buffer, seed: u64) -> Result<LookupTable, WireError> {
        let room = |found: u64| {
            let (what, max) = ("bytes that a lookup takes", BATCH_BYTES_MAX as u64);
            if found > max { Err(WireError::TooMany { what, found, max }) } else { Ok(()) }
        };
        LookupTable::from_bytes_within(kind, bytes, seed, room)
    }

    /// Decodes a lookup under a memory limit of the caller. `room` is called before memory is taken, with all bytes
    /// that the lookup will take then, including the encoded ones; an error from it ends the decoding. It is called
    /// again whenever more becomes known.
    ///
    /// # Errors
    /// Bytes that are no lookup, and the errors of `room`.
    pub fn from_bytes_within(
        kind: JoinLookup,
        bytes: Buffer,
        seed: u64,
        mut room: impl FnMut(u64) -> Result<(), WireError>,
    ) -> Result<LookupTable, WireError> {
        let travelled = bytes.len() as u64;
        let not = |what| WireError::Value { what, found: travelled };
        let at_most = |what, found, max| {
            if found > max { Err(WireError::TooMany { what, found, max }) } else { Ok(()) }
        };
        if kind == JoinLookup::Bloom {
            room(travelled * 2)?;
            let bloom = Bloom::from_bytes(&bytes).map_err(|_| not("the bytes of a filter"))?;
            return Ok(LookupTable::Bloom(bloom));
        }
        let mut batches = Vec::new();
        let (mut rows, mut taken, mut at) = (0, travelled, 0);
        while at < bytes.len() {
            let ((_, batch), end) = take_batch(&bytes, at)?;
            let columns = batch.num_columns();
            if !(1..=KEYS_MAX).contains(&columns) {
                return Err(not("the columns of keys"));
            }
            rows += batch.num_rows() as u64;
            at_most("keys of a lookup", rows, LOOKUP_KEYS_MAX as u64)?;
            at_most("values of a lookup's keys", rows * columns as u64, VALUES_MAX)?;
            at_most("batches of a lookup", batches.len() as u64 + 1, BATCHES_MAX as u64)?;
            taken += columns as u64 * COLUMN_BYTES;
            room(taken)?;
            batches.push(batch);
            at = end;
        }
        let types = batches.first().map(|batch| {
            let fields = batch.schema_ref().fields().iter();
            fields.map(|field| crate::run::type_of(field.data_type())).collect::<Option<Vec<Type>>>()
        });
        let Some(types) = types.unwrap_or(Some(Vec::new())) else { return Err(not("the types of keys")) };
        room(taken + Keys::bytes_at_most(&types, &batches))?;
        Keys::new(types, &batches, seed).map(LookupTable::Keys).map_err(|_| not("the keys of a lookup"))
    }

    /// Returns the bytes of memory that the lookup takes.
    pub fn held_bytes(&self) -> usize {
        size_of::<LookupTable>()
            + match self {
                LookupTable::Bloom(bloom) => bloom.held_bytes(),
                LookupTable::Keys(keys) => keys.held_bytes(),
            }
    }

    /// Reports whether the lookup is of this kind and has keys of these types.
    pub(super) fn fits(&self, kind: JoinLookup, types: &[Type]) -> bool {
        match self {
            LookupTable::Bloom(_) => kind == JoinLookup::Bloom,
            LookupTable::Keys(keys) => kind == JoinLookup::Keys && keys.fits(types),
        }
    }

    /// Returns for each row whether it has a match. The caller has counted a step for each row and key.
    pub(super) fn search(
        &self,
        columns: &[ArrayRef],
        limits: &mut Limits<'_>,
    ) -> Result<BooleanArray, Stopped> {
        let found = match columns {
            // Each value of a dictionary is looked up once.
            [column] if matches!(column.data_type(), DataType::Dictionary(..)) => {
                let dictionary = column.as_any_dictionary();
                limits.steps.take(dictionary.values().len() + byte_steps(dictionary.values()))?;
                let values = self.found(std::slice::from_ref(dictionary.values()));
                let found = match values.is_empty() {
                    // Every row is NULL then, and its key may name no value.
                    true => BooleanBuffer::new_unset(column.len()),
                    false => dictionary.normalized_keys().iter().map(|key| values.value(*key)).collect(),
                };
                match column.logical_nulls() {
                    Some(nulls) => &found & nulls.inner(),
                    None => found,
                }
            }
            _ => {
                // A column that is named several times counts as often, because its bytes are that often in each row
                // that is looked up.
                let mut bytes = 0;
                let plain = |column: &ArrayRef| {
                    let column = plain(column, limits.bytes_max.saturating_sub(bytes))?;
                    bytes += bytes_of(&column);
                    bounded("bytes of keys", bytes as u64, limits.bytes_max as u64)?;
                    limits.steps.take(byte_steps(&column))?;
                    Ok(column)
                };
                let columns = columns.iter().map(plain).collect::<Result<Vec<_>, Stopped>>()?;
                self.found(&columns)
            }
        };
        Ok(BooleanArray::new(found, None))
    }

    /// Looks up columns without dictionaries.
    fn found(&self, columns: &[ArrayRef]) -> BooleanBuffer {
        let keyed = Keyed::of(columns);
        let found = match self {
            LookupTable::Bloom(bloom) => bloom.search(&keyed),
            LookupTable::Keys(keys) => keys.search(&keyed),
        };
        match &keyed.nulls {
            Some(nulls) => &found & nulls.inner(),
            None => found,
        }
    }
}

/// Returns the steps for comparing the values of a column, besides one for each value.
fn byte_steps(column: &ArrayRef) -> usize {
    match column.data_type() {
        DataType::Utf8 | DataType::Binary | DataType::FixedSizeBinary(_) => {
            bytes_of(column) / BYTES_OF_A_STEP
        }
        _ => 0,
    }
}
