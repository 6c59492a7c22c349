//! Requests during slow work of a node: making regions immutable (a `Seal` request moves their bytes to another memory
//! file), and preparing regions for a lease (checking that they are zero). The tests' arena stops in the middle of
//! either until the test lets it continue.

use farpool_host::{Host, HostLayer, Machine};
use farpool_lease::ticket::{node_id, secret_digest, sign};
use farpool_lock::Mutex;
use farpool_node::{Life, Memory, NodeService, Prefault, TICK_MS, keep_house, report};
use farpool_region::{Arena, ArenaOptions, Entered, RegionError, SharedAccess};
use farpool_transport::{
    Brokers, Dial, Dialer, Link, LinkError, Peer, ReadOp, Service, Shared, Transport, WriteOp,
};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NODE: &str = "n";
const PATIENCE: Duration = Duration::from_secs(120);

/// Behaviour of the arena at its next slow operation.
enum Move {
    /// Reports that it has begun, and waits for permission to continue.
    Stop { begun: Sender<()>, go: Receiver<()> },
    /// Fails as if the host had no memory left.
    Fail,
}

/// An arena with two stacks of instructions. `reseat` (moving bytes) takes one from `moves` and `verify_zero` one from
/// `looks`, before they do their normal work.
struct Moving {
    arena: Arena,
    moves: Mutex<Vec<Move>>,
    looks: Mutex<Vec<Move>>,
}

/// Takes the last instruction, if any, and follows it.
fn pass(moves: &Mutex<Vec<Move>>) -> Result<(), RegionError> {
    let next = moves.lock().pop();
    match next {
        Some(Move::Stop { begun, go }) => {
            begun.send(()).expect("somebody waits");
            go.recv_timeout(PATIENCE).expect("told to go on");
        }
        Some(Move::Fail) => {
            let (what, source) = ("have memory", io::ErrorKind::OutOfMemory.into());
            return Err(RegionError::System { what, bytes: REGION_BYTES_MIN, source });
        }
        None => {}
    }
    Ok(())
}

impl Memory for Moving {
    type Entered<'a> = Entered<'a>;

    fn region_bytes(&self) -> u64 {
        self.arena.region_bytes()
    }

    fn region_count(&self) -> u32 {
        self.arena.region_count()
    }

    fn enter(&self, region: RegionIndex) -> Result<Entered<'_>, Refusal> {
        self.arena.enter(region)
    }

    fn open(
        &self,
        region: RegionIndex,
        epoch: Epoch,
        write: Option<Handle>,
        read: Option<Handle>,
    ) -> Result<(), RegionError> {
        self.arena.open(region, epoch, write, read)
    }

    fn suspend(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.suspend(region)
    }

    fn resume(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.resume(region)
    }

    fn close(&self, region: RegionIndex, next_epoch: Epoch) -> Result<(), RegionError> {
        self.arena.close(region, next_epoch)
    }

    fn share(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.share(region)
    }

    fn reseat(&self, region: RegionIndex, spare: Option<RegionIndex>) -> Result<(), RegionError> {
        pass(&self.moves)?;
        self.arena.reseat(region, spare)
    }

    fn is_shared(&self, region: RegionIndex) -> Option<bool> {
        self.arena.is_shared(region)
    }

    fn hand_out(&self, region: RegionIndex, access: SharedAccess) -> Result<Shared, RegionError> {
        Memory::hand_out(&self.arena, region, access)
    }

    fn scrub(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.scrub(region)
    }

    fn scrub_away(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.scrub_away(region)
    }

    fn give_back(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.give_back(region)
    }

    fn verify_zero(&self, region: RegionIndex) -> Result<bool, RegionError> {
        pass(&self.looks)?;
        self.arena.verify_zero(region)
    }

    fn prefault(&self, region: RegionIndex) -> Result<(), RegionError> {
        self.arena.prefault(region)
    }

    fn locked_count(&self) -> u32 {
        self.arena.locked_count()
    }
}

/// A broker whose rulings come from the test.
struct Ruled {
    inventories: Sender<Inventory>,
    rulings: Receiver<Ruling>,
}

impl Link for Ruled {
    fn transport(&self) -> Transport {
        Transport::Sim
    }

