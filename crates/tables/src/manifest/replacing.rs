//! Replacing data files in the middle of a manifest, as a compaction does.

use super::{DataFile, Entries, PAGE_ENTRIES_MAX, PageRef, Pages, Removed, chunks, under_one};
use std::collections::BTreeMap;

/// Replaces data files of a manifest by others: `edits` has the files, perhaps none, that take the place of a data
/// file, by its number in the order of the rows. Only pages on the way to these files, and small ones beside them, are
/// read and written anew. Returns the new entries.
pub fn replace<P: Pages>(
    entries: &Entries,
    edits: &BTreeMap<u64, Vec<DataFile>>,
    pages: &mut P,
    removed: &mut Removed,
) -> Result<Entries, P::Error> {
    let level = replace_below(entries.clone(), 0, edits, pages, removed)?;
    under_one(level, pages)
}

/// Replaces data files below a page whose first data file has the number `first`. Returns the entries of at least one
/// page that takes its place.
fn replace_below<P: Pages>(
    entries: Entries,
    first: u64,
    edits: &BTreeMap<u64, Vec<DataFile>>,
    pages: &mut P,
    removed: &mut Removed,
) -> Result<Vec<Entries>, P::Error> {
    let (height, refs) = match entries {
        Entries::Files(files) => {
            let mut kept = Vec::with_capacity(files.len());
            for (number, file) in (first..).zip(files) {
                match edits.get(&number) {
                    Some(others) => {
                        removed.push(file.at, file.added);
                        kept.extend(others.iter().cloned());
                    }
                    None => kept.push(file),
                }
            }
            return Ok(chunks(kept).map(Entries::Files).collect());
        }
        Entries::Pages(height, refs) => (height, refs),
    };
    let mut kept = Kept { height, refs: Vec::with_capacity(refs.len()), loose: Vec::new() };
    let mut next = first;
    for page in refs {
        let from = next;
        next = next.saturating_add(page.totals.files);
        if edits.range(from..next).next().is_none() {
            kept.push(page, pages, removed)?;
            continue;
        }
        removed.push(page.at, page.added);
        let before = pages.read(&page)?;
        for after in replace_below(before, from, edits, pages, removed)? {
            kept.push_new(after, pages, removed)?;
        }
    }
    kept.write(pages)?;
    Ok(chunks(kept.refs).map(|refs| Entries::Pages(height, refs)).collect())
}

/// Pages that a page keeps, and data files behind them that are in no page yet: fewer than a full one, so that changes
/// do not leave ever more pages of few files.
struct Kept {
    height: u8,
    refs: Vec<PageRef>,
    loose: Vec<DataFile>,
}

impl Kept {
    fn write<P: Pages>(&mut self, pages: &mut P) -> Result<(), P::Error> {
        if !self.loose.is_empty() {
            self.refs.push(pages.write(Entries::Files(std::mem::take(&mut self.loose)))?);
        }
        Ok(())
    }

    /// Reports whether the files of a page of data files fit into one page with the loose ones.
    fn fits(&self, files: u64) -> bool {
        self.height == 0 && files.saturating_add(self.loose.len() as u64) <= PAGE_ENTRIES_MAX as u64
    }

    /// Adds a page that did not change.
    fn push<P: Pages>(
        &mut self,
        page: PageRef,
        pages: &mut P,
        removed: &mut Removed,
    ) -> Result<(), P::Error> {
        if !self.loose.is_empty() && self.fits(page.totals.files) {
            removed.push(page.at, page.added);
            let entries = pages.read(&page)?;
            return self.push_new(entries, pages, removed);
        }
        self.write(pages)?;
        self.refs.push(page);
        Ok(())
    }

    /// Adds entries that are in no page yet.
    fn push_new<P: Pages>(
        &mut self,
        entries: Entries,
        pages: &mut P,
        removed: &mut Removed,
    ) -> Result<(), P::Error> {
        let files = match entries {
            entries if entries.is_empty() => return Ok(()),
            Entries::Files(files) => files,
            entries => {
                self.refs.push(pages.write(entries)?);
                return Ok(());
            }
        };
        let count = files.len() as u64;
        if self.loose.is_empty()
            && let Some(last) = self.refs.pop_if(|last| {
                self.height == 0 && last.totals.files.saturating_add(count) <= PAGE_ENTRIES_MAX as u64
            })
        {
            removed.push(last.at, last.added);
            if let Entries::Files(files) = pages.read(&last)? {
                self.loose = files;
            }
        }
        if !self.fits(count) {
            self.write(pages)?;
        }
        self.loose.extend(files);
        Ok(())
    }
}

