//! Tables with snapshots, as sessions see them: commits, which publish the files of a table together, and snapshots
//! that are opened and held.
//!
//! The idea: the files of a table are sealed first, like any file that is published. A commit gives all of them their
//! names in one request, if the tables still have the roots that it expects. What a root or a part contains is not
//! known here.

use crate::error::{Error, ErrorKind};
use crate::file::FarFile;
use crate::pool::Pool;
use crate::published::{RefusalWaits, without_lost};
use crate::sealed_map::{protection_of, sealed_map};
use crate::session::Session;
use crate::unlisted::Unlisted;
use farpool_wire::control::*;
use farpool_wire::limits::*;
use farpool_wire::{Bytes, CommitId, FileClass, FileId, List, Name, NodeId, Refusal, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of places that one request publishes, as the broker counts them.
const PLACES_BYTES_MAX: usize = 512 << 10;

/// Returns the bytes of places in a request, as the broker counts them.
fn bytes_of(places: &Places) -> usize {
    64 * (places.regions.len() + places.runs.len())
}

/// Part that a commit adds to a table.
pub struct UnlistedPart {
    /// Number of the part in the commit.
    pub index: u32,
    /// File of the part.
    pub file: Unlisted,
}

/// Change of a table in a commit.
pub struct ChangedTable<'a> {
    /// Name of the table's file.
    pub name: Name,
    /// Id of the table: [`TableCommit::new_table`] if the name is new, has a table of one file until now, or gets
    /// another table.
    pub table: TableId,
    /// Number of the snapshot that the change makes.
    pub snapshot: u64,
    /// Root that is replaced.
    pub replaces: Replaces,
    /// Number of the part that becomes of a table of one file; [`NO_PART`]: none.
    pub former: u32,
    /// Root of the new snapshot.
    pub root: &'a Unlisted,
    /// Parts that the commit adds.
    pub parts: &'a [UnlistedPart],
    /// Parts that the table does not have any more.
    pub removed: Vec<PartRange>,
    /// Snapshot whose parts it has again; 0: none.
    pub restores: u64,
    /// Parts of that snapshot which the one before did not have.
    pub restored: Vec<PartRange>,
}

/// Snapshots of a commit.
pub struct CommitMade {
    /// Snapshots, in the order of the changes.
    pub made: Vec<SnapshotMade>,
    /// True if an earlier run of the program has made them, so that the changes of this one were not made.
    pub was_made_before: bool,
}

/// Commit of tables that was not made yet. What was published ahead for it is dropped with it.
pub struct TableCommit {
    session: Arc<Session>,
    id: CommitId,
    /// True if the id is random, so that nobody else has it.
    is_random: bool,
    /// Id of the first table that the commit makes: random, as a program that is run again may make another table with
    /// the same commit.
    new_table: u64,
    /// Parts that were published ahead, by table.
    ahead: BTreeSet<(TableId, u32)>,
    /// Tables of which parts may have been published ahead: an answer may have been lost.
    opened: BTreeSet<TableId>,
}

impl TableCommit {
    /// Begins a commit. `id`: one that no other commit has, but for the same one when its program is run again; `None`:
    /// a random one.
    pub fn begin(pool: &Pool, id: Option<CommitId>) -> Result<TableCommit, Error> {
        let session = Arc::clone(pool.session());
        let random = || {
            let mut bytes = [0; 8];
            let drawn = session.host().random(&mut bytes);
            drawn.map_err(|error| Error::new(ErrorKind::Refused, error.to_string()))?;
            Ok::<_, Error>(u64::from_le_bytes(bytes).max(1))
        };
        let (is_random, new_table) = (id.is_none(), random()?);
        let id = id.map_or_else(|| random().map(CommitId), Ok)?;
        Ok(TableCommit { session, id, is_random, new_table, ahead: BTreeSet::new(), opened: BTreeSet::new() })
    }

    /// Returns the id of the commit.
    pub fn id(&self) -> CommitId {
        self.id
    }

    /// Returns the id of a table that the commit makes: by the number of its change in the commit, from 0 on.
    pub fn new_table(&self, number: u64) -> TableId {
        TableId(self.new_table.wrapping_add(number).max(1))
    }

