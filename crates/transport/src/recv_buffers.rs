//! Pool of receive buffers.
//!
//! Fresh memory costs a page fault for every 4 KiB, and the kernel zeroes it. Together that takes longer than receiving
//! the bytes. Large buffers, of which Arrow columns are made, therefore return to this pool when their last user drops
//! them, as long as a [`RecvBufferPool`] exists. Otherwise nothing is pooled. Buffers that were not reused for a while
//! are freed ([`RecvBufferPool::age`]).

use farpool_lock::Mutex;
use std::collections::BTreeMap;

/// Capacity in bytes below which a buffer is left to the allocator.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// Limit of the pool, in bytes.
const KEPT_BYTES_MAX: usize = 512 << 20;

/// Unused buffers. They are kept only while `keepers`, the number of [`RecvBufferPool`] handles, is not 0.
#[derive(Debug, Default)]
struct Spare {
    /// Buffers by capacity, each with the value that `age` had when the buffer was returned.
    buffers: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    bytes: usize,
    /// Number of calls of [`Spare::age`] so far.
    age: u64,
    keepers: usize,
}

impl Spare {
    /// Takes the smallest buffer that has room, unless it is more than twice as large as needed.
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

    /// Removes all buffers and returns them.
    fn empty(&mut self) -> BTreeMap<usize, Vec<(u64, Vec<u8>)>> {
        self.bytes = 0;
        std::mem::take(&mut self.buffers)
    }

    /// Removes and returns the buffers that have been in the pool, unused, since before the previous call. Adds 1 to
    /// the age of the pool.
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

/// Pool of the whole process. It is not bound to a session.
static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: BTreeMap::new(), bytes: 0, age: 0, keepers: 0 });

/// Receive buffer. A buffer from the pool holds old bytes of this process, so all of it must be written before it is
/// read. Large buffers return to the pool when they are dropped.
#[derive(Debug)]
pub struct RecvBuffer(Vec<u8>);

impl RecvBuffer {
    /// Takes a buffer of `bytes` bytes from the pool, or allocates one.
    pub fn new(bytes: usize) -> RecvBuffer {
        let kept = if bytes < KEPT_BYTES_MIN { None } else { SPARE.lock().take(bytes) };
        match kept {
            Some(mut buffer) => {
                buffer.resize(bytes, 0);
                RecvBuffer(buffer)
            }
            None => RecvBuffer(vec![0; bytes]),
        }
    }

    /// Wraps a buffer, so that it goes to the pool when it is dropped.
    pub fn of(bytes: Vec<u8>) -> RecvBuffer {
        RecvBuffer(bytes)
    }

    /// Returns the bytes. They do not return to the pool by themselves.
    pub fn into_vec(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl AsRef<[u8]> for RecvBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for RecvBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for RecvBuffer {
    fn drop(&mut self) {
        if self.0.capacity() >= KEPT_BYTES_MIN {
            SPARE.lock().give(std::mem::take(&mut self.0));
        }
    }
}

/// Handle that keeps the pool in use. When the last one is dropped, all pooled buffers are freed.
#[derive(Debug)]
pub struct RecvBufferPool(());

impl RecvBufferPool {
    /// Makes a handle. The pool is in use as long as there is one.
    #[expect(clippy::new_without_default, reason = "it is counted")]
    pub fn new() -> RecvBufferPool {
        SPARE.lock().keepers += 1;
        RecvBufferPool(())
    }

    /// Frees the buffers that have been in the pool, unused, since before the previous call.
    pub fn age(&self) {
        let old = SPARE.lock().age();
        // Freed without the lock, because unmapping takes a while.
        drop(old);
    }
}

impl Drop for RecvBufferPool {
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
