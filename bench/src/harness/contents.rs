//! Expected contents of the file that a benchmark client reads and writes, and a hash over its operations.
//!
//! Every word of 8 bytes depends on its offset, the client and the number of the write. A word from another offset, an
//! earlier write or another client therefore differs from the expected one.

use super::access::SMALL;
use super::mixing::mix;
use crate::exit::Failure;

/// Returns the 8-byte word at an offset (in bytes). `salt` stands for a client and one of its writes.
fn word(salt: u64, offset: u64) -> u64 {
    (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt
}

/// Expected contents of one client's file.
pub(crate) struct Contents {
    bytes: u64,
    client: u64,
    /// Number of the latest write, for every block of [`SMALL`] bytes. 0 before the first [`Contents::note`].
    writes: Vec<u32>,
}

impl Contents {
    /// Creates the contents of one client's file, before any write.
    pub(crate) fn new(bytes: u64, client: u64) -> Contents {
        Contents { bytes, client, writes: vec![0; bytes.div_ceil(SMALL as u64) as usize] }
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn salt(&self, write: u32) -> u64 {
        mix(self.client << 32 | u64::from(write))
    }

    /// Fills a buffer with the bytes of write number `write` at an offset.
    pub(crate) fn fill(&self, write: u32, offset: u64, into: &mut [u8]) {
        let salt = self.salt(write);
        for (index, into) in into.chunks_exact_mut(8).enumerate() {
            into.copy_from_slice(&word(salt, offset + index as u64 * 8).to_le_bytes());
        }
    }

    /// Records a finished write of whole blocks of [`SMALL`] bytes.
    pub(crate) fn note(&mut self, write: u32, offset: u64, bytes: usize) {
        let first = (offset / SMALL as u64) as usize;
        self.writes[first..first + bytes / SMALL].fill(write);
    }

    /// Compares the bytes that were read at an offset with the expected ones. The offset is a multiple of 8.
    pub(crate) fn check(&self, offset: u64, found: &[u8]) -> Result<(), Failure> {
        for (index, block) in found.chunks(SMALL).enumerate() {
            let start = offset + (index * SMALL) as u64;
            let salt = self.salt(self.writes[(start / SMALL as u64) as usize]);
            for (index, found) in block.chunks_exact(8).enumerate() {
                let at = start + index as u64 * 8;
                if found != word(salt, at).to_le_bytes() {
                    return Err(Failure::Failed(format!("WRONG BYTES at {at}: {found:02x?}")));
                }
            }
        }
        Ok(())
    }
}

/// Overwrites the first 8 bytes of every 4 KiB of a buffer before a read. If the read then leaves a whole page
/// unfilled, the check of its bytes fails.
pub(crate) fn spoil(buffer: &mut [u8]) {
    const EVERY: usize = 4096;
    for page in buffer.chunks_mut(EVERY) {
        let count = page.len().min(8);
        page[..count].fill(0xff);
    }
}

/// Hash over offsets and bytes, in order. Not cryptographic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u64);

impl Hash {
    /// Adds one number to the hash.
    pub(crate) fn number(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    /// Adds the bytes at an offset to the hash.
    pub(crate) fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.number(offset);
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.number(u64::from_le_bytes(padded));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_write_pass_at_their_place_only() {
        let mut contents = Contents::new(1 << 20, 3);
        let mut block = vec![0; SMALL];
        contents.fill(0, SMALL as u64, &mut block);
        assert!(contents.check(SMALL as u64, &block).is_ok());
        assert!(contents.check(0, &block).is_err());
        assert!(Contents::new(1 << 20, 4).check(SMALL as u64, &block).is_err());
        contents.note(1, SMALL as u64, SMALL);
        assert!(contents.check(SMALL as u64, &block).is_err());
        contents.fill(1, SMALL as u64, &mut block);
        assert!(contents.check(SMALL as u64, &block).is_ok());
        block[SMALL - 1] ^= 1;
        assert!(contents.check(SMALL as u64, &block).is_err());
    }

    #[test]
    fn what_was_there_before_does_not_pass() {
        let contents = Contents::new(1 << 20, 0);
        let mut block = vec![0; 4 * SMALL];
        contents.fill(0, 0, &mut block);
        spoil(&mut block);
        for small in 0..4 {
            let offset = small * SMALL;
            assert!(contents.check(offset as u64, &block[offset..offset + SMALL]).is_err());
        }
    }

    #[test]
    fn hash_repeats_and_depends_on_order_offset_and_bytes() {
        let of = |parts: &[(u64, &[u8])]| {
            let mut hash = Hash::default();
            for (offset, bytes) in parts {
                hash.bytes(*offset, bytes);
            }
            hash
        };
        let one = of(&[(0, b"12345678"), (8, b"abcdefghi")]);
        assert_eq!(one, of(&[(0, b"12345678"), (8, b"abcdefghi")]));
        assert_ne!(one, of(&[(8, b"abcdefghi"), (0, b"12345678")]));
        assert_ne!(one, of(&[(0, b"12345678"), (16, b"abcdefghi")]));
        assert_ne!(one, of(&[(0, b"12345678"), (8, b"abcdefghj")]));
    }
}
