//! Means by which a benchmark client reads and writes: calls in this process, or another program.
//!
//! The operations of a measurement come in bursts. A burst is a list of reads or of writes, of 32 MiB or less. Only
//! bursts are timed; buffers are prepared and checked between them. The depth is the number of operations of a client
//! that are outstanding at once.

use super::access::Access;
use crate::exit::Failure;
use farpool::{ReadRange, WriteRange};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Means by which a client reads and writes.
pub(crate) enum Means {
    /// Calls in this process. They run one after another, or in as many threads as the depth says.
    Calls(Box<dyn Target>),
    /// Another program. It gets the reads or writes of a burst, carries them out and measures their time itself, so
    /// that passing orders between the two programs is not measured.
    Bursts(Box<dyn Bursts>),
}

impl Means {
    /// Returns a function with which another thread ends the current burst. `None` for calls: the thread that makes
    /// them checks for the end itself.
    pub(crate) fn stop(&self) -> Option<Stop> {
        match self {
            Means::Calls(_) => None,
            Means::Bursts(program) => Some(program.stop()),
        }
    }
}

/// Target that can be read and written at offsets.
pub(crate) trait Target: Send {
    /// Fills every range.
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure>;

    /// Writes every range.
    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure>;

    /// Returns the target as [`OneAtATime`] if each of its operations blocks a thread. A depth of N is then reached
    /// by N threads instead of a batch of N operations.
    fn by_threads(&self) -> Option<&dyn OneAtATime> {
        None
    }
}

/// Target of single operations, which many threads may call at once.
pub(crate) trait OneAtATime: Sync {
    fn read_one(&self, range: &mut ReadRange<'_>) -> Result<(), Failure>;
    fn write_one(&self, range: WriteRange<'_>) -> Result<(), Failure>;
}

/// Function that ends the burst that was prepared last, once [`Limits::least`] operations are done.
pub(crate) type Stop = Arc<dyn Fn() + Send + Sync>;

/// Program that carries out a burst (a list of reads or of writes) by itself. Only [`Bursts::go`] is timed, by the
/// program itself: passing the orders is not counted.
pub(crate) trait Bursts: Send {
    /// Sends the program one offset per operation, and their buffers one after another in `memory`. The buffers hold
    /// the data to write, or bytes that the reads must replace.
    fn prepare(&mut self, access: Access, offsets: &[u64], memory: &[u8]) -> Result<(), Failure>;

    /// Lets the program carry out the burst that was prepared.
    fn go(&mut self, limits: Limits) -> Result<BurstReport, Failure>;

    /// Copies the bytes that were read into `memory`, and appends the time of each call to `times`.
    fn collect(&mut self, memory: &mut [u8], times: &mut Vec<Duration>) -> Result<(), Failure>;

    /// Returns a function that ends the burst from another thread.
    fn stop(&self) -> Stop;
}

/// Limits of a burst (a list of operations of one client). The burst ends when all operations are done. It also ends
/// once `least` operations are done and either `left_ns` have passed or its [`Stop`] was called. `depth` is the number
/// of operations that are outstanding at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) depth: usize,
    pub(crate) least: usize,
    pub(crate) left_ns: u64,
}

/// Result of a burst of one client.
pub(crate) struct BurstReport {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// Number of operations that were done. They are the first ones of the list.
    pub(crate) finished: Result<usize, Failure>,
    /// CPU time that another process spent on the operations, in ns.
    pub(crate) cpu_ns: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::files::Local;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Stand-in for a program that carries out bursts: it works on memory of this process.
    pub(in super::super) struct Told {
        memory: Local,
        is_write: bool,
        block: usize,
        offsets: Vec<u64>,
        buffers: Vec<u8>,
        times: Vec<Duration>,
        is_stopped: Arc<AtomicBool>,
    }

    impl Told {
        pub(in super::super) fn new(bytes: usize) -> Told {
            Told {
                memory: Local(vec![0; bytes]),
                is_write: false,
                block: 1,
                offsets: Vec::new(),
                buffers: Vec::new(),
                times: Vec::new(),
                is_stopped: Arc::default(),
            }
        }
    }

    impl Bursts for Told {
        fn prepare(&mut self, access: Access, offsets: &[u64], memory: &[u8]) -> Result<(), Failure> {
            (self.is_write, self.block) = (access.is_write, access.block);
            (self.offsets, self.buffers) = (offsets.to_vec(), memory.to_vec());
            self.is_stopped.store(false, Ordering::Release);
            Ok(())
        }

        fn go(&mut self, limits: Limits) -> Result<BurstReport, Failure> {
            let begun = Instant::now();
            let mut finished = 0;
            for (offset, buffer) in self.offsets.iter().zip(self.buffers.chunks_exact_mut(self.block)) {
                if self.is_write {
                    self.memory.write(&[WriteRange { offset: *offset, from: buffer }])?;
                } else {
                    self.memory.read(&mut [ReadRange { offset: *offset, into: buffer }])?;
                }
                finished += 1;
                self.times.push(begun.elapsed());
                let is_late = begun.elapsed().as_nanos() >= u128::from(limits.left_ns);
                if finished >= limits.least && (is_late || self.is_stopped.load(Ordering::Acquire)) {
                    break;
                }
            }
            Ok(BurstReport { begun, ended: Instant::now(), finished: Ok(finished), cpu_ns: 1 })
        }

        fn collect(&mut self, memory: &mut [u8], times: &mut Vec<Duration>) -> Result<(), Failure> {
            memory.copy_from_slice(&self.buffers);
            times.append(&mut self.times);
            Ok(())
        }

        fn stop(&self) -> Stop {
            let is_stopped = self.is_stopped.clone();
            Arc::new(move || is_stopped.store(true, Ordering::Release))
        }
    }
}
