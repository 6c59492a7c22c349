//! Oracle for holds: a snapshot of a table that a broker has promised to a session does not end.
//!
//! The idea: a broker that answers `OpenTable` or `HoldSnapshots` promises that the snapshot stays for as long as the
//! session goes on saying that it holds it, and TTL + grace after that. A new leader keeps what its predecessors have
//! promised until TTL + grace + 1 s after it began, and that of a deposed predecessor as its own. `spec/lease.md`
//! (Tables) has the argument, and says which promises of deposed brokers count: those of a broker that was elected, if
//! its clock has never stood still.
//!
//! Times are those of the leader that ends a snapshot, by its own clock, because it measures by that. This module is
//! pure: the world tells it what happens.

use farpool_wire::control::SnapshotAt;
use farpool_wire::{MonoNs, SessionId, TableId};
use std::collections::{BTreeMap, BTreeSet};

/// Number of the opening of the disk by a broker. Each leadership has its own, and later ones have higher numbers.
pub(crate) type Opening = u64;

/// Time in ms by which a new leader waits longer than sessions can be silent.
const MARGIN_MS: u64 = 1_000;

/// Time in ms that storing a commit may take. A leader counts the longest life of a hold from before that, the world
/// from when the commit is stored.
const STORING_MS: u64 = 1_000;

/// Point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Time of the world, in ns.
    pub(crate) at: u64,
    /// Times that the clocks of the machines for brokers show.
    pub(crate) clocks: [MonoNs; 2],
}

#[derive(Clone, Copy, Debug)]
struct Leader {
    /// Which of the machines for brokers it runs on.
    machine: usize,
    began: Moment,
    /// True if its clock has been moved forward although no time had passed.
    was_stepped: bool,
    /// True if its clock has stood still while it ran, or was to run again.
    was_stopped: bool,
}

impl Leader {
    /// Returns the time in ms, by the leader's clock, from a moment to another. What was before the leader began counts
    /// from there.
    fn ms_since(&self, from: Moment, to: Moment) -> u64 {
        let from = if from.at < self.began.at { self.began } else { from };
        to.clocks[self.machine].ms_since(from.clocks[self.machine])
    }
}

/// Promises of brokers to a session, and connections over which they have heard of it.
#[derive(Debug, Default)]
struct Told {
    /// Last connection over which each leader has heard of the session.
    connections: BTreeMap<Opening, u64>,
    /// When each leader has last promised each snapshot.
    promised: BTreeMap<SnapshotAt, BTreeMap<Opening, Moment>>,
}

/// Snapshots that were promised.
#[derive(Debug)]
pub(crate) struct Holds {
    silence_ms: u64,
    hold_ms_max: u64,
    /// True if brokers are elected: one that was deposed soon knows it.
    is_elected: bool,
    leaders: BTreeMap<Opening, Leader>,
    sessions: BTreeMap<SessionId, Told>,
    /// When snapshots were followed by others.
    replaced: BTreeMap<SnapshotAt, Moment>,
}

impl Holds {
    pub(crate) fn new(silence_ms: u64, hold_ms_max: u64, is_elected: bool) -> Holds {
        Holds {
            silence_ms,
            hold_ms_max,
            is_elected,
            leaders: BTreeMap::new(),
            sessions: BTreeMap::new(),
            replaced: BTreeMap::new(),
        }
    }

    /// Notes that a broker leads from now on.
    pub(crate) fn began(&mut self, opening: Opening, machine: usize, now: Moment) {
        let leader = Leader { machine, began: now, was_stepped: false, was_stopped: false };
        self.leaders.insert(opening, leader);
    }

    /// Notes that the clock of a machine was moved forward.
    pub(crate) fn clock_stepped(&mut self, machine: usize) {
        let on_it = self.leaders.values_mut().filter(|leader| leader.machine == machine);
        on_it.for_each(|leader| leader.was_stepped = true);
    }

    /// Notes that the clock of a machine stands still.
    pub(crate) fn clock_stopped(&mut self, machine: usize) {
        let on_it = self.leaders.values_mut().filter(|leader| leader.machine == machine);
        on_it.for_each(|leader| leader.was_stopped = true);
    }

    /// Notes that a session asks a broker over a connection. Returns true if it has not gone on over another one.
    pub(crate) fn asks(&mut self, opening: Opening, session: SessionId, connection: u64) -> bool {
        let last = self.sessions.entry(session).or_default().connections.entry(opening).or_default();
        *last = connection.max(*last);
        connection == *last
    }

    /// Notes that a session holds no snapshots but these any more.
    pub(crate) fn holds_only(&mut self, session: SessionId, held: &BTreeSet<SnapshotAt>) {
        if let Some(told) = self.sessions.get_mut(&session) {
            told.promised.retain(|at, _| held.contains(at));
        }
    }

