//! Join phases: partitions against each other, or rows against one table.
//!
//! The idea: one thread joins one partition at a time. Its table lies in scratch memory that stays in the thread's
//! cache. If many rows of the probe side have the same key, their partition would keep one thread busy while the others
//! have nothing left. Tables of such *heavy* partitions are made first. After all other partitions, all threads look
//! rows up in them together.

use crate::chunks::{ChunkSource, Purpose, chunks_for, take};
use crate::dense_table::{DenseTable, Filled, Span, fill};
use crate::emit::{Equal, JoinSpec, Kind, Sides, Sink, emit};
use crate::kernels::Kernels;
use crate::memory::{LineMemory, words, words_mut};
use crate::morsels::{MORSEL_ROWS, Morsels};
use crate::one_pass::check;
use crate::partitioned::Partitioned;
use crate::settings::Settings;
use crate::table::{
    BATCH_ROWS, BuildLookup, BuildTable, Entry, Found, View, buckets_for, build_groups, build_plain,
};
use crate::{CacheLine, JoinError, JoinInput, Tuple, threads};
use farpool_lock::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Divisor of a thread's even share of the probe rows. A partition with more probe rows than the quotient, and than
/// [`MORSEL_ROWS`], is heavy: all threads share its rows.
const HEAVY_SLICES: usize = 8;

/// Joins all partitions of both sides (second phase of a partitioned hash join). Each thread outputs to a sink of its
/// own, and the sinks are returned.
///
/// # Errors
/// Returns an error if the sides were partitioned differently, if there are not as many sinks as threads, or if there
/// is no memory.
pub fn join_partitions<S: Sink, E: Equal>(
    settings: &Settings,
    chunks: &dyn ChunkSource,
    sides: Sides<&Partitioned<'_>>,
    how: JoinSpec<'_, E>,
    sinks: Vec<S>,
) -> Result<Vec<S>, JoinError> {
    let Sides { build, probe } = sides;
    // Heavy partitions come first, because they take longest.
    let is_heavy = |partition: &usize| is_heavy(settings, probe, *partition);
    let heavy = (0..build.partitions()).filter(is_heavy);
    let others = (0..build.partitions()).filter(|partition| !is_heavy(partition));
    let order = InOrder { partitions: heavy.chain(others).collect(), next: AtomicUsize::new(0) };
    join_partitions_by(settings, chunks, sides, &order, how, sinks)
}

/// Joins the partitions whose numbers `morsels` returns. Partitions that it leaves out are not joined.
///
/// # Errors
/// Returns the errors of [`join_partitions`], and an error if `morsels` returns a partition that does not exist.
pub fn join_partitions_by<S: Sink, E: Equal>(
    settings: &Settings,
    chunks: &dyn ChunkSource,
    sides: Sides<&Partitioned<'_>>,
    morsels: &dyn Morsels,
    how: JoinSpec<'_, E>,
    sinks: Vec<S>,
) -> Result<Vec<S>, JoinError> {
    let Sides { build, probe } = sides;
    if build.hasher != probe.hasher {
        return Err(JoinError::Unlike);
    }
    check_sinks(settings, &sinks)?;
    // A single thread has nobody to share heavy partitions with, and may be called for one partition only.
    let candidates = if settings.threads > 1 { build.partitions() } else { 0 };
    let heavy: Vec<usize> =
        (0..candidates).filter(|partition| is_heavy(settings, probe, *partition)).collect();
    let tables: Vec<Mutex<Option<HeavyTable<'_>>>> = heavy.iter().map(|_| Mutex::new(None)).collect();
    let sinks = threads::each(sinks, |worker, mut sink| {
        let mut found = Found::new();
        let (mut scratch, mut guess) = (LineMemory::none(), None);
        while let Some(partitions) = morsels.next(worker) {
            check(&partitions, build.partitions())?;
            for partition in partitions {
                if probe.count(partition) == 0 {
                    continue;
                }
                if let Ok(at) = heavy.binary_search(&partition) {
                    let mut own = LineMemory::none();
                    let purpose = Purpose::Table;
                    let made = make(settings, chunks, purpose, build, partition, &mut own, &mut None)?;
                    let alone = HeavyTable { memory: own, made };
                    *tables[at].lock() = Some(alone);
                    continue;
                }
                let purpose = Purpose::Scratch { worker };
                let made = make(settings, chunks, purpose, build, partition, &mut scratch, &mut guess)?;
                let lookup = made.lookup(build, scratch.lines());
                let mut slices = probe.slices(partition).peekable();
                while let Some(tuples) = slices.next() {
                    let behind = slices.peek().copied().unwrap_or_default();
                    look_up(settings.kernels, &lookup, tuples, behind, how, &mut found, &mut sink);
                }
            }
        }
        Ok(sink)
    })?;
    if heavy.is_empty() {
        return Ok(sinks);
    }
    let tables: Vec<Option<HeavyTable<'_>>> = tables.into_iter().map(Mutex::into_inner).collect();
    let slices: Vec<(usize, &[Tuple])> = heavy
        .iter()
        .enumerate()
        .flat_map(|(at, partition)| {
            let slices = probe.slices(*partition).flat_map(|tuples| tuples.chunks(MORSEL_ROWS));
            slices.map(move |tuples| (at, tuples))
        })
        .collect();
    let next = AtomicUsize::new(0);
    threads::each(sinks, |_, mut sink| {
        let mut found = Found::new();
        while let Some((at, tuples)) = slices.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(HeavyTable { memory, made }) = &tables[*at] else { continue };
            let lookup = made.lookup(build, memory.lines());
            look_up(settings.kernels, &lookup, tuples, &[], how, &mut found, &mut sink);
        }
        Ok(sink)
    })
}

