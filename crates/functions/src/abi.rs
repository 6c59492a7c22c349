//! Memory that a function finds when it is called: the call record and what it refers to (`spec/function.md`, "Call
//! record"). Pure: it turns values into bytes.

use farpool_wire::limits::FUNCTION_OUTPUT_BYTES_MAX;
use sha2::{Digest, Sha256};

/// Version of the call record.
pub const VERSION: u32 = 1;
/// Size of the call record, in bytes.
pub const RECORD_BYTES: usize = 152;
/// Flag of the record: the call continues one that has hopped (asked to be continued at another node).
pub const GOES_ON: u32 = 1;
/// Offset in the record of the field *hop*, to which a function writes the byte of the window it wants to continue at.
pub const HOP_AT: usize = 104;
/// Value of the field *hop* if the function does not hop to another node.
pub const STAYS: u64 = u64::MAX;
/// Size in bytes of an entry of the table of parts (the ranges of the window that lie at this node).
pub const PART_BYTES: usize = 16;

/// Address in a module at which the call record and the tables behind it begin.
pub const CALL_AT: u64 = 0x3000_0000;
/// Address in a module at which the area for the function's output begins.
pub const OUTPUT_AT: u64 = 0x3100_0000;
/// Address in a module at which the window (the range of far memory that the function sees) begins.
pub const WINDOW_AT: u64 = 0x4000_0000;
/// Bytes for the call record and the tables behind it.
pub const CALL_BYTES: usize = (OUTPUT_AT - CALL_AT) as usize;

const _: () = assert!(FUNCTION_OUTPUT_BYTES_MAX as u64 == WINDOW_AT - OUTPUT_AT);

/// Part of a window: a range of it that lies at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset in the window, in bytes.
    pub first: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Range of a function's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressRange {
    /// Address of the first byte or item; 0 if there is none.
    pub address: u64,
    /// Number of bytes or items.
    pub count: u64,
}

/// Call record: the ranges that a function is called with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRecord {
    /// True if the call continues one that has hopped here from another node.
    pub goes_on: bool,
    /// The window, with its size in bytes.
    pub window: AddressRange,
    /// The arguments, with their size in bytes.
    pub args: AddressRange,
    /// The output, with its capacity in bytes.
    pub output: AddressRange,
    /// The table of the columns that lie in the window, with its size in bytes.
    pub columns: AddressRange,
    /// The table of parts (ranges of the window that lie at this node), with the number of its entries.
    pub parts: AddressRange,
    /// The state that the call had output before it hopped here, with its size in bytes.
    pub state: AddressRange,
}

impl CallRecord {
    /// Encodes the record.
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

/// Encodes the table of parts: the ranges of the window that lie at this node.
pub fn encode_parts(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.len() * PART_BYTES);
    for part in parts {
        bytes.extend_from_slice(&part.first.to_le_bytes());
        bytes.extend_from_slice(&part.bytes.to_le_bytes());
    }
    bytes
}

/// Meaning of a function's return value and of the field *hop* in its call record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The call has ended, with this many bytes of output.
    Output(u64),
    /// The function gave up, with a code of its own.
    GaveUp(u64),
    /// The call continues at another node. Number of bytes of state, and the offset in the window of the byte to whose
    /// node it goes.
    Hop(u64, u64),
    /// The value, which is this one, or the *hop* breaks the contract.
    Broken(i64),
}

/// Decodes a function's return value and its *hop*. A value of 0 or more is a number of bytes, one from -1 down to
/// -2^31 is a code of the function's own, negated.
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

/// Returns the SHA-256 digest by which a function's bytes are identified.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that the signature of a native function signs, for a shared object with this SHA-256 digest.
pub fn signed_text(digest: &[u8; 32]) -> Vec<u8> {
    let mut text = b"farpool-function-1\0".to_vec();
    text.extend_from_slice(digest);
    text
}

/// Place in the window of one column of a row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnBuffers {
    /// Encoding: 0 plain, 1 dictionary, 2 rows (the values of all columns of a row lie together).
    pub encoding: u8,
    /// Number of NULL values.
    pub null_count: u64,
    /// Offset in the window and size of each buffer in bytes, the validity bitmap first; (0, 0) if there is no such
    /// buffer.
    pub buffers: [(u64, u64); 4],
}

/// Type of a column, as the head of the table of columns contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Number of the column's type (`spec/table.md`).
    pub kind: u8,
    /// Precision of a decimal.
    pub precision: u8,
    /// Scale of a decimal.
    pub scale: i8,
    /// Unit of a timestamp.
    pub unit: u8,
    /// Size of a value in bytes if it is fixed, otherwise 0.
    pub width: u32,
}

/// Appends the head of the table of columns: the types of the columns. The caller then appends this many row groups by
/// [`put_row_group`].
pub fn put_columns(columns: &[Column], row_groups: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&(columns.len() as u32).to_le_bytes());
    out.extend_from_slice(&row_groups.to_le_bytes());
    for column in columns {
        out.extend_from_slice(&[column.kind, column.precision, column.scale as u8, column.unit]);
        out.extend_from_slice(&column.width.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
    }
}

/// Appends a row group of this many rows to a table of columns. `position` is the number in the far table of its first
/// row, and `chunks` says where each of its columns lies.
pub fn put_row_group(rows: u64, position: u64, chunks: &[ColumnBuffers], out: &mut Vec<u8>) {
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
        let place = |n: u64| AddressRange { address: 1000 + n, count: n };
        let record = CallRecord {
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
