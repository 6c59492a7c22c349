//! Adapter between the kernel's FUSE requests and the two kinds of mounted folders: scratch folders, whose contents are
//! in far memory only, and cached folders, which show a folder of this machine.
//!
//! The idea: a FUSE request has many parameters, and a reply type of its own. [`Adapter`] is the only place that
//! handles them. It also keeps the listings of open folders. Each kind of folder implements [`Files`], with plain
//! values and errors.

use crate::listings::{Entry, Listings};
use crate::tree::{Ino, Kind, Name, TYPE_BITS};
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{OFlags, RenameFlags, StatVfs};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Limit for the bytes that the kernel reads or writes by one request.
const TRANSFER_BYTES: u32 = 1 << 20;
/// Limit for the background requests (writes and read-ahead) that the kernel may have outstanding at once.
const UNDER_WAY: u16 = 64;
const GENERATION: Generation = Generation(0);
const NO_ATTRIBUTES: Errno = Errno::NOSYS;

/// New file or folder: its name, permissions and owner.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) at: Name<'a>,
    /// Permissions, as in `st_mode`.
    pub(crate) mode: u32,
    /// Permission bits to remove. Only used where the kernel leaves that to the file system
    /// ([`InitFlags::FUSE_DONT_MASK`]).
    pub(crate) umask: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Attributes to change. `None` leaves an attribute as it is. `by_user` is the id of the user who asks. `accessed`,
/// `modified` and `changed` are times.
pub(crate) struct Changes {
    pub(crate) by_user: u32,
    pub(crate) mode: Option<u32>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<TimeOrNow>,
    pub(crate) modified: Option<TimeOrNow>,
    pub(crate) changed: Option<SystemTime>,
    /// Handle of the open file, if the program named the file by a descriptor (as `ftruncate` does).
    pub(crate) handle: Option<FileHandle>,
}

/// Data to write at an offset of a file.
pub(crate) struct Write<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// True if the file is open for appending.
    pub(crate) appends: bool,
    /// True if the file must lose its set-user-ID and set-group-ID bits, because the writer is not root.
    pub(crate) drops_set_ids: bool,
}

/// Arguments of fallocate(2), and the id of the user who asks.
pub(crate) struct Allocation {
    pub(crate) by_user: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) mode: i32,
}

/// Handle of an opened file.
pub(crate) struct Opened {
    pub(crate) handle: FileHandle,
    /// True if the kernel may keep its cached pages of the file, because the file has not changed since they were read.
    pub(crate) is_as_held: bool,
}

