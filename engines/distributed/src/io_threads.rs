//! Threads of this process that carry messages to and from workers, and compute nothing.
//!
//! A connection is given up if its probe is not answered within a second. A thread that sorts or joins does not get
//! round to probes for longer than that.

use std::io;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Number of threads.
const THREADS: usize = 2;

/// Returns the threads, which run until the process ends.
///
/// Errors: they cannot be started.
pub(crate) fn io_threads() -> io::Result<Handle> {
    static THREADS_OF_PROCESS: OnceLock<Runtime> = OnceLock::new();
    if let Some(started) = THREADS_OF_PROCESS.get() {
        return Ok(started.handle().clone());
    }
    let threads = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("farpool-workers")
        .enable_all()
        .build()?;
    Ok(THREADS_OF_PROCESS.get_or_init(|| threads).handle().clone())
}
