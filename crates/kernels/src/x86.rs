//! The kernels with AVX-512, and the only unsafe code of the crate.
//!
//! Two kinds of it: loads and stores through pointers, whose bounds the note at each block argues; and calls of
//! functions that need instructions which [`has_avx512`] has found.
#![allow(unsafe_code)]

mod tables;

pub(crate) use tables::{add, find, find_and_add, has_aes, hash, ones, update};

use crate::automaton::Pairs;
use crate::portable::{LOOK_BYTES, Packer};
use crate::{Automaton, Comparison, Kept, Ordered, Ranges, Row, Value};
use std::any::TypeId;
use std::arch::x86_64::*;

/// Bytes behind the result that a kernel may write to: one vector.
const SLACK_BYTES: usize = 64;
/// How far ahead of the loads memory is asked for, in bytes: a page, as the CPU's own prefetching stops at its end.
const AHEAD_BYTES: usize = 4096;

/// Whether the CPU has all that these kernels use.
#[inline]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

/// See [`crate::gather`]; false if the CPU cannot, and nothing has been done.
pub(crate) fn gather<T: Value>(kept: &Kept, values: &[T], into: &mut Vec<T>) -> bool {
    if !has_avx512() || values.len() != kept.rows() {
        return false;
    }
    into.reserve(kept.count() + SLACK_BYTES / size_of::<T>());
    // SAFETY: the CPU has the instructions. `values` has the rows that `kept` speaks of; `into` has room for those
    // that are kept and one vector, from its end on; of both, `T` says the width, and every number is some `T`.
    unsafe {
        let (from, to) = (values.as_ptr(), into.as_mut_ptr().add(into.len()));
        match size_of::<T>() {
            1 => kept_1(kept, from.cast(), to.cast()),
            2 => kept_2(kept, from.cast(), to.cast()),
            4 => kept_4(kept, from.cast(), to.cast()),
            8 => kept_8(kept, from.cast(), to.cast()),
            16 => kept_16(kept, from.cast(), to.cast()),
            _ => return false,
        }
        into.set_len(into.len() + kept.count());
    }
    true
}

/// The bits of a word before each of its bytes that are 1, in its eight bytes.
#[inline]
fn counts_before(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let pairs = word - ((word >> 1) & (ONES * 0x55));
    let nibbles = (pairs & (ONES * 0x33)) + ((pairs >> 2) & (ONES * 0x33));
    let bytes = (nibbles + (nibbles >> 4)) & (ONES * 0x0f);
    // No byte exceeds 64, so none carries.
    bytes.wrapping_mul(ONES) << 8
}

