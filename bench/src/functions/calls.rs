//! Measures calls of functions at a memory node: resident ones (built into the node), WebAssembly and native code. They
//! take turns with empty round trips and page reads, with which they are compared.

use super::args::FunctionArgs;
use super::figures::{EMPTY, EMPTY_RESIDENT, Kind, Point, Scan};
use super::list::{List, NODE_BYTES, PAGE, PAGE_BYTES, check, words};
use super::shipped::{Examples, module, shipped};
use super::stage::{LIST, Stage, await_files};
use super::{beside, row_groups};
use crate::Outcome;
use crate::exit::Failure;
use crate::harness::statistics::median;
use farpool::FarFile;
use farpool::TransportChoice;
use farpool::function::{CallOptions, Caller, Function};
use farpool_host::waiting::Waiting;
use std::time::Instant;

/// Untimed calls before the timed calls of one kind in a round.
const WARM_UP: usize = 200;
/// Bytes of the shorter scan, which fit in a CPU cache. The longer scan reads the whole list.
const SCANNED_BYTES: u64 = 256 << 10;
/// Scans of each kind per round.
const SCANS_EACH: usize = 30;

fn timed<T>(kind: &mut Kind, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let begun = Instant::now();
    let result = run()?;
    kind.times.push(begun.elapsed());
    Ok(result)
}

pub(super) fn measure(
    args: &FunctionArgs,
    list: &List,
    way: Waiting,
    transport: TransportChoice,
    examples: Option<&Examples>,
) -> Result<Point, Failure> {
    let cache = tempfile::tempdir()?;
    let mut more = vec!["--function-cache".to_owned(), cache.path().display().to_string()];
    if let Some(examples) = examples {
        more.extend(["--function-keys".to_owned(), examples.keys.path().display().to_string()]);
    }
    let firsts = (args.calls / 10).max(10) as usize;
    // The nodes of an existing pool may have cached the compiled functions of an earlier run. A number that is unique
    // to this run makes the modules differ from those.
    let unique = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64 >> 1);
    let made = |functions, from: usize| -> Result<Vec<Function>, Failure> {
        let number = |at: usize| unique.wrapping_add((from + at) as u64);
        (0..firsts).map(|at| Ok(Function::wasm(module(functions, number(at))?, "walk")?)).collect()
    };
    let (ones, eights) = (made(1, 0)?, made(8, firsts)?);
    // These functions are compiled by the node of a first pool. The node of the second pool, which is measured, then
    // finds them in the same compile cache.
    let cached = if args.pool.is_none() { made(1, 2 * firsts)? } else { Vec::new() };
    if !cached.is_empty() {
        let stage = Stage::new(args, way, transport, &more)?;
        let caller = stage.publish(list)?.caller(Default::default())?;
        for function in &cached {
            caller.call(function, &words(&[0, 1, 0]), shipped())?;
        }
        await_files(cache.path(), cached.len())?;
    }
    let stage = Stage::new(args, way, transport, &more)?;
    let file = stage.publish(list)?;
    let found = measure_at(args, list, way, &stage, &file, [&ones, &eights, &cached], examples);
    stage.pool.delete(LIST)?;
    found
}

