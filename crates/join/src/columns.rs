//! Joins of Arrow columns.
//!
//! The idea: each row becomes a tuple of a word and the row's number. If the key columns fit 64 bits, the word is the
//! key, and equal words are equal keys. Otherwise the word is a hash of the row's bytes in the form of `arrow-row`, and
//! rows with equal words are compared by those bytes. Rows with a NULL among their keys match nothing, so no tuple is
//! made of them. The output is row numbers; `take` and `interleave` make columns of them.
//!
//! Keys are equal as in SQL. NaN equals itself, and both zeros are equal. A dictionary counts as the values it stands
//! for. Text is equal in any layout, and so are integers of different widths.

use crate::emit::{Equal, Exact, JoinSpec, Kind, Sides, Sink};
use crate::hash::{fold, mixed};
use crate::{
    BuildTable, ChunkSource, JoinError, JoinInput, JoinSide, RowQueue, Settings, Tuple, join_partitions,
    partition, probe,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, Int64Array, UInt64Array};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, TimeUnit};
use std::ops::Range;
use std::sync::Arc;

/// Method of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Partitioned hash join (PHJ): both sides are partitioned.
    Partitioned,
    /// Non-partitioned hash join (NPHJ): one table, in which the probe side is looked up without being partitioned.
    Shared,
}

/// Row number that stands for "no row of the build side".
const NONE: u64 = u64::MAX;

/// Row numbers of the output rows of a join that one thread has found.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// Row of the build side of each output row. Empty if the kind of join outputs only the probe side.
    build: Vec<u64>,
    /// Row of the probe side of each output row.
    probe: Vec<u64>,
    /// True if a row of the probe side without a partner has an entry in `build` too, which is [`NONE`].
    is_padded: bool,
}

impl Pairs {
    /// Returns the number of output rows.
    pub fn len(&self) -> usize {
        self.probe.len()
    }

    /// Reports whether there are no output rows.
    pub fn is_empty(&self) -> bool {
        self.probe.is_empty()
    }

    /// Returns the row numbers of the build side, NULL where there is no partner. Empty if the kind of join outputs
    /// only the probe side.
    pub fn build(&self) -> UInt64Array {
        let is_some = |row: &u64| *row != NONE;
        let nulls = NullBuffer::from_iter(self.build.iter().map(is_some));
        UInt64Array::new(self.build.clone().into(), (nulls.null_count() > 0).then_some(nulls))
    }

    /// Returns the row numbers of the probe side.
    pub fn probe(&self) -> UInt64Array {
        self.probe.clone().into()
    }
}

impl Pairs {
    /// Returns the row numbers of build and probe side without copying. Meant for inner joins: after a left join, the
    /// rows of the build side contain [`NONE`] instead of NULL.
    pub fn into_parts(self) -> (UInt64Array, UInt64Array) {
        (self.build.into(), self.probe.into())
    }
}

impl Sink for Pairs {
    fn pair(&mut self, build: i64, probe: i64) {
        self.build.push(build as u64);
        self.probe.push(probe as u64);
    }

    fn pairs(&mut self, builds: &[i64], probes: &[i64]) {
        self.build.extend(builds.iter().map(|row| *row as u64));
        self.probe.extend(probes.iter().map(|row| *row as u64));
    }

    fn lone(&mut self, probe: i64) {
        if self.is_padded {
            self.build.push(NONE);
        }
        self.probe.push(probe as u64);
    }
}