/// The kernel for one width: vectors of `$lanes` values, compressed by `$compress` under masks of type `$mask`.
macro_rules! kept {
    ($name:ident, $value:ty, $lanes:literal, $mask:ty, $widen:expr, $compress:ident) => {
        /// # Safety
        /// `values` has the rows of `kept`, and `into` room for those that are kept and 64 bytes.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,bmi2,popcnt")]
        unsafe fn $name(kept: &Kept, values: *const $value, into: *mut $value) {
            const AHEAD: usize = 16;
            if kept.before.is_empty() {
                let listed = kept.listed.as_slice();
                for (at, row) in listed.iter().enumerate() {
                    if let Some(later) = listed.get(at + AHEAD) {
                        _mm_prefetch::<_MM_HINT_T1>(values.wrapping_add(*later as usize).cast());
                    }
                    // SAFETY: listed rows are below the number of rows, and as many as are kept.
                    unsafe { *into.add(at) = *values.add(*row as usize) };
                }
                return;
            }
            let whole = kept.rows() / 64;
            for (index, (word, before)) in kept.words[..whole].iter().zip(&kept.before).enumerate() {
                let word = *word;
                let from = values.wrapping_add(index * 64);
                for line in 0..size_of::<$value>() {
                    _mm_prefetch::<_MM_HINT_T1>(from.cast::<i8>().wrapping_add(AHEAD_BYTES + line * 64));
                }
                if word == 0 {
                    continue;
                }
                // SAFETY: the words are whole, so each has 64 rows to load. What is stored begins among the kept
                // rows and is one vector long, for which there is room behind them.
                unsafe {
                    let to = into.add(*before as usize);
                    if word == u64::MAX {
                        for part in 0..64 / $lanes {
                            let vector = _mm512_loadu_si512(from.add(part * $lanes).cast());
                            _mm512_storeu_si512(to.add(part * $lanes).cast(), vector);
                        }
                        continue;
                    }
                    let counts = counts_before(word);
                    for part in 0..64 / $lanes {
                        let bits = (word >> (part * $lanes)) as $mask;
                        let count = match $lanes {
                            4 => {
                                let pair = (counts >> (part / 2 * 8)) as u8 as usize;
                                pair + (part & 1) * ((word >> (part / 2 * 8)) & 0xf).count_ones() as usize
                            }
                            _ => (counts >> (part * $lanes)) as u8 as usize,
                        };
                        let vector = _mm512_loadu_si512(from.add(part * $lanes).cast());
                        let packed = $compress($widen(bits), vector);
                        _mm512_storeu_si512(to.add(count).cast(), packed);
                    }
                }
            }
            if let (Some(word), Some(before)) = (kept.words.get(whole), kept.before.get(whole)) {
                let (mut word, mut at) = (*word, *before as usize);
                while word != 0 {
                    let row = whole * 64 + word.trailing_zeros() as usize;
                    // SAFETY: bits behind the last row are 0, and `at` counts the kept ones.
                    unsafe { *into.add(at) = *values.add(row) };
                    at += 1;
                    word &= word - 1;
                }
            }
        }
    };
}

kept!(kept_1, u8, 64, u64, |bits: u64| bits, _mm512_maskz_compress_epi8);
kept!(kept_2, u16, 32, u32, |bits: u32| bits, _mm512_maskz_compress_epi16);
kept!(kept_4, u32, 16, u16, |bits: u16| bits, _mm512_maskz_compress_epi32);
kept!(kept_8, u64, 8, u8, |bits: u8| bits, _mm512_maskz_compress_epi64);
// Four values of 16 bytes are eight of 8, kept in pairs.
kept!(
    kept_16,
    u128,
    4,
    u8,
    |bits: u8| (_pdep_u32(u32::from(bits & 0xf), 0x55) * 3) as u8,
    _mm512_maskz_compress_epi64
);

/// See [`crate::gather_bits`]; nothing if the CPU cannot.
pub(crate) fn gather_bits(kept: &Kept, bits: &[u64]) -> Option<Vec<u64>> {
    // SAFETY: the CPU has the instructions.
    has_avx512().then(|| unsafe { kept_bits(kept, bits) })
}

#[target_feature(enable = "bmi2,popcnt")]
fn kept_bits(kept: &Kept, bits: &[u64]) -> Vec<u64> {
    let mut packer = Packer::new(kept.count());
    for (word, bits) in kept.words.iter().zip(bits) {
        packer.push(_pext_u64(*bits, *word), word.count_ones());
    }
    packer.finish()
}

