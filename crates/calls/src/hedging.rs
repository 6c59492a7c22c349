//! Hedged calls: a call that takes unusually long is made a second time, at nodes with other copies.
//!
//! The idea: a function is pure, so whoever answers first is right. A call that has taken longer than 95 of 100 of the
//! latest ones probably waits for a busy node, and another may answer sooner. Few calls are that slow, so the second
//! tries cost little. If all calls become slow, because all nodes are busy, second tries would make that worse: at most
//! one call in [`CALLS_PER_HEDGE`] has one. A node that is silent is no matter of this module: it is noticed by probes.

use crate::call::{Call, CallOptions, Called};
use crate::calling::Caller;
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
fn is_answer(result: &Result<Called, Error>) -> bool {
    !matches!(result, Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable))
}

impl Caller {
    /// Makes a call, and makes it again at other nodes if it takes unusually long. Returns the first answer.
    pub(crate) fn try_hedged(
        &self,
        places: &Locations,
        way: Way,
        options: CallOptions,
        call: Call<'_>,
    ) -> Result<Called, Error> {
        let Some(begins) = self.hedges_at(places, way, &call) else {
            return self.try_call(places, way, options, call);
        };
        let is_over = &AtomicBool::new(false);
        let other: Mutex<Option<Result<Called, Error>>> = Mutex::new(None);
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
                    let result = self.try_call(&others, way, options, call);
                    if is_answer(&result) {
                        is_over.store(true, Ordering::Release);
                    }
                    *other.lock() = Some(result);
                });
            };
            let second = Second { begins, has_begun: AtomicBool::new(false), begin: &begin };
            let hedged = Some(Try { is_over, second: Some(&second) });
            let result = self.try_call(places, way, options, Call { hedged, ..call.clone() });
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
    fn hedges_at(&self, places: &Locations, way: Way, call: &Call<'_>) -> Option<MonoNs> {
        let may_hedge = way == Way::Ship && call.is_brief && places.has_any_other();
        let (calls, hedges) = (self.calls.load(Ordering::Relaxed), self.hedges.load(Ordering::Relaxed));
        if !may_hedge || calls < (hedges + 1) * CALLS_PER_HEDGE {
            return None;
        }
        let usual_ns = self.observed.learned().shipped_p95_ns(call.function.key())?;
        Some(MonoNs(self.session.host().now().0.saturating_add(usual_ns.max(DELAY_NS_MIN))))
    }

    /// Returns where the bytes are without a node. `None` if that is not possible now.
    fn without(&self, places: &Locations, node: &NodeLinks) -> Option<Arc<Locations>> {
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
