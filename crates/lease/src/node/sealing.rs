//! Sealed regions: the end of writing, and what the broker rules about them.
//!
//! The idea: a session seals the regions of a file that it publishes. Each gets a new epoch (the counter that accesses
//! must name), at which it can only be read. A sealed region belongs to the session until the broker says which name
//! owns it. The broker says that in its ruling, the answer to each inventory (report) of the node, so that a lost
//! answer needs no repetition by the session.
//!
//! Invariants: those of [`NodeLeases`]; a ruling touches a region only at the very epoch that it names.

use super::{Action, BrokerClock, NodeLeases, State};
use farpool_wire::control::*;
use farpool_wire::limits::LEASE_REGIONS_MAX;
use farpool_wire::{Code, Epoch, Handle, List, MonoNs, Name, Refusal, mutant};
use std::collections::BTreeSet;

impl NodeLeases {
    /// Ends writing to regions, to all of them or to none. It refuses if one is not the session's own at that epoch.
    ///
    /// A repeated call, as after a lost answer, returns the same grants without an action, for regions that the session
    /// itself has sealed at the next epoch and that no published file owns yet.
    pub fn seal(
        &mut self,
        asker: Option<&Name>,
        seal: &Seal,
        mut handles: impl FnMut() -> Handle,
        actions: &mut Vec<Action>,
    ) -> Result<Sealed, Refusal> {
        self.session_of(asker, seal.session, seal.secret)?;
        let mut seen = BTreeSet::new();
        for at in seal.regions.iter() {
            let entry = self.entry(at.region)?;
            let is_own = match entry.state {
                State::Leased(session) => session == seal.session && entry.epoch == at.epoch,
                State::Sealing { session, .. } => {
                    session == seal.session && at.epoch.0.checked_add(1) == Some(entry.epoch.0)
                }
                _ => false,
            };
            if !is_own || !seen.insert(at.region) {
                return Err(Refusal::new(Code::StaleEpoch, entry.epoch.0));
            }
        }
        let mut sealed = Vec::with_capacity(seal.regions.len());
        for at in seal.regions.iter() {
            let (region, entry) = (at.region, &mut self.regions[at.region.0 as usize]);
            let handle = match entry.state {
                State::Sealing { handle, .. } => handle,
                _ => {
                    let handle = handles();
                    entry.epoch = Epoch(entry.epoch.0 + 1);
                    entry.state = State::Sealing { session: seal.session, handle };
                    actions.push(Action::Close { region, epoch: entry.epoch });
                    actions.push(Action::Open { region, epoch: entry.epoch, writable: false, handle });
                    if let Some(session) = self.sessions.get_mut(&seal.session) {
                        session.regions.remove(&region);
                    }
                    handle
                }
            };
            sealed.push(Grant { region, epoch: entry.epoch, handle });
        }
        let regions =
            List::new(sealed).map_err(|_| Refusal::new(Code::LimitReached, LEASE_REGIONS_MAX as u64))?;
        Ok(Sealed { regions })
    }

    /// Follows the broker's ruling on sealed (immutable) regions, which answers a report. Touches a region only if it
    /// is sealed at the very epoch that the ruling names.
    pub fn rule(&mut self, now: MonoNs, ruling: &Ruling, actions: &mut Vec<Action>) {
        if ruling.term < self.term && !mutant!(OldTermRules) {
            return;
        }
        self.enter_term(ruling.term);
        self.clock = Some(BrokerClock { broker_ms: ruling.broker_now_ms, heard: now });
        match (ruling.drain, ruling.stop) {
            // A broker that has had no order about this node since it started sends this pair: everything stays
            // as it was.
            (false, true) => {}
            (drain, stop) => (self.draining, self.stops) = (drain, stop),
        }
        for adoption in ruling.adopt.iter() {
            if let Some(entry) = self.regions.get_mut(adoption.region.0 as usize)
                && entry.epoch == adoption.epoch
                && matches!(entry.state, State::Sealing { .. } | State::Orphan | State::Copied)
            {
                entry.state = State::Named(adoption.file);
            }
        }
        for at in ruling.drop.iter() {
            if self.regions.get(at.region.0 as usize).is_some_and(|entry| {
                entry.epoch == at.epoch
                    && matches!(
                        entry.state,
                        State::Sealing { .. } | State::Orphan | State::Copied | State::Named(_)
                    )
            }) {
                self.take_back(at.region, actions);
            }
        }
    }
}
