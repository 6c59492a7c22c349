//! Snapshots that readers hold, for longer than a broker permits, and while sessions, leaders and brokers are replaced.
//! A reader whose snapshot has ended is told so, and never gets other rows.

use crate::etcd::Way;
use crate::processes::Process;
use crate::programs::{PATIENCE, eventually, reserved_address};
use crate::table_feed::{Votes, leader_of, node_of};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use farpool::operators::col;
use farpool::table::PutOptions;
use farpool::{Error, ErrorKind, FarTable, Placement, Pool, PoolOptions, Protection, TransportChoice};
use farpool_broker::stores::MemoryStore;
use farpool_broker::{Broker, BrokerSettings, LeaseSettings, SnapshotSettings};
use farpool_node::Node;
use farpool_transport::Exposure;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

const LEASE: LeaseSettings = LeaseSettings {
    lease_ttl_ms: 1_000,
    grace_ms: 500,
    ticket_ttl_ms: 6_000,
    heartbeat_ms: 100,
    node_silence_ms: 1_000,
};
const DAY_MS: u64 = 86_400_000;

/// Settings with which each snapshot ends as soon as another has followed, unless it is held.
fn settings(hold_ms_max: u64) -> BrokerSettings {
    let snapshots = SnapshotSettings { count_max: 0, age_ms_max: 0, hold_ms_max };
    BrokerSettings { lease: LEASE, snapshots, ..BrokerSettings::default() }
}

struct Stage {
    _node: Node,
    broker: Broker,
}

impl Stage {
    fn new(hold_ms_max: u64) -> Stage {
        let (loopback, store) = (SocketAddr::from(([127, 0, 0, 1], 0)), Box::new(MemoryStore::default()));
        let broker = Broker::start(loopback, &Exposure::default(), settings(hold_ms_max), store);
        let broker = broker.expect("a broker");
        Stage { _node: node_of(&broker.address().to_string(), 64), broker }
    }
}

fn connect(address: &str, transport: TransportChoice) -> Pool {
    let options = PoolOptions {
        transport,
        protection: Some(Protection::None),
        broker_patience_ms: PATIENCE.as_millis() as u64,
        ..PoolOptions::default()
    };
    Pool::connect_with(&format!("farpool://{address}"), options).expect("a session")
}

/// Returns rows that tell which table they are of. Those of 100,000 rows have regions of their own.
fn rows(of: i64, count: usize) -> RecordBatch {
    let column = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value; count])) };
    let columns = [("of", column(of)), ("a", column(1)), ("b", column(2)), ("c", column(3))];
    RecordBatch::try_from_iter(columns).expect("a batch")
}

fn options(replace: bool) -> PutOptions {
    PutOptions { replace, ..PutOptions::default() }
}

fn put(pool: &Pool, name: &str, of: i64, count: usize) {
    let batch = rows(of, count);
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.put_table_with(name, batch.schema(), batches, &options(true)).expect("put");
}

fn append(pool: &Pool, name: &str, of: i64, count: usize) -> u64 {
    let batch = rows(of, count);
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.append_to_table(name, batch.schema(), batches, &options(false)).expect("appended").snapshot
}

/// Returns how many rows of each kind a table has.
fn count(table: &FarTable) -> Result<Vec<(i64, usize)>, Error> {
    let mut counts: Vec<(i64, usize)> = Vec::new();
    for batch in table.read(None, None)? {
        for of in batch?.column(0).as_primitive::<Int64Type>().values() {
            match counts.last_mut().filter(|(last, _)| last == of) {
                Some((_, count)) => *count += 1,
                None => counts.push((*of, 1)),
            }
        }
    }
    Ok(counts)
}

/// Waits until a table has no snapshot of this number any more.
fn until_ended(pool: &Pool, name: &str, snapshot: u64) {
    eventually(&format!("snapshot {snapshot} ends"), || {
        let history = pool.table_history(name).map_err(|error| error.to_string())?;
        let is_kept = history.iter().any(|entry| entry.snapshot == snapshot && entry.is_kept);
        if is_kept { Err(format!("{history:?}")) } else { Ok(()) }
    });
}

