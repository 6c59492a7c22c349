//! Tests of functions that are malicious or broken: each ends with the right outcome, and no other caller notices.

use crate::pool::*;
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{CallOptions, Caller, CallerOptions, Function, Outcome};
use farpool::{Error, ErrorKind, Placement};
use farpool_tests::programs::PATIENCE;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of failing calls in one run, unless `FARPOOL_HOSTILE_ROUNDS` names another number.
const ROUNDS: usize = 200;

/// Returns the text of a module whose entry has this body.
fn body(text: &str) -> String {
    format!(
        "(module (memory (export \"memory\") 1) (func (export \"f\") (param $call i32) (result i64) {text}))"
    )
}

/// Returns a WebAssembly expression for the address of a byte of the window.
fn window(byte: i64) -> String {
    format!("(i32.wrap_i64 (i64.add (i64.load offset=8 (local.get $call)) (i64.const {byte})))")
}

/// Returns functions that do something forbidden or foolish: name, WebAssembly text, and the outcome of a call. They
/// are called over a window of 100,000 bytes, with room for 8,192 bytes of output.
fn cases() -> Vec<(&'static str, String, Outcome)> {
    use Outcome::*;
    let output = "(i32.wrap_i64 (i64.load offset=40 (local.get $call)))";
    let looped = "(loop $on (br $on)) (i64.const 0)";
    vec![
        ("load behind the window", body(&format!("(i64.load {})", window(1 << 20))), OutOfBounds),
        ("load before the window", body(&format!("(i64.load {})", window(-4096))), OutOfBounds),
        ("load behind the last page", body(&format!("(i64.load {})", window(102_400))), OutOfBounds),
        ("load at the last address", body("(i64.load (i32.const -1))"), OutOfBounds),
        ("load with an offset over 4 GiB", body("(i64.load offset=0xfffffff0 (i32.const -1))"), OutOfBounds),
        ("load behind its heap", body("(i64.load (i32.const 65536))"), OutOfBounds),
        (
            "store behind its heap",
            body("(i64.store (i32.const 0x20000000) (i64.const 1)) (i64.const 0)"),
            OutOfBounds,
        ),
        (
            "store to the window",
            body(&format!("(i64.store {} (i64.const 1)) (i64.const 0)", window(64))),
            ReadOnly,
        ),
        (
            "bulk copy to the window",
            body(&format!("(memory.copy {} (i32.const 0) (i32.const 64)) (i64.const 0)", window(0))),
            OutOfBounds,
        ),
        (
            "bulk copy from the window",
            body(&format!("(memory.copy (i32.const 0) {} (i32.const 64)) (i64.const 0)", window(0))),
            OutOfBounds,
        ),
        (
            "bulk fill of the window",
            body(&format!("(memory.fill {} (i32.const 0) (i32.const 64)) (i64.const 0)", window(0))),
            OutOfBounds,
        ),
        (
            "output bomb",
            body(&format!(
                "(local $at i32) (local.set $at {output}) (loop $on (i64.store (local.get $at) (i64.const 1))
                 (local.set $at (i32.add (local.get $at) (i32.const 8))) (br $on)) (i64.const 0)"
            )),
            OutputFull,
        ),
        ("more output than there is room for", body("(i64.const 8193)"), Contract),
        ("a number that means nothing", body("(i64.const -3000000000)"), Contract),
        (
            "hop to nowhere",
            body("(i64.store offset=104 (local.get $call) (i64.const 0x7fffffffffff)) (i64.const 0)"),
            Contract,
        ),
        ("a code of its own", body("(i64.const -7)"), GaveUp),
        ("endless loop", body(looped), Deadline),
        (
            "endless loop of calls",
            "(module (memory (export \"memory\") 1) (func $g (loop $on (call $h) (br $on)))
            (func $h) (func (export \"f\") (param i32) (result i64) (call $g) (i64.const 0)))"
                .to_owned(),
            Deadline,
        ),
        (
            "endless loop with vectors",
            body(&format!("(drop (i8x16.splat (i32.const 1))) {looped}")),
            Deadline,
        ),
        (
            "memory bomb",
            body("(loop $on (br_if $on (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (unreachable)"),
            MemoryFull,
        ),
        (
            "stack overflow",
            "(module (memory (export \"memory\") 1) (func $f (export \"f\") (param i32) (result i64)
            (i64.add (call $f (local.get 0)) (i64.const 1))))"
                .to_owned(),
            StackOverflow,
        ),
        ("unreachable", body("(unreachable)"), Unreachable),
        ("division by zero", body("(i64.div_u (i64.const 1) (i64.load (i32.const 0)))"), Arithmetic),
        (
            "overflow of a division",
            body(
                "(i64.div_s (i64.const 0x8000000000000000) (i64.sub (i64.load (i32.const 0)) (i64.const 1)))",
            ),
            Arithmetic,
        ),
        ("float that is no number", body("(i64.trunc_f64_s (f64.const nan))"), Arithmetic),
        (
            "call of nothing",
            "(module (memory (export \"memory\") 1) (type $t (func (result i64))) (table 4 funcref)
            (func (export \"f\") (param i32) (result i64) (call_indirect (type $t) (i32.const 1))))"
                .to_owned(),
            BadCall,
        ),
        (
            "call of another type",
            "(module (memory (export \"memory\") 1) (type $t (func (result i64))) (table 1 funcref)
            (elem (i32.const 0) $g) (func $g) (func (export \"f\") (param i32) (result i64)
            (call_indirect (type $t) (i32.const 0))))"
                .to_owned(),
            BadCall,
        ),
        (
            "call behind the table",
            "(module (memory (export \"memory\") 1) (type $t (func (result i64))) (table 1 funcref)
            (func (export \"f\") (param i32) (result i64) (call_indirect (type $t) (i32.const 9))))"
                .to_owned(),
            BadCall,
        ),
    ]
}

/// Returns modules that are refused as functions: name, text, and a part of the error.
fn bad_modules() -> Vec<(&'static str, String, &'static str)> {
    let with = |more: &str| format!("(module (memory (export \"memory\") 1) {more})");
    let entry = "(func (export \"f\") (param i32) (result i64) (i64.const 0))";
    vec![
        (
            "an import",
            with(entry).replacen("(memory", "(import \"wasi\" \"exit\" (func)) (memory", 1),
            "imports",
        ),
        ("a start function", with(&format!("(func $s) (start $s) {entry}")), "start function"),
        ("no memory", format!("(module {entry})"), "one memory"),
        ("a memory of its own", format!("(module (memory 1) {entry})"), "one memory"),
        ("a maximum", format!("(module (memory (export \"memory\") 1 2) {entry})"), "maximum"),
        ("too much memory", format!("(module (memory (export \"memory\") 20000) {entry})"), "more memory"),
        ("64-bit memory", format!("(module (memory (export \"memory\") i64 1) {entry})"), "not valid"),
        ("two memories", format!("(module (memory (export \"memory\") 1) (memory 1) {entry})"), "not valid"),
        (
            "no entry",
            with("(func (export \"g\") (param i32) (result i64) (i64.const 0))"),
            "export the entry",
        ),
        (
            "another type",
            with("(func (export \"f\") (param i64) (result i64) (i64.const 0))"),
            "another type",
        ),
        (
            "a tail call",
            with("(func $f (export \"f\") (param i32) (result i64) (return_call $f (local.get 0)))"),
            "not valid",
        ),
    ]
}

/// Returns modules of permitted length that take very long to compile: name, bytes, and a part of the error.
fn costly_modules() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let with = |more: &str| {
        let entry = "(func (export \"f\") (param i32) (result i64) (i64.const 0))";
        module(&format!("(module (memory (export \"memory\") 1) {entry} {more})"))
    };
    // The compiler keeps two values of each local for each loop: from before the loop, and from its last round.
    let (loops, locals) = (2_000, 2_000);
    let counted: String = (1..=locals)
        .map(|local| format!("local.get {local} i32.const 1 i32.add local.set {local}\n"))
        .collect();
    let nested = format!(
        "(local {}) {} {counted} {} i64.const 0",
        "i32 ".repeat(locals),
        "loop\n".repeat(loops),
        "local.get 1 br_if 0 end\n".repeat(loops)
    );
    vec![
        ("100,000 functions", with(&"(func)".repeat(100_000)), "more than 10000"),
        ("100,000 data segments", with(&"(data (i32.const 0) \"\")".repeat(100_000)), "more than 10000"),
        ("100,000 globals", with(&"(global i32 (i32.const 0))".repeat(100_000)), "more than 10000"),
        ("deeply nested loops over many locals", module(&body(&nested)), "within 60 s"),
    ]
}

fn outcome(result: Result<farpool::function::Called, Error>) -> Outcome {
    let error = result.expect_err("it does not end well");
    error.how_it_ended().unwrap_or_else(|| panic!("{error}")).outcome
}

pub fn options(ms: u64) -> CallOptions {
    CallOptions { placement: Placement::Ship, at: None, fresh: false, deadline: Duration::from_millis(ms) }
}

fn caller(pool: &farpool::Pool) -> Caller {
    let file = publish(pool, "bytes", &[7; 100_000]);
    file.caller(CallerOptions { output_bytes: 8_192, ..CallerOptions::default() }).unwrap()
}

/// Guard that sets a flag when it is dropped.
pub struct Ends<'o>(pub &'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hostile_function_ends_with_its_name_over_and_over_and_others_are_served_meanwhile() {
    let rounds =
        std::env::var("FARPOOL_HOSTILE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let running = Running::start(1, sandbox());
    let (victim, hostile) = (running.connect(Tcp), running.connect(Shm));
    let calls = caller(&hostile);
    let over = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    let list = list(2_000, 64);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let file = publish(&victim, "list", &list);
            let caller = file.caller(CallerOptions::default()).unwrap();
            let walk = Function::wasm(module(WALK), "walk").unwrap();
            let wanted = walked(&list, 0, 100);
            let mut bytes = vec![0; 4096];
            while !over.load(Ordering::Relaxed) {
                let called = caller.call(&walk, &bytes_of(&[0, 100, 0]), options(60_000)).unwrap();
                assert_eq!(words_of(&called.output), wanted);
                file.read_at(8192, &mut bytes).unwrap();
                assert_eq!(bytes, list[8192..12_288]);
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The flag is set even if an assertion fails.
        let _ends = Ends(&over);
        let cases: Vec<_> = cases()
            .into_iter()
            .map(|(name, text, wanted)| (name, Function::wasm(module(&text), "f").unwrap(), wanted))
            .collect();
        for round in 0..rounds {
            for (name, function, wanted) in &cases {
                // Most calls that run into their deadline are left out, because they would take most of the time.
                if *wanted == Outcome::Deadline && round % 20 != 0 {
                    continue;
                }
                let ms = if *wanted == Outcome::Deadline { 20 } else { 60_000 };
                assert_eq!(outcome(calls.call(function, &[], options(ms))), *wanted, "{name}, round {round}");
            }
        }
    });
    assert!(served.load(Ordering::Relaxed) > 0);
}

#[test]
fn module_that_is_no_function_is_refused_with_what_is_wrong() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let calls = caller(&pool);
    let mut bad: Vec<(&str, Vec<u8>, &str)> =
        bad_modules().into_iter().map(|(name, text, why)| (name, module(&text), why)).collect();
    bad.push(("no module", b"hello".to_vec(), "not valid"));
    bad.push(("half a module", module(WALK)[..100].to_vec(), "not valid"));
    bad.push(("nothing", Vec::new(), "not valid"));
    for (name, bytes, why) in bad {
        let error = calls.call(&Function::wasm(bytes, "f").unwrap(), &[], options(60_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
        assert!(error.to_string().contains(why), "{name}: {error}");
    }
}

#[test]
fn module_that_takes_too_long_to_compile_is_refused_with_the_bound_and_others_are_served_meanwhile() {
    let running = Running::start(1, sandbox());
    let (hostile, other) = (running.connect(Tcp), running.connect(Shm));
    let calls = caller(&hostile);
    let beside = hostile.open("bytes").unwrap().caller(CallerOptions::default()).unwrap();
    let elsewhere = other.open("bytes").unwrap().caller(CallerOptions::default()).unwrap();
    let over = AtomicBool::new(false);
    let seven = Function::wasm(module(&body("(i64.const 7)")), "f").unwrap();
    std::thread::scope(|threads| {
        // The caller `beside` is of the same session as the hostile functions, and shares their process. The caller
        // `elsewhere` has a process of its own.
        for caller in [&beside, &elsewhere] {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(caller.call(&seven, &[], options(60_000)).unwrap().output.len(), 7);
                }
            });
        }
        // The flag is set even if an assertion fails.
        let _ends = Ends(&over);
        for (name, bytes, why) in costly_modules() {
            assert!(bytes.len() <= FUNCTION_BYTES_MAX, "{name}: {} bytes", bytes.len());
            let error = calls.call(&Function::wasm(bytes, "f").unwrap(), &[], options(60_000)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{name}: {error}");
            assert!(error.to_string().contains(why), "{name}: {error}");
            assert_eq!(calls.call(&seven, &[], options(60_000)).unwrap().output.len(), 7, "behind {name}");
        }
    });
}

#[test]
fn fault_says_where_in_the_module_it_was() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let text = r#"(module (memory (export "memory") 1)
        (func $inner (param i32) (result i64) (i64.load (local.get 0)))
        (func (export "f") (param i32) (result i64) (i64.add (call $inner (i32.const 0x20000000)) (i64.const 1))))"#;
    let function = Function::wasm(module(text), "f").unwrap();
    let error = caller(&pool).call(&function, &[], options(60_000)).unwrap_err();
    let ended = error.how_it_ended().unwrap();
    assert_eq!((ended.outcome, ended.detail), (Outcome::OutOfBounds, 0x2000_0000));
    let names: Vec<&str> = ended.frames.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["inner", "function 1"]);
    assert!(ended.frames.iter().all(|(_, offset)| *offset > 0));
}

