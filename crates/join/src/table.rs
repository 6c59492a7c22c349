//! Hash tables of joins.
//!
//! The idea: a bucket is a cache line with four keys and a word for each key. On average three eighths of a table are
//! in use, so one cache line nearly always answers a lookup. Buckets of a partition lie together. A key that does not
//! fit its bucket goes to the next one of the partition. A free slot holds a key that belongs to another partition, so
//! every key is permitted and no separate mark for free slots is needed.
//!
//! If all keys differ, the word is the payload of the key's row. As soon as two rows have the same key, the table is
//! built again by groups. The word then says where the payloads of all rows of the key lie, one after another. A key
//! with a million rows takes one slot, and lookups of other keys do not walk past its rows.

use crate::chunks::{ChunkSource, Purpose, chunks_for, take};
use crate::dense_table::{self, DenseTable, Filled, Span};
use crate::emit::listed;
use crate::hash::{PartitionHasher, bucket};
use crate::kernels::Kernels;
use crate::memory::{CacheLine, LineMemory, halves_mut, words, words_mut};
use crate::morsels::Morsels;
use crate::one_pass::check;
use crate::partitioned::Partitioned;
use crate::settings::Settings;
use crate::{JoinError, threads};
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most tuples of a batch, which is looked up together.
pub(crate) const BATCH_ROWS: usize = 512;
/// Least size of a table whose buckets are prefetched, in cache lines: a quarter of a MiB. Smaller ones lie in a cache.
pub(crate) const FAR_LINES: usize = 4096;

/// Match of one tuple of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Word stored with the key.
    pub(crate) word: i64,
    /// Index of the tuple in the batch.
    pub(crate) at: u32,
}

/// Buffers for the matches of a batch of tuples. A lookup fills either `hits`, or `builds` and `probes`.
#[derive(Debug)]
pub(crate) struct Found {
    /// Tuples whose keys are in the table, each with the word stored with its key.
    pub(crate) hits: [Hit; BATCH_ROWS + 1],
    /// Words stored with the keys of matching tuples, for joins that need no indexes of tuples.
    pub(crate) builds: [i64; BATCH_ROWS + 1],
    /// Payloads of the matching tuples, in the order of `builds`.
    pub(crate) probes: [i64; BATCH_ROWS + 1],
    /// Bucket of each tuple, for kernels that prefetch buckets.
    pub(crate) places: [u32; BATCH_ROWS],
}

impl Found {
    pub(crate) fn new() -> Box<Found> {
        const MOST: usize = BATCH_ROWS + 1;
        let (builds, probes, places) = ([0; MOST], [0; MOST], [0; BATCH_ROWS]);
        Box::new(Found { hits: [Hit::default(); MOST], builds, probes, places })
    }
}

/// Buckets of a partition: a range of cache lines of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Index of the first bucket among the lines of the table.
    pub(crate) first: u32,
    /// Number of buckets.
    pub(crate) buckets: u32,
    /// Key that free slots hold. It belongs to another partition.
    pub(crate) marker: i64,
}

/// Buckets in which tuples are looked up: those of all partitions, or those of one partition, in which only tuples of
/// that partition are looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'t> {
    pub(crate) hasher: PartitionHasher,
    /// Cache lines with the buckets, one bucket in each.
    pub(crate) lines: &'t [CacheLine],
    /// Range of buckets of each partition, or of the only one. All are within `lines`.
    entries: &'t [Entry],
}

impl<'t> View<'t> {
    /// Returns the view.
    ///
    /// # Panics
    /// Panics unless there is one entry, or one for each partition, each with at least one bucket, and all within the
    /// lines.
    pub(crate) fn new(hasher: PartitionHasher, lines: &'t [CacheLine], entries: &'t [Entry]) -> View<'t> {
        assert!(entries.len() == 1 || entries.len() == hasher.partitions(), "{} entries", entries.len());
        for Entry { first, buckets, .. } in entries {
            let end = *first as usize + *buckets as usize;
            assert!(*buckets > 0 && end <= lines.len(), "{buckets} buckets from {first} on");
        }
        View { hasher, lines, entries }
    }

    pub(crate) fn entries(&self) -> &'t [Entry] {
        self.entries
    }

    /// Returns the key that free slots hold. In a view of all partitions, the free slots of one partition hold another.
    pub(crate) fn usual_marker(&self) -> i64 {
        match self.entries {
            [entry] => entry.marker,
            _ => self.hasher.usual_marker(),
        }
    }

    /// Returns the buckets for a hash, and the key in their free slots.
    #[inline(always)]
    pub(crate) fn buckets_of(&self, hash: u64) -> (&'t [CacheLine], i64) {
        let at = if self.entries.len() == 1 { 0 } else { (hash >> self.hasher.shift) as usize };
        let Entry { first, buckets, marker } = self.entries[at];
        (&self.lines[first as usize..][..buckets as usize], marker)
    }
}

