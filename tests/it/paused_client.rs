//! Tests of the library in a process whose threads are paused at the worst moments. These tests choose the moments;
//! tests that stop processes by a signal hit them only by chance.

use crate::programs::PATIENCE;
use crate::raw_client::*;
use arrow_array::{Int64Array, RecordBatch};
use farpool::table::PutOptions;
use farpool::{
    CreateOptions, Error, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, TransportChoice,
};
use farpool_broker::LeaseSettings;
use farpool_host::{Host, HostEvent, HostLayer};
use farpool_lock::{Condvar, Mutex};
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, ReadOp, Sockets, Transport, WriteOp};
use farpool_wire::control::{Done, StatusReport};
use farpool_wire::{MonoNs, Opcode, Reply, Request};
use std::convert::Infallible;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const TTL_MS: u32 = 300;
const GRACE_MS: u32 = 100;

/// Moment in a client's thread at which the thread can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Just before the client sends this request.
    Ask(Opcode),
    /// Just before a read or write.
    Copy,
    /// Right after the thread has waited for something.
    Waited,
}

#[derive(Default)]
struct Pauses {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Moment at which the next thread that gets there is paused. `None` once one was.
    trap: Option<Moment>,
    /// Thread that was paused. All other threads pause too, at their next moment. `None` if all run.
    caught: Option<ThreadId>,
    /// True if the caught thread continues, and only that one.
    is_let_go: bool,
}

impl Pauses {
    fn pass(&self, moment: Moment) {
        let me = std::thread::current().id();
        let mut state = self.state.lock();
        if state.trap == Some(moment) && state.caught.is_none_or(|it| it == me) {
            *state = State { trap: None, caught: Some(me), is_let_go: false };
            self.changed.notify_all();
        }
        let stops = |state: &mut State| state.caught.is_some_and(|it| it != me || !state.is_let_go);
        // A test that has failed lets nobody go on.
        drop(self.changed.wait_timeout_while(state, 2 * PATIENCE, stops));
    }

    /// Pauses the next thread that reaches this moment. If one is paused already, it continues, alone, until it reaches
    /// the moment itself.
    fn catch(&self, moment: Moment) {
        let mut state = self.state.lock();
        state.trap = Some(moment);
        state.is_let_go = true;
        self.changed.notify_all();
    }

    /// Waits until a thread is paused at the moment that was asked for.
    fn wait_caught(&self) {
        let state =
            self.changed.wait_timeout_while(self.state.lock(), PATIENCE, |state| state.trap.is_some());
        assert_eq!(state.trap, None, "nobody came there within {PATIENCE:?}");
    }

    /// Lets the caught thread continue, alone.
    fn let_go(&self) {
        self.state.lock().is_let_go = true;
        self.changed.notify_all();
    }

    /// Lets all threads continue.
    fn go_on(&self) {
        *self.state.lock() = State::default();
        self.changed.notify_all();
    }
}

/// Client's host whose threads can be paused.
struct Pausing {
    machine: Arc<dyn Dialer>,
    pauses: Arc<Pauses>,
}

impl HostLayer for Pausing {
    fn inner(&self) -> &dyn Host {
        &*self.machine
    }

    fn wait(&self, event: &HostEvent, heard: u64, until: MonoNs) {
        self.machine.wait(event, heard, until);
        self.pauses.pass(Moment::Waited);
    }
}

impl Dialer for Pausing {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        Ok(Box::new(PausingLink {
            inner: self.machine.dial(to, deadline)?,
            pauses: Arc::clone(&self.pauses),
        }))
    }
}

struct PausingLink {
    inner: Box<dyn Link>,
    pauses: Arc<Pauses>,
}

