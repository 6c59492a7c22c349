//! Kernels with AVX2 and AVX-512.
//!
//! There are two kinds of unsafe code. Some blocks call functions that need instructions which [`has_avx2`] or
//! [`has_avx512`] has found; [`Kernels`](crate::Kernels) are only made if they are there. Other blocks access memory
//! through pointers; the note at each block argues why the bounds hold.
#![allow(unsafe_code)]

use crate::dense_table::{DenseTable, FREE};
use crate::hash::{PartitionHasher, bucket};
use crate::memory::tuples_mut;
use crate::one_pass::Scatter;
use crate::table::{BATCH_ROWS, Entry, FAR_LINES, Found, Hit, View, follow};
use crate::{CacheLine, JoinError, Tuple, portable};
use std::arch::x86_64::*;

/// Number of tuples that are looked up between prefetching a tuple's bucket and looking at it.
const AHEAD_ROWS: usize = 24;

pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

pub(crate) fn has_avx512() -> bool {
    has_avx2() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
}

/// Makes stores that bypass the caches visible to other threads before any later store.
pub(crate) fn fence() {
    // SAFETY: `sfence` belongs to SSE, which every x86-64 CPU has. It accesses no memory.
    unsafe { _mm_sfence() };
}

/// Prefetches a cache line.
#[inline(always)]
pub(crate) fn ask(at: *const u8) {
    // SAFETY: a prefetch of any address is harmless. It belongs to SSE, which every x86-64 CPU has.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// AVX2 version of [`Kernels::scatter`](crate::Kernels).
pub(crate) fn scatter_avx2<'a>(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
) -> Result<(), JoinError> {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2<'a>(
        hasher: &PartitionHasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
    ) -> Result<(), JoinError> {
        scatter_by(hasher, tuples, scatter, refill, |from, to| {
            // SAFETY: both references are to lines of 64 bytes, aligned to 64. The caller of `with_avx2` has checked
            // that the CPU has AVX2.
            unsafe {
                let (from, to) = (from.0.as_ptr().cast::<__m256i>(), to.0.as_mut_ptr().cast::<__m256i>());
                let (low, high) = (_mm256_load_si256(from), _mm256_load_si256(from.add(1)));
                _mm256_stream_si256(to, low);
                _mm256_stream_si256(to.add(1), high);
            }
        })
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx2(hasher, tuples, scatter, refill) }
}

/// AVX-512 version of [`Kernels::scatter`](crate::Kernels).
pub(crate) fn scatter_avx512<'a>(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
) -> Result<(), JoinError> {
    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    fn with_avx512<'a>(
        hasher: &PartitionHasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
    ) -> Result<(), JoinError> {
        scatter_by(hasher, tuples, scatter, refill, |from, to| {
            // SAFETY: both references are to lines of 64 bytes, aligned to 64. The caller of `with_avx512` has checked
            // that the CPU has AVX-512.
            unsafe {
                let line = _mm512_load_si512(from.0.as_ptr().cast());
                _mm512_stream_si512(to.0.as_mut_ptr().cast(), line);
            }
        })
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx512(hasher, tuples, scatter, refill) }
}

/// Appends each tuple to the buffer of its partition. Copies a full buffer by `stream`, which bypasses the caches, to
/// the partition's memory. Calls `refill` if that memory is used up.
#[inline(always)]
fn scatter_by<'a>(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
    stream: impl Fn(&CacheLine, &mut CacheLine),
) -> Result<(), JoinError> {
    let partitions = hasher.partitions();
    let Scatter { buffers, lines, next, counts, places } = scatter;
    let (lines, rows) = (*lines, *lines * 4);
    assert!(buffers.len() == partitions * lines && lines.is_power_of_two() && next.len() == partitions);
    let last = rows as u32 - 1;
    let slots = tuples_mut(buffers).as_mut_ptr();
    let next = next.as_mut_ptr();
    for tuple in tuples {
        let partition = hasher.partition(tuple.key);
        // SAFETY: `partition` is less than `partitions`, which is the length of `next` (asserted above). Its entry is
        // a slot of the partition's buffer, because it returns to the first slot when it would leave the last.
        let behind = unsafe {
            let next = next.add(partition);
            let slot = *next;
            slots.add(slot as usize).write(*tuple);
            *next = slot.wrapping_add(1);
            slot.wrapping_add(1)
        };
        if behind & last == 0 {
            // SAFETY: `partition` is an index of `next`, as above. This write comes first, so that the state is
            // consistent if the calls below fail.
            unsafe { *next.add(partition) = behind.wrapping_sub(rows as u32) };
            counts[partition] += rows as u32;
            let to = places[partition].next(lines, || refill(partition))?;
            // SAFETY: the buffer of `partition` is `lines` whole lines at this offset (asserted above). Nobody writes
            // it while `from` exists.
            let from =
                unsafe { std::slice::from_raw_parts(slots.add(partition * rows).cast::<CacheLine>(), lines) };
            from.iter().zip(to).for_each(|(from, to)| stream(from, to));
        }
    }
    Ok(())
}

