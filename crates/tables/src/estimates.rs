//! Estimates of a query for users: what fetching, shipping and splitting are expected to take.

use farpool_planner::{StepEstimates, Way};
use std::fmt;
use std::time::Duration;

/// Expected time and bytes of a query under one placement, estimated before it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Time from the call to the result.
    pub time: Duration,
    /// Bytes of columns, results, keys and filters that cross links.
    pub link_bytes: u64,
    /// Time that nodes run the program, summed over the nodes.
    pub node_time: Duration,
    /// Time that the client runs the program.
    pub client_time: Duration,
}

/// Estimates for fetching, shipping and splitting a query, and the best of the three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimates {
    /// Estimate for fetching.
    pub fetch: Estimate,
    /// Estimate for shipping.
    pub ship: Estimate,
    /// Estimate for splitting.
    pub split: Estimate,
    /// The best placement.
    pub choice: Way,
    /// True if the same query was measured before. Otherwise the estimates rest on typical costs.
    pub is_sure: bool,
    /// The reason for the choice, in a sentence.
    pub why: String,
}

impl Estimates {
    /// Returns the estimate of one placement.
    pub fn of(&self, way: Way) -> &Estimate {
        match way {
            Way::Fetch => &self.fetch,
            Way::Ship => &self.ship,
            Way::Split => &self.split,
        }
    }

    /// Adds the estimates of a further step of the query. The choice becomes the placement that is fastest over all
    /// steps, and the reason becomes that of the last step.
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

/// Formats time and bytes of each placement, the choice, and the reason.
impl fmt::Display for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for way in Way::ALL {
            let Estimate { time, link_bytes, .. } = self.of(way);
            write!(f, "{way} {time:.1?} and {link_bytes} bytes, ")?;
        }
        let known = if self.is_sure { "measured" } else { "assumed" };
        write!(f, "{known}; best {}: {}", self.choice, self.why)
    }
}