    /// Notes that a session has ended.
    pub(crate) fn session_ended(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Notes that a broker has promised a session that a snapshot stays.
    pub(crate) fn promised(&mut self, opening: Opening, session: SessionId, at: SnapshotAt, now: Moment) {
        let Some(leader) = self.leaders.get(&opening) else { return };
        let is_deposed = self.leaders.last_key_value().is_some_and(|(last, _)| *last > opening);
        if !is_deposed || self.is_elected && !leader.was_stopped {
            let told = self.sessions.entry(session).or_default();
            told.promised.entry(at).or_default().insert(opening, now);
        }
    }

    /// Notes that another snapshot has followed one.
    pub(crate) fn replaced(&mut self, at: SnapshotAt, now: Moment) {
        self.replaced.insert(at, now);
    }

    /// Notes that a table was dropped. Its snapshots end, whoever holds them.
    pub(crate) fn dropped(&mut self, table: TableId) {
        self.replaced.retain(|at, _| at.table != table);
        self.sessions.values_mut().for_each(|told| told.promised.retain(|at, _| at.table != table));
    }

    /// Notes that a leader has ended a snapshot. Returns which promise that breaks; `None` if it breaks none.
    pub(crate) fn ended(&mut self, opening: Opening, at: SnapshotAt, now: Moment) -> Option<String> {
        let replaced = self.replaced.remove(&at);
        let mut broken = None;
        let leader = self.leaders.get(&opening)?;
        for (session, told) in &mut self.sessions {
            let promised = told.promised.remove(&at).unwrap_or_default();
            let held_ms = replaced.map_or(0, |replaced| leader.ms_since(replaced, now));
            let is_kept = |(by, when): &(&Opening, &Moment)| {
                let is_before = when.at < leader.began.at;
                let limit_ms = self.silence_ms + if is_before { MARGIN_MS } else { 0 };
                let counts = **by == opening || is_before || !leader.was_stepped;
                counts && leader.ms_since(**when, now) <= limit_ms
            };
            if held_ms + STORING_MS < self.hold_ms_max
                && let Some((by, when)) = promised.iter().find(is_kept)
            {
                let ms = leader.ms_since(*when, now);
                broken = Some(format!(
                    "{at:?} ended {ms} ms after session {session} was told that it holds it, by leader {by}, and \
                     {held_ms} ms after another followed; leader {opening} ended it"
                ));
            }
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: SnapshotAt = SnapshotAt { table: TableId(1), snapshot: 7 };
    const SESSION: SessionId = SessionId(5);

    fn moment(ms: u64) -> Moment {
        let clock = MonoNs(ms * 1_000_000);
        Moment { at: clock.0, clocks: [clock, clock] }
    }

    /// Returns whether leader 2, which began at 10 s, may end a snapshot at `ended`, in ms. It was replaced at 0 s, and
    /// leader `by` promised it at `promised`. Sessions may be silent for 7 s, and hold snapshots for 60 s.
    fn may_end(is_elected: bool, by: Opening, promised: u64, ended: u64) -> bool {
        let mut holds = Holds::new(7_000, 60_000, is_elected);
        holds.began(1, 0, moment(0));
        holds.replaced(AT, moment(0));
        let promise_first = promised < 10_000;
        if promise_first {
            holds.promised(by, SESSION, AT, moment(promised));
        }
        holds.began(2, 1, moment(10_000));
        if !promise_first {
            holds.promised(by, SESSION, AT, moment(promised));
        }
        holds.ended(2, AT, moment(ended)).is_none()
    }

    #[test]
    fn new_leader_waits_for_sessions_that_its_predecessor_knows() {
        assert!(!may_end(true, 1, 9_000, 10_001) && !may_end(false, 1, 9_000, 18_000));
        assert!(may_end(true, 1, 9_000, 18_001), "the session was silent");
    }

    #[test]
    fn leader_keeps_its_own_promises_until_they_are_old() {
        assert!(!may_end(true, 2, 30_000, 37_000) && may_end(true, 2, 30_000, 37_001));
        assert!(may_end(true, 2, 69_999, 70_000), "it was held for the longest time");
    }

    #[test]
    fn promises_of_a_deposed_broker_count_if_it_was_elected() {
        assert!(!may_end(true, 1, 15_000, 22_000) && may_end(false, 1, 15_000, 22_000));
    }

    #[test]
    fn what_a_session_lets_go_may_end() {
        let mut holds = Holds::new(7_000, 60_000, true);
        holds.began(1, 0, moment(0));
        holds.promised(1, SESSION, AT, moment(10));
        holds.holds_only(SESSION, &BTreeSet::new());
        assert_eq!(holds.ended(1, AT, moment(20)), None);
        holds.promised(1, SESSION, AT, moment(30));
        holds.session_ended(SESSION);
        assert_eq!(holds.ended(1, AT, moment(40)), None);
    }

    #[test]
    fn requests_over_a_connection_that_was_left_are_late() {
        let mut holds = Holds::new(7_000, 60_000, true);
        assert!(holds.asks(1, SESSION, 4) && holds.asks(1, SESSION, 6) && !holds.asks(1, SESSION, 4));
        assert!(holds.asks(2, SESSION, 1), "another broker counts its own connections");
    }
}
