//! Rival system that is a separate program, which runs as a server and as clients. A client process gets its operations
//! in bursts (lists of reads or of writes), carries them out and measures their time.
//!
//! Other libraries, unsafe calls and async runtimes therefore stay out of this binary. The operations are still the
//! same as for far memory: this process computes the offsets, fills the buffers and checks every byte.
//!
//! ```text
//! PROGRAM serve [PROVIDER] BYTES                            prints: ready ADDRESS
//! PROGRAM client [PROVIDER] ADDRESS BASE BYTES FILE         prints: ready
//! ```
//!
//! PROVIDER is the libfabric provider, such as `tcp`, for a program that has several; others take none.
//! A client's range of the server's memory begins at BASE and has BYTES bytes. Offsets count from BASE. The client
//! gets these commands on its standard input, one per line; BLOCK is the bytes of one operation:
//!
//! ```text
//! prepare read|write BLOCK COUNT        read offsets and buffers from FILE                  prints: ok
//! go NUMBER DEPTH LEAST NS              run the burst, DEPTH operations at once, and time each such batch
//!                                       prints: ok FINISHED CALLS BEGUN_NS ENDED_NS CPU_NS
//! stop NUMBER                           end this burst if it still runs                     prints nothing
//! collect                               write times and the bytes read to FILE              prints: ok
//! ```
//!
//! A burst ends when COUNT operations are done. It also ends once LEAST operations are done and either NS nanoseconds
//! have passed or `stop` was received. CALLS is the number of batches. `BEGUN_NS` and `ENDED_NS` are times of
//! `CLOCK_MONOTONIC`, `CPU_NS` is a time of `CLOCK_PROCESS_CPUTIME_ID`. A program that fails prints `failed WHY` and
//! ends. Server and client end at the end of their standard input.
//!
//! FILE is in memory. It has 64 KiB of offsets, 64 KiB of times in ns, both as 64-bit little-endian numbers, then the
//! buffers one after another.

use crate::exit::Failure;
use crate::harness::access::Access;
use crate::harness::bursts::{BurstReport, Bursts, Limits, Stop};
use crate::harness::measure::BURST_BYTES;
use crate::harness::processes::Told;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TIMES_AT: u64 = 64 << 10;
const BUFFERS_AT: u64 = 128 << 10;
const TIME_BYTES: usize = 8;

/// Client process of a rival that is a separate program. `file` is in memory and shared with the process.
pub(crate) struct Program {
    told: Told,
    file: File,
    access: Option<Access>,
    /// Number of the latest burst (list of reads or of writes) that was sent to the process. The numbers grow by 1.
    burst: Arc<AtomicU64>,
    /// Numbers of operations in that burst, of those that are done, and of the batches in which they were done.
    count: usize,
    finished: usize,
    calls: usize,
}

impl Program {
    /// Starts the client `PROGRAM client ARGS FILE`. FILE is in memory at `path`, and is unlinked once the program has
    /// opened it.
    pub(crate) fn start(program: &Path, args: &[String], path: &Path) -> Result<Program, Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        let sized = file.set_len(BUFFERS_AT + BURST_BYTES as u64).map_err(failed);
        let mut args = args.to_vec();
        args.insert(0, "client".to_owned());
        args.push(path.display().to_string());
        let told = sized.and_then(|()| Told::start(program, &args));
        std::fs::remove_file(path).map_err(failed)?;
        let (told, _) = told?;
        Ok(Program { told, file, access: None, burst: Arc::default(), count: 0, finished: 0, calls: 0 })
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.told.pid()
    }
}

/// Converts a time of `CLOCK_MONOTONIC` to an `Instant`, which has no constructor for it.
fn instant(then_ns: u64) -> Instant {
    let (now, time) = (Instant::now(), clock_gettime(ClockId::Monotonic));
    let now_ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
    let ago = Duration::from_nanos(now_ns.saturating_sub(then_ns));
    now.checked_sub(ago).unwrap_or(now)
}

impl Bursts for Program {
    fn prepare(&mut self, access: Access, offsets: &[u64], memory: &[u8]) -> Result<(), Failure> {
        self.burst.fetch_add(1, Ordering::AcqRel);
        (self.access, self.count) = (Some(access), offsets.len());
        let offsets_bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        self.file.write_all_at(&offsets_bytes, 0)?;
        self.file.write_all_at(memory, BUFFERS_AT)?;
        let kind = if access.is_write { "write" } else { "read" };
        self.told.ask(&format!("prepare {kind} {} {}", access.block, offsets.len())).map(|_| ())
    }

    fn go(&mut self, limits: Limits) -> Result<BurstReport, Failure> {
        let burst = self.burst.load(Ordering::Acquire);
        let Limits { depth, least, left_ns } = limits;
        let said = self.told.ask(&format!("go {burst} {depth} {least} {left_ns}"))?;
        let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let wrong = || Failure::Failed(format!("{} said {said:?}", self.told.name()));
        let &[finished, calls, begun_ns, ended_ns, cpu_ns] = numbers.as_slice() else {
            return Err(wrong());
        };
        if finished > self.count as u64 || calls > finished {
            return Err(wrong());
        }
        (self.finished, self.calls) = (finished as usize, calls as usize);
        let begun = instant(begun_ns);
        let ended = begun + Duration::from_nanos(ended_ns.saturating_sub(begun_ns));
        Ok(BurstReport { begun, ended, finished: Ok(self.finished), cpu_ns })
    }

    fn collect(&mut self, memory: &mut [u8], times: &mut Vec<Duration>) -> Result<(), Failure> {
        self.told.ask("collect")?;
        let mut found = vec![0; self.calls * TIME_BYTES];
        self.file.read_exact_at(&mut found, TIMES_AT)?;
        let (found, _) = found.as_chunks::<TIME_BYTES>();
        times.extend(found.iter().map(|time| Duration::from_nanos(u64::from_le_bytes(*time))));
        if let Some(access) = self.access.filter(|access| !access.is_write) {
            let bytes = (self.finished * access.block).min(memory.len());
            self.file.read_exact_at(&mut memory[..bytes], BUFFERS_AT)?;
        }
        Ok(())
    }

    fn stop(&self) -> Stop {
        let (input, burst) = (self.told.input(), self.burst.clone());
        Arc::new(move || {
            // If the program has ended, the thread that waits for its answer gets the error.
            let _ = input.say(&format!("stop {}", burst.load(Ordering::Acquire)));
        })
    }
}
