//! Placement of a call, if the pool chooses it: at the node that holds the bytes, or on the client.
//!
//! The idea: to look something up in a library you can phone the librarian, or borrow the book once and read it at
//! home. One question is answered sooner by phone. Whoever has many questions about one book should borrow it. A call
//! works the same way: shipping it costs a round trip each time, and fetching the window costs much once and nothing
//! later.
//!
//! A function that was never called is shipped, because only a call shows what it takes. Afterwards the cost of
//! fetching is divided by the number of calls to expect: a caller that has made n calls is expected to make n more.
//! A caller with few calls therefore ships them all, a busy one fetches the window at some point, and a window that was
//! fetched counts as free. Over the row groups of a table a third placement is possible, a split, in which nodes and
//! client work at the same time. A fixed limit of calls would be simpler, but the number at which fetching pays
//! depends on link and function.

use crate::Function;
use crate::call::CallOptions;
use crate::calling::Caller;
use crate::observed::distance;
use farpool_files::beneath::NodeLinks;
use farpool_files::{Error, ErrorKind};
use farpool_planner::{Call, CallEstimate, EachEstimate, Placement, RanAt, Way};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Expected time of a call under each placement, and the placement that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct CallPlan {
    /// Time of a call at the node.
    pub ship: Duration,
    /// Time of a call on the client, including its share of fetching the window. `None` if the function cannot run
    /// there, because it is not a Wasm module or there is no sandbox program.
    pub fetch: Option<Duration>,
    /// The chosen placement: [`Way::Ship`] or [`Way::Fetch`].
    pub choice: Way,
    /// True if the function was called before. Otherwise its cost is not known.
    pub is_sure: bool,
    /// Reason for the choice, in words.
    pub why: &'static str,
}

impl fmt::Display for CallPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (ship {:.1?}", self.choice, self.why, self.ship)?;
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch {fetch:.1?}")?;
        }
        f.write_str(if self.is_sure { ")" } else { "; not measured: never called before)" })
    }
}

/// Expected time of calling a function over the row groups of a table, under each placement, and the chosen one.
#[derive(Clone, Debug, PartialEq)]
pub struct EachPlan {
    /// Time of calls at all nodes that hold row groups.
    pub ship: Duration,
    /// Time of a call on the client over all row groups. `None` if the function cannot run there.
    pub fetch: Option<Duration>,
    /// Time of calls at nodes and on the client together. `None` if the function cannot run on the client, or if the
    /// table has only one row group.
    pub split: Option<Duration>,
    /// The chosen placement: [`Way::Ship`], [`Way::Fetch`] or [`Way::Split`].
    pub choice: Way,
    /// Number of row groups that the client takes, if the call is split.
    pub groups_here: usize,
    /// True if the function was called before. Otherwise its cost is not known.
    pub is_sure: bool,
}

impl fmt::Display for EachPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.choice {
            Way::Fetch => write!(f, "fetch (ship {:.1?}", self.ship)?,
            Way::Split => {
                write!(f, "split, {} row groups on the client (ship {:.1?}", self.groups_here, self.ship)?;
            }
            Way::Ship => write!(f, "ship (ship {:.1?}", self.ship)?,
        }
        for (name, time) in [("fetch", self.fetch), ("split", self.split)] {
            if let Some(time) = time {
                write!(f, ", {name} {time:.1?}")?;
            }
        }
        f.write_str(if self.is_sure { ")" } else { "; not measured: never called before)" })
    }
}

impl Caller {
    /// Returns what a call would take under each placement, and which one [`Placement::Auto`] chooses.
    pub fn explain(&self, function: &Function) -> CallPlan {
        let places = Arc::clone(&self.places.lock());
        let Some((node, _)) = places.nodes().first() else {
            let (ship, why) = (Duration::ZERO, "no node holds bytes of the window");
            return CallPlan { ship, fetch: None, choice: Way::Ship, is_sure: false, why };
        };
        let CallEstimate { ship_ns, fetch_ns, is_sure } = self.estimate(function, node);
        let ship = Duration::from_nanos(ship_ns as u64);
        let only_at_nodes = function.why_only_at_nodes();
        let may_fetch = only_at_nodes.is_none() && self.here.has_program(self.session.options());
        let fetch = may_fetch.then(|| Duration::from_nanos(fetch_ns as u64));
        let (choice, why) = match only_at_nodes {
            Some(why) => (Way::Ship, why),
            None if !may_fetch => (Way::Ship, "there is no sandbox program on this machine"),
            None if !is_sure => (Way::Ship, "to measure the function"),
            None if fetch_ns < ship_ns && self.is_fetched() => {
                (Way::Fetch, "the client has the window already")
            }
            None if fetch_ns < ship_ns => {
                (Way::Fetch, "fetching takes less time, spread over as many calls as were made so far")
            }
            None => (Way::Ship, "shipping takes less time"),
        };
        CallPlan { ship, fetch, choice, is_sure, why }
    }

