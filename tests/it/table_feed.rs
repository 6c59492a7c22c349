//! Waiting for changes of tables and names: the broker tells them as they are made, whatever becomes of brokers
//! meanwhile, and a request that waits holds up no other.

use crate::processes::{binary, broker, connect};
use crate::programs::{self, PATIENCE, eventually, reserved_address};
use crate::raw_client::*;
use arrow_array::{Int64Array, RecordBatch};
use farpool::table::{PutOptions, TableChange, TableVersion, TableWatch};
use farpool::{
    CreateOptions, EmbeddedOptions, ErrorKind, FileClass, IfTaken, Pool, PoolOptions, Protection,
    TransportChoice,
};
use farpool_broker::election::{Electorate, Leadership, Victory};
use farpool_broker::stores::{Store, StoreError};
use farpool_broker::{Broker, LeaseSettings};
use farpool_lease::broker::{Durable, StateChange};
use farpool_lock::Mutex;
use farpool_node::{Node, NodeOptions};
use farpool_transport::{Exposure, Link, LinkError};
use farpool_wire::control::*;
use farpool_wire::limits::AWAIT_MS_MAX;
use farpool_wire::{Code, FileId, List, Name, Refusal, Reply, Request};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time within which everything comes that is waited for, in ms.
const PATIENCE_MS: u64 = PATIENCE.as_millis() as u64;

fn embedded() -> Pool {
    let mut options = EmbeddedOptions::new(64 * MIB);
    options.region_bytes = Some(MIB);
    Pool::embedded(options).expect("an embedded pool")
}

fn rows(count: i64) -> RecordBatch {
    let ids = Arc::new(Int64Array::from_iter_values(0..count));
    RecordBatch::try_from_iter([("id", ids as _)]).expect("a batch")
}

fn put(pool: &Pool, name: &str, replace: bool) {
    let options = PutOptions { replace, ..PutOptions::default() };
    let batch = rows(10);
    pool.put_table_with(name, batch.schema(), [Ok::<_, Infallible>(batch)], &options).expect("put");
}

fn append(pool: &Pool, name: &str, count: i64) -> u64 {
    let batch = rows(count);
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.append_to_table(name, batch.schema(), batches, &PutOptions::default()).expect("appended").snapshot
}

fn next(watch: &mut TableWatch) -> TableChange {
    watch.next_within(PATIENCE_MS).expect("told").expect("within the patience of tests")
}

/// Returns the number of the snapshot that a change has made, and what it says of it.
fn snapshot(change: TableChange) -> (u64, String) {
    match change {
        TableChange::Snapshot(entry) => (entry.snapshot, entry.summary),
        other => panic!("no snapshot: {other:?}"),
    }
}

#[test]
fn watch_tells_each_snapshot_once_in_order_and_replaced_and_dropped_tables() {
    let writer = embedded();
    let reader = Pool::connect_with(writer.url(), PoolOptions::default()).expect("another session");
    put(&writer, "t", false);
    let mut watch = reader.watch_table("t").expect("it is there");
    assert_eq!(watch.next_within(20).expect("asked"), None, "nothing has changed");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=30 {
                assert_eq!(append(&writer, "t", number as i64), number);
            }
        });
        for number in 1..=30 {
            assert_eq!(snapshot(next(&mut watch)), (number, format!("append {number} rows")));
        }
    });
    put(&writer, "t", true);
    assert_eq!(snapshot(next(&mut watch)).0, 31);
    writer.drop_table("t").expect("dropped");
    assert_eq!(next(&mut watch), TableChange::Dropped);
    put(&writer, "t", false);
    assert_eq!(next(&mut watch), TableChange::File);
    put(&writer, "t", true);
    assert_eq!(next(&mut watch), TableChange::File, "a table of one file was replaced by another");
    append(&writer, "t", 1);
    assert_eq!(snapshot(next(&mut watch)).0, 1, "numbers of another table begin anew");
    reader.close();
    let error = watch.next_within(PATIENCE_MS).expect_err("the session has ended");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[test]
