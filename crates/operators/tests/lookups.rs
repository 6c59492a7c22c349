//! Semi-joins: exact keys are found whatever their layout and type, filters lose no rows, bytes of lookups are those
//! of the specification, and hostile bytes are refused.

use arrow_array::*;
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Schema};
use farpool_operators::packed::{BatchPacker, pack};
use farpool_operators::run::{Bloom, Bounds, KeySet, Keys, LookupTable, Lookups, Merge, data_type};
use farpool_operators::types::TimeUnit;
use farpool_operators::{JoinLookup, Operator, Plan, Prepared, Program, Query, Run, Stopped, Type, col, lit};
use farpool_wire::WireError;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let named = columns.into_iter().enumerate().map(|(index, column)| (index.to_string(), column, true));
    RecordBatch::try_from_iter_with_nullable(named).unwrap()
}

fn ints(values: impl IntoIterator<Item = i64>) -> RecordBatch {
    batch(vec![Arc::new(Int64Array::from_iter_values(values))])
}

/// Returns the numbers of the rows that are kept. All columns of the batch are keys.
fn kept(rows: &RecordBatch, lookup: LookupTable, is_anti: bool) -> Vec<i64> {
    let kind = if matches!(lookup, LookupTable::Bloom(_)) { JoinLookup::Bloom } else { JoinLookup::Keys };
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows.num_rows() as i64));
    let all = batch(rows.columns().iter().cloned().chain([numbers]).collect());
    let of = |column: &ArrayRef| farpool_operators::run::type_of(column.data_type()).unwrap();
    let input = all.columns().iter().map(of).collect();
    let keys = (0..rows.num_columns() as u16).collect();
    let join = Operator::SemiJoin { keys, lookup: kind, number: 0, is_anti };
    let program = Arc::new(Program::check(input, vec![join]).unwrap());
    let prepared = Arc::new(Prepared::new(program).unwrap());
    let mut run = Run::new(prepared, vec![Arc::new(lookup)], Bounds::default()).unwrap();
    let left = run.push(&all, 0).unwrap();
    let numbers = |batch: &RecordBatch| {
        let column = Arc::clone(batch.columns().last().unwrap());
        column.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
    };
    left.iter().flat_map(numbers).collect()
}

