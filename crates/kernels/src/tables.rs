//! Looking keys up in a table of buckets, and adding to what lies beside them.
//!
//! The idea: a bucket is four keys in a row, and behind them what belongs to each; one comparison of a vector is a look
//! at all of it, without a branch that depends on the key. Eight keys are hashed at once. Only keys that are not in the
//! bucket that they hash to are listed for the caller, who knows where else they may be.

use crate::portable;

/// Keys of a bucket. Each word of the rest belongs to one of them, in the same order.
pub const LANES: usize = 4;
/// Keys that are looked up at once: their numbers in a block are bytes.
pub const BLOCK_ROWS: usize = 256;

/// Spreads keys of 64 bits under a secret.
///
/// With AES instructions it is two rounds of AES over the key and a secret word, under secret round keys: behind two
/// rounds each bit depends on each bit of the key. Without, the key over a secret mask is multiplied by a secret odd
/// number, and both halves of the 128 bits are folded.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    pub(crate) mask: u64,
    pub(crate) beside: u64,
    pub(crate) rounds: [[u64; 2]; 2],
    /// Never set where the CPU does not have the instructions.
    pub(crate) is_aes: bool,
}

impl Hasher {
    /// Of a secret of random words.
    pub fn new(secret: [u64; 6]) -> Hasher {
        let [mask, beside, first, second, third, fourth] = secret;
        #[cfg(target_arch = "x86_64")]
        let is_aes = crate::x86::has_aes();
        #[cfg(not(target_arch = "x86_64"))]
        let is_aes = false;
        Hasher { mask, beside, rounds: [[first, second], [third, fourth]], is_aes }
    }

    /// Whether its hash is made of rounds of AES.
    pub fn is_aes(&self) -> bool {
        self.is_aes
    }

    /// A key as the table holds it. The key that is all zero then is what free places look like.
    #[inline(always)]
    pub fn masked(&self, key: u64) -> u64 {
        key ^ self.mask
    }

    /// The hash of a masked key.
    #[inline]
    pub fn hash(&self, masked: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.is_aes {
            return crate::x86::hash(self, masked);
        }
        portable::hash(self, masked)
    }
}

/// Words of which the first `buckets` times `stride` are buckets.
#[derive(Clone, Copy, Debug)]
pub struct Table<'t> {
    pub(crate) words: &'t [u64],
    pub(crate) hasher: &'t Hasher,
    /// What of a hash is where a bucket begins.
    pub(crate) starts: u32,
}

impl<'t> Table<'t> {
    /// Buckets of so many words each.
    ///
    /// # Panics
    /// If a number is no power of two, a bucket is shorter than its keys, or the words are not as many or more than 32
    /// bits count.
    pub fn new(words: &'t [u64], buckets: usize, stride: usize, hasher: &'t Hasher) -> Table<'t> {
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
        Table { words, hasher, starts: all - stride as u32 }
    }

    /// Where the bucket of a masked key begins.
    #[inline]
    pub fn start(&self, masked: u64) -> usize {
        (self.hasher.hash(masked) as u32 & self.starts) as usize
    }
}

/// Looks each key up in its bucket, and says how many were not found: their numbers are the first of `others`, in
/// order, and their places where their buckets begin. A key that is all zero behind the mask is never found. The
/// buckets of the keys `ahead` are asked for from memory.
///
/// # Panics
/// If there are more than [`BLOCK_ROWS`] keys, or fewer places than keys.
pub fn find(
    table: &Table<'_>,
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

/// Copies of accumulators that [`find_and_add`] adds to in turn.
pub const COPIES: usize = 4;

/// What [`find_and_add`] does beside looking up.
#[derive(Debug)]
pub struct Sums<'t> {
    /// A value for each key.
    pub values: &'t [i64],
    /// Empty, or [`COPIES`] of equal length, each with at least as many words as all buckets have: a row then adds to
    /// the copy of its number instead of the table, and whoever owns them adds them up. Rows of few groups otherwise
    /// wait for each other. Copies should not be a multiple of 4 KiB apart, as the CPU tells stores apart by that.
    pub copies: &'t mut [u64],
}

/// How buckets lie in their words, as [`Table::new`] wants it.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'t> {
    /// How many there are.
    pub buckets: usize,
    /// Words of each.
    pub stride: usize,
    /// What says where a key is.
    pub hasher: &'t Hasher,
}

/// Looks keys up as [`find`] does, and adds the value of each that was found to
/// the word behind its bucket's keys, which wraps. Places are set for the others only.
///
/// # Panics
/// As those two do; if a bucket has less than two words for each key, or values or copies are not as many as they
/// should.
pub fn find_and_add(
    words: &mut [u64],
    shape: Shape<'_>,
    keys: &[i64],
    ahead: &[i64],
    sums: Sums<'_>,
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let Shape { buckets, stride, hasher } = shape;
    let table = Table::new(words, buckets, stride, hasher);
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

/// Replaces the words at these places by what `with` makes of them, given the number of the row: one row behind the
/// other, as a place may come again.
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

/// Adds each value to the word at its place, which wraps.
///
/// # Panics
/// If a place is beyond the words, or there are not as many values.
pub fn add(words: &mut [u64], places: &[u32], values: &[i64]) {
    assert!(places.len() == values.len(), "{} places of {} values", places.len(), values.len());
    #[cfg(target_arch = "x86_64")]
    if crate::x86::add(words, places, values) {
        return;
    }
    portable::add(words, places, values);
}

/// All ones of the magnitudes of these values, one below each that is negative: none is beyond as many bits.
pub fn ones(values: &[i64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(ones) = crate::x86::ones(values) {
        return ones;
    }
    portable::ones(values)
}
