//! Keys: the user's key, and keys derived from it. All are wiped when they are dropped, and none is printed.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use std::fmt;
use zeroize::Zeroize;

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 16;
/// Length of a table's random salt in bytes.
pub const SALT_BYTES: usize = 16;

/// Key with which a user encrypts and reads tables. It never leaves the client. From it a key for each table is
/// derived, the [`EncryptionKey`], which a node receives if it runs a query over that table.
#[derive(Clone, PartialEq, Eq)]
pub struct TableKey([u8; KEY_BYTES]);

/// Key of one table, or of the replies of one scan.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey([u8; KEY_BYTES]);

/// Error: a key does not have [`KEY_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongKeyLength {
    /// Number of bytes that the key has.
    pub bytes: usize,
}

/// Length of a derived key, as the library wants to be told it.
struct Sixteen;

impl KeyType for Sixteen {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl TableKey {
    /// Makes a key from random bytes. Without these bytes nobody can read the tables, so they belong where other
    /// secrets are kept.
    pub fn new(bytes: [u8; KEY_BYTES]) -> TableKey {
        TableKey(bytes)
    }

    /// Derives the key of the table with this salt, and a check value. The check value is stored with the table to
    /// recognise the right key, and reveals nothing about it.
    pub fn of_table(&self, salt: &[u8; SALT_BYTES]) -> (EncryptionKey, [u8; KEY_BYTES]) {
        let extracted = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let derive = |label: &[u8]| {
            let mut bytes = [0; KEY_BYTES];
            let info = [label];
            let derived = extracted.expand(&info, Sixteen).and_then(|key| key.fill(&mut bytes));
            derived.expect("HKDF-SHA256 gives up to 8160 bytes");
            bytes
        };
        (EncryptionKey(derive(b"farpool table 1 key")), derive(b"farpool table 1 check"))
    }
}

impl TryFrom<&[u8]> for TableKey {
    type Error = WrongKeyLength;

    fn try_from(bytes: &[u8]) -> Result<TableKey, WrongKeyLength> {
        bytes.try_into().map(TableKey).map_err(|_| WrongKeyLength { bytes: bytes.len() })
    }
}

impl EncryptionKey {
    /// Makes a key from random bytes, or from bytes that were received.
    pub fn new(bytes: [u8; KEY_BYTES]) -> EncryptionKey {
        EncryptionKey(bytes)
    }

    /// Returns the bytes, to be sent to a node.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Drop for TableKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for EncryptionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for TableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableKey(..)")
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}

impl fmt::Display for WrongKeyLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key has {} bytes; {KEY_BYTES} are needed", self.bytes)
    }
}

impl std::error::Error for WrongKeyLength {}
