//! Set of the keys of a semi-join: values of another table that the rows of a filtered table are compared with. Each
//! key is held once, in the types of the filtered table, without NULL.
//!
//! The idea: a key without an equal value in the filtered table's type can match no row, so it is left out. The other
//! keys compare by their bytes. NULL equals nothing.

use super::bloom::{Bloom, KeyColumn, Keyed};
use super::keys::Keys;
use super::{LookupTable, VALUES_MAX};
use crate::limits::{LOOKUP_BYTES_MAX, LOOKUP_KEYS_MAX};
use crate::packed::{pack, packed_bytes};
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Stopped};
use crate::run::expr::bytes_at;
use crate::run::expr::cast::{fitting, rescaled};
use crate::run::hash::hash_bytes;
use crate::types::{Arithmetic, Type, Value};
use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type};
use arrow_array::*;
use arrow_schema::{DataType, Schema};
use std::sync::{Arc, OnceLock};

/// Most rows that keys are taken from, before equal keys are removed.
const ROWS_MAX: usize = 1 << 28;
/// Bits of a Bloom filter per key. With these one key in 200 passes by mistake.
const FILTER_BITS: usize = 16;
/// Bits of a Bloom filter per key below which no filter is made: one key in eight would pass by mistake.
const FILTER_BITS_MIN: usize = 5;

/// Set of the keys of a semi-join, made where the query is planned. It is sent as packed keys or as a Bloom filter.
#[derive(Debug)]
pub struct KeySet {
    types: Vec<Type>,
    /// The keys, each once. Numbers of one column are in ascending order.
    keys: RecordBatch,
    /// Keys of one column as numbers in ascending order. `None` for other keys.
    numbers: Option<Vec<i64>>,
    /// Least and greatest value of each column. `None` without keys.
    ends: Vec<Option<(Value, Value)>>,
    /// Lookup table of the exact keys. It is made when it is first needed.
    table: OnceLock<Arc<LookupTable>>,
}

impl PartialEq for KeySet {
    fn eq(&self, other: &KeySet) -> bool {
        self.types == other.types && self.keys.columns() == other.keys.columns()
    }
}

impl KeySet {
    /// Makes the set of the keys in these columns of batches. Each pair is the number of a column and the type that
    /// it is compared as.
    ///
    /// # Errors
    /// A column whose type cannot be compared with the wanted one, more than 2^28 rows, or more than 1 GiB of text.
    /// The message says which.
    pub fn new(
        columns: &[(usize, Type)],
        schema: &Schema,
        batches: &[RecordBatch],
    ) -> Result<KeySet, String> {
        // The types are checked even if there are no rows.
        for (place, to) in columns {
            as_type(&new_empty_array(schema.field(*place).data_type()), *to)
                .map_err(|why| format!("{}: {why}", schema.field(*place).name()))?;
        }
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if rows > ROWS_MAX {
            return Err(format!("{rows} rows of keys: at most {ROWS_MAX} are permitted"));
        }
        let types: Vec<Type> = columns.iter().map(|(_, of)| *of).collect();
        let mut parts: Vec<Vec<ArrayRef>> = vec![Vec::new(); columns.len()];
        for batch in batches {
            for ((place, to), part) in columns.iter().zip(&mut parts) {
                part.push(as_type(batch.column(*place), *to)?);
            }
        }
        let whole = |(part, of): (&Vec<ArrayRef>, &Type)| -> Result<ArrayRef, String> {
            // The bytes of slices are counted, not those of their shared buffers.
            let bytes: usize = part.iter().map(bytes_of).sum();
            if bytes > BATCH_BYTES_MAX && matches!(of, Type::Text | Type::Bytes) {
                return Err(format!("{bytes} bytes of keys: at most {BATCH_BYTES_MAX} are permitted"));
            }
            let part: Vec<&dyn Array> = part.iter().map(AsRef::as_ref).collect();
            match part.is_empty() {
                true => Ok(new_empty_array(&data_type(*of))),
                false => arrow_select::concat::concat(&part).map_err(|error| error.to_string()),
            }
        };
        let whole = parts.iter().zip(&types).map(whole).collect::<Result<Vec<_>, _>>()?;
        let (columns, numbers) = distinct(&types, &whole)?;
        let ends = columns.iter().zip(&types).map(|(column, of)| ends(column, *of)).collect();
        let rows = columns.first().map_or(0, |column| column.len());
        let keys = batch_of(columns, rows).map_err(|stopped: Stopped| stopped.to_string())?;
        Ok(KeySet { types, keys, numbers, ends, table: OnceLock::new() })
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.keys.num_rows()
    }

