//! Choice of the files that a compaction makes one of. Pure: no I/O.
//!
//! The idea: rows that are merged with every append would be written again and again. So files are told apart by
//! *tier*: each tier has files of eight times the rows of the one before. Files that follow each other become one only
//! if that has a higher tier than each of them, or is full. So a row is written anew at most once for each tier, about
//! log8(rows of a full file) times, whatever the appends were like; and of each tier at most seven files in a row are
//! left. A file with rows that were mostly deleted is written anew by itself, and so is, if all small files become one,
//! a file of earlier columns.

use crate::GROUP_ALIGN;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a file that is worth compacting no further: with the regions and row groups that are usual, its rows take
/// more bytes than the region that its end leaves unused, and its footer is read at once with few others.
pub const TARGET_BYTES: u64 = 128 << 20;
/// Rows of a tier, as a multiple of those of the tier before: eight, as a number of bits.
const TIER_BITS: u32 = 3;

/// Data file, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of its rows that the table has.
    pub rows: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Number of its row groups that the table has.
    pub groups: u32,
    /// Number of its row groups that the table does not have any more.
    pub left_out: u32,
    /// Number of its partition. Only files of one partition become one.
    pub partition: usize,
    /// True if columns of the table were added, dropped or widened after it was written.
    pub is_outdated: bool,
}

/// Extent of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Files become one only if their rows have not been written anew often.
    Amortised,
    /// All small files that follow each other become one, and each file has the columns of the table.
    Whole,
}

impl Candidate {
    /// Returns the bytes of the row groups that the table has, about.
    fn live_bytes(&self) -> u64 {
        let all = u64::from(self.groups) + u64::from(self.left_out);
        match all {
            0 => 0,
            all => (u128::from(self.bytes) * u128::from(self.groups) / u128::from(all)) as u64,
        }
    }

    /// Returns how many of these bytes are rows at least: each row group may be filled up with zeros.
    fn row_bytes(&self) -> u64 {
        self.live_bytes().saturating_sub(u64::from(self.groups) * GROUP_ALIGN as u64)
    }

    /// Reports whether the file is not merged with others any more.
    fn is_full(&self, target: u64) -> bool {
        self.live_bytes() >= target / 2
    }

    /// Reports whether a compaction that makes all files full would merge this one with others.
    pub fn is_small(&self, target: u64) -> bool {
        !self.is_full(target)
    }

    /// Reports whether more than half of the row groups were left out.
    fn is_hollow(&self) -> bool {
        self.left_out > self.groups
    }

    fn tier(&self) -> u32 {
        self.rows.max(1).ilog2() / TIER_BITS
    }
}

/// Chooses which files become one: lists of numbers of files, each in ascending order, and no number twice. The rows of
/// a list keep their order, and files of its partition that lie between its files are in it.
pub fn choose(files: &[Candidate], target: u64, effort: Effort) -> Vec<Vec<usize>> {
    let mut partitions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        partitions.entry(file.partition).or_default().push(number);
    }
    let mut chosen: Vec<Vec<usize>> = Vec::new();
    for numbers in partitions.values() {
        let of: Vec<Candidate> = numbers.iter().map(|number| files[*number]).collect();
        let runs = of_partition(&of, target, effort);
        chosen.extend(runs.into_iter().map(|run| numbers[run].to_vec()));
    }
    chosen.sort_unstable();
    chosen
}

