//! Tables whose columns change: rows that were written before have NULL in new columns and the values that they had in
//! wider ones, wherever a query runs; what was opened before, and earlier snapshots, keep their columns.

use crate::random::Random;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use farpool::function::CallerOptions;
use farpool::operators::{Agg, Expr, Query, col, lit};
use farpool::table::{ColumnChange, GroupChange, PutOptions, TableLayout};
use farpool::{
    EmbeddedOptions, Error, ErrorKind, FarTable, Placement, Pool, PoolOptions, TableKey, TransportChoice,
};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SECONDS: DataType = DataType::Timestamp(TimeUnit::Second, None);
/// Changes of a table in one run of the model.
const STEPS: u64 = 30;

fn pool(transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(256 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

fn open(pool: &Pool, options: &PutOptions) -> FarTable {
    let opened = match &options.key {
        Some(key) => pool.table_with_key("t", key),
        None => pool.table("t"),
    };
    opened.expect("opened")
}

fn append(pool: &Pool, batch: RecordBatch, options: &PutOptions) -> Result<u64, Error> {
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.append_to_table("t", batch.schema(), batches, options).map(|committed| committed.snapshot)
}

fn alter(pool: &Pool, changes: &[ColumnChange]) -> Result<u64, Error> {
    pool.alter_table("t", changes, &PutOptions::default()).map(|committed| committed.snapshot)
}

fn add(name: &str, of: DataType) -> ColumnChange {
    ColumnChange::Add { name: name.to_owned(), of }
}

fn drop_column(name: &str) -> ColumnChange {
    ColumnChange::Drop { name: name.to_owned() }
}

/// Makes a column of numbers. A float is the quarter of its number, a date so many days and a timestamp so many days of
/// seconds since 1970, and a text names its number.
fn array(of: &DataType, cells: &[Option<i64>]) -> ArrayRef {
    let cells = cells.iter().copied();
    macro_rules! whole {
        ($array:ty, $native:ty) => {
            Arc::new(cells.map(|cell| cell.map(|number| number as $native)).collect::<$array>())
        };
    }
    match of {
        DataType::Int8 => whole!(Int8Array, i8),
        DataType::Int16 => whole!(Int16Array, i16),
        DataType::Int32 => whole!(Int32Array, i32),
        DataType::Int64 => whole!(Int64Array, i64),
        DataType::UInt8 => whole!(UInt8Array, u8),
        DataType::UInt16 => whole!(UInt16Array, u16),
        DataType::UInt32 => whole!(UInt32Array, u32),
        DataType::UInt64 => whole!(UInt64Array, u64),
        DataType::Date32 => whole!(Date32Array, i32),
        DataType::Float32 => {
            Arc::new(cells.map(|cell| cell.map(|number| number as f32 / 4.0)).collect::<Float32Array>())
        }
        DataType::Float64 => {
            Arc::new(cells.map(|cell| cell.map(|number| number as f64 / 4.0)).collect::<Float64Array>())
        }
        DataType::Decimal128(precision, scale) => {
            let decimals: Decimal128Array = cells.map(|cell| cell.map(i128::from)).collect();
            Arc::new(decimals.with_precision_and_scale(*precision, *scale).expect("permitted"))
        }
        DataType::Utf8 => Arc::new(
            cells.map(|cell| cell.map(|number| format!("text {number:012}"))).collect::<StringArray>(),
        ),
        of if *of == SECONDS => {
            Arc::new(cells.map(|cell| cell.map(|day| day * 86_400)).collect::<TimestampSecondArray>())
        }
        other => panic!("no column of {other} is made here"),
    }
}

/// Returns the values of a column as texts.
fn texts(array: &ArrayRef) -> Vec<String> {
    macro_rules! number {
        ($row:expr, $of:ty) => {
            array.as_primitive::<$of>().value($row).to_string()
        };
    }
    let text = |row: usize| match array.data_type() {
        _ if array.is_null(row) => "NULL".to_owned(),
        DataType::Int8 => number!(row, Int8Type),
        DataType::Int16 => number!(row, Int16Type),
        DataType::Int32 => number!(row, Int32Type),
        DataType::Int64 => number!(row, Int64Type),
        DataType::UInt8 => number!(row, UInt8Type),
        DataType::UInt16 => number!(row, UInt16Type),
        DataType::UInt32 => number!(row, UInt32Type),
        DataType::UInt64 => number!(row, UInt64Type),
        DataType::Float32 => number!(row, Float32Type),
        DataType::Float64 => number!(row, Float64Type),
        DataType::Date32 => number!(row, Date32Type),
        DataType::Timestamp(TimeUnit::Second, None) => number!(row, TimestampSecondType),
        DataType::Decimal128(..) => number!(row, Decimal128Type),
        DataType::Utf8 => array.as_string::<i32>().value(row).to_owned(),
        other => panic!("no column of {other} is made here"),
    };
    (0..array.len()).map(text).collect()
}

/// Returns a number that a column of this type can have.
fn draw(random: &mut Random, of: &DataType) -> i64 {
    let (from, to) = match of {
        DataType::Int8 => (-128, 128),
        DataType::Int16 => (-30_000, 30_000),
        DataType::Int32 | DataType::Int64 | DataType::Float64 => (-1_000_000_000, 1_000_000_000),
        DataType::UInt8 => (0, 256),
        DataType::UInt16 => (0, 60_000),
        DataType::UInt32 | DataType::UInt64 => (0, 4_000_000_000),
        DataType::Decimal128(..) | DataType::Float32 => (-999, 1_000),
        DataType::Utf8 => (0, 50),
        _ => (-10_000, 10_000),
    };
    from + random.below((to - from) as u64) as i64
}

/// Returns a wider type, if there is one.
fn wider(random: &mut Random, of: &DataType) -> Option<DataType> {
    let types: Vec<DataType> = match of {
        DataType::Int8 => vec![DataType::Int16, DataType::Int32, DataType::Int64],
        DataType::Int16 => vec![DataType::Int32, DataType::Int64],
        DataType::Int32 => vec![DataType::Int64],
        DataType::UInt8 => vec![DataType::UInt16, DataType::UInt32, DataType::UInt64],
        DataType::UInt16 => vec![DataType::UInt32, DataType::UInt64],
        DataType::UInt32 => vec![DataType::UInt64],
        DataType::Float32 => vec![DataType::Float64],
        DataType::Date32 => vec![SECONDS],
        DataType::Decimal128(3, 2) => vec![DataType::Decimal128(4, 2), DataType::Decimal128(30, 2)],
        _ => vec![],
    };
    (!types.is_empty()).then(|| types[random.below(types.len() as u64) as usize].clone())
}

/// Types of columns that are made in the model. The last one cannot lie in rows.
static TYPES: [DataType; 7] = [
    DataType::Int8,
    DataType::UInt8,
    DataType::UInt16,
    DataType::Float32,
    DataType::Date32,
    DataType::Decimal128(3, 2),
    DataType::Utf8,
];

/// Columns that a table is to have, and its rows of numbers. The first column has the number of the row.
struct Model {
    fields: Vec<Field>,
    rows: Vec<Vec<Option<i64>>>,
    next_row: i64,
    next_column: u64,
    /// True if rows that are added cannot have nulls.
    is_in_rows: bool,
}

impl Model {
    fn new(layout: TableLayout) -> Model {
        let types = if layout == TableLayout::Rows { &TYPES[..6] } else { &TYPES[..] };
        let mut fields = vec![Field::new("id", DataType::Int64, false)];
        let numbered = types.iter().enumerate();
        fields.extend(
            numbered.map(|(number, of)| Field::new(format!("first {number}"), of.clone(), number % 2 == 0)),
        );
        let is_in_rows = layout == TableLayout::Rows;
        Model { fields, rows: Vec::new(), next_row: 0, next_column: 0, is_in_rows }
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.fields.clone()))
    }

    /// Makes rows that the table does not have yet, as the model has them afterwards.
    fn grow(&mut self, random: &mut Random, count: u64) -> RecordBatch {
        let first = self.rows.len();
        for _ in 0..count {
            let mut cell = |field: &Field| {
                let may_be_null = field.is_nullable() && !self.is_in_rows;
                (!may_be_null || random.below(4) > 0).then(|| draw(random, field.data_type()))
            };
            let mut row = vec![Some(self.next_row)];
            row.extend(self.fields[1..].iter().map(&mut cell));
            self.rows.push(row);
            self.next_row += 1;
        }
        let column = |(place, field): (usize, &Field)| {
            let cells: Vec<_> = self.rows[first..].iter().map(|row| row[place]).collect();
            array(field.data_type(), &cells)
        };
        let columns = self.fields.iter().enumerate().map(column).collect();
        RecordBatch::try_new(self.schema(), columns).expect("a batch")
    }

    /// Draws a change of a column, and makes it. `None` if the column that was drawn cannot change so.
    fn change(&mut self, random: &mut Random) -> Option<ColumnChange> {
        let place = 1 + random.below(self.fields.len() as u64) as usize;
        let drawn = self.fields.get(place).map(|field| field.name().clone());
        match (random.below(4), drawn) {
            (0, _) | (_, None) => {
                let (name, of) = (format!("new {}", self.next_column), &TYPES[random.below(7) as usize]);
                self.next_column += 1;
                self.is_in_rows = false;
                self.fields.push(Field::new(&name, of.clone(), true));
                self.rows.iter_mut().for_each(|row| row.push(None));
                Some(ColumnChange::Add { name, of: of.clone() })
            }
            (1, Some(name)) if self.fields.len() > 4 => {
                self.fields.remove(place);
                self.rows.iter_mut().for_each(|row| _ = row.remove(place));
                Some(ColumnChange::Drop { name })
            }
            (1, Some(name)) => {
                let to = format!("other {}", self.next_column);
                self.next_column += 1;
                self.fields[place] = self.fields[place].clone().with_name(&to);
                Some(ColumnChange::Rename { name, to })
            }
            (2, Some(name)) if !self.fields[place].is_nullable() => {
                self.is_in_rows = false;
                self.fields[place] = self.fields[place].clone().with_nullable(true);
                Some(ColumnChange::AllowNulls { name })
            }
            (_, Some(name)) => {
                let to = wider(random, self.fields[place].data_type())?;
                self.fields[place] = self.fields[place].clone().with_data_type(to.clone());
                Some(ColumnChange::Widen { name, to })
            }
        }
    }

    /// Returns the rows for which a condition on a column is true.
    fn texts_of(&self, is_wanted: impl Fn(&[Option<i64>]) -> bool) -> BTreeMap<i64, Vec<String>> {
        let rows: Vec<_> = self.rows.iter().filter(|row| is_wanted(row)).collect();
        let column = |(place, field): (usize, &Field)| {
            texts(&array(field.data_type(), &rows.iter().map(|row| row[place]).collect::<Vec<_>>()))
        };
        let columns: Vec<Vec<String>> = self.fields.iter().enumerate().map(column).collect();
        let row = |(number, row): (usize, &&Vec<Option<i64>>)| {
            (row[0].expect("an id"), columns.iter().map(|column| column[number].clone()).collect())
        };
        rows.iter().enumerate().map(row).collect()
    }
}

