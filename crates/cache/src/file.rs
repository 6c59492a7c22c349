//! A file that is read through a cache and written past it.
//!
//! The file itself stays the truth. Blocks that were read are cached under their versions ([`Blocks`]). Every read
//! first checks the file's identity (its times and length), so that changes by others are seen. A write goes to the
//! file first, and updates the cached blocks before it returns.

use crate::blocks::{Blocks, FileIdentity};
use crate::{BlockCache, Times, Version};
use bytes::Bytes;
use farpool_lock::Mutex;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most blocks that get new versions one by one when a file is resized. If more are affected, the whole file gets a new
/// version, so that none of its cached blocks is found any more.
const RENEWED_MOST: u64 = 4096;

/// File whose blocks are cached.
pub trait OriginFile {
    /// Error of the file's operations.
    type Error;

    /// Returns the `stat` data of the file.
    fn identity(&self) -> Result<FileIdentity, Self::Error>;

    /// Reads until the buffer is full or the file ends. Returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Self::Error>;

    /// Writes all bytes.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// Cache state of one file. All that read and write the file in this process must share one of these.
#[derive(Debug)]
pub struct CachedFile {
    /// Precision of the file's times as signs of a change by others.
    times: Times,
    /// Versions of the file's blocks, under which they are cached; `None` before the file was first looked at.
    blocks: Mutex<Option<Blocks>>,
    /// Lock that is held during a write to the file.
    writing: Mutex<()>,
}

impl CachedFile {
    /// Makes the state of a file of which nothing is known yet.
    pub fn new(times: Times) -> CachedFile {
        CachedFile { times, blocks: Mutex::default(), writing: Mutex::default() }
    }

    /// Reports whether blocks of the file may be cached and found: it has this identity, and a change that others have
    /// made since it was last checked would show.
    pub fn is_settled(&self, identity: FileIdentity) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
        self.blocks.lock().as_ref().is_some_and(|blocks| blocks.is_settled(identity, self.times, now))
    }

