//! Arrow arrays over the buffers of a row group, which are checked as bytes of a stranger are.

use super::footer::{ColumnChunk, Encoding};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};

/// The rows of a column. `buffers` are those that its footer lists, aligned to [`super::BUFFER_ALIGN`].
///
/// Errors: what does not fit the footer, or is no value of the type.
pub fn column_of(
    of: &DataType,
    rows: usize,
    chunk: &ColumnChunk,
    buffers: Vec<Buffer>,
) -> Result<ArrayRef, String> {
    let fits = |(buffer, at): (&Buffer, &super::BufferAt)| buffer.len() == at.bytes as usize;
    if buffers.len() != chunk.buffers.len() || !buffers.iter().zip(&chunk.buffers).all(fits) {
        return Err("its buffers are not those of its footer".to_owned());
    }
    let mut buffers = buffers.into_iter();
    let validity = if chunk.null_count > 0 { buffers.next() } else { None };
    let rest: Vec<Buffer> = buffers.collect();
    let array = match chunk.encoding {
        Encoding::Plain => plain(of, rows, validity, rest),
        Encoding::Dictionary => expand(of, rows, validity, rest)?,
    };
    let array = array.map_err(|error| error.to_string())?;
    if array.null_count() != chunk.null_count as usize {
        return Err(format!(
            "it has {} nulls where its footer says {}",
            array.null_count(),
            chunk.null_count
        ));
    }
    Ok(array)
}

fn plain(
    of: &DataType,
    rows: usize,
    validity: Option<Buffer>,
    buffers: Vec<Buffer>,
) -> Result<ArrayRef, ArrowError> {
    // Checks offsets and text as well.
    let data = ArrayData::builder(of.clone()).len(rows).null_bit_buffer(validity).buffers(buffers).build()?;
    Ok(make_array(data))
}

/// Puts the values in the place of their keys.
fn expand(
    of: &DataType,
    rows: usize,
    validity: Option<Buffer>,
    buffers: Vec<Buffer>,
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
    // Of each row where its value lies in the dictionary; of a null nowhere. Offsets were checked to rise from 0 on.
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
    if i32::try_from(bytes).is_err() {
        return Err(format!("{bytes} bytes in one column of a row group; up to {} are permitted", i32::MAX));
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