    /// Publishes parts of a table ahead of the commit: those of a large commit, which one request cannot hold.
    pub fn publish_ahead(&mut self, table: TableId, parts: &[UnlistedPart]) -> Result<(), Error> {
        let mut left: Vec<&UnlistedPart> = parts.iter().filter(|part| !self.is_ahead(table, part)).collect();
        while !left.is_empty() {
            let mut files = Vec::new();
            let mut bytes = 0;
            for part in left.iter().take(COMMIT_PARTS_MAX) {
                let places = part.file.sealed_places()?;
                bytes += bytes_of(&places);
                if bytes > PLACES_BYTES_MAX && !files.is_empty() {
                    break;
                }
                let name = part_name(table, PartAt { commit: self.id, index: part.index });
                files.push(Publishing { name, file: &part.file, places });
            }
            let of_request: Vec<&UnlistedPart> = left.drain(..files.len()).collect();
            self.opened.insert(table);
            publish(&self.session, &mut files, |files, may_wait| {
                let parts = of_request.iter().zip(files).map(|(part, file)| file.as_part(part.index));
                let proof = self.session.leases.proof();
                let add = AddParts {
                    session: proof.session,
                    secret: proof.secret,
                    table,
                    commit: self.id,
                    // There are no more than one request may have.
                    parts: List::new(parts.collect()).unwrap_or_default(),
                    is_over: false,
                };
                self.session.broker.add_parts(add, may_wait)?;
                Ok(((), Named::These))
            })?;
            self.ahead.extend(of_request.iter().map(|part| (table, part.index)));
        }
        Ok(())
    }

    fn is_ahead(&self, table: TableId, part: &UnlistedPart) -> bool {
        self.ahead.contains(&(table, part.index))
    }

    /// Returns the numbers of the parts of a table that were published ahead.
    fn parts_ahead(&self, table: TableId) -> impl Iterator<Item = u32> {
        self.ahead.range((table, 0)..=(table, u32::MAX)).map(|(_, index)| *index)
    }

    /// Returns the parts that a table does not have after a change, with those that were published ahead for an earlier
    /// try.
    fn removed(&self, change: &ChangedTable<'_>) -> Vec<PartRange> {
        let has: BTreeSet<u32> = change.parts.iter().map(|part| part.index).collect();
        let mut removed = change.removed.clone();
        let own = removed.len();
        for index in self.parts_ahead(change.table).filter(|index| !has.contains(index)) {
            match removed.get_mut(own..).and_then(|ranges| ranges.last_mut()) {
                Some(range) if range.last + 1 == index => range.last = index,
                _ => {
                    let (added, commit) = (change.snapshot, self.id);
                    removed.push(PartRange { added, commit, first: index, last: index });
                }
            }
        }
        removed
    }