    /// Checks and records the file's identity. If it has changed, this first waits for the end of a write through the
    /// cache: a write of ours that is half done looks like a change by others, which invalidates all cached blocks.
    pub fn look<E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<FileIdentity, E>,
    ) -> Result<FileIdentity, E> {
        let seen = identity()?;
        if self.blocks.lock().as_ref().is_some_and(|blocks| blocks.is_of(seen)) {
            return Ok(seen);
        }
        let _writing = self.writing.lock();
        let seen = identity()?;
        self.see(cache, seen);
        Ok(seen)
    }

    /// Records the file's identity.
    fn see(&self, cache: &BlockCache, identity: FileIdentity) {
        self.blocks
            .lock()
            .get_or_insert_with(|| Blocks::new(identity, cache.new_version()))
            .see(identity, || cache.new_version());
    }

    /// Reads until the buffer is full or the file ends. Returns the number of bytes. Missing blocks are read from the
    /// file as whole blocks, and cached.
    pub fn read<S: OriginFile>(
        &self,
        cache: &BlockCache,
        source: &S,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, S::Error> {
        let identity = self.look(cache, || source.identity())?;
        let end = identity.size.min(offset.saturating_add(into.len() as u64));
        if offset >= end {
            return Ok(0);
        }
        if !self.is_settled(identity) {
            return source.read_at(offset, into);
        }
        let step = cache.block_bytes() as u64;
        let mut progress = ReadProgress { into, offset, end, filled: 0 };
        let blocks = offset / step..end.div_ceil(step);
        let wanted: Vec<_> = blocks.clone().map(|block| (self.version(cache, block), block)).collect();
        let mut block = blocks.start;
        // Neighbouring misses are read together.
        for run in cache.get_all(&wanted).chunk_by(|one, next| one.is_none() && next.is_none()) {
            let until = block + run.len() as u64;
            match &run[0] {
                Some(bytes) => progress.take(bytes, block * step),
                None => self.read_blocks(cache, source, identity, block..until, &mut progress)?,
            }
            block = until;
            // A file that was truncated meanwhile has fewer bytes.
            if progress.filled < (block * step).min(end) - offset {
                break;
            }
        }
        Ok(progress.filled as usize)
    }

    fn version(&self, cache: &BlockCache, block: u64) -> Version {
        self.blocks.lock().as_ref().map_or_else(|| cache.new_version(), |blocks| blocks.version(block))
    }

    /// Reads blocks from the file itself, and caches them.
    fn read_blocks<S: OriginFile>(
        &self,
        cache: &BlockCache,
        source: &S,
        identity: FileIdentity,
        blocks: Range<u64>,
        progress: &mut ReadProgress<'_>,
    ) -> Result<(), S::Error> {
        let step = cache.block_bytes();
        let from = blocks.start * step as u64;
        let bytes = identity.size.min(blocks.end * step as u64).saturating_sub(from) as usize;
        // The versions are taken before anything is read: a write in between gives the blocks other versions.
        let versions: Vec<_> = blocks.clone().map(|block| self.version(cache, block)).collect();
        let mut read = vec![0; bytes];
        let count = source.read_at(from, &mut read)?;
        // If others or a write changed the blocks meanwhile, nobody looks for the old versions any more. If the file
        // grew after `identity` and before the versions were taken, only its length shows it.
        let now = self.look(cache, || source.identity())?;
        let is_whole = count == bytes && now.size.min(blocks.end * step as u64) == from + bytes as u64;
        let is_settled = is_whole && self.is_settled(now);
        for ((block, version), bytes) in blocks.zip(versions).zip(read[..count].chunks(step)) {
            if is_settled {
                cache.put(version, block, Bytes::copy_from_slice(bytes));
            }
            progress.take(bytes, block * step as u64);
        }
        Ok(())
    }

    /// Writes to the file, then updates the cached blocks.
    pub fn write<S: OriginFile>(
        &self,
        cache: &BlockCache,
        source: &S,
        offset: u64,
        from: &[u8],
    ) -> Result<(), S::Error> {
        let _writing = self.writing.lock();
        let before = source.identity()?;
        self.see(cache, before);
        let step = cache.block_bytes() as u64;
        let end = offset.saturating_add(from.len() as u64);
        let touched = offset / step..end.div_ceil(step);
        // If the file grows, the block in which it ended gets longer.
        let last = before.size.saturating_sub(1) / step;
        let last = last..last + u64::from(end > before.size);
        let kept: Vec<(u64, Option<Bytes>)> = touched
            .clone()
            .map(|block| {
                let is_whole = offset <= block * step && end >= (block + 1) * step;
                let version = self.version(cache, block);
                let base = if is_whole { None } else { cache.get(version, block) };
                // The block of the old version is useless now, and would take the room of other blocks.
                cache.forget(version, block);
                (block, base)
            })
            .collect();
        let renew = || {
            if let Some(blocks) = &mut *self.blocks.lock() {
                blocks.renew(touched.clone(), || cache.new_version());
                blocks.renew(last.clone(), || cache.new_version());
            }
        };
        renew();
        let written = source.write_at(offset, from);
        renew();
        let after = source.identity()?;
        if let Some(blocks) = &mut *self.blocks.lock() {
            blocks.changed_by_us(after, self.times, || cache.new_version());
        }
        written?;
        if !self.is_settled(after) {
            return Ok(());
        }
        for (block, base) in kept {
            let (at, length) = (block * step, after.size.saturating_sub(block * step).min(step));
            let covered = offset.max(at)..end.min(at + length);
            let mut bytes = match base {
                Some(base) if base.len() as u64 == before.size.saturating_sub(at).min(length) => {
                    base.to_vec()
                }
                _ if covered == (at..at + length) => Vec::new(),
                _ => continue,
            };
            if covered.is_empty() {
                continue;
            }
            bytes.resize(length as usize, 0);
            let part = &from[(covered.start - offset) as usize..(covered.end - offset) as usize];
            bytes[(covered.start - at) as usize..(covered.end - at) as usize].copy_from_slice(part);
            cache.put(self.version(cache, block), block, Bytes::from(bytes));
        }
        Ok(())
    }

    /// Changes the file's length, or sets it to the same one. Cached blocks before the shorter of the two lengths stay:
    /// a database that truncates its file to its own length, as SQLite does after each checkpoint, loses nothing.
    pub fn resize<T, E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<FileIdentity, E>,
        bytes: u64,
        resize: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let writing = self.writing.lock();
        let before = identity()?;
        let step = cache.block_bytes() as u64;
        let touched = before.size.min(bytes) / step..before.size.div_ceil(step);
        if touched.end - touched.start > RENEWED_MOST {
            drop(writing);
            return self.change(cache, identity, resize);
        }
        self.see(cache, before);
        let renew = || {
            if let Some(blocks) = &mut *self.blocks.lock() {
                blocks.renew(touched.clone(), || cache.new_version());
            }
        };
        renew();
        let resized = resize();
        renew();
        let after = identity()?;
        if let Some(blocks) = &mut *self.blocks.lock() {
            blocks.changed_by_us(after, self.times, || cache.new_version());
        }
        resized
    }

    /// Makes a change after which no cached block of the file is valid, such as punching holes.
    pub fn change<T, E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<FileIdentity, E>,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _writing = self.writing.lock();
        let renew = |identity: FileIdentity| {
            *self.blocks.lock() = Some(Blocks::new(identity, cache.new_version()));
        };
        renew(identity()?);
        let changed = change();
        let after = identity()?;
        renew(after);
        if let Some(blocks) = &mut *self.blocks.lock() {
            blocks.changed_by_us(after, self.times, || cache.new_version());
        }
        changed
    }
}

/// A read of `offset..end` whose first `filled` bytes are done.
struct ReadProgress<'a> {
    into: &'a mut [u8],
    offset: u64,
    end: u64,
    filled: u64,
}

impl ReadProgress<'_> {
    /// Copies the bytes of a block that belong to the read.
    fn take(&mut self, block: &[u8], at: u64) {
        let length = block.len() as u64;
        let from = (self.offset.max(at) - at).min(length);
        let to = (self.end - at).min(length).max(from);
        let into = self.filled as usize..(self.filled + to - from) as usize;
        self.into[into].copy_from_slice(&block[from as usize..to as usize]);
        self.filled += to - from;
    }
}
