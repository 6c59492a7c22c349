//! Pseudo-random numbers. They are the same in every run of a benchmark.

/// Mixes a 64-bit value: every bit of the result depends on every bit of the argument (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the pseudo-random number at an index of a sequence (SplitMix64).
pub(crate) fn drawn(place: u64) -> u64 {
    mix(place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