/// Table of the build side in one of its two layouts, for lookups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BuildLookup<'t> {
    /// Array that is indexed by rank (a key without the low bits that name its partition).
    DenseTable(DenseTable<'t>),
    /// Buckets. The second part is `None` if all keys differ. Otherwise it has the payloads of all rows, by key.
    Buckets(View<'t>, Option<&'t [i64]>),
}

/// Returns the index of the bucket after a full one.
#[inline(always)]
pub(crate) fn follow(place: usize, buckets: usize) -> usize {
    if place + 1 == buckets { 0 } else { place + 1 }
}

/// Returns the number of buckets for `rows` rows: at least one, and so many that a slot is always free.
pub(crate) fn buckets_for(rows: usize) -> usize {
    rows / 3 * 2 + 2
}

/// Returns the bytes of the buckets of a partition with `rows` rows.
pub fn table_bytes(rows: usize) -> usize {
    buckets_for(rows) * size_of::<CacheLine>()
}

/// Makes a partition's table of buckets, in which each key has the payload of its row. Returns false, and leaves the
/// table incomplete, if two rows of the partition have the same key.
pub(crate) fn build_plain(
    kernels: Kernels,
    build: &Partitioned<'_>,
    partition: usize,
    buckets: &mut [CacheLine],
) -> bool {
    let marker = build.hasher.marker(partition);
    clear(buckets, marker);
    build
        .slices(partition)
        .all(|tuples| kernels.insert(&build.hasher, tuples, buckets, marker) == tuples.len())
}

fn clear(buckets: &mut [CacheLine], marker: i64) {
    let free = [marker, marker, marker, marker, 0, 0, 0, 0];
    buckets.fill(CacheLine(free));
}

/// Makes a partition's table of buckets, in which each key has the position of a group: the payloads of all rows with
/// this key. `rows` has a word for each row of the partition and receives the payloads. Positions count from `base`,
/// which is that of `rows[0]`. `scratch` has as many words as `rows`.
pub(crate) fn build_groups(
    build: &Partitioned<'_>,
    partition: usize,
    buckets: &mut [CacheLine],
    rows: &mut [i64],
    base: u32,
    scratch: &mut [i64],
) {
    let (hasher, marker) = (&build.hasher, build.hasher.marker(partition));
    clear(buckets, marker);
    let (groups, counts) = halves_mut(scratch).split_at_mut(rows.len());
    let mut known = 0;
    let mut group_of = groups.iter_mut();
    for tuple in build.slices(partition).flatten() {
        let group = group(buckets, hasher.hash(tuple.key), tuple.key, marker, known);
        if group == known {
            counts[group as usize] = 0;
            known += 1;
        }
        counts[group as usize] += 1;
        if let Some(group_of) = group_of.next() {
            *group_of = group;
        }
    }
    let counts = &mut counts[..known as usize];
    let mut start = base;
    for count in &mut *counts {
        // An entry of `counts` is, after this loop, the position at which its group begins.
        start += std::mem::replace(count, start);
    }
    let ends = |counts: &[u32], group: usize| counts.get(group + 1).copied().unwrap_or(start);
    for CacheLine(line) in &mut *buckets {
        for lane in 0..4 {
            if line[lane] != marker {
                let group = line[lane + 4] as usize;
                line[lane + 4] = listed(counts[group], ends(counts, group) - counts[group]);
            }
        }
    }
    for (tuple, group) in build.slices(partition).flatten().zip(&*groups) {
        let next = &mut counts[*group as usize];
        rows[(*next - base) as usize] = tuple.payload;
        *next += 1;
    }
}

/// Returns the number of a key's group. Inserts a new key with the number `next`.
#[inline(always)]
fn group(buckets: &mut [CacheLine], hash: u64, key: i64, marker: i64, next: u32) -> u32 {
    let mut place = bucket(hash, buckets.len() as u32);
    loop {
        let line = &mut buckets[place].0;
        match (0..4).find(|lane| line[*lane] == key || line[*lane] == marker) {
            Some(lane) if line[lane] == key => return line[lane + 4] as u32,
            Some(lane) => {
                line[lane] = key;
                line[lane + 4] = i64::from(next);
                return next;
            }
            None => place = follow(place, buckets.len()),
        }
    }
}

