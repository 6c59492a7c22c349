//! Memory that received bytes land in, used again.
//!
//! The idea: fresh memory costs a page fault for every 4 KiB and is zeroed by the kernel, together more than receiving
//! into it. So large buffers, of which Arrow columns are made, come back here when their last user drops them, as long
//! as there is a [`Keeper`]. What has not been asked for again for a while goes back to the system.

use farpool_lock::Mutex;
use std::collections::BTreeMap;

/// Buffers below this are the allocator's business.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// Bytes that are kept, at most.
const KEPT_BYTES_MAX: usize = 512 << 20;

/// Buffers that nobody uses.
#[derive(Debug, Default)]
struct Spare {
    /// By their capacity; with each, when it came by the count of [`age`].
    buffers: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    bytes: usize,
    age: u64,
    keepers: usize,
}

impl Spare {
    /// The smallest that has room, unless it is more than twice as large.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let (capacity, of_size) = self.buffers.range_mut(bytes..=bytes.saturating_mul(2)).next()?;
        let capacity = *capacity;
        let (_, buffer) = of_size.pop()?;
        if of_size.is_empty() {
            self.buffers.remove(&capacity);
        }
        self.bytes -= capacity;
        Some(buffer)
    }

    fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if self.keepers > 0 && capacity >= KEPT_BYTES_MIN && self.bytes + capacity <= KEPT_BYTES_MAX {
            self.bytes += capacity;
            self.buffers.entry(capacity).or_default().push((self.age, buffer));
        }
    }

    /// All of them.
    fn empty(&mut self) -> BTreeMap<usize, Vec<(u64, Vec<u8>)>> {
        self.bytes = 0;
        std::mem::take(&mut self.buffers)
    }

    /// Those that came before the last time this was called.
    fn age(&mut self) -> Vec<Vec<u8>> {
        let mut old = Vec::new();
        let age = self.age;
        self.age += 1;
        self.buffers.retain(|_, of_size| {
            let is_old = |(came, _): &mut (u64, Vec<u8>)| *came < age;
            old.extend(of_size.extract_if(.., is_old).map(|(_, buffer)| buffer));
            !of_size.is_empty()
        });
        self.bytes -= old.iter().map(Vec::capacity).sum::<usize>();
        old
    }
}

/// Of this process: memory knows no sessions.
static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: BTreeMap::new(), bytes: 0, age: 0, keepers: 0 });

/// So many bytes of memory, to be written before they are read: they hold anything. It comes back when it is dropped.
#[derive(Debug)]
pub struct Landing(Vec<u8>);

impl Landing {
    /// So many bytes.
    pub fn new(bytes: usize) -> Landing {
        let kept = if bytes < KEPT_BYTES_MIN { None } else { SPARE.lock().take(bytes) };
        match kept {
            Some(mut buffer) => {
                buffer.resize(bytes, 0);
                Landing(buffer)
            }
            None => Landing(vec![0; bytes]),
        }
    }

    /// Bytes that are to come back here.
    pub fn of(bytes: Vec<u8>) -> Landing {
        Landing(bytes)
    }

    /// The bytes, which do not come back by themselves.
    pub fn into_vec(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl AsRef<[u8]> for Landing {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Landing {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.0.capacity() >= KEPT_BYTES_MIN {
            SPARE.lock().give(std::mem::take(&mut self.0));
        }
    }
}

/// Whoever will want memory to land in again. When the last one goes, all that is kept goes back to the system.
#[derive(Debug)]
pub struct Keeper(());

impl Keeper {
    /// One more.
    #[expect(clippy::new_without_default, reason = "it is counted")]
    pub fn new() -> Keeper {
        SPARE.lock().keepers += 1;
        Keeper(())
    }

    /// Returns what nobody has used since this was called the last time but one.
    pub fn age(&self) {
        let old = SPARE.lock().age();
        // Without the lock: unmapping takes a while.
        drop(old);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut spare = SPARE.lock();
        spare.keepers -= 1;
        let kept = if spare.keepers == 0 { spare.empty() } else { BTreeMap::new() };
        drop(spare);
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_to_whoever_wants_as_much_and_go_when_nobody_does() {
        let mut spare = Spare { keepers: 1, ..Spare::default() };
        let large = vec![7; 4 * KEPT_BYTES_MIN];
        let address = large.as_ptr();
        spare.give(large);
        spare.give(vec![7; KEPT_BYTES_MIN - 1]);
        assert_eq!(spare.bytes, 4 * KEPT_BYTES_MIN, "small ones are not kept");
        assert!(spare.take(4 * KEPT_BYTES_MIN + 1).is_none());
        assert!(spare.take(2 * KEPT_BYTES_MIN - 1).is_none(), "more than twice as large");
        let again = spare.take(2 * KEPT_BYTES_MIN).expect("room");
        assert_eq!((again.as_ptr(), spare.bytes), (address, 0));
        spare.give(again);
        assert!(spare.age().is_empty(), "it came just now");
        assert_eq!(spare.age().len(), 1);
        assert_eq!((spare.bytes, spare.buffers.len()), (0, 0));
    }

    #[test]
    fn nothing_is_kept_for_nobody_and_no_more_than_so_much_otherwise() {
        let mut spare = Spare::default();
        spare.give(vec![7; KEPT_BYTES_MIN]);
        assert_eq!(spare.bytes, 0);
        spare.keepers = 1;
        let count = KEPT_BYTES_MAX / (8 << 20);
        (0..count + 3).for_each(|_| spare.give(Vec::with_capacity(8 << 20)));
        assert_eq!(spare.bytes, KEPT_BYTES_MAX);
        assert_eq!((spare.empty().len(), spare.bytes), (1, 0));
    }
}
