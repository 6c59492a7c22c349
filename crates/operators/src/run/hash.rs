//! Hash functions with a seed, and an open-addressing hash table with bounded probes.
//!
//! The idea: the two halves of a 128-bit product are XORed, which spreads every bit of the key. Without the seed
//! nobody can choose keys that collide. Should keys collide all the same, a probe ends after [`PROBES_MAX`] slots and
//! the table reports it, instead of becoming slow.

/// Slots that a probe visits before it gives up. At half load, with keys well spread, all but one probe in billions
/// end within 32.
pub(super) const PROBES_MAX: usize = 128;

/// Returns `value` mixed with a secret seed and spread over 64 bits.
#[inline]
pub(super) fn fold(value: u64, seed: u64) -> u64 {
    let product =
        u128::from(value ^ seed) * u128::from(seed.rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Derives a further 64-bit secret from a secret `value`, which is meant to be hard to compute back.
pub(super) fn mixed(value: u64) -> u64 {
    fold(value.wrapping_add(0x9e37_79b9_7f4a_7c15), value.rotate_left(32) ^ 0x2545_f491_4f6c_dd1d)
}

/// Returns the hash of bytes and their length.
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

/// Number that marks a free slot of [`Table`].
const EMPTY: u32 = u32::MAX;

/// Hash table from keys of 64 bits to numbers. The keys may be hashes of longer keys. [`Table::find`] then asks its
/// caller which of the entries with an equal hash is the wanted one.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<(u64, u32)>,
    seed: u64,
    held: usize,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The key is held and has this number.
    Held(u32),
    /// The key is not held; this slot is free for it.
    Free(usize),
    /// The key is not within [`PROBES_MAX`] slots, and none of them is free.
    Crowded,
}

impl Table {
    pub(super) fn new(seed: u64) -> Table {
        Table { slots: vec![(0, EMPTY); 256], seed, held: 0 }
    }

    /// Returns the bytes of the slots.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<(u64, u32)>()
    }

    /// Looks up a key. Among entries with the same key, `is_it` returns true for the number of the wanted one.
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

    /// Puts a key into a slot that [`Table::find`] returned. Half of the slots stay free. Returns false if the table
    /// had to grow and some key found no slot in the larger one.
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

    /// Drops all keys and chooses a new seed.
    pub(super) fn clear(&mut self) {
        self.slots.fill((0, EMPTY));
        self.held = 0;
        self.seed = fold(self.seed, self.seed.rotate_left(17) ^ 0x452821e638d01377);
    }
}