    /// Returns the types of the key columns, which are those of the columns that they are compared with.
    pub fn types(&self) -> &[Type] {
        &self.types
    }

    /// Returns the keys, each once, without NULL.
    pub fn keys(&self) -> &RecordBatch {
        &self.keys
    }

    /// Returns the least and the greatest value of a key column, or `None` if there are no keys.
    pub fn ends(&self, column: usize) -> Option<&(Value, Value)> {
        self.ends.get(column)?.as_ref()
    }

    /// Returns the keys of one column as numbers in ascending order, or `None` if the values are not numbers of up to
    /// 8 bytes. Unsigned numbers of 64 bits are lowered by 2^63. Floats are mapped to integers of the same order.
    pub fn numbers(&self) -> Option<&[i64]> {
        self.numbers.as_deref()
    }

    /// Returns the exact lookup table of the keys. It is made once, at the first call. Whoever sends the rows must not
    /// know the seed.
    ///
    /// # Errors
    /// More than 1 GiB of keys.
    pub fn table(&self, seed: u64) -> Result<Arc<LookupTable>, Stopped> {
        if let Some(table) = self.table.get() {
            return Ok(Arc::clone(table));
        }
        let made = Keys::new(self.types.clone(), std::slice::from_ref(&self.keys), seed)?;
        Ok(Arc::clone(self.table.get_or_init(|| Arc::new(LookupTable::Keys(made)))))
    }

    /// Returns about how many bytes the packed keys take.
    pub fn travel_bytes(&self) -> usize {
        packed_bytes(&self.keys)
    }

    /// Reports whether the keys are few enough to be sent as they are.
    pub fn may_travel(&self) -> bool {
        let values = self.count() as u64 * self.keys.num_columns() as u64;
        self.count() <= LOOKUP_KEYS_MAX && values <= VALUES_MAX && self.travel_bytes() <= LOOKUP_BYTES_MAX
    }

    /// Returns the packed keys, as they are sent.
    pub fn packed(&self) -> Vec<u8> {
        pack(&self.keys)
    }

    /// Returns the bytes of a Bloom filter of the keys, or `None` if there are so many keys that too many rows would
    /// pass it.
    pub fn filter_bytes(&self) -> Option<usize> {
        let bytes = |bits: usize| self.count().saturating_mul(bits).div_ceil(8);
        let max = LOOKUP_BYTES_MAX;
        let bytes = if bytes(FILTER_BITS_MIN) > max { None } else { Some(bytes(FILTER_BITS).min(max)) };
        bytes.map(|bytes| bytes.next_multiple_of(8).max(8))
    }

    /// Makes a Bloom filter of the keys.
    ///
    /// # Errors
    /// None, because the keys have no dictionaries.
    pub fn filter(&self) -> Result<Bloom, Stopped> {
        let mut bloom = Bloom::new(self.filter_bytes().unwrap_or(0));
        bloom.add(&self.keys)?;
        Ok(bloom)
    }
}

