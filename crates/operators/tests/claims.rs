//! Cases that are easily wrong, one test each.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use farpool_operators::{
    Aggregate, AggregateFunction, Binary, Bounds, Comparison, Instruction, Merge, Operator, Prepared,
    Program, Run, Stopped, Type, Value,
};
use std::sync::Arc;

fn literal(of: Type, value: Value) -> Instruction {
    Instruction::Literal(farpool_operators::Scalar { of, value: Some(value) })
}

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let named = columns.into_iter().enumerate().map(|(index, column)| (index.to_string(), column, true));
    RecordBatch::try_from_iter_with_nullable(named).unwrap()
}

fn prepared(input: &[Type], operators: Vec<Operator>) -> Arc<Prepared> {
    let program = Arc::new(Program::check(input.to_vec(), operators).unwrap());
    Arc::new(Prepared::new(program).unwrap())
}

/// Runs the program over each batch in a run of its own, and merges the outputs in this order.
fn merged(prepared: &Arc<Prepared>, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, Stopped> {
    let mut merge = Merge::new(prepared.program(), 7).unwrap();
    for (index, batch) in batches.iter().enumerate() {
        let mut run = Run::new(prepared.clone(), Vec::new(), Bounds::default()).unwrap();
        for partial in run.push(batch, index as u64 * 1_000)?.into_iter().chain(run.finish()?) {
            merge.push(&partial)?;
        }
    }
    merge.finish()
}

fn one(prepared: &Arc<Prepared>, batch: &RecordBatch, bounds: Bounds) -> Result<Vec<RecordBatch>, Stopped> {
    let mut run = Run::new(prepared.clone(), Vec::new(), bounds).unwrap();
    let mut found = run.push(batch, 0)?;
    found.extend(run.finish()?);
    Ok(found)
}

fn filtered(column: ArrayRef, of: Type, mut filter: Vec<Instruction>) -> usize {
    filter.insert(0, Instruction::Column(0));
    let prepared = prepared(&[of], vec![Operator::Filter(filter)]);
    let found = one(&prepared, &batch(vec![column]), Bounds::default()).unwrap();
    found.iter().map(RecordBatch::num_rows).sum()
}

fn group(keys: Vec<u16>, function: AggregateFunction, column: u16, groups: u32) -> Operator {
    Operator::Group { keys, aggregates: vec![Aggregate { function, column: Some(column) }], groups }
}

#[test]
fn zeros_are_one_key_and_nan_of_each_bits_is_another_below_or_above_all_else() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY]));
    let against = |value: f64, comparison| {
        let filter =
            vec![literal(Type::Float64, Value::Float(value.to_bits())), Instruction::Compare(comparison)];
        filtered(floats.clone(), Type::Float64, filter)
    };
    assert_eq!(against(-0.0, Comparison::Equal), 2);
    assert_eq!(against(0.0, Comparison::Less), 1);
    assert_eq!(against(f64::NAN, Comparison::Equal), 1);
    assert_eq!(against(f64::INFINITY, Comparison::Greater), 1);
    assert_eq!(against(f64::NEG_INFINITY, Comparison::Less), 1);
    assert_eq!(against(-f64::NAN, Comparison::Greater), 4);
    let prepared = prepared(&[Type::Float64], vec![group(vec![0], AggregateFunction::Count, 0, 8)]);
    let found = merged(&prepared, &[batch(vec![floats.clone()]), batch(vec![floats.clone()])]).unwrap();
    let bits = |column: &ArrayRef| -> Vec<u64> {
        column.as_primitive::<Float64Type>().values().iter().map(|value| value.to_bits()).collect()
    };
    let expected = [-f64::NAN, 0.0, f64::INFINITY, f64::NAN].map(f64::to_bits);
    assert_eq!(bits(found[0].column(0)), expected);
    assert_eq!(found[0].column(1).as_primitive::<Int64Type>().values(), &[2, 4, 2, 2]);
    for (function, row, wanted) in [
        (AggregateFunction::Min, 0, -0.0),
        (AggregateFunction::Max, 0, 0.0),
        (AggregateFunction::Min, 2, -f64::NAN),
        (AggregateFunction::Max, 2, f64::NAN),
    ] {
        let prepared = self::prepared(&[Type::Float64], vec![group(vec![], function, 0, 8)]);
        let found = merged(&prepared, &[batch(vec![floats.slice(row, 2)])]).unwrap();
        assert_eq!(bits(found[0].column(0)), [wanted.to_bits()]);
    }
}

