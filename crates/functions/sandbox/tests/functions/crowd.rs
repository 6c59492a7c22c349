//! Tests with more callers than a node has processes for: callers wait for each other, and none is refused without
//! need.
//!
//! Regression: when 200 clients called one after the other, the 17th was refused. The processes of the first 16 were
//! kept for 10 s after their last call, and as long as their clients held connections.

use crate::hostile::{Ends, options};
use crate::pool::*;
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{Caller, CallerOptions, Function, SandboxOptions};
use farpool::{Error, ErrorKind, Pool, Retry};
use farpool_tests::programs::PATIENCE;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A client and its caller of functions. Dropping the pool ends its session.
struct Client {
    caller: Caller,
    _pool: Pool,
}

impl Client {
    fn of(pool: Pool) -> Client {
        let narrow = CallerOptions { output_bytes: 4_096, ..CallerOptions::default() };
        Client { caller: pool.open("words").unwrap().caller(narrow).unwrap(), _pool: pool }
    }

    fn call(&self, function: &Function, deadline_ms: u64) -> Result<Vec<u8>, Error> {
        Ok(self.caller.call(function, &[], options(deadline_ms))?.output)
    }
}

/// Returns a function that outputs the first word of the window.
fn first_word() -> Function {
    let text = r#"(module (memory (export "memory") 1) (func (export "f") (param $call i32) (result i64)
        (i64.store (i32.wrap_i64 (i64.load offset=40 (local.get $call)))
          (i64.load (i32.wrap_i64 (i64.load offset=8 (local.get $call)))))
        (i64.const 8)))"#;
    Function::wasm(module(text), "f").unwrap()
}

fn endless() -> Function {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "f") (param i32) (result i64) (loop $on (br $on)) (i64.const 0)))"#;
    Function::wasm(module(text), "f").unwrap()
}

/// Starts a node with at most this many processes, and publishes a file of words on it.
fn running(processes_max: usize, queue_ms: u64) -> (Running, Pool) {
    let running = Running::start(1, SandboxOptions { processes_max, queue_ms, ..sandbox() });
    let pool = running.connect(Tcp);
    publish(&pool, "words", &bytes_of(&[7; 512]));
    (running, pool)
}

#[test]
fn two_hundred_clients_that_stay_and_call_in_turn_are_all_served() {
    let (running, _pool) = running(16, 600_000);
    let function = first_word();
    let mut clients = Vec::new();
    for index in 0..200 {
        let client = Client::of(running.connect(if index % 2 == 0 { Tcp } else { Shm }));
        assert_eq!(client.call(&function, 60_000).unwrap(), [7, 0, 0, 0, 0, 0, 0, 0], "client {index}");
        clients.push(client);
    }
    // The first clients have lost their processes to the last ones, and get new ones.
    for (index, client) in clients.iter().enumerate().take(20) {
        assert_eq!(
            client.call(&function, 60_000).unwrap(),
            [7, 0, 0, 0, 0, 0, 0, 0],
            "client {index}, again"
        );
    }
}

#[test]
fn clients_that_call_at_once_wait_for_each_other() {
    let (running, _pool) = running(2, 600_000);
    let function = first_word();
    let clients: Vec<Client> = (0..16).map(|_| Client::of(running.connect(Tcp))).collect();
    let all_there = Barrier::new(clients.len());
    thread::scope(|threads| {
        for client in &clients {
            threads.spawn(|| {
                all_there.wait();
                for _ in 0..3 {
                    assert_eq!(client.call(&function, 60_000).unwrap(), [7, 0, 0, 0, 0, 0, 0, 0]);
                }
            });
        }
    });
}

#[test]
fn client_that_waited_in_vain_is_told_how_many_run_and_by_which_flag_there_may_be_more() {
    let (running, pool) = running(2, 200);
    let (function, endless) = (first_word(), endless());
    let busy: Vec<Client> = (0..2).map(|_| Client::of(running.connect(Tcp))).collect();
    let over = AtomicBool::new(false);
    let error = thread::scope(|threads| {
        for client in &busy {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // The call ends at its deadline, or gets no process before the other clients do.
                    client.call(&endless, 1_000).expect_err("it never ends by itself");
                }
            });
        }
        let _over = Ends(&over);
        let give_up = Instant::now() + PATIENCE;
        loop {
            // A client that was served is dropped, and leaves its process to others.
            match Client::of(running.connect(Tcp)).call(&function, 60_000) {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < give_up, "functions that never end do not fill the node"),
            }
        }
    });
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Exhausted, Retry::Later), "{error}");
    let message = error.to_string();
    assert!(message.contains("none of the 2 function processes"), "{message}");
    assert!(message.contains("--function-processes"), "{message}");
    // Nothing runs any more, so there is room once the node has noticed that.
    let client = Client::of(pool);
    let give_up = Instant::now() + PATIENCE;
    while let Err(error) = client.call(&function, 60_000) {
        assert!(Instant::now() < give_up && error.retry() == Retry::Later, "{error}");
    }
}

#[test]
fn caller_is_refused_when_its_turn_is_over_though_a_process_is_still_starting() {
    let folder = tempfile::tempdir().unwrap();
    let (program, tried) = (folder.path().join("program"), folder.path().join("tried"));
    let (real, tried) = (sandbox().program.display().to_string(), tried.display().to_string());
    // The node starts the program once at its own start, to test it. Later processes read what they are sent, answer
    // nothing, and end with the node.
    let script =
        format!("#!/bin/sh\n[ -e {tried} ] && exec /bin/cat > /dev/null\n: > {tried}\nexec {real} \"$@\"\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let running = Running::start(1, SandboxOptions { queue_ms: 200, program, ..sandbox() });
    let pool = running.connect(Tcp);
    publish(&pool, "words", &bytes_of(&[7; 512]));
    let client = Client::of(pool);
    for _ in 0..2 {
        let error = client.call(&first_word(), 60_000).unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Exhausted, Retry::Later), "{error}");
        let give_up = Instant::now() + PATIENCE;
        while starting() == 0 {
            assert!(Instant::now() < give_up, "a process is started for the caller");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(starting(), 1, "the process that was started for the first caller is awaited by all");
    }
}

/// Counts the processes started by this process that run `cat`.
fn starting() -> usize {
    let own = std::process::id().to_string();
    let is_ours = |stat: &String| {
        stat.contains("(cat)")
            && stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)) == Some(&own)
    };
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    stats.flat_map(|entry| std::fs::read_to_string(entry.path().join("stat"))).filter(is_ours).count()
}
