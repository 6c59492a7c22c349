//! The kernels with AVX-512. With its submodules this is nearly all unsafe code of the crate; `pages` has the rest.
//!
//! The unsafe code is of two kinds. Some blocks load and store through pointers; the comment at each block argues their
//! bounds. Others call functions that need CPU instructions; the comment names the check that found them.
#![allow(unsafe_code)]

mod tables;

pub(crate) use tables::{add, find, find_and_add, has_aes, hash, ones, update};

use crate::automaton::Pairs;
use crate::portable::{LOOK_BYTES, Packer};
use crate::{Automaton, CompareOp, Kept, Ordered, PlainNumber, Ranges, Row};
use std::any::TypeId;
use std::arch::x86_64::*;

/// Bytes of room that `gather` needs behind the end of its result, because it stores whole vectors, also if fewer rows
/// are kept.
const SLACK_BYTES: usize = 64;
/// Distance in bytes from the memory that is loaded to that which is prefetched meanwhile: one page, because the CPU's
/// own prefetching stops at the end of a page.
const AHEAD_BYTES: usize = 4096;

/// Reports whether the CPU has all instructions that these kernels use.
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

/// Appends the values of the kept rows to `into`. Returns false, with nothing done, if the CPU has no AVX-512. AVX-512
/// form of [`crate::gather`].
pub(crate) fn gather<T: PlainNumber>(kept: &Kept, values: &[T], into: &mut Vec<T>) -> bool {
    if !has_avx512() || values.len() != kept.rows() {
        return false;
    }
    into.reserve(kept.count() + SLACK_BYTES / size_of::<T>());
    // SAFETY: `has_avx512` was checked above, and that `values` has as many rows as `kept`. `into` has room behind its
    // end for the kept rows and one vector. `T` gives the width of both, and any bits are a valid `T`.
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

/// Returns in its eight bytes, for each byte of the word, the number of 1 bits below it.
#[inline]
fn counts_before(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let pairs = word - ((word >> 1) & (ONES * 0x55));
    let nibbles = (pairs & (ONES * 0x33)) + ((pairs >> 2) & (ONES * 0x33));
    let bytes = (nibbles + (nibbles >> 4)) & (ONES * 0x0f);
    // No byte of the sum exceeds 64, so none carries into the next.
    bytes.wrapping_mul(ONES) << 8
}

/// Makes the kernel that copies the values of the kept rows, for values of one width. A vector has `$lanes` values.
/// `$widen` turns the bits that say which of them are kept into the mask with which `$compress` moves the kept ones to
/// the front of the vector.
macro_rules! kept {
    ($name:ident, $value:ty, $lanes:literal, $mask:ty, $widen:expr, $compress:ident) => {
        /// # Safety
        /// `values` has the rows of `kept`, and `into` has room for the kept rows and 64 bytes.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,bmi2,popcnt")]
        unsafe fn $name(kept: &Kept, values: *const $value, into: *mut $value) {
            const AHEAD: usize = 16;
            if kept.before.is_empty() {
                let listed = kept.listed.as_slice();
                for (at, row) in listed.iter().enumerate() {
                    if let Some(later) = listed.get(at + AHEAD) {
                        _mm_prefetch::<_MM_HINT_T1>(values.wrapping_add(*later as usize).cast());
                    }
                    // SAFETY: `Kept` lists rows below its number of rows, each once, and the caller promises room for
                    // them.
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
                // SAFETY: each of these words stands for 64 rows that exist, so loads are in bounds. A store begins
                // among the kept rows and is one vector long; the caller promises room for one vector behind them.
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
                    // SAFETY: `Kept` clears the bits behind the last row, and `at` is less than the number of kept
                    // rows.
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
// Four values of 16 bytes are handled as eight of 8 bytes, with each bit of the mask doubled.
kept!(
    kept_16,
    u128,
    4,
    u8,
    |bits: u8| (_pdep_u32(u32::from(bits & 0xf), 0x55) * 3) as u8,
    _mm512_maskz_compress_epi64
);

/// Returns the bits of the kept rows, in words. `None` if the CPU has no AVX-512. Vector form of
/// [`crate::gather_bits`].
pub(crate) fn gather_bits(kept: &Kept, bits: &[u64]) -> Option<Vec<u64>> {
    // SAFETY: `has_avx512` also checks for `bmi2` and `popcnt`, which the function needs.
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

/// Appends one bit per value to `into`: 1 if the comparison with the literal is true. Handles whole blocks of 64 values
/// and returns how many values those are: 0 if the CPU has no AVX-512. AVX-512 form of [`crate::compare`].
pub(crate) fn compare<T: Ordered>(
    values: &[T],
    comparison: CompareOp,
    literal: T,
    into: &mut Vec<u64>,
) -> usize {
    let whole = values.len() / 64;
    if !has_avx512() {
        return 0;
    }
    into.reserve(whole);
    let from: *const T = values.as_ptr();
    // SAFETY: `has_avx512` was checked above. Pointers and literal are read as a type only after `TypeId` has shown
    // that `T` is that type. There are `whole` times 64 values and room for `whole` words, all of which are written.
    unsafe {
        let to = into.as_mut_ptr().add(into.len());
        macro_rules! of {
            ($($number:ty, $kernel:ident, [$eq:expr, $ne:expr, $lt:expr, $le:expr, $gt:expr, $ge:expr];)*) => {
                $(if TypeId::of::<T>() == TypeId::of::<$number>() {
                    let literal = *(&raw const literal).cast::<$number>();
                    let from = from.cast::<$number>();
                    match comparison {
                        CompareOp::Equal => $kernel::<{ $eq }>(from, whole, literal, to),
                        CompareOp::NotEqual => $kernel::<{ $ne }>(from, whole, literal, to),
                        CompareOp::Less => $kernel::<{ $lt }>(from, whole, literal, to),
                        CompareOp::LessOrEqual => $kernel::<{ $le }>(from, whole, literal, to),
                        CompareOp::Greater => $kernel::<{ $gt }>(from, whole, literal, to),
                        CompareOp::GreaterOrEqual => $kernel::<{ $ge }>(from, whole, literal, to),
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

/// Makes the kernel that compares values of one type with a literal. `$load` reads a vector of `$lanes` values, `$set`
/// fills one with the literal, and `$compare` compares them. `HOW` is the number of the comparison in the instruction.
macro_rules! compared {
    ($name:ident, $number:ty, $lanes:literal, $load:ident, $set:ident, $compare:ident) => {
        /// # Safety
        /// `values` has 64 values and `into` room for one word, for each of `words`.
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
                    // SAFETY: the caller promises 64 values for each word.
                    let vector = unsafe { $load(from.add(part * $lanes).cast()) };
                    word |= u64::from($compare::<HOW>(vector, literal)) << (part * $lanes);
                }
                // SAFETY: the caller promises room for `words` words.
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

/// Prefetches the cache line of a byte of a slice. Does no harm if `at` is beyond its end.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    // SAFETY: a prefetch accesses no memory, so any address will do. Every x86-64 has the instruction.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast()) }
}

/// Appends the rows that are within the ranges to `into`. Handles whole blocks of 64 rows and returns how many rows
/// those are: 0 if the CPU has no AVX-512. AVX-512 form of [`crate::select_rows`].
pub(crate) fn select_rows(rows: &[Row], ranges: &Ranges, into: &mut Vec<Row>) -> usize {
    if !has_avx512() || into.capacity() - into.len() < rows.len() {
        return 0;
    }
    // SAFETY: `has_avx512` and the room for all rows were checked above.
    unsafe {
        let to = into.as_mut_ptr().add(into.len());
        let count = rows_of_64(rows, ranges, to);
        into.set_len(into.len() + count);
    }
    rows.len() / 64 * 64
}

/// Copies the rows of whole blocks of 64 that are within the ranges, and returns their number.
///
/// # Safety
/// `into` has room for `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,popcnt")]
unsafe fn rows_of_64(rows: &[Row], ranges: &Ranges, into: *mut Row) -> usize {
    // SAFETY: both arrays are as long as a vector.
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
        // SAFETY: the rows that are loaded belong to the block. No more rows are stored than were read, and the caller
        // promises room for all.
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
    // SAFETY: both pointers are into `into`.
    unsafe { to.offset_from(into) as usize }
}

/// Number of strings that are matched side by side.
const LANES: usize = 8;
/// Most bytes of strings for which places are computed at once. The place of two bytes is the position of their step in
/// the table of pairs (`Pairs::steps`). The places and the table together fit the first-level cache.
const PLACES: usize = 4096;
/// Bytes of each string for which places are computed at once, if eight strings together are longer than [`PLACES`].
const LANE_PLACES: usize = 384;
const _: () = assert!(LANES * (LANE_PLACES + 64) <= PLACES + 64 && LANE_PLACES.is_multiple_of(64));

/// Returns a bit for each string: 1 if the automaton accepts it. `None` if the CPU has no AVX2. The caller has checked
/// that the offsets ascend within the bytes. Vector form of [`Automaton::matches`].
pub(crate) fn matches(automaton: &Automaton, bytes: &[u8], offsets: &[i32]) -> Option<Vec<u64>> {
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2");
    if offsets.len() < 2 || !(has_avx2 && is_x86_feature_detected!("popcnt")) {
        return None;
    }
    let pairs = automaton.pairs.as_deref().filter(|_| is_x86_feature_detected!("avx512vbmi") && has_avx512());
    let strings = offsets.len() - 1;
    let mut found = vec![0; strings.div_ceil(64)];
    let whole = strings / LANES * LANES;
    // Offsets of the last strings, of which there are fewer than eight, followed by those of empty strings up to eight.
    let mut last = [offsets[strings]; LANES + 1];
    last[..=strings - whole].copy_from_slice(&offsets[whole..]);
    for (offsets, first) in [(&offsets[..=whole], 0), (&last, whole)] {
        // SAFETY: the instructions were checked at the top of this function; `pairs` is only there with AVX-512. The
        // caller has checked that the offsets ascend within the bytes.
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

/// Returns a bit for each of eight states: 1 if `marks` has 255 for it. Each state is the lowest byte of a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn marked(states: &[__m128i; LANES], marks: &[u8; 16]) -> u64 {
    let pair = |at: usize| _mm_unpacklo_epi8(states[at], states[at + 1]);
    let four = |at: usize| _mm_unpacklo_epi16(pair(at), pair(at + 2));
    let all = _mm_unpacklo_epi32(four(0), four(4));
    // SAFETY: the array is as long as a vector.
    let marks = unsafe { _mm_loadu_si128(marks.as_ptr().cast()) };
    (_mm_movemask_epi8(_mm_shuffle_epi8(marks, all)) & 0xff) as u64
}

/// Reports whether at least half of eight states are settled: no byte leaves them. It is then as fast to follow the
/// other strings one by one.
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

/// Returns the next state of each state after a pair of bytes. `place` is the position of the pair's step in the table
/// of pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_at(pairs: &Pairs, place: u16) -> __m128i {
    // SAFETY: there are 256 tables of 16 bytes, and masked by `0xff0` any place is 16 times a number below 256.
    unsafe { _mm_loadu_si128(pairs.steps.as_ptr().cast::<u8>().add(usize::from(place & 0xff0)).cast()) }
}

/// Sets a bit in `found` for each string that passes, with two bytes per step. `first` is the number of the first
/// string.
///
/// # Safety
/// The offsets ascend within the bytes, and their number is one more than a multiple of eight, or zero.
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
    // Range of the bytes whose places (positions of their steps in the table of pairs) are in `places`.
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
            // SAFETY: the caller guarantees the offsets, and the range is no longer than there are places.
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
                    // SAFETY: the range lies within the string, and there is room for its places.
                    unsafe { places_of(pairs, bytes.get_unchecked(from..from + part), places.as_mut_ptr()) };
                    lanes[lane] = places.as_ptr();
                }
            }
            for step in (0..part).step_by(8) {
                for pair in 0..4 {
                    for (lane, state) in states.iter_mut().enumerate() {
                        // SAFETY: the places of `part` bytes from here on were computed above, in every lane.
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
                // SAFETY: the caller guarantees the offsets.
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
                    // SAFETY: the strings are not long, so the places of all eight were computed above.
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

/// Returns the state after more bytes, whose places (positions of their steps in the table of pairs) were computed.
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
        // SAFETY: the caller guarantees a place for each byte but the last.
        let place = unsafe { *places.wrapping_add(pair * 2) };
        state = _mm_shuffle_epi8(pair_at(pairs, place), state);
    }
    for byte in one {
        state = _mm_shuffle_epi8(step_at(automaton, u64::from(*byte)), state);
    }
    state
}

/// Returns the state after bytes, and how many of them were read: all, unless a check every [`LOOK_BYTES`] finds a
/// settled state or the state `stop`.
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

/// Follows a string until its end, a settled state or the start state. Returns the state that it stops in, and the
/// number of bytes read. `None` if the CPU or the automaton cannot take two bytes per step. Vector form of
/// [`Automaton::follow`].
pub(crate) fn follow(automaton: &Automaton, string: &[u8]) -> Option<(u8, usize)> {
    let pairs = automaton.pairs.as_deref()?;
    if !(is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx2") && has_avx512()) {
        return None;
    }
    // SAFETY: the instructions were checked above.
    unsafe {
        let start = _mm_set1_epi8(automaton.start as i8);
        let (state, at) = alone(automaton, pairs, start, string, Some(automaton.start));
        Some((_mm_cvtsi128_si32(state) as u8, at))
    }
}

/// Writes for each byte but the last the position in the table of pairs of the step of that byte and the next.
///
/// # Safety
/// There is room for as many places as bytes, rounded up to 64.
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
        // SAFETY: masked loads touch only bytes of the slice. For each vector of bytes there is room for as many
        // places.
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
            // A kind is below 16, so shifted by four bits it stays within its byte.
            let place = _mm512_or_si512(_mm512_slli_epi16::<4>(kinds_of(first)), kinds_of(second));
            let (low, high) = (_mm512_castsi512_si256(place), _mm512_extracti64x4_epi64::<1>(place));
            let to = places.add(at);
            _mm512_storeu_si512(to.cast(), _mm512_slli_epi16::<4>(_mm512_cvtepu8_epi16(low)));
            _mm512_storeu_si512(to.add(32).cast(), _mm512_slli_epi16::<4>(_mm512_cvtepu8_epi16(high)));
        }
    }
}

/// Returns the next state of each state after the lowest byte of a word.
#[inline]
#[target_feature(enable = "avx2")]
fn step_at(automaton: &Automaton, word: u64) -> __m128i {
    // SAFETY: there are 256 tables of 16 bytes.
    unsafe {
        _mm_loadu_si128(automaton.steps.as_ptr().cast::<u8>().add(((word & 0xff) << 4) as usize).cast())
    }
}

/// Sets a bit in `found` for each string that passes, with one byte per step. `first` is the number of the first
/// string.
///
/// # Safety
/// The offsets ascend within the bytes, and their number is one more than a multiple of eight, or zero.
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
            // SAFETY: the caller guarantees the offsets.
            unsafe { bytes.get_unchecked(from..to) }
        });
        let shortest = lanes.iter().fold(usize::MAX, |least, lane| least.min(lane.len()));
        let mut states = [_mm_set1_epi8(automaton.start as i8); LANES];
        let mut at = 0;
        while at + 8 <= shortest {
            let look = (at + LOOK_BYTES).min(shortest);
            while at + 8 <= look {
                // SAFETY: eight bytes from here on lie within each of the eight strings.
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
