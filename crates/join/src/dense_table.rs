//! Tables indexed by rank, for keys that lie close together: an array of payloads without keys.
//!
//! The idea: a hotel with rooms 1 to 100 needs no guest list. To find the guest of room 42, look into room 42. If
//! guests could have any number up to a billion, such a hotel would stand almost empty, and a list is better.
//!
//! Two keys of one partition with the same rank are equal ([`hash`](crate::hash)). Where ranks of a partition lie close
//! together, as those of 1..N do, the rank minus the least rank is used as an array index, and no key is stored. Such a
//! table takes eight bytes a key instead of forty. A lookup neither compares nor branches.
//!
//! It is made wherever it takes no more memory than buckets would. If keys are far apart, if a key occurs twice, or if
//! a payload equals [`FREE`], buckets are used instead. Free slots hold `FREE`. Ranks outside the
//! table are mapped to one additional slot at its end, which stays free, so they need no branch either.
//!
//! A hash table with open addressing would be the usual choice for all keys. It stores and compares keys, which dense
//! keys do not need.

use crate::hash::PartitionHasher;
use crate::partitioned::Partitioned;
use crate::table::{BATCH_ROWS, Found, Hit};
use crate::{CacheLine, Tuple, memory::words};

/// Word of free slots. A build side with a row of this payload gets a table of buckets instead.
pub(crate) const FREE: i64 = 0x5bd1_9f0c_e4a6_7d23;
/// Number of tuples that are looked up between prefetching a tuple's slot and looking at it.
const AHEAD_ROWS: usize = 32;
/// Most words of a table whose slots are not prefetched, because it lies in a cache: 384 KiB. With prefetching, lookups
/// in tables of 256 KiB take half as long again.
const NEAR_WORDS: usize = 3 << 14;
const _: () = assert!(AHEAD_ROWS.is_power_of_two());

/// Range of ranks (keys without the low bits that name partitions) for which the table of a partition has slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// Rank of the first slot.
    pub(crate) base: i64,
    /// Index of the table's first cache line within its memory, where tables of other partitions may precede it.
    first: u32,
    /// Number of ranks, and index of the additional slot that is always free.
    pub(crate) ranks: u32,
}

impl Span {
    /// Returns the range from the least to the greatest rank of a partition's rows; `None` if a table for it would need
    /// more than `lines` cache lines.
    pub(crate) fn of(build: &Partitioned<'_>, partition: usize, lines: usize) -> Option<Span> {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        for tuples in build.slices(partition) {
            for tuple in tuples {
                (least, most) = (least.min(tuple.key), most.max(tuple.key));
            }
            // Two keys far apart are enough to reject the partition.
            if least <= most && !fits(&build.hasher, least, most, lines) {
                return None;
            }
        }
        match least <= most {
            true => {
                let base = build.hasher.rank(least);
                Some(Span { base, first: 0, ranks: (build.hasher.rank(most) - base + 1) as u32 })
            }
            false => (lines > 0).then(Span::default),
        }
    }

    /// Returns the range with one rank more at both ends. The ranks of another partition of the same rows probably lie
    /// in it.
    pub(crate) fn widened(self) -> Span {
        let base = self.base.saturating_sub(1);
        Span { base, ranks: self.ranks.saturating_add(2), ..self }
    }

    /// Returns the same range, for a table that begins at this line of its memory.
    pub(crate) fn at_line(self, first: usize) -> Span {
        Span { first: first as u32, ..self }
    }

    /// Returns the slot of a key of this partition. Keys outside the range get the last slot, which is always free.
    #[inline(always)]
    pub(crate) fn place(&self, hasher: &PartitionHasher, key: i64) -> usize {
        (hasher.rank(key).wrapping_sub(self.base) as u64).min(u64::from(self.ranks)) as usize
    }

    /// Returns the number of cache lines of the table.
    pub(crate) fn lines(&self) -> usize {
        self.ranks as usize / 8 + 1
    }
}

/// Reports whether a table from the rank of `least` to that of `most` fits into `lines` lines.
fn fits(hasher: &PartitionHasher, least: i64, most: i64, lines: usize) -> bool {
    // Ranks are shorter than keys by at least a bit, so the difference does not overflow.
    let last = (hasher.rank(most) - hasher.rank(least)) as u64;
    last + 1 < (lines as u64 * 8).min(u64::from(u32::MAX))
}

/// Result of filling the table of a partition. Only after `All` may the table be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// All rows are in the table.
    All,
    /// A rank is outside the [`Span`] of the table.
    Beyond,
    /// Two rows have the same key.
    Twice,
    /// A payload equals [`FREE`].
    Free,
}

