//! Tests of bad input: each kind is refused with an error that names the bad value and the permitted ones, and no data
//! is lost.

use crate::certificates::{Ca, Wish};
use crate::processes::{Process, binary};
use crate::programs::{PATIENCE, ended, output};
use crate::raw_client::{lasting_leases, one_node, soon, span};
use farpool::{ErrorKind, Pool, PoolOptions};
use farpool_transport::{ReadOp, Transport, WriteOp};
use farpool_wire::control::{Done, Hello};
use farpool_wire::frame::Header;
use farpool_wire::{Code, Opcode, Request};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// Runs the `farpool` command with these arguments. Returns its exit code and its standard error.
fn farpool(args: &[&str]) -> (Option<i32>, String) {
    let output = output(Command::new(binary()).args(args));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Asserts that the `farpool` command fails with this exit code, and that its message contains all these parts.
pub fn fails(args: &[&str], code: i32, parts: &[&str]) {
    let (found, said) = farpool(args);
    assert_eq!(found, Some(code), "{args:?} said {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} said {said:?}, which lacks {part:?}");
    }
}

#[test]
fn command_region_size_that_is_no_power_of_two_is_refused() {
    let node =
        ["node", "--name", "n", "--memory", "64MiB", "--broker", "farpool://127.0.0.1:1", "--region-size"];
    fails(&[&node[..], &["3MiB"]].concat(), 2, &["3145728", "power of two"]);
    fails(&[&node[..], &["4KiB"]].concat(), 2, &["4096"]);
    fails(&[&node[..], &["64MB"]].concat(), 2, &["--region-size", "64MB", "MiB"]);
}

#[test]
fn command_more_memory_than_the_host_has_is_refused() {
    let args = [
        "node",
        "--name",
        "n",
        "--memory",
        "4096GiB",
        "--region-size",
        "1GiB",
        "--broker",
        "farpool://127.0.0.1:1",
    ];
    fails(&args, 2, &["4398046511104", "this host's memory"]);
}

#[test]
fn command_number_of_processes_for_functions_is_refused_with_the_range() {
    for number in ["0", "1025"] {
        let args = ["node", "--name", "n", "--memory", "64MiB", "--broker", "farpool://127.0.0.1:1"];
        fails(&[&args[..], &["--function-processes", number]].concat(), 2, &[number, "1..=1024"]);
    }
}

#[test]
fn command_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    fails(&["broker", "--listen", &address], 2, &[&address, "in use"]);
    let args = [
        "node",
        "--name",
        "n",
        "--memory",
        "64MiB",
        "--broker",
        "farpool://127.0.0.1:1",
        "--listen",
        &address,
    ];
    fails(&args, 2, &[&address, "in use"]);
}

#[test]
fn command_with_an_expired_certificate_is_refused_with_the_date_and_starts_nothing() {
    let (folder, ca) = (tempfile::tempdir().expect("a folder"), Ca::new());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let issued = ca.issue(&Wish { names: &["broker.farpool"], days: (-9, -1) });
    for (name, text) in [("ca.pem", &ca.pem), ("broker.pem", &issued.cert), ("broker.key", &issued.key)] {
        std::fs::write(path(name), text).expect("written");
    }
    let (certs, store) = (path(""), path("store.redb"));
    let args = ["broker", "--listen", "127.0.0.1:0", "--store", &store, "--certs", &certs];
    fails(&args, 2, &[&path("broker.pem"), "broker.farpool", "expired on", "UTC"]);
    assert!(!std::path::Path::new(&store).exists(), "no store was made");
}

#[test]
fn command_folder_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    // Root may read all folders, so this one is none.
    let below = file.join("below").display().to_string();
    let at = folder.path().display().to_string();
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    fails(
        &["broker", "--listen", "127.0.0.1:0", "--certs", &below],
        2,
        &["--certs", &below, "Not a directory"],
    );
    fails(
        &["mount", "cache", &below, &at, "--over-non-empty", "--pool", &broker.ready],
        2,
        &[&below, "Not a directory"],
    );
    fails(&["mount", "scratch", &below, "--pool", &broker.ready], 2, &[&below, "Not a directory"]);
}

