//! Zombie: a client that `it/zombies.rs` stops in the middle of reads and writes, and continues when its leases have
//! long ended and others have its regions. It then uses everything it still has (epochs, handles, mappings,
//! descriptors) and counts the results.
//!
//! The idea: the test leaves a note in a file while the process is stopped. An operation that began before there was a
//! note and ended after it was in flight. One that began when the note was there is stale, whatever the clocks of the
//! threads say.
//!
//! It prints one line each: `holds REGION EPOCH`; `op`, repeatedly, until it is stopped; `refused NUMBER` when it has
//! tried everything without a lease, of which NUMBER were reads and writes. It then waits for a line on standard
//! input before it leases again. At last it prints `count NUMBER WHAT` lines and `end`. A count of a forbidden result
//! begins with `wrong`.
#![forbid(unsafe_code)]

mod files;
mod ghost;
mod library;
mod messages;
mod worker;

use farpool_host::clock;
use farpool_tests::raw_session::{Lessor, soon};
use farpool_transport::{Exposure, Identity, Link, Transport, tcp};
use farpool_wire::Request;
use farpool_wire::control::Done;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Arguments, in the order `messages|library|ghost tcp|shm BROKER NOTE REGIONS SEED TRIES`. A ghost has ms of grace in
/// place of the seed, and no note.
struct Order {
    transport: Transport,
    /// Addresses of the broker, `host:port`, separated by commas.
    broker: String,
    note: Note,
    /// Number of regions that the pool's node has.
    regions: u64,
    seed: u64,
    /// Number of operations with old rights to try.
    tries: u64,
}

impl Lessor for Order {
    fn broker_link(&self) -> Box<dyn Link> {
        let connect = |address: &str| tcp::connect(&exposure(), address, &Identity::Broker, soon());
        let give_up = clock::now().plus_ms(60_000);
        // Only one of several brokers leads and answers; all are tried in turn.
        loop {
            for address in self.broker.split(',') {
                let Ok(mut link) = connect(address) else { continue };
                if link.call(&Request::Status(Done {}), soon()).is_ok() {
                    return link;
                }
            }
            assert!(clock::now() < give_up, "no broker leads");
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
    }
}

/// Permits plaintext beyond loopback only if `ZOMBIE_PLAINTEXT` is set.
fn exposure() -> Exposure {
    Exposure { tls: None, plaintext: std::env::var_os("ZOMBIE_PLAINTEXT").is_some() }
}

/// File to which the test writes while this process is stopped.
struct Note(File);

impl Note {
    fn is_left(&self) -> bool {
        let mut first = [0];
        self.0.read_at(&mut first, 0).expect("the note can be read") == 1 && first != [0]
    }
}

/// Number of results of each kind.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    fn take_in(&mut self, other: Tally) {
        for (what, times) in other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    fn report(&self) {
        for (what, times) in &self.0 {
            println!("count {times} {what}");
        }
        println!("end");
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().unwrap_or_else(|| panic!("{what} is missing"));
    let kind = word("messages, library or ghost");
    let transport = match word("tcp or shm").as_str() {
        "tcp" => Transport::Tcp,
        "shm" => Transport::Shm,
        other => panic!("transport {other:?}; tcp and shm are permitted"),
    };
    let order = Order {
        transport,
        broker: word("the broker's address"),
        note: Note(File::open(word("the note's path")).expect("the note")),
        regions: word("the number of regions").parse().expect("a number"),
        seed: word("the seed").parse().expect("a number"),
        tries: word("the number of tries").parse().expect("a number"),
    };
    match kind.as_str() {
        "messages" => messages::run(&order).report(),
        "library" => library::run(&order).report(),
        "ghost" => ghost::run(&order).report(),
        other => panic!("client {other:?}; messages, library and ghost are permitted"),
    }
}