    /// Returns what calling a function over the row groups of the table would take under each placement, and which
    /// one [`Caller::call_each`] chooses for [`Placement::Auto`].
    pub fn explain_each(&self, function: &Function) -> EachPlan {
        let plan = self.explain(function);
        let each = self.each(function);
        let of = |ns: f64| Duration::from_nanos(ns as u64);
        let groups_here = self.groups_of(each.here);
        let split = plan.fetch.filter(|_| self.groups.len() > 1).map(|_| of(each.split_ns));
        let least = each.ship_ns.min(each.fetch_ns);
        let choice = match () {
            () if plan.fetch.is_none() || !each.is_sure => Way::Ship,
            () if split.is_some() && groups_here > 0 && each.split_ns < SPLIT_WORTH * least => Way::Split,
            () if each.fetch_ns < each.ship_ns => Way::Fetch,
            () => Way::Ship,
        };
        let groups_here = if choice == Way::Split { groups_here } else { 0 };
        EachPlan {
            ship: of(each.ship_ns),
            fetch: plan.fetch,
            split,
            choice,
            groups_here,
            is_sure: each.is_sure,
        }
    }

    /// Returns the number of row groups that the client takes of a split call: at least one, and not all.
    pub(crate) fn share(&self, function: &Function) -> usize {
        let each = self.each(function);
        let here = if each.is_sure { self.groups_of(each.here) } else { self.groups.len() / 2 };
        here.clamp(1, self.groups.len().saturating_sub(1).max(1))
    }

    fn groups_of(&self, part: f64) -> usize {
        (part * self.groups.len() as f64) as usize
    }

    fn each(&self, function: &Function) -> EachEstimate {
        let places = Arc::clone(&self.places.lock());
        let Some((node, most)) = places.nodes().first() else {
            return EachEstimate { ship_ns: 0.0, fetch_ns: 0.0, split_ns: 0.0, here: 0.0, is_sure: false };
        };
        self.call_of(function, node).estimate_each(*most as f64 / (self.window_bytes() as f64).max(1.0))
    }

    fn estimate(&self, function: &Function, node: &NodeLinks) -> CallEstimate {
        self.call_of(function, node).estimate()
    }

    fn call_of(&self, function: &Function, node: &NodeLinks) -> Call {
        let learned = self.observed.learned();
        Call {
            window_bytes: self.window_bytes() as f64,
            is_fetched: self.is_fetched(),
            // A caller that has made so many calls is expected to make as many again.
            expected_calls: self.calls.load(Ordering::Relaxed).max(1) as f64,
            link: learned.link(node.info.node.0, distance(&self.session, node)),
            brought_ns: learned.brought_ns(node.info.node.0),
            seen: learned.calls(function.key()),
        }
    }

    /// Refuses a placement on the client if the function cannot run there.
    pub(crate) fn check_placement(&self, function: &Function, options: CallOptions) -> Result<(), Error> {
        let CallOptions { placement, at, .. } = options;
        if let Placement::Auto | Placement::Ship = placement {
            return Ok(());
        }
        if at.is_some() {
            let message = format!(
                "placement {placement} cannot be used with `at`: a call at one node is shipped; use ship or auto"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let Some(why) = function.why_only_at_nodes() else {
            return self.here.check_program(self.session.options()).map(|_| ());
        };
        let message = format!(
            "function {:?} cannot run on this machine ({why}), so placement {placement} is not possible; use ship or \
             auto",
            function.entry()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Reports whether a call should be measured. That costs part of a microsecond, which is much for a short call,
    /// so most calls are not measured if the placement is forced.
    pub(crate) fn is_learning(&self, placement: Placement) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        placement == Placement::Auto || calls <= FEW_CALLS || calls.is_multiple_of(FEW_CALLS)
    }

    /// Reports a call at one place to the planner: the time in ns that it would run over the whole window, the other
    /// time of the call in ns, and the bytes of its output.
    pub(crate) fn note(
        &self,
        function: &Function,
        node: Option<&NodeLinks>,
        whole_ns: u64,
        besides_ns: u64,
        output: u64,
    ) {
        let mut learned = self.observed.learned();
        let ran_at = if node.is_some() { RanAt::Node } else { RanAt::Here };
        learned.note_call(function.key(), ran_at, whole_ns, output);
        if let Some(node) = node
            && output <= SMALL_BYTES
        {
            learned.note_round_trip(node.info.node.0, besides_ns);
        }
    }

    /// Counts a call, and returns its placement.
    pub(crate) fn choose(&self, function: &Function, options: CallOptions) -> Way {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match options.placement.way() {
            Some(way) => way,
            None if options.at.is_some() => Way::Ship,
            None => self.explain(function).choice,
        }
    }
}

/// Number of first calls of a caller that are all measured. Of later calls whose placement is forced, one in this many
/// is measured.
const FEW_CALLS: u64 = 16;
/// Ratio of times. A split must take less than this share of the better single placement to be chosen.
const SPLIT_WORTH: f64 = 0.9;
/// Bytes of an output up to which its transfer is not noticeable, so that the call measures the round trip.
const SMALL_BYTES: u64 = 64 << 10;
