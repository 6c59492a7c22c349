//! Comparison of a column of numbers with a literal: the first step of most filters, and often the only one over all
//! rows.

use crate::expression::Comparison;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray};
use arrow_buffer::{BooleanBuffer, Buffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use farpool_kernels::Ordered;

/// Compares each value with the only value of `literal`. `None` if our kernels do not know the type or are not faster
/// on this CPU, or if the literal is NULL.
pub(super) fn with_literal(
    column: &ArrayRef,
    comparison: Comparison,
    literal: &ArrayRef,
) -> Option<BooleanArray> {
    if !farpool_kernels::has_vectors() {
        return None;
    }
    by_kernels(column, comparison, literal)
}

fn by_kernels(column: &ArrayRef, comparison: Comparison, literal: &ArrayRef) -> Option<BooleanArray> {
    match column.data_type() {
        DataType::Int8 => typed::<Int8Type>(column, comparison, literal),
        DataType::Int16 => typed::<Int16Type>(column, comparison, literal),
        DataType::Int32 => typed::<Int32Type>(column, comparison, literal),
        DataType::Int64 => typed::<Int64Type>(column, comparison, literal),
        DataType::UInt8 => typed::<UInt8Type>(column, comparison, literal),
        DataType::UInt16 => typed::<UInt16Type>(column, comparison, literal),
        DataType::UInt32 => typed::<UInt32Type>(column, comparison, literal),
        DataType::UInt64 => typed::<UInt64Type>(column, comparison, literal),
        DataType::Float32 => float32(column, comparison, literal),
        DataType::Float64 => float64(column, comparison, literal),
        DataType::Date32 => typed::<Date32Type>(column, comparison, literal),
        DataType::Timestamp(TimeUnit::Second, _) => typed::<TimestampSecondType>(column, comparison, literal),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            typed::<TimestampMillisecondType>(column, comparison, literal)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            typed::<TimestampMicrosecondType>(column, comparison, literal)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            typed::<TimestampNanosecondType>(column, comparison, literal)
        }
        _ => None,
    }
}

/// Returns the comparison that is true with the two sides exchanged.
pub(super) fn swapped(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Equal | Comparison::NotEqual => comparison,
        Comparison::Less => Comparison::Greater,
        Comparison::LessOrEqual => Comparison::GreaterOrEqual,
        Comparison::Greater => Comparison::Less,
        Comparison::GreaterOrEqual => Comparison::LessOrEqual,
    }
}

fn typed<T: ArrowPrimitiveType<Native: Ordered>>(
    column: &ArrayRef,
    comparison: Comparison,
    literal: &ArrayRef,
) -> Option<BooleanArray> {
    let literal = only::<T>(literal)?;
    let column = column.as_primitive_opt::<T>()?;
    Some(booleans(words(column.values(), comparison, literal), column))
}

/// Returns the value of a literal, unless that is NULL.
fn only<T: ArrowPrimitiveType>(literal: &ArrayRef) -> Option<T::Native> {
    let literal = literal.as_primitive_opt::<T>()?;
    (literal.len() == 1 && literal.is_valid(0)).then(|| literal.value(0))
}

fn booleans<T: ArrowPrimitiveType>(words: Vec<u64>, column: &PrimitiveArray<T>) -> BooleanArray {
    let bits = BooleanBuffer::new(Buffer::from_vec(words), 0, column.len());
    BooleanArray::new(bits, column.nulls().cloned())
}

fn words<T: Ordered>(values: &[T], comparison: Comparison, literal: T) -> Vec<u64> {
    let how = match comparison {
        Comparison::Equal => farpool_kernels::CompareOp::Equal,
        Comparison::NotEqual => farpool_kernels::CompareOp::NotEqual,
        Comparison::Less => farpool_kernels::CompareOp::Less,
        Comparison::LessOrEqual => farpool_kernels::CompareOp::LessOrEqual,
        Comparison::Greater => farpool_kernels::CompareOp::Greater,
        Comparison::GreaterOrEqual => farpool_kernels::CompareOp::GreaterOrEqual,
    };
    let mut words = Vec::new();
    farpool_kernels::compare(values, how, literal, &mut words);
    words
}

