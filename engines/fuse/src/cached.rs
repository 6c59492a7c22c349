//! A mounted folder of this machine whose reads are cached in far memory.
//!
//! The idea: all operations pass through to the folder. Blocks of a file that were read are kept, and read from far
//! memory the next time. A write goes to the folder first, and the kept blocks are updated before it returns. Before
//! each read the file's attributes are checked, so a change that did not come through the mount is noticed. If far
//! memory is lost, reads come from the folder again, as slow as without the cache; nothing else changes.
//!
//! Two caches hold bytes of a file: the kernel's page cache, and [`BlockCache`] in far memory. The latter stores blocks
//! by version of the file ([`CachedFile`] knows the current one) and cannot return old ones. The page cache can. When a
//! file is opened, the kernel therefore keeps its pages only if the file is certainly the same as when it was last
//! opened.

use crate::adapter::{Allocation, Changes, Files, New, Opened, Write};
use crate::listings::Entry;
use crate::tree::{Ino, Kind, Name, ROOT};
use farpool_cache::{BlockCache, CachedFile, FileIdentity, OriginFile, Times};
use farpool_lock::Mutex;
use fuser::{FileAttr, FileHandle, FileType, INodeNo, InitFlags, TimeOrNow};
use rustix::fs::{
    self as sys, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Stat, StatVfs, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Limit of Linux for the bytes of an extended attribute (`XATTR_SIZE_MAX`), and for those of the list of all names
/// (`XATTR_LIST_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Extended attribute with the access control list of a file or folder (acl(5)). [`DEFAULT_ACL`] is the one of a folder
/// with the list that new files in it get.
const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Options of a cached folder.
#[derive(Clone, Copy, Debug)]
pub struct CachedOptions {
    /// Time for which the kernel may cache names, attributes and contents.
    pub max_age: Duration,
    /// True if files of the folder change only through this mount. If false, and the file system has coarse timestamps,
    /// each write drops all cached blocks of its file: a change by another program at about the same time could not be
    /// noticed.
    pub is_exclusive: bool,
}

impl Default for CachedOptions {
    fn default() -> Self {
        CachedOptions { max_age: Duration::from_secs(1), is_exclusive: false }
    }
}

/// File, folder or special file of the shown folder, as long as the kernel holds a reference to it.
struct Node {
    /// Descriptor of the node, opened with `O_PATH`. It stays valid if the node is renamed.
    place: OwnedFd,
    kept: CachedFile,
    /// Identity (times of change and length) of the file when it was last opened; the kernel's cached pages are from
    /// that version of the file. `None` if the file had changed so recently that another change might get the same
    /// times, so that the pages cannot be trusted.
    opened: Mutex<Option<FileIdentity>>,
}

impl Node {
    /// Returns a path of the node in `/proc`, for calls that do not accept an `O_PATH` descriptor.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.place.as_raw_fd()))
    }

    fn stat(&self) -> Result<Stat, Errno> {
        sys::statat(&self.place, "", AtFlags::EMPTY_PATH)
    }

    fn identity(&self) -> Result<FileIdentity, Errno> {
        self.stat().map(|stat| FileIdentity::from(&stat))
    }
}

#[derive(Default)]
struct Nodes {
    nodes: HashMap<Ino, (Arc<Node>, u64)>,
    by_identity: HashMap<(u64, u64), Ino>,
    next: Ino,
}

struct Handle {
    file: File,
    node: Arc<Node>,
}

impl OriginFile for Handle {
    type Error = Errno;

    fn identity(&self) -> Result<FileIdentity, Errno> {
        sys::fstat(&self.file).map(|stat| FileIdentity::from(&stat))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        read_full(&self.file, into, offset)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.file.write_all_at(from, offset).map_err(errno)
    }
}

pub(crate) struct Cached {
    cache: BlockCache,
    options: CachedOptions,
    times: Times,
    /// Number of the device that the shown folder is on.
    device: u64,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    is_root: bool,
}

