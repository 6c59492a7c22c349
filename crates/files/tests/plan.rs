//! Decisions of a session against models. The map of a file plans to read exactly what the file wrote, and no two
//! extents share a byte.

use farpool_files::plan::{
    Allocation, Allocator, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, FileMap, Group, PageTags, RangeLockKind,
    RangeLocks, RangeSet, ReadPlan,
};
use farpool_wire::{FileClass, NodeId};
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #[test]
    fn range_set_agrees_with_a_set_of_positions(
        steps in prop::collection::vec((any::<bool>(), 0..200u64, 0..60u64), 1..60),
    ) {
        let mut ranges = RangeSet::default();
        let mut model = BTreeSet::new();
        for (insert, start, count) in steps {
            let range = start..start + count;
            if insert {
                ranges.insert(range.clone());
                model.extend(range.clone());
            } else {
                ranges.remove(range.clone());
                model.retain(|position| !range.contains(position));
            }
            let window = start.saturating_sub(20)..start + count + 20;
            let found: Vec<u64> = ranges.overlaps(window.clone()).flatten().collect();
            let expected: Vec<u64> = model.range(window.clone()).copied().collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(ranges.touches(window), !expected.is_empty());
            prop_assert_eq!(ranges.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn allocator_never_gives_a_byte_twice_and_forgets_none(
        steps in prop::collection::vec((0..10u8, 0..5u32, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut allocator = Allocator::default();
        let group = Group::Class(FileClass::Scratch);
        let region_bytes = 2 * EXTENT_BYTES_MAX;
        let mut held: Vec<Allocation<u32>> = Vec::new();
        let mut regions = 0;
        for (kind, size, pick) in steps {
            match kind {
                0 if regions < 6 => {
                    allocator.add(regions, NodeId(u64::from(regions % 3)), group, region_bytes);
                    regions += 1;
                }
                0..6 => {
                    let bytes = (EXTENT_BYTES_MIN << size) as u32;
                    match allocator.allocate(group, bytes, |_| true) {
                        Some(allocation) => {
                            prop_assert!(allocation.offset % u64::from(bytes) == 0);
                            prop_assert!(allocation.offset + u64::from(bytes) <= region_bytes);
                            let apart = |other: &Allocation<u32>| {
                                other.region != allocation.region
                                    || other.offset + u64::from(other.bytes) <= allocation.offset
                                    || allocation.offset + u64::from(allocation.bytes) <= other.offset
                            };
                            prop_assert!(held.iter().all(apart), "{allocation:?} overlaps");
                            held.push(allocation);
                        }
                        // An allocation fails only if the group is full: the smallest extent always fits into free
                        // space.
                        None => prop_assert!(bytes as u64 > EXTENT_BYTES_MIN || allocator.held(group).1 == 0),
                    }
                }
                _ if !held.is_empty() => allocator.give_back(held.swap_remove(pick.index(held.len()))),
                _ => {}
            }
            let used: u64 = held.iter().map(|allocation| u64::from(allocation.bytes)).sum();
            let all = u64::from(regions) * region_bytes;
            prop_assert_eq!(allocator.held(group), (all, all - used));
            let busy: BTreeSet<u32> = held.iter().map(|allocation| allocation.region).collect();
            let idle: BTreeSet<u32> = allocator.idle(group).into_iter().collect();
            prop_assert_eq!(idle, (0..regions).filter(|region| !busy.contains(region)).collect::<BTreeSet<u32>>());
        }
    }

    /// Extents are reused without being wiped, so a map must never plan to read bytes that its file did not write.
    #[test]
    fn file_map_plans_to_read_exactly_what_was_written(
        steps in prop::collection::vec((0..10u8, 0..1_500_000u64, 0..400_000u64), 1..40),
    ) {
        let mut map: FileMap<u32> = FileMap::default();
        let mut next = 0;
        // Model of each position: written by this file, zero, or unknown after a failed write.
        let (mut written, mut poisoned, mut length) = (RangeSet::default(), RangeSet::default(), 0u64);
        for (kind, offset, count) in steps {
            let range = offset..offset + count;
            match kind {
                0..6 if count > 0 => {
                    while let Some(bytes) = map.next_extent_bytes(range.end) {
                        map.push(bytes, vec![Allocation { region: next, offset: 0, bytes }]);
                        next += 1;
                    }
                    let segments = map.copies_of(range.clone());
                    let mut at = range.start;
                    for segment in &segments {
                        prop_assert_eq!(segment.file.start, at);
                        at = segment.file.end;
                    }
                    prop_assert_eq!(at, range.end);
                    if kind == 0 {
                        map.poison(range.clone(), |_| false);
                        map.extend(range.end);
                        poisoned.insert(range.clone());
                        written.remove(range.clone());
                    } else {
                        map.wrote(range.clone());
                        written.insert(range.clone());
                        poisoned.remove(range.clone());
                    }
                    length = length.max(range.end);
                }
                6 => {
                    map.set_length(offset);
                    written.remove(offset..u64::MAX);
                    poisoned.remove(offset..u64::MAX);
                    length = offset;
                }
                _ => {}
            }
            prop_assert_eq!(map.length(), length);
            let asked = offset.min(length)..range.end.min(length);
            match map.plan_read(asked.clone(), |_| Some(0)) {
                ReadPlan::Poisoned(part) => {
                    prop_assert!(poisoned.touches(asked.clone()));
                    prop_assert!(part.start >= asked.start && part.end <= asked.end);
                }
                ReadPlan::Fetch { segments, bare } => {
                    prop_assert!(bare.is_empty());
                    prop_assert!(!poisoned.touches(asked.clone()));
                    let mut planned = RangeSet::default();
                    for segment in segments {
                        planned.insert(segment.file);
                    }
                    let expected: Vec<_> = written.overlaps(asked.clone()).collect();
                    prop_assert_eq!(planned.overlaps(0..u64::MAX).collect::<Vec<_>>(), expected);
                }
            }
        }
    }
}

#[test]
fn file_map_grows_by_doubling_extents_up_to_their_maximum() {
    let mut map: FileMap<u32> = FileMap::default();
    let mut sizes = Vec::new();
    while let Some(bytes) = map.next_extent_bytes(4 << 20) {
        // A file that is written in small steps gets small extents first.
        let bytes = if map.allocated() == 0 {
            map.next_extent_bytes(1).unwrap_or(bytes)
        } else {
            map.next_extent_bytes(map.allocated() + 1).unwrap_or(bytes)
        };
        sizes.push(bytes >> 10);
        map.push(bytes, vec![Allocation { region: 0, offset: 0, bytes }]);
    }
    assert_eq!(sizes, [64, 64, 128, 256, 512, 1024, 1024, 1024]);
}

#[test]
fn file_map_extent_in_which_a_write_may_arrive_late_is_not_written() {
    let mut map: FileMap<u32> = FileMap::default();
    for region in 0..3 {
        map.push(65_536, vec![Allocation { region, offset: 0, bytes: 65_536 }]);
    }
    map.wrote(0..3 * 65_536);
    let late = map.copies_of(65_536..65_537)[0].copy;
    map.poison(60_000..70_100, |copy| copy == late);
    assert!(map.is_quarantined(65_536..65_537) && !map.is_quarantined(0..65_536));
    assert!(matches!(map.plan_read(70_000..70_001, |_| Some(0)), ReadPlan::Poisoned(_)));
    assert_eq!(map.clear().len(), 3, "all locations are given back");
}

/// A location that was never given back kept its region for as long as the session lived, and its node from being
/// drained.
#[test]
fn allocator_uses_no_extent_again_in_which_a_write_may_arrive_and_says_when_nothing_else_is_there() {
    let (mut allocator, group) = (Allocator::default(), Group::Class(FileClass::Scratch));
    allocator.add(0u32, NodeId(1), group, EXTENT_BYTES_MAX);
    let take = |allocator: &mut Allocator<u32>, bytes: u64| allocator.allocate(group, bytes as u32, |_| true);
    let half = EXTENT_BYTES_MAX / 2;
    let (late, other) =
        (take(&mut allocator, half).expect("room"), take(&mut allocator, half).expect("room"));
    assert!(!allocator.has_late(0));
    allocator.note_late(0, late.offset + EXTENT_BYTES_MIN);
    allocator.give_back(late);
    assert_eq!(
        (take(&mut allocator, EXTENT_BYTES_MIN), allocator.held(group)),
        (None, (EXTENT_BYTES_MAX, 0))
    );
    assert!(allocator.idle(group).is_empty());
    allocator.give_back(other);
    assert_eq!(allocator.idle(group), [0]);
    let again = take(&mut allocator, EXTENT_BYTES_MIN).expect("the other half is free");
    assert_eq!((again.offset, allocator.has_late(0)), (other.offset, true));
    assert!(allocator.idle(group).is_empty());
}

/// A copy that was being made held bytes from before a truncation. It was accepted as a copy of the bytes written
/// since, because the new extent had been written as often as the old one.
#[test]
fn copy_made_before_its_extent_was_truncated_and_written_anew_is_not_taken_in() {
    let allocation = |region: u32| Allocation { region, offset: 0, bytes: EXTENT_BYTES_MIN as u32 };
    let mut map = FileMap::default();
    let write = |map: &mut FileMap<u32>| {
        map.push(EXTENT_BYTES_MIN as u32, vec![allocation(1)]);
        map.begin_write(&(0..100));
        map.wrote(0..100);
    };
    write(&mut map);
    let snapshot = map.snapshot(0).expect("an extent");
    assert_eq!(map.set_length(0), [allocation(1)]);
    write(&mut map);
    assert_eq!(map.attach(&snapshot, allocation(2), PageTags::new(allocation(2).bytes)), Err(allocation(2)));
}

/// Two repairs of an extent each added a copy. No repair removed the third, and the file could not be published.
#[test]
fn copy_that_is_made_beside_another_copy_of_its_extent_is_not_taken_in() {
    let allocation = |region: u32| Allocation { region, offset: 0, bytes: EXTENT_BYTES_MIN as u32 };
    let tags = || PageTags::new(EXTENT_BYTES_MIN as u32);
    let mut map = FileMap::default();
    map.push(EXTENT_BYTES_MIN as u32, vec![allocation(1)]);
    let snapshots = [0, 0].map(|start| map.snapshot(start).expect("an extent"));
    assert!(map.attach(&snapshots[0], allocation(2), tags()).is_ok());
    assert_eq!(map.attach(&snapshots[1], allocation(3), tags()), Err(allocation(3)));
}

#[test]
fn flight_is_older_than_a_moment_until_it_ends() {
    let mut range_locks = RangeLocks::default();
    let before = range_locks.begin(RangeLockKind::Read, 0..10).expect("nothing in its way");
    let moment = range_locks.mark();
    let after = range_locks.begin(RangeLockKind::Read, 0..10).expect("nothing in its way");
    assert!(range_locks.has_older(moment));
    range_locks.end(before);
    assert!(!range_locks.has_older(moment));
    range_locks.end(after);
}

#[test]
fn version_of_a_range_grows_with_every_write_in_its_extents_and_with_no_other() {
    let mut map: FileMap<u32> = FileMap::default();
    let bytes = EXTENT_BYTES_MIN;
    for region in 0..3 {
        map.push(bytes as u32, vec![Allocation { region, offset: 0, bytes: bytes as u32 }]);
    }
    let first = 10..20;
    let (before, beside) = (map.version(&first), map.version(&(bytes..2 * bytes)));
    map.begin_write(&(bytes..bytes + 1));
    assert_eq!(map.version(&first), before);
    assert!(map.version(&(bytes..2 * bytes)) > beside);
    assert!(map.version(&(0..2 * bytes)) > beside, "the range has a part of it");
    map.begin_write(&(0..1));
    assert!(map.version(&first) > before);
}

proptest! {
    #[test]
    fn run_is_contiguous_in_one_region_and_every_extent_is_allocated_once(
        wanted in proptest::collection::vec((1..3u64 << 20, any::<bool>()), 1..40),
    ) {
        const REGION_BYTES: u64 = 4 << 20;
        let group = Group::File(1);
        let mut allocator: Allocator<u64> = Allocator::default();
        for region in 0..6 {
            allocator.add(region, NodeId(region % 2), group, REGION_BYTES);
        }
        let mut taken: Vec<(u64, std::ops::Range<u64>)> = Vec::new();
        for (bytes, is_kept) in wanted {
            let Some(allocations) = allocator.allocate_run(group, bytes, |_| true) else { continue };
            let (region, mut at) = (allocations[0].region, allocations[0].offset);
            for allocation in &allocations {
                prop_assert_eq!((allocation.region, allocation.offset), (region, at));
                prop_assert_eq!(allocation.offset % u64::from(allocation.bytes), 0, "aligned to itself");
                at += u64::from(allocation.bytes);
                prop_assert!(at <= REGION_BYTES);
            }
            prop_assert!(at - allocations[0].offset >= bytes && at - allocations[0].offset < bytes + EXTENT_BYTES_MIN);
            let is_apart = |(other, range): &(u64, std::ops::Range<u64>)| {
                *other != region || range.end <= allocations[0].offset || range.start >= at
            };
            prop_assert!(taken.iter().all(is_apart));
            match is_kept {
                true => taken.push((region, allocations[0].offset..at)),
                false => allocations.into_iter().for_each(|allocation| allocator.give_back(allocation)),
            }
        }
        let used: u64 = taken.iter().map(|(_, range)| range.end - range.start).sum();
        let (all, free) = allocator.held(group);
        prop_assert_eq!(all - free, used);
    }
}