/// Fills `table`, which has at least as many words as the range needs, with the payloads of a partition's rows.
pub(crate) fn fill(build: &Partitioned<'_>, partition: usize, span: &Span, table: &mut [i64]) -> Filled {
    let table = &mut table[..=span.ranks as usize];
    table.fill(FREE);
    let (mut is_twice, mut is_free) = (false, false);
    for tuple in build.slices(partition).flatten() {
        let place = &mut table[span.place(&build.hasher, tuple.key)];
        is_twice |= *place != FREE;
        is_free |= tuple.payload == FREE;
        *place = tuple.payload;
    }
    match (is_free, table.last(), is_twice) {
        (true, ..) => Filled::Free,
        (_, Some(last), _) if *last != FREE => Filled::Beyond,
        (_, _, true) => Filled::Twice,
        _ => Filled::All,
    }
}

/// Tables of all partitions, or the table of one partition, in which only tuples of that partition are looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseTable<'t> {
    hasher: PartitionHasher,
    /// Slots of all tables, one word each: a payload, or [`FREE`].
    words: &'t [i64],
    /// Range of ranks of each partition's table, or of the only table.
    spans: &'t [Span],
}

impl<'t> DenseTable<'t> {
    /// Returns the tables that were filled in these lines, for lookups.
    ///
    /// # Panics
    /// Panics unless there is one span, or one for each partition.
    pub(crate) fn new(hasher: PartitionHasher, lines: &'t [CacheLine], spans: &'t [Span]) -> DenseTable<'t> {
        assert!(spans.len() == 1 || spans.len() == hasher.partitions(), "{} spans", spans.len());
        DenseTable { hasher, words: words(lines), spans }
    }

    /// Returns the range and the slots of the table if it is the only one and fits a cache. There is one slot more than
    /// ranks.
    #[inline(always)]
    pub(crate) fn near(&self) -> Option<(&'t Span, &'t [i64])> {
        match self.spans {
            [span] if self.words.len() <= NEAR_WORDS => {
                Some((span, &self.words[span.first as usize * 8..][..=span.ranks as usize]))
            }
            _ => None,
        }
    }

    pub(crate) fn hasher(&self) -> PartitionHasher {
        self.hasher
    }

    /// Looks up a batch of tuples, and returns how many have a key that is in the table. Writes a hit for each of these
    /// to `found.hits`. `ask` prefetches an address; `ahead` is the next batch, for which slots are prefetched.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        tuples: &[Tuple],
        ahead: &[Tuple],
        ask: impl Fn(*const u8),
        found: &mut Found,
    ) -> usize {
        let mut count = 0_usize;
        self.each(tuples, ahead, ask, |at, _, word| {
            found.hits[count % BATCH_ROWS] = Hit { word, at: at as u32 };
            count = count.wrapping_add(usize::from(word != FREE));
        });
        count
    }

    /// Looks up a batch of tuples like [`Self::find`], and returns how many have a key that is in the table. For these,
    /// only the payloads of both sides are written, to `found.builds` and `found.probes`.
    #[inline(always)]
    pub(crate) fn find_pairs(
        &self,
        tuples: &[Tuple],
        ahead: &[Tuple],
        ask: impl Fn(*const u8),
        found: &mut Found,
    ) -> usize {
        let Found { builds, probes, .. } = found;
        let mut count = 0_usize;
        self.each(tuples, ahead, ask, |_, payload, word| {
            builds[count % BATCH_ROWS] = word;
            probes[count % BATCH_ROWS] = payload;
            count = count.wrapping_add(usize::from(word != FREE));
        });
        count
    }

    /// Calls `take` for each tuple in order: its index, its payload, and the word in its slot.
    #[inline(always)]
    fn each(
        &self,
        tuples: &[Tuple],
        ahead: &[Tuple],
        ask: impl Fn(*const u8),
        mut take: impl FnMut(usize, i64, i64),
    ) {
        assert!(tuples.len() <= BATCH_ROWS, "{} tuples", tuples.len());
        let hasher = self.hasher;
        if let Some((span, table)) = self.near() {
            // The table is in a cache, so the loop waits for the tuples. Those of the next batch are prefetched.
            for (line, tuples) in tuples.chunks(4).enumerate() {
                ask(ahead.as_ptr().wrapping_add(line * 4).cast());
                for (at, tuple) in tuples.iter().enumerate() {
                    take(line * 4 + at, tuple.payload, table[span.place(&hasher, tuple.key)]);
                }
            }
            return;
        }
        let behind = tuples.len().min(AHEAD_ROWS);
        let mut places = [0; AHEAD_ROWS];
        for (place, tuple) in places.iter_mut().zip(tuples) {
            *place = self.far_place(tuple.key);
        }
        for (at, (tuple, later)) in tuples.iter().zip(&tuples[behind..]).enumerate() {
            let later = self.far_place(later.key);
            ask(self.words.as_ptr().wrapping_add(later).cast());
            let place = std::mem::replace(&mut places[at % AHEAD_ROWS], later);
            take(at, tuple.payload, self.words[place]);
        }
        // While the last tuples are looked up, the slots of the first tuples of the next batch are prefetched.
        let mut ahead = ahead.iter();
        for (at, tuple) in tuples.iter().enumerate().skip(tuples.len() - behind) {
            if let Some(later) = ahead.next() {
                ask(self.words.as_ptr().wrapping_add(self.far_place(later.key)).cast());
            }
            take(at, tuple.payload, self.words[places[at % AHEAD_ROWS]]);
        }
    }

    /// Returns the index of a key's slot among the words of all tables.
    #[inline(always)]
    fn far_place(&self, key: i64) -> usize {
        // The mask selects a single span whatever the key, and otherwise that of the key's partition.
        let partition = self.hasher.partition(key) & (self.spans.len() - 1);
        let span = &self.spans[partition];
        span.first as usize * 8 + span.place(&self.hasher, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Kernels;
    use crate::memory::words_mut;
    use crate::table::buckets_for;
    use crate::{HugePages, JoinSide, RowQueue, Settings, partition};

    fn filled(keys: impl Iterator<Item = i64>, payload: i64, bits: u32) -> Vec<Option<Filled>> {
        let tuples: Vec<Tuple> = keys.map(|key| Tuple { key, payload }).collect();
        let (pages, settings) = (HugePages::new(), Settings { bits: Some(bits), ..Settings::new(1, 7) });
        let hasher = settings.hasher(tuples.len()).unwrap();
        let cursor = RowQueue::new(tuples.len());
        let build = partition(&settings, &hasher, &pages, JoinSide::Build, &tuples, &cursor).unwrap();
        let filled = |partition| {
            let span = Span::of(&build, partition, buckets_for(build.count(partition)))?;
            let filled = fill(&build, partition, &span, &mut vec![0; span.lines() * 8]);
            // A wider range gives the same result; a range without the last rank fails.
            let mut wide = vec![0; span.widened().lines() * 8];
            assert_eq!(fill(&build, partition, &span.widened(), &mut wide), filled);
            if build.count(partition) > 0 {
                let short = Span { ranks: span.ranks - 1, ..span };
                assert_ne!(fill(&build, partition, &short, &mut wide), Filled::All);
            }
            Some(filled)
        };
        (0..build.partitions()).map(filled).collect()
    }

    #[test]
    fn keys_close_together_have_places_of_their_own_in_every_partition() {
        for bits in [1, 4, 12, 14] {
            for start in [1, -5_000, i64::MIN, i64::MAX - 39_999] {
                let all = filled(start..=start + 39_999, 3, bits);
                assert!(all.iter().all(|filled| *filled == Some(Filled::All)), "{bits} bits from {start} on");
            }
        }
    }

    #[test]
    fn keys_far_apart_get_no_places() {
        assert!(filled((0..4_000).map(|key| key << 40), 3, 2).contains(&None));
        assert!(filled([i64::MIN, i64::MAX, 0, -1].into_iter(), 3, 1).contains(&None));
    }

    #[test]
    fn second_row_of_a_key_and_the_payload_of_free_places_are_seen() {
        assert_eq!(filled([1, 2, 3, 2, 1, 3].into_iter(), 3, 1), [Some(Filled::Twice); 2]);
        assert_eq!(filled(1..=6, FREE, 1), [Some(Filled::Free); 2]);
    }

    #[test]
    fn all_kernels_find_the_same_pairs() {
        let tuple = |key: i64| Tuple { key, payload: key.wrapping_mul(7) };
        let tuples: Vec<Tuple> = (-900..2_000).filter(|key| key % 3 != 0).map(tuple).collect();
        let beyond = (0..64).flat_map(|key| [i64::MIN + key, i64::MAX - key, 1 << key, -1 << key]);
        let probes: Vec<Tuple> = (-1_000..2_100).chain(beyond).map(tuple).collect();
        let (pages, settings) = (HugePages::new(), Settings { bits: Some(1), ..Settings::new(1, 7) });
        let hasher = settings.hasher(tuples.len()).unwrap();
        let cursor = RowQueue::new(tuples.len());
        let build = partition(&settings, &hasher, &pages, JoinSide::Build, &tuples, &cursor).unwrap();
        for partition in 0..2 {
            let span = Span::of(&build, partition, buckets_for(build.count(partition))).unwrap();
            let mut table = vec![CacheLine::default(); span.lines()];
            assert_eq!(fill(&build, partition, &span, words_mut(&mut table)), Filled::All);
            let direct = DenseTable::new(hasher, &table, std::slice::from_ref(&span));
            let own: Vec<Tuple> =
                probes.iter().filter(|probe| hasher.partition(probe.key) == partition).copied().collect();
            for (kernels, rows) in
                Kernels::all().into_iter().flat_map(|kernels| [1, 3, 509].map(|n| (kernels, n)))
            {
                let mut pairs = Vec::new();
                for batch in own.chunks(rows) {
                    let mut found = Found::new();
                    let (builds, probes) = kernels.find_direct_pairs(&direct, batch, &[], &mut found);
                    pairs.extend(builds.iter().copied().zip(probes.iter().copied()));
                }
                let is_there = |key: i64| (-900..2_000).contains(&key) && key % 3 != 0;
                let expected = own.iter().filter(|probe| is_there(probe.key)).map(|p| (p.payload, p.payload));
                assert_eq!(pairs, expected.collect::<Vec<_>>(), "{} by {rows}", kernels.name());
            }
        }
    }
}
