//! Tables whose rows change in snapshots.
//!
//! The idea: a table is a root, which has the name of the table, and parts, which have hidden names. None of them ever
//! changes. A commit publishes parts and another root, if the root is still the one that its client expects, in one
//! transaction. So the broker never looks into a table, and a commit costs it as much as what the commit brings.
//!
//! Each snapshot follows the one before, with a number that is one higher. The root that was replaced gets a hidden
//! name, until its snapshot ends: when it is old, or many have followed, and no session holds it. Each commit says
//! which parts it removes and since which snapshot they were there. A part is dropped once every snapshot has ended
//! that had it. So what can be reached from a snapshot is known without following anything.
//!
//! Parts that are published ahead of a commit belong to its session until then, and are dropped if it ends without. A
//! commit says how many there are, so one of which parts were dropped is not made.

mod known;
mod tidying;

use super::catalog::{may_use, taken};
use super::{BrokerLeases, CommitRecord, NamedFile, StateChange};
use farpool_wire::control::*;
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, FileClass, List, Name, Opcode, Refusal, mutant};
pub(super) use known::Tables;
use known::{Holds, Replaced, table_of_part};
use std::collections::{BTreeMap, BTreeSet};

/// Names that a commit drops beside what it does: more than it adds, so nothing piles up while commits go on.
const DROPPED_WITH_COMMIT: usize = 16;
/// Bytes that a request may add to the store: a transaction of etcd with them stays within its limits.
const ADDED_BYTES_MAX: usize = 1 << 20;
/// Bytes of the places of a file from which on they are stored in pages, each in a transaction of its own.
const PAGED_BYTES: usize = 512 << 10;
/// Ranges of parts in the records of all commits of a tenant, some 100 MB of them, from which on commits with many are
/// refused.
const RECORDED_RANGES_MAX: usize = 1 << 22;
/// Ranges that a commit may have all the same, so that a tenant at the limit can go on with small changes.
const FEW_RANGES: usize = 64;
/// Bytes of places in one answer, at most, unless a single part has more.
const OPENED_BYTES_MAX: usize = 1 << 20;

/// Returns about how many bytes the store keeps of places.
fn places_bytes(places: &Places) -> usize {
    64 * (places.regions.len() + places.runs.len())
}

/// Reports whether no part is in two of the ranges.
fn are_apart(ranges: &[PartRange]) -> bool {
    let mut ranges: Vec<_> = ranges.iter().map(|range| (range.commit, range.first, range.last)).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 < pair[1].1)
}

fn malformed(opcode: Opcode) -> Refusal {
    Refusal::new(Code::Malformed, opcode as u64)
}

impl BrokerLeases {
    /// Derives what is known of tables from the durable state, at the start of a life of the broker.
    pub(super) fn begin_tables(&mut self) {
        let mut tables = Tables::default();
        for (name, file) in &self.durable.names {
            if file.root_of.is_some() || table_of_part(name).is_some() {
                tables.note(&StateChange::Name(name.clone(), file.clone()), None, None);
            }
        }
        for (at, record) in &self.durable.commits {
            // A dropped table has no tenant any more, and its records go soon.
            let tenant = tables.tenant_of(at.table, &self.durable);
            tables.note(&StateChange::Commit(*at, record.clone()), None, tenant.as_ref());
            let is_garbage =
                |range: &&PartRange| tables.kept_from(at.table, range.added).next() >= Some(at.snapshot);
            let garbage = record.removed.iter().filter(is_garbage).map(|range| (*at, *range));
            tables.garbage.extend(garbage.collect::<Vec<_>>());
        }
        self.tables = tables;
    }

    /// Notes that this life of the broker goes on to answer. For a while it did not know whether it leads, and heard of
    /// no session what it holds.
    pub fn resume(&mut self, now: MonoNs) {
        self.tables.resumed = Some(now);
    }

    /// Returns the number of the latest snapshot of a table. 0 if it has none.
    fn latest(&self, table: TableId) -> u64 {
        let of_table = SnapshotAt { table, snapshot: 0 }..=SnapshotAt { table, snapshot: u64::MAX };
        self.durable.commits.range(of_table).next_back().map_or(0, |(at, _)| at.snapshot)
    }