/// Returns rows by their ids, which are in the first column. No id comes twice.
fn by_id<'b>(batches: impl IntoIterator<Item = &'b RecordBatch>) -> BTreeMap<i64, Vec<String>> {
    let mut rows = BTreeMap::new();
    for batch in batches {
        let columns: Vec<Vec<String>> = batch.columns().iter().map(texts).collect();
        for (row, id) in batch.column(0).as_primitive::<Int64Type>().values().iter().enumerate() {
            let before = rows.insert(*id, columns.iter().map(|column| column[row].clone()).collect());
            assert!(before.is_none(), "row {id} is there twice");
        }
    }
    rows
}

fn read(table: &FarTable, columns: Option<&[usize]>) -> Vec<RecordBatch> {
    table.read(columns, None).expect("a reader").collect::<Result<_, _>>().expect("rows")
}

/// Runs a query in all placements, which give the same rows. Nodes do whatever can be done there.
fn answers(table: &FarTable, query: Query, what: &str) -> Vec<RecordBatch> {
    let plan = query.plan().expect("a plan");
    let explained = table.explain(&plan);
    let mut first: Option<Vec<RecordBatch>> = None;
    for placement in [Placement::Fetch, Placement::Ship, Placement::Split, Placement::Auto] {
        let answer = table.run(&plan, placement).expect("an answer");
        let report = &answer.report;
        assert!(report.refusals.is_empty(), "{what}: {report}");
        assert_eq!(
            report.shipped + report.fetched + report.skipped,
            table.row_groups().len(),
            "{what}: {report}"
        );
        assert_eq!(report.shipped + report.fetched, explained.row_groups, "{what}: {report}");
        if placement == Placement::Ship {
            assert_eq!(report.fetched, explained.row_groups_of_earlier_columns, "{what}: {report}");
        }
        match &first {
            None => first = Some(answer.batches),
            Some(first) => {
                let values = |batches: &[RecordBatch]| {
                    batches.iter().flat_map(RecordBatch::columns).map(texts).collect::<Vec<_>>()
                };
                let joined = |batches: &[RecordBatch]| {
                    let width = batches.first().map_or(0, RecordBatch::num_columns);
                    let column = |place| {
                        batches.iter().flat_map(|batch| texts(batch.column(place))).collect::<Vec<_>>()
                    };
                    (0..width).map(column).collect::<Vec<_>>()
                };
                let are_same =
                    values(&answer.batches) == values(first) || joined(&answer.batches) == joined(first);
                assert!(are_same, "{what}: {placement} differs from fetch: {report}");
            }
        }
    }
    first.expect("answers")
}

