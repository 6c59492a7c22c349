//! How long the scheduler lets a thread run before it looks at others: the shorter it asks for, the sooner it is let
//! in when it wakes.
//!
//! The idea: whoever serves reads sleeps most of the time and runs for microseconds. Where every CPU is busy, a thread
//! with the usual slice that wakes may wait until the one that runs has had its own, some milliseconds; one that asks
//! for a tenth of that has the earlier deadline and is let in at once (EEVDF; Linux 6.12 takes the request of any
//! thread for itself). It gets no larger share of the CPU for it: its neighbours lose what it uses, no more.
#![allow(unsafe_code)]

use std::io;

/// The shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;

/// Asks for the shortest slice for the calling thread, and for those it starts from now on. An error where the kernel
/// does not take requests; there they do no harm. Threads under real-time policies are left as they are.
pub fn shorten() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    // What else was found is handed back as it was, niceness included.
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads `attributes.size` bytes of `attributes`, no more than it is long.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What the scheduler knows of the calling thread.
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
        // Kernels before 6.12 take the call and keep their slice; all take it twice.
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