/// Joins by key columns, and returns the row numbers of the output, one `Pairs` for each thread. `outer` are the
/// columns of the probe side. The first column of one side is compared with the first one of the other, and so on.
///
/// # Errors
/// Returns [`JoinError::Keys`] if the columns cannot be compared, and other errors if there is no memory, if there are
/// too many rows, or if a setting is out of its range.
pub fn join(
    settings: &Settings,
    chunks: &dyn ChunkSource,
    algorithm: Algorithm,
    kind: Kind,
    build: &[ArrayRef],
    outer: &[ArrayRef],
) -> Result<Vec<Pairs>, JoinError> {
    let types = build.iter().zip(outer).map(|(left, right)| left.data_type() != right.data_type());
    let differ: Vec<bool> = types.collect();
    let (build, outer) = (Columns::new(build, &differ)?, Columns::new(outer, &differ)?);
    let (left, right) = (build.classes(), outer.classes());
    if left != right {
        return Err(JoinError::Keys(format!("{left:?} cannot be compared with {right:?}")));
    }
    let padded = || Pairs { is_padded: kind == Kind::Left, ..Pairs::default() };
    let sinks = std::iter::repeat_with(padded).take(settings.threads).collect();
    let mut pairs = match (build.packed(), outer.packed()) {
        (Some(build), Some(outer)) => {
            let how = JoinSpec { kind, equal: &Exact };
            phases(settings, chunks, algorithm, Sides { build: &build, probe: &outer }, how, sinks)?
        }
        _ => {
            let (build, outer) = (build.rows(settings.seed)?, outer.rows(settings.seed)?);
            let how = JoinSpec { kind, equal: &SameRows { build: build.1, probe: outer.1 } };
            phases(settings, chunks, algorithm, Sides { build: &build.0, probe: &outer.0 }, how, sinks)?
        }
    };
    if let (Kind::Left | Kind::Anti, Some(nulls), Some(first)) = (kind, &outer.nulls, pairs.first_mut()) {
        let missing = nulls.iter().enumerate().filter(|(_, is_valid)| !is_valid);
        missing.for_each(|(row, _)| first.lone(row as i64));
    }
    Ok(pairs)
}

/// Table of a build side, in which batches of the probe side are looked up as they come (a non-partitioned join).
#[derive(Debug)]
pub struct BuildLookup<'m> {
    settings: Settings,
    /// Types of the key columns of the build side. Those of each batch must be the same.
    types: Vec<DataType>,
    table: BuildTable<'m>,
}

impl<'m> BuildLookup<'m> {
    /// Makes a table of the build side. Returns `None` unless the key columns fit a word of 64 bits and all keys
    /// differ, so that each row of the probe side finds at most one row of the build side.
    ///
    /// # Errors
    /// Returns [`JoinError::Keys`] if the columns cannot be keys, and other errors if there is no memory, if there are
    /// too many rows, or if a setting is out of its range.
    pub fn new(
        settings: &Settings,
        chunks: &'m dyn ChunkSource,
        build: &[ArrayRef],
    ) -> Result<Option<BuildLookup<'m>>, JoinError> {
        let types = build.iter().map(|column| column.data_type().clone()).collect();
        let Some(words) = Columns::new(build, &vec![false; build.len()])?.packed() else { return Ok(None) };
        let hasher = settings.hasher(words.rows())?;
        let parts =
            partition(settings, &hasher, chunks, JoinSide::Build, &words, &RowQueue::new(words.rows()))?;
        let table = BuildTable::build(settings, chunks, &parts)?;
        Ok(table.is_distinct().then_some(BuildLookup { settings: *settings, types, table }))
    }

    /// Looks up rows of the probe side by their key columns, and returns the pairs of rows with equal keys.
    ///
    /// # Errors
    /// Returns [`JoinError::Keys`] if the types of the columns differ from those of the build side.
    pub fn pairs(&self, outer: &[ArrayRef]) -> Result<Pairs, JoinError> {
        let types: Vec<&DataType> = outer.iter().map(|column| column.data_type()).collect();
        if !types.iter().copied().eq(&self.types) {
            return Err(JoinError::Keys(format!(
                "key columns of types {types:?} cannot be looked up in a table of types {:?}",
                self.types
            )));
        }
        let words = Columns::new(outer, &vec![false; outer.len()])?.packed();
        let words = words.ok_or_else(|| {
            JoinError::Keys(format!("key columns of types {types:?} need more than 64 bits"))
        })?;
        let sinks = std::iter::repeat_with(Pairs::default).take(self.settings.threads).collect();
        let how = JoinSpec { kind: Kind::Inner, equal: &Exact };
        let found = probe(&self.settings, &self.table, &words, &RowQueue::new(words.rows()), how, sinks)?;
        let all = |mut all: Pairs, more: Pairs| {
            all.build.extend(more.build);
            all.probe.extend(more.probe);
            all
        };
        Ok(found.into_iter().reduce(all).unwrap_or_default())
    }
}

