//! Automata over many strings, compared with stepping through each string.

use farpool_kernels::{Automaton, Followed, STATES_MAX, portable};
use proptest::prelude::*;

/// Automata that tell `kinds` kinds of bytes apart. No byte leaves the last `settled` states.
fn automata() -> impl Strategy<Value = Automaton> {
    (1..=STATES_MAX, 1..40usize, any::<u64>(), 0..3usize).prop_map(|(states, kinds, seed, settled)| {
        let mixed = |number: usize| (seed ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let next = |state: usize, byte: usize| match state + settled >= states {
            true => state as u8,
            false => (mixed(byte % kinds * 64 + state) % states as u64) as u8,
        };
        let table: Vec<[u8; 256]> =
            (0..states).map(|state| std::array::from_fn(|byte| next(state, byte))).collect();
        let accepting: Vec<bool> = (0..states).map(|state| mixed(state + 9_999) % 2 == 0).collect();
        Automaton::new(&table, 0, &accepting).unwrap()
    })
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        (0..40usize, 0..70usize).prop_map(|(length, strings)| vec![length; strings]),
        prop::collection::vec(0..100usize, 0..70),
        prop::collection::vec(0..2_000usize, 0..30),
        (300..3_000usize, 0..20usize).prop_map(|(length, strings)| vec![length; strings]),
    ]
}

proptest! {
    #[test]
    fn matches_are_those_of_stepping_through_each_string(
        automaton in automata(),
        lengths in lengths(),
        seed in any::<u64>(),
        before in 0..70usize,
    ) {
        let total = before + lengths.iter().sum::<usize>();
        let mut state = seed | 1;
        let bytes: Vec<u8> = (0..total + 3)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut offsets = vec![before as i32];
        for length in &lengths {
            offsets.push(offsets[offsets.len() - 1] + *length as i32);
        }
        let found = automaton.matches(&bytes, &offsets);
        prop_assert_eq!(&found, &portable::matches(&automaton, &bytes, &offsets));
        prop_assert_eq!(found.len(), lengths.len().div_ceil(64));
        for (row, ends) in offsets.windows(2).enumerate() {
            let passes = automaton.passes(&bytes[ends[0] as usize..ends[1] as usize]);
            prop_assert_eq!(found[row / 64] >> (row % 64) & 1 == 1, passes);
            let mut rest = &bytes[ends[0] as usize..ends[1] as usize];
            let followed = loop {
                match automaton.follow(rest) {
                    Followed::ToTheEnd(passes) => break passes,
                    Followed::BackAtStart(at) => rest = &rest[at..],
                }
            };
            prop_assert_eq!(followed, passes);
        }
    }
}

#[test]
fn no_strings_have_no_bits() {
    let automaton = Automaton::new(&[[0; 256]], 0, &[true]).unwrap();
    assert!(automaton.matches(b"abc", &[]).is_empty());
    assert!(automaton.matches(b"abc", &[1]).is_empty());
    assert_eq!(automaton.matches(b"abc", &[1, 1]), [1]);
}

#[test]
fn states_that_are_not_there_and_too_many_are_refused() {
    assert!(Automaton::new(&[[1; 256]], 0, &[true]).is_none());
    assert!(Automaton::new(&[[0; 256]], 1, &[true]).is_none());
    assert!(Automaton::new(&[[0; 256]], 0, &[]).is_none());
    assert!(Automaton::new(&[[0; 256]; STATES_MAX + 1], 0, &[true; STATES_MAX + 1]).is_none());
}

#[test]
#[should_panic(expected = "offsets that descend, or lie outside of 3 bytes")]
fn offsets_outside_of_the_bytes_are_refused() {
    Automaton::new(&[[0; 256]], 0, &[true]).unwrap().matches(b"abc", &[0, 4]);
}
