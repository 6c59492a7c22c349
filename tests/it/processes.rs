//! Tests with real processes that end abruptly, as in a crash; and support to start such processes.

use crate::on_time::on_time;
use crate::programs::{self, PATIENCE, reserved_address};
use crate::published_copies::numbers;
use farpool::{
    CreateOptions, ErrorKind, FileClass, IfTaken, Pool, PoolOptions, Protection, StatusReport,
    TransportChoice,
};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

pub fn binary() -> String {
    std::env::var("FARPOOL_BIN").expect("FARPOOL_BIN names the farpool binary: run `make test`")
}

/// Process of the `farpool` command. Dropping this value kills it.
pub struct Process {
    child: Child,
    /// Command line, for error messages.
    what: String,
    /// Rest of the line `ready ..` that the process printed when it was up: for a broker, its URL.
    pub ready: String,
}

impl Process {
    /// Starts the `farpool` command. Tests count on all memory of their nodes. A node is therefore started with a flag
    /// that lets it keep its memory, even if other tests leave little to the host. A node whose arguments say how much
    /// memory to leave to the host is started as it is.
    pub fn start(args: &[&str]) -> Process {
        let mut command = Command::new(binary());
        command.args(args);
        let leaves_memory = |flag: &&str| ["--reserve", "--no-reserve"].contains(flag);
        if args.first() == Some(&"node") && !args.iter().any(leaves_memory) {
            command.arg("--no-reserve");
        }
        Process::begin(&mut command)
    }