    /// Publishes parts of a table ahead of the commit that adds them, or drops them again.
    pub fn add_parts(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        add: &AddParts,
        records: &mut Vec<StateChange>,
    ) -> Result<Done, Refusal> {
        self.prove(now, tenant, add.session, add.secret)?;
        let (table, commit) = (add.table, add.commit);
        let owner = self.durable.open_commits.get(&(table, commit)).copied();
        if add.is_over {
            if owner == Some(add.session) {
                self.persist(StateChange::OpenCommit(table, commit, SessionId(0)), records);
            }
            return Ok(Done {});
        }
        // A commit that is open and has no parts would cost its session nothing.
        if add.parts.is_empty() || commit == CommitId(0) {
            return Err(malformed(Opcode::AddParts));
        }
        let of = self.tenant_of_table(tenant, table)?;
        let is_done = self.tables.made.contains_key(&(table, commit));
        // If no commit is open of which a part has a name, it was made, and the table has the part.
        let was_made = owner.is_none() && self.named_parts(table, commit).next().is_some();
        if is_done || was_made || owner.is_some_and(|owner| owner != add.session) {
            return Err(Refusal::new(Code::CommitEnded, 0));
        }
        let fresh = self.fresh_parts(table, commit, &add.parts)?;
        let places: Vec<(u8, &Places)> =
            fresh.iter().map(|part| (part.copies_wanted, &part.places)).collect();
        let bytes: usize = places.iter().map(|(_, places)| places_bytes(places).min(PAGED_BYTES)).sum();
        if bytes > ADDED_BYTES_MAX {
            return Err(Refusal::new(Code::LimitReached, ADDED_BYTES_MAX as u64));
        }
        self.check_places(add.session, &places)?;
        if owner.is_none() {
            self.persist(StateChange::OpenCommit(table, commit, add.session), records);
        }
        for part in fresh {
            self.add_part(&of, table, commit, part, records);
        }
        Ok(Done {})
    }

    /// Returns the names of the parts of a commit.
    fn named_parts(&self, table: TableId, commit: CommitId) -> impl Iterator<Item = &Name> {
        let name = |index| part_name(table, PartAt { commit, index });
        self.durable.names.range(name(0)..=name(u32::MAX)).map(|(name, _)| name)
    }

    /// Returns the tenant of a table, which may be one that is still to be made.
    fn tenant_of_table(&self, tenant: &Name, table: TableId) -> Result<Name, Refusal> {
        match self.tables.names.get(&table) {
            Some(name) => Ok(self.seen(tenant, name)?.tenant.clone()),
            // It was dropped, or its commits are still unknown.
            None if self.latest(table) > 0 => Err(Refusal::new(Code::NoSuchName, 0)),
            None => Ok(tenant.clone()),
        }
    }

