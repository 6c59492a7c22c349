//! Random tables and programs, and the conversion between plain values and Arrow columns.

use crate::oracle::Row;
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, StringBuilder, StringDictionaryBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, TimeUnit as ArrowUnit};
use farpool_operators::run::data_type;
use farpool_operators::{
    Aggregate, AggregateFunction, Arithmetic, Binary, Comparison, Expression, Instruction, JoinLookup,
    Operator, Program, Scalar, SortKey, TimeUnit, Type, Value,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;
use std::sync::Arc;

const TYPES: [Type; 19] = [
    Type::Boolean,
    Type::Int8,
    Type::Int16,
    Type::Int32,
    Type::Int64,
    Type::UInt8,
    Type::UInt16,
    Type::UInt32,
    Type::UInt64,
    Type::Float32,
    Type::Float64,
    Type::Decimal { precision: 38, scale: 2 },
    Type::Decimal { precision: 9, scale: 0 },
    Type::Date,
    Type::Timestamp { unit: TimeUnit::Microsecond, is_zoned: true },
    Type::Timestamp { unit: TimeUnit::Second, is_zoned: false },
    Type::Text,
    Type::Bytes,
    Type::FixedBytes(3),
];

/// Makes a batch of these rows. Texts are dictionaries if `is_dictionary` is true.
pub fn batch(types: &[Type], rows: &[Row], is_dictionary: bool) -> RecordBatch {
    let column = |(index, of): (usize, &Type)| {
        let values: Vec<Option<Value>> = rows.iter().map(|row| row[index].clone()).collect();
        column(*of, &values, is_dictionary)
    };
    let columns: Vec<ArrayRef> = types.iter().enumerate().map(column).collect();
    let field = |(index, column): (usize, &ArrayRef)| {
        Field::new(format!("c{index}"), column.data_type().clone(), true)
    };
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).unwrap()
}

fn primitive<T: ArrowPrimitiveType>(
    of: Type,
    values: &[Option<Value>],
    map: impl Fn(&Value) -> T::Native,
) -> ArrayRef {
    let array: PrimitiveArray<T> = values.iter().map(|value| value.as_ref().map(&map)).collect();
    Arc::new(array.with_data_type(data_type(of)))
}

fn integer(value: &Value) -> i128 {
    let Value::Integer(value) = value else { panic!("{value:?} is an integer") };
    *value
}

fn bits(value: &Value) -> u64 {
    let Value::Float(bits) = value else { panic!("{value:?} is a float") };
    *bits
}

fn bytes(value: &Value) -> &[u8] {
    let Value::Bytes(bytes) = value else { panic!("{value:?} is bytes") };
    bytes
}

