//! Where a query is run, when that is left to us: what is asked of the planner, and what it is told afterwards.
//!
//! The idea: the planner knows bytes and rates, not programs. Here a plan over some row groups becomes shares of bytes
//! by node, a prior of what its program costs, and a key to remember it by; and what a run took becomes what the
//! session has learnt, for whoever runs the same or the like next.

use crate::FarTable;
use crate::estimates::Estimates;
use crate::footer::RowGroup;
use crate::joining::Joining;
use crate::report::Report;
use crate::scope::Scope;
use crate::shipping::{ScanSeen, located};
use farpool_calls::{Observed, reach};
use farpool_files::beneath::NodeLinks;
use farpool_operators::run::data_type;
use farpool_operators::{Instruction, Operator, Plan, Program, Type, Value};
use farpool_planner::{
    Actual, Cost, Key, Known, Leaves, Left, Machine, Placement, Reach, Share, Step, Took, Way, estimate,
    fingerprint, prior,
};
use std::sync::Arc;

/// Which way a query goes, by what is known before any of it has run.
pub(crate) struct Choice {
    pub(crate) way: Way,
    pub(crate) estimates: Estimates,
    /// Row groups to ship before all others, because too little is known; in ascending order.
    pub(crate) trial: Vec<usize>,
}

/// A part of a query that is run in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A few row groups, to see what the query takes: too few for their own time to tell what all of them would take.
    Trial,
    /// All others.
    Rest,
}

/// A scan that has ended well.
#[derive(Clone)]
pub(crate) struct ScanRan {
    pub(crate) node: Arc<NodeLinks>,
    pub(crate) seen: ScanSeen,
    /// Bytes of its results, as they came.
    pub(crate) result_bytes: u64,
    /// How long the node worked for it, as the node says.
    pub(crate) busy_ns: u64,
}

/// What a part of a query took.
#[derive(Clone, Default)]
pub(crate) struct Ran {
    /// From its first request to its last answer.
    pub(crate) elapsed_ns: u64,
    /// Bytes that nodes ran the program over, and how long they worked.
    pub(crate) node: Took,
    /// Bytes that the program was run over here, and for how long.
    pub(crate) client: Took,
    /// Bytes of results.
    pub(crate) result_bytes: u64,
    /// Columns that were fetched while nothing else went on, and how long they were on their way.
    pub(crate) fetched: Took,
    pub(crate) scans: Vec<ScanRan>,
}

/// Bytes that tell how fast a link is, and how often they are read.
const PROBE_BYTES: u64 = 256 << 10;
const PROBES: u64 = 3;
/// A node with fewer bytes is not worth asking.
const PROBED_BYTES_MIN: f64 = (8 << 20) as f64;
/// A query over fewer row groups is run at once as seems best.
const TRIED_MIN: usize = 16;
/// Of the row groups of others, one of so many is run first, to see.
const TRIED_SHARE: usize = 16;
/// Keys of semi-joins that are more than this are not sent for a trial.
const SENT_MAX: f64 = (256 << 10) as f64;
/// Results that tell how fast they come.
const RESULTS_MIN: u64 = 1 << 20;
/// Where a node waits for more than this share of its time, and we for it, the link is what both wait for.
const WAITED_MIN: f64 = 0.5;
const BLOCKED_MIN: f64 = 0.7;
/// A scan that is shorter tells nothing of a node's load; nor does so small a share of its time.
const LOAD_NS_MIN: u64 = 10_000_000;
const LOAD_MIN: f64 = 0.15;

