//! Keys: what a user gives, and what is derived of it. All are wiped when they are dropped, and none is printed.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use std::fmt;
use zeroize::Zeroize;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Bytes of the random salt of a table.
pub const SALT_BYTES: usize = 16;

/// What a user gives to encrypt tables, and to read them. It never leaves the client; of a table it makes a key of its
/// own, the [`SealKey`], which a node is given that runs a query over it.
#[derive(Clone, PartialEq, Eq)]
pub struct TableKey([u8; KEY_BYTES]);

/// The key of one table, or of one scan's answers.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey([u8; KEY_BYTES]);

/// A key of another length than [`KEY_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongKeyLength {
    /// Its bytes.
    pub bytes: usize,
}

/// Bytes to be derived.
struct Sixteen;

impl KeyType for Sixteen {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl TableKey {
    /// A key of random bytes, which are best kept where other secrets are: without them nobody reads the table.
    pub fn new(bytes: [u8; KEY_BYTES]) -> TableKey {
        TableKey(bytes)
    }

    /// The key of a table with this salt, and what tells it from others: it is stored with the table, and says nothing
    /// of the key.
    pub fn of_table(&self, salt: &[u8; SALT_BYTES]) -> (SealKey, [u8; KEY_BYTES]) {
        let extracted = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let derive = |label: &[u8]| {
            let mut bytes = [0; KEY_BYTES];
            let info = [label];
            let derived = extracted.expand(&info, Sixteen).and_then(|key| key.fill(&mut bytes));
            derived.expect("HKDF-SHA256 gives up to 8160 bytes");
            bytes
        };
        (SealKey(derive(b"farpool table 1 key")), derive(b"farpool table 1 check"))
    }
}

impl TryFrom<&[u8]> for TableKey {
    type Error = WrongKeyLength;

    fn try_from(bytes: &[u8]) -> Result<TableKey, WrongKeyLength> {
        bytes.try_into().map(TableKey).map_err(|_| WrongKeyLength { bytes: bytes.len() })
    }
}

impl SealKey {
    /// A key from random bytes, or one that was received.
    pub fn new(bytes: [u8; KEY_BYTES]) -> SealKey {
        SealKey(bytes)
    }

    /// Its bytes, to be sent to a node.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Drop for TableKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for SealKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for TableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableKey(..)")
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

impl fmt::Display for WrongKeyLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key has {} bytes; {KEY_BYTES} are needed", self.bytes)
    }
}

impl std::error::Error for WrongKeyLength {}