fn number_lists() -> impl Strategy<Value = (Vec<i64>, Vec<Option<i64>>)> {
    let value = prop_oneof![
        -50i64..50,
        Just(i64::MIN),
        Just(i64::MAX),
        any::<i64>(),
        (0i64..3_000).prop_map(|at| at * 1_000_003),
    ];
    let keys = prop_oneof![
        proptest::collection::vec(-50i64..50, 0..60),
        proptest::collection::vec(value.clone(), 0..2_000)
    ];
    keys.prop_flat_map(move |keys| {
        let known = if keys.is_empty() { vec![0] } else { keys.clone() };
        let row = prop_oneof![
            4 => proptest::sample::select(known).prop_map(Some),
            4 => value.clone().prop_map(Some),
            1 => Just(None),
        ];
        (Just(keys), proptest::collection::vec(row, 0..1_500))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn numbers_are_found_exactly_however_they_lie((keys, rows) in number_lists(), seed in any::<u64>()) {
        let known: HashSet<i64> = keys.iter().copied().collect();
        let table = batch(vec![Arc::new(Int64Array::from(rows.clone()))]);
        let found = |row: &Option<i64>| row.is_some_and(|row| known.contains(&row));
        let expected = |wanted: bool| -> Vec<i64> {
            (0i64..).zip(&rows).filter(|(_, row)| found(row) == wanted).map(|(at, _)| at).collect()
        };
        let lookup = || LookupTable::Keys(Keys::new(vec![Type::Int64], &[ints(keys.clone())], seed).unwrap());
        prop_assert_eq!(kept(&table, lookup(), false), expected(true));
        prop_assert_eq!(kept(&table, lookup(), true), expected(false));
        // The same with keys that were packed and unpacked, and with a filter, which must lose no row.
        let set = KeySet::new(&[(0, Type::Int64)], &ints([]).schema(), &[ints(keys.clone())]).unwrap();
        prop_assert_eq!(set.count(), known.len());
        let travelled = LookupTable::from_bytes(JoinLookup::Keys, set.packed().into(), seed).unwrap();
        prop_assert_eq!(kept(&table, travelled, false), expected(true));
        let filter = set.filter().unwrap().to_bytes();
        let filter = LookupTable::from_bytes(JoinLookup::Bloom, filter.into(), seed).unwrap();
        let by_filter: HashSet<i64> = kept(&table, filter, false).into_iter().collect();
        prop_assert!(expected(true).iter().all(|row| by_filter.contains(row)));
    }

    #[test]
    fn rows_of_several_keys_are_found_exactly(
        keys in proptest::collection::vec((0i32..20, proptest::option::of("[ab]{0,3}")), 0..80),
        rows in proptest::collection::vec((proptest::option::of(0i32..20), proptest::option::of("[ab]{0,3}")), 0..300),
        seed in any::<u64>(),
    ) {
        let table = |numbers: Vec<Option<i32>>, texts: Vec<Option<String>>, is_dictionary: bool| {
            let texts: ArrayRef = match is_dictionary {
                true => {
                    let texts: DictionaryArray<types::UInt16Type> = texts.iter().map(Option::as_deref).collect();
                    Arc::new(texts)
                }
                false => Arc::new(StringArray::from(texts)),
            };
            batch(vec![Arc::new(Int32Array::from(numbers)), texts])
        };
        let known: HashSet<(i32, &str)> =
            keys.iter().filter_map(|(number, text)| Some((*number, text.as_deref()?))).collect();
        let found = |row: &(Option<i32>, Option<String>)| {
            row.0.zip(row.1.as_deref()).is_some_and(|row| known.contains(&row))
        };
        let expected: Vec<i64> = (0i64..).zip(&rows).filter(|(_, row)| found(row)).map(|(at, _)| at).collect();
        let (numbers, texts): (Vec<i32>, Vec<Option<String>>) = keys.iter().cloned().unzip();
        let other = table(numbers.into_iter().map(Some).collect(), texts, false);
        let types = [(0, Type::Int32), (1, Type::Text)];
        let set = KeySet::new(&types, &other.schema(), std::slice::from_ref(&other)).unwrap();
        prop_assert_eq!(set.count(), known.len());
        let (numbers, texts): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        for is_dictionary in [false, true] {
            let table = table(numbers.clone(), texts.clone(), is_dictionary);
            let lookup = LookupTable::from_bytes(JoinLookup::Keys, set.packed().into(), seed).unwrap();
            prop_assert_eq!(&kept(&table, lookup, false), &expected);
            let text = table.project(&[1]).unwrap();
            let texts = KeySet::new(&[(1, Type::Text)], &other.schema(), std::slice::from_ref(&other)).unwrap();
            let lookup = LookupTable::from_bytes(JoinLookup::Keys, texts.packed().into(), seed).unwrap();
            let known: HashSet<&str> = keys.iter().filter_map(|(_, text)| text.as_deref()).collect();
            let is_known = |row: &(_, Option<String>)| row.1.as_deref().is_some_and(|text| known.contains(text));
            let expected: Vec<i64> = (0i64..).zip(&rows).filter(|(_, row)| is_known(row)).map(|(at, _)| at).collect();
            prop_assert_eq!(kept(&text, lookup, false), expected);
        }
    }

    #[test]
    fn bytes_from_anybody_are_lookups_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for kind in [JoinLookup::Bloom, JoinLookup::Keys] {
            let _ = LookupTable::from_bytes(kind, Buffer::from(bytes.clone()), 1);
        }
    }
}

/// Bytes of the filters that the next test expects, in hexadecimal. Another program, which was written from the
/// specification, made them.
const FILTER: &str = "0000244000110000000000000000000000000000000000000000000000000000\
     0000000000000000000000000000000000000000000000000000000000000000";
const FILTER_OF_NUMBERS: &str = "0000000000000000000000000000000000000000000000000481000000009000\
     9000200010444310000000000000000000000000000000000000000000000000";

/// Builds the filter of spec/pipeline.md, "An example", from keys of every kind of type.
#[test]
fn filter_of_the_specification_is_these_bytes() {
    let decimal =
        Decimal128Array::from(vec![Some(-12_345), Some(1)]).with_precision_and_scale(20, 2).unwrap();
    let keys = batch(vec![
        Arc::new(Int32Array::from(vec![Some(-7), None])),
        Arc::new(UInt64Array::from(vec![7, 8])),
        Arc::new(Float32Array::from(vec![-0.0, 1.0])),
        Arc::new(decimal),
        Arc::new(StringArray::from(vec!["Größe, 日本", "x"])),
    ]);
    let mut bloom = Bloom::new(64);
    bloom.add(&keys).unwrap();
    let hex: String = bloom.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, FILTER);
    let mut numbers = Bloom::new(64);
    numbers.add(&ints([0, 1, -1])).unwrap();
    let hex: String = numbers.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, FILTER_OF_NUMBERS);
}

