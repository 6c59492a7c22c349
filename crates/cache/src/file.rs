//! A file that is read through a cache, and written past it.
//!
//! The idea: the file is what it is; blocks of it that were read are kept under the version that they had ([`Blocks`]).
//! Every read asks what the file is now, so that a change by others is read as it is. Writes go to the file first, and
//! what is kept of it is renewed before they return.

use crate::blocks::{Blocks, Identity};
use crate::{BlockCache, Times, Version};
use bytes::Bytes;
use farpool_lock::Mutex;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Blocks that have a version of their own after a cut. Of more, all of the file has another.
const RENEWED_MOST: u64 = 4096;

/// The file itself.
pub trait Source {
    /// Why it did not do what it was asked.
    type Error;

    /// What `stat` says of it.
    fn identity(&self) -> Result<Identity, Self::Error>;

    /// Reads until the buffer is full or the file ends, and says how many bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Self::Error>;

    /// Writes all of it.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// What is known of one file: there must be one of it for all that read and write that file in this process.
#[derive(Debug)]
pub struct CachedFile {
    times: Times,
    blocks: Mutex<Option<Blocks>>,
    /// Held while it is written to.
    writing: Mutex<()>,
}

impl CachedFile {
    /// Of a file of which nothing is known yet.
    pub fn new(times: Times) -> CachedFile {
        CachedFile { times, blocks: Mutex::default(), writing: Mutex::default() }
    }

    /// Whether what is kept of the file may be found, and blocks of it be kept.
    pub fn is_settled(&self, identity: Identity) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
        self.blocks.lock().as_ref().is_some_and(|blocks| blocks.is_settled(identity, self.times, now))
    }

    /// Asks what the file is now, and notes it. Whoever is writing through the cache is waited for if it is not what it
    /// was: half of a change of ours looks like one by others, after which nothing that is kept would be of use.
    pub fn look<E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<Identity, E>,
    ) -> Result<Identity, E> {
        let seen = identity()?;
        if self.blocks.lock().as_ref().is_some_and(|blocks| blocks.is_of(seen)) {
            return Ok(seen);
        }
        let _writing = self.writing.lock();
        let seen = identity()?;
        self.see(cache, seen);
        Ok(seen)
    }

    /// Notes what the file is now.
    fn see(&self, cache: &BlockCache, identity: Identity) {
        self.blocks
            .lock()
            .get_or_insert_with(|| Blocks::new(identity, cache.new_version()))
            .see(identity, || cache.new_version());
    }

    /// Reads until the buffer is full or the file ends, and says how many bytes: from the cache what it has, the rest
    /// from the file, in whole blocks, which are kept.
    pub fn read<S: Source>(
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
        let mut part = Part { into, offset, end, filled: 0 };
        let blocks = offset / step..end.div_ceil(step);
        let wanted: Vec<_> = blocks.clone().map(|block| (self.version(cache, block), block)).collect();
        let mut block = blocks.start;
        // Of what is missing, neighbours at once.
        for run in cache.get_all(&wanted).chunk_by(|one, next| one.is_none() && next.is_none()) {
            let until = block + run.len() as u64;
            match &run[0] {
                Some(bytes) => part.take(bytes, block * step),
                None => self.read_blocks(cache, source, identity, block..until, &mut part)?,
            }
            block = until;
            // A file that was cut meanwhile has less.
            if part.filled < (block * step).min(end) - offset {
                break;
            }
        }
        Ok(part.filled as usize)
    }

    fn version(&self, cache: &BlockCache, block: u64) -> Version {
        self.blocks.lock().as_ref().map_or_else(|| cache.new_version(), |blocks| blocks.version(block))
    }

    /// Reads blocks of the file itself, and keeps them.
    fn read_blocks<S: Source>(
        &self,
        cache: &BlockCache,
        source: &S,
        identity: Identity,
        blocks: Range<u64>,
        part: &mut Part<'_>,
    ) -> Result<(), S::Error> {
        let step = cache.block_bytes();
        let from = blocks.start * step as u64;
        let bytes = identity.size.min(blocks.end * step as u64).saturating_sub(from) as usize;
        // Before anything is read: what is written meanwhile has other versions.
        let versions: Vec<_> = blocks.clone().map(|block| self.version(cache, block)).collect();
        let mut read = vec![0; bytes];
        let count = source.read_at(from, &mut read)?;
        // Of what others have changed meanwhile nobody finds the old versions any more, nor of blocks that were
        // written. What was longer already when the versions were taken is known by its length alone.
        let now = self.look(cache, || source.identity())?;
        let is_whole = count == bytes && now.size.min(blocks.end * step as u64) == from + bytes as u64;
        let is_settled = is_whole && self.is_settled(now);
        for ((block, version), bytes) in blocks.zip(versions).zip(read[..count].chunks(step)) {
            if is_settled {
                cache.put(version, block, Bytes::copy_from_slice(bytes));
            }
            part.take(bytes, block * step as u64);
        }
        Ok(())
    }

    /// Writes to the file, and then to what is kept of it.
    pub fn write<S: Source>(
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
        // Of a file that grows it is not the last any more, and longer.
        let last = before.size.saturating_sub(1) / step;
        let last = last..last + u64::from(end > before.size);
        let kept: Vec<(u64, Option<Bytes>)> = touched
            .clone()
            .map(|block| {
                let is_whole = offset <= block * step && end >= (block + 1) * step;
                let version = self.version(cache, block);
                let base = if is_whole { None } else { cache.get(version, block) };
                // Nobody asks for it any more, and it would keep others from staying.
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

    /// Gives the file another length, or the one that it has. What is kept of blocks before the shorter of the two is
    /// kept still: a database that cuts itself to its own length, as SQLite does after each checkpoint, loses nothing.
    pub fn resize<T, E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<Identity, E>,
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

    /// Does something to the file after which nothing that is kept of it is of use, such as punching holes.
    pub fn change<T, E>(
        &self,
        cache: &BlockCache,
        identity: impl Fn() -> Result<Identity, E>,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _writing = self.writing.lock();
        let renew = |identity: Identity| {
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

/// A read of `offset..end`, of which the beginning is there.
struct Part<'a> {
    into: &'a mut [u8],
    offset: u64,
    end: u64,
    filled: u64,
}

impl Part<'_> {
    /// Takes what a block adds to it.
    fn take(&mut self, block: &[u8], at: u64) {
        let length = block.len() as u64;
        let from = (self.offset.max(at) - at).min(length);
        let to = (self.end - at).min(length).max(from);
        let into = self.filled as usize..(self.filled + to - from) as usize;
        self.into[into].copy_from_slice(&block[from as usize..to as usize]);
        self.filled += to - from;
    }
}
