//! Lookup in hash tables of buckets (four keys in a row, and words that belong to them), with AVX-512 and vector AES.

use super::{AHEAD_BYTES, has_avx512};
use crate::{BLOCK_ROWS, COPIES, KeyTable, LANES, SecretHasher, Sums};
use std::arch::x86_64::*;

/// Number of keys that are hashed together: those that fit a vector.
const ROWS: usize = 8;

/// Reports whether the CPU has the instructions that lookups use.
pub(crate) fn has_aes() -> bool {
    has_avx512() && is_x86_feature_detected!("aes") && is_x86_feature_detected!("vaes")
}

/// Returns the hash of a masked key, by two rounds of AES. AES form of [`SecretHasher::hash`].
#[inline]
pub(crate) fn hash(hasher: &SecretHasher, masked: u64) -> u64 {
    debug_assert!(hasher.is_aes);
    // SAFETY: the caller checked `is_aes`, which `SecretHasher::new` sets only if `has_aes` found the instructions.
    unsafe { hash_one(hasher, masked) }
}

#[target_feature(enable = "aes")]
fn hash_one(hasher: &SecretHasher, masked: u64) -> u64 {
    let round = |number: usize| {
        let [low, high] = hasher.rounds[number];
        _mm_set_epi64x(high as i64, low as i64)
    };
    let state = _mm_set_epi64x(hasher.beside as i64, masked as i64);
    _mm_cvtsi128_si64(_mm_aesenc_si128(_mm_aesenc_si128(state, round(0)), round(1))) as u64
}

/// Secret words of a hasher, repeated in vectors, and the mask that turns hashes into positions of buckets.
#[derive(Clone, Copy)]
struct Secret {
    mask: __m512i,
    beside: __m512i,
    rounds: [__m512i; 2],
    starts: __m256i,
}

impl Secret {
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn new(hasher: &SecretHasher, starts: u32) -> Secret {
        let round = |[low, high]: [u64; 2]| _mm512_broadcast_i32x4(_mm_set_epi64x(high as i64, low as i64));
        Secret {
            mask: _mm512_set1_epi64(hasher.mask as i64),
            beside: _mm512_set1_epi64(hasher.beside as i64),
            rounds: [round(hasher.rounds[0]), round(hasher.rounds[1])],
            starts: _mm256_set1_epi32(starts as i32),
        }
    }

    /// Masks keys, computes the positions of their buckets, and reports whether a masked key is zero and so looks
    /// like a free slot.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,vaes")]
    fn prepare(&self, keys: &[i64], masked: &mut [u64; BLOCK_ROWS], starts: &mut [u32]) -> bool {
        let mut hidden = 0;
        let (vectors, rest) = keys.as_chunks::<ROWS>();
        let (to, rest_to) =
            masked.as_chunks_mut::<ROWS>().0.split_at_mut(vectors.len().min(BLOCK_ROWS / ROWS));
        let (starts, rest_starts) = starts.as_chunks_mut::<ROWS>();
        for ((keys, masked), starts) in vectors.iter().zip(to).zip(starts) {
            // SAFETY: each load and store has eight numbers, of 8, 8 and 4 bytes.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(keys.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES));
                let words = _mm512_xor_si512(_mm512_loadu_si512(keys.as_ptr().cast()), self.mask);
                hidden |= _mm512_testn_epi64_mask(words, words);
                _mm512_storeu_si512(masked.as_mut_ptr().cast(), words);
                _mm256_storeu_si256(starts.as_mut_ptr().cast(), self.starts(words));
            }
        }
        if let Some(masked) = rest_to.first_mut() {
            let mut last = [0; ROWS];
            last[..rest.len()].copy_from_slice(rest);
            let mut found = [0u32; ROWS];
            // SAFETY: each load and store has eight numbers, of 8, 8 and 4 bytes.
            unsafe {
                let words = _mm512_xor_si512(_mm512_loadu_si512(last.as_ptr().cast()), self.mask);
                hidden |= _mm512_testn_epi64_mask(words, words) & ((1u16 << rest.len()) - 1) as u8;
                _mm512_storeu_si512(masked.as_mut_ptr().cast(), words);
                _mm256_storeu_si256(found.as_mut_ptr().cast(), self.starts(words));
            }
            rest_starts.copy_from_slice(&found[..rest_starts.len()]);
        }
        hidden != 0
    }

    /// Returns the positions of the buckets of eight masked keys.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vaes")]
    fn starts(&self, masked: __m512i) -> __m256i {
        let twice = |state: __m512i| {
            _mm512_aesenc_epi128(_mm512_aesenc_epi128(state, self.rounds[0]), self.rounds[1])
        };
        // Hashes the keys of even and those of odd number apart, each with the secret word beside it, and puts the
        // hashes back in order.
        let even = twice(_mm512_unpacklo_epi64(masked, self.beside));
        let odd = twice(_mm512_unpackhi_epi64(masked, self.beside));
        let hashes = _mm512_unpacklo_epi64(even, odd);
        _mm256_and_si256(_mm512_cvtepi64_epi32(hashes), self.starts)
    }
}

