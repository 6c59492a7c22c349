//! Knowledge of the broker about tables, derived from its durable state but for holds and times.

use crate::broker::{Durable, NamedFile, StateChange};
use farpool_wire::Name;
use farpool_wire::control::*;
use farpool_wire::ids::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Snapshots that a session holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    /// Highest number of the session's requests about what it holds.
    pub(super) last: u64,
    pub(super) held: BTreeSet<SnapshotAt>,
}

/// Time since which a snapshot is not the latest one any more. Durations come from the monotonic clock as far as this
/// life of the broker knows them, so a step of the wall clock neither ends what is held nor keeps anything for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    /// Time that had passed by the wall clock when this life noticed it, in ms.
    pub(super) before_ms: u64,
    pub(super) noticed: MonoNs,
}

/// Knowledge of the broker about tables, derived from its durable state but for holds and times.
#[derive(Clone, Debug, Default)]
pub(in crate::broker) struct Tables {
    /// Names of the tables.
    pub(super) names: BTreeMap<TableId, Name>,
    /// Snapshots that have not ended.
    pub(super) kept: BTreeSet<SnapshotAt>,
    /// Bytes of the parts of each table.
    pub(super) bytes: BTreeMap<TableId, u64>,
    /// Snapshots that commits have made.
    pub(super) made: BTreeMap<(TableId, CommitId), u64>,
    /// Tenant of the table, and number of ranges of parts, of each record of a commit that has any.
    pub(super) recorded: BTreeMap<SnapshotAt, (Name, usize)>,
    /// Number of ranges in the records of each tenant.
    pub(super) recorded_by: BTreeMap<Name, usize>,
    /// Snapshots that sessions hold.
    pub(super) holds: BTreeMap<SessionId, Holds>,
    /// Time at which this life of the broker last went on to answer.
    pub(super) resumed: Option<MonoNs>,
    /// Times since which snapshots are not the latest ones any more. Has those that were kept in this life of the
    /// broker.
    pub(super) replaced: BTreeMap<SnapshotAt, Replaced>,
    /// Parts that no snapshot has any more, with the snapshot that they were removed for.
    pub(super) garbage: VecDeque<(SnapshotAt, PartRange)>,
    /// Parts that snapshots have again which an earlier one had: the last of each range, by its commit and first one.
    pub(super) restored: BTreeMap<SnapshotAt, BTreeMap<(CommitId, u32), u32>>,
    /// Table after which [`BrokerLeases::tidy_tables`] goes on.
    pub(super) tidied: TableId,
}

impl Tables {
    /// Notes a change of the durable state, which replaces `before`. `tenant` is that of the table which a commit has
    /// changed, if it is known.
    pub(in crate::broker) fn note(
        &mut self,
        change: &StateChange,
        before: Option<&NamedFile>,
        tenant: Option<&Name>,
    ) {
        if let StateChange::Name(name, _) | StateChange::DropName(name) = change
            && let Some(table) = table_of_part(name)
        {
            let bytes = self.bytes.entry(table).or_default();
            *bytes -= before.map_or(0, |before| before.places.bytes());
            if let StateChange::Name(_, file) = change {
                *bytes += file.places.bytes();
            }
            if *bytes == 0 {
                self.bytes.remove(&table);
            }
        }
        if let Some(at) = before.and_then(|before| before.root_of) {
            self.kept.remove(&at);
            if let StateChange::Name(name, _) | StateChange::DropName(name) = change
                && self.names.get(&at.table) == Some(name)
            {
                self.names.remove(&at.table);
            }
        }
        match change {
            StateChange::Name(name, file) => {
                let Some(at) = file.root_of else { return };
                self.kept.insert(at);
                if name.starts_with(TABLES) {
                    self.names.insert(at.table, name.clone());
                }
            }
            StateChange::Commit(at, record) => {
                self.made.insert((at.table, record.id), at.snapshot);
                let ranges = record.removed.len() + record.restored.len();
                if let Some(tenant) = tenant.filter(|_| ranges > 0) {
                    *self.recorded_by.entry(tenant.clone()).or_default() += ranges;
                    self.recorded.insert(*at, (tenant.clone(), ranges));
                }
                if !record.restored.is_empty() {
                    let ranges =
                        record.restored.iter().map(|range| ((range.commit, range.first), range.last));
                    self.restored.insert(*at, ranges.collect());
                }
            }
            StateChange::DropCommit(at) => {
                if let Some((tenant, ranges)) = self.recorded.remove(at)
                    && let Some(of_tenant) = self.recorded_by.get_mut(&tenant)
                {
                    *of_tenant -= ranges;
                    if *of_tenant == 0 {
                        self.recorded_by.remove(&tenant);
                    }
                }
                self.restored.remove(at);
                self.replaced.remove(at);
            }
            _ => {}
        }
    }