/// A plan over a table, as the planner sees it.
pub(crate) struct Placing<'t> {
    table: &'t FarTable,
    observed: Arc<Observed>,
    columns: Vec<usize>,
    key: Key,
    prior: Cost,
    sent_bytes: f64,
    may_ship: bool,
    is_limited: bool,
    /// Bytes of a row as it leaves.
    row_bytes: f64,
    machine: Machine,
    rows: f64,
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
        let file = table.file.name().to_owned();
        let program = near.encode().unwrap_or_default();
        let is_encrypted = table.is_encrypted();
        // The program knows its columns by their places among those that it reads.
        let places: Vec<u8> = columns.iter().flat_map(|column| (*column as u32).to_le_bytes()).collect();
        let exact = fingerprint([file.as_bytes(), &table.bytes().to_le_bytes(), &places, &program]);
        let key = Key { exact, shape: fingerprint([shape(near).as_bytes(), &[u8::from(is_encrypted)]]) };
        let leaves = leaves(&groups, near, columns, row_bytes, bytes / rows.max(1.0));
        let node_ns = run_ns(near) + if is_encrypted { prior::OPENING_NS } else { 0.0 };
        let merge_ns = match leaves {
            Leaves::Groups { .. } => prior::MERGE_GROUPS_NS,
            Leaves::Share(_) | Leaves::Fixed(_) => prior::MERGE_ROWS_NS,
        };
        let prior = Cost {
            node_ns,
            client_ns: node_ns,
            unpack_ns: prior::UNPACK_NS,
            merge_ns,
            leaves,
            factors: [1.0; 3],
        };
        let is_shared = located(table, 0).is_some_and(|(region, _)| session.is_here(&region.node));
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
            machine: Machine { cpus: observed.cpus as f64, is_shared },
            rows,
            bytes,
            observed,
        }
    }

    fn step(&self, groups: &[usize]) -> Step {
        let session = self.table.session();
        let mut nodes: Vec<(Arc<NodeLinks>, Share)> = Vec::new();
        let mut fetched_bytes = 0.0;
        for index in groups {
            let Some(group) = self.table.row_groups().get(*index) else { continue };
            let bytes: f64 = group.buffers(&self.columns).map(|buffer| f64::from(buffer.bytes)).sum();
            let Some((region, _)) = located(self.table, *index) else {
                fetched_bytes += bytes;
                continue;
            };
            let place = nodes.iter().position(|(node, _)| Arc::ptr_eq(node, &region.node));
            let place = place.unwrap_or_else(|| {
                let reach = reach(session, &region.node);
                let link = self.observed.learned().link(region.node.info.node.0, reach);
                nodes.push((Arc::clone(&region.node), Share { bytes: 0.0, rows: 0.0, groups: 0.0, link }));
                nodes.len() - 1
            });
            let share = &mut nodes[place].1;
            share.bytes += bytes;
            share.rows += f64::from(group.rows);
            share.groups += 1.0;
        }
        let shares = nodes.into_iter().map(|(_, share)| share).collect();
        Step { shares, fetched_bytes, sent_bytes: self.sent_bytes }
    }

    fn known(&self) -> Known {
        self.observed.learned().known(self.key, &self.prior)
    }

    /// What each way would take over these row groups.
    pub(crate) fn estimates(&self, groups: &[usize]) -> Estimates {
        let Known { cost, is_sure } = self.known();
        let found = estimate(&self.step(groups), &cost, self.machine);
        let mut estimates = Estimates::new(&found, is_sure);
        if !self.may_ship {
            estimates.choice = Way::Fetch;
            estimates.why = match self.columns.is_empty() {
                true => "no column is read".to_owned(),
                false => "the keys of a semi-join cannot be sent".to_owned(),
            };
        }
        estimates
    }

    /// Chooses for these row groups. Of links that nothing is known of, a few bytes are read first, if it is left to
    /// us.
    pub(crate) fn choose(&self, asked: Placement, groups: &[usize]) -> Choice {
        if let Some(way) = asked.way() {
            return Choice { way, estimates: self.estimates(groups), trial: Vec::new() };
        }
        self.probe_links(groups);
        let trial = self.trial(groups);
        let estimates = self.estimates(groups);
        Choice { way: estimates.choice, estimates, trial }
    }

    /// Returns the row groups to run first, if too little is known: spread over the table, as its rows may be in order.
    fn trial(&self, groups: &[usize]) -> Vec<usize> {
        let is_known = self.known().is_sure || !self.may_ship || self.sent_bytes > SENT_MAX;
        if is_known || groups.len() < TRIED_MIN {
            return Vec::new();
        }
        let step = self.step(groups);
        let count = (groups.len() / TRIED_SHARE).max(step.shares.len()).min(groups.len() / 4);
        (0..count).map(|number| groups[(2 * number + 1) * groups.len() / (2 * count)]).collect()
    }

    /// Reads a little over links of which nothing is known. Whatever fails will fail again, and be said then.
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
            let Some((region, _)) = located(self.table, *index) else { continue };
            let node = region.node.info.node.0;
            if seen.contains(&node) {
                continue;
            }
            seen.push(node);
            if region.node.is_shared() || self.observed.learned().link(node, Reach::Network).is_measured {
                continue;
            }
            self.probe_link(node, &self.table.row_groups()[*index]);
        }
    }

    /// A few bytes tell of the round trip, more of the rate. The first connects; of the others the one in the middle is
    /// as usual as it gets.
    fn probe_link(&self, node: u64, group: &RowGroup) {
        let session = self.table.session();
        let read = |bytes: u64, number: u64| -> Option<u64> {
            let bytes = bytes.min(group.end() - group.offset);
            let last = group.end() - bytes;
            let mut into = vec![0; bytes as usize];
            let begun = session.host().now();
            self.table.file.read_at((group.offset + number * bytes).min(last), &mut into).ok()?;
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
        learned.note_probe(node, Took { bytes, ns: ns.saturating_sub(round_trip).max(ns / 4) });
    }

    /// Learns from a part that was run over these row groups.
    pub(crate) fn learn(&self, stage: Stage, way: Way, groups: &[usize], ran: &Ran) {
        let session = self.table.session();
        let step = self.step(groups);
        {
            let mut learned = self.observed.learned();
            let all: f64 = step.shares.iter().map(|share| share.bytes).sum();
            let fetched = ran.fetched;
            if fetched.bytes > 0 && all > 0.0 {
                // Several nodes answer at the same time.
                let mut seen: Vec<(u64, Reach)> = Vec::new();
                for index in groups {
                    let Some((region, _)) = located(self.table, *index) else { continue };
                    let node = region.node.info.node.0;
                    if !seen.iter().any(|(known, _)| *known == node) {
                        seen.push((node, reach(session, &region.node)));
                    }
                }
                for ((node, reach), share) in seen.into_iter().zip(&step.shares) {
                    let bytes = (fetched.bytes as f64 * share.bytes / all) as u64;
                    learned.note_columns(node, reach, Took { bytes, ns: fetched.ns });
                }
            }
            for ScanRan { node, seen, result_bytes, busy_ns } in &ran.scans {
                let ScanSeen { open_ns, elapsed_ns, blocked_ns, waited_ns } = *seen;
                let node_id = node.info.node.0;
                learned.note_round_trip(node_id, open_ns);
                let of_elapsed = |ns: u64| ns as f64 / elapsed_ns.max(1) as f64;
                let is_link = of_elapsed(waited_ns) > WAITED_MIN && of_elapsed(blocked_ns) > BLOCKED_MIN;
                if way == Way::Ship && *result_bytes > RESULTS_MIN && is_link {
                    let reach = reach(session, node);
                    learned.note_results(node_id, reach, Took { bytes: *result_bytes, ns: elapsed_ns });
                }
                // What slows a node down that runs on our CPUs slows us down as well: that is no reason to spare it.
                let is_apart = !session.is_here(node);
                if elapsed_ns > LOAD_NS_MIN && way == Way::Ship && is_apart {
                    // What it did neither for us nor waiting for us; sending is not counted there.
                    let sending = (*result_bytes as f64 * prior::TCP_CPU_NS) as u64;
                    let ours = busy_ns.saturating_add(waited_ns).saturating_add(sending + open_ns);
                    let others = of_elapsed(elapsed_ns.saturating_sub(ours));
                    learned.note_load(node_id, if others < LOAD_MIN { 0.0 } else { others });
                }
            }
        }
        // Links have changed.
        let step = self.step(groups);
        let scans = ran.scans.len().max(1) as f64;
        let read = ran.node.bytes;
        let left = (read > 0).then(|| Left {
            read_bytes: read as f64 / scans,
            rows: self.rows_of(read) / scans,
            left_bytes: ran.result_bytes as f64 / scans,
        });
        let mut unpacked = Took::default();
        for ScanRan { seen, result_bytes, .. } in &ran.scans {
            unpacked.bytes += result_bytes;
            unpacked.ns += seen.elapsed_ns.saturating_sub(seen.blocked_ns);
        }
        let is_whole = stage == Stage::Rest && !self.is_limited;
        let actual = Actual {
            whole: is_whole.then_some((way, ran.elapsed_ns as f64)),
            node: ran.node,
            client: ran.client,
            unpacked: if unpacked.bytes > RESULTS_MIN { unpacked } else { Took::default() },
            // Of a limit, what left says when it was enough.
            left: left.filter(|_| !self.is_limited),
        };
        self.observed.learned().note(self.key, &self.prior, &step, self.machine, &actual);
    }

    fn rows_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes.max(1.0) * self.rows
    }

    /// Learns how long merging took, and what left the program here.
    pub(crate) fn learn_merge(&self, report: &Report, left_rows: u64, ns: u64) {
        let left = left_rows as f64 * self.row_bytes;
        let bytes = report.result_bytes + left as u64;
        let mut learned = self.observed.learned();
        if bytes > 0 {
            learned.note_merge(self.key, Took { bytes, ns });
        }
        if report.shipped == 0 && !self.is_limited {
            let read = report.fetched_bytes;
            let (read_bytes, rows) = (read as f64, self.rows_of(read));
            learned.note_left(self.key, &self.prior, Left { read_bytes, rows, left_bytes: left });
        }
    }
}

