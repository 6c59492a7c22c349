//! Tests of functions that hop: calls go on from node to node, and through the caller where that is not possible.

use crate::pool::*;
use farpool::function::{CallOptions, Function};
use farpool::{Placement, Pool, PoolOptions, TransportChoice};
use farpool_host::{Host, HostLayer};
use farpool_tests::programs::PATIENCE;
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, ReadOp, Sockets, Transport, WriteOp};
use farpool_wire::control::{LanePeer, OpenHoppingLane};
use farpool_wire::{List, MonoNs, Reply, Request, Text, TraceId};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const STEPS: u64 = 300;
const SHIP: CallOptions =
    CallOptions { placement: Placement::Ship, at: None, fresh: false, deadline: PATIENCE };

/// Client's host that counts the requests to run a function.
struct Counting {
    asked: Arc<AtomicU64>,
    /// Address that nodes get for each other in place of the right one.
    between_nodes: Option<Text>,
    dialer: Arc<dyn Dialer>,
}

struct CountingLink {
    link: Box<dyn Link>,
    asked: Arc<AtomicU64>,
    between_nodes: Option<Text>,
}

impl HostLayer for Counting {
    fn inner(&self) -> &dyn Host {
        &*self.dialer
    }
}

impl Dialer for Counting {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let link = self.dialer.dial(to, deadline)?;
        let (asked, between_nodes) = (Arc::clone(&self.asked), self.between_nodes.clone());
        Ok(Box::new(CountingLink { link, asked, between_nodes }))
    }
}

impl Link for CountingLink {
    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn set_trace(&mut self, trace: TraceId) {
        self.link.set_trace(trace);
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        if let Request::CallFunction(_) = request {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
        match (request, &self.between_nodes) {
            (Request::OpenHoppingLane(open), Some(address)) => {
                let peers =
                    open.peers.iter().map(|peer| LanePeer { address: address.clone(), ..peer.clone() });
                let peers = List::new(peers.collect()).unwrap();
                self.link.call(&Request::OpenHoppingLane(OpenHoppingLane { peers, ..open.clone() }), deadline)
            }
            _ => self.link.call(request, deadline),
        }
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.link.read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.link.write(ops, deadline)
    }
}

/// Opens a session. Returns it with the number of its requests to run a function.
fn connect(running: &Running) -> (Pool, Arc<AtomicU64>) {
    connect_with(running, None)
}

/// Opens a session whose nodes get this address for each other, if there is one.
fn connect_with(running: &Running, between_nodes: Option<Text>) -> (Pool, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let dialer = Sockets::dialer(Exposure::default());
    let host = Counting { asked: Arc::clone(&asked), between_nodes, dialer };
    let options = PoolOptions { transport: TransportChoice::Tcp, ..PoolOptions::default() };
    (Pool::connect_from(Arc::new(host), &running.url(), options).unwrap(), asked)
}

fn functions() -> [Function; 2] {
    [Function::resident("walk").unwrap(), Function::wasm(module(WALK), "walk").unwrap()]
}

#[test]
fn calls_go_on_from_node_to_node_once_the_caller_has_seen_that_they_hop() {
    let running = Running::start(3, sandbox());
    let list = list(100_000, 64);
    let (pool, asked) = connect(&running);
    let file = publish(&pool, "list", &list);
    for function in functions() {
        let caller = file.caller(Default::default()).unwrap();
        assert_eq!(caller.nodes().len(), 3, "the file lies on all");
        let call = |first: u64| {
            let before = asked.load(Ordering::Relaxed);
            let called = caller.call(&function, &bytes_of(&[first, STEPS, 1]), SHIP).unwrap();
            assert_eq!(words_of(&called.output), walked(&list, first, STEPS), "{function:?} from {first}");
            assert_eq!(called.supplied, 0, "{called:?}");
            (called, asked.load(Ordering::Relaxed) - before)
        };
        // Other nodes seem silent now and then on a busy machine. Calls then go on through the caller.
        let give_up = Instant::now() + PATIENCE;
        let direct = loop {
            match call(0) {
                (called, 1) => break called,
                (called, requests) => assert!(Instant::now() < give_up, "{requests} requests: {called:?}"),
            }
        };
        assert!(direct.hops > 50, "{direct:?}");
        (1..40).for_each(|item| _ = call(item * 64));
    }
}

#[test]
fn call_waits_once_for_nodes_that_cannot_reach_each_other() {
    let running = Running::start(3, sandbox());
    let list = list(100_000, 64);
    // Connections are accepted there, and never greeted.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let address = Text::new(silent.local_addr().unwrap().to_string()).unwrap();
    let (pool, _) = connect_with(&running, Some(address));
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    for function in functions() {
        let call = |first: u64| {
            let called = caller.call(&function, &bytes_of(&[first, STEPS, 1]), SHIP).unwrap();
            assert_eq!(words_of(&called.output), walked(&list, first, STEPS), "{function:?} from {first}");
            assert!(called.hops > 50, "{called:?}");
        };
        call(0);
        let tried = || std::iter::from_fn(|| silent.accept().ok()).count();
        tried();
        (1..4).for_each(|item| call(item * 64));
        assert_eq!(
            tried(),
            3,
            "a call goes on through the caller after the first hop that a node cannot make"
        );
    }
}

#[test]
fn function_that_hops_loads_what_it_needs_from_elsewhere_through_the_caller() {
    let running = Running::start(2, sandbox());
    let list = list(100_000, 64);
    let (pool, _) = connect(&running);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    for function in functions() {
        let call = |hops: u64| caller.call(&function, &bytes_of(&[0, STEPS, hops]), SHIP).unwrap();
        assert!(call(1).hops > 0, "later calls use lanes that hop");
        let loads = call(0);
        assert!(loads.supplied > 0 && loads.hops == 0, "on a lane that hops: {loads:?}");
        assert_eq!(words_of(&loads.output), walked(&list, 0, STEPS));
    }
}

#[test]
fn calls_that_hop_to_a_lost_node_are_made_where_the_bytes_have_other_copies() {
    let mut running = Running::start_apart(4, sandbox());
    let list = list(100_000, 64);
    let (pool, _) = connect(&running);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    let functions = functions();
    let call = |function: &Function| {
        let called = caller.call(function, &bytes_of(&[64, STEPS, 1]), SHIP).unwrap();
        assert_eq!(words_of(&called.output), walked(&list, 64, STEPS), "{function:?}");
    };
    // The second call of each hops by itself.
    (0..2).for_each(|_| functions.iter().for_each(call));
    let nodes = caller.nodes();
    assert!(nodes.len() > 1, "calls hop");
    running.end(&nodes[1].0);
    (0..2).for_each(|_| functions.iter().for_each(call));
}