#[test]
fn filter_of_16_bits_for_a_key_takes_one_key_in_a_hundred_for_another_at_most() {
    // Numbers in a row and far apart must both be spread well by the hash.
    for step in [1, 64, 1 << 20, 0x1234_5678_9abc] {
        let keys = |range: std::ops::Range<i64>| ints(range.map(|at| at.wrapping_mul(step)));
        let mut bloom = Bloom::new(200_000);
        bloom.add(&keys(0..100_000)).unwrap();
        let found = kept(&keys(0..100_000), LookupTable::Bloom(bloom.clone()), false);
        assert_eq!(found.len(), 100_000);
        let strangers = kept(&keys(100_000..200_000), LookupTable::Bloom(bloom), false);
        assert!(strangers.len() < 1_000, "{} of 100,000 in steps of {step}", strangers.len());
    }
}

#[test]
fn hostile_lookups_are_refused_before_anything_is_made_of_them() {
    let refused = |kind, bytes: Vec<u8>| LookupTable::from_bytes(kind, bytes.into(), 1).unwrap_err();
    for bytes in [0, 1, 7, 12, (16 << 20) + 8] {
        refused(JoinLookup::Bloom, vec![0; bytes]);
    }
    let whole = pack(&ints(0..100));
    // The bytes behind the last value are padding.
    for end in 1..64 + 100 * 8 {
        refused(JoinLookup::Keys, whole[..end].to_vec());
    }
    // Batches without columns, with other columns than the first, with too many keys, and too many batches.
    let options = RecordBatchOptions::new().with_row_count(Some(1 << 20));
    refused(
        JoinLookup::Keys,
        pack(&RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap()),
    );
    let texts = batch(vec![Arc::new(StringArray::from(vec!["x"]))]);
    refused(JoinLookup::Keys, [whole.clone(), pack(&texts)].concat());
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true; (1 << 22) + 1]));
    refused(JoinLookup::Keys, pack(&batch(vec![flags])));
    refused(JoinLookup::Keys, pack(&ints([1])).repeat(4_097));
    let wide = batch(vec![Arc::new(Int8Array::from(vec![1])) as ArrayRef; 33]);
    refused(JoinLookup::Keys, pack(&wide));
    // Invalid UTF-8.
    let mut text = pack(&texts);
    let at = text.iter().position(|byte| *byte == b'x').unwrap();
    text[at] = 0xff;
    refused(JoinLookup::Keys, text);
    // No bytes are an empty set of keys, of any type.
    let none = LookupTable::from_bytes(JoinLookup::Keys, Buffer::from(Vec::<u8>::new()), 1).unwrap();
    assert_eq!(kept(&ints(0..3), none, true), [0, 1, 2]);
}