/// Operations of a mounted folder. The kernel checks permissions and handles file locks before it calls them. A node is
/// a file, a folder or a special file, and `ino` is its inode number. Each [`FileAttr`] that is returned for a name
/// counts as one more reference that the kernel holds to the node, until [`Files::forget`].
pub(crate) trait Files: Send + Sync + 'static {
    /// Returns the kernel features to use if the kernel has them. Without one of them, operations are only slower.
    fn wishes(&self) -> InitFlags;
    /// Returns how long the kernel may cache names and attributes.
    fn max_age(&self) -> Duration;

    /// Returns the node of a name. Inode number 0 means that the name does not exist, which the kernel may cache too.
    fn look_up(&self, at: Name<'_>) -> Result<FileAttr, Errno>;
    /// Drops `times` of the kernel's references to a node.
    fn forget(&self, ino: Ino, times: u64);
    fn attributes(&self, ino: Ino) -> Result<FileAttr, Errno>;
    fn change(&self, ino: Ino, changes: Changes) -> Result<FileAttr, Errno>;
    fn target(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    fn make(&self, new: New<'_>, kind: Kind) -> Result<FileAttr, Errno>;
    fn link(&self, ino: Ino, at: Name<'_>) -> Result<FileAttr, Errno>;
    fn unlink(&self, at: Name<'_>) -> Result<(), Errno>;
    fn remove_folder(&self, at: Name<'_>) -> Result<(), Errno>;
    fn rename(&self, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<(), Errno>;

    fn open(&self, ino: Ino, flags: i32) -> Result<Opened, Errno>;
    fn create(&self, new: New<'_>, flags: i32) -> Result<(FileAttr, Opened), Errno>;
    /// Reads until the buffer is full or the file ends.
    fn read(&self, ino: Ino, handle: FileHandle, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;
    /// Writes all of the data.
    fn write(&self, ino: Ino, handle: FileHandle, write: Write<'_>) -> Result<(), Errno>;
    fn allocate(&self, ino: Ino, handle: FileHandle, allocation: Allocation) -> Result<(), Errno>;
    /// Called when a program closes a descriptor of an open file. Other descriptors of it may remain.
    fn flush(&self, handle: FileHandle) -> Result<(), Errno>;
    fn sync(&self, handle: FileHandle, data_only: bool) -> Result<(), Errno>;
    fn sync_folder(&self, ino: Ino) -> Result<(), Errno>;
    fn close(&self, ino: Ino, handle: FileHandle);

    fn entries(&self, ino: Ino) -> Result<Vec<Entry>, Errno>;
    fn space(&self, ino: Ino) -> Result<StatVfs, Errno>;

    fn attribute(&self, _ino: Ino, _name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(NO_ATTRIBUTES)
    }
    fn attribute_names(&self, _ino: Ino) -> Result<Vec<u8>, Errno> {
        Err(NO_ATTRIBUTES)
    }
    fn set_attribute(&self, _ino: Ino, _name: &OsStr, _value: &[u8], _flags: i32) -> Result<(), Errno> {
        Err(NO_ATTRIBUTES)
    }
    fn remove_attribute(&self, _ino: Ino, _name: &OsStr) -> Result<(), Errno> {
        Err(NO_ATTRIBUTES)
    }
}

/// Implements the kernel's interface over a kind of folder.
pub(crate) struct Adapter<F> {
    files: F,
    listings: Listings,
}

thread_local! {
    // Buffer for the data of reads. It is kept, so that a read does not allocate memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<F: Files> Adapter<F> {
    pub(crate) fn new(files: F) -> Adapter<F> {
        Adapter { files, listings: Listings::default() }
    }

    fn entry(&self, found: Result<FileAttr, Errno>, reply: ReplyEntry) {
        match found {
            Ok(attr) => reply.entry(&self.files.max_age(), &attr, GENERATION),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn attributes(&self, found: Result<FileAttr, Errno>, reply: ReplyAttr) {
        match found {
            Ok(attr) => reply.attr(&self.files.max_age(), &attr),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

fn answer(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies to a request for an extended attribute: with its size if `size` is 0, or with the value if it fits.
fn answer_xattr(found: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::ERANGE),
        Err(error) => reply.error(errno(error)),
    }
}

fn at(parent: INodeNo, name: &OsStr) -> Name<'_> {
    Name { parent: parent.0, name }
}

fn new<'a>(by: &Request, parent: INodeNo, name: &'a OsStr, mode: u32, umask: u32) -> New<'a> {
    New { at: at(parent, name), mode, umask, user: by.uid(), group: by.gid() }
}

fn cache_flags(opened: &Opened) -> FopenFlags {
    if opened.is_as_held { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
}

impl<F: Files> Filesystem for Adapter<F> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(self.files.wishes() & config.capabilities());
        // Each request waits for far memory, so few large requests are faster than many small ones.
        for set in [KernelConfig::set_max_write, KernelConfig::set_max_readahead] {
            if let Err(nearest) = set(config, TRANSFER_BYTES) {
                let _ = set(config, nearest);
            }
        }
        let _ = config.set_max_background(UNDER_WAY);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.files.look_up(at(parent, name)), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, times: u64) {
        self.files.forget(ino.0, times);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attributes(self.files.attributes(ino.0), reply);
    }

    fn setattr(
        &self,
        by: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let by_user = by.uid();
        let changes = Changes { by_user, mode, user, group, size, accessed, modified, changed, handle };
        self.attributes(self.files.change(ino.0, changes), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.files.target(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        by: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = match mode & TYPE_BITS {
            0 | 0o100_000 => Kind::File,
            bits => Kind::Special(bits, device),
        };
        self.entry(self.files.make(new(by, parent, name, mode, umask), kind), reply);
    }

    fn mkdir(&self, by: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.entry(self.files.make(new(by, parent, name, mode, umask), Kind::Folder), reply);
    }

    fn symlink(&self, by: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = Kind::Link(target.as_os_str().to_owned());
        self.entry(self.files.make(new(by, parent, name, 0o777, 0), kind), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.files.link(ino.0, at(parent, name)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.files.unlink(at(parent, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.files.remove_folder(at(parent, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = RenameFlags::from_bits_retain(flags.bits());
        answer(self.files.rename(at(parent, name), at(new_parent, new_name), flags), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.files.open(ino.0, flags.0) {
            Ok(opened) => reply.opened(opened.handle, cache_flags(&opened)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        by: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.files.create(new(by, parent, name, mode, umask), flags) {
            Ok((attr, opened)) => {
                let (max_age, flags) = (self.files.max_age(), cache_flags(&opened));
                reply.created(&max_age, &attr, GENERATION, opened.handle, flags);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.files.read(ino.0, handle, offset, &mut buffer[..size]) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let appends = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let drops_set_ids = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.files.write(ino.0, handle, Write { offset, data, appends, drops_set_ids }) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(self.files.flush(handle), reply);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.close(ino.0, handle);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        answer(self.files.sync(handle, data_only), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.files.entries(ino.0) {
            Ok(entries) => reply.opened(self.listings.open(entries), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.listings.read(handle, offset, reply);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.close(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer(self.files.sync_folder(ino.0), reply);
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.files.space(ino.0) {
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
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer(self.files.set_attribute(ino.0, name, value, flags), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(self.files.attribute(ino.0, name), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(self.files.attribute_names(ino.0), size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.files.remove_attribute(ino.0, name), reply);
    }

    fn fallocate(
        &self,
        by: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocation = Allocation { by_user: by.uid(), offset, bytes, mode };
        answer(self.files.allocate(ino.0, handle, allocation), reply);
    }
}
