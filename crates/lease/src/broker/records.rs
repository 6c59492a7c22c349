//! What a broker keeps for its next life.

use farpool_wire::control::NamedExtent;
use farpool_wire::{FileClass, FileId, Incarnation, Name, NodeId, RegionIndex, Term};
use std::collections::{BTreeMap, BTreeSet};

/// The place of a region in one life of its node.
pub type Place = (NodeId, Incarnation, RegionIndex);

/// What must be durable before the answer it came with is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The broker's life: each start takes the next.
    Term(Term),
    /// The key from which session secrets are derived; made once.
    Key([u8; 32]),
    /// Ids below this one are taken.
    NextFile(FileId),
    /// The file that has this name from now on.
    Name(Name, NamedFile),
    /// Nobody has this name any more.
    DropName(Name),
}

/// A published file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Its id, whatever its name.
    pub file: FileId,
    /// Its class.
    pub class: FileClass,
    /// Whose it is.
    pub tenant: Name,
    /// Where its bytes are, in file order.
    pub extents: Vec<NamedExtent>,
    /// Of these places, those that the administrator leased to move the file there: their nodes count them as
    /// the administrator's, the broker as the owner's.
    pub leased_by_admin: BTreeSet<Place>,
}

impl NamedFile {
    pub(super) fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }

    /// Its regions; one with several extents comes several times.
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, &NamedExtent)> {
        self.extents.iter().map(|extent| (place_of(extent), extent))
    }
}

/// The region that a run of bytes is in.
pub fn place_of(extent: &NamedExtent) -> Place {
    (extent.node, extent.incarnation, extent.region)
}

/// What a store gives back at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// Term of the last life; 0 if there was none.
    pub term: Term,
    /// The key, if one was made.
    pub key: Option<[u8; 32]>,
    /// Ids below this one are taken.
    pub next_file: FileId,
    /// The catalog.
    pub names: BTreeMap<Name, NamedFile>,
}

impl Durable {
    /// Carries out a record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Term(term) => self.term = term,
            Record::Key(key) => self.key = Some(key),
            Record::NextFile(file) => self.next_file = file,
            Record::Name(name, file) => {
                self.names.insert(name, file);
            }
            Record::DropName(name) => {
                self.names.remove(&name);
            }
        }
    }
}