/// Returns the condition that a column of this type is at least a number.
fn at_least(field: &Field, number: i64) -> Option<Expr> {
    let column = col(field.name().as_str());
    match field.data_type() {
        of if of.is_integer() => Some(column.gt_eq(number)),
        DataType::Float32 | DataType::Float64 => Some(column.gt_eq(lit(number as f64 / 4.0))),
        DataType::Utf8 => Some(column.gt_eq(lit(format!("text {number:012}")))),
        _ => None,
    }
}

/// Compares all that can be read of a table with the model.
fn compare(table: &FarTable, model: &Model, random: &mut Random) {
    let found = read(table, None);
    assert_eq!(table.schema().as_ref(), model.schema().as_ref());
    let all = model.texts_of(|_| true);
    assert_eq!(table.rows() as usize, all.len());
    assert!(by_id(&found) == all, "all columns");
    let place = random.below(model.fields.len() as u64) as usize;
    let projected = by_id(&read(table, Some(&[0, place, place])));
    let of_two =
        |(id, row): (&i64, &Vec<String>)| (*id, vec![row[0].clone(), row[place].clone(), row[place].clone()]);
    let expected: BTreeMap<i64, Vec<String>> = all.iter().map(of_two).collect();
    assert!(projected == expected, "columns 0 and {place}");

    let field = &model.fields[place];
    let query = || table.query().expect("a query");
    let column = || col(field.name().as_str());
    let nulls = answers(table, query().filter(column().is_null()), "IS NULL");
    assert!(by_id(&nulls) == model.texts_of(|row| row[place].is_none()), "{field} IS NULL");
    let least = draw(random, field.data_type());
    if let Some(condition) = at_least(field, least) {
        let found = answers(table, query().filter(condition), "a filter");
        let is_wanted = |row: &[Option<i64>]| row[place].is_some_and(|number| number >= least);
        assert!(by_id(&found) == model.texts_of(is_wanted), "{field} >= {least}");
    }

    let numbers: Vec<i64> = model.rows.iter().filter_map(|row| row[place]).collect();
    let mut aggregates = vec![
        ("rows".to_owned(), Agg::Rows),
        ("count".to_owned(), Agg::Count(column())),
        ("least".to_owned(), Agg::Min(column())),
        ("most".to_owned(), Agg::Max(column())),
    ];
    let end = |number: Option<&i64>| texts(&array(field.data_type(), &[number.copied()]))[0].clone();
    let (least, most) = (end(numbers.iter().min()), end(numbers.iter().max()));
    let mut expected = vec![model.rows.len().to_string(), numbers.len().to_string(), least, most];
    if field.data_type().is_integer() || matches!(field.data_type(), DataType::Decimal128(..)) {
        aggregates.push(("sum".to_owned(), Agg::Sum(column())));
        let sum = numbers.iter().map(|number| i128::from(*number)).sum::<i128>();
        expected.push(if numbers.is_empty() { "NULL".to_owned() } else { sum.to_string() });
    }
    let found = answers(table, query().group_by([], aggregates), "aggregates");
    let found: Vec<String> = found.iter().flat_map(RecordBatch::columns).flat_map(texts).collect();
    assert_eq!(found, expected, "aggregates of {field}");
}

