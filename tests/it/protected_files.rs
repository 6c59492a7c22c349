//! Tests of files with two copies: they survive the loss of a node, and whatever fails, a read returns the bytes that
//! were written.

use crate::on_time::Watch;
use crate::processes::{Process, until};
use crate::programs::PATIENCE;
use crate::random::Random;
use farpool::{CreateOptions, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, TransportChoice};
use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_near_data::FunctionOptions;
use farpool_node::{Node, NodeOptions};
use farpool_transport::Exposure;
use farpool_wire::Name;
use farpool_wire::control::{NodeStatus, StatusReport};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Number of times that an operation may have to wake a thread; each may be as late as this machine was at most.
const WAKE_UPS: u32 = 50;

/// Pool of nodes in this process, each of which can be lost.
pub(crate) struct Cluster {
    broker: Broker,
    nodes: Vec<Node>,
    started: u32,
}

impl Cluster {
    /// Starts a cluster that soon takes a silent node for lost.
    pub(crate) fn new(nodes: u32) -> Cluster {
        Cluster::with(nodes, LeaseSettings { lease_ttl_ms: 1_000, grace_ms: 300, ..LeaseSettings::default() })
    }

    pub(crate) fn with(nodes: u32, settings: LeaseSettings) -> Cluster {
        let (loopback, store) = (([127, 0, 0, 1], 0).into(), Box::new(MemoryStore::default()));
        let broker = Broker::start(loopback, &Exposure::default(), settings, store).expect("a broker");
        let mut cluster = Cluster { broker, nodes: Vec::new(), started: 0 };
        for _ in 0..nodes {
            cluster.start_node();
        }
        cluster
    }

    /// Starts a node with a host label of its own.
    fn start_node(&mut self) {
        self.start_node_at(&format!("rack-{}", self.started + 1));
    }

    pub(crate) fn start_node_at(&mut self, host_label: &str) {
        self.started += 1;
        let name = Name::new(format!("n{}", self.started)).expect("a name");
        let mut options = NodeOptions::new(name, 48 * MIB, self.broker.address().to_string());
        options.region_bytes = MIB;
        options.host_label = Some(Name::new(host_label).expect("a label"));
        // The node keeps its memory, however little the other tests of this machine leave free.
        options.pressure.source = None;
        options.extension = farpool_near_data::extension(FunctionOptions::default());
        let node = Node::start(options).expect("a node");
        assert!(node.wait_joined(PATIENCE), "the node joins");
        self.nodes.push(node);
    }

    pub(crate) fn lose_node(&mut self, index: usize) {
        drop(self.nodes.remove(index));
    }

    /// Returns the number of regions that sessions lease on the remaining nodes, as reported to the broker.
    fn leased_regions(&self, status: &StatusReport) -> u64 {
        let is_here = |node: &&NodeStatus| self.nodes.iter().any(|here| here.info().node == node.info.node);
        status.nodes.iter().filter(is_here).map(|node| u64::from(node.counts.leased)).sum()
    }

    pub(crate) fn url(&self) -> String {
        format!("farpool://{}", self.broker.address())
    }

    pub(crate) fn address(&self, index: usize) -> String {
        self.nodes[index].address().to_string()
    }

    pub(crate) fn connect(&self, transport: TransportChoice, protection: Option<Protection>) -> Pool {
        self.connect_encrypted(transport, protection, false)
    }

    pub(crate) fn connect_encrypted(
        &self,
        transport: TransportChoice,
        protection: Option<Protection>,
        encrypt_scratch: bool,
    ) -> Pool {
        let options = PoolOptions {
            transport,
            protection,
            encrypt_scratch,
            request_timeout_ms: 2_000,
            repair_bytes_per_second: 1 << 30,
            ..PoolOptions::default()
        };
        Pool::connect_with(&self.url(), options).expect("a session")
    }
}

fn create(pool: &Pool, name: &str) -> FarFile {
    pool.create(name, FileClass::Scratch, CreateOptions::default()).expect("created")
}

