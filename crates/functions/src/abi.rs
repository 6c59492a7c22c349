//! What a function finds in memory: the call record and what it leads to (`spec/function.md`, "Call record"). Pure:
//! bytes from values.

use farpool_wire::limits::FUNCTION_OUTPUT_BYTES_MAX;
use sha2::{Digest, Sha256};

/// The form of the record.
pub const VERSION: u32 = 1;
/// Bytes of the record.
pub const RECORD_BYTES: usize = 152;
/// Flag: the call goes on where another has hopped from.
pub const GOES_ON: u32 = 1;
/// Where in the record *hop* is.
pub const HOP_AT: usize = 104;
/// *hop* of a function that does not.
pub const STAYS: u64 = u64::MAX;
/// Bytes of a part in the table of parts.
pub const PART_BYTES: usize = 16;

/// Where in a module's address space the record and what it leads to begin.
pub const CALL_AT: u64 = 0x3000_0000;
/// Where the output begins.
pub const OUTPUT_AT: u64 = 0x3100_0000;
/// Where the window begins.
pub const WINDOW_AT: u64 = 0x4000_0000;
/// Bytes for the record and what it leads to, but the output.
pub const CALL_BYTES: usize = (OUTPUT_AT - CALL_AT) as usize;

const _: () = assert!(FUNCTION_OUTPUT_BYTES_MAX as u64 == WINDOW_AT - OUTPUT_AT);

/// A range of a window that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte in the window.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A range at an address of the function's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Where it begins; 0 if there is none.
    pub address: u64,
    /// Bytes, or how many there are.
    pub count: u64,
}

/// The places that a record names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Whether the call goes on where another has hopped from.
    pub goes_on: bool,
    /// The window.
    pub window: Place,
    /// The arguments.
    pub args: Place,
    /// The output, and its capacity.
    pub output: Place,
    /// The table of columns.
    pub columns: Place,
    /// The table of parts, and how many they are.
    pub parts: Place,
    /// What another call left.
    pub state: Place,
}

impl Record {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let flags = if self.goes_on { GOES_ON } else { 0 };
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        let places = [self.window, self.args, self.output, self.columns, self.parts, self.state];
        for (place, into) in places.iter().zip(bytes[8..HOP_AT].chunks_exact_mut(16)) {
            into[..8].copy_from_slice(&place.address.to_le_bytes());
            into[8..].copy_from_slice(&place.count.to_le_bytes());
        }
        bytes[HOP_AT..HOP_AT + 8].copy_from_slice(&STAYS.to_le_bytes());
        bytes
    }
}

/// The table of parts.
pub fn encode_parts(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.len() * PART_BYTES);
    for part in parts {
        bytes.extend_from_slice(&part.first.to_le_bytes());
        bytes.extend_from_slice(&part.bytes.to_le_bytes());
    }
    bytes
}

/// What a function's return value and its *hop* mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// So many bytes of output.
    Output(u64),
    /// A code of its own.
    GaveUp(u64),
    /// So many bytes of state; on to this byte of the window.
    Hop(u64, u64),
    /// Neither.
    Broken(i64),
}

/// Reads what a function returned.
pub fn returned(value: i64, hop: u64, output_capacity: u64, window_bytes: u64) -> Returned {
    let state_max = farpool_wire::limits::FUNCTION_STATE_BYTES_MAX as u64;
    match u64::try_from(value) {
        Ok(bytes) if bytes > output_capacity => Returned::Broken(value),
        Ok(bytes) if hop == STAYS => Returned::Output(bytes),
        Ok(bytes) if hop < window_bytes && bytes <= state_max => Returned::Hop(bytes, hop),
        Ok(_) => Returned::Broken(value),
        Err(_) if value >= i64::from(i32::MIN) => Returned::GaveUp(value.unsigned_abs()),
        Err(_) => Returned::Broken(value),
    }
}

/// SHA-256: what a function's bytes are known by.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the signature of a native function is over.
pub fn signed_text(digest: &[u8; 32]) -> Vec<u8> {
    let mut text = b"farpool-function-1\0".to_vec();
    text.extend_from_slice(digest);
    text
}

/// How a column lies in a row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// 0 plain, 1 dictionary, 2 rows.
    pub encoding: u8,
    /// Rows without a value.
    pub null_count: u64,
    /// Offset in the window and bytes of each buffer, the validity bitmap first; (0, 0) where there is none.
    pub buffers: [(u64, u64); 4],
}

/// A column of the table of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// The byte of its type (`spec/table.md`).
    pub kind: u8,
    /// Of a decimal.
    pub precision: u8,
    /// Of a decimal.
    pub scale: i8,
    /// Of a timestamp.
    pub unit: u8,
    /// Bytes of a value of fixed width; else 0.
    pub width: u32,
}

/// Appends the head of the table of columns: as many row groups must follow.
pub fn put_columns(columns: &[Column], row_groups: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&(columns.len() as u32).to_le_bytes());
    out.extend_from_slice(&row_groups.to_le_bytes());
    for column in columns {
        out.extend_from_slice(&[column.kind, column.precision, column.scale as u8, column.unit]);
        out.extend_from_slice(&column.width.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
    }
}

/// Appends a row group, with a chunk for every column.
pub fn put_row_group(rows: u64, position: u64, chunks: &[Chunk], out: &mut Vec<u8>) {
    out.extend_from_slice(&rows.to_le_bytes());
    out.extend_from_slice(&position.to_le_bytes());
    for chunk in chunks {
        out.extend_from_slice(&[chunk.encoding, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&chunk.null_count.to_le_bytes());
        for (offset, bytes) in chunk.buffers {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_its_fields_where_the_specification_says() {
        let place = |n: u64| Place { address: 1000 + n, count: n };
        let record = Record {
            goes_on: true,
            window: place(1),
            args: place(2),
            output: place(3),
            columns: place(4),
            parts: place(5),
            state: place(6),
        };
        let bytes = record.encode();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((word(0), word(8), word(16)), (1 | 1 << 32, 1001, 1));
        let places = [(24, 2), (40, 3), (56, 4), (72, 5), (88, 6)];
        places.iter().for_each(|(at, n)| assert_eq!((word(*at), word(at + 8)), (1000 + n, *n)));
        assert_eq!(word(104), u64::MAX);
        assert!(bytes[112..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_a_function_returns_is_an_output_a_code_a_hop_or_broken() {
        assert_eq!(returned(5, STAYS, 8, 100), Returned::Output(5));
        assert_eq!(returned(9, STAYS, 8, 100), Returned::Broken(9));
        assert_eq!(returned(-3, STAYS, 8, 100), Returned::GaveUp(3));
        assert_eq!(returned(i32::MIN.into(), STAYS, 8, 100), Returned::GaveUp(1 << 31));
        assert_eq!(returned(i64::MIN, STAYS, 8, 100), Returned::Broken(i64::MIN));
        assert_eq!(returned(5, 99, 8, 100), Returned::Hop(5, 99));
        assert_eq!(returned(5, 100, 8, 100), Returned::Broken(5));
        assert_eq!(returned(70_000, 1, 1 << 20, 100), Returned::Broken(70_000));
    }
}