/// Deletes the rows whose ids are in a range, from the table and from the model.
fn delete(pool: &Pool, model: &mut Model, from: i64, to: i64, options: &PutOptions) {
    let rows = |group: &FarTable, condition: Expr| -> Result<Vec<RecordBatch>, Error> {
        let plan = group.query()?.filter(condition).plan().expect("a plan");
        Ok(group.run(&plan, Placement::Fetch)?.batches)
    };
    let changed = pool.change_table("t", options, "delete", None, |group| {
        let gone = rows(group, col("id").gt_eq(from).and(col("id").lt(to)))?;
        match gone.iter().map(RecordBatch::num_rows).sum::<usize>() {
            0 => Ok(GroupChange::Unchanged),
            _ => Ok(GroupChange::Rows(rows(group, col("id").lt(from).or(col("id").gt_eq(to)))?)),
        }
    });
    changed.expect("deleted");
    model.rows.retain(|row| !row[0].is_some_and(|id| (from..to).contains(&id)));
}

fn agrees_with_the_model(seed: u64, layout: TableLayout, key: Option<TableKey>) {
    let pool = pool(if seed.is_multiple_of(2) { TransportChoice::Tcp } else { TransportChoice::Shm });
    let options = PutOptions { layout, key, ..PutOptions::default() };
    let (mut random, mut model) = (Random(seed), Model::new(layout));
    let rows = model.grow(&mut random, 70_000);
    pool.put_table_with("t", rows.schema(), [Ok::<_, Infallible>(rows)], &options).expect("put");
    for step in 0..STEPS {
        match random.below(10) {
            0..3 => {
                let count = 1 + random.below(2_000);
                let rows = model.grow(&mut random, count);
                append(&pool, rows, &options).expect("appended");
            }
            3 => {
                let from = random.below(model.next_row as u64) as i64;
                delete(&pool, &mut model, from, from + 500, &options);
            }
            _ => {
                if let Some(change) = model.change(&mut random) {
                    pool.alter_table("t", &[change], &options).expect("altered");
                }
            }
        }
        if step % 3 == 2 {
            compare(&open(&pool, &options), &model, &mut random);
        }
    }
}

