//! Joins of columns give what a join by a map gives, for all types of keys.

use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    DictionaryArray, FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array, Int16Array, Int64Array,
    LargeStringArray, StringArray, StringViewArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::i256;
use farpool_join::columns::{Algorithm, BuildLookup, join};
use farpool_join::{HugePages, JoinError, Kernels, Kind, Settings};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

fn cases() -> u32 {
    std::env::var("FARPOOL_JOIN_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

type Value = Option<i8>;

/// Number of forms of a column. All forms hold the same small numbers, each in a type of its own.
const FORMS: usize = 20;

fn column(form: usize, values: &[Value]) -> ArrayRef {
    let each = |value: &Value| value.map(i64::from);
    let text = |value: &Value| value.map(|value| format!("a key of some length {value}"));
    let texts: Vec<Option<String>> = values.iter().map(text).collect();
    // Both zeros and several kinds of NaN occur, depending on the row.
    let float = |(row, value): (usize, &Value)| {
        value.map(|value| match value {
            0 if row % 2 == 0 => -0.0,
            7 => f64::from_bits(0x7ff8_0000_0000_0000 | (row as u64 % 3) | ((row as u64 & 1) << 63)),
            _ => f64::from(value) / 4.0,
        })
    };
    match form {
        0 => Arc::new(Int64Array::from_iter(values.iter().map(each))),
        1 => Arc::new(Int8Array::from_iter(values.iter().copied())),
        2 => Arc::new(Int16Array::from_iter(values.iter().map(|value| value.map(i16::from)))),
        3 => Arc::new(StringArray::from_iter(&texts)),
        4 => Arc::new(LargeStringArray::from_iter(&texts)),
        5 => Arc::new(StringViewArray::from_iter(&texts)),
        6 => Arc::new(DictionaryArray::<Int32Type>::from_iter(texts.iter().map(Option::as_deref))),
        7 => Arc::new(DictionaryArray::<Int8Type>::from_iter(texts.iter().map(Option::as_deref))),
        8 => Arc::new(Float64Array::from_iter(values.iter().enumerate().map(float))),
        9 => Arc::new(Float32Array::from_iter(
            values.iter().enumerate().map(|at| float(at).map(|value| value as f32)),
        )),
        10 => {
            let values = values.iter().map(|value| value.map(|value| i128::from(value) << 70));
            Arc::new(Decimal128Array::from_iter(values).with_precision_and_scale(38, 4).unwrap())
        }
        11 => {
            let values = values.iter().map(|value| value.map(|value| i256::from_i128(i128::from(value))));
            Arc::new(Decimal256Array::from_iter(values).with_precision_and_scale(60, 2).unwrap())
        }
        12 => Arc::new(Date32Array::from_iter(values.iter().map(|value| value.map(i32::from)))),
        13 => Arc::new(TimestampMicrosecondArray::from_iter(values.iter().map(each))),
        14 => Arc::new(UInt64Array::from_iter(values.iter().map(|value| value.map(|value| value as u64)))),
        15 => {
            Arc::new(UInt32Array::from_iter(values.iter().map(|value| value.map(|value| value as u8 as u32))))
        }
        16 => Arc::new(BinaryArray::from_iter(
            values.iter().map(|value| value.map(|value| vec![value as u8; 9])),
        )),
        17 => Arc::new(
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                values.iter().map(|value| value.map(|value| vec![value as u8; 20])),
                20,
            )
            .unwrap(),
        ),
        18 => Arc::new(BooleanArray::from_iter(values.iter().map(|value| value.map(|value| value % 2 == 0)))),
        _ => Arc::new(BooleanArray::from_iter(values.iter().map(|value| value.map(|value| value > 0)))),
    }
}

/// Returns a form, chosen by `choice`, whose type may be compared with that of this form.
fn other_form(form: usize, choice: usize) -> usize {
    match form {
        0..=2 => choice % 3,
        3..=7 => 3 + choice % 5,
        form => form,
    }
}

/// Returns the value as a form stores it: some forms map different values to the same key.
fn seen(form: usize, value: Value) -> Value {
    match form {
        18 => value.map(|value| i8::from(value % 2 == 0)),
        19 => value.map(|value| i8::from(value > 0)),
        _ => value,
    }
}

type Row = (Option<u64>, u64);

fn naive(forms: &[usize], build: &[Vec<Value>], probe: &[Vec<Value>], kind: Kind) -> Vec<Row> {
    let key = |columns: &[Vec<Value>], row: usize| -> Option<Vec<i8>> {
        columns.iter().zip(forms).map(|(column, form)| seen(*form, column[row])).collect()
    };
    let mut map: BTreeMap<Vec<i8>, Vec<u64>> = BTreeMap::new();
    for row in 0..build[0].len() {
        if let Some(key) = key(build, row) {
            map.entry(key).or_default().push(row as u64);
        }
    }
    let mut rows = Vec::new();
    for row in 0..probe[0].len() {
        let found = key(probe, row).and_then(|key| map.get(&key));
        match (kind, found) {
            (Kind::Inner | Kind::Left, Some(found)) => {
                rows.extend(found.iter().map(|build| (Some(*build), row as u64)));
            }
            (Kind::Left | Kind::Anti, None) | (Kind::Semi, Some(_)) => rows.push((None, row as u64)),
            (Kind::Inner | Kind::Semi, None) | (Kind::Anti, Some(_)) => {}
        }
    }
    rows.sort_unstable();
    rows
}

fn values(rows: usize, span: i8) -> impl Strategy<Value = Vec<Value>> {
    let value = prop_oneof![1 => Just(None), 9 => (-span..=span).prop_map(Some)];
    proptest::collection::vec(value, rows)
}

/// Forms of the key columns, the choice of the other side's forms, and the values of both sides.
type Inputs = (Vec<usize>, usize, Vec<Vec<Value>>, Vec<Vec<Value>>);

fn columns() -> impl Strategy<Value = Inputs> {
    let forms = proptest::collection::vec(0..FORMS, 1..=3);
    (forms, any::<usize>(), 0_usize..300, 0_usize..300, 1_i8..=60).prop_flat_map(
        |(forms, choice, left, right, span)| {
            let count = forms.len();
            let build = proptest::collection::vec(values(left, span), count);
            (Just(forms), Just(choice), build, proptest::collection::vec(values(right, span), count))
        },
    )
}

#[test]
fn join_of_columns_gives_what_a_map_gives() {
    let pages = HugePages::new();
    let mut runner =
        TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
    let kernels = proptest::sample::select(Kernels::all());
    let kinds = proptest::sample::select(Kind::ALL.as_slice());
    let algorithms = prop_oneof![Just(Algorithm::Partitioned), Just(Algorithm::Shared)];
    let all = (columns(), algorithms, kinds, 1_usize..=8, kernels, any::<u64>());
    let result =
        runner.run(&all, |((forms, choice, build, probe), algorithm, kind, threads, kernels, seed)| {
            let settings = Settings { kernels, ..Settings::new(threads, seed) };
            let left: Vec<ArrayRef> =
                forms.iter().zip(&build).map(|(form, values)| column(*form, values)).collect();
            let right: Vec<ArrayRef> = forms
                .iter()
                .zip(&probe)
                .map(|(form, values)| column(other_form(*form, choice), values))
                .collect();
            let pairs = join(&settings, &pages, algorithm, kind, &left, &right);
            let pairs = pairs.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let mut found: Vec<Row> = Vec::new();
            for pairs in &pairs {
                let (builds, probes) = (pairs.build(), pairs.probe());
                let has_build = matches!(kind, Kind::Inner | Kind::Left);
                prop_assert_eq!(builds.len(), if has_build { probes.len() } else { 0 });
                found.extend((0..probes.len()).map(|at| {
                    let build = (has_build && builds.is_valid(at)).then(|| builds.value(at));
                    (build, probes.value(at))
                }));
            }
            found.sort_unstable();
            let wanted = naive(&forms, &build, &probe, kind);
            prop_assert!(found == wanted, "{} rows instead of {}", found.len(), wanted.len());
            Ok(())
        });
    if let Err(failed) = result {
        panic!("{failed}");
    }
}

#[test]
fn lookup_gives_what_an_inner_join_gives_if_keys_are_words_and_differ() {
    let pages = HugePages::new();
    let mut runner =
        TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
    let forms = proptest::collection::vec(proptest::sample::select(vec![0, 1, 2, 8, 12, 15, 18]), 1..=3);
    let span = prop_oneof![4 => Just(60_i8), 1 => 1..20_i8];
    let all = (forms, 0_usize..40, 0_usize..300, span, 1_usize..=3).prop_flat_map(
        |(forms, left, right, span, threads)| {
            let side = |rows| proptest::collection::vec(values(rows, span), forms.len());
            (Just(forms.clone()), side(left), side(right), Just(threads), any::<u64>())
        },
    );
    let (some, none) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&all, |(forms, build, probe, threads, seed)| {
        let columns = |values: &[Vec<Value>]| -> Vec<ArrayRef> {
            forms.iter().zip(values).map(|(form, values)| column(*form, values)).collect()
        };
        let wanted = naive(&forms, &build, &probe, Kind::Inner);
        // The build side joined with itself gives other pairs than (row, same row) if a key occurs twice.
        let same = naive(&forms, &build, &build, Kind::Inner);
        let differ = same.iter().all(|(build, probe)| *build == Some(*probe));
        let bits = |form: &usize| [64, 8, 16, 0, 0, 0, 0, 0, 64, 32, 0, 0, 32, 64, 64, 32, 0, 0, 1][*form];
        let fit = forms.iter().map(bits).sum::<u32>() <= 64;
        let lookup = BuildLookup::new(&Settings::new(threads, seed), &pages, &columns(&build));
        let lookup = lookup.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(lookup.is_some(), differ && fit);
        let Some(lookup) = lookup else {
            none.set(none.get() + 1);
            return Ok(());
        };
        some.set(some.get() + 1);
        let mut found = Vec::new();
        for start in (0..probe[0].len()).step_by(100) {
            let end = probe[0].len().min(start + 100);
            let part: Vec<ArrayRef> =
                columns(&probe).iter().map(|column| column.slice(start, end - start)).collect();
            let pairs = lookup.pairs(&part).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let (builds, probes) = pairs.into_parts();
            let pairs = builds.values().iter().zip(probes.values());
            found.extend(pairs.map(|(build, probe)| (Some(*build), probe + start as u64)));
        }
        found.sort_unstable();
        prop_assert!(found == wanted, "{} rows instead of {}", found.len(), wanted.len());
        Ok(())
    });
    if let Err(failed) = result {
        panic!("{failed}");
    }
    let (some, none) = (some.get(), none.get());
    assert!(some > 20 && none > 20, "{some} lookups, {none} sides without one");
}

#[test]
fn columns_that_cannot_be_compared_are_refused_by_their_types() {
    let pages = HugePages::new();
    let refused = |left: &[ArrayRef], right: &[ArrayRef]| {
        let settings = Settings::new(1, 0);
        match join(&settings, &pages, Algorithm::Shared, Kind::Inner, left, right) {
            Err(JoinError::Keys(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let (whole, text) = ([column(0, &[Some(1)])], [column(3, &[Some(1)])]);
    assert!(refused(&whole, &text).contains("[Whole] cannot be compared with [Text]"));
    assert!(refused(&[], &[]).contains("at least one column"));
    let both = [whole[0].clone(), text[0].clone()];
    assert!(refused(&whole, &both).contains("[Whole] cannot be compared with [Whole, Text]"));
    let uneven = [whole[0].clone(), column(0, &[Some(1), None])];
    assert!(refused(&uneven, &whole).contains("1 and 2 rows"));
}