#[test]
fn command_address_beyond_this_machine_is_refused_without_plaintext() {
    fails(&["broker", "--listen", "0.0.0.0:0"], 1, &["0.0.0.0:0", "--plaintext", "loopback"]);
    let args = ["node", "--name", "n", "--memory", "64MiB", "--broker", "farpool://192.0.2.1:7700"];
    fails(&args, 1, &["192.0.2.1", "--plaintext"]);
}

#[test]
fn command_store_file_of_another_version_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.redb");
    {
        let database = redb::Database::create(&path).expect("a database");
        let transaction = database.begin_write().expect("a transaction");
        {
            let table: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
            let mut meta = transaction.open_table(table).expect("a table");
            meta.insert("format", &99u64.to_le_bytes()[..]).expect("inserted");
        }
        transaction.commit().expect("committed");
    }
    let shown = path.display().to_string();
    fails(
        &["broker", "--listen", "127.0.0.1:0", "--store", &shown],
        2,
        &[&shown, "format 99", "formats 3 to 5"],
    );
    let database = redb::Database::create(&path).expect("still a database");
    drop(database);
    let other = folder.path().join("text");
    std::fs::write(&other, "this is no store").expect("written");
    let shown = other.display().to_string();
    fails(&["broker", "--listen", "127.0.0.1:0", "--store", &shown], 2, &[&shown]);
    assert_eq!(std::fs::read(&other).expect("read"), b"this is no store");
}

/// A device such as /dev/zero never ends, so every file that is read whole needs a size limit.
#[test]
fn command_file_that_never_ends_is_refused_with_the_bytes_that_are_permitted() {
    let folder = tempfile::tempdir().expect("a folder");
    let zeros = |name: &str| {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", &link).expect("a link");
        link.display().to_string()
    };
    // The limit of 4 GiB of address space protects this machine if the command reads without a bound.
    let refuses = |args: &[&str], bytes: &str| {
        let limited = "ulimit -v 4194304; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        let output = output(command.args(["-c", limited]).arg(binary()).args(args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?} said {said}");
        assert!(said.contains(&format!("larger than {bytes} bytes")), "{args:?} said {said}");
    };
    let (wasm, text, object) = (zeros("zero.wasm"), zeros("zero.wat"), zeros("zero.so"));
    let key = folder.path().join("key").display().to_string();
    assert_eq!(farpool(&["fn", "keygen", &key]).0, Some(0));
    refuses(&["fn", "push", "zero", &wasm], "1572864");
    refuses(&["fn", "push", "zero", &text], "16777216");
    refuses(&["fn", "push", "zero", &object, "--sign", &key], "1572864");
    let short = folder.path().join("short.so").display().to_string();
    std::fs::write(&short, "short").expect("written");
    refuses(&["fn", "push", "zero", &short, "--sign", "/dev/zero"], "1048576");
    refuses(&["fn", "build", &text], "16777216");
    refuses(&["fn", "run", "resident:walk", "--on", "list", "--arg", "@/dev/zero"], "1048576");
    let node = ["node", "--name", "n", "--memory", "64MiB", "--broker", "farpool://127.0.0.1:1"];
    refuses(&[&node[..], &["--function-keys", "/dev/zero"]].concat(), "1048576");
    let files = ["--tls-ca", "/dev/zero", "--tls-cert", &key, "--tls-key", &key];
    refuses(&[&node[..], &files].concat(), "1048576");
    let broker = ["broker", "--listen", "127.0.0.1:0", "--store", "etcds://127.0.0.1:1"];
    refuses(&[&broker[..], &["--etcd-ca", "/dev/zero"]].concat(), "1048576");
}

#[test]
fn command_times_outside_their_range_are_refused() {
    fails(&["broker", "--listen", "127.0.0.1:0", "--ttl", "10ms"], 2, &["10 ms", "300"]);
    fails(&["broker", "--listen", "127.0.0.1:0", "--ttl", "10"], 2, &["--ttl", "250ms"]);
}

#[test]
fn command_pool_that_is_not_there_is_said_at_once() {
    fails(&["status", "--pool", "farpool://127.0.0.1:1"], 2, &["127.0.0.1:1"]);
    fails(&["status", "--pool", "http://127.0.0.1:1"], 2, &["http://127.0.0.1:1", "farpool://HOST:PORT"]);
}

