//! Giving regions back to the host, and taking them again.
//!
//! The idea: a node has a number of regions that may have memory. If that is lowered, regions go in the order of what
//! losing them means: free ones, those being wiped, cache, then what its holders can move elsewhere in time (they are
//! told at their next renewal, and what they have not moved by a deadline goes), and last, in an emergency, whatever
//! there is. A region that has gone is `Away`: nobody gets it, and it has no page.
//!
//! Never here: how much is to go, and when. The node looks at its host for that.
//!
//! Invariants: as for [`NodeLeases`]; a region that is taken back goes through `Close` and `Scrub` like any other.

use super::{Action, NodeLeases, Region, Session, State};
use farpool_wire::ids::*;
use farpool_wire::{MonoNs, RegionIndex, mutant};

/// How far a node goes to give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What somebody may lose without notice: free regions and cache.
    Discardable,
    /// And what can be moved: scratch, which stays until this time.
    Evacuable(MonoNs),
    /// Everything, at once.
    All,
}

impl NodeLeases {
    /// Regions that have memory, or may get it.
    pub fn present(&self) -> u32 {
        (self.regions.len() - self.away.len()) as u32
    }

    /// Whether a region has no memory.
    pub fn is_away(&self, region: RegionIndex) -> bool {
        self.away.contains(&region)
    }

    /// Whether a session has been asked to move what it holds.
    pub fn is_leaving(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.leaves.is_some())
    }

    /// Regions that are still to go.
    pub fn surplus(&self) -> u32 {
        self.present().saturating_sub(self.limit)
    }

    /// Those of the surplus that nothing has been done for yet: what is being wiped goes by itself.
    fn unmet(&self) -> usize {
        (self.surplus() as usize).saturating_sub(self.cleaning)
    }

    /// From now on so many regions may have memory. Those that may again are free; of those that may not any more as
    /// many go as `reach` permits, the others when they are given back.
    pub fn limit(&mut self, now: MonoNs, regions: u32, reach: Reach, actions: &mut Vec<Action>) {
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
        match reach {
            Reach::Discardable => {}
            Reach::Evacuable(until) => self.send_away(until),
            Reach::All => {
                self.take_back_where(leased(FileClass::Scratch), actions);
                self.take_back_where(leased(FileClass::Pinned), actions);
                let is_sealed = |region: &Region| {
                    matches!(region.state, State::Sealing { .. } | State::Orphan | State::Named(_))
                };
                self.take_back_where(is_sealed, actions);
            }
        }
        self.recall(now, actions);
    }

    /// Free regions go at once.
    fn withdraw_free(&mut self, actions: &mut Vec<Action>) {
        while self.unmet() > 0 {
            let Some(region) = self.free.pop_last() else { break };
            if self.mappable.remove(&region) {
                // Its file has to be left first.
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

    /// Takes back such regions, as far as that is still needed.
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

    /// Regions of scratch that a session holds.
    fn scratch(&self, session: SessionId) -> Vec<RegionIndex> {
        let held = self.sessions.get(&session).map(|session| session.regions.iter().copied());
        let is_scratch = |region: &RegionIndex| {
            let entry = &self.regions[region.0 as usize];
            entry.class == FileClass::Scratch && entry.state == State::Leased(session)
        };
        held.into_iter().flatten().filter(is_scratch).collect()
    }

    /// Asks sessions to move what they hold, those with most of it first, until that would be enough.
    fn send_away(&mut self, until: MonoNs) {
        let mut all: Vec<(SessionId, usize)> = self
            .sessions
            .keys()
            .map(|id| (*id, self.scratch(*id).len()))
            .filter(|(_, count)| *count > 0)
            .collect();
        all.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
        let leaving: usize = all.iter().filter(|(id, _)| self.is_leaving(*id)).map(|(_, count)| count).sum();
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

    /// Takes back what was to be moved and was not in time; nobody has to leave once there is enough.
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
