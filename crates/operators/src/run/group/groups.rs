//! General groups: the groups of a GROUP BY with any keys and any aggregates.
//!
//! The idea: a block of rows first gets the group number of each row; then each aggregate goes through the block
//! once. A single key of up to 8 bytes is looked up by its value. Any other set of keys is turned into comparable
//! bytes by `arrow-row` and looked up by a hash of them. When a run reaches its bound of groups or bytes, all its
//! groups leave as partial groups and the table starts empty. A merge has no bound of bytes and keeps all groups.

use super::accumulators::{Accumulator, Input};
use crate::program::Aggregate;
use crate::run::batch::*;
use crate::run::bounds::{BATCH_BYTES_MAX, Steps, Stopped, bounded};
use crate::run::hash::{Found, Table, fold, hash_bytes};
use crate::types::Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_row::{RowConverter, Rows as KeyRows, SortField};

/// Rows of a block. Their group numbers stay in the first-level cache until all aggregates have been through the
/// block.
const BLOCK_ROWS: usize = 2_048;
/// Most groups of one batch of partial or final groups.
pub(super) const LEAVING_GROUPS_MAX: usize = 65_536;
/// Most key bytes of one batch of partial or final groups.
const LEAVING_BYTES_MAX: usize = 256 << 20;

/// Output batches that are collected before they are joined to one, if they have fewer rows than this on average.
/// Without joining, a table of a few groups would send a batch for nearly every row.
const SMALL_BATCHES_MAX: usize = 256;
/// Steps (units of work that a run is limited to) for each emptying of the table, however few groups it holds.
const LEAVING_STEPS: usize = 1_024;

/// General groups of a run or a merge.
pub(in crate::run) struct Groups {
    keys: Keys,
    key_columns: Vec<usize>,
    key_types: Vec<Type>,
    aggregates: Vec<(Accumulator, Option<usize>)>,
    table: Table,
    seed: u64,
    count: usize,
    groups_max: usize,
    bytes_max: usize,
}

/// Keys of the groups, in the order of group numbers.
enum Keys {
    /// No key columns: one group for all rows.
    None,
    /// One column of values of up to 8 bytes: the keys as integers, and the number of the group whose key is NULL.
    Ordered { keys: Vec<i64>, null: Option<u32> },
    /// Any other columns: keys as comparable bytes, and the end of each key in `bytes`.
    Rows { converter: RowConverter, bytes: Vec<u8>, ends: Vec<usize> },
}

/// Keys of a batch, in the form in which they are looked up.
enum Probe {
    None,
    Ordered(Vec<i64>, Option<NullBuffer>),
    Rows(KeyRows),
}

/// Result of looking up the group of a row.
#[derive(PartialEq)]
enum Placed {
    /// The row has this group.
    Yes(u32),
    /// The row has this group, but the table must be laid out anew before the next row.
    Last(u32),
    /// The row needs a new group, and there is no room for one.
    Full,
    /// There was no further row.
    None,
}

impl Groups {
    pub(super) fn new(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        groups_max: usize,
        bytes_max: usize,
        seed: u64,
    ) -> Result<Groups, Stopped> {
        let key_types: Vec<Type> = key_columns.iter().map(|column| input[*column]).collect();
        let keys = match key_types[..] {
            [] => Keys::None,
            [of] if is_ordered(of) => Keys::Ordered { keys: Vec::new(), null: None },
            _ => {
                let fields = key_types.iter().map(|of| SortField::new(data_type(*of))).collect();
                let converter = RowConverter::new(fields).map_err(unexpected)?;
                Keys::Rows { converter, bytes: Vec::new(), ends: Vec::new() }
            }
        };
        let accumulator = |aggregate: &Aggregate| {
            let column = aggregate.column.map(usize::from);
            (Accumulator::new(aggregate.function, column.map(|column| input[column])), column)
        };
        let mut groups = Groups {
            keys,
            key_columns,
            key_types,
            aggregates: aggregates.iter().map(accumulator).collect(),
            table: Table::new(seed),
            seed,
            count: 0,
            groups_max,
            bytes_max,
        };
        groups.clear();
        Ok(groups)
    }

    /// Makes the groups of a merge, which takes partial groups of runs. Their key columns come first, in order.
    pub(super) fn merging(
        key_columns: Vec<usize>,
        aggregates: &[Aggregate],
        input: &[Type],
        groups_max: usize,
        seed: u64,
    ) -> Result<Groups, Stopped> {
        let mut groups = Groups::new(key_columns, aggregates, input, groups_max, usize::MAX, seed)?;
        groups.key_columns = (0..groups.key_columns.len()).collect();
        Ok(groups)
    }

