//! Plans of phases, and the near share of each object at which all phases together take least time.
//!
//! The idea: a cellar is emptied through a wide door and a narrow door. The work is done soonest if both doors are busy
//! until the end, so each door gets its share of the boxes. If all boxes wait behind the wide door, the other door is
//! idle. The best share also depends on where the boxes go later.
//!
//! An object (an input, a hash table, partitions, an output) has a share `w` that lies near. A phase moves bytes of
//! objects, and its bytes on either tier are linear in the shares: reading an object once reads `w` of it near and
//! `1 - w` far. A phase takes as long as the greatest of a few linear terms ([`Rates`]). Phases run one after another,
//! so the plan takes their sum. Near memory is bounded in each phase. The least sum is the answer of a linear program,
//! which [`PhasePlan::place`] solves exactly. Moving data is a phase like any other. Work that runs at the same time is
//! one phase with the traffic of both ([`Phase::beside`]).
//!
//! If there is no near memory, all free shares are 0 and the plan takes what the far tier takes. If near memory is
//! plentiful, shares still stop where both tiers are equally busy. If CPUs are the limit ([`Phase::takes_cpus`]),
//! moving bytes gains nothing, and of equal placements the one with less near memory is taken.
//!
//! A rule of thumb such as "hash tables near, inputs far" is simpler. It leaves one tier idle for part of the time, and
//! it has no answer for a table that does not fit.
//!
//! A product of two shares is not linear, for example "the near share of what was moved". Express it by two objects, or
//! fix one of the shares.

use super::simplex::{self, Row};
use super::traffic::{NoRate, Rates, TERMS, TierSide, Traffic};
use std::fmt;
use std::ops::Range;

/// Most objects of a plan.
pub const OBJECTS_MAX: usize = 16;
/// Most phases of a plan.
pub const PHASES_MAX: usize = 64;

/// Identifier of an object within its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(usize);

impl ObjectId {
    /// Returns the index of the object in [`NearShares::shares`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// Object of a plan, such as an input or a table, whose near share is to be found, and the bounds of that share.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    name: &'static str,
    /// Bytes of near memory that the object takes if all of it is near.
    bytes: f64,
    /// Bounds of the near share.
    least: f64,
    most: f64,
    /// Phases during which the object takes memory.
    lives: Range<usize>,
}

/// Step of a plan. It begins when the step before it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    name: &'static str,
    /// Bytes that are moved whatever the shares are.
    fixed: Traffic,
    /// Change of the traffic if the share of an object goes from 0 to 1.
    by_share: Vec<(ObjectId, Traffic)>,
    /// Seconds that all CPUs work. The phase takes at least this long.
    cpu_seconds: f64,
}

/// Direction of bytes.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Written,
}

