//! Names, folders and attributes of a file system whose file contents are kept elsewhere.
//!
//! The idea: the kernel checks permissions (`default_permissions`) and locks folders. A map from inode numbers to nodes
//! remains, with rules for reference counts. A node is a file, a folder, a symbolic link or a special file. It lives
//! while it has a name, an open handle, or a reference held by the kernel. Its contents live while it has a name or an
//! open handle. The module has no clock and no contents: callers pass the time, and methods return the node whose
//! contents must be deleted.

use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

/// Inode number.
pub(crate) type Ino = u64;

/// Inode number of the mounted folder.
pub(crate) const ROOT: Ino = 1;
/// Longest name in bytes (`NAME_MAX`).
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Limit for the number of links of a node (`st_nlink`).
const LINKS_MAX: u32 = 65_000;

const SET_GROUP_ID: u16 = 0o2000;
/// Bits of `st_mode` with the type: file, folder, pipe and so on (`S_IFMT`).
pub(crate) const TYPE_BITS: u32 = 0o170_000;

/// Name within a folder, whose inode number is `parent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) parent: Ino,
    pub(crate) name: &'a OsStr,
}

/// Type of an entry of a folder. A symbolic link has its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Link(OsString),
    /// Pipe, socket or device, with its type as in `st_mode` and its device number. The kernel carries out all accesses
    /// to it.
    Special(u32, u32),
}

/// Attributes that `stat` returns, except the length of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: Kind,
    /// Permission bits: the twelve bits that `chmod` sets.
    pub(crate) permissions: u16,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) links: u32,
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
    pub(crate) changed: SystemTime,
}

impl Attributes {
    /// Returns placeholder attributes, for a name that does not exist.
    pub(crate) fn of_nothing() -> Attributes {
        let then = SystemTime::UNIX_EPOCH;
        node(Kind::File, NewOwner { user: 0, group: 0, permissions: 0, now: then }, ROOT).attributes
    }
}

/// Attributes to change. `None` leaves an attribute as it is, except that `changed` becomes the current time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttributeChange {
    pub(crate) permissions: Option<u16>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) accessed: Option<SystemTime>,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) changed: Option<SystemTime>,
}

/// Owner and permissions of a new file or folder, and the time at which it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewOwner {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) permissions: u16,
    pub(crate) now: SystemTime,
}

/// Treatment of a file or folder that already has the new name when another one is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rename {
    Replaces,
    Refuses,
    Exchanges,
}

#[derive(Debug)]
struct Node {
    attributes: Attributes,
    /// Names in this folder, with their inode numbers. Empty if this is no folder.
    entries: BTreeMap<OsString, Ino>,
    /// Folder that contains this folder. If this is no folder, the number may be wrong after a rename.
    parent: Ino,
    open: u64,
    /// Number of references held by the kernel. Each lookup adds one, and `forget` subtracts them.
    known: u64,
}

/// All files, folders and other nodes, by inode number.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Ino, Node>,
    next: Ino,
    /// Number of names of nodes beyond the first one of each, and of KiB of the targets of symbolic links.
    more: u64,
    /// Limit for [`Tree::count`]. All of it is in the memory of this process, which others may share.
    count_max: u64,
}

