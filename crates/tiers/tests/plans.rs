//! Plans over two tiers: results of paper 002 and ours follow from bytes alone, and the solver finds the optimum.

use farpool_tiers::plan::hash_join::{
    Inputs, Joining, NonPartitioned, PartitionedJoin, Partitioning, SharedTable,
};
use farpool_tiers::plan::operators;
use farpool_tiers::plan::partial_move::Linear;
use farpool_tiers::plan::phases::{NoPlacement, Phase, PhasePlan};
use farpool_tiers::plan::traffic::{Rates, TierRates};

/// Near share of the mix on the paper's machine, 3:2.
const ALPHA: f64 = 0.6;
const RATES: Rates = Rates::PAPER;
/// Inputs with a probe side only. Both sides are partitioned alike, so the results hold for both.
const ONE: Inputs = Inputs { build: 0.0, probe: 1.0 };

#[track_caller]
fn assert_near(found: f64, expected: f64, off_max: f64) {
    assert!((found - expected).abs() <= off_max, "{found} is not {expected} to within {off_max}");
}

/// Returns the seconds of a join with the best near shares, and the near shares of its input and its partitions.
fn best(partitioning: Partitioning, joining: Joining) -> (f64, f64, f64) {
    let join = PartitionedJoin::new(partitioning, joining, ONE, ALPHA);
    let found = join.plan.place(&RATES, f64::INFINITY).unwrap();
    (found.seconds(), found.share(join.input), found.share(join.batches[0]))
}

fn partition_with(x: f64) -> [f64; 2] {
    let join = PartitionedJoin::new(Partitioning::MoveThenRun, Joining::Left, ONE, ALPHA);
    let found = join.plan.at(&RATES, vec![x, ALPHA, ALPHA]);
    [found.phase_seconds[0], found.phase_seconds[1]]
}

#[test]
fn k_and_m_of_the_paper_follow_from_bytes() {
    let model =
        Linear::of_times(partition_with(0.0)[1], partition_with(1.0)[0], |x| partition_with(x)[1], ALPHA);
    // Paper 002 measured 2.3534 (`k`) and 1.0977 (`m`).
    assert_near(model.k, 2.400, 5e-4);
    assert_near(model.m, 1.32, 5e-3);
}

#[test]
fn best_partial_move_of_the_paper_follows_from_bytes() {
    let (in_far, _, _) = best(Partitioning::InFar, Joining::Left);
    let (moved, x, _) = best(Partitioning::MoveThenRun, Joining::Left);
    // Paper 002 measured a gain of 1.2719 with the share 0.4972 moved near.
    assert_near(in_far / moved, 1.289, 5e-4);
    assert_near(x, 0.54, 5e-3);
}

#[test]
fn copying_everything_loses_to_staying_far() {
    let (in_far, _, _) = best(Partitioning::InFar, Joining::Left);
    assert_near(in_far / best(Partitioning::CopyNear, Joining::Left).0, 0.853, 5e-4);
    assert_near(in_far / best(Partitioning::CopyMixed, Joining::Left).0, 0.881, 5e-4);
    // The gain would be 0.75 if the copy were written to the mix but read as if it were all near.
    let mut plan = PhasePlan::default();
    let copy = plan.fixed_object("copy", 1.0, ALPHA);
    let partitions = plan.fixed_object("partitions", 1.0, ALPHA);
    let far = farpool_tiers::plan::traffic::TierSide::Far;
    let near = farpool_tiers::plan::traffic::TierSide::Near;
    plan.then(Phase::new("move").reads_on(far, 1.0).writes(copy, 1.0));
    plan.then(Phase::new("partition").reads_on(near, 2.0).writes(partitions, 1.0));
    assert_near(in_far / plan.seconds(&RATES, &[ALPHA, ALPHA]), 0.7465, 5e-4);
}

#[test]
fn partition_that_is_the_move_is_worth_most() {
    let (in_far, _, _) = best(Partitioning::InFar, Joining::Left);
    let (one_pass, _, w) = best(Partitioning::OnePass, Joining::Left);
    assert_near(in_far / one_pass, 2.400, 5e-4);
    assert_eq!(w, 1.0);
    let (kept, _, _) = best(Partitioning::KeepWhileCounting, Joining::Left);
    assert_near(in_far / kept, 1.275, 5e-3);
}

#[test]
fn whole_partitioned_joins_gain_what_their_bytes_say() {
    let (in_far, _, _) = best(Partitioning::InFar, Joining::After);
    // Paper 002 measured a gain of 22.20 %.
    assert_near(in_far / best(Partitioning::MoveThenRun, Joining::After).0, 1.233, 1e-3);
    assert_near(in_far / best(Partitioning::OnePass, Joining::After).0, 1.67, 5e-3);
}