/// See [`crate::compare`]: appends the words of whole 64 values and says how many values those are; 0 if the CPU
/// cannot.
pub(crate) fn compare<T: Ordered>(
    values: &[T],
    comparison: Comparison,
    literal: T,
    into: &mut Vec<u64>,
) -> usize {
    let whole = values.len() / 64;
    if !has_avx512() {
        return 0;
    }
    into.reserve(whole);
    let from: *const T = values.as_ptr();
    // SAFETY: the CPU has the instructions; the type is what its identity says, so pointers and literal can be read
    // as that; there are `whole` times 64 values, and room for as many words, all of which are written.
    unsafe {
        let to = into.as_mut_ptr().add(into.len());
        macro_rules! of {
            ($($number:ty, $kernel:ident, [$eq:expr, $ne:expr, $lt:expr, $le:expr, $gt:expr, $ge:expr];)*) => {
                $(if TypeId::of::<T>() == TypeId::of::<$number>() {
                    let literal = *(&raw const literal).cast::<$number>();
                    let from = from.cast::<$number>();
                    match comparison {
                        Comparison::Equal => $kernel::<{ $eq }>(from, whole, literal, to),
                        Comparison::NotEqual => $kernel::<{ $ne }>(from, whole, literal, to),
                        Comparison::Less => $kernel::<{ $lt }>(from, whole, literal, to),
                        Comparison::LessOrEqual => $kernel::<{ $le }>(from, whole, literal, to),
                        Comparison::Greater => $kernel::<{ $gt }>(from, whole, literal, to),
                        Comparison::GreaterOrEqual => $kernel::<{ $ge }>(from, whole, literal, to),
                    }
                } else)* {
                    return 0;
                }
            };
        }
        of! {
            i8, compare_i8, [0, 4, 1, 2, 6, 5];
            i16, compare_i16, [0, 4, 1, 2, 6, 5];
            i32, compare_i32, [0, 4, 1, 2, 6, 5];
            i64, compare_i64, [0, 4, 1, 2, 6, 5];
            u8, compare_u8, [0, 4, 1, 2, 6, 5];
            u16, compare_u16, [0, 4, 1, 2, 6, 5];
            u32, compare_u32, [0, 4, 1, 2, 6, 5];
            u64, compare_u64, [0, 4, 1, 2, 6, 5];
        }
        into.set_len(into.len() + whole);
    }
    whole * 64
}

/// The kernel for one type: vectors of `$lanes` values, compared by `$compare` in the way `HOW` with one that `$set`
/// fills.
macro_rules! compared {
    ($name:ident, $number:ty, $lanes:literal, $load:ident, $set:ident, $compare:ident) => {
        /// # Safety
        /// There are 64 values and room for one word for each of `words`.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn $name<const HOW: i32>(
            values: *const $number,
            words: usize,
            literal: $number,
            into: *mut u64,
        ) {
            let literal = $set(literal as _);
            for index in 0..words {
                let from = values.wrapping_add(index * 64);
                let mut word = 0;
                for part in 0..64 / $lanes {
                    _mm_prefetch::<_MM_HINT_T1>(
                        from.wrapping_add(part * $lanes).cast::<i8>().wrapping_add(AHEAD_BYTES),
                    );
                    // SAFETY: 64 values for each word.
                    let vector = unsafe { $load(from.add(part * $lanes).cast()) };
                    word |= u64::from($compare::<HOW>(vector, literal)) << (part * $lanes);
                }
                // SAFETY: one word for each 64 values.
                unsafe { *into.add(index) = word };
            }
        }
    };
}

compared!(compare_i8, i8, 64, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_cmp_epi8_mask);
compared!(compare_i16, i16, 32, _mm512_loadu_si512, _mm512_set1_epi16, _mm512_cmp_epi16_mask);
compared!(compare_i32, i32, 16, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_cmp_epi32_mask);
compared!(compare_i64, i64, 8, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_cmp_epi64_mask);
compared!(compare_u8, u8, 64, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_cmp_epu8_mask);
compared!(compare_u16, u16, 32, _mm512_loadu_si512, _mm512_set1_epi16, _mm512_cmp_epu16_mask);
compared!(compare_u32, u32, 16, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_cmp_epu32_mask);
compared!(compare_u64, u64, 8, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_cmp_epu64_mask);

/// Asks for the cache line of a byte of a slice, or for none behind its end.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    // SAFETY: asking for memory reads none, so the address may be any; every x86-64 has the instruction.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast()) }
}

