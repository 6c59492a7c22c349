//! Tests of delayed operations. A gate in the client holds a read or write back on its way, as a node that stalls
//! would, and lets it go on later. It must then never touch the bytes of another file, nor undo a later operation.

use crate::programs::PATIENCE;
use farpool::{CreateOptions, FarFile, FileClass, Pool, PoolOptions, Protection, TransportChoice};
use farpool_broker::{Broker, LeaseSettings, stores::MemoryStore};
use farpool_host::{DiskFile, Host, HostLayer};
use farpool_lock::{Condvar, Mutex, MutexGuard};
use farpool_node::{Node, NodeOptions};
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, ReadOp, Sockets, Transport, WriteOp};
use farpool_wire::{MonoNs, Name, Reply, Request};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

/// Kind of operation to hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Truncation of a file on the local disk.
    Truncate,
}

// State of a [`Gate`]. Destinations are addresses of nodes, or `disk`.
#[derive(Default)]
struct Way {
    /// Next operation to hold back: its kind and, if not `None`, its destination.
    wanted: Option<(Kind, Option<String>)>,
    /// True if the operation that is held back must fail in the end.
    fails: bool,
    /// Destination of the next write that must fail. `None` if none must.
    fails_at: Option<String>,
    /// Destination of the operation that is held back. `None` if none is.
    held: Option<String>,
    /// Destination whose requests get no answer. `None` if all do.
    silent: Option<String>,
}

/// Gate that all reads and writes of a client pass, and that can hold one of them back.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Way>, Condvar)>);

impl Gate {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.0.0.lock()
    }

    fn hold_next(&self, kind: Kind) {
        self.way().wanted = Some((kind, None));
    }

    fn hold_next_write_to(&self, whom: &str) {
        self.way().wanted = Some((Kind::Write, Some(whom.to_owned())));
    }

    /// Makes the next write to this destination fail.
    fn fail_next_write_to(&self, whom: &str) {
        self.way().fails_at = Some(whom.to_owned());
    }

    /// Waits until an operation is held back. Returns its destination.
    fn held(&self) -> String {
        let way = self.0.1.wait_timeout_while(self.way(), PATIENCE, |way| way.held.is_none());
        way.held.clone().expect("an operation came")
    }

    fn let_go(&self) {
        self.way().held = None;
        self.0.1.notify_all();
    }

    /// Releases the operation that is held back, but makes it fail.
    fn let_fail(&self) {
        self.way().fails = true;
        self.let_go();
    }

    /// Leaves requests to this destination unanswered from now on. With `None`, all destinations answer again.
    fn silence(&self, whom: Option<&str>) {
        self.way().silent = whom.map(str::to_owned);
    }

    /// Holds the calling operation back if it is the wanted one. Returns false if the operation must fail.
    fn pass(&self, kind: Kind, to: &str) -> bool {
        let mut way = self.way();
        let is_wanted = |(wanted, at): &(Kind, Option<String>)| {
            *wanted == kind && at.as_deref().is_none_or(|at| at == to)
        };
        if way.wanted.as_ref().is_some_and(is_wanted) {
            way.wanted = None;
            way.held = Some(to.to_owned());
            self.0.1.notify_all();
            let mut way = self.0.1.wait_while(way, |way| way.held.is_some());
            return !std::mem::take(&mut way.fails);
        }
        let fails = kind == Kind::Write && way.fails_at.as_deref() == Some(to);
        if fails {
            way.fails_at = None;
        }
        !fails
    }
}

/// Client's host whose connections and disk files pass the gate.
struct Gated(Gate, Arc<dyn Dialer>);

struct GatedLink {
    link: Box<dyn Link>,
    to: String,
    gate: Gate,
}

struct GatedDisk(Box<dyn DiskFile>, Gate);

impl HostLayer for Gated {
    fn inner(&self) -> &dyn Host {
        &*self.1
    }

    fn temporary_file(&self, folder: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(GatedDisk(self.1.temporary_file(folder)?, self.0.clone())))
    }
}

impl Dialer for Gated {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let link = self.1.dial(to, deadline)?;
        let to = match to {
            Dial::Broker { address } | Dial::Node { address, .. } => address.to_owned(),
            Dial::Local { socket, .. } => socket.to_owned(),
        };
        Ok(Box::new(GatedLink { link, to, gate: self.0.clone() }))
    }
}

impl Link for GatedLink {
    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        if self.gate.way().silent.as_ref() == Some(&self.to) {
            return Err(LinkError::TimedOut);
        }
        self.link.call(request, deadline)
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.gate.pass(Kind::Read, &self.to);
        self.link.read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        if !self.gate.pass(Kind::Write, &self.to) {
            return Err(LinkError::TimedOut);
        }
        self.link.write(ops, deadline)
    }
}

impl DiskFile for GatedDisk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, from)
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.1.pass(Kind::Truncate, "the disk");
        self.0.set_length(bytes)
    }
}