/// Waits until an operation says that snapshot 1 has ended. Until then it has to give what is expected.
fn until_told<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, read: impl Fn() -> Result<T, Error>) {
    eventually(&format!("{what}: told that the snapshot has ended"), || match read() {
        Ok(found) => {
            assert_eq!(&found, expected, "{what}: never other rows");
            Err("it is read still".to_owned())
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Closed, "{what}: {error}");
            assert!(error.to_string().contains("snapshot 1 of table \"t\" has ended"), "{what}: {error}");
            Ok(())
        }
    });
}

#[test]
fn reader_that_holds_a_snapshot_for_too_long_is_told_so_on_every_path() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        for size in [10, 100_000] {
            let stage = Stage::new(1_500);
            let address = stage.broker.address().to_string();
            let (writer, reader) = (connect(&address, transport), connect(&address, transport));
            put(&writer, "t", 1, size);
            append(&writer, "t", 2, size);
            let expected = vec![(1, size), (2, size)];
            let table = reader.table("t").expect("opened");
            // Its parts are opened later.
            let snapshot = reader.table_snapshot("t", 1, None).expect("opened");
            assert_eq!(count(&table).expect("read"), expected);
            let plan = table.query().expect("a query").filter(col("of").eq(2)).plan().expect("a plan");
            // The parts of snapshot 1 go, and their memory gets other rows.
            put(&writer, "t", 3, size);
            for round in 0..4 {
                put(&writer, "others", 10 + round, size);
            }
            until_ended(&writer, "t", 1);
            for round in 0..4 {
                put(&writer, "others", 20 + round, size);
            }
            until_told("read", &expected, || count(&table));
            for placement in [Placement::Fetch, Placement::Ship, Placement::Auto] {
                let run = || {
                    let answer = table.run(&plan, placement)?;
                    Ok(answer.batches.iter().map(RecordBatch::num_rows).sum::<usize>())
                };
                until_told(&format!("{placement:?}"), &size, run);
            }
            until_told("files", &2, || Ok(snapshot.files()?.len()));
            until_told("parts", &expected, || count(&snapshot.open_all()?));
            let error = reader.table_snapshot("t", 1, None).err().expect("it has ended");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("snapshot 1"), "{error}");
            assert_eq!(count(&reader.table("t").expect("opened")).expect("read"), [(3, size)]);
        }
    }
}

#[test]
fn snapshot_of_a_dropped_table_is_told_to_have_ended_even_if_another_has_its_name() {
    let stage = Stage::new(DAY_MS);
    let address = stage.broker.address().to_string();
    let (writer, reader) = (connect(&address, TransportChoice::Tcp), connect(&address, TransportChoice::Tcp));
    put(&writer, "t", 1, 100_000);
    append(&writer, "t", 2, 100_000);
    let table = reader.table("t").expect("opened");
    writer.drop_table("t").expect("dropped");
    put(&writer, "t", 3, 100_000);
    append(&writer, "t", 4, 100_000);
    until_told("read", &vec![(1, 100_000), (2, 100_000)], || count(&table));
    let again = reader.table("t").expect("opened");
    assert_eq!((again.snapshot(), count(&again).expect("read")), (Some(1), vec![(3, 100_000), (4, 100_000)]));
}

#[test]
fn snapshot_ends_once_its_last_reader_is_gone_and_no_sooner() {
    let stage = Stage::new(DAY_MS);
    let address = stage.broker.address().to_string();
    let (writer, reader) = (connect(&address, TransportChoice::Tcp), connect(&address, TransportChoice::Tcp));
    put(&writer, "t", 1, 10);
    append(&writer, "t", 2, 10);
    let [one, other] = [(); 2].map(|()| reader.table("t").expect("opened"));
    append(&writer, "t", 3, 10);
    append(&writer, "t", 4, 10);
    until_ended(&writer, "t", 2);
    drop(one);
    // Snapshot 3 ends by a later look of the broker, which would have ended snapshot 1 as well.
    append(&writer, "t", 5, 10);
    until_ended(&writer, "t", 3);
    assert_eq!(count(&other).expect("it is held"), [(1, 10), (2, 10)]);
    drop(other);
    until_ended(&writer, "t", 1);
}

