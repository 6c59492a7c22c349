//! Groups of a GROUP BY: those of a run (over one share of a table) or of a merge (of the partial groups of all runs).
//! Word groups ([`word_groups`]) have keys and accumulators of fixed width and are the faster way. General groups
//! ([`groups`]) have any. Both give the same results.

mod accumulators;
mod group_table;
mod groups;
mod texts;
mod word_accumulators;
mod word_groups;
mod word_keys;

use crate::program::Aggregate;
use crate::run::batch::Rows;
use crate::run::bounds::{Steps, Stopped};
use crate::types::Type;
use arrow_array::{ArrayRef, RecordBatch};
use group_table::Room;
use groups::Groups;
use word_groups::WordGroups;

/// Groups, by the way they are held.
pub(super) enum Grouping {
    /// Word groups, and empty general groups that take over if a batch's keys do not fit words.
    Words(WordGroups, Option<Box<Groups>>),
    /// General groups, for any keys and aggregates.
    General(Box<Groups>),
}

/// Words that the group table of a merge may have, so that the position of a slot fits 32 bits. Half of the slots
/// stay free, and the table doubles when it grows.
const MERGE_WORDS_MAX: usize = u32::MAX as usize / 8;

impl Grouping {
    /// Makes the groups of a run, which holds at most `groups_max` groups and `bytes_max` bytes at a time.
    ///
    /// # Errors
    /// None for a checked program.
    pub(super) fn new(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        groups_max: usize,
        bytes_max: usize,
        seed: u64,
    ) -> Result<Grouping, Stopped> {
        let room = Room { groups_max, bytes_max, holds_all: false };
        let words = WordGroups::new(&key_columns, aggregates, input, room, seed);
        let general = Box::new(Groups::new(key_columns, aggregates, input, groups_max, bytes_max, seed)?);
        Ok(Grouping::either(words, general))
    }

    fn either(words: Option<WordGroups>, general: Box<Groups>) -> Grouping {
        match words {
            Some(words) => Grouping::Words(words, Some(general)),
            None => Grouping::General(general),
        }
    }

    /// Makes the groups of a merge, which takes partial groups of runs. Their key columns come first, in order.
    ///
    /// # Errors
    /// None for a checked program.
    pub(super) fn merging(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        seed: u64,
    ) -> Result<Grouping, Stopped> {
        // A slot has at most a key of two words, a word for the aggregates that have seen a value, and three words
        // per accumulator.
        let groups_max = MERGE_WORDS_MAX / (3 + 3 * aggregates.len()).next_power_of_two();
        let room = Room { groups_max, bytes_max: usize::MAX, holds_all: true };
        let words = WordGroups::new(&key_columns, aggregates, input, room, seed);
        // Group numbers are `u32`, and the greatest is kept for "no group".
        let groups_max = u32::MAX as usize - 1;
        let general = Box::new(Groups::merging(key_columns, aggregates, input, groups_max, seed)?);
        Ok(Grouping::either(words, general))
    }

    /// Adds rows to their groups. Groups for which there is no room are appended to `leaving` as partial groups.
    ///
    /// # Errors
    /// Steps that have run out, or a dictionary that expands beyond its bound.
    pub(super) fn push(
        &mut self,
        rows: &Rows,
        steps: &mut Steps,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<(), Stopped> {
        let general = match self {
            Grouping::General(groups) => return groups.push(rows, steps, leaving),
            Grouping::Words(groups, general) => {
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
            // Not reached: the general groups are taken once, and from then on `self` is `General`.
            Grouping::Words(..) => {
                Err(Stopped::Columns("internal: the keys fit no kind of grouping".to_owned()))
            }
        }
    }

    /// Takes a batch of partial groups.
    ///
    /// # Errors
    /// A partial value that makes a count or sum overflow.
    pub(super) fn merge(&mut self, columns: &[ArrayRef]) -> Result<(), Stopped> {
        let (held, general) = match self {
            Grouping::General(groups) => return groups.merge(columns),
            Grouping::Words(groups, general) => {
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

    /// Appends all groups to `leaving` as partial groups. Afterwards no group is held.
    ///
    /// # Errors
    /// None.
    pub(super) fn leave(&mut self, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        match self {
            Grouping::Words(groups, _) => groups.leave(leaving),
            Grouping::General(groups) => groups.leave(leaving),
        }
    }

    /// Returns all groups with their final values, in the order of their keys.
    ///
    /// # Errors
    /// A sum that does not fit its type.
    pub(super) fn finish(&self) -> Result<Vec<RecordBatch>, Stopped> {
        match self {
            Grouping::Words(groups, _) => groups.finish(),
            Grouping::General(groups) => groups.finish(),
        }
    }

    /// Returns the types of the hidden columns, which come after the aggregates: what sums need to merge exactly.
    pub(super) fn hidden(&self) -> Vec<Type> {
        match self {
            Grouping::Words(groups, _) => groups.hidden(),
            Grouping::General(groups) => groups.hidden(),
        }
    }
}