    /// Adds rows to their groups. If there is no room for a new group, all groups are appended to `leaving` as partial
    /// groups.
    pub(super) fn push(
        &mut self,
        rows: &Rows,
        steps: &mut Steps,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<(), Stopped> {
        let mut columns = rows.columns.clone();
        let used =
            self.aggregates.iter().filter_map(|(_, column)| *column).chain(self.key_columns.iter().copied());
        let used: Vec<usize> = used.collect();
        for column in used {
            columns[column] = plain(&columns[column], BATCH_BYTES_MAX)?;
        }
        steps.take(rows.count.saturating_mul(self.key_columns.len() + self.aggregates.len()))?;
        let mut small = Vec::new();
        for start in (0..rows.count).step_by(BLOCK_ROWS) {
            let length = BLOCK_ROWS.min(rows.count - start);
            let block: Vec<ArrayRef> = columns.iter().map(|column| column.slice(start, length)).collect();
            self.push_block(&block, length, steps, &mut small)?;
            if small.len() >= SMALL_BATCHES_MAX {
                join(&mut small, leaving)?;
            }
        }
        join(&mut small, leaving)
    }

    fn push_block(
        &mut self,
        columns: &[ArrayRef],
        rows: usize,
        steps: &mut Steps,
        leaving: &mut Vec<RecordBatch>,
    ) -> Result<(), Stopped> {
        let probe = self.probe(columns)?;
        let input = |(accumulator, column): &(Accumulator, Option<usize>)| {
            accumulator.input(column.map(|column| &columns[column]))
        };
        let inputs: Vec<Input> = self.aggregates.iter().map(input).collect();
        let mut numbers: Vec<u32> = Vec::with_capacity(BLOCK_ROWS);
        let (mut start, mut old) = (0, self.count);
        let mut row = 0;
        while row < rows {
            // Most rows belong to groups that are held already, so a tight loop handles those first.
            if let Probe::Ordered(values, None) = &probe {
                let table = &self.table;
                numbers.extend(values[row..].iter().map_while(|value| {
                    match table.find(*value as u64, |_| true) {
                        Found::Held(group) => Some(group),
                        Found::Free(_) | Found::Crowded => None,
                    }
                }));
                row = start + numbers.len();
            }
            let placed = if row < rows { self.place(&probe, row) } else { Placed::None };
            if let Placed::Yes(group) | Placed::Last(group) = placed {
                numbers.push(group);
                row += 1;
            }
            let must_leave = matches!(placed, Placed::Last(_) | Placed::Full);
            if must_leave || row == rows {
                for ((accumulator, _), input) in self.aggregates.iter_mut().zip(&inputs) {
                    accumulator.grow(self.count);
                    accumulator.add(input, start, &numbers, old);
                }
                numbers.clear();
                start = row;
                // Texts of MIN and MAX are replaced by longer ones, so bytes can pass the bound without a new group.
                if must_leave || (self.count > 1 && self.bytes() > self.bytes_max) {
                    steps.take(LEAVING_STEPS)?;
                    self.leave(leaving)?;
                }
                old = self.count;
            }
        }
        Ok(())
    }

    /// Takes a batch of partial groups.
    pub(super) fn merge(&mut self, columns: &[ArrayRef]) -> Result<(), Stopped> {
        let rows = columns.first().map_or(0, |column| column.len());
        let probe = self.probe(columns)?;
        let mut numbers = Vec::with_capacity(rows);
        let mut row = 0;
        while row < rows {
            match self.place(&probe, row) {
                Placed::Yes(group) => numbers.push(group),
                Placed::None => {}
                Placed::Last(group) => {
                    numbers.push(group);
                    self.lay_out_anew();
                }
                Placed::Full => {
                    bounded("groups", self.count as u64 + 1, self.groups_max as u64)?;
                    self.lay_out_anew();
                    continue;
                }
            }
            row += 1;
        }
        let keys = self.key_columns.len();
        let mut hidden = keys + self.aggregates.len();
        for (index, (accumulator, _)) in self.aggregates.iter_mut().enumerate() {
            accumulator.grow(self.count);
            let second = accumulator.hidden().map(|_| {
                hidden += 1;
                &columns[hidden - 1]
            });
            accumulator.merge(&columns[keys + index], second, &numbers)?;
            bounded("bytes of a column", accumulator.bytes() as u64, BATCH_BYTES_MAX as u64)?;
        }
        Ok(())
    }

    /// Appends all groups to `leaving` as partial groups. Afterwards no group is held.
    pub(super) fn leave(&mut self, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
        let order: Vec<u32> = (0..self.count as u32).collect();
        for slice in self.slices(&order) {
            let mut columns = self.key_columns(slice)?;
            let mut hidden = Vec::new();
            for (accumulator, _) in &self.aggregates {
                let (value, second) = accumulator.partial(slice);
                columns.push(value);
                hidden.extend(second);
            }
            columns.extend(hidden);
            leaving.push(batch_of(columns, slice.len())?);
        }
        self.clear();
        Ok(())
    }

    /// Returns all groups with their final values, in the order of their keys.
    pub(super) fn finish(&self) -> Result<Vec<RecordBatch>, Stopped> {
        let mut order: Vec<u32> = (0..self.count as u32).collect();
        match &self.keys {
            Keys::None => {}
            Keys::Ordered { keys, null } => {
                order.sort_unstable_by_key(|group| (Some(*group) != *null, keys[*group as usize]));
            }
            Keys::Rows { bytes, ends, .. } => {
                order.sort_unstable_by(|left, right| {
                    key_at(bytes, ends, *left).cmp(key_at(bytes, ends, *right))
                });
            }
        }
        let mut batches = Vec::new();
        for slice in self.slices(&order) {
            let mut columns = self.key_columns(slice)?;
            for (accumulator, _) in &self.aggregates {
                columns.push(accumulator.whole(slice)?);
            }
            batches.push(batch_of(columns, slice.len())?);
        }
        Ok(batches)
    }

    /// Returns the types of the hidden columns, which come after the aggregates: what sums need to merge exactly.
    pub(super) fn hidden(&self) -> Vec<Type> {
        self.aggregates.iter().filter_map(|(accumulator, _)| accumulator.hidden()).collect()
    }

    fn bytes(&self) -> usize {
        let keys = match &self.keys {
            Keys::None => 0,
            Keys::Ordered { keys, .. } => keys.len() * 8,
            Keys::Rows { bytes, ends, .. } => bytes.len() + ends.len() * 8,
        };
        let each: usize = self.aggregates.iter().map(|(accumulator, _)| accumulator.bytes_each()).sum();
        let texts: usize = self.aggregates.iter().map(|(accumulator, _)| accumulator.bytes()).sum();
        self.table.bytes() + keys + self.count * each + texts
    }

    fn clear(&mut self) {
        self.table.clear();
        self.count = 0;
        match &mut self.keys {
            Keys::None => self.count = 1,
            Keys::Ordered { keys, null } => {
                keys.clear();
                *null = None;
            }
            Keys::Rows { bytes, ends, .. } => {
                bytes.clear();
                ends.clear();
            }
        }
        for (accumulator, _) in &mut self.aggregates {
            accumulator.clear();
            if self.count > 0 {
                // The group without keys exists before any row, so it has seen no value.
                accumulator.grow_unseen(self.count);
            }
        }
    }

    fn probe(&self, columns: &[ArrayRef]) -> Result<Probe, Stopped> {
        Ok(match &self.keys {
            Keys::None => Probe::None,
            Keys::Ordered { .. } => {
                let column = &columns[self.key_columns[0]];
                Probe::Ordered(key_values(column), column.logical_nulls())
            }
            Keys::Rows { converter, .. } => {
                let keys: Vec<ArrayRef> =
                    self.key_columns.iter().map(|column| with_one_zero(&columns[*column])).collect();
                Probe::Rows(converter.convert_columns(&keys).map_err(unexpected)?)
            }
        })
    }

    /// Finds the group of a row. Makes a new one if the row has none and there is room.
    #[inline]
    fn place(&mut self, probe: &Probe, row: usize) -> Placed {
        match (probe, &self.keys) {
            (Probe::Ordered(values, nulls), Keys::Ordered { null, .. }) => {
                if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                    return match null {
                        Some(group) => Placed::Yes(*group),
                        None => self.place_null(),
                    };
                }
                match self.table.find(values[row] as u64, |_| true) {
                    Found::Held(group) => Placed::Yes(group),
                    Found::Free(slot) => self.place_new(slot, values[row] as u64, None),
                    Found::Crowded => Placed::Full,
                }
            }
            (Probe::Rows(rows), Keys::Rows { bytes, ends, .. }) => {
                let key = rows.row(row);
                let key = key.data();
                let hash = hash_bytes(key, self.seed);
                match self.table.find(hash, |group| key_at(bytes, ends, group) == key) {
                    Found::Held(group) => Placed::Yes(group),
                    Found::Free(slot) => self.place_new(slot, hash, Some(key)),
                    Found::Crowded => Placed::Full,
                }
            }
            _ => Placed::Yes(0),
        }
    }

