//! Measures one point: one system, kind of access, depth (outstanding operations per client) and number of clients. The
//! clients run at once, each on its own file.
//!
//! The idea: the operations are divided into bursts of at most 32 MiB per client. Before a burst, each client computes
//! its offsets and prepares its buffers. Then all clients start together, and the clock runs only until the burst ends.
//! After that, each byte that was read is checked. The first client to finish ends the burst for all, so no client is
//! timed while another one is idle.

use super::access::{Access, Offsets, UNDER_WAY_BYTES_MAX, seed_of};
use super::bursts::{BurstReport, Bursts, Limits, Means, Stop, Target};
use super::contents::{Contents, Hash, spoil};
use super::cpu::{Ran, process_ns, thread_ns};
use super::statistics::{Figures, quantiles};
use crate::exit::Failure;
use farpool::{ReadRange, WriteRange};
use farpool_lock::Mutex;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that one client moves in a burst (the operations between two checks) at most. A database engine also has
/// buffers that are larger than the CPU caches usually are. The limit is exceeded if the depth alone needs more.
pub(crate) const BURST_BYTES: usize = 32 << 20;
/// Bytes that every client moves at least in one call of [`measure`]. These first bytes go into the result hash.
const HASHED_BYTES: usize = 4 << 20;
/// Alignment of buffers in bytes, as direct I/O requires.
const ALIGNMENT: usize = 4096;

/// Benchmark client with a file of its own.
pub(crate) struct Client {
    pub(crate) means: Means,
    contents: Contents,
    buffer: Vec<u8>,
}

impl Client {
    /// Creates client number `index`, with a file of `bytes`.
    pub(crate) fn new(means: Means, bytes: u64, index: u64) -> Client {
        // The buffer is touched now, so that no page fault is timed.
        let buffer = vec![1; BURST_BYTES.max(UNDER_WAY_BYTES_MAX) + ALIGNMENT];
        Client { means, contents: Contents::new(bytes, index), buffer }
    }
}

/// End of a call of [`measure`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// The clients stop after this many seconds of timed operations. The time to prepare and check data does not count.
    Seconds(f64),
    /// The clients stop when each has accessed its whole file once.
    Once,
}

/// Operations of a call of [`measure`]. `depth` is the number of outstanding operations per client. `seed` is the same
/// in the whole run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) access: Access,
    pub(crate) depth: usize,
    pub(crate) until: Until,
    pub(crate) seed: u64,
    pub(crate) round: u64,
    /// Number that the written bytes depend on. The caller uses another one for every pass that writes the files.
    pub(crate) write_number: u32,
}

/// Processes that serve the clients. Their CPU time is measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    pub(crate) pids: Vec<u32>,
    /// True if the processes poll all the time. Only their CPU time during bursts is then counted.
    pub(crate) never_rest: bool,
}

/// State that the clients share during a call of [`measure`]. A burst is a list of operations that are timed together.
struct Field {
    work: Work,
    barrier: Barrier,
    /// One function for each client whose operations another program carries out. It ends the program's burst; all are
    /// called when one client has finished.
    stops: Vec<Stop>,
    /// Number of bursts that have ended for some client, and so for all.
    ended: AtomicUsize,
    is_over: AtomicBool,
    has_failed: AtomicBool,
    /// Begin and end of the current burst, for each client that has finished it.
    intervals: Mutex<Vec<(Instant, Instant)>>,
    timed_ns: AtomicU64,
}

/// Results of one client.
#[derive(Default)]
struct Done {
    times: Vec<Duration>,
    operations: u64,
    hash: Hash,
    /// CPU time of this process that was not spent on the operations, in ns.
    beside_ns: u64,
    /// CPU time that another process spent on the operations, in ns.
    elsewhere_ns: u64,
}

/// Results of a call of [`measure`].
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    /// Hash over the first operations of each client. For writes, it is equal for all systems and runs. For reads too,
    /// as long as the file was not written by [`Until::Seconds`]: how much that writes depends on the speed.
    pub(crate) hash: Hash,
}

