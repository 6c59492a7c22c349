//! Giving regions back to the host, and taking them again.
//!
//! The idea: a limit says how many regions of a node may have memory. When it is lowered, regions go in the order of
//! how little their loss hurts: free regions, regions that are being wiped, those leased for files of class `cache`
//! (whose loss is a cache miss), those of class `scratch` (temporary data), and in an emergency everything else.
//! Holders of scratch learn of it with their next renewal and can move their bytes elsewhere; what they have not moved
//! by a deadline is taken back. A region that has gone is `Away`: nobody can lease it, and it has no pages.
//!
//! Never here: how many regions go, and when. The node decides that by the free memory of its host.
//!
//! Invariants: those of [`NodeLeases`]; a region that is taken back goes through `Close` and `Scrub` like any other.

use super::{Action, NodeLeases, Region, Session, State};
use farpool_wire::ids::*;
use farpool_wire::{MonoNs, RegionIndex, mutant};

/// Kinds of regions that the node may take back to give memory to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Free regions, and those leased for files of class `cache`, whose bytes may be lost without notice.
    Discardable,
    /// The same, and regions leased for `scratch` files, whose holders may move the bytes elsewhere until this time.
    Evacuable(MonoNs),
    /// Everything, at once.
    All,
}

impl NodeLeases {
    /// Counts the regions that have memory, or may get it.
    pub fn present(&self) -> u32 {
        (self.regions.len() - self.away.len()) as u32
    }

    /// Reports whether a region has no memory.
    pub fn is_away(&self, region: RegionIndex) -> bool {
        self.away.contains(&region)
    }

    /// Reports whether a session has been asked to move its scratch regions elsewhere.
    pub fn is_evacuating(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.leaves.is_some())
    }

    /// Counts the regions beyond the limit, which still have to go.
    pub fn surplus(&self) -> u32 {
        self.present().saturating_sub(self.limit)
    }

    /// Counts the regions beyond the limit for which nothing is under way. Regions that are being wiped go by
    /// themselves.
    fn unmet(&self) -> usize {
        (self.surplus() as usize).saturating_sub(self.cleaning)
    }

    /// Sets how many regions may have memory. If more may than before, regions without memory become free. If fewer
    /// may, takes back as many as needed and `withdrawal` permits. If that is not enough, others go when their holders
    /// give them back.
    pub fn limit(&mut self, now: MonoNs, regions: u32, withdrawal: Withdrawal, actions: &mut Vec<Action>) {
        self.limit = regions.min(self.regions.len() as u32);
        while self.present() < self.limit {
            let Some(region) = self.away.pop_first() else { break };
            self.regions[region.0 as usize].state = State::Free;
            self.free.insert(region);
        }
        self.withdraw_free(actions);
        let leased =
            |class| move |region: &Region| region.class == class && matches!(region.state, State::Leased(_));
        self.take_back_where(leased(FileClass::Cache), actions);
        match withdrawal {
            Withdrawal::Discardable => {}
            Withdrawal::Evacuable(until) => self.ask_to_evacuate(until),
            Withdrawal::All => {
                self.take_back_where(leased(FileClass::Scratch), actions);
                self.take_back_where(leased(FileClass::Pinned), actions);
                let is_sealed = |region: &Region| {
                    matches!(
                        region.state,
                        State::Sealing { .. }
                            | State::Orphan
                            | State::Copying
                            | State::Copied
                            | State::Named(_)
                            | State::Segment
                    )
                };
                self.take_back_where(is_sealed, actions);
            }
        }
        self.recall(now, actions);
    }

    /// Withdraws free regions while too many have memory. A mappable one is wiped first; the pages of others go at
    /// once.
    fn withdraw_free(&mut self, actions: &mut Vec<Action>) {
        while self.unmet() > 0 {
            let Some(region) = self.free.pop_last() else { break };
            if self.mappable.remove(&region) {
                // The memory file of a mappable region must be replaced first, which wiping does.
                self.regions[region.0 as usize].state = State::Cleaning;
                self.cleaning += 1;
                actions.push(Action::Scrub(region));
            } else {
                self.regions[region.0 as usize].state = State::Away;
                self.away.insert(region);
                actions.push(Action::GiveBack(region));
            }
        }
        if mutant!(WithdrawnStaysFree) {
            self.free.extend(self.away.iter());
        }
    }

    /// Takes back regions that pass the test, until no more regions have to go.
    fn take_back_where(&mut self, is_one: impl Fn(&Region) -> bool, actions: &mut Vec<Action>) {
        let all = (0..self.regions.len() as u32).map(RegionIndex);
        let found = all.filter(|region| is_one(&self.regions[region.0 as usize]));
        let found: Vec<RegionIndex> = found.take(self.unmet()).collect();
        let before = actions.len();
        found.into_iter().for_each(|region| self.take_back(region, actions));
        if mutant!(WithdrawnStaysOpen) {
            let taken = actions.split_off(before);
            actions.extend(taken.into_iter().filter(|action| !matches!(action, Action::Close { .. })));
        }
    }

    /// Returns the regions of class `scratch` that a session leases.
    fn scratch(&self, session: SessionId) -> Vec<RegionIndex> {
        let held = self.sessions.get(&session).map(|session| session.regions.iter().copied());
        let is_scratch = |region: &RegionIndex| {
            let entry = &self.regions[region.0 as usize];
            entry.class == FileClass::Scratch && entry.state == State::Leased(session)
        };
        held.into_iter().flatten().filter(is_scratch).collect()
    }

    /// Asks sessions to move their scratch regions, the largest holders first, until that would be enough.
    fn ask_to_evacuate(&mut self, until: MonoNs) {
        let mut all: Vec<(SessionId, usize)> = self
            .sessions
            .keys()
            .map(|id| (*id, self.scratch(*id).len()))
            .filter(|(_, count)| *count > 0)
            .collect();
        all.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
        let leaving: usize =
            all.iter().filter(|(id, _)| self.is_evacuating(*id)).map(|(_, count)| count).sum();
        let mut left = self.unmet().saturating_sub(leaving);
        for (id, count) in all {
            if left == 0 {
                break;
            }
            if let Some(session) = self.sessions.get_mut(&id).filter(|session| session.leaves.is_none()) {
                session.leaves = Some(until);
                left = left.saturating_sub(count);
            }
        }
    }

    /// Takes back scratch regions that were not moved in time. Cancels all requests to leave once enough
    /// regions have gone.
    pub(super) fn recall(&mut self, now: MonoNs, actions: &mut Vec<Action>) {
        if self.unmet() == 0 {
            self.sessions.values_mut().for_each(|session| session.leaves = None);
            return;
        }
        let is_late =
            |(_, session): &(&SessionId, &Session)| session.leaves.is_some_and(|until| now >= until);
        let late: Vec<SessionId> = self.sessions.iter().filter(is_late).map(|(id, _)| *id).collect();
        for id in late {
            for region in self.scratch(id).into_iter().take(self.unmet()) {
                self.take_back(region, actions);
            }
            if let Some(session) = self.sessions.get_mut(&id) {
                session.leaves = None;
            }
        }
    }
}