/// Measures one pool, over the list in `file`. `firsts` are functions whose first call is measured: from modules of one
/// function, from modules of eight functions, and from modules that are in the compile cache.
fn measure_at(
    args: &FunctionArgs,
    list: &List,
    way: Waiting,
    stage: &Stage,
    file: &FarFile,
    firsts: [&[Function]; 3],
    examples: Option<&Examples>,
) -> Result<Point, Failure> {
    let caller = file.caller(Default::default())?;
    let mut kinds: Vec<Kind> = [
        EMPTY_RESIDENT,
        "resident",
        EMPTY,
        "wasm, warm",
        "wasm, fresh instance",
        "wasm, first use, 1 function",
        "wasm, first use, 8 functions",
        "wasm, first use, compiled before",
        PAGE,
        "native, first use",
        "native",
    ]
    .map(Kind::new)
    .into();
    let (resident, walk) = (Function::resident("walk")?, Function::wasm(module(1, u64::MAX)?, "walk")?);
    let one = list.walked(0, 1);
    let step = words(&[0, 1, 0]);
    let each = args.calls.div_ceil(args.rounds) as usize;
    let first_each = firsts[0].len().div_ceil(args.rounds as usize);
    let mut page = vec![0; PAGE_BYTES];
    let pages = list.next.len() * NODE_BYTES / PAGE_BYTES;
    for round in 0..args.rounds as usize {
        let calls = |kind: &mut Kind, function: &Function, options: CallOptions| -> Outcome {
            for _ in 0..WARM_UP {
                caller.call(function, &step, options)?;
            }
            for _ in 0..each {
                let called = timed(kind, || Ok(caller.call(function, &step, options)?))?;
                check(&called.output, &one, kind.name)?;
            }
            Ok(())
        };
        for _ in 0..each {
            timed(&mut kinds[0], || Ok(caller.round_trip(&resident)?))?;
        }
        calls(&mut kinds[1], &resident, shipped())?;
        for _ in 0..each {
            timed(&mut kinds[2], || Ok(caller.round_trip(&walk)?))?;
        }
        calls(&mut kinds[3], &walk, shipped())?;
        calls(&mut kinds[4], &walk, CallOptions { fresh: true, ..shipped() })?;
        for (kind, functions) in (5..).zip(firsts) {
            for function in functions.iter().skip(round * first_each).take(first_each) {
                let called = timed(&mut kinds[kind], || Ok(caller.call(function, &step, shipped())?))?;
                check(&called.output, &one, kinds[kind].name)?;
            }
        }
        for index in 0..each {
            let offset = (index * 7_919 + round) % pages * PAGE_BYTES;
            timed(&mut kinds[8], || Ok(file.read_at(offset as u64, &mut page)?))?;
            let wanted = u64::from(list.next[offset / NODE_BYTES]) * NODE_BYTES as u64;
            check(&page[..8], &wanted.to_le_bytes(), PAGE)?;
        }
        if let Some(examples) = examples {
            let each = examples.walks.len().div_ceil(args.rounds as usize);
            for function in examples.walks.iter().skip(round * each).take(each) {
                let called = timed(&mut kinds[9], || Ok(caller.call(function, &step, shipped())?))?;
                check(&called.output, &one, "native")?;
            }
            calls(&mut kinds[10], &examples.walk, shipped())?;
        }
    }
    kinds.retain(|kind| !kind.times.is_empty());
    let access_ns = accesses(args, list, &caller, &resident, &walk, examples)?;
    let scans = examples.map_or(Ok(Vec::new()), |examples| scans(args, list, &caller, examples))?;
    let beside = beside::measure(&stage.connect()?, list, file, args.rounds as usize)?;
    let placed = row_groups::measure(&stage.connect()?, &args.work, args.rounds as usize)?;
    Ok(Point { transport: stage.transport, way, kinds, access_ns, scans, beside, placed })
}

/// Measures a walk of `--steps` list nodes by each kind of function, in turns. Returns the name of each kind and its ns
/// per step.
fn accesses(
    args: &FunctionArgs,
    list: &List,
    caller: &Caller,
    resident: &Function,
    walk: &Function,
    examples: Option<&Examples>,
) -> Result<Vec<(&'static str, f64)>, Failure> {
    if args.steps == 0 {
        return Ok(Vec::new());
    }
    let mut functions = vec![("resident", resident), ("wasm", walk)];
    functions.extend(examples.map(|examples| ("native", &examples.walk)));
    let wanted = list.walked(0, args.steps);
    let mut times = vec![Vec::new(); functions.len()];
    for _ in 0..args.rounds {
        for ((name, function), times) in functions.iter().zip(&mut times) {
            let called = caller.call(function, &words(&[0, args.steps, 0]), shipped())?;
            check(&called.output, &wanted, name)?;
            times.push(called.ran.as_nanos() as f64 / args.steps as f64);
        }
    }
    Ok(functions.iter().zip(times).map(|((name, _), times)| (*name, median(times.into_iter()))).collect())
}

/// Measures scans of the list by each form of a function (WebAssembly without and with vectors, native), in turns.
fn scans(
    args: &FunctionArgs,
    list: &List,
    caller: &Caller,
    examples: &Examples,
) -> Result<Vec<Scan>, Failure> {
    let bytes = list.bytes();
    let mut found = Vec::new();
    for (name, forms) in &examples.scans {
        for scanned in [SCANNED_BYTES.min(bytes.len() as u64), bytes.len() as u64] {
            let values =
                bytes[..scanned as usize].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let threshold = scanned / 2;
            let passing = || values.clone().filter(|value| *value > threshold);
            let (asked, wanted) = match *name {
                "sum" => (vec![0, scanned / 8], vec![values.clone().fold(0, u64::wrapping_add)]),
                _ => {
                    let sum = passing().fold(0, u64::wrapping_add);
                    (vec![0, scanned / 8, threshold], vec![sum, passing().count() as u64])
                }
            };
            let (asked, wanted) = (words(&asked), words(&wanted));
            let mut rates = vec![Vec::new(); forms.len()];
            for _ in 0..args.rounds as usize * SCANS_EACH {
                for ((form, function), rates) in forms.iter().zip(&mut rates) {
                    let called = caller.call(function, &asked, shipped())?;
                    check(&called.output, &wanted, form)?;
                    rates.push(scanned as f64 / called.ran.as_nanos().max(1) as f64);
                }
            }
            let rates = forms.iter().zip(rates).map(|((form, _), rates)| (*form, median(rates.into_iter())));
            found.push(Scan { name, bytes: scanned, gb_per_s: rates.collect() });
        }
    }
    Ok(found)
}
