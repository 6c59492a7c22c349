//! Arrow arrays over the buffers of a column of a row group. The buffers may come from an attacker, so all of their
//! bytes are checked.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use farpool_kernels::split_rows;
use farpool_wire::control::ColumnLayout;
use std::ops::Range;

/// Makes the array of a column of a row group. `buffers` are in the order that `spec/table.md` lists. A buffer whose
/// address is less aligned than Arrow demands of the type is copied. An address that is a multiple of 64 always
/// suffices.
///
/// `bytes_max` limits the bytes of an expanded dictionary.
///
/// # Errors
/// Buffers that do not fit the description or the limit, or hold invalid values.
pub fn column_of(
    of: &DataType,
    layout: ColumnLayout,
    rows: usize,
    null_count: usize,
    buffers: Vec<Buffer>,
    bytes_max: usize,
) -> Result<ArrayRef, String> {
    let mut buffers = buffers.into_iter();
    let validity = if null_count > 0 { buffers.next() } else { None };
    if validity.is_none() && null_count > 0 {
        return Err(format!("it has {null_count} nulls, but no validity bitmap"));
    }
    let rest: Vec<Buffer> = buffers.collect();
    // Arrow checks most of this too, but in part by panicking.
    let first = match (layout, of) {
        (ColumnLayout::Dictionary, _) => rows.saturating_mul(2),
        (_, DataType::Boolean) => rows.div_ceil(8),
        (_, DataType::Utf8 | DataType::Binary) => rows.saturating_add(1).saturating_mul(4),
        (_, DataType::FixedSizeBinary(width)) => rows.saturating_mul(usize::try_from(*width).unwrap_or(0)),
        (_, other) => rows.saturating_mul(other.primitive_width().unwrap_or(0)),
    };
    if validity.as_ref().is_some_and(|bits| bits.len() != rows.div_ceil(8))
        || rest.first().is_none_or(|buffer| buffer.len() != first)
    {
        return Err(format!("its buffers do not have the length of {rows} rows"));
    }
    let places = match (layout, of) {
        (ColumnLayout::Dictionary, _) => rest.get(1).zip(rest.get(2)),
        (_, DataType::Utf8 | DataType::Binary) => rest.first().zip(rest.get(1)),
        _ => None,
    };
    if places.is_some_and(|(offsets, values)| !are_offsets(offsets, values.len())) {
        return Err("its offsets do not rise from 0 to the end of its values".to_owned());
    }
    let array = match layout {
        ColumnLayout::Plain => plain(of, rows, validity, rest),
        ColumnLayout::Rows => {
            return Err("the column is stored in rows, but a separate column is needed".to_owned());
        }
        ColumnLayout::Dictionary => expand(of, rows, validity, rest, bytes_max)?,
    };
    let array = array.map_err(|error| error.to_string())?;
    if array.null_count() != null_count {
        return Err(format!("it has {} nulls, but its description says {null_count}", array.null_count()));
    }
    Ok(array)
}

/// Returns the bytes of a value of this type, or `None` for a type without a fixed width, which rows cannot store.
pub fn value_bytes(of: &DataType) -> Option<usize> {
    match of {
        DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).ok(),
        other => other.primitive_width(),
    }
}

/// Copies columns out of rows of `row_bytes` bytes that lie one behind the other. `columns` has the type of each
/// column and the position of its first byte in a row.
///
/// `bytes_max` limits the bytes of all columns together.
///
/// # Errors
/// A column that has no fixed width or reaches beyond the row, bytes that are not exactly `rows` rows, or more bytes
/// than the limit.
pub fn columns_of_rows(
    columns: &[(&DataType, usize)],
    row_bytes: usize,
    rows: usize,
    bytes: &[u8],
    bytes_max: usize,
) -> Result<Vec<ArrayRef>, String> {
    if row_bytes == 0 || rows.checked_mul(row_bytes) != Some(bytes.len()) {
        return Err(format!("{} bytes are not {rows} rows of {row_bytes} bytes", bytes.len()));
    }
    let place = |(of, start): &(&DataType, usize)| -> Result<Range<usize>, String> {
        let width = value_bytes(of)
            .ok_or_else(|| format!("type {of} has no fixed width, so it cannot be stored in rows"))?;
        let end = start.checked_add(width).filter(|end| *end <= row_bytes);
        Ok(*start..end.ok_or_else(|| {
            format!("a column of {width} bytes at byte {start} reaches beyond its row of {row_bytes} bytes")
        })?)
    };
    let places = columns.iter().map(place).collect::<Result<Vec<_>, String>>()?;
    let all = places.iter().map(|place| rows.saturating_mul(place.len())).fold(0, usize::saturating_add);
    if all > bytes_max {
        return Err(format!("{all} bytes in the columns of a row group; up to {bytes_max} are permitted"));
    }
    let mut values: Vec<Vec<u8>> = places.iter().map(|place| vec![0; rows * place.len()]).collect();
    let mut parts: Vec<_> = places.into_iter().zip(values.iter_mut().map(Vec::as_mut_slice)).collect();
    split_rows(bytes, row_bytes, &mut parts);
    let array = |((of, _), values): (&(&DataType, usize), Vec<u8>)| {
        plain(of, rows, None, vec![Buffer::from_vec(values)]).map_err(|error| error.to_string())
    };
    columns.iter().zip(values).map(array).collect()
}

