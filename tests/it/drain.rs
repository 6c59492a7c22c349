//! Tests of draining under load: `farpool drain` empties the nodes one after the other while every kind of client
//! reads and writes without a pause. Every operation must succeed and return the right bytes.

use crate::processes::{Process, binary, until};
use crate::programs::{PATIENCE, output};
use crate::random::Random;
use farpool::function::{self, CallOptions, CallerOptions, Function};
use farpool::{
    CreateOptions, Error, FarFile, FileClass, IfTaken, Placement, Pool, PoolOptions, Protection,
    TransportChoice,
};
use farpool_lock::Mutex;
use farpool_wire::Name;
use farpool_wire::control::DrainNode;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Largest size of each client's file, in bytes.
const FILE_BYTES: u64 = 4 * MIB;

fn node(number: u32, url: &str) -> Process {
    let (name, label) = (format!("n{number}"), format!("rack-{number}"));
    // While one of three nodes is drained, the other two have room for all memory that sessions lease ahead of use.
    // In a full pool, sessions keep such leases longer than a client waits for memory.
    let own = ["node", "--name", &name, "--host-label", &label, "--memory", "1GiB", "--region-size", "1MiB"];
    // Prefaulting would take CPU time from the clients, and locking memory from other tests.
    let memory = ["--no-prefault", "--no-lock", "--no-reserve", "--broker", url];
    Process::start(&[&own[..], &memory].concat())
}

/// State that all loading threads share.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    /// Number of operations that succeeded, by kind of client.
    done: Mutex<BTreeMap<String, u64>>,
    operations: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// Result of an operation: an error message if it failed or returned wrong bytes.
type Outcome = Result<(), String>;