/// See [`crate::select_rows`]: appends those of whole 64 rows and says how many rows it has seen; 0 if the CPU
/// cannot.
pub(crate) fn select_rows(rows: &[Row], ranges: &Ranges, into: &mut Vec<Row>) -> usize {
    if !has_avx512() || into.capacity() - into.len() < rows.len() {
        return 0;
    }
    // SAFETY: the CPU has the instructions, and there is room for all rows.
    unsafe {
        let to = into.as_mut_ptr().add(into.len());
        let count = rows_of_64(rows, ranges, to);
        into.set_len(into.len() + count);
    }
    rows.len() / 64 * 64
}

/// # Safety
/// `into` has room for `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,popcnt")]
unsafe fn rows_of_64(rows: &[Row], ranges: &Ranges, into: *mut Row) -> usize {
    // SAFETY: both are as long as a vector.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(ranges.low.as_ptr().cast()), _mm512_loadu_si512(ranges.high.as_ptr().cast()))
    };
    let mut to = into;
    for block in rows.as_chunks::<64>().0 {
        let from = block.as_ptr();
        let mut word = 0u64;
        for (row, values) in block.iter().enumerate() {
            _mm_prefetch::<_MM_HINT_T1>(values.as_ptr().wrapping_byte_add(AHEAD_BYTES).cast());
            // SAFETY: a row is as long as a vector.
            let values = unsafe { _mm512_loadu_si512(values.as_ptr().cast()) };
            let (below, above) =
                (_mm512_cmplt_epi64_mask(values, low), _mm512_cmpgt_epi64_mask(values, high));
            word |= u64::from(_kortestz_mask8_u8(below, above)) << row;
        }
        // SAFETY: the rows are those of the block, and no more are stored than have been read.
        unsafe {
            if word == u64::MAX {
                for row in 0..64 {
                    _mm512_storeu_si512(to.add(row).cast(), _mm512_loadu_si512(from.add(row).cast()));
                }
                to = to.add(64);
                continue;
            }
            while word != 0 {
                let row = word.trailing_zeros() as usize;
                _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(from.add(row).cast()));
                to = to.add(1);
                word &= word - 1;
            }
        }
    }
    // SAFETY: both are of `into`.
    unsafe { to.offset_from(into) as usize }
}

/// Strings side by side.
const LANES: usize = 8;
/// Bytes whose places in the table of pairs are found at once: with them, both fit the CPU's first cache.
const PLACES: usize = 4096;
/// Bytes of one string whose places are found at once, if eight of them are longer together.
const LANE_PLACES: usize = 384;
const _: () = assert!(LANES * (LANE_PLACES + 64) <= PLACES + 64 && LANE_PLACES.is_multiple_of(64));

/// See [`Automaton::matches`]; nothing if the CPU cannot. The offsets have been checked.
pub(crate) fn matches(automaton: &Automaton, bytes: &[u8], offsets: &[i32]) -> Option<Vec<u64>> {
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2");
    if offsets.len() < 2 || !(has_avx2 && is_x86_feature_detected!("popcnt")) {
        return None;
    }
    let pairs = automaton.pairs.as_deref().filter(|_| is_x86_feature_detected!("avx512vbmi") && has_avx512());
    let strings = offsets.len() - 1;
    let mut found = vec![0; strings.div_ceil(64)];
    let whole = strings / LANES * LANES;
    // The last few, and empty ones behind them.
    let mut last = [offsets[strings]; LANES + 1];
    last[..=strings - whole].copy_from_slice(&offsets[whole..]);
    for (offsets, first) in [(&offsets[..=whole], 0), (&last, whole)] {
        // SAFETY: the CPU has the instructions, and the caller has checked that the offsets ascend within the bytes.
        unsafe {
            match pairs {
                Some(pairs) => matches_pairs(automaton, pairs, bytes, offsets, first, &mut found),
                None => matches_bytes(automaton, bytes, offsets, first, &mut found),
            }
        }
    }
    if let (Some(word), 1..) = (found.last_mut(), strings % 64) {
        *word &= u64::MAX >> (64 - strings % 64);
    }
    Some(found)
}

