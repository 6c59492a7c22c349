//! Control messages of scans, which run a program over row groups of far tables on a node. [`crate::control`]
//! re-exports them.

use crate::codec::{Bytes, Cursor, Field, List, Payload, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;
use std::fmt;
use zeroize::Zeroize;

wire_struct! {
    /// Region that row groups lie in, and the right to read it.
    ScanRegion {
        /// Region of the node.
        region: RegionIndex,
        /// Epoch that the right belongs to.
        epoch: Epoch,
        /// Right to read the region.
        handle: Handle,
    }
}

/// Layout of a column in a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnLayout {
    /// Arrow's layout of the column's type.
    Plain,
    /// Dictionary of text or bytes: `u16` keys, and the distinct values in Arrow's layout.
    Dictionary,
    /// Rows of fixed width, one after another, which hold all columns of the row group.
    Rows,
}

impl Field for ColumnLayout {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            ColumnLayout::Plain => 0,
            ColumnLayout::Dictionary => 1,
            ColumnLayout::Rows => 2,
        });
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            0 => Ok(ColumnLayout::Plain),
            1 => Ok(ColumnLayout::Dictionary),
            2 => Ok(ColumnLayout::Rows),
            found => Err(WireError::Value { what: "the layout of a column", found: found.into() }),
        }
    }
}

wire_struct! {
    /// Buffer of a column.
    ScanBuffer {
        /// First byte, counted from the start of its row group.
        offset: u32,
        /// Bytes of the buffer.
        bytes: u32,
    }
}

wire_struct! {
    /// Column of a row group.
    ScanColumn {
        /// Layout of the column.
        layout: ColumnLayout,
        /// Number of rows without a value.
        null_count: u32,
        /// Buffers in this order: validity bitmap if there are rows without a value; keys of a dictionary; offsets of
        /// text and bytes; values. In layout `Rows` there are two entries: the buffer of all rows, and a pair that is
        /// no buffer, namely the position of the column's first byte in a row (`offset`) and the bytes of a row
        /// (`bytes`).
        buffers: List<ScanBuffer, SCAN_BUFFERS_MAX>,
    }
}

wire_struct! {
    /// Row group of a table.
    ScanGroup {
        /// Region that it lies in: an index into the scan's regions.
        region: u32,
        /// First byte in the region.
        offset: u64,
        /// Number of rows.
        rows: u32,
        /// Number of its first row in the table, counted from 0.
        position: u64,
        /// Columns that the program reads, in its order.
        columns: List<ScanColumn, SCAN_COLUMNS_MAX>,
    }
}

/// Key for a scan: of an encrypted table, or of the scan's chunks. It is wiped when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ScanKey(pub [u8; SCAN_KEY_BYTES]);

impl fmt::Debug for ScanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScanKey(..)")
    }
}

impl Drop for ScanKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Field for ScanKey {
    const BYTES_MIN: usize = SCAN_KEY_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(ScanKey(Field::take(from)?))
    }
}

wire_struct! {
    /// Key material that decrypts the buffers of an encrypted table.
    ScanOpening {
        /// Key of this table alone, not the key of the table's owner.
        key: ScanKey,
        /// Salt of the table.
        salt: [u8; SCAN_KEY_BYTES],
        /// Numbers in the table of the columns that the program reads, in the program's order.
        columns: List<u16, SCAN_COLUMNS_MAX>,
    }
}

wire_struct! {
    /// Keys of a scan.
    ScanSeals {
        /// Keys of an encrypted table; empty if the table is not encrypted.
        opening: List<ScanOpening, 1>,
        /// Key that encrypts the scan's chunks: random, and for this scan alone; empty if they are not encrypted.
        answers: List<ScanKey, 1>,
    }
}

impl Default for ScanSeals {
    /// Returns no keys: for a table and chunks that are not encrypted.
    fn default() -> ScanSeals {
        ScanSeals { opening: List::default(), answers: List::default() }
    }
}

/// Kind of a lookup: the form of the keys with which a semi-join of a scan compares rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupKind {
    /// Bloom filter of the keys.
    Bloom,
    /// Keys themselves, as packed batches.
    Keys,
}

impl Field for LookupKind {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            LookupKind::Bloom => 0,
            LookupKind::Keys => 1,
        });
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            0 => Ok(LookupKind::Bloom),
            1 => Ok(LookupKind::Keys),
            found => Err(WireError::Value { what: "the kind of a lookup", found: found.into() }),
        }
    }
}

wire_struct! {
    /// Request that brings the next bytes of a lookup. Scans may name the lookup once all bytes are there.
    PutLookup {
        /// Name of the lookup; 0 begins a new one.
        lookup: Handle,
        /// Kind of the lookup, the same in each of its requests.
        kind: LookupKind,
        /// Bytes of the whole lookup, the same in each of its requests.
        bytes: u32,
        /// Next bytes of the lookup.
        part: Bytes<LOOKUP_PART_BYTES_MAX>,
    }
}