/// Makes rows of booleans that are the bits of the row number.
fn flags(columns: u32, rows: usize) -> RecordBatch {
    let bits = |bit: u32| -> ArrayRef {
        Arc::new(BooleanArray::from_iter((0..rows).map(|row| Some(row >> bit & 1 == 1))))
    };
    batch((0..columns).map(bits).collect())
}

#[test]
fn keys_take_the_memory_that_was_asked_for_and_narrow_ones_no_more_than_their_width() {
    let rows = 200_000;
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{row}"))));
    let twice = Int64Array::from_iter_values((0..rows as i64).map(|row| row / 1_000));
    let apart = Int64Array::from_iter_values((0..rows as i64).map(|row| row * 1_000_003));
    let cases = [
        // Each row takes a byte per boolean and an end of 4 bytes, and there are two slots of 8 bytes per row,
        // rounded up to a power of two.
        (flags(24, rows), rows * (24 + 4) + (8 << 19)),
        (batch(vec![texts]), rows * (4 + 4 + 6) + (8 << 19)),
        (batch(vec![Arc::new(twice.clone()), Arc::new(twice)]), 200 * (16 + 4) + (8 << 9)),
        (ints(0..rows as i64), rows / 8),
        (batch(vec![Arc::new(apart)]), 32 << 17),
    ];
    for (keys, held_at_most) in cases {
        let bytes = Buffer::from(pack(&keys));
        let mut asked = 0;
        let room = |bytes| {
            asked = bytes;
            Ok(())
        };
        let made = LookupTable::from_bytes_within(JoinLookup::Keys, bytes.clone(), 1, room).unwrap();
        let held = made.held_bytes();
        assert!(held <= held_at_most + 1_024, "{held} bytes, and {held_at_most} were expected");
        assert!(asked >= (bytes.len() + held) as u64, "{asked} bytes were asked for, and {held} are held");
        assert_eq!(kept(&keys.slice(100_000, 50), made, false).len(), 50);
        // A caller without room is asked before the table is made.
        let full = |found| match found < asked {
            true => Ok(()),
            false => Err(WireError::TooMany { what: "bytes", found, max: asked - 1 }),
        };
        let refused = LookupTable::from_bytes_within(JoinLookup::Keys, bytes, 1, full).unwrap_err();
        assert_eq!(refused, WireError::TooMany { what: "bytes", found: asked, max: asked - 1 });
    }
    let filter = Buffer::from(vec![1u8; 1 << 20]);
    let none = |found| Err(WireError::TooMany { what: "bytes", found, max: 0 });
    let refused = LookupTable::from_bytes_within(JoinLookup::Bloom, filter, 1, none).unwrap_err();
    assert_eq!(refused, WireError::TooMany { what: "bytes", found: 2 << 20, max: 0 });
}

#[test]
fn keys_of_more_values_than_are_permitted_are_refused() {
    let refused = |keys: RecordBatch| {
        LookupTable::from_bytes(JoinLookup::Keys, pack(&keys).into(), 1).err().map(|why| why.to_string())
    };
    let many = "too many values of a lookup's keys: 33554464, at most 33554432";
    assert_eq!(refused(flags(32, (1 << 20) + 1)).as_deref(), Some(many));
    // Batches without rows, with more columns than keys may have.
    let none = batch(vec![Arc::new(Int8Array::from(Vec::<i8>::new())) as ArrayRef; 33]);
    assert!(refused(none).is_some());
}