fn failed(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

impl Load {
    /// Repeats an operation until the load is over or the operation fails.
    fn keep_up(&self, kind: &str, mut operation: impl FnMut() -> Outcome) {
        while !self.is_over.load(Ordering::Relaxed) {
            if let Err(failure) = operation() {
                self.failures.lock().push(format!("{kind}: {failure}"));
                return;
            }
            *self.done.lock().entry(kind.to_owned()).or_default() += 1;
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn check(&self) {
        let failures = self.failures.lock();
        assert!(failures.is_empty(), "{} failed operations: {failures:#?}", failures.len());
    }
}

fn connect(url: &str, transport: TransportChoice, protection: Protection) -> Pool {
    let protection = Some(protection);
    // If the answer to a lease comes after the timeout, the lease stays the session's until it expires, and the drain
    // waits for that, as spec/lease.md says. The timeout is therefore the longest permitted one.
    let request_timeout_ms = PATIENCE.as_millis() as u64;
    let options = PoolOptions { transport, protection, request_timeout_ms, ..PoolOptions::default() };
    Pool::connect_with(url, options).expect("a session")
}

/// Far file, and its expected contents.
struct Modelled {
    file: FarFile,
    model: Vec<u8>,
}

impl Modelled {
    fn create(pool: &Pool, name: &str, class: FileClass) -> Result<Modelled, String> {
        let file = pool.create(name, class, CreateOptions::default()).map_err(failed("create"))?;
        Ok(Modelled { file, model: Vec::new() })
    }

    fn write(&mut self, random: &mut Random) -> Outcome {
        let from = random.below(FILE_BYTES) as usize;
        let bytes = (1 + random.below(256 << 10) as usize).min(FILE_BYTES as usize - from);
        let content = random.bytes(bytes);
        self.file.write_at(from as u64, &content).map_err(failed("write"))?;
        self.model.resize(self.model.len().max(from + bytes), 0);
        self.model[from..from + bytes].copy_from_slice(&content);
        Ok(())
    }

    fn read(&self, random: &mut Random) -> Outcome {
        let from = random.below(self.model.len().max(1) as u64) as usize;
        let bytes = (1 + random.below(256 << 10) as usize).min(self.model.len() - from);
        self.read_at(from, bytes)
    }

    fn read_at(&self, from: usize, bytes: usize) -> Outcome {
        let mut into = vec![0xee; bytes];
        let count = self.file.read_at(from as u64, &mut into).map_err(failed("read"))?;
        let is_right = into[..count] == self.model[from..from + bytes];
        is_right.then_some(()).ok_or_else(|| format!("wrong bytes in {from}..{}", from + bytes))
    }

    fn step(&mut self, random: &mut Random) -> Outcome {
        if self.model.is_empty() || random.below(2) == 0 { self.write(random) } else { self.read(random) }
    }
}

/// Writes and reads a file repeatedly. Now and then deletes it and begins another.
fn use_a_file(load: &Load, kind: &str, pool: &Pool, class: FileClass, seed: u64) {
    let mut random = Random(seed);
    let mut number = 0;
    let mut current: Option<Modelled> = None;
    load.keep_up(kind, || {
        let name = format!("{kind}-{number}");
        match current.take() {
            Some(old) if random.below(500) == 0 => {
                old.read_at(0, old.model.len())?;
                number += 1;
                pool.delete(&name).map_err(failed("delete"))
            }
            Some(mut file) => {
                let outcome = file.step(&mut random);
                current = Some(file);
                outcome
            }
            None => {
                current = Some(Modelled::create(pool, &name, class)?);
                Ok(())
            }
        }
    });
    // The last file was perhaps moved to another node, and must have lost no bytes thereby.
    if let Some(file) = current
        && let Err(failure) = file.read_at(0, file.model.len())
    {
        load.failures.lock().push(format!("{kind}, at the end: {failure}"));
    }
}

/// Publishes small files, lets another session read them, and drops them.
fn publish_and_drop(load: &Load, kind: &str, writer: &Pool, reader: &Pool, seed: u64) {
    let mut random = Random(seed);
    let mut number = 0;
    load.keep_up(kind, || {
        number += 1;
        let name = format!("{kind}-{number}");
        let bytes = 1 + random.below(MIB) as usize;
        let content = random.bytes(bytes);
        let mut file = Modelled::create(writer, &name, FileClass::Pinned)?;
        file.file.write_at(0, &content).map_err(failed("write"))?;
        file.model = content;
        writer.publish(&name, IfTaken::Refuse).map_err(failed("publish"))?;
        let opened = reader.open(&name).map_err(failed("open"))?;
        for file in [Modelled { file: opened, model: file.model.clone() }, file] {
            file.read_at(0, file.model.len())?;
        }
        reader.delete(&name).map_err(failed("drop"))
    });
}

/// Reads ranges of a published file repeatedly, which was opened before the nodes were drained.
fn read_published(load: &Load, kind: &str, file: &Modelled, seed: u64) {
    let mut random = Random(seed);
    load.keep_up(kind, || file.read(&mut random));
}

/// Runs `farpool drain` to its end. Returns the JSON object that it prints at last, and its messages.
fn drain(url: &str, name: &str, more: &[&str]) -> (serde_json::Value, String) {
    let args = ["drain", name, "--pool", url, "--json", "--timeout", "120s"];
    let output = output(Command::new(binary()).args(args).args(more));
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "drain said {said:?} and {complained:?}");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["state"], "ended", "{said}");
    println!("{said}");
    (said, complained.into_owned())
}

#[test]
fn nodes_drained_one_after_the_other_under_load_cost_no_client_an_operation() {
    // The test's threads and processes get a lower priority than other tests, which have leases of 300 ms to renew.
    rustix::process::nice(10).expect("whoever wants less gets it");
    // Leases of 60 s: no client may lose one because this machine gave it no CPU time, and none has to expire here.
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "60s"]);
    let url = broker.ready.clone();
    let mut nodes: BTreeMap<u32, Process> = (1..=3).map(|number| (number, node(number, &url))).collect();
    let observer = connect(&url, TransportChoice::Tcp, Protection::None);

    // The file of 12 MiB has at least one region, of 1 MiB, on each of the three nodes.
    let mut shared = Modelled::create(&observer, "shared", FileClass::Pinned).expect("created");
    shared.model = Random(1).bytes(12 * MIB as usize);
    shared.file.write_at(0, &shared.model).expect("a write");
    observer.publish("shared", IfTaken::Refuse).expect("published");

    let load = Load::default();
    let transports = [TransportChoice::Tcp, TransportChoice::Shm];
    let protections = [Protection::Mirror, Protection::Local, Protection::None];
    let open_shared = |transport| {
        let pool = connect(&url, transport, Protection::None);
        let file = pool.open("shared").expect("opened");
        (pool, Modelled { file, model: shared.model.clone() })
    };
    // These sessions make no requests until the node that they read from has been drained and has ended.
    let rare = transports.map(open_shared);
    let look_again = || {
        rare.iter().for_each(|(_, file)| file.read_at(0, file.model.len()).expect("right bytes"));
    };
    look_again();
    std::thread::scope(|scope| {
        let (load, url) = (&load, url.as_str());
        for (number, transport) in (1..).zip(transports) {
            for protection in protections {
                let kind = format!("{transport:?} {}", protection);
                let pool = connect(url, transport, protection);
                scope.spawn(move || use_a_file(load, &kind, &pool, FileClass::Scratch, number));
            }
            let kind = format!("{transport:?} pinned");
            let pool = connect(url, transport, Protection::None);
            scope.spawn(move || use_a_file(load, &kind, &pool, FileClass::Pinned, number));
            let kind = format!("{transport:?} publisher");
            let pools = [(); 2].map(|()| connect(url, transport, Protection::None));
            scope.spawn(move || publish_and_drop(load, &kind, &pools[0], &pools[1], number));
            let kind = format!("{transport:?} reader");
            let (reader, file) = open_shared(transport);
            scope.spawn(move || {
                read_published(load, &kind, &file, number);
                reader.close();
            });
        }
        let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in [1, 2, 3, 1] {
                let begun = Instant::now();
                until(&observer, PATIENCE, "everybody is at work", |_| {
                    load.check();
                    load.done.lock().len() == 12
                });
                let before = load.operations.load(Ordering::Relaxed);
                drain(url, &format!("n{number}"), &[]);
                let drained = nodes.remove(&number).expect("it runs");
                let status = drained.ends_within(PATIENCE);
                assert_eq!(status.code(), Some(0), "n{number} ended with {status}");
                let during = load.operations.load(Ordering::Relaxed) - before;
                load.check();
                look_again();
                println!("n{number}: {during} operations during {:?}", begun.elapsed());
                assert!(during > 0);
                nodes.insert(number, node(number, url));
            }
        }));
        load.is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = watched {
            std::panic::resume_unwind(panic);
        }
    });
    load.check();
    println!("{:?}", load.done.lock());
}

