//! `Host`: clock, randomness, threads, files and waiting of a process of the pool.
//!
//! The idea: clients, nodes and brokers never read a clock, draw a random number or start a thread themselves. They ask
//! their [`Host`]. [`Machine`] is the real one. The simulator has another, on which a whole pool runs in one thread
//! from one seed.

use crate::clock;
use crate::event::{self, Event, EventLimit, Level};
use farpool_lock::{Condvar, Mutex, MutexGuard};
use farpool_wire::MonoNs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Makes two traits of one list of methods. [`Host`] requires all of them, so a host that lacks one does not compile.
/// [`HostLayer`] has a default for each.
macro_rules! hosts {
    ($($(#[$doc:meta])* fn $method:ident(&self $(, $name:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        /// Interface of a process of the pool to its machine.
        ///
        /// Methods are of three kinds. Some return a value at once: `now`, `wall_ms`, `boot_id`, `spun_ns`, `logs`,
        /// `is_one_thread`. Some act: `random`, `temporary_file`, `spawn`, `log`. One blocks: `wait`, on an event
        /// ([`HostEvent`]) and with a deadline. To wait for a change, read the event's count ([`HostEvent::heard`])
        /// first, then look at the state, and pass the count to `wait`; a change between the two is then not missed.
        ///
        /// Any thread may call any method. A caller must hold no ordinary lock in `wait`: on a host of one thread,
        /// another caller that blocks on that lock would stop all of them. A lock that is held while others are waited
        /// for is a [`HostMutex`].
        pub trait Host: Send + Sync + 'static {
            $($(#[$doc])* fn $method(&self $(, $name: $type)*) $(-> $result)?;)*
        }

        /// Host on top of another one. It implements [`Self::inner`] and the methods that differ.
        pub trait HostLayer: Send + Sync + 'static {
            /// Returns the host that all other methods are passed on to.
            fn inner(&self) -> &dyn Host;

            $($(#[$doc])* fn $method(&self $(, $name: $type)*) $(-> $result)? {
                self.inner().$method($($name),*)
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
    /// Returns the time of this host's monotonic clock, which includes suspend.
    fn now(&self) -> MonoNs;

    /// Returns the milliseconds since 1970. They may jump. Only for numbers that should be new.
    fn wall_ms(&self) -> u64;

    /// Returns the boot id of this host: the same for all of its processes, different for other hosts. 0 if it has
    /// none.
    fn boot_id(&self) -> u128;

    /// Fills the buffer with bytes that nobody can guess.
    fn random(&self, into: &mut [u8]) -> io::Result<()>;

    /// Returns the nanoseconds of CPU time that this process has spun while waiting.
    fn spun_ns(&self) -> u64;

    /// Waits until the event was signalled more often than `heard`, or until a time. May return early.
    fn wait(&self, event: &HostEvent, heard: u64, until: MonoNs);

    /// Makes an empty file in a folder on this host. It is deleted when the returned value is dropped.
    fn temporary_file(&self, folder: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Runs `run` on a thread named `name`, beside the caller.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task>;

    /// Writes an event to the log of this process.
    fn log(&self, event: &Event);

    /// Reports whether events of a level are written. An event that is costly to make is made only then.
    fn logs(&self, level: Level) -> bool;

    /// Reports whether everything on this host runs on one thread. That thread must never block.
    fn is_one_thread(&self) -> bool;
}

impl std::fmt::Debug for dyn Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

/// File on a disk of this host.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer from an offset. `UnexpectedEof` if the file ends before that.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all bytes at an offset.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
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

/// Thread, or its counterpart on a simulated host, that was started by [`Host::spawn`].
pub struct Task(Box<dyn FnOnce() + Send>);

impl Task {
    /// Makes a task. `join` waits for its end.
    pub fn new(join: impl FnOnce() + Send + 'static) -> Task {
        Task(Box::new(join))
    }

    /// Waits until the task has ended.
    pub fn join(self) {
        (self.0)();
    }
}

/// Event that counts how often it was signalled, for threads that wait for a change. Clones are the same event.
#[derive(Clone, Debug, Default)]
pub struct HostEvent(Arc<(Mutex<u64>, Condvar)>);

impl HostEvent {
    /// Returns how often the event was signalled. Read it before looking at the state that the event announces.
    pub fn heard(&self) -> u64 {
        *self.count()
    }

    /// Signals the event: wakes all threads that wait for it.
    pub fn signal(&self) {
        *self.count() += 1;
        self.0.1.notify_all();
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.0.0.lock()
    }
}

/// Mutex that may be held while waiting for a peer. On a host of one thread, a thread that waits for the mutex lets the
/// others run.
#[derive(Debug, Default)]
pub struct HostMutex<T>(Mutex<T>);

impl<T> HostMutex<T> {
    /// Makes a mutex around a value.
    pub fn new(value: T) -> HostMutex<T> {
        HostMutex(Mutex::new(value))
    }

    /// Waits for the mutex and locks it.
    pub fn take(&self, host: &dyn Host) -> MutexGuard<'_, T> {
        const PAUSE_NS_MAX: u64 = 10_000_000;
        let mut pause_ns = 100_000;
        while host.is_one_thread() {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            host.wait(&HostEvent::default(), 0, MonoNs(host.now().0.saturating_add(pause_ns)));
            pause_ns = (2 * pause_ns).min(PAUSE_NS_MAX);
        }
        self.0.lock()
    }

    /// Locks the mutex. `None` if it is locked already.
    pub fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// Host of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

/// Limit of what this process writes to its log.
static LIMIT: Mutex<EventLimit> = Mutex::new(EventLimit::new());

impl Machine {
    /// Returns how many events of each kind this process has had, written or not.
    pub fn event_counts() -> Vec<(&'static str, Level, u64)> {
        LIMIT.lock().counts()
    }
}

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

    fn wait(&self, event: &HostEvent, heard: u64, until: MonoNs) {
        let left = Duration::from_nanos(until.0.saturating_sub(self.now().0));
        drop(event.0.1.wait_timeout_while(event.count(), left, |count| *count == heard));
    }

    fn temporary_file(&self, folder: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(tempfile::tempfile_in(folder)?))
    }

    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Task::new(move || {
            // A thread that panicked has printed its message already.
            let _ = thread.join();
        }))
    }

    fn log(&self, event: &Event) {
        let admitted = LIMIT.lock().admit(self.now(), event);
        if let Some(suppressed) = admitted {
            event.write(suppressed);
        }
    }

    fn logs(&self, level: Level) -> bool {
        event::is_written(level)
    }

    fn is_one_thread(&self) -> bool {
        false
    }
}
