//! What a connection leaves when its client hangs up ends in order: the lane that the connection has become, its scans,
//! its lookups.

use farpool_host::{Machine, clock};
use farpool_near_data::FunctionOptions;
use farpool_node::NodeService;
use farpool_operators::{Lookup, Operator, Program, Type};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Identity, Link, Peer, Reach, Service, Successor, tcp};
use farpool_wire::control::*;
use farpool_wire::limits::{LOOKUP_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::*;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

const NODE: NodeId = NodeId(1);
/// Parts that a lookup is brought in.
const PART_BYTES: usize = 1 << 20;

fn soon() -> MonoNs {
    clock::now().plus_ms(120_000)
}

/// What is there of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct There {
    calls: u32,
    scan: bool,
    lookup: bool,
}

/// What was there when a connection had ended, and behind that.
struct Ended {
    before: There,
    /// Whether the scan was there when the lookup was not any more.
    lookup_went_first: bool,
    after: There,
}

/// A node that is looked at while a connection ends.
struct Watched {
    node: NodeService,
    /// A scan and a lookup of that connection.
    watched: OnceLock<(Handle, Handle)>,
    ended: Sender<Ended>,
}

impl Watched {
    /// Asks over another connection.
    fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.node.call(&Peer { connection: u64::MAX, ..Peer::default() }, request)
    }

    fn has_scan(&self) -> bool {
        let (scan, _) = *self.watched.get().expect("watched");
        self.ask(Request::ClaimGroups(ClaimGroups { scan, groups: 0 })).is_ok()
    }

    fn has_lookup(&self) -> bool {
        let (_, lookup) = *self.watched.get().expect("watched");
        let join = Operator::SemiJoin { keys: vec![0], lookup: Lookup::Bloom, number: 0, is_anti: false };
        match self.ask(open_scan(vec![join], vec![lookup])) {
            Ok(Reply::OpenScan(ScanOpened { scan, .. })) => {
                self.ask(Request::CloseScan(ScanId { scan })).expect("closed");
                true
            }
            Err(Refusal { code: Code::BadLookup, .. }) => false,
            other => panic!("{other:?}"),
        }
    }

    fn there(&self) -> There {
        let Ok(Reply::RunningCalls(running)) = self.ask(Request::RunningCalls(Done {})) else {
            panic!("no running calls");
        };
        There { calls: running.count, scan: self.has_scan(), lookup: self.has_lookup() }
    }
}

impl Service for Watched {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        self.node.call(peer, request)
    }

    fn open_lane(&self, peer: &Peer, open: OpenLane) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        self.node.open_lane(peer, open)
    }

    fn ended(&self, peer: &Peer) {
        let before = self.there();
        let begun = Barrier::new(2);
        let lookup_went_first = std::thread::scope(|threads| {
            let watching = threads.spawn(|| {
                begun.wait();
                while self.has_lookup() {}
                self.has_scan()
            });
            begun.wait();
            self.node.ended(peer);
            watching.join().expect("watched")
        });
        let ended = Ended { before, lookup_went_first, after: self.there() };
        self.ended.send(ended).expect("somebody waits");
    }
}

/// A scan of no row groups.
fn open_scan(operators: Vec<Operator>, lookups: Vec<Handle>) -> Request {
    let program = Program::check(vec![Type::Int64], operators).expect("a program");
    Request::OpenScan(OpenScan {
        program: Bytes::new(program.encode().expect("encoded")).expect("short"),
        lookups: List::new(lookups).expect("few"),
        regions: List::default(),
        groups: List::default(),
        seals: ScanSeals::default(),
    })
}

/// Brings a lookup that takes a moment to go.
fn put_lookup(link: &mut dyn Link) -> Handle {
    let part = Bytes::new(vec![0xff; PART_BYTES]).expect("a part");
    (0..LOOKUP_BYTES_MAX / PART_BYTES).fold(Handle(0), |lookup, _| {
        let (kind, bytes) = (LookupKind::Bloom, LOOKUP_BYTES_MAX as u32);
        let put = PutLookup { lookup, kind, bytes, part: part.clone() };
        match link.call(&Request::PutLookup(put), soon()).expect("put") {
            Reply::PutLookup(put) => put.lookup,
            other => panic!("{other:?}"),
        }
    })
}

/// Has a client hang up that has lookups, a scan, and a call under way; tells what was there of them.
fn hang_up() -> Ended {
    let options =
        ArenaOptions { region_bytes: REGION_BYTES_MIN, region_count: 1, huge_pages: false, lock: false };
    let arena = Arena::new(&options).expect("an arena");
    let reach = Reach::default();
    let (node, _) = NodeService::begin(Arc::new(Machine), arena, NODE).expect("a node");
    let node = node.extended(farpool_near_data::extension(FunctionOptions::default())).expect("extended");
    let (ended, told) = channel();
    let node = Arc::new(Watched { node, watched: OnceLock::new(), ended });
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = tcp::listen(loopback, &reach, node.clone()).expect("served");
    let address = listening.local_address().expect("an address").to_string();
    let mut link = tcp::connect(&reach, &address, &Identity::Node(NODE), soon()).expect("a link");

    let lookups = [(); 4].map(|()| put_lookup(&mut *link));
    let Ok(Reply::OpenScan(ScanOpened { scan, .. })) = link.call(&open_scan(vec![], vec![]), soon()) else {
        panic!("no scan");
    };
    node.watched.set((scan, lookups[0])).expect("the first");
    // Of its window nothing lies here: a call asks for it, and waits.
    let lane = OpenLane { resident: true, window_bytes: 64, output_bytes: 64, parts: List::default() };
    link.call(&Request::OpenLane(lane), soon()).expect("a lane");
    let entry = Name::new("checksum").expect("a name");
    let function = UseFunction { form: FunctionForm::Resident, digest: [0; 32], entry };
    link.call(&Request::UseFunction(function), soon()).expect("a function");
    let args = Bytes::new([0u64, 8].map(u64::to_le_bytes).concat()).expect("short");
    let (deadline_ms, state) = (120_000, Bytes::default());
    let call = CallFunction { number: 0, fresh: false, deadline_ms, goes_on: false, state, args };
    match link.call(&Request::CallFunction(call), soon()).expect("an answer") {
        Reply::CallFunction(called) => assert_eq!(called.outcome, Outcome::Away),
        other => panic!("{other:?}"),
    }
    assert_eq!(node.there(), There { calls: 1, scan: true, lookup: true });
    drop(link);
    told.recv_timeout(Duration::from_secs(120)).expect("ended")
}

#[test]
fn connection_that_ends_loses_its_lane_then_its_scans_then_its_lookups() {
    // Whoever watches sees the wrong order in three of five.
    for _ in 0..8 {
        let ended = hang_up();
        assert_eq!(ended.before, There { calls: 0, scan: true, lookup: true });
        assert!(!ended.lookup_went_first);
        assert_eq!(ended.after, There { calls: 0, scan: false, lookup: false });
    }
}
