//! What each way to run a query is expected to take, for whoever asks.

use farpool_planner::{StepEstimates, Way};
use std::fmt;
use std::time::Duration;

/// What running a query one way would take, as far as was known before it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// From the call to the result.
    pub time: Duration,
    /// Bytes of columns, results, keys and filters over links.
    pub link_bytes: u64,
    /// Time that nodes run the program, all together.
    pub node_time: Duration,
    /// Time that the program runs here.
    pub client_time: Duration,
}

/// What fetching, shipping and splitting would take, and which is best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimates {
    /// Fetching.
    pub fetch: Estimate,
    /// Shipping.
    pub ship: Estimate,
    /// Splitting.
    pub split: Estimate,
    /// The one to take.
    pub choice: Way,
    /// Whether the same was run before, so that this says what is known and not what is believed.
    pub is_sure: bool,
    /// Why, in a sentence.
    pub why: String,
}

impl Estimates {
    /// Of one way.
    pub fn of(&self, way: Way) -> &Estimate {
        match way {
            Way::Fetch => &self.fetch,
            Way::Ship => &self.ship,
            Way::Split => &self.split,
        }
    }

    /// Adds those of a further step. The choice is then the one that is best for all of them, and the reason that of
    /// the last step.
    pub fn add(&mut self, step: &Estimates) {
        let sum = |into: &mut Estimate, more: &Estimate| {
            into.time = into.time.saturating_add(more.time);
            into.link_bytes = into.link_bytes.saturating_add(more.link_bytes);
            into.node_time = into.node_time.saturating_add(more.node_time);
            into.client_time = into.client_time.saturating_add(more.client_time);
        };
        sum(&mut self.fetch, &step.fetch);
        sum(&mut self.ship, &step.ship);
        sum(&mut self.split, &step.split);
        if self.choice != step.choice {
            let best = Way::ALL.into_iter().min_by_key(|way| self.of(*way).time);
            self.choice = best.unwrap_or(self.choice);
        }
        self.is_sure &= step.is_sure;
        self.why.clone_from(&step.why);
    }

    pub(crate) fn new(found: &StepEstimates, is_sure: bool) -> Estimates {
        let time = |ns: f64| Duration::from_nanos(ns as u64);
        let of = |way: Way| {
            let way = found.of(way);
            Estimate {
                time: time(way.ns),
                link_bytes: way.link_bytes as u64,
                node_time: time(way.node_ns),
                client_time: time(way.client_ns),
            }
        };
        let (fetch, ship, split) = (of(Way::Fetch), of(Way::Ship), of(Way::Split));
        Estimates { fetch, ship, split, choice: found.choice, is_sure, why: found.why() }
    }
}

/// Each with its time and bytes, the choice, and why.
impl fmt::Display for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for way in Way::ALL {
            let Estimate { time, link_bytes, .. } = self.of(way);
            write!(f, "{way} {time:.1?} and {link_bytes} bytes, ")?;
        }
        let known = if self.is_sure { "by what was measured" } else { "by what is usual" };
        write!(f, "{known}; best {}: {}", self.choice, self.why)
    }
}
