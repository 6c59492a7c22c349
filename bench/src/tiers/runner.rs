//! Runner of the joins of `farpool bench tiers`. A virtual clock only computes their times; on emulated or real memory
//! tiers, the joins are carried out.
//!
//! The strategies are the same on all three backends. Inputs lie in the far tier. Keys of the build side are distinct,
//! unordered and spread over 64 bits. Each lookup therefore reads a cache line of the table, as the predictions from
//! bytes assume. Every row of the probe side has a match. The result of every join is compared with the expected one.

use super::hash_join::Sum;
use crate::exit::Failure;
use crate::harness::mixing::drawn;
use crate::units::show_bytes;
use clap::ValueEnum;
use farpool_join::{Exact, JoinSpec, Kind, LineMemory, Settings, Sides, Sink, Tuple};
use farpool_tiers::calibrate::calibrate;
use farpool_tiers::plan::interleave::Interleave;
use farpool_tiers::plan::traffic::Rates;
use farpool_tiers::stage::{Backend, RealTime, StageReport};
use farpool_tiers::strategy::{MORSEL_BYTES, Strategy};
use farpool_tiers::topology::Topology;
use farpool_tiers::{Emulated, Nodes, Numa, TierMemory, Tiered, Virtual, join};

/// Bytes of a row: a key and a payload.
pub(crate) const ROW_BYTES: usize = size_of::<Tuple>();
/// Number of workers on two emulated tiers, enough to keep both busy. [`CROWD`] is the number of workers that the
/// virtual clock simulates for lookups of cache lines with latency. It is larger, because hardware has many more cache
/// lines in flight than the few of a simulated worker.
const WORKERS: usize = 2;
const CROWD: usize = 32;
/// Near share of data that keeps both tiers of the paper's machine equally busy: three parts near, two parts far.
const PAPER_MIX: f64 = 0.6;
/// Distance between the key numbers of consecutive rows of the build side (modulo the number of rows). It is a prime
/// larger than any number of rows, so every key number occurs once.
const STEP: u64 = 6_700_417_000_111;

/// Backend that runs the morsels (the small pieces of work into which a join is divided).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendKind {
    /// Simulated clock: the same results in every run
    Virtual,
    /// Real joins in real memory, slowed down
    Emulated,
    /// Real joins on two NUMA nodes
    Numa,
}

impl BackendKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            BackendKind::Virtual => "virtual",
            BackendKind::Emulated => "emulated",
            BackendKind::Numa => "numa",
        }
    }
}

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) backend: BackendKind,
    pub(crate) probe_bytes: u64,
    /// Divisor of the rates of the paper's machine. The emulated tiers have the quotients.
    pub(crate) slower: f64,
    pub(crate) far_latency_ns: f64,
    pub(crate) rounds: usize,
}

/// Machine that joins run on.
pub(crate) enum Machine {
    /// Times only: bytes are counted, nothing is joined. `streams` is for partitioned joins, which read and write in
    /// sequence. `lines` is for joins that look up single cache lines, with their latency.
    Virtual { streams: Virtual, lines: Virtual },
    /// Real joins in memory of emulated or real tiers.
    Real { tiers: Box<dyn RealTime>, memory: TierMemory },
}

/// Machine, and the rates of its tiers, from which times are predicted.
pub(crate) struct Runner {
    pub(crate) machine: Machine,
    pub(crate) rates: Rates,
    /// Near share of data that keeps both tiers equally busy.
    pub(crate) mixed: f64,
    pub(crate) workers: usize,
}

impl Runner {
    pub(crate) fn new(setting: &Setting) -> Result<Runner, Failure> {
        let slower = |rate: f64| rate / setting.slower;
        let paper = Rates::PAPER;
        let rates = Rates::shared(slower(paper.near.both), slower(paper.far.both), slower(paper.together));
        let far_ns = setting.far_latency_ns;
        match setting.backend {
            BackendKind::Virtual => {
                let streams = Virtual::new(rates).map_err(Failure::failed)?;
                let crowd = streams.with_workers(CROWD, 1).with_latency(0.0, far_ns);
                let lines = if far_ns > 0.0 { crowd } else { streams };
                let machine = Machine::Virtual { streams, lines };
                Ok(Runner { machine, rates, mixed: PAPER_MIX, workers: WORKERS })
            }
            BackendKind::Emulated => {
                let tiers = Emulated::new(rates, WORKERS).map_err(Failure::failed)?;
                let tiers = Box::new(tiers.with_latency(0.0, far_ns));
                let machine = Machine::Real { tiers, memory: TierMemory::new(Nodes::ANY, WORKERS) };
                Ok(Runner { machine, rates, mixed: PAPER_MIX, workers: WORKERS })
            }
            BackendKind::Numa => {
                let topology = Topology::read().map_err(Failure::failed)?;
                let Some((near, far)) = topology.tiers() else { return Err(one_node(&topology)) };
                let tiers = Numa::beside(near);
                let workers = tiers.workers();
                let measured = calibrate(&topology, workers).map_err(Failure::failed)?;
                let Some(rates) = measured.rates() else { return Err(one_node(&topology)) };
                let nodes = Nodes { near: Some(near.id), far: Some(far.id) };
                let machine =
                    Machine::Real { tiers: Box::new(tiers), memory: TierMemory::new(nodes, workers) };
                Ok(Runner { machine, rates, mixed: rates.even_share(), workers })
            }
        }
    }