wire_struct! {
    /// Answer to `PutLookup`.
    LookupPut {
        /// Name of the lookup, which nobody can guess. The lookup ends with the connection of its first bytes.
        lookup: Handle,
        /// Bytes that have arrived so far.
        bytes: u32,
    }
}

wire_struct! {
    /// Lookup that a request is about.
    LookupId {
        /// Name of the lookup.
        lookup: Handle,
    }
}

wire_struct! {
    /// Request to open a scan: a program to run over row groups. Nothing runs yet.
    OpenScan {
        /// Program, in the form of `spec/pipeline.md`.
        program: Bytes<SCAN_PROGRAM_BYTES_MAX>,
        /// Lookups that its semi-joins use; the program names them by number.
        lookups: List<Handle, SCAN_LOOKUPS_MAX>,
        /// Regions that the row groups lie in.
        regions: List<ScanRegion, SCAN_REGIONS_MAX>,
        /// Row groups of the scan.
        groups: List<ScanGroup, SCAN_GROUPS_MAX>,
        /// Keys that the scan needs.
        seals: ScanSeals,
    }
}

wire_struct! {
    /// Answer to `OpenScan`. The scan ends with its connection.
    ScanOpened {
        /// Name of the scan, which nobody can guess.
        scan: Handle,
        /// True if the node had made the program ready before.
        is_known: bool,
    }
}

wire_struct! {
    /// Scan that a request is about.
    ScanId {
        /// Name of the scan.
        scan: Handle,
    }
}

wire_struct! {
    /// Answer to `NextChunk`: rows that have left the scan, and what they took.
    Chunk {
        /// True if this is the scan's last chunk.
        is_last: bool,
        /// Number of row groups from the front that the program has been run over, in all.
        done: u32,
        /// Bytes of regions that were read for this chunk.
        read_bytes: u64,
        /// Time that the work for this chunk took, in ns.
        busy_ns: u64,
        /// Time that the node waited for its client since the last chunk, for room to send or for a request, in ns.
        waited_ns: u64,
        /// Batches of rows, packed in the form of `spec/pipeline.md`.
        batches: Payload<CHUNK_BYTES_MAX>,
    }
}

wire_struct! {
    /// Request to take row groups out of a scan, from its back. The client runs the program over them itself.
    ClaimGroups {
        /// Name of the scan.
        scan: Handle,
        /// Most row groups to take.
        groups: u32,
    }
}

wire_struct! {
    /// Answer to `ClaimGroups`: the row groups taken, which are the last ones that nobody had taken.
    Claimed {
        /// Number in the scan of the first one taken.
        first: u32,
        /// Number of row groups taken.
        count: u32,
    }
}

impl Chunk {
    /// Returns the bytes that are authenticated with the batches of an encrypted chunk: `is_last` and `done`.
    pub fn authenticated_head(&self) -> [u8; 5] {
        let [a, b, c, d] = self.done.to_le_bytes();
        [u8::from(self.is_last), a, b, c, d]
    }

    /// Bytes in front of the batches.
    pub const HEAD_BYTES: usize = Chunk::BYTES_MIN;

    /// Returns the bytes in front of the batches, for a sender that does not copy both together.
    pub fn head(&self) -> [u8; Chunk::HEAD_BYTES] {
        let Chunk { is_last, done, read_bytes, busy_ns, waited_ns, ref batches } = *self;
        let mut out = Vec::with_capacity(Chunk::HEAD_BYTES);
        Chunk { is_last, done, read_bytes, busy_ns, waited_ns, batches: Payload::default() }.put(&mut out);
        let mut head = [0; Chunk::HEAD_BYTES];
        head.copy_from_slice(&out);
        head[Chunk::HEAD_BYTES - 4..].copy_from_slice(&(batches.len() as u32).to_le_bytes());
        head
    }

    /// Returns a chunk whose batches were received apart from its head.
    pub fn with_head(head: [u8; Chunk::HEAD_BYTES], batches: Vec<u8>) -> Result<Chunk, WireError> {
        let (fields, bytes) = head.split_at(Chunk::HEAD_BYTES - 4);
        let found = u64::from(u32::take(&mut Cursor::new(bytes))?);
        if found != batches.len() as u64 {
            return Err(WireError::Value { what: "the bytes of batches", found });
        }
        let mut empty = fields.to_vec();
        0u32.put(&mut empty);
        let chunk = Chunk::take(&mut Cursor::new(&empty))?;
        Ok(Chunk { batches: Payload::new(batches)?, ..chunk })
    }
}
