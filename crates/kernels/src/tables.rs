//! Lookup of keys in a hash table of buckets, and additions to the words that belong to the keys.
//!
//! The idea: a bucket has four keys in a row, and behind them the words that belong to each. One vector comparison
//! looks at the whole bucket, without a branch that depends on the key. Eight keys are hashed at once. Keys that are
//! not in their first bucket are listed for the caller, who decides where else to look.

use crate::portable;

/// Number of keys of a bucket. They are its first words. Each following group of as many words has one word per key, in
/// the same order.
pub const LANES: usize = 4;
/// Most keys of one lookup, so that the number of a key in the block fits a byte.
pub const BLOCK_ROWS: usize = 256;

/// Hash function for keys of 64 bits, with a secret.
///
/// It is two rounds of AES over the key and a secret word, under secret round keys, if the CPU has AES instructions.
/// After two rounds each bit depends on each bit of the key. Without AES, the key is XORed with a secret mask and
/// multiplied by a secret odd number, and the two halves of the 128-bit product are XORed.
#[derive(Clone, Copy, Debug)]
pub struct SecretHasher {
    /// Secret with which each key is XORed before it is hashed or stored.
    pub(crate) mask: u64,
    /// Secret that fills the 128-bit block of AES together with the masked key.
    pub(crate) beside: u64,
    /// Secret round keys of AES. Without AES, the first word is the factor.
    pub(crate) rounds: [[u64; 2]; 2],
    /// True if rounds of AES are used. Never true on a CPU without the instructions.
    pub(crate) is_aes: bool,
}

impl SecretHasher {
    /// Makes a hasher from random words.
    pub fn new(secret: [u64; 6]) -> SecretHasher {
        let [mask, beside, first, second, third, fourth] = secret;
        #[cfg(target_arch = "x86_64")]
        let is_aes = crate::x86::has_aes();
        #[cfg(not(target_arch = "x86_64"))]
        let is_aes = false;
        SecretHasher { mask, beside, rounds: [[first, second], [third, fourth]], is_aes }
    }

    /// Reports whether the hash is made of rounds of AES.
    pub fn is_aes(&self) -> bool {
        self.is_aes
    }

    /// Returns a key in the form in which tables hold it, XORed with a secret. A masked key of zero looks like a free
    /// slot, so it cannot be found in a bucket.
    #[inline(always)]
    pub fn masked(&self, key: u64) -> u64 {
        key ^ self.mask
    }

    /// Returns the hash of a masked key.
    #[inline]
    pub fn hash(&self, masked: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.is_aes {
            return crate::x86::hash(self, masked);
        }
        portable::hash(self, masked)
    }
}

/// Hash table in a slice of words. Its buckets are the first `buckets * stride` words.
#[derive(Clone, Copy, Debug)]
pub struct KeyTable<'t> {
    pub(crate) words: &'t [u64],
    pub(crate) hasher: &'t SecretHasher,
    /// Mask that turns a hash into the position of a bucket: the index of its first word.
    pub(crate) starts: u32,
}

impl<'t> KeyTable<'t> {
    /// Makes a table of `buckets` buckets of `stride` words each.
    ///
    /// # Panics
    /// If `buckets` or `stride` is no power of two, a bucket is shorter than its keys, there are too few words, or
    /// their number does not fit 32 bits.
    pub fn new(words: &'t [u64], buckets: usize, stride: usize, hasher: &'t SecretHasher) -> KeyTable<'t> {
        let all = buckets.checked_mul(stride).and_then(|words| u32::try_from(words).ok()).unwrap_or(u32::MAX);
        assert!(
            buckets.is_power_of_two()
                && stride.is_power_of_two()
                && stride >= LANES
                && all < u32::MAX
                && all as usize <= words.len(),
            "{buckets} buckets of {stride} words in {} words",
            words.len()
        );
        KeyTable { words, hasher, starts: all - stride as u32 }
    }

    /// Returns the position of the bucket of a masked key: the index of its first word.
    #[inline]
    pub fn start(&self, masked: u64) -> usize {
        (self.hasher.hash(masked) as u32 & self.starts) as usize
    }
}

