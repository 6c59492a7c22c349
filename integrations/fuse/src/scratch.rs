//! An empty file system in far memory, for temporary files.
//!
//! The idea: names and attributes are here ([`Tree`]), contents are scratch files of the pool, one for each file once something
//! is written. The kernel's page cache stands before it: it gathers small writes and sends them behind the writer's back, and
//! reads ahead. What it sent and the pool did not take is known by the far file, which refuses to read it: such a file answers
//! `EIO`, never other bytes.

use crate::complaints::Complaints;
use crate::listings::Listings;
use crate::tree::{Attributes, Ino, Kind, Maker, NAME_BYTES_MAX, Rename, Tree, Wish};
use crate::{answer, errno, lock, read_into, widen};
use farpool::{CreateOptions, ErrorKind, FarFile, FileClass, Pool};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// Nobody but the kernel changes anything here, so what it was told stays true.
const REMEMBERED: Duration = Duration::from_secs(3600);
const GENERATION: Generation = Generation(0);
/// Blocks of `statfs` and `stat`.
const BLOCK_BYTES: u64 = 4096;
const STAT_BLOCK_BYTES: u64 = 512;
const TYPE_BITS: u32 = 0o170_000;
/// Bytes that are zeroed at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How a scratch folder behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchOptions {
    /// Bytes that its files may hold, all together. Nothing: as many as the pool has.
    pub quota_bytes: Option<u64>,
    /// How its files are made; their class is always scratch.
    pub create: CreateOptions,
    /// Whether a write is in the pool when it returns. Otherwise the kernel gathers writes, and one that fails is told of when
    /// the file is flushed, closed or read.
    pub write_through: bool,
}

/// What a file holds.
struct Contents {
    /// Made once something is written.
    far: Option<FarFile>,
    length: u64,
    /// Bytes before this one count as used.
    used_to: u64,
    /// A write that the kernel had promised to somebody failed: what was there is not what should be.
    is_damaged: bool,
}

pub(crate) struct Scratch {
    pool: Pool,
    options: ScratchOptions,
    tree: Mutex<Tree>,
    contents: Mutex<HashMap<Ino, Arc<Mutex<Contents>>>>,
    listings: Listings,
    used_bytes: AtomicU64,
    prefix: String,
    complaints: Complaints,
}

/// Tells the mounts of one process apart, whose far files share a namespace.
static MOUNTS: AtomicU64 = AtomicU64::new(0);

