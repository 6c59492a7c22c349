//! A node answers requests about leases and memory itself, and passes all other requests to its extension, if it has
//! one.

use farpool_host::Machine;
use farpool_lock::Mutex;
use farpool_node::{Extension, NodeService};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Exposure, Identity, Peer, Service, Sockets};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::sync::Arc;

fn node() -> NodeService {
    let options = ArenaOptions::new(REGION_BYTES_MIN, 1);
    let arena = Arena::new(&options).expect("an arena");
    NodeService::begin(Arc::new(Machine), arena, NodeId(1)).expect("a node").0
}

fn unsupported(opcode: Opcode) -> Refusal {
    Refusal::new(Code::Unsupported, opcode as u64)
}

fn caller() -> LaneCaller {
    LaneCaller { caller: Text::default(), tenant: Text::default() }
}

fn lane(caller: Option<LaneCaller>) -> OpenHoppingLane {
    let lane = OpenLane { resident: true, window_bytes: 64, output_bytes: 64, parts: List::default() };
    let caller = List::new(caller.into_iter().collect()).expect("one");
    OpenHoppingLane { lane, peers: List::default(), caller }
}

#[test]
fn node_without_an_extension_runs_nothing_beside_its_data() {
    let node = node();
    let peer = Peer::default();
    let close = node.call(&peer, Request::CloseScan(ScanId { scan: Handle(1) }));
    assert_eq!(close, Err(unsupported(Opcode::CloseScan)));
    assert_eq!(node.open_lane(&peer, lane(None)).err(), Some(unsupported(Opcode::OpenLane)));
}

/// Extension that records the calls it gets.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn note(&self, what: String) {
        self.0.lock().push(what);
    }
}

impl Extension for Noting {
    fn call(&self, _peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        self.note(format!("{:?}", request.opcode()));
        Ok(Reply::CloseScan(Done {}))
    }

    fn ended(&self, peer: &Peer) {
        self.note(format!("{} ended", peer.connection));
    }
}

#[test]
fn extension_is_asked_what_is_not_about_leases_by_those_who_may_have_sessions() {
    let noting = Noting::default();
    let noted = noting.clone();
    let node = node()
        .extended(Sockets::dialer(Exposure::default()), Box::new(move |_, _, _| Ok(Box::new(noting))))
        .expect("extended");
    let client = Peer { connection: 7, ..Peer::default() };
    let close = || Request::CloseScan(ScanId { scan: Handle(1) });
    assert_eq!(node.call(&client, close()), Ok(Reply::CloseScan(Done {})));
    let proof = SessionProof { session: SessionId(1), secret: Default::default() };
    assert!(node.call(&client, Request::Renew(proof)).is_err(), "nobody has leased");
    let broker = Peer { identity: Some(Identity::Broker), ..client.clone() };
    let refused = Refusal::new(Code::NotPermitted, Opcode::CloseScan as u64);
    assert_eq!(node.call(&broker, close()), Err(refused));
    let refused = Refusal::new(Code::NotPermitted, Opcode::OpenLane as u64);
    assert_eq!(node.open_lane(&broker, lane(None)).err(), Some(refused));
    // A node asks in place of a caller. A tenant that names another one is refused.
    let other = Peer { identity: Some(Identity::Node(NodeId(2))), ..client.clone() };
    let tenant = Peer { identity: Some(Identity::tenant("blue").expect("a name")), ..client.clone() };
    let unsupported = Some(unsupported(Opcode::OpenLane));
    assert_eq!(node.open_lane(&other, lane(Some(caller()))).err(), unsupported);
    assert_eq!(node.open_lane(&other, lane(None)).err(), Some(refused));
    assert_eq!(node.open_lane(&tenant, lane(Some(caller()))).err(), Some(refused));
    assert_eq!(node.open_lane(&tenant, lane(None)).err(), unsupported);
    node.ended(&client);
    assert_eq!(*noted.0.lock(), ["CloseScan", "7 ended"]);
}