/// Chooses among the files of one partition, which follow each other.
fn of_partition(files: &[Candidate], target: u64, effort: Effort) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut is_taken = vec![false; files.len()];
    let highest = files.iter().map(Candidate::tier).max().unwrap_or(0);
    let tiers = match effort {
        Effort::Amortised => 0..=highest,
        Effort::Whole => highest..=highest,
    };
    for tier in tiers {
        let is_in = |number: usize| {
            let file: &Candidate = &files[number];
            !is_taken[number] && !file.is_full(target) && file.tier() <= tier
        };
        let mut found = Vec::new();
        let mut start = 0;
        while start < files.len() {
            let mut end = start;
            let mut bytes = 0;
            while end < files.len() && is_in(end) && bytes + files[end].live_bytes() <= target {
                bytes += files[end].live_bytes();
                end += 1;
            }
            let run = &files[start..end];
            let rows: u64 = run.iter().map(|file| file.rows).sum();
            let row_bytes: u64 = run.iter().map(Candidate::row_bytes).sum();
            let is_worth_it = match effort {
                Effort::Amortised => rows >> (TIER_BITS * (tier + 1)).min(63) > 0 || row_bytes >= target / 2,
                Effort::Whole => true,
            };
            if run.len() > 1 && is_worth_it {
                found.push(start..end);
            }
            start = end.max(start + 1);
        }
        found.iter().flat_map(Range::clone).for_each(|number| is_taken[number] = true);
        runs.append(&mut found);
    }
    let is_due = |file: &Candidate| file.is_hollow() || effort == Effort::Whole && file.is_outdated;
    let is_alone = |number: &usize| !is_taken[*number] && is_due(&files[*number]);
    runs.extend((0..files.len()).filter(is_alone).map(|number| number..number + 1));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TARGET: u64 = 32 << 20;

    /// Returns a file as a writer would make it of so many rows of so many bytes.
    fn written(rows: u64, row_bytes: u64, partition: usize) -> Candidate {
        let align = GROUP_ALIGN as u64;
        let groups = rows.div_ceil(align).max(1);
        let bytes = (0..groups).map(|group| {
            let rows = (rows - group * align).min(align);
            (rows * row_bytes).next_multiple_of(align).max(align)
        });
        let bytes = bytes.sum::<u64>() + 300 * groups;
        Candidate { rows, bytes, groups: groups as u32, left_out: 0, partition, is_outdated: false }
    }

    /// Table as a list of files: each file with the rows that it has, and how often each was written.
    #[derive(Default)]
    struct Table {
        files: Vec<(Candidate, Vec<usize>)>,
        row_bytes: u64,
        /// Number of times that each append was written.
        writes: Vec<u32>,
        rows: Vec<u64>,
    }

    impl Table {
        fn append(&mut self, rows: u64, partition: usize) {
            self.files.push((written(rows, self.row_bytes, partition), vec![self.rows.len()]));
            self.rows.push(rows);
            self.writes.push(1);
        }

        /// Compacts files from one number on. Returns how many lists were chosen.
        fn compact(&mut self, from: usize, effort: Effort) -> usize {
            let candidates: Vec<Candidate> = self.files[from..].iter().map(|(file, _)| *file).collect();
            let chosen = choose(&candidates, TARGET, effort);
            let mut seen = std::collections::BTreeSet::new();
            let mut gone = Vec::new();
            for list in &chosen {
                assert!(list.iter().all(|number| seen.insert(*number)), "a file is chosen twice");
                assert!(list.is_sorted());
                let (first, last) = (list[0], list[list.len() - 1]);
                let partition = candidates[first].partition;
                let between = (first..=last).filter(|number| candidates[*number].partition == partition);
                assert_eq!(between.collect::<Vec<_>>(), *list, "rows keep their order");
                let rows = list.iter().map(|number| candidates[*number].rows).sum();
                let mut appends = Vec::new();
                for number in list {
                    appends.append(&mut self.files[from + number].1);
                    gone.push(from + number);
                }
                appends.iter().for_each(|append| self.writes[*append] += 1);
                let merged = written(rows, self.row_bytes, partition);
                assert!(merged.bytes <= TARGET + list.len() as u64 * GROUP_ALIGN as u64, "{}", merged.bytes);
                self.files[from + first] = (merged, appends);
                gone.retain(|number| *number != from + first);
            }
            let mut number = 0;
            self.files.retain(|_| {
                number += 1;
                !gone.contains(&(number - 1))
            });
            chosen.len()
        }

        /// Returns the appends of a partition in the order of their rows.
        fn order(&self, partition: usize) -> Vec<usize> {
            let of = self.files.iter().filter(|(file, _)| file.partition == partition);
            of.flat_map(|(_, appends)| appends.iter().copied()).collect()
        }
    }

    /// Most times that a row is written: once when it is appended, once for each higher tier, once into a full file.
    fn writes_max(rows: u64) -> u32 {
        3 + rows.max(1).ilog2() / TIER_BITS
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn rows_are_written_few_times_and_few_files_are_left(
            row_bytes in prop_oneof![Just(8u64), Just(100), Just(5_000), Just(200_000)],
            sizes in proptest::collection::vec(prop_oneof![1u64..20, 1u64..2_000, 1u64..100_000], 50..400),
            partitions in 1usize..4,
            every in 1usize..40,
        ) {
            let mut table = Table { row_bytes, ..Table::default() };
            for (number, rows) in sizes.iter().enumerate() {
                table.append((*rows).clamp(1, TARGET / 4 / row_bytes), number % partitions);
                if number % every == 0 {
                    while table.compact(0, Effort::Amortised) > 0 {}
                }
            }
            while table.compact(0, Effort::Amortised) > 0 {}
            for partition in 0..partitions {
                let all = (0..sizes.len()).filter(|append| append % partitions == partition);
                prop_assert_eq!(table.order(partition), all.collect::<Vec<_>>());
            }
            let all: u64 = table.rows.iter().sum();
            for writes in &table.writes {
                prop_assert!(*writes <= writes_max(all), "{} times of {} rows", writes, all);
            }
            let bytes: u64 = table.files.iter().map(|(file, _)| file.bytes).sum();
            let full = 2 * bytes / TARGET + 1;
            let left = u64::from(8 * writes_max(all)) * partitions as u64 * full;
            prop_assert!(table.files.len() as u64 <= left, "{} files", table.files.len());
        }

        #[test]
        fn whole_compaction_ends_and_leaves_no_two_small_files_that_fit_together(
            sizes in proptest::collection::vec(prop_oneof![1u64..20, 1u64..500_000], 1..200),
            partitions in 1usize..4,
        ) {
            let mut table = Table { row_bytes: 60, ..Table::default() };
            for (number, rows) in sizes.iter().enumerate() {
                table.append(*rows, number % partitions);
            }
            let before = table.files.len();
            let mut rounds = 0;
            while table.compact(0, Effort::Whole) > 0 {
                rounds += 1;
                prop_assert!(rounds <= before, "it goes on for ever");
            }
            for partition in 0..partitions {
                let of = table.files.iter().map(|(file, _)| *file).filter(|file| file.partition == partition);
                let of: Vec<Candidate> = of.collect();
                let together = |pair: &[Candidate]| {
                    pair.iter().all(|file| file.is_small(TARGET))
                        && pair.iter().map(Candidate::live_bytes).sum::<u64>() <= TARGET
                };
                prop_assert!(!of.windows(2).any(together));
            }
        }
    }

    #[test]
    fn ten_thousand_small_appends_leave_some_tens_of_files() {
        let mut table = Table { row_bytes: 20, ..Table::default() };
        for number in 0..10_000 {
            table.append(10, 0);
            // An append that finds more than 64 small files does so.
            let from = table.files.len().saturating_sub(128);
            if table.files[from..].len() > 64 && number % 16 == 0 {
                table.compact(from, Effort::Amortised);
            }
        }
        assert!(table.files.len() < 100, "{} files", table.files.len());
        let writes: u32 = table.writes.iter().sum();
        assert!(writes <= 10_000 * 6, "{writes} writes of 10,000 appends");
    }

    #[test]
    fn file_of_which_most_row_groups_were_deleted_is_written_anew() {
        let whole = written(65_536 * 10, 20, 0);
        let hollow = Candidate { groups: 4, left_out: 6, rows: 65_536 * 4, ..whole };
        let half = Candidate { groups: 5, left_out: 5, rows: 65_536 * 5, ..whole };
        let large = |file: Candidate| Candidate { bytes: 10 * TARGET, ..file };
        let files = [large(half), large(hollow), large(whole), large(hollow)];
        assert_eq!(choose(&files, TARGET, Effort::Amortised), [vec![1], vec![3]]);
    }

    #[test]
    fn file_of_earlier_columns_is_written_anew_if_all_are_to_have_those_of_the_table() {
        let full = Candidate { bytes: 10 * TARGET, ..written(65_536 * 10, 20, 0) };
        let files = [full, Candidate { is_outdated: true, ..full }, full];
        assert_eq!(choose(&files, TARGET, Effort::Whole), [vec![1]]);
        assert!(choose(&files, TARGET, Effort::Amortised).is_empty());
    }

    #[test]
    fn full_files_and_other_partitions_are_left_alone() {
        let small = |partition| written(10, 20, partition);
        let full = Candidate { bytes: TARGET, ..small(0) };
        assert!(choose(&[full; 20], TARGET, Effort::Whole).is_empty());
        let files = [small(0), small(1), full, small(0), small(1)];
        assert_eq!(choose(&files, TARGET, Effort::Whole), [vec![1, 4]]);
        assert!(choose(&[], TARGET, Effort::Whole).is_empty());
    }
}