/// Returns the rows of these columns without NULL, each once. Also returns their numbers, if they are numbers of one
/// column.
fn distinct(types: &[Type], columns: &[ArrayRef]) -> Result<(Vec<ArrayRef>, Option<Vec<i64>>), String> {
    let keyed = Keyed::of(columns);
    let is_key = |row: &usize| keyed.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
    if let ([of], [KeyColumn::Numbers(values)]) = (types, &keyed.columns[..]) {
        let mut numbers: Vec<i64> = (0..keyed.rows).filter(is_key).map(|row| values[row]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        return Ok((vec![from_ordered(*of, numbers.clone(), None)], Some(numbers)));
    }
    let (mut bytes, mut ends) = (Vec::new(), vec![0]);
    let mut rows: Vec<(u64, u32)> = Vec::new();
    for row in 0..keyed.rows {
        let start = bytes.len();
        if is_key(&row) {
            keyed.append(row, &mut bytes);
            // The hash only orders the rows for comparison: rows with equal hashes are compared by their bytes.
            rows.push((hash_bytes(&bytes[start..], 0), row as u32));
        }
        ends.push(bytes.len());
    }
    let key = |row: u32| &bytes[ends[row as usize]..ends[row as usize + 1]];
    rows.sort_unstable_by(|one, other| one.0.cmp(&other.0).then_with(|| key(one.1).cmp(key(other.1))));
    rows.dedup_by(|one, other| one.0 == other.0 && key(one.1) == key(other.1));
    let mut rows: Vec<u32> = rows.into_iter().map(|(_, row)| row).collect();
    rows.sort_unstable();
    let rows = UInt32Array::from(rows);
    let take = |column: &ArrayRef| arrow_select::take::take(column, &rows, None);
    Ok((columns.iter().map(take).collect::<Result<_, _>>().map_err(|error| error.to_string())?, None))
}

/// Returns the least and the greatest value of a column without NULL.
fn ends(column: &ArrayRef, of: Type) -> Option<(Value, Value)> {
    if column.is_empty() {
        return None;
    }
    let keyed = Keyed::of(std::slice::from_ref(column));
    match keyed.columns.first()? {
        KeyColumn::Numbers(values) => {
            let ends = vec![*values.iter().min()?, *values.iter().max()?];
            let ends = from_ordered(of, ends, None);
            Some((value_at(&ends, of, 0), value_at(&ends, of, 1)))
        }
        KeyColumn::Decimals(values) => {
            Some((Value::Integer(*values.iter().min()?), Value::Integer(*values.iter().max()?)))
        }
        KeyColumn::Bytes(column) => {
            let all = || (0..column.len()).map(|row| bytes_at(column, row));
            Some((Value::Bytes(all().min()?.to_vec()), Value::Bytes(all().max()?.to_vec())))
        }
    }
}

fn value_at(column: &ArrayRef, of: Type, row: usize) -> Value {
    match of {
        Type::Boolean => Value::Boolean(column.as_boolean().value(row)),
        Type::Float32 => Value::Float(column.as_primitive::<Float32Type>().value(row).to_bits().into()),
        Type::Float64 => Value::Float(column.as_primitive::<Float64Type>().value(row).to_bits()),
        _ => Value::Integer(wide(column, of)[row]),
    }
}

/// Returns whole numbers, times or decimals as 128-bit integers.
fn wide(column: &ArrayRef, of: Type) -> Vec<i128> {
    match of {
        Type::Decimal { .. } => column.as_primitive::<Decimal128Type>().values().to_vec(),
        Type::UInt64 => ordered_values(column)
            .into_iter()
            .map(|value| i128::from(value.cast_unsigned() ^ (1 << 63)))
            .collect(),
        _ => ordered_values(column).into_iter().map(i128::from).collect(),
    }
}

/// Returns `Some` for dates and timestamps: true if they have a time zone. `None` for other types.
fn is_time(of: Type) -> Option<bool> {
    match of {
        Type::Date => Some(false),
        Type::Timestamp { is_zoned, .. } => Some(is_zoned),
        _ => None,
    }
}

/// Reports whether a type is of whole numbers or decimals.
fn is_number(of: Type) -> bool {
    matches!(of, Type::Decimal { .. }) || of.arithmetic() == Some(Arithmetic::Integer)
}

/// Converts a column to another type, with NULL for values that have no equal there.
fn as_type(column: &ArrayRef, to: Type) -> Result<ArrayRef, String> {
    let refused = || format!("keys of {} cannot be compared with {to}: cast one of them", column.data_type());
    if let DataType::Dictionary(..) = column.data_type() {
        let dictionary = column.as_any_dictionary();
        let values = as_type(dictionary.values(), to)?;
        return arrow_select::take::take(&values, dictionary.keys(), None).map_err(|error| error.to_string());
    }
    if column.data_type() == &DataType::Null {
        return Ok(new_null_array(&data_type(to), column.len()));
    }
    match to {
        Type::Text => {
            let texts: StringArray = match column.data_type() {
                DataType::Utf8 => return Ok(Arc::clone(column)),
                DataType::LargeUtf8 => {
                    fits(column.as_string::<i64>().iter().flatten().map(str::len))?;
                    column.as_string::<i64>().iter().collect()
                }
                DataType::Utf8View => {
                    fits(column.as_string_view().iter().flatten().map(str::len))?;
                    column.as_string_view().iter().collect()
                }
                _ => return Err(refused()),
            };
            return Ok(Arc::new(texts));
        }
        Type::Bytes | Type::FixedBytes(_) => {
            let width = match to {
                Type::FixedBytes(width) => Some(width as usize),
                _ => None,
            };
            let values: Vec<Option<&[u8]>> = match column.data_type() {
                DataType::Binary => column.as_binary::<i32>().iter().collect(),
                DataType::LargeBinary => column.as_binary::<i64>().iter().collect(),
                DataType::BinaryView => column.as_binary_view().iter().collect(),
                DataType::FixedSizeBinary(_) => column.as_fixed_size_binary().iter().collect(),
                _ => return Err(refused()),
            };
            fits(values.iter().flatten().map(|value| value.len()))?;
            let Some(width) = width else { return Ok(Arc::new(values.into_iter().collect::<BinaryArray>())) };
            let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), width as i32);
            for value in values {
                match value.filter(|value| value.len() == width) {
                    Some(value) => builder.append_value(value).map_err(|error| error.to_string())?,
                    None => builder.append_null(),
                }
            }
            return Ok(Arc::new(builder.finish()));
        }
        _ => {}
    }
    let from = type_of(column.data_type()).ok_or_else(refused)?;
    let is_float = |of: Type| of.arithmetic() == Some(Arithmetic::Float);
    if from == to {
        return Ok(with_type(column, to));
    }
    match (is_time(from), is_time(to)) {
        (None, None) if is_number(from) && is_number(to) => {}
        (None, None) if is_float(from) && is_float(to) => return Ok(floats(column, to)),
        (Some(one), Some(other)) if one == other => {}
        _ => return Err(refused()),
    }
    // A value that differs after a conversion and back has no equal in the other type.
    let exact = |value: i128| {
        rescaled(value, from, to)
            .filter(|there| rescaled(*there, to, from) == Some(value) && fitting(*there, to).is_some())
    };
    let values = wide(column, from);
    let values = values.into_iter().enumerate();
    let values = values.map(|(row, value)| if column.is_null(row) { None } else { exact(value) });
    Ok(match to {
        Type::Decimal { .. } => Arc::new(values.collect::<Decimal128Array>().with_data_type(data_type(to))),
        Type::UInt64 => {
            Arc::new(values.map(|value| value.map(|value| value as u64)).collect::<UInt64Array>())
        }
        _ => {
            let values: Int64Array = values.map(|value| value.map(|value| value as i64)).collect();
            from_i64(to, values.values().to_vec(), values.nulls().cloned())
        }
    })
}

/// Checks that values together take no more bytes than permitted.
fn fits(lengths: impl Iterator<Item = usize>) -> Result<(), String> {
    match lengths.fold(0, usize::saturating_add) {
        bytes if bytes <= BATCH_BYTES_MAX => Ok(()),
        bytes => Err(format!("{bytes} bytes of keys: at most {BATCH_BYTES_MAX} are permitted")),
    }
}

fn floats(column: &ArrayRef, to: Type) -> ArrayRef {
    match to {
        Type::Float64 => {
            let values = column.as_primitive::<Float32Type>();
            Arc::new(values.unary::<_, Float64Type>(widened))
        }
        _ => {
            let values = column.as_primitive::<Float64Type>();
            let exact = |value: f64| {
                let narrow = narrowed(value);
                (widened(narrow).to_bits() == value.to_bits()).then_some(narrow)
            };
            Arc::new(values.iter().map(|value| value.and_then(exact)).collect::<Float32Array>())
        }
    }
}
