//! Arithmetic between columns of one length. Whole numbers and decimals are checked for overflow. Floats follow
//! IEEE 754.

use crate::expression::Binary;
use crate::limits::DECIMAL_DIGITS_MAX;
use crate::run::batch::{data_type, unexpected};
use crate::types::Type;
use arrow_arith::numeric;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use std::fmt::Display;
use std::sync::Arc;

/// Bits of a magnitude that is certainly below [`DECIMAL_END`].
const DECIMAL_BITS: u32 = 126;

/// One more than the greatest decimal.
pub(in crate::run) const DECIMAL_END: i128 = 10i128.pow(DECIMAL_DIGITS_MAX as u32);

/// Returns the rows in which neither side is NULL.
fn both(left: &dyn Array, right: &dyn Array) -> Option<NullBuffer> {
    NullBuffer::union(left.nulls(), right.nulls())
}

/// Computes a column from two. An error names the two values of a row that have no result. A column of decimals with
/// one row may stand for as many rows as the other column has.
pub(super) fn binary(binary: Binary, left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef, String> {
    match left.data_type() {
        DataType::Int8 => whole::<Int8Type>(binary, left, right),
        DataType::Int16 => whole::<Int16Type>(binary, left, right),
        DataType::Int32 => whole::<Int32Type>(binary, left, right),
        DataType::Int64 => whole::<Int64Type>(binary, left, right),
        DataType::UInt8 => whole::<UInt8Type>(binary, left, right),
        DataType::UInt16 => whole::<UInt16Type>(binary, left, right),
        DataType::UInt32 => whole::<UInt32Type>(binary, left, right),
        DataType::UInt64 => whole::<UInt64Type>(binary, left, right),
        DataType::Decimal128(..) => decimal(binary, left, right),
        _ => {
            let kernel = match binary {
                Binary::Add => numeric::add,
                Binary::Subtract => numeric::sub,
                Binary::Multiply => numeric::mul,
                Binary::Divide => numeric::div,
                Binary::Remainder => numeric::rem,
            };
            kernel(left, right).map_err(|error| unexpected(error).to_string())
        }
    }
}

/// Computes `-x`.
pub(super) fn negate(column: &ArrayRef) -> Result<ArrayRef, String> {
    match column.data_type() {
        DataType::Int8 => negative::<Int8Type>(column),
        DataType::Int16 => negative::<Int16Type>(column),
        DataType::Int32 => negative::<Int32Type>(column),
        DataType::Int64 => negative::<Int64Type>(column),
        DataType::Decimal128(..) => negative::<Decimal128Type>(column),
        _ => numeric::neg(column).map_err(|error| unexpected(error).to_string()),
    }
}

fn negative<T: ArrowPrimitiveType>(column: &ArrayRef) -> Result<ArrayRef, String>
where
    T::Native: ArrowNativeTypeOp + Display,
{
    let values = column.as_primitive::<T>();
    let result =
        values.try_unary::<_, T, String>(|value| value.neg_checked().map_err(|_| format!("-({value})")))?;
    Ok(Arc::new(result.with_data_type(column.data_type().clone())))
}

fn symbol(binary: Binary) -> &'static str {
    match binary {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::Remainder => "%",
    }
}