/// A copy that was just being made on the other node belongs to no file when its file is published, and its region is
/// given back.
#[test]
fn files_published_while_they_move_away_from_a_node_leave_no_memory_behind() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "60s"]);
    let url = broker.ready.clone();
    let _nodes = [node(1, &url), node(2, &url)];
    let pool = connect(&url, TransportChoice::Tcp, Protection::None);
    let order = |number: usize, drain| {
        let node = Name::new(format!("n{number}")).expect("a name");
        pool.drain(&DrainNode { node, drain, stop: false }).expect("an order");
    };
    for round in 0..6 {
        let (from, to) = (1 + round % 2, 2 - round % 2);
        order(to, true);
        until(&pool, PATIENCE, "one node gives no memory", |status| {
            status.nodes.iter().filter(|node| node.draining).count() == 1
        });
        let mut file = Modelled::create(&pool, "moving", FileClass::Pinned).expect("created");
        file.model = Random(7).bytes(24 * MIB as usize);
        file.file.write_at(0, &file.model).expect("written");
        order(to, false);
        order(from, true);
        until(&pool, PATIENCE, "the file is on its way", |status| {
            status.nodes.iter().any(|node| *node.info.name == format!("n{to}") && node.counts.leased > 0)
        });
        pool.publish("moving", IfTaken::Refuse).expect("published");
        file.read_at(0, file.model.len()).expect("right bytes");
        pool.delete("moving").expect("dropped");
        until(&pool, PATIENCE, "nothing is left of a file that was dropped", |status| {
            status.nodes.iter().all(|node| node.counts.named == 0 && node.counts.leased == 0)
        });
        order(from, false);
    }
}

