//! Time slice of a thread: how long the scheduler lets it run before others. A thread that asks for a shorter slice is
//! let in sooner when it wakes.
//!
//! The idea: a thread that serves reads sleeps most of the time and runs for microseconds. If all CPUs are busy, such a
//! thread with the usual slice may wait some milliseconds after it wakes, until the running thread has used up its own.
//! A thread that asks for a tenth of that has the earlier deadline and is let in at once (EEVDF; since Linux 6.12 any
//! thread may ask for itself). Its share of the CPU does not grow: others lose only what it uses.
#![allow(unsafe_code)]

use std::io;

/// Shortest slice that the kernel grants, in ns.
const SLICE_NS: u64 = 100_000;

/// Asks for the shortest slice for the calling thread and for threads it starts from now on. Threads under real-time
/// policies are left as they are.
///
/// Errors: the kernel refuses the call. Kernels before 6.12 accept it and keep their slice, which does no harm.
pub fn shorten() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    // All other attributes, such as niceness, are handed back unchanged.
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads `attributes.size` bytes of `attributes`, no more than it is long.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the scheduling attributes of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all-zero is a valid `sched_attr`: integers without a niche.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes to `attributes`, which is that long and ours. Thread 0 is this
    // one.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if read != 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn shortening_keeps_all_else() {
        let niceness = rustix::process::getpriority_process(None).unwrap();
        // Kernels before 6.12 accept the call and keep their slice. The second call must succeed as well.
        super::shorten().unwrap();
        super::shorten().unwrap();
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), niceness);
        let slice_ns = super::attributes().unwrap().sched_runtime;
        let knows_requests = |release: &str| {
            let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
            matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 12))
        };
        let release = rustix::system::uname();
        let wanted =
            if knows_requests(&release.release().to_string_lossy()) { super::SLICE_NS } else { slice_ns };
        assert_eq!(slice_ns, wanted);
    }
}