    fn call(&mut self, request: &Request, _deadline: MonoNs) -> Result<Reply, LinkError> {
        let left = |_| LinkError::Disconnected(io::ErrorKind::BrokenPipe.into());
        match request {
            Request::Offer(_) => Ok(Reply::Offer(Offered {
                term: Term(1),
                lease_ttl_ms: 60_000,
                grace_ms: 1_000,
                heartbeat_ms: 10,
            })),
            Request::Inventory(inventory) => {
                self.inventories.send(inventory.clone()).map_err(|_| left(()))?;
                self.rulings.recv().map(Reply::Inventory).map_err(|_| left(()))
            }
            Request::Segments(_) => Ok(Reply::Segments(SegmentRuling {
                term: Term(1),
                settled: List::default(),
                dropped: List::default(),
                limited: List::default(),
                others: SEGMENTS_UNLIMITED,
            })),
            Request::NextRepair(_) => Ok(Reply::NextRepair(RepairGiven { order: List::default() })),
            other => panic!("a node does not ask a broker for {other:?}"),
        }
    }

    fn read(&mut self, _ops: &mut [ReadOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        panic!("a broker has no bytes")
    }

    fn write(&mut self, _ops: &[WriteOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        panic!("a broker has no bytes")
    }
}

/// Host whose first connection to a broker leads to the test's broker. Further connections time out.
struct WithBroker {
    broker: Mutex<Option<Ruled>>,
}

impl HostLayer for WithBroker {
    fn inner(&self) -> &dyn Host {
        &Machine
    }
}

impl Dialer for WithBroker {
    fn dial(&self, _to: Dial<'_>, _deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        match self.broker.lock().take() {
            Some(broker) => Ok(Box::new(broker)),
            None => Err(LinkError::TimedOut),
        }
    }
}

/// A node with two regions. The test's session has leased both and written 16 bytes to each.
struct Pool {
    node: Arc<NodeService<Moving>>,
    inventories: Receiver<Inventory>,
    rulings: Sender<Ruling>,
    threads: Vec<JoinHandle<()>>,
    life: Life,
    grants: Vec<Grant>,
}

const SESSION: SessionId = SessionId(9);
const SECRET: Secret = Secret(8);

impl Pool {
    fn start(moves: Vec<Move>) -> Pool {
        let arena = ArenaOptions::new(REGION_BYTES_MIN, 2);
        let arena = Arena::new(&arena).expect("an arena");
        let memory = Moving { arena, moves: Mutex::new(moves), looks: Mutex::default() };
        let (shown, inventories) = channel();
        let (rulings, ruled) = channel();
        let broker = Mutex::new(Some(Ruled { inventories: shown, rulings: ruled }));
        let (node, life) = NodeService::begin(Arc::new(Machine), memory, node_id(NODE)).expect("a node");
        let Life { incarnation, ticket_key } = life;
        let node = Arc::new(node);
        let name = Name::new(NODE).expect("a name");
        let info = NodeInfo {
            node: node_id(NODE),
            name: name.clone(),
            incarnation,
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name,
            region_bytes: REGION_BYTES_MIN,
        };
        let house = Arc::clone(&node);
        let reporter = Arc::clone(&node);
        let brokers = Brokers::new("broker:7700").expect("an address");
        let threads = vec![
            std::thread::spawn(move || keep_house(&house, Prefault::OnUse, TICK_MS)),
            std::thread::spawn(move || {
                report(&reporter, &WithBroker { broker }, &info, ticket_key, &brokers)
            }),
        ];
        let grants = lease(&node, life, 1, 2).expect("leased");
        let pool = Pool { node, inventories, rulings, threads, life, grants };
        for grant in &pool.grants {
            pool.node.write(&span(grant), &[7; 16]).expect("written");
        }
        pool
    }

    fn seal(&self) -> JoinHandle<Result<Vec<Grant>, Refusal>> {
        let (node, request) = (Arc::clone(&self.node), self.seal_request());
        std::thread::spawn(move || match node.call(&Peer::default(), request)? {
            Reply::Seal(sealed) => Ok(sealed.regions.into_vec()),
            other => panic!("a seal is answered by {other:?}"),
        })
    }