    fn has_room(&self) -> bool {
        // One group is always accepted, however long its key.
        self.count == 0 || (self.count < self.groups_max && self.bytes() < self.bytes_max)
    }

    fn place_null(&mut self) -> Placed {
        if !self.has_room() {
            return Placed::Full;
        }
        let group = self.count as u32;
        if let Keys::Ordered { keys, null } = &mut self.keys {
            keys.push(0);
            *null = Some(group);
        }
        self.count += 1;
        Placed::Yes(group)
    }

    fn place_new(&mut self, slot: usize, key: u64, row: Option<&[u8]>) -> Placed {
        if !self.has_room() {
            return Placed::Full;
        }
        let group = self.count as u32;
        match (&mut self.keys, row) {
            (Keys::Rows { bytes, ends, .. }, Some(row)) => {
                bytes.extend_from_slice(row);
                ends.push(bytes.len());
            }
            (Keys::Ordered { keys, .. }, _) => keys.push(key as i64),
            _ => {}
        }
        self.count += 1;
        if self.table.put(slot, key, group) { Placed::Yes(group) } else { Placed::Last(group) }
    }

    /// Chooses new seeds until every key finds a slot in the table.
    fn lay_out_anew(&mut self) {
        loop {
            self.seed = fold(self.seed, !self.seed.rotate_left(11));
            self.table = Table::new(self.seed);
            let put = |(group, key): (usize, u64)| match self.table.find(key, |_| false) {
                Found::Free(slot) => self.table.put(slot, key, group as u32),
                Found::Held(_) | Found::Crowded => false,
            };
            let is_done = match &self.keys {
                Keys::None => true,
                Keys::Ordered { keys, null } => {
                    let keys = keys.iter().map(|key| *key as u64).enumerate();
                    keys.filter(|(group, _)| Some(*group as u32) != *null).all(put)
                }
                Keys::Rows { bytes, ends, .. } => {
                    let hash = |group| (group, hash_bytes(key_at(bytes, ends, group as u32), self.seed));
                    (0..ends.len()).map(hash).all(put)
                }
            };
            if is_done {
                return;
            }
        }
    }

