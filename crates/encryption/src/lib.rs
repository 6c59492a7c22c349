//! Encryption of far tables: of their buffers, their statistics and the replies of scans (`spec/table.md`,
//! "Encryption"; paper 003, Farview, section 5.5).
//!
//! Each file of a table is encrypted by AES-128-GCM with a key of its own, derived from its owner's key and a random
//! salt. A file is written once, so the position of a buffer determines its nonce. No nonce has to be stored, a node
//! can decrypt any buffer independently, and a buffer that was moved does not decrypt. Node and client use the same
//! code.
//!
//! Never in this crate: I/O, a clock, randomness (salts and keys are arguments), unsafe code; bytes that are handed out
//! before their tag was verified.
//!
//! Reasons, and the limits of the protection: docs/decisions/0018-encrypted-tables.md.
#![forbid(unsafe_code)]

mod ciphers;
mod keys;
#[cfg(feature = "watched")]
pub mod watch;

pub use ciphers::{BufferPlace, ChunkCipher, NotAuthentic, TAG_BYTES, TableCipher};
pub use keys::{EncryptionKey, KEY_BYTES, SALT_BYTES, TableKey, WrongKeyLength};
