//! Where objects of a plan should lie, so that all its phases together take least.
//!
//! The idea: an object (an input, a hash table, partitions, an output) has a share `w` that lies near. A phase moves
//! bytes on either tier, so many for each object, and these are linear in the shares: what reads an object once reads
//! `w` of it near and `1 - w` far. How long a phase takes is the greatest of a few linear terms ([`Rates`]), the phases
//! follow one another, and near memory is bounded; so the least sum is that of a small linear program, found exactly
//! ([`Plan::place`]). Moving data is a phase like any other. Phases that run at the same time are one phase with the
//! traffic of both ([`Phase::beside`]).
//!
//! A product of shares (of what is moved, so much near) is not linear: say it with two objects, or fix one of them.

use super::simplex::{self, Row};
use super::traffic::{NoRate, Rates, Side, TERMS, Traffic};
use std::fmt;
use std::ops::Range;

/// Most objects of a plan.
pub const OBJECTS_MAX: usize = 16;
/// Most phases of a plan.
pub const PHASES_MAX: usize = 64;

/// An object of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(usize);

impl ObjectId {
    /// For the shares of a [`Placement`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// What lies somewhere.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    name: &'static str,
    /// Near memory that it takes if all of it is near.
    bytes: f64,
    /// The least and the most of it that may be near.
    least: f64,
    most: f64,
    /// The phases during which it takes memory.
    lives: Range<usize>,
}

/// A step of a plan: begins when the one before it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    name: &'static str,
    /// Moved however the shares are.
    fixed: Traffic,
    /// What a share of 1 adds to it.
    by_share: Vec<(ObjectId, Traffic)>,
    cpu_seconds: f64,
}

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Written,
}

impl Phase {
    /// One that moves nothing yet.
    pub fn new(name: &'static str) -> Phase {
        Phase { name, fixed: Traffic::default(), by_share: Vec::new(), cpu_seconds: 0.0 }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// So many bytes of an object are read in all, near or far as it lies; more than it has if it is read repeatedly.
    pub fn reads(self, object: ObjectId, bytes: f64) -> Phase {
        self.touches(object, bytes, Way::Read)
    }

    /// So many bytes of an object are written in all.
    pub fn writes(self, object: ObjectId, bytes: f64) -> Phase {
        self.touches(object, bytes, Way::Written)
    }

    /// So many bytes are read from one tier in any case.
    pub fn reads_on(mut self, side: Side, bytes: f64) -> Phase {
        self.fixed.of_mut(side).read += bytes;
        self
    }

    /// So many bytes are written to one tier in any case.
    pub fn writes_on(mut self, side: Side, bytes: f64) -> Phase {
        self.fixed.of_mut(side).written += bytes;
        self
    }

    /// The near share of an object of so many bytes is copied there: read far, written near.
    pub fn moves(mut self, object: ObjectId, bytes: f64) -> Phase {
        let mut moved = Traffic::default();
        moved.far.read = bytes;
        moved.near.written = bytes;
        self.by_share.push((object, moved));
        self
    }

    /// The near share of an object of so many bytes is written near, as its bytes are at hand.
    pub fn keeps(mut self, object: ObjectId, bytes: f64) -> Phase {
        let mut kept = Traffic::default();
        kept.near.written = bytes;
        self.by_share.push((object, kept));
        self
    }

    /// It takes the CPUs so long, whatever the memory does.
    pub fn takes_cpus(mut self, seconds: f64) -> Phase {
        self.cpu_seconds += seconds;
        self
    }

    /// Both at the same time, so that all links are busy together.
    pub fn beside(mut self, other: Phase) -> Phase {
        self.fixed = self.fixed.plus(other.fixed, 1.0);
        self.by_share.extend(other.by_share);
        self.cpu_seconds += other.cpu_seconds;
        self
    }

    /// What it moves if objects lie so. An object without a share lies far.
    pub fn traffic(&self, shares: &[f64]) -> Traffic {
        let share = |object: &ObjectId| shares.get(object.0).copied().unwrap_or(0.0);
        self.by_share.iter().fold(self.fixed, |sum, (object, traffic)| sum.plus(*traffic, share(object)))
    }

    /// How long it takes if objects lie so.
    pub fn seconds(&self, rates: &Rates, shares: &[f64]) -> f64 {
        rates.seconds(&self.traffic(shares)).max(self.cpu_seconds)
    }

    fn touches(mut self, object: ObjectId, bytes: f64, way: Way) -> Phase {
        let mut moved = Traffic::default();
        for (side, sign) in [(Side::Near, 1.0), (Side::Far, -1.0)] {
            let of_side = moved.of_mut(side);
            match way {
                Way::Read => of_side.read = bytes * sign,
                Way::Written => of_side.written = bytes * sign,
            }
        }
        self.by_share.push((object, moved));
        match way {
            Way::Read => self.reads_on(Side::Far, bytes),
            Way::Written => self.writes_on(Side::Far, bytes),
        }
    }
}

/// Objects, and phases one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    objects: Vec<Object>,
    phases: Vec<Phase>,
}

