//! Contents that identify their owner: every owner's contents differ from every other's at every offset, so a byte
//! that reached the wrong session is found by comparing it.

use crate::random::Random;

/// Byte that fills a buffer before a read, to show what the read changed.
pub const UNREAD: u8 = 0xee;
/// Byte that a client stores into memory it once held, bypassing all checks.
pub const GRAFFITI: u8 = 0x5a;

/// Contents that an owner writes into one region or file.
pub struct Canary {
    content: Vec<u8>,
}

impl Canary {
    /// Makes contents of `bytes` bytes from three numbers: the owner, the thing, and the holding of it.
    pub fn new(owner: u64, what: u64, holding: u64, bytes: usize) -> Canary {
        // Each number passes through the generator, so that similar numbers give unrelated contents.
        let seed = [owner, what, holding].into_iter().fold(0, |seed, number| Random(seed ^ number).number());
        Canary { content: Random(seed).bytes(bytes) }
    }

    /// Returns the owner's bytes of a range.
    pub fn at(&self, offset: u64, bytes: usize) -> &[u8] {
        &self.content[offset as usize..][..bytes]
    }

    /// Reports whether all these bytes are the owner's.
    pub fn is_at(&self, offset: u64, found: &[u8]) -> bool {
        self.at(offset, found.len()) == found
    }

    /// Reports whether a buffer has no bytes of other owners, after a read that failed or bypassed all checks. It may
    /// have its earlier contents, the owner's bytes, graffiti, and the zeros of wiped memory.
    pub fn is_harmless(&self, offset: u64, left: &[u8]) -> bool {
        let own = self.at(offset, left.len());
        left.iter().zip(own).all(|(byte, own)| byte == own || [0, UNREAD, GRAFFITI].contains(byte))
    }
}
