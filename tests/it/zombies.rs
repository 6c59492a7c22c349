//! Tests of zombies: clients that are stopped (SIGSTOP) in the middle of reads and writes for twice the TTL of a lease,
//! and continued when others have their regions. They are real processes of the program in `src/bin/zombie`.
//!
//! Nothing that a client does with its old rights may be accepted. No session may see bytes of another. No client may
//! crash because the node revoked the memory that it had mapped. `FARPOOL_SEED=n` repeats the choices of an earlier
//! run; the timing of the processes still differs.

use crate::on_time::on_time;
use crate::programs::{PATIENCE, ended};
use crate::random::Random;
use crate::tenant::{RealPool, Tenant};
use farpool_transport::Transport;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant, SystemTime};

/// Number of clients that a test stops over each transport.
const ROUNDS: u64 = 10;
/// Number of operations with old rights over each transport, by clients that send single messages.
const TRIES: u64 = 64_000;
/// Number of operations after the stop, by each client that uses the library. Half are on files with a copy on the
/// local disk.
const LIBRARY_TRIES: u64 = 400;
/// Number of operations of one of its threads after which, at the latest, a client is stopped.
const OPS_BEFORE_STOP: u64 = 100;
/// Time to live of a lease, the shortest that is permitted.
const TTL: Duration = Duration::from_millis(300);

/// Number of results of each kind that the clients report.
type Tally = BTreeMap<String, u64>;

fn times(tally: &Tally, beginning: &str) -> u64 {
    tally.iter().filter(|(what, _)| what.starts_with(beginning)).map(|(_, times)| times).sum()
}

/// Process of a client, which becomes a zombie when it is stopped for longer than its leases live. Dropping this value
/// kills it.
struct Zombie {
    child: Child,
    orders: ChildStdin,
    said: Receiver<String>,
    note: tempfile::NamedTempFile,
}

impl Zombie {
    fn start(kind: &str, pool: &RealPool, transport: Transport, seed: u64, tries: u64) -> Zombie {
        let note = tempfile::NamedTempFile::new().expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_zombie"))
            .args([kind, &transport.to_string(), &pool.address])
            .arg(note.path())
            .args([pool.regions.to_string(), seed.to_string(), tries.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let orders = child.stdin.take().expect("piped");
        let (says, said) = channel();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        // The reading thread ends with the process, whose output it forwards.
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| says.send(line)));
        Zombie { child, orders, said, note }
    }

    fn line(&self) -> String {
        match self.said.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the client says nothing for {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the client ended early; see above"),
        }
    }

    /// Returns the client's next line that begins like this. Calls `look` repeatedly while it waits.
    fn line_with(&self, beginning: &str, mut look: impl FnMut()) -> String {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.said.try_recv() {
                Ok(line) if line.starts_with(beginning) => return line,
                Ok(_) => {}
                Err(TryRecvError::Empty) => {
                    assert!(Instant::now() < give_up, "the client says no {beginning:?} for {PATIENCE:?}");
                    look();
                }
                Err(TryRecvError::Disconnected) => panic!("the client ended early; see above"),
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the client, whatever its threads are doing. Then writes the note by which the client will know that it was
    /// stopped.
    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("a signal");
        let (_, status) =
            waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("waited").expect("a status");
        assert!(status.stopped(), "the client is stopped, not {status:?}");
        std::fs::write(self.note.path(), [1]).expect("the note is left");
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("a signal");
    }

    fn may_lease(&mut self) {
        self.orders.write_all(b"\n").expect("a line");
    }

    /// Returns the client's counts, once its process has ended by itself. Calls `look` repeatedly while it waits.
    fn end(mut self, mut look: impl FnMut()) -> Tally {
        let mut tally = Tally::new();
        loop {
            let line = self.line_with("", &mut look);
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("count"), Some(times), Some(what)) => {
                    tally.insert(what.to_owned(), times.parse().expect("a number"));
                }
                (Some("end"), None, None) => break,
                _ => {}
            }
        }
        let status = ended(&mut self.child, "the client", PATIENCE);
        assert_eq!((status.signal(), status.code()), (None, Some(0)), "the client ended by itself");
        tally
    }
}

impl Drop for Zombie {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the seed in `FARPOOL_SEED`, or else one from the current time.
fn seed() -> u64 {
    match std::env::var("FARPOOL_SEED") {
        Ok(seed) => seed.parse().expect("FARPOOL_SEED is a number"),
        Err(_) => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            u64::from(since.subsec_nanos())
        }
    }
}

/// Runs [`ROUNDS`] rounds, each with a seed of its own. Returns the sum of their counts.
fn rounds(name: &str, transport: Transport, round: impl Fn(&mut Random) -> Tally) -> Tally {
    let seed = seed();
    println!("{name} over {transport}: FARPOOL_SEED={seed}");
    let mut total = Tally::new();
    for number in 0..ROUNDS {
        for (what, times) in round(&mut Random(Random(seed ^ number << 32).number())) {
            *total.entry(what).or_default() += times;
        }
    }
    let (stale, wrong) = (times(&total, "stale"), times(&total, "wrong"));
    println!(
        "{name} over {transport}: {ROUNDS} stopped and continued, {stale} stale operations refused, {wrong} \
         accepted or with wrong bytes, 0 killed by a signal: {total:?}"
    );
    assert_eq!(wrong, 0, "{name} over {transport}: {total:?}");
    assert!(times(&total, "in flight") > 0, "no stop met an operation: {total:?}");
    total
}

