//! Names, folders and attributes of a file system whose contents are elsewhere.
//!
//! The idea: the kernel checks who may do what (`default_permissions`) and holds the locks of folders; what is left is
//! a map of numbers to nodes, and rules about counts. A node lives while a name leads to it, a handle is open on it, or
//! the kernel remembers its number; its contents live while a name or a handle does. No clock and no contents here:
//! every change is told when it happens, and whose contents are over is returned.

use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

/// The number of a node.
pub(crate) type Ino = u64;

/// The folder that is mounted.
pub(crate) const ROOT: Ino = 1;
/// Bytes of a name (`NAME_MAX`).
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Names of one node.
const LINKS_MAX: u32 = 65_000;

const SET_GROUP_ID: u16 = 0o2000;
/// Bits of `st_mode` that say what a node is.
pub(crate) const TYPE_BITS: u32 = 0o170_000;

/// A name in a folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) parent: Ino,
    pub(crate) name: &'a OsStr,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Link(OsString),
    /// A pipe, a socket or a device: its type as in `st_mode`, and its number. The kernel does the rest.
    Special(u32, u32),
}

/// What `stat` tells, but for the length of a file, which its contents know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: Kind,
    /// The twelve bits that `chmod` sets.
    pub(crate) permissions: u16,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) links: u32,
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
    pub(crate) changed: SystemTime,
}

impl Attributes {
    /// Those of no node: what there is to say of a name that leads nowhere.
    pub(crate) fn of_nothing() -> Attributes {
        let then = SystemTime::UNIX_EPOCH;
        node(Kind::File, Maker { user: 0, group: 0, permissions: 0, now: then }, ROOT).attributes
    }
}

/// What `setattr` asks for, but for the length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    pub(crate) permissions: Option<u16>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) accessed: Option<SystemTime>,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) changed: Option<SystemTime>,
}

/// Who makes a node, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) permissions: u16,
    pub(crate) now: SystemTime,
}

/// How a rename treats what has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rename {
    Replaces,
    Refuses,
    Exchanges,
}

#[derive(Debug)]
struct Node {
    attributes: Attributes,
    /// Of a folder: what is in it, and what it is in.
    entries: BTreeMap<OsString, Ino>,
    parent: Ino,
    open: u64,
    /// How often the kernel was told its number and has not forgotten it.
    known: u64,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Ino, Node>,
    next: Ino,
}

impl Tree {
    /// An empty folder.
    pub(crate) fn new(maker: Maker) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: ROOT + 1 };
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

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<&Attributes, Errno> {
        Ok(&self.node(ino)?.attributes)
    }

    /// What a name leads to; the kernel remembers it from now on.
    pub(crate) fn look_up(&mut self, at: Name<'_>) -> Result<Ino, Errno> {
        let ino = self.entry(at)?;
        self.node_mut(ino)?.known += 1;
        Ok(ino)
    }

    /// The kernel forgets a node so many times.
    pub(crate) fn forget(&mut self, ino: Ino, times: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.known = node.known.saturating_sub(times);
            self.tidy(ino);
        }
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        // Its contents are gone already. Told so, the kernel looks its name up anew.
        if node.attributes.links == 0 && node.open == 0 {
            return Err(Errno::STALE);
        }
        node.open += 1;
        Ok(())
    }

    /// A handle is closed; whether the contents are over.
    pub(crate) fn close(&mut self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        node.open = node.open.saturating_sub(1);
        let is_over = node.open == 0 && node.attributes.links == 0;
        self.tidy(ino);
        is_over
    }

    /// Removes a node that nothing leads to.
    fn tidy(&mut self, ino: Ino) {
        let is_over = |node: &Node| node.attributes.links == 0 && node.open == 0 && node.known == 0;
        if ino != ROOT && self.nodes.get(&ino).is_some_and(is_over) {
            self.nodes.remove(&ino);
        }
    }

    /// Makes a node with a name. The kernel remembers it.
    pub(crate) fn make(&mut self, at: Name<'_>, kind: Kind, maker: Maker) -> Result<Ino, Errno> {
        match self.entry(at) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let is_folder = kind == Kind::Folder;
        let ino = self.next;
        let folder = self.node_mut(at.parent)?;
        // Whoever unlinked a folder may still stand in it.
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
        self.next += 1;
        Ok(ino)
    }

    /// Takes the name of anything but a folder away; whose contents are over.
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

    /// One name less leads to what is no folder; it, if its contents are over.
    fn lose_name(&mut self, ino: Ino, now: SystemTime) -> Option<Ino> {
        let node = self.nodes.get_mut(&ino)?;
        node.attributes.links = node.attributes.links.saturating_sub(1);
        node.attributes.changed = now;
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

    /// One more name for what is no folder.
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
            // Its contents are over once its handles are.
            _ if attributes.links == 0 => return Err(Errno::NOENT),
            _ => {}
        }
        if self.node(at.parent)?.attributes.links == 0 {
            return Err(Errno::NOENT);
        }
        let node = self.node_mut(ino)?;
        node.attributes.links += 1;
        node.attributes.changed = now;
        node.known += 1;
        let folder = self.node_mut(at.parent)?;
        folder.entries.insert(at.name.to_owned(), ino);
        touch(&mut folder.attributes, now);
        Ok(())
    }

    /// Whether a folder is the other, or above it.
    fn is_above(&self, folder: Ino, mut other: Ino) -> bool {
        while other != folder && other != ROOT {
            let Some(node) = self.nodes.get(&other) else { return false };
            other = node.parent;
        }
        other == folder
    }

    /// Gives what has one name another; whose contents are over.
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
                // Each folder lost one and got the other.
                self.count_folder(from.parent, is_folder, other_is_folder);
                self.count_folder(to.parent, other_is_folder, is_folder);
                return Ok(None);
            }
            (Rename::Refuses, Some(_)) => return Err(Errno::EXIST),
            // Two names of one node: nothing happens (POSIX).
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

    /// Leads a name to a node, whatever it led to before.
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

    /// Counts folders in a folder: it has a name in each of them.
    fn count_folder(&mut self, ino: Ino, lost: bool, got: bool) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attributes.links = node.attributes.links + u32::from(got) - u32::from(lost);
        }
    }

    pub(crate) fn set(&mut self, ino: Ino, wish: Wish, now: SystemTime) -> Result<(), Errno> {
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

    /// The contents of a file have changed.
    pub(crate) fn written(&mut self, ino: Ino, now: SystemTime) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            touch(&mut node.attributes, now);
        }
    }

    /// Names in a folder with what they lead to, itself and its parent first.
    pub(crate) fn entries(&self, ino: Ino) -> Result<Vec<(OsString, Ino)>, Errno> {
        let folder = self.folder(ino)?;
        let own = [(OsString::from("."), ino), (OsString::from(".."), folder.parent)];
        let entries = folder.entries.iter().map(|(name, ino)| (name.clone(), *ino));
        Ok(own.into_iter().chain(entries).collect())
    }
}

fn node(kind: Kind, maker: Maker, parent: Ino) -> Node {
    let links = if kind == Kind::Folder { 2 } else { 1 };
    let Maker { user, group, permissions, now } = maker;
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
