//! Control messages of scans: a program that a node runs over row groups of far tables; the others are in
//! [`crate::control`], which has these as well.

use crate::codec::{Bytes, Cursor, Field, List, Payload, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;
use std::fmt;
use zeroize::Zeroize;

wire_struct! {
    /// A region that row groups lie in, and the right to read it.
    ScanRegion {
        /// Which region.
        region: RegionIndex,
        /// The epoch the right belongs to.
        epoch: Epoch,
        /// The right.
        handle: Handle,
    }
}

/// How a column lies in a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnLayout {
    /// Arrow's layout of its type.
    Plain,
    /// Text or bytes: `u16` keys, and the distinct values in Arrow's layout.
    Dictionary,
    /// Among the other columns, in rows of fixed width that lie one behind the other.
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
    /// A buffer of a column.
    ScanBuffer {
        /// First byte, counted from the start of its row group.
        offset: u32,
        /// Bytes.
        bytes: u32,
    }
}

wire_struct! {
    /// A column of a row group.
    ScanColumn {
        /// How it lies there.
        layout: ColumnLayout,
        /// Rows without a value.
        null_count: u32,
        /// Validity bitmap if there are such rows; then keys of a dictionary; then offsets of text and bytes; then
        /// values. Of rows: all of them, and behind that which byte of a row is the column's first one, and how many
        /// bytes a row has.
        buffers: List<ScanBuffer, SCAN_BUFFERS_MAX>,
    }
}

wire_struct! {
    /// A row group.
    ScanGroup {
        /// Which of the scan's regions it lies in, from 0.
        region: u32,
        /// Its first byte in the region.
        offset: u64,
        /// Its rows.
        rows: u32,
        /// Which row of the table its first one is.
        position: u64,
        /// The columns that the program reads, in their order.
        columns: List<ScanColumn, SCAN_COLUMNS_MAX>,
    }
}

/// A key that a scan needs. It is wiped when it is dropped, and never printed.
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
    /// What opens the buffers of an encrypted table, and which they are.
    ScanOpening {
        /// The table's key: not its owner's.
        key: ScanKey,
        /// The table's salt.
        salt: [u8; SCAN_KEY_BYTES],
        /// Of each column that the program reads, in their order, which one of the table it is.
        columns: List<u16, SCAN_COLUMNS_MAX>,
    }
}

wire_struct! {
    /// The keys of a scan.
    ScanSeals {
        /// Of an encrypted table.
        opening: List<ScanOpening, 1>,
        /// What the scan's chunks are sealed with, if they are: random, and for this scan alone.
        answers: List<ScanKey, 1>,
    }
}

impl Default for ScanSeals {
    /// No table that is encrypted, no chunks that are sealed.
    fn default() -> ScanSeals {
        ScanSeals { opening: List::default(), answers: List::default() }
    }
}

/// What semi-joins look up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupKind {
    /// A Bloom filter.
    Bloom,
    /// The keys themselves, as packed batches.
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
    /// Brings the next part of what semi-joins look up in. Scans may name it once all of it is there.
    PutLookup {
        /// Its name; 0 begins one.
        lookup: Handle,
        /// What it is, the same in each part.
        kind: LookupKind,
        /// Bytes of all parts, the same in each.
        bytes: u32,
        /// The next of them.
        part: Bytes<LOOKUP_PART_BYTES_MAX>,
    }
}

wire_struct! {
    /// A part has come.
    LookupPut {
        /// The lookup's name, which nobody can guess. It ends with the connection of its first part.
        lookup: Handle,
        /// Bytes that have come.
        bytes: u32,
    }
}

wire_struct! {
    /// A lookup.
    LookupId {
        /// Its name.
        lookup: Handle,
    }
}

wire_struct! {
    /// Asks a node to run a program over row groups. Nothing runs yet.
    OpenScan {
        /// As of `spec/pipeline.md`.
        program: Bytes<SCAN_PROGRAM_BYTES_MAX>,
        /// What its semi-joins look up in, by number.
        lookups: List<Handle, SCAN_LOOKUPS_MAX>,
        /// The regions that its row groups lie in.
        regions: List<ScanRegion, SCAN_REGIONS_MAX>,
        /// The row groups.
        groups: List<ScanGroup, SCAN_GROUPS_MAX>,
        /// The keys it needs.
        seals: ScanSeals,
    }
}

wire_struct! {
    /// A scan has been opened. It ends with its connection.
    ScanOpened {
        /// Its name, which nobody can guess.
        scan: Handle,
        /// Whether its program had been made ready before.
        is_known: bool,
    }
}

wire_struct! {
    /// A scan.
    ScanId {
        /// Its name.
        scan: Handle,
    }
}

wire_struct! {
    /// A step of a scan: what has left it, and what it took.
    Chunk {
        /// Whether the scan is over: nothing else will leave it.
        is_last: bool,
        /// Row groups that the program has been run over, from the front, in all.
        done: u32,
        /// Bytes of regions that were read for this step.
        read_bytes: u64,
        /// Time that this step took, in nanoseconds.
        busy_ns: u64,
        /// Time that the node waited for its asker since the last chunk, for room to send or for a request, in
        /// nanoseconds.
        waited_ns: u64,
        /// Batches of rows, packed as of `spec/pipeline.md`.
        batches: Payload<CHUNK_BYTES_MAX>,
    }
}

wire_struct! {
    /// Takes row groups out of a scan, from its back: the asker sees to them itself.
    ClaimGroups {
        /// The scan's name.
        scan: Handle,
        /// How many, at most.
        groups: u32,
    }
}

wire_struct! {
    /// What was taken: the last row groups that were left, so many of them.
    Claimed {
        /// The first of them, by its number in the scan. Those behind it are nobody else's any more.
        first: u32,
        /// How many.
        count: u32,
    }
}

impl Chunk {
    /// Returns what is authenticated with the batches of a sealed chunk: whether it is the last, and row groups done.
    pub fn sealed_head(&self) -> [u8; 5] {
        let [a, b, c, d] = self.done.to_le_bytes();
        [u8::from(self.is_last), a, b, c, d]
    }

    /// Bytes in front of the batches.
    pub const HEAD_BYTES: usize = Chunk::BYTES_MIN;

    /// What stands in front of the batches, for whoever sends both without bringing them together.
    pub fn head(&self) -> [u8; Chunk::HEAD_BYTES] {
        let Chunk { is_last, done, read_bytes, busy_ns, waited_ns, ref batches } = *self;
        let mut out = Vec::with_capacity(Chunk::HEAD_BYTES);
        Chunk { is_last, done, read_bytes, busy_ns, waited_ns, batches: Payload::default() }.put(&mut out);
        let mut head = [0; Chunk::HEAD_BYTES];
        head.copy_from_slice(&out);
        head[Chunk::HEAD_BYTES - 4..].copy_from_slice(&(batches.len() as u32).to_le_bytes());
        head
    }

    /// A chunk whose batches were received apart.
    pub fn of_parts(head: [u8; Chunk::HEAD_BYTES], batches: Vec<u8>) -> Result<Chunk, WireError> {
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
