//! Protocol between client and server.
//!
//! A request is a header of 48 bytes and the bytes of a regular expression, which only `Regex` requests have. A reply
//! is a sequence of chunks, each preceded by its length in bytes as `u32`. The last chunk is empty. All numbers are
//! little-endian.

use std::io;

/// Bytes of the header of a request.
pub(crate) const REQUEST_BYTES: usize = 48;
/// Limit for the bytes of a regular expression.
pub(crate) const PATTERN_BYTES_MAX: usize = 4096;
/// Limit for the bytes of a chunk of a reply. It is large enough to make the cost of its header and system calls
/// negligible.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a row with columns. (Rows of texts for `Regex` requests may be of any width.)
pub(crate) const ROW_BYTES: usize = 64;
/// Bytes of a column.
pub(crate) const COLUMN_BYTES: usize = 8;
/// Number of columns of a row.
pub(crate) const COLUMNS: usize = ROW_BYTES / COLUMN_BYTES;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Returns `bytes` bytes of the table from an offset on.
    Read { offset: u64, bytes: u64 },
    /// Returns all of the first `rows` rows whose column `a` is less than `x` and whose column `b` is less than `y`.
    Select { rows: u64, a: usize, x: i64, b: usize, y: i64 },
    /// Selects as `Select` does, over encrypted rows.
    Decrypted { rows: u64, a: usize, x: i64, b: usize, y: i64 },
    /// Returns the distinct values of a column over the first `rows` rows.
    Distinct { rows: u64, key: usize },
    /// Groups the first `rows` rows by a column, and sums another column in each group.
    Group { rows: u64, key: usize, value: usize },
    /// Returns all of the first `rows` texts of `width` bytes that match the regular expression.
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

/// Converts a number of a request to the index of a column. A number beyond the last column is an error.
fn column(word: u64) -> io::Result<usize> {
    usize::try_from(word).ok().filter(|column| *column < COLUMNS).ok_or_else(|| bad("no such column: 0 to 7"))
}

impl Request {
    /// Encodes the header, followed by the regular expression.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (words, pattern): ([u64; 5], &str) = match self {
            Request::Read { offset, bytes } => ([1, *offset, *bytes, 0, 0], ""),
            Request::Select { rows, a, x, b, y } => (
                [2 | (*a as u64) << 8 | (*b as u64) << 16, *rows, x.cast_unsigned(), y.cast_unsigned(), 0],
                "",
            ),
            Request::Decrypted { rows, a, x, b, y } => (
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

    /// Returns the length in bytes of the regular expression that follows a header. More than [`PATTERN_BYTES_MAX`] is
    /// an error.
    pub(crate) fn pattern_bytes(header: &[u8; REQUEST_BYTES]) -> io::Result<usize> {
        usize::try_from(number(header, 40))
            .ok()
            .filter(|bytes| *bytes <= PATTERN_BYTES_MAX)
            .ok_or_else(|| bad("a pattern of more than 4096 bytes"))
    }

    /// Decodes a header and the regular expression that follows it. An unknown request is an error.
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
            6 => Ok(Request::Decrypted {
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
            Request::Decrypted { rows: 9, a: 2, x: i64::MIN, b: 6, y: 0 },
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
