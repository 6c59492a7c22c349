//! Word groups: groups of a GROUP BY whose keys and accumulators are 64-bit words. Most groups are.
//!
//! The idea: keys that fit two words ([`WordKeyLayout`]) and accumulators of fixed width ([`WordAccumulators`]) lie
//! side by side in one table ([`GroupTable`]). A row then costs one probe and one addition.
//!
//! A run may meet more groups than it may hold. Rows of unknown keys then leave as partial groups, and the table
//! keeps the frequent keys. If that reduces nothing, because nearly every row leaves, most rows bypass the table:
//! they become partial groups without a lookup, and after a while the table is tried again. Keys that turn out not to
//! fit are left to [`super::groups::Groups`], which gives the same results for any keys. Partitioning the rows by
//! hash first was rejected: it pays only with tens of megabytes of rows held back (docs/decisions/0016-grouping.md).

use super::group_table::{BLOCK_ROWS, GroupTable, Key, LANES, Room};
use super::groups::LEAVING_GROUPS_MAX;
use super::texts::Texts;
use super::word_accumulators::{Input, WordAccumulators};
use super::word_keys::{WordKeyLayout, WordKeys, sort};
use crate::program::Aggregate;
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Steps, Stopped, bounded};
use crate::types::Type;
use arrow_array::{Array, ArrayRef, RecordBatch};

/// Least value of the limit of groups in one output batch. The limit is otherwise the number of groups that the table
/// may hold: with a table of a few groups, nearly every row would make a batch.
const LEAVING_GROUPS_MIN: usize = 256;

/// Bounds of the number of rows after which a full table is judged by the share of these rows that were output as
/// partial groups, for lack of a slot. Within the bounds it is four rows per group that the table may hold.
const JUDGED_ROWS: std::ops::RangeInclusive<usize> = 256..=65_536;
/// Divisor of the byte limit: texts of keys may take one part in this many.
const TEXT_SHARE: usize = 4;
/// Rows that bypass a full table for each judged row, if more than three in four of the judged rows were output for
/// lack of a slot. At worst this outputs a third more groups (docs/decisions/0016-grouping.md).
const PASSING: usize = 15;

/// Word groups of a run or a merge.
pub(in crate::run) struct WordGroups {
    key_columns: Vec<usize>,
    /// Layout of the keys in words.
    packing: WordKeyLayout,
    /// Layout of the accumulators in words.
    tally: WordAccumulators,
    table: Table,
    room: Room,
    seed: u64,
    /// Rows since a full table was judged last, and how many of them were output as partial groups for lack of a slot.
    judged: (usize, usize),
    /// Rows that are still to bypass the table, because lookups reduced too little.
    passing: usize,
}

/// Table of the groups, by the words of a key: one or two.
enum Table {
    Short(Box<GroupTable<1>>),
    Long(Box<GroupTable<2>>),
}

impl WordGroups {
    /// Makes empty word groups. `None` if keys or accumulators do not fit words.
    pub(super) fn new(
        key_columns: &[usize],
        aggregates: &[Aggregate],
        input: &[Type],
        room: Room,
        seed: u64,
    ) -> Option<WordGroups> {
        let types: Vec<Type> = key_columns.iter().map(|column| input[*column]).collect();
        let texts = types.iter().filter(|of| Texts::are(**of)).count();
        let text_bytes_max = if room.holds_all { usize::MAX } else { room.bytes_max / TEXT_SHARE };
        let packing = WordKeyLayout::new(&types, text_bytes_max / texts.max(1), seed)?;
        let is_shared = texts > 0 && !room.holds_all;
        let bytes_max = room.bytes_max - if is_shared { text_bytes_max } else { 0 };
        let room = Room { bytes_max, ..room };
        let tally = WordAccumulators::new(aggregates, input)?;
        let table = Table::new(&packing, &tally, room, seed);
        Some(WordGroups {
            key_columns: key_columns.to_vec(),
            packing,
            tally,
            table,
            room,
            seed,
            judged: (0, 0),
            passing: 0,
        })
    }