impl Link for PausingLink {
    fn transport(&self) -> Transport {
        self.inner.transport()
    }
    fn call(&mut self, request: &Request, _deadline: MonoNs) -> Result<Reply, LinkError> {
        self.pauses.pass(Moment::Ask(request.opcode()));
        self.inner.call(request, soon())
    }
    fn read(&mut self, ops: &mut [ReadOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        self.pauses.pass(Moment::Copy);
        self.inner.read(ops, soon())
    }
    fn write(&mut self, ops: &[WriteOp<'_>], _deadline: MonoNs) -> Result<(), LinkError> {
        self.pauses.pass(Moment::Copy);
        self.inner.write(ops, soon())
    }
}

/// Starts a pool of one node, and a session that has written a file over a host whose threads can be paused.
fn start(regions: u32, transport: TransportChoice, grace_ms: u32) -> (OneNode, Pool, FarFile, Arc<Pauses>) {
    let settings = LeaseSettings { lease_ttl_ms: TTL_MS, grace_ms, ..LeaseSettings::default() };
    let node = one_node(regions.into(), settings);
    let pauses = Arc::new(Pauses::default());
    let url = format!("farpool://{}", node.broker.address());
    let options = PoolOptions { transport, protection: Some(Protection::None), ..PoolOptions::default() };
    let host = Pausing { machine: Sockets::dialer(Exposure::default()), pauses: Arc::clone(&pauses) };
    let client = Pool::connect_from(Arc::new(host), &url, options);
    let client = client.expect("a session");
    let old = client.create("old", FileClass::Scratch, CreateOptions::default()).expect("created");
    old.write_at(0, b"before the pause").expect("a write");
    wait_until_free(&node, |free| free < regions);
    (node, client, old, pauses)
}

/// Waits until the node has reported a number of free regions for which `is_so` holds.
fn wait_until_free(pool: &OneNode, is_so: impl Fn(u32) -> bool) {
    wait_until(pool, "what is free changes", |status| is_so(status.nodes[0].counts.free));
}

fn wait_until(pool: &OneNode, what: &str, is_so: impl Fn(&StatusReport) -> bool) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let Ok(Reply::Status(status)) = pool.broker_link().call(&Request::Status(Done {}), soon()) else {
            panic!("a status is answered by a status");
        };
        if is_so(&status) {
            return;
        }
        assert!(Instant::now() < give_up, "{what}: {status:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn write_new(client: &Pool, name: &str) -> Result<(), Error> {
    let file = client.create(name, FileClass::Scratch, CreateOptions::default()).expect("created");
    let result = file.write_at(0, b"after the pause").and_then(|()| {
        let mut found = [0; 15];
        file.read_at(0, &mut found)?;
        assert_eq!(&found, b"after the pause");
        Ok(())
    });
    client.delete(name).expect("deleted");
    result
}

/// Regression: a laptop slept for longer than its lease. When it woke up, the node answered the first renewal at once:
/// it did not know the session. The client dropped the node for ever, as it does if a node has not answered during the
/// whole lease. In a pool of one node the session could never lease again.
#[test]
fn client_that_slept_past_its_lease_leases_anew_at_the_node_that_told_it_so() {
    let (node, client, old, pauses) = start(4, TransportChoice::Tcp, GRACE_MS);
    pauses.catch(Moment::Waited);
    pauses.wait_caught();
    let slept = Instant::now();
    wait_until_free(&node, |free| free == 4);
    while slept.elapsed() < Duration::from_millis(2 * u64::from(TTL_MS + GRACE_MS)) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // The thread that renews leases runs first, and finishes a round.
    pauses.catch(Moment::Waited);
    pauses.wait_caught();
    pauses.go_on();
    let error = old.read_at(0, &mut [0; 16]).expect_err("its bytes are gone");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    write_new(&client, "new").expect("the node is there");
}

/// Regression: a thread had checked its lease, and paused until that lease was over, just before it asked for more
/// memory. The node took the session for a new one and renewed its lease from then on. So the client never learned that
/// its older regions were gone, and allocated new files in them. Each of these files was lost at its first write.
#[test]
fn lease_that_ended_while_more_was_asked_for_does_not_spoil_new_files() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let (node, client, old, pauses) = start(4, transport, GRACE_MS);
        pauses.catch(Moment::Ask(Opcode::Lease));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.reserve(2 * MIB));
            pauses.wait_caught();
            wait_until_free(&node, |free| free == 4);
            pauses.let_go();
            asking.join().expect("no panic").expect("there is room");
        });
        pauses.go_on();
        let error = old.read_at(0, &mut [0; 16]).expect_err("its bytes are gone");
        assert_eq!(error.kind(), ErrorKind::Lost, "{transport:?}: {error}");
        // The session held one region before the pause. A new file may still get memory there once, and be lost.
        let failures = (0..10).filter(|number| write_new(&client, &format!("new-{number}")).is_err()).count();
        assert!(failures <= 1, "{transport:?}: {failures} of 10 new files were lost");
    }
}

