//! Checksum of the rows of a table that does not depend on their order, nor on how they are divided into batches.
//!
//! It tells whether a table that was made again has the rows that it had: it is part of recipes, which outlive the
//! program, so the same values have the same checksum in all versions and on all machines. It is no protection against
//! rows that somebody has chosen for it.
//!
//! Each row has two hashes of 64 bits over its values. The checksum is the sum of these over all rows, each modulo
//! 2^64.

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, downcast_dictionary_array};
use arrow_schema::DataType;
use farpool_operators::columns::value_bytes;

/// Odd numbers with about as many ones as zeros, for mixing.
const MIX: [u64; 3] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3];
/// Hash of a null.
const NULL: u64 = 0x5899_65cc_7537_4cc3;

/// Rows so far, and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowChecksum {
    pub(crate) rows: u64,
    low: u64,
    high: u64,
}

impl RowChecksum {
    /// Adds the rows of a batch.
    pub(crate) fn add(&mut self, batch: &RecordBatch) {
        let mut hashes = vec![0; batch.num_rows()];
        for column in batch.columns() {
            for (hash, value) in hashes.iter_mut().zip(values(column)) {
                *hash = mix(*hash, value);
            }
        }
        self.rows += batch.num_rows() as u64;
        for hash in hashes {
            self.low = self.low.wrapping_add(hash);
            self.high = self.high.wrapping_add(mix(hash, MIX[2]));
        }
    }

    /// Adds rows whose checksum is known.
    pub(crate) fn merge(&mut self, other: RowChecksum) {
        self.rows += other.rows;
        self.low = self.low.wrapping_add(other.low);
        self.high = self.high.wrapping_add(other.high);
    }

    pub(crate) fn value(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// Mixes two hashes.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one ^ MIX[0]) * u128::from(other ^ MIX[1]);
    product as u64 ^ (product >> 64) as u64
}

/// Returns a hash of the bytes of a value, the same in all versions.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(bytes.len() as u64, mix)
}

/// Returns the hash of each value of a column. Types that are stored alike have the same hashes.
fn values(column: &dyn Array) -> Vec<u64> {
    let each = |value: &dyn Fn(usize) -> u64| -> Vec<u64> {
        (0..column.len()).map(|row| if column.is_null(row) { NULL } else { value(row) }).collect()
    };
    match column.data_type() {
        DataType::Boolean => each(&|row| hash(&[u8::from(column.as_boolean().value(row))])),
        DataType::Utf8 => each(&|row| hash(column.as_string::<i32>().value(row).as_bytes())),
        DataType::LargeUtf8 => each(&|row| hash(column.as_string::<i64>().value(row).as_bytes())),
        DataType::Utf8View => each(&|row| hash(column.as_string_view().value(row).as_bytes())),
        DataType::Binary => each(&|row| hash(column.as_binary::<i32>().value(row))),
        DataType::LargeBinary => each(&|row| hash(column.as_binary::<i64>().value(row))),
        DataType::BinaryView => each(&|row| hash(column.as_binary_view().value(row))),
        DataType::Dictionary(..) => downcast_dictionary_array!(
            column => {
                let of_keys = values(column.values());
                let value = |key: Option<usize>| key.and_then(|key| of_keys.get(key).copied()).unwrap_or(NULL);
                column.keys_iter().map(value).collect()
            }
            _ => Vec::new()
        ),
        // All other types that tables store have values of fixed width.
        fixed => {
            let width = value_bytes(fixed).unwrap_or(1);
            let data = column.to_data();
            let bytes = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
            each(&|row| {
                let start = (data.offset() + row) * width;
                hash(bytes.get(start..start + width).unwrap_or_default())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, StringArray};
    use arrow_array::{LargeStringArray, StringViewArray};
    use std::sync::Arc;

    fn checksum(batches: &[RecordBatch]) -> (u64, u128) {
        let mut checksum = RowChecksum::default();
        batches.iter().for_each(|batch| checksum.add(batch));
        (checksum.rows, checksum.value())
    }

    fn batch(ids: &[Option<i64>], words: ArrayRef) -> RecordBatch {
        let flags = BooleanArray::from_iter(ids.iter().map(|id| id.map(|id| id % 2 == 0)));
        let floats = Float64Array::from_iter(ids.iter().map(|id| id.map(|id| id as f64 / 3.0)));
        let columns: [(&str, ArrayRef); 4] = [
            ("id", Arc::new(Int64Array::from(ids.to_vec()))),
            ("word", words),
            ("flag", Arc::new(flags)),
            ("float", Arc::new(floats)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
            .expect("a batch")
    }

    const IDS: [Option<i64>; 5] = [Some(7), None, Some(-1), Some(7), Some(i64::MAX)];
    const WORDS: [Option<&str>; 5] =
        [Some("a word that is longer than eight bytes"), Some(""), None, Some("b"), Some("a")];

    #[test]
    fn order_and_batches_and_the_form_of_text_do_not_count() {
        let whole = batch(&IDS, Arc::new(StringArray::from(WORDS.to_vec())));
        let wanted = checksum(std::slice::from_ref(&whole));
        assert_eq!(wanted.0, 5);
        assert_eq!(checksum(&[whole.slice(3, 2), whole.slice(0, 3)]), wanted, "in another order, sliced");
        let mut parts = [RowChecksum::default(); 2];
        parts[0].add(&whole.slice(2, 3));
        parts[1].add(&whole.slice(0, 2));
        let [mut first, second] = parts;
        first.merge(second);
        assert_eq!((first.rows, first.value()), wanted, "merged");
        let dictionary = DictionaryArray::<Int32Type>::from_iter(WORDS);
        let forms: [ArrayRef; 3] = [
            Arc::new(LargeStringArray::from(WORDS.to_vec())),
            Arc::new(StringViewArray::from(WORDS.to_vec())),
            Arc::new(dictionary),
        ];
        for words in forms {
            assert_eq!(checksum(&[batch(&IDS, words)]), wanted);
        }
    }

    #[test]
    fn each_value_and_its_place_counts() {
        let whole = batch(&IDS, Arc::new(StringArray::from(WORDS.to_vec())));
        let wanted = checksum(std::slice::from_ref(&whole));
        let mut swapped = WORDS;
        swapped.swap(0, 4);
        assert_ne!(checksum(&[batch(&IDS, Arc::new(StringArray::from(swapped.to_vec())))]), wanted);
        assert_ne!(checksum(&[whole.slice(0, 4)]), wanted);
        assert_ne!(checksum(&[whole.slice(0, 1), whole.clone().slice(0, 4)]), wanted, "one row twice");
        let mut other = IDS;
        other[1] = Some(0);
        assert_ne!(checksum(&[batch(&other, Arc::new(StringArray::from(WORDS.to_vec())))]), wanted);
    }

    /// The checksum is part of recipes, which later versions read.
    #[test]
    fn checksum_of_these_rows_is_the_same_in_all_versions() {
        let whole = batch(&IDS, Arc::new(StringArray::from(WORDS.to_vec())));
        assert_eq!(checksum(&[whole]), (5, 293_221_645_532_241_376_311_191_410_283_678_127_684));
    }
}