/// Reports whether a partition has so many probe rows that one thread would still be busy with it when the others have
/// nothing left.
fn is_heavy(settings: &Settings, probe: &Partitioned<'_>, partition: usize) -> bool {
    let rows = (probe.rows() / settings.threads / HEAVY_SLICES).max(MORSEL_ROWS);
    settings.threads > 1 && probe.count(partition) > rows
}

/// Queue that returns `partitions` one by one, in order.
struct InOrder {
    partitions: Vec<usize>,
    next: AtomicUsize,
}

impl Morsels for InOrder {
    fn next(&self, _worker: usize) -> Option<Range<usize>> {
        let partition = *self.partitions.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some(partition..partition + 1)
    }
}

/// Table of a heavy partition (one whose probe rows all threads share), in memory of its own.
struct HeavyTable<'m> {
    memory: LineMemory<'m>,
    made: PartitionTable,
}

/// Layout of a partition's table, which begins at the first line of its memory.
enum PartitionTable {
    /// Array that is indexed by rank (a key without the low bits that name its partition), over this range of ranks.
    DenseTable(Span),
    /// Buckets, and the number of lines with payloads that follow them. `None` if all keys differ and the buckets have
    /// the payloads.
    Buckets(Entry, Option<usize>),
}

impl PartitionTable {
    fn lookup<'t>(&'t self, build: &Partitioned<'_>, lines: &'t [CacheLine]) -> BuildLookup<'t> {
        match self {
            PartitionTable::DenseTable(span) => BuildLookup::DenseTable(DenseTable::new(
                build.hasher,
                &lines[..span.lines()],
                std::slice::from_ref(span),
            )),
            PartitionTable::Buckets(entry, rows) => {
                let (buckets, behind) = lines.split_at(entry.buckets as usize);
                let view = View::new(build.hasher, buckets, std::slice::from_ref(entry));
                BuildLookup::Buckets(view, rows.map(|lines| words(&behind[..lines])))
            }
        }
    }
}

/// Makes the table of a partition at the front of `memory`. Replaces `memory` if it is too small. `guess` is the range
/// of ranks (keys without the low bits that name partitions) that the table probably needs; it is updated.
fn make<'m>(
    settings: &Settings,
    chunks: &'m dyn ChunkSource,
    purpose: Purpose,
    build: &Partitioned<'_>,
    partition: usize,
    memory: &mut LineMemory<'m>,
    guess: &mut Option<Span>,
) -> Result<PartitionTable, JoinError> {
    let count = build.count(partition);
    let buckets = buckets_for(count);
    let entry = Entry { first: 0, buckets: buckets as u32, marker: build.hasher.marker(partition) };
    reserve(memory, chunks, purpose, buckets)?;
    match make_direct(build, partition, &mut memory.lines_mut()[..buckets], guess) {
        Some((span, Filled::All)) => return Ok(PartitionTable::DenseTable(span)),
        // A key occurs twice, so a plain table of buckets would fail too.
        Some((_, Filled::Twice)) => {}
        _ if build_plain(settings.kernels, build, partition, &mut memory.lines_mut()[..buckets]) => {
            return Ok(PartitionTable::Buckets(entry, None));
        }
        _ => {}
    }
    let lines = count.div_ceil(8);
    reserve(memory, chunks, purpose, buckets + 2 * lines)?;
    let (buckets, rest) = memory.lines_mut().split_at_mut(buckets);
    let (rows, scratch) = rest.split_at_mut(lines);
    let rows = &mut words_mut(rows)[..count];
    build_groups(build, partition, buckets, rows, 0, words_mut(scratch));
    Ok(PartitionTable::Buckets(entry, Some(lines)))
}