fn whole<T: ArrowPrimitiveType>(binary: Binary, left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef, String>
where
    T::Native: ArrowNativeTypeOp + Display,
{
    let (left, right) = (left.as_primitive::<T>(), right.as_primitive::<T>());
    let nulls = both(left, right);
    let apply = |left: T::Native, right: T::Native| {
        match binary {
            Binary::Add => left.add_checked(right),
            Binary::Subtract => left.sub_checked(right),
            Binary::Multiply => left.mul_checked(right),
            Binary::Divide => left.div_checked(right),
            // The remainder of the least number by -1 is 0, although its quotient overflows.
            Binary::Remainder => Ok(left.mod_wrapping(right)),
        }
        .map_err(|_| format!("{left} {} {right}", symbol(binary)))
    };
    let nulls = match binary {
        Binary::Divide | Binary::Remainder => {
            let not_zero = right.values().iter().map(|value| *value != T::default_value()).collect();
            NullBuffer::union(nulls.as_ref(), Some(&NullBuffer::new(not_zero)))
        }
        _ => nulls,
    };
    rows::<T>(left, right, nulls, apply).map(|array| Arc::new(array) as ArrayRef)
}

fn decimal(binary: Binary, left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef, String> {
    let (left, right) = (left.as_primitive::<Decimal128Type>(), right.as_primitive::<Decimal128Type>());
    let scale = |array: &Decimal128Array| array.scale().unsigned_abs();
    let scale = match binary {
        Binary::Multiply => scale(left) + scale(right),
        _ => scale(left),
    };
    let of = data_type(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale });
    let count = if left.len() == 1 { right.len() } else { left.len() };
    if [left, right].iter().any(|side| side.len() < count && side.is_null(0)) {
        return Ok(new_null_array(&of, count));
    }
    let nulls = |side: &Decimal128Array| side.nulls().filter(|_| side.len() == count).cloned();
    let nulls = NullBuffer::union(nulls(left).as_ref(), nulls(right).as_ref());
    if let Some(values) = unchecked(binary, left.values(), right.values()) {
        return Ok(Arc::new(Decimal128Array::new(values.into(), nulls).with_data_type(of)));
    }
    let all = |side: &Decimal128Array| match side.len() == count {
        true => side.clone(),
        false => Decimal128Array::from_value(side.value(0), count),
    };
    let apply = |left: i128, right: i128| {
        let result = match binary {
            Binary::Add => left.checked_add(right),
            Binary::Subtract => left.checked_sub(right),
            Binary::Multiply => left.checked_mul(right),
            // Not reached: programs that divide decimals are refused.
            Binary::Divide | Binary::Remainder => None,
        };
        let fits = result.filter(|value| value.unsigned_abs() < DECIMAL_END.unsigned_abs());
        fits.ok_or_else(|| format!("{left} {} {right} in units of the last digit", symbol(binary)))
    };
    let result = rows::<Decimal128Type>(&all(left), &all(right), nulls, apply)?;
    Ok(Arc::new(result.with_data_type(of)))
}

/// Computes decimals without checks. `None` if the magnitudes are so great that a result could overflow, which is
/// rare.
fn unchecked(binary: Binary, left: &[i128], right: &[i128]) -> Option<Vec<i128>> {
    let (left_bits, right_bits) = (bits(left), bits(right));
    match binary {
        Binary::Multiply if left_bits.max(right_bits) <= 63 => Some(pairs(left, right, |left, right| {
            i128::from(left as i64).wrapping_mul(i128::from(right as i64))
        })),
        Binary::Multiply if left_bits + right_bits <= DECIMAL_BITS => {
            Some(pairs(left, right, i128::wrapping_mul))
        }
        Binary::Add if left_bits.max(right_bits) < DECIMAL_BITS => {
            Some(pairs(left, right, i128::wrapping_add))
        }
        Binary::Subtract if left_bits.max(right_bits) < DECIMAL_BITS => {
            Some(pairs(left, right, i128::wrapping_sub))
        }
        _ => None,
    }
}

/// Returns the number of bits of the greatest magnitude. No magnitude exceeds two to the power of this number. The
/// magnitude of a negative value is taken as one less than it is.
pub(super) fn bits(values: &[i128]) -> u32 {
    u128::BITS - ones(values).leading_zeros()
}

/// Returns the OR of the magnitudes of the values, where that of a negative value is taken as one less than it is.
/// [`farpool_kernels::ones`] does the same for values of 64 bits.
pub(in crate::run) fn ones(values: &[i128]) -> u128 {
    values.iter().fold(0, |ones, value| ones | (*value ^ (*value >> 127)) as u128)
}

fn pairs(left: &[i128], right: &[i128], apply: impl Fn(i128, i128) -> i128) -> Vec<i128> {
    match (left, right) {
        ([left], right) => right.iter().map(|right| apply(*left, *right)).collect(),
        (left, [right]) => left.iter().map(|left| apply(*left, *right)).collect(),
        _ => left.iter().zip(right).map(|(left, right)| apply(*left, *right)).collect(),
    }
}

/// Applies a function to each row in which neither side is NULL.
fn rows<T: ArrowPrimitiveType>(
    left: &PrimitiveArray<T>,
    right: &PrimitiveArray<T>,
    nulls: Option<NullBuffer>,
    apply: impl Fn(T::Native, T::Native) -> Result<T::Native, String>,
) -> Result<PrimitiveArray<T>, String> {
    let pairs = left.values().iter().zip(right.values().iter());
    let values: Vec<T::Native> = match &nulls {
        None => pairs.map(|(left, right)| apply(*left, *right)).collect::<Result<_, _>>()?,
        Some(nulls) => pairs
            .zip(nulls.iter())
            .map(
                |((left, right), is_valid)| {
                    if is_valid { apply(*left, *right) } else { Ok(T::default_value()) }
                },
            )
            .collect::<Result<_, _>>()?,
    };
    Ok(PrimitiveArray::new(values.into(), nulls))
}
