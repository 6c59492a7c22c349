//! Tests of calls: a function gives the same output wherever it runs.

use crate::pool::*;
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{CallOptions, Function, SandboxOptions};
use farpool::{ErrorKind, IfTaken, Placement, Protection};
use farpool_tests::programs::PATIENCE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const SHIP: CallOptions =
    CallOptions { placement: Placement::Ship, at: None, fresh: false, deadline: PATIENCE };

fn walk() -> Function {
    Function::wasm(module(WALK), "walk").unwrap()
}

#[test]
fn function_gives_the_same_resident_shipped_and_fetched_over_both_transports() {
    let running = Running::start(1, sandbox());
    let list = list(20_000, 64);
    for transport in [Tcp, Shm] {
        let pool = running.connect(transport);
        let file = publish(&pool, "list", &list);
        let caller = file.caller(Default::default()).unwrap();
        let args = bytes_of(&[64, 5_000, 0]);
        let wanted = walked(&list, 64, 5_000);
        for function in [Function::resident("walk").unwrap(), walk()] {
            for fresh in [false, true, false] {
                let options = CallOptions { fresh, ..SHIP };
                let called = caller.call(&function, &args, options).unwrap();
                assert_eq!(words_of(&called.output), wanted, "{function:?} over {transport:?}");
                assert_eq!(called.node.as_deref(), Some("n0"));
            }
        }
        let here = caller.call(&walk(), &args, CallOptions { placement: Placement::Fetch, ..SHIP }).unwrap();
        assert_eq!((words_of(&here.output), here.node), (wanted.to_vec(), None));
    }
}

#[test]
fn function_over_bytes_of_two_nodes_loads_from_afar_or_hops_and_gives_the_same() {
    let running = Running::start(2, sandbox());
    let list = list(100_000, 64);
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    assert_eq!(caller.nodes().len(), 2, "the file lies on both");
    let wanted = walked(&list, 0, 300);
    for function in [Function::resident("walk").unwrap(), walk()] {
        let call = |hops: u64| caller.call(&function, &bytes_of(&[0, 300, hops]), SHIP).unwrap();
        let (loads, hops) = (call(0), call(1));
        assert_eq!((words_of(&loads.output), words_of(&hops.output)), (wanted.to_vec(), wanted.to_vec()));
        assert!(loads.supplied > 0 && loads.hops == 0, "{loads:?}");
        assert!(hops.hops > 50 && hops.supplied == 0, "{hops:?}");
    }
}

#[test]
fn window_larger_than_a_node_is_read_from_end_to_end() {
    let running = Running::start_of(2, 96 << 20, sandbox());
    let list = list(40_000, 4096);
    let pool = running.connect(Shm);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    assert_eq!((caller.window_bytes(), caller.nodes().len()), (40_000 << 12, 2));
    for function in [Function::resident("walk").unwrap(), walk()] {
        let called = caller.call(&function, &bytes_of(&[0, 40_000, 1]), SHIP).unwrap();
        assert_eq!(words_of(&called.output), walked(&list, 0, 40_000), "{function:?}");
    }
}

#[test]
fn output_of_many_pieces_that_is_larger_than_the_window_arrives_whole_wherever_it_is_made() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "bytes", &[7; 100_000]).caller(Default::default()).unwrap();
    // Writes the numbers from 0 on, in as many bytes as the argument says.
    let text = r#"(module (memory (export "memory") 1) (func (export "count") (param $call i32) (result i64)
        (local $at i32) (local $end i32) (local $number i64)
        (local.set $at (i32.wrap_i64 (i64.load offset=40 (local.get $call))))
        (local.set $end (i32.add (local.get $at) (i32.load (i32.wrap_i64 (i64.load offset=24 (local.get $call))))))
        (block $done (loop $next
          (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
          (i64.store (local.get $at) (local.get $number))
          (local.set $number (i64.add (local.get $number) (i64.const 1)))
          (local.set $at (i32.add (local.get $at) (i32.const 8)))
          (br $next)))
        (i64.load (i32.wrap_i64 (i64.load offset=24 (local.get $call))))))"#;
    let count = Function::wasm(module(text), "count").unwrap();
    let wanted = bytes_of(&(0..400_000).collect::<Vec<_>>());
    let call = |placement| {
        let called = caller.call(&count, &bytes_of(&[3_200_000]), CallOptions { placement, ..SHIP }).unwrap();
        assert!(called.output == wanted, "{placement:?}");
        called.node
    };
    // A function that was never called is shipped. Afterwards it runs where that takes less time.
    assert_eq!(call(Placement::Auto).as_deref(), Some("n0"));
    assert_eq!(call(Placement::Ship).as_deref(), Some("n0"));
    assert_eq!(call(Placement::Fetch), None);
    call(Placement::Auto);
}