/// Fills a table indexed by rank (a key without the low bits that name its partition) in these lines. Returns its range
/// of ranks and whether it may be used; `None` if the range needs more lines. Partitions of one side tend to have the
/// same ranks, so `guess` is the range of the partition before. Where it does not fit, rows are read twice: to find the
/// ranks, and to fill the table.
fn make_direct(
    build: &Partitioned<'_>,
    partition: usize,
    lines: &mut [CacheLine],
    guess: &mut Option<Span>,
) -> Option<(Span, Filled)> {
    let guessed = guess.filter(|span| span.lines() <= lines.len());
    if let Some(span) = guessed {
        let filled = fill(build, partition, &span, words_mut(lines));
        if filled != Filled::Beyond {
            return Some((span, filled));
        }
    }
    let span = Span::of(build, partition, lines.len());
    *guess = span.map(Span::widened);
    span.map(|span| (span, fill(build, partition, &span, words_mut(lines))))
}

fn reserve<'m>(
    memory: &mut LineMemory<'m>,
    chunks: &'m dyn ChunkSource,
    purpose: Purpose,
    lines: usize,
) -> Result<(), JoinError> {
    if memory.lines().len() < lines {
        // Gives the old memory back first, because the source may reuse it for this request.
        *memory = LineMemory::none();
        *memory = take(chunks, purpose, chunks_for(lines))?;
    }
    Ok(())
}

/// Looks rows up in one table (second phase of a non-partitioned hash join). Each thread outputs to a sink of its own,
/// and the sinks are returned.
///
/// # Errors
/// Returns an error if there are not as many sinks as threads, or if `morsels` does not return each row exactly once.
pub fn probe<P: JoinInput + ?Sized, S: Sink, E: Equal>(
    settings: &Settings,
    table: &BuildTable<'_>,
    source: &P,
    morsels: &dyn Morsels,
    how: JoinSpec<'_, E>,
    sinks: Vec<S>,
) -> Result<Vec<S>, JoinError> {
    check_sinks(settings, &sinks)?;
    let lookup = table.lookup();
    let done = threads::each(sinks, |worker, mut sink| {
        let mut found = Found::new();
        let mut handed = 0;
        while let Some(range) = morsels.next(worker) {
            handed += check(&range, source.rows())?;
            source.tuples(range, &mut |tuples| {
                look_up(settings.kernels, &lookup, tuples, &[], how, &mut found, &mut sink);
            });
        }
        Ok((sink, handed))
    })?;
    let handed = done.iter().map(|(_, handed)| handed).sum();
    match handed == source.rows() {
        true => Ok(done.into_iter().map(|(sink, _)| sink).collect()),
        false => Err(JoinError::Morsels { rows: source.rows(), handed }),
    }
}

fn check_sinks<S>(settings: &Settings, sinks: &[S]) -> Result<(), JoinError> {
    let (value, threads) = (sinks.len() as u64, settings.threads as u64);
    match value == threads {
        true => Ok(()),
        false => Err(JoinError::Setting { name: "sinks", value, least: threads, most: threads }),
    }
}

/// Looks tuples up and outputs their matches. The tuples of `behind` will be looked up next; their slots or buckets are
/// prefetched meanwhile if the table is large.
fn look_up<S: Sink, E: Equal>(
    kernels: Kernels,
    lookup: &BuildLookup<'_>,
    tuples: &[Tuple],
    behind: &[Tuple],
    how: JoinSpec<'_, E>,
    found: &mut Found,
    sink: &mut S,
) {
    let wants_pairs = E::IS_EXACT && how.kind == Kind::Inner;
    let mut rest = tuples;
    while !rest.is_empty() {
        let (batch, ahead) = rest.split_at(rest.len().min(BATCH_ROWS));
        rest = ahead;
        let ahead = if ahead.is_empty() { behind } else { ahead };
        let (hits, rows) = match lookup {
            BuildLookup::DenseTable(direct) if wants_pairs => {
                let (builds, probes) = kernels.find_direct_pairs(direct, batch, ahead, found);
                sink.pairs(builds, probes);
                continue;
            }
            BuildLookup::Buckets(view, None) if wants_pairs => {
                let (builds, probes) = kernels.find_pairs(view, batch, ahead, found);
                sink.pairs(builds, probes);
                continue;
            }
            BuildLookup::DenseTable(direct) => (kernels.find_direct(direct, batch, ahead, found), None),
            BuildLookup::Buckets(view, rows) => (kernels.find(view, batch, ahead, found), *rows),
        };
        emit(how, batch, hits, rows, sink);
    }
}
