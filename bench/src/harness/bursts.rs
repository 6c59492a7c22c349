//! What a client works by: calls of this process, or a program of its own that carries out whole bursts.

use super::access::Access;
use crate::exit::Failure;
use farpool::{ReadRange, WriteRange};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// By what a client reads and writes.
pub(crate) enum Means {
    /// Calls, one after another or from as many threads as the depth says.
    Calls(Box<dyn Target>),
    /// Another program, burst by burst.
    Bursts(Box<dyn Bursts>),
}

impl Means {
    /// How another thread ends its burst, if it must be told.
    pub(crate) fn stop(&self) -> Option<Stop> {
        match self {
            Means::Calls(_) => None,
            Means::Bursts(program) => Some(program.stop()),
        }
    }
}

/// Something that can be read and written at offsets.
pub(crate) trait Target: Send {
    /// Fills every range.
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure>;

    /// Writes every range.
    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure>;

    /// If it takes one operation at a time, from many threads at once: depth is then as many threads.
    fn by_threads(&self) -> Option<&dyn OneAtATime> {
        None
    }
}

/// See [`Target::by_threads`].
pub(crate) trait OneAtATime: Sync {
    fn read_one(&self, range: &mut ReadRange<'_>) -> Result<(), Failure>;
    fn write_one(&self, range: WriteRange<'_>) -> Result<(), Failure>;
}

/// Ends the burst that was prepared last, as soon as it has done the least.
pub(crate) type Stop = Arc<dyn Fn() + Send + Sync>;

/// Something that carries out a burst by itself. Only [`Bursts::go`] is timed, and by the program: what it takes to
/// tell it is not counted.
pub(crate) trait Bursts: Send {
    /// Takes over the offsets and the buffers: what to write, or the spoiled bytes that reads must replace.
    fn prepare(&mut self, access: Access, offsets: &[u64], memory: &[u8]) -> Result<(), Failure>;

    /// Carries it out.
    fn go(&mut self, limits: Limits) -> Result<Part, Failure>;

    /// Brings back what was read, and adds the time of each call.
    fn collect(&mut self, memory: &mut [u8], times: &mut Vec<Duration>) -> Result<(), Failure>;

    /// See [`Stop`].
    fn stop(&self) -> Stop;
}

/// How a burst is carried out, and when it is over: when all or `least` operations are done, and then also the time is
/// up or it was stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) depth: usize,
    pub(crate) least: usize,
    pub(crate) left_ns: u64,
}

/// What a client has done of a burst.
pub(crate) struct Part {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// How many operations from the front were done.
    pub(crate) finished: Result<usize, Failure>,
    /// CPU time of another process for them.
    pub(crate) cpu_ns: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::files::Local;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Memory, by bursts.
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

        fn go(&mut self, limits: Limits) -> Result<Part, Failure> {
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
            Ok(Part { begun, ended: Instant::now(), finished: Ok(finished), cpu_ns: 1 })
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