#[test]
fn numbers_of_every_width_are_told_apart_beside_other_keys() {
    let near = |value: f32| f32::from_bits(value.to_bits() + 1);
    let floats =
        vec![0.5, near(0.5), -0.5, -near(0.5), f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::MIN];
    let wide = vec![0.5, 0.5 + f64::EPSILON, -0.5, -0.5 - f64::EPSILON, f64::MAX, f64::INFINITY, 3.0, -3.0];
    let columns: [ArrayRef; 9] = [
        Arc::new(Int8Array::from(vec![0, 1, -1, i8::MIN, i8::MAX, 2, -2, 3])),
        Arc::new(Int16Array::from(vec![0, 256, -256, i16::MIN, i16::MAX, 1, -1, 255])),
        Arc::new(UInt32Array::from(vec![0, 1 << 16, 1 << 24, u32::MAX, 1 << 31, 1, 2, 3])),
        Arc::new(Int64Array::from(vec![0, 1 << 32, 1 << 40, i64::MIN, i64::MAX, 1 << 56, -1, 1])),
        Arc::new(UInt64Array::from(vec![0, 1 << 32, 1 << 40, 1 << 63, u64::MAX, 1 << 56, 1, 2])),
        Arc::new(Date32Array::from(vec![0, 1 << 16, -1, i32::MIN, i32::MAX, 1, 2, 3])),
        Arc::new(TimestampSecondArray::from(vec![0, 1 << 32, 1 << 40, -1, i64::MIN, i64::MAX, 1, 2])),
        Arc::new(Float32Array::from(floats)),
        Arc::new(Float64Array::from(wide)),
    ];
    for column in columns {
        let flag: ArrayRef = Arc::new(BooleanArray::from(vec![true; 8]));
        let all = batch(vec![column, flag]);
        for row in 0..8 {
            let key = pack(&all.slice(row, 1));
            let lookup = LookupTable::from_bytes(JoinLookup::Keys, key.into(), 1).unwrap();
            assert_eq!(kept(&all, lookup, false), [row as i64], "{:?}", all.column(0));
        }
    }
    // Both zeros are one key, NaN of the same bits is one key, and a NULL among many rows is none.
    let one = Float32Array::from(vec![-0.0, f32::NAN, -f32::NAN]);
    let other = Float32Array::from(vec![0.0, f32::NAN, f32::from_bits(0xffc0_0001)]);
    let pair = |of: Float32Array| batch(vec![Arc::new(of.clone()), Arc::new(of)]);
    let lookup = LookupTable::from_bytes(JoinLookup::Keys, pack(&pair(one)).into(), 1).unwrap();
    assert_eq!(kept(&pair(other), lookup, false), [0, 1]);
    let numbers = || Int16Array::from_iter((0..20_000).map(|row| (row % 3 > 0).then_some(row)));
    let many = batch(vec![Arc::new(numbers()), Arc::new(numbers())]);
    let lookup = LookupTable::from_bytes(JoinLookup::Keys, pack(&many).into(), 1).unwrap();
    let expected: Vec<i64> = (0..20_000).filter(|row| row % 3 > 0).collect();
    assert_eq!(kept(&many, lookup, false), expected);
}

#[test]
fn runs_look_up_no_more_bytes_than_their_bounds_permit() {
    let run = |text: usize, keys: Vec<u16>, bounds: Bounds| {
        let count = keys.len();
        let join = Operator::SemiJoin { keys, lookup: JoinLookup::Keys, number: 0, is_anti: false };
        let prepared =
            Prepared::new(Arc::new(Program::check(vec![Type::Text], vec![join]).unwrap())).unwrap();
        let row: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(text)]));
        let keys = Keys::new(vec![Type::Text; count], &[batch(vec![Arc::clone(&row); count])], 1).unwrap();
        let lookups = vec![Arc::new(LookupTable::Keys(keys))];
        let mut run = Run::new(Arc::new(prepared), lookups, bounds).unwrap();
        run.push(&batch(vec![row]), 0).map(|left| left.iter().map(RecordBatch::num_rows).sum::<usize>())
    };
    let bytes = |batch_bytes_max| Bounds { batch_bytes_max, ..Bounds::default() };
    assert_eq!(run(60_000, vec![0; 16], bytes(1 << 20)), Ok(1), "one column may be several keys");
    let stopped = run(70_000, vec![0; 16], bytes(1 << 20));
    assert_eq!(stopped, Err(Stopped::TooLarge { what: "bytes of keys", found: 1_050_060, max: 1 << 20 }));
    let steps = |steps_max| Bounds { steps_max, ..Bounds::default() };
    assert_eq!(run(80_000, vec![0, 0], steps(20_002)), Ok(1));
    let stopped = run(80_000, vec![0, 0], steps(20_001));
    assert_eq!(stopped, Err(Stopped::TooLarge { what: "steps", found: 20_002, max: 20_001 }));
}