/// The gain would be 2.15 if everything were joined during partitioning and no partition were read twice.
#[test]
fn batches_of_the_probe_side_keep_both_tiers_busy_and_cost_what_is_read_again() {
    let gain = |build: f64, batches: u32| {
        let of = |partitioning, joining| {
            let join = PartitionedJoin::new(partitioning, joining, Inputs { build, probe: 1.0 }, ALPHA);
            join.plan.place(&RATES, f64::INFINITY).unwrap().seconds()
        };
        of(Partitioning::InFar, Joining::After) / of(Partitioning::OnePass, Joining::Beside { batches })
    };
    assert_near(gain(0.0, 1), 1.67, 5e-3);
    assert_near(gain(0.0, 12), 2.13, 1e-2);
    assert_near(gain(1.0 / 16.0, 2), 1.98, 2e-2);
    assert!(gain(1.0 / 16.0, 2) > gain(1.0 / 16.0, 8));
    assert!(gain(1.0, 2) < 1.1 * gain(1.0, 1), "{} {}", gain(1.0, 2), gain(1.0, 1));
}

#[test]
fn short_near_memory_hurts_the_partial_move_more() {
    let in_far = best(Partitioning::InFar, Joining::Left).0;
    for (room, expected) in [(0.25, 1.37), (0.5, 1.60), (1.0, 2.40)] {
        let join = PartitionedJoin::new(Partitioning::OnePass, Joining::Left, ONE, ALPHA);
        let found = join.plan.place(&RATES, room).unwrap();
        assert_near(in_far / found.seconds(), expected, 5e-3);
        assert!(found.near_bytes <= room + 1e-9);
    }
    let join = PartitionedJoin::new(Partitioning::MoveThenRun, Joining::Left, ONE, ALPHA);
    assert_near(in_far / join.plan.place(&RATES, 1.0).unwrap().seconds(), 1.20, 2e-2);
    let refused = join.plan.place(&RATES, 0.5).unwrap_err();
    assert_eq!(refused, NoPlacement::Room { needed: 0.6, permitted: 0.5 });
}

#[test]
fn table_of_a_join_is_worth_placing_and_its_input_is_not() {
    let rows = SharedTable {
        build_bytes: 0.0,
        probe_bytes: 1.0,
        row_bytes: 16.0,
        slot_bytes: 64.0,
        table_row_bytes: 64.0,
        near_share: Some(ALPHA),
        may_move: true,
    };
    for (slot_bytes, t, gain) in [(64.0, 0.70, 1.18), (32.0, 0.84, 1.36), (16.0, 1.0, 1.40)] {
        let stay = SharedTable { slot_bytes, may_move: false, ..rows };
        let in_far = NonPartitioned::new(&stay).plan.place(&RATES, f64::INFINITY).unwrap();
        let free = NonPartitioned::new(&SharedTable { near_share: None, slot_bytes, ..rows });
        let placed = free.plan.place(&RATES, f64::INFINITY).unwrap();
        assert_near(in_far.seconds() / placed.seconds(), gain, 1e-2);
        assert_near(placed.share(free.table), t, 1e-2);
        assert_eq!(placed.share(free.probe), 0.0, "the probe side is streamed from where it lies");
    }
    let in_far =
        NonPartitioned::new(&SharedTable { may_move: false, ..rows }).plan.place(&RATES, f64::INFINITY);
    let moved = NonPartitioned::new(&rows).plan.place(&RATES, f64::INFINITY).unwrap();
    // Paper 002 expected a gain of 2.14 % from moving a share of the probe side near, and measured 3.59 %.
    let found = in_far.unwrap().seconds() / moved.seconds();
    assert!((1.0..1.04).contains(&found), "{found}");
}

#[test]
fn m_of_the_probe_phase_follows_from_bytes() {
    let join = NonPartitioned::new(&SharedTable {
        build_bytes: 0.0,
        probe_bytes: 1.0,
        row_bytes: 16.0,
        slot_bytes: 64.0,
        table_row_bytes: 64.0,
        near_share: Some(ALPHA),
        may_move: true,
    });
    let phases = |x: f64| {
        let mut shares = vec![0.0; 4];
        (shares[join.probe.index()], shares[join.table.index()]) = (x, ALPHA);
        join.plan.at(&RATES, shares).phase_seconds
    };
    let model = Linear::of_times(phases(0.0)[1], phases(1.0)[0], |x| phases(x)[1], ALPHA);
    assert_near(model.k, 2.60, 5e-3);
    assert_near(model.m, 0.368, 5e-3);
}