#[test]
fn file_dropped_under_a_running_function_ends_it_and_its_memory_is_free_again() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let calls = caller(&pool);
    // This function sums the window for ever.
    let text = body(&format!(
        "(local $sum i64) (loop $on (local.set $sum (i64.add (local.get $sum) (i64.load {}))) (br $on)) (i64.const 0)",
        window(8)
    ));
    let function = Function::wasm(module(&text), "f").unwrap();
    let error = std::thread::scope(|threads| {
        let call = threads.spawn(|| calls.call(&function, &[], options(60_000)).unwrap_err());
        pool.delete("bytes").unwrap();
        call.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    // Waits until the node counts no region as owned by a name or being cleaned: all its memory can be leased again.
    let status = || pool.status().unwrap().nodes[0].counts.clone();
    let give_up = std::time::Instant::now() + PATIENCE;
    while status().named > 0 || status().cleaning > 0 {
        assert!(std::time::Instant::now() < give_up, "{:?}", status());
        std::thread::yield_now();
    }
}

#[test]
fn file_dropped_while_a_function_is_compiled_is_lost_and_the_function_is_not_blamed() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let calls = caller(&pool);
    // Calls a small function first, so that the next call spends its time on compiling alone.
    let seven = Function::wasm(module(&body("(i64.const 7)")), "f").unwrap();
    calls.call(&seven, &[], options(60_000)).unwrap();
    let (.., slow, _) = costly_modules().pop().unwrap();
    let slow = Function::wasm(slow, "f").unwrap();
    let error = std::thread::scope(|threads| {
        let call = threads.spawn(|| calls.call(&slow, &[], options(60_000)).unwrap_err());
        // Compiling takes far longer than this. If it has not begun, the error is the same.
        std::thread::sleep(Duration::from_millis(500));
        pool.delete("bytes").unwrap();
        call.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// Waits until a call runs at a node, then calls `then`, and returns how the call ended.
fn during_an_endless_call(calls: &Caller, pool: &farpool::Pool, ms: u64, then: impl FnOnce()) -> Error {
    // The function does not read its window, so it does not notice that the window is gone.
    let endless = Function::wasm(module(&body("(loop $on (br $on)) (i64.const 0)")), "f").unwrap();
    std::thread::scope(|threads| {
        let call = threads.spawn(|| calls.call(&endless, &[], options(ms)).unwrap_err());
        let give_up = std::time::Instant::now() + PATIENCE;
        let is_running = || pool.running_calls("n0").unwrap().calls.iter().any(|call| *call.function == *"f");
        while !is_running() {
            assert!(std::time::Instant::now() < give_up, "it begins");
        }
        then();
        call.join().unwrap()
    })
}

#[test]
fn function_whose_file_is_moved_is_ended_and_called_again_where_the_file_is() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let calls = caller(&pool);
    during_an_endless_call(&calls, &pool, 600_000, || {
        let other = running.start_another("n1");
        let begun = std::time::Instant::now();
        let node = farpool_wire::Name::new("n0").unwrap();
        pool.drain(&farpool_wire::control::DrainNode { node, drain: true, stop: false }).unwrap();
        let count = |node| pool.running_calls(node).unwrap().count;
        while count("n0") > 0 || count("n1") == 0 {
            assert!(begun.elapsed() < PATIENCE, "it goes where the file is");
        }
        // The function runs at this node now. Its call ends with the node.
        drop(other);
    });
}

#[test]
fn function_whose_node_ends_has_lost_its_window_and_has_not_died_of_itself() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let calls = caller(&pool);
    let error = during_an_endless_call(&calls, &pool, 60_000, || drop(running));
    assert_ne!(error.kind(), ErrorKind::Stopped, "{error}");
}

#[test]
fn caller_that_leaves_ends_its_function_and_the_node_goes_on() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let endless = Function::wasm(module(&body("(loop $on (br $on)) (i64.const 0)")), "f").unwrap();
    let calls = caller(&pool);
    let give_up = std::time::Instant::now() + PATIENCE;
    let connect = || -> Result<_, Error> {
        let options = farpool::PoolOptions { request_timeout_ms: 50, ..Default::default() };
        let hasty = farpool::Pool::connect_with(pool.url(), options)?;
        let calls = hasty.open("bytes")?.caller(CallerOptions::default())?;
        Ok((hasty, calls))
    };
    {
        let (_hasty, calls) = loop {
            match connect() {
                Ok(connected) => break connected,
                Err(error) => assert!(std::time::Instant::now() < give_up, "opened: {error}"),
            }
        };
        // The function has 1 ms, and the session waits 50 ms for an answer. How the call ends does not matter: the
        // session ends afterwards.
        let slow = CallOptions { deadline: Duration::from_millis(1), ..self::options(1) };
        let _ = calls.call(&endless, &[], slow);
    }
    let one = Function::wasm(module(&body("(i64.const 0)")), "f").unwrap();
    assert_eq!(calls.call(&one, &[], options(60_000)).unwrap().output, b"");
}
