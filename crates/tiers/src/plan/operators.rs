//! Other operators over two tiers as plans of phases.
//!
//! The idea: what counts is how often bytes are read and where results are written. A scan reads its input once, so
//! moving it costs what it could win. Whatever reads its input repeatedly may move a share of it first; whatever writes
//! results that are read again (runs, tables of groups) places these.

use super::phases::{ObjectId, Phase, Plan};
use super::traffic::Side;

/// A plan whose input lies far.
#[derive(Clone, Debug, PartialEq)]
pub struct OverInput {
    /// Its phases.
    pub plan: Plan,
    /// What of the input is moved near first.
    pub input: ObjectId,
    /// Results that are read again, if there are any.
    pub results: Option<ObjectId>,
}

/// Reads an input so many times, having moved a share of it: once is a scan, three to five times a join with several
/// others.
pub fn read_repeatedly(input_bytes: f64, times: f64) -> OverInput {
    let mut plan = Plan::default();
    let input = plan.object("input", input_bytes);
    plan.then(Phase::new("move").moves(input, input_bytes))
        .then(Phase::new("read").reads(input, input_bytes * times));
    OverInput { plan, input, results: None }
}

/// The same with a mover beside the reader: no faster than both of them together.
pub fn read_repeatedly_beside_moving(input_bytes: f64, times: f64) -> OverInput {
    let mut plan = Plan::default();
    let input = plan.object("input", input_bytes);
    plan.then(
        Phase::new("move and read")
            .moves(input, input_bytes)
            .beside(Phase::new("").reads(input, input_bytes * times)),
    );
    OverInput { plan, input, results: None }
}

/// Reads an input once, and for each of its rows reads and writes a slot of a table of groups, which is read at the
/// end. The table's place is free.
pub fn aggregate(input_bytes: f64, rows: f64, slot_bytes: f64, table_bytes: f64) -> OverInput {
    let mut plan = Plan::default();
    let input = plan.fixed_object("input", input_bytes, 0.0);
    let table = plan.object("groups", table_bytes);
    let slots = rows * slot_bytes;
    plan.then(Phase::new("group").reads_on(Side::Far, input_bytes).reads(table, slots).writes(table, slots))
        .then(Phase::new("read groups").reads(table, table_bytes));
    OverInput { plan, input, results: Some(table) }
}

/// Reads an input once and writes sorted runs, then reads these and writes them merged, so many times. The place of the
/// runs is free; the last merge is read by whoever asked, not written.
pub fn sort(input_bytes: f64, merges: u32) -> OverInput {
    let mut plan = Plan::default();
    let input = plan.fixed_object("input", input_bytes, 0.0);
    // What is read and what is written of a merge is there at the same time; both lie alike.
    let copies = if merges > 1 { 2.0 } else { 1.0 };
    let runs = plan.object("runs", input_bytes * copies);
    plan.then(Phase::new("make runs").reads_on(Side::Far, input_bytes).writes(runs, input_bytes));
    for merge in 1..=merges {
        let phase = Phase::new("merge").reads(runs, input_bytes);
        plan.then(if merge < merges { phase.writes(runs, input_bytes) } else { phase });
    }
    OverInput { plan, input, results: Some(runs) }
}