/// A program without its literals, in words.
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

/// What a program is believed to take for each byte it reads.
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

/// What a program is believed to leave.
fn leaves(
    of: &[&RowGroup],
    program: &Program,
    columns: &[usize],
    row_bytes: f64,
    input_row_bytes: f64,
) -> Leaves {
    let passes = |operator: &&Operator| matches!(operator, Operator::Filter(_) | Operator::SemiJoin { .. });
    let passing = prior::PASSING.powi(program.operators().iter().filter(passes).count() as i32);
    match program.operators().last() {
        Some(Operator::Group { keys, .. }) if keys.is_empty() => Leaves::Fixed(row_bytes),
        Some(Operator::Group { keys, .. }) => {
            let is_plain =
                !program.operators().iter().any(|operator| matches!(operator, Operator::Project(_)));
            let bound = is_plain.then(|| groups_at_most(of, keys, columns)).flatten();
            let groups = bound.map_or(prior::GROUPS, |bound| bound.min(prior::GROUPS.max(bound.sqrt())));
            Leaves::Groups { row_bytes, groups }
        }
        Some(Operator::Top { rows, .. }) => Leaves::Fixed(f64::from(*rows) * row_bytes),
        Some(Operator::Limit(rows)) => Leaves::Fixed((*rows as f64 * row_bytes).min(1e12)),
        _ => Leaves::Share(passing * row_bytes / input_row_bytes.max(1.0)),
    }
}

/// How many groups there can be by the bounds of whole numbers.
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
    /// What running a plan over some of its row groups would take, by what the session has learnt. Nothing is asked of
    /// any node. Estimates of steps can be added up.
    pub fn estimate(&self, plan: &Plan, groups: &[usize]) -> Estimates {
        let groups = groups.iter().copied().filter(|group| self.may_pass(plan, *group)).collect();
        let scope = Scope::new(plan, groups);
        Placing::new(self, &scope, &Joining::of(plan, Placement::Auto)).estimates(&scope.groups)
    }
}