#[test]
fn an_overflow_stops_and_names_the_operator_and_the_values() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(i64::MAX)]));
    let sum = vec![Instruction::Column(0), Instruction::Column(0), Instruction::Binary(Binary::Add)];
    let keep = Operator::Filter(vec![literal(Type::Boolean, Value::Boolean(true))]);
    let prepared = prepared(&[Type::Int64], vec![keep, Operator::Project(vec![sum])]);
    let found = one(&prepared, &batch(vec![column]), Bounds::default());
    let what = format!("{} + {}", i64::MAX, i64::MAX);
    assert_eq!(found, Err(Stopped::Overflow { operator: 1, what }));
}

#[test]
fn a_whole_number_by_zero_is_null_and_the_least_by_minus_one_leaves_nothing() {
    let left: ArrayRef = Arc::new(Int8Array::from(vec![7, -7, i8::MIN]));
    let right: ArrayRef = Arc::new(Int8Array::from(vec![0, 2, -1]));
    let two = |binary| vec![Instruction::Column(0), Instruction::Column(1), Instruction::Binary(binary)];
    let remainder = prepared(&[Type::Int8; 2], vec![Operator::Project(vec![two(Binary::Remainder)])]);
    let rows = batch(vec![left, right]);
    let found = one(&remainder, &rows, Bounds::default()).unwrap();
    assert_eq!(
        found[0].column(0).as_primitive::<Int8Type>(),
        &Int8Array::from(vec![None, Some(-1), Some(0)])
    );
    let quotient = prepared(&[Type::Int8; 2], vec![Operator::Project(vec![two(Binary::Divide)])]);
    let found = one(&quotient, &rows.slice(0, 2), Bounds::default()).unwrap();
    assert_eq!(found[0].column(0).as_primitive::<Int8Type>(), &Int8Array::from(vec![None, Some(-3)]));
    assert!(matches!(one(&quotient, &rows, Bounds::default()), Err(Stopped::Overflow { operator: 0, .. })));
}

#[test]
fn a_sum_of_decimals_may_leave_its_type_on_the_way_but_not_at_the_end() {
    let of = Type::Decimal { precision: 38, scale: 0 };
    let most = 10i128.pow(38) - 1;
    let rows = |values: Vec<i128>| {
        let array = Decimal128Array::from(values).with_precision_and_scale(38, 0).unwrap();
        batch(vec![Arc::new(array)])
    };
    let prepared = prepared(&[of], vec![group(Vec::new(), AggregateFunction::Sum, 0, 1)]);
    let parts = [rows(vec![most, most, most]), rows(vec![-most]), rows(vec![-most, -most, -5])];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let found = merged(&prepared, &order.map(|part| parts[part].clone())).unwrap();
        assert_eq!(found[0].column(0).as_primitive::<Decimal128Type>().value(0), -5);
    }
    assert!(matches!(merged(&prepared, &parts[..1]), Err(Stopped::Overflow { .. })));
}

#[test]
fn a_sum_of_floats_keeps_what_rounding_leaves_out() {
    let rows = |values: Vec<f64>| batch(vec![Arc::new(Float64Array::from(values))]);
    let prepared = prepared(&[Type::Float64], vec![group(Vec::new(), AggregateFunction::Sum, 0, 1)]);
    let parts = [rows(vec![1e100, 1.0]), rows(vec![-1e100, 1.0])];
    let found = merged(&prepared, &parts).unwrap();
    assert_eq!(found[0].column(0).as_primitive::<Float64Type>().value(0), 2.0);
}

#[test]
fn without_rows_a_grouping_without_keys_has_one_row_and_one_with_keys_has_none() {
    let rows = batch(vec![Arc::new(Int64Array::from(Vec::<i64>::new()))]);
    let sum = prepared(&[Type::Int64], vec![group(Vec::new(), AggregateFunction::Sum, 0, 1)]);
    for batches in [vec![], vec![rows.clone()], vec![rows.clone(), rows.clone()]] {
        let found = merged(&sum, &batches).unwrap();
        assert_eq!((found[0].num_rows(), found[0].column(0).null_count()), (1, 1));
    }
    let keyed = prepared(&[Type::Int64], vec![group(vec![0], AggregateFunction::Sum, 0, 1)]);
    assert_eq!(merged(&keyed, &[rows]).unwrap().len(), 0);
}