#[test]
fn input_is_moved_only_if_it_is_read_again() {
    for (times, moved, beside) in
        [(1.0, 1.0, 1.0), (2.0, 1.387, 1.418), (3.0, 1.593, 1.630), (5.0, 1.808, 1.840), (10.0, 2.012, 2.035)]
    {
        let in_far = times / RATES.far.both;
        let plan = operators::read_repeatedly(1.0, times);
        let found = plan.plan.place(&RATES, f64::INFINITY).unwrap();
        assert_near(in_far / found.seconds(), moved, 5e-3);
        if times == 1.0 {
            assert_eq!(found.share(plan.input), 0.0, "a scan moves nothing");
        }
        let found = operators::read_repeatedly_beside_moving(1.0, times).plan.place(&RATES, f64::INFINITY);
        assert_near(in_far / found.unwrap().seconds(), beside, 5e-3);
    }
}

#[test]
fn cpus_hold_a_phase_up_whatever_the_memory_does() {
    let mut plan = PhasePlan::default();
    let output = plan.object("output", 1e9);
    plan.then(Phase::new("write").writes(output, 1e9).takes_cpus(0.5));
    let found = plan.place(&RATES, f64::INFINITY).unwrap();
    assert_near(found.seconds(), 0.5, 1e-9);
    assert_near(found.share(output), 0.0, 1e-6);
}

#[test]
fn impossible_plans_are_refused_by_name() {
    let mut plan = PhasePlan::default();
    let wrong = plan.object("groups", -1.0);
    assert_eq!(
        plan.place(&RATES, 1.0).unwrap_err().to_string(),
        "object groups has a size of -1 B; it must be finite and not negative"
    );
    let mut plan = PhasePlan::default();
    let object = plan.object("runs", 1.0);
    plan.bound(object, 0.5, 0.4);
    assert!(plan.place(&RATES, 1.0).unwrap_err().to_string().contains("from 0.5 to 0.4 of runs"));
    let mut other = PhasePlan::default();
    other.then(Phase::new("of another").reads(wrong, 1.0));
    assert_eq!(other.place(&RATES, 1.0), Err(NoPlacement::Phase { name: "of another" }));
    let rates = Rates { together: f64::NAN, ..RATES };
    assert!(matches!(PhasePlan::default().place(&rates, 1.0), Err(NoPlacement::Rate(_))));
    assert!(PhasePlan::default().place(&RATES, f64::NAN).is_err());
}

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.share()
    }
}

fn random_rates(random: &mut Random) -> Rates {
    let mut rates = |rate: f64| {
        if random.share() < 0.5 {
            return TierRates::shared(rate);
        }
        let read = rate * random.between(0.5, 1.0);
        TierRates { read, write: rate * random.between(0.3, 0.9), both: rate }
    };
    let near = rates(30e9);
    let far_rate = 30e9 * (0.1 + 0.9 * (near.read / 30e9));
    let far = rates(far_rate);
    Rates { near, far, together: (near.both + far.both) * random.between(0.7, 1.0) }
}

/// Returns a plan of three free objects and phases that read, write, move and keep them.
fn random_plan(random: &mut Random) -> PhasePlan {
    let mut plan = PhasePlan::default();
    let objects = ["input", "partitions", "table"].map(|name| plan.object(name, random.between(0.2, 3.0)));
    for name in ["one", "two", "three", "four"] {
        let mut phase = Phase::new(name);
        for object in objects {
            let bytes = random.between(0.0, 3.0);
            phase = match (random.share() * 5.0) as u32 {
                0 => phase.reads(object, bytes),
                1 => phase.writes(object, bytes),
                2 => phase.moves(object, bytes),
                3 => phase.keeps(object, bytes).reads_on(farpool_tiers::plan::traffic::TierSide::Far, bytes),
                _ => phase,
            };
        }
        plan.then(phase);
    }
    plan
}

#[test]
fn placement_is_the_least_of_exhaustive_search_on_200_random_machines() {
    const STEPS: u32 = 25;
    let mut random = Random(1);
    for machine in 0..200 {
        let (rates, plan) = (random_rates(&mut random), random_plan(&mut random));
        let room = if machine % 2 == 0 { f64::INFINITY } else { random.between(0.1, 4.0) };
        let found = plan.place(&rates, room).unwrap();
        assert!(found.near_bytes <= room * (1.0 + 1e-9), "machine {machine}");
        assert_near(plan.seconds(&rates, &found.shares), found.seconds(), 1e-18);
        let mut least = f64::INFINITY;
        for point in 0..(STEPS + 1).pow(3) {
            let digit =
                |place: u32| f64::from(point / (STEPS + 1).pow(place) % (STEPS + 1)) / f64::from(STEPS);
            let shares = vec![digit(0), digit(1), digit(2)];
            let tried = plan.at(&rates, shares);
            if tried.near_bytes <= room {
                least = least.min(tried.seconds());
            }
        }
        // The solver is never worse than the grid. It is better by at most the error of the grid's step.
        let ratio = found.seconds() / least;
        assert!((0.95..=1.0 + 1e-6).contains(&ratio), "machine {machine}: {ratio}");
    }
}