impl Cached {
    /// Creates the file system that shows this folder.
    pub(crate) fn new(folder: &Path, cache: &BlockCache, options: CachedOptions) -> io::Result<Cached> {
        let times = if options.is_exclusive { Times::Exclusive } else { Times::of(folder) };
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
            next_handle: AtomicU64::new(1),
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    fn node(&self, ino: Ino) -> Result<Arc<Node>, Errno> {
        self.nodes.lock().nodes.get(&ino).map(|(node, _)| Arc::clone(node)).ok_or(Errno::STALE)
    }

    fn handle(&self, handle: FileHandle) -> Result<Arc<Handle>, Errno> {
        self.handles.lock().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Sets the owner and the permissions of a new file or folder (`made`), which belongs to the user of this process
    /// at first. Only root can give it to the user who asked for it.
    fn hand_over(&self, made: BorrowedFd<'_>, folder: &Node, new: New<'_>, then: Then) -> Result<(), Errno> {
        if self.is_root {
            // If the folder has the set-group-ID bit, the kernel has given the folder's group to the new node.
            let is_shared = folder.stat()?.st_mode & 0o2000 != 0;
            let group = (!is_shared).then(|| Gid::from_raw(new.group));
            let user = Some(Uid::from_raw(new.user));
            sys::chownat(made, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        let mode = match then {
            Then::Keeps | Then::Gains(0) => return Ok(()),
            Then::Gains(more) => sys::fstat(made)?.st_mode | more,
            Then::Gets(mode) => mode,
        };
        // The path names the descriptor, because the name in the folder may belong to another node by now.
        let path = format!("/proc/self/fd/{}", made.as_raw_fd());
        sys::chmod(path, Mode::from_raw_mode(mode & 0o7777))
    }

    fn keep(&self, file: OwnedFd, node: Arc<Node>) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let handle = Handle { file: File::from(file), node };
        self.handles.lock().insert(number, Arc::new(handle));
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
                match &open {
                    // The handle may be open for reading only, which makes `ftruncate` fail with `INVAL`.
                    Some(handle) => sys::ftruncate(&handle.file, size).or_else(|error| match error {
                        Errno::INVAL => by_name(),
                        error => Err(error),
                    }),
                    None => by_name(),
                }
            },
        )
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Appends all of the data at the end that the file has now.
fn append(file: &File, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwritev2(file, &[IoSlice::new(data)], 0, ReadWriteFlags::APPEND) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => data = &data[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut count = 0;
    while count < into.len() {
        match rustix::io::pread(file, &mut into[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
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

fn file_type(kind: sys::FileType) -> FileType {
    match kind {
        sys::FileType::Directory => FileType::Directory,
        sys::FileType::Symlink => FileType::Symlink,
        sys::FileType::Fifo => FileType::NamedPipe,
        sys::FileType::Socket => FileType::Socket,
        sys::FileType::CharacterDevice => FileType::CharDevice,
        sys::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn file_attr(ino: Ino, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: file_type(sys::FileType::from_raw_mode(stat.st_mode)),
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

impl Files for Cached {
    fn wishes(&self) -> InitFlags {
        // `FUSE_HANDLE_KILLPRIV_V2` means that this file system clears set-user-ID bits on a write (`drop_set_ids`).
        // The kernel then does not query the file's extended attributes before each write.
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // Access control lists are checked by the kernel, and new nodes get the default list of their folder (acl(5)).
        wanted |= InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if !self.options.is_exclusive {
            // The kernel checks the modification time before it uses cached pages, and drops them if it has changed.
            // Writes through the mount change it too.
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        wanted
    }

    fn max_age(&self) -> Duration {
        self.options.max_age
    }

    fn look_up(&self, at: Name<'_>) -> Result<FileAttr, Errno> {
        let folder = self.node(at.parent)?;
        let place = place(&folder, at.name)?;
        let stat = sys::statat(&place, "", AtFlags::EMPTY_PATH)?;
        let identity = (stat.st_dev, stat.st_ino);
        let mut nodes = self.nodes.lock();
        let ino = match nodes.by_identity.get(&identity) {
            Some(ino) => *ino,
            None => {
                let ino = nodes.next;
                nodes.next += 1;
                // A node on another device is in a file system that is mounted inside the folder. Its timestamps may be
                // coarser than those of the folder.
                let times = if self.options.is_exclusive || stat.st_dev == self.device {
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

    fn forget(&self, ino: Ino, times: u64) {
        let mut nodes = self.nodes.lock();
        let Some((node, known)) = nodes.nodes.get_mut(&ino) else { return };
        *known = known.saturating_sub(times);
        if *known == 0 && ino != ROOT {
            let identity = node.stat().map(|stat| (stat.st_dev, stat.st_ino));
            nodes.nodes.remove(&ino);
            match identity {
                Ok(identity) => drop(nodes.by_identity.remove(&identity)),
                Err(_) => nodes.by_identity.retain(|_, of| *of != ino),
            }
        }
    }

    fn attributes(&self, ino: Ino) -> Result<FileAttr, Errno> {
        Ok(file_attr(ino, &self.node(ino)?.stat()?))
    }

    fn change(&self, ino: Ino, changes: Changes) -> Result<FileAttr, Errno> {
        let node = self.node(ino)?;
        let Changes { accessed, modified, .. } = changes;
        if changes.user.is_some() || changes.group.is_some() {
            let (user, group) = (changes.user.map(Uid::from_raw), changes.group.map(Gid::from_raw));
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            sys::chownat(&node.place, "", user, group, flags)?;
        }
        if let Some(mode) = changes.mode {
            sys::chmodat(CWD, node.path(), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        if let Some(size) = changes.size {
            if changes.by_user != 0 {
                drop_set_ids(&node)?;
            }
            self.truncate(&node, changes.handle, size)?;
        }
        if accessed.is_some() || modified.is_some() {
            let times = Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) };
            sys::utimensat(CWD, node.path(), &times, AtFlags::empty())?;
        }
        self.attributes(ino)
    }

    fn target(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        Ok(sys::readlinkat(&self.node(ino)?.place, "", Vec::new())?.into_bytes())
    }

    fn make(&self, new: New<'_>, kind: Kind) -> Result<FileAttr, Errno> {
        let folder = self.node(new.at.parent)?;
        let name = new.at.name;
        let make_node = |kind, device: u32| -> Result<Then, Errno> {
            let (first, then) = rights(&folder, new, Mode::empty());
            sys::mknodat(&folder.place, name, kind, first, device.into())?;
            Ok(then)
        };
        let then = match kind {
            Kind::File => make_node(sys::FileType::RegularFile, 0)?,
            Kind::Special(bits, device) => make_node(sys::FileType::from_raw_mode(bits), device)?,
            Kind::Link(target) => {
                sys::symlinkat(target, &folder.place, name)?;
                Then::Keeps
            }
            Kind::Folder => {
                let (first, then) = rights(&folder, new, Mode::RWXU);
                sys::mkdirat(&folder.place, name, first)?;
                let shared = folder.stat()?.st_mode & 0o2000;
                match then {
                    Then::Gets(mode) => Then::Gets(mode | shared),
                    // `Then::Gains` would add set-ID bits. On folders, the set-group-ID bit means that new files get
                    // the folder's group, and the file system has set it already if needed.
                    _ => Then::Keeps,
                }
            }
        };
        self.hand_over(place(&folder, name)?.as_fd(), &folder, new, then)?;
        self.look_up(new.at)
    }

    fn link(&self, ino: Ino, at: Name<'_>) -> Result<FileAttr, Errno> {
        let (node, folder) = (self.node(ino)?, self.node(at.parent)?);
        sys::linkat(CWD, node.path(), &folder.place, at.name, AtFlags::SYMLINK_FOLLOW)?;
        self.look_up(at)
    }

    fn unlink(&self, at: Name<'_>) -> Result<(), Errno> {
        sys::unlinkat(&self.node(at.parent)?.place, at.name, AtFlags::empty())
    }

    fn remove_folder(&self, at: Name<'_>) -> Result<(), Errno> {
        sys::unlinkat(&self.node(at.parent)?.place, at.name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<(), Errno> {
        let (old, new) = (self.node(from.parent)?, self.node(to.parent)?);
        sys::renameat_with(&old.place, from.name, &new.place, to.name, flags)
    }

    fn open(&self, ino: Ino, flags: i32) -> Result<Opened, Errno> {
        let node = self.node(ino)?;
        let file = sys::open(node.path(), open_flags(flags), Mode::empty())?;
        let identity =
            node.kept.look(&self.cache, || sys::fstat(&file).map(|stat| FileIdentity::from(&stat)))?;
        let now = node.kept.is_settled(identity).then_some(identity);
        let before = std::mem::replace(&mut *node.opened.lock(), now);
        // The kernel's pages are still right if the file is the same as when it was last opened.
        Ok(Opened { is_as_held: before == Some(identity), handle: self.keep(file, node) })
    }

    fn create(&self, new: New<'_>, flags: i32) -> Result<(FileAttr, Opened), Errno> {
        let folder = self.node(new.at.parent)?;
        let (first, then) = rights(&folder, new, Mode::RUSR | Mode::WUSR);
        let how = open_flags(flags) | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL;
        let file = match sys::openat(&folder.place, new.at.name, how, first) {
            Ok(file) => file,
            // Another program has made the file since the kernel looked up its name. `STALE` makes the kernel look it
            // up again, and check whether this user may open it.
            Err(Errno::EXIST) if !OFlags::from_bits_retain(flags as u32).contains(OFlags::EXCL) => {
                return Err(Errno::STALE);
            }
            Err(error) => return Err(error),
        };
        self.hand_over(file.as_fd(), &folder, new, then)?;
        let attr = self.look_up(new.at)?;
        let node = self.node(attr.ino.0)?;
        node.kept.look(&self.cache, || sys::fstat(&file).map(|stat| FileIdentity::from(&stat)))?;
        Ok((attr, Opened { is_as_held: false, handle: self.keep(file, node) }))
    }

    fn read(&self, _: Ino, handle: FileHandle, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let handle = self.handle(handle)?;
        handle.node.kept.read(&self.cache, &*handle, offset, into)
    }

    fn write(&self, _: Ino, handle: FileHandle, write: Write<'_>) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        let node = &handle.node;
        if write.drops_set_ids {
            drop_set_ids(node)?;
        }
        // The offset is the end of the file as the kernel knows it. Other programs may have appended since then.
        if write.appends {
            let append = || append(&handle.file, write.data);
            return node.kept.change(&self.cache, || handle.identity(), append);
        }
        let before = handle.identity()?;
        node.kept.write(&self.cache, &*handle, write.offset, write.data)?;
        let after = handle.identity()?;
        // The kernel has put this write into its pages, so pages of the version before now match the new version.
        let mut opened = node.opened.lock();
        if *opened == Some(before) && node.kept.is_settled(after) {
            *opened = Some(after);
        }
        Ok(())
    }

    fn allocate(&self, _: Ino, handle: FileHandle, allocation: Allocation) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        let Allocation { by_user, offset, bytes, mode } = allocation;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        if by_user != 0 {
            drop_set_ids(&handle.node)?;
        }
        let allocate = || sys::fallocate(&handle.file, mode, offset, bytes);
        handle.node.kept.change(&self.cache, || handle.identity(), allocate)
    }

    fn flush(&self, handle: FileHandle) -> Result<(), Errno> {
        // Some file systems, such as NFS, report failed writes when a descriptor is closed. The file itself is closed
        // later, when no program can get the error any more, so a duplicate descriptor is closed now.
        let handle = self.handle(handle)?;
        let again = rustix::io::fcntl_dupfd_cloexec(&handle.file, 0)?;
        nix::unistd::close(again).map_err(|error| errno(error.into()))
    }

    fn sync(&self, handle: FileHandle, data_only: bool) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        if data_only { sys::fdatasync(&handle.file) } else { sys::fsync(&handle.file) }
    }

    fn sync_folder(&self, ino: Ino) -> Result<(), Errno> {
        let folder = self.node(ino)?;
        sys::fsync(open_folder(&folder)?)
    }

    fn close(&self, _: Ino, handle: FileHandle) {
        self.handles.lock().remove(&handle.0);
    }

    fn entries(&self, ino: Ino) -> Result<Vec<Entry>, Errno> {
        let node = self.node(ino)?;
        let folder = open_folder(&node)?;
        let mut entries = Vec::new();
        for entry in sys::Dir::read_from(&folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let kind = match entry.file_type() {
                // Some file systems do not return types in a listing.
                sys::FileType::Unknown => {
                    match sys::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => sys::FileType::from_raw_mode(stat.st_mode),
                        Err(_) => continue,
                    }
                }
                kind => kind,
            };
            entries.push((name, entry.ino(), file_type(kind)));
        }
        Ok(entries)
    }

    fn space(&self, ino: Ino) -> Result<StatVfs, Errno> {
        sys::statvfs(self.node(ino)?.path())
    }

    fn attribute(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; XATTR_BYTES_MAX];
        match sys::getxattr(self.node(ino)?.path(), name, &mut value[..]) {
            // `OPNOTSUPP` means that the file system has no access control lists. The kernel queries them before other
            // requests, which would then fail with this error.
            Err(Errno::OPNOTSUPP) if name == ACCESS_ACL || name == DEFAULT_ACL => Err(Errno::NODATA),
            found => found.map(|count| value[..count].to_vec()),
        }
    }

    fn attribute_names(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let count = sys::listxattr(self.node(ino)?.path(), &mut names[..])?;
        Ok(names[..count].to_vec())
    }

    fn set_attribute(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
        sys::setxattr(self.node(ino)?.path(), name, value, XattrFlags::from_bits_retain(flags as u32))
    }

    fn remove_attribute(&self, ino: Ino, name: &OsStr) -> Result<(), Errno> {
        sys::removexattr(self.node(ino)?.path(), name)
    }
}

/// Opens the file or folder with a name with `O_PATH`. A symbolic link is not followed.
fn place(folder: &Node, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    sys::openat(&folder.place, name, flags, Mode::empty())
}

/// Opens a folder to read its entries.
fn open_folder(folder: &Node) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    sys::openat(&folder.place, ".", flags, Mode::empty())
}

/// Change of the permissions of a new file or folder after its owner was set.
#[derive(Clone, Copy)]
enum Then {
    Keeps,
    /// Adds these set-user-ID and set-group-ID bits, because setting the owner has cleared them.
    Gains(u32),
    Gets(u32),
}

/// Returns the permissions with which a new file or folder is made, and the change to make after its owner was set.
/// The first ones (`alone`) keep all other users out until then. In a folder with a default access control list
/// (acl(5)), the file system beneath computes the permissions instead.
fn rights(folder: &Node, new: New<'_>, alone: Mode) -> (Mode, Then) {
    match sys::getxattr_query(folder.path(), DEFAULT_ACL) {
        Ok(bytes) if bytes > 0 => (Mode::from_raw_mode(new.mode & 0o1777), Then::Gains(new.mode & 0o6000)),
        _ => (alone, Then::Gets(new.mode & !new.umask)),
    }
}

/// Clears the set-user-ID and set-group-ID bits of a file that a user other than root changes. With the feature
/// `FUSE_HANDLE_KILLPRIV_V2`, the kernel leaves that to the file system.
fn drop_set_ids(node: &Node) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(node.stat()?.st_mode & 0o7777);
    // The set-group-ID bit stays if there is no group execute permission: it then means mandatory locking.
    let set_ids = if mode.contains(Mode::XGRP) { Mode::SUID | Mode::SGID } else { Mode::SUID };
    if mode.intersects(set_ids) {
        sys::chmodat(CWD, node.path(), mode.difference(set_ids), AtFlags::empty())?;
    }
    Ok(())
}

/// Returns the flags to open a file with. The kernel handles appending, caching and truncation itself, so those flags
/// are removed.
fn open_flags(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags as u32);
    let without =
        OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::DIRECT;
    (flags - without) | OFlags::CLOEXEC
}
