//! Bytes of anonymous regions: copied as asked, zero for the next holder, returned to the host.

mod arenas;

use arenas::*;
use farpool_region::{Arena, ArenaOptions, GATE_BYTES_MAX, RegionError};
use farpool_wire::limits::{NODE_REGIONS_MAX, REGION_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::{Code, Epoch, RegionIndex};
use proptest::prelude::*;

fn error_of(region_bytes: u64, region_count: u32) -> RegionError {
    Arena::new(&ArenaOptions::new(region_bytes, region_count)).unwrap_err()
}

/// Returns a field of `/proc/self/smaps_rollup`, in bytes.
fn own_memory_bytes(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn arena_region_size_not_permitted_is_an_error_with_the_range() {
    for bytes in
        [0, 1, REGION_BYTES_MIN / 2, REGION_BYTES_MIN + 4096, 3 * MIB, REGION_BYTES_MAX * 2, u64::MAX]
    {
        let error = error_of(bytes, 1);
        assert!(matches!(error, RegionError::RegionBytes { bytes: found } if found == bytes));
        assert!(error.to_string().contains(&REGION_BYTES_MAX.to_string()));
    }
}

#[test]
fn arena_region_count_not_permitted_is_an_error() {
    for count in [0, NODE_REGIONS_MAX as u32 + 1, u32::MAX] {
        assert!(matches!(error_of(MIB, count), RegionError::RegionCount { count: found } if found == count));
    }
}

#[test]
fn arena_more_than_the_host_has_is_an_error_with_both_numbers() {
    // All regions together would take 64 TiB.
    let error = error_of(REGION_BYTES_MAX, NODE_REGIONS_MAX as u32);
    let RegionError::HostMemory { wanted_bytes, host_bytes } = error else { panic!("{error}") };
    assert_eq!(wanted_bytes, REGION_BYTES_MAX * NODE_REGIONS_MAX as u64);
    assert!(host_bytes > 0 && host_bytes < wanted_bytes);
}

#[test]
fn arena_region_index_out_of_range_is_refused_everywhere() {
    let arena = small_arena(2);
    for region in [RegionIndex(2), RegionIndex(u32::MAX)] {
        let refusal = arena.enter(region).err().unwrap();
        assert_eq!((refusal.code, refusal.detail), (Code::NoSuchRegion, 2));
        assert!(matches!(arena.scrub(region), Err(RegionError::NoSuchRegion { region_count: 2, .. })));
        assert!(!arena.lock(region));
    }
}

/// No range that a peer names reaches memory outside the region, or causes a panic.
#[test]
fn copy_range_outside_the_region_is_refused() {
    let arena = small_arena(2);
    open(&arena, R0, 1);
    let mut into = [0; 16];
    for offset in [MIB - 15, MIB, u64::MAX - 15, u64::MAX] {
        let entered = arena.enter(R0).unwrap();
        assert_eq!(entered.copy_out(offset, &mut into).unwrap_err().code, Code::OutOfBounds);
        assert_eq!(entered.copy_in(offset, &into).unwrap_err().code, Code::OutOfBounds);
    }
    write(&arena, R0, MIB - 16, &[7; 16]);
    assert!(arena.verify_zero(R1).unwrap(), "the neighbour is untouched");
}

#[test]
fn copy_more_than_the_gate_allows_is_refused() {
    let arena = small_arena(1);
    open(&arena, R0, 1);
    let entered = arena.enter(R0).unwrap();
    assert_eq!(entered.copy_in(0, &vec![1; GATE_BYTES_MAX + 1]).unwrap_err().code, Code::LimitReached);
    entered.copy_in(0, &vec![1; GATE_BYTES_MAX]).unwrap();
    assert_eq!(entered.copy_in(0, &[1]).unwrap_err().code, Code::LimitReached, "also in two steps");
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: usize, fill: u8 },
    Read { offset: u64, bytes: usize },
    Suspend,
    Reseat,
    Release { shared_next: bool },
}

fn any_step() -> impl Strategy<Value = Step> {
    // Offsets reach a little beyond the region's end, so that some copies are refused.
    let offset = 0..MIB + 4096;
    let bytes = prop_oneof![0..200_usize, 4000..4200_usize, Just(GATE_BYTES_MAX)];
    prop_oneof![
        8 => (offset.clone(), bytes.clone(), 1..=255_u8)
            .prop_map(|(offset, bytes, fill)| Step::Write { offset, bytes, fill }),
        8 => (offset, bytes).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        1 => Just(Step::Suspend),
        1 => Just(Step::Reseat),
        1 => any::<bool>().prop_map(|shared_next| Step::Release { shared_next }),
    ]
}

proptest! {
    // Keeps no file of seeds that have failed: whoever finds a failure makes a test with a name of it.
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Invariant I3: a read returns what a plain vector would hold, or a refusal, whatever happens to the region.
    #[test]
    fn copies_random_history_equals_a_vector(steps in proptest::collection::vec(any_step(), 1..60)) {
        let arena = small_arena(2);
        let mut model = vec![0_u8; MIB as usize];
        let mut epoch = 1;
        let mut is_sealed = false;
        open(&arena, R1, epoch);
        for step in steps {
            match step {
                Step::Write { offset, bytes, fill } => {
                    let data: Vec<u8> = (0..bytes).map(|index| fill.wrapping_add(index as u8)).collect();
                    let end = offset as usize + bytes;
                    let result = arena.enter(R1).unwrap().copy_in(offset, &data);
                    prop_assert_eq!(result.is_ok(), end <= model.len() && !is_sealed);
                    if result.is_ok() {
                        model[offset as usize..end].copy_from_slice(&data);
                    }
                }
                Step::Read { offset, bytes } => {
                    let mut into = vec![0xEE; bytes];
                    let end = offset as usize + bytes;
                    let result = arena.enter(R1).unwrap().copy_out(offset, &mut into);
                    prop_assert_eq!(result.is_ok(), end <= model.len());
                    if result.is_ok() {
                        prop_assert!(into == model[offset as usize..end]);
                    }
                }
                Step::Suspend => {
                    arena.suspend(R1).unwrap();
                    let refusal = arena.enter(R1).unwrap().copy_in(0, &[1]).unwrap_err();
                    prop_assert_eq!(refusal.code, Code::LeaseExpired);
                    arena.resume(R1).unwrap();
                }
                Step::Reseat => {
                    epoch += 1;
                    arena.close(R1, Epoch(epoch)).unwrap();
                    arena.reseat(R1, None).unwrap();
                    open_sealed(&arena, R1, epoch);
                    is_sealed = true;
                }
                Step::Release { shared_next } => {
                    is_sealed = false;
                    epoch += 1;
                    arena.close(R1, Epoch(epoch)).unwrap();
                    arena.scrub(R1).unwrap();
                    if shared_next {
                        arena.share(R1).unwrap();
                    }
                    prop_assert!(arena.verify_zero(R1).unwrap());
                    model.fill(0);
                    epoch += 1;
                    open(&arena, R1, epoch);
                }
            }
        }
        prop_assert!(arena.verify_zero(R0).unwrap());
    }
}

/// Invariant I4: a scrubbed region is zero. `verify_zero` must find a single byte that is not, wherever it lies.
#[test]
fn scrub_after_writes_anywhere_then_verified_zero() {
    let arena = small_arena(1);
    let mut epoch = 1;
    for offset in [0, 1, 4095, 4096, 123_457, MIB - 1] {
        open(&arena, R0, epoch);
        write(&arena, R0, offset, &[1]);
        epoch += 1;
        arena.close(R0, Epoch(epoch)).unwrap();
        assert!(!arena.verify_zero(R0).unwrap(), "a byte at {offset} went unseen");
        assert!(matches!(arena.give_back(R0), Err(RegionError::NotClean { .. })));
        assert!(matches!(arena.share(R0), Err(RegionError::NotClean { .. })));
        arena.scrub(R0).unwrap();
        assert!(arena.verify_zero(R0).unwrap());
        epoch += 1;
    }
}

#[test]
fn memory_of_an_open_region_is_left_alone() {
    let arena = small_arena(1);
    open(&arena, R0, 1);
    write(&arena, R0, 0, b"mine");
    let refused =
        [arena.scrub(R0), arena.share(R0), arena.reseat(R0, None), arena.give_back(R0), arena.prefault(R0)];
    for result in refused {
        assert!(matches!(result, Err(RegionError::NotClosed { epoch: Epoch(1), .. })));
    }
    assert_eq!(read(&arena, R0, 0, 4), b"mine");
}

/// Invariant I9: memory that is given back is the host's at once, and the region can be used again.
#[test]
fn give_back_prefaulted_regions_then_resident_memory_falls() {
    let region_bytes = 16 * MIB;
    let arena = Arena::new(&ArenaOptions { huge_pages: true, ..ArenaOptions::new(region_bytes, 4) }).unwrap();
    let untouched = own_memory_bytes("Anonymous:");
    for index in 0..4 {
        arena.prefault(RegionIndex(index)).unwrap();
    }
    let prefaulted = own_memory_bytes("Anonymous:");
    for index in 0..4 {
        arena.give_back(RegionIndex(index)).unwrap();
    }
    let given_back = own_memory_bytes("Anonymous:");
    // Other tests of this process take and free a few MiB.
    let slack = 24 * MIB;
    assert!(prefaulted + slack > untouched + 4 * region_bytes, "{untouched} -> {prefaulted}");
    assert!(given_back + 4 * region_bytes < prefaulted + slack, "{prefaulted} -> {given_back}");
    open(&arena, R0, 1);
    write(&arena, R0, 5, b"again");
    assert_eq!(read(&arena, R0, 5, 5), b"again");
}

#[test]
fn lock_where_permitted_is_counted_and_does_not_hinder_giving_back() {
    let arena = small_arena(3);
    if !arena.lock(R0) {
        return; // This host permits no locked memory at all; nothing else depends on it.
    }
    assert!(arena.lock(R0), "once is enough");
    assert!(arena.lock(R1));
    assert_eq!(arena.locked_count(), 2);
    arena.prefault(R0).unwrap();
    arena.give_back(R0).unwrap();
    assert_eq!(arena.locked_count(), 1);
    arena.share(R1).unwrap();
    assert_eq!(arena.locked_count(), 0);
}