fn column(of: Type, values: &[Option<Value>], is_dictionary: bool) -> ArrayRef {
    match of {
        Type::Boolean => {
            let array: BooleanArray = values
                .iter()
                .map(|value| value.as_ref().map(|value| *value == Value::Boolean(true)))
                .collect();
            Arc::new(array)
        }
        Type::Int8 => primitive::<Int8Type>(of, values, |value| integer(value) as i8),
        Type::Int16 => primitive::<Int16Type>(of, values, |value| integer(value) as i16),
        Type::Int32 => primitive::<Int32Type>(of, values, |value| integer(value) as i32),
        Type::Int64 => primitive::<Int64Type>(of, values, |value| integer(value) as i64),
        Type::UInt8 => primitive::<UInt8Type>(of, values, |value| integer(value) as u8),
        Type::UInt16 => primitive::<UInt16Type>(of, values, |value| integer(value) as u16),
        Type::UInt32 => primitive::<UInt32Type>(of, values, |value| integer(value) as u32),
        Type::UInt64 => primitive::<UInt64Type>(of, values, |value| integer(value) as u64),
        Type::Float32 => primitive::<Float32Type>(of, values, |value| f32::from_bits(bits(value) as u32)),
        Type::Float64 => primitive::<Float64Type>(of, values, |value| f64::from_bits(bits(value))),
        Type::Decimal { .. } => primitive::<Decimal128Type>(of, values, integer),
        Type::Date => primitive::<Date32Type>(of, values, |value| integer(value) as i32),
        Type::Timestamp { unit: TimeUnit::Second, .. } => {
            primitive::<TimestampSecondType>(of, values, |value| integer(value) as i64)
        }
        Type::Timestamp { .. } => {
            primitive::<TimestampMicrosecondType>(of, values, |value| integer(value) as i64)
        }
        Type::Text if is_dictionary => {
            let mut builder = StringDictionaryBuilder::<UInt16Type>::new();
            for value in values {
                builder.append_option(value.as_ref().map(|value| std::str::from_utf8(bytes(value)).unwrap()));
            }
            Arc::new(builder.finish())
        }
        Type::Text => {
            let mut builder = StringBuilder::new();
            for value in values {
                builder.append_option(value.as_ref().map(|value| std::str::from_utf8(bytes(value)).unwrap()));
            }
            Arc::new(builder.finish())
        }
        Type::Bytes => {
            let mut builder = BinaryBuilder::new();
            values.iter().for_each(|value| builder.append_option(value.as_ref().map(bytes)));
            Arc::new(builder.finish())
        }
        Type::FixedBytes(width) => {
            let mut builder = FixedSizeBinaryBuilder::new(width as i32);
            for value in values {
                match value {
                    Some(value) => builder.append_value(bytes(value)).unwrap(),
                    None => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }
    }
}

/// Returns the rows of a batch as plain values, after checking the types of its columns.
pub fn rows(batch: &RecordBatch, types: &[Type]) -> Vec<Row> {
    for (column, of) in batch.columns().iter().zip(types) {
        assert_eq!(*column.data_type(), data_type(*of));
    }
    let row = |row: usize| batch.columns().iter().map(|column| value(column, row)).collect();
    (0..batch.num_rows()).map(row).collect()
}

fn value(column: &ArrayRef, row: usize) -> Option<Value> {
    if column.is_null(row) {
        return None;
    }
    fn whole<T: ArrowPrimitiveType>(column: &ArrayRef, row: usize) -> Value
    where
        i128: TryFrom<T::Native>,
    {
        Value::Integer(i128::try_from(column.as_primitive::<T>().value(row)).ok().unwrap())
    }
    Some(match column.data_type() {
        DataType::Boolean => Value::Boolean(column.as_boolean().value(row)),
        DataType::Int8 => whole::<Int8Type>(column, row),
        DataType::Int16 => whole::<Int16Type>(column, row),
        DataType::Int32 => whole::<Int32Type>(column, row),
        DataType::Int64 => whole::<Int64Type>(column, row),
        DataType::UInt8 => whole::<UInt8Type>(column, row),
        DataType::UInt16 => whole::<UInt16Type>(column, row),
        DataType::UInt32 => whole::<UInt32Type>(column, row),
        DataType::UInt64 => whole::<UInt64Type>(column, row),
        DataType::Decimal128(..) => whole::<Decimal128Type>(column, row),
        DataType::Date32 => whole::<Date32Type>(column, row),
        DataType::Timestamp(ArrowUnit::Second, _) => whole::<TimestampSecondType>(column, row),
        DataType::Timestamp(..) => whole::<TimestampMicrosecondType>(column, row),
        DataType::Float32 => {
            Value::Float(u64::from(column.as_primitive::<Float32Type>().value(row).to_bits()))
        }
        DataType::Float64 => Value::Float(column.as_primitive::<Float64Type>().value(row).to_bits()),
        DataType::Utf8 => Value::Bytes(column.as_string::<i32>().value(row).as_bytes().to_vec()),
        DataType::Binary => Value::Bytes(column.as_binary::<i32>().value(row).to_vec()),
        _ => Value::Bytes(column.as_fixed_size_binary().value(row).to_vec()),
    })
}

/// Returns the least and the greatest value of a type of whole numbers.
fn range(of: Type) -> (i128, i128) {
    match of {
        Type::Int8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        Type::Int16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        Type::Int32 | Type::Date => (i128::from(i32::MIN), i128::from(i32::MAX)),
        Type::UInt8 => (0, i128::from(u8::MAX)),
        Type::UInt16 => (0, i128::from(u16::MAX)),
        Type::UInt32 => (0, i128::from(u32::MAX)),
        Type::UInt64 => (0, i128::from(u64::MAX)),
        Type::Decimal { precision, .. } => {
            (1 - 10i128.pow(precision.into()), 10i128.pow(precision.into()) - 1)
        }
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    }
}

/// NaN of other bits than `f32::NAN`.
const OTHER_NAN: f32 = f32::from_bits(0x7fc0_0001);

/// Generates few different values, so that equal ones meet in groups and comparisons. The extremes are among them.
fn values(of: Type) -> BoxedStrategy<Option<Value>> {
    let some: BoxedStrategy<Value> = match of {
        Type::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        Type::Float32 => {
            select(vec![0.0f32, -0.0, 1.5, -2.25, 8.0, f32::INFINITY, f32::NAN, -f32::NAN, OTHER_NAN, 0.25])
                .prop_map(|value| Value::Float(u64::from(value.to_bits())))
                .boxed()
        }
        Type::Float64 => select(vec![
            0.0f64,
            -0.0,
            1.5,
            -2.25,
            1e6,
            f64::NEG_INFINITY,
            f64::NAN,
            -f64::NAN,
            f64::from(OTHER_NAN),
        ])
        .prop_map(|value| Value::Float(value.to_bits()))
        .boxed(),
        Type::Text => select(vec!["", "a", "A", "ab", "a_b", "a%b", "b\na", "äb", "abab", "\u{1f600}"])
            .prop_map(|text| Value::Bytes(text.as_bytes().to_vec()))
            .boxed(),
        Type::Bytes => {
            select(vec![vec![], vec![0], vec![0, 0], vec![255], vec![1, 2, 3]]).prop_map(Value::Bytes).boxed()
        }
        Type::FixedBytes(_) => {
            select(vec![vec![0; 3], vec![0, 0, 1], vec![255; 3]]).prop_map(Value::Bytes).boxed()
        }
        _ => {
            let (least, most) = range(of);
            let small = (-3i128..6).prop_map(move |value| Value::Integer(value.clamp(least, most)));
            prop_oneof![8 => small, 1 => select(vec![least, most]).prop_map(Value::Integer)].boxed()
        }
    };
    prop_oneof![1 => Just(None), 5 => some.prop_map(Some)].boxed()
}

fn scalars(of: Type) -> impl Strategy<Value = Scalar> {
    values(of).prop_map(move |value| Scalar { of, value })
}

/// Generates an expression of type `of` over columns of these types.
fn expressions(columns: Vec<Type>, of: Type, depth: u32) -> BoxedStrategy<Vec<Instruction>> {
    let literal = scalars(of).prop_map(|scalar| vec![Instruction::Literal(scalar)]).boxed();
    let fitting: Vec<u16> =
        (0..columns.len()).filter(|column| columns[*column] == of).map(|column| column as u16).collect();
    let leaf = match fitting.is_empty() {
        true => literal,
        false => {
            let column = select(fitting).prop_map(|column| vec![Instruction::Column(column)]);
            prop_oneof![4 => column, 1 => literal].boxed()
        }
    };
    if depth == 0 {
        return leaf;
    }
    let inner = |of| expressions(columns.clone(), of, depth - 1);
    let joined = |(mut left, right, last): (Vec<Instruction>, Vec<Instruction>, Instruction)| {
        left.extend(right);
        left.push(last);
        left
    };
    match of {
        Type::Boolean => {
            let columns = columns.clone();
            let compared = select(columns.clone()).prop_flat_map(move |of| {
                let comparison = select(vec![
                    Comparison::Equal,
                    Comparison::NotEqual,
                    Comparison::Less,
                    Comparison::LessOrEqual,
                    Comparison::Greater,
                    Comparison::GreaterOrEqual,
                ]);
                let one = || expressions(columns.clone(), of, depth - 1);
                let compare = (one(), one(), comparison.prop_map(Instruction::Compare)).prop_map(joined);
                let list = (one(), prop::collection::vec(scalars(of), 0..5)).prop_map(|(mut one, list)| {
                    one.push(Instruction::InList(list));
                    one
                });
                let is_null = one().prop_map(|mut one| {
                    one.push(Instruction::IsNull);
                    one
                });
                prop_oneof![4 => compare, 2 => list, 1 => is_null]
            });
            let both =
                (inner(of), inner(of), select(vec![Instruction::And, Instruction::Or])).prop_map(joined);
            let not = inner(of).prop_map(|mut one| {
                one.push(Instruction::Not);
                one
            });
            let like =
                select(vec!["%", "", "a%", "%b", "%a%", "a_b", "a!_b", "a!%b", "_", "%_b%", "A%", "%b%a"]);
            let like = (like, any::<bool>()).prop_map(|(pattern, ignores_case)| Instruction::Like {
                pattern: pattern.to_owned(),
                escape: Some('!'),
                ignores_case,
            });
            let matches = select(vec!["a", "ab", ""])
                .prop_map(|text| Instruction::Matches { pattern: text.to_owned() });
            let pattern = (inner(Type::Text), prop_oneof![like, matches]).prop_map(|(mut one, last)| {
                one.push(last);
                one
            });
            prop_oneof![1 => leaf, 4 => compared, 2 => both, 1 => not, 2 => pattern].boxed()
        }
        Type::Decimal { precision: 38, scale } => {
            let inner_of = Type::Decimal { precision: 38, scale };
            let sum = (inner(inner_of), inner(inner_of), select(vec![Binary::Add, Binary::Subtract]));
            let sum = sum
                .prop_map(|(left, right, binary)| (left, right, Instruction::Binary(binary)))
                .prop_map(joined);
            let from = select(vec![Type::Int32, Type::Decimal { precision: 9, scale: 0 }, Type::Float64]);
            let columns = columns.clone();
            let cast = from.prop_flat_map(move |from| expressions(columns.clone(), from, 0)).prop_map(
                move |mut one| {
                    one.push(Instruction::Cast(of));
                    one
                },
            );
            prop_oneof![2 => leaf, 2 => sum, 1 => cast].boxed()
        }
        _ if matches!(of.arithmetic(), Some(Arithmetic::Integer | Arithmetic::Float)) => {
            let binary = select(vec![
                Binary::Add,
                Binary::Subtract,
                Binary::Multiply,
                Binary::Divide,
                Binary::Remainder,
            ]);
            let two = (inner(of), inner(of), binary.prop_map(Instruction::Binary)).prop_map(joined);
            let is_whole = of.arithmetic() == Some(Arithmetic::Integer);
            if is_whole && of.is_signed() {
                let negated = inner(of).prop_map(|mut one| {
                    one.push(Instruction::Negate);
                    one
                });
                let from = select(vec![
                    Type::Int8,
                    Type::UInt64,
                    Type::Decimal { precision: 38, scale: 2 },
                    Type::Float64,
                    Type::Int64,
                ]);
                let columns = columns.clone();
                let cast = from.prop_flat_map(move |from| expressions(columns.clone(), from, 0)).prop_map(
                    move |mut one| {
                        one.push(Instruction::Cast(of));
                        one
                    },
                );
                prop_oneof![3 => leaf, 3 => two, 1 => negated, 1 => cast].boxed()
            } else {
                prop_oneof![1 => leaf, 1 => two].boxed()
            }
        }
        _ => leaf,
    }
}

/// Removes all but the first key of each column.
fn once<K>(keys: &mut Vec<K>, column: impl Fn(&K) -> u16) {
    let mut seen = BTreeSet::new();
    keys.retain(|key| seen.insert(column(key)));
}

/// Generates the last operator of a program.
fn ends(columns: Vec<Type>) -> impl Strategy<Value = Vec<Operator>> {
    let count = columns.len() as u16;
    let aggregates = {
        let columns = columns.clone();
        let one = (0..count, 0..5usize).prop_map(move |(column, function)| {
            let is_number = columns[usize::from(column)].arithmetic().is_some();
            match function {
                0 => Aggregate { function: AggregateFunction::Count, column: None },
                1 => Aggregate { function: AggregateFunction::Count, column: Some(column) },
                2 if is_number => Aggregate { function: AggregateFunction::Sum, column: Some(column) },
                2 | 3 => Aggregate { function: AggregateFunction::Min, column: Some(column) },
                _ => Aggregate { function: AggregateFunction::Max, column: Some(column) },
            }
        });
        prop::collection::vec(one, 1..5)
    };
    let group = (prop::collection::vec(0..count, 0..4), aggregates, select(vec![1u32, 3, 1_000]));
    let group = group.prop_map(|(mut keys, aggregates, groups)| {
        once(&mut keys, |key| *key);
        vec![Operator::Group { keys, aggregates, groups }]
    });
    let key = (0..count, any::<bool>(), any::<bool>())
        .prop_map(|(column, is_descending, nulls_first)| SortKey { column, is_descending, nulls_first });
    let top = (prop::collection::vec(key, 1..3), 1..30u32).prop_map(|(mut keys, rows)| {
        once(&mut keys, |key| key.column);
        vec![Operator::Top { keys, rows }]
    });
    let limit = (0..20u64).prop_map(|rows| vec![Operator::Limit(rows)]);
    prop_oneof![5 => group, 3 => top, 1 => limit, 2 => Just(Vec::new())]
}

/// Generates a program, a table for it, and the keys of a semi-join.
pub fn cases() -> impl Strategy<Value = (Program, Vec<Row>, Vec<Row>)> {
    prop::collection::vec(select(TYPES.to_vec()), 1..5).prop_flat_map(|types| {
        let row = |types: &[Type]| types.iter().map(|of| values(*of)).collect::<Vec<_>>();
        let table = prop::collection::vec(row(&types), 0..60);
        let keys = prop::collection::vec(row(&types[..1]), 0..4);
        let filter =
            prop::option::of(expressions(types.clone(), Type::Boolean, 3).prop_map(Operator::Filter));
        let join = prop::option::weighted(
            0.2,
            any::<bool>().prop_map(|is_anti| Operator::SemiJoin {
                keys: vec![0],
                lookup: JoinLookup::Keys,
                number: 0,
                is_anti,
            }),
        );
        let columns = types.clone();
        let project = prop::option::weighted(
            0.5,
            prop::collection::vec(select(types.clone()), 1..4).prop_flat_map(move |wanted| {
                wanted.iter().map(|of| expressions(columns.clone(), *of, 2)).collect::<Vec<_>>()
            }),
        );
        (Just(types), table, keys, filter, join, project).prop_flat_map(
            |(types, table, keys, filter, join, project)| {
                let columns = match &project {
                    Some(list) => {
                        let of =
                            |one: &Vec<Instruction>| Expression::check(one.clone(), &types).unwrap().of();
                        list.iter().map(of).collect()
                    }
                    None => types.clone(),
                };
                let start: Vec<Operator> =
                    join.into_iter().chain(filter).chain(project.map(Operator::Project)).collect();
                ends(columns).prop_map(move |end| {
                    let operators = start.iter().cloned().chain(end).collect();
                    (Program::check(types.clone(), operators).unwrap(), table.clone(), keys.clone())
                })
            },
        )
    })
}
