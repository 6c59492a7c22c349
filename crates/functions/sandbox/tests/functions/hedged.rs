//! Tests of calls at a slow node, which are made a second time where other copies are.

use crate::pool::*;
use crate::tables::{SUM, put_amounts};
use farpool::function::{CallOptions, Called, Function};
use farpool::{Placement, Pool, PoolOptions, TransportChoice};
use farpool_host::{Host, HostEvent, HostLayer, Machine};
use farpool_lock::Mutex;
use farpool_tests::programs::PATIENCE;
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, ReadOp, Sockets, Transport, WriteOp};
use farpool_wire::{MonoNs, Reply, Request, TraceId};
use std::sync::Arc;
use std::time::Instant;

/// Time for which a slow node keeps the result of a call back, in ns. Without a second try, every call takes as long.
const SLOW_NS: u64 = 5_000_000_000;
const SHIP: CallOptions =
    CallOptions { placement: Placement::Ship, at: None, fresh: false, deadline: PATIENCE };

/// Client's host to which the node at an address seems slow.
struct WithSlowNode {
    slow: Arc<Mutex<Option<String>>>,
    inner: Arc<dyn Dialer>,
}

struct SlowLink {
    inner: Box<dyn Link>,
    /// Address of the node; empty for the broker.
    address: String,
    slow: Arc<Mutex<Option<String>>>,
    /// Time until which the posted request seems to have no answer.
    until: MonoNs,
}

impl HostLayer for WithSlowNode {
    fn inner(&self) -> &dyn Host {
        &*self.inner
    }
}

impl Dialer for WithSlowNode {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let address = if let Dial::Node { address, .. } = to { address.to_owned() } else { String::new() };
        let slow = Arc::clone(&self.slow);
        let inner = self.inner.dial(to, deadline)?;
        Ok(Box::new(SlowLink { inner, address, slow, until: MonoNs(0) }))
    }
}

impl Link for SlowLink {
    fn transport(&self) -> Transport {
        self.inner.transport()
    }

    fn set_trace(&mut self, trace: TraceId) {
        self.inner.set_trace(trace);
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.inner.call(request, deadline)
    }

    fn post_call(&mut self, request: &Request, _: MonoNs) -> Result<(), LinkError> {
        let is_slow = self.slow.lock().as_deref() == Some(&*self.address);
        let kept_ns = if is_slow && matches!(request, Request::CallFunction(_)) { SLOW_NS } else { 0 };
        self.until = MonoNs(now().0 + kept_ns);
        Ok(())
    }

    fn begins_by(&mut self, until: MonoNs) -> Result<bool, LinkError> {
        let looks = until.min(self.until);
        Machine.wait(&HostEvent::default(), 0, looks);
        Ok(now() >= self.until)
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.inner.read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.inner.write(ops, deadline)
    }
}

fn now() -> MonoNs {
    Machine.now()
}

/// Pool on four hosts, and a session to which one of its nodes can be made to seem slow.
struct Bench {
    running: Running,
    slow: Arc<Mutex<Option<String>>>,
    pool: Pool,
}

impl Bench {
    fn start() -> Bench {
        let running = Running::start_apart(4, sandbox());
        let slow = Arc::new(Mutex::new(None));
        let host = WithSlowNode { slow: Arc::clone(&slow), inner: Sockets::dialer(Exposure::default()) };
        let options = PoolOptions {
            transport: TransportChoice::Tcp,
            request_timeout_ms: 600_000,
            ..PoolOptions::default()
        };
        let pool = Pool::connect_from(Arc::new(host), &running.url(), options).unwrap();
        Bench { running, slow, pool }
    }

    /// Makes calls, so that it is known how long they usually take. Then lets this node be slow, and makes calls until
    /// others have answered for it. The first calls start processes and tell little.
    fn call_until_hedged(&self, slow: &str, call: impl Fn() -> Vec<Called>) -> Vec<Called> {
        (0..100).for_each(|_| _ = call());
        *self.slow.lock() = Some(self.running.address(slow));
        let give_up = Instant::now() + PATIENCE;
        loop {
            let called = call();
            if called.iter().all(|called| called.node.as_deref() != Some(slow)) {
                return called;
            }
            assert!(Instant::now() < give_up, "no call at {slow} was made a second time");
        }
    }
}

#[test]
fn call_at_a_slow_node_is_made_at_another_node_that_has_copies() {
    let bench = Bench::start();
    let list = list(1_000, 64);
    let caller = publish(&bench.pool, "list", &list).caller(Default::default()).unwrap();
    let walk = Function::wasm(module(WALK), "walk").unwrap();
    let call = || {
        let called = caller.call(&walk, &bytes_of(&[0, 100, 0]), SHIP).unwrap();
        assert_eq!(words_of(&called.output), walked(&list, 0, 100));
        vec![called]
    };
    let home = call()[0].node.clone().unwrap();
    assert!(bench.call_until_hedged(&home, call)[0].node.is_some());
}

#[test]
fn row_groups_of_a_slow_node_are_called_at_the_nodes_that_hold_their_copies_each_once() {
    let bench = Bench::start();
    put_amounts(&bench.pool);
    let sum = Function::wasm(module(SUM), "sum").unwrap();
    let caller = bench.pool.table("amounts").unwrap().caller(&["amount"], Default::default()).unwrap();
    let each = || {
        let called = caller.call_each(&sum, &[], SHIP).unwrap();
        let parts: Vec<Vec<u64>> = called.iter().map(|called| words_of(&called.output)).collect();
        assert_eq!(parts.iter().map(|part| part[0]).sum::<u64>(), (0..400_000).sum::<u64>());
        assert_eq!(parts.iter().map(|part| part[1]).sum::<u64>(), 400_000, "each row counts once");
        called
    };
    assert!(each().len() > 1, "the table lies at several nodes");
    bench.call_until_hedged(&caller.nodes()[0].0, each);
}