/// Table of all rows of the build side, for a non-partitioned join.
///
/// The build side is partitioned first. Each thread then fills the ranges of whole partitions, each of which fits its
/// cache. No thread waits for another, and memory is written once, in sequence. If the keys of every partition lie
/// close together, the table is indexed by rank; otherwise it has buckets.
#[derive(Debug)]
pub struct BuildTable<'m> {
    hasher: PartitionHasher,
    /// Memory of the tables of all partitions, one after another.
    lines: LineMemory<'m>,
    layout: Layout<'m>,
}

#[derive(Debug)]
enum Layout<'m> {
    /// Arrays that are indexed by rank (a key without the low bits that name its partition): the range of each.
    DenseTable(Vec<Span>),
    /// Buckets of each partition. The second part is `None` if all keys differ. Otherwise it has the payloads of all
    /// rows, by key.
    Buckets(Vec<Entry>, Option<LineMemory<'m>>),
}

impl<'m> BuildTable<'m> {
    /// Makes a table of a partitioned side.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub fn build(
        settings: &Settings,
        chunks: &'m dyn ChunkSource,
        build: &Partitioned<'_>,
    ) -> Result<BuildTable<'m>, JoinError> {
        BuildTable::build_by(settings, chunks, build, &Each::of(build))
    }

    /// Makes a table of a partitioned side. `morsels` returns the numbers of the partitions that a thread inserts next.
    ///
    /// # Errors
    /// Returns an error if there is no memory, or if `morsels` does not return each partition exactly once.
    pub fn build_by(
        settings: &Settings,
        chunks: &'m dyn ChunkSource,
        build: &Partitioned<'_>,
        morsels: &dyn Morsels,
    ) -> Result<BuildTable<'m>, JoinError> {
        let mut first = Some(morsels);
        if let Some(table) = BuildTable::direct(settings, chunks, build, &mut first)? {
            return Ok(table);
        }
        let hasher = build.hasher;
        let mut all = 0;
        let entries: Vec<Entry> = (0..build.partitions())
            .map(|partition| {
                let (first, buckets) = (all, buckets_for(build.count(partition)));
                all += buckets;
                Entry { first: first as u32, buckets: buckets as u32, marker: hasher.marker(partition) }
            })
            .collect();
        let mut lines = take(chunks, Purpose::Table, chunks_for(all))?;
        let is_plain = AtomicBool::new(true);
        let sizes = entries.iter().map(|entry| entry.buckets as usize).collect();
        let again = Each::of(build);
        let morsels = first.take().unwrap_or(&again);
        fill(settings, sizes, lines.lines_mut(), morsels, |_, partition, buckets| {
            if is_plain.load(Ordering::Relaxed) && !build_plain(settings.kernels, build, partition, buckets) {
                is_plain.store(false, Ordering::Relaxed);
            }
            Ok(())
        })?;
        let rows = match is_plain.into_inner() {
            true => None,
            false => Some(BuildTable::group(settings, chunks, build, &entries, &mut lines)?),
        };
        Ok(BuildTable { hasher, lines, layout: Layout::Buckets(entries, rows) })
    }

    /// Makes a table indexed by rank (a key without the low bits that name its partition). Returns `None` if such a
    /// table does not suit the keys: they are far apart or not distinct. Takes the queue out of `first` if it begins to
    /// fill the table, because a queue can be used only once.
    fn direct(
        settings: &Settings,
        chunks: &'m dyn ChunkSource,
        build: &Partitioned<'_>,
        first: &mut Option<&dyn Morsels>,
    ) -> Result<Option<BuildTable<'m>>, JoinError> {
        let (next, is_direct) = (AtomicUsize::new(0), AtomicBool::new(true));
        let found = threads::each(vec![(); settings.threads], |_, ()| {
            let mut spans = Vec::new();
            while is_direct.load(Ordering::Relaxed) {
                let partition = next.fetch_add(1, Ordering::Relaxed);
                if partition >= build.partitions() {
                    break;
                }
                match Span::of(build, partition, buckets_for(build.count(partition))) {
                    Some(span) => spans.push((partition, span)),
                    None => is_direct.store(false, Ordering::Relaxed),
                }
            }
            Ok(spans)
        })?;
        if !is_direct.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut spans = vec![Span::default(); build.partitions()];
        found.into_iter().flatten().for_each(|(partition, span)| spans[partition] = span);
        let mut all = 0;
        for span in &mut spans {
            *span = span.at_line(all);
            all += span.lines();
        }
        let mut lines = take(chunks, Purpose::Table, chunks_for(all))?;
        let sizes = spans.iter().map(Span::lines).collect();
        let again = Each::of(build);
        let morsels = first.take().unwrap_or(&again);
        fill(settings, sizes, lines.lines_mut(), morsels, |_, partition, lines| {
            if is_direct.load(Ordering::Relaxed)
                && dense_table::fill(build, partition, &spans[partition], words_mut(lines)) != Filled::All
            {
                is_direct.store(false, Ordering::Relaxed);
            }
            Ok(())
        })?;
        let layout = Layout::DenseTable(spans);
        Ok(is_direct.into_inner().then(|| BuildTable { hasher: build.hasher, lines, layout }))
    }

    /// Builds the buckets in `lines` again, so that keys may have several rows. Returns the payloads of all rows, those
    /// of one key one after another.
    fn group(
        settings: &Settings,
        chunks: &'m dyn ChunkSource,
        build: &Partitioned<'_>,
        entries: &[Entry],
        lines: &mut LineMemory<'m>,
    ) -> Result<LineMemory<'m>, JoinError> {
        let mut memory = take(chunks, Purpose::Table, chunks_for(build.rows().div_ceil(8)))?;
        let mut rest = words_mut(memory.lines_mut());
        let mut parts = Vec::with_capacity(build.partitions());
        let mut base = 0;
        for partition in 0..build.partitions() {
            let count = build.count(partition);
            let (own, behind) = rest.split_at_mut(count);
            parts.push(Mutex::new((own, base as u32)));
            rest = behind;
            base += count;
        }
        let sizes = entries.iter().map(|entry| entry.buckets as usize).collect();
        fill(settings, sizes, lines.lines_mut(), &Each::of(build), |worker, partition, buckets| {
            let mut part = parts[partition].lock();
            let (rows, base) = &mut *part;
            // The source keeps scratch memory, so asking for it for each partition is cheap.
            let scratch = chunks_for(rows.len().div_ceil(8));
            let mut scratch = take(chunks, Purpose::Scratch { worker }, scratch)?;
            build_groups(build, partition, buckets, rows, *base, words_mut(scratch.lines_mut()));
            Ok(())
        })?;
        drop(parts);
        Ok(memory)
    }

    /// Reports whether all keys differ.
    pub(crate) fn is_distinct(&self) -> bool {
        !matches!(self.layout, Layout::Buckets(_, Some(_)))
    }

    pub(crate) fn lookup(&self) -> BuildLookup<'_> {
        match &self.layout {
            Layout::DenseTable(spans) => {
                BuildLookup::DenseTable(DenseTable::new(self.hasher, self.lines.lines(), spans))
            }
            Layout::Buckets(entries, rows) => {
                let view = View::new(self.hasher, self.lines.lines(), entries);
                BuildLookup::Buckets(view, rows.as_ref().map(|rows| words(rows.lines())))
            }
        }
    }
}