    /// Adds rows to their groups. Groups for which there is no room are appended to `leaving` as partial groups.
    /// Returns false, with no row taken, if the keys do not fit.
    pub(super) fn push(
        &mut self,
        rows: &Rows,
        steps: &mut Steps,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<bool, Stopped> {
        let mut columns = rows.columns.clone();
        // Expands dictionaries. They have texts as values, and only a count takes texts here, so few columns are
        // expanded.
        for column in self.tally.columns() {
            columns[column] = plain(&columns[column], BATCH_BYTES_MAX)?;
        }
        let aggregates = self.tally.len();
        steps.take(rows.count.saturating_mul(self.key_columns.len() + aggregates))?;
        let keys: Vec<ArrayRef> = self.key_columns.iter().map(|column| columns[*column].clone()).collect();
        let inputs = self.tally.inputs(&columns);
        self.take(&keys, &inputs, rows.count, leaving)
    }

    /// Takes a batch of partial groups. Returns false, with none taken, if the keys do not fit.
    pub(super) fn merge(&mut self, columns: &[ArrayRef]) -> Result<bool, Stopped> {
        let (keys, partial) = columns.split_at(self.key_columns.len());
        let inputs = self.tally.partial_inputs(partial);
        let rows = keys.first().map_or(0, |column| column.len());
        self.take(keys, &inputs, rows, &mut Vec::new())
    }

    fn take(
        &mut self,
        keys: &[ArrayRef],
        inputs: &[Input],
        rows: usize,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<bool, Stopped> {
        if self.packing.lacks(keys) {
            if !self.packing.can_lengthen() {
                return Ok(false);
            }
            self.change(leaving, WordKeyLayout::lengthen, |_| {})?;
        }
        let packed = match self.packing.pack(keys) {
            None if !self.room.holds_all => {
                self.leave(leaving)?;
                self.packing.clear();
                self.packing.pack(keys)
            }
            packed => packed,
        };
        let Some(packed) = packed else { return Ok(false) };
        if self.tally.lacks(inputs) {
            self.change(leaving, |_| {}, WordAccumulators::widen)?;
        }
        let mut words = Vec::new();
        let mut start = 0;
        if self.passing > 0 {
            self.passing = self.passing.saturating_sub(rows);
            return self.pass(&packed, inputs, rows, leaving).map(|()| true);
        }
        let left_before: usize = leaving.iter().map(RecordBatch::num_rows).sum();
        while start < rows {
            start = match (&mut self.table, &packed) {
                (Table::Short(slots), WordKeys::One(keys)) => {
                    let end = blocks(slots, keys.all(), &mut self.tally, inputs, start, &mut words);
                    slots.add_copies();
                    end?
                }
                (Table::Long(slots), WordKeys::Two(keys)) => {
                    blocks(slots, keys, &mut self.tally, inputs, start, &mut words)?
                }
                // Not reached: table and keys have the same number of words.
                _ => rows,
            };
            self.leave_words(&mut words, leaving)?;
            if start < rows {
                self.change(leaving, |_| {}, WordAccumulators::widen)?;
            }
        }
        if self.table.is_bounded() {
            let left = leaving.iter().map(RecordBatch::num_rows).sum::<usize>() - left_before;
            let (judged_rows, judged_left) = self.judged;
            self.judged = (judged_rows + rows, judged_left + left);
            let (rows, left) = self.judged;
            if rows >= (self.table.held_max() * 4).clamp(*JUDGED_ROWS.start(), *JUDGED_ROWS.end()) {
                self.judged = (0, 0);
                self.passing = if left > rows / 4 * 3 { rows * PASSING } else { 0 };
            }
        }
        Ok(true)
    }

    /// Appends a partial group to `leaving` for each row, without looking it up.
    fn pass(
        &mut self,
        packed: &WordKeys,
        inputs: &[Input],
        rows: usize,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<(), Stopped> {
        let most = self.table.held_max().clamp(LEAVING_GROUPS_MIN, LEAVING_GROUPS_MAX);
        for start in (0..rows).step_by(most) {
            let end = rows.min(start + most);
            if self.tally.exceeds(inputs, start, end - start) {
                self.change(leaving, |_| {}, WordAccumulators::widen)?;
            }
            // The accumulators lie as in a table whose slots have no keys.
            let initial = self.tally.initial();
            let stride = initial.len() * LANES;
            let mut words = Vec::with_capacity((end - start).div_ceil(LANES) * stride);
            let bucket: Vec<u64> = initial.iter().flat_map(|word| [*word; LANES]).collect();
            (0..(end - start).div_ceil(LANES)).for_each(|_| words.extend_from_slice(&bucket));
            let place = |row: usize| row / LANES * stride + row % LANES;
            let places: Vec<u32> = (0..end - start).map(|row| place(row) as u32).collect();
            self.tally.add(&mut words, inputs, start, &places)?;
            let keys = match packed {
                WordKeys::One(keys) => self.packing.unpack_one(keys.all()[start..end].to_vec()),
                WordKeys::Two(keys) => self.packing.unpack_two(&keys[start..end]),
            };
            let word = |word: usize| {
                let from = &words[word * LANES..];
                places.iter().map(|place| from[*place as usize]).collect()
            };
            leaving.push(self.partial(keys, word, end - start)?);
        }
        Ok(())
    }

    /// Changes the layout of keys or accumulators and moves the groups over. In a run all groups are output first, so
    /// only a merge moves any.
    fn change(
        &mut self,
        leaving: &mut Vec<RecordBatch>,
        packing: impl FnOnce(&mut WordKeyLayout),
        tally: impl FnOnce(&mut WordAccumulators),
    ) -> Result<(), Stopped> {
        if !self.room.holds_all {
            self.leave(leaving)?;
        }
        let was_wide = self.tally.is_wide();
        packing(&mut self.packing);
        tally(&mut self.tally);
        let table = Table::new(&self.packing, &self.tally, self.room, self.seed);
        let old = std::mem::replace(&mut self.table, table);
        let tally = &self.tally;
        let widen = |old: &[u64], new: &mut [u64]| match was_wide == tally.is_wide() {
            true => new.copy_from_slice(old),
            false => tally.widened(old, new),
        };
        match (&mut self.table, &old) {
            (Table::Short(to), Table::Short(from)) => to.take(from, |key: i64| key, widen),
            (Table::Long(to), Table::Short(from)) => to.take(from, WordKeyLayout::longer, widen),
            (Table::Long(to), Table::Long(from)) => to.take(from, |key: u128| key, widen),
            // Not reached: keys only get longer.
            (Table::Short(_), Table::Long(_)) => {}
        }
        Ok(())
    }

    /// Appends the slots in `words` to `leaving` as partial groups, and clears `words`.
    fn leave_words(&mut self, words: &mut Vec<u64>, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        let key_words = 1 + usize::from(self.packing.is_long());
        let width = key_words + self.tally.initial().len();
        let most = self.table.held_max().clamp(LEAVING_GROUPS_MIN, LEAVING_GROUPS_MAX);
        for slots in words.chunks(most * width) {
            let rows = slots.len() / width;
            let word = |word: usize| (0..rows).map(|row| slots[row * width + word]).collect::<Vec<u64>>();
            let keys = match key_words {
                1 => self.packing.unpack_one(word(0).into_iter().map(|word| word as i64).collect()),
                _ => {
                    let key = |(low, high)| u128::from_words([low, high]);
                    self.packing.unpack_two(&word(0).into_iter().zip(word(1)).map(key).collect::<Vec<_>>())
                }
            };
            leaving.push(self.partial(keys, |number| word(key_words + number), rows)?);
        }
        words.clear();
        Ok(())
    }

    fn partial(
        &self,
        keys: Vec<ArrayRef>,
        word: impl Fn(usize) -> Vec<u64>,
        rows: usize,
    ) -> Result<RecordBatch, Stopped> {
        let order: Vec<u32> = (0..rows as u32).collect();
        let mut columns = keys;
        let mut hidden = Vec::new();
        for accumulator in self.tally.restored(word) {
            let (value, second) = accumulator.partial(&order);
            columns.push(value);
            hidden.extend(second);
        }
        columns.extend(hidden);
        batch_of(columns, rows)
    }

    /// Appends all groups to `leaving` as partial groups. Afterwards no group is held.
    pub(super) fn leave(&mut self, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        let places = match &self.table {
            Table::Short(slots) => slots.places(),
            Table::Long(slots) => slots.places(),
        };
        for places in places.chunks(LEAVING_GROUPS_MAX) {
            let keys = self.keys_at(places);
            leaving.push(self.partial(keys, |word| self.table.accumulators(places, word), places.len())?);
        }
        match &mut self.table {
            Table::Short(slots) => slots.clear(),
            Table::Long(slots) => slots.clear(),
        }
        Ok(())
    }

    /// Returns all groups with their final values, in the order of their keys.
    pub(super) fn finish(&self) -> Result<Vec<RecordBatch>, Stopped> {
        let sorted = self.packing.sorted();
        let packing = sorted.as_ref().map_or(&self.packing, |(packing, _)| packing);
        match &self.table {
            Table::Short(slots) => {
                let mut pairs = slots.pairs::<i64>();
                if let Some((_, recoded)) = &sorted {
                    let recode = |pair: &mut (i64, u32)| {
                        pair.0 = WordKeyLayout::narrow(recoded(WordKeyLayout::wide(pair.0)));
                    };
                    pairs.iter_mut().for_each(recode);
                }
                sort(&mut pairs, |key, digit| (((key ^ i64::MIN) as u64) >> (8 * digit)) as u8);
                self.whole(&pairs, |pairs| packing.unpack_one(pairs.iter().map(|pair| pair.0).collect()))
            }
            Table::Long(slots) => {
                let mut pairs = slots.pairs::<u128>();
                if let Some((_, recoded)) = &sorted {
                    pairs.iter_mut().for_each(|pair| pair.0 = recoded(pair.0));
                }
                sort(&mut pairs, |key, digit| (key >> (8 * digit)) as u8);
                self.whole(&pairs, |pairs| {
                    packing.unpack_two(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())
                })
            }
        }
    }

    /// Returns batches of the final values of groups with these keys and places.
    fn whole<T>(
        &self,
        pairs: &[(T, u32)],
        keys: impl Fn(&[(T, u32)]) -> Vec<ArrayRef>,
    ) -> Result<Vec<RecordBatch>, Stopped> {
        let mut batches = Vec::new();
        for pairs in pairs.chunks(LEAVING_GROUPS_MAX) {
            let mut columns = keys(pairs);
            let places: Vec<u32> = pairs.iter().map(|pair| pair.1).collect();
            let order: Vec<u32> = (0..places.len() as u32).collect();
            for accumulator in self.tally.restored(|word| self.table.accumulators(&places, word)) {
                columns.push(accumulator.whole(&order)?);
            }
            batches.push(batch_of(columns, places.len())?);
        }
        Ok(batches)
    }

    fn keys_at(&self, places: &[u32]) -> Vec<ArrayRef> {
        match &self.table {
            Table::Short(slots) => {
                self.packing.unpack_one(places.iter().map(|place| slots.key(*place)).collect())
            }
            Table::Long(slots) => {
                let keys: Vec<u128> = places.iter().map(|place| slots.key(*place)).collect();
                self.packing.unpack_two(&keys)
            }
        }
    }

    /// Returns the types of the hidden columns, which come after the aggregates: what sums need to merge exactly.
    pub(super) fn hidden(&self) -> Vec<Type> {
        self.tally.restored(|_| Vec::new()).iter().filter_map(|accumulator| accumulator.hidden()).collect()
    }
}

impl Table {
    fn new(packing: &WordKeyLayout, tally: &WordAccumulators, room: Room, seed: u64) -> Table {
        match packing.is_long() {
            false => Table::Short(Box::new(GroupTable::new(tally.initial(), room, seed))),
            true => Table::Long(Box::new(GroupTable::new(tally.initial(), room, seed))),
        }
    }

    fn is_bounded(&self) -> bool {
        match self {
            Table::Short(slots) => slots.is_bounded(),
            Table::Long(slots) => slots.is_bounded(),
        }
    }

    fn held_max(&self) -> usize {
        match self {
            Table::Short(slots) => slots.held_max(),
            Table::Long(slots) => slots.held_max(),
        }
    }

    fn accumulators(&self, places: &[u32], word: usize) -> Vec<u64> {
        match self {
            Table::Short(slots) => slots.accumulators(places, word),
            Table::Long(slots) => slots.accumulators(places, word),
        }
    }
}

/// Takes the rows from `start` on, but stops before a block for which accumulators must be widened. Returns the first
/// row that was not taken.
fn blocks<const K: usize, T: Key<K>>(
    slots: &mut GroupTable<K>,
    keys: &[T],
    tally: &mut WordAccumulators,
    inputs: &[Input],
    start: usize,
    words: &mut Vec<u64>,
) -> Result<usize, Stopped> {
    let (mut places, mut buffer) = ([0; BLOCK_ROWS], [0; BLOCK_ROWS]);
    let mut start = start;
    let all = keys;
    for keys in keys[start..].chunks(BLOCK_ROWS) {
        if tally.exceeds(inputs, start, keys.len()) {
            return Ok(start);
        }
        if slots.is_full() {
            bounded("groups", (slots.held() + BLOCK_ROWS) as u64, slots.held_max() as u64)?;
        }
        let next = start + keys.len();
        let ahead = &all[next..(next + BLOCK_ROWS).min(all.len())];
        let sum = tally.only_sum(inputs, start, keys.len(), &mut buffer);
        if !sum.is_some_and(|values| slots.find_and_add(keys, ahead, values)) {
            slots.find(keys, ahead, &mut places);
            tally.add(slots.word_accumulators(), inputs, start, &places[..keys.len()])?;
        }
        slots.leave_spares(words);
        start += keys.len();
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::super::Grouping;
    use super::super::groups::Groups;
    use super::*;
    use crate::program::AggregateFunction;
    use crate::run::hash::fold;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Decimal128Type, Int64Type, UInt16Type};
    use arrow_array::{
        Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int16Array, Int32Array,
        Int64Array, StringArray, UInt64Array,
    };
    use proptest::prelude::*;
    use proptest::sample::select;
    use std::sync::Arc;

    const TYPES: [Type; 10] = [
        Type::Int64,
        Type::Float64,
        Type::Int32,
        Type::Int16,
        Type::UInt64,
        Type::Float64,
        Type::Text,
        Type::Text,
        Type::FixedBytes(2),
        Type::Decimal { precision: 38, scale: 2 },
    ];

    /// Makes columns with equal low bits, extremes, NaNs of several bits and both zeros.
    fn columns(rows: &[(u8, u8, u8, bool)], has_nulls: bool) -> Vec<ArrayRef> {
        let wholes = [0, 1, -1, 1 << 32, 1 << 62, i64::MIN, i64::MAX, i64::MAX - 1];
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN, 1.0, -1.0, f64::INFINITY, 5e-324];
        let is_there = |row: &(u8, u8, u8, bool)| !(has_nulls && row.3);
        let at = |number: u8| usize::from(number % 8);
        let whole = |row: &(u8, u8, u8, bool)| wholes[at(row.0)] ^ i64::from(row.1 / 64) << 40;
        let all = |row: &(u8, u8, u8, bool)| is_there(row).then(|| whole(row));
        // Some texts are prefixes of others.
        let text = |row: &(u8, u8, u8, bool)| {
            ["", "a", "aa", "b", "\u{0}", "Å", "a long one"][usize::from(row.1 % 7)]
                .repeat(usize::from(row.2 / 128) + 1)
        };
        let texts: Vec<Option<String>> = rows.iter().map(|row| is_there(row).then(|| text(row))).collect();
        vec![
            Arc::new(rows.iter().map(all).collect::<Int64Array>()),
            Arc::new(
                rows.iter().map(|row| is_there(row).then(|| floats[at(row.1)])).collect::<Float64Array>(),
            ),
            Arc::new(rows.iter().map(|row| all(row).map(|value| value as i32)).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|row| Some(i16::from(row.2 % 4) - 2)).collect::<Int16Array>()),
            Arc::new(rows.iter().map(|row| all(row).map(|value| value as u64)).collect::<UInt64Array>()),
            Arc::new(
                rows.iter().map(|row| is_there(row).then_some(f64::from(row.2))).collect::<Float64Array>(),
            ),
            Arc::new(texts.iter().cloned().collect::<StringArray>()),
            Arc::new(texts.iter().map(|text| text.as_deref()).collect::<DictionaryArray<UInt16Type>>()),
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    rows.iter().map(|row| is_there(row).then_some([row.1, row.2 % 2])),
                    2,
                )
                .expect("two bytes each"),
            ),
            Arc::new(
                rows.iter()
                    .map(|row| all(row).map(|value| i128::from(value) << if row.2 == 0 { 60 } else { 0 }))
                    .collect::<Decimal128Array>()
                    .with_data_type(data_type(TYPES[9])),
            ),
        ]
    }

    fn aggregates() -> Vec<Aggregate> {
        let of = |(function, column)| Aggregate { function, column };
        let functions = [
            (AggregateFunction::Count, None),
            (AggregateFunction::Count, Some(0)),
            (AggregateFunction::Sum, Some(0)),
            (AggregateFunction::Sum, Some(4)),
            (AggregateFunction::Sum, Some(5)),
            (AggregateFunction::Min, Some(0)),
            (AggregateFunction::Max, Some(1)),
            (AggregateFunction::Min, Some(4)),
            (AggregateFunction::Sum, Some(9)),
            (AggregateFunction::Max, Some(9)),
        ];
        functions.map(of).to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn results_are_those_of_groups_of_any_kind(
            batches in prop::collection::vec(
                (prop::collection::vec(any::<(u8, u8, u8, bool)>(), 0..600), any::<bool>()), 1..5),
            keys in select(vec![
                vec![0], vec![1], vec![4], vec![2, 3], vec![3], vec![0, 3], vec![3, 2, 3],
                vec![0, 4], vec![6], vec![7], vec![8], vec![6, 7], vec![3, 6], vec![0, 7], vec![6, 7, 8],
            ]),
            count in 0..11usize,
            functions in any::<bool>(),
            groups_max in select(vec![1usize, 5, 100, 1 << 20]),
            bytes_max in select(vec![1usize, 20_000, 1 << 20]),
            seed in any::<u64>(),
        ) {
            let mut aggregates = aggregates();
            if functions {
                aggregates.reverse();
            }
            let aggregates = &aggregates[..count];
            let (mut partial, mut general) = (Vec::new(), Vec::new());
            let room = Room { groups_max, bytes_max, holds_all: false };
            let packed = WordGroups::new(&keys, aggregates, &TYPES, room, seed);
            prop_assert!(packed.is_some());
            let mut run =
                Grouping::new(keys.clone(), aggregates, &TYPES, groups_max, bytes_max, seed).unwrap();
            let mut other =
                Groups::new(keys.clone(), aggregates, &TYPES, groups_max, bytes_max, seed).unwrap();
            let mut steps = Steps::new(u64::MAX);
            for (rows, has_nulls) in &batches {
                let rows = Rows { columns: columns(rows, *has_nulls), count: rows.len(), positions: None };
                run.push(&rows, &mut steps, &mut partial).unwrap();
                other.push(&rows, &mut steps, &mut general).unwrap();
            }
            run.leave(&mut partial).unwrap();
            other.leave(&mut general).unwrap();
            let mut merge = Grouping::merging(keys.clone(), aggregates, &TYPES, !seed).unwrap();
            let mut other = Groups::merging(keys, aggregates, &TYPES, 1 << 20, !seed).unwrap();
            prop_assert_eq!(merge.hidden(), other.hidden());
            // Each merge takes the output of the other kind of run.
            general.iter().try_for_each(|batch| merge.merge(batch.columns())).unwrap();
            partial.iter().try_for_each(|batch| other.merge(batch.columns())).unwrap();
            prop_assert_eq!(merge.finish().unwrap(), other.finish().unwrap());
        }
    }

    /// Makes keys as tables have them, and as an attacker who wants a slow run would choose them.
    fn drawn_keys(pattern: &str, rows: usize) -> Vec<i64> {
        let drawn = |row: usize| fold(row as u64, 0x1234_5678_9abc_def1);
        let key = |row: usize| match pattern {
            "equal" => 7,
            "two" => (drawn(row) % 2) as i64,
            "sequence" => row as i64,
            "sorted" => (row / 50) as i64 - 100,
            // Half of the rows have key 0. Key n has about one row in 2n(n + 1).
            "skewed" => (drawn(row) % 100_000 / (1 + drawn(row + rows) % 100_000)) as i64,
            "high bits" => ((drawn(row) % 5_000) << 51) as i64,
            "low bits clear" => (row as i64) << 32,
            "mirrored" => (row as u64).reverse_bits() as i64,
            _ => (drawn(row) % 3_000) as i64,
        };
        (0..rows).map(key).collect()
    }

    #[test]
    fn keys_of_every_kind_give_the_groups_of_a_map() {
        let patterns = [
            "equal",
            "two",
            "sequence",
            "sorted",
            "skewed",
            "high bits",
            "low bits clear",
            "mirrored",
            "few",
        ];
        for pattern in patterns {
            let keys = drawn_keys(pattern, 40_000);
            let values: Vec<i64> =
                (0..keys.len()).map(|row| fold(row as u64, 99) as i64 >> (row % 3 * 20)).collect();
            let mut wanted = std::collections::BTreeMap::new();
            for (key, value) in keys.iter().zip(&values) {
                let (sum, rows) = wanted.entry(*key).or_insert((0i128, 0i64));
                (*sum, *rows) = (*sum + i128::from(*value), *rows + 1);
            }
            for (functions, groups_max) in [(1, 1 << 20), (1, 300), (2, 1 << 20), (2, 50), (0, 1_000), (1, 1)]
            {
                let all = [(AggregateFunction::Sum, Some(1)), (AggregateFunction::Count, None)];
                let of = |(function, column): &(AggregateFunction, _)| Aggregate {
                    function: *function,
                    column: *column,
                };
                let aggregates: Vec<Aggregate> = all[..functions].iter().map(of).collect();
                let types = [Type::Int64; 2];
                let room = Room { groups_max, bytes_max: 16 << 20, holds_all: false };
                let mut run = WordGroups::new(&[0], &aggregates, &types, room, 5).unwrap();
                let mut merge = Grouping::merging(vec![0], &aggregates, &types, 6).unwrap();
                let mut steps = Steps::new(u64::MAX);
                let mut partial = Vec::new();
                for (keys, values) in keys.chunks(7_000).zip(values.chunks(7_000)) {
                    let columns: Vec<ArrayRef> = vec![
                        Arc::new(Int64Array::from(keys.to_vec())),
                        Arc::new(Int64Array::from(values.to_vec())),
                    ];
                    let rows = Rows { columns, count: keys.len(), positions: None };
                    run.push(&rows, &mut steps, &mut partial).unwrap();
                }
                run.leave(&mut partial).unwrap();
                partial.iter().try_for_each(|batch| merge.merge(batch.columns())).unwrap();
                let mut found = Vec::new();
                for batch in merge.finish().unwrap() {
                    let keys = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                    for (row, key) in keys.into_iter().enumerate() {
                        let sum = |_| batch.column(1).as_primitive::<Decimal128Type>().value(row);
                        let count = |_| batch.column(2).as_primitive::<Int64Type>().value(row);
                        found.push((
                            key,
                            (functions > 0).then_some(()).map(sum),
                            (functions > 1).then_some(()).map(count),
                        ));
                    }
                }
                let wanted = wanted.iter().map(|(key, (sum, rows))| {
                    (*key, (functions > 0).then_some(*sum), (functions > 1).then_some(*rows))
                });
                assert!(found.into_iter().eq(wanted), "{pattern}, {functions} aggregates, {groups_max} held");
            }
        }
    }
}