    /// Returns the snapshots of a table that have not ended, from one on.
    pub(super) fn kept_from(&self, table: TableId, snapshot: u64) -> impl DoubleEndedIterator<Item = u64> {
        let to = SnapshotAt { table, snapshot: u64::MAX };
        self.kept.range(SnapshotAt { table, snapshot }..=to).map(|at| at.snapshot)
    }

    /// Returns the last snapshot of a table before one, of those that have not ended.
    pub(super) fn kept_before(&self, at: SnapshotAt) -> Option<u64> {
        let from = SnapshotAt { table: at.table, snapshot: 0 };
        self.kept.range(from..at).next_back().map(|before| before.snapshot)
    }

    /// Returns the bytes of the parts of a table, with those of earlier snapshots.
    pub(in crate::broker) fn bytes(&self, table: TableId) -> u64 {
        self.bytes.get(&table).copied().unwrap_or(0)
    }

    /// Returns the tenant of a table. `None` if it has no name any more.
    pub(in crate::broker) fn tenant_of(&self, table: TableId, durable: &Durable) -> Option<Name> {
        durable.names.get(self.names.get(&table)?).map(|file| file.tenant.clone())
    }

    pub(super) fn is_held(&self, at: SnapshotAt) -> bool {
        self.holds.values().any(|holds| holds.held.contains(&at))
    }

    /// Forgets sessions that have ended.
    pub(in crate::broker) fn forget_sessions(&mut self, lives: impl Fn(&SessionId) -> bool) {
        self.holds.retain(|session, _| lives(session));
    }
}

/// Returns the table of a part. `None` for any other name.
pub(super) fn table_of_part(name: &Name) -> Option<TableId> {
    let digits = name.strip_prefix(PARTS)?.get(..16)?;
    u64::from_str_radix(digits, 16).ok().map(TableId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::CommitRecord;

    #[test]
    fn ranges_of_commits_are_counted_for_their_tenants_until_the_commits_are_forgotten() {
        let (red, blue) = (Name::new("red").expect("a name"), Name::new("blue").expect("a name"));
        let mut tables = Tables::default();
        let at = |snapshot| SnapshotAt { table: TableId(1), snapshot };
        let range = |first| PartRange { added: 1, commit: CommitId(1), first, last: first };
        let mut commit = |snapshot, removed, restored, tenant| {
            let record = CommitRecord {
                id: CommitId(snapshot),
                session: SessionId(1),
                at_ms: 0,
                summary: Default::default(),
                removed: (0..removed).map(range).collect(),
                restored: (0..restored).map(range).collect(),
            };
            tables.note(&StateChange::Commit(at(snapshot), record), None, tenant);
        };
        commit(1, 0, 0, Some(&red));
        commit(2, 3, 0, Some(&red));
        commit(3, 1, 4, Some(&red));
        commit(4, 2, 0, Some(&blue));
        commit(5, 7, 0, None);
        assert_eq!(tables.recorded_by, BTreeMap::from([(red.clone(), 8), (blue.clone(), 2)]));
        for snapshot in [1, 3, 4, 5] {
            tables.note(&StateChange::DropCommit(at(snapshot)), None, None);
        }
        assert_eq!(tables.recorded_by, BTreeMap::from([(red, 3)]));
        tables.note(&StateChange::DropCommit(at(2)), None, None);
        assert!(tables.recorded_by.is_empty() && tables.recorded.is_empty());
    }
}