    /// Starts a prepared command, which may also set the environment, and waits for its first line.
    pub fn begin(command: &mut Command) -> Process {
        let what = format!("{command:?}");
        let child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut process = Process { child, what, ready: String::new() };
        let line = programs::first_line(process.child.stdout.take().expect("piped"), &process.what);
        let ready = line.strip_prefix("ready ");
        process.ready = ready.unwrap_or_else(|| panic!("{} said {line:?}", process.what)).trim().to_owned();
        process
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// Stops the process with SIGSTOP. Waits until none of its threads runs.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let begun = Instant::now();
        let stands = |thread: std::io::Result<std::fs::DirEntry>| {
            let said = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
            // The thread's name in `stat` is in brackets and may contain any character; the state follows the last
            // bracket.
            said.is_ok_and(|said| said.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
        };
        let tasks = format!("/proc/{}/task", self.id());
        while !std::fs::read_dir(&tasks).expect("it is there").all(stands) {
            assert!(begun.elapsed() < PATIENCE, "{} does not stop", self.what);
        }
    }

    /// Waits until the process ends by itself. Returns its exit status.
    pub fn ends_within(mut self, patience: Duration) -> ExitStatus {
        programs::ended(&mut self.child, &self.what, patience)
    }

    /// Kills the process with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn broker(store: &str, listen: &str) -> Process {
    Process::start(&["broker", "--listen", listen, "--store", store, "--ttl", "1s", "--grace", "500ms"])
}

fn node(name: &str, url: &str) -> Process {
    let size = ["--memory", "32MiB", "--region-size", "1MiB", "--no-reserve"];
    Process::start(&[&["node", "--name", name, "--broker", url][..], &size].concat())
}

pub fn connect(url: &str, transport: TransportChoice) -> Pool {
    let protection = Some(Protection::None);
    let options = PoolOptions { transport, request_timeout_ms: 2_000, protection, ..PoolOptions::default() };
    Pool::connect_with(url, options).expect("a session")
}

/// Polls the pool's status until `is_so` holds for it. Panics after `patience`.
pub fn until(pool: &Pool, patience: Duration, what: &str, is_so: impl Fn(&StatusReport) -> bool) {
    let start = Instant::now();
    loop {
        if pool.status().is_ok_and(|status| is_so(&status)) {
            return;
        }
        assert!(start.elapsed() < patience, "not within {patience:?}: {what}; {:?}", pool.status());
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn node_killed_is_named_in_the_error_and_the_rest_of_the_pool_serves_on() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let broker = broker("memory", "127.0.0.1:0");
        let (first, second) = (node("first", &broker.ready), node("second", &broker.ready));
        let pool = connect(&broker.ready, transport);
        let file = pool.create("both", FileClass::Scratch, CreateOptions::default()).expect("created");
        file.write_at(0, &vec![5; 8 * MIB as usize]).expect("a write");
        first.kill();
        let killed = Instant::now();
        let mut into = vec![0; 8 * MIB as usize];
        let error = loop {
            match file.read_at(0, &mut into) {
                // Memory that the client has mapped outlives its node, and stays readable until the session notices the
                // loss.
                Ok(_) => {
                    assert!(killed.elapsed() < PATIENCE, "{transport:?}: the loss is noticed")
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert_eq!(error.node(), Some("first"), "{error}");
        pool.delete("both").expect("deleted");
        let after = pool.create("after", FileClass::Scratch, CreateOptions::default()).expect("created");
        after.write_at(0, &vec![6; 4 * MIB as usize]).expect("written to the node that is left");
        let mut back = vec![0; 4 * MIB as usize];
        after.read_at(0, &mut back).expect("a read");
        assert!(back.iter().all(|byte| *byte == 6));
        drop(second);
    }
}

#[test]
fn node_started_again_under_its_name_never_shows_bytes_of_its_former_life() {
    let broker = broker("memory", "127.0.0.1:0");
    let first = node("phoenix", &broker.ready);
    let pool = connect(&broker.ready, TransportChoice::Tcp);
    let file = pool.create("old", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, b"before").expect("a write");
    let address = first.ready.split(' ').nth(1).expect("an address").to_owned();
    first.kill();
    let again = Process::start(&[
        "node",
        "--name",
        "phoenix",
        "--memory",
        "32MiB",
        "--region-size",
        "1MiB",
        "--broker",
        &broker.ready,
        "--listen",
        &address,
    ]);
    let mut found = [0; 6];
    let error = file.read_at(0, &mut found).expect_err("its bytes are gone");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    pool.delete("old").expect("deleted");
    let give_up = Instant::now() + PATIENCE;
    // The new life of the node joins the pool some time later.
    loop {
        let new = pool.create("new", FileClass::Scratch, CreateOptions::default()).expect("created");
        match new.write_at(0, b"after") {
            Ok(()) => break,
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        pool.delete("new").expect("deleted");
    }
    drop(again);
}

#[test]
fn broker_killed_leaves_data_alone_and_started_again_knows_names_and_sessions() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let address = reserved_address().to_string();
    let broker = broker(&store, &address);
    let _node = node("one", &broker.ready);
    let url = broker.ready.clone();
    let pool = connect(&url, TransportChoice::Tcp);
    let published = pool.create("kept", FileClass::Pinned, CreateOptions::default()).expect("created");
    published.write_at(0, b"survives the broker").expect("a write");
    pool.publish("kept", IfTaken::Refuse).expect("published");
    let file = pool.create("mine", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, &vec![1; MIB as usize]).expect("a write");

    broker.kill();
    // Waits longer than a lease lives. Renewals go to the node, which extends the lease without the broker.
    let killed = Instant::now();
    let mut back = vec![0; MIB as usize];
    while killed.elapsed() < Duration::from_millis(2_200) {
        file.read_at(0, &mut back).expect("data does not need the broker");
        file.write_at(0, &back).expect("data does not need the broker");
    }
    assert!(back.iter().all(|byte| *byte == 1));

    let again = self::broker(&store, &address);
    assert_eq!(again.ready, url);
    let reader = connect(&url, TransportChoice::Tcp);
    let opened = reader.open("kept").expect("the name is known");
    let mut found = vec![0; opened.length() as usize];
    opened.read_at(0, &mut found).expect("a read");
    assert_eq!(found, b"survives the broker");
    // The session is still valid at the new life of the broker, and can lease more memory.
    file.write_at(MIB, &vec![2; 4 * MIB as usize]).expect("more is leased from the new life of the broker");
    assert!(pool.status().expect("a status").term.0 >= 2);
}

#[test]
fn table_is_put_once_a_broker_that_has_just_begun_has_heard_of_the_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let address = reserved_address().to_string();
    let start = || Process::start(&["broker", "--listen", &address, "--store", &store, "--ttl", "60s"]);
    let broker = start();
    let node = node("one", &broker.ready);
    let pool = connect(&broker.ready, TransportChoice::Tcp);
    until(&pool, PATIENCE, "the node has joined", |status| !status.nodes.is_empty());
    let table = numbers();
    pool.put_table("before", table.schema(), [table.clone()]).expect("put");
    broker.kill();
    node.stop();
    let _again = start();
    until(&pool, PATIENCE, "the broker knows no node yet", |status| status.nodes.is_empty());
    std::thread::scope(|threads| {
        let put = threads.spawn(|| pool.put_table("after", table.schema(), [table.clone()]));
        node.signal(rustix::process::Signal::CONT);
        put.join().expect("no panic").expect("put");
    });
}

#[test]
fn those_who_need_memory_without_a_broker_wait_for_it_once_and_not_one_after_the_other() {
    on_time(Duration::from_secs(1), |patience| {
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path().join("broker.redb").display().to_string();
        let address = reserved_address().to_string();
        let broker = broker(&store, &address);
        let _node = node("one", &broker.ready);
        let broker_patience_ms = patience.as_millis() as u64;
        let options = PoolOptions { broker_patience_ms, ..PoolOptions::default() };
        let pool = Pool::connect_with(&broker.ready, options).expect("a session");
        let create = |number: u32| {
            let name = format!("file {number}");
            pool.create(&name, FileClass::Cache, CreateOptions::default()).expect("created")
        };
        let files: Vec<_> = (0..60).map(create).collect();
        broker.kill();
        let begun = Instant::now();
        for file in &files {
            let error = file.write_at(0, b"far").expect_err("there is nobody to ask");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        }
        let took = begun.elapsed();
        assert!(took >= patience && took < 30 * patience, "sixty writes took {took:?}");
        let _again = self::broker(&store, &address);
        // The write succeeds as soon as the node has joined the new broker.
        let until = Instant::now() + PATIENCE;
        while let Err(error) = files[0].write_at(0, b"far") {
            assert!(Instant::now() < until, "{error}");
        }
        for file in &files {
            file.write_at(0, b"far").expect("there is memory again");
        }
    });
}

/// The next test runs this function in a process of its own, which holds far memory until it is killed.
#[test]
fn client_process_of_the_next_test() {
    let Ok(url) = std::env::var("FARPOOL_TEST_HOLD") else { return };
    let transport =
        std::env::var("FARPOOL_TEST_TRANSPORT").expect("set together").parse().expect("a transport");
    let pool = connect(&url, transport);
    let file = pool.create("held", FileClass::Scratch, CreateOptions::default()).expect("created");
    loop {
        file.write_at(0, &vec![9; 4 * MIB as usize]).expect("a write");
    }
}

#[test]
fn client_killed_mid_write_frees_its_regions_within_ttl_grace_and_a_second() {
    for transport in ["tcp", "shm"] {
        let broker = broker("memory", "127.0.0.1:0");
        let _node = node("one", &broker.ready);
        let observer = connect(&broker.ready, TransportChoice::Tcp);
        let mut client = Command::new(std::env::current_exe().expect("this test binary"))
            .args(["--exact", "processes::client_process_of_the_next_test", "--nocapture"])
            .env("FARPOOL_TEST_HOLD", &broker.ready)
            .env("FARPOOL_TEST_TRANSPORT", transport)
            .stdout(Stdio::null())
            .spawn()
            .expect("the client starts");
        let leased = |status: &StatusReport| status.nodes.iter().map(|node| node.counts.leased).sum::<u32>();
        until(&observer, PATIENCE, "the client holds regions", |status| leased(status) >= 4);
        client.kill().expect("killed");
        client.wait().expect("gone");
        // Only that the regions become free is checked here; the simulator checks how soon.
        until(&observer, PATIENCE, "its regions are free", |status| {
            status.nodes.iter().all(|node| node.counts.free == 32)
        });
    }
}

/// Writes to a far file whose session gives up on a node after 0.3 s. The node is stopped for some time after the first
/// `before` MiB are written, while it is asked for the memory of `after` MiB.
fn write_while_the_node_stops(before: u64, after: u64) {
    // The tickets of this broker last for some seconds.
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let node = node("only", &broker.ready);
    let (transport, protection) = (TransportChoice::Tcp, Some(Protection::None));
    let (request_timeout_ms, broker_patience_ms) = (300, 60_000);
    let options = PoolOptions {
        transport,
        request_timeout_ms,
        broker_patience_ms,
        protection,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    let file = pool.create("late", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, &vec![3; (before * MIB) as usize]).expect("written");
    node.stop();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_at(before * MIB, &vec![3; (after * MIB) as usize]));
        // Longer than the tries of a pool that is full, and shorter than the time in which the broker believes the node
        // to be alive.
        std::thread::park_timeout(Duration::from_secs(3));
        node.signal(rustix::process::Signal::CONT);
        writer.join().expect("it does not panic")
    });
    written.expect("the memory that was promised is there");
    let mut found = vec![0; ((before + after) * MIB) as usize];
    file.read_at(0, &mut found).expect("a read");
    assert!(found.iter().all(|byte| *byte == 3));
}

#[test]
fn memory_promised_at_a_node_that_does_not_answer_is_waited_for() {
    write_while_the_node_stops(0, 20);
}

/// The session lives on at the node with the first MiB, and with it the memory that the node leased when nobody waited
/// for the answer any more.
#[test]
fn memory_that_a_node_has_leased_too_late_for_its_answer_is_used() {
    write_while_the_node_stops(1, 20);
}
