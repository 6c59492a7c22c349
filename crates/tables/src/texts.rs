//! Values of columns of text and binary, in whichever form Arrow gives them, and the dictionaries that are made of
//! them.

use crate::row_checksum::hash;
use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, ArrayRef, GenericByteArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;

/// Rows of a row group from which on some are looked at before a dictionary is tried.
const SAMPLED_ROWS_MIN: usize = 8_192;
/// Pairs of neighbouring rows that are looked at.
const SAMPLED_PAIRS: usize = 512;
/// Values of these rows that are not NULL, from which on they tell something about the others.
const SAMPLED_VALUES_MIN: usize = 512;
/// Places of a hash table that are looked at for one value, at most. More are needed only if somebody has chosen the
/// values for it.
const PROBES_MAX: usize = 256;

/// Returns all values in order; NULL is `None`.
pub(crate) fn values(arrays: &[ArrayRef]) -> Vec<Option<&[u8]>> {
    let mut all = Vec::with_capacity(arrays.iter().map(|array| array.len()).sum());
    arrays.iter().for_each(|array| each_value(array, |value| all.push(value)));
    all
}

/// Returns the total bytes of all values.
pub(crate) fn bytes(arrays: &[ArrayRef]) -> usize {
    let of = |array: &ArrayRef| match contiguous(array) {
        Some(bytes) => bytes.len(),
        None => {
            let mut bytes = 0;
            each_value(array, |value| bytes += value.map_or(0, <[u8]>::len));
            bytes
        }
    };
    arrays.iter().map(of).sum()
}

/// Returns the bytes of all values of an array if they lie one behind the other, with nothing between them.
pub(crate) fn contiguous(array: &ArrayRef) -> Option<&[u8]> {
    fn of<T: ByteArrayType>(array: &GenericByteArray<T>) -> Option<&[u8]> {
        let offsets = array.value_offsets();
        let (first, last) = (offsets.first()?.as_usize(), offsets.last()?.as_usize());
        // The place of a NULL may have bytes.
        array.value_data().get(first..last).filter(|_| array.null_count() == 0)
    }
    match array.data_type() {
        DataType::Utf8 => of(array.as_string::<i32>()),
        DataType::LargeUtf8 => of(array.as_string::<i64>()),
        DataType::Binary => of(array.as_binary::<i32>()),
        DataType::LargeBinary => of(array.as_binary::<i64>()),
        _ => None,
    }
}

fn each_value<'a>(array: &'a ArrayRef, each: impl FnMut(Option<&'a [u8]>)) {
    match array.data_type() {
        DataType::Utf8 => {
            array.as_string::<i32>().iter().map(|value| value.map(str::as_bytes)).for_each(each)
        }
        DataType::LargeUtf8 => {
            array.as_string::<i64>().iter().map(|value| value.map(str::as_bytes)).for_each(each)
        }
        DataType::Utf8View => {
            array.as_string_view().iter().map(|value| value.map(str::as_bytes)).for_each(each)
        }
        DataType::LargeBinary => array.as_binary::<i64>().iter().for_each(each),
        DataType::BinaryView => array.as_binary_view().iter().for_each(each),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = values(std::slice::from_ref(dictionary.values()));
            if values.is_empty() {
                return std::iter::repeat_n(None, array.len()).for_each(each);
            }
            let keys = dictionary.normalized_keys();
            let value = |(row, key)| if array.is_null(row) { None } else { values.get(key).copied()? };
            keys.into_iter().enumerate().map(value).for_each(each)
        }
        _ => array.as_binary::<i32>().iter().for_each(each),
    }
}

/// Distinct values of a column in a row group, in the order in which they come first, and which of them each row has.
#[derive(Debug)]
pub(crate) struct Dictionary<'v> {
    /// Number of the value of each row; of NULL any.
    pub(crate) keys: Vec<u16>,
    /// The distinct values.
    pub(crate) distinct: Vec<&'v [u8]>,
}

impl<'v> Dictionary<'v> {
    /// Makes a dictionary. `None` if there are no values, or as soon as it would take more than half of `plain_bytes`,
    /// the bytes of the values without it.
    pub(crate) fn of(values: &[Option<&'v [u8]>], plain_bytes: usize) -> Option<Dictionary<'v>> {
        if is_without_repetition(values) {
            return None;
        }
        let mut bytes = values.len() * 2 + 4;
        if bytes * 2 > plain_bytes {
            return None;
        }
        let mut known = Known::new();
        let mut keys = Vec::with_capacity(values.len());
        for value in values {
            let Some(value) = value else {
                keys.push(0);
                continue;
            };
            let before = known.values.len();
            keys.push(known.key_of(value)?);
            if known.values.len() > before {
                bytes += 4 + value.len();
                if bytes * 2 > plain_bytes {
                    return None;
                }
            }
        }
        if known.values.is_empty() { None } else { Some(Dictionary { keys, distinct: known.values }) }
    }
}

/// Reports that a dictionary does not pay: among some rows no value comes twice.
///
/// The idea: a dictionary pays only if at most half of the values are distinct. Of 1,024 rows some have the same value
/// then: where equal values are neighbours the pairs show it, and elsewhere chance does, since the pairs lie anywhere.
fn is_without_repetition(values: &[Option<&[u8]>]) -> bool {
    if values.len() < SAMPLED_ROWS_MIN {
        return false;
    }
    let mut hashes = Vec::with_capacity(2 * SAMPLED_PAIRS);
    let mut random = 1u64;
    // One pair lies in each of as many parts, so no row is looked at twice.
    for part in values.chunks_exact(values.len() / SAMPLED_PAIRS) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) as usize % (part.len() - 1);
        hashes.extend(part[at..at + 2].iter().flatten().map(|value| hash(value)));
    }
    hashes.sort_unstable();
    hashes.len() >= SAMPLED_VALUES_MIN && hashes.windows(2).all(|pair| pair[0] != pair[1])
}

