//! The kernels with AVX2 and AVX-512.
//!
//! Two kinds of unsafe code: calls of functions that need instructions which [`has_avx2`] or [`has_avx512`] has found, as
//! [`Kernels`](crate::Kernels) are made of; and accesses through pointers, whose bounds the note at each block argues.
#![allow(unsafe_code)]

use crate::hash::{Hasher, bucket};
use crate::memory::tuples_mut;
use crate::one_pass::{BUFFER_LINES, BUFFER_ROWS, Scatter};
use crate::table::{BATCH_ROWS, Entry, FAR_LINES, Found, Hit, View, follow};
use crate::{JoinError, Line, Tuple, portable};
use std::arch::x86_64::*;

/// Tuples between what is looked at and what is asked for from memory meanwhile.
const AHEAD_ROWS: usize = 24;

pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}

pub(crate) fn has_avx512() -> bool {
    has_avx2() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
}

/// See [`Kernels::fence`](crate::Kernels).
pub(crate) fn fence() {
    // SAFETY: part of every CPU of this architecture.
    unsafe { _mm_sfence() };
}

/// See [`Kernels::scatter`](crate::Kernels).
pub(crate) fn scatter_avx2<'a>(
    hasher: &Hasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
) -> Result<(), JoinError> {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2<'a>(
        hasher: &Hasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
    ) -> Result<(), JoinError> {
        scatter_by(hasher, tuples, scatter, refill, |from, to| {
            // SAFETY: a line is 64 bytes, aligned to as many; the CPU has AVX2.
            unsafe {
                let (from, to) = (from.0.as_ptr().cast::<__m256i>(), to.0.as_mut_ptr().cast::<__m256i>());
                let (low, high) = (_mm256_load_si256(from), _mm256_load_si256(from.add(1)));
                _mm256_stream_si256(to, low);
                _mm256_stream_si256(to.add(1), high);
            }
        })
    }
    // SAFETY: the CPU has the instructions.
    unsafe { with_avx2(hasher, tuples, scatter, refill) }
}

/// See [`Kernels::scatter`](crate::Kernels).
pub(crate) fn scatter_avx512<'a>(
    hasher: &Hasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
) -> Result<(), JoinError> {
    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    fn with_avx512<'a>(
        hasher: &Hasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
    ) -> Result<(), JoinError> {
        scatter_by(hasher, tuples, scatter, refill, |from, to| {
            // SAFETY: a line is 64 bytes, aligned to as many; the CPU has AVX-512.
            unsafe {
                let line = _mm512_load_si512(from.0.as_ptr().cast());
                _mm512_stream_si512(to.0.as_mut_ptr().cast(), line);
            }
        })
    }
    // SAFETY: the CPU has the instructions.
    unsafe { with_avx512(hasher, tuples, scatter, refill) }
}

/// Scatters; `stream` writes a line past the caches.
#[inline(always)]
fn scatter_by<'a>(
    hasher: &Hasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
    stream: impl Fn(&Line, &mut Line),
) -> Result<(), JoinError> {
    let partitions = hasher.partitions();
    let Scatter { buffers, counts, places } = scatter;
    assert!(buffers.len() == partitions * BUFFER_LINES && counts.len() == partitions);
    let slots = tuples_mut(buffers).as_mut_ptr();
    let counts = counts.as_mut_ptr();
    for tuple in tuples {
        let partition = hasher.partition(tuple.key);
        // SAFETY: a partition is some bits of a hash, as many as name all partitions, each of which has a count and a
        // buffer of `BUFFER_ROWS` slots.
        let place = unsafe {
            let count = counts.add(partition);
            let place = *count as usize % BUFFER_ROWS;
            *count = (*count).wrapping_add(1);
            slots.add(partition * BUFFER_ROWS + place).write(*tuple);
            place
        };
        if place + 1 == BUFFER_ROWS {
            let to = places[partition].next(BUFFER_LINES, || refill(partition))?;
            // SAFETY: as above; the buffer is lines, and nobody else refers to it meanwhile.
            let from = unsafe {
                std::slice::from_raw_parts(slots.add(partition * BUFFER_ROWS).cast::<Line>(), BUFFER_LINES)
            };
            from.iter().zip(to).for_each(|(from, to)| stream(from, to));
        }
    }
    Ok(())
}

