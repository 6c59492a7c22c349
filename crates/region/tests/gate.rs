//! The gate under threads: a copy that is admitted sees one whole fence, and after a close no old copy is inside.

mod arenas;

use arenas::*;
use farpool_region::{GATE_BYTES_MAX, RegionError};
use farpool_wire::{Code, Epoch, Handle};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Least time that a test runs. If its threads have not done enough by then, it runs on, until `DEADLINE` at most.
const MEANINGFUL: Duration = Duration::from_millis(400);
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn fence_through_a_lease_s_life_shows_what_holds() {
    let arena = small_arena(1);
    let fence = || arena.enter(R0).unwrap().fence();
    let copied = || arena.enter(R0).unwrap().copy_out(0, &mut [0]);

    assert_eq!((fence().epoch, fence().write_handle, fence().read_handle), (Epoch(0), None, None));
    assert_eq!(copied().unwrap_err().code, Code::StaleEpoch);

    arena.open(R0, Epoch(1), Some(Handle(10)), Some(Handle(11))).unwrap();
    assert_eq!((fence().write_handle, fence().read_handle), (Some(Handle(10)), Some(Handle(11))));
    assert_eq!((fence().suspended, fence().sealed, fence().region_bytes), (false, false, MIB));
    copied().unwrap();

    arena.suspend(R0).unwrap();
    assert_eq!((fence().suspended, fence().epoch, fence().write_handle), (true, Epoch(1), Some(Handle(10))));
    assert_eq!(copied().unwrap_err().code, Code::LeaseExpired);
    arena.resume(R0).unwrap();
    copied().unwrap();

    arena.close(R0, Epoch(2)).unwrap();
    assert_eq!((fence().suspended, fence().epoch, fence().write_handle), (false, Epoch(2), None));
    let refusal = copied().unwrap_err();
    assert_eq!((refusal.code, refusal.detail), (Code::StaleEpoch, 2));

    arena.open(R0, Epoch(2), None, Some(Handle(12))).unwrap();
    assert!(fence().sealed);
    copied().unwrap();
    assert_eq!(arena.enter(R0).unwrap().copy_in(0, &[0]).unwrap_err().code, Code::Sealed);
}

#[test]
fn epoch_that_does_not_grow_is_an_error() {
    let arena = small_arena(1);
    assert!(matches!(arena.open(R0, Epoch(0), None, None), Err(RegionError::EpochOrder { .. })));
    assert!(matches!(arena.open(R0, Epoch(u64::MAX), None, None), Err(RegionError::EpochOrder { .. })));
    open(&arena, R0, 5);
    assert!(matches!(arena.open(R0, Epoch(6), None, None), Err(RegionError::NotClosed { .. })));
    assert!(matches!(arena.close(R0, Epoch(5)), Err(RegionError::EpochOrder { current: Epoch(5), .. })));
    assert!(matches!(arena.close(R0, Epoch(u64::MAX)), Err(RegionError::EpochOrder { .. })));
    arena.close(R0, Epoch(6)).unwrap();
    assert!(matches!(arena.open(R0, Epoch(5), None, None), Err(RegionError::EpochOrder { .. })));
    assert!(matches!(arena.suspend(R0), Err(RegionError::NotOpen { epoch: Epoch(6), .. })));
}

/// A close waits for a copy that is inside the same region, and for no other.
#[test]
fn close_while_a_copy_is_inside_then_waits_until_it_leaves() {
    let arena = small_arena(2);
    open(&arena, R0, 1);
    open(&arena, R1, 1);
    let entered = arena.enter(R0).unwrap();
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            arena.close(R0, Epoch(2)).unwrap();
            closed.store(true, Ordering::SeqCst);
        });
        // The close has begun when new copies are refused.
        while arena.enter(R0).unwrap().fence().epoch != Epoch(2) {
            thread::sleep(Duration::from_micros(50));
        }
        arena.close(R1, Epoch(2)).unwrap();
        assert!(!closed.load(Ordering::SeqCst));
        entered.copy_in(0, b"still whole").unwrap();
        drop(entered);
    });
    assert!(closed.into_inner());
}