/// The node answers all the while: only the process stands still in which it runs functions.
#[test]
fn call_that_takes_far_longer_than_others_is_made_at_another_node_too_and_the_first_answer_counts() {
    let folder = tempfile::tempdir().unwrap();
    // The processes of this test are known by the path of their program.
    let program = folder.path().join("sandbox-of-this-test");
    std::os::unix::fs::symlink(sandbox().program, &program).unwrap();
    let running = Running::start_apart(2, SandboxOptions { program: program.clone(), ..sandbox() });
    let pool = running.connect(Tcp);
    let list = list(1_000, 64);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    let call = || {
        let called = caller.call(&walk(), &bytes_of(&[0, 10, 0]), SHIP).unwrap();
        assert_eq!(words_of(&called.output), walked(&list, 0, 10));
        called.node.unwrap()
    };
    let home = call();
    // No more than one call of 20 is made twice.
    (2..20).for_each(|_| assert_eq!(call(), home));
    let is_ours = |process: &PathBuf| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        command.starts_with(program.as_os_str().as_encoded_bytes())
    };
    let processes: Vec<PathBuf> =
        fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect();
    assert!(!processes.is_empty(), "functions run in processes");
    let pids = || processes.iter().map(|process| process.file_name().unwrap());
    assert!(Command::new("kill").arg("-STOP").args(pids()).status().unwrap().success());
    let stands = |thread: std::io::Result<fs::DirEntry>| {
        let said = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        said.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    let give_up = Instant::now() + PATIENCE;
    // Other threads go on until one of them has seen the signal.
    while !processes.iter().all(|process| fs::read_dir(process.join("task")).unwrap().all(stands)) {
        assert!(Instant::now() < give_up, "{processes:?} do not stop");
        std::thread::yield_now();
    }
    assert_ne!(call(), home, "the other node has answered");
    // Otherwise their node waits for them to end.
    assert!(Command::new("kill").arg("-CONT").args(pids()).status().unwrap().success());
}

/// `docs/functions.md` promises this. A file is built anew by a hook that its client has set with `rebuild_with`.
#[test]
fn call_whose_node_has_ended_fails_and_is_made_again_only_where_the_file_is_built_anew() {
    let mut running = Running::start(2, sandbox());
    let pool = running.connect(Tcp);
    let list = list(1_000, 64);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    let args = bytes_of(&[0, 10, 0]);
    let (home, wanted) = (caller.nodes()[0].0.clone(), walked(&list, 0, 10));
    assert_eq!(words_of(&caller.call(&walk(), &args, SHIP).unwrap().output), wanted);
    running.end(&home);
    let lost = |error: farpool::Error| {
        assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable), "{error}");
        error.kind()
    };
    let give_up = Instant::now() + PATIENCE;
    while lost(caller.call(&walk(), &args, SHIP).unwrap_err()) != ErrorKind::Lost {
        assert!(Instant::now() < give_up, "the node is known to be gone");
        std::thread::yield_now();
    }
    let bytes = list.clone();
    pool.rebuild_with("list", move |pool, name| {
        publish(pool, name, &bytes);
        Ok(())
    });
    let called = caller.call(&walk(), &args, SHIP).unwrap();
    assert_eq!(words_of(&called.output), wanted);
    assert_ne!(called.node, Some(home));
}