/// Looks up each key in its bucket, and returns how many were not found. Sets `places` and `others` like
/// [`crate::find`], of which this is the form for a table whose hasher uses AES.
pub(crate) fn find(
    table: &KeyTable<'_>,
    keys: &[i64],
    ahead: &[i64],
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let mut masked = [0; BLOCK_ROWS];
    let places = &mut places[..keys.len()];
    // SAFETY: the caller checked `is_aes`, which `SecretHasher::new` sets only if `has_aes` found the instructions.
    // With `ADD` of 0 nothing is written to the words. `KeyTable::new` has checked that the words hold all buckets that
    // a masked hash can name.
    unsafe {
        let secret = Secret::new(table.hasher, looked_for_first(table.starts));
        if secret.prepare(keys, &mut masked, places) {
            return crate::portable::find(table, keys, ahead, places, others);
        }
        let sums = Sums { values: &[], copies: &mut [] };
        let words = table.words.as_ptr().cast_mut();
        match (is_small(table.starts), ahead.is_empty()) {
            (true, _) => block::<true, false, 0>(words, &secret, &masked, &[], sums, places, others),
            (false, true) => block::<false, false, 0>(words, &secret, &masked, &[], sums, places, others),
            (false, false) => block::<false, true, 0>(words, &secret, &masked, ahead, sums, places, others),
        }
    }
}

/// Looks up each key in its bucket, adds its value to the word that belongs to it, and returns how many keys were not
/// found. `starts` is the mask that turns a hash into the position of a bucket. Form of [`crate::find_and_add`] for a
/// hasher that uses AES.
#[allow(clippy::too_many_arguments)]
pub(crate) fn find_and_add(
    words: &mut [u64],
    starts: u32,
    hasher: &SecretHasher,
    keys: &[i64],
    ahead: &[i64],
    sums: Sums<'_>,
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let mut masked = [0; BLOCK_ROWS];
    let places = &mut places[..keys.len()];
    // SAFETY: the caller has checked `is_aes`, which `SecretHasher::new` sets only if `has_aes` found the instructions.
    // It has also checked that the words hold all buckets that a masked hash can name, that each bucket has at least
    // eight words, and the number of values and copies.
    unsafe {
        let secret = Secret::new(hasher, looked_for_first(starts));
        if secret.prepare(keys, &mut masked, places) {
            let table = KeyTable { words, hasher, starts };
            let count = crate::portable::find(&table, keys, ahead, places, others);
            crate::portable::add_found(words, sums, places, &others[..count]);
            return count;
        }
        let words = words.as_mut_ptr();
        match (is_small(starts), sums.copies.is_empty(), ahead.is_empty()) {
            (true, true, _) => block::<true, false, 1>(words, &secret, &masked, &[], sums, places, others),
            (true, false, _) => {
                block::<true, false, COPIES>(words, &secret, &masked, &[], sums, places, others)
            }
            (false, false, _) => {
                block::<false, false, COPIES>(words, &secret, &masked, &[], sums, places, others)
            }
            (false, true, true) => {
                block::<false, false, 1>(words, &secret, &masked, &[], sums, places, others)
            }
            (false, true, false) => {
                block::<false, true, 1>(words, &secret, &masked, ahead, sums, places, others)
            }
        }
    }
}

/// Number of words from which on a table is not small. Small tables are sparse, so most of their keys are in the slot
/// that their hash names. This slot is therefore looked at before the whole bucket, in small tables only.
const SMALL_WORDS: u32 = 1 << 15;