/// Returns the data files of the last page, and how many data files come before them.
pub fn last_files<P: Pages>(entries: &Entries, pages: &mut P) -> Result<(u64, Vec<DataFile>), P::Error> {
    let all = entries.totals().files;
    let mut last = entries.clone();
    loop {
        last = match last {
            Entries::Files(files) => return Ok((all.saturating_sub(files.len() as u64), files)),
            Entries::Pages(_, refs) => match refs.last() {
                Some(page) => pages.read(page)?,
                None => return Ok((all, Vec::new())),
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{InMemory, file, files, parts};
    use super::super::{Walked, append, walk};
    use super::*;
    use farpool_wire::CommitId;
    use farpool_wire::control::PartAt;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns the numbers of data files of the pages, from left to right; one number if the root has them itself.
    fn page_sizes(entries: &Entries, pages: &mut InMemory) -> Vec<usize> {
        let mut sizes = vec![0];
        let mut count = |walked: Walked<'_>| match walked {
            Walked::Page(_) => sizes.push(0),
            Walked::File(_) => *sizes.last_mut().expect("the root") += 1,
        };
        walk(entries, pages, &mut count).expect("in memory");
        sizes.retain(|size| *size > 0);
        sizes
    }

    /// A list of files is the model: `steps` are appends of so many files, and replacements of runs of files, each by
    /// one.
    fn agrees_with_a_list(steps: Vec<(u16, Vec<(u16, u8)>)>) {
        let mut pages = InMemory::default();
        let mut entries = Entries::Files(Vec::new());
        let mut model: Vec<PartAt> = Vec::new();
        for (commit, (added, runs)) in (1..).zip(steps) {
            (pages.commit, pages.next) = (commit, 10_000);
            let mut removed = Removed::default();
            let before = parts(&entries, &mut pages);
            if runs.is_empty() {
                let added: Vec<DataFile> = (0..u32::from(added)).map(|index| file(commit, index)).collect();
                model.extend(added.iter().map(|file| file.at));
                entries = append(&entries, added, &mut pages, &mut removed).expect("in memory");
            } else {
                let (mut edits, mut index) = (BTreeMap::new(), 0);
                for (at, length) in runs {
                    let start = usize::from(at) % model.len().max(1);
                    let run = start..model.len().min(start + usize::from(length));
                    if run.clone().any(|number| edits.contains_key(&(number as u64))) {
                        continue;
                    }
                    for number in run.clone() {
                        let with = if number == run.start { vec![file(commit, index)] } else { Vec::new() };
                        edits.insert(number as u64, with);
                    }
                    index += 1;
                }
                let replaced = |(number, at): (usize, PartAt)| match edits.get(&(number as u64)) {
                    Some(files) => files.iter().map(|file| file.at).collect::<Vec<_>>(),
                    None => vec![at],
                };
                model = model.into_iter().enumerate().flat_map(replaced).collect();
                entries = replace(&entries, &edits, &mut pages, &mut removed).expect("in memory");
            }
            assert_eq!(files(&entries, &mut pages), model);
            let gone: BTreeSet<PartAt> = before.difference(&parts(&entries, &mut pages)).copied().collect();
            removed.take_own(CommitId(commit));
            let told = removed.ranges().into_iter().flat_map(|range| {
                (range.first..=range.last).map(move |index| PartAt { commit: range.commit, index })
            });
            assert_eq!(told.collect::<BTreeSet<_>>(), gone, "what was removed");
            let (behind, last) = last_files(&entries, &mut pages).expect("in memory");
            let last: Vec<PartAt> = last.iter().map(|file| file.at).collect();
            assert_eq!(last, model[behind as usize..]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn manifest_has_the_files_of_a_list_in_which_runs_are_replaced(
            steps in proptest::collection::vec(
                (1u16..900, prop_oneof![
                    Just(Vec::new()),
                    proptest::collection::vec((any::<u16>(), 1u8..200), 1..6),
                ]),
                1..20,
            )
        ) {
            agrees_with_a_list(steps);
        }
    }

    #[test]
    fn pages_that_lose_most_of_their_files_become_one() {
        let mut pages = InMemory::default();
        (pages.commit, pages.next) = (1, 1_000_000);
        let all = (0..10_000).map(|index| file(1, index)).collect();
        let empty = Entries::Files(Vec::new());
        let entries = append(&empty, all, &mut pages, &mut Removed::default()).expect("in memory");
        assert_eq!(page_sizes(&entries, &mut pages).len(), 10_000usize.div_ceil(PAGE_ENTRIES_MAX));
        let edit = |number: u64| match number % 500 {
            0 => (number, vec![file(2, number as u32 / 500)]),
            _ => (number, Vec::new()),
        };
        (pages.commit, pages.next) = (2, 1_000_000);
        let edits = (0..10_000).map(edit).collect();
        let entries = replace(&entries, &edits, &mut pages, &mut Removed::default()).expect("in memory");
        assert_eq!(page_sizes(&entries, &mut pages), [20]);
    }

    #[test]
    fn replacing_a_run_in_one_page_of_many_writes_few_pages() {
        let mut pages = InMemory::default();
        (pages.commit, pages.next) = (1, 1_000_000);
        let all = (0..100_000).map(|index| file(1, index)).collect();
        let empty = Entries::Files(Vec::new());
        let entries = append(&empty, all, &mut pages, &mut Removed::default()).expect("in memory");
        (pages.commit, pages.next, pages.written) = (2, 1_000_000, 0);
        let edits = (60_000..60_020).map(|number| (number, Vec::new())).collect();
        let entries = replace(&entries, &edits, &mut pages, &mut Removed::default()).expect("in memory");
        assert_eq!(entries.totals().files, 99_980);
        assert!(pages.written <= 3, "{} pages", pages.written);
    }
}