/// Looks up each key in its bucket. Returns how many keys were not found. The indexes of these are in `others`, in
/// order, and their entries in `places` are set to the position of their bucket. The entries of all other keys are set
/// to the position of the key. A masked key of zero is never found. The buckets of the keys in `ahead` are prefetched
/// if that pays.
///
/// # Panics
/// If there are more than [`BLOCK_ROWS`] keys, or fewer places than keys.
pub fn find(
    table: &KeyTable<'_>,
    keys: &[i64],
    ahead: &[i64],
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    assert!(
        keys.len() <= BLOCK_ROWS && keys.len() <= places.len(),
        "{} keys and {} places: at most {BLOCK_ROWS} keys are permitted, and no more than places",
        keys.len(),
        places.len()
    );
    #[cfg(target_arch = "x86_64")]
    if table.hasher.is_aes {
        return crate::x86::find(table, keys, ahead, places, others);
    }
    portable::find(table, keys, ahead, places, others)
}

/// Number of copies of the sums that [`find_and_add`] adds to in turn.
pub const COPIES: usize = 4;

/// Values that [`find_and_add`] adds, and memory where it adds them.
#[derive(Debug)]
pub struct Sums<'t> {
    /// Value to add for each key.
    pub values: &'t [i64],
    /// Empty, or [`COPIES`] copies of equal length, each at least as long as all buckets together. Row n then adds to
    /// copy n modulo [`COPIES`] instead of the table, and the caller adds the copies up. Without copies, rows of few
    /// groups wait for each other's stores. Copies should not lie a multiple of 4 KiB apart, because the CPU compares
    /// addresses of loads and stores by their low 12 bits.
    pub copies: &'t mut [u64],
}

/// Shape of a table, with the arguments of [`KeyTable::new`].
#[derive(Clone, Copy, Debug)]
pub struct TableShape<'t> {
    /// Number of buckets.
    pub buckets: usize,
    /// Words of a bucket.
    pub stride: usize,
    /// Hasher that gives the bucket of a key.
    pub hasher: &'t SecretHasher,
}

/// Looks up keys like [`find`], and adds the value of each key that was found to the first of the words that belong to
/// it behind the bucket's keys. The sum wraps. In `places`, only the entries of keys that were not found are of use.
///
/// # Panics
/// Like [`KeyTable::new`] and [`find`]; also if a bucket has fewer than two words per key, or there is not one value
/// per key, or the copies are too short.
pub fn find_and_add(
    words: &mut [u64],
    shape: TableShape<'_>,
    keys: &[i64],
    ahead: &[i64],
    sums: Sums<'_>,
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let TableShape { buckets, stride, hasher } = shape;
    let table = KeyTable::new(words, buckets, stride, hasher);
    assert!(
        keys.len() <= BLOCK_ROWS
            && keys.len() <= places.len()
            && keys.len() == sums.values.len()
            && stride >= 2 * LANES
            && (sums.copies.is_empty()
                || sums.copies.len().is_multiple_of(COPIES)
                    && sums.copies.len() / COPIES >= buckets * stride),
        "{} keys, {} values, {} places, {} copies of {buckets} buckets of {stride} words",
        keys.len(),
        sums.values.len(),
        places.len(),
        sums.copies.len()
    );
    #[cfg(target_arch = "x86_64")]
    if hasher.is_aes {
        let starts = table.starts;
        return crate::x86::find_and_add(words, starts, hasher, keys, ahead, sums, places, others);
    }
    let count = portable::find(&table, keys, ahead, places, others);
    portable::add_found(words, sums, &places[..keys.len()], &others[..count]);
    count
}

/// Replaces the word at each place by the result of `with`, which gets the row number and the word. Rows are handled
/// in order, because a place may occur more than once.
///
/// # Panics
/// If a place is beyond the words.
#[inline(always)]
pub fn update(words: &mut [u64], places: &[u32], with: impl FnMut(usize, u64) -> u64) {
    #[cfg(target_arch = "x86_64")]
    crate::x86::update(words, places, with);
    #[cfg(not(target_arch = "x86_64"))]
    portable::update(words, places, with);
}

/// Adds each value to the word at its place. The sum wraps.
///
/// # Panics
/// If a place is beyond the words, or there is not one value per place.
pub fn add(words: &mut [u64], places: &[u32], values: &[i64]) {
    assert!(places.len() == values.len(), "{} places of {} values", places.len(), values.len());
    #[cfg(target_arch = "x86_64")]
    if crate::x86::add(words, places, values) {
        return;
    }
    portable::add(words, places, values);
}

/// Returns the bitwise OR of the magnitudes of the values, where the magnitude of a negative value counts one less.
/// No magnitude is greater than the result plus 1.
pub fn ones(values: &[i64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(ones) = crate::x86::ones(values) {
        return ones;
    }
    portable::ones(values)
}
