//! Tests of control groups that an administrator has made for the processes of shipped functions.

use crate::pool::*;
use farpool::Placement;
use farpool::TransportChoice::Tcp;
use farpool::function::{CallOptions, CallerOptions, Function, Outcome, SandboxOptions};
use farpool_functions::Sandboxes;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that the processes of the group may use together.
const LIMIT_BYTES: u64 = 96 << 20;

/// A control group for memory, of version 1 or 2, which is removed on drop.
struct Group(PathBuf);

impl Group {
    fn new() -> Group {
        let (root, limit) = match Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let folder = Path::new(root).join(format!("farpool-test-{}", std::process::id()));
        fs::create_dir(&folder).expect("the administrator makes control groups");
        let group = Group(folder);
        fs::write(group.0.join(limit), LIMIT_BYTES.to_string()).expect("its limit");
        group
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process of the group may still be ending.
        while fs::remove_dir(&self.0).is_err() && self.0.is_dir() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn group_that_no_process_can_be_put_into_is_refused_at_the_start_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let options = SandboxOptions { groups: vec![folder.path().to_owned()], ..sandbox() };
    let message = Sandboxes::start(options).err().expect("no control group").to_string();
    assert!(message.contains(&folder.path().display().to_string()), "{message}");
    assert!(message.contains("is not a control group that accepts processes"), "{message}");
}

#[test]
fn function_that_takes_more_than_its_group_may_have_dies_and_the_node_goes_on() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only an administrator makes control groups: what a group is good for is not looked at");
        return;
    }
    let group = Group::new();
    let running = Running::start(1, SandboxOptions { groups: vec![group.0.clone()], ..sandbox() });
    let pool = running.connect(Tcp);
    let file = publish(&pool, "bytes", &[7; 8192]);
    let caller = file.caller(CallerOptions::default()).unwrap();
    // The function takes 200 MiB, in pages of 64 KiB: less than a heap may have, and more than the group's limit.
    let pages = 200 << 4;
    let greedy = format!(
        "(module (memory (export \"memory\") 1) (func (export \"f\") (param $call i32) (result i64)
           (drop (memory.grow (i32.const {pages})))
           (memory.fill (i32.const 65536) (i32.const 1) (i32.const {}))
           (i64.const 0)))",
        (pages - 1) << 16
    );
    let options = CallOptions { placement: Placement::Ship, ..CallOptions::default() };
    let greedy = Function::wasm(module(&greedy), "f").unwrap();
    let modest = "(module (memory (export \"memory\") 1)
        (func (export \"f\") (param $call i32) (result i64) (i64.const 0)))";
    let modest = Function::wasm(module(modest), "f").unwrap();
    for _ in 0..3 {
        let error = caller.call(&greedy, &[], options).expect_err("it has no room");
        let ended = error.how_it_ended().expect("it was called");
        assert_eq!((ended.outcome, ended.detail), (Outcome::Died, 9), "{error}");
        caller.call(&modest, &[], options).expect("a process of its own, in the same group");
        let mut bytes = [0; 8192];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8192]);
    }
}
