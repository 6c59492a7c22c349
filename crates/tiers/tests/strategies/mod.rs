//! All strategies of joins over tiers, and the results that they must give. Used by tests on machines with one NUMA
//! node and with two.

use farpool_join::{Exact, JoinSpec, Kind, Settings, Sides, Sink, Tuple};
use farpool_tiers::plan::balance::Balance;
use farpool_tiers::plan::hash_join::{Joining, Partitioning};
use farpool_tiers::stage::RealTime;
use farpool_tiers::strategy::{CopyPlan, NonPartitionedStrategy, PartitionedStrategy, Strategy};
use farpool_tiers::{Joined, TierError, TierMemory, Tiered, join};
use std::collections::HashMap;

/// Near share of the mix of both tiers to which strategies write.
pub const ALPHA: f64 = 0.6;

/// Number of pairs, number of rows that were output alone, and a sum that depends on which rows these were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub pairs: u64,
    pub lone: u64,
    pub sum: i64,
}

impl Sink for Sum {
    fn pair(&mut self, build: i64, probe: i64) {
        self.pairs += 1;
        self.sum = self
            .sum
            .wrapping_add((build ^ probe.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
    }

    fn lone(&mut self, probe: i64) {
        self.lone += 1;
        self.sum = self.sum.wrapping_add(probe.wrapping_mul(31));
    }
}

pub fn naive(build: &[Tuple], probe: &[Tuple], kind: Kind) -> Sum {
    let mut rows: HashMap<i64, Vec<i64>> = HashMap::new();
    build.iter().for_each(|tuple| rows.entry(tuple.key).or_default().push(tuple.payload));
    let mut sum = Sum::default();
    for tuple in probe {
        let found = rows.get(&tuple.key).map_or(&[][..], Vec::as_slice);
        match kind {
            Kind::Inner | Kind::Left => found.iter().for_each(|build| sum.pair(*build, tuple.payload)),
            Kind::Semi | Kind::Anti => {}
        }
        let is_lone = match kind {
            Kind::Inner => false,
            Kind::Left | Kind::Anti => found.is_empty(),
            Kind::Semi => !found.is_empty(),
        };
        if is_lone {
            sum.lone(tuple.payload);
        }
    }
    sum
}

pub fn drawn(place: u64) -> u64 {
    let mut value = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 29)
}

/// Returns rows whose keys are drawn from `keys` different ones, by a power law of the key's rank, like Zipf's law.
pub fn tuples(rows: usize, keys: u64, skew: f64, seed: u64) -> Vec<Tuple> {
    let of_row = |row: u64| {
        let unit = (drawn(row ^ (seed << 40)) >> 11) as f64 / (1u64 << 53) as f64;
        // This is the inverse of the integral of the power law. All keys are equally likely at a skew of 0.
        let power = 1.0 - skew;
        let most = keys as f64;
        let rank = match power.abs() < 1e-9 {
            true => most.powf(unit),
            false => (1.0 + unit * (most.powf(power) - 1.0)).powf(1.0 / power),
        };
        // Keys have all sizes, the least and the greatest among them.
        let key = match rank as u64 {
            0 | 1 => i64::MIN,
            2 => i64::MAX,
            rank => drawn(rank) as i64,
        };
        Tuple { key, payload: row as i64 }
    };
    (0..rows as u64).map(of_row).collect()
}

pub fn strategies() -> Vec<Strategy> {
    let mut all = Vec::new();
    for partitioning in Partitioning::ALL {
        for joining in [Joining::Left, Joining::After] {
            let strategy = PartitionedStrategy::new(partitioning, joining, ALPHA);
            all.push(Strategy::Partitioned(PartitionedStrategy { input_share: 0.54, ..strategy }));
        }
    }
    for batches in [2, 5] {
        let strategy = PartitionedStrategy::new(Partitioning::OnePass, Joining::Beside { batches }, ALPHA);
        let batch_shares = vec![0.5, 1.0, 0.0];
        all.push(Strategy::Partitioned(PartitionedStrategy { build_share: 1.0, batch_shares, ..strategy }));
    }
    for (moved, table_share) in [
        (CopyPlan::Share(0.0), 0.7),
        (CopyPlan::Share(0.5), ALPHA),
        (CopyPlan::Share(1.0), 1.0),
        (CopyPlan::Mixed(ALPHA), 0.0),
    ] {
        let partitions_share = 1.0 - table_share;
        let strategy = NonPartitionedStrategy { moved, partitions_share, table_share };
        all.push(Strategy::NonPartitioned(strategy));
    }
    all
}

pub struct Run<'a> {
    pub tiers: &'a dyn RealTime,
    pub memory: &'a TierMemory,
    pub sides: (&'a [Tuple], &'a [Tuple]),
    pub kind: Kind,
}

impl Run<'_> {
    pub fn run(&self, strategy: &Strategy, balance: Option<&mut Balance>) -> Result<Joined<Sum>, TierError> {
        let settings = Settings::new(self.tiers.workers(), 7);
        let sinks = vec![Sum::default(); self.tiers.workers()];
        let on = Tiered { tiers: self.tiers, memory: self.memory };
        let sides = Sides { build: self.sides.0, probe: self.sides.1 };
        let how = JoinSpec { kind: self.kind, equal: &Exact };
        join(on, &settings, strategy, sides, how, balance, sinks)
    }
}

pub fn total(joined: &Joined<Sum>) -> Sum {
    joined.sinks.iter().fold(Sum::default(), |all, of| Sum {
        pairs: all.pairs + of.pairs,
        lone: all.lone + of.lone,
        sum: all.sum.wrapping_add(of.sum),
    })
}
