//! A scratch folder: a mounted file system in far memory, for temporary files. It is empty at first.
//!
//! The idea: names and attributes are in this process ([`Tree`]). The contents of each file are a temporary file in a
//! pool of far memory (the far file), which is created at the first write. In front of both is the kernel's page cache.
//! It gathers small writes, sends them in the background and reads ahead, so an idle or small file costs no round trip.
//!
//! The bad case is a write that the kernel has already acknowledged to the program and the pool then refuses. A later
//! read must not return the old bytes or zeros. Therefore the file is marked as damaged, and reads of it fail with
//! `EIO` until it is truncated to length 0. The option `write_through` avoids that: a write then returns only when the
//! pool has the bytes, at the price of a round trip each.

use crate::adapter::{Allocation, Changes, Files, New, Opened, Write};
use crate::complaints::Complaints;
use crate::listings::Entry;
use crate::tree::{
    AttributeChange, Attributes, Ino, Kind, NAME_BYTES_MAX, Name, NewOwner, Rename, TYPE_BITS, Tree,
};
use farpool_files::plan::EXTENT_BYTES_MIN;
use farpool_files::units::show_bytes;
use farpool_files::{CreateOptions, ErrorKind, FarFile, FileClass, Pool};
use farpool_lock::Mutex;
use fuser::{FileAttr, FileHandle, FileType, INodeNo, InitFlags, TimeOrNow};
use rustix::fs::{FallocateFlags, RenameFlags, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Time for which the kernel may cache names and attributes. It is long because only the kernel changes them.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Block size that `stat` and `statfs` report, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Unit of `st_blocks`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;
/// Result of every open. The kernel may keep its pages, because only it changes files. All opens share one handle,
/// because the inode number already names the file.
const OPENED: Opened = Opened { handle: FileHandle(0), is_as_held: true };
/// Zeros to write over a range that a program punches out of a file or sets to zero.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Options of a scratch folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchOptions {
    /// Limit for the bytes of all files together, each rounded up to what it takes in the pool. `None` means as many as
    /// the pool has.
    pub quota_bytes: Option<u64>,
    /// Limit for the number of files, folders and further names. A symbolic link counts once more for each KiB of its
    /// target. `None` means as many as fit the memory of this process.
    pub files_max: Option<u64>,
    /// Options of the files in far memory.
    pub create: CreateOptions,
    /// True if a write returns only when the pool has its bytes. If false, the kernel gathers writes, and a failed one
    /// is reported when the file is flushed, closed or read.
    pub write_through: bool,
}

/// Contents of a file of the folder. `length` is in bytes.
struct Contents {
    /// File in far memory with the bytes. `None` before the first write.
    far: Option<FarFile>,
    length: u64,
    /// Number of bytes, from the start of the file on, that are counted against [`ScratchOptions::quota_bytes`]. A
    /// multiple of the smallest extent.
    used_to: u64,
    /// True if a write that the kernel had acknowledged failed. The file cannot be read until it is truncated to length
    /// 0.
    is_damaged: bool,
}

pub(crate) struct Scratch {
    pool: Pool,
    options: ScratchOptions,
    tree: Mutex<Tree>,
    contents: Mutex<HashMap<Ino, Arc<Mutex<Contents>>>>,
    used_bytes: AtomicU64,
    prefix: String,
    complaints: Complaints,
}

/// Number of the next scratch folder that this process mounts. The number is part of the names of its files in the
/// pool, so that two folders never use the same name.
static MOUNTS: AtomicU64 = AtomicU64::new(0);

impl Scratch {
    /// Creates an empty file system, the root of which has the owner and permissions of `folder`.
    pub(crate) fn new(
        pool: &Pool,
        options: ScratchOptions,
        folder: &Metadata,
        complaints: Complaints,
    ) -> Scratch {
        let permissions = (folder.mode() & 0o7777) as u16;
        let (user, group, now) = (folder.uid(), folder.gid(), SystemTime::now());
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let count_max = options.files_max.unwrap_or(u64::MAX);
        Scratch {
            pool: pool.clone(),
            options,
            tree: Mutex::new(Tree::new(NewOwner { user, group, permissions, now }, count_max)),
            contents: Mutex::default(),
            used_bytes: AtomicU64::new(0),
            prefix: format!("scratch folder {number}: file"),
            complaints,
        }
    }

