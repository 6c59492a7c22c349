//! Group tables that are full, whose keys collide, or that meet the key that looks like a free slot.

use super::*;

fn slots(groups_max: usize, holds_all: bool) -> GroupTable<1> {
    GroupTable::new(vec![0], Room { groups_max, bytes_max: 1 << 20, holds_all }, 7)
}

/// Counts the rows of each key, and returns the counts that were output early because their key had no slot.
fn count(slots: &mut GroupTable<1>, keys: &[i64]) -> Vec<(i64, u64)> {
    let (mut places, mut leaving) = ([0; BLOCK_ROWS], Vec::new());
    for (block, keys) in keys.chunks(BLOCK_ROWS).enumerate() {
        // Two of three blocks go through the kernel, if the CPU has one, the others without it.
        if block % 3 != 0 || !slots.find_and_add(keys, &[], &vec![1; keys.len()]) {
            slots.add_copies();
            slots.find(keys, &[], &mut places);
            places[..keys.len()].iter().for_each(|place| slots.word_accumulators()[*place as usize] += 1);
        }
        slots.add_copies();
        slots.leave_spares(&mut leaving);
    }
    leaving.chunks(2).map(|slot| (slot[0] as i64, slot[1])).collect()
}

fn held(slots: &GroupTable<1>) -> Vec<(i64, u64)> {
    let places = slots.places();
    assert_eq!(places.len(), slots.held());
    let keys = places.iter().map(|place| slots.key(*place));
    let mut held: Vec<(i64, u64)> = keys.zip(slots.accumulators(&places, 0)).collect();
    held.sort_unstable();
    held
}

/// Returns keys that all hash to bucket 5, as an attacker who knows the seed could choose them.
fn meeting(slots: &GroupTable<1>, count: usize) -> Vec<i64> {
    (0..).filter(|key| slots.home(mask(*key, slots.masks)).0 == 5).take(count).collect()
}

#[test]
fn key_that_is_as_free_slots_are_leaves_a_run_and_is_held_by_a_merge() {
    let mut merge = slots(100, true);
    let hidden = merge.masks[0] as i64;
    let keys = [3, hidden, 3, hidden, hidden];
    assert_eq!(count(&mut merge, &keys), []);
    let mut wanted = [(3, 2), (hidden, 3)];
    wanted.sort_unstable();
    assert_eq!(held(&merge), wanted);
    let mut run = slots(100, false);
    assert_eq!(count(&mut run, &keys), [(hidden, 1); 3]);
    assert_eq!(held(&run), [(3, 2)]);
}

#[test]
fn keys_that_meet_leave_a_run_and_are_held_by_a_merge() {
    let mut run = slots(10_000, false);
    let keys = meeting(&run, 200);
    let left = count(&mut run, &[&keys[..], &keys[..]].concat());
    assert!(left.len() >= 200 - PROBES_MAX * LANES);
    let rows: u64 = left.iter().chain(&held(&run)).map(|(_, rows)| rows).sum();
    assert_eq!(rows, 400);
    let mut merge = slots(10_000, true);
    let keys = meeting(&merge, 200);
    assert_eq!(count(&mut merge, &[&keys[..], &keys[..]].concat()), []);
    assert_eq!(held(&merge), keys.iter().map(|key| (*key, 2)).collect::<Vec<_>>());
}

#[test]
fn no_more_is_held_than_there_is_room_for_and_frequent_keys_stay() {
    let mut slots = slots(100, false);
    let keys: Vec<i64> =
        (0..100_000).map(|row| if row % 4 == 0 { row / 4 % 16 } else { row << 20 }).collect();
    let mut left = Vec::new();
    for keys in keys.chunks(1_000) {
        left.extend(count(&mut slots, keys));
        assert!(slots.held() <= 100 && slots.words.len() * 8 <= 1 << 20);
    }
    let rows: u64 = left.iter().chain(&held(&slots)).map(|(_, rows)| rows).sum();
    assert_eq!(rows, 100_000);
    // A quarter of the 100,000 rows has one of 16 keys.
    let frequent = left.iter().filter(|(key, _)| *key < 16).count();
    assert!(frequent < 10_000, "{frequent}");
}

#[test]
fn tables_are_within_their_bytes_and_hold_at_least_one_group() {
    for bytes_max in [0, 1, 100, 5_000, 70_000, 1 << 20] {
        for groups_max in [1, 3, 1_000, 1 << 20] {
            let slots: GroupTable<1> =
                GroupTable::new(vec![0; 2], Room { groups_max, bytes_max, holds_all: false }, 1);
            let bytes = slots.buckets_max * slots.stride * 8;
            assert!(bytes <= bytes_max.max(2 * slots.stride * 8), "{bytes} of {bytes_max}");
            assert!((1..=groups_max).contains(&slots.held_max));
            assert!(slots.held_max * 2 <= slots.buckets_max * LANES);
        }
    }
}
