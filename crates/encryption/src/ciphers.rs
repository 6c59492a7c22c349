//! Encryption and decryption of the buffers and statistics of a table, and of the batches of a scan.

use crate::keys::{EncryptionKey, SALT_BYTES};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fmt;

/// Length in bytes of the tag that follows every ciphertext.
pub const TAG_BYTES: usize = 16;

/// Prefixes of the additional authenticated data: for parts of a table, and for the replies of a scan. They keep
/// ciphertexts for different purposes under one key apart.
const TABLE_DOMAIN: [u8; 16] = *b"farpool table 1\0";
const CHUNK_DOMAIN: [u8; 16] = *b"farpool chunk 1\0";
/// Last byte of a nonce, which separates buffers from statistics.
const OF_BUFFERS: u8 = 0;
const OF_STATISTICS: u8 = 1;

/// Position of a buffer in a table. It is unique, because every row group has at least one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPlace {
    /// Row number in the table of the first row of its row group.
    pub position: u64,
    /// Column of the table, from 0.
    pub column: u16,
    /// Number of the buffer (validity bitmap, values, ..) among those of the column in the row group, from 0.
    pub buffer: u8,
}

/// Error: the bytes were not encrypted for this position under this key, or were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

impl fmt::Display for NotAuthentic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its bytes were not encrypted for this position with this key, or were changed")
    }
}

impl std::error::Error for NotAuthentic {}

fn gcm(key: &EncryptionKey) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.bytes()).expect("an AES-128 key is 16 bytes"))
}

/// Encrypts and decrypts the parts of one table. The library wipes the expanded key when it is dropped.
pub struct TableCipher {
    key: LessSafeKey,
    salt: [u8; SALT_BYTES],
    #[cfg(feature = "watched")]
    watched: EncryptionKey,
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

impl TableCipher {
    /// Makes the cipher of the table with this key and salt.
    pub fn new(key: &EncryptionKey, salt: [u8; SALT_BYTES]) -> TableCipher {
        TableCipher {
            key: gcm(key),
            salt,
            #[cfg(feature = "watched")]
            watched: key.clone(),
        }
    }

    /// Reports that something is encrypted with this nonce.
    fn use_nonce(&self, _nonce: &[u8; NONCE_LEN]) {
        #[cfg(feature = "watched")]
        crate::watch::used(self.watched.bytes(), _nonce);
    }

    /// Returns the additional authenticated data: table and position. The key depends on the table and the nonce on the
    /// position already; this catches a mistake of ours with either.
    fn place_data(&self, nonce: &[u8; NONCE_LEN]) -> [u8; 44] {
        let mut data = [0; 44];
        data[..16].copy_from_slice(&TABLE_DOMAIN);
        data[16..32].copy_from_slice(&self.salt);
        data[32..].copy_from_slice(nonce);
        data
    }

    /// Encrypts a buffer in place and returns its tag, which is stored after it. A table is encrypted once: no position
    /// is used twice under one key.
    pub fn encrypt(&self, place: BufferPlace, in_place: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = place.nonce();
        self.use_nonce(&nonce);
        let data = Aad::from(self.place_data(&nonce));
        let encrypted =
            self.key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), data, in_place);
        tag_of(encrypted.expect("AES-GCM encrypts up to 64 GiB at once").as_ref())
    }

    /// Decrypts a buffer with its tag in place. The plaintext is `in_place` without the last [`TAG_BYTES`]. After an
    /// error the contents are meaningless.
    pub fn decrypt(&self, place: BufferPlace, in_place: &mut [u8]) -> Result<(), NotAuthentic> {
        let nonce = place.nonce();
        let data = Aad::from(self.place_data(&nonce));
        let decrypted = self.key.open_in_place(Nonce::assume_unique_for_key(nonce), data, in_place);
        decrypted.map(drop).map_err(|_| NotAuthentic)
    }

    /// Decrypts a buffer with its tag into other memory, which is [`TAG_BYTES`] shorter. After an error its contents
    /// are meaningless.
    pub fn decrypt_into(
        &self,
        place: BufferPlace,
        encrypted: &[u8],
        into: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let (encrypted, tag) = encrypted.split_last_chunk::<TAG_BYTES>().ok_or(NotAuthentic)?;
        if encrypted.len() != into.len() {
            return Err(NotAuthentic);
        }
        let nonce = place.nonce();
        let data = Aad::from(self.place_data(&nonce));
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.open_separate_gather(nonce, data, encrypted, tag, into).map_err(|_| NotAuthentic)
    }

    /// Encrypts the statistics of the table and appends the tag. `footer` is the rest of the table's description:
    /// successful decryption proves that it is unchanged.
    pub fn encrypt_statistics(&self, footer: &[u8], statistics: &mut Vec<u8>) {
        let (nonce, data) = self.of_statistics(footer);
        self.use_nonce(nonce.as_ref());
        let encrypted = self.key.seal_in_place_append_tag(nonce, data, statistics);
        encrypted.expect("AES-GCM encrypts up to 64 GiB at once");
    }

    /// Decrypts statistics in place and removes the tag.
    pub fn decrypt_statistics(&self, footer: &[u8], encrypted: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        let (nonce, data) = self.of_statistics(footer);
        let bytes = self.key.open_in_place(nonce, data, encrypted).map_err(|_| NotAuthentic)?.len();
        encrypted.truncate(bytes);
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

/// Encrypts and decrypts the batches of one scan, under a key that is used for nothing else.
pub struct ChunkCipher {
    key: LessSafeKey,
}

impl ChunkCipher {
    /// Makes the cipher of the scan with this key.
    pub fn new(key: &EncryptionKey) -> ChunkCipher {
        ChunkCipher { key: gcm(key) }
    }

    /// Encrypts the batches of reply number `number` of the scan (from 0) and appends the tag. `head` is the rest of
    /// the reply, which is authenticated. No number is used twice under one key.
    pub fn encrypt(&self, number: u64, head: &[u8], batches: &mut Vec<u8>) {
        let (nonce, data) = Self::of_chunk(number, head);
        let encrypted = self.key.seal_in_place_append_tag(nonce, data, batches);
        encrypted.expect("AES-GCM encrypts up to 64 GiB at once");
    }

    /// Decrypts the batches of a reply in place and removes the tag.
    pub fn decrypt(&self, number: u64, head: &[u8], encrypted: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        let (nonce, data) = Self::of_chunk(number, head);
        let bytes = self.key.open_in_place(nonce, data, encrypted).map_err(|_| NotAuthentic)?.len();
        encrypted.truncate(bytes);
        Ok(())
    }

    fn of_chunk(number: u64, head: &[u8]) -> (Nonce, Aad<Vec<u8>>) {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        (Nonce::assume_unique_for_key(nonce), Aad::from([&CHUNK_DOMAIN, head].concat()))
    }
}

impl fmt::Debug for TableCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableCipher(..)")
    }
}

impl fmt::Debug for ChunkCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChunkCipher(..)")
    }
}
