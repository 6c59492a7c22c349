//! Tables of keys that lie close together: a place for each key that could be, and nothing but payloads in them.
//!
//! The idea: two keys of one partition and of the same rank are equal ([`hash`](crate::hash)), so where ranks of a
//! partition lie close together, as those of 1..N do, a rank is a place, and what lies there needs no key beside it.
//! Such a table takes eight bytes a key instead of forty, and a lookup neither compares nor branches. It is made
//! wherever it takes no more room than buckets would; a word that nobody has as payload says that a place is free.
//! Ranks beyond both ends of a table share one place more, which stays free.

use crate::hash::Hasher;
use crate::partitioned::Partitioned;
use crate::table::{BATCH_ROWS, Found, Hit};
use crate::{Line, Tuple, memory::words};

/// What a free place holds. A side that has it as a payload gets a table of buckets.
pub(crate) const FREE: i64 = 0x5bd1_9f0c_e4a6_7d23;
/// Tuples between what is looked at and what is asked for from memory meanwhile.
const AHEAD_ROWS: usize = 32;
/// Words of the largest tables whose places are not asked for from memory ahead of being looked at: 384 KiB. Those of a
/// quarter of a MiB take half as long again if they are.
const NEAR_WORDS: usize = 3 << 14;
const _: () = assert!(AHEAD_ROWS.is_power_of_two());

/// Where the places of a partition lie.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// The rank of the first place.
    pub(crate) base: i64,
    /// The line that it begins.
    first: u32,
    /// How many there are, and the number of the one that is always free.
    pub(crate) ranks: u32,
}

impl Span {
    /// Of the rows of a partition, if they need no more lines than so many; their number otherwise does not matter.
    pub(crate) fn of(build: &Partitioned<'_>, partition: usize, lines: usize) -> Option<Span> {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        for tuples in build.slices(partition) {
            for tuple in tuples {
                (least, most) = (least.min(tuple.key), most.max(tuple.key));
            }
            // Two far apart are enough to know.
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

    /// The same with room for a rank more at both ends: what may do for another partition.
    pub(crate) fn widened(self) -> Span {
        let base = self.base.saturating_sub(1);
        Span { base, ranks: self.ranks.saturating_add(2), ..self }
    }

    /// The same from this line on.
    pub(crate) fn at_line(self, first: usize) -> Span {
        Span { first: first as u32, ..self }
    }

    /// The place of a key of its partition.
    #[inline(always)]
    pub(crate) fn place(&self, hasher: &Hasher, key: i64) -> usize {
        (hasher.rank(key).wrapping_sub(self.base) as u64).min(u64::from(self.ranks)) as usize
    }

    /// Lines that it takes.
    pub(crate) fn lines(&self) -> usize {
        self.ranks as usize / 8 + 1
    }
}

/// Whether these keys and all between them fit into so many lines.
fn fits(hasher: &Hasher, least: i64, most: i64, lines: usize) -> bool {
    // A rank is short of a bit at least, so this does not overflow.
    let last = (hasher.rank(most) - hasher.rank(least)) as u64;
    last + 1 < (lines as u64 * 8).min(u64::from(u32::MAX))
}

/// Whether a table could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    All,
    /// A rank is beyond its ends.
    Beyond,
    /// Two rows have the same key.
    Twice,
    /// A payload is what free places hold.
    Free,
}

/// Makes the table of a partition in these words, which are as many as its lines have.
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

/// What is looked up in: tables of all partitions, or one, for tuples that belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct<'t> {
    hasher: Hasher,
    words: &'t [i64],
    spans: &'t [Span],
}

impl<'t> Direct<'t> {
    /// # Panics
    /// If spans are neither one nor as many as partitions.
    pub(crate) fn new(hasher: Hasher, lines: &'t [Line], spans: &'t [Span]) -> Direct<'t> {
        assert!(spans.len() == 1 || spans.len() == hasher.partitions(), "{} spans", spans.len());
        Direct { hasher, words: words(lines), spans }
    }

    /// One table alone that lies in a cache: its words are as many as its ranks and one more.
    #[inline(always)]
    pub(crate) fn near(&self) -> Option<(&'t Span, &'t [i64])> {
        match self.spans {
            [span] if self.words.len() <= NEAR_WORDS => {
                Some((span, &self.words[span.first as usize * 8..][..=span.ranks as usize]))
            }
            _ => None,
        }
    }

    pub(crate) fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Looks tuples up: what was found, and how much that is. `ask` brings a word nearer.
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

    /// The same for joins that want payloads and nothing else.
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

    /// Hands on the place of each tuple, in order, its payload, and what lies at its rank.
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
            // Memory is what this waits for: the next batch is asked for, line by line.
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
        // Meanwhile what the next batch begins with is asked for.
        let mut ahead = ahead.iter();
        for (at, tuple) in tuples.iter().enumerate().skip(tuples.len() - behind) {
            if let Some(later) = ahead.next() {
                ask(self.words.as_ptr().wrapping_add(self.far_place(later.key)).cast());
            }
            take(at, tuple.payload, self.words[places[at % AHEAD_ROWS]]);
        }
    }

    /// The place of a key among those of all partitions.
    #[inline(always)]
    fn far_place(&self, key: i64) -> usize {
        // One span is of all keys that are looked up.
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
    use crate::{Cursor, HugePages, Settings, Side, partition};

    fn filled(keys: impl Iterator<Item = i64>, payload: i64, bits: u32) -> Vec<Option<Filled>> {
        let tuples: Vec<Tuple> = keys.map(|key| Tuple { key, payload }).collect();
        let (pages, settings) = (HugePages::new(), Settings { bits: Some(bits), ..Settings::new(1, 7) });
        let hasher = settings.hasher(tuples.len()).unwrap();
        let cursor = Cursor::new(tuples.len());
        let build = partition(&settings, &hasher, &pages, Side::Build, &tuples, &cursor).unwrap();
        let filled = |partition| {
            let span = Span::of(&build, partition, buckets_for(build.count(partition)))?;
            let filled = fill(&build, partition, &span, &mut vec![0; span.lines() * 8]);
            // What does for one does with more room; without the room of its last row it does not.
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
        let cursor = Cursor::new(tuples.len());
        let build = partition(&settings, &hasher, &pages, Side::Build, &tuples, &cursor).unwrap();
        for partition in 0..2 {
            let span = Span::of(&build, partition, buckets_for(build.count(partition))).unwrap();
            let mut table = vec![Line::default(); span.lines()];
            assert_eq!(fill(&build, partition, &span, words_mut(&mut table)), Filled::All);
            let direct = Direct::new(hasher, &table, std::slice::from_ref(&span));
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