/// Inserts tuples into the buckets of one partition, whose free slots hold the key `marker`. Returns how many were
/// inserted: all, or those before the first one whose key is already there. AVX2 version of `Kernels::insert`.
pub(crate) fn insert(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    buckets: &mut [CacheLine],
    marker: i64,
) -> usize {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2(
        hasher: &PartitionHasher,
        tuples: &[Tuple],
        buckets: &mut [CacheLine],
        marker: i64,
    ) -> usize {
        let (count, free) = (buckets.len(), _mm256_set1_epi64x(marker));
        for (at, tuple) in tuples.iter().enumerate() {
            let key = _mm256_set1_epi64x(tuple.key);
            let mut place = bucket(hasher.hash(tuple.key), count as u32);
            loop {
                let CacheLine(line) = &mut buckets[place];
                // SAFETY: the first half of a line is 32 bytes, aligned to 64.
                let keys = unsafe { _mm256_load_si256(line.as_ptr().cast()) };
                if lanes(_mm256_cmpeq_epi64(keys, key)) != 0 {
                    return at;
                }
                let lane = lanes(_mm256_cmpeq_epi64(keys, free)).trailing_zeros() as usize;
                if lane < 4 {
                    line[lane] = tuple.key;
                    line[lane + 4] = tuple.payload;
                    break;
                }
                place = follow(place, count);
            }
        }
        tuples.len()
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx2(hasher, tuples, buckets, marker) }
}

/// Returns a bit for each SIMD lane, set if all bits of the lane are set.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(vector: __m256i) -> u32 {
    _mm256_movemask_pd(_mm256_castsi256_pd(vector)) as u32
}

/// Looks up at most [`BATCH_ROWS`] tuples, and returns how many have a key that is in the table. Writes a hit for each
/// of these to `found.hits`: the word stored with the key, and the index of the tuple. If the table is large, the
/// buckets for `ahead`, the next batch, are prefetched. AVX2 version of `Kernels::find`.
pub(crate) fn find(view: &View<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2(view: &View<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
        let Found { hits, places, .. } = found;
        let mut count = 0;
        by_entries(view, tuples, ahead, places, |at, _, word, is_found| {
            // SAFETY: at most as many tuples were found as came before this one. `by_entries` checked that a batch has
            // at most `BATCH_ROWS` tuples, so there is room for one more.
            *unsafe { hits.get_unchecked_mut(count) } = Hit { word, at: at as u32 };
            count = count.wrapping_add(usize::from(is_found));
        });
        count
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx2(view, tuples, ahead, found) }
}

/// Looks up tuples as [`find`] does, but writes other results for those whose keys are in the table: the word stored
/// with the key to `found.builds`, and the payload of the tuple to `found.probes`. AVX2 version of
/// `Kernels::find_pairs`.
pub(crate) fn find_pairs(view: &View<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2(view: &View<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
        let Found { builds, probes, places, .. } = found;
        let mut count = 0;
        by_entries(view, tuples, ahead, places, |_, payload, word, is_found| {
            // SAFETY: at most as many tuples were found as came before this one, and `by_entries` checked that there
            // are at most `BATCH_ROWS`. Both arrays have one slot more.
            unsafe {
                *builds.get_unchecked_mut(count) = word;
                *probes.get_unchecked_mut(count) = payload;
            }
            count = count.wrapping_add(usize::from(is_found));
        });
        count
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx2(view, tuples, ahead, found) }
}

/// Calls `take` for each tuple in order: its index, its payload, the word stored with its key, and true if the key was
/// found. Must be inlined into a function that is compiled for AVX2.
#[inline(always)]
fn by_entries(
    view: &View<'_>,
    tuples: &[Tuple],
    ahead: &[Tuple],
    places: &mut [u32; BATCH_ROWS],
    take: impl FnMut(usize, i64, i64, bool),
) {
    assert!(tuples.len() <= BATCH_ROWS, "{} tuples", tuples.len());
    match view.entries() {
        [entry] if view.lines.len() < FAR_LINES => find_near(view, *entry, tuples, take),
        [entry] => find_far(view, |_| *entry, tuples, ahead, places, take),
        entries => {
            let shift = view.hasher.shift;
            // SAFETY: `View::new` checked that there are as many entries as these bits can name.
            let entry = |hash: u64| unsafe { *entries.get_unchecked((hash >> shift) as usize) };
            find_far(view, entry, tuples, ahead, places, take);
        }
    }
}

