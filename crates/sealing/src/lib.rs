//! Encrypted far tables: how their buffers, their statistics and what scans leave are sealed and opened
//! (`spec/table.md`, "Encryption"; paper 003, Farview, section 5.5).
//!
//! The idea: AES-128-GCM with a key for each table, derived from its owner's key and a random salt. A table is written
//! once, so where a buffer lies says which nonce it has: nothing has to be kept for it, a node opens any buffer by
//! itself, and one that was moved does not open. Node and client open buffers by the same code.
//!
//! Never in this crate: I/O, a clock, randomness (salts and keys are arguments), unsafe code; bytes that are handed out
//! before their tag was verified.
//!
//! Why so, and what it does not protect: docs/decisions/0018-encrypted-tables.md.
#![forbid(unsafe_code)]

mod keys;
mod seals;

pub use keys::{KEY_BYTES, SALT_BYTES, SealKey, TableKey, WrongKeyLength};
pub use seals::{BufferPlace, ChunkSeals, NotSealed, TAG_BYTES, TableSeals};
