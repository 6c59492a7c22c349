//! Calls over the row groups of a table: at every node that holds some of them, and on the client, all at once.
//!
//! The row groups of one node are a part of the call. If the node is lost, silent or slow, only that part is called
//! again, at nodes that hold copies of exactly these row groups. The copies may lie at several nodes, so a part may
//! have several results. Each row group is in one result.

use crate::Function;
use crate::call::{Call, CallOptions, Called};
use crate::calling::Caller;
use crate::lists::{GroupSelection, is_taken_here};
use crate::places::{Locations, nowhere};
use farpool_files::{Error, ErrorKind};
use farpool_planner::{Placement, Way};
use farpool_wire::NodeId;

impl Caller {
    /// Calls a function once at every node that holds row groups of the table, each time over the row groups there.
    /// Returns the results in the order of the nodes' first row groups; if others answer for a node that was lost,
    /// silent or slow, their results stand in the place of its result. [`Placement::Fetch`] calls it once on the
    /// client, over all row groups. [`Placement::Split`] calls it at nodes and on the client, whose result is the last.
    /// [`Placement::Auto`] chooses by [`Caller::explain_each`].
    ///
    /// Errors: those of [`Caller::call`]; [`ErrorKind::Invalid`] if the caller has no columns.
    pub fn call_each(
        &self,
        function: &Function,
        args: &[u8],
        options: CallOptions,
    ) -> Result<Vec<Called>, Error> {
        let deadline_ms = options.deadline_ms()?;
        if self.columns.is_none() {
            let message = "call_each needs a far table with columns; use call for other files";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.check_placement(function, options)?;
        if options.at.is_some() {
            let message = "`at` is for calls at one node; call_each calls every node of the table";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (way, here) = match options.placement.way() {
            None => {
                let plan = self.explain_each(function);
                (plan.choice, plan.groups_here)
            }
            Some(Way::Split) => (Way::Split, self.share(function)),
            Some(way) => (way, 0),
        };
        let fetched = CallOptions { placement: Placement::Fetch, ..options };
        if way == Way::Fetch {
            return Ok(vec![self.call(function, args, fetched)?]);
        }
        let trace = self.trace_of_call()?;
        let call = Call::new(function, args, options.fresh, deadline_ms, trace);
        let of = self.groups.len();
        let (taken, near): (Vec<usize>, _) = (0..of).partition(|index| is_taken_here(*index, here, of));
        let over =
            |indices: Vec<usize>| Call { lists: GroupSelection::Listed(indices.into()), ..call.clone() };
        let (near, taken) = (over(near), (here > 0).then(|| over(taken)));
        let shipped = CallOptions { placement: Placement::Ship, ..options };
        std::thread::scope(|threads| {
            let on_the_client = taken.as_ref().map(|taken| {
                threads.spawn(|| {
                    self.retry_if_moved(|places, is_brief| {
                        let call = Call { is_brief, ..taken.clone() };
                        self.try_call(places, self.choose(function, fetched), fetched, call)
                    })
                })
            });
            let at_nodes = self.at_each_node(&self.places_now(), shipped, &near, |options, part| {
                self.retry_if_moved(|places, is_brief| {
                    let part = Call { is_brief, ..part.clone() };
                    self.at_each_node(places, options, &part, |options, call| {
                        let way = self.choose(function, options);
                        match self.hedges_at(places, way, &call) {
                            None => Ok(vec![self.try_call(places, way, options, call)?]),
                            Some(begins) => self.race(begins, places, options, call),
                        }
                    })
                })
            });
            let on_the_client = on_the_client.map(joined).transpose();
            let mut called = at_nodes?;
            called.extend(on_the_client?);
            Ok(called)
        })
    }

    /// Makes a call at each node that holds some of its row groups, over the row groups there, all at once. Returns the
    /// results in the order of the nodes' first row groups. A call over all row groups is made once.
    pub(crate) fn at_each_node<'c>(
        &self,
        places: &Locations,
        options: CallOptions,
        call: &Call<'c>,
        make: impl Fn(CallOptions, Call<'c>) -> Result<Vec<Called>, Error> + Sync,
    ) -> Result<Vec<Called>, Error> {
        let GroupSelection::Listed(indices) = &call.lists else { return make(options, call.clone()) };
        let mut parts: Vec<(NodeId, u64, Vec<usize>)> = Vec::new();
        for index in indices.iter().copied() {
            let first = self.groups.get(index).map(|group| group.start);
            let held = first.and_then(|first| Some((places.node_of(first)?.info.node, first)));
            let (node, first) = held.ok_or_else(nowhere)?;
            match parts.iter_mut().find(|(known, ..)| *known == node) {
                Some((.., indices)) => indices.push(index),
                None => parts.push((node, first, vec![index])),
            }
        }
        let over = |(_, first, indices): (NodeId, u64, Vec<usize>)| {
            let lists = GroupSelection::Listed(indices.into());
            make(CallOptions { at: Some(first), ..options }, Call { lists, ..call.clone() })
        };
        let Some(last) = parts.pop() else { return Ok(Vec::new()) };
        std::thread::scope(|threads| {
            let over = &over;
            let others: Vec<_> = parts.into_iter().map(|part| threads.spawn(move || over(part))).collect();
            let last = over(last);
            let mut called = Vec::new();
            for other in others {
                called.extend(joined(other)?);
            }
            called.extend(last?);
            Ok(called)
        })
    }
}

/// Waits until a thread has ended and returns its result. Panics as it did.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