/// Looks up tuples in a table of one partition that is small enough for a cache, so nothing is prefetched.
#[inline(always)]
fn find_near(view: &View<'_>, entry: Entry, tuples: &[Tuple], mut take: impl FnMut(usize, i64, i64, bool)) {
    let hasher = view.hasher;
    let Entry { first, buckets, marker } = entry;
    let lines = view.lines[first as usize..].as_ptr();
    for (at, tuple) in tuples.iter().enumerate() {
        let place = bucket(hasher.hash(tuple.key), buckets);
        // SAFETY: `View::new` checked that all buckets of an entry are within the lines.
        let (word, is_found) = unsafe { look(lines.add(place), tuple.key, marker) };
        match word {
            Some(word) => take(at, tuple.payload, word, is_found),
            None => behind(view, at, tuple, &mut take),
        }
    }
}

/// Looks for a key in a bucket, whose free slots hold the key `marker`. Returns the word stored with it, and true if it
/// was found. The word is `None` if the bucket is full and does not have the key, which may then be in the next bucket.
///
/// # Safety
/// The CPU must have AVX2, and `line` must be valid.
#[inline(always)]
unsafe fn look(line: *const CacheLine, key: i64, marker: i64) -> (Option<i64>, bool) {
    // SAFETY: the caller promises a valid line. It has eight words, and its first half is 32 bytes, aligned to 64.
    unsafe {
        let line = line.cast::<i64>();
        let keys = _mm256_load_si256(line.cast());
        let equal = lanes(_mm256_cmpeq_epi64(keys, _mm256_set1_epi64x(key)));
        // One branch for both certain results, found and not in the table. It hardly depends on the key, so it is
        // predicted well.
        let is_open = u32::from(*line.add(3) == marker);
        if equal | is_open == 0 {
            return (None, false);
        }
        let lane = (equal.trailing_zeros() & 3) as usize;
        (Some(*line.add(4 + lane)), equal != 0)
    }
}

/// Looks up a tuple that needs more than its first bucket: that bucket is full, or the free slots of its partition hold
/// another key than those of nearly all partitions.
#[inline(always)]
fn behind(view: &View<'_>, at: usize, tuple: &Tuple, take: &mut impl FnMut(usize, i64, i64, bool)) {
    match slowly(view, tuple.key) {
        Some(word) => take(at, tuple.payload, word, true),
        None => take(at, tuple.payload, 0, false),
    }
}

#[cold]
#[inline(never)]
fn slowly(view: &View<'_>, key: i64) -> Option<i64> {
    portable::find_one(view, key)
}

/// Looks up tuples in a table that is too large for a cache. Buckets are prefetched some tuples ahead.
#[inline(always)]
fn find_far(
    view: &View<'_>,
    entry: impl Fn(u64) -> Entry,
    tuples: &[Tuple],
    ahead: &[Tuple],
    places: &mut [u32; BATCH_ROWS],
    mut take: impl FnMut(usize, i64, i64, bool),
) {
    let hasher = view.hasher;
    let (lines, marker) = (view.lines.as_ptr(), view.usual_marker());
    let place = |key: i64| {
        let hash = hasher.hash(key);
        let Entry { first, buckets, marker: own } = entry(hash);
        first.wrapping_add(bucket(hash, buckets) as u32) | (u32::from(own != marker) << 31)
    };
    let ask = |place: u32| {
        // SAFETY: a prefetch of any address is harmless. It belongs to SSE, which every x86-64 CPU has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add((place & !ODD) as usize).cast()) };
    };
    // The call for the batch before this one has prefetched the buckets of these tuples.
    let first = tuples.len().min(AHEAD_ROWS);
    for (tuple, into) in tuples[..first].iter().zip(&mut *places) {
        *into = place(tuple.key);
    }
    let mut ahead = ahead.iter();
    for (at, tuple) in tuples.iter().enumerate() {
        if let Some(later) = tuples.get(at + AHEAD_ROWS) {
            let later = place(later.key);
            places[(at + AHEAD_ROWS) % BATCH_ROWS] = later;
            ask(later);
        } else if let Some(later) = ahead.next() {
            // The tuples of this batch are prefetched, so the first ones of the next batch follow.
            ask(place(later.key));
        }
        let place = places[at % BATCH_ROWS];
        // SAFETY: `View::new` checked that all buckets of an entry are within the lines.
        let (word, is_found) = unsafe { look(lines.add((place & !ODD) as usize), tuple.key, marker) };
        match word {
            Some(word) if is_found | (place & ODD == 0) => take(at, tuple.payload, word, is_found),
            _ => behind(view, at, tuple, &mut take),
        }
    }
}

/// Bit that is set in the index of a bucket if free slots of its partition hold another key than those of nearly all
/// partitions.
const ODD: u32 = 1 << 31;