#[test]
fn command_status_of_a_closed_pipe_is_no_error() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let mut status = Command::new(binary())
        .args(["status", "--watch", "--interval", "1ms", "--json", "--pool", &broker.ready])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut first = [0; 16];
    status.stdout.take().expect("piped").read_exact(&mut first).expect("it shows something");
    let ended = ended(&mut status, "farpool status --watch, whose output nobody reads,", PATIENCE);
    assert_eq!(ended.code(), Some(0));
}

/// Sends raw bytes to a node. Returns all that the node answers until it closes the connection.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    // The read fails if the node closes the connection with a reset; what came before is kept.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn rejection(answer: &[u8]) -> Code {
    let head = answer.first_chunk().expect("a whole header");
    Header::decode(head).expect("a header").refusal.expect("a refusal").code
}

#[test]
fn node_given_bytes_that_are_no_frame_hangs_up_and_serves_on() {
    let pool = one_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    assert_eq!(answer(&address, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n      "), b"");
    let hello = |version: u8| {
        let mut body = Vec::new();
        let client = Default::default();
        Request::Hello(Hello { version_min: version, version_max: version, client }).encode(&mut body);
        let header = Header { version, ..Header::request(Opcode::Hello, 1, &body) };
        [&header.encode()[..], &body].concat()
    };
    assert_eq!(rejection(&answer(&address, &hello(9))), Code::VersionMismatch);
    let oversize = Header { body_bytes: u32::MAX, ..Header::request(Opcode::Write, 1, &[]) };
    assert_eq!(rejection(&answer(&address, &oversize.encode())), Code::Malformed);
    let mut torn = Header::request(Opcode::Read, 1, &[0; 40]).encode();
    torn[9] ^= 1;
    assert_eq!(rejection(&answer(&address, &torn)), Code::Malformed);
    // A request before the greeting (`Hello`) is refused too.
    let early = Header::request(Opcode::Status, 1, &[]);
    assert_eq!(rejection(&answer(&address, &early.encode())), Code::Malformed);
    let mut link = pool.link(Transport::Tcp);
    let unsupported = link.call(&Request::Status(Done {}), soon());
    assert!(matches!(unsupported, Err(farpool_transport::LinkError::Refused { .. })), "{unsupported:?}");
}

#[test]
fn session_options_outside_their_range_are_refused() {
    let options = PoolOptions { request_timeout_ms: 1, ..PoolOptions::default() };
    let error = Pool::connect_with("farpool://127.0.0.1:1", options).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("10 to 600000"), "{error}");
    for url in ["127.0.0.1:7700", "farpool://", "farpool://host", "farpool://host:0", "farpool://host:70000"]
    {
        let error = Pool::connect(url).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.to_string().contains("farpool://HOST:PORT"), "{error}");
    }
}

/// The batch has more empty ranges than one request may hold, and then a range with bytes.
#[test]
fn batches_of_empty_ranges_are_answered() {
    let node = one_node(2, lasting_leases());
    for transport in [Transport::Tcp, Transport::Shm] {
        let session = node.session();
        let mut link = node.link(transport);
        let grants = session.lease_patiently(&node, &mut *link, 1);
        let bytes = vec![7; 40_000];
        let spans = || (0..200).map(|at| span(&grants[0], at, 0)).chain([span(&grants[0], 0, bytes.len())]);
        let mut writes: Vec<WriteOp<'_>> = spans().map(|span| WriteOp { span, from: &[] }).collect();
        writes[200].from = &bytes;
        link.write(&writes, soon()).expect("written");
        let mut found = vec![0; bytes.len()];
        let mut reads: Vec<ReadOp<'_>> = spans().map(|span| ReadOp { span, into: &mut [] }).collect();
        reads[200].into = &mut found;
        link.read(&mut reads, soon()).expect("read");
        assert!(found == bytes);
        let mut none: Vec<ReadOp<'_>> =
            spans().take(200).map(|span| ReadOp { span, into: &mut [] }).collect();
        link.read(&mut none, soon()).expect("nothing is read");
        session.release_all(&mut *link).expect("released");
    }
}
