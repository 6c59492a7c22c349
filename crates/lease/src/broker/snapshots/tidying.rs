//! Tidying of tables, which drops in the course of time: snapshots that have ended, parts that no snapshot has any
//! more, parts that were published ahead of commits that nobody makes, and old records of commits.
//!
//! The idea: everything is dropped in steps, each of which is one transaction of limited length. The first of them
//! makes sure that nobody needs what the others drop.

use super::{BrokerLeases, CommitRecord, Replaced, StateChange};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::{Name, mutant};
use std::collections::BTreeSet;

/// Names that are dropped in one transaction.
const DROPPED_AT_ONCE: usize = 64;
/// Time for which a commit is known after its snapshot has ended, in ms. Clients repeat requests for less time.
const COMMIT_KNOWN_MS: u64 = 600_000;
/// Time by which a new leader waits longer for its sessions than their leases can live, in ms.
const MARGIN_MS: u64 = 1_000;

impl BrokerLeases {
    /// Reports whether sessions may still say which snapshots they hold, because this life of the broker is young, or
    /// has answered nothing for a while.
    fn awaits_sessions(&self, now: MonoNs) -> bool {
        let older_ms = if mutant!(OlderNotAwaited) { 0 } else { self.settings.failover_ms };
        // Sessions that the leader before still answers say it here once they hear from it no more.
        let ms = self.silence_ms() + MARGIN_MS;
        let is_young = self.has_predecessor && now.ms_since(self.started) <= ms + older_ms;
        let is_back = self.tables.resumed.is_some_and(|resumed| now.ms_since(resumed) <= ms);
        (is_young || is_back) && !mutant!(HoldsNotAwaited)
    }

    /// Ends snapshots, drops parts that no snapshot has any more, and forgets old commits: a part of that, for one
    /// transaction. Returns whether there is more to do.
    pub fn tidy_tables(&mut self, now: MonoNs, wall_ms: u64, records: &mut Vec<StateChange>) -> bool {
        self.tick(now);
        let mut left = DROPPED_AT_ONCE;
        let after = |at: &SnapshotAt| at.table > self.tables.tidied;
        let ids: BTreeSet<TableId> =
            self.durable.commits.keys().filter(|at| after(at)).map(|at| at.table).collect();
        for table in ids {
            if left == 0 {
                return true;
            }
            match self.tables.names.contains_key(&table) {
                true => {
                    self.end_snapshots(now, wall_ms, table, &mut left, records);
                    self.forget_commits(now, table, &mut left, records);
                }
                false => self.drop_table(table, &mut left, records),
            }
            if left > 0 {
                self.tables.tidied = table;
            }
        }
        self.tables.tidied = TableId(0);
        self.drop_garbage(&mut left, records);
        self.drop_open_commits(now, &mut left, records);
        left == 0
    }

    /// Ends the snapshots of a table that have to end: at most `left`, which counts down.
    pub(super) fn end_snapshots(
        &mut self,
        now: MonoNs,
        wall_ms: u64,
        table: TableId,
        left: &mut usize,
        records: &mut Vec<StateChange>,
    ) {
        let settings = self.settings.snapshots;
        let mut kept: Vec<u64> = self.tables.kept_from(table, 0).collect();
        // The latest one does not end.
        kept.pop();
        let replaced: Vec<(SnapshotAt, Replaced)> = kept
            .into_iter()
            .map(|snapshot| {
                let at = SnapshotAt { table, snapshot };
                (at, self.note_replaced(now, wall_ms, at))
            })
            .collect();
        if self.awaits_sessions(now) {
            return;
        }
        let mut ended = 0;
        for (at, Replaced { before_ms, noticed }) in replaced.iter().copied() {
            let held_ms = now.ms_since(noticed);
            let is_past = before_ms.saturating_add(held_ms) >= settings.age_ms_max;
            let is_old = is_past || replaced.len() - ended > settings.count_max as usize;
            if !is_old || held_ms < settings.hold_ms_max && self.tables.is_held(at) {
                continue;
            }
            if *left == 0 {
                return;
            }
            *left -= 1;
            ended += 1;
            self.end_snapshot(at, records);
        }
    }

    /// Returns since when a snapshot is not the latest one any more, and notices it if that has just happened.
    fn note_replaced(&mut self, now: MonoNs, wall_ms: u64, at: SnapshotAt) -> Replaced {
        let next = self.durable.commits.get(&SnapshotAt { snapshot: at.snapshot + 1, ..at });
        let before_ms = next.map_or(0, |next| wall_ms.saturating_sub(next.at_ms));
        *self.tables.replaced.entry(at).or_insert(Replaced { before_ms, noticed: now })
    }

    fn end_snapshot(&mut self, at: SnapshotAt, records: &mut Vec<StateChange>) {
        self.let_name_go(&snapshot_name(at), records);
        let SnapshotAt { table, snapshot } = at;
        let before = self.tables.kept_before(at).unwrap_or(0);
        let next = self.tables.kept_from(table, snapshot).next().unwrap_or(snapshot);
        // Parts that were there in this snapshot alone, of those that have not ended, are garbage now.
        let removed_by = SnapshotAt { table, snapshot: snapshot + 1 }..=SnapshotAt { table, snapshot: next };
        for (removed, record) in self.durable.commits.range(removed_by) {
            let alone = |range: &&PartRange| (before + 1..=snapshot).contains(&range.added);
            self.tables.garbage.extend(record.removed.iter().filter(alone).map(|range| (*removed, *range)));
        }
    }

