//! Set of byte positions, stored as disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Set of byte positions, stored as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// End of each range (exclusive), by its start.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Reports whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds every position of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that overlap or touch the new one are merged into it.
        while let Some((&left, &right)) = self.ranges.range(..=end).next_back()
            && right >= start
        {
            start = start.min(left);
            end = end.max(right);
            self.ranges.remove(&left);
        }
        self.ranges.insert(start, end);
    }

    /// Removes every position of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&left, &right)) = self.ranges.range(..range.end).next_back()
            && right > range.start
        {
            self.ranges.remove(&left);
            if right > range.end {
                self.ranges.insert(range.end, right);
            }
            if left < range.start {
                self.ranges.insert(left, range.start);
            }
        }
    }

    /// Returns the parts of `range` that are in the set, in order.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        // First the range that starts before and reaches in, then those that start inside.
        let before = self.ranges.range(..range.start).next_back().filter(|(_, end)| **end > range.start);
        let inside = self.ranges.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(inside)
            .map(move |(start, end)| (*start).max(range.start)..(*end).min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// Reports whether any position of `range` is in the set.
    pub fn touches(&self, range: Range<u64>) -> bool {
        self.overlaps(range).next().is_some()
    }
}
