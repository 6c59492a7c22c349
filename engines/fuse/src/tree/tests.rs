//! Compares the tree with a folder on tmpfs: the same operations must succeed or fail on both.

use super::*;
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, linkat, mkdirat, renameat_with, unlinkat};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
enum Step {
    File(PathBuf),
    Folder(PathBuf),
    Unlink(PathBuf),
    RemoveFolder(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, Rename),
}

/// Generates paths of few names, at most three deep, so that operations often meet the same files and folders.
fn path() -> impl Strategy<Value = PathBuf> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|parts| parts.iter().collect())
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop::sample::select(vec![Rename::Replaces, Rename::Refuses, Rename::Exchanges]);
    prop_oneof![
        3 => path().prop_map(Step::File),
        3 => path().prop_map(Step::Folder),
        1 => path().prop_map(Step::Unlink),
        1 => path().prop_map(Step::RemoveFolder),
        2 => (path(), path()).prop_map(|(from, to)| Step::Link(from, to)),
        4 => (path(), path(), how).prop_map(|(from, to, how)| Step::Rename(from, to, how)),
    ]
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const MAKER: NewOwner = NewOwner { user: 0, group: 0, permissions: 0o755, now: NOW };

/// Returns a name in the root folder.
fn top(name: &str) -> Name<'_> {
    Name { parent: ROOT, name: OsStr::new(name) }
}

/// Resolves a path as the kernel does, by one lookup for each folder.
fn find<'a>(tree: &mut Tree, path: &'a Path) -> Result<Name<'a>, Errno> {
    let mut parent = ROOT;
    for part in path.parent().into_iter().flat_map(Path::iter) {
        let ino = tree.look_up(Name { parent, name: part })?;
        tree.forget(ino, 1);
        if tree.attributes(ino)?.kind != Kind::Folder {
            return Err(Errno::NOTDIR);
        }
        parent = ino;
    }
    Ok(Name { parent, name: path.file_name().expect("paths have parts") })
}

fn ask_tree(tree: &mut Tree, step: &Step) -> Result<(), Errno> {
    match step {
        Step::File(path) | Step::Folder(path) => {
            let at = find(tree, path)?;
            let kind = if matches!(step, Step::File(_)) { Kind::File } else { Kind::Folder };
            let ino = tree.make(at, kind, MAKER)?;
            tree.forget(ino, 1);
            Ok(())
        }
        Step::Unlink(path) => {
            let at = find(tree, path)?;
            tree.unlink(at, NOW).map(drop)
        }
        Step::RemoveFolder(path) => {
            let at = find(tree, path)?;
            tree.remove_folder(at, NOW)
        }
        Step::Link(from, to) => {
            let at = find(tree, from)?;
            let ino = tree.look_up(at)?;
            let linked = find(tree, to).and_then(|at| tree.link(ino, at, NOW));
            tree.forget(ino, 1 + u64::from(linked.is_ok()));
            linked
        }
        Step::Rename(from, to, how) => {
            let from = find(tree, from)?;
            let to = find(tree, to)?;
            tree.rename(from, to, *how, NOW).map(drop)
        }
    }
}

fn ask_kernel(root: &Path, step: &Step) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o755);
    match step {
        Step::File(path) => {
            use rustix::fs::OFlags;
            rustix::fs::openat(CWD, root.join(path), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode)
                .map(drop)
        }
        Step::Folder(path) => mkdirat(CWD, root.join(path), mode),
        Step::Unlink(path) => unlinkat(CWD, root.join(path), AtFlags::empty()),
        Step::RemoveFolder(path) => unlinkat(CWD, root.join(path), AtFlags::REMOVEDIR),
        Step::Link(from, to) => linkat(CWD, root.join(from), CWD, root.join(to), AtFlags::empty()),
        Step::Rename(from, to, how) => {
            let flags = match how {
                Rename::Replaces => RenameFlags::empty(),
                Rename::Refuses => RenameFlags::NOREPLACE,
                Rename::Exchanges => RenameFlags::EXCHANGE,
            };
            renameat_with(CWD, root.join(from), CWD, root.join(to), flags)
        }
    }
}

/// Entries by path. Each has a flag for folders, its number of links, and the first path of the same file or folder.
type Shape = BTreeSet<(PathBuf, bool, u64, PathBuf)>;

fn shape_of_tree(tree: &Tree) -> Shape {
    let mut found: Vec<(PathBuf, Ino)> = Vec::new();
    let mut folders = vec![(PathBuf::new(), ROOT)];
    while let Some((path, folder)) = folders.pop() {
        let entries = tree.entries(folder).expect("it is a folder");
        assert_eq!(entries[0].1, folder);
        for (name, ino) in entries.into_iter().skip(2) {
            let path = path.join(name);
            if tree.attributes(ino).expect("it has a name").kind == Kind::Folder {
                folders.push((path.clone(), ino));
            }
            found.push((path, ino));
        }
    }
    let first = |ino: Ino| found.iter().filter(|one| one.1 == ino).map(|one| one.0.clone()).min();
    let described = |(path, ino): &(PathBuf, Ino)| {
        let attributes = tree.attributes(*ino).expect("it has a name");
        let is_folder = attributes.kind == Kind::Folder;
        (path.clone(), is_folder, u64::from(attributes.links), first(*ino).expect("itself"))
    };
    found.iter().map(described).collect()
}