/// Defines the comparison of floats of one width by their bits read as integers. Read as signed integers, they
/// compare with a positive literal as the floats do. Read as unsigned integers, they compare with a negative literal
/// in reverse. The two zeros are equal: `=` and `<>` compare with both, `>` and `<=` with the greater one, 0.0, and
/// `<` and `>=` with the lesser one, -0.0.
macro_rules! floats {
    ($name:ident, $of:ty, $signed:ty, $unsigned:ty) => {
        fn $name(column: &ArrayRef, comparison: Comparison, literal: &ArrayRef) -> Option<BooleanArray> {
            const NEGATIVE_ZERO: $unsigned = 1 << (<$unsigned>::BITS - 1);
            let (column, literal) = (column.as_primitive_opt::<$of>()?, only::<$of>(literal)?.to_bits());
            let bits = column.values().inner();
            let signed = ScalarBuffer::<$signed>::new(bits.clone(), 0, column.len());
            let unsigned = ScalarBuffer::<$unsigned>::new(bits.clone(), 0, column.len());
            let beside_zeros = |with: fn(u64, u64) -> u64| {
                let mut words = words(&unsigned, comparison, 0);
                let others = self::words(&unsigned, comparison, NEGATIVE_ZERO);
                words.iter_mut().zip(others).for_each(|(word, other)| *word = with(*word, other));
                words
            };
            let words = match (literal, comparison) {
                (0 | NEGATIVE_ZERO, Comparison::Equal) => beside_zeros(|one, other| one | other),
                (0 | NEGATIVE_ZERO, Comparison::NotEqual) => beside_zeros(|one, other| one & other),
                (0 | NEGATIVE_ZERO, Comparison::Greater | Comparison::LessOrEqual) => {
                    words(&signed, comparison, 0)
                }
                (0 | NEGATIVE_ZERO, _) => words(&unsigned, swapped(comparison), NEGATIVE_ZERO),
                (..NEGATIVE_ZERO, _) => words(&signed, comparison, literal.cast_signed()),
                _ => words(&unsigned, swapped(comparison), literal),
            };
            Some(booleans(words, column))
        }
    };
}
floats!(float32, Float32Type, i32, u32);
floats!(float64, Float64Type, i64, u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::batch::{from_i64, repeated, with_one_zero};
    use crate::types::{Scalar, Type, Value};
    use arrow_array::{Float32Array, Float64Array, Scalar as ArrowScalar};
    use arrow_ord::cmp;
    use arrow_select::nullif::nullif;
    use std::sync::Arc;

    type Kernel = fn(
        &dyn arrow_array::Datum,
        &dyn arrow_array::Datum,
    ) -> Result<BooleanArray, arrow_schema::ArrowError>;

    const ALL: [(Comparison, Kernel); 6] = [
        (Comparison::Equal, cmp::eq),
        (Comparison::NotEqual, cmp::neq),
        (Comparison::Less, cmp::lt),
        (Comparison::LessOrEqual, cmp::lt_eq),
        (Comparison::Greater, cmp::gt),
        (Comparison::GreaterOrEqual, cmp::gt_eq),
    ];

    fn agree(column: &ArrayRef, literal: &ArrayRef) {
        let is_null: BooleanArray = (0..column.len()).map(|row| Some(row % 7 == 2)).collect();
        for column in [column.clone(), nullif(column, &is_null).unwrap()] {
            for (offset, rows) in [(0, column.len()), (3, 70), (65, 64), (10, 0)] {
                let column = column.slice(offset, rows);
                let one = ArrowScalar::new(with_one_zero(literal));
                for (comparison, kernel) in ALL {
                    let expected = kernel(&with_one_zero(&column), &one).unwrap();
                    assert_eq!(by_kernels(&column, comparison, literal), Some(expected));
                    let expected = kernel(&one, &with_one_zero(&column)).unwrap();
                    assert_eq!(by_kernels(&column, swapped(comparison), literal), Some(expected));
                }
            }
        }
    }

    #[test]
    fn comparisons_are_those_of_arrow_over_floats_with_one_zero() {
        let integers: Vec<i64> = (0..200).map(|row| row * 37 % 100).collect();
        for of in [Type::Int8, Type::UInt16, Type::Int32, Type::UInt64, Type::Int64, Type::Date] {
            let column = from_i64(of, integers.clone(), None);
            let column = match of {
                Type::UInt64 => Arc::new(arrow_array::UInt64Array::from_iter_values(
                    integers.iter().map(|value| *value as u64 + (1 << 63)),
                )),
                _ => column,
            };
            let literal = if of == Type::UInt64 { 50 + (1 << 63) } else { 50 };
            agree(&column, &repeated(&Scalar { of, value: Some(Value::Integer(literal)) }, 1));
        }
        let special =
            [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5, -1.5, 1e-40, -1e-40];
        let others = [f64::from_bits(0x7ff8_0000_2000_0000), f64::from_bits(0xfff8_0000_2000_0000)];
        let special = [&special[..], &others].concat();
        let floats: Vec<f64> = (0..200).map(|row| special[row * 5 % special.len()]).collect();
        let narrow: Vec<f32> = floats.iter().map(|value| *value as f32).collect();
        for literal in special {
            agree(&(Arc::new(Float64Array::from(floats.clone())) as ArrayRef), &{
                Arc::new(Float64Array::from(vec![literal])) as ArrayRef
            });
            agree(&(Arc::new(Float32Array::from(narrow.clone())) as ArrayRef), &{
                Arc::new(Float32Array::from(vec![literal as f32])) as ArrayRef
            });
        }
    }

    #[test]
    fn null_literals_and_other_types_are_left_to_others() {
        let column = from_i64(Type::Int64, vec![1, 2], None);
        let null = repeated(&Scalar { of: Type::Int64, value: None }, 1);
        assert_eq!(by_kernels(&column, Comparison::Less, &null), None);
        let text = repeated(&Scalar { of: Type::Text, value: Some(Value::Bytes(b"a".to_vec())) }, 1);
        assert_eq!(by_kernels(&text, Comparison::Less, &text), None);
    }
}
