//! CPU time of the process that runs functions, which bounds how long they may take to be made ready. On a busy machine
//! that takes much longer than the CPU time.

use crate::status::Activity;
use farpool_wire::Opcode;
use farpool_wire::limits::FUNCTION_READY_CPU_MS_MAX;
use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::time::Duration;

/// Units of time in `/proc` for each second, on all systems that Farpool runs on (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// Functions that a process makes ready, by the slots of their lanes: the request, and the CPU time of the process when
/// that was first seen.
#[derive(Debug, Default)]
pub(crate) struct MadeReady(BTreeMap<usize, (u64, Duration)>);

impl MadeReady {
    /// Notes what a lane is doing, and reports whether it makes a function ready for which its process has taken more
    /// CPU time than is permitted. Where the system does not tell that time, it reports false.
    pub(crate) fn are_too_costly(&mut self, slot: usize, doing: Activity, waiting: &Child) -> bool {
        let request = match doing {
            Activity::Running { request_id, opcode, .. } if opcode == Opcode::PutFunction as u16 => {
                request_id
            }
            _ => {
                self.0.remove(&slot);
                return false;
            }
        };
        let Some(taken) = cpu_time_behind(waiting) else { return false };
        let first = self.0.entry(slot).or_insert((request, taken));
        if first.0 != request {
            *first = (request, taken);
        }
        taken.saturating_sub(first.1) > Duration::from_millis(FUNCTION_READY_CPU_MS_MAX.into())
    }
}

/// Returns the CPU time of the process that another one has started and waits for. `None` if the system does not tell.
fn cpu_time_behind(waiting: &Child) -> Option<Duration> {
    let id = waiting.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let process = children.split_whitespace().next()?;
    of_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Reads the sum of user and system time from a line of `/proc/PID/stat`.
fn of_stat(line: &str) -> Option<Duration> {
    // The name of the process is in parentheses, and may contain some.
    let (_, behind) = line.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let all = ticks()? + ticks()?;
    Some(Duration::from_millis(all.saturating_mul(1_000) / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let line = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 150 50 9 9 20 0 1 0 100";
        assert_eq!(of_stat(line), Some(Duration::from_secs(2)));
        assert_eq!((of_stat("7 (a) R 1"), of_stat("")), (None, None));
    }

    #[test]
    fn process_behind_one_that_waits_is_found() {
        let mut waiting =
            Command::new("sh").args(["-c", "sh -c 'while :; do :; done'; :"]).spawn().expect("a shell");
        let give_up = Instant::now() + Duration::from_secs(60);
        while cpu_time_behind(&waiting).is_none_or(|taken| taken < Duration::from_millis(20)) {
            assert!(Instant::now() < give_up, "not within 60 s: the process takes CPU time");
            std::thread::yield_now();
        }
        let id = waiting.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("there");
        let _ = Command::new("kill").args(["-9", children.trim()]).status();
        let _ = waiting.wait();
        assert_eq!(cpu_time_behind(&waiting), None);
    }
}