impl Phase {
    /// Returns a phase that moves nothing.
    pub fn new(name: &'static str) -> Phase {
        Phase { name, fixed: Traffic::default(), by_share: Vec::new(), cpu_seconds: 0.0 }
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds reads of an object, `bytes` in all, on the tiers where it lies. An object that is read twice counts twice.
    pub fn reads(self, object: ObjectId, bytes: f64) -> Phase {
        self.touches(object, bytes, Way::Read)
    }

    /// Adds writes of an object, `bytes` in all, on the tiers where it lies.
    pub fn writes(self, object: ObjectId, bytes: f64) -> Phase {
        self.touches(object, bytes, Way::Written)
    }

    /// Adds reads from one tier that do not depend on shares.
    pub fn reads_on(mut self, side: TierSide, bytes: f64) -> Phase {
        self.fixed.of_mut(side).read += bytes;
        self
    }

    /// Adds writes to one tier that do not depend on shares.
    pub fn writes_on(mut self, side: TierSide, bytes: f64) -> Phase {
        self.fixed.of_mut(side).written += bytes;
        self
    }

    /// Adds the copying of an object's near share: its part of `bytes` is read far and written near.
    pub fn moves(mut self, object: ObjectId, bytes: f64) -> Phase {
        let mut moved = Traffic::default();
        moved.far.read = bytes;
        moved.near.written = bytes;
        self.by_share.push((object, moved));
        self
    }

    /// Adds writing an object's near share near, while its bytes are in the CPU anyway. Nothing is read.
    pub fn keeps(mut self, object: ObjectId, bytes: f64) -> Phase {
        let mut kept = Traffic::default();
        kept.near.written = bytes;
        self.by_share.push((object, kept));
        self
    }

    /// Adds CPU time in seconds. A phase takes at least its CPU time.
    pub fn takes_cpus(mut self, seconds: f64) -> Phase {
        self.cpu_seconds += seconds;
        self
    }

    /// Merges another phase into this one: both run at the same time and share the links.
    pub fn beside(mut self, other: Phase) -> Phase {
        self.fixed = self.fixed.plus(other.fixed, 1.0);
        self.by_share.extend(other.by_share);
        self.cpu_seconds += other.cpu_seconds;
        self
    }

    /// Returns the bytes moved with these shares, by object index. An object without a share lies far.
    pub fn traffic(&self, shares: &[f64]) -> Traffic {
        let share = |object: &ObjectId| shares.get(object.0).copied().unwrap_or(0.0);
        self.by_share.iter().fold(self.fixed, |sum, (object, traffic)| sum.plus(*traffic, share(object)))
    }

    /// Returns the seconds that the phase takes with these shares.
    pub fn seconds(&self, rates: &Rates, shares: &[f64]) -> f64 {
        rates.seconds(&self.traffic(shares)).max(self.cpu_seconds)
    }

    fn touches(mut self, object: ObjectId, bytes: f64, way: Way) -> Phase {
        let mut moved = Traffic::default();
        for (side, sign) in [(TierSide::Near, 1.0), (TierSide::Far, -1.0)] {
            let of_side = moved.of_mut(side);
            match way {
                Way::Read => of_side.read = bytes * sign,
                Way::Written => of_side.written = bytes * sign,
            }
        }
        self.by_share.push((object, moved));
        match way {
            Way::Read => self.reads_on(TierSide::Far, bytes),
            Way::Written => self.writes_on(TierSide::Far, bytes),
        }
    }
}

/// Objects, and phases that run one after another.
///
/// [`object`](PhasePlan::object) and [`fixed_object`](PhasePlan::fixed_object) add objects, [`bound`](PhasePlan::bound)
/// and [`lives`](PhasePlan::lives) restrict them, [`then`](PhasePlan::then) adds phases in order.
/// [`place`](PhasePlan::place) finds the best shares; [`at`](PhasePlan::at) and [`seconds`](PhasePlan::seconds) compute
/// the times of given shares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhasePlan {
    objects: Vec<Object>,
    phases: Vec<Phase>,
}

/// Near shares of all objects of a plan, and the times that follow.
#[derive(Clone, Debug, PartialEq)]
pub struct NearShares {
    /// Share of each object that lies near, by object index.
    pub shares: Vec<f64>,
    /// Seconds of each phase.
    pub phase_seconds: Vec<f64>,
    /// Most bytes of near memory that are in use during any phase.
    pub near_bytes: f64,
}

impl NearShares {
    /// Returns the near share of an object.
    pub fn share(&self, object: ObjectId) -> f64 {
        self.shares.get(object.0).copied().unwrap_or(0.0)
    }

    /// Returns the seconds of all phases together.
    pub fn seconds(&self) -> f64 {
        self.phase_seconds.iter().sum()
    }
}

impl PhasePlan {
    /// Adds an object whose near share the solver chooses. The object takes `bytes` of near memory if all of it is
    /// near, during all phases.
    pub fn object(&mut self, name: &'static str, bytes: f64) -> ObjectId {
        let lives = 0..usize::MAX;
        self.objects.push(Object { name, bytes, least: 0.0, most: 1.0, lives });
        ObjectId(self.objects.len() - 1)
    }

    /// Adds an object with a given near share, which the solver does not change. It takes near memory too.
    pub fn fixed_object(&mut self, name: &'static str, bytes: f64, share: f64) -> ObjectId {
        let id = self.object(name, bytes);
        self.bound(id, share, share);
        id
    }

    /// Sets the bounds of an object's near share.
    pub fn bound(&mut self, object: ObjectId, least: f64, most: f64) {
        (self.objects[object.0].least, self.objects[object.0].most) = (least, most);
    }

    /// Sets the phases, counted from 0, during which an object takes memory.
    pub fn lives(&mut self, object: ObjectId, phases: Range<usize>) {
        self.objects[object.0].lives = phases;
    }

    /// Appends a phase.
    pub fn then(&mut self, phase: Phase) -> &mut PhasePlan {
        self.phases.push(phase);
        self
    }

