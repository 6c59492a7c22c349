//! Placement of a query: describes the query to the planner, and reports to it what the query took.
//!
//! The idea: the planner is like a haulier who knows roads and weights, but not what is in the boxes. It knows bytes
//! and rates, not programs. This module turns a plan over some row groups into bytes for each node, a first guess of
//! what the program costs per byte, and a key under which the planner remembers the real cost. After the query, the
//! measured times and bytes go back to the planner, for the next query that is the same or similar.
//!
//! If the query was run before and the links are known, nothing is asked of any node before it starts. If little is
//! known, a few bytes are read over each unknown link, and a few row groups are shipped first as a trial. Forced
//! placements skip both and still report what they took.

use crate::FarTable;
use crate::estimates::Estimates;
use crate::footer::RowGroup;
use crate::joining::Joining;
use crate::names::file_name;
use crate::report::Report;
use crate::scope::Scope;
use crate::shipping::{ScanSeen, located};
use farpool_calls::{Observed, distance};
use farpool_files::FarFile;
use farpool_files::beneath::{InOneRegion, NodeLinks};
use farpool_operators::run::data_type;
use farpool_operators::{Instruction, Operator, Plan, Program, Type, Value};
use farpool_planner::{
    ClientCpus, Cost, Distance, ExpectedCost, Left, Measured, Measurements, OutputSize, Placement,
    ProgramKey, Share, StepInput, Way, estimate, fingerprint, prior,
};
use std::sync::Arc;

/// Placement of a query, chosen before any of it has run.
pub(crate) struct Choice {
    pub(crate) way: Way,
    pub(crate) estimates: Estimates,
    /// Row groups to ship before all others because too little is known, in ascending order.
    pub(crate) trial: Vec<usize>,
}

/// Part of a query that is run in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A few row groups that are run to measure the query. They are too few for their elapsed time to say anything
    /// about all row groups.
    Trial,
    /// All row groups that were not in the trial.
    Rest,
}

/// Measurements of a scan that has ended without an error.
#[derive(Clone)]
pub(crate) struct ScanRan {
    pub(crate) node: Arc<NodeLinks>,
    pub(crate) seen: ScanSeen,
    /// Bytes of results, encoded as they arrived.
    pub(crate) result_bytes: u64,
    /// Time that the node worked for the scan in ns, as the node reports it.
    pub(crate) busy_ns: u64,
}

/// Measurements of one part of a query.
#[derive(Clone, Default)]
pub(crate) struct Ran {
    /// Time from the part's first request to its last answer, in ns.
    pub(crate) elapsed_ns: u64,
    /// Bytes that nodes ran the program over, and the time that they worked.
    pub(crate) node: Measured,
    /// Bytes that the client ran the program over, and the time that it worked.
    pub(crate) client: Measured,
    /// Bytes of results.
    pub(crate) result_bytes: u64,
    /// Columns that were fetched while nothing else ran, and the time that they took to arrive.
    pub(crate) fetched: Measured,
    pub(crate) scans: Vec<ScanRan>,
}

/// Bytes of one probe of a link's rate, and number of probes, of which the median counts (ADR 0020).
const PROBE_BYTES: u64 = 256 << 10;
const PROBES: u64 = 3;
/// Least bytes of columns that a node must hold for the query, for its link to be probed.
const PROBED_BYTES_MIN: f64 = (8 << 20) as f64;
/// Least row groups of a query that has a trial, which is a few row groups that are run first (ADR 0020).
const TRIAL_MIN: usize = 16;
/// Divisor of the number of row groups (ADR 0020): the trial runs one in this many.
const TRIAL_SHARE: usize = 16;
/// Most bytes of keys and filters that must be sent to nodes for a query that has a trial.
const SENT_MAX: f64 = (256 << 10) as f64;
/// Least bytes of results from which the rate of a link, or of decoding, is learnt.
const RESULTS_MIN: u64 = 1 << 20;
/// Shares of a scan's time, 0 to 1. If the node waited for the client or the link for more than `WAITED_MIN` of it,
/// and the client waited for results for more than `BLOCKED_MIN`, the link is what limited the scan.
const WAITED_MIN: f64 = 0.5;
const BLOCKED_MIN: f64 = 0.7;
/// Shortest scan in ns, and smallest share of its time spent on other work, from which the load of a node is learnt.
const LOAD_NS_MIN: u64 = 10_000_000;
const LOAD_MIN: f64 = 0.15;