/// Far file, and its expected contents.
struct Modelled {
    file: FarFile,
    model: Vec<u8>,
}

impl Modelled {
    fn step(&mut self, random: &mut Random) {
        let offset = random.below(2 * MIB);
        let bound = if random.below(5) == 0 { MIB } else { 40_000 };
        let bytes = random.below(bound) as usize;
        match random.below(10) {
            0..6 => {
                let from = random.bytes(bytes);
                self.file.write_at(offset, &from).expect("a write");
                if bytes > 0 {
                    let end = offset as usize + bytes;
                    self.model.resize(self.model.len().max(end), 0);
                    self.model[offset as usize..end].copy_from_slice(&from);
                }
            }
            6 => {
                let length = random.below(2 * MIB);
                self.file.truncate(length).expect("cut");
                self.model.resize(length as usize, 0);
            }
            _ => {
                let mut into = vec![0xee; bytes];
                let count = self.file.read_at(offset, &mut into).expect("a read");
                let start = self.model.len().min(offset as usize);
                assert_eq!(into[..count], self.model[start..start + count], "at {offset}");
            }
        }
    }

    fn check(&self) {
        let mut into = vec![0xee; self.model.len()];
        self.file.read_at(0, &mut into).expect("a read of all");
        assert!(into == self.model, "the file holds what was written");
    }
}

