//! The groups of a run or of a merge, held in whichever way is quickest for their keys and aggregates.

use super::batch::Rows;
use super::bounds::{Steps, Stopped};
use super::group::Groups;
use super::packed::PackedGroups;
use super::slots::Room;
use crate::program::Aggregate;
use crate::types::Type;
use arrow_array::{ArrayRef, RecordBatch};

/// Groups, by how they are held.
pub(super) enum Grouping {
    /// Keys and accumulators of fixed width.
    Packed(PackedGroups),
    /// Any.
    General(Groups),
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
        Ok(match PackedGroups::new(&key_columns, aggregates, input, room, seed) {
            Some(groups) => Grouping::Packed(groups),
            None => {
                Grouping::General(Groups::new(key_columns, aggregates, input, groups_max, bytes_max, seed)?)
            }
        })
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
        Ok(match PackedGroups::new(&key_columns, aggregates, input, room, seed) {
            Some(groups) => Grouping::Packed(groups),
            // Numbers of groups have 32 bits, the last of which is no group's.
            None => {
                let groups_max = u32::MAX as usize - 1;
                Grouping::General(Groups::merging(key_columns, aggregates, input, groups_max, seed)?)
            }
        })
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
        match self {
            Grouping::Packed(groups) => groups.push(rows, steps, leaving),
            Grouping::General(groups) => groups.push(rows, steps, leaving),
        }
    }

    /// Takes a batch of partial groups in.
    ///
    /// # Errors
    /// Partial values beyond all bounds.
    pub(super) fn merge(&mut self, columns: &[ArrayRef]) -> Result<(), Stopped> {
        match self {
            Grouping::Packed(groups) => groups.merge(columns),
            Grouping::General(groups) => groups.merge(columns),
        }
    }

    /// All groups, as partial ones; none are held behind that.
    ///
    /// # Errors
    /// None.
    pub(super) fn leave(&mut self, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        match self {
            Grouping::Packed(groups) => groups.leave(leaving),
            Grouping::General(groups) => groups.leave(leaving),
        }
    }

    /// All groups, whole, in the order of their keys.
    ///
    /// # Errors
    /// A sum that does not fit its type.
    pub(super) fn finish(&self) -> Result<Vec<RecordBatch>, Stopped> {
        match self {
            Grouping::Packed(groups) => groups.finish(),
            Grouping::General(groups) => groups.finish(),
        }
    }

    /// Types of the hidden columns behind the aggregates.
    pub(super) fn hidden(&self) -> Vec<Type> {
        match self {
            Grouping::Packed(groups) => groups.hidden(),
            Grouping::General(groups) => groups.hidden(),
        }
    }
}