/// See [`Kernels::insert`](crate::Kernels).
pub(crate) fn insert(hasher: &Hasher, tuples: &[Tuple], buckets: &mut [Line], marker: i64) -> usize {
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn with_avx2(hasher: &Hasher, tuples: &[Tuple], buckets: &mut [Line], marker: i64) -> usize {
        let (count, free) = (buckets.len(), _mm256_set1_epi64x(marker));
        for (at, tuple) in tuples.iter().enumerate() {
            let key = _mm256_set1_epi64x(tuple.key);
            let mut place = bucket(hasher.hash(tuple.key), count as u32);
            loop {
                let Line(line) = &mut buckets[place];
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
    // SAFETY: the CPU has the instructions.
    unsafe { with_avx2(hasher, tuples, buckets, marker) }
}

/// The lanes that are all ones, as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(vector: __m256i) -> u32 {
    _mm256_movemask_pd(_mm256_castsi256_pd(vector)) as u32
}

/// See [`Kernels::find`](crate::Kernels).
pub(crate) fn find(view: &View<'_>, tuples: &[Tuple], ahead: &[Tuple], found: &mut Found) -> usize {
    assert!(tuples.len() <= BATCH_ROWS, "{} tuples", tuples.len());
    let is_far = view.lines.len() >= FAR_LINES;
    // SAFETY: the CPU has the instructions.
    unsafe {
        match (view.entries(), is_far) {
            ([entry], false) => find_in::<false>(view, |_| *entry, tuples, ahead, found),
            ([entry], true) => find_in::<true>(view, |_| *entry, tuples, ahead, found),
            (entries, _) => {
                let shift = view.hasher.shift;
                // SAFETY: there are as many entries as these bits name, as `View::new` saw.
                find_in::<true>(
                    view,
                    |hash| *entries.get_unchecked((hash >> shift) as usize),
                    tuples,
                    ahead,
                    found,
                )
            }
        }
    }
}

/// Set in a place if what free places of its partition hold is not what they hold elsewhere.
const ODD: u32 = 1 << 31;

/// Looks tuples up, of whose hash `entry` says where their buckets are. All entries must be within the lines.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn find_in<const FAR: bool>(
    view: &View<'_>,
    entry: impl Fn(u64) -> Entry,
    tuples: &[Tuple],
    ahead: &[Tuple],
    found: &mut Found,
) -> usize {
    let lines = view.lines.as_ptr();
    let marker = view.entries()[0].marker;
    let place = |key: i64| {
        let hash = view.hasher.hash(key);
        let Entry { first, buckets, marker: own } = entry(hash);
        (first + bucket(hash, buckets) as u32) | (u32::from(own != marker) << 31)
    };
    let ask = |place: u32| {
        _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add((place & !ODD) as usize).cast());
    };
    let Found { hits, places } = found;
    if FAR {
        for (tuple, into) in tuples.iter().zip(&mut *places) {
            *into = place(tuple.key);
        }
    }
    let mut count = 0;
    for (at, tuple) in tuples.iter().enumerate() {
        let place = if FAR { places[at] } else { place(tuple.key) };
        if FAR {
            match places.get(at + AHEAD_ROWS) {
                Some(later) if at + AHEAD_ROWS < tuples.len() => ask(*later),
                _ => {}
            }
        }
        // SAFETY: a bucket is among those of its entry, which are within the lines, as `View::new` saw; the first half of a line is 32 bytes, aligned to 64. Fewer tuples were
        // found than there are, so there is room for one more.
        unsafe {
            let line = lines.add((place & !ODD) as usize).cast::<i64>();
            let keys = _mm256_load_si256(line.cast());
            let equal = lanes(_mm256_cmpeq_epi64(keys, _mm256_set1_epi64x(tuple.key)));
            let lane = (equal.trailing_zeros() & 3) as usize;
            *hits.get_unchecked_mut(count) = Hit { word: *line.add(4 + lane), at: at as u32 };
            count += usize::from(equal != 0);
            if (equal == 0) & ((*line.add(3) != marker) | (place & ODD != 0)) {
                count += usize::from(slowly(view, at, tuple, &mut hits[count]));
            }
        }
    }
    if FAR {
        for tuple in ahead.iter().take(AHEAD_ROWS) {
            ask(place(tuple.key));
        }
    }
    count
}

/// Looks a tuple up whose bucket is full.
#[cold]
#[inline(never)]
fn slowly(view: &View<'_>, at: usize, tuple: &Tuple, hit: &mut Hit) -> bool {
    match portable::find_one(view, tuple.key) {
        Some(word) => {
            *hit = Hit { word, at: at as u32 };
            true
        }
        None => false,
    }
}