    fn contents(&self, ino: Ino) -> Result<Arc<Mutex<Contents>>, Errno> {
        self.contents.lock().get(&ino).cloned().ok_or(Errno::STALE)
    }

    fn length(&self, ino: Ino) -> u64 {
        self.contents(ino).map_or(0, |contents| contents.lock().length)
    }

    fn make_node(&self, new: New<'_>, kind: Kind) -> Result<Ino, Errno> {
        let is_file = kind == Kind::File;
        let maker = NewOwner {
            user: new.user,
            group: new.group,
            permissions: (new.mode & 0o7777) as u16,
            now: SystemTime::now(),
        };
        let ino = self.tree.lock().make(new.at, kind, maker)?;
        if is_file {
            let empty = Contents { far: None, length: 0, used_to: 0, is_damaged: false };
            self.contents.lock().insert(ino, Arc::new(Mutex::new(empty)));
        }
        Ok(ino)
    }

    /// Deletes the contents of a file. Its bytes no longer count against the quota.
    fn drop_contents(&self, ino: Ino) {
        let Some(contents) = self.contents.lock().remove(&ino) else { return };
        let mut contents = contents.lock();
        self.used_bytes.fetch_sub(contents.used_to, Ordering::Relaxed);
        contents.used_to = 0;
        if let Some(far) = contents.far.take()
            && let Err(error) = self.pool.delete(&far.name())
        {
            self.complaints.tell(&error.to_string());
        }
    }

