//! Latency of page reads of one client while another client calls hostile functions at the same node. A hostile
//! function fails, for example by access out of bounds or an endless loop.
//!
//! Calls that keep a CPU busy slow down other clients, even if they do not fail. On a machine with few CPUs, that is
//! most of the effect. Hostile calls are therefore measured in turns with harmless calls that run about as long.

use super::list::{List, NODE_BYTES, PAGE, PAGE_BYTES, check, words};
use super::shipped::WALK;
use crate::exit::Failure;
use crate::harness::statistics::quantiles;
use farpool::function::{CallOptions, Caller, Function, Outcome};
use farpool::{FarFile, Placement, Pool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a hostile call, at which the node ends it.
const DEADLINE: Duration = Duration::from_millis(5);
/// Steps of a harmless walk over the list that takes about as long as [`DEADLINE`].
const STEPS: u64 = 100_000;
/// Time during which page reads are measured beside one kind of calls in a round.
const TURN: Duration = Duration::from_millis(500);

/// Latencies of page reads beside the calls of another client.
pub(super) struct Beside {
    /// Name of what the other client does, in the results.
    pub(super) name: &'static str,
    /// Median latency, in us. `p99_us` is the 99th percentile.
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    /// Number of calls that the other client made meanwhile.
    pub(super) calls: u64,
}

/// Hostile function, and the outcome that its call must have.
type Hostile = (Function, Outcome);

/// Returns hostile modules, one for each way in which a call can fail.
fn hostile() -> Result<Vec<Hostile>, Failure> {
    let looped = "(loop $on (br $on))";
    let window = "(i32.wrap_i64 (i64.load offset=8 (local.get $call)))";
    let cases = [
        ("(drop (i64.load (i32.const -1)))".to_owned(), Outcome::OutOfBounds),
        (format!("(i64.store {window} (i64.const 1))"), Outcome::ReadOnly),
        (
            "(loop $on (br_if $on (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (unreachable)"
                .to_owned(),
            Outcome::MemoryFull,
        ),
        ("(drop (call $f (local.get $call)))".to_owned(), Outcome::StackOverflow),
        ("(unreachable)".to_owned(), Outcome::Unreachable),
        (looped.to_owned(), Outcome::Deadline),
        (format!("(drop (i8x16.splat (i32.const 1))) {looped}"), Outcome::Deadline),
    ];
    let made = |(body, outcome): (String, Outcome)| {
        let text = format!(
            "(module (memory (export \"memory\") 1)
               (func $f (export \"f\") (param $call i32) (result i64) {body} (i64.const 0)))"
        );
        let module = wat::parse_str(text).map_err(|error| Failure::Failed(error.to_string()))?;
        Ok((Function::wasm(module, "f")?, outcome))
    };
    cases.into_iter().map(made).collect()
}

fn options(deadline: Duration) -> CallOptions {
    CallOptions { placement: Placement::Ship, deadline, ..CallOptions::default() }
}

/// Calls each hostile function once. Returns the number of calls.
fn harm(caller: &Caller, hostile: &[Hostile]) -> Result<u64, Failure> {
    for (function, wanted) in hostile {
        let ended = match caller.call(function, &[], options(DEADLINE)) {
            Err(error) => error.how_it_ended().map(|ended| ended.outcome).ok_or(error)?,
            Ok(_) => Outcome::Done,
        };
        // The deadline may pass before the function fails in its own way, if the machine is busy.
        if ended != *wanted && ended != Outcome::Deadline {
            return Err(Failure::Failed(format!("a hostile function ended by {ended:?}, not {wanted:?}")));
        }
    }
    Ok(hostile.len() as u64)
}

/// Makes `count` harmless calls. The first two run about as long as the two hostile functions that loop until their
/// deadline, the others take one step. `walked` are the expected outputs of one step and of [`STEPS`] steps.
fn work(caller: &Caller, walk: &Function, walked: &[Vec<u8>; 2], count: usize) -> Result<u64, Failure> {
    for index in 0..count {
        let (steps, wanted) = if index < 2 { (STEPS, &walked[1]) } else { (1, &walked[0]) };
        let called = caller.call(walk, &words(&[0, steps, 0]), options(Duration::from_secs(10)))?;
        check(&called.output, wanted, "walk")?;
    }
    Ok(count as u64)
}

/// Measures page reads of `file` in turns: while another client of the pool is idle, while it calls a harmless
/// function, and while it calls hostile functions.
pub(super) fn measure(
    other: &Pool,
    list: &List,
    file: &FarFile,
    rounds: usize,
) -> Result<Vec<Beside>, Failure> {
    let hostile = hostile()?;
    let module = wat::parse_str(format!("{WALK})")).map_err(|error| Failure::Failed(error.to_string()))?;
    let walk = Function::wasm(module, "walk")?;
    let calls = other.open(&file.name())?.caller(Default::default())?;
    let names = ["nothing", "calls that end well", "hostile calls"];
    let mut times = vec![Vec::new(); names.len()];
    let counts = [const { AtomicU64::new(0) }; 3];
    let walked = [list.walked(0, 1), list.walked(0, STEPS)];
    let pages = list.next.len() * NODE_BYTES / PAGE_BYTES;
    let mut page = vec![0; PAGE_BYTES];
    for round in 0..rounds {
        for kind in 0..names.len() {
            let over = AtomicBool::new(false);
            let beside = || -> Result<(), Failure> {
                while kind > 0 && !over.load(Ordering::Relaxed) {
                    let made = match kind {
                        1 => work(&calls, &walk, &walked, hostile.len())?,
                        _ => harm(&calls, &hostile)?,
                    };
                    counts[kind].fetch_add(made, Ordering::Relaxed);
                }
                Ok(())
            };
            std::thread::scope(|threads| {
                let beside = threads.spawn(beside);
                let mut read = |index: usize| -> Result<(), Failure> {
                    let offset = (index * 7_919 + round) % pages * PAGE_BYTES;
                    let begun = Instant::now();
                    file.read_at(offset as u64, &mut page)?;
                    times[kind].push(begun.elapsed());
                    let wanted = u64::from(list.next[offset / NODE_BYTES]) * NODE_BYTES as u64;
                    check(&page[..8], &wanted.to_le_bytes(), PAGE)
                };
                let until = Instant::now() + TURN;
                let done = (0..).take_while(|_| Instant::now() < until).try_for_each(&mut read);
                over.store(true, Ordering::Relaxed);
                done.and(beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })?;
        }
    }
    let found = names.iter().zip(times).zip(&counts).map(|((name, mut times), calls)| {
        let [median_us, _, p99_us, ..] = quantiles(&mut times);
        Beside { name, median_us, p99_us, calls: calls.load(Ordering::Relaxed) }
    });
    Ok(found.collect())
}