#[test]
fn groups_beyond_the_bound_leave_as_partial_ones_and_merge_exactly() {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..100_000).map(|row| row % 5_000)));
    let rows = batch(vec![keys]);
    let prepared = prepared(&[Type::Int64], vec![group(vec![0], AggregateFunction::Count, 0, 1_000)]);
    let partial = one(&prepared, &rows, Bounds::default()).unwrap();
    assert!(partial.iter().all(|batch| batch.num_rows() <= 1_000));
    // Keys that recur in turns would evict each other if every new key got a slot.
    assert!((5_000..90_000).contains(&partial.iter().map(RecordBatch::num_rows).sum::<usize>()));
    let found = merged(&prepared, &[rows]).unwrap();
    assert_eq!(found[0].num_rows(), 5_000);
    assert!(found[0].column(1).as_primitive::<Int64Type>().values().iter().all(|count| *count == 20));
}

#[test]
fn steps_that_run_out_and_literals_that_would_fill_memory_stop_the_run() {
    let rows = batch(vec![Arc::new(Int64Array::from(vec![1; 1_000]))]);
    let text = vec![literal(Type::Text, Value::Bytes(vec![b'x'; 4_096]))];
    let prepared = prepared(&[Type::Int64], vec![Operator::Project(vec![text; 100])]);
    let bounds = Bounds { steps_max: 99_000, ..Bounds::default() };
    let stopped = one(&prepared, &rows, bounds).unwrap_err();
    assert_eq!(stopped, Stopped::TooLarge { what: "steps", found: 100_000, max: 99_000 });
    let bounds = Bounds { batch_bytes_max: 1 << 20, ..Bounds::default() };
    assert!(matches!(
        one(&prepared, &rows, bounds),
        Err(Stopped::TooLarge { what: "bytes of a column", .. })
    ));
}

#[test]
fn a_dictionary_that_is_short_but_says_much_is_stopped_before_it_is_spelled_out() {
    let mut builder = builder::StringDictionaryBuilder::<UInt32Type>::new();
    let long = "x".repeat(1 << 20);
    (0..4_096).for_each(|_| builder.append_value(&long));
    let rows = batch(vec![Arc::new(builder.finish())]);
    let like = Instruction::Like { pattern: "x%".to_owned(), escape: None, ignores_case: false };
    let filter = Operator::Filter(vec![Instruction::Column(0), like]);
    let count =
        prepared(&[Type::Text], vec![filter.clone(), group(Vec::new(), AggregateFunction::Count, 0, 1)]);
    assert!(matches!(one(&count, &rows, Bounds::default()), Err(Stopped::TooLarge { .. })));
    // The pattern is applied to the one value of the dictionary, not to 4,096 rows.
    let counted = Operator::Group {
        keys: Vec::new(),
        aggregates: vec![Aggregate { function: AggregateFunction::Count, column: None }],
        groups: 1,
    };
    let count = prepared(&[Type::Text], vec![filter, counted]);
    let bounds = Bounds { steps_max: 2 << 20, ..Bounds::default() };
    let found = one(&count, &rows, bounds).unwrap();
    assert_eq!(found[0].column(0).as_primitive::<Int64Type>().value(0), 4_096);
}

#[test]
fn patterns_that_cannot_be_used_are_found_before_the_run() {
    let patterns = ["(", "(a{1000}){1000}", "\\w{500}\\w{500}"];
    for pattern in patterns {
        let filter = vec![Instruction::Column(0), Instruction::Matches { pattern: pattern.to_owned() }];
        let keep = Operator::Filter(vec![literal(Type::Boolean, Value::Boolean(true))]);
        let program = Program::check(vec![Type::Text], vec![keep, Operator::Filter(filter)]).unwrap();
        assert_eq!(Prepared::new(Arc::new(program)).unwrap_err().operator, 1);
    }
}

#[test]
fn partial_results_of_other_columns_are_refused() {
    let prepared = prepared(&[Type::Float64], vec![group(vec![0], AggregateFunction::Sum, 0, 8)]);
    let mut merge = Merge::new(prepared.program(), 1).unwrap();
    let rows = batch(vec![Arc::new(Float64Array::from(vec![1.0])), Arc::new(Float64Array::from(vec![1.0]))]);
    assert!(matches!(merge.push(&rows), Err(Stopped::Columns(_))));
}
