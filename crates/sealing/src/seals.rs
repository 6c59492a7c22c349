//! Sealing and opening: of buffers and statistics of a table, and of the chunks of a scan.

use crate::keys::{SALT_BYTES, SealKey};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fmt;

/// Bytes of the tag that lies behind whatever is sealed.
pub const TAG_BYTES: usize = 16;

/// In front of all additional data, so that nothing else sealed under a key is ever taken for it.
const TABLE_DOMAIN: [u8; 16] = *b"farpool table 1\0";
const CHUNK_DOMAIN: [u8; 16] = *b"farpool chunk 1\0";
/// The last byte of a nonce.
const OF_BUFFERS: u8 = 0;
const OF_STATISTICS: u8 = 1;

/// Which buffer of a table: no two have the same place, as a row group has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPlace {
    /// Which row of the table the first one of its row group is.
    pub position: u64,
    /// Which column of the table, from 0.
    pub column: u16,
    /// Which buffer of the column in the row group, from 0.
    pub buffer: u8,
}

/// Bytes that are not those sealed for this place under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSealed;

impl fmt::Display for NotSealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its bytes were not encrypted for this position with this key, or were changed")
    }
}

impl std::error::Error for NotSealed {}

fn gcm(key: &SealKey) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.bytes()).expect("an AES-128 key is 16 bytes"))
}

/// Seals and opens what belongs to one table. The expanded key is wiped when it is dropped, by the library.
pub struct TableSeals {
    key: LessSafeKey,
    salt: [u8; SALT_BYTES],
}

impl BufferPlace {
    fn nonce(self) -> [u8; NONCE_LEN] {
        let mut bytes = [0; NONCE_LEN];
        bytes[..8].copy_from_slice(&self.position.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.column.to_le_bytes());
        bytes[10] = self.buffer;
        bytes[11] = OF_BUFFERS;
        bytes
    }
}

impl TableSeals {
    /// Of the table with this key and salt.
    pub fn new(key: &SealKey, salt: [u8; SALT_BYTES]) -> TableSeals {
        TableSeals { key: gcm(key), salt }
    }

    /// Table and place. Both are in key and nonce already; a mistake of ours with either is caught by this.
    fn place_data(&self, nonce: &[u8; NONCE_LEN]) -> [u8; 44] {
        let mut data = [0; 44];
        data[..16].copy_from_slice(&TABLE_DOMAIN);
        data[16..32].copy_from_slice(&self.salt);
        data[32..].copy_from_slice(nonce);
        data
    }

    /// Seals a buffer where it is. The tag goes behind it. A table is sealed once: under a key, no place twice.
    pub fn seal(&self, place: BufferPlace, in_place: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = place.nonce();
        let data = Aad::from(self.place_data(&nonce));
        let sealed = self.key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), data, in_place);
        tag_of(sealed.expect("AES-GCM seals up to 64 GiB at once").as_ref())
    }

    /// Opens a buffer with its tag behind it where it is: of `in_place` all but the last [`TAG_BYTES`] is the buffer
    /// then. Nothing of it means anything after an error.
    pub fn open(&self, place: BufferPlace, in_place: &mut [u8]) -> Result<(), NotSealed> {
        let nonce = place.nonce();
        let data = Aad::from(self.place_data(&nonce));
        let opened = self.key.open_in_place(Nonce::assume_unique_for_key(nonce), data, in_place);
        opened.map(drop).map_err(|_| NotSealed)
    }

    /// Opens a buffer with its tag behind it into other memory, [`TAG_BYTES`] shorter. Nothing of that means anything
    /// after an error.
    pub fn open_into(&self, place: BufferPlace, sealed: &[u8], into: &mut [u8]) -> Result<(), NotSealed> {
        let (sealed, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(NotSealed)?;
        if sealed.len() != into.len() {
            return Err(NotSealed);
        }
        let nonce = place.nonce();
        let data = Aad::from(self.place_data(&nonce));
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.open_separate_gather(nonce, data, sealed, tag, into).map_err(|_| NotSealed)
    }

    /// Seals the statistics of the table, and puts the tag behind them. `footer` is all else that the table says of
    /// itself: whoever opens these knows that it is as it was.
    pub fn seal_statistics(&self, footer: &[u8], statistics: &mut Vec<u8>) {
        let (nonce, data) = self.of_statistics(footer);
        let sealed = self.key.seal_in_place_append_tag(nonce, data, statistics);
        sealed.expect("AES-GCM seals up to 64 GiB at once");
    }

    /// Turns sealed statistics back into what they were.
    pub fn open_statistics(&self, footer: &[u8], sealed: &mut Vec<u8>) -> Result<(), NotSealed> {
        let (nonce, data) = self.of_statistics(footer);
        let bytes = self.key.open_in_place(nonce, data, sealed).map_err(|_| NotSealed)?.len();
        sealed.truncate(bytes);
        Ok(())
    }

    fn of_statistics(&self, footer: &[u8]) -> (Nonce, Aad<Vec<u8>>) {
        let mut nonce = [0; NONCE_LEN];
        nonce[11] = OF_STATISTICS;
        let mut data = self.place_data(&nonce).to_vec();
        data.extend_from_slice(footer);
        (Nonce::assume_unique_for_key(nonce), Aad::from(data))
    }
}

fn tag_of(bytes: &[u8]) -> [u8; TAG_BYTES] {
    bytes.try_into().expect("a tag of AES-GCM is 16 bytes")
}

/// Seals and opens the chunks of one scan, under a key that was made for it alone.
pub struct ChunkSeals {
    key: LessSafeKey,
}

impl ChunkSeals {
    /// Of the scan with this key.
    pub fn new(key: &SealKey) -> ChunkSeals {
        ChunkSeals { key: gcm(key) }
    }

    /// Seals the batches of a chunk, the `number`th of its scan from 0, and puts the tag behind them. `head` is what
    /// the chunk says besides. Under a key no number is sealed twice.
    pub fn seal(&self, number: u64, head: &[u8], batches: &mut Vec<u8>) {
        let (nonce, data) = Self::of_chunk(number, head);
        let sealed = self.key.seal_in_place_append_tag(nonce, data, batches);
        sealed.expect("AES-GCM seals up to 64 GiB at once");
    }

    /// Turns a sealed chunk back into its batches.
    pub fn open(&self, number: u64, head: &[u8], sealed: &mut Vec<u8>) -> Result<(), NotSealed> {
        let (nonce, data) = Self::of_chunk(number, head);
        let bytes = self.key.open_in_place(nonce, data, sealed).map_err(|_| NotSealed)?.len();
        sealed.truncate(bytes);
        Ok(())
    }

    fn of_chunk(number: u64, head: &[u8]) -> (Nonce, Aad<Vec<u8>>) {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        (Nonce::assume_unique_for_key(nonce), Aad::from([&CHUNK_DOMAIN, head].concat()))
    }
}

impl fmt::Debug for TableSeals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableSeals(..)")
    }
}

impl fmt::Debug for ChunkSeals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChunkSeals(..)")
    }
}