fn phases<E: Equal>(
    settings: &Settings,
    chunks: &dyn ChunkSource,
    algorithm: Algorithm,
    sides: Sides<&Words>,
    how: JoinSpec<'_, E>,
    sinks: Vec<Pairs>,
) -> Result<Vec<Pairs>, JoinError> {
    let hasher = settings.hasher(sides.build.rows())?;
    let cut =
        |side, words: &Words| partition(settings, &hasher, chunks, side, words, &RowQueue::new(words.rows()));
    let parts = cut(JoinSide::Build, sides.build)?;
    match algorithm {
        Algorithm::Partitioned => {
            let outer = cut(JoinSide::Probe, sides.probe)?;
            join_partitions(settings, chunks, Sides { build: &parts, probe: &outer }, how, sinks)
        }
        Algorithm::Shared => {
            let table = BuildTable::build(settings, chunks, &parts)?;
            drop(parts);
            probe(settings, &table, sides.probe, &RowQueue::new(sides.probe.rows()), how, sinks)
        }
    }
}

/// Input of a join with a key of 64 bits for each row. The payload of a tuple is its row number.
struct Words {
    /// Key of each row.
    words: ScalarBuffer<i64>,
    /// Valid where no key column of the row is NULL. No tuple is made of the other rows.
    nulls: Option<NullBuffer>,
}

/// Most rows of which tuples are made at a time.
const BLOCK_ROWS: usize = 1024;

impl JoinInput for Words {
    fn rows(&self) -> usize {
        self.words.len()
    }

    fn tuples(&self, rows: Range<usize>, take: &mut dyn FnMut(&[Tuple])) {
        let mut block = [Tuple::default(); BLOCK_ROWS];
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let words = &self.words[start..rows.end.min(start + BLOCK_ROWS)];
            let mut count = 0;
            for (at, key) in words.iter().enumerate() {
                let payload = (start + at) as i64;
                block[count] = Tuple { key: *key, payload };
                count += usize::from(self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(start + at)));
            }
            take(&block[..count]);
        }
    }
}

/// Test that matches rows whose keys are equal byte by byte. The payloads of both sides are row numbers.
struct SameRows {
    build: Rows,
    probe: Rows,
}

impl Equal for SameRows {
    fn equal(&self, build: i64, probe: i64) -> bool {
        self.build.row(build as usize) == self.probe.row(probe as usize)
    }
}

/// Class of types whose values can be compared with each other. The number of a decimal is its scale.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Class {
    /// Integers that are stored as, or were widened to, 64 bits with a sign.
    Whole,
    Text,
    Bytes,
    Decimal128(i8),
    Decimal256(i8),
    /// Unit, and true if the values have a time zone.
    Timestamp(TimeUnit, bool),
    Other(DataType),
}

/// Key columns of a side, converted by [`plain`] so that equal values have equal bits.
struct Columns {
    columns: Vec<ArrayRef>,
    /// Valid where no key of the row is NULL.
    nulls: Option<NullBuffer>,
}