/// Of eight states, each alone in its vector: which are marked in `marks`, as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn marked(states: &[__m128i; LANES], marks: &[u8; 16]) -> u64 {
    let pair = |at: usize| _mm_unpacklo_epi8(states[at], states[at + 1]);
    let four = |at: usize| _mm_unpacklo_epi16(pair(at), pair(at + 2));
    let all = _mm_unpacklo_epi32(four(0), four(4));
    // SAFETY: as long as a vector.
    let marks = unsafe { _mm_loadu_si128(marks.as_ptr().cast()) };
    (_mm_movemask_epi8(_mm_shuffle_epi8(marks, all)) & 0xff) as u64
}

/// Whether half of eight states and more need no further bytes: then those that do are as fast alone.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn is_mostly_settled(automaton: &Automaton, states: &[__m128i; LANES]) -> bool {
    marked(states, &automaton.settled).count_ones() as usize * 2 >= LANES
}

#[inline]
#[target_feature(enable = "avx2")]
fn is_settled(automaton: &Automaton, state: __m128i) -> bool {
    automaton.settled[(_mm_cvtsi128_si32(state) & 15) as usize] != 0
}

/// Where the step of a pair of bytes lies in the table of pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_at(pairs: &Pairs, place: u16) -> __m128i {
    // SAFETY: there are 256 tables of 16 bytes; a place is 16 times a number below 256, whatever else stands there.
    unsafe { _mm_loadu_si128(pairs.steps.as_ptr().cast::<u8>().add(usize::from(place & 0xff0)).cast()) }
}

/// Bits of strings, two bytes a step.
///
/// # Safety
/// The offsets ascend within the bytes, and are one more than a multiple of eight, or none.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn matches_pairs(
    automaton: &Automaton,
    pairs: &Pairs,
    bytes: &[u8],
    offsets: &[i32],
    first: usize,
    found: &mut [u64],
) {
    let mut places = [0u16; PLACES + 64];
    // Where the bytes begin whose places are known, and where they end.
    let (mut known, mut known_end) = (0, 0);
    let strings = offsets.len().saturating_sub(1);
    for row in (0..strings).step_by(LANES) {
        let ends: [usize; LANES + 1] = std::array::from_fn(|lane| offsets[row + lane] as usize);
        let lengths: [usize; LANES] = std::array::from_fn(|lane| ends[lane + 1] - ends[lane]);
        let shortest = lengths.iter().fold(usize::MAX, |least, length| least.min(*length));
        let is_long = ends[LANES] - ends[0] > PLACES;
        if !is_long && ends[LANES] > known_end {
            let end = offsets[strings] as usize;
            (known, known_end) = (ends[0], end.min(ends[0] + PLACES));
            // SAFETY: the caller's; at most as many as there are places.
            unsafe { places_of(pairs, bytes.get_unchecked(known..known_end), places.as_mut_ptr()) };
        }
        let mut states = [_mm_set1_epi8(automaton.start as i8); LANES];
        let mut at = 0;
        while at + 8 <= shortest {
            let part = if is_long { LANE_PLACES } else { LOOK_BYTES }.min(shortest - at) & !7;
            let mut lanes: [*const u16; LANES] =
                std::array::from_fn(|lane| places.as_ptr().wrapping_add(ends[lane].wrapping_sub(known) + at));
            if is_long {
                known_end = 0;
                for (lane, places) in places.chunks_mut(LANE_PLACES + 64).take(LANES).enumerate() {
                    let from = ends[lane] + at;
                    // SAFETY: within the string, and there are that many places.
                    unsafe { places_of(pairs, bytes.get_unchecked(from..from + part), places.as_mut_ptr()) };
                    lanes[lane] = places.as_ptr();
                }
            }
            for step in (0..part).step_by(8) {
                for pair in 0..4 {
                    for (lane, state) in states.iter_mut().enumerate() {
                        // SAFETY: the places of `part` bytes from here on are known in every lane.
                        let place = unsafe { *lanes[lane].wrapping_add(step + pair * 2) };
                        *state = _mm_permutexvar_epi8(*state, pair_at(pairs, place));
                    }
                }
            }
            at += part;
            if is_mostly_settled(automaton, &states) {
                break;
            }
        }
        if shortest != at || lengths.iter().any(|length| *length != shortest) {
            for (lane, state) in states.iter_mut().enumerate() {
                // SAFETY: the caller's.
                let rest = unsafe { bytes.get_unchecked(ends[lane] + at..ends[lane + 1]) };
                if is_long {
                    *state = alone(automaton, pairs, *state, rest, None).0;
                    continue;
                }
                let mut from = places.as_ptr().wrapping_add(ends[lane] + at - known);
                for part in rest.chunks(LOOK_BYTES) {
                    if is_settled(automaton, *state) {
                        break;
                    }
                    // SAFETY: the places of all eight strings are known.
                    *state = unsafe { stepped(automaton, pairs, *state, part, from) };
                    from = from.wrapping_add(LOOK_BYTES);
                }
            }
        }
        let row = first + row;
        if let Some(word) = found.get_mut(row / 64) {
            *word |= marked(&states, &automaton.accepting) << (row % 64);
        }
    }
}

