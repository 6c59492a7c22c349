//! One function over the row groups of a far table, with each placement in turns: at the memory node (ship), at the
//! client (fetch), at both (split), or chosen by the planner (auto).
//!
//! The best placement depends on the work per value, so the work is an argument of the function. With little work, the
//! transfer of the values dominates. With much work, the CPUs of node and client together are faster than one.

use super::list::{check, words};
use crate::exit::Failure;
use crate::harness::statistics::median;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use farpool::function::{CallOptions, Caller, Function};
use farpool::{FarTable, Placement, Pool};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of row groups of the table. [`GROUP_VALUES`] is the number of values in each.
const GROUPS: u64 = 32;
const GROUP_VALUES: u64 = 64 << 10;
/// Name of the table in the pool.
const TABLE: &str = "bench-functions-values";
/// Default for `--work`: steps of a pseudo-random generator that the function takes for each value.
pub(super) const WORK: [u64; 4] = [1, 8, 64, 512];
/// Placements that are measured. With the last one, the planner chooses one of the others.
pub(super) const PLACEMENTS: [(&str, Placement); 4] = [
    ("ship", Placement::Ship),
    ("fetch", Placement::Fetch),
    ("split", Placement::Split),
    ("auto", Placement::Auto),
];

/// Function in WebAssembly text. It starts a linear congruential generator with each value of the column, takes some
/// steps, and returns the sum of the results.
const MIX: &str = r#"(module (memory (export "memory") 1) (func (export "mix") (param $call i32) (result i64)
    (local $at i32) (local $groups i32) (local $rows i64) (local $sum i64) (local $value i32) (local $out i32)
    (local $x i64) (local $left i64) (local $steps i64)
    (local.set $steps (i64.load (i32.wrap_i64 (i64.load offset=24 (local.get $call)))))
    (local.set $out (i32.wrap_i64 (i64.load offset=40 (local.get $call))))
    (local.set $at (i32.wrap_i64 (i64.load offset=56 (local.get $call))))
    (local.set $groups (i32.load offset=4 (local.get $at)))
    (local.set $at (i32.add (local.get $at) (i32.add (i32.const 8) (i32.mul (i32.const 16) (i32.load (local.get $at))))))
    (block $done (loop $group
      (br_if $done (i32.eqz (local.get $groups)))
      (local.set $rows (i64.load (local.get $at)))
      (local.set $value (i32.wrap_i64 (i64.add (i64.load offset=8 (local.get $call)) (i64.load offset=48 (local.get $at)))))
      (block $end (loop $row
        (br_if $end (i64.eqz (local.get $rows)))
        (local.set $x (i64.load (local.get $value)))
        (local.set $left (local.get $steps))
        (loop $step
          (local.set $x (i64.add (i64.mul (local.get $x) (i64.const 6364136223846793005)) (i64.const 1442695040888963407)))
          (local.set $left (i64.sub (local.get $left) (i64.const 1)))
          (br_if $step (i64.ne (local.get $left) (i64.const 0))))
        (local.set $sum (i64.add (local.get $sum) (local.get $x)))
        (local.set $value (i32.add (local.get $value) (i32.const 8)))
        (local.set $rows (i64.sub (local.get $rows) (i64.const 1)))
        (br $row)))
      (local.set $at (i32.add (local.get $at) (i32.const 96)))
      (local.set $groups (i32.sub (local.get $groups) (i32.const 1)))
      (br $group)))
    (i64.store (local.get $out) (local.get $sum))
    (i64.const 8))"#;

/// Times of the placements for one amount of work.
pub(super) struct Placed {
    /// Steps of the generator for each value.
    pub(super) work: u64,
    /// Median time of each placement in the order of [`PLACEMENTS`], in ms.
    pub(super) ms: [f64; 4],
    /// Name of the latest placement chosen by `auto`.
    pub(super) chosen: &'static str,
}

fn mixed(value: u64, steps: u64) -> u64 {
    (0..steps)
        .fold(value, |x, _| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
}

fn table(pool: &Pool) -> Result<FarTable, Failure> {
    let schema = Arc::new(Schema::new(vec![Field::new("value", DataType::Int64, false)]));
    let batch = |group: u64| {
        let first = (group * GROUP_VALUES) as i64;
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + GROUP_VALUES as i64));
        RecordBatch::try_new(Arc::clone(&schema), vec![values])
    };
    let batches = (0..GROUPS).map(batch).collect::<Result<Vec<_>, _>>();
    let batches = batches.map_err(|error| Failure::Failed(error.to_string()))?;
    pool.put_table(TABLE, schema, batches)?;
    Ok(pool.table(TABLE)?)
}

fn called(
    caller: &Caller,
    mix: &Function,
    work: u64,
    placement: Placement,
) -> Result<(Duration, u64), Failure> {
    let options = CallOptions { placement, deadline: Duration::from_secs(600), ..CallOptions::default() };
    let begun = Instant::now();
    let called = caller.call_each(mix, &words(&[work]), options)?;
    let took = begun.elapsed();
    let sums = called.iter().filter_map(|called| called.output.first_chunk::<8>());
    Ok((took, sums.fold(0, |sum, part| sum.wrapping_add(u64::from_le_bytes(*part)))))
}

/// Writes a far table to the pool. Measures each placement for each amount of work over it.
pub(super) fn measure(pool: &Pool, works: &[u64], rounds: usize) -> Result<Vec<Placed>, Failure> {
    let table = table(pool)?;
    let found = measure_over(&table, works, rounds);
    pool.drop_table(TABLE)?;
    found
}

fn measure_over(table: &FarTable, works: &[u64], rounds: usize) -> Result<Vec<Placed>, Failure> {
    let mut found = Vec::new();
    for &work in works {
        let wanted = (0..GROUPS * GROUP_VALUES).fold(0u64, |sum, value| sum.wrapping_add(mixed(value, work)));
        // The planner learns per function, so each amount of work gets a function of its own.
        let text = format!("{MIX} (func (export \"work {work}\")))");
        let module = wat::parse_str(text).map_err(|error| Failure::Failed(error.to_string()))?;
        let mix = Function::wasm(module, "mix")?;
        let mut times = vec![Vec::new(); PLACEMENTS.len()];
        let mut chosen = "ship";
        // An odd number of turns is timed (all but the first), so the median is a measured value.
        for turn in 0..2 * rounds {
            for ((name, placement), times) in PLACEMENTS.iter().zip(&mut times) {
                let caller = table.caller(&["value"], Default::default())?;
                if *placement == Placement::Auto {
                    let choice = caller.explain_each(&mix).choice;
                    chosen = PLACEMENTS
                        .iter()
                        .find(|(_, placement)| placement.way() == Some(choice))
                        .map_or("ship", |(name, _)| name);
                }
                let (took, sum) = called(&caller, &mix, work, *placement)?;
                check(&sum.to_le_bytes(), &wanted.to_le_bytes(), name)?;
                // The first turn is not timed: the module is compiled and the planner learns its costs.
                if turn > 0 {
                    times.push(took.as_secs_f64() * 1e3);
                }
            }
        }
        let ms: Vec<f64> = times.into_iter().map(|times| median(times.into_iter())).collect();
        found.push(Placed { work, ms: [ms[0], ms[1], ms[2], ms[3]], chosen });
    }
    Ok(found)
}