/// Reports whether these bytes are offsets of 32 bits that never fall and end within `bytes`.
fn are_offsets(offsets: &[u8], bytes: usize) -> bool {
    let (offsets, rest) = offsets.as_chunks::<4>();
    let mut last = 0;
    let mut rises = true;
    for offset in offsets {
        let offset = i32::from_le_bytes(*offset);
        rises &= last <= offset;
        last = offset;
    }
    rises && rest.is_empty() && !offsets.is_empty() && usize::try_from(last).is_ok_and(|last| last <= bytes)
}

fn plain(
    of: &DataType,
    rows: usize,
    validity: Option<Buffer>,
    buffers: Vec<Buffer>,
) -> Result<ArrayRef, ArrowError> {
    // The builder checks offsets and text too.
    let builder = ArrayData::builder(of.clone()).len(rows).null_bit_buffer(validity).buffers(buffers);
    let data = builder.align_buffers(true).build()?;
    Ok(make_array(data))
}

/// Expands a dictionary: replaces each key by its value.
fn expand(
    of: &DataType,
    rows: usize,
    validity: Option<Buffer>,
    buffers: Vec<Buffer>,
    bytes_max: usize,
) -> Result<Result<ArrayRef, ArrowError>, String> {
    let Ok([keys, offsets, values]) = <[Buffer; 3]>::try_from(buffers) else {
        return Err("a dictionary has three buffers".to_owned());
    };
    let distinct = (offsets.len() / 4).saturating_sub(1);
    let dictionary = match plain(of, distinct, None, vec![offsets, values]) {
        Ok(dictionary) => dictionary,
        error => return Ok(error),
    };
    let (offsets, values) = match of {
        DataType::Utf8 => {
            let text = dictionary.as_string::<i32>();
            (text.value_offsets(), text.values())
        }
        _ => {
            let binary = dictionary.as_binary::<i32>();
            (binary.value_offsets(), binary.values())
        }
    };
    let is_set = |row: usize| validity.as_ref().is_none_or(|bits| bits[row / 8] & 1 << (row % 8) != 0);
    // Range of each row's value in the dictionary, empty for NULL. No range is invalid: `plain` has checked the
    // offsets.
    let mut places = Vec::with_capacity(rows);
    let mut bytes = 0usize;
    for (row, key) in keys.as_chunks::<2>().0.iter().enumerate().take(rows) {
        let key = usize::from(u16::from_le_bytes(*key));
        let place = match (is_set(row), key < distinct) {
            (false, _) => 0..0,
            (true, true) => offsets[key] as usize..offsets[key + 1] as usize,
            (true, false) => return Err(format!("key {key} of a dictionary of {distinct} values")),
        };
        bytes += place.len();
        places.push(place);
    }
    let bytes_max = bytes_max.min(i32::MAX as usize);
    if bytes > bytes_max {
        return Err(format!("{bytes} bytes in one column of a row group; up to {bytes_max} are permitted"));
    }
    let mut expanded = Vec::with_capacity(bytes);
    let mut ends: Vec<i32> = Vec::with_capacity(rows + 1);
    ends.push(0);
    for place in places {
        expanded.extend_from_slice(&values[place]);
        ends.push(expanded.len() as i32);
    }
    Ok(plain(of, rows, validity, vec![Buffer::from_vec(ends), Buffer::from_vec(expanded)]))
}