/// Values that were seen, by their hashes.
struct Known<'v> {
    /// Places, each with 1 + the number of a value, or 0 for none. Their number is a power of two, and at least twice
    /// that of the values.
    places: Vec<u32>,
    hashes: Vec<u64>,
    values: Vec<&'v [u8]>,
}

impl<'v> Known<'v> {
    fn new() -> Known<'v> {
        Known { places: vec![0; 1_024], hashes: Vec::new(), values: Vec::new() }
    }

    /// Returns the number of a value, which is the next one if the value is new. `None` if too many have similar
    /// hashes.
    fn key_of(&mut self, value: &'v [u8]) -> Option<u16> {
        let hash = hash(value);
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        for _ in 0..PROBES_MAX {
            let number = match self.places[at] {
                0 => {
                    let number = self.values.len();
                    self.places[at] = number as u32 + 1;
                    self.hashes.push(hash);
                    self.values.push(value);
                    if self.values.len() * 2 > self.places.len() {
                        self.grow();
                    }
                    number
                }
                place => {
                    let number = place as usize - 1;
                    if self.hashes[number] != hash || self.values[number] != value {
                        at = (at + 1) & mask;
                        continue;
                    }
                    number
                }
            };
            // The number of values is at most the number of rows, 65,536, so each has a `u16`.
            return u16::try_from(number).ok();
        }
        None
    }

    fn grow(&mut self) {
        let mut places = vec![0; self.places.len() * 2];
        let mask = places.len() - 1;
        for (number, hash) in (1u32..).zip(&self.hashes) {
            let mut at = *hash as usize & mask;
            while places[at] != 0 {
                at = (at + 1) & mask;
            }
            places[at] = number;
        }
        self.places = places;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain_bytes(values: &[Option<&[u8]>]) -> usize {
        (values.len() + 1) * 4 + values.iter().flatten().map(|value| value.len()).sum::<usize>()
    }

    fn dictionary_bytes(dictionary: &Dictionary<'_>) -> usize {
        let Dictionary { keys, distinct } = dictionary;
        keys.len() * 2 + (distinct.len() + 1) * 4 + distinct.iter().map(|value| value.len()).sum::<usize>()
    }

    /// Returns the values of some rows: `number` says which of the distinct values a row has.
    fn texts(rows: usize, number: impl Fn(usize) -> usize) -> Vec<String> {
        (0..rows).map(|row| format!("some text {}", number(row))).collect()
    }

    #[test]
    fn dictionaries_that_pay_well_are_found_however_values_repeat() {
        const ROWS: usize = 65_536;
        type Number = fn(usize) -> usize;
        let repeating: [(&str, Number); 5] = [
            ("a few", |row| row % 7),
            ("a long cycle", |row| row % 10_000),
            ("runs", |row| row / 4),
            ("a few long runs", |row| row / 10_000),
            ("new ones first", |row| if row < 4_096 { row } else { row % 64 }),
        ];
        for (how, number) in repeating {
            let texts = texts(ROWS, number);
            let values: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(text.as_bytes())).collect();
            let dictionary = Dictionary::of(&values, plain_bytes(&values)).expect(how);
            assert!(dictionary_bytes(&dictionary) * 2 <= plain_bytes(&values), "{how}");
        }
        let texts = texts(ROWS, |row| row);
        let values: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(text.as_bytes())).collect();
        assert!(is_without_repetition(&values), "all distinct");
    }

    proptest! {
        #[test]
        fn dictionary_gives_each_row_its_value_and_takes_at_most_half(
            distinct in 1..40_000usize, rows in 0..20_000usize, nulls in 1..5usize, salt in any::<u32>(),
        ) {
            let number = |row: usize| (row as u64 * 2_654_435_761 + u64::from(salt)) as usize % distinct;
            let texts = texts(rows, number);
            let values: Vec<Option<&[u8]>> = texts.iter().enumerate()
                .map(|(row, text)| (row % nulls != 1).then_some(text.as_bytes())).collect();
            let plain = plain_bytes(&values);
            if let Some(dictionary) = Dictionary::of(&values, plain) {
                prop_assert_eq!(dictionary.keys.len(), rows);
                prop_assert!(dictionary_bytes(&dictionary) * 2 <= plain);
                for (key, value) in dictionary.keys.iter().zip(&values) {
                    if let Some(value) = value {
                        prop_assert_eq!(dictionary.distinct[usize::from(*key)], *value);
                    }
                }
            } else if rows < SAMPLED_ROWS_MIN && rows > 0 {
                // It would not pay.
                let mut all: Vec<&[u8]> = values.iter().flatten().copied().collect();
                all.sort_unstable();
                all.dedup();
                let bytes = rows * 2 + 4 + all.iter().map(|value| value.len() + 4).sum::<usize>();
                prop_assert!(all.is_empty() || bytes * 2 > plain);
            }
        }
    }
}