    /// Drops parts that no snapshot has any more.
    pub(super) fn drop_garbage(&mut self, left: &mut usize, records: &mut Vec<StateChange>) {
        while *left > 0
            && let Some((removed, range)) = self.tables.garbage.pop_front()
        {
            let SnapshotAt { table, snapshot } = removed;
            let name = |index| part_name(table, PartAt { commit: range.commit, index });
            let later =
                SnapshotAt { table, snapshot: snapshot + 1 }..=SnapshotAt { table, snapshot: u64::MAX };
            let restored: BTreeSet<Name> = self
                .tables
                .restored
                .range(later)
                .flat_map(|(_, ranges)| {
                    // Those of one snapshot do not overlap, so the one before ends earlier.
                    let before = ranges.range((range.commit, 0)..=(range.commit, range.last)).rev();
                    before.take_while(|(_, last)| **last >= range.first)
                })
                .flat_map(|((_, first), last)| {
                    // A range may have any number of parts that never were.
                    let (first, last) = (range.first.max(*first), range.last.min(*last));
                    self.durable.names.range(name(first)..=name(last)).map(|(name, _)| name.clone())
                })
                .collect();
            let names = self.durable.names.range(name(range.first)..=name(range.last)).map(|(name, _)| name);
            let names = names.filter(|name| !restored.contains(*name));
            let names: Vec<Name> = names.take(*left + 1).cloned().collect();
            for name in &names {
                if *left == 0 {
                    self.tables.garbage.push_front((removed, range));
                    return;
                }
                *left -= 1;
                self.let_name_go(name, records);
            }
        }
    }

    /// Forgets commits of a table that nobody asks for any more: their snapshots have ended long ago, and what they
    /// removed was dropped.
    fn forget_commits(
        &mut self,
        now: MonoNs,
        table: TableId,
        left: &mut usize,
        records: &mut Vec<StateChange>,
    ) {
        let first_kept = self.tables.kept_from(table, 0).next().unwrap_or(0);
        let all = SnapshotAt { table, snapshot: 0 }..SnapshotAt { table, snapshot: first_kept };
        // Snapshots of which nothing is noted had ended before this life of the broker.
        let is_past = |(at, _): &(&SnapshotAt, &CommitRecord)| {
            let replaced = self.tables.replaced.get(at).map_or(self.started, |replaced| replaced.noticed);
            now.ms_since(replaced) >= COMMIT_KNOWN_MS
        };
        let has_garbage = |at: &SnapshotAt| self.tables.garbage.iter().any(|(removed, _)| removed == at);
        let past = self.durable.commits.range(all).take_while(is_past).map(|(at, record)| (*at, record.id));
        let past: Vec<_> = past.take_while(|(at, _)| !has_garbage(at)).take(*left).collect();
        *left -= past.len();
        for (at, id) in past {
            self.tables.made.remove(&(table, id));
            self.persist(StateChange::DropCommit(at), records);
        }
    }

    /// Drops what is left of a table that no name has any more.
    fn drop_table(&mut self, table: TableId, left: &mut usize, records: &mut Vec<StateChange>) {
        for prefix in [SNAPSHOTS, PARTS] {
            self.drop_names(&format!("{prefix}{:016x}/", table.0), left, records);
        }
        if *left == 0 {
            return;
        }
        // The latest commit goes last: with it, the table is known to have been dropped.
        let of_table = SnapshotAt { table, snapshot: 0 }..=SnapshotAt { table, snapshot: u64::MAX };
        let commits = self.durable.commits.range(of_table).map(|(at, record)| (*at, record.id));
        let commits: Vec<_> = commits.take(*left).collect();
        *left -= commits.len();
        for (at, id) in commits {
            self.tables.made.remove(&(table, id));
            self.persist(StateChange::DropCommit(at), records);
        }
        self.tables.garbage.retain(|(removed, _)| removed.table != table);
    }

    /// Drops the first names that begin so: at most `left`, which counts down.
    fn drop_names(&mut self, prefix: &str, left: &mut usize, records: &mut Vec<StateChange>) {
        let Ok(from) = Name::new(prefix) else { return };
        let names = self.durable.names.range(from..).map(|(name, _)| name);
        let names: Vec<Name> =
            names.take_while(|name| name.starts_with(prefix)).take(*left).cloned().collect();
        *left -= names.len();
        names.iter().for_each(|name| self.let_name_go(name, records));
    }

    /// Drops what was published ahead of commits whose sessions have ended, or have given them up.
    fn drop_open_commits(&mut self, now: MonoNs, left: &mut usize, records: &mut Vec<StateChange>) {
        let is_over = |session: &SessionId| {
            *session == SessionId(0) || !self.awaits_sessions(now) && !self.sessions.contains_key(session)
        };
        let over: Vec<(TableId, CommitId, SessionId)> = self
            .durable
            .open_commits
            .iter()
            .filter(|(_, session)| is_over(session))
            .map(|((table, commit), session)| (*table, *commit, *session))
            .collect();
        for (table, commit, session) in over {
            if *left == 0 {
                return;
            }
            // Nobody can make the commit any more once a part of it is gone, not even in the next life of the broker.
            if session != SessionId(0) {
                *left -= 1;
                self.persist(StateChange::OpenCommit(table, commit, SessionId(0)), records);
            }
            self.drop_names(&format!("{PARTS}{:016x}/{:016x}/", table.0, commit.0), left, records);
            if *left == 0 {
                return;
            }
            *left -= 1;
            self.persist(StateChange::CloseCommit(table, commit), records);
        }
    }
}
