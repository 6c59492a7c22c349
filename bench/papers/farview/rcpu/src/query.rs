//! Queries, one row at a time. Each result row goes to a sink as bytes.

use crate::protocol::{COLUMN_BYTES, ROW_BYTES, Request};
use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use hashbrown::{HashMap, HashSet};
use regex::bytes::Regex;
use std::io;

/// Key of encrypted rows. As in the paper, they are encrypted by AES-128 in counter mode with a counter from 0, one key
/// for all tables and no authentication tag.
const KEY: [u8; 16] = *b"farview figure11";
/// Bytes that are decrypted at a time. They fit in a CPU cache, from which they are then read.
const DECRYPTED_BYTES: usize = 256 << 10;

/// Receiver of the result rows of a query.
pub(crate) trait Sink {
    /// Takes the bytes of one row. Fails if they cannot be sent.
    fn row(&mut self, bytes: &[u8]) -> io::Result<()>;
}

fn word(row: &[u8; ROW_BYTES], column: usize) -> i64 {
    let mut word = [0; COLUMN_BYTES];
    word.copy_from_slice(&row[column * COLUMN_BYTES..(column + 1) * COLUMN_BYTES]);
    i64::from_le_bytes(word)
}

/// Returns the first `count` items of `width` bytes as one range. A table that is too short is an error.
fn first(table: &[u8], count: u64, width: usize) -> io::Result<&[u8]> {
    let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(width));
    bytes
        .and_then(|bytes| table.get(..bytes))
        .ok_or_else(|| io::Error::other(format!("{count} rows of {width} bytes of {} bytes", table.len())))
}

fn rows(table: &[u8], count: u64) -> io::Result<&[[u8; ROW_BYTES]]> {
    Ok(first(table, count, ROW_BYTES)?.as_chunks().0)
}