/// A plan over row groups of a table, in the terms of the planner.
pub(crate) struct Placing<'t> {
    table: &'t FarTable,
    observed: Arc<Observed>,
    /// Numbers of the table's columns that the program reads.
    columns: Vec<usize>,
    key: ProgramKey,
    /// Cost of the program that is assumed as long as nothing is known.
    prior: Cost,
    /// Bytes of keys and filters that are sent to each node.
    sent_bytes: f64,
    /// True if nodes can do their part of the query.
    may_ship: bool,
    /// True if the program stops after a number of rows, whichever they are.
    is_limited: bool,
    /// Average bytes of a row of the program's output.
    row_bytes: f64,
    machine: ClientCpus,
    /// Rows of the row groups of the query.
    rows: f64,
    /// Bytes of the columns that the program reads in these row groups.
    bytes: f64,
}

impl<'t> Placing<'t> {
    pub(crate) fn new(table: &'t FarTable, scope: &Scope, joining: &Joining) -> Placing<'t> {
        let Scope { program: near, columns, groups } = scope;
        let session = table.session();
        let groups: Vec<&RowGroup> =
            groups.iter().filter_map(|group| table.row_groups().get(*group)).collect();
        let rows: f64 = groups.iter().map(|group| f64::from(group.rows)).sum();
        let of_group =
            |group: &&RowGroup| group.buffers(columns).map(|buffer| f64::from(buffer.bytes)).sum::<f64>();
        let bytes: f64 = groups.iter().map(of_group).sum();
        let texts = bytes / rows.max(1.0) / columns.len().max(1) as f64;
        let width = |of: &Type| data_type(*of).primitive_width().map_or(texts.max(8.0), |width| width as f64);
        let row_bytes: f64 = near.output().iter().map(width).sum();
        let file = file_name(table.name()).unwrap_or_default();
        let program = near.encode().unwrap_or_default();
        let is_encrypted = table.is_encrypted();
        // The program counts columns among those that it reads, so their numbers in the table are part of the key.
        let places: Vec<u8> = columns.iter().flat_map(|column| (*column as u32).to_le_bytes()).collect();
        let exact = fingerprint([file.as_bytes(), &table.bytes().to_le_bytes(), &places, &program]);
        let key =
            ProgramKey { exact, shape: fingerprint([shape(near).as_bytes(), &[u8::from(is_encrypted)]]) };
        let leaves = leaves(&groups, near, columns, row_bytes, bytes / rows.max(1.0));
        let node_ns = run_ns(near) + if is_encrypted { prior::DECRYPT_NS } else { 0.0 };
        let merge_ns = match leaves {
            OutputSize::Groups { .. } => prior::MERGE_GROUPS_NS,
            OutputSize::Share(_) | OutputSize::Fixed(_) => prior::MERGE_ROWS_NS,
        };
        let prior = Cost {
            node_ns,
            client_ns: node_ns,
            unpack_ns: prior::UNPACK_NS,
            merge_ns,
            leaves,
            factors: [1.0; 3],
        };
        let is_shared = located(table, 0, &[], &[]).is_some_and(|found| session.is_here(&found.region.node));
        let observed = Observed::of(session);
        Placing {
            table,
            columns: columns.to_vec(),
            key,
            prior,
            sent_bytes: joining.joins.iter().map(|join| join.bytes as f64).sum(),
            may_ship: joining.is_shipped() && !columns.is_empty(),
            is_limited: matches!(near.operators().last(), Some(Operator::Limit(_))),
            row_bytes,
            machine: ClientCpus { cpus: observed.cpus as f64, is_shared },
            rows,
            bytes,
            observed,
        }
    }

    /// Returns the region that has the columns of a row group that the program reads. `None` if no node can run it.
    fn located(&self, group: usize) -> Option<InOneRegion> {
        located(self.table, group, &self.columns, &[])
    }

    fn step(&self, groups: &[usize]) -> StepInput {
        let session = self.table.session();
        let mut nodes: Vec<(Arc<NodeLinks>, Share)> = Vec::new();
        let mut fetched_bytes = 0.0;
        for index in groups {
            let Some(group) = self.table.row_groups().get(*index) else { continue };
            let bytes: f64 = group.buffers(&self.columns).map(|buffer| f64::from(buffer.bytes)).sum();
            let Some(InOneRegion { region, .. }) = self.located(*index) else {
                fetched_bytes += bytes;
                continue;
            };
            let place = nodes.iter().position(|(node, _)| Arc::ptr_eq(node, &region.node));
            let place = place.unwrap_or_else(|| {
                let distance = distance(session, &region.node);
                let link = self.observed.learned().link(region.node.info.node.0, distance);
                nodes.push((Arc::clone(&region.node), Share { bytes: 0.0, rows: 0.0, groups: 0.0, link }));
                nodes.len() - 1
            });
            let share = &mut nodes[place].1;
            share.bytes += bytes;
            share.rows += f64::from(group.rows);
            share.groups += 1.0;
        }
        let shares = nodes.into_iter().map(|(_, share)| share).collect();
        StepInput { shares, fetched_bytes, sent_bytes: self.sent_bytes }
    }

    fn known(&self) -> ExpectedCost {
        self.observed.learned().known(self.key, &self.prior)
    }

    /// Returns the estimates of all placements for these row groups.
    pub(crate) fn estimates(&self, groups: &[usize]) -> Estimates {
        let ExpectedCost { cost, is_sure } = self.known();
        let found = estimate(&self.step(groups), &cost, self.machine);
        let mut estimates = Estimates::new(&found, is_sure);
        if !self.may_ship {
            estimates.choice = Way::Fetch;
            estimates.why = match self.columns.is_empty() {
                true => "no column is read".to_owned(),
                false => "the keys of a semi-join cannot be sent to nodes".to_owned(),
            };
        }
        estimates
    }

    /// Chooses the placement for these row groups. With [`Placement::Auto`], it first reads a few bytes over links of
    /// which nothing is known.
    pub(crate) fn choose(&self, asked: Placement, groups: &[usize]) -> Choice {
        if let Some(way) = asked.way() {
            return Choice { way, estimates: self.estimates(groups), trial: Vec::new() };
        }
        self.probe_links(groups);
        let trial = self.trial(groups);
        let estimates = self.estimates(groups);
        Choice { way: estimates.choice, estimates, trial }
    }

    /// Returns the row groups of the trial; none if enough is known. They are spread over the table, because its rows
    /// may be sorted.
    fn trial(&self, groups: &[usize]) -> Vec<usize> {
        let is_known = self.known().is_sure || !self.may_ship || self.sent_bytes > SENT_MAX;
        if is_known || groups.len() < TRIAL_MIN {
            return Vec::new();
        }
        let step = self.step(groups);
        let count = (groups.len() / TRIAL_SHARE).max(step.shares.len()).min(groups.len() / 4);
        (0..count).map(|number| groups[(2 * number + 1) * groups.len() / (2 * count)]).collect()
    }

    /// Reads a few bytes over each link of which nothing is known. Errors are ignored: they will come again when the
    /// query reads, and be reported then.
    fn probe_links(&self, groups: &[usize]) {
        let step = self.step(groups);
        let is_unknown = |share: &Share| {
            !share.link.is_memory && !share.link.is_measured && share.bytes >= PROBED_BYTES_MIN
        };
        if !step.shares.iter().any(is_unknown) {
            return;
        }
        let mut seen: Vec<u64> = Vec::new();
        for index in groups {
            let Some(InOneRegion { region, .. }) = self.located(*index) else { continue };
            let node = region.node.info.node.0;
            if seen.contains(&node) {
                continue;
            }
            seen.push(node);
            if region.node.is_shared() || self.observed.learned().link(node, Distance::Network).is_measured {
                continue;
            }
            if let Some(file) = self.table.file_of(*index) {
                self.probe_link(node, &file.file, &self.table.row_groups()[*index]);
            }
        }
    }

    /// Measures the round trip of a link by reads of one byte, and its rate by reads of [`PROBE_BYTES`]. It takes the
    /// median of [`PROBES`] reads, because the first one connects.
    fn probe_link(&self, node: u64, file: &FarFile, group: &RowGroup) {
        let session = self.table.session();
        let read = |bytes: u64, number: u64| -> Option<u64> {
            let bytes = bytes.min(group.end() - group.offset);
            let last = group.end() - bytes;
            let mut into = vec![0; bytes as usize];
            let begun = session.host().now();
            file.read_at((group.offset + number * bytes).min(last), &mut into).ok()?;
            Some(session.host().now().0.saturating_sub(begun.0))
        };
        let middle = |bytes: u64| -> Option<u64> {
            let mut ns = (0..PROBES).map(|number| read(bytes, number)).collect::<Option<Vec<u64>>>()?;
            ns.sort_unstable();
            ns.get(ns.len() / 2).copied()
        };
        let Some((round_trip, ns)) = middle(1).zip(middle(PROBE_BYTES)) else { return };
        let mut learned = self.observed.learned();
        learned.note_round_trip(node, round_trip);
        let bytes = PROBE_BYTES.min(group.end() - group.offset);
        learned.note_probe(node, Measured { bytes, ns: ns.saturating_sub(round_trip).max(ns / 4) });
    }

    /// Reports to the planner what a part over these row groups took.
    pub(crate) fn learn(&self, stage: Stage, way: Way, groups: &[usize], ran: &Ran) {
        let session = self.table.session();
        let step = self.step(groups);
        {
            let mut learned = self.observed.learned();
            let all: f64 = step.shares.iter().map(|share| share.bytes).sum();
            let fetched = ran.fetched;
            if fetched.bytes > 0 && all > 0.0 {
                // Several nodes answered at the same time, so each gets the whole time and its share of the bytes.
                let mut seen: Vec<(u64, Distance)> = Vec::new();
                for index in groups {
                    let Some(InOneRegion { region, .. }) = self.located(*index) else { continue };
                    let node = region.node.info.node.0;
                    if !seen.iter().any(|(known, _)| *known == node) {
                        seen.push((node, distance(session, &region.node)));
                    }
                }
                for ((node, distance), share) in seen.into_iter().zip(&step.shares) {
                    let bytes = (fetched.bytes as f64 * share.bytes / all) as u64;
                    learned.note_columns(node, distance, Measured { bytes, ns: fetched.ns });
                }
            }
            for ScanRan { node, seen, result_bytes, busy_ns } in &ran.scans {
                let ScanSeen { open_ns, elapsed_ns, blocked_ns, waited_ns } = *seen;
                let node_id = node.info.node.0;
                learned.note_round_trip(node_id, open_ns);
                let of_elapsed = |ns: u64| ns as f64 / elapsed_ns.max(1) as f64;
                let is_link = of_elapsed(waited_ns) > WAITED_MIN && of_elapsed(blocked_ns) > BLOCKED_MIN;
                if way == Way::Ship && *result_bytes > RESULTS_MIN && is_link {
                    let distance = distance(session, node);
                    learned.note_results(
                        node_id,
                        distance,
                        Measured { bytes: *result_bytes, ns: elapsed_ns },
                    );
                }
                // A node that runs on the client's own CPUs is skipped: its load slows the client as well, so it is
                // no reason to prefer the client.
                let is_apart = !session.is_here(node);
                if elapsed_ns > LOAD_NS_MIN && way == Way::Ship && is_apart {
                    // Computes the time that the node neither worked nor waited for this scan. Sending is not part of
                    // what it reports as work.
                    let sending = (*result_bytes as f64 * prior::TCP_CPU_NS) as u64;
                    let ours = busy_ns.saturating_add(waited_ns).saturating_add(sending + open_ns);
                    let others = of_elapsed(elapsed_ns.saturating_sub(ours));
                    learned.note_load(node_id, if others < LOAD_MIN { 0.0 } else { others });
                }
            }
        }
        // Takes the rates of the links again, because they have just been updated.
        let step = self.step(groups);
        let scans = ran.scans.len().max(1) as f64;
        let read = ran.node.bytes;
        let left = (read > 0).then(|| Left {
            read_bytes: read as f64 / scans,
            rows: self.rows_of(read) / scans,
            left_bytes: ran.result_bytes as f64 / scans,
        });
        let mut unpacked = Measured::default();
        for ScanRan { seen, result_bytes, .. } in &ran.scans {
            unpacked.bytes += result_bytes;
            unpacked.ns += seen.elapsed_ns.saturating_sub(seen.blocked_ns);
        }
        let is_whole = stage == Stage::Rest && !self.is_limited;
        let actual = Measurements {
            whole: is_whole.then_some((way, ran.elapsed_ns as f64)),
            node: ran.node,
            client: ran.client,
            unpacked: if unpacked.bytes > RESULTS_MIN { unpacked } else { Measured::default() },
            // A query with a limit stops early, so the size of its output says nothing about the program.
            left: left.filter(|_| !self.is_limited),
        };
        self.observed.learned().note(self.key, &self.prior, &step, self.machine, &actual);
    }

    fn rows_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes.max(1.0) * self.rows
    }

