//! What a process of the pool stands on: its clock, its chance, and its threads.
//!
//! The idea: client, node and broker never look at a clock, draw a random number or start a thread by
//! themselves. They ask their [`Host`]. [`Machine`] is the real one; the simulator has another, on which a
//! whole pool runs in one thread from one seed.

use crate::clock;
use farpool_lock::{Condvar, Mutex, MutexGuard};
use farpool_wire::MonoNs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Makes two traits of one list of methods. [`Host`] requires all of them, so that a host which forgets one does not
/// compile; [`HostLayer`] has them all already.
macro_rules! hosts {
    ($($(#[$doc:meta])* fn $method:ident(&self $(, $name:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        /// What a process of the pool stands on; see the module.
        pub trait Host: Send + Sync + 'static {
            $($(#[$doc])* fn $method(&self $(, $name: $type)*) $(-> $result)?;)*
        }

        /// A host that stands on another: it writes [`Self::beneath`], and what it does otherwise.
        pub trait HostLayer: Send + Sync + 'static {
            /// Returns the host that does whatever this one leaves to it.
            fn beneath(&self) -> &dyn Host;

            $($(#[$doc])* fn $method(&self $(, $name: $type)*) $(-> $result)? {
                self.beneath().$method($($name),*)
            })*
        }

        impl<H: HostLayer> Host for H {
            $(fn $method(&self $(, $name: $type)*) $(-> $result)? {
                HostLayer::$method(self $(, $name)*)
            })*
        }
    };
}

hosts! {
    /// Now, on this host's monotonic clock that counts suspend.
    fn now(&self) -> MonoNs;

    /// Milliseconds since 1970, as far as this host knows; may jump. Only for numbers that should be new.
    fn wall_ms(&self) -> u64;

    /// The boot id of this host, the same for all its processes and for nobody else; 0 if it has none.
    fn boot_id(&self) -> u128;

    /// Fills the buffer with bytes that nobody can guess.
    fn random(&self, into: &mut [u8]) -> io::Result<()>;

    /// Nanoseconds of CPU time that this process has spun while it waited.
    fn spun_ns(&self) -> u64;

    /// Waits until the bell has rung more often than `heard`, or until a time. It may return early.
    fn wait(&self, bell: &Bell, heard: u64, until: MonoNs);

    /// Makes an empty file on a disk of this host, in a folder, that is gone when it is dropped.
    fn temporary_file(&self, folder: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Runs something beside the caller.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task>;

    /// Tells whoever runs this process something they should know. One line.
    fn say(&self, line: &str);

    /// Whether everything on this host takes turns on one thread, which therefore nobody may block.
    fn is_one_thread(&self) -> bool;
}

impl std::fmt::Debug for dyn Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

/// A file on a disk of this host.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer from an offset; `UnexpectedEof` if the file ends before that.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of it at an offset.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Cuts the file off, or extends it with zeros.
    fn set_length(&self, bytes: u64) -> io::Result<()>;
}

impl DiskFile for std::fs::File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_all_at(from, offset)
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

/// Something that runs beside its starter.
pub struct Task(Box<dyn FnOnce() + Send>);

impl Task {
    /// A task that `join` waits for.
    pub fn new(join: impl FnOnce() + Send + 'static) -> Task {
        Task(Box::new(join))
    }

    /// Waits until it has ended.
    pub fn join(self) {
        (self.0)();
    }
}

/// Counts how often it was rung, for whoever waits for a change.
///
/// Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<(Mutex<u64>, Condvar)>);

impl Bell {
    /// How often it has rung. Read it before looking at what the bell announces.
    pub fn heard(&self) -> u64 {
        *self.rung()
    }

    /// Wakes everybody who waits.
    pub fn ring(&self) {
        *self.rung() += 1;
        self.0.1.notify_all();
    }

    fn rung(&self) -> MutexGuard<'_, u64> {
        self.0.0.lock()
    }
}

/// A lock that may be held while waiting for a peer. On a host of one thread, whoever wants it meanwhile lets
/// the others go on.
#[derive(Debug, Default)]
pub struct Turn<T>(Mutex<T>);

impl<T> Turn<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Turn<T> {
        Turn(Mutex::new(value))
    }

    /// Waits for the turn.
    pub fn take(&self, host: &dyn Host) -> MutexGuard<'_, T> {
        const PAUSE_NS_MAX: u64 = 10_000_000;
        let mut pause_ns = 100_000;
        while host.is_one_thread() {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            host.wait(&Bell::default(), 0, MonoNs(host.now().0.saturating_add(pause_ns)));
            pause_ns = (2 * pause_ns).min(PAUSE_NS_MAX);
        }
        self.0.lock()
    }

    /// The turn, if nobody has it.
    pub fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Host for Machine {
    fn now(&self) -> MonoNs {
        clock::now()
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn boot_id(&self) -> u128 {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
    }

    fn random(&self, into: &mut [u8]) -> io::Result<()> {
        getrandom::fill(into).map_err(io::Error::other)
    }

    fn spun_ns(&self) -> u64 {
        crate::waiting::spun_ns()
    }

    fn wait(&self, bell: &Bell, heard: u64, until: MonoNs) {
        let left = Duration::from_nanos(until.0.saturating_sub(self.now().0));
        drop(bell.0.1.wait_timeout_while(bell.rung(), left, |rung| *rung == heard));
    }

    fn temporary_file(&self, folder: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(tempfile::tempfile_in(folder)?))
    }

    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Task::new(move || {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }))
    }

    fn say(&self, line: &str) {
        eprintln!("{}", farpool_wire::shown(line));
    }

    fn is_one_thread(&self) -> bool {
        false
    }
}