fn awaited_table_is_told_from_nothing_to_each_version_and_back() {
    let pool = embedded();
    let none = TableVersion::default();
    assert_eq!(pool.await_table("t", none, 20).expect("asked"), None);
    let later = |known, change: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.await_table("t", known, PATIENCE_MS));
            change();
            waiting.join().expect("no panic").expect("told").expect("within the patience of tests")
        })
    };
    let one_file = later(none, &|| put(&pool, "t", false));
    assert!(one_file.exists() && one_file.snapshot().is_none());
    let another = later(one_file, &|| put(&pool, "t", true));
    assert!(another.exists() && another.snapshot().is_none() && another != one_file);
    let first = later(another, &|| _ = append(&pool, "t", 3));
    assert_eq!(first.snapshot(), Some(1));
    assert_eq!(pool.await_table("t", none, 0).expect("asked"), Some(first), "it is there already");
    let dropped = later(first, &|| pool.drop_table("t").expect("dropped"));
    assert_eq!(dropped, none);
    assert_eq!(pool.watch_table("t").err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    let error = pool.await_table("", none, 0).expect_err("no name of a table");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn asked(session: &RawSession, known: &[(&str, FileId)], wait_ms: u32) -> Request {
    let SessionProof { session, secret } = session.proof.clone();
    let known = known.iter().map(|(of, file)| KnownName { name: name(of), file: *file });
    Request::AwaitNames(AwaitNames {
        session,
        secret,
        known: List::new(known.collect()).expect("few"),
        wait_ms,
    })
}

fn answer(reply: Result<Reply, LinkError>) -> Vec<FileId> {
    match reply {
        Ok(Reply::AwaitNames(awaited)) => awaited.now.iter().map(|now| now.file).collect(),
        other => panic!("{other:?}"),
    }
}

/// Waits until so many requests wait at the broker.
fn until_waiting(broker: &Broker, count: usize) {
    eventually(&format!("{count} requests wait"), || {
        let waiting = broker.leading().map_or(0, |leading| leading.waiting());
        if waiting == count { Ok(()) } else { Err(format!("{waiting} wait")) }
    });
}

#[test]
fn request_that_waits_is_answered_before_a_later_one_of_its_connection_and_by_any_of_its_names() {
    let pool = one_node(8, lasting_leases());
    let session = pool.session();
    let mut link = pool.broker_link();
    let wait = asked(&session, &[("a", FileId(0)), ("b", FileId(0))], u32::MAX);
    eventually("a request is answered as soon as a later one comes", || {
        let begun = Instant::now();
        link.post_call(&wait, soon()).expect("sent");
        until_waiting(&pool.broker, 1);
        let keep = Request::KeepSession(session.proof.clone());
        link.post_call(&keep, soon()).expect("sent");
        assert_eq!(answer(link.take_call(&wait, soon())), [FileId(0); 2], "nothing has changed");
        assert!(matches!(link.take_call(&keep, soon()), Ok(Reply::KeepSession(_))));
        // A machine that is busy for so long shows nothing.
        let took = begun.elapsed();
        if took < Duration::from_millis(AWAIT_MS_MAX.into()) {
            Ok(())
        } else {
            Err(format!("it took {took:?}"))
        }
    });

    let url = format!("farpool://{}", pool.broker.address());
    let writer = Pool::connect_with(&url, PoolOptions::default()).expect("a session");
    let publish = || {
        let file = writer.create("b", FileClass::Pinned, CreateOptions::default()).expect("created");
        file.write_at(0, b"far").expect("written");
        writer.publish("b", IfTaken::Replace).expect("published");
    };
    link.post_call(&wait, soon()).expect("sent");
    until_waiting(&pool.broker, 1);
    publish();
    let [FileId(0), first] = answer(link.take_call(&wait, soon()))[..] else { panic!("b has a file") };
    // The answer to what a session does not know yet comes at once.
    assert_eq!(answer(link.call(&wait, soon())), [FileId(0), first]);
    let wait = asked(&session, &[("b", first)], u32::MAX);
    link.post_call(&wait, soon()).expect("sent");
    until_waiting(&pool.broker, 1);
    publish();
    let second = answer(link.take_call(&wait, soon()));
    assert!(second != [first] && second != [FileId(0)]);
    let wait = asked(&session, &[("b", second[0])], u32::MAX);
    link.post_call(&wait, soon()).expect("sent");
    until_waiting(&pool.broker, 1);
    writer.delete("b").expect("dropped");
    assert_eq!(answer(link.take_call(&wait, soon())), [FileId(0)]);
    until_waiting(&pool.broker, 0);
    let wait = asked(&session, &[("b", FileId(0))], 1);
    assert_eq!(answer(link.call(&wait, soon())), [FileId(0)], "its time is over");
}

#[test]
fn session_waits_with_a_limited_number_of_requests_which_end_with_their_connections() {
    const LIMIT: usize = 16;
    let pool = one_node(2, lasting_leases());
    let (session, other) = (pool.session(), pool.session());
    let wait = asked(&session, &[("a", FileId(0))], u32::MAX);
    let mut links: Vec<Box<dyn Link>> = (0..LIMIT).map(|_| pool.broker_link()).collect();
    links.iter_mut().for_each(|link| link.post_call(&wait, soon()).expect("sent"));
    until_waiting(&pool.broker, LIMIT);
    let mut further = pool.broker_link();
    match further.call(&wait, soon()) {
        Err(LinkError::Refused { refusal, .. }) => {
            assert_eq!(refusal, Refusal::new(Code::LimitReached, LIMIT as u64));
        }
        answer => panic!("{answer:?}"),
    }
    // The connection goes on, and other sessions may wait.
    further.post_call(&asked(&other, &[("a", FileId(0))], u32::MAX), soon()).expect("sent");
    until_waiting(&pool.broker, LIMIT + 1);
    links.truncate(3);
    until_waiting(&pool.broker, 4);
    let mut again = pool.broker_link();
    again.post_call(&wait, soon()).expect("sent");
    until_waiting(&pool.broker, 5);
    // A broker that ends does not wait for those who wait.
    drop(pool);
}

/// Which of two brokers in this process leads, and what both store.
#[derive(Clone, Default)]
pub struct Votes {
    /// Number of the broker that leads. A number that none has keeps all from leading.
    pub leader: Arc<Mutex<Option<u32>>>,
    durable: Arc<Mutex<Durable>>,
}

struct Candidate(u32, Votes);

impl Votes {
    /// Starts a broker that stands for election.
    pub fn stand(&self, number: u32, settings: impl Into<farpool_broker::BrokerSettings>) -> Broker {
        let electorate = Box::new(Candidate(number, self.clone()));
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        Broker::stand(loopback, &Exposure::default(), settings, electorate).expect("a broker")
    }

    fn is_leader(&self, number: u32) -> bool {
        *self.leader.lock() == Some(number)
    }

    /// Takes the lead from the broker that has it, once it has noticed, and lets another one win.
    pub fn depose(&self, leader: &Broker) {
        *self.leader.lock() = Some(u32::MAX);
        eventually("the leader steps down", || match leader.term() {
            None => Ok(()),
            Some(term) => Err(format!("it leads in term {term}")),
        });
        *self.leader.lock() = None;
    }
}

impl Electorate for Candidate {
    fn campaign(&self) -> Result<Option<Victory>, StoreError> {
        let Candidate(number, votes) = self;
        let mut leader = votes.leader.lock();
        if leader.is_some() {
            return Ok(None);
        }
        *leader = Some(*number);
        let (lead, store) = (Candidate(*number, votes.clone()), Candidate(*number, votes.clone()));
        Ok(Some(Victory { lead: Box::new(lead), store: Box::new(store) }))
    }
}

impl Leadership for Candidate {
    fn lasts_ms(&self) -> u64 {
        3_000
    }

    fn keep(&mut self) -> Result<bool, StoreError> {
        Ok(self.1.is_leader(self.0))
    }

    fn resign(&mut self) {
        self.1.leader.lock().take_if(|leader| *leader == self.0);
    }
}

impl Store for Candidate {
    fn load(&self) -> Result<Durable, StoreError> {
        Ok(self.1.durable.lock().clone())
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        if !self.1.is_leader(self.0) {
            return Err(StoreError("this broker lost the leadership".to_owned()));
        }
        records.iter().for_each(|record| self.1.durable.lock().apply(record.clone()));
        Ok(())
    }
}

/// Waits until a broker leads.
pub fn leader_of(brokers: &[Broker]) -> &Broker {
    eventually("a broker leads", || {
        brokers.iter().find(|broker| broker.term().is_some()).ok_or("none does".to_owned())
    })
}

/// Starts a node of brokers in this process, with regions of 1 MiB.
pub fn node_of(brokers: &str, regions: u64) -> Node {
    let mut options = NodeOptions::new(name("one"), regions * MIB, brokers.to_owned());
    options.region_bytes = MIB;
    options.pressure.source = None;
    let node = Node::start(options).expect("a node");
    assert!(node.wait_joined(PATIENCE), "the node joins");
    node
}

#[test]
fn leader_that_is_deposed_answers_those_who_wait_and_the_next_one_tells_them() {
    let votes = Votes::default();
    let brokers = [0, 1].map(|number| votes.stand(number, LeaseSettings::default()));
    let addresses = brokers.each_ref().map(|broker| broker.address().to_string()).join(",");
    let _node = node_of(&addresses, 32);
    let options = || PoolOptions {
        broker_patience_ms: PATIENCE_MS,
        protection: Some(Protection::None),
        ..PoolOptions::default()
    };
    let connect = || Pool::connect_with(&format!("farpool://{addresses}"), options()).expect("a session");
    let (reader, writer) = (connect(), connect());
    put(&writer, "t", false);
    let mut watch = reader.watch_table("t").expect("it is there");
    for number in 1..=4 {
        let leader = leader_of(&brokers);
        std::thread::scope(|scope| {
            let told = scope.spawn(|| next(&mut watch));
            until_waiting(leader, 1);
            let leading = leader.leading().expect("it leads");
            votes.depose(leader);
            eventually("nobody waits at a broker that does not lead", || match leading.waiting() {
                0 => Ok(()),
                count => Err(format!("{count} wait")),
            });
            assert_eq!(append(&writer, "t", 1), number);
            assert_eq!(snapshot(told.join().expect("no panic")).0, number);
        });
    }
}

#[test]
fn change_is_told_by_a_broker_that_was_killed_and_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let address = reserved_address().to_string();
    let first = broker(&store, &address);
    let url = first.ready.clone();
    let node = |name: &str| {
        let size = ["--memory", "32MiB", "--region-size", "1MiB"];
        crate::processes::Process::start(&[&["node", "--name", name, "--broker", &url][..], &size].concat())
    };
    let _node = node("one");
    let (reader, writer) = (connect(&url, TransportChoice::Tcp), connect(&url, TransportChoice::Tcp));
    put(&writer, "t", false);
    let mut watch = reader.watch_table("t").expect("it is there");
    assert_eq!(watch.next_within(50).expect("asked"), None);
    first.kill();
    let _again = broker(&store, &address);
    std::thread::scope(|scope| {
        let told = scope.spawn(|| next(&mut watch));
        assert_eq!(append(&writer, "t", 5), 1);
        assert_eq!(snapshot(told.join().expect("no panic")), (1, "append 5 rows".to_owned()));
    });
}

#[test]
fn command_prints_a_line_for_each_snapshot_and_ends_after_as_many_as_were_asked_for() {
    let pool = embedded();
    put(&pool, "t", false);
    let command = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["table", "watch", "--pool", pool.url(), "--json"]).args(args);
        command
    };
    let quiet = programs::output(&mut command(&["t", "--timeout", "50ms"]));
    let said = String::from_utf8_lossy(&quiet.stderr).into_owned();
    assert!(!quiet.status.success() && said.contains("no change of far table t"), "{said}");
    let missing = programs::output(&mut command(&["u"]));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("no table of this name"), "{said}");
    let mut child = command(&["t", "--count", "3"]).stdout(Stdio::piped()).spawn().expect("started");
    let begun = Instant::now();
    // It is not known when the command begins to watch.
    while child.try_wait().expect("a child").is_none() {
        assert!(begun.elapsed() < PATIENCE, "three changes were printed");
        append(&pool, "t", 2);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let numbers: Vec<u64> = lines.iter().filter_map(|line| line["snapshot"].as_u64()).collect();
    assert!(numbers.len() == 3 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{lines:?}");
    assert!(lines.iter().all(|line| line["kind"] == "snapshot" && line["summary"] == "append 2 rows"));
}