/// Runs all clients at once until the end that `work` names. `servers` are the processes that serve them.
pub(crate) fn measure(clients: &mut [Client], work: Work, servers: &Servers) -> Result<Measured, Failure> {
    let field = Field {
        work,
        barrier: Barrier::new(clients.len()),
        stops: clients.iter().filter_map(|client| client.means.stop()).collect(),
        ended: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        has_failed: AtomicBool::new(false),
        intervals: Mutex::default(),
        timed_ns: AtomicU64::new(0),
    };
    let served_before = Ran::now(&servers.pids)?;
    let began = Instant::now();
    let own_before = process_ns();
    let results: Vec<Result<Done, Failure>> = std::thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(index, client)| {
                let field = &field;
                scope.spawn(move || run_client(client, index, field))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err(Failure::failed("a client panicked")),
        });
        joined.collect()
    });
    let own_ns = process_ns() - own_before;
    // Meanwhile, servers stop spinning, and the kernel updates their CPU times.
    std::thread::sleep(Duration::from_millis(2));
    let mut served_ns = Ran::now(&servers.pids)?.since(&served_before) as f64;
    let mut all = Done::default();
    for done in results {
        let done = done?;
        all.times.extend(done.times);
        all.operations += done.operations;
        all.hash.number(done.hash.0);
        all.beside_ns += done.beside_ns;
        all.elsewhere_ns += done.elsewhere_ns;
    }
    let operations = all.operations.max(1) as f64;
    let bytes = all.operations as f64 * work.access.block as f64;
    let seconds = field.timed_ns.load(Ordering::Relaxed).max(1) as f64 / 1e9;
    if servers.never_rest {
        served_ns *= seconds / began.elapsed().as_secs_f64();
    }
    let client_ns = (own_ns.saturating_sub(all.beside_ns) + all.elsewhere_ns) as f64;
    let [p50_us, p90_us, p99_us, p999_us] = quantiles(&mut all.times);
    let both_ns = client_ns + served_ns;
    Ok(Measured {
        figures: Figures {
            p50_us,
            p90_us,
            p99_us,
            p999_us,
            gb_per_s: bytes / seconds / 1e9,
            client_cpu_us: client_ns / 1e3 / operations,
            server_cpu_us: (!servers.pids.is_empty()).then(|| served_ns / 1e3 / operations),
            cpu_s_per_gib: both_ns / 1e9 / (bytes / (1u64 << 30) as f64),
        },
        hash: all.hash,
    })
}

/// Runs the operations of one client in bursts: lists of operations that are timed together. A client that fails still
/// waits at the barriers, because the others would otherwise never pass them. All clients stop at the end of the next
/// burst at the latest.
fn run_client(client: &mut Client, index: usize, field: &Field) -> Result<Done, Failure> {
    let work = field.work;
    let block = work.access.block;
    let Client { means, contents, buffer } = client;
    let start = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let per_burst = (BURST_BYTES / block / work.depth).max(1) * work.depth;
    let numbers = [index as u64, work.depth as u64, work.round, 0];
    let seed = match work.until {
        Until::Seconds(_) => seed_of(work.seed, work.access, numbers),
        Until::Once => 0,
    };
    let mut offsets = Offsets::new(work.access, contents.bytes(), seed);
    let blocks = contents.bytes() / block as u64;
    let hashed = (HASHED_BYTES / block).max(work.depth) as u64;
    let mut done = Done::default();
    let mut failure = None;
    let mut burst = 0;
    while !field.is_over.load(Ordering::Acquire) {
        let before = thread_ns();
        let least = match work.until {
            Until::Seconds(_) => hashed,
            Until::Once => u64::MAX,
        };
        let count = match work.until {
            Until::Seconds(_) => per_burst,
            Until::Once => per_burst.min(blocks.saturating_sub(done.operations) as usize),
        };
        let drawn: Vec<u64> = offsets.by_ref().take(count).collect();
        let memory = &mut buffer[start..start + count * block];
        if work.access.is_write {
            for (offset, into) in drawn.iter().zip(memory.chunks_exact_mut(block)) {
                contents.fill(work.write_number, *offset, into);
            }
        } else {
            spoil(memory);
        }
        done.beside_ns += thread_ns() - before;
        let mut turns = Turns { field, burst, least, operations: done.operations, times: &mut done.times };
        let has_failed = failure.is_some();
        let report = match means {
            Means::Calls(target) => turns.call(&mut **target, &drawn, memory, has_failed),
            Means::Bursts(program) => turns.tell(&mut **program, &drawn, memory, has_failed),
        };
        if field.ended.fetch_max(burst + 1, Ordering::AcqRel) <= burst && field.stops.len() > 1 {
            field.stops.iter().for_each(|stop| stop());
        }
        done.elsewhere_ns += report.cpu_ns;
        let finished = report.finished.unwrap_or_else(|error| {
            failure = Some(error);
            field.has_failed.store(true, Ordering::Release);
            0
        });
        field.intervals.lock().push((report.begun, report.ended));
        let is_through = matches!(work.until, Until::Once) && done.operations + finished as u64 >= blocks;
        if field.barrier.wait().is_leader() {
            close_burst(field, is_through);
        }
        field.barrier.wait();
        let before = thread_ns();
        let collected = match means {
            Means::Bursts(program) if finished > 0 => program.collect(memory, &mut done.times),
            _ => Ok(()),
        };
        let checked =
            collected.and_then(|()| settle(work, contents, &drawn[..finished], memory, hashed, &mut done));
        if let Err(error) = checked {
            failure.get_or_insert(error);
            field.has_failed.store(true, Ordering::Release);
        }
        done.operations += finished as u64;
        done.beside_ns += thread_ns() - before;
        burst += 1;
    }
    if matches!(means, Means::Bursts(_)) {
        // The operations ran in another process, so all CPU time of this thread is overhead.
        done.beside_ns = thread_ns();
    }
    failure.map_or(Ok(done), Err)
}

