//! Bytes that tell whose they are: every owner's content of a region differs from every other's, at every
//! offset, so that a byte in the wrong hands is known by comparing it.

use crate::random::Random;

/// What a buffer is filled with before a read, to see what the read left in it.
pub const UNREAD: u8 = 0xee;
/// What a client stores into memory that was its own, past every check.
pub const GRAFFITI: u8 = 0x5a;

/// What an owner writes into one region, or one file, from its first byte to its last.
pub struct Canary {
    content: Vec<u8>,
}

impl Canary {
    /// The content of `bytes` bytes by three numbers: who owns it, what it is, and which holding of it.
    pub fn new(owner: u64, what: u64, holding: u64, bytes: usize) -> Canary {
        // One after the other through the generator, so that nearby numbers give unrelated contents.
        let seed = [owner, what, holding].into_iter().fold(0, |seed, number| Random(seed ^ number).number());
        Canary { content: Random(seed).bytes(bytes) }
    }

    /// The owner's bytes of a range.
    pub fn at(&self, offset: u64, bytes: usize) -> &[u8] {
        &self.content[offset as usize..][..bytes]
    }

    /// Whether these are the owner's bytes, every one of them.
    pub fn is_at(&self, offset: u64, found: &[u8]) -> bool {
        self.at(offset, found.len()) == found
    }

    /// Whether a buffer that nobody vouches for (a read failed, or passed every check) holds nothing of others:
    /// only what was there before, the owner's bytes and graffiti, and the zeros of memory that was wiped.
    pub fn is_harmless(&self, offset: u64, left: &[u8]) -> bool {
        let own = self.at(offset, left.len());
        left.iter().zip(own).all(|(byte, own)| byte == own || [0, UNREAD, GRAFFITI].contains(byte))
    }
}
