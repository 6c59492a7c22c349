//! Tests of native functions: trusted ones run, and whatever they do ends at most their own process.

use crate::hostile::options;
use crate::pool::*;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{CallOptions, CallerOptions, Function, Outcome, SandboxOptions};
use farpool::{Error, ErrorKind, Placement, Way};
use farpool_calls::SigningKey;
use farpool_tests::programs::PATIENCE;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// C source of functions that fail in machine code, one way in each entry. `sum` is harmless.
const SOURCE: &str = r#"
#include "farpool.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

FARPOOL_FUNCTION(sum) {
    uint64_t total = 0;
    for (uint64_t at = 0; farpool_has(call, at, 8); at += 8) total += farpool_u64(call, at);
    return farpool_put(call, &total, sizeof total);
}
FARPOOL_FUNCTION(store_nowhere) { *(volatile char *)8 = 1; return 0; }
FARPOOL_FUNCTION(store_window) { *(volatile char *)call->window = 1; return 0; }
FARPOOL_FUNCTION(open_window) {
    if (mprotect((void *)call->window, 4096, PROT_READ | PROT_WRITE)) return -5;
    *(volatile char *)call->window = 1;
    return 0;
}
FARPOOL_FUNCTION(trap) { __builtin_trap(); }
FARPOOL_FUNCTION(give_up) { abort(); }
FARPOOL_FUNCTION(leave) { _exit(0); }
FARPOOL_FUNCTION(connect_out) { return socket(AF_INET, SOCK_STREAM, 0); }
FARPOOL_FUNCTION(start_program) { return execl("/bin/true", "true", (char *)0); }
FARPOOL_FUNCTION(fork_off) { return fork(); }
static volatile int goes_on = 1;
FARPOOL_FUNCTION(loop) { while (goes_on) {} return 0; }
static int deep(volatile char *before) { volatile char here[4096]; here[0] = *before; return deep(here) + here[0]; }
FARPOOL_FUNCTION(recurse) { char none = 0; return deep(&none); }
/* Every descriptor that the process has: written to, cut off, and its pages given back. How many gave way. */
FARPOOL_FUNCTION(spoil) {
    uint64_t spoiled = 0, at_window = 0;
    for (int fd = 0; fd < 256; fd++) {
        char was[64], now[64];
        if (pread(fd, was, 64, 0) != 64 || __builtin_memcmp(was, (void *)call->window, 64)) continue;
        at_window++;
        for (int i = 0; i < 64; i++) now[i] = (char)(was[i] ^ 0x55);
        spoiled += pwrite(fd, now, 64, 0) >= 0;
        spoiled += ftruncate(fd, 0) == 0;
        spoiled += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 65536) == 0;
        spoiled += mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
        char path[32] = "/proc/self/fd/";
        path[14] = (char)('0' + fd / 100), path[15] = (char)('0' + fd / 10 % 10), path[16] = (char)('0' + fd % 10);
        spoiled += open(path, O_RDWR) >= 0;
    }
    uint64_t found[2] = {spoiled, at_window};
    return farpool_put(call, found, sizeof found);
}
"#;

/// Compiles the functions of `SOURCE`, and returns the bytes of the shared object.
fn built() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("harm.so");
    compile(SOURCE, &["-fPIC", "-shared"], &object);
    std::fs::read(&object).unwrap()
}

/// Compiles a C source that includes the header for functions.
pub fn compile(source: &str, flags: &[&str], to: &Path) {
    let file = to.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../sdk/c");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(cc);
    command.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-I"]).arg(sdk).args(flags).arg(&file);
    assert!(command.arg("-o").arg(to).arg("-ldl").status().unwrap().success());
}

pub fn signer() -> SigningKey {
    SigningKey::generate().unwrap().0
}

pub fn signed(signer: &SigningKey, object: &[u8], entry: &str) -> Function {
    signer.sign(object.to_vec(), entry).unwrap()
}

pub fn trusting(signer: &SigningKey) -> SandboxOptions {
    SandboxOptions { keys: vec![signer.public()], ..sandbox() }
}

