//! Kernels over columns, compared with their portable twins, and those with a definition in one line.

use farpool_kernels::{CompareOp, Kept, Ordered, PlainNumber, compare, gather, gather_bits, portable};
use proptest::prelude::*;
use std::fmt::Debug;

const COMPARISONS: [CompareOp; 6] = [
    CompareOp::Equal,
    CompareOp::NotEqual,
    CompareOp::Less,
    CompareOp::LessOrEqual,
    CompareOp::Greater,
    CompareOp::GreaterOrEqual,
];

/// Sets of kept rows: none, all, few, about half, or whole stretches.
fn masks() -> impl Strategy<Value = Vec<bool>> {
    let rows = 0..1_500usize;
    let with = |share: f64| move |rows| prop::collection::vec(prop::bool::weighted(share), rows);
    prop_oneof![
        rows.clone().prop_map(|rows| vec![false; rows]),
        rows.clone().prop_map(|rows| vec![true; rows]),
        rows.clone().prop_flat_map(with(0.02)),
        rows.clone().prop_flat_map(with(0.1)),
        rows.prop_flat_map(with(0.5)),
        prop::collection::vec((any::<bool>(), 0..200usize), 0..12)
            .prop_map(|runs| runs.into_iter().flat_map(|(bit, rows)| vec![bit; rows]).collect()),
    ]
}

/// Packs bits into words. Bits behind the last row are 1, because they must not matter.
fn words(bits: &[bool]) -> Vec<u64> {
    let word = |bits: &[bool]| {
        let word = bits.iter().enumerate().fold(0, |word, (at, bit)| word | u64::from(*bit) << at);
        if bits.len() < 64 { word | u64::MAX << bits.len() } else { word }
    };
    bits.chunks(64).map(word).collect()
}

fn check_gather<T: PlainNumber + Debug + PartialEq>(
    mask: &[bool],
    offset: usize,
    number: impl Fn(usize) -> T,
) {
    let values: Vec<T> = (0..offset + mask.len()).map(number).collect();
    let values = &values[offset..];
    let kept = Kept::new(&words(mask), mask.len());
    let expected: Vec<T> =
        values.iter().zip(mask).filter(|(_, kept)| **kept).map(|(value, _)| *value).collect();
    assert_eq!(kept.count(), expected.len());
    let mut found = values[..mask.len().min(3)].to_vec();
    let mut plain = found.clone();
    gather(&kept, values, &mut found);
    portable::gather(&kept, values, &mut plain);
    assert_eq!(found, plain);
    assert_eq!(found[mask.len().min(3)..], expected);
}

fn check_compare<T: Ordered + Debug>(values: &[T], literal: T) {
    for comparison in COMPARISONS {
        let (mut found, mut plain) = (vec![7], Vec::new());
        compare(values, comparison, literal, &mut found);
        portable::compare(values, comparison, literal, &mut plain);
        assert_eq!(found, plain, "{comparison:?} {literal:?}");
        for (row, value) in values.iter().enumerate() {
            let order = value.cmp(&literal);
            let expected = match comparison {
                CompareOp::Equal => order.is_eq(),
                CompareOp::NotEqual => order.is_ne(),
                CompareOp::Less => order.is_lt(),
                CompareOp::LessOrEqual => order.is_le(),
                CompareOp::Greater => order.is_gt(),
                CompareOp::GreaterOrEqual => order.is_ge(),
            };
            assert_eq!(
                found[row / 64] >> (row % 64) & 1 == 1,
                expected,
                "{value:?} {comparison:?} {literal:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn gathered_columns_are_the_kept_rows_at_every_width(mask in masks(), offset in 0..5usize) {
        let mixed = |row: usize| (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        check_gather(&mask, offset, |row| mixed(row) as u8);
        check_gather(&mask, offset, |row| mixed(row) as i16);
        check_gather(&mask, offset, |row| mixed(row) as u32);
        check_gather(&mask, offset, |row| mixed(row) as f32);
        check_gather(&mask, offset, |row| mixed(row) as i64);
        check_gather(&mask, offset, |row| i128::from(mixed(row)) << 32);
    }

    #[test]
    fn gathered_bits_are_those_of_the_kept_rows(mask in masks(), seed in any::<u64>()) {
        let bits: Vec<bool> = (0..mask.len()).map(|row| seed.rotate_left(row as u32 * 7) & 1 == 1).collect();
        let kept = Kept::new(&words(&mask), mask.len());
        let found = gather_bits(&kept, &words(&bits));
        prop_assert_eq!(&found, &portable::gather_bits(&kept, &words(&bits)));
        let of_kept: Vec<bool> =
            bits.iter().zip(&mask).filter(|(_, kept)| **kept).map(|(bit, _)| *bit).collect();
        prop_assert_eq!(found.len(), of_kept.len().div_ceil(64));
        for (at, bit) in of_kept.iter().enumerate() {
            prop_assert_eq!(found[at / 64] >> (at % 64) & 1 == 1, *bit);
        }
    }

    #[test]
    fn one_kept_may_be_set_again_and_again(masks in prop::collection::vec(masks(), 1..4)) {
        let mut kept = Kept::default();
        for mask in masks {
            kept.set(&words(&mask), mask.len());
            let values: Vec<u32> = (0..mask.len() as u32).collect();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            gather(&kept, &values, &mut found);
            gather(&Kept::new(&words(&mask), mask.len()), &values, &mut expected);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn compared_integers_follow_their_order(
        values in prop::collection::vec(any::<u64>(), 0..300),
        shift in 0..60u32,
        offset in 0..3usize,
        literal in any::<u64>(),
    ) {
        let values = &values[offset.min(values.len())..];
        macro_rules! of {
            ($($number:ty)*) => { $(
                let numbers: Vec<$number> = values.iter().map(|value| (value >> shift) as $number).collect();
                check_compare(&numbers, (literal >> shift) as $number);
                if let Some(equal) = numbers.last() {
                    check_compare(&numbers, *equal);
                }
            )* };
        }
        of!(i8 i16 i32 i64 i128 u8 u16 u32 u64);
    }
}

#[test]
#[should_panic(expected = "3 values of 4 rows")]
fn columns_of_another_length_are_refused() {
    gather(&Kept::new(&[0b1010], 4), &[1u64, 2, 3], &mut Vec::new());
}