    /// Returns those of the parts that were not published by an earlier try of the same request.
    fn fresh_parts<'p>(
        &self,
        table: TableId,
        commit: CommitId,
        parts: &'p [NewPart],
    ) -> Result<Vec<&'p NewPart>, Refusal> {
        let mut fresh = Vec::with_capacity(parts.len());
        for part in parts {
            let name = part_name(table, PartAt { commit, index: part.index });
            match self.durable.names.get(&name) {
                None => fresh.push(part),
                Some(has) if self.was_published_with(has, part.copies_wanted, &part.places) => {}
                Some(_) => return Err(Refusal::new(Code::NameTaken, 0)),
            }
        }
        Ok(fresh)
    }

    fn add_part(
        &mut self,
        tenant: &Name,
        table: TableId,
        commit: CommitId,
        part: &NewPart,
        records: &mut Vec<StateChange>,
    ) {
        let file = NamedFile {
            file: self.next_file(records),
            class: FileClass::Pinned,
            tenant: tenant.clone(),
            copies_wanted: part.copies_wanted,
            recipe: Default::default(),
            places: part.places.clone(),
            root_of: None,
        };
        self.replace(&part_name(table, PartAt { commit, index: part.index }), file, records);
    }

    /// Changes tables, all or none of them, in one transaction. `wall_ms` is the time in ms since 1970.
    pub fn commit_tables(
        &mut self,
        now: MonoNs,
        wall_ms: u64,
        tenant: &Name,
        commit: &CommitTables,
        records: &mut Vec<StateChange>,
    ) -> Result<TablesCommitted, Refusal> {
        self.prove(now, tenant, commit.session, commit.secret)?;
        if let Some(made) = self.made_before(tenant, commit)
            && !mutant!(CommitAppliedTwice)
        {
            return made;
        }
        let mut fresh = Vec::new();
        let (mut tables, mut names) = (BTreeSet::new(), BTreeSet::new());
        for change in commit.changes.iter() {
            if !tables.insert(change.table) || !names.insert(&change.name) {
                return Err(malformed(Opcode::CommitTables));
            }
            self.check_change(tenant, commit, change)?;
            let parts = self.fresh_parts(change.table, commit.commit, &change.parts)?;
            // If there are more, the commit was made. If there are fewer, some were dropped.
            let has = self.named_parts(change.table, commit.commit).count();
            let should_have = change.parts_ahead as usize + change.parts.len() - parts.len();
            if has != should_have && !mutant!(CommitAppliedTwice) {
                return Err(Refusal::new(Code::CommitEnded, 0));
            }
            fresh.push(parts);
        }
        let mut places = Vec::new();
        for (change, parts) in commit.changes.iter().zip(&fresh) {
            places.push((change.copies_wanted, &change.root));
            places.extend(parts.iter().map(|part| (part.copies_wanted, &part.places)));
        }
        let parts = places.len() - commit.changes.len();
        if commit.changes.is_empty() || commit.commit == CommitId(0) || parts > COMMIT_PARTS_MAX {
            return Err(malformed(Opcode::CommitTables));
        }
        let of_change =
            |change: &TableChange| 24 * (change.removed.len() + change.restored.len()) + change.recipe.len();
        // The file that is replaced is stored once more, under another name. A longer one is stored apart from the
        // commit.
        let of_former = |change: &TableChange| {
            let before = self.durable.names.get(&change.name);
            let before = before.filter(|has| has.root_of.is_some() || change.former != NO_PART);
            before.map_or(0, |before| places_bytes(&before.places).min(PAGED_BYTES))
        };
        let bytes: usize = places.iter().map(|(_, places)| places_bytes(places)).sum();
        let bytes = bytes + commit.changes.iter().map(of_former).sum::<usize>();
        if bytes + commit.changes.iter().map(of_change).sum::<usize>() > ADDED_BYTES_MAX {
            return Err(Refusal::new(Code::LimitReached, ADDED_BYTES_MAX as u64));
        }
        for change in commit.changes.iter() {
            let ranges = change.removed.len() + change.restored.len();
            let of = self.durable.names.get(&change.name).map_or(tenant, |has| &has.tenant);
            let recorded = self.tables.recorded_by.get(of).copied().unwrap_or(0);
            if ranges > FEW_RANGES && recorded + ranges > RECORDED_RANGES_MAX {
                return Err(Refusal::new(Code::LimitReached, RECORDED_RANGES_MAX as u64));
            }
        }
        self.check_places(commit.session, &places)?;
        let mut made = Vec::with_capacity(commit.changes.len());
        for (change, parts) in commit.changes.iter().zip(fresh) {
            made.push(self.change_table(wall_ms, tenant, commit, change, parts, records));
        }
        let mut left = DROPPED_WITH_COMMIT;
        for change in commit.changes.iter() {
            self.end_snapshots(now, wall_ms, change.table, &mut left, records);
        }
        self.drop_garbage(&mut left, records);
        // There are as many as changes.
        Ok(TablesCommitted { made: List::new(made).unwrap_or_default() })
    }

    /// Returns the answer to a commit that was made before. `None` if it was not, or if it is that of another tenant,
    /// which has drawn its id from the same text.
    fn made_before(&self, tenant: &Name, commit: &CommitTables) -> Option<Result<TablesCommitted, Refusal>> {
        let is_seen = |change: &TableChange| {
            self.tables.names.get(&change.table).is_none_or(|name| self.seen(tenant, name).is_ok())
        };
        if !commit.changes.iter().all(is_seen) {
            return None;
        }
        let made = |change: &TableChange| self.tables.made.get(&(change.table, commit.commit)).copied();
        let first = commit.changes.first().and_then(made)?;
        // Whoever repeats it would take it for done, but a table of this name has other rows by now, or there is none.
        if commit.changes.iter().any(|change| !self.tables.names.contains_key(&change.table)) {
            return Some(Err(Refusal::new(Code::CommitEnded, 0)));
        }
        let answer = |(index, change): (usize, &TableChange)| {
            // A commit is in all of its tables, or in none.
            let snapshot = if index == 0 { first } else { made(change)? };
            let at = SnapshotAt { table: change.table, snapshot };
            let root = self.root_of(at).map_or(FileId(0), |(_, file)| file.file);
            Some(SnapshotMade { snapshot, root })
        };
        let made: Option<Vec<SnapshotMade>> = commit.changes.iter().enumerate().map(answer).collect();
        let made = made.and_then(|made| List::new(made).ok());
        Some(made.map(|made| TablesCommitted { made }).ok_or(malformed(Opcode::CommitTables)))
    }

    /// Returns the root of a snapshot and its name. `None` if it has ended.
    fn root_of(&self, at: SnapshotAt) -> Option<(Name, &NamedFile)> {
        let of_table = self.tables.names.get(&at.table).cloned();
        of_table.into_iter().chain([snapshot_name(at)]).find_map(|name| {
            let file = self.durable.names.get(&name).filter(|file| file.root_of == Some(at))?;
            Some((name, file))
        })
    }

    /// Checks that a commit may change a table, but for the places of its parts.
    fn check_change(
        &self,
        tenant: &Name,
        commit: &CommitTables,
        change: &TableChange,
    ) -> Result<(), Refusal> {
        let has = self.durable.names.get(&change.name);
        let latest = |file: &NamedFile| file.root_of.map_or(0, |at| at.snapshot);
        match (has, change.replaces) {
            (Some(has), _) if !may_use(tenant, has) => return Err(taken(tenant, has)),
            (Some(has), Replaces::Nothing) => return Err(taken(tenant, has)),
            // No broker has published it, or one that leads since.
            (Some(_), Replaces::Only(file)) if file >= self.durable.next_file => {
                return Err(malformed(Opcode::CommitTables));
            }
            (Some(has), replaces) if !replaces.permits(has.file) && !mutant!(RootNotCompared) => {
                return Err(Refusal::new(Code::Conflict, latest(has)));
            }
            (None, Replaces::Only(file)) => return Err(Refusal::new(Code::NoSuchName, file.0)),
            _ => {}
        }
        let opened = self.durable.open_commits.get(&(change.table, commit.commit));
        if change.parts_ahead > 0 && opened != Some(&commit.session) {
            return Err(Refusal::new(Code::CommitEnded, 0));
        }
        let of = has.and_then(|has| has.root_of).map(|at| at.table);
        let latest = self.latest(change.table);
        // A range without a part would cost its session nothing, and the broker has to keep it.
        let is_sound = |range: &PartRange| {
            let name = |index| part_name(change.table, PartAt { commit: range.commit, index });
            range.commit != CommitId(0)
                && range.first <= range.last
                && self.durable.names.range(name(range.first)..=name(range.last)).next().is_some()
        };
        // Parts that the table never had are of this commit, which has published them ahead.
        let is_own = |range: &PartRange| range.commit == commit.commit;
        let may_remove = |range: &PartRange| match range.added.checked_sub(1) {
            Some(before) if before == latest => is_own(range),
            Some(before) => before < latest && !is_own(range),
            None => false,
        };
        // The table that a name has keeps its id. Any other table is new: it has an id that no table has had, as far as
        // is known, and takes the place of the one before, which is dropped.
        let is_named_well = match of {
            Some(table) => change.former == NO_PART && (table == change.table || latest == 0),
            None => latest == 0,
        };
        // A part of this commit would have the name of the table of one file.
        let is_former = |part: &NewPart| part.index == change.former;
        let former = part_name(change.table, PartAt { commit: commit.commit, index: change.former });
        let has_former = self.durable.names.contains_key(&former) || change.parts.iter().any(is_former);
        if !change.name.starts_with(TABLES)
            || change.table == TableId(0)
            || change.replaces == Replaces::Anything
            || !is_named_well
            || change.former != NO_PART && (has.is_none() || has_former)
            || !change.removed.iter().chain(change.restored.iter()).all(is_sound)
            || !change.removed.iter().all(may_remove)
            || change.restores == 0 && !change.restored.is_empty()
            || !are_apart(&change.removed)
            || !are_apart(&change.restored)
        {
            return Err(malformed(Opcode::CommitTables));
        }
        let restores = SnapshotAt { table: change.table, snapshot: change.restores };
        if change.restores > 0 && !self.tables.kept.contains(&restores) {
            return Err(Refusal::new(Code::SnapshotEnded, change.restores));
        }
        Ok(())
    }

    /// Gives a table another root and further parts.
    fn change_table(
        &mut self,
        wall_ms: u64,
        tenant: &Name,
        commit: &CommitTables,
        change: &TableChange,
        parts: Vec<&NewPart>,
        records: &mut Vec<StateChange>,
    ) -> SnapshotMade {
        let before = self.durable.names.get(&change.name).cloned();
        let of = before.as_ref().map_or(tenant, |before| &before.tenant).clone();
        let at = SnapshotAt { table: change.table, snapshot: self.latest(change.table) + 1 };
        for part in parts {
            self.add_part(&of, change.table, commit.commit, part, records);
        }
        let root = NamedFile {
            file: self.next_file(records),
            class: FileClass::Pinned,
            tenant: of,
            copies_wanted: change.copies_wanted,
            recipe: change.recipe.clone(),
            places: change.root.clone(),
            root_of: Some(at),
        };
        let made = SnapshotMade { snapshot: at.snapshot, root: root.file };
        let part = PartAt { commit: commit.commit, index: change.former };
        let kept_as = before.as_ref().and_then(|before| match before.root_of {
            Some(at) if at.table == change.table => Some(snapshot_name(at)),
            Some(_) => None,
            None if change.former == NO_PART => None,
            None => Some(part_name(change.table, part)),
        });
        match before.zip(kept_as) {
            // The root before stays, under another name, and so does a table of one file.
            Some((mut before, name)) => {
                self.own(&root);
                self.persist(StateChange::Name(change.name.clone(), root), records);
                before.places.bind(&change.name);
                before.places.bind(&name);
                before.recipe = Default::default();
                self.persist(StateChange::Name(name, before), records);
            }
            None => self.replace(&change.name, root, records),
        }
        let record = CommitRecord {
            id: commit.commit,
            session: commit.session,
            at_ms: wall_ms,
            summary: commit.summary.clone(),
            removed: change.removed.to_vec(),
            restored: change.restored.to_vec(),
        };
        self.persist(StateChange::Commit(at, record), records);
        // No snapshot has these.
        let left_over = change.removed.iter().filter(|range| range.added == at.snapshot);
        self.tables.garbage.extend(left_over.map(|range| (at, *range)));
        if self.durable.open_commits.contains_key(&(change.table, commit.commit)) && !mutant!(OpenCommitKept)
        {
            self.persist(StateChange::CloseCommit(change.table, commit.commit), records);
        }
        made
    }

    /// Returns the root of a snapshot of a table, which the session holds from then on.
    pub fn open_table(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        open: &OpenTable,
    ) -> Result<TableOpened, Refusal> {
        self.prove(now, tenant, open.session, open.secret)?;
        let named = self.seen(tenant, &open.name)?;
        let Some(latest) = named.root_of else {
            if open.snapshot > 0 {
                return Err(Refusal::new(Code::SnapshotEnded, open.snapshot));
            }
            let root = self.open_places(tenant, &open.name)?;
            let name = open.name.clone();
            return Ok(TableOpened { table: TableId(0), snapshot: 0, latest: 0, root, name });
        };
        let snapshot = if open.snapshot == 0 { latest.snapshot } else { open.snapshot };
        let at = SnapshotAt { snapshot, ..latest };
        let (name, _) = self.root_of(at).ok_or(Refusal::new(Code::SnapshotEnded, snapshot))?;
        let root = self.open_places(tenant, &name)?;
        let holds = self.tables.holds.entry(open.session).or_default();
        if holds.held.len() >= HELD_SNAPSHOTS_MAX && !holds.held.contains(&at) {
            return Err(Refusal::new(Code::LimitReached, HELD_SNAPSHOTS_MAX as u64));
        }
        // Nobody waits any more for the answer to a request that a later one has overtaken.
        if open.number >= holds.last {
            holds.last = open.number;
            holds.held.insert(at);
        }
        Ok(TableOpened { table: at.table, snapshot, latest: latest.snapshot, root, name })
    }

    /// Returns where the bytes of parts of a table are.
    pub fn open_parts(&self, tenant: &Name, open: &OpenParts) -> Result<PartsOpened, Refusal> {
        let mut parts = Vec::new();
        let mut nodes: BTreeMap<NodeId, NodeInfo> = BTreeMap::new();
        let mut bytes = 0;
        for at in open.parts.iter() {
            let opened = self.open_places(tenant, &part_name(open.table, *at))?;
            bytes += 64 * (opened.places.regions.len() + opened.places.runs.len()) + 512 * opened.nodes.len();
            if bytes > OPENED_BYTES_MAX && !parts.is_empty() {
                break;
            }
            nodes.extend(opened.nodes.iter().map(|node| (node.node, node.clone())));
            let PlacesOpened { file, copies_wanted, places, .. } = opened;
            parts.push(PartOpened { file, copies_wanted, places });
        }
        let limit = |_| Refusal::new(Code::LimitReached, NODES_MAX as u64);
        let nodes = List::new(nodes.into_values().collect()).map_err(limit)?;
        // There are no more than were asked for.
        Ok(PartsOpened { parts: List::new(parts).unwrap_or_default(), nodes })
    }

    /// Notes which snapshots a session holds, unless a later request of it came before. Returns those that it cannot
    /// hold.
    pub fn hold_snapshots(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        hold: &HoldSnapshots,
    ) -> Result<SnapshotsHeld, Refusal> {
        self.prove(now, tenant, hold.session, hold.secret)?;
        let can_hold = |at: &SnapshotAt| {
            self.tables.kept.contains(at)
                && self.tables.names.get(&at.table).is_some_and(|name| self.seen(tenant, name).is_ok())
        };
        let (held, ended): (BTreeSet<SnapshotAt>, BTreeSet<SnapshotAt>) =
            hold.held.iter().copied().partition(can_hold);
        // A renewal that was overtaken does not have what the session has opened since.
        let holds = self.tables.holds.entry(hold.session).or_default();
        if hold.number >= holds.last || mutant!(LateHoldsTaken) {
            *holds = Holds { last: hold.number, held };
        }
        // There are no more than the session named.
        Ok(SnapshotsHeld {
            hosts: self.hosts(now),
            ended: List::new(ended.into_iter().collect()).unwrap_or_default(),
        })
    }

    /// Returns the files that names have now. The broker delays the answer while they are those that the session knows.
    pub fn await_names(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        asked: &AwaitNames,
    ) -> Result<NamesAwaited, Refusal> {
        self.prove(now, tenant, asked.session, asked.secret)?;
        let names = asked.known.iter().map(|known| match self.seen(tenant, &known.name) {
            Ok(has) => NameNow { file: has.file, root_of: has.root_of.unwrap_or_default() },
            Err(_) => NameNow::default(),
        });
        // There are as many as were asked for.
        Ok(NamesAwaited { now: List::new(names.collect()).unwrap_or_default() })
    }

    /// Returns a page of the snapshots of a table, the latest first.
    pub fn list_snapshots(&self, tenant: &Name, list: &ListSnapshots) -> Result<SnapshotsListed, Refusal> {
        let Some(latest) = self.seen(tenant, &list.name)?.root_of else {
            return Ok(SnapshotsListed { table: TableId(0), snapshots: List::default(), more: false });
        };
        let table = latest.table;
        let to = if list.before == 0 { u64::MAX } else { list.before };
        let before = SnapshotAt { table, snapshot: 0 }..SnapshotAt { table, snapshot: to };
        let mut infos = self.durable.commits.range(before).rev().map(|(at, record)| SnapshotInfo {
            snapshot: at.snapshot,
            commit: record.id,
            session: record.session,
            at_ms: record.at_ms,
            is_kept: self.tables.kept.contains(at),
            summary: record.summary.clone(),
        });
        let snapshots: Vec<SnapshotInfo> = infos.by_ref().take(SNAPSHOTS_PAGE_MAX).collect();
        let more = infos.next().is_some();
        Ok(SnapshotsListed { table, snapshots: List::new(snapshots).unwrap_or_default(), more })
    }
}
