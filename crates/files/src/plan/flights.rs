//! `Flights`: which operations on a file may be under way at the same time.
//!
//! The idea: the one writer of a file orders its writes, so two writes that overlap never run at once; or the
//! copies of a mirror could take them in different orders and differ for ever. Whatever moves or frees extents
//! (truncate, delete, publish, attaching a repaired copy) waits until nothing runs in them, so no copy ever
//! runs into an extent that has become another file's.
//!
//! An operation on several ranges counts as one on all between the first and the last of them: that can only
//! make others wait longer.

use farpool_wire::mutant;
use std::ops::Range;

/// What an operation does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlightKind {
    /// Reads. Other reads and writes may run beside it: it sees each byte before or after a write.
    Read,
    /// Reads, and needs each page whole: no write may run beside it.
    ReadWhole,
    /// Writes.
    Write,
    /// Changes where the bytes lie.
    Change,
}

/// An operation under way, or a change that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlightId(u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Flights {
    open: Vec<(FlightId, FlightKind, Range<u64>)>,
    /// Changes that wait, in the order they were asked for: nothing new begins in their way, or they would
    /// wait for ever.
    waiting: Vec<(FlightId, Range<u64>)>,
    next: u64,
}

fn exclude(one: FlightKind, other: FlightKind) -> bool {
    use FlightKind::*;
    match (one, other) {
        (Write, Write) => !mutant!(WritesOverlap),
        (Read | ReadWhole, Read | ReadWhole) | (Read, Write) | (Write, Read) => false,
        (ReadWhole, Write) | (Write, ReadWhole) | (Change, _) | (_, Change) => true,
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Flights {
    /// Begins an operation, unless something under way, or a change that waits, is in its way.
    pub fn begin(&mut self, kind: FlightKind, range: Range<u64>) -> Option<FlightId> {
        let is_blocked =
            self.open.iter().any(|(_, open, over)| exclude(kind, *open) && overlap(&range, over))
                || self.waiting.iter().any(|(_, over)| overlap(&range, over));
        if is_blocked {
            return None;
        }
        let id = self.fresh();
        self.open.push((id, kind, range));
        Some(id)
    }

    /// Asks for a change: from now on nothing new begins in its way. Try [`Self::begin_change`] whenever
    /// something has ended.
    pub fn request_change(&mut self, range: Range<u64>) -> FlightId {
        let id = self.fresh();
        self.waiting.push((id, range));
        id
    }

    /// Begins a change that was asked for, if nothing is in its way any more. Of two changes in each other's
    /// way, the one asked for first goes first.
    pub fn begin_change(&mut self, id: FlightId) -> bool {
        let Some(place) = self.waiting.iter().position(|(waiting, _)| *waiting == id) else { return true };
        let range = self.waiting[place].1.clone();
        let is_blocked = self.open.iter().any(|(_, _, over)| overlap(&range, over))
            || self.waiting[..place].iter().any(|(_, over)| overlap(&range, over));
        if !is_blocked {
            self.waiting.remove(place);
            self.open.push((id, FlightKind::Change, range));
        }
        !is_blocked
    }

    /// An operation is over, or a change is not wanted any more.
    pub fn end(&mut self, id: FlightId) {
        self.open.retain(|(open, ..)| *open != id);
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    /// A moment: what is under way now began before it.
    pub fn mark(&mut self) -> FlightId {
        self.fresh()
    }

    /// Whether something that began before a moment is still under way.
    pub fn has_older(&self, than: FlightId) -> bool {
        self.open.iter().any(|(open, ..)| *open < than)
    }

    fn fresh(&mut self) -> FlightId {
        self.next += 1;
        FlightId(self.next)
    }
}
