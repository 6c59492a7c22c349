//! Tests of errors caused by a node: they name the node, its host, the time, and a cure. They never show the node's id.

use crate::processes::{Process, until};
use crate::programs::{PATIENCE, reserved_address};
use farpool::{CreateOptions, Error, ErrorKind, FileClass, IfTaken, Pool, PoolOptions};
use farpool_lease::ticket::node_id;
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn node(url: &str) -> Process {
    let args =
        ["node", "--name", "n1", "--host-label", "rack-7", "--memory", "16MiB", "--region-size", "1MiB"];
    Process::start(&[&args[..], &["--no-reserve", "--broker", url]].concat())
}

/// Connects, and waits only 300 ms for a broker that does not answer, because the test restarts it.
fn connect(url: &str) -> Pool {
    let options = PoolOptions { broker_patience_ms: 300, ..PoolOptions::default() };
    Pool::connect_with(url, options).expect("a session")
}

fn publish(url: &str) -> Pool {
    let pool = Pool::connect_with(url, PoolOptions::default()).expect("a session");
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.iter().any(|node| node.alive));
    let file = pool.create("sales", FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, b"bytes").expect("written");
    pool.publish("sales", IfTaken::Refuse).expect("published");
    pool
}

fn assert_says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is said: {text}");
    }
    let id = format!("{:016x}", node_id("n1").0);
    assert!(!text.contains(&id), "the id of a node means nothing to people: {text}");
}

#[test]
fn file_lost_with_a_node_that_started_again_names_node_host_time_and_cure() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let first = node(&broker.ready);
    let pool = publish(&broker.ready);
    let before = pool.status().expect("a status").nodes[0].info.incarnation;
    first.kill();
    let _again = node(&broker.ready);
    until(&pool, PATIENCE, "the node is there again", |status| {
        status.nodes[0].alive && status.nodes[0].info.incarnation != before
    });
    let error = connect(&broker.ready).open("sales").map(|_| ()).expect_err("its bytes are gone");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_says(&error, &["memory node n1 on host rack-7", "without them for", "put the table"]);
}

#[test]
fn file_whose_node_the_broker_has_not_heard_of_says_since_when_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let listen = reserved_address().to_string();
    let broker = Process::start(&["broker", "--listen", &listen, "--store", &store]);
    let first = node(&broker.ready);
    let url = broker.ready.clone();
    let pool = publish(&url);
    first.kill();
    broker.kill();
    let _broker = Process::start(&["broker", "--listen", &listen, "--store", &store]);
    let error = connect(&url).open("sales").map(|_| ()).expect_err("its node is not there");
    assert_says(&error, &["not connected since the broker started", "start that node", "put the table"]);
    // A session that has used the node still knows its name.
    let error = pool.open("sales").map(|_| ()).expect_err("its node is not there");
    assert_says(&error, &["n1 on host rack-7", "not connected since the broker started"]);
}

#[test]
fn memory_asked_of_a_broker_whose_nodes_are_on_their_way_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let listen = reserved_address().to_string();
    // A broker waits for its nodes as long as leases last, which is longer here than any step takes.
    let start = || Process::start(&["broker", "--listen", &listen, "--store", &store, "--ttl", "10m"]);
    let broker = start();
    let url = broker.ready.clone();
    let node = node(&url);
    let options = PoolOptions { broker_patience_ms: PATIENCE.as_millis() as u64, ..PoolOptions::default() };
    let pool = Pool::connect_with(&url, options).expect("a session");
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.iter().any(|node| node.alive));
    node.signal(Signal::STOP);
    broker.kill();
    let _broker = start();
    let write = |pool: &Pool| {
        let file = pool.create("spill", FileClass::Pinned, CreateOptions::default())?;
        file.write_at(0, b"bytes").map(|_| ())
    };
    let error = write(&connect(&url)).expect_err("its patience is shorter than the node's pause");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert_says(&error, &["a broker that has just started", "may have enough memory"]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| write(&pool));
        // Longer than the retries of a session whose pool is full.
        std::thread::park_timeout(Duration::from_secs(1));
        node.signal(Signal::CONT);
        waits.join().expect("no panic").expect("written once the node has come");
    });
}

#[test]
fn lost_node_is_named_with_its_host_and_since_when() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let first = node(&broker.ready);
    let pool = publish(&broker.ready);
    let file = pool.open("sales").expect("opened");
    first.kill();
    let killed = Instant::now();
    let mut into = [0; 5];
    let error = loop {
        // Memory that the client has mapped outlives its node, and stays readable until the session notices the loss.
        match file.read_at(0, &mut into) {
            Ok(_) => assert!(killed.elapsed() < PATIENCE, "the loss is noticed"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.node(), Some("n1"), "{error}");
    assert_says(&error, &["n1 on host rack-7"]);
}