#[test]
fn runs_refuse_lookups_that_are_missing_or_others() {
    let join = |lookup, number| Operator::SemiJoin { keys: vec![0], lookup, number, is_anti: false };
    let bloom = || Arc::new(LookupTable::Bloom(Bloom::new(32)));
    let keys = |of: Type| {
        let none = RecordBatch::new_empty(Arc::new(Schema::new(vec![arrow_schema::Field::new(
            "",
            data_type(of),
            true,
        )])));
        Arc::new(LookupTable::Keys(Keys::new(vec![of], &[none], 1).unwrap()))
    };
    let run = |lookup, number, lookups: Lookups| {
        let filter = Operator::Filter(vec![farpool_operators::Instruction::Column(1)]);
        let program =
            Program::check(vec![Type::Int64, Type::Boolean], vec![filter, join(lookup, number)]).unwrap();
        Run::new(Arc::new(Prepared::new(Arc::new(program)).unwrap()), lookups, Bounds::default())
    };
    assert!(run(JoinLookup::Keys, 0, vec![keys(Type::Int64)]).is_ok());
    assert!(run(JoinLookup::Bloom, 1, vec![keys(Type::Int64), bloom()]).is_ok());
    let wrong = [
        (JoinLookup::Keys, 0, vec![]),
        (JoinLookup::Keys, 1, vec![keys(Type::Int64)]),
        (JoinLookup::Keys, 0, vec![bloom()]),
        (JoinLookup::Bloom, 0, vec![keys(Type::Int64)]),
        (JoinLookup::Keys, 0, vec![keys(Type::Int32)]),
        (JoinLookup::Keys, 255, vec![]),
    ];
    for (lookup, number, lookups) in wrong {
        assert_eq!(run(lookup, number, lookups).err().map(|flaw| flaw.operator), Some(1));
    }
}

