//! A column of numbers beside one literal: the first step of most filters, and often the only one over all rows.

use crate::expression::Comparison;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray};
use arrow_buffer::{BooleanBuffer, Buffer};
use arrow_schema::{DataType, TimeUnit};
use farpool_kernels::Ordered;

/// Whether each value compares so with the only one of `literal`; nothing if our kernels do not know the type, are no
/// faster on this CPU, or the literal is NULL.
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
        DataType::Float32 => typed::<Float32Type>(column, comparison, literal),
        DataType::Float64 => typed::<Float64Type>(column, comparison, literal),
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

/// The comparison that holds with its sides swapped.
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
    let literal =
        literal.as_primitive_opt::<T>().filter(|literal| literal.len() == 1 && literal.is_valid(0))?;
    let how = match comparison {
        Comparison::Equal => farpool_kernels::Comparison::Equal,
        Comparison::NotEqual => farpool_kernels::Comparison::NotEqual,
        Comparison::Less => farpool_kernels::Comparison::Less,
        Comparison::LessOrEqual => farpool_kernels::Comparison::LessOrEqual,
        Comparison::Greater => farpool_kernels::Comparison::Greater,
        Comparison::GreaterOrEqual => farpool_kernels::Comparison::GreaterOrEqual,
    };
    let column = column.as_primitive_opt::<T>()?;
    let mut words = Vec::new();
    farpool_kernels::compare(column.values(), how, literal.value(0), &mut words);
    let bits = BooleanBuffer::new(Buffer::from_vec(words), 0, column.len());
    Some(BooleanArray::new(bits, column.nulls().cloned()))
}

#[cfg(test)]
mod tests {
    use super::super::batch::{canonical, from_i64, repeated};
    use super::*;
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
                let one = ArrowScalar::new(canonical(literal));
                for (comparison, kernel) in ALL {
                    let expected = kernel(&canonical(&column), &one).unwrap();
                    assert_eq!(by_kernels(&column, comparison, literal), Some(expected));
                    let expected = kernel(&one, &canonical(&column)).unwrap();
                    assert_eq!(by_kernels(&column, swapped(comparison), literal), Some(expected));
                }
            }
        }
    }

    #[test]
    fn comparisons_are_those_of_arrow_over_canonical_floats() {
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
        let special = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5, -1.5];
        let floats: Vec<f64> = (0..200).map(|row| special[row * 5 % 8]).collect();
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
