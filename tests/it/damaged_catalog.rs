//! Tests of damaged catalogs (the broker's list of published files and where they lie). A broker with a damaged catalog
//! never serves the bytes of one file under the name of another, because the nodes check them. `farpool broker` reports
//! a damaged store.

use crate::processes::{Process, binary, until};
use crate::programs::{PATIENCE, output, reserved_address};
use farpool::{CreateOptions, ErrorKind, FileClass, IfTaken, Pool, PoolOptions, TransportChoice};
use farpool_broker::stores::{MemoryStore, Store, StoreError};
use farpool_broker::{Broker, LeaseSettings};
use farpool_lease::broker::{Durable, StateChange};
use farpool_lock::Mutex;
use farpool_transport::Exposure;
use farpool_wire::Name;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Broker's store that outlives its broker, and that tests may damage.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<MemoryStore>>);

impl Store for Kept {
    fn load(&self) -> Result<Durable, StoreError> {
        self.0.lock().load()
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        self.0.lock().commit(records)
    }
}

fn broker(store: &Kept, address: std::net::SocketAddr) -> Broker {
    let store = Box::new(store.clone());
    Broker::start(address, &Exposure::default(), LeaseSettings::default(), store).expect("a broker")
}

fn node(url: &str) -> Process {
    Process::start(&["node", "--name", "one", "--memory", "32MiB", "--region-size", "1MiB", "--broker", url])
}

fn connect(url: &str, transport: TransportChoice) -> Pool {
    Pool::connect_with(url, PoolOptions { transport, ..PoolOptions::default() }).expect("a session")
}

fn publish(pool: &Pool, name: &str, bytes: &[u8]) {
    let file = pool.create(name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, bytes).expect("written");
    pool.publish(name, IfTaken::Refuse).expect("published");
}

fn read(pool: &Pool, name: &str) -> Result<Vec<u8>, farpool::Error> {
    let file = pool.open(name)?;
    let mut bytes = vec![0; file.length() as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Regression: single bits of a broker's store were flipped, and sometimes `x/00014` then returned the bytes of
/// `x/00015`.
#[test]
fn bytes_of_one_name_are_not_read_under_another_whatever_the_catalog_says() {
    let store = Kept::default();
    let first = broker(&store, ([127, 0, 0, 1], 0).into());
    let address = first.address();
    let url = format!("farpool://{address}");
    let _node = node(&url);
    let pool = connect(&url, TransportChoice::Tcp);
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.len() == 1);
    for name in ["x/00014", "x/00015", "before"] {
        publish(&pool, name, name.as_bytes());
    }
    pool.rename("before", "after").expect("renamed");
    assert_eq!(read(&pool, "after").expect("read under its new name"), b"before");
    drop(first);

    let names = store.load().expect("loads").names;
    let name = |text: &str| Name::new(text).expect("a name");
    let swapped = |one: &str, other: &str| StateChange::Name(name(one), names[&name(other)].clone());
    let damages =
        [swapped("x/00014", "x/00015"), swapped("x/00015", "after"), swapped("never/published", "x/00014")];
    store.clone().commit(&damages).expect("committed");
    let _second = broker(&store, address);
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let pool = connect(&url, transport);
        until(&pool, PATIENCE, "the node is back", |status| status.nodes.iter().any(|node| node.alive));
        for name in ["x/00014", "x/00015", "never/published"] {
            let error = read(&pool, name).expect_err("these are the bytes of another name");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(error.to_string().contains("another name"), "{error}");
        }
        assert_eq!(read(&pool, "after").expect("what is right is read"), b"before");
    }
}