#[test]
fn native_function_that_breaks_ends_its_process_by_name_and_the_bytes_stay_what_they_were() {
    use Outcome::*;
    let signer = signer();
    let running = Running::start(1, trusting(&signer));
    let (victim, hostile) = (running.connect(Tcp), running.connect(Shm));
    let words: Vec<u64> = (1..=100_000).collect();
    let bytes = bytes_of(&words);
    let file = publish(&victim, "words", &bytes);
    let narrow = || CallerOptions { output_bytes: 8_192, ..CallerOptions::default() };
    let (beside, calls) =
        (file.caller(narrow()).unwrap(), hostile.open("words").unwrap().caller(narrow()).unwrap());
    let object = built();
    let total = words.iter().sum::<u64>();
    let sums = |caller: &farpool::function::Caller| {
        let called = caller.call(&signed(&signer, &object, "sum"), &[], options(60_000)).unwrap();
        assert_eq!(words_of(&called.output), [total]);
    };
    // Name of the entry, outcome of its call, and the detail of the outcome: the number of the signal that ended the
    // process (0 if none), the deadline in ms, or the function's own code.
    let cases: [(&str, Outcome, u64); 11] = [
        ("store_nowhere", Died, 11),
        ("store_window", Died, 11),
        ("trap", Died, 4),
        ("give_up", Died, 6),
        ("leave", Died, 0),
        ("connect_out", Died, 31),
        ("start_program", Died, 31),
        ("fork_off", Died, 31),
        ("recurse", Died, 6),
        ("loop", Deadline, 50),
        ("open_window", GaveUp, 5),
    ];
    for round in 0..5 {
        for (entry, wanted, detail) in cases {
            let ms = if wanted == Deadline { 50 } else { 60_000 };
            let error = calls.call(&signed(&signer, &object, entry), &[], options(ms)).unwrap_err();
            let ended = error.how_it_ended().unwrap_or_else(|| panic!("{entry}, round {round}: {error}"));
            assert_eq!((ended.outcome, ended.detail), (wanted, detail), "{entry}, round {round}");
            // `beside` is another caller, with a process of its own. The next call of `calls` runs in a new process.
            sums(&beside);
        }
        sums(&calls);
    }
    let spoiled = calls.call(&signed(&signer, &object, "spoil"), &[], options(60_000)).unwrap();
    let [spoiled, looked_at] = words_of(&spoiled.output)[..] else { panic!("{spoiled:?}") };
    assert!(spoiled == 0 && looked_at > 0, "{spoiled} of the attempts on {looked_at} descriptors worked");
    let mut read = vec![0; bytes.len()];
    file.read_at(0, &mut read).unwrap();
    assert!(read == bytes, "the file is what was published");
}

#[test]
fn file_dropped_under_a_running_native_function_ends_it_by_name() {
    let signer = signer();
    let running = Running::start(1, trusting(&signer));
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "words", &[7; 100_000]).caller(CallerOptions::default()).unwrap();
    let endless = signed(&signer, &built(), "loop");
    let error = std::thread::scope(|threads| {
        let call = threads.spawn(|| caller.call(&endless, &[], options(60_000)).unwrap_err());
        let give_up = Instant::now() + PATIENCE;
        let calls = || pool.running_calls("n0").unwrap().calls.to_vec();
        while !calls().iter().any(|call| *call.function == *"loop") {
            assert!(Instant::now() < give_up, "it begins: {:?}", calls());
        }
        pool.delete("words").unwrap();
        call.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(pool.running_calls("n0").unwrap().count, 0);
}

#[test]
fn native_function_that_nobody_vouches_for_is_refused() {
    let (signer, stranger) = (signer(), signer());
    let running = Running::start(1, trusting(&signer));
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "bytes", &[1; 8]).caller(Default::default()).unwrap();
    let object = built();
    let refused = |function: Result<Function, Error>, why: &str| {
        let error = caller.call(&function.unwrap(), &[], CallOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(why), "{error} does not say {why:?}");
    };
    let (key, mut forged) = (signer.public(), signer.signature(&object));
    forged[3] ^= 1;
    refused(Function::native(object.clone(), "sum", key, forged), "the node trusts");
    // The signature is a stranger's, under the name of the trusted key.
    refused(Function::native(object.clone(), "sum", key, stranger.signature(&object)), "the node trusts");
    refused(Ok(signed(&stranger, &object, "sum")), "the node trusts");
    let mut changed = object.clone();
    changed.push(0);
    refused(Function::native(changed, "sum", key, signer.signature(&object)), "the node trusts");
    refused(Ok(signed(&signer, &object, "no_such_entry")), "does not export the entry");
    refused(Ok(signed(&signer, b"\x7fELF, but no more of it", "sum")), "cannot be loaded");
    // Changes the field of the ELF header that names the machine.
    let mut foreign = object.clone();
    foreign[18..20].copy_from_slice(&0xf3fe_u16.to_le_bytes());
    refused(Ok(signed(&signer, &foreign, "sum")), "cannot be loaded");
    let called = caller.call(&signed(&signer, &object, "sum"), &[], CallOptions::default()).unwrap();
    assert_eq!(words_of(&called.output), [0x0101_0101_0101_0101]);
}