    /// Creates inputs with `build` and `probe` rows.
    pub(crate) fn inputs(&self, build: usize, probe: usize) -> Result<Inputs<'_>, Failure> {
        let Machine::Real { memory, .. } = &self.machine else {
            return Ok(Inputs { memory: None, rows: (build, probe), wanted: Sum::default() });
        };
        let rows = |rows| memory.rows(Interleave::FAR, rows).map_err(Failure::failed);
        let (mut builds, mut probes) = (rows(build)?, rows(probe)?);
        let keys = build as u64;
        for (row, tuple) in builds.tuples_mut()[..build].iter_mut().enumerate() {
            let key = key_of((u128::from(row as u64) * u128::from(STEP) % u128::from(keys)) as u64);
            *tuple = Tuple { key, payload: payload_of(key) };
        }
        let mut wanted = Sum::default();
        for (row, tuple) in probes.tuples_mut()[..probe].iter_mut().enumerate() {
            let key = key_of(drawn(row as u64 + 1) % keys);
            *tuple = Tuple { key, payload: row as i64 };
            wanted.pair(payload_of(key), row as i64);
        }
        Ok(Inputs { memory: Some((builds, probes)), rows: (build, probe), wanted })
    }

    /// Joins the inputs and checks the result.
    pub(crate) fn run(&self, strategy: &Strategy, inputs: &Inputs<'_>) -> Result<Vec<StageReport>, Failure> {
        let (build, probe) = inputs.rows;
        let (tiers, memory) = match &self.machine {
            Machine::Virtual { streams, lines } => {
                let morsels = [build, probe].map(|rows| (rows * ROW_BYTES / MORSEL_BYTES as usize) as u32);
                return Ok(match strategy {
                    Strategy::Partitioned(strategy) => strategy.times(streams, morsels, None),
                    Strategy::NonPartitioned(strategy) => strategy.times(lines, morsels),
                });
            }
            Machine::Real { tiers, memory } => (tiers, memory),
        };
        let Some((builds, probes)) = &inputs.memory else { return Err(Failure::failed("no rows")) };
        let sides = Sides { build: &builds.tuples()[..build], probe: &probes.tuples()[..probe] };
        let settings = Settings::new(self.workers, 1);
        let (how, sinks) =
            (JoinSpec { kind: Kind::Inner, equal: &Exact }, vec![Sum::default(); self.workers]);
        let joined = join(Tiered { tiers: &**tiers, memory }, &settings, strategy, sides, how, None, sinks);
        let joined = joined.map_err(Failure::failed)?;
        let found = joined.sinks.iter().fold(Sum::default(), |all, of| Sum {
            pairs: all.pairs + of.pairs,
            sum: all.sum.wrapping_add(of.sum),
        });
        if found != inputs.wanted {
            let wanted = inputs.wanted;
            return Err(Failure::Failed(format!(
                "WRONG ROWS: {found:?} instead of {wanted:?}, {strategy:?}"
            )));
        }
        Ok(joined.reports)
    }

    /// Reports whether joins are carried out. A virtual clock only computes their times.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.machine, Machine::Real { .. })
    }

    /// Returns unused memory to the system, so that inputs of another size find room.
    pub(crate) fn trim(&self) {
        if let Machine::Real { memory, .. } = &self.machine {
            memory.trim();
        }
    }

    /// Checks that all memory of real tiers lies on its NUMA node. A full node makes the kernel use another one without
    /// an error.
    pub(crate) fn check_memory(&self) -> Result<(), Failure> {
        let Machine::Real { memory, .. } = &self.machine else { return Ok(()) };
        let landed = memory.landed().map_err(Failure::failed)?;
        match landed.astray.len() {
            0 => Ok(()),
            astray => Err(Failure::Failed(format!(
                "{astray} of {} chunks of 2 MiB do not lie on their node, which is full: give a smaller --size",
                landed.chunks
            ))),
        }
    }
}

fn one_node(topology: &Topology) -> Failure {
    let nodes = topology.nodes.iter().map(|node| format!("node {} with {}", node.id, show_bytes(node.bytes)));
    let nodes: Vec<String> = nodes.collect();
    Failure::Failed(format!(
        "--backend numa: this machine has memory on {} alone; it needs two NUMA nodes with memory, one of them with CPUs, such \
         as DRAM and CXL memory or two sockets. --backend emulated runs on one",
        nodes.join(", ")
    ))
}

/// Rows in the far tier, and the expected result of their join.
pub(crate) struct Inputs<'m> {
    memory: Option<(LineMemory<'m>, LineMemory<'m>)>,
    rows: (usize, usize),
    wanted: Sum,
}

impl Inputs<'_> {
    /// Returns the bytes of both sides.
    pub(crate) fn bytes(&self) -> f64 {
        ((self.rows.0 + self.rows.1) * ROW_BYTES) as f64
    }
}

/// Returns the key with a number. The keys of consecutive numbers are far apart.
fn key_of(number: u64) -> i64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64
}

fn payload_of(key: i64) -> i64 {
    key.wrapping_mul(3).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there_once_and_machine_of_one_node_is_told_what_it_lacks() {
        let keys = 65_536_u64;
        let mut all: Vec<u64> =
            (0..keys).map(|row| (u128::from(row) * u128::from(STEP) % u128::from(keys)) as u64).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..keys));
        let topology = Topology::read().unwrap();
        let Failure::Failed(words) = one_node(&topology) else { panic!("no failure") };
        assert!(words.contains("node 0 with") && words.contains("needs two NUMA nodes"), "{words}");
    }
}
