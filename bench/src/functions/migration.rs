//! Time to move a thread to another CPU of this machine.

use super::figures::Kind;
use crate::exit::Failure;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Instant;

/// Returns the median times of moving this thread to another CPU, and of moving it there and back, in us. Both are NaN
/// on a machine with a single CPU.
pub(super) fn migration(calls: u32) -> Result<[f64; 2], Failure> {
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let [one, other, ..] = cpus[..] else { return Ok([f64::NAN; 2]) };
    let pin = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).map_err(std::io::Error::from)
    };
    let (mut there, mut both) = (Kind::new("there"), Kind::new("both"));
    for _ in 0..calls {
        pin(one)?;
        let begun = Instant::now();
        pin(other)?;
        there.times.push(begun.elapsed());
        pin(one)?;
        both.times.push(begun.elapsed());
    }
    sched_setaffinity(None, &allowed).map_err(std::io::Error::from)?;
    Ok([there.median_us(), both.median_us()])
}
