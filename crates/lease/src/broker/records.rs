//! Durable state of a broker, with which a broker starts again after the process has ended.

use farpool_wire::control::{NamedRegion, PartRange, Places, SnapshotAt};
use farpool_wire::limits::{RECIPE_BYTES_MAX, SUMMARY_BYTES_MAX};
use farpool_wire::{
    Bytes, CommitId, FileClass, FileId, Incarnation, Name, NodeId, RegionIndex, SessionId, TableId, Term,
};
use std::collections::BTreeMap;

/// Region of a node in one life (run of the process) of the node.
pub type RegionKey = (NodeId, Incarnation, RegionIndex);

/// Change of the durable state. It must be in the store before the broker sends the answer that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// Term: number of the broker's life. Each start of a broker takes a higher one.
    Term(Term),
    /// Key from which session secrets are derived. It is made once.
    Key([u8; 32]),
    /// Lowest file id that is still free.
    NextFile(FileId),
    /// File that has this name from now on.
    Name(Name, NamedFile),
    /// Name that nobody has any more.
    DropName(Name),
    /// Commit that made a snapshot of a table.
    Commit(SnapshotAt, CommitRecord),
    /// Commit of which nobody needs to know any more.
    DropCommit(SnapshotAt),
    /// Commit with parts that were published ahead, and the session that may make it. Session 0: nobody may, and what
    /// is left of its parts is to be dropped.
    OpenCommit(TableId, CommitId, SessionId),
    /// Commit that is not open any more: it was made, or nothing is left of its parts.
    CloseCommit(TableId, CommitId),
}

/// Commit of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    /// Id of the commit.
    pub id: CommitId,
    /// Session that made it.
    pub session: SessionId,
    /// Time of the commit by the broker's clock, in ms since 1970.
    pub at_ms: u64,
    /// Text of it that clients show.
    pub summary: Bytes<SUMMARY_BYTES_MAX>,
    /// Parts that the snapshot before had, and this one has not.
    pub removed: Vec<PartRange>,
    /// Parts that an earlier snapshot had, the one before had not, and this one has again.
    pub restored: Vec<PartRange>,
}

/// Published file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Id of the file. It stays when the file is renamed.
    pub file: FileId,
    /// Class of the file, which says what a loss of its bytes means.
    pub class: FileClass,
    /// Tenant that owns the file.
    pub tenant: Name,
    /// Copies that each run should have.
    pub copies_wanted: u8,
    /// Recipe by which the file can be made again; empty if there is none. Only those who publish and rebuild files
    /// look into it.
    pub recipe: Bytes<RECIPE_BYTES_MAX>,
    /// Places of the bytes of the file.
    pub places: Places,
    /// Snapshot of a table of which the file is the root. `None` for any other file.
    pub root_of: Option<SnapshotAt>,
}

impl NamedFile {
    /// Returns how many hosts may have to be lost before bytes are. 1 if one suffices.
    pub(super) fn strength_wanted(&self) -> u8 {
        let parity = self.places.stripes.iter().map(|stripe| stripe.parity.len() as u8).min();
        parity.map_or(self.copies_wanted, |parity| parity + 1)
    }

    /// Returns the regions of the file.
    pub(super) fn regions(&self) -> impl Iterator<Item = (RegionKey, &NamedRegion)> {
        self.places.regions.iter().map(|region| (region_key(region), region))
    }
}

/// Returns the key of a region.
pub fn region_key(region: &NamedRegion) -> RegionKey {
    (region.node, region.incarnation, region.region)
}

/// Contents of a store at the start of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// Term (number of the life) of the last broker over this store; 0 if there was none.
    pub term: Term,
    /// Key for session secrets; `None` if none was made.
    pub key: Option<[u8; 32]>,
    /// Lowest file id that is still free.
    pub next_file: FileId,
    /// Published files by name.
    pub names: BTreeMap<Name, NamedFile>,
    /// Commits of tables, by the snapshots that they made. That of the latest snapshot is always there.
    pub commits: BTreeMap<SnapshotAt, CommitRecord>,
    /// Commits with parts that were published ahead, and the sessions that may make them. Session 0: nobody.
    pub open_commits: BTreeMap<(TableId, CommitId), SessionId>,
}

impl Durable {
    /// Applies a change.
    pub fn apply(&mut self, record: StateChange) {
        match record {
            StateChange::Term(term) => self.term = term,
            StateChange::Key(key) => self.key = Some(key),
            StateChange::NextFile(file) => self.next_file = file,
            StateChange::Name(name, file) => {
                self.names.insert(name, file);
            }
            StateChange::DropName(name) => {
                self.names.remove(&name);
            }
            StateChange::Commit(at, record) => {
                self.commits.insert(at, record);
            }
            StateChange::DropCommit(at) => {
                self.commits.remove(&at);
            }
            StateChange::OpenCommit(table, commit, session) => {
                self.open_commits.insert((table, commit), session);
            }
            StateChange::CloseCommit(table, commit) => {
                self.open_commits.remove(&(table, commit));
            }
        }
    }
}