fn wait_until_protected(pool: &Pool) {
    let give_up = Instant::now() + PATIENCE;
    while pool.stats().unprotected_bytes > 0 {
        assert!(Instant::now() < give_up, "protected again: {:?}", pool.stats());
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn mirror_survives_nodes_lost_one_after_another_while_it_is_used() {
    let (tcp, shm) = (TransportChoice::Tcp, TransportChoice::Shm);
    for (seed, transport, encrypted) in [(11, tcp, false), (12, shm, false), (13, tcp, true), (14, shm, true)]
    {
        let mut cluster = Cluster::new(3);
        let pool = cluster.connect_encrypted(transport, None, encrypted);
        let mut random = Random(seed);
        let mut files: Vec<Modelled> = (0..3)
            .map(|number| Modelled { file: create(&pool, &format!("f{number}")), model: Vec::new() })
            .collect();
        assert!(files.iter().all(|file| file.file.protection() == Protection::Mirror), "the default here");
        assert!(files.iter().all(|file| file.file.is_encrypted() == encrypted));
        for _loss in 1..=4 {
            for _ in 0..150 {
                let at = random.below(3) as usize;
                files[at].step(&mut random);
            }
            let lost = random.below(cluster.nodes.len() as u64) as usize;
            cluster.lose_node(lost);
            for _ in 0..60 {
                let at = random.below(3) as usize;
                files[at].step(&mut random);
            }
            files.iter().for_each(Modelled::check);
            cluster.start_node();
            // All files must have two copies again before the next loss. With mapped memory, which outlives its node,
            // the session notices the loss late, and repair begins only then; so the test waits for that first.
            until(&pool, PATIENCE, "nothing is held on lost nodes", |status| {
                pool.stats().leased_bytes == MIB * cluster.leased_regions(status)
            });
            wait_until_protected(&pool);
        }
        files.iter().for_each(Modelled::check);
        let stats = pool.stats();
        assert!(stats.repaired_bytes > 0, "{transport:?}: lost copies were made anew");
        assert_eq!(stats.failed_ops, 0, "{transport:?}");
    }
}

#[test]
fn mirror_without_its_second_host_is_kept_once_and_twice_as_soon_as_there_is_one() {
    let mut cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, Some(Protection::Mirror));
    let file = create(&pool, "f");
    file.write_at(0, &vec![7; 3 * MIB as usize]).expect("a write");
    assert_eq!(pool.stats().unprotected_bytes, 3 * MIB, "one host holds it all");
    cluster.start_node();
    wait_until_protected(&pool);
    cluster.lose_node(0);
    let mut back = vec![0; 3 * MIB as usize];
    file.read_at(0, &mut back).expect("the second host has it");
    assert!(back.iter().all(|byte| *byte == 7));
}

#[test]
fn mirror_whose_two_hosts_are_lost_answers_lost_and_nothing_else() {
    let mut cluster = Cluster::new(2);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let file = create(&pool, "f");
    file.write_at(0, &vec![7; MIB as usize]).expect("a write");
    cluster.lose_node(0);
    cluster.lose_node(0);
    let error = file.read_at(0, &mut [0; 16]).expect_err("nobody has it");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[test]
fn local_copy_survives_every_node_and_the_file_is_used_on_without_any() {
    let (tcp, shm) = (TransportChoice::Tcp, TransportChoice::Shm);
    for (seed, transport, encrypted) in [(21, tcp, false), (22, shm, false), (23, tcp, true)] {
        let mut cluster = Cluster::new(1);
        let pool = cluster.connect_encrypted(transport, None, encrypted);
        let mut random = Random(seed);
        let mut file = Modelled { file: create(&pool, "f"), model: Vec::new() };
        assert_eq!(file.file.protection(), Protection::Local, "the default here");
        for _ in 0..200 {
            file.step(&mut random);
        }
        cluster.lose_node(0);
        // If this host was paused for longer than a lease lives, the session holds no lease whose loss could be
        // counted.
        while pool.stats().nodes_lost == 0 && pool.stats().leased_bytes > 0 {
            file.step(&mut random);
        }
        for _ in 0..200 {
            file.step(&mut random);
        }
        file.check();
        assert!(pool.stats().disk_bytes_read > 0, "{transport:?}: the disk answered");
        // When there is a node again, the bytes on the local disk return to far memory.
        cluster.start_node();
        let give_up = Instant::now() + PATIENCE;
        while pool.stats().repaired_bytes < file.model.len() as u64 / 2 {
            assert!(Instant::now() < give_up, "back in far memory: {:?}", pool.stats());
            file.step(&mut random);
        }
        file.check();
        assert_eq!(pool.stats().failed_ops, 0, "{transport:?}");
    }
}

/// Regression: two writes had left a hole between them in one page of an encrypted file. When the file returned to far
/// memory from the local disk, the page was encrypted and stored once for each write, with zeros in place of the other
/// write. From then on the first write read as zeros.
#[test]
fn local_copy_comes_back_to_far_memory_with_every_run_of_an_encrypted_page() {
    let mut cluster = Cluster::new(1);
    let pool = cluster.connect_encrypted(TransportChoice::Tcp, Some(Protection::Local), true);
    let file = create(&pool, "f");
    let mut model = vec![0; 9_000];
    for (offset, from) in
        [(10, &b"first"[..]), (3_000, b"second"), (4_090, b"over the edge"), (8_995, b"third")]
    {
        file.write_at(offset as u64, from).expect("a write");
        model[offset..offset + from.len()].copy_from_slice(from);
    }
    cluster.lose_node(0);
    cluster.start_node();
    let give_up = Instant::now() + PATIENCE;
    while pool.stats().repaired_bytes == 0 {
        assert!(Instant::now() < give_up, "back in far memory: {:?}", pool.stats());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let from_disk = pool.stats().disk_bytes_read;
    Modelled { file, model }.check();
    assert_eq!(pool.stats().disk_bytes_read, from_disk, "far memory answered");
}

#[test]
fn local_copy_takes_what_finds_no_room_in_the_pool() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let mut file = Modelled { file: create(&pool, "f"), model: Random(5).bytes(80 * MIB as usize) };
    for (index, chunk) in file.model.chunks(MIB as usize).enumerate() {
        file.file.write_at(index as u64 * MIB, chunk).expect("48 MiB to the node, the rest to the disk");
    }
    file.check();
    file.file.truncate(MIB).expect("cut");
    file.model.truncate(MIB as usize);
    file.check();
}

#[test]
fn local_copy_that_the_disk_refuses_leaves_a_clear_error_when_the_node_is_lost_too() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let options = PoolOptions { local_folder: "/nowhere/to/be/found".into(), ..PoolOptions::default() };
    let lacking = Pool::connect_with(pool.url(), options).expect("a session");
    let error = lacking.create("f", FileClass::Scratch, CreateOptions::default()).err().expect("no folder");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("/nowhere/to/be/found"), "{error}");
}

