//! What semi-joins look up in: the keys of another table, or a Bloom filter of them.

pub(super) mod bloom;
pub(super) mod key_set;
pub(super) mod keys;

use crate::limits::{KEYS_MAX, LOOKUP_KEYS_MAX};
use crate::packed::take_batch;
use crate::program::Lookup;
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

/// Batches that keys travel in.
const BATCHES_MAX: usize = 4_096;
/// Rows times columns of the keys of a lookup. Only columns of booleans have more in the bytes that a lookup may have,
/// and each value takes its time.
pub(super) const VALUES_MAX: u64 = 1 << 25;
/// Bytes of memory that a column of a batch takes beside its values, about: what it is called, and where they are.
const COLUMN_BYTES: u64 = 512;
/// Bytes of text, or of bytes, that are compared in a step.
const BYTES_OF_A_STEP: usize = 8;

/// What comes with a request, by number.
pub type Lookups = Vec<Arc<LookupTable>>;

/// One thing to look up in.
#[derive(Debug)]
pub enum LookupTable {
    /// Some rows without a partner stay.
    Bloom(Bloom),
    /// Exact.
    Keys(Keys),
}

impl LookupTable {
    /// One as it travels (`spec/pipeline.md`, "Lookups"), under a seed that whoever sent it does not know.
    ///
    /// # Errors
    /// Bytes that are none, or that more than 1 GiB of memory would be made of.
    pub fn from_bytes(kind: Lookup, bytes: Buffer, seed: u64) -> Result<LookupTable, WireError> {
        let room = |found: u64| {
            let (what, max) = ("bytes that a lookup takes", BATCH_BYTES_MAX as u64);
            if found > max { Err(WireError::TooMany { what, found, max }) } else { Ok(()) }
        };
        LookupTable::from_bytes_within(kind, bytes, seed, room)
    }

    /// The same for whoever bounds the memory it takes: `room` is asked before that is taken, with all bytes that there
    /// will be then, those that travelled included, and ends it by an error. It is asked again as more becomes known.
    ///
    /// # Errors
    /// Bytes that are none, and what `room` says.
    pub fn from_bytes_within(
        kind: Lookup,
        bytes: Buffer,
        seed: u64,
        mut room: impl FnMut(u64) -> Result<(), WireError>,
    ) -> Result<LookupTable, WireError> {
        let travelled = bytes.len() as u64;
        let not = |what| WireError::Value { what, found: travelled };
        let at_most = |what, found, max| {
            if found > max { Err(WireError::TooMany { what, found, max }) } else { Ok(()) }
        };
        if kind == Lookup::Bloom {
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

    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> usize {
        size_of::<LookupTable>()
            + match self {
                LookupTable::Bloom(bloom) => bloom.held_bytes(),
                LookupTable::Keys(keys) => keys.held_bytes(),
            }
    }

    /// Whether it is of this kind and can be asked for keys of these types.
    pub(super) fn fits(&self, kind: Lookup, types: &[Type]) -> bool {
        match self {
            LookupTable::Bloom(_) => kind == Lookup::Bloom,
            LookupTable::Keys(keys) => kind == Lookup::Keys && keys.fits(types),
        }
    }

    /// Which rows have a partner. A step for each row and key has been taken.
    pub(super) fn search(
        &self,
        columns: &[ArrayRef],
        limits: &mut Limits<'_>,
    ) -> Result<BooleanArray, Stopped> {
        let found = match columns {
            // Each value of a dictionary once.
            [column] if matches!(column.data_type(), DataType::Dictionary(..)) => {
                let dictionary = column.as_any_dictionary();
                limits.steps.take(dictionary.values().len() + byte_steps(dictionary.values()))?;
                let values = self.found(std::slice::from_ref(dictionary.values()));
                let found = match values.is_empty() {
                    // Every row is NULL, and no number is one of a value.
                    true => BooleanBuffer::new_unset(column.len()),
                    false => dictionary.normalized_keys().iter().map(|key| values.value(*key)).collect(),
                };
                match column.logical_nulls() {
                    Some(nulls) => &found & nulls.inner(),
                    None => found,
                }
            }
            _ => {
                // A column that is named several times counts as often: so often its bytes are in each row that is
                // looked up.
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

    /// The same of columns without dictionaries.
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

/// Steps that comparing the values of a column takes beside one for each.
fn byte_steps(column: &ArrayRef) -> usize {
    match column.data_type() {
        DataType::Utf8 | DataType::Binary | DataType::FixedSizeBinary(_) => {
            bytes_of(column) / BYTES_OF_A_STEP
        }
        _ => 0,
    }
}
