//! `RangeLocks`: range locks, which decide the operations on a file that may run at the same time.
//!
//! The idea: think of a road. Cars pass side by side. Road works close a stretch: no car enters it any more, and the
//! works begin when the last car has left. Reads and writes are the cars. Operations that move or free extents
//! (truncate, delete, publish, adding a repaired copy) are the road works. No read or write can therefore reach an
//! extent that belongs to another file by now.
//!
//! - Usual case: nothing conflicts, and an operation begins at once.
//! - Two writes that overlap never run at the same time. Otherwise the copies of a mirror could receive them in
//!   different orders and differ for ever.
//! - Busy case: a change that waits keeps out whatever begins after it. Otherwise a steady stream of reads would make
//!   it wait for ever.
//!
//! An operation on several ranges counts as one from the first byte to the last. That is simpler, and can only make
//! others wait longer.

use farpool_wire::mutant;
use std::ops::Range;

/// Kinds of operations, by what they do to their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeLockKind {
    /// Read. Other reads and writes may run beside it; it sees each byte as before or after a write.
    Read,
    /// Read of whole pages. No write may run beside it.
    ReadWhole,
    /// Write. No other write of the same bytes may run beside it.
    Write,
    /// Change of the location of bytes. Nothing else may run beside it.
    Change,
}

/// Id of an operation under way, or of a change that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeLockId(u64);

/// Operations under way on one file, and changes that wait.
#[derive(Clone, Debug, Default)]
pub struct RangeLocks {
    open: Vec<(RangeLockId, RangeLockKind, Range<u64>)>,
    /// Changes that wait, in the order of their requests. Nothing that conflicts with one may begin, or it would wait
    /// for ever.
    waiting: Vec<(RangeLockId, Range<u64>)>,
    next: u64,
}

fn exclude(one: RangeLockKind, other: RangeLockKind) -> bool {
    use RangeLockKind::*;
    match (one, other) {
        (Write, Write) => !mutant!(WritesOverlap),
        (Read | ReadWhole, Read | ReadWhole) | (Read, Write) | (Write, Read) => false,
        (ReadWhole, Write) | (Write, ReadWhole) | (Change, _) | (_, Change) => true,
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl RangeLocks {
    /// Begins an operation. `None` if it conflicts with one under way or with a change that waits.
    pub fn begin(&mut self, kind: RangeLockKind, range: Range<u64>) -> Option<RangeLockId> {
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

    /// Requests a change. From now on nothing that conflicts with it begins. Call [`Self::begin_change`] whenever an
    /// operation has ended.
    pub fn request_change(&mut self, range: Range<u64>) -> RangeLockId {
        let id = self.fresh();
        self.waiting.push((id, range));
        id
    }

    /// Begins a requested change if nothing conflicts with it any more. Of two conflicting changes the one requested
    /// first goes first.
    pub fn begin_change(&mut self, id: RangeLockId) -> bool {
        let Some(place) = self.waiting.iter().position(|(waiting, _)| *waiting == id) else { return true };
        let range = self.waiting[place].1.clone();
        let is_blocked = self.open.iter().any(|(_, _, over)| overlap(&range, over))
            || self.waiting[..place].iter().any(|(_, over)| overlap(&range, over));
        if !is_blocked {
            self.waiting.remove(place);
            self.open.push((id, RangeLockKind::Change, range));
        }
        !is_blocked
    }

    /// Ends an operation, or withdraws a change that waits.
    pub fn end(&mut self, id: RangeLockId) {
        self.open.retain(|(open, ..)| *open != id);
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    /// Returns an id that is greater than those of all operations under way.
    pub fn mark(&mut self) -> RangeLockId {
        self.fresh()
    }

    /// Reports whether an operation with a smaller id is under way.
    pub fn has_older(&self, than: RangeLockId) -> bool {
        self.open.iter().any(|(open, ..)| *open < than)
    }

    fn fresh(&mut self) -> RangeLockId {
        self.next += 1;
        RangeLockId(self.next)
    }
}