    /// Reports to the planner how long merging took, and the bytes that the client's own run of the program output.
    pub(crate) fn learn_merge(&self, report: &Report, left_rows: u64, ns: u64) {
        let left = left_rows as f64 * self.row_bytes;
        let bytes = report.result_bytes + left as u64;
        let mut learned = self.observed.learned();
        if bytes > 0 {
            learned.note_merge(self.key, Measured { bytes, ns });
        }
        if report.shipped == 0 && !self.is_limited {
            let read = report.fetched_bytes;
            let (read_bytes, rows) = (read as f64, self.rows_of(read));
            learned.note_left(self.key, &self.prior, Left { read_bytes, rows, left_bytes: left });
        }
    }
}

/// Describes a program without its literals, so that similar queries have the same description.
fn shape(program: &Program) -> String {
    let mut words = format!("{:?}", program.input());
    let mut add = |instructions: &[Instruction]| {
        for instruction in instructions {
            match instruction {
                Instruction::Literal(scalar) => words.push_str(&format!("literal {:?};", scalar.of)),
                Instruction::InList(list) => {
                    words.push_str(&format!("in {};", list.len().checked_ilog2().unwrap_or(0)))
                }
                Instruction::Like { .. } => words.push_str("like;"),
                Instruction::Matches { .. } => words.push_str("matches;"),
                other => words.push_str(&format!("{other:?};")),
            }
        }
    };
    let mut rest = Vec::new();
    for operator in program.operators() {
        match operator {
            Operator::Filter(instructions) => add(instructions),
            Operator::Project(list) => list.iter().for_each(|instructions| add(instructions)),
            Operator::Limit(_) => rest.push("limit".to_owned()),
            other => rest.push(format!("{other:?}")),
        }
    }
    words + &rest.join(";")
}