/// Checks the bytes of reads and records writes, after operations that were timed together. Adds operations to the hash
/// until this client has done `hashed` operations.
fn settle(
    work: Work,
    contents: &mut Contents,
    offsets: &[u64],
    memory: &[u8],
    hashed: u64,
    done: &mut Done,
) -> Result<(), Failure> {
    let block = work.access.block;
    for (index, (offset, bytes)) in offsets.iter().zip(memory.chunks_exact(block)).enumerate() {
        if work.access.is_write {
            contents.note(work.write_number, *offset, block);
        } else {
            contents.check(*offset, bytes)?;
        }
        if done.operations + (index as u64) < hashed {
            done.hash.bytes(*offset, bytes);
        }
    }
    Ok(())
}

/// Adds the time of a burst (operations that are timed together) that all clients have ended, and decides whether it
/// was the last one. `is_through` tells that the whole file was accessed.
fn close_burst(field: &Field, is_through: bool) {
    let mut intervals = field.intervals.lock();
    let begun = intervals.iter().map(|(begun, _)| *begun).min();
    let ended = intervals.iter().map(|(_, ended)| *ended).max();
    intervals.clear();
    let took = begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun);
    let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let total = field.timed_ns.fetch_add(took, Ordering::Relaxed).saturating_add(took);
    let is_over = match field.work.until {
        Until::Seconds(seconds) => total as f64 / 1e9 >= seconds,
        Until::Once => is_through,
    };
    if is_over || field.has_failed.load(Ordering::Acquire) {
        field.is_over.store(true, Ordering::Release);
    }
}

/// Context for the operations of one client in one burst: operations that are timed together.
struct Turns<'f> {
    field: &'f Field,
    burst: usize,
    /// Number of operations that this client does in all its bursts at least, even if another client has ended one.
    least: u64,
    /// Number of operations that this client did in earlier bursts.
    operations: u64,
    times: &'f mut Vec<Duration>,
}