/// Runs a request over a table. Its result rows go to the sink.
pub(crate) fn run(table: &[u8], request: &Request, sink: &mut impl Sink) -> io::Result<()> {
    match *request {
        Request::Read { offset, bytes } => {
            let end = offset.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
            let range = end.and_then(|end| table.get(usize::try_from(offset).ok()?..end));
            sink.row(range.ok_or_else(|| io::Error::other("a range beyond the table"))?)
        }
        Request::Select { rows: count, a, x, b, y } => {
            for row in rows(table, count)? {
                if word(row, a) < x && word(row, b) < y {
                    sink.row(row)?;
                }
            }
            Ok(())
        }
        Request::Decrypted { rows: count, a, x, b, y } => {
            let key = UnboundCipherKey::new(&AES_128, &KEY).and_then(DecryptingKey::ctr);
            let key = key.map_err(io::Error::other)?;
            let mut decrypted = vec![0; DECRYPTED_BYTES];
            let table = first(table, count, ROW_BYTES)?;
            for (piece, at) in table.chunks(DECRYPTED_BYTES).zip((0u128..).step_by(DECRYPTED_BYTES / 16)) {
                let decrypted = &mut decrypted[..piece.len()];
                decrypted.copy_from_slice(piece);
                let counter = DecryptionContext::Iv128(FixedLength::from(at.to_be_bytes()));
                key.decrypt(decrypted, counter).map_err(io::Error::other)?;
                for row in decrypted.as_chunks::<ROW_BYTES>().0 {
                    if word(row, a) < x && word(row, b) < y {
                        sink.row(row)?;
                    }
                }
            }
            Ok(())
        }
        Request::Distinct { rows: count, key } => {
            let mut seen = HashSet::new();
            for row in rows(table, count)? {
                seen.insert(word(row, key));
            }
            seen.iter().try_for_each(|key| sink.row(&key.to_le_bytes()))
        }
        Request::Group { rows: count, key, value } => {
            let mut sums: HashMap<i64, i64> = HashMap::new();
            for row in rows(table, count)? {
                let sum = sums.entry(word(row, key)).or_insert(0);
                *sum = sum
                    .checked_add(word(row, value))
                    .ok_or_else(|| io::Error::other("a sum beyond 64 bits"))?;
            }
            for (key, sum) in &sums {
                let mut row = [0; 2 * COLUMN_BYTES];
                row[..COLUMN_BYTES].copy_from_slice(&key.to_le_bytes());
                row[COLUMN_BYTES..].copy_from_slice(&sum.to_le_bytes());
                sink.row(&row)?;
            }
            Ok(())
        }
        Request::Regex { rows: count, width, ref pattern } => {
            if width == 0 {
                return Err(io::Error::other("texts of 0 bytes"));
            }
            let pattern = Regex::new(pattern).map_err(io::Error::other)?;
            for text in first(table, count, width)?.chunks_exact(width) {
                if pattern.is_match(text) {
                    sink.row(text)?;
                }
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sink for Vec<Vec<u8>> {
        fn row(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.push(bytes.to_vec());
            Ok(())
        }
    }

    fn table(count: i64) -> Vec<u8> {
        (0..count).flat_map(|row| (0..8).flat_map(move |column| (row % (column + 2)).to_le_bytes())).collect()
    }

    fn answer(table: &[u8], request: &Request) -> io::Result<Vec<Vec<u8>>> {
        let mut rows = Vec::new();
        run(table, request, &mut rows)?;
        Ok(rows)
    }

    #[test]
    fn rows_that_meet_both_conditions_are_kept_in_order() {
        let kept = answer(&table(12), &Request::Select { rows: 12, a: 0, x: 1, b: 1, y: 2 }).unwrap();
        let expected: Vec<i64> = (0..12).filter(|row| row % 2 < 1 && row % 3 < 2).collect();
        let found: Vec<i64> = kept.iter().map(|row| i64::from(row[7 * COLUMN_BYTES])).collect();
        assert_eq!(found, expected.iter().map(|row| row % 9).collect::<Vec<_>>());
    }

    #[test]
    fn rows_that_lie_encrypted_are_kept_like_others() {
        let table = table(10_000);
        let mut encrypted = table.clone();
        let key = UnboundCipherKey::new(&AES_128, &KEY).and_then(DecryptingKey::ctr).unwrap();
        key.decrypt(&mut encrypted, DecryptionContext::Iv128(FixedLength::from([0; 16]))).unwrap();
        let select = Request::Select { rows: 9_000, a: 0, x: 1, b: 1, y: 2 };
        let decrypted = Request::Decrypted { rows: 9_000, a: 0, x: 1, b: 1, y: 2 };
        assert_eq!(answer(&encrypted, &decrypted).unwrap(), answer(&table, &select).unwrap());
    }

    #[test]
    fn groups_have_the_sums_of_their_rows() {
        let mut keys = answer(&table(9), &Request::Distinct { rows: 9, key: 1 }).unwrap();
        keys.sort();
        assert_eq!(keys, [0i64, 1, 2].map(|key| key.to_le_bytes().to_vec()));
        let mut sums = answer(&table(9), &Request::Group { rows: 9, key: 1, value: 7 }).unwrap();
        sums.sort();
        let expected = [(0i64, 9i64), (1, 12), (2, 15)];
        assert_eq!(sums, expected.map(|(key, sum)| [key.to_le_bytes(), sum.to_le_bytes()].concat()));
    }

    #[test]
    fn texts_that_match_are_kept_and_ranges_read() {
        let request = Request::Regex { rows: 3, width: 4, pattern: "b+".to_owned() };
        assert_eq!(answer(b"aaaaabbaxxxb", &request).unwrap(), [b"abba", b"xxxb"]);
        assert_eq!(answer(b"abcdef", &Request::Read { offset: 2, bytes: 3 }).unwrap(), [b"cde"]);
    }

    #[test]
    fn more_rows_than_there_are_is_an_error() {
        assert!(answer(&table(2), &Request::Distinct { rows: 3, key: 0 }).is_err());
        assert!(answer(&table(2), &Request::Distinct { rows: u64::MAX, key: 0 }).is_err());
        assert!(answer(b"abc", &Request::Read { offset: 2, bytes: 2 }).is_err());
    }
}