    fn key_columns(&self, order: &[u32]) -> Result<Vec<ArrayRef>, Stopped> {
        match &self.keys {
            Keys::None => Ok(Vec::new()),
            Keys::Ordered { keys, null } => {
                let values = order.iter().map(|group| keys[*group as usize]).collect();
                let nulls = null.map(|null| NullBuffer::from_iter(order.iter().map(|group| *group != null)));
                let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
                Ok(vec![from_ordered(self.key_types[0], values, nulls)])
            }
            Keys::Rows { converter, bytes, ends } => {
                let parser = converter.parser();
                let rows = order.iter().map(|group| parser.parse(key_at(bytes, ends, *group)));
                converter.convert_rows(rows).map_err(unexpected)
            }
        }
    }

    /// Splits groups into slices that each fit one batch.
    fn slices<'a>(&self, order: &'a [u32]) -> Vec<&'a [u32]> {
        let length = |group: u32| match &self.keys {
            Keys::Rows { bytes, ends, .. } => key_at(bytes, ends, group).len(),
            _ => 0,
        };
        let mut slices = Vec::new();
        let (mut start, mut held) = (0, 0);
        for (index, group) in order.iter().enumerate() {
            let bytes = length(*group);
            if index > start && (index - start == LEAVING_GROUPS_MAX || held + bytes > LEAVING_BYTES_MAX) {
                slices.push(&order[start..index]);
                (start, held) = (index, 0);
            }
            held += bytes;
        }
        if start < order.len() {
            slices.push(&order[start..]);
        }
        slices
    }
}

/// Moves the batches in `small` to `leaving`: joined to one batch if they have few rows each, else as they are.
fn join(small: &mut Vec<RecordBatch>, leaving: &mut Vec<RecordBatch>) -> Result<(), Stopped> {
    let rows: usize = small.iter().map(RecordBatch::num_rows).sum();
    match small.first() {
        Some(first) if small.len() > 1 && rows / small.len() < SMALL_BATCHES_MAX => {
            let joined = arrow_select::concat::concat_batches(&first.schema(), small.iter());
            leaving.push(joined.map_err(unexpected)?);
            small.clear();
        }
        _ => leaving.append(small),
    }
    Ok(())
}

fn key_at<'a>(bytes: &'a [u8], ends: &[usize], group: u32) -> &'a [u8] {
    let group = group as usize;
    let start = if group == 0 { 0 } else { ends[group - 1] };
    &bytes[start..ends[group]]
}