impl Columns {
    /// Converts the columns. `differ` is true where the type differs from that of the other side.
    fn new(columns: &[ArrayRef], differ: &[bool]) -> Result<Columns, JoinError> {
        let differ = differ.iter().copied().chain(std::iter::repeat(true));
        let columns = columns.iter().zip(differ).map(|(column, differs)| plain(column, differs));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
        let Some(first) = columns.first() else {
            return Err(JoinError::Keys(
                "no key column; at least one column is needed on each side".to_owned(),
            ));
        };
        if let Some(other) = columns.iter().find(|column| column.len() != first.len()) {
            let (rows, others) = (first.len(), other.len());
            return Err(JoinError::Keys(format!(
                "columns of one side have different lengths, {rows} and {others} rows"
            )));
        }
        let nulls = columns
            .iter()
            .fold(None, |nulls, column| NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref()));
        Ok(Columns { columns, nulls: nulls.filter(|nulls| nulls.null_count() > 0) })
    }

    fn classes(&self) -> Vec<Class> {
        let class = |column: &ArrayRef| match column.data_type() {
            DataType::Int64 => Class::Whole,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Class::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Class::Bytes,
            DataType::Decimal128(_, scale) => Class::Decimal128(*scale),
            DataType::Decimal256(_, scale) => Class::Decimal256(*scale),
            DataType::Timestamp(unit, zone) => Class::Timestamp(*unit, zone.is_some()),
            other => Class::Other(other.clone()),
        };
        self.columns.iter().map(class).collect()
    }

    /// Returns all key columns packed into one word for each row; `None` if they do not fit.
    fn packed(&self) -> Option<Words> {
        let nulls = self.nulls.clone();
        if let [column] = self.columns.as_slice()
            && let Some(column) = column.as_primitive_opt::<Int64Type>()
        {
            return Some(Words { words: column.values().clone(), nulls });
        }
        let mut words = vec![0; self.columns.first()?.len()];
        let mut bits = 0;
        for column in &self.columns {
            let width = pack(column, &mut words, bits)?;
            bits += width;
        }
        Some(Words { words: words.into(), nulls })
    }

    /// Returns a hash of each row as its word, and the bytes of all rows.
    fn rows(&self, seed: u64) -> Result<(Words, Rows), JoinError> {
        let refused = |error: arrow_schema::ArrowError| JoinError::Keys(error.to_string());
        let fields = self.columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let rows = RowConverter::new(fields).map_err(refused)?;
        let rows = rows.convert_columns(&self.columns).map_err(refused)?;
        let secret = mixed(seed ^ 0x5f61_7270_6f6f_6c00);
        let words: Vec<i64> = rows.iter().map(|row| hash_bytes(row.as_ref(), secret) as i64).collect();
        Ok((Words { words: words.into(), nulls: self.nulls.clone() }, rows))
    }
}

fn hash_bytes(bytes: &[u8], secret: u64) -> u64 {
    let factor = mixed(secret) | 1;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain(std::iter::once(&last));
    words.fold(bytes.len() as u64 ^ secret, |state, word| fold(u64::from_le_bytes(*word) ^ state, factor))
}

/// Converts a column so that equal values have equal bits. Integers are widened to 64 bits if the type of the other
/// side `differs`.
fn plain(column: &ArrayRef, differs: bool) -> Result<ArrayRef, JoinError> {
    macro_rules! whole {
        ($type:ty) => {
            Arc::new(column.as_primitive::<$type>().unary::<_, Int64Type>(|value| i64::from(value)))
                as ArrayRef
        };
    }
    macro_rules! float {
        ($type:ty) => {{
            let nan = <$type as ArrowPrimitiveType>::Native::NAN;
            let zero = <$type as ArrowPrimitiveType>::Native::default();
            // A comparison selects the value. Adding a zero would not do: it makes NaNs quiet, but leaves their other
            // bits different.
            let plain = |value: <$type as ArrowPrimitiveType>::Native| match (value.is_nan(), value == zero) {
                (true, _) => nan,
                (_, true) => zero,
                _ => value,
            };
            Arc::new(column.as_primitive::<$type>().unary::<_, $type>(plain)) as ArrayRef
        }};
    }
    Ok(match column.data_type() {
        DataType::Int8 if differs => whole!(Int8Type),
        DataType::Int16 if differs => whole!(Int16Type),
        DataType::Int32 if differs => whole!(Int32Type),
        DataType::UInt8 if differs => whole!(UInt8Type),
        DataType::UInt16 if differs => whole!(UInt16Type),
        DataType::UInt32 if differs => whole!(UInt32Type),
        DataType::Float16 => float!(Float16Type),
        DataType::Float32 => float!(Float32Type),
        DataType::Float64 => float!(Float64Type),
        DataType::Dictionary(_, _) => {
            let dictionary = column.as_any_dictionary();
            let values = arrow_select::take::take(dictionary.values(), dictionary.keys(), None);
            return plain(&values.map_err(|error| JoinError::Keys(error.to_string()))?, differs);
        }
        DataType::Null => Arc::new(Int64Array::new_null(column.len())),
        other if other.is_nested() || matches!(other, DataType::RunEndEncoded(_, _)) => {
            return Err(JoinError::Keys(format!(
                "a column of type {other} cannot be a key; nested and run-end encoded types are not supported"
            )));
        }
        _ => Arc::clone(column),
    })
}