    /// Makes the commit: gives all tables their new roots, and publishes the parts that were not published ahead. After
    /// an error it may be tried again, with other roots.
    ///
    /// Errors: [`ErrorKind::Conflict`] if the root of a table is not the one that is to be replaced.
    pub fn send(&mut self, summary: &[u8], changes: &[ChangedTable<'_>]) -> Result<CommitMade, Error> {
        let (mut count, mut bytes) = (0, 0);
        for change in changes {
            count += change.parts.len();
            for part in change.parts.iter().filter(|part| !self.is_ahead(change.table, part)) {
                bytes += bytes_of(&part.file.sealed_places()?);
            }
        }
        if count > COMMIT_PARTS_MAX || bytes > PLACES_BYTES_MAX {
            for change in changes {
                self.publish_ahead(change.table, change.parts)?;
            }
        }
        let mut files = Vec::new();
        for change in changes {
            let (name, file) = (change.name.clone(), change.root);
            files.push(Publishing { name, file, places: file.sealed_places()? });
            for part in change.parts.iter().filter(|part| !self.is_ahead(change.table, part)) {
                let name = part_name(change.table, PartAt { commit: self.id, index: part.index });
                files.push(Publishing { name, file: &part.file, places: part.file.sealed_places()? });
            }
        }
        let made = publish(&self.session, &mut files, |files, may_wait| {
            let commit = self.request(summary, changes, files)?;
            let made = self.session.broker.commit_tables(commit, may_wait)?.made.into_vec();
            let was_made_before = !self.is_random && self.was_made_before(changes, &made);
            let named = if was_made_before { Named::Others } else { Named::These };
            Ok((CommitMade { made, was_made_before }, named))
        })?;
        self.ahead.clear();
        self.opened.clear();
        Ok(made)
    }

    /// Reports whether another commit of this id has made these snapshots.
    fn was_made_before(&self, changes: &[ChangedTable<'_>], made: &[SnapshotMade]) -> bool {
        let is_other = |(made, change): (&SnapshotMade, &ChangedTable<'_>)| made.snapshot != change.snapshot;
        if made.iter().zip(changes).any(is_other) {
            return true;
        }
        // It may have been based on the same snapshots, but then another session has made it.
        let Some((made, change)) = made.first().zip(changes.first()) else { return false };
        let list = ListSnapshots { name: change.name.clone(), before: made.snapshot.saturating_add(1) };
        let ours = self.session.leases.proof().session;
        // No answer means that the files are taken for published: at worst they stay until the session ends.
        self.session.broker.list_snapshots(list).is_ok_and(|listed| {
            let entry = listed.snapshots.first().filter(|info| info.snapshot == made.snapshot);
            entry.is_some_and(|info| info.session != ours)
        })
    }

    fn request(
        &self,
        summary: &[u8],
        changes: &[ChangedTable<'_>],
        files: &[Publishing<'_>],
    ) -> Result<CommitTables, Error> {
        let too_many = |error: farpool_wire::WireError| {
            Error::new(ErrorKind::Invalid, format!("the commit is too large: {error}"))
        };
        let mut files = files.iter();
        let mut asked = Vec::with_capacity(changes.len());
        for change in changes {
            let Some(root) = files.next() else { break };
            let fresh = change.parts.iter().filter(|part| !self.is_ahead(change.table, part));
            let parts = fresh.zip(files.by_ref()).map(|(part, file)| file.as_part(part.index)).collect();
            asked.push(TableChange {
                name: change.name.clone(),
                table: change.table,
                replaces: change.replaces,
                former: change.former,
                parts_ahead: self.parts_ahead(change.table).count() as u32,
                parts: List::new(parts).map_err(too_many)?,
                copies_wanted: root.file.copies_wanted(),
                recipe: root.file.recipe(),
                root: root.bound(),
                removed: part_ranges(self.removed(change))?,
                restores: change.restores,
                restored: part_ranges(change.restored.clone())?,
            });
        }
        let proof = self.session.leases.proof();
        Ok(CommitTables {
            session: proof.session,
            secret: proof.secret,
            commit: self.id,
            summary: Bytes::new(summary.to_vec()).map_err(too_many)?,
            changes: List::new(asked).map_err(too_many)?,
        })
    }
}

/// Returns the ranges of parts that a change removes or restores, for a request.
fn part_ranges(ranges: Vec<PartRange>) -> Result<List<PartRange, PARTS_REMOVED_MAX>, Error> {
    let count = ranges.len();
    List::new(ranges).map_err(|_| {
        let message = format!(
            "the change would remove or restore {count} ranges of files, where those of one commit are a range; at \
             most {PARTS_REMOVED_MAX} are permitted"
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

impl Drop for TableCommit {
    fn drop(&mut self) {
        for table in std::mem::take(&mut self.opened) {
            let proof = self.session.leases.proof();
            let give_up = AddParts {
                session: proof.session,
                secret: proof.secret,
                table,
                commit: self.id,
                parts: List::default(),
                is_over: true,
            };
            self.session.broker.give_up_parts(give_up);
        }
    }
}

/// Sealed file that gets a name.
struct Publishing<'a> {
    name: Name,
    file: &'a Unlisted,
    /// Places of the file, with handles that are not bound to a name.
    places: Places,
}

impl Publishing<'_> {
    fn bound(&self) -> Places {
        let mut places = self.places.clone();
        places.bind(&self.name);
        places
    }

    fn as_part(&self, index: u32) -> NewPart {
        NewPart { index, copies_wanted: self.file.copies_wanted(), places: self.bound() }
    }
}

/// Files that have got names.
enum Named {
    /// Those of the request.
    These,
    /// Those of an earlier run of the program, which has made the same commit.
    Others,
}

/// Publishes files together. Leaves out copies at a node that a refusal names, if all bytes have others.
fn publish<T>(
    session: &Session,
    files: &mut [Publishing<'_>],
    mut ask: impl FnMut(&[Publishing<'_>], &dyn Fn(Refusal) -> bool) -> Result<(T, Named), Error>,
) -> Result<T, Error> {
    let (answer, named) = loop {
        let waits = RefusalWaits::new(session);
        let may_wait = |refusal: Refusal| {
            let at = NodeId(refusal.detail);
            let node = files.iter().find_map(|file| file.file.node_of_copies(at));
            let suffices = |file: &Publishing<'_>| {
                file.places.regions.iter().all(|region| region.node != at)
                    || without_lost(&file.places, refusal).is_some()
            };
            waits.may_wait(refusal, node, || files.iter().all(suffices))
        };
        let error = match ask(files, &may_wait) {
            Ok(answer) => break answer,
            Err(error) => error,
        };
        let Some(refusal) = error.refusal() else { return Err(error) };
        let mut is_less = false;
        for file in files.iter_mut() {
            if let Some(places) = without_lost(&file.places, refusal) {
                file.places = file.file.keep_places(places);
                is_less = true;
            }
        }
        if !is_less {
            return Err(error);
        }
    };
    if matches!(named, Named::These) {
        files.iter().for_each(|file| file.file.note_published(&file.places));
    }
    Ok(answer)
}

/// Snapshot of a table that a session has opened. It is held, so that it does not end, until this is dropped.
pub struct OpenedSnapshot {
    /// Table and snapshot. Table 0: the table is one file, without snapshots.
    pub at: SnapshotAt,
    /// Number of the latest snapshot.
    pub latest: u64,
    /// Root of the snapshot, or the one file of the table.
    pub root: FarFile,
    /// Id of the root.
    pub root_id: FileId,
    /// Name by which it was opened.
    name: Name,
    session: Arc<Session>,
}

impl OpenedSnapshot {
    /// Fails if the snapshot has ended, as far as the session was told. Sends no request.
    ///
    /// Errors: [`ErrorKind::Closed`] if it was held for too long, if the session could not say for too long that it
    /// holds it, or if the table was dropped.
    pub fn check(&self) -> Result<(), Error> {
        match self.session.broker.has_ended(self.at) {
            true => Err(self.ended()),
            false => Ok(()),
        }
    }

    /// Returns the cause of an error of somebody who reads the snapshot: that of [`Self::check`] if bytes are not there
    /// any more because the snapshot has ended. Asks the broker if bytes are not there.
    pub fn cause_of(&self, error: Error) -> Error {
        let is_gone = matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotFound);
        let proof = self.session.leases.proof();
        match is_gone && self.at.table != TableId(0) && self.session.broker.ask_if_ended(proof, self.at) {
            true => self.ended(),
            false => error,
        }
    }

    fn ended(&self) -> Error {
        let table = self.name.strip_prefix(TABLES).unwrap_or(&self.name);
        let message = format!(
            "snapshot {} of table {table:?} has ended: it was held for too long (farpool broker --snapshot-hold), or \
             the table was dropped; open the table again",
            self.at.snapshot
        );
        Error::new(ErrorKind::Closed, message)
    }
}

impl Drop for OpenedSnapshot {
    fn drop(&mut self) {
        if self.at.table != TableId(0) {
            self.session.broker.let_snapshot_go(self.at);
        }
    }
}

/// Opens a snapshot of a table, by the name of its file; 0: the latest.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table, or the snapshot has ended; [`ErrorKind::Lost`] if the
/// bytes of the root are lost.
pub fn open_snapshot(session: &Arc<Session>, name: &str, snapshot: u64) -> Result<OpenedSnapshot, Error> {
    let named = Name::new(name).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    let opened = session.broker.open_table(session.leases.proof(), named.clone(), snapshot)?;
    let at = SnapshotAt { table: opened.table, snapshot: opened.snapshot };
    let (latest, root_id) = (opened.latest, opened.root.file);
    let root = opened_file(session, &opened.name, &opened.root).inspect_err(|_| {
        // The snapshot is not held by what would be returned.
        if at.table != TableId(0) {
            session.broker.let_snapshot_go(at);
        }
    })?;
    Ok(OpenedSnapshot { at, latest, root, root_id, name: named, session: Arc::clone(session) })
}

/// Opens parts of a table. The caller holds a snapshot that has them, and looks for the cause of an error there
/// ([`OpenedSnapshot::cause_of`]).
///
/// Errors: [`ErrorKind::NotFound`] if the snapshot has ended; [`ErrorKind::Lost`] if bytes of a part are lost.
pub fn open_parts(session: &Arc<Session>, table: TableId, parts: &[PartAt]) -> Result<Vec<FarFile>, Error> {
    let mut files = Vec::with_capacity(parts.len());
    while files.len() < parts.len() {
        let asked = &parts[files.len()..];
        let asked = &asked[..asked.len().min(OPENED_PARTS_MAX)];
        let opened = session.broker.open_parts(table, asked.to_vec())?;
        if opened.parts.is_empty() || opened.parts.len() > asked.len() {
            let message = "the broker's answer has another number of parts than it was asked for";
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let nodes = opened.nodes;
        for (at, part) in asked.iter().zip(opened.parts.into_vec()) {
            let PartOpened { file, copies_wanted, places } = part;
            let nodes = nodes.clone();
            let part = PlacesOpened { file, class: FileClass::Pinned, copies_wanted, places, nodes };
            files.push(opened_file(session, &part_name(table, *at), &part)?);
        }
    }
    Ok(files)
}

fn opened_file(session: &Arc<Session>, name: &Name, opened: &PlacesOpened) -> Result<FarFile, Error> {
    let (map, stripes) = sealed_map(session, name, opened)?;
    let (protection, session) = (protection_of(opened), Arc::clone(session));
    Ok(FarFile::published(session, name.to_string(), opened.class, opened.file, protection, map, stripes))
}

/// Returns a page of the snapshots of a table, by the name of its file, the latest first: those before a number, or all
/// if it is 0.
pub fn list_snapshots(pool: &Pool, name: &str, before: u64) -> Result<SnapshotsListed, Error> {
    let name = Name::new(name).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    pool.session().broker.list_snapshots(ListSnapshots { name, before })
}
