//! A folder of this machine whose reads are kept in far memory.
//!
//! The idea: everything passes through to the folder; what is read of a file is kept, block by block, and is read from far memory
//! the next time. Writes go to the folder first, and what is kept is renewed before they return. Every read asks what the file
//! is now, so that what changed behind the mount's back is read as it is. Far memory that is gone makes reads as slow as they
//! were, and nothing else.

use crate::listings::{Entry, Listings};
use crate::{answer, errno, lock, read_into, widen};
use farpool_cache::{BlockCache, CachedFile, Identity, Source, Times};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use rustix::fs::{self as sys, AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::ReadWriteFlags;
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const GENERATION: Generation = Generation(0);
const ROOT: u64 = 1;
/// Bytes of an extended attribute, or of all names of one node's (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The rights of a node, and those of what is made in it, beyond those of its mode (acl(5)).
const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// How a cached folder behaves.
#[derive(Clone, Copy, Debug)]
pub struct CachedOptions {
    /// How long the kernel believes what it was told of names, attributes and contents.
    pub fresh_for: Duration,
    /// Whether nobody changes files but through the mount. Otherwise, on file systems whose times are coarse, each write has
    /// nothing of its file kept ([`Times`]).
    pub is_alone: bool,
}

impl Default for CachedOptions {
    fn default() -> Self {
        CachedOptions { fresh_for: Duration::from_secs(1), is_alone: false }
    }
}

/// A file, folder or whatever is in the folder, for as long as the kernel remembers it.
struct Node {
    /// Refers to it, whatever its name becomes.
    place: OwnedFd,
    kept: CachedFile,
    /// What it was when it was last opened, if that had settled: what the kernel holds of it is of then.
    opened: Mutex<Option<Identity>>,
}

impl Node {
    /// What opens it again.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.place.as_raw_fd()))
    }

    fn stat(&self) -> Result<Stat, Errno> {
        sys::statat(&self.place, "", AtFlags::EMPTY_PATH).map_err(errno)
    }

    fn identity(&self) -> Result<Identity, Errno> {
        self.stat().map(|stat| Identity::from(&stat))
    }
}

#[derive(Default)]
struct Nodes {
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    by_identity: HashMap<(u64, u64), u64>,
    next: u64,
}

struct Handle {
    file: File,
    node: Arc<Node>,
}

impl Source for Handle {
    type Error = Errno;

    fn identity(&self) -> Result<Identity, Errno> {
        sys::fstat(&self.file).map(|stat| Identity::from(&stat)).map_err(errno)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        read_full(&self.file, into, offset)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.file.write_all_at(from, offset).map_err(Errno::from)
    }
}

pub(crate) struct Cached {
    cache: BlockCache,
    options: CachedOptions,
    times: Times,
    /// Of the folder.
    device: u64,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    listings: Listings,
    next_handle: AtomicU64,
    is_root: bool,
}

