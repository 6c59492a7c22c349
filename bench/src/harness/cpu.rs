//! CPU time of this process, of the calling thread and of other processes; and the CPUs on which a thread may run.

use crate::exit::Failure;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns the CPU time of all threads of this process, in ns (`CLOCK_PROCESS_CPUTIME_ID`).
pub(crate) fn process_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of the calling thread, in ns.
pub(crate) fn thread_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// Returns the CPUs that the calling thread may use.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>, Failure> {
    let allowed = sched_getaffinity(None).map_err(Failure::failed)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Pins the calling thread, and threads and processes that it starts afterwards, to some CPUs.
pub(crate) fn pin(to: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    to.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(Failure::failed)
}

/// CPU time of each thread of some processes, in ns, by process and thread id (first number in
/// `/proc/PID/task/TID/schedstat`). The kernel updates it when a thread stops running or at its next tick, so it should
/// be read while the threads are idle.
#[derive(Debug, Default)]
pub(crate) struct Ran(BTreeMap<(u32, u32), u64>);

impl Ran {
    /// Reads the CPU times of the processes. A thread that ends meanwhile is left out.
    pub(crate) fn now(pids: &[u32]) -> Result<Ran, Failure> {
        let mut ran = BTreeMap::new();
        for pid in pids {
            let folder = format!("/proc/{pid}/task");
            let threads = std::fs::read_dir(&folder)
                .map_err(|error| Failure::Failed(format!("{folder}: {error}; process {pid} is gone")))?;
            for thread in threads.flatten() {
                let Some(id) = thread.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                    continue;
                };
                let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
                if let Some(ns) = parse_schedstat(&text) {
                    ran.insert((*pid, id), ns);
                }
            }
        }
        Ok(Ran(ran))
    }

    /// Returns the CPU time since `before`, in ns. The time of threads that have ended since then is missing.
    pub(crate) fn since(&self, before: &Ran) -> u64 {
        let of =
            |(thread, ns): (&(u32, u32), &u64)| ns.saturating_sub(before.0.get(thread).copied().unwrap_or(0));
        self.0.iter().map(of).sum()
    }
}

/// Returns the first number of a `schedstat` file: the time on a CPU, in ns.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_is_read_and_nonsense_is_not() {
        assert_eq!(parse_schedstat("452410 1435463 2\n"), Some(452_410));
        assert_eq!(parse_schedstat(""), None);
        assert_eq!(parse_schedstat("-1 0 0"), None);
    }

    #[test]
    fn difference_counts_new_threads_whole_and_ended_ones_not() {
        let before = Ran(BTreeMap::from([((1, 1), 100), ((1, 2), 50)]));
        let after = Ran(BTreeMap::from([((1, 1), 130), ((1, 3), 7)]));
        assert_eq!(after.since(&before), 37);
    }

    #[test]
    fn own_process_runs_at_least_as_long_as_this_thread() {
        let thread = thread_ns();
        assert!(thread > 0);
        assert!(process_ns() >= thread);
        assert!(Ran::now(&[std::process::id()]).is_ok());
    }
}