/// The folder of compiled code may hold modules from before the node asked for signatures.
#[test]
fn module_is_run_only_if_a_trusted_key_signed_it_where_signatures_are_asked_for() {
    let (signer, stranger) = (signer(), signer());
    let folder = tempfile::tempdir().unwrap();
    let text = r#"(module (memory (export "memory") 1)
        (func (export "nothing") (param i32) (result i64) (i64.const 0)))"#;
    let unsigned = Function::wasm(module(text), "nothing").unwrap();
    let ship = CallOptions { placement: Placement::Ship, ..CallOptions::default() };
    for signed_alone in [false, true] {
        let cache = Some(folder.path().to_owned());
        let running = Running::start(1, SandboxOptions { cache, signed_alone, ..trusting(&signer) });
        let pool = running.connect(Tcp);
        let caller = publish(&pool, "bytes", &[1; 8]).caller(Default::default()).unwrap();
        for function in [unsigned.clone(), stranger.sign_wasm(unsigned.clone())] {
            match (signed_alone, caller.call(&function, &[], ship)) {
                (false, Ok(_)) => {}
                (true, Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                    assert!(error.to_string().contains("not signed by one of the 1 keys"), "{error}");
                }
                (_, other) => panic!("{signed_alone}: {other:?}"),
            }
        }
        caller.call(&signer.sign_wasm(unsigned.clone()), &[], ship).unwrap();
        // The process has compiled it by now, for whoever had it signed.
        caller.call(&unsigned, &[], ship).unwrap();
    }
}

/// Regression: a client's own sandbox holds no keys. Choosing a placement once ignored that, and calls failed as soon
/// as fetching seemed to take less time.
#[test]
fn native_function_runs_at_nodes_though_fetching_would_take_less_and_places_on_this_machine_are_refused() {
    let signer = signer();
    let running = Running::start(1, trusting(&signer));
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "bytes", &[1; 8]).caller(Default::default()).unwrap();
    // The window is in memory here after this call, so any function that can run here takes less time here.
    let text = r#"(module (memory (export "memory") 1)
        (func (export "nothing") (param i32) (result i64) (i64.const 0)))"#;
    let nothing = Function::wasm(module(text), "nothing").unwrap();
    let fetch = CallOptions { placement: Placement::Fetch, ..CallOptions::default() };
    caller.call(&nothing, &[], fetch).unwrap();
    let sum = signed(&signer, &built(), "sum");
    for _ in 0..50 {
        let called = caller.call(&sum, &[], CallOptions::default()).unwrap();
        assert_eq!(
            (words_of(&called.output), called.node.as_deref()),
            (vec![0x0101_0101_0101_0101], Some("n0"))
        );
    }
    let plan = caller.explain(&sum);
    assert_eq!((plan.choice, plan.fetch), (Way::Ship, None), "{plan}");
    assert!(plan.why.contains("native"), "{plan}");

    let schema = Arc::new(Schema::new(vec![Field::new("amount", DataType::Int64, false)]));
    let column: ArrayRef = Arc::new((0..200_000).collect::<Int64Array>());
    pool.put_table("amounts", Arc::clone(&schema), [RecordBatch::try_new(schema, vec![column]).unwrap()])
        .unwrap();
    let table = pool.table("amounts").unwrap().caller(&["amount"], Default::default()).unwrap();
    table.call_each(&nothing, &[], fetch).unwrap();
    for _ in 0..50 {
        let called = table.call_each(&sum, &[], CallOptions::default()).unwrap();
        assert_eq!(called[0].node.as_deref(), Some("n0"));
    }
    let plan = table.explain_each(&sum);
    assert_eq!((plan.choice, plan.fetch, plan.split), (Way::Ship, None, None), "{plan}");

    for (function, why) in [(&sum, "native"), (&Function::resident("checksum").unwrap(), "built into nodes")]
    {
        for placement in [Placement::Fetch, Placement::Split] {
            let options = CallOptions { placement, ..CallOptions::default() };
            let one = caller.call(function, &[], options).unwrap_err();
            let each = table.call_each(function, &[], options).unwrap_err();
            for error in [one, each] {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains(why), "{error} does not say {why:?}");
            }
        }
    }
}

#[test]
fn native_function_is_refused_where_no_key_is_trusted() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "bytes", &[1; 8]).caller(Default::default()).unwrap();
    let error = caller.call(&signed(&signer(), &built(), "sum"), &[], options(60_000)).unwrap_err();
    assert!(error.to_string().contains("the node does not run native functions"), "{error}");
}