fn shape_of_folder(root: &Path) -> Shape {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            let told = std::fs::symlink_metadata(&path).expect("readable");
            if told.is_dir() {
                folders.push(path.clone());
            }
            found.push((path.strip_prefix(root).expect("below it").to_owned(), told));
        }
    }
    let first = |ino: u64| found.iter().filter(|one| one.1.ino() == ino).map(|one| one.0.clone()).min();
    let described = |(path, told): &(PathBuf, std::fs::Metadata)| {
        (path.clone(), told.is_dir(), told.nlink(), first(told.ino()).expect("itself"))
    };
    found.iter().map(described).collect()
}

proptest! {
    #[test]
    fn tree_answers_and_ends_as_a_folder_on_tmpfs_does(steps in prop::collection::vec(step(), 1..60)) {
        let folder = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
        let mut tree = Tree::new(MAKER, u64::MAX);
        for step in &steps {
            let (here, there) = (ask_tree(&mut tree, step), ask_kernel(folder.path(), step));
            // The error codes may differ: the kernel checks names before it asks the file system.
            prop_assert_eq!(here.is_ok(), there.is_ok(), "{:?}: {:?}, and {:?}", step, here, there);
        }
        prop_assert_eq!(shape_of_tree(&tree), shape_of_folder(folder.path()));
        // Every name counts once, and files and folders without a name must be gone.
        prop_assert_eq!(tree.count(), 1 + shape_of_tree(&tree).len() as u64);
    }
}

#[test]
fn file_without_a_name_lives_while_a_handle_is_open_and_its_number_is_known() {
    let mut tree = Tree::new(MAKER, u64::MAX);
    let ino = tree.make(top("f"), Kind::File, MAKER).expect("made");
    tree.open(ino).expect("open");
    assert_eq!(tree.unlink(top("f"), NOW), Ok(None), "its contents live");
    assert_eq!(tree.attributes(ino).expect("it lives").links, 0);
    assert_eq!(tree.link(ino, top("f"), NOW), Err(Errno::NOENT));
    assert!(tree.close(ino), "its contents are over");
    assert!(tree.attributes(ino).is_ok(), "the kernel may still ask");
    tree.forget(ino, 1);
    assert_eq!(tree.attributes(ino), Err(Errno::STALE));
}

#[test]
fn what_is_made_in_a_folder_of_a_group_belongs_to_the_group() {
    let mut tree = Tree::new(MAKER, u64::MAX);
    let shared = NewOwner { group: 7, permissions: 0o2775, ..MAKER };
    let folder = tree.make(top("d"), Kind::Folder, shared).expect("made");
    let file = tree.make(Name { parent: folder, ..top("f") }, Kind::File, MAKER).expect("made");
    let below = tree.make(Name { parent: folder, ..top("e") }, Kind::Folder, MAKER).expect("made");
    assert_eq!(tree.attributes(file).expect("it lives").group, 7);
    let below = tree.attributes(below).expect("it lives");
    assert_eq!((below.group, below.permissions & SET_GROUP_ID), (7, SET_GROUP_ID));
}

#[test]
fn name_is_refused_only_if_it_is_longer_than_a_name_may_be() {
    let mut tree = Tree::new(MAKER, u64::MAX);
    let (fits, is_longer) = ("x".repeat(NAME_BYTES_MAX), "x".repeat(NAME_BYTES_MAX + 1));
    assert!(tree.make(top(&fits), Kind::File, MAKER).is_ok());
    assert_eq!(tree.make(top(&is_longer), Kind::File, MAKER), Err(Errno::NAMETOOLONG));
}

#[test]
fn file_whose_contents_are_over_is_not_opened_any_more() {
    let mut tree = Tree::new(MAKER, u64::MAX);
    let ino = tree.make(top("f"), Kind::File, MAKER).expect("made");
    assert_eq!(tree.unlink(top("f"), NOW), Ok(Some(ino)), "its contents are over");
    assert_eq!(tree.open(ino), Err(Errno::STALE), "the kernel looks the name up anew");
}

#[test]
fn tree_has_no_more_names_than_its_limit() {
    let mut tree = Tree::new(MAKER, 3);
    let file = tree.make(top("f"), Kind::File, MAKER).expect("made");
    tree.link(file, top("g"), NOW).expect("linked");
    assert_eq!(tree.make(top("h"), Kind::Folder, MAKER), Err(Errno::NOSPC));
    assert_eq!(tree.link(file, top("h"), NOW), Err(Errno::NOSPC));
    assert_eq!(tree.unlink(top("f"), NOW), Ok(None));
    assert!(tree.make(top("h"), Kind::Folder, MAKER).is_ok());
}