impl Scratch {
    /// An empty folder of this owner.
    pub(crate) fn new(
        pool: &Pool,
        options: ScratchOptions,
        (user, group): (u32, u32),
        permissions: u16,
        complaints: Complaints,
    ) -> Scratch {
        let now = SystemTime::now();
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        Scratch {
            pool: pool.clone(),
            options,
            tree: Mutex::new(Tree::new(Maker { user, group, permissions, now })),
            contents: Mutex::default(),
            listings: Listings::default(),
            used_bytes: AtomicU64::new(0),
            prefix: format!("scratch folder {number}: file"),
            complaints,
        }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    fn contents(&self, ino: Ino) -> Result<Arc<Mutex<Contents>>, Errno> {
        lock(&self.contents).get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    fn length(&self, ino: Ino) -> u64 {
        self.contents(ino).map_or(0, |contents| lock(&contents).length)
    }

    /// What `stat` tells.
    fn attributes(&self, ino: Ino) -> Result<FileAttr, Errno> {
        let attributes = self.tree().attributes(ino).map_err(errno)?.clone();
        let size = match &attributes.kind {
            Kind::File => self.length(ino),
            Kind::Link(target) => target.len() as u64,
            Kind::Folder | Kind::Special(..) => 0,
        };
        Ok(file_attr(ino, &attributes, size))
    }

    fn entry(&self, found: Result<Ino, Errno>, reply: ReplyEntry) {
        match found.and_then(|ino| self.attributes(ino)) {
            Ok(attr) => reply.entry(&REMEMBERED, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: Kind,
        mode: u32,
    ) -> Result<Ino, Errno> {
        let is_file = kind == Kind::File;
        let maker = Maker {
            user: request.uid(),
            group: request.gid(),
            permissions: (mode & 0o7777) as u16,
            now: SystemTime::now(),
        };
        let ino = self.tree().make(parent.0, name, kind, maker).map_err(errno)?;
        if is_file {
            let empty = Contents { far: None, length: 0, used_to: 0, is_damaged: false };
            lock(&self.contents).insert(ino, Arc::new(Mutex::new(empty)));
        }
        Ok(ino)
    }

    /// Frees what a file held.
    fn drop_contents(&self, ino: Ino) {
        let Some(contents) = lock(&self.contents).remove(&ino) else { return };
        let mut contents = lock(&contents);
        self.used_bytes.fetch_sub(contents.used_to, Ordering::Relaxed);
        contents.used_to = 0;
        if let Some(far) = contents.far.take()
            && let Err(error) = self.pool.delete(&far.name())
        {
            self.complaints.tell(&error.to_string());
        }
    }

    /// Counts bytes up to there as used, if the quota leaves them.
    fn use_to(&self, contents: &mut Contents, end: u64) -> Result<(), Errno> {
        let more = end.saturating_sub(contents.used_to);
        let limit = self.options.quota_bytes.unwrap_or(u64::MAX);
        let within = |used: u64| used.checked_add(more).filter(|used| *used <= limit);
        if more > 0 && self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            self.complaints.tell(&format!("the quota of {limit} bytes is used up"));
            return Err(Errno::ENOSPC);
        }
        contents.used_to += more;
        Ok(())
    }

    fn failed(&self, error: &farpool::Error) -> Errno {
        self.complaints.tell(&error.to_string());
        match error.kind() {
            ErrorKind::Exhausted => Errno::ENOSPC,
            ErrorKind::Invalid => Errno::EFBIG,
            _ => Errno::EIO,
        }
    }

    fn write_contents(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let contents = self.contents(ino)?;
        let mut held = lock(&contents);
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        self.use_to(&mut held, end)?;
        let far = match &held.far {
            Some(far) => far.clone(),
            None => {
                let name = format!("{} {ino}", self.prefix);
                let made = self.pool.create(&name, FileClass::Scratch, self.options.create);
                let far = made.map_err(|error| self.failed(&error))?;
                if let Err(error) = far.truncate(held.length) {
                    // Its name is free again for the next try.
                    drop(self.pool.delete(&name));
                    return Err(self.failed(&error));
                }
                held.far.insert(far).clone()
            }
        };
        let before = held.length;
        held.length = before.max(end);
        // Writes to one file at once go to different places: the kernel sees to it.
        drop(held);
        let Err(error) = far.write_at(offset, data) else { return Ok(()) };
        let mut held = lock(&contents);
        // Whoever waits for it is told, and may try again at the same end.
        if self.options.write_through && held.length == end && before < end && far.truncate(before).is_ok() {
            held.length = before;
        }
        Err(self.failed(&error))
    }

    fn read_contents(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let contents = self.contents(ino)?;
        let (far, length) = {
            let held = lock(&contents);
            if held.is_damaged {
                return Err(Errno::EIO);
            }
            (held.far.clone(), held.length)
        };
        let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        let into = &mut into[..count];
        // What was never written is zero, and so is what is on its way behind the far file's end.
        into.fill(0);
        let Some(far) = far else { return Ok(count) };
        loop {
            let there = far.length().saturating_sub(offset).min(count as u64);
            match far.read_at(offset, &mut into[..there as usize]) {
                Ok(_) => return Ok(count),
                // It was cut off meanwhile.
                Err(error) if error.kind() == ErrorKind::Invalid && far.length() < offset + there => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn truncate(&self, ino: Ino, length: u64) -> Result<(), Errno> {
        let contents = self.contents(ino)?;
        let mut held = lock(&contents);
        if let Some(far) = &held.far {
            far.truncate(length).map_err(|error| self.failed(&error))?;
        }
        let over = held.used_to.saturating_sub(length);
        held.used_to -= over;
        self.used_bytes.fetch_sub(over, Ordering::Relaxed);
        held.length = length;
        held.is_damaged &= length > 0;
        Ok(())
    }

    /// Notes that what somebody was told is written is not: it must not read as if nothing had been there.
    fn damage(&self, ino: Ino) {
        if !self.options.write_through
            && let Ok(contents) = self.contents(ino)
        {
            lock(&contents).is_damaged = true;
        }
    }

    fn zero(&self, ino: Ino, offset: u64, bytes: u64) -> Result<(), Errno> {
        let end = offset.saturating_add(bytes).min(self.length(ino));
        let mut at = offset;
        while at < end {
            let count = (end - at).min(ZEROS.len() as u64);
            self.write_contents(ino, at, &ZEROS[..count as usize])?;
            at += count;
        }
        Ok(())
    }

    fn allocate(&self, ino: Ino, offset: u64, bytes: u64, mode: i32) -> Result<(), Errno> {
        use rustix::fs::FallocateFlags as Mode;
        let mode = Mode::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP)?;
        let keeps_size = mode.contains(Mode::KEEP_SIZE);
        match mode - Mode::KEEP_SIZE {
            Mode::PUNCH_HOLE if keeps_size => return self.zero(ino, offset, bytes),
            Mode::ZERO_RANGE => self.zero(ino, offset, bytes)?,
            nothing if nothing.is_empty() => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        let end = offset.checked_add(bytes).ok_or(Errno::EFBIG)?;
        if !keeps_size {
            let contents = self.contents(ino)?;
            let mut held = lock(&contents);
            // What is written meanwhile may have it longer than this.
            if end > held.length {
                self.use_to(&mut held, end)?;
                if let Some(far) = &held.far {
                    far.truncate(end).map_err(|error| self.failed(&error))?;
                }
                held.length = end;
            }
        }
        Ok(())
    }

    /// Bytes in all, and free ones.
    fn space(&self) -> (u64, u64) {
        let used = self.used_bytes.load(Ordering::Relaxed);
        let free = self.pool.status().map_or(0, |status| {
            let usable = status.nodes.iter().filter(|node| node.alive && !node.draining);
            usable.map(|node| u64::from(node.counts.free) * node.info.region_bytes).sum()
        });
        let free = self.options.quota_bytes.map_or(free, |quota| free.min(quota.saturating_sub(used)));
        (used + free, free)
    }
}

fn file_attr(ino: Ino, attributes: &Attributes, size: u64) -> FileAttr {
    let (kind, rdev) = file_type(&attributes.kind);
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(STAT_BLOCK_BYTES),
        atime: attributes.accessed,
        mtime: attributes.modified,
        ctime: attributes.changed,
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm: attributes.permissions,
        nlink: attributes.links,
        uid: attributes.user,
        gid: attributes.group,
        rdev,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

fn file_type(kind: &Kind) -> (FileType, u32) {
    match kind {
        Kind::File => (FileType::RegularFile, 0),
        Kind::Folder => (FileType::Directory, 0),
        Kind::Link(_) => (FileType::Symlink, 0),
        Kind::Special(bits, number) => match bits & TYPE_BITS {
            0o010_000 => (FileType::NamedPipe, *number),
            0o020_000 => (FileType::CharDevice, *number),
            0o060_000 => (FileType::BlockDevice, *number),
            _ => (FileType::Socket, *number),
        },
    }
}

impl Filesystem for Scratch {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What a kernel does not have makes it slower, and no more.
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS;
        if !self.options.write_through {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        widen(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree().look_up(parent.0, name).map_err(errno);
        if found == Err(Errno::ENOENT) {
            // The kernel need not ask again.
            return reply.entry(&REMEMBERED, &file_attr(0, &Attributes::of_nothing(), 0), GENERATION);
        }
        self.entry(found, reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, times: u64) {
        self.tree().forget(ino.0, times);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Ok(attr) => reply.attr(&REMEMBERED, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = SystemTime::now();
        let time = |wished: Option<TimeOrNow>| {
            wished.map(|wished| match wished {
                TimeOrNow::SpecificTime(time) => time,
                TimeOrNow::Now => now,
            })
        };
        let resized = size.map_or(Ok(()), |size| self.truncate(ino.0, size));
        let wish = Wish {
            permissions: mode.map(|mode| (mode & 0o7777) as u16),
            user,
            group,
            accessed: time(accessed),
            modified: time(modified).or(size.map(|_| now)),
            changed,
        };
        let set = resized.and_then(|()| self.tree().set(ino.0, wish, now).map_err(errno));
        match set.and_then(|()| self.attributes(ino.0)) {
            Ok(attr) => reply.attr(&REMEMBERED, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree().attributes(ino.0) {
            Ok(Attributes { kind: Kind::Link(target), .. }) => reply.data(target.as_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = match mode & TYPE_BITS {
            0 | 0o100_000 => Kind::File,
            bits => Kind::Special(bits, device),
        };
        self.entry(self.make(request, parent, name, kind, mode), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(self.make(request, parent, name, Kind::Folder, mode), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = Kind::Link(target.as_os_str().to_owned());
        self.entry(self.make(request, parent, name, kind, 0o777), reply);
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.tree().link(ino.0, parent.0, name, SystemTime::now());
        self.entry(linked.map(|()| ino.0).map_err(errno), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unlinked = self.tree().unlink(parent.0, name, SystemTime::now());
        if let Ok(Some(over)) = unlinked {
            self.drop_contents(over);
        }
        answer(unlinked.map(drop).map_err(errno), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.tree().remove_folder(parent.0, name, SystemTime::now());
        answer(removed.map_err(errno), reply);
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
        let how = match flags {
            RenameFlags::RENAME_NOREPLACE => Rename::Refuses,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchanges,
            flags if flags.is_empty() => Rename::Replaces,
            _ => return reply.error(Errno::EINVAL),
        };
        let now = SystemTime::now();
        let renamed = self.tree().rename((parent.0, name), (new_parent.0, new_name), how, now);
        if let Ok(Some(over)) = renamed {
            self.drop_contents(over);
        }
        answer(renamed.map(drop).map_err(errno), reply);
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.tree().open(ino.0) {
            // What the kernel has of it is what it is.
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.make(request, parent, name, Kind::File, mode).and_then(|ino| {
            self.tree().open(ino).map_err(errno)?;
            self.attributes(ino)
        });
        match made {
            Ok(attr) => {
                reply.created(&REMEMBERED, &attr, GENERATION, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        read_into(size, reply, |into| self.read_contents(ino.0, offset, into));
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_contents(ino.0, offset, data) {
            Ok(()) => {
                self.tree().written(ino.0, SystemTime::now());
                reply.written(data.len() as u32);
            }
            Err(error) => {
                self.damage(ino.0);
                reply.error(error);
            }
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Apart, or the tree would stay locked.
        let is_over = self.tree().close(ino.0);
        if is_over {
            self.drop_contents(ino.0);
        }
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        // Whatever was written is in the pool, which is all that a scratch file promises.
        reply.ok();
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let listing = {
            let tree = self.tree();
            tree.entries(ino.0).map(|entries| {
                let typed = |(name, ino): (OsString, Ino)| {
                    let kind =
                        tree.attributes(ino).map_or(FileType::Directory, |found| file_type(&found.kind).0);
                    (name, ino, kind)
                };
                entries.into_iter().map(typed).collect()
            })
        };
        match listing {
            Ok(listing) => reply.opened(self.listings.open(listing), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
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
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let (all, free) = self.space();
        let (all, free) = (all / BLOCK_BYTES, free / BLOCK_BYTES);
        let nodes = self.tree().count() as u64;
        let size = BLOCK_BYTES as u32;
        reply.statfs(all, free, free, nodes, u64::from(u32::MAX), size, NAME_BYTES_MAX as u32, size);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.allocate(ino.0, offset, bytes, mode);
        if allocated.is_ok() {
            self.tree().written(ino.0, SystemTime::now());
        }
        answer(allocated, reply);
    }
}
