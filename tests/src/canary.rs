//! Contents by which their owner is recognized. Any two owners' contents differ at nearly every offset, so bytes that
//! reached the wrong session are found by comparing them.

use crate::random::Random;

/// Byte that fills a buffer before a read, to show what the read changed.
pub const UNREAD: u8 = 0xee;
/// Byte that a zombie stores into memory which it leased earlier, bypassing all checks.
pub const GRAFFITI: u8 = 0x5a;

/// Contents that an owner writes into one region or file.
pub struct Canary {
    content: Vec<u8>,
}

impl Canary {
    /// Makes contents of `bytes` bytes from three numbers: those of the owner, of the region or file, and of the lease
    /// of it.
    pub fn new(owner: u64, what: u64, holding: u64, bytes: usize) -> Canary {
        // Each number passes through the generator, so that similar numbers give unrelated contents.
        let seed = [owner, what, holding].into_iter().fold(0, |seed, number| Random(seed ^ number).number());
        Canary { content: Random(seed).bytes(bytes) }
    }

    /// Returns the owner's contents of a range.
    pub fn at(&self, offset: u64, bytes: usize) -> &[u8] {
        &self.content[offset as usize..][..bytes]
    }

    /// Reports whether the bytes found at an offset are all the owner's.
    pub fn is_at(&self, offset: u64, found: &[u8]) -> bool {
        self.at(offset, found.len()) == found
    }

    /// Reports whether a buffer has no bytes of other owners, after a read that failed or bypassed all checks. It may
    /// hold its contents from before the read, the owner's bytes, graffiti, and the zeros of wiped memory.
    pub fn is_harmless(&self, offset: u64, left: &[u8]) -> bool {
        let own = self.at(offset, left.len());
        left.iter().zip(own).all(|(byte, own)| byte == own || [0, UNREAD, GRAFFITI].contains(byte))
    }
}
