//! Order in which the state of a connection ends when its client disconnects: its call lane (the connection itself, on
//! which functions are called) first, then its scans and lookups.

use farpool_host::{Machine, clock};
use farpool_near_data::FunctionOptions;
use farpool_node::NodeService;
use farpool_operators::{JoinLookup, Operator, Program, Type};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Exposure, Identity, Peer, Service, Sockets, Successor, tcp};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const NODE: NodeId = NodeId(1);

fn soon() -> MonoNs {
    clock::now().plus_ms(120_000)
}

/// State of a connection that the node still keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct There {
    calls: u32,
    scan: bool,
    lookup: bool,
}

/// Node that reports the state of a connection just before and just after it handles the connection's end.
struct Watched {
    node: NodeService,
    /// Handles of a scan and a lookup of the observed connection.
    watched: OnceLock<(Handle, Handle)>,
    ended: Sender<[There; 2]>,
}

impl Watched {
    /// Sends a request as another connection.
    fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.node.call(&Peer { connection: u64::MAX, ..Peer::default() }, request)
    }

    fn has_scan(&self) -> bool {
        let (scan, _) = *self.watched.get().expect("watched");
        self.ask(Request::ClaimGroups(ClaimGroups { scan, groups: 0 })).is_ok()
    }

    fn has_lookup(&self) -> bool {
        let (_, lookup) = *self.watched.get().expect("watched");
        let join = Operator::SemiJoin { keys: vec![0], lookup: JoinLookup::Bloom, number: 0, is_anti: false };
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

    fn open_lane(
        &self,
        peer: &Peer,
        open: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        self.node.open_lane(peer, open)
    }

    fn ended(&self, peer: &Peer) {
        let before = self.there();
        self.node.ended(peer);
        self.ended.send([before, self.there()]).expect("somebody waits");
    }
}

/// Returns a request for a scan of no row groups.
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

#[test]
fn connection_that_ends_loses_its_lane_before_its_scans_and_lookups() {
    let options = ArenaOptions::new(REGION_BYTES_MIN, 1);
    let arena = Arena::new(&options).expect("an arena");
    let reach = Exposure::default();
    let (node, _) = NodeService::begin(Arc::new(Machine), arena, NODE).expect("a node");
    let node = node
        .extended(
            Sockets::dialer(Exposure::default()),
            farpool_near_data::extension(FunctionOptions::default()),
        )
        .expect("extended");
    let (ended, told) = channel();
    let node = Arc::new(Watched { node, watched: OnceLock::new(), ended });
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = tcp::listen(loopback, &reach, node.clone()).expect("served");
    let address = listening.local_address().expect("an address").to_string();
    let mut link = tcp::connect(&reach, &address, &Identity::Node(NODE), soon()).expect("a link");

    let part = Bytes::new(vec![0xff; 32]).expect("short");
    let put = PutLookup { lookup: Handle(0), kind: LookupKind::Bloom, bytes: 32, part };
    let Ok(Reply::PutLookup(LookupPut { lookup, .. })) = link.call(&Request::PutLookup(put), soon()) else {
        panic!("no lookup");
    };
    let Ok(Reply::OpenScan(ScanOpened { scan, .. })) = link.call(&open_scan(vec![], vec![]), soon()) else {
        panic!("no scan");
    };
    node.watched.set((scan, lookup)).expect("the first");
    // `parts` is empty: no byte of the window is stored on this node. The function's first read therefore makes the
    // call reply `Away`, and it stays running until the client sends the bytes.
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
    let [before, after] = told.recv_timeout(Duration::from_secs(120)).expect("ended");
    assert_eq!(before, There { calls: 0, scan: true, lookup: true });
    assert_eq!(after, There { calls: 0, scan: false, lookup: false });
}
