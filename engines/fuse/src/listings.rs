//! Listings of the folders that programs have open. A program may read a listing in several requests.

use farpool_lock::Mutex;
use fuser::{Errno, FileHandle, FileType, INodeNo, ReplyDirectory};
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name, inode number and type of an entry of a folder.
pub(crate) type Entry = (OsString, u64, FileType);

/// Entries of each open folder by its handle, as they were when it was opened. `next` is the next free handle.
#[derive(Default)]
pub(crate) struct Listings {
    open: Mutex<HashMap<u64, Vec<Entry>>>,
    next: AtomicU64,
}

impl Listings {
    pub(crate) fn open(&self, entries: Vec<Entry>) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, entries);
        FileHandle(number)
    }

    /// Replies with as many entries as fit. `offset` is the index of the first one.
    pub(crate) fn read(&self, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let open = self.open.lock();
        let Some(entries) = open.get(&handle.0) else { return reply.error(Errno::EBADF) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, number, kind)) in entries.iter().enumerate().skip(from) {
            if reply.add(INodeNo(*number), at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    pub(crate) fn close(&self, handle: FileHandle) {
        self.open.lock().remove(&handle.0);
    }
}