/// The state behind bytes whose places are known.
///
/// # Safety
/// There is a place for each byte but the last.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn stepped(
    automaton: &Automaton,
    pairs: &Pairs,
    mut state: __m128i,
    bytes: &[u8],
    places: *const u16,
) -> __m128i {
    let (two, one) = bytes.as_chunks::<2>();
    for pair in 0..two.len() {
        // SAFETY: the caller's.
        let place = unsafe { *places.wrapping_add(pair * 2) };
        state = _mm_shuffle_epi8(pair_at(pairs, place), state);
    }
    for byte in one {
        state = _mm_shuffle_epi8(step_at(automaton, u64::from(*byte)), state);
    }
    state
}

/// The state behind bytes, and how many of them have been looked at: all, unless it is settled, or in the state
/// `stop` when it looks.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
fn alone(
    automaton: &Automaton,
    pairs: &Pairs,
    mut state: __m128i,
    bytes: &[u8],
    stop: Option<u8>,
) -> (__m128i, usize) {
    let mut places = [0; LOOK_BYTES];
    let mut at = 0;
    for part in bytes.chunks(LOOK_BYTES) {
        // SAFETY: a part is no longer than there are places.
        unsafe {
            places_of(pairs, part, places.as_mut_ptr());
            state = stepped(automaton, pairs, state, part, places.as_ptr());
        }
        at += part.len();
        if is_settled(automaton, state) || stop == Some(_mm_cvtsi128_si32(state) as u8) {
            break;
        }
    }
    (state, at)
}

/// See [`Automaton::follow`]: the state it stops in, and behind how many bytes; nothing if the CPU cannot.
pub(crate) fn follow(automaton: &Automaton, string: &[u8]) -> Option<(u8, usize)> {
    let pairs = automaton.pairs.as_deref()?;
    if !(is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx2") && has_avx512()) {
        return None;
    }
    // SAFETY: the CPU has the instructions.
    unsafe {
        let start = _mm_set1_epi8(automaton.start as i8);
        let (state, at) = alone(automaton, pairs, start, string, Some(automaton.start));
        Some((_mm_cvtsi128_si32(state) as u8, at))
    }
}