/// Pool of nodes in this process, each with a host label of its own, and a session whose operations pass a gate.
struct World {
    pool: Pool,
    gate: Gate,
    nodes: Vec<Node>,
    _broker: Broker,
}

impl World {
    fn new(nodes: u32) -> World {
        World::with(nodes, LeaseSettings::default())
    }

    fn with(nodes: u32, leases: LeaseSettings) -> World {
        let (loopback, store) = (([127, 0, 0, 1], 0).into(), Box::new(MemoryStore::default()));
        let broker = Broker::start(loopback, &Exposure::default(), leases, store).expect("a broker");
        let start = |number: u32| {
            let name = Name::new(format!("n{number}")).expect("a name");
            let mut options = NodeOptions::new(name, 16 * MIB, broker.address().to_string());
            options.region_bytes = MIB;
            options.host_label = Some(Name::new(format!("rack-{number}")).expect("a label"));
            // The node keeps its memory, however little the other tests of this machine leave free.
            options.pressure.source = None;
            let node = Node::start(options).expect("a node");
            assert!(node.wait_joined(PATIENCE), "the node joins");
            node
        };
        let nodes = (1..=nodes).map(start).collect();
        let gate = Gate::default();
        let options =
            PoolOptions { transport: TransportChoice::Tcp, renew_ms_max: 20, ..PoolOptions::default() };
        let url = format!("farpool://{}", broker.address());
        let pool = Pool::connect_from(
            Arc::new(Gated(gate.clone(), Sockets::dialer(Exposure::default()))),
            &url,
            options,
        )
        .expect("a session");
        World { pool, gate, nodes, _broker: broker }
    }

    fn create(&self, name: &str, protection: Protection) -> FarFile {
        let options = CreateOptions { protection: Some(protection), ..CreateOptions::default() };
        self.pool.create(name, FileClass::Scratch, options).expect("created")
    }

    /// Leaves a node's requests unanswered until the session drops its copy of `file`. Then the node answers again, and
    /// this returns another mirrored file with a copy on that node. `mends` is true if repairs of `file` are possible.
    /// In that case waits first until a repair has failed, so that none takes the memory that the other file shall get.
    fn stall_past(&self, node: &str, file: &FarFile, mends: bool) -> FarFile {
        self.gate.silence(Some(node));
        let asked = self.pool.stats().broker_calls;
        let write = || file.write_at(8 * KIB as u64, &[3; 4 * KIB]).expect("the other copy takes it");
        until("a copy is given up", || {
            write();
            self.pool.stats().dropped_copy_bytes > 0
        });
        until("mending finds no second place", || !mends || self.pool.stats().broker_calls > asked);
        self.gate.silence(None);
        let mut other = None;
        until("a file with two copies", || {
            if let Some(before) = other.take() {
                let before: FarFile = before;
                self.pool.delete(&before.name()).expect("deleted");
            }
            let bare = self.pool.stats().unprotected_bytes;
            let fresh = self.create("other", Protection::Mirror);
            fresh.write_at(0, &[9; 64 * KIB]).expect("a write");
            other = Some(fresh);
            self.pool.stats().unprotected_bytes == bare
        });
        other.expect("a file")
    }

