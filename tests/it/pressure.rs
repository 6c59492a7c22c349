//! Tests of memory pressure: which regions a node gives back when its host needs memory, in which order, and what
//! clients notice.

use crate::processes::until;
use crate::programs::PATIENCE;
use crate::random::Random;
use farpool::{CreateOptions, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, TransportChoice};
use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_lock::Mutex;
use farpool_node::pressure::{BoundedMemory, Sample};
use farpool_node::{MemorySource, Node, NodeOptions};
use farpool_transport::Exposure;
use farpool_wire::Name;
use farpool_wire::control::{NodeStatus, StatusReport};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const REGIONS: u64 = 32;

/// Memory of a simulated host of 64 GiB, of which half must stay available. Each value is the number of available bytes
/// that one sample finds; the last value repeats.
struct Told(Mutex<VecDeque<u64>>);

impl Told {
    fn looks(&self, available: impl IntoIterator<Item = u64>) {
        let mut told = self.0.lock();
        told.clear();
        told.extend(available);
    }
}

impl MemorySource for Told {
    fn sample(&self) -> io::Result<Sample> {
        let mut told = self.0.lock();
        let available_bytes = if told.len() > 1 { told.pop_front() } else { told.front().copied() };
        let available_bytes = available_bytes.expect("there is always one");
        Ok(Sample {
            spaces: vec![BoundedMemory { total_bytes: 64 * GIB, available_bytes }],
            stalled_us: None,
        })
    }
}

/// Nodes of 32 regions, each on a host of its own with simulated memory, and their broker.
struct Hosts {
    nodes: Vec<Node>,
    told: Vec<Arc<Told>>,
    broker: Broker,
}

impl Hosts {
    fn new(count: usize, firm_percent: u32) -> Hosts {
        let settings = LeaseSettings { lease_ttl_ms: 1_000, grace_ms: 300, ..LeaseSettings::default() };
        let (loopback, store) = (([127, 0, 0, 1], 0).into(), Box::new(MemoryStore::default()));
        let broker = Broker::start(loopback, &Exposure::default(), settings, store).expect("a broker");
        let mut hosts = Hosts { nodes: Vec::new(), told: Vec::new(), broker };
        for index in 0..count {
            let name = Name::new(format!("n{index}")).expect("a name");
            let mut options =
                NodeOptions::new(name.clone(), REGIONS * MIB, hosts.broker.address().to_string());
            options.region_bytes = MIB;
            options.host_label = Some(name);
            let told = Arc::new(Told(Mutex::new([32 * GIB].into())));
            options.pressure.source = Some(told.clone());
            options.pressure.reserve_bytes = Some(32 * GIB);
            options.pressure.evacuate_ms = 20_000;
            options.pressure.firm_percent = firm_percent;
            let node = Node::start(options).expect("a node");
            assert!(node.wait_joined(PATIENCE), "the node joins");
            hosts.nodes.push(node);
            hosts.told.push(told);
        }
        hosts
    }

    fn connect(&self, transport: TransportChoice, protection: Protection) -> Pool {
        let (url, protection) = (format!("farpool://{}", self.broker.address()), Some(protection));
        let options =
            PoolOptions { transport, protection, repair_bytes_per_second: 1 << 30, ..PoolOptions::default() };
        Pool::connect_with(&url, options).expect("a session")
    }
}

fn create(pool: &Pool, name: &str, class: FileClass) -> FarFile {
    pool.create(name, class, CreateOptions::default()).expect("created")
}

fn node<'s>(nodes: &'s [NodeStatus], name: &str) -> &'s NodeStatus {
    nodes.iter().find(|node| *node.info.name == *name).expect("it is there")
}

fn reads(file: &FarFile, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    file.read_at(0, &mut found).expect("readable");
    assert!(found == wanted, "as it was written");
}

#[test]
fn host_that_needs_its_memory_gets_it_and_files_that_can_move_are_readable_throughout() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        for protection in [Protection::Mirror, Protection::None] {
            let hosts = Hosts::new(3, 100);
            let pool = hosts.connect(transport, protection);
            let bytes = Random(1).bytes(8 << 20);
            let files: Vec<FarFile> =
                (0..3).map(|n| create(&pool, &format!("f{n}"), FileClass::Scratch)).collect();
            files.iter().for_each(|file| file.write_at(0, &bytes).expect("written"));
            let over = AtomicBool::new(false);
            std::thread::scope(|threads| {
                for file in &files {
                    threads.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            reads(file, &bytes);
                        }
                    });
                }
                // 16 GiB are missing, which is more than the node has, so it gives back all its regions.
                hosts.told[0].looks([16 * GIB]);
                until(&pool, PATIENCE, "all of it goes", |status| {
                    u64::from(node(&status.nodes, "n0").counts.away) == REGIONS
                });
                over.store(true, Ordering::Relaxed);
            });
            files.iter().for_each(|file| reads(file, &bytes));
        }
    }
}

#[test]
fn host_that_needs_a_little_gets_what_nobody_uses_and_the_rest_stays() {
    let hosts = Hosts::new(1, 100);
    let pool = hosts.connect(TransportChoice::Tcp, Protection::None);
    let bytes = Random(2).bytes(4 << 20);
    let file = create(&pool, "scratch", FileClass::Scratch);
    file.write_at(0, &bytes).expect("written");
    let leased = |status: &StatusReport| node(&status.nodes, "n0").counts.leased;
    until(&pool, PATIENCE, "the lease is reported", |status| leased(status) > 0);
    let leased = leased(&pool.status().expect("a status"));
    // One sample finds 1 MiB too little. The node gives back a little more, because it extrapolates how fast the
    // shortage grew.
    hosts.told[0].looks([32 * GIB - MIB, 32 * GIB]);
    until(&pool, PATIENCE, "some regions go", |status| node(&status.nodes, "n0").counts.away > 0);
    let counts = &node(&pool.status().expect("a status").nodes, "n0").counts.clone();
    assert!(counts.leased == leased && counts.away <= 6, "{counts:?}, {leased} were leased");
    reads(&file, &bytes);
}

#[test]
fn emergency_takes_everything_and_copies_elsewhere_are_what_is_read() {
    let hosts = Hosts::new(3, 100);
    let pool = hosts.connect(TransportChoice::Tcp, Protection::Mirror);
    let bytes = Random(3).bytes(6 << 20);
    let file = create(&pool, "scratch", FileClass::Scratch);
    file.write_at(0, &bytes).expect("written");
    let cached = create(&pool, "cached", FileClass::Cache);
    cached.write_at(0, &bytes).expect("written");
    hosts.told[0].looks([GIB]);
    until(&pool, PATIENCE, "all of it goes", |status| {
        u64::from(node(&status.nodes, "n0").counts.away) == REGIONS
    });
    reads(&file, &bytes);
    // A file of class `cache` is either intact or reported as lost.
    let mut found = vec![0; bytes.len()];
    match cached.read_at(0, &mut found) {
        Ok(_) => assert!(found == bytes),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
    }
}

#[test]
fn no_more_than_the_firm_share_is_pinned_and_the_rest_is_for_what_can_go() {
    let hosts = Hosts::new(1, 25);
    let pool = hosts.connect(TransportChoice::Tcp, Protection::None);
    let pinned = create(&pool, "pinned", FileClass::Pinned);
    let fits = vec![1; (REGIONS * MIB / 4) as usize];
    pinned.write_at(0, &fits).expect("a quarter");
    let error = pinned.write_at(fits.len() as u64, &fits).expect_err("more than a quarter");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    create(&pool, "scratch", FileClass::Scratch).write_at(0, &fits).expect("the rest is free");
}