fn is_small(starts: u32) -> bool {
    starts < SMALL_WORDS
}

/// Returns the mask that turns a hash into the position that is looked at first: of one slot in small tables, of a
/// bucket in others.
fn looked_for_first(starts: u32) -> u32 {
    if is_small(starts) { starts | (LANES as u32 - 1) } else { starts }
}

/// Looks up masked keys (keys transformed by `secret`, as the table stores them) in the buckets at `places`. Returns
/// how many were not found, and puts their rows into `others`. `ADD` of 1 adds the value of each row to the sum beside
/// its key in the table. More than 1 adds to that many copies of the sums in `sums.copies` instead, to the next copy
/// with each row. 0 adds nothing and sets each place to the slot of its key. With `FIRST`, a place is the one slot
/// where its key most likely is. With `AHEAD`, the buckets of the keys in `ahead` are prefetched.
///
/// # Safety
/// There are no more places than masked keys. Each place is the position of a bucket of these words or, with `FIRST`,
/// of one of its slots, and so is what `secret` computes for the keys of `ahead`. If `ADD` is not 0, a bucket has at
/// least two words per key and there are as many values as places. If `ADD` is more than 1, there are that many
/// copies of equal length, each as long as all buckets.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,aes,vaes,bmi1,bmi2")]
unsafe fn block<const FIRST: bool, const AHEAD: bool, const ADD: usize>(
    words: *mut u64,
    secret: &Secret,
    masked: &[u64; BLOCK_ROWS],
    ahead: &[i64],
    sums: Sums<'_>,
    places: &mut [u32],
    others: &mut [u8; BLOCK_ROWS],
) -> usize {
    let rows = places.len();
    let mut ahead_starts = [0u32; BLOCK_ROWS];
    if AHEAD {
        let ahead = &ahead[..ahead.len().min(rows)];
        secret.prepare(ahead, &mut [0; BLOCK_ROWS], &mut ahead_starts[..ahead.len()]);
    }
    let length = sums.copies.len() / ADD.max(1);
    let (starts, masked, values) = (places.as_mut_ptr(), masked.as_ptr(), sums.values.as_ptr());
    let to = if ADD > 1 { sums.copies.as_mut_ptr() } else { words };
    let mut count = 0usize;
    let ahead_starts = ahead_starts.as_ptr();
    let mut step = |row: usize, copy: usize| {
        // SAFETY: the caller guarantees that places lie in the words, and the number of values and copies. A row is
        // below the number of places, and `trailing_zeros` of a mask of four slots is below 4.
        unsafe {
            if AHEAD {
                _mm_prefetch::<_MM_HINT_T0>(words.wrapping_add(*ahead_starts.add(row) as usize).cast());
            }
            let key = *masked.add(row);
            let mut place = *starts.add(row) as usize;
            if !FIRST || *words.add(place) != key {
                let start = if FIRST { place & !(LANES - 1) } else { place };
                let bucket = _mm256_loadu_si256(words.add(start).cast());
                let equal = _mm256_cmpeq_epi64_mask(bucket, _mm256_set1_epi64x(key as i64));
                if equal == 0 {
                    *starts.add(row) = start as u32;
                    others[count & (BLOCK_ROWS - 1)] = row as u8;
                    count = count.wrapping_add(1);
                    return;
                }
                place = start.wrapping_add(equal.trailing_zeros() as usize);
            }
            if ADD == 0 {
                *starts.add(row) = place as u32;
            } else {
                let word = to.add(copy.wrapping_mul(length).wrapping_add(place).wrapping_add(LANES));
                *word = (*word).wrapping_add(*values.add(row) as u64);
            }
        }
    };
    // Each copy has an instruction of its own, because the CPU predicts per instruction whether a load must wait for
    // an earlier store.
    let mut row = 0;
    while row < rows & !(COPIES - 1) {
        (0..COPIES).for_each(|copy| step(row.wrapping_add(copy), if ADD > 1 { copy } else { 0 }));
        row = row.wrapping_add(COPIES);
    }
    (row..rows).for_each(|row| step(row, if ADD > 1 { row % COPIES } else { 0 }));
    count
}