/// Regression: an operation was refused by the node in the grace of its lease, and its thread then paused until the
/// grace was over, too. The renewal got the answer that the session is unknown, and the caller got the refusal as an
/// error. But the bytes are lost, so the caller must get `Lost`.
#[test]
fn grace_that_ended_before_the_renewal_is_a_loss() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let (node, _client, old, pauses) = start(2, transport, 1_000);
        pauses.catch(Moment::Copy);
        let result = std::thread::scope(|scope| {
            let reading = scope.spawn(|| old.read_at(0, &mut [0; 16]));
            pauses.wait_caught();
            // A second session's lease begins after the client's, and so ends after it.
            let mut link = node.link(Transport::Tcp);
            let later = node.session().lease(&node, &mut *link, 1).expect("a lease").remove(0);
            let give_up = Instant::now() + PATIENCE;
            while read(&mut *link, &later, 0, 1).is_ok() {
                assert!(Instant::now() < give_up, "the later lease ends");
            }
            pauses.catch(Moment::Ask(Opcode::Renew));
            pauses.wait_caught();
            wait_until_free(&node, |free| free == 2);
            pauses.let_go();
            reading.join().expect("no panic")
        });
        pauses.go_on();
        let error = result.expect_err("its bytes are gone");
        assert_eq!(error.kind(), ErrorKind::Lost, "{transport:?}: {error}");
    }
}

/// Returns rows of one column.
fn numbers(count: i64) -> RecordBatch {
    let column = Int64Array::from_iter_values(0..count);
    RecordBatch::try_from_iter([("n", Arc::new(column) as _)]).expect("a batch")
}

#[test]
fn append_of_a_session_that_ended_before_its_rows_were_sealed_changes_nothing() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let (node, client, _, pauses) = start(64, transport, GRACE_MS);
        let other = || Pool::connect_with(client.url(), PoolOptions::default()).expect("another session");
        let options = PutOptions { partition_by: vec!["n".to_owned()], ..PutOptions::default() };
        let put = [Ok::<_, Infallible>(numbers(5))];
        other().put_table_with("t", numbers(0).schema(), put, &options).expect("put");
        // Only the writer's session is left, so none other can be taken for it.
        wait_until(&node, "the session that has put the table has ended", |status| status.sessions == 1);
        pauses.catch(Moment::Ask(Opcode::SealRanges));
        let appended = std::thread::scope(|scope| {
            let append = || {
                let batches = [Ok::<_, Infallible>(numbers(3))];
                client.append_to_table("t", numbers(0).schema(), batches, &PutOptions::default())
            };
            let appending = scope.spawn(append);
            pauses.wait_caught();
            let is_over = |status: &StatusReport| status.sessions == 0 && status.nodes[0].counts.leased == 0;
            wait_until(&node, "the session of the writer has ended, and its leases", is_over);
            pauses.go_on();
            appending.join().expect("no panic")
        });
        let error = appended.expect_err("the session has ended");
        assert_eq!(error.kind(), ErrorKind::Lost, "{transport:?}: {error}");
        let reader = other();
        assert_eq!(reader.table("t").expect("as before").rows(), 5);
        assert_eq!(reader.table_history("t").expect("a history").len(), 1);
        // The session works anew, and the program may append again.
        let batches = [Ok::<_, Infallible>(numbers(3))];
        let again = client.append_to_table("t", numbers(0).schema(), batches, &PutOptions::default());
        assert_eq!(again.expect("appended").snapshot, 2);
        assert_eq!(reader.table("t").expect("a table").rows(), 8);
        reader.drop_table("t").expect("dropped");
        drop((client, reader));
        wait_until_free(&node, |free| free == 64);
    }
}