/// Where objects lie, and how long that takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// By object, the share that lies near.
    pub shares: Vec<f64>,
    /// By phase.
    pub phase_seconds: Vec<f64>,
    /// The most near memory that is taken at any time.
    pub near_bytes: f64,
}

impl Placement {
    /// The near share of an object.
    pub fn share(&self, object: ObjectId) -> f64 {
        self.shares.get(object.0).copied().unwrap_or(0.0)
    }

    /// Of all phases.
    pub fn seconds(&self) -> f64 {
        self.phase_seconds.iter().sum()
    }
}

impl Plan {
    /// An object that takes so many bytes of near memory if all of it is near, during all phases; where it lies is
    /// free.
    pub fn object(&mut self, name: &'static str, bytes: f64) -> ObjectId {
        let lives = 0..usize::MAX;
        self.objects.push(Object { name, bytes, least: 0.0, most: 1.0, lives });
        ObjectId(self.objects.len() - 1)
    }

    /// One whose near share is given. It takes near memory all the same.
    pub fn fixed_object(&mut self, name: &'static str, bytes: f64, share: f64) -> ObjectId {
        let id = self.object(name, bytes);
        self.bound(id, share, share);
        id
    }

    /// Of an object, the least and the most that may lie near.
    pub fn bound(&mut self, object: ObjectId, least: f64, most: f64) {
        (self.objects[object.0].least, self.objects[object.0].most) = (least, most);
    }

    /// An object takes memory in these phases only, counted from 0.
    pub fn lives(&mut self, object: ObjectId, phases: Range<usize>) {
        self.objects[object.0].lives = phases;
    }

    /// The next phase.
    pub fn then(&mut self, phase: Phase) -> &mut Plan {
        self.phases.push(phase);
        self
    }

    /// The phases in their order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Names of the objects, by index.
    pub fn object_names(&self) -> impl Iterator<Item = &'static str> {
        self.objects.iter().map(|object| object.name)
    }

    /// What all of it takes if objects lie so.
    pub fn seconds(&self, rates: &Rates, shares: &[f64]) -> f64 {
        self.phases.iter().map(|phase| phase.seconds(rates, shares)).sum()
    }

    /// The placement of these shares, whatever near memory it takes.
    pub fn at(&self, rates: &Rates, shares: Vec<f64>) -> Placement {
        let phase_seconds = self.phases.iter().map(|phase| phase.seconds(rates, &shares)).collect();
        let near_bytes = (0..self.phases.len()).map(|phase| self.near_bytes(phase, &shares));
        Placement { near_bytes: near_bytes.fold(0.0, f64::max), phase_seconds, shares }
    }

    /// The placement that takes least, with no more than so many bytes of near memory at any time. Of placements that
    /// take as long, one with less near memory.
    pub fn place(&self, rates: &Rates, near_bytes_max: f64) -> Result<Placement, NoPlacement> {
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

    /// The linear program: what shares are above their least, then the time of each phase.
    fn program(&self, rates: &Rates, least: &[f64], near_bytes_max: f64) -> (Vec<f64>, Vec<Row>) {
        let (objects, phases) = (self.objects.len(), self.phases.len());
        // Times in units of all of it, so that no number is far from 1.
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

    /// Near memory that is taken during a phase.
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

/// What all near memory costs, in units of the time of the whole plan: nothing but a tie is decided by it.
const TIE: f64 = 1e-7;

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq)]
pub enum NoPlacement {
    /// Of the machine.
    Rate(NoRate),
    /// What must lie near has no room there.
    Room {
        /// Bytes that must lie near.
        needed: f64,
        /// Bytes that may.
        permitted: f64,
    },
    /// More than the solver takes.
    TooMany {
        /// Objects or phases.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many may be.
        permitted: usize,
    },
    /// An object with an impossible size.
    Bytes {
        /// Of the object.
        name: &'static str,
        /// Its size.
        bytes: f64,
    },
    /// An object whose shares are none, or in the wrong order.
    Share {
        /// Of the object.
        name: &'static str,
        /// The least that may be near.
        least: f64,
        /// The most that may be near.
        most: f64,
    },
    /// A phase that moves what is no number of bytes, or an object of another plan.
    Phase {
        /// Of the phase.
        name: &'static str,
    },
    /// The numbers are too far apart to be solved.
    Unsolved,
}

impl fmt::Display for NoPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPlacement::Rate(error) => error.fmt(f),
            NoPlacement::Room { needed, permitted } => {
                write!(f, "{needed} B must lie near; {permitted} B are permitted there")
            }
            NoPlacement::TooMany { what, count, permitted } => {
                write!(f, "a plan with {count} {what}; up to {permitted} are permitted")
            }
            NoPlacement::Bytes { name, bytes } => {
                write!(f, "{name} has {bytes} B; 0 and more are permitted")
            }
            NoPlacement::Share { name, least, most } => {
                write!(f, "from {least} to {most} of {name} may lie near; shares from 0 to 1 are permitted")
            }
            NoPlacement::Phase { name } => {
                write!(f, "the phase {name} moves what is no number of bytes, or of another plan's object")
            }
            NoPlacement::Unsolved => {
                f.write_str("bytes and rates of the plan are too far apart to be compared")
            }
        }
    }
}

impl std::error::Error for NoPlacement {}
