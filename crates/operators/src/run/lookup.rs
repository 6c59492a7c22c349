//! What semi-joins look up in: the keys of another table, or a Bloom filter of them.

use super::batch::plain;
use super::bloom::{Bloom, Keyed};
use super::bounds::{BATCH_BYTES_MAX, Stopped, bounded};
use super::keys::Keys;
use crate::limits::LOOKUP_KEYS_MAX;
use crate::packed::unpack_few;
use crate::program::Lookup;
use crate::types::Type;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_buffer::{BooleanBuffer, Buffer};
use arrow_schema::DataType;
use farpool_wire::WireError;
use std::sync::Arc;

/// Batches that keys travel in.
const BATCHES_MAX: usize = 4_096;

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
    /// Bytes that are none.
    pub fn from_bytes(kind: Lookup, bytes: Buffer, seed: u64) -> Result<LookupTable, WireError> {
        let not = |what| WireError::Value { what, found: bytes.len() as u64 };
        if kind == Lookup::Bloom {
            let bloom = Bloom::from_bytes(&bytes).map_err(|_| not("the bytes of a filter"))?;
            return Ok(LookupTable::Bloom(bloom));
        }
        let mut batches = Vec::new();
        let mut rows = 0;
        for (_, batch) in unpack_few(bytes.clone(), BATCHES_MAX)? {
            rows += batch.num_rows() as u64;
            if rows > LOOKUP_KEYS_MAX as u64 {
                let (what, max) = ("keys of a lookup", LOOKUP_KEYS_MAX as u64);
                return Err(WireError::TooMany { what, found: rows, max });
            }
            batches.push(batch);
        }
        let types = batches.first().map(|batch| {
            let fields = batch.schema_ref().fields().iter();
            fields.map(|field| super::type_of(field.data_type())).collect::<Option<Vec<Type>>>()
        });
        let Some(types) = types.unwrap_or(Some(Vec::new())) else { return Err(not("the types of keys")) };
        if types.is_empty() && !batches.is_empty() || types.len() > crate::limits::KEYS_MAX {
            return Err(not("the columns of keys"));
        }
        Keys::new(types, &batches, seed).map(LookupTable::Keys).map_err(|_| not("the keys of a lookup"))
    }

    /// Whether it is of this kind and can be asked for keys of these types.
    pub(super) fn fits(&self, kind: Lookup, types: &[Type]) -> bool {
        match self {
            LookupTable::Bloom(_) => kind == Lookup::Bloom,
            LookupTable::Keys(keys) => kind == Lookup::Keys && keys.fits(types),
        }
    }

    /// Which rows have a partner.
    pub(super) fn search(&self, columns: &[ArrayRef]) -> Result<BooleanArray, Stopped> {
        let found = match columns {
            // Each value of a dictionary once.
            [column] if matches!(column.data_type(), DataType::Dictionary(..)) => {
                let dictionary = column.as_any_dictionary();
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
                let mut bytes = 0u64;
                let plain = |column: &ArrayRef| {
                    let column = plain(column, BATCH_BYTES_MAX)?;
                    bytes += super::bytes_of(&column) as u64;
                    bounded("bytes of keys", bytes, BATCH_BYTES_MAX as u64)?;
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
