//! Scans, aggregations and sorts over two tiers as plans of phases.
//!
//! The idea: only the number of reads of each byte and the place of what is written matter. A scan reads its input
//! once, so moving the input costs as much as it could gain. An operator that reads its input repeatedly may gain by
//! moving a share of it first. An operator that writes results and reads them again (sorted runs, tables of groups)
//! gains by placing them.

use super::phases::{ObjectId, Phase, PhasePlan};
use super::traffic::TierSide;

/// Plan of an operator whose input lies far.
#[derive(Clone, Debug, PartialEq)]
pub struct OverInput {
    /// Phases of the operator.
    pub plan: PhasePlan,
    /// Input. Its share is moved near in plans with a move; otherwise it is 0, and the input stays far.
    pub input: ObjectId,
    /// Results that the operator writes and reads again; `None` if there are none.
    pub results: Option<ObjectId>,
}

/// Returns a plan that moves a share of an input, then reads all of it `times` times. A scan reads once; a join with
/// several other tables reads three to five times.
pub fn read_repeatedly(input_bytes: f64, times: f64) -> OverInput {
    let mut plan = PhasePlan::default();
    let input = plan.object("input", input_bytes);
    plan.then(Phase::new("move").moves(input, input_bytes))
        .then(Phase::new("read").reads(input, input_bytes * times));
    OverInput { plan, input, results: None }
}

/// Returns a plan that moves a share of an input and reads all of it `times` times, both at the same time. Its gain is
/// an upper bound: the reader gains from each moved byte as if it had been moved at the start.
pub fn read_repeatedly_beside_moving(input_bytes: f64, times: f64) -> OverInput {
    let mut plan = PhasePlan::default();
    let input = plan.object("input", input_bytes);
    plan.then(
        Phase::new("move and read")
            .moves(input, input_bytes)
            .beside(Phase::new("").reads(input, input_bytes * times)),
    );
    OverInput { plan, input, results: None }
}

/// Returns a plan of an aggregation, which reads an input once. For each row, a slot of a table of groups is read and
/// written, and the table is read at the end. The input stays far; the solver chooses the near share of the table.
pub fn aggregate(input_bytes: f64, rows: f64, slot_bytes: f64, table_bytes: f64) -> OverInput {
    let mut plan = PhasePlan::default();
    let input = plan.fixed_object("input", input_bytes, 0.0);
    let table = plan.object("groups", table_bytes);
    let slots = rows * slot_bytes;
    plan.then(
        Phase::new("group").reads_on(TierSide::Far, input_bytes).reads(table, slots).writes(table, slots),
    )
    .then(Phase::new("read groups").reads(table, table_bytes));
    OverInput { plan, input, results: Some(table) }
}

/// Returns a plan that reads an input once, writes sorted runs, and merges them `merges` times. The last merge is not
/// written, because the consumer reads it. The input stays far; the solver chooses the near share of the runs.
pub fn sort(input_bytes: f64, merges: u32) -> OverInput {
    let mut plan = PhasePlan::default();
    let input = plan.fixed_object("input", input_bytes, 0.0);
    // A merge that is written needs memory for both its input and its output, at the same share.
    let copies = if merges > 1 { 2.0 } else { 1.0 };
    let runs = plan.object("runs", input_bytes * copies);
    plan.then(Phase::new("make runs").reads_on(TierSide::Far, input_bytes).writes(runs, input_bytes));
    for merge in 1..=merges {
        let phase = Phase::new("merge").reads(runs, input_bytes);
        plan.then(if merge < merges { phase.writes(runs, input_bytes) } else { phase });
    }
    OverInput { plan, input, results: Some(runs) }
}