/// Converts keys between types: a key that has no equal value in the other type is left out.
#[test]
fn keys_of_other_types_are_the_same_values_or_none() {
    let set = |column: ArrayRef, to: Type| {
        let other = batch(vec![column]);
        KeySet::new(&[(0, to)], &other.schema(), &[other])
    };
    let count = |column: ArrayRef, to| set(column, to).unwrap().count();
    let wide = || Arc::new(Int64Array::from(vec![Some(1), Some(300), Some(-1), None, Some(1 << 40)]));
    assert_eq!(count(wide(), Type::Int8), 2);
    assert_eq!(count(wide(), Type::UInt64), 3);
    assert_eq!(count(wide(), Type::Decimal { precision: 4, scale: 1 }), 3);
    let decimals =
        || Arc::new(Decimal128Array::from(vec![100, 150, 200]).with_precision_and_scale(9, 2).unwrap());
    assert_eq!(count(decimals(), Type::Int16), 2);
    assert_eq!(count(decimals(), Type::Decimal { precision: 3, scale: 1 }), 3);
    assert_eq!(count(decimals(), Type::Decimal { precision: 1, scale: 1 }), 0);
    let moments = || Arc::new(TimestampMillisecondArray::from(vec![86_400_000, 86_400_001, -1]));
    assert_eq!(count(moments(), Type::Date), 1);
    assert_eq!(count(moments(), Type::Timestamp { unit: TimeUnit::Second, is_zoned: false }), 1);
    assert_eq!(count(moments(), Type::Timestamp { unit: TimeUnit::Nanosecond, is_zoned: false }), 3);
    let floats = || Arc::new(Float64Array::from(vec![0.1, 0.5, f64::NAN, -f64::NAN, 0.0, -0.0]));
    assert_eq!(count(floats(), Type::Float32), 4);
    assert_eq!(count(Arc::new(LargeStringArray::from(vec!["a", "b", "a"])), Type::Text), 2);
    assert_eq!(count(Arc::new(StringViewArray::from(vec!["a", "b", "a"])), Type::Text), 2);
    assert_eq!(count(Arc::new(BinaryArray::from(vec![&b"ab"[..], b"abc"])), Type::FixedBytes(2)), 1);
    assert_eq!(count(Arc::new(NullArray::new(3)), Type::Text), 0);
    let refused = [
        (wide() as ArrayRef, Type::Text),
        (wide(), Type::Float64),
        (wide(), Type::Boolean),
        (moments(), Type::Timestamp { unit: TimeUnit::Second, is_zoned: true }),
        (floats(), Type::Int64),
        (Arc::new(StringArray::from(vec!["1"])), Type::Bytes),
    ];
    for (column, to) in refused {
        let (what, why) = (column.data_type().clone(), set(column.clone(), to).unwrap_err());
        assert!(why.contains("cannot be compared"), "{what} as {to}: {why}");
        // The types are refused even without rows.
        set(new_empty_array(column.data_type()), to).unwrap_err();
    }
}

fn table() -> (Vec<(String, Type)>, RecordBatch) {
    let numbers: ArrayRef =
        Arc::new(Int64Array::from_iter((0..1_000).map(|row| (row % 7 > 0).then_some(row % 100))));
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    (vec![("key".to_owned(), Type::Int64), ("row".to_owned(), Type::Int64)], batch(vec![numbers, rows]))
}

fn on(mine: &str, theirs: &str) -> Vec<(String, String)> {
    vec![(mine.to_owned(), theirs.to_owned())]
}

/// Computes the answer to a plan: runs the program beside the data over two shares of the table, then the one that
/// finishes.
fn answer(plan: &Plan) -> Vec<i64> {
    let (_, rows) = table();
    let exact = |number: usize| plan.key_sets[number].table(3).unwrap();
    let of_near = |number: usize| {
        let is_filter = |operator: &Operator| matches!(operator, Operator::SemiJoin { lookup: JoinLookup::Bloom, number: of, .. } if usize::from(*of) == number);
        match plan.near.operators().iter().any(is_filter) {
            true => Arc::new(LookupTable::Bloom(plan.key_sets[number].filter().unwrap())),
            false => exact(number),
        }
    };
    let run = |program: &Program, lookups: Lookups, batches: &[RecordBatch]| {
        let mut merge = Merge::new(program, 5).unwrap();
        let prepared = Arc::new(Prepared::new(Arc::new(program.clone())).unwrap());
        let mut run = Run::new(prepared, lookups, Bounds::default()).unwrap();
        for (at, batch) in batches.iter().enumerate() {
            run.push(batch, at as u64 * 500).unwrap().iter().for_each(|batch| merge.push(batch).unwrap());
        }
        run.finish().unwrap().iter().for_each(|batch| merge.push(batch).unwrap());
        merge.finish().unwrap()
    };
    let numbers = 0..plan.key_sets.len();
    let near =
        run(&plan.near, numbers.clone().map(of_near).collect(), &[rows.slice(0, 500), rows.slice(500, 500)]);
    let all = run(&plan.finish, numbers.map(exact).collect(), &near);
    let values = |batch: &RecordBatch| {
        batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
    };
    all.iter().flat_map(values).collect()
}