/// Returns the assumed cost of a program in ns per byte that it reads.
fn run_ns(program: &Program) -> f64 {
    let of_instruction = |instruction: &Instruction| match instruction {
        Instruction::Like { .. } | Instruction::Matches { .. } => prior::PATTERN_NS,
        Instruction::Column(_) | Instruction::Literal(_) => 0.0,
        _ => prior::PASS_NS / 4.0,
    };
    let of = |operator: &Operator| match operator {
        Operator::Filter(instructions) => {
            prior::PASS_NS + instructions.iter().map(of_instruction).sum::<f64>()
        }
        Operator::Project(list) => list.iter().flatten().map(of_instruction).sum(),
        Operator::SemiJoin { .. } | Operator::Group { .. } => prior::LOOK_UP_NS,
        Operator::Top { .. } => prior::PASS_NS,
        Operator::Limit(_) => 0.0,
    };
    program.operators().iter().map(of).sum::<f64>().max(prior::PASS_NS / 2.0)
}

/// Returns the assumed size of a program's output.
fn leaves(
    of: &[&RowGroup],
    program: &Program,
    columns: &[usize],
    row_bytes: f64,
    input_row_bytes: f64,
) -> OutputSize {
    let passes = |operator: &&Operator| matches!(operator, Operator::Filter(_) | Operator::SemiJoin { .. });
    let passing = prior::PASSING.powi(program.operators().iter().filter(passes).count() as i32);
    match program.operators().last() {
        Some(Operator::Group { keys, .. }) if keys.is_empty() => OutputSize::Fixed(row_bytes),
        Some(Operator::Group { keys, .. }) => {
            let is_plain =
                !program.operators().iter().any(|operator| matches!(operator, Operator::Project(_)));
            let bound = is_plain.then(|| groups_at_most(of, keys, columns)).flatten();
            let groups = bound.map_or(prior::GROUPS, |bound| bound.min(prior::GROUPS.max(bound.sqrt())));
            OutputSize::Groups { row_bytes, groups }
        }
        Some(Operator::Top { rows, .. }) => OutputSize::Fixed(f64::from(*rows) * row_bytes),
        Some(Operator::Limit(rows)) => OutputSize::Fixed((*rows as f64 * row_bytes).min(1e12)),
        _ => OutputSize::Share(passing * row_bytes / input_row_bytes.max(1.0)),
    }
}