impl Cached {
    /// What is in this folder.
    pub(crate) fn new(folder: &Path, cache: &BlockCache, options: CachedOptions) -> io::Result<Cached> {
        let times = if options.is_alone { Times::Alone } else { Times::of(folder) };
        let place =
            sys::openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut nodes = Nodes { next: ROOT + 1, ..Nodes::default() };
        let device = sys::statat(&place, "", AtFlags::EMPTY_PATH)?.st_dev;
        let root = Arc::new(Node { place, kept: CachedFile::new(times), opened: Mutex::default() });
        nodes.nodes.insert(ROOT, (root, 1));
        Ok(Cached {
            cache: cache.clone(),
            options,
            times,
            device,
            nodes: Mutex::new(nodes),
            handles: Mutex::default(),
            listings: Listings::default(),
            next_handle: AtomicU64::new(1),
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        lock(&self.nodes).nodes.get(&ino.0).map(|(node, _)| Arc::clone(node)).ok_or(Errno::ESTALE)
    }

    fn handle(&self, handle: FileHandle) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    /// What a name leads to; the kernel remembers it from now on.
    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let parent = self.node(parent)?;
        let place = place(&parent, name)?;
        let stat = sys::statat(&place, "", AtFlags::EMPTY_PATH).map_err(errno)?;
        let identity = (stat.st_dev, stat.st_ino);
        let mut nodes = lock(&self.nodes);
        let ino = match nodes.by_identity.get(&identity) {
            Some(ino) => *ino,
            None => {
                let ino = nodes.next;
                nodes.next += 1;
                // Another file system below may have other times.
                let times = if self.options.is_alone || stat.st_dev == self.device {
                    self.times
                } else {
                    Times::Coarse
                };
                let node = Node { place, kept: CachedFile::new(times), opened: Mutex::default() };
                nodes.nodes.insert(ino, (Arc::new(node), 0));
                nodes.by_identity.insert(identity, ino);
                ino
            }
        };
        if let Some((_, known)) = nodes.nodes.get_mut(&ino) {
            *known += 1;
        }
        Ok(file_attr(ino, &stat))
    }

    fn entry(&self, found: Result<FileAttr, Errno>, reply: ReplyEntry) {
        match found {
            Ok(attr) => reply.entry(&self.options.fresh_for, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        Ok(file_attr(ino.0, &self.node(ino)?.stat()?))
    }

    /// Gives what was made to whoever asked for it, with the rights asked for.
    fn hand_over(
        &self,
        request: &Request,
        parent: &Node,
        made: BorrowedFd<'_>,
        then: Then,
    ) -> Result<(), Errno> {
        if self.is_root {
            // In a folder of a group it belongs to the group already.
            let is_shared = parent.stat()?.st_mode & 0o2000 != 0;
            let group = (!is_shared).then(|| Gid::from_raw(request.gid()));
            let user = Some(Uid::from_raw(request.uid()));
            sys::chownat(made, "", user, group, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        let mode = match then {
            Then::Keeps | Then::Gains(0) => return Ok(()),
            Then::Gains(more) => sys::fstat(made).map_err(errno)?.st_mode | more,
            Then::Gets(mode) => mode,
        };
        // By its descriptor, since others may have given its name to something else.
        let path = format!("/proc/self/fd/{}", made.as_raw_fd());
        sys::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)
    }

    fn keep(&self, file: OwnedFd, node: Arc<Node>) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let handle = Handle { file: File::from(file), node };
        lock(&self.handles).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    fn truncate(&self, node: &Node, handle: Option<FileHandle>, size: u64) -> Result<(), Errno> {
        let open = handle.map(|handle| self.handle(handle)).transpose()?;
        node.kept.resize(
            &self.cache,
            || node.identity(),
            size,
            || {
                let by_name = || {
                    let file = sys::open(node.path(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                    sys::ftruncate(file, size)
                };
                let cut = match &open {
                    // It may be open for reading alone.
                    Some(handle) => sys::ftruncate(&handle.file, size).or_else(|error| match error {
                        rustix::io::Errno::INVAL => by_name(),
                        error => Err(error),
                    }),
                    None => by_name(),
                };
                cut.map_err(errno)
            },
        )
    }

    fn listing(&self, node: &Node) -> rustix::io::Result<Vec<Entry>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = sys::openat(&node.place, ".", flags, Mode::empty())?;
        let mut listing = Vec::new();
        for entry in sys::Dir::read_from(&folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let kind = match entry.file_type() {
                sys::FileType::Directory => FileType::Directory,
                sys::FileType::Symlink => FileType::Symlink,
                sys::FileType::Fifo => FileType::NamedPipe,
                sys::FileType::Socket => FileType::Socket,
                sys::FileType::CharacterDevice => FileType::CharDevice,
                sys::FileType::BlockDevice => FileType::BlockDevice,
                sys::FileType::RegularFile => FileType::RegularFile,
                // Some file systems do not tell it here.
                sys::FileType::Unknown => {
                    match sys::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => file_attr(0, &stat).kind,
                        Err(_) => continue,
                    }
                }
            };
            listing.push((name, entry.ino(), kind));
        }
        Ok(listing)
    }
}

/// Writes all of it to where the file ends by then.
fn append(file: &File, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwritev2(file, &[IoSlice::new(data)], 0, ReadWriteFlags::APPEND) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => data = &data[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut count = 0;
    while count < into.len() {
        match file.read_at(&mut into[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from(error)),
        }
    }
    Ok(count)
}

fn time(seconds: i64, nanos: u64) -> SystemTime {
    let part = Duration::from_nanos(nanos);
    match u64::try_from(seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + part,
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + part,
    }
}

fn file_attr(ino: u64, stat: &Stat) -> FileAttr {
    let kind = match sys::FileType::from_raw_mode(stat.st_mode) {
        sys::FileType::Directory => FileType::Directory,
        sys::FileType::Symlink => FileType::Symlink,
        sys::FileType::Fifo => FileType::NamedPipe,
        sys::FileType::Socket => FileType::Socket,
        sys::FileType::CharacterDevice => FileType::CharDevice,
        sys::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn timespec(wished: Option<TimeOrNow>) -> Timespec {
    match wished {
        None => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                let whole = 0_i64.saturating_sub_unsigned(before.as_secs());
                match before.subsec_nanos() {
                    0 => Timespec { tv_sec: whole, tv_nsec: 0 },
                    nanos => {
                        Timespec { tv_sec: whole.saturating_sub(1), tv_nsec: (1_000_000_000 - nanos).into() }
                    }
                }
            }
        },
    }
}

/// What an extended attribute's reply takes: its size, or itself if it fits.
fn answer_xattr(found: rustix::io::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Cached {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Before each write the kernel would ask for what `drop_set_ids` knows.
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // The rights that the folder's files have are checked whole, and what is made has those that its folder says (acl(5)).
        wanted |= InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if !self.options.is_alone {
            // The kernel asks when a file changed before it reads what it holds of it, and drops that after each change, also
            // those by writes through the mount.
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        widen(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.look_up(parent, name), reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, times: u64) {
        let mut nodes = lock(&self.nodes);
        let Some((node, known)) = nodes.nodes.get_mut(&ino.0) else { return };
        *known = known.saturating_sub(times);
        if *known == 0 && ino.0 != ROOT {
            let identity = node.stat().map(|stat| (stat.st_dev, stat.st_ino));
            nodes.nodes.remove(&ino.0);
            match identity {
                Ok(identity) => drop(nodes.by_identity.remove(&identity)),
                Err(_) => nodes.by_identity.retain(|_, of| *of != ino.0),
            }
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attr) => reply.attr(&self.options.fresh_for, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            let node = self.node(ino)?;
            if user.is_some() || group.is_some() {
                let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
                let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
                sys::chownat(&node.place, "", user, group, flags).map_err(errno)?;
            }
            if let Some(mode) = mode {
                let mode = Mode::from_raw_mode(mode & 0o7777);
                sys::chmodat(CWD, node.path(), mode, AtFlags::empty()).map_err(errno)?;
            }
            if let Some(size) = size {
                if request.uid() != 0 {
                    drop_set_ids(&node)?;
                }
                self.truncate(&node, handle, size)?;
            }
            if accessed.is_some() || modified.is_some() {
                let times =
                    Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) };
                sys::utimensat(CWD, node.path(), &times, AtFlags::empty()).map_err(errno)?;
            }
            self.attributes(ino)
        };
        match set() {
            Ok(attr) => reply.attr(&self.options.fresh_for, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let target =
            self.node(ino).and_then(|node| sys::readlinkat(&node.place, "", Vec::new()).map_err(errno));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = self.node(parent).and_then(|folder| {
            let kind = sys::FileType::from_raw_mode(mode);
            let (first, then) = rights(&folder, mode, umask, Mode::empty());
            sys::mknodat(&folder.place, name, kind, first, device.into()).map_err(errno)?;
            self.hand_over(request, &folder, place(&folder, name)?.as_fd(), then)?;
            self.look_up(parent, name)
        });
        self.entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.node(parent).and_then(|folder| {
            let (first, then) = rights(&folder, mode, umask, Mode::RWXU);
            sys::mkdirat(&folder.place, name, first).map_err(errno)?;
            let shared = folder.stat()?.st_mode & 0o2000;
            let then = match then {
                Then::Gets(mode) => Then::Gets(mode | shared),
                // Of folders they mean something else, and are passed on.
                _ => Then::Keeps,
            };
            self.hand_over(request, &folder, place(&folder, name)?.as_fd(), then)?;
            self.look_up(parent, name)
        });
        self.entry(made, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.node(parent).and_then(|folder| {
            sys::symlinkat(target, &folder.place, name).map_err(errno)?;
            self.hand_over(request, &folder, place(&folder, name)?.as_fd(), Then::Keeps)?;
            self.look_up(parent, name)
        });
        self.entry(made, reply);
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.node(ino).and_then(|node| {
            let folder = self.node(parent)?;
            sys::linkat(CWD, node.path(), &folder.place, name, AtFlags::SYMLINK_FOLLOW).map_err(errno)?;
            self.look_up(parent, name)
        });
        self.entry(linked, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unlinked = self
            .node(parent)
            .and_then(|folder| sys::unlinkat(&folder.place, name, AtFlags::empty()).map_err(errno));
        answer(unlinked, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self
            .node(parent)
            .and_then(|folder| sys::unlinkat(&folder.place, name, AtFlags::REMOVEDIR).map_err(errno));
        answer(removed, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.node(parent).and_then(|from| {
            let to = self.node(new_parent)?;
            let flags = sys::RenameFlags::from_bits_retain(flags.bits());
            sys::renameat_with(&from.place, name, &to.place, new_name, flags).map_err(errno)
        });
        answer(renamed, reply);
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.node(ino).and_then(|node| {
            let file = sys::open(node.path(), open_flags(flags.0), Mode::empty()).map_err(errno)?;
            let identity = node
                .kept
                .look(&self.cache, || sys::fstat(&file).map(|stat| Identity::from(&stat)))
                .map_err(errno)?;
            let now = node.kept.is_settled(identity).then_some(identity);
            let before = std::mem::replace(&mut *lock(&node.opened), now);
            Ok((before == Some(identity), self.keep(file, node)))
        });
        match opened {
            // What the kernel holds of it stays right as long as the file does.
            Ok((true, handle)) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
            Ok((false, handle)) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.node(parent).and_then(|folder| {
            let (first, then) = rights(&folder, mode, umask, Mode::RUSR | Mode::WUSR);
            let (wanted, is_new) = (OFlags::from_bits_retain(flags as u32), OFlags::CREATE | OFlags::EXCL);
            let open = |more| {
                let flags = open_flags(flags) | OFlags::NOFOLLOW | more;
                sys::openat(&folder.place, name, flags, first)
            };
            let file = match open(is_new) {
                Ok(file) => {
                    self.hand_over(request, &folder, file.as_fd(), then)?;
                    file
                }
                // Somebody else has made it since the kernel looked: it looks again, and asks who may open it.
                Err(rustix::io::Errno::EXIST) if !wanted.contains(OFlags::EXCL) => return Err(Errno::ESTALE),
                Err(error) => return Err(errno(error)),
            };
            let attr = self.look_up(parent, name)?;
            let node = self.node(attr.ino)?;
            node.kept
                .look(&self.cache, || sys::fstat(&file).map(|stat| Identity::from(&stat)))
                .map_err(errno)?;
            Ok((attr, self.keep(file, node)))
        });
        match made {
            Ok((attr, handle)) => {
                reply.created(&self.options.fresh_for, &attr, GENERATION, handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        read_into(size, reply, |into| {
            let handle = self.handle(handle)?;
            handle.node.kept.read(&self.cache, &*handle, offset, into)
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_append = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let written = self.handle(handle).and_then(|handle| {
            let node = &handle.node;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                drop_set_ids(node)?;
            }
            // The kernel says where the file ended when it last looked, and others may have appended since.
            if is_append {
                let append = || append(&handle.file, data);
                return node.kept.change(&self.cache, || handle.identity(), append);
            }
            let before = handle.identity()?;
            node.kept.write(&self.cache, &*handle, offset, data)?;
            let after = handle.identity()?;
            // What the kernel holds of it is what was written.
            let mut opened = lock(&node.opened);
            if *opened == Some(before) && node.kept.is_settled(after) {
                *opened = Some(after);
            }
            Ok(())
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Some file systems, such as NFS, say at a close what did not get there: one descriptor more has them say it now, as
        // nobody hears what `release` says.
        let closed = self.handle(handle).and_then(|handle| {
            let again = rustix::io::fcntl_dupfd_cloexec(&handle.file, 0).map_err(errno)?;
            nix::unistd::close(again).map_err(|error| Errno::from_i32(error as i32))
        });
        answer(closed, reply);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.handles).remove(&handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.handle(handle).and_then(|handle| {
            if data_only { sys::fdatasync(&handle.file) } else { sys::fsync(&handle.file) }.map_err(errno)
        });
        answer(synced, reply);
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.node(ino).and_then(|node| self.listing(&node).map_err(errno)) {
            Ok(listing) => reply.opened(self.listings.open(listing), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.listings.read(handle, offset, reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.close(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.node(ino).and_then(|node| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            sys::openat(&node.place, ".", flags, Mode::empty()).and_then(sys::fsync).map_err(errno)
        });
        answer(synced, reply);
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.node(ino).and_then(|node| sys::statvfs(node.path()).map_err(errno)) {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                found.f_namemax as u32,
                found.f_frsize as u32,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.node(ino).and_then(|node| {
            let flags = XattrFlags::from_bits_retain(flags as u32);
            sys::setxattr(node.path(), name, value, flags).map_err(errno)
        });
        answer(set, reply);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.node(ino) {
            Ok(node) => {
                let mut value = vec![0; XATTR_BYTES_MAX];
                let found = match sys::getxattr(node.path(), name, &mut value[..]) {
                    // A file system that has no lists: the kernel, which asks for them by itself, would refuse everything.
                    Err(rustix::io::Errno::OPNOTSUPP) if name == ACCESS_ACL || name == DEFAULT_ACL => {
                        Err(rustix::io::Errno::NODATA)
                    }
                    found => found.map(|count| value[..count].to_vec()),
                };
                answer_xattr(found, size, reply);
            }
            Err(error) => reply.error(error),
        }
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.node(ino) {
            Ok(node) => {
                let mut names = vec![0; XATTR_BYTES_MAX];
                let found = sys::listxattr(node.path(), &mut names[..]).map(|count| names[..count].to_vec());
                answer_xattr(found, size, reply);
            }
            Err(error) => reply.error(error),
        }
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.node(ino).and_then(|node| sys::removexattr(node.path(), name).map_err(errno)), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.handle(handle).and_then(|handle| {
            let mode = sys::FallocateFlags::from_bits_retain(mode as u32);
            if request.uid() != 0 {
                drop_set_ids(&handle.node)?;
            }
            handle.node.kept.change(
                &self.cache,
                || handle.identity(),
                || sys::fallocate(&handle.file, mode, offset, bytes).map_err(errno),
            )
        });
        answer(allocated, reply);
    }
}

/// Refers to what a name leads to, a link itself if it is one.
fn place(folder: &Node, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    sys::openat(&folder.place, name, flags, Mode::empty()).map_err(errno)
}

/// What becomes of the rights of what was made, once it is its maker's.
#[derive(Clone, Copy)]
enum Then {
    Keeps,
    /// Those whose programs run as their owner or group lost that when they were given away.
    Gains(u32),
    Gets(u32),
}

/// With which rights something is made in a folder, so that nobody else uses it before it is its maker's, and what becomes of them
/// then. In a folder with default rights, its file system knows which they are (acl(5)).
fn rights(folder: &Node, mode: u32, umask: u32, alone: Mode) -> (Mode, Then) {
    match sys::getxattr_query(folder.path(), DEFAULT_ACL) {
        Ok(bytes) if bytes > 0 => (Mode::from_raw_mode(mode & 0o1777), Then::Gains(mode & 0o6000)),
        _ => (alone, Then::Gets(mode & !umask)),
    }
}

/// A program that others but root change does not run as its owner or group any more (chmod(2)): the kernel leaves that to whoever
/// tells it so (`FUSE_HANDLE_KILLPRIV_V2`).
fn drop_set_ids(node: &Node) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(node.stat()?.st_mode & 0o7777);
    // With no right to execute it, the group's bit means something else.
    let set_ids = if mode.contains(Mode::XGRP) { Mode::SUID | Mode::SGID } else { Mode::SUID };
    if mode.intersects(set_ids) {
        sys::chmodat(CWD, node.path(), mode.difference(set_ids), AtFlags::empty()).map_err(errno)?;
    }
    Ok(())
}

/// How a file is opened for the kernel, which says at which offset it writes, and caches by itself.
fn open_flags(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags as u32);
    let without =
        OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::DIRECT;
    (flags - without) | OFlags::CLOEXEC
}