/// For each byte but the last: where the step of it and the next one lies in the table of pairs.
///
/// # Safety
/// There is room for as many as bytes, rounded up to 64.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn places_of(pairs: &Pairs, bytes: &[u8], places: *mut u16) {
    let kinds: [__m512i; 4] = std::array::from_fn(|part| {
        // SAFETY: 256 bytes are four vectors.
        unsafe { _mm512_loadu_si512(pairs.kinds.as_ptr().add(part * 64).cast()) }
    });
    let kinds_of = |bytes: __m512i| {
        let low = _mm512_permutex2var_epi8(kinds[0], bytes, kinds[1]);
        let high = _mm512_permutex2var_epi8(kinds[2], bytes, kinds[3]);
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high)
    };
    for at in (0..bytes.len()).step_by(64) {
        let left = bytes.len() - at;
        let from = bytes.as_ptr().wrapping_add(at);
        // SAFETY: masked loads touch the bytes of the slice alone. Each vector of bytes has as many places.
        unsafe {
            let (first, second) = match left {
                65.. => (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(1).cast())),
                _ => {
                    let mask = u64::MAX >> (64 - left);
                    let next = from.wrapping_add(1);
                    (
                        _mm512_maskz_loadu_epi8(mask, from.cast()),
                        _mm512_maskz_loadu_epi8(mask >> 1, next.cast()),
                    )
                }
            };
            // A kind is below 16, so four bits further up it stays within its byte.
            let place = _mm512_or_si512(_mm512_slli_epi16::<4>(kinds_of(first)), kinds_of(second));
            let (low, high) = (_mm512_castsi512_si256(place), _mm512_extracti64x4_epi64::<1>(place));
            let to = places.add(at);
            _mm512_storeu_si512(to.cast(), _mm512_slli_epi16::<4>(_mm512_cvtepu8_epi16(low)));
            _mm512_storeu_si512(to.add(32).cast(), _mm512_slli_epi16::<4>(_mm512_cvtepu8_epi16(high)));
        }
    }
}

/// Where the step of a byte, the lowest of a word, lies.
#[inline]
#[target_feature(enable = "avx2")]
fn step_at(automaton: &Automaton, word: u64) -> __m128i {
    // SAFETY: there are 256 tables of 16 bytes.
    unsafe {
        _mm_loadu_si128(automaton.steps.as_ptr().cast::<u8>().add(((word & 0xff) << 4) as usize).cast())
    }
}

/// Bits of strings, a byte a step.
///
/// # Safety
/// The offsets ascend within the bytes, and are one more than a multiple of eight, or none.
#[target_feature(enable = "avx2,bmi2,popcnt")]
unsafe fn matches_bytes(
    automaton: &Automaton,
    bytes: &[u8],
    offsets: &[i32],
    first: usize,
    found: &mut [u64],
) {
    for row in (0..offsets.len().saturating_sub(1)).step_by(LANES) {
        let lanes: [&[u8]; LANES] = std::array::from_fn(|lane| {
            let (from, to) = (offsets[row + lane] as usize, offsets[row + lane + 1] as usize);
            // SAFETY: the caller's.
            unsafe { bytes.get_unchecked(from..to) }
        });
        let shortest = lanes.iter().fold(usize::MAX, |least, lane| least.min(lane.len()));
        let mut states = [_mm_set1_epi8(automaton.start as i8); LANES];
        let mut at = 0;
        while at + 8 <= shortest {
            let look = (at + LOOK_BYTES).min(shortest);
            while at + 8 <= look {
                // SAFETY: eight bytes from here on are within every string of the eight.
                let words: [u64; LANES] = std::array::from_fn(|lane| unsafe {
                    lanes[lane].as_ptr().add(at).cast::<u64>().read_unaligned()
                });
                for byte in 0..8 {
                    for (lane, state) in states.iter_mut().enumerate() {
                        *state = _mm_shuffle_epi8(step_at(automaton, words[lane] >> (byte * 8)), *state);
                    }
                }
                at += 8;
            }
            if is_mostly_settled(automaton, &states) {
                break;
            }
        }
        for (lane, state) in states.iter_mut().enumerate() {
            for part in lanes[lane][at..].chunks(LOOK_BYTES) {
                if is_settled(automaton, *state) {
                    break;
                }
                for byte in part {
                    *state = _mm_shuffle_epi8(step_at(automaton, u64::from(*byte)), *state);
                }
            }
        }
        let row = first + row;
        if let Some(word) = found.get_mut(row / 64) {
            *word |= marked(&states, &automaton.accepting) << (row % 64);
        }
    }
}