#[test]
fn table_whose_columns_change_has_the_rows_of_a_model_wherever_queries_run() {
    for seed in 1..=4 {
        agrees_with_the_model(seed, TableLayout::Columns, None);
    }
}

#[test]
fn encrypted_table_whose_columns_change_has_the_rows_of_a_model_wherever_queries_run() {
    for seed in 11..=13 {
        agrees_with_the_model(seed, TableLayout::Columns, Some(TableKey::new([5; 16])));
    }
}

#[test]
fn table_of_rows_whose_columns_change_has_the_rows_of_a_model_wherever_queries_run() {
    for seed in 21..=23 {
        agrees_with_the_model(seed, TableLayout::Rows, None);
        agrees_with_the_model(seed + 10, TableLayout::Rows, Some(TableKey::new([6; 16])));
    }
}

fn two_columns(ids: std::ops::Range<i64>) -> RecordBatch {
    let numbers: Int8Array = ids.clone().map(|id| Some((id % 100) as i8)).collect();
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
        ("number", Arc::new(numbers) as _),
    ])
    .expect("a batch")
}

#[test]
fn snapshots_keep_their_columns_and_an_added_column_never_has_the_values_of_a_dropped_one() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions::default();
    pool.put_table("t", two_columns(0..10).schema(), [two_columns(0..10)]).expect("put");
    let first = open(&pool, &options);
    assert_eq!(alter(&pool, &[drop_column("number")]).expect("altered"), 1);
    assert_eq!(alter(&pool, &[add("number", DataType::Int8)]).expect("altered"), 2);
    assert_eq!(pool.table_history("t").expect("listed")[0].summary, "add column number Int8");
    let empty = open(&pool, &options);
    assert!(read(&empty, Some(&[1])).iter().all(|batch| batch.column(0).null_count() == 10));
    append(&pool, two_columns(10..12), &options).expect("appended");
    assert_eq!(pool.roll_back_table("t", 1, &options).expect("rolled back").snapshot, 4);
    assert_eq!(alter(&pool, &[add("number", DataType::Int8)]).expect("altered"), 5);
    append(&pool, two_columns(20..21), &options).expect("appended");
    let values = |table: &FarTable| {
        by_id(&read(table, None)).into_values().map(|row| row[1].clone()).collect::<Vec<_>>()
    };
    assert_eq!(values(&open(&pool, &options)), [vec!["NULL"; 10], vec!["20"]].concat());
    assert_eq!(values(&first), (0..10).map(|id| id.to_string()).collect::<Vec<_>>());
    let third = pool.table_snapshot("t", 3, None).expect("it is kept").open_all().expect("opened");
    assert_eq!(values(&third), [vec!["NULL"; 10], vec!["10", "11"]].concat());
}

