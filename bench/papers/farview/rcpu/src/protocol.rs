//! What client and server say to each other.
//!
//! A request is a header of 48 bytes and the bytes of a pattern. A reply is chunks, each behind its length as `u32`; an
//! empty one is the last. All numbers are little-endian.

use std::io;

/// Bytes of a request's header.
pub(crate) const REQUEST_BYTES: usize = 48;
/// Most bytes of a pattern.
pub(crate) const PATTERN_BYTES_MAX: usize = 4096;
/// Bytes of a chunk, in whole rows of up to 1,024 bytes: large enough that its header and system calls do not count.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a row that is queried by its columns.
pub(crate) const ROW_BYTES: usize = 64;
/// Bytes of a column of such a row.
pub(crate) const COLUMN_BYTES: usize = 8;
/// Columns of such a row.
pub(crate) const COLUMNS: usize = ROW_BYTES / COLUMN_BYTES;

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The bytes of a range.
    Read { offset: u64, bytes: u64 },
    /// Of the first rows those whose column `a` is less than `x` and whose column `b` is less than `y`.
    Select { rows: u64, a: usize, x: i64, b: usize, y: i64 },
    /// The same of rows that lie encrypted.
    Opened { rows: u64, a: usize, x: i64, b: usize, y: i64 },
    /// Each value of a column of the first rows once.
    Distinct { rows: u64, key: usize },
    /// Each value of a column of the first rows, and the sum of another over the rows that have it.
    Group { rows: u64, key: usize, value: usize },
    /// Of the first texts of `width` bytes those in which the pattern is found.
    Regex { rows: u64, width: usize, pattern: String },
}

fn number(header: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(word)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The number of a column, if a row has it.
fn column(word: u64) -> io::Result<usize> {
    usize::try_from(word).ok().filter(|column| *column < COLUMNS).ok_or_else(|| bad("no such column: 0 to 7"))
}

impl Request {
    /// Its header, and its pattern behind it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (words, pattern): ([u64; 5], &str) = match self {
            Request::Read { offset, bytes } => ([1, *offset, *bytes, 0, 0], ""),
            Request::Select { rows, a, x, b, y } => (
                [2 | (*a as u64) << 8 | (*b as u64) << 16, *rows, x.cast_unsigned(), y.cast_unsigned(), 0],
                "",
            ),
            Request::Opened { rows, a, x, b, y } => (
                [6 | (*a as u64) << 8 | (*b as u64) << 16, *rows, x.cast_unsigned(), y.cast_unsigned(), 0],
                "",
            ),
            Request::Distinct { rows, key } => ([3, *rows, *key as u64, 0, 0], ""),
            Request::Group { rows, key, value } => ([4, *rows, *key as u64, *value as u64, 0], ""),
            Request::Regex { rows, width, pattern } => ([5, *rows, *width as u64, 0, 0], pattern),
        };
        let mut message = Vec::with_capacity(REQUEST_BYTES + pattern.len());
        for word in words.into_iter().chain([pattern.len() as u64]) {
            message.extend_from_slice(&word.to_le_bytes());
        }
        message.extend_from_slice(pattern.as_bytes());
        message
    }

    /// How many bytes of a pattern follow a header; an error if they are more than permitted.
    pub(crate) fn pattern_bytes(header: &[u8; REQUEST_BYTES]) -> io::Result<usize> {
        usize::try_from(number(header, 40))
            .ok()
            .filter(|bytes| *bytes <= PATTERN_BYTES_MAX)
            .ok_or_else(|| bad("a pattern of more than 4096 bytes"))
    }

    /// The request of a header and a pattern; an error if there is none.
    pub(crate) fn decode(header: &[u8; REQUEST_BYTES], pattern: &[u8]) -> io::Result<Request> {
        let (first, rows) = (number(header, 0), number(header, 8));
        let (third, fourth) = (number(header, 16), number(header, 24));
        match first & 0xFF {
            1 => Ok(Request::Read { offset: rows, bytes: third }),
            2 => Ok(Request::Select {
                rows,
                a: column(first >> 8 & 0xFF)?,
                x: third.cast_signed(),
                b: column(first >> 16 & 0xFF)?,
                y: fourth.cast_signed(),
            }),
            3 => Ok(Request::Distinct { rows, key: column(third)? }),
            4 => Ok(Request::Group { rows, key: column(third)?, value: column(fourth)? }),
            5 => Ok(Request::Regex {
                rows,
                width: usize::try_from(third).map_err(|_| bad("texts of too many bytes"))?,
                pattern: String::from_utf8(pattern.to_vec())
                    .map_err(|_| bad("a pattern that is not UTF-8"))?,
            }),
            6 => Ok(Request::Opened {
                rows,
                a: column(first >> 8 & 0xFF)?,
                x: third.cast_signed(),
                b: column(first >> 16 & 0xFF)?,
                y: fourth.cast_signed(),
            }),
            _ => Err(bad("no such request")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_as_they_were() {
        let all = [
            Request::Read { offset: 1 << 40, bytes: 8192 },
            Request::Select { rows: 9, a: 7, x: -1, b: 3, y: i64::MAX },
            Request::Opened { rows: 9, a: 2, x: i64::MIN, b: 6, y: 0 },
            Request::Distinct { rows: 9, key: 5 },
            Request::Group { rows: 9, key: 5, value: 2 },
            Request::Regex { rows: 9, width: 16, pattern: "a.*b".to_owned() },
        ];
        for request in all {
            let message = request.encode();
            let (header, pattern) = message.split_first_chunk::<REQUEST_BYTES>().unwrap();
            assert_eq!(Request::pattern_bytes(header).unwrap(), pattern.len());
            assert_eq!(Request::decode(header, pattern).unwrap(), request);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        assert!(Request::decode(&[9; REQUEST_BYTES], &[]).is_err());
        let beyond = Request::Distinct { rows: 1, key: COLUMNS }.encode();
        let (header, _) = beyond.split_first_chunk::<REQUEST_BYTES>().unwrap();
        assert!(Request::decode(header, &[]).is_err());
        assert!(Request::pattern_bytes(&[0xFF; REQUEST_BYTES]).is_err());
    }
}
