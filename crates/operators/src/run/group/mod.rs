//! The groups of a run or of a merge, held in whichever way is quickest for their keys and aggregates.

mod groups;
mod hold;
mod pack;
mod packed;
mod slots;
mod tally;
mod texts;

use crate::program::Aggregate;
use crate::run::batch::Rows;
use crate::run::bounds::{Steps, Stopped};
use crate::types::Type;
use arrow_array::{ArrayRef, RecordBatch};
use groups::Groups;
use packed::PackedGroups;
use slots::Room;

/// Groups, by how they are held.
pub(super) enum Grouping {
    /// Keys and accumulators of fixed width, and what takes over where keys turn out not to fit.
    Packed(PackedGroups, Option<Box<Groups>>),
    /// Any.
    General(Box<Groups>),
}

/// Words that a merge's table may have: places have 32 bits. Half of its slots stay free, and it doubles as it grows.
const MERGE_WORDS_MAX: usize = u32::MAX as usize / 8;

impl Grouping {
    /// Of a run: no more groups and bytes than this are held.
    ///
    /// # Errors
    /// None for a program that has been checked.
    pub(super) fn new(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        groups_max: usize,
        bytes_max: usize,
        seed: u64,
    ) -> Result<Grouping, Stopped> {
        let room = Room { groups_max, bytes_max, holds_all: false };
        let packed = PackedGroups::new(&key_columns, aggregates, input, room, seed);
        let general = Box::new(Groups::new(key_columns, aggregates, input, groups_max, bytes_max, seed)?);
        Ok(Grouping::either(packed, general))
    }

    fn either(packed: Option<PackedGroups>, general: Box<Groups>) -> Grouping {
        match packed {
            Some(packed) => Grouping::Packed(packed, Some(general)),
            None => Grouping::General(general),
        }
    }

    /// For the partial groups of runs: their keys come first, in order.
    ///
    /// # Errors
    /// None for a program that has been checked.
    pub(super) fn merging(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        seed: u64,
    ) -> Result<Grouping, Stopped> {
        // A key, a word that says what was seen, and the longest accumulators.
        let groups_max = MERGE_WORDS_MAX / (3 + 3 * aggregates.len()).next_power_of_two();
        let room = Room { groups_max, bytes_max: usize::MAX, holds_all: true };
        let packed = PackedGroups::new(&key_columns, aggregates, input, room, seed);
        // Numbers of groups have 32 bits, the last of which is no group's.
        let groups_max = u32::MAX as usize - 1;
        let general = Box::new(Groups::merging(key_columns, aggregates, input, groups_max, seed)?);
        Ok(Grouping::either(packed, general))
    }

    /// Takes rows in. What leaves for them is put behind `leaving`.
    ///
    /// # Errors
    /// Steps that run out, or a dictionary that says too much.
    pub(super) fn push(
        &mut self,
        rows: &Rows,
        steps: &mut Steps,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<(), Stopped> {
        let general = match self {
            Grouping::General(groups) => return groups.push(rows, steps, leaving),
            Grouping::Packed(groups, general) => {
                if groups.push(rows, steps, leaving)? {
                    return Ok(());
                }
                groups.leave(leaving)?;
                general.take()
            }
        };
        self.go_on_with(general)?.push(rows, steps, leaving)
    }

    fn go_on_with(&mut self, general: Option<Box<Groups>>) -> Result<&mut Groups, Stopped> {
        if let Some(general) = general {
            *self = Grouping::General(general);
        }
        match self {
            Grouping::General(groups) => Ok(groups),
            // One that has been taken is what there is since.
            Grouping::Packed(..) => Err(Stopped::Columns("keys that fit nowhere".to_owned())),
        }
    }

    /// Takes a batch of partial groups in.
    ///
    /// # Errors
    /// Partial values beyond all bounds.
    pub(super) fn merge(&mut self, columns: &[ArrayRef]) -> Result<(), Stopped> {
        let (held, general) = match self {
            Grouping::General(groups) => return groups.merge(columns),
            Grouping::Packed(groups, general) => {
                if groups.merge(columns)? {
                    return Ok(());
                }
                let mut held = Vec::new();
                groups.leave(&mut held)?;
                (held, general.take())
            }
        };
        let general = self.go_on_with(general)?;
        held.iter().try_for_each(|batch| general.merge(batch.columns()))?;
        general.merge(columns)
    }

    /// All groups, as partial ones; none are held behind that.
    ///
    /// # Errors
    /// None.
    pub(super) fn leave(&mut self, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        match self {
            Grouping::Packed(groups, _) => groups.leave(leaving),
            Grouping::General(groups) => groups.leave(leaving),
        }
    }

    /// All groups, whole, in the order of their keys.
    ///
    /// # Errors
    /// A sum that does not fit its type.
    pub(super) fn finish(&self) -> Result<Vec<RecordBatch>, Stopped> {
        match self {
            Grouping::Packed(groups, _) => groups.finish(),
            Grouping::General(groups) => groups.finish(),
        }
    }

    /// Types of the hidden columns behind the aggregates.
    pub(super) fn hidden(&self) -> Vec<Type> {
        match self {
            Grouping::Packed(groups, _) => groups.hidden(),
            Grouping::General(groups) => groups.hidden(),
        }
    }
}
