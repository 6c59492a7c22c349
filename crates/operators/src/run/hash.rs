//! Hashing with a seed, and an open-addressed table whose probes are bounded.
//!
//! The idea: a 64-bit product folded in two halves spreads every bit of the key, and who does not know the seed cannot
//! choose keys that meet. Should it happen all the same, a probe ends after [`PROBES_MAX`] slots and the table says so,
//! rather than slow down.

/// Slots that a probe looks at. At half load a probe of a well-spread table ends within 32 in all but one of billions.
pub(super) const PROBES_MAX: usize = 128;

/// A number spread over 64 bits.
#[inline]
pub(super) fn fold(value: u64, seed: u64) -> u64 {
    let product =
        u128::from(value ^ seed) * u128::from(seed.rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Another number of 64 bits, from which this one is not to be guessed without the rest of a seed.
pub(super) fn mixed(value: u64) -> u64 {
    fold(value.wrapping_add(0x9e37_79b9_7f4a_7c15), value.rotate_left(32) ^ 0x2545_f491_4f6c_dd1d)
}

/// Bytes, with their length.
pub(super) fn hash_bytes(bytes: &[u8], seed: u64) -> u64 {
    let mut state = fold(bytes.len() as u64, seed);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = fold(u64::from_le_bytes(word) ^ state, seed);
    }
    let mut word = [0; 8];
    word[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    fold(u64::from_le_bytes(word) ^ state, seed)
}

const EMPTY: u32 = u32::MAX;

/// From keys of 64 bits to numbers counted from 0. Keys that are hashes of others are told apart by the caller.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<(u64, u32)>,
    seed: u64,
    held: usize,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has this number.
    Held(u32),
    /// Nowhere; this slot is free for it.
    Free(usize),
    /// Nowhere within the bound.
    Crowded,
}

impl Table {
    pub(super) fn new(seed: u64) -> Table {
        Table { slots: vec![(0, EMPTY); 256], seed, held: 0 }
    }

    /// Bytes of its slots.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<(u64, u32)>()
    }

    /// Looks a key up; of several with the same key, `is_it` knows which.
    #[inline]
    pub(super) fn find(&self, key: u64, is_it: impl Fn(u32) -> bool) -> Found {
        let mask = self.slots.len() - 1;
        let start = fold(key, self.seed) as usize;
        for step in 0..PROBES_MAX {
            let at = start.wrapping_add(step) & mask;
            let (found, number) = self.slots[at];
            if number == EMPTY {
                return Found::Free(at);
            }
            if found == key && is_it(number) {
                return Found::Held(number);
            }
        }
        Found::Crowded
    }

    /// Puts a key where [`Table::find`] said it may go. Half of the slots stay free: false if that could not be,
    /// as some key would be crowded out of the larger table.
    pub(super) fn put(&mut self, slot: usize, key: u64, number: u32) -> bool {
        self.slots[slot] = (key, number);
        self.held += 1;
        if self.held * 2 <= self.slots.len() {
            return true;
        }
        let longer = vec![(0, EMPTY); self.slots.len() * 2];
        let held = std::mem::replace(&mut self.slots, longer);
        for (key, number) in held.into_iter().filter(|(_, number)| *number != EMPTY) {
            match self.find(key, |_| false) {
                Found::Free(slot) => self.slots[slot] = (key, number),
                Found::Held(_) | Found::Crowded => return false,
            }
        }
        true
    }

    /// Forgets all keys, and lays itself out anew.
    pub(super) fn clear(&mut self) {
        self.slots.fill((0, EMPTY));
        self.held = 0;
        self.seed = fold(self.seed, self.seed.rotate_left(17) ^ 0x452821e638d01377);
    }
}
