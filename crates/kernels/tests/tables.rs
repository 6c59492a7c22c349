//! Kernels of hash tables, compared with their portable twins, and those with a definition in one line.

use farpool_kernels::{
    BLOCK_ROWS, COPIES, KeyTable, LANES, SecretHasher, Sums, TableShape, add, find, find_and_add, ones,
    portable, update,
};
use proptest::prelude::*;
use proptest::sample::select;

/// Makes a table that holds each key whose bucket has a free slot, in the slot that its hash names if that is free.
/// Each word behind the keys of a bucket holds its own index.
fn table(hasher: &SecretHasher, buckets: usize, stride: usize, keys: &[i64]) -> Vec<u64> {
    let mut words = vec![0; buckets * stride + 3];
    for start in (0..buckets * stride).step_by(stride) {
        (start + LANES..start + stride).for_each(|word| words[word] = word as u64);
    }
    for key in keys {
        let masked = hasher.masked(*key as u64);
        let hash = hasher.hash(masked);
        let start = hash as usize & ((buckets - 1) * stride);
        let lanes = (0..LANES).map(|lane| start + (hash as usize + lane) % LANES);
        let is_held = lanes.clone().any(|place| words[place] == masked);
        if let (Some(place), false) = (lanes.clone().find(|place| words[*place] == 0), is_held) {
            words[place] = masked;
        }
    }
    words
}

/// A round of AES, as FIPS 197 defines it.
fn aes_round(state: [u8; 16], key: [u8; 16]) -> [u8; 16] {
    let double = |byte: u8| byte << 1 ^ if byte >> 7 == 1 { 0x1b } else { 0 };
    let times = |left: u8, right: u8| {
        let (mut product, mut left) = (0, left);
        for bit in 0..8 {
            product ^= if right >> bit & 1 == 1 { left } else { 0 };
            left = double(left);
        }
        product
    };
    let substituted = |byte: u8| {
        let inverse = (0..=255).find(|other| times(byte, *other) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, turns| sum ^ inverse.rotate_left(turns))
    };
    let shifted: [u8; 16] = std::array::from_fn(|at| substituted(state[(at + at % 4 * 4) % 16]));
    std::array::from_fn(|at| {
        let byte = |further: usize| shifted[at / 4 * 4 + (at + further) % 4];
        double(byte(0)) ^ double(byte(1)) ^ byte(1) ^ byte(2) ^ byte(3) ^ key[at]
    })
}

fn bytes(low: u64, high: u64) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

fn keys() -> impl Strategy<Value = Vec<i64>> {
    let few = prop::collection::vec(-9..9i64, 0..=BLOCK_ROWS);
    let equal = (any::<i64>(), 0..=BLOCK_ROWS).prop_map(|(key, rows)| vec![key; rows]);
    let sequence = (any::<i32>(), 0..=BLOCK_ROWS)
        .prop_map(|(first, rows)| (0..rows as i64).map(|row| i64::from(first) + row).collect());
    prop_oneof![few, equal, sequence, prop::collection::vec(any::<i64>(), 0..=BLOCK_ROWS)]
}