#[test]
fn rows_in_the_columns_of_before_are_refused_with_the_columns_of_both() {
    let pool = pool(TransportChoice::Tcp);
    let options = PutOptions::default();
    pool.put_table("t", two_columns(0..10).schema(), [two_columns(0..10)]).expect("put");
    alter(
        &pool,
        &[add("more", DataType::Utf8), ColumnChange::Widen { name: "number".into(), to: DataType::Int32 }],
    )
    .expect("altered");
    let error = append(&pool, two_columns(10..20), &options).expect_err("the columns of before");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let told = error.to_string();
    assert!(told.contains("the table are (id Int64, number Int32, more Utf8)"), "{told}");
    assert!(told.contains("the rows are (id Int64, number Int8)"), "{told}");

    // Another session changes the columns while rows are written.
    let other = Pool::connect_with(pool.url(), PoolOptions::default()).expect("another session");
    let rows = read(&open(&pool, &options), None);
    let batches = rows.iter().map(|batch| {
        alter(&other, &[drop_column("number")]).expect("altered");
        Ok::<_, Infallible>(batch.clone())
    });
    let error =
        pool.append_to_table("t", rows[0].schema(), batches, &options).expect_err("others were faster");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("they are (id Int64, more Utf8)"), "{error}");
    let mut is_first = true;
    let changed = pool.change_table("t", &options, "delete", None, |_| {
        if std::mem::take(&mut is_first) {
            alter(&other, &[drop_column("more")]).expect("altered");
        }
        Ok(GroupChange::Rows(Vec::new()))
    });
    assert_eq!(changed.expect_err("others were faster").kind(), ErrorKind::Conflict);
    assert_eq!(by_id(&read(&open(&pool, &options), None)).len(), 10, "nothing was added or deleted");
}

#[test]
fn columns_that_cannot_change_so_are_refused_and_nothing_changes() {
    let pool = pool(TransportChoice::Tcp);
    pool.put_table("t", two_columns(0..10).schema(), [two_columns(0..10)]).expect("put");
    let refused = [
        (vec![], "no change"),
        (vec![drop_column("other")], "no column \"other\"; the columns are id, number"),
        (vec![add("id", DataType::Int8)], "there is a column \"id\" already"),
        (
            vec![ColumnChange::Widen { name: "id".into(), to: DataType::Int8 }],
            "Int64 cannot be widened to Int8",
        ),
        (vec![ColumnChange::Rename { name: "id".into(), to: "x".repeat(2_000) }], "at most 1024"),
        (vec![drop_column("id"), drop_column("number")], "0 columns"),
    ];
    for (changes, expected) in refused {
        let error = alter(&pool, &changes).expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let missing = pool.alter_table("u", &[drop_column("id")], &PutOptions::default());
    assert_eq!(missing.expect_err("no table").kind(), ErrorKind::NotFound);
    assert_eq!(pool.table("t").expect("opened").snapshot(), None);
}

#[test]
fn functions_see_the_columns_that_a_file_has_and_are_refused_those_that_it_has_not() {
    let pool = pool(TransportChoice::Tcp);
    pool.put_table("t", two_columns(0..10).schema(), [two_columns(0..10)]).expect("put");
    let rename = ColumnChange::Rename { name: "number".into(), to: "count".into() };
    alter(&pool, &[rename, add("more", DataType::Utf8)]).expect("altered");
    let table = pool.table("t").expect("opened");
    assert!(table.caller(&["count", "id"], CallerOptions::default()).is_ok());
    let error = table.caller(&["id", "more"], CallerOptions::default()).err().expect("it is not in the file");
    assert!(error.to_string().contains("compact the table first"), "{error}");

    // A compaction gives all files the columns of the table, also if a type alone has changed.
    let compacted = || {
        pool.compact_table("t", &PutOptions::default())
            .expect("compacted")
            .expect("there was something to do");
        assert_eq!(pool.compact_table("t", &PutOptions::default()).expect("compacted"), None);
        pool.table("t").expect("opened")
    };
    assert!(compacted().caller(&["id", "more"], CallerOptions::default()).is_ok());
    alter(&pool, &[ColumnChange::Widen { name: "count".into(), to: DataType::Int32 }]).expect("altered");
    let table = pool.table("t").expect("opened");
    assert!(table.caller(&["count"], CallerOptions::default()).is_err());
    assert!(compacted().caller(&["count"], CallerOptions::default()).is_ok());
}