/// A handle is two words. A copy that saw half an old and half a new handle would be admitted by a handle that nobody
/// was given.
#[test]
fn handle_under_changing_epochs_is_never_torn() {
    let arena = small_arena(1);
    let stop = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let fence = arena.enter(R0).unwrap().fence();
                    for handle in [fence.write_handle, fence.read_handle].into_iter().flatten() {
                        assert_eq!(handle.0 >> 64, u128::from(fence.epoch.0), "another epoch's handle");
                        assert_eq!(handle.0 as u64, fence.epoch.0, "a torn handle");
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut epoch = 1;
        let has_seen_enough = |epoch: u64| epoch > 100 && seen.load(Ordering::Relaxed) > 1_000;
        // The reading threads take longer to get a turn on a busy machine.
        while begun.elapsed() < if has_seen_enough(epoch) { MEANINGFUL } else { DEADLINE } {
            open(&arena, R0, epoch);
            arena.suspend(R0).unwrap();
            arena.resume(R0).unwrap();
            epoch += 1;
            arena.close(R0, Epoch(epoch)).unwrap();
            // The same bytes are sealed at the epoch that the close set.
            open_sealed(&arena, R0, epoch);
            epoch += 1;
            arena.close(R0, Epoch(epoch)).unwrap();
            epoch += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(has_seen_enough(epoch), "{seen:?} handles of {epoch} epochs were seen within {DEADLINE:?}");
    });
}

/// Invariants I1, I2 and I3: writers of an old epoch write to the region all the time while it is closed, sealed, wiped
/// and granted again. None of their bytes may arrive after the close, and a reader sees the bytes of one epoch, whole,
/// or is refused.
#[test]
fn close_under_hammering_threads_then_no_old_byte_lands_and_reads_are_whole() {
    const BYTES: usize = 64 << 10;
    const _: () = assert!(BYTES <= GATE_BYTES_MAX);
    let arena = small_arena(1);
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let read_whole = AtomicU64::new(0);
    let pattern = |epoch: u64| (epoch % 251) as u8 + 1;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let entered = arena.enter(R0).unwrap();
                    let epoch = entered.fence().epoch.0;
                    if entered.copy_in(0, &[pattern(epoch); BYTES]).is_ok() {
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut into = vec![0; BYTES];
            while !stop.load(Ordering::Relaxed) {
                let entered = arena.enter(R0).unwrap();
                if !entered.fence().sealed || entered.copy_out(0, &mut into).is_err() {
                    continue;
                }
                // A region sealed at e + 1 was written at e, by every writer with the same pattern.
                let expected = pattern(entered.fence().epoch.0 - 1);
                assert!(into.iter().all(|byte| *byte == expected), "a torn or foreign read");
                read_whole.fetch_add(1, Ordering::Relaxed);
            }
        });
        let begun = Instant::now();
        let mut epoch = 1;
        let has_seen_enough =
            || written.load(Ordering::Relaxed) > 20 && read_whole.load(Ordering::Relaxed) > 20;
        while begun.elapsed() < if has_seen_enough() { MEANINGFUL } else { DEADLINE } {
            open(&arena, R0, epoch);
            write(&arena, R0, 0, &[pattern(epoch); BYTES]);
            // Gives the other threads a turn: waits until at least one more write has ended.
            let enough = written.load(Ordering::Relaxed) + 1;
            while written.load(Ordering::Relaxed) < enough && begun.elapsed() < DEADLINE {
                thread::sleep(Duration::from_micros(50));
            }
            arena.close(R0, Epoch(epoch + 1)).unwrap();
            if epoch.is_multiple_of(2) {
                arena.reseat(R0, None).unwrap();
            }
            open_sealed(&arena, R0, epoch + 1);
            thread::sleep(Duration::from_micros(200));
            arena.close(R0, Epoch(epoch + 2)).unwrap();
            arena.scrub(R0).unwrap();
            assert!(arena.verify_zero(R0).unwrap(), "a write landed after the close");
            epoch += 3;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(has_seen_enough(), "{written:?} writes and {read_whole:?} reads within {DEADLINE:?}");
    });
}