/// Returns an upper bound of the number of groups, from the bounds of keys that are whole numbers; `None` if a key is
/// something else.
fn groups_at_most(table: &[&RowGroup], keys: &[u16], columns: &[usize]) -> Option<f64> {
    let mut groups = 1.0;
    for key in keys {
        let column = *columns.get(usize::from(*key))?;
        let (mut least, mut most) = (i128::MAX, i128::MIN);
        for group in table {
            let known = group.columns.get(column)?.statistics.as_ref()?;
            let (Value::Integer(min), Value::Integer(max)) = (&known.min, &known.max) else { return None };
            (least, most) = (least.min(*min), most.max(*max));
        }
        groups *= (most as f64 - least as f64).max(0.0) + 2.0;
    }
    Some(groups)
}

impl FarTable {
    /// Returns the time that each placement of a plan over some row groups would take, from what the session has
    /// measured. It sends no request. Estimates of several steps can be added up.
    pub fn estimate(&self, plan: &Plan, groups: &[usize]) -> Estimates {
        let groups = groups.iter().copied().filter(|group| self.may_pass(plan, *group)).collect();
        let scope = Scope::new(plan, groups);
        Placing::new(self, &scope, &Joining::of(plan, Placement::Auto)).estimates(&scope.groups)
    }
}