/// Adds the bits of a column's values to words of which `taken` bits are in use. Returns the number of bits added;
/// `None` if they do not fit.
fn pack(column: &ArrayRef, words: &mut [i64], taken: u32) -> Option<u32> {
    macro_rules! pack {
        ($($pattern:pat => ($type:ty, $bits:expr);)*) => {
            match column.data_type() {
                $($pattern => {
                    let width = 8 * size_of::<<$type as ArrowPrimitiveType>::Native>() as u32;
                    if taken + width > 64 {
                        return None;
                    }
                    let values = column.as_primitive::<$type>().values();
                    let bits: fn(<$type as ArrowPrimitiveType>::Native) -> u64 = $bits;
                    words.iter_mut().zip(values).for_each(|(word, value)| *word |= (bits(*value) << taken) as i64);
                    Some(width)
                })*
                DataType::Boolean if taken < 64 => {
                    let values = column.as_boolean().values();
                    words.iter_mut().zip(values).for_each(|(word, value)| *word |= i64::from(value) << taken);
                    Some(1)
                }
                _ => None,
            }
        };
    }
    pack! {
        DataType::Int64 => (Int64Type, |value| value as u64);
        DataType::UInt64 => (UInt64Type, |value| value);
        DataType::Int8 => (Int8Type, |value| u64::from(value as u8));
        DataType::Int16 => (Int16Type, |value| u64::from(value as u16));
        DataType::Int32 => (Int32Type, |value| u64::from(value as u32));
        DataType::UInt8 => (UInt8Type, u64::from);
        DataType::UInt16 => (UInt16Type, u64::from);
        DataType::UInt32 => (UInt32Type, u64::from);
        DataType::Float16 => (Float16Type, |value| u64::from(value.to_bits()));
        DataType::Float32 => (Float32Type, |value| u64::from(value.to_bits()));
        DataType::Float64 => (Float64Type, |value| value.to_bits());
        DataType::Date32 => (Date32Type, |value| u64::from(value as u32));
        DataType::Date64 => (Date64Type, |value| value as u64);
        DataType::Time32(TimeUnit::Second) => (Time32SecondType, |value| u64::from(value as u32));
        DataType::Time32(_) => (Time32MillisecondType, |value| u64::from(value as u32));
        DataType::Time64(TimeUnit::Microsecond) => (Time64MicrosecondType, |value| value as u64);
        DataType::Time64(_) => (Time64NanosecondType, |value| value as u64);
        DataType::Timestamp(TimeUnit::Second, _) => (TimestampSecondType, |value| value as u64);
        DataType::Timestamp(TimeUnit::Millisecond, _) => (TimestampMillisecondType, |value| value as u64);
        DataType::Timestamp(TimeUnit::Microsecond, _) => (TimestampMicrosecondType, |value| value as u64);
        DataType::Timestamp(TimeUnit::Nanosecond, _) => (TimestampNanosecondType, |value| value as u64);
        DataType::Duration(TimeUnit::Second) => (DurationSecondType, |value| value as u64);
        DataType::Duration(TimeUnit::Millisecond) => (DurationMillisecondType, |value| value as u64);
        DataType::Duration(TimeUnit::Microsecond) => (DurationMicrosecondType, |value| value as u64);
        DataType::Duration(TimeUnit::Nanosecond) => (DurationNanosecondType, |value| value as u64);
    }
}
