//! Hedged calls: a call that takes unusually long is made a second time, at nodes with other copies.
//!
//! The idea: a function is pure, so whoever answers first is right. A call that has taken longer than 95 of 100 of the
//! latest ones probably waits for a busy node, and another may answer sooner. Few calls are that slow, so the second
//! tries cost little. If all calls become slow, because all nodes are busy, second tries would make that worse: at most
//! one call in [`CALLS_PER_HEDGE`] has one. A node that is silent is no matter of this module: it is noticed by probes.

use crate::call::{Call, CallOptions, Called};
use crate::calling::Caller;
use crate::lists::GroupSelection;
use crate::places::Locations;
use crate::race::{Second, Try};
use farpool_files::beneath::NodeLinks;
use farpool_files::{Error, ErrorKind};
use farpool_host::Event;
use farpool_lock::Mutex;
use farpool_planner::Way;
use farpool_wire::MonoNs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls of a caller for each one that is made a second time, at least.
const CALLS_PER_HEDGE: u64 = 20;
/// Least time in ns after which a call is made a second time. Shorter delays come from the scheduling of this process.
const DELAY_NS_MIN: u64 = 2_000_000;

/// Reports whether a call has ended for good. Otherwise it may succeed elsewhere.
fn is_answer(result: &Result<Vec<Called>, Error>) -> bool {
    !matches!(result, Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable))
}

impl Caller {
    /// Makes a call at a node. If it has not ended at `begins`, makes it again at other nodes that have copies of what
    /// it sees. Returns the results of the try that ends first: several if the row groups of the first node have their
    /// copies at several nodes.
    pub(crate) fn race(
        &self,
        begins: MonoNs,
        places: &Locations,
        options: CallOptions,
        call: Call<'_>,
    ) -> Result<Vec<Called>, Error> {
        let is_over = &AtomicBool::new(false);
        let other: Mutex<Option<Result<Vec<Called>, Error>>> = Mutex::new(None);
        let first = std::thread::scope(|threads| {
            let begin = |slow: &NodeLinks| {
                let Some(others) = self.without(places, slow) else { return };
                self.hedges.fetch_add(1, Ordering::Relaxed);
                let message = format!(
                    "a call of {} at node {} takes long; it is made at another node, too",
                    call.function.entry(),
                    slow.info.name
                );
                let event = Event::debug("call_hedged", message).trace(call.trace);
                self.session.host().log(&event);
                let call = Call { hedged: Some(Try { is_over, second: None }), ..call.clone() };
                let other = &other;
                threads.spawn(move || {
                    let result = self.at_each_node(&others, options, &call, |options, call| {
                        Ok(vec![self.try_call(&others, Way::Ship, options, call)?])
                    });
                    if is_answer(&result) {
                        is_over.store(true, Ordering::Release);
                    }
                    *other.lock() = Some(result);
                });
            };
            let second = Second { begins, has_begun: AtomicBool::new(false), begin: &begin };
            let hedged = Some(Try { is_over, second: Some(&second) });
            let result = self.try_call(places, Way::Ship, options, Call { hedged, ..call.clone() });
            let result = result.map(|called| vec![called]);
            if is_answer(&result) {
                is_over.store(true, Ordering::Release);
            }
            result
        });
        match other.into_inner() {
            Some(other) if !is_answer(&first) && is_answer(&other) => other,
            _ => first,
        }
    }

    /// Returns the time at which a call is made again. `None` if it is not: nobody knows how long it usually takes, or
    /// others cannot do the same.
    pub(crate) fn hedges_at(&self, places: &Locations, way: Way, call: &Call<'_>) -> Option<MonoNs> {
        let may_hedge = way == Way::Ship && call.is_brief && places.has_any_other();
        let (calls, hedges) = (self.calls.load(Ordering::Relaxed), self.hedges.load(Ordering::Relaxed));
        if !may_hedge || calls < (hedges + 1) * CALLS_PER_HEDGE {
            return None;
        }
        let usual_ns = {
            let learned = self.observed.learned();
            let key = call.function.key();
            match &call.lists {
                GroupSelection::All => learned.shipped_p95_ns(key)?,
                lists => (learned.part_p95_ns(key)? as f64 * self.share_of(lists)) as u64,
            }
        };
        Some(MonoNs(self.session.host().now().0.saturating_add(usual_ns.max(DELAY_NS_MIN))))
    }

    /// Notes how long a call at nodes took.
    pub(crate) fn note_shipped(&self, call: &Call<'_>, took_ns: u64) {
        let key = call.function.key();
        match &call.lists {
            GroupSelection::All => self.observed.learned().note_shipped(key, took_ns),
            // Scales the time to the whole table, so that parts of different sizes can be compared.
            lists => {
                let whole_ns = (took_ns as f64 / self.share_of(lists)) as u64;
                self.observed.learned().note_part(key, whole_ns);
            }
        }
    }

    /// Returns where the bytes are without a node. `None` if that is not possible now.
    fn without(&self, places: &Locations, node: &NodeLinks) -> Option<Arc<Locations>> {
        if !places.has_others(node) {
            return None;
        }
        let known = self.elsewhere.lock().get(&node.info.node).cloned();
        if let Some(known) = known.filter(|known| known.is_live()) {
            return Some(known);
        }
        let found = Locations::of(&self.file, self.range.clone(), &[node.info.name.to_string()]).ok()?;
        if !found.is_live() || found.is_same(places) {
            return None;
        }
        let found = Arc::new(found);
        self.elsewhere.lock().insert(node.info.node, Arc::clone(&found));
        Some(found)
    }
}
