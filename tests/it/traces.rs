//! Trace ids: the id that a client is told of its call is in the log of the node that worked for it.

use crate::processes::{Process, binary, broker, connect};
use crate::programs::{PATIENCE, output};
use farpool::function::{CallOptions, CallerOptions, Function};
use farpool::{CreateOptions, FileClass, IfTaken, Placement, Pool, TraceId, TransportChoice};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts a node that writes all its events to a file, as JSON lines.
fn node(broker: &str, log: &Path) -> Process {
    let mut command = Command::new(binary());
    command.args(["node", "--name", "n", "--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"]);
    command.args(["--broker", broker, "--log-level", "debug"]);
    Process::begin(command.stderr(File::create(log).expect("a file for the log")))
}

/// Returns the kinds of the events in a log that have this trace id, in order.
fn events(log: &Path, trace: &str) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("the log");
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_trace = events.filter(|event| event["trace"] == *trace);
    of_trace.filter_map(|event| Some(event["event"].as_str()?.to_owned())).collect()
}

/// Waits until a log has these events of a trace id, and no others.
fn wait_for(log: &Path, trace: &str, wanted: &[&str]) {
    let begun = Instant::now();
    while events(log, trace) != wanted {
        let found = events(log, trace);
        assert!(begun.elapsed() < PATIENCE, "trace {trace} has the events {found:?}, not {wanted:?}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn publish(pool: &Pool, name: &str) {
    let file = pool.create(name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, &[7; 4096]).expect("written");
    pool.publish(name, IfTaken::Refuse).expect("published");
}

#[test]
fn trace_that_a_call_prints_is_in_the_log_of_the_node_that_ran_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let broker = broker("memory", "127.0.0.1:0");
    let _node = node(&broker.ready, &log);
    publish(&connect(&broker.ready, TransportChoice::Tcp), "list");
    let mut run = Command::new(binary());
    run.args(["fn", "run", "resident:checksum", "--on", "list", "--arg", "u64:0", "--arg", "u64:4096"]);
    let ran = output(run.args(["--placement", "ship", "--json", "--pool", &broker.ready]));
    let said: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr))
    });
    let trace = said["outputs"][0]["trace"].as_str().expect("a trace id");
    wait_for(&log, trace, &["lane_opened", "call_finished"]);
}

#[test]
fn calls_have_traces_of_their_own_unless_the_caller_was_given_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let broker = broker("memory", "127.0.0.1:0");
    let _node = node(&broker.ready, &log);
    let pool = connect(&broker.ready, TransportChoice::Tcp);
    publish(&pool, "list");
    let checksum = Function::resident("checksum").expect("a function");
    let args: Vec<u8> = [0u64, 4096].iter().flat_map(|word| word.to_le_bytes()).collect();
    let options = CallOptions { placement: Placement::Ship, ..CallOptions::default() };
    let caller = || pool.open("list").expect("there").caller(CallerOptions::default()).expect("a caller");

    let own = caller();
    let called = |caller: &farpool::function::Caller| {
        caller.call(&checksum, &args, options).expect("called").trace.to_string()
    };
    let (first, second) = (called(&own), called(&own));
    assert_ne!(first, second);
    wait_for(&log, &first, &["lane_opened", "call_finished"]);
    // The second call uses the lane of the first.
    wait_for(&log, &second, &["call_finished"]);

    let given = caller().traced(TraceId(0xfeed));
    assert_eq!((called(&given), called(&given)), (TraceId(0xfeed).to_string(), TraceId(0xfeed).to_string()));
    wait_for(&log, &TraceId(0xfeed).to_string(), &["lane_opened", "call_finished", "call_finished"]);
}
