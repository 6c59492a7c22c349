//! The ring between client and node: no wake-up is lost and no byte is read before it was written, in every order of
//! the two sides' steps (loom tries them all). Values that a hostile side writes into the ring do no harm.

use farpool_transport::shm::ring::protocol::{Impossible, RingSide, Word, Words};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use proptest::prelude::*;
use std::cell::Cell;

const CAPACITY: u64 = 2;
const ITEMS: u64 = 3;

/// A ring of numbers, and an event for each side.
struct Shared {
    words: [AtomicU64; 4],
    items: [AtomicU64; CAPACITY as usize],
    bells: [(Mutex<bool>, Condvar); 2],
}

impl Words for Shared {
    fn load(&self, word: Word) -> u64 {
        self.words[word as usize].load(Ordering::Acquire)
    }
    fn store(&self, word: Word, value: u64) {
        self.words[word as usize].store(value, Ordering::Release);
    }
    fn swap(&self, word: Word, value: u64) -> u64 {
        self.words[word as usize].swap(value, Ordering::AcqRel)
    }
    fn fence(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Shared {
    fn ring(&self, bell: usize) {
        let (rung, changed) = &self.bells[bell];
        *rung.lock().unwrap() = true;
        changed.notify_one();
    }

    /// Waits like `poll` on a socket: an event that was signalled before counts as well. Without a signal it is a
    /// deadlock, which loom reports.
    fn park(&self, bell: usize) {
        let (rung, changed) = &self.bells[bell];
        let mut rung = rung.lock().unwrap();
        while !*rung {
            rung = changed.wait(rung).unwrap();
        }
        *rung = false;
    }

    fn wait(&self, side: &RingSide, bell: usize) {
        while side.ready(self).unwrap() == 0 {
            if side.park(self).unwrap() {
                self.park(bell);
                side.unpark(self);
            }
        }
    }
}

#[test]
fn every_item_arrives_in_order_and_no_call_is_missed_in_any_interleaving() {
    let mut model = loom::model::Builder::new();
    // A lost wake-up or an early read would show with fewer preemptions than this.
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Shared {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            items: std::array::from_fn(|_| AtomicU64::new(0)),
            bells: std::array::from_fn(|_| (Mutex::new(false), Condvar::new())),
        });
        let other = Arc::clone(&shared);
        let writing = loom::thread::spawn(move || {
            let mut writer = RingSide::writer(CAPACITY);
            for item in 1..=ITEMS {
                other.wait(&writer, 0);
                other.items[writer.offset() as usize].store(item, Ordering::Relaxed);
                if writer.advance(&*other, 1) {
                    other.ring(1);
                }
            }
        });
        let mut reader = RingSide::reader(CAPACITY);
        for item in 1..=ITEMS {
            shared.wait(&reader, 1);
            assert_eq!(shared.items[reader.offset() as usize].load(Ordering::Relaxed), item);
            if reader.advance(&*shared, 1) {
                shared.ring(0);
            }
        }
        writing.join().unwrap();
    });
}

/// Words that the other side sets to any value.
#[derive(Default)]
struct Hostile([Cell<u64>; 4]);

impl Words for Hostile {
    fn load(&self, word: Word) -> u64 {
        self.0[word as usize].get()
    }
    fn store(&self, word: Word, value: u64) {
        self.0[word as usize].set(value);
    }
    fn swap(&self, word: Word, value: u64) -> u64 {
        self.0[word as usize].replace(value)
    }
    fn fence(&self) {}
}

proptest! {
    /// Impossible counts of the other side are rejected: no side sees more bytes than the ring holds.
    #[test]
    fn counts_that_cannot_be_are_noticed(
        counts in proptest::collection::vec((any::<u64>(), 0u64..70_000), 1..50), is_writer in any::<bool>(),
    ) {
        const BYTES: u64 = 65_536;
        let words = Hostile::default();
        let mut side = if is_writer { RingSide::writer(BYTES) } else { RingSide::reader(BYTES) };
        let theirs = if is_writer { Word::Taken } else { Word::Written };
        let mut moved: u64 = 0;
        for (anything, near) in counts {
            for count in [anything, moved.wrapping_add(near), moved.wrapping_sub(near)] {
                words.store(theirs, count);
                let inside = if is_writer { moved.wrapping_sub(count) } else { count.wrapping_sub(moved) };
                match side.ready(&words) {
                    Ok(ready) => {
                        prop_assert!(inside <= BYTES);
                        prop_assert_eq!(ready, if is_writer { BYTES - inside } else { inside });
                        side.advance(&words, ready);
                        moved = moved.wrapping_add(ready);
                    }
                    Err(Impossible) => prop_assert!(inside > BYTES),
                }
                prop_assert!(side.offset() < BYTES);
            }
        }
    }
}