    /// Counts the file's bytes up to `end` against the quota. Fails if the quota is used up.
    fn use_to(&self, contents: &mut Contents, end: u64) -> Result<(), Errno> {
        let more = in_extents(end).saturating_sub(contents.used_to);
        let limit = self.options.quota_bytes.map_or(u64::MAX, in_extents);
        let within = |used: u64| used.checked_add(more).filter(|used| *used <= limit);
        if more > 0 && self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            let limit = show_bytes(self.options.quota_bytes.unwrap_or(u64::MAX));
            self.complaints
                .tell(&format!("the files have reached the quota of {limit}; writes find no space"));
            return Err(Errno::NOSPC);
        }
        contents.used_to += more;
        Ok(())
    }

    fn failed(&self, error: &farpool_files::Error) -> Errno {
        self.complaints.tell(&error.to_string());
        match error.kind() {
            ErrorKind::Exhausted => Errno::NOSPC,
            ErrorKind::Invalid => Errno::FBIG,
            _ => Errno::IO,
        }
    }

    fn write_contents(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let contents = self.contents(ino)?;
        let mut held = contents.lock();
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        self.use_to(&mut held, end)?;
        let far = match &held.far {
            Some(far) => far.clone(),
            None => {
                let name = format!("{} {ino}", self.prefix);
                let made = self.pool.create(&name, FileClass::Scratch, self.options.create);
                let far = made.map_err(|error| self.failed(&error))?;
                if let Err(error) = far.truncate(held.length) {
                    // Otherwise the name would still be taken when the write is retried.
                    drop(self.pool.delete(&name));
                    return Err(self.failed(&error));
                }
                held.far.insert(far).clone()
            }
        };
        let before = held.length;
        held.length = before.max(end);
        // The lock is not held during the write. The kernel sends overlapping writes to one file one after another, so
        // concurrent ones go to different ranges.
        drop(held);
        let Err(error) = far.write_at(offset, data) else { return Ok(()) };
        let mut held = contents.lock();
        // If `write_through` is set, the program sees the error and may append the same bytes again. It must then find
        // the old end of the file.
        if self.options.write_through && held.length == end && before < end && far.truncate(before).is_ok() {
            held.length = before;
        }
        Err(self.failed(&error))
    }

    fn truncate(&self, ino: Ino, length: u64) -> Result<(), Errno> {
        let contents = self.contents(ino)?;
        let mut held = contents.lock();
        if let Some(far) = &held.far {
            far.truncate(length).map_err(|error| self.failed(&error))?;
        }
        let over = held.used_to.saturating_sub(in_extents(length));
        held.used_to -= over;
        self.used_bytes.fetch_sub(over, Ordering::Relaxed);
        held.length = length;
        held.is_damaged &= length > 0;
        Ok(())
    }

    /// Marks a file as damaged: an acknowledged write failed, and the file must not be read as if the write had never
    /// been made.
    fn damage(&self, ino: Ino) {
        if !self.options.write_through
            && let Ok(contents) = self.contents(ino)
        {
            contents.lock().is_damaged = true;
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

    /// Implements fallocate(2): grows a file, or sets a range to zero. `mode` has its flags.
    fn reserve(&self, ino: Ino, offset: u64, bytes: u64, mode: i32) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE if keeps_size => return self.zero(ino, offset, bytes),
            FallocateFlags::ZERO_RANGE => self.zero(ino, offset, bytes)?,
            nothing if nothing.is_empty() => {}
            _ => return Err(Errno::OPNOTSUPP),
        }
        let end = offset.checked_add(bytes).ok_or(Errno::FBIG)?;
        if !keeps_size {
            let contents = self.contents(ino)?;
            let mut held = contents.lock();
            // A concurrent write may have made the file longer already.
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
}

/// Rounds a length up to what it takes in the pool, where a file of one byte takes an extent.
fn in_extents(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(EXTENT_BYTES_MIN).unwrap_or(u64::MAX)
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

impl Files for Scratch {
    fn wishes(&self) -> InitFlags {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS;
        if !self.options.write_through {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        wanted
    }

    fn max_age(&self) -> Duration {
        REMEMBERED
    }

    fn look_up(&self, at: Name<'_>) -> Result<FileAttr, Errno> {
        let found = self.tree.lock().look_up(at);
        if found == Err(Errno::NOENT) {
            return Ok(file_attr(0, &Attributes::of_nothing(), 0));
        }
        self.attributes(found?)
    }

    fn forget(&self, ino: Ino, times: u64) {
        self.tree.lock().forget(ino, times);
    }

    fn attributes(&self, ino: Ino) -> Result<FileAttr, Errno> {
        let attributes = self.tree.lock().attributes(ino)?.clone();
        let size = match &attributes.kind {
            Kind::File => self.length(ino),
            Kind::Link(target) => target.len() as u64,
            Kind::Folder | Kind::Special(..) => 0,
        };
        Ok(file_attr(ino, &attributes, size))
    }

    fn change(&self, ino: Ino, changes: Changes) -> Result<FileAttr, Errno> {
        let now = SystemTime::now();
        let time = |wished| match wished {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => now,
        };
        if let Some(size) = changes.size {
            self.truncate(ino, size)?;
        }
        let wish = AttributeChange {
            permissions: changes.mode.map(|mode| (mode & 0o7777) as u16),
            user: changes.user,
            group: changes.group,
            accessed: changes.accessed.map(time),
            modified: changes.modified.map(time).or(changes.size.map(|_| now)),
            changed: changes.changed,
        };
        self.tree.lock().set(ino, wish, now)?;
        self.attributes(ino)
    }

    fn target(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        match &self.tree.lock().attributes(ino)?.kind {
            Kind::Link(target) => Ok(target.clone().into_vec()),
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&self, new: New<'_>, kind: Kind) -> Result<FileAttr, Errno> {
        self.attributes(self.make_node(new, kind)?)
    }

    fn link(&self, ino: Ino, at: Name<'_>) -> Result<FileAttr, Errno> {
        self.tree.lock().link(ino, at, SystemTime::now())?;
        self.attributes(ino)
    }

    fn unlink(&self, at: Name<'_>) -> Result<(), Errno> {
        let over = self.tree.lock().unlink(at, SystemTime::now())?;
        if let Some(over) = over {
            self.drop_contents(over);
        }
        Ok(())
    }

    fn remove_folder(&self, at: Name<'_>) -> Result<(), Errno> {
        self.tree.lock().remove_folder(at, SystemTime::now())
    }

    fn rename(&self, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<(), Errno> {
        let how = match flags {
            RenameFlags::NOREPLACE => Rename::Refuses,
            RenameFlags::EXCHANGE => Rename::Exchanges,
            flags if flags.is_empty() => Rename::Replaces,
            _ => return Err(Errno::INVAL),
        };
        let now = SystemTime::now();
        let over = self.tree.lock().rename(from, to, how, now)?;
        if let Some(over) = over {
            self.drop_contents(over);
        }
        Ok(())
    }

    fn open(&self, ino: Ino, _flags: i32) -> Result<Opened, Errno> {
        self.tree.lock().open(ino)?;
        Ok(OPENED)
    }

    fn create(&self, new: New<'_>, _flags: i32) -> Result<(FileAttr, Opened), Errno> {
        let ino = self.make_node(new, Kind::File)?;
        self.tree.lock().open(ino)?;
        Ok((self.attributes(ino)?, OPENED))
    }

    fn read(&self, ino: Ino, _: FileHandle, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let contents = self.contents(ino)?;
        let (far, length) = {
            let held = contents.lock();
            if held.is_damaged {
                return Err(Errno::IO);
            }
            (held.far.clone(), held.length)
        };
        let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        let into = &mut into[..count];
        // Zero is the value of bytes that were never written, and of bytes beyond the end of the far file. The latter
        // are within `length` already while their write has not finished.
        into.fill(0);
        let Some(far) = far else { return Ok(count) };
        loop {
            let there = far.length().saturating_sub(offset).min(count as u64);
            match far.read_at(offset, &mut into[..there as usize]) {
                Ok(_) => return Ok(count),
                // The file was truncated meanwhile. The loop reads again, up to the new end.
                Err(error) if error.kind() == ErrorKind::Invalid && far.length() < offset + there => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn write(&self, ino: Ino, _: FileHandle, write: Write<'_>) -> Result<(), Errno> {
        let written = self.write_contents(ino, write.offset, write.data);
        match written {
            Ok(()) => self.tree.lock().written(ino, SystemTime::now()),
            Err(_) => self.damage(ino),
        }
        written
    }

    fn allocate(&self, ino: Ino, _: FileHandle, allocation: Allocation) -> Result<(), Errno> {
        let Allocation { offset, bytes, mode, .. } = allocation;
        self.reserve(ino, offset, bytes, mode)?;
        self.tree.lock().written(ino, SystemTime::now());
        Ok(())
    }

    // The kernel has sent all earlier writes before `flush` or `sync`, so the pool has them. A scratch folder promises
    // no more than that.
    fn flush(&self, _: FileHandle) -> Result<(), Errno> {
        Ok(())
    }

    fn sync(&self, _: FileHandle, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn sync_folder(&self, _: Ino) -> Result<(), Errno> {
        Ok(())
    }

    fn close(&self, ino: Ino, _: FileHandle) {
        // This is a statement of its own, so that the lock on the tree is released before the contents are deleted.
        let is_over = self.tree.lock().close(ino);
        if is_over {
            self.drop_contents(ino);
        }
    }

    fn entries(&self, ino: Ino) -> Result<Vec<Entry>, Errno> {
        let tree = self.tree.lock();
        let typed = |(name, ino): (OsString, Ino)| {
            let kind = tree.attributes(ino).map_or(FileType::Directory, |found| file_type(&found.kind).0);
            (name, ino, kind)
        };
        Ok(tree.entries(ino)?.into_iter().map(typed).collect())
    }

    fn space(&self, _: Ino) -> Result<StatVfs, Errno> {
        let used = self.used_bytes.load(Ordering::Relaxed);
        let free = match self.options.quota_bytes {
            // The answer must not wait for a broker: it is how others see that this process is well.
            Some(quota) => quota.saturating_sub(used),
            None => self.pool.status().map_or(0, |status| {
                let usable = status.nodes.iter().filter(|node| node.alive && !node.draining);
                usable.map(|node| u64::from(node.counts.free) * node.info.region_bytes).sum()
            }),
        };
        let (blocks, free) = ((used + free) / BLOCK_BYTES, free / BLOCK_BYTES);
        let files = self.tree.lock().count();
        // Programs show absurd shares for a total of nearly 2^64.
        let free_files =
            self.options.files_max.unwrap_or(u64::MAX).saturating_sub(files).min(u32::MAX.into());
        Ok(StatVfs {
            f_bsize: BLOCK_BYTES,
            f_frsize: BLOCK_BYTES,
            f_blocks: blocks,
            f_bfree: free,
            f_bavail: free,
            f_files: files + free_files,
            f_ffree: free_files,
            f_favail: free_files,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: NAME_BYTES_MAX as u64,
        })
    }
}