    /// Returns the phases in order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Returns the names of the objects, by object index.
    pub fn object_names(&self) -> impl Iterator<Item = &'static str> {
        self.objects.iter().map(|object| object.name)
    }

    /// Returns the seconds of all phases with these shares.
    pub fn seconds(&self, rates: &Rates, shares: &[f64]) -> f64 {
        self.phases.iter().map(|phase| phase.seconds(rates, shares)).sum()
    }

    /// Returns these shares with the times and the near memory that follow from them. The near memory is not limited.
    pub fn at(&self, rates: &Rates, shares: Vec<f64>) -> NearShares {
        let phase_seconds = self.phases.iter().map(|phase| phase.seconds(rates, &shares)).collect();
        let near_bytes = (0..self.phases.len()).map(|phase| self.near_bytes(phase, &shares));
        NearShares { near_bytes: near_bytes.fold(0.0, f64::max), phase_seconds, shares }
    }

    /// Finds the near shares with which the plan takes least time, with at most `near_bytes_max` bytes of near memory
    /// in any phase. Of shares that take equal time, returns those with less near memory.
    pub fn place(&self, rates: &Rates, near_bytes_max: f64) -> Result<NearShares, NoPlacement> {
        rates.check().map_err(NoPlacement::Rate)?;
        self.check()?;
        let least: Vec<f64> = self.objects.iter().map(|object| object.least).collect();
        let needed = (0..self.phases.len()).map(|phase| self.near_bytes(phase, &least)).fold(0.0, f64::max);
        if near_bytes_max.is_nan() || needed > near_bytes_max {
            return Err(NoPlacement::Room { needed, permitted: near_bytes_max });
        }
        let program = self.program(rates, &least, near_bytes_max);
        let found = simplex::least(&program.0, &program.1).ok_or(NoPlacement::Unsolved)?;
        let shares = self.objects.iter().zip(&found);
        let shares =
            shares.map(|(object, above)| (object.least + above).clamp(object.least, object.most)).collect();
        Ok(self.at(rates, shares))
    }

    /// Returns costs and rows of the linear program. Its variables are how much each share exceeds its lower bound,
    /// then the time of each phase, in units of the time of the whole plan at the lower bounds.
    fn program(&self, rates: &Rates, least: &[f64], near_bytes_max: f64) -> (Vec<f64>, Vec<Row>) {
        let (objects, phases) = (self.objects.len(), self.phases.len());
        // Times are divided by the time of the whole plan, so that all numbers are near 1.
        let unit = self.seconds(rates, least).max(f64::MIN_POSITIVE);
        let all_bytes: f64 = self.objects.iter().map(|object| object.bytes).sum();
        let mut cost = vec![0.0; objects];
        cost.iter_mut().zip(&self.objects).for_each(|(cost, object)| {
            *cost = TIE * (object.bytes / all_bytes.max(f64::MIN_POSITIVE) + 1.0);
        });
        cost.resize(objects + phases, 1.0);
        let mut rows = Vec::new();
        for (at, phase) in self.phases.iter().enumerate() {
            let base = rates.terms(&phase.traffic(least));
            let mut slopes = vec![[0.0; TERMS]; objects];
            for (object, traffic) in &phase.by_share {
                let of_object = rates.terms(traffic);
                slopes[object.0].iter_mut().zip(of_object).for_each(|(slope, more)| *slope += more);
            }
            for (term, base) in base.into_iter().enumerate() {
                if base == 0.0 && slopes.iter().all(|slope| slope[term] == 0.0) {
                    continue;
                }
                let mut row = vec![0.0; objects + phases];
                row.iter_mut().zip(&slopes).for_each(|(cell, slope)| *cell = -slope[term] / unit);
                row[objects + at] = 1.0;
                rows.push(Row { row, bound: base / unit });
            }
            let mut row = vec![0.0; objects + phases];
            row[objects + at] = 1.0;
            rows.push(Row { row, bound: phase.cpu_seconds / unit });
            if near_bytes_max.is_finite() {
                let mut row = vec![0.0; objects + phases];
                let room = near_bytes_max - self.near_bytes(at, least);
                let scale = all_bytes.max(f64::MIN_POSITIVE);
                let living =
                    self.objects.iter().zip(&mut row).filter(|(object, _)| object.lives.contains(&at));
                living.for_each(|(object, cell)| *cell = -object.bytes / scale);
                rows.push(Row { row, bound: -room / scale });
            }
        }
        for (object, Object { least, most, .. }) in self.objects.iter().enumerate() {
            let mut row = vec![0.0; objects + phases];
            row[object] = -1.0;
            rows.push(Row { row, bound: -(most - least) });
        }
        (cost, rows)
    }

    /// Returns the bytes of near memory in use during a phase.
    fn near_bytes(&self, phase: usize, shares: &[f64]) -> f64 {
        let living = self.objects.iter().zip(shares).filter(|(object, _)| object.lives.contains(&phase));
        living.map(|(object, share)| object.bytes * share).sum()
    }

    fn check(&self) -> Result<(), NoPlacement> {
        if self.objects.len() > OBJECTS_MAX {
            return Err(NoPlacement::TooMany {
                what: "objects",
                count: self.objects.len(),
                permitted: OBJECTS_MAX,
            });
        }
        if self.phases.len() > PHASES_MAX {
            return Err(NoPlacement::TooMany {
                what: "phases",
                count: self.phases.len(),
                permitted: PHASES_MAX,
            });
        }
        for Object { name, bytes, least, most, .. } in &self.objects {
            if !bytes.is_finite() || *bytes < 0.0 {
                return Err(NoPlacement::Bytes { name, bytes: *bytes });
            }
            if !(0.0 <= *least && least <= most && *most <= 1.0) {
                return Err(NoPlacement::Share { name, least: *least, most: *most });
            }
        }
        for phase in &self.phases {
            let of_object = |(object, traffic): &(ObjectId, Traffic)| {
                object.0 < self.objects.len() && traffic.total().is_finite()
            };
            let is_sound = phase.fixed.total().is_finite() && phase.cpu_seconds.is_finite();
            if !is_sound || !phase.by_share.iter().all(of_object) {
                return Err(NoPlacement::Phase { name: phase.name });
            }
        }
        Ok(())
    }
}