#[test]
fn replica_that_stalls_costs_a_second_and_never_answers_with_old_bytes() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "2s", "--grace", "1s"]);
    let node = |name: &str, label: &str| {
        let fixed = ["--memory", "64MiB", "--region-size", "1MiB", "--broker", &broker.ready];
        Process::start(&[&["node", "--name", name, "--host-label", label][..], &fixed[..]].concat())
    };
    let nodes = [node("one", "rack-1"), node("two", "rack-2")];
    // Only a node whose work nobody else can do is waited for that long.
    let options =
        PoolOptions { transport: TransportChoice::Tcp, request_timeout_ms: 60_000, ..PoolOptions::default() };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    until(&pool, PATIENCE, "two nodes", |status| status.nodes.len() == 2);
    for stalled in &nodes {
        let mut random = Random(31);
        let mut file = Modelled { file: create(&pool, "f"), model: Vec::new() };
        for _ in 0..100 {
            file.step(&mut random);
        }
        stalled.signal(rustix::process::Signal::STOP);
        let watch = Watch::start();
        let took: Vec<Duration> = (0..100)
            .map(|_| {
                let begun = Instant::now();
                file.step(&mut random);
                begun.elapsed()
            })
            .collect();
        stalled.signal(rustix::process::Signal::CONT);
        let allowance = watch.worst() * WAKE_UPS;
        for (step, took) in took.into_iter().enumerate() {
            let limit = Duration::from_millis(if step == 0 { 2_500 } else { 1_500 }) + allowance;
            assert!(took < limit, "step {step} took {took:?}, not less than {limit:?}");
        }
        // The node runs again and handles delayed requests. Whatever these do, no read may return old bytes.
        for _ in 0..200 {
            file.step(&mut random);
        }
        file.check();
        wait_until_protected(&pool);
        file.check();
        pool.delete("f").expect("deleted");
    }
}

/// Regression: every read of a file with a copy on the local disk waited for the stalled node until the timeout,
/// although the disk had the bytes.
#[test]
fn local_copy_answers_at_once_while_its_node_stalls() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let node = Process::start(&["node", "--name", "one", "--memory", "64MiB", "--broker", &broker.ready]);
    let options =
        PoolOptions { transport: TransportChoice::Tcp, request_timeout_ms: 1_500, ..PoolOptions::default() };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    until(&pool, PATIENCE, "a node", |status| status.nodes.len() == 1);
    let file = create(&pool, "f");
    assert_eq!(file.protection(), Protection::Local);
    let model = Random(41).bytes(8 * MIB as usize);
    file.write_at(0, &model).expect("a write");
    // The disk may have taken the bytes alone at first, if the machine is busy.
    until(&pool, PATIENCE, "all bytes are in far memory", |_| file.copies() == 1);
    node.signal(rustix::process::Signal::STOP);
    let give_up = Instant::now() + PATIENCE;
    while pool.stats().dropped_copy_bytes == 0 {
        file.write_at(0, &model[..100]).expect("the disk takes it");
        assert!(Instant::now() < give_up, "no copy is dropped within {PATIENCE:?}: {:?}", pool.stats());
    }
    let (watch, begun) = (Watch::start(), Instant::now());
    Modelled { file, model }.check();
    let took = begun.elapsed();
    let limit = Duration::from_millis(1_500) + watch.worst() * WAKE_UPS;
    // The session assumes that its other extents are still on the stalled node, but reads of them must not wait for it.
    assert!(took < limit, "it took {took:?}, not less than {limit:?}");
    node.signal(rustix::process::Signal::CONT);
}