#[test]
fn function_kept_by_the_pool_is_found_by_another_session_and_forgotten_when_dropped() {
    let running = Running::start(1, sandbox());
    let (one, other) = (running.connect(Tcp), running.connect(Shm));
    assert_eq!(one.put_function("walk", &walk(), IfTaken::Refuse, None).unwrap().version, 1);
    assert!(one.put_function("walk", &walk(), IfTaken::Refuse, None).is_err());
    let names: Vec<_> = other.functions().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["walk"]);
    let list = list(1_000, 64);
    let caller = publish(&other, "list", &list).caller(Default::default()).unwrap();
    let called = caller.call(&other.function("walk").unwrap(), &bytes_of(&[0, 10, 0]), SHIP).unwrap();
    assert_eq!(words_of(&called.output), walked(&list, 0, 10));
    // A file of the format before has one version, whose digest it does not name.
    let module = walk();
    let head = [&b"FPFUNC01"[..], &[1], &4u16.to_le_bytes(), b"walk", &[0; 4]].concat();
    publish(&one, "functions/old", &[&head, module.bytes()].concat());
    assert_eq!(other.function("old").unwrap().digest(), module.digest());
    assert_eq!(other.function_versions("old").unwrap()[0].digest, *module.digest());
    other.drop_function("walk").unwrap();
    assert_eq!(one.function("walk").unwrap_err().kind(), farpool::ErrorKind::NotFound);
}

#[test]
fn stored_function_has_the_protection_that_was_asked_for_and_a_tag_keeps_it() {
    let apart = Running::start_apart(3, sandbox());
    let pool = apart.connect(Tcp);
    let put = |name: &str, protection| {
        let stored = pool.put_function(name, &walk(), IfTaken::Replace, protection).unwrap();
        let file = pool.open(&format!("functions/{name}")).unwrap();
        assert_eq!(stored.protection, file.protection(), "what is said is what the file has");
        (stored.version, file.copies())
    };
    assert_eq!(put("usual", None), (1, 2));
    assert_eq!(put("one", Some(Protection::None)), (1, 1));
    pool.tag_function("one", "stable").unwrap();
    assert_eq!(pool.open("functions/one").unwrap().copies(), 1, "a tag adds no copy");
    assert_eq!(put("one", Some(Protection::Mirror)), (1, 2), "the same version gets a copy");
    // A file as small as this has no stripe of so many parts.
    assert_eq!(put("rs", Some(Protection::Rs { data: 2, parity: 1 })), (1, 2));
    assert_eq!(pool.open("functions/rs").unwrap().protection(), Protection::Mirror);
    let local = pool.put_function("local", &walk(), IfTaken::Refuse, Some(Protection::Local)).unwrap_err();
    assert_eq!(local.kind(), ErrorKind::Invalid, "{local}");

    let alone = Running::start(1, sandbox());
    let pool = alone.connect(Tcp);
    let asked = Some(Protection::Mirror);
    let refused = pool.put_function("walk", &walk(), IfTaken::Refuse, asked).unwrap_err();
    assert!(refused.to_string().contains("needs memory nodes on 2 hosts"), "{refused}");
    let stored = pool.put_function("walk", &walk(), IfTaken::Refuse, None).unwrap();
    assert_eq!(stored.protection, Protection::None);
}

#[test]
fn compiled_code_is_kept_in_a_folder_that_only_the_node_gets_into() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(1, SandboxOptions { cache: Some(folder.path().to_owned()), ..sandbox() });
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "list", &list(64, 64)).caller(Default::default()).unwrap();
    caller.call(&walk(), &bytes_of(&[0, 1, 0]), SHIP).unwrap();
    let tenants = folder.path().join("tenants");
    assert_eq!(fs::metadata(&tenants).unwrap().permissions().mode() & 0o777, 0o700);
    let of_tenant = fs::read_dir(&tenants).unwrap().next().unwrap().unwrap().path();
    // Compiled code is written while the first calls run, under a temporary name.
    let give_up = Instant::now() + PATIENCE;
    let is_kept = |entry: fs::DirEntry| entry.path().extension().is_none();
    while !fs::read_dir(&of_tenant).unwrap().any(|entry| entry.is_ok_and(is_kept)) {
        assert!(Instant::now() < give_up, "no compiled code was kept in {}", of_tenant.display());
        std::thread::yield_now();
    }
}