/// Looks up tuples in a table indexed by rank (a key without the low bits that help to name its partition). Returns how
/// many have a key in the table. Writes their words in the table to `found.builds` and their own payloads to
/// `found.probes`. Takes four tuples at a time if the table fits a cache. AVX2 version of `Kernels::find_direct_pairs`.
pub(crate) fn find_direct_pairs(
    direct: &DenseTable<'_>,
    tuples: &[Tuple],
    ahead: &[Tuple],
    found: &mut Found,
) -> usize {
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn with_avx2(direct: &DenseTable<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
        let Some((span, table)) = direct.near() else {
            return direct.find_pairs(tuples, ahead, ask, found);
        };
        assert!(
            tuples.len() <= BATCH_ROWS && table.len() == span.ranks as usize + 1,
            "{} tuples",
            tuples.len()
        );
        let (hasher, Found { builds, probes, .. }) = (direct.hasher(), found);
        let bits = hasher.bits();
        // AVX2 has no arithmetic right shift of 64 bits. Flipping the sign bit turns keys into unsigned numbers of the
        // same order. Their ranks are then too large by a constant, which `base` includes.
        let sign = _mm256_set1_epi64x(i64::MIN);
        let base = _mm256_set1_epi64x(span.base.wrapping_add(1 << (63 - bits)));
        let (shift, ranks) = (_mm_cvtsi32_si128(bits as i32), i64::from(span.ranks));
        let (most, above) = (_mm256_set1_epi64x(ranks), _mm256_set1_epi64x(ranks ^ i64::MIN));
        let free = _mm256_set1_epi64x(FREE);
        let mut count = 0_usize;
        let (blocks, rest) = tuples.as_chunks::<4>();
        for (line, block) in blocks.iter().enumerate() {
            ask(ahead.as_ptr().wrapping_add(line * 4).cast());
            // SAFETY: four tuples are twice 32 bytes, with key and payload alternating.
            let (front, back) = unsafe {
                let block = block.as_ptr().cast::<__m256i>();
                (_mm256_loadu_si256(block), _mm256_loadu_si256(block.add(1)))
            };
            // The four lanes of both results belong to tuples 0, 2, 1 and 3, in this order.
            let (keys, payloads) = (_mm256_unpacklo_epi64(front, back), _mm256_unpackhi_epi64(front, back));
            let ranks = _mm256_sub_epi64(_mm256_srl_epi64(_mm256_xor_si256(keys, sign), shift), base);
            let is_beyond = _mm256_cmpgt_epi64(_mm256_xor_si256(ranks, sign), above);
            let places = _mm256_blendv_epi8(ranks, most, is_beyond);
            // SAFETY: the blend above left no index greater than `ranks`, and the table has `ranks + 1` words.
            let words = unsafe { _mm256_i64gather_epi64::<8>(table.as_ptr(), places) };
            let hits = lanes(_mm256_cmpeq_epi64(words, free)) ^ 0b1111;
            // SAFETY: at most as many tuples were found as came before these four. Both arrays have more than
            // `BATCH_ROWS` slots, so there is room for four more.
            unsafe {
                let order = _mm256_load_si256(ORDERS.0[hits as usize & 15].as_ptr().cast());
                let (build, probe) = (builds.as_mut_ptr().add(count), probes.as_mut_ptr().add(count));
                _mm256_storeu_si256(build.cast(), _mm256_permutevar8x32_epi32(words, order));
                _mm256_storeu_si256(probe.cast(), _mm256_permutevar8x32_epi32(payloads, order));
            }
            count = count.wrapping_add(hits.count_ones() as usize);
        }
        for tuple in rest {
            let word = table[span.place(&hasher, tuple.key)];
            (builds[count], probes[count]) = (word, tuple.payload);
            count += usize::from(word != FREE);
        }
        count
    }
    // SAFETY: only `Kernels` of this level call this. `Kernels::all` makes them only if the `has_*` functions above
    // found the instructions.
    unsafe { with_avx2(direct, tuples, ahead, found) }
}

/// Permutations of the 32-bit halves of a SIMD register that move lanes with hits (keys found in the table) to the
/// front, in the order of tuples. The four lanes are those of tuples 0, 2, 1 and 3. The index has a bit for each lane
/// with a hit.
#[repr(align(32))]
struct Orders([[u32; 8]; 16]);

static ORDERS: Orders = {
    let mut orders = [[0; 8]; 16];
    let mut hits = 0;
    while hits < 16 {
        let (mut row, mut into) = (0, 0);
        while row < 4 {
            let lane = [0, 2, 1, 3][row];
            if hits >> lane & 1 == 1 {
                orders[hits][into] = 2 * lane as u32;
                orders[hits][into + 1] = 2 * lane as u32 + 1;
                into += 2;
            }
            row += 1;
        }
        hits += 1;
    }
    Orders(orders)
};
