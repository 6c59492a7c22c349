//! Parts that a commit removes from a table.

use farpool_wire::CommitId;
use farpool_wire::control::{PartAt, PartRange};
use std::collections::BTreeSet;

/// Files and pages that a change has taken from a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed(Vec<(CommitId, u64, u32)>);

impl Removed {
    /// Adds a part.
    pub fn push(&mut self, at: PartAt, added: u64) {
        self.0.push((at.commit, added, at.index));
    }

    /// Takes those parts out that a commit has added itself, and returns them.
    pub fn take_own(&mut self, commit: CommitId) -> BTreeSet<u32> {
        self.0.extract_if(.., |(of, ..)| *of == commit).map(|(.., index)| index).collect()
    }

    /// Returns the parts in ranges.
    pub fn ranges(mut self) -> Vec<PartRange> {
        self.0.sort_unstable();
        let mut ranges: Vec<PartRange> = Vec::new();
        for (commit, added, index) in self.0 {
            match ranges.last_mut() {
                Some(last)
                    if (last.commit, last.added) == (commit, added)
                        && last.last.checked_add(1) == Some(index) =>
                {
                    last.last = index;
                }
                _ => ranges.push(PartRange { added, commit, first: index, last: index }),
            }
        }
        ranges
    }
}