impl Turns<'_> {
    /// Reports whether this client may end its burst, which began at `since`, after `finished` operations of it.
    fn is_ended(&self, finished: usize, since: Instant, now: Instant) -> bool {
        if self.operations + (finished as u64) < self.least {
            return false;
        }
        let is_late = match self.field.work.until {
            Until::Seconds(seconds) => {
                let timed = self.field.timed_ns.load(Ordering::Relaxed) as f64 / 1e9;
                timed + (now - since).as_secs_f64() >= seconds
            }
            Until::Once => false,
        };
        is_late || self.field.ended.load(Ordering::Acquire) > self.burst
    }

    /// Runs batches of operations until the burst ends. Returns the number of operations done. The clock is read once
    /// per batch: reading it costs as much as copying 200 bytes.
    fn batches<B>(
        &mut self,
        batches: impl Iterator<Item = B>,
        since: Instant,
        mut operation: impl FnMut(B) -> Result<usize, Failure>,
    ) -> Result<usize, Failure> {
        let mut last = since;
        let mut finished = 0;
        for batch in batches {
            finished += operation(batch)?;
            let now = Instant::now();
            self.times.push(now - last);
            last = now;
            if self.is_ended(finished, since, now) {
                break;
            }
        }
        Ok(finished)
    }

    /// Runs the burst by calls. Waits at the barrier first, so that all clients start together.
    fn call(
        &mut self,
        target: &mut dyn Target,
        offsets: &[u64],
        memory: &mut [u8],
        has_failed: bool,
    ) -> BurstReport {
        let block = self.field.work.access.block;
        let begun;
        let finished = if self.field.work.access.is_write {
            let ranges: Vec<WriteRange<'_>> = offsets
                .iter()
                .zip(memory.chunks_exact(block))
                .map(|(offset, from)| WriteRange { offset: *offset, from })
                .collect();
            self.field.barrier.wait();
            begun = Instant::now();
            if has_failed { Ok(0) } else { self.write(target, &ranges, begun) }
        } else {
            let mut ranges: Vec<ReadRange<'_>> = offsets
                .iter()
                .zip(memory.chunks_exact_mut(block))
                .map(|(offset, into)| ReadRange { offset: *offset, into })
                .collect();
            self.field.barrier.wait();
            begun = Instant::now();
            if has_failed { Ok(0) } else { self.read(target, &mut ranges, begun) }
        };
        BurstReport { begun, ended: Instant::now(), finished, cpu_ns: 0 }
    }

    /// Runs the burst by another program. The program gets the operations before the barrier at which all clients wait
    /// to start together.
    fn tell(
        &mut self,
        program: &mut dyn Bursts,
        offsets: &[u64],
        memory: &[u8],
        has_failed: bool,
    ) -> BurstReport {
        let work = self.field.work;
        let prepared = if has_failed { Ok(()) } else { program.prepare(work.access, offsets, memory) };
        self.field.barrier.wait();
        let begun = Instant::now();
        let nothing = |finished| BurstReport { begun, ended: begun, finished, cpu_ns: 0 };
        if has_failed {
            return nothing(Ok(0));
        }
        let left_ns = match work.until {
            Until::Seconds(seconds) => {
                ((seconds * 1e9) as u64).saturating_sub(self.field.timed_ns.load(Ordering::Relaxed))
            }
            Until::Once => u64::MAX,
        };
        let least = usize::try_from(self.least.saturating_sub(self.operations)).unwrap_or(usize::MAX);
        let limits = Limits { depth: work.depth, least: least.min(offsets.len()), left_ns };
        prepared.and_then(|()| program.go(limits)).unwrap_or_else(|error| nothing(Err(error)))
    }

    fn read(
        &mut self,
        target: &mut dyn Target,
        ranges: &mut [ReadRange<'_>],
        since: Instant,
    ) -> Result<usize, Failure> {
        let depth = self.field.work.depth;
        if let Some(single) = target.by_threads().filter(|_| depth > 1) {
            return self.spread(ranges.iter_mut(), since, |range| single.read_one(range));
        }
        self.batches(ranges.chunks_mut(depth), since, |batch| target.read(batch).map(|()| batch.len()))
    }

    fn write(
        &mut self,
        target: &mut dyn Target,
        ranges: &[WriteRange<'_>],
        since: Instant,
    ) -> Result<usize, Failure> {
        let depth = self.field.work.depth;
        if let Some(single) = target.by_threads().filter(|_| depth > 1) {
            return self.spread(ranges.iter(), since, |range| single.write_one(*range));
        }
        self.batches(ranges.chunks(depth), since, |batch| target.write(batch).map(|()| batch.len()))
    }

    /// Runs operations in as many threads as the depth says. Each thread takes the next range in order when it is free.
    fn spread<T: Send>(
        &mut self,
        ranges: impl Iterator<Item = T> + Send,
        since: Instant,
        operation: impl Fn(T) -> Result<(), Failure> + Sync,
    ) -> Result<usize, Failure> {
        let ranges = Mutex::new(ranges);
        let taken = AtomicUsize::new(0);
        let turns = &*self;
        let (ranges, taken, operation) = (&ranges, &taken, &operation);
        let results: Vec<Result<Vec<Duration>, Failure>> = std::thread::scope(|scope| {
            let work = move || {
                let mut times = Vec::new();
                loop {
                    if turns.is_ended(taken.load(Ordering::Relaxed), since, Instant::now()) {
                        return Ok(times);
                    }
                    let next = {
                        let mut ranges = ranges.lock();
                        let next = ranges.next();
                        if next.is_some() {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        next
                    };
                    let Some(range) = next else { return Ok(times) };
                    let start = Instant::now();
                    operation(range)?;
                    times.push(start.elapsed());
                }
            };
            let workers: Vec<_> = (0..turns.field.work.depth).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => Err(Failure::failed("a thread of a client panicked")),
            });
            joined.collect()
        });
        for times in results {
            self.times.extend(times?);
        }
        Ok(taken.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::{ACCESSES, LARGE, SMALL};
    use super::super::bursts::OneAtATime;
    use super::super::bursts::tests::Told;
    use super::super::files::{DiskFile, Local, Medium};
    use super::*;

    const BYTES: u64 = 8 << 20;

    fn work(access: Access, depth: usize, until: Until, write_number: u32) -> Work {
        Work { access, depth, until, seed: 5, round: 0, write_number }
    }

    fn filled(count: u64, means: impl Fn() -> Means) -> Vec<Client> {
        let mut clients: Vec<Client> = (0..count).map(|index| Client::new(means(), BYTES, index)).collect();
        let first = Access { block: LARGE, is_random: false, ..ACCESSES[1] };
        measure(&mut clients, work(first, 1, Until::Once, 0), &Servers::default()).unwrap();
        clients
    }

    fn local() -> Means {
        Means::Calls(Box::new(Local(vec![0; BYTES as usize])))
    }

    fn told() -> Means {
        Means::Bursts(Box::new(Told::new(BYTES as usize)))
    }

    fn waits() -> Means {
        struct Waits(DiskFile);
        impl Target for Waits {
            fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
                self.0.read(ranges)
            }
            fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
                self.0.write(ranges)
            }
            fn by_threads(&self) -> Option<&dyn OneAtATime> {
                Some(&self.0)
            }
        }
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Means::Calls(Box::new(Waits(DiskFile::create(&std::env::temp_dir(), &name, Medium::Memory).unwrap())))
    }

    /// Measures every kind of access with 1 and with 16 outstanding operations. Returns the hashes of their results.
    fn hashes(mut clients: Vec<Client>) -> Vec<Hash> {
        let mut hashes = Vec::new();
        let [small_read, small_write, large_read, large_write] = ACCESSES;
        let reads_first = [small_read, large_read, small_write, large_write];
        for (number, access) in reads_first.into_iter().enumerate() {
            for depth in [1, 16] {
                let until = Until::Seconds(0.002);
                let measured =
                    measure(&mut clients, work(access, depth, until, number as u32 + 1), &Servers::default());
                let measured = measured.unwrap();
                assert!(measured.figures.gb_per_s > 0.0 && measured.figures.p999_us > 0.0);
                assert_eq!(measured.figures.server_cpu_us, None);
                hashes.push(measured.hash);
            }
        }
        hashes
    }

    #[test]
    fn work_is_the_same_in_every_run_and_on_every_target() {
        let first = hashes(filled(2, local));
        assert_eq!(first, hashes(filled(2, local)));
        assert_eq!(first, hashes(filled(2, waits)));
        assert_eq!(first, hashes(filled(2, told)));
        assert_ne!(first, hashes(filled(1, local)));
    }

    /// Target that serves `left - 1` reads. Later reads fail (`fails`), or return without filling their ranges.
    struct Faulty {
        memory: Local,
        left: usize,
        fails: bool,
    }

    impl Target for Faulty {
        fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
            self.left = self.left.saturating_sub(1);
            if self.left > 0 {
                return self.memory.read(ranges);
            }
            if self.fails { Err(Failure::failed("broken off")) } else { Ok(()) }
        }

        fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
            self.memory.write(ranges)
        }
    }

    #[test]
    fn failure_and_bytes_that_never_came_end_the_run_for_all_clients() {
        for (fails, expected) in [(true, "broken off"), (false, "WRONG BYTES")] {
            let mut clients = filled(2, local);
            let memory = Local(vec![0; BYTES as usize]);
            clients[1].means = Means::Calls(Box::new(Faulty { memory, left: 3, fails }));
            let first = Access { block: LARGE, is_random: false, ..ACCESSES[1] };
            measure(&mut clients, work(first, 1, Until::Once, 0), &Servers::default()).unwrap();
            let until = Until::Seconds(5.0);
            let result = measure(&mut clients, work(ACCESSES[0], 1, until, 0), &Servers::default());
            let Err(Failure::Failed(message)) = result else { panic!("not noticed") };
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn once_goes_through_the_whole_file() {
        let mut clients = filled(1, local);
        let read = Access { is_write: false, ..ACCESSES[1] };
        let sequential = Access { is_random: false, ..read };
        // Only the last block of the file gets wrong bytes.
        if let Means::Calls(target) = &mut clients[0].means {
            let offset = BYTES - SMALL as u64;
            target.write(&[WriteRange { offset, from: &[0; SMALL] }]).unwrap();
        }
        assert!(measure(&mut clients, work(sequential, 64, Until::Once, 0), &Servers::default()).is_err());
    }
}