/// Cost of using all near memory, in units of the time of the whole plan. It is small enough to decide ties only.
const TIE: f64 = 1e-7;

/// Reason why no placement was found.
#[derive(Clone, Debug, PartialEq)]
pub enum NoPlacement {
    /// A rate of the machine is invalid.
    Rate(NoRate),
    /// Objects that must lie near need more near memory than is permitted.
    Room {
        /// Bytes that must lie near.
        needed: f64,
        /// Bytes of near memory that are permitted.
        permitted: f64,
    },
    /// The plan has more objects or phases than the solver accepts.
    TooMany {
        /// `objects` or `phases`.
        what: &'static str,
        /// Number of objects or phases in the plan.
        count: usize,
        /// Greatest number that is permitted.
        permitted: usize,
    },
    /// The size of an object is negative or not finite.
    Bytes {
        /// Name of the object.
        name: &'static str,
        /// Size in bytes.
        bytes: f64,
    },
    /// The bounds of an object's share are not within 0 to 1, or in the wrong order.
    Share {
        /// Name of the object.
        name: &'static str,
        /// Lower bound of the near share.
        least: f64,
        /// Upper bound of the near share.
        most: f64,
    },
    /// A phase moves a number of bytes that is not finite, or an object of another plan.
    Phase {
        /// Name of the phase.
        name: &'static str,
    },
    /// Sizes and rates differ by too many orders of magnitude for the solver.
    Unsolved,
}

impl fmt::Display for NoPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPlacement::Rate(error) => error.fmt(f),
            NoPlacement::Room { needed, permitted } => {
                write!(f, "objects that must lie near need {needed} B; near memory has {permitted} B")
            }
            NoPlacement::TooMany { what, count, permitted } => {
                write!(f, "the plan has {count} {what}; at most {permitted} are permitted")
            }
            NoPlacement::Bytes { name, bytes } => {
                write!(f, "object {name} has a size of {bytes} B; it must be finite and not negative")
            }
            NoPlacement::Share { name, least, most } => {
                write!(
                    f,
                    "from {least} to {most} of {name} may lie near; shares must be within 0 to 1 and in order"
                )
            }
            NoPlacement::Phase { name } => {
                write!(
                    f,
                    "phase {name} moves a number of bytes that is not finite, or an object of another plan"
                )
            }
            NoPlacement::Unsolved => {
                f.write_str("the sizes and rates of the plan differ by too many orders of magnitude")
            }
        }
    }
}

impl std::error::Error for NoPlacement {}