/// Reports whether all places are within this many words.
#[inline]
fn are_within(places: &[u32], words: usize) -> bool {
    if !has_avx512() {
        return places.iter().all(|place| (*place as usize) < words);
    }
    // SAFETY: `has_avx512` was checked above.
    let most = unsafe { most(places) };
    places.is_empty() || (most as usize) < words
}

#[target_feature(enable = "avx512f")]
fn most(places: &[u32]) -> u32 {
    let mut most = _mm512_setzero_si512();
    let (vectors, rest) = places.as_chunks::<16>();
    for vector in vectors {
        // SAFETY: the vector has sixteen numbers.
        most = _mm512_max_epu32(most, unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) });
    }
    rest.iter().fold(_mm512_reduce_max_epu32(most), |most, place| most.max(*place))
}

/// Replaces the word at each place by the result of `with`. Form of [`crate::update`] that checks all places at once.
#[inline(always)]
pub(crate) fn update(words: &mut [u64], places: &[u32], mut with: impl FnMut(usize, u64) -> u64) {
    assert!(are_within(places, words.len()), "places beyond {} words", words.len());
    for (row, place) in places.iter().enumerate() {
        // SAFETY: `are_within` has checked that no place is beyond the words.
        let word = unsafe { words.get_unchecked_mut(*place as usize) };
        *word = with(row, *word);
    }
}

/// Adds each value to the word at its place. Returns false, with nothing done, if the CPU has no AVX-512. AVX-512 form
/// of [`crate::add`].
pub(crate) fn add(words: &mut [u64], places: &[u32], values: &[i64]) -> bool {
    if !has_avx512() {
        return false;
    }
    assert!(are_within(places, words.len()), "places beyond {} words", words.len());
    // SAFETY: `has_avx512` was checked above, and `are_within` has checked that no place is beyond the words.
    unsafe { add_block(words, places, values) };
    true
}

/// # Safety
/// No place is beyond the words.
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
unsafe fn add_block(words: &mut [u64], places: &[u32], values: &[i64]) {
    let ((places, rest), (values, rest_values)) = (places.as_chunks::<ROWS>(), values.as_chunks::<ROWS>());
    for (places, values) in places.iter().zip(values) {
        // SAFETY: eight numbers of 4 bytes are loaded, and the caller guarantees the places.
        unsafe {
            let vector = _mm256_loadu_si256(places.as_ptr().cast());
            if _mm256_cmpeq_epi32_mask(vector, _mm256_set1_epi32(places[0] as i32)) == u8::MAX {
                // All eight values go to one word. One by one, each addition would wait for the one before.
                let sum = _mm512_reduce_add_epi64(_mm512_loadu_si512(values.as_ptr().cast()));
                let word = words.get_unchecked_mut(places[0] as usize);
                *word = word.wrapping_add(sum as u64);
                continue;
            }
            for lane in 0..ROWS {
                let word = words.get_unchecked_mut(places[lane] as usize);
                *word = word.wrapping_add(values[lane] as u64);
            }
        }
    }
    for (place, value) in rest.iter().zip(rest_values) {
        // SAFETY: the caller guarantees the places.
        let word = unsafe { words.get_unchecked_mut(*place as usize) };
        *word = word.wrapping_add(*value as u64);
    }
}

/// Returns the bitwise OR of the magnitudes of the values. `None` if the CPU has no AVX-512. AVX-512 form of
/// [`crate::ones`].
pub(crate) fn ones(values: &[i64]) -> Option<u64> {
    // SAFETY: `has_avx512` has found the instructions.
    has_avx512().then(|| unsafe { ones_of(values) })
}

#[target_feature(enable = "avx512f")]
fn ones_of(values: &[i64]) -> u64 {
    let (vectors, rest) = values.as_chunks::<ROWS>();
    let mut ones = _mm512_setzero_si512();
    for vector in vectors {
        _mm_prefetch::<_MM_HINT_T1>(vector.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES));
        // SAFETY: the vector has eight numbers of 8 bytes.
        let vector = unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) };
        ones = _mm512_or_si512(ones, _mm512_xor_si512(vector, _mm512_srai_epi64::<63>(vector)));
    }
    _mm512_reduce_or_epi64(ones) as u64 | crate::portable::ones(rest)
}