    /// Ends every node but this one, as soon as all files have two copies.
    fn keep_only(&mut self, node: &str) {
        until("everything is kept twice", || self.pool.stats().unprotected_bytes == 0);
        self.nodes.retain(|other| other.address().to_string() == node);
        assert_eq!(self.nodes.len(), 1);
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "in time: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

fn whole(file: &FarFile) -> Vec<u8> {
    let mut bytes = vec![0xee; file.length() as usize];
    file.read_at(0, &mut bytes).expect("a read");
    bytes
}

/// Regression: thread A's write waited in the connection to a stalled node. Thread B's write to the same file timed out
/// there, and the session dropped the copy on that node. The node answered again, and the copy's memory was given to
/// another file. Then A's write arrived and changed that file.
#[test]
fn write_held_back_until_its_copy_was_dropped_never_reaches_another_file() {
    let mut world = World::new(2);
    let file = world.create("file", Protection::Mirror);
    file.write_at(0, &[1; 64 * KIB]).expect("a write");
    world.gate.hold_next(Kind::Write);
    let (node, other) = std::thread::scope(|scope| {
        scope.spawn(|| file.write_at(0, &[2; 4 * KIB]).expect("the other copy takes it"));
        let node = world.gate.held();
        let other = world.stall_past(&node, &file, false);
        world.gate.let_go();
        (node, other)
    });
    world.keep_only(&node);
    assert!(whole(&other).iter().all(|byte| *byte == 9), "the other file is as it was written");
    let found = whole(&file);
    assert!(found[..4 * KIB].iter().all(|byte| *byte == 2), "the write that was held back");
    assert!(found[8 * KIB..12 * KIB].iter().all(|byte| *byte == 3), "the write that came after it");
}

/// Regression: a read waited in the connection to a stalled node until its copy was dropped and the memory given to
/// another file. It returned bytes of that file.
#[test]
fn read_held_back_until_its_copy_was_dropped_never_shows_another_file() {
    let world = World::new(2);
    let file = world.create("file", Protection::Mirror);
    file.write_at(0, &[1; 64 * KIB]).expect("a write");
    world.gate.hold_next(Kind::Read);
    let found = std::thread::scope(|scope| {
        let reader = scope.spawn(|| whole(&file));
        let node = world.gate.held();
        world.stall_past(&node, &file, true);
        world.gate.let_go();
        reader.join().expect("a read")
    });
    assert!(found.iter().all(|byte| matches!(byte, 1 | 3)), "what was in the file before or after");
}

/// Regression: of two concurrent writes to a mirrored file, one failed at the first copy and the other at the second.
/// Each made the client drop the copy at which it failed. Both writes were acknowledged, but no complete copy was left.
#[test]
fn writes_that_miss_one_copy_each_are_not_both_acknowledged() {
    let world = World::new(2);
    let file = world.create("file", Protection::Mirror);
    file.write_at(0, &[1; 64 * KIB]).expect("a write");
    let [one, two] = [0, 1].map(|index| world.nodes[index].address().to_string());
    world.gate.hold_next_write_to(&one);
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| file.write_at(0, &[2; 4 * KIB]));
        world.gate.held();
        world.gate.fail_next_write_to(&two);
        file.write_at(8 * KIB as u64, &[3; 4 * KIB]).expect("one copy takes it");
        world.gate.let_fail();
        first.join().expect("no panic")
    });
    assert!(first.is_err(), "no copy has both");
    let mut found = [0; 4 * KIB];
    file.read_at(8 * KIB as u64, &mut found).expect("what was acknowledged can be read");
    assert!(found.iter().all(|byte| *byte == 3));
}

/// Regression: truncating a file truncated its copy on the local disk after other threads could write again. What they
/// wrote was cut off too, and read as zeros once the node was lost.
#[test]
fn truncate_of_a_local_copy_never_takes_what_was_written_after_it() {
    let mut world = World::new(1);
    let file = world.create("file", Protection::Local);
    file.write_at(0, &[1; 128 * KIB]).expect("a write");
    world.gate.hold_next(Kind::Truncate);
    std::thread::scope(|scope| {
        scope.spawn(|| file.truncate(0).expect("cut"));
        world.gate.held();
        let writer = scope.spawn(|| {
            file.write_at(0, &[2; 128 * KIB]).expect("a write");
            file.write_at(256 * KIB as u64, &[3; 64 * KIB]).expect("a write");
        });
        // Gives the writing thread time to overtake the truncation, in case the lock fails to prevent it.
        let give_up = Instant::now() + Duration::from_millis(300);
        while !(writer.is_finished() && world.pool.stats().disk_bytes_written >= 320 * KIB as u64)
            && Instant::now() < give_up
        {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        world.gate.let_go();
    });
    world.nodes.clear();
    let found = whole(&file);
    assert!(found[..128 * KIB].iter().all(|byte| *byte == 2));
    assert!(found[256 * KIB..].iter().all(|byte| *byte == 3));
}

/// Regression: when a release got no answer from a node, the session forgot the released regions. Nobody could lease
/// them until the session ended.
#[test]
fn release_that_a_stalled_node_did_not_hear_is_said_again() {
    let world = World::new(2);
    let file = world.create("file", Protection::Mirror);
    file.write_at(0, &vec![1; 8 * MIB as usize]).expect("a write");
    let leased = || {
        let status = world.pool.status().expect("a status");
        status.nodes.iter().map(|node| u64::from(node.counts.leased) * MIB).sum::<u64>()
    };
    until("the broker knows what is leased", || leased() >= 16 * MIB);
    world.gate.silence(Some(&world.nodes[0].address().to_string()));
    file.truncate(64 * KIB as u64).expect("cut");
    until("one node knows what is given back", || leased() <= 9 * MIB);
    world.gate.silence(None);
    until("so does the other", || leased() == 2 * MIB);
    assert_eq!(world.pool.stats().leased_bytes, 2 * MIB);
}

/// Regression: a node that stalled for longer than its leases was never used again, although it answered.
#[test]
fn node_that_stalled_longer_than_its_leases_is_used_again() {
    let world = World::with(2, LeaseSettings { lease_ttl_ms: 300, grace_ms: 0, ..LeaseSettings::default() });
    let file = world.create("file", Protection::Mirror);
    file.write_at(0, &[1; 64 * KIB]).expect("a write");
    world.gate.silence(Some(&world.nodes[0].address().to_string()));
    until("the node is given up", || world.pool.stats().nodes_lost == 1);
    world.gate.silence(None);
    until("it holds a copy again", || world.pool.stats().unprotected_bytes == 0);
}