fn start_broker(store: &Path, more: &[&str]) -> (Option<i32>, String) {
    let store = store.display().to_string();
    let mut command = Command::new(binary());
    command.args(["broker", "--listen", "127.0.0.1:0", "--store", &store]).args(more);
    let output = output(&mut command);
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn command_broker_refuses_a_damaged_store_in_one_line_and_begins_it_anew_when_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.store");
    let shown = path.display().to_string();
    let listen = reserved_address().to_string();
    let args = ["broker", "--listen", &listen, "--store", &shown];
    let first = Process::start(&args);
    let url = first.ready.clone();
    let donor = node(&url);
    let pool = connect(&url, TransportChoice::Tcp);
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.len() == 1);
    for number in 0..20 {
        publish(&pool, &format!("name {number}"), b"bytes");
    }
    first.kill();

    let (code, said) = start_broker(&path, &["--rebuild-store"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("it is not damaged"), "{said}");

    // The name "name 7" is lost: every copy of its record in the store's file has a flipped bit.
    let mut bytes = std::fs::read(&path).expect("read");
    let wanted = b"files/name 7";
    let places: Vec<usize> =
        bytes.windows(wanted.len()).enumerate().filter(|(_, at)| at == wanted).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "it is in the file");
    places.iter().for_each(|at| bytes[at + wanted.len() - 1] ^= 1 << 6);
    std::fs::write(&path, &bytes).expect("written");
    let (code, said) = start_broker(&path, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "one line: {said}");
    for word in [&*shown, "is damaged", "restore it from a backup", "--rebuild-store"] {
        assert!(said.contains(word), "{word:?} is said: {said}");
    }
    assert!(std::fs::read(&path).expect("read") == bytes, "it is left as it is");

    let _again = Process::start(&["broker", "--listen", &listen, "--store", &shown, "--rebuild-store"]);
    until(&pool, PATIENCE, "the node is back", |status| status.nodes.iter().any(|node| node.alive));
    for number in 0..20 {
        let name = format!("name {number}");
        match number {
            7 => assert_eq!(
                read(&pool, &name).expect_err("its record was damaged").kind(),
                ErrorKind::NotFound
            ),
            _ => assert_eq!(read(&pool, &name).expect("its record was whole"), b"bytes"),
        }
    }
    // The session is still valid: the key that proves it is in another record, which was intact.
    publish(&pool, "name 7", b"again");
    assert_eq!(read(&pool, "name 7").expect("published again"), b"again");
    drop(donor);
}

/// The message about a damaged store advises to put a copy of the file back, and the test does so. Regression: nodes
/// that had seen later terms (lives of the broker) than the copy's refused all tickets of the broker.
#[test]
fn copy_of_a_store_that_is_put_back_serves_on_where_nodes_have_seen_later_terms() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.store");
    let shown = path.display().to_string();
    let listen = reserved_address().to_string();
    let args = ["broker", "--listen", &listen, "--store", &shown];
    let mut broker = Process::start(&args);
    let url = broker.ready.clone();
    let _donor = node(&url);
    let pool = connect(&url, TransportChoice::Tcp);
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.len() == 1);
    publish(&pool, "kept", b"bytes");
    let copy = std::fs::read(&path).expect("read");
    for round in 0..3 {
        let before = pool.status().expect("a status").term;
        broker.kill();
        broker = Process::start(&["broker", "--listen", &listen, "--store", &shown]);
        until(&pool, PATIENCE, "the node is back", |status| {
            status.term > before && status.nodes.iter().any(|node| node.alive)
        });
        // A session that has ended published it: a living session could still publish the regions it has sealed.
        // It is so large that it has a region of its own: in one that it shares, its bytes could stay for long.
        let bytes = b"later".repeat(100_000);
        publish(&connect(&url, TransportChoice::Tcp), &format!("later {round}"), &bytes);
    }
    let file = pool.open("later 2").expect("opened");
    broker.kill();
    std::fs::write(&path, copy).expect("written");
    let _again = Process::start(&["broker", "--listen", &listen, "--store", &shown]);
    until(&pool, PATIENCE, "the node is back", |status| status.nodes.iter().any(|node| node.alive));
    assert_eq!(read(&pool, "kept").expect("in the copy"), b"bytes");
    assert_eq!(read(&pool, "later 0").expect_err("not in the copy").kind(), ErrorKind::NotFound);
    publish(&pool, "later 2", b"other");
    // The bytes that the file was opened with are gone with the newer store. The new file of this name has other bytes.
    let mut into = [0; 5];
    until(&pool, PATIENCE, "the former file is gone", |_| file.read_at(0, &mut into.clone()).is_err());
    file.read_at(0, &mut into).expect_err("it is gone");
    assert_eq!(read(&pool, "later 2").expect("published anew"), b"other");
}