#[test]
fn queries_answer_the_same_by_keys_and_by_a_filter_with_keys_behind_it() {
    let other = batch(vec![Arc::new(Int32Array::from(vec![Some(3), Some(50), None, Some(99), Some(1_000)]))]);
    let query = || Query::over(table().0);
    let row = || [("row".to_owned(), col("row")), ("again".to_owned(), col("key"))];
    let narrowed = query()
        .filter(col("row").lt(lit(700)))
        .semi_join(on("key", "0"), &other.schema(), std::slice::from_ref(&other))
        .select(row())
        .filter(col("again").gt(lit(3)));
    let plan = narrowed.clone().plan().unwrap();
    let expected: Vec<i64> = (0..700).filter(|row| row % 7 > 0 && matches!(row % 100, 50 | 99)).collect();
    assert_eq!(answer(&plan), expected);
    let by_filter = plan.by_filter(0).expect("rows with their keys");
    assert_ne!(by_filter.near, plan.near);
    assert_eq!(answer(&by_filter), expected);
    assert_eq!(by_filter.columns, plan.columns);
    // A filter needs a second lookup, by exact keys in the merged rows. There is none if the output lacks the keys,
    // behind a grouping, for an anti-join, or with a limit.
    let none = [
        query().semi_join(on("key", "0"), &other.schema(), &[]).select([("row".to_owned(), col("row"))]),
        query().semi_join(on("key", "0"), &other.schema(), &[]).distinct(),
        query().semi_join(on("key", "0"), &other.schema(), &[]).limit(3),
        query().anti_join(on("key", "0"), &other.schema(), &[]),
        query().distinct().semi_join(on("key", "0"), &other.schema(), &[]),
    ];
    for query in none {
        assert_eq!(query.plan().unwrap().by_filter(0), None);
    }
    // A semi-join behind a grouping looks up the merged rows.
    let grouped = query().group_by([("key".to_owned(), col("key"))], []).semi_join(
        on("key", "0"),
        &other.schema(),
        std::slice::from_ref(&other),
    );
    assert_eq!(answer(&grouped.plan().unwrap()), [3, 50, 99]);
    let without = query().anti_join(on("key", "0"), &other.schema(), std::slice::from_ref(&other));
    let kept = without.select([("row".to_owned(), col("row"))]).plan().unwrap();
    let expected: Vec<i64> =
        (0..1_000).filter(|row| row % 7 == 0 || !matches!(row % 100, 3 | 50 | 99)).collect();
    assert_eq!(answer(&kept), expected);
}

#[test]
fn queries_say_which_keys_cannot_be_joined_by() {
    let other = batch(vec![Arc::new(StringArray::from(vec!["3"]))]);
    let error = |on: Vec<(String, String)>| {
        let query = Query::over(table().0).semi_join(on, &other.schema(), std::slice::from_ref(&other));
        query.plan().unwrap_err().to_string()
    };
    assert_eq!(
        error(on("key", "0")),
        "semi-join: 0: keys of Utf8 cannot be compared with int64: cast one of them"
    );
    assert_eq!(error(on("none", "0")), "semi-join: no column \"none\"; there are key, row");
    assert_eq!(error(on("key", "1")), "semi-join: the other table has no column \"1\"; there are 0");
    assert_eq!(error(vec![]), "semi-join: 0 keys: 1 to 32 are permitted");
}

#[test]
fn packed_keys_may_come_in_several_batches() {
    let mut packer = BatchPacker::new(4_096);
    packer.push(0, &ints(0..10_000)).unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = packer.pop() {
        bytes.extend(chunk.into_vec());
    }
    let lookup = LookupTable::from_bytes(JoinLookup::Keys, bytes.into(), 1).unwrap();
    assert_eq!(kept(&ints([-1, 0, 9_999, 10_000]), lookup, false), [1, 2]);
    assert_eq!(DataType::Int64, data_type(Type::Int64));
}