proptest! {
    #[test]
    fn keys_are_found_in_their_buckets(
        secret in any::<[u64; 6]>(),
        keys in keys(),
        held in keys(),
        hides in any::<bool>(),
        buckets in select(vec![1usize, 2, 16, 256, 8_192]),
        stride in select(vec![8usize, 16]),
        has_ahead in any::<bool>(),
    ) {
        let hasher = SecretHasher::new(secret);
        let mut keys = keys;
        if let (Some(key), true) = (keys.last_mut(), hides) {
            // This masked key is zero and looks like a free slot.
            *key = secret[0] as i64;
        }
        let held = [&held[..], &keys[..keys.len() / 2]].concat();
        let words = table(&hasher, buckets, stride, &held);
        let ahead = if has_ahead { &held[..] } else { &[] };
        let place = |key: i64| {
            let masked = hasher.masked(key as u64);
            let start = hasher.hash(masked) as usize & ((buckets - 1) * stride);
            let lane = words[start..start + LANES].iter().position(|held| *held == masked && masked != 0);
            (start, lane.map(|lane| start + lane))
        };
        let wanted: Vec<u8> =
            (0..keys.len()).filter(|row| place(keys[*row]).1.is_none()).map(|row| row as u8).collect();
        for is_portable in [false, true] {
            let kernel = if is_portable { portable::find } else { find };
            let (mut places, mut others) = ([7; BLOCK_ROWS], [0; BLOCK_ROWS]);
            let shape = KeyTable::new(&words, buckets, stride, &hasher);
            let count = kernel(&shape, &keys, ahead, &mut places, &mut others);
            prop_assert_eq!(&others[..count], &wanted[..]);
            for (key, found) in keys.iter().zip(places) {
                let (start, at) = place(*key);
                prop_assert_eq!(found as usize, at.unwrap_or(start));
            }
        }
        // The same sums result with and without copies.
        let values: Vec<i64> = keys.iter().map(|key| key.wrapping_mul(0x1234_5678_9abc_def1)).collect();
        let mut sums = words.clone();
        for (key, value) in keys.iter().zip(&values) {
            if let Some(at) = place(*key).1 {
                sums[at + LANES] = sums[at + LANES].wrapping_add(*value as u64);
            }
        }
        let length = buckets * stride;
        for copies in [0, COPIES] {
            let (mut words, mut copied) = (words.clone(), vec![0; copies * (length + 5)]);
            let (mut places, mut others) = ([7; BLOCK_ROWS], [0; BLOCK_ROWS]);
            let what = Sums { values: &values, copies: &mut copied };
            let shape = TableShape { buckets, stride, hasher: &hasher };
            let count = find_and_add(&mut words, shape, &keys, ahead, what, &mut places, &mut others);
            prop_assert_eq!(&others[..count], &wanted[..]);
            let is_start = |row: &u8| {
                let row = usize::from(*row);
                places[row] as usize == place(keys[row]).0
            };
            prop_assert!(wanted.iter().all(is_start));
            for copy in copied.chunks(length + 5) {
                words.iter_mut().zip(copy).for_each(|(word, copied)| *word = word.wrapping_add(*copied));
            }
            prop_assert_eq!(&words, &sums);
        }
    }

    #[test]
    fn hashes_are_two_rounds_of_aes_or_a_folded_product(secret in any::<[u64; 6]>(), masked in any::<u64>()) {
        let hasher = SecretHasher::new(secret);
        let wanted = match hasher.is_aes() {
            true => {
                let state = aes_round(bytes(masked, secret[1]), bytes(secret[2], secret[3]));
                u128::from_le_bytes(aes_round(state, bytes(secret[4], secret[5]))) as u64
            }
            false => portable::hash(&hasher, masked),
        };
        prop_assert_eq!(hasher.hash(masked), wanted);
    }

    #[test]
    fn what_is_added_is_what_plain_loops_add(
        rows in prop::collection::vec((0..50u32, any::<i64>()), 0..300),
        is_equal in any::<bool>(),
    ) {
        let (mut places, values): (Vec<u32>, Vec<i64>) = rows.into_iter().unzip();
        if is_equal {
            places.fill(3);
        }
        let mut wanted = vec![u64::MAX / 3; 50];
        let (mut added, mut plain, mut updated) = (wanted.clone(), wanted.clone(), wanted.clone());
        for (place, value) in places.iter().zip(&values) {
            wanted[*place as usize] = wanted[*place as usize].wrapping_add(*value as u64);
        }
        add(&mut added, &places, &values);
        portable::add(&mut plain, &places, &values);
        update(&mut updated, &places, |row, word| word.wrapping_add(values[row] as u64));
        prop_assert_eq!(&added, &wanted);
        prop_assert_eq!(&plain, &wanted);
        prop_assert_eq!(&updated, &wanted);
        prop_assert_eq!(ones(&values), portable::ones(&values));
        let most = ones(&values).saturating_add(1);
        prop_assert!(values.iter().all(|value| value.unsigned_abs() <= most));
    }
}

#[test]
#[should_panic(expected = "places beyond 50 words")]
fn places_beyond_the_words_are_refused() {
    add(&mut [0; 50], &[3, 50], &[1, 1]);
}

#[test]
#[should_panic(expected = "places beyond 50 words")]
fn updates_beyond_the_words_are_refused() {
    update(&mut [0; 50], &[3; 17].map(|place| place + 47), |_, word| word);
}

#[test]
#[should_panic(expected = "16 buckets of 8 words in 127 words")]
fn tables_beyond_their_words_are_refused() {
    KeyTable::new(&[0; 127], 16, 8, &SecretHasher::new([1; 6]));
}