    fn seal_request(&self) -> Request {
        let at = self.grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
        let regions = List::new(at.collect()).expect("two");
        Request::Seal(Seal { session: SESSION, secret: SECRET, regions })
    }

    /// Replies to reports (inventories) until `is_wanted` accepts one. The reply to that one makes the node drop the
    /// regions `drop`.
    fn rule_until(&self, is_wanted: impl Fn(&Inventory) -> bool, drop: &[RegionAt]) -> Inventory {
        let begun = Instant::now();
        loop {
            let inventory = self.inventories.recv_timeout(PATIENCE).expect("a report");
            assert!(begun.elapsed() < PATIENCE, "no report is as wanted: {:?}", inventory.counts);
            let wanted = is_wanted(&inventory);
            let drop = if wanted { drop.to_vec() } else { Vec::new() };
            let drop = List::new(drop).expect("few");
            let (term, adopt) = (Term(1), List::default());
            let ruling = Ruling { term, broker_now_ms: 1, adopt, drop, drain: false, stop: false };
            self.rulings.send(ruling).expect("the node waits");
            if wanted {
                return inventory;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.node.stop();
        self.rulings = channel().0;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Leases this many regions of the node for the test's session, with a ticket that has this id.
fn lease(node: &NodeService<Moving>, life: Life, id: u64, region_count: u32) -> Result<Vec<Grant>, Refusal> {
    let mut ticket = Ticket {
        id: TicketId(id),
        term: Term(1),
        session: SESSION,
        secret_digest: secret_digest(SECRET),
        node: node_id(NODE),
        incarnation: life.incarnation,
        region_count,
        class: FileClass::Pinned,
        tenant: Name::new("red").expect("a name"),
        not_after_ms: 1 << 40,
        mac: [0; 32],
    };
    sign(&mut ticket, &life.ticket_key);
    match node.call(&Peer::default(), Request::Lease(Lease { ticket, shared: false }))? {
        Reply::Lease(leased) => Ok(leased.grants.into_vec()),
        other => panic!("a lease is answered by {other:?}"),
    }
}

fn span(grant: &Grant) -> Span {
    Span { region: grant.region, bytes: 16, offset: 0, epoch: grant.epoch, handle: grant.handle }
}

fn read(node: &NodeService<Moving>, grant: &Grant) -> Result<[u8; 16], Code> {
    let mut found = [0; 16];
    node.read(&span(grant), &mut found).map_err(|refusal| refusal.code)?;
    Ok(found)
}

fn stop() -> (Move, Receiver<()>, Sender<()>) {
    let ((begun, has_begun), (go_on, go)) = (channel(), channel());
    (Move::Stop { begun, go }, has_begun, go_on)
}

/// Regression: every renewal of a lease waited until the bytes of a `Seal` request had moved, about 50 ms per 64 MiB.
#[test]
fn renewal_is_answered_while_bytes_are_moved_to_be_sealed() {
    let (first, has_begun, go_on) = stop();
    let pool = Pool::start(vec![first]);
    let sealing = pool.seal();
    has_begun.recv_timeout(PATIENCE).expect("begun");
    let proof = SessionProof { session: SESSION, secret: SECRET };
    let renewed = pool.node.call(&Peer::default(), Request::Renew(proof));
    assert!(matches!(renewed, Ok(Reply::Renew(Renewed { regions: 0, .. }))), "{renewed:?}");
    assert_eq!(read(&pool.node, &pool.grants[0]), Err(Code::StaleEpoch), "nobody is let in meanwhile");
    go_on.send(()).expect("it waits");
    let sealed = sealing.join().expect("no panic").expect("sealed");
    assert!(sealed.iter().all(|grant| read(&pool.node, grant) == Ok([7; 16])));
}

#[test]
fn seal_repeated_while_the_first_is_under_way_gets_the_same_grants_when_they_can_be_read() {
    let (first, has_begun, go_on) = stop();
    let pool = Pool::start(vec![first]);
    let sealing = pool.seal();
    has_begun.recv_timeout(PATIENCE).expect("begun");
    let again = pool.seal();
    go_on.send(()).expect("it waits");
    let answers = [sealing, again].map(|sealing| sealing.join().expect("no panic").expect("sealed"));
    assert_eq!(answers[0], answers[1]);
    assert!(answers[1].iter().all(|grant| read(&pool.node, grant) == Ok([7; 16])));
    let late = pool.seal().join().expect("no panic").expect("sealed");
    assert_eq!(late, answers[0]);
}

#[test]
fn seal_that_found_no_memory_is_done_when_it_is_asked_again() {
    let pool = Pool::start(vec![Move::Fail]);
    let refused = pool.seal().join().expect("no panic");
    assert_eq!(refused, Err(Refusal::new(Code::OutOfMemory, REGION_BYTES_MIN)));
    let sealed = pool.seal().join().expect("no panic").expect("sealed");
    assert!(sealed.iter().all(|grant| read(&pool.node, grant) == Ok([7; 16])));
}

/// A region that is dropped while its bytes move must not be wiped and leased to others before the move has ended.
#[test]
fn region_dropped_while_its_bytes_are_moved_is_wiped_afterwards_and_its_seal_refused() {
    let (first, has_begun, go_on) = stop();
    let pool = Pool::start(vec![first]);
    let sealing = pool.seal();
    has_begun.recv_timeout(PATIENCE).expect("begun");
    let sealed = |inventory: &Inventory| inventory.counts.named == 2;
    let inventory = pool.rule_until(sealed, &[]);
    let at = |owned: &OwnedRegion| RegionAt { region: owned.region, epoch: owned.epoch };
    let all: Vec<RegionAt> = inventory.owned.iter().map(at).collect();
    pool.rule_until(sealed, &all[1..]);
    // The dropped region is revoked at once, but wiping waits until the whole `Seal` request is done: the bytes that
    // move now are those of the other region.
    let waiting = pool.rule_until(|inventory| inventory.counts.named == 1, &[]);
    assert_eq!((waiting.counts.cleaning, waiting.counts.free), (1, 0));
    go_on.send(()).expect("it waits");
    let answer = sealing.join().expect("no panic");
    assert_eq!(answer.map_err(|refusal| refusal.code), Err(Code::StaleEpoch));
    pool.rule_until(|inventory| inventory.counts.free == 1, &[]);
    assert_eq!(pool.node.memory().verify_zero(all[1].region).map_err(|error| error.to_string()), Ok(true));
}

/// Regression: a session returned its regions while the node still prepared them for its lease. They were leased to
/// others before the preparation had ended. The check for zeros then found the others' bytes, and the region was
/// withheld for ever. The node also logged an internal error because of the old epoch.
#[test]
fn region_taken_back_while_it_is_made_ready_goes_to_nobody_else_before_that_is_over() {
    let pool = Pool::start(Vec::new());
    let release = |whole, grants: &[Grant]| {
        let at = grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
        let regions = List::new(at.collect()).expect("few");
        let release = Release { session: SESSION, secret: SECRET, whole, regions };
        let released = pool.node.call(&Peer::default(), Request::Release(release));
        assert!(matches!(released, Ok(Reply::Release(_))), "{released:?}");
    };
    release(false, &pool.grants[..1]);
    pool.rule_until(|inventory| inventory.counts.free == 1, &[]);

    let (look, has_begun, go_on) = stop();
    pool.node.memory().looks.lock().push(look);
    let (node, life) = (Arc::clone(&pool.node), pool.life);
    let leasing = std::thread::spawn(move || lease(&node, life, 2, 1));
    has_begun.recv_timeout(PATIENCE).expect("begun");
    release(true, &[]);
    // The housekeeping thread wipes regions in order and waits for the one that is being prepared, so the other region
    // is not wiped yet either.
    pool.rule_until(|inventory| inventory.counts.cleaning == 2, &[]);
    let refused = lease(&pool.node, life, 3, 1).map_err(|refusal| refusal.code);
    assert_eq!(refused, Err(Code::Exhausted));
    go_on.send(()).expect("it waits");
    let refused = leasing.join().expect("no panic").map_err(|refusal| refusal.code);
    assert_eq!(refused, Err(Code::StaleEpoch), "its lease is over");
    pool.rule_until(|inventory| inventory.counts.free == 2, &[]);
    assert_eq!(lease(&pool.node, life, 4, 2).expect("nothing is withheld").len(), 2);
}