impl Tree {
    /// Makes a tree with an empty root folder. `count_max` is the limit for [`Tree::count`].
    pub(crate) fn new(maker: NewOwner, count_max: u64) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: ROOT + 1, more: 0, count_max };
        tree.nodes.insert(ROOT, node(Kind::Folder, maker, ROOT));
        tree
    }

    fn node(&self, ino: Ino) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    fn folder(&self, ino: Ino) -> Result<&Node, Errno> {
        let node = self.node(ino)?;
        if node.attributes.kind == Kind::Folder { Ok(node) } else { Err(Errno::NOTDIR) }
    }

    fn entry(&self, at: Name<'_>) -> Result<Ino, Errno> {
        check_name(at.name)?;
        self.folder(at.parent)?.entries.get(at.name).copied().ok_or(Errno::NOENT)
    }

    /// Returns the number of nodes, of further names of them, and of whole KiB of the targets of symbolic links.
    pub(crate) fn count(&self) -> u64 {
        self.nodes.len() as u64 + self.more
    }

    fn check_count(&self, more: u64) -> Result<(), Errno> {
        if self.count() + more <= self.count_max { Ok(()) } else { Err(Errno::NOSPC) }
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<&Attributes, Errno> {
        Ok(&self.node(ino)?.attributes)
    }

    /// Returns the node of a name. The kernel gets a reference to it.
    pub(crate) fn look_up(&mut self, at: Name<'_>) -> Result<Ino, Errno> {
        let ino = self.entry(at)?;
        self.node_mut(ino)?.known += 1;
        Ok(ino)
    }

    /// Drops `times` of the kernel's references to a node.
    pub(crate) fn forget(&mut self, ino: Ino, times: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.known = node.known.saturating_sub(times);
            self.tidy(ino);
        }
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        // The contents of a node without name and handle are deleted already. `STALE` makes the kernel look the name
        // up again.
        if node.attributes.links == 0 && node.open == 0 {
            return Err(Errno::STALE);
        }
        node.open += 1;
        Ok(())
    }

    /// Closes a handle. Returns true if the contents must be deleted.
    pub(crate) fn close(&mut self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        node.open = node.open.saturating_sub(1);
        let is_over = node.open == 0 && node.attributes.links == 0;
        self.tidy(ino);
        is_over
    }

    /// Removes a node that has no name, handle or reference left.
    fn tidy(&mut self, ino: Ino) {
        let is_over = |node: &Node| node.attributes.links == 0 && node.open == 0 && node.known == 0;
        if ino != ROOT
            && self.nodes.get(&ino).is_some_and(is_over)
            && let Some(gone) = self.nodes.remove(&ino)
        {
            self.more = self.more.saturating_sub(more_of(&gone.attributes.kind));
        }
    }

    /// Makes a node with a name. The kernel gets a reference to it.
    pub(crate) fn make(&mut self, at: Name<'_>, kind: Kind, maker: NewOwner) -> Result<Ino, Errno> {
        match self.entry(at) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let more = more_of(&kind);
        self.check_count(1 + more)?;
        let is_folder = kind == Kind::Folder;
        let ino = self.next;
        let folder = self.node_mut(at.parent)?;
        // The folder has been removed, but a process may still have it as its working directory.
        if folder.attributes.links == 0 {
            return Err(Errno::NOENT);
        }
        if is_folder && folder.attributes.links >= LINKS_MAX {
            return Err(Errno::MLINK);
        }
        let mut made = node(kind, maker, at.parent);
        if folder.attributes.permissions & SET_GROUP_ID != 0 {
            made.attributes.group = folder.attributes.group;
            if is_folder {
                made.attributes.permissions |= SET_GROUP_ID;
            }
        }
        made.known = 1;
        folder.entries.insert(at.name.to_owned(), ino);
        folder.attributes.links += u32::from(is_folder);
        touch(&mut folder.attributes, maker.now);
        self.nodes.insert(ino, made);
        self.more += more;
        self.next += 1;
        Ok(ino)
    }

    /// Removes a name of a node that is no folder. Returns the node if its contents must be deleted.
    pub(crate) fn unlink(&mut self, at: Name<'_>, now: SystemTime) -> Result<Option<Ino>, Errno> {
        let ino = self.entry(at)?;
        if self.node(ino)?.attributes.kind == Kind::Folder {
            return Err(Errno::ISDIR);
        }
        let folder = self.node_mut(at.parent)?;
        folder.entries.remove(at.name);
        touch(&mut folder.attributes, now);
        Ok(self.lose_name(ino, now))
    }

    /// Counts one name less. Returns the node if its contents must be deleted.
    fn lose_name(&mut self, ino: Ino, now: SystemTime) -> Option<Ino> {
        let node = self.nodes.get_mut(&ino)?;
        node.attributes.links = node.attributes.links.saturating_sub(1);
        node.attributes.changed = now;
        if node.attributes.links > 0 {
            self.more = self.more.saturating_sub(1);
        }
        let is_over = node.attributes.links == 0 && node.open == 0;
        self.tidy(ino);
        is_over.then_some(ino)
    }

    pub(crate) fn remove_folder(&mut self, at: Name<'_>, now: SystemTime) -> Result<(), Errno> {
        let ino = self.entry(at)?;
        if !self.folder(ino)?.entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        let folder = self.node_mut(at.parent)?;
        folder.entries.remove(at.name);
        folder.attributes.links = folder.attributes.links.saturating_sub(1);
        touch(&mut folder.attributes, now);
        self.lose_folder(ino, now);
        Ok(())
    }

    fn lose_folder(&mut self, ino: Ino, now: SystemTime) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attributes.links = 0;
            node.attributes.changed = now;
            self.tidy(ino);
        }
    }

    /// Adds a name for a node that is no folder. The kernel gets a reference to it.
    pub(crate) fn link(&mut self, ino: Ino, at: Name<'_>, now: SystemTime) -> Result<(), Errno> {
        match self.entry(at) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let attributes = &self.node(ino)?.attributes;
        match attributes.kind {
            Kind::Folder => return Err(Errno::PERM),
            _ if attributes.links >= LINKS_MAX => return Err(Errno::MLINK),
            // A node without a name stays only until its last handle is closed. It must not get a name again.
            _ if attributes.links == 0 => return Err(Errno::NOENT),
            _ => {}
        }
        if self.node(at.parent)?.attributes.links == 0 {
            return Err(Errno::NOENT);
        }
        self.check_count(1)?;
        self.more += 1;
        let node = self.node_mut(ino)?;
        node.attributes.links += 1;
        node.attributes.changed = now;
        node.known += 1;
        let folder = self.node_mut(at.parent)?;
        folder.entries.insert(at.name.to_owned(), ino);
        touch(&mut folder.attributes, now);
        Ok(())
    }

    /// Reports whether `folder` is `other` or one of the folders above it.
    fn is_above(&self, folder: Ino, mut other: Ino) -> bool {
        while other != folder && other != ROOT {
            let Some(node) = self.nodes.get(&other) else { return false };
            other = node.parent;
        }
        other == folder
    }

    /// Renames a node. Returns the node that had the new name before, if its contents must be deleted.
    pub(crate) fn rename(
        &mut self,
        from: Name<'_>,
        to: Name<'_>,
        how: Rename,
        now: SystemTime,
    ) -> Result<Option<Ino>, Errno> {
        let ino = self.entry(from)?;
        let there = match self.entry(to) {
            Ok(there) => Some(there),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let is_folder = self.node(ino)?.attributes.kind == Kind::Folder;
        if self.node(to.parent)?.attributes.links == 0 {
            return Err(Errno::NOENT);
        }
        if is_folder && self.is_above(ino, to.parent) {
            return Err(Errno::INVAL);
        }
        match (how, there) {
            (Rename::Exchanges, None) => return Err(Errno::NOENT),
            (Rename::Exchanges, Some(there)) => {
                let other_is_folder = self.node(there)?.attributes.kind == Kind::Folder;
                if other_is_folder && self.is_above(there, from.parent) {
                    return Err(Errno::INVAL);
                }
                self.put(from, there, other_is_folder, now)?;
                self.put(to, ino, is_folder, now)?;
                // Each folder lost one entry and got the other.
                self.count_folder(from.parent, is_folder, other_is_folder);
                self.count_folder(to.parent, other_is_folder, is_folder);
                return Ok(None);
            }
            (Rename::Refuses, Some(_)) => return Err(Errno::EXIST),
            // POSIX: renaming to another name of the same node does nothing.
            (Rename::Replaces, Some(there)) if there == ino => return Ok(None),
            (Rename::Replaces, Some(there)) => {
                let other = self.node(there)?;
                match (is_folder, other.attributes.kind == Kind::Folder) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    (true, true) if !other.entries.is_empty() => return Err(Errno::NOTEMPTY),
                    _ => {}
                }
            }
            (_, None) => {}
        }
        let folder = self.node_mut(from.parent)?;
        folder.entries.remove(from.name);
        touch(&mut folder.attributes, now);
        self.put(to, ino, is_folder, now)?;
        self.count_folder(from.parent, is_folder, false);
        self.count_folder(to.parent, is_folder && there.is_some(), is_folder);
        Ok(match there {
            Some(there) if is_folder => {
                self.lose_folder(there, now);
                None
            }
            Some(there) => self.lose_name(there, now),
            None => None,
        })
    }

    /// Gives a name to a node. If another node had the name, it loses it, but its link count does not change.
    fn put(&mut self, at: Name<'_>, ino: Ino, is_folder: bool, now: SystemTime) -> Result<(), Errno> {
        let folder = self.node_mut(at.parent)?;
        folder.entries.insert(at.name.to_owned(), ino);
        touch(&mut folder.attributes, now);
        let node = self.node_mut(ino)?;
        node.attributes.changed = now;
        if is_folder {
            node.parent = at.parent;
        }
        Ok(())
    }

    /// Adjusts the link count of a folder that lost or got an entry. The count includes one for each folder in it.
    /// `lost` and `got` tell whether the entry was a folder.
    fn count_folder(&mut self, ino: Ino, lost: bool, got: bool) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attributes.links = node.attributes.links + u32::from(got) - u32::from(lost);
        }
    }

    pub(crate) fn set(&mut self, ino: Ino, wish: AttributeChange, now: SystemTime) -> Result<(), Errno> {
        let attributes = &mut self.node_mut(ino)?.attributes;
        let set = |to: &mut u32, wished: Option<u32>| *to = wished.unwrap_or(*to);
        set(&mut attributes.user, wish.user);
        set(&mut attributes.group, wish.group);
        attributes.permissions = wish.permissions.unwrap_or(attributes.permissions);
        attributes.accessed = wish.accessed.unwrap_or(attributes.accessed);
        attributes.modified = wish.modified.unwrap_or(attributes.modified);
        attributes.changed = wish.changed.unwrap_or(now);
        Ok(())
    }

    /// Sets the times of a file whose contents changed.
    pub(crate) fn written(&mut self, ino: Ino, now: SystemTime) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            touch(&mut node.attributes, now);
        }
    }

    /// Returns the entries of a folder, `.` and `..` first.
    pub(crate) fn entries(&self, ino: Ino) -> Result<Vec<(OsString, Ino)>, Errno> {
        let folder = self.folder(ino)?;
        let own = [(OsString::from("."), ino), (OsString::from(".."), folder.parent)];
        let entries = folder.entries.iter().map(|(name, ino)| (name.clone(), *ino));
        Ok(own.into_iter().chain(entries).collect())
    }
}

/// Returns what a node counts beyond itself: the whole KiB of the target of a symbolic link.
fn more_of(kind: &Kind) -> u64 {
    if let Kind::Link(target) = kind { target.len() as u64 / 1024 } else { 0 }
}

fn node(kind: Kind, maker: NewOwner, parent: Ino) -> Node {
    let links = if kind == Kind::Folder { 2 } else { 1 };
    let NewOwner { user, group, permissions, now } = maker;
    let attributes =
        Attributes { kind, permissions, user, group, links, accessed: now, modified: now, changed: now };
    Node { attributes, entries: BTreeMap::new(), parent, open: 0, known: 0 }
}

fn touch(attributes: &mut Attributes, now: SystemTime) {
    attributes.modified = now;
    attributes.changed = now;
}

fn check_name(name: &OsStr) -> Result<(), Errno> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