/// Drains a node while a function runs there that ends only by its `deadline`. Calls `then` with the other node during
/// the drain. Returns the error of the function's call, and the command's JSON and messages.
fn drain_under_a_call(
    deadline: Duration,
    wait: &str,
    then: impl FnOnce(&Pool, Process),
) -> (Error, serde_json::Value, String) {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "60s"]);
    let url = broker.ready.clone();
    let first = node(1, &url);
    let pool = connect(&url, TransportChoice::Tcp, Protection::None);
    let file = pool.create("round", FileClass::Pinned, CreateOptions::default()).expect("created");
    // A linked list of one element that points to itself, so that the function which walks it never ends.
    file.write_at(0, &[0; 4096]).expect("a write");
    pool.publish("round", IfTaken::Refuse).expect("published");
    let second = node(2, &url);
    let told = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let caller =
                pool.open("round").expect("opened").caller(CallerOptions::default()).expect("a caller");
            let args = [0, u64::MAX, 0].map(u64::to_le_bytes).concat();
            let options = CallOptions { placement: Placement::Ship, deadline, ..CallOptions::default() };
            caller.call(&Function::resident("walk").expect("a name"), &args, options)
        });
        until_it_walks(&pool, "n1");
        let (figures, said) = drain(&url, "n1", &["--calls", wait]);
        then(&pool, second);
        let error = call.join().expect("no panic").expect_err("it never ends by itself");
        (error, figures, said)
    });
    assert!(first.ends_within(PATIENCE).success());
    told
}

fn until_it_walks(pool: &Pool, node: &str) {
    let begun = Instant::now();
    let running = || pool.running_calls(node).expect("it tells").calls.to_vec();
    while !running().iter().any(|call| *call.function == *"walk") {
        assert!(begun.elapsed() < PATIENCE, "the function runs at {node}: {:?}", running());
    }
}

#[test]
fn drain_waits_for_calls_of_functions_that_end_in_time() {
    // If its output is not a terminal, `farpool drain` reports every 5 seconds what it still waits for.
    let (error, figures, said) = drain_under_a_call(Duration::from_secs(30), "60s", |_, _| ());
    assert_eq!(error.how_it_ended().map(|ended| ended.outcome), Some(function::Outcome::Deadline), "{error}");
    assert!(error.to_string().contains("node n1"), "it was left alone: {error}");
    assert!(said.contains("waiting for") && said.contains("1 call of functions (walk of client "), "{said}");
    assert_eq!(figures["ended_calls"], serde_json::json!([]), "{said}");
}

#[test]
fn drain_names_the_calls_that_it_ends_and_they_are_made_again_elsewhere() {
    let (error, figures, said) = drain_under_a_call(Duration::from_secs(600), "500ms", |pool, second| {
        until_it_walks(pool, "n2");
        second.kill();
    });
    assert_eq!(figures["ended_calls"][0]["function"], "walk", "{figures}");
    assert!(said.contains("ending 1 call of functions (walk of client "), "{said}");
    assert_eq!(error.how_it_ended().map(|ended| ended.outcome), None, "its node was killed: {error}");
}

#[test]
fn node_that_is_stopped_lets_its_clients_move_their_data_first() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let url = &broker.ready;
    let patience = format!("{}ms", PATIENCE.as_millis());
    let start = |name: &str| {
        let own = ["node", "--name", name, "--memory", "64MiB", "--region-size", "1MiB", "--broker", url];
        Process::start(&[&own[..], &["--no-reserve", "--drain-on-stop", &patience]].concat())
    };
    let leaves = start("n1");
    let pool = connect(url, TransportChoice::Tcp, Protection::None);
    let file = pool.create("spill", FileClass::Scratch, CreateOptions::default()).expect("created");
    let bytes: Vec<u8> = (0..8 * MIB).map(|at| (at % 251) as u8).collect();
    file.write_at(0, &bytes).expect("written");
    pool.create("table", FileClass::Pinned, CreateOptions::default()).expect("created");
    let published = pool.open("table").expect("opened");
    published.write_at(0, b"bytes").expect("written");
    pool.publish("table", IfTaken::Refuse).expect("published");
    let _stays = start("n2");
    until(&pool, PATIENCE, "the second node joins", |status| status.nodes.len() == 2);
    leaves.signal(rustix::process::Signal::TERM);
    assert!(leaves.ends_within(PATIENCE).success(), "it ends although it has a published file");
    let mut read = vec![0; bytes.len()];
    file.read_at(0, &mut read).expect("moved, without a second copy");
    assert!(read == bytes);
}