/// Queue that returns the numbers of all partitions, one by one.
struct Each {
    /// Number of the next partition.
    next: AtomicUsize,
    /// Number of partitions.
    partitions: usize,
}

impl Each {
    fn of(build: &Partitioned<'_>) -> Each {
        Each { next: AtomicUsize::new(0), partitions: build.partitions() }
    }
}

impl Morsels for Each {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        let partition = self.next.fetch_add(1, Ordering::Relaxed);
        (partition < self.partitions).then(|| partition..partition + 1)
    }
}

/// Calls `fill` once for each partition, on several threads, with the number of the thread, that of the partition, and
/// the partition's own part of `lines`. `sizes` has the number of cache lines of each partition.
fn fill(
    settings: &Settings,
    sizes: Vec<usize>,
    lines: &mut [CacheLine],
    morsels: &dyn Morsels,
    fill: impl Fn(usize, usize, &mut [CacheLine]) -> Result<(), JoinError> + Sync,
) -> Result<(), JoinError> {
    let mut rest = lines;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let (own, behind) = rest.split_at_mut(size);
        parts.push(Mutex::new(own));
        rest = behind;
    }
    let handed = threads::each(vec![(); settings.threads], |worker, ()| {
        let mut handed = 0;
        while let Some(partitions) = morsels.next(worker) {
            handed += check(&partitions, parts.len())?;
            for partition in partitions {
                let mut buckets = parts[partition].lock();
                fill(worker, partition, &mut buckets)?;
            }
        }
        Ok(handed)
    })?;
    match handed.iter().sum() {
        handed if handed == parts.len() => Ok(()),
        handed => Err(JoinError::Morsels { rows: parts.len(), handed }),
    }
}