/// Stops a working client at a random moment, for twice the TTL. Meanwhile another session, the tenant, leases its
/// regions.
fn replaced(
    zombie: &Zombie,
    ttl: Duration,
    random: &mut Random,
    tenant: impl FnOnce(Transport, u64) -> Tenant,
) -> Tenant {
    let ops = 1 + random.below(OPS_BEFORE_STOP);
    for _ in 0..ops {
        zombie.line_with("op", || std::thread::park_timeout(Duration::from_micros(100)));
    }
    zombie.stop();
    let stopped = Instant::now();
    let transport = if random.below(2) == 0 { Transport::Tcp } else { Transport::Shm };
    let mut tenant = tenant(transport, random.number());
    while stopped.elapsed() < 2 * ttl {
        tenant.look();
    }
    tenant.look_at_all();
    tenant
}

fn stop_messages(pool: &RealPool, transport: Transport, random: &mut Random) -> Tally {
    pool.wait_until_all_is_free();
    let mut zombie = Zombie::start("messages", pool, transport, random.number(), TRIES / ROUNDS);
    let mut old = BTreeMap::new();
    for _ in 0..pool.regions {
        let line = zombie.line();
        let numbers: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        old.insert(numbers[0], numbers[1]);
    }
    let mut tenant =
        replaced(&zombie, pool.ttl, random, |transport, seed| Tenant::of_all(pool, transport, seed));
    for (grant, _) in &tenant.held {
        let before = old.get(&grant.region.0.into()).expect("a region of the zombie's");
        assert!(grant.epoch.0 > *before, "region {} at {} was at {before}", grant.region, grant.epoch);
    }
    tenant.give_back(1);
    let before = pool.traffic();
    zombie.go_on();
    let refused = zombie.line_with("refused", || tenant.look());
    let refused: u64 = refused.split(' ').nth(1).expect("a number").parse().expect("a number");
    let after = pool.traffic();
    tenant.look();
    // The node's own counters are compared. Over shared memory the node sees only control requests, no reads and
    // writes.
    assert_eq!(after.write_ops, before.write_ops, "the node let no write in");
    if transport == Transport::Tcp {
        assert!(after.refused_ops >= before.refused_ops + refused, "{before:?} {after:?} {refused}");
    }
    zombie.may_lease();
    let tally = zombie.end(|| tenant.look());
    tenant.look_at_all();
    tenant.leave();
    tally
}

fn messages_over(transport: Transport, ttl: Duration) {
    let pool = RealPool::start(8, ttl);
    let total = rounds("messages", transport, |random| stop_messages(&pool, transport, random));
    let refused = times(&total, "stale");
    assert!(refused + times(&total, "cut") >= TRIES && refused > TRIES * 9 / 10, "{total:?}");
    assert!(times(&total, "second lease, done") > 0, "the client can lease anew: {total:?}");
    let (stored, loaded) = (times(&total, "stored past"), times(&total, "loaded past"));
    assert_eq!(stored > 0 && loaded > 0, transport == Transport::Shm, "{total:?}");
    pool.wait_until_all_is_free();
    Tenant::of_all(&pool, transport, 0).leave();
}

#[test]
fn client_stopped_for_twice_its_lease_is_refused_whatever_it_tries_over_tcp() {
    on_time(TTL, |ttl| messages_over(Transport::Tcp, ttl));
}

#[test]
fn client_stopped_for_twice_its_lease_is_refused_whatever_it_tries_over_shm() {
    on_time(TTL, |ttl| messages_over(Transport::Shm, ttl));
}

fn stop_library(transport: Transport, ttl: Duration, random: &mut Random) -> Tally {
    // A client may be stopped after it got a ticket and before it redeemed it. The broker reserves the promised regions
    // until the ticket expires, which takes longer than a round. Each round therefore has a pool of its own.
    let pool = RealPool::start(16, ttl);
    let zombie = Zombie::start("library", &pool, transport, random.number(), LIBRARY_TRIES);
    pool.wait_until_some_is_leased();
    let mut tenant =
        replaced(&zombie, ttl, random, |transport, seed| Tenant::of_all_unpromised(&pool, transport, seed));
    tenant.give_back(8);
    zombie.go_on();
    let tally = zombie.end(|| tenant.look());
    let (stale, protected) = (times(&tally, "stale"), times(&tally, "protected, done"));
    assert_eq!((stale, protected), (LIBRARY_TRIES / 2, LIBRARY_TRIES / 2), "{tally:?}");
    tenant.look_at_all();
    tenant.leave();
    tally
}

fn library_over(transport: Transport, ttl: Duration) {
    let total = rounds("library", transport, |random| stop_library(transport, ttl, random));
    assert!(times(&total, "new file, done") > 0, "{total:?}");
}

#[test]
fn library_client_stopped_for_twice_its_lease_says_lost_and_starts_anew_over_tcp() {
    on_time(TTL, |ttl| library_over(Transport::Tcp, ttl));
}

#[test]
fn library_client_stopped_for_twice_its_lease_says_lost_and_starts_anew_over_shm() {
    on_time(TTL, |ttl| library_over(Transport::Shm, ttl));
}