#[test]
fn session_that_the_broker_has_not_heard_of_for_too_long_finds_its_snapshots_ended() {
    let stage = Stage::new(DAY_MS);
    let way = Way::to(stage.broker.address());
    let writer = connect(&stage.broker.address().to_string(), TransportChoice::Tcp);
    let reader = connect(&way.address.to_string(), TransportChoice::Tcp);
    put(&writer, "t", 1, 100_000);
    append(&writer, "t", 2, 100_000);
    let (table, expected) = (reader.table("t").expect("opened"), vec![(1, 100_000), (2, 100_000)]);
    way.isolate();
    put(&writer, "t", 3, 100_000);
    until_ended(&writer, "t", 1);
    way.mend();
    until_told("read", &expected, || count(&table));
    let again = reader.table("t").expect("the session goes on");
    assert_eq!(count(&again).expect("read"), [(3, 100_000)]);
    append(&writer, "t", 4, 10);
    append(&writer, "t", 5, 10);
    until_ended(&writer, "t", 3);
    assert_eq!(count(&again).expect("it is held, as before"), [(3, 100_000)]);
}

/// Changes a table whose snapshot 1 is held until a broker that has just begun ends snapshots: it has then waited for
/// its sessions.
fn change_until_snapshots_end(writer: &Pool) {
    let before = append(writer, "t", 7, 10);
    append(writer, "t", 8, 10);
    until_ended(writer, "t", before);
}

#[test]
fn next_leader_and_broker_started_again_are_told_of_all_holds() {
    let votes = Votes::default();
    let brokers = [0, 1, 2].map(|number| votes.stand(number, settings(DAY_MS)));
    let addresses = brokers.each_ref().map(|broker| broker.address().to_string()).join(",");
    let _node = node_of(&addresses, 64);
    let (writer, reader) =
        (connect(&addresses, TransportChoice::Tcp), connect(&addresses, TransportChoice::Tcp));
    put(&writer, "t", 1, 100_000);
    append(&writer, "t", 2, 100_000);
    let (table, expected) = (reader.table("t").expect("opened"), vec![(1, 100_000), (2, 100_000)]);
    put(&writer, "t", 3, 10);
    for _ in 0..3 {
        votes.depose(leader_of(&brokers));
        change_until_snapshots_end(&writer);
        assert_eq!(count(&table).expect("it is held"), expected);
        assert_eq!(
            count(&reader.table_snapshot("t", 1, None).expect("kept").open_all().expect("opened"))
                .expect("read"),
            expected
        );
    }
}

#[test]
fn broker_that_was_killed_and_started_again_is_told_of_all_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let address = reserved_address().to_string();
    let start = || {
        let times = ["--ttl", "1s", "--grace", "500ms", "--snapshots-kept", "0", "--snapshot-age", "1ms"];
        Process::start(&[&["broker", "--listen", &address, "--store", &store][..], &times].concat())
    };
    let broker = start();
    let size = ["--memory", "64MiB", "--region-size", "1MiB"];
    let _node = Process::start(&[&["node", "--name", "one", "--broker", &broker.ready][..], &size].concat());
    let (writer, reader) = (connect(&address, TransportChoice::Tcp), connect(&address, TransportChoice::Tcp));
    put(&writer, "t", 1, 100_000);
    append(&writer, "t", 2, 100_000);
    let (table, expected) = (reader.table("t").expect("opened"), vec![(1, 100_000), (2, 100_000)]);
    put(&writer, "t", 3, 10);
    broker.kill();
    let _again = start();
    change_until_snapshots_end(&writer);
    assert_eq!(count(&table).expect("it is held"), expected);
    drop(table);
    until_ended(&writer, "t", 1);
}
