//! Statistics of a far table for DataFusion's planner, read from the table's footer or from its manifest.
//!
//! Pure: it contacts no node.

use datafusion::arrow::datatypes::{DataType, FieldRef, TimeUnit};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use farpool::FarTable;
use farpool::operators::Value;
use farpool::table::TableOnDemand;

/// Returns the statistics of these columns, over all rows of the table.
pub(crate) fn of_table(table: &FarTable, columns: &[usize]) -> Statistics {
    let rows = table.rows() as usize;
    let groups = table.row_groups();
    let column = |place: &usize| {
        let field = table.schema().field(*place);
        let chunks = || groups.iter().filter_map(|group| group.columns.get(*place));
        let nulls: usize = chunks().map(|chunk| chunk.null_count as usize).sum();
        let mut ends: Option<(ScalarValue, ScalarValue)> = None;
        // If the bounds of one row group are unknown, those of the table are unknown too. A row group with only NULLs
        // needs no bounds.
        let mut is_known = true;
        let mut is_exact = true;
        for (chunk, group) in chunks().zip(groups) {
            let Some(of_group) = &chunk.statistics else {
                is_known &= chunk.null_count == group.rows;
                continue;
            };
            is_exact &= !of_group.is_min_truncated && !of_group.is_max_truncated && !of_group.has_nan;
            let (min, max) =
                (value(field.data_type(), &of_group.min), value(field.data_type(), &of_group.max));
            let (Some(min), Some(max)) = (min, max) else {
                is_known = false;
                break;
            };
            // The footer does not distinguish -0.0 and 0.0, so a bound that is zero is not exact.
            is_exact &= !is_zero(&min) && !is_zero(&max);
            ends = Some(match ends {
                None => (min, max),
                Some((least, most)) => {
                    (if min < least { min } else { least }, if max > most { max } else { most })
                }
            });
        }
        let ends = ends.filter(|_| is_known);
        let told = |end: ScalarValue| if is_exact { Precision::Exact(end) } else { Precision::Inexact(end) };
        let (min_value, max_value) = match ends {
            Some((min, max)) => (told(min), told(max)),
            None => Default::default(),
        };
        let bytes: usize =
            chunks().flat_map(|chunk| &chunk.buffers).map(|buffer| buffer.bytes as usize).sum();
        ColumnStatistics {
            null_count: Precision::Exact(nulls),
            min_value,
            max_value,
            byte_size: Precision::Inexact(bytes),
            ..ColumnStatistics::new_unknown()
        }
    };
    let column_statistics: Vec<_> = columns.iter().map(column).collect();
    let bytes = column_statistics.iter().filter_map(|column| column.byte_size.get_value()).sum();
    Statistics {
        num_rows: Precision::Exact(rows),
        total_byte_size: Precision::Inexact(bytes),
        column_statistics,
    }
}

/// Returns the statistics of all columns of a table whose files are not open, from its manifest. It has bounds of some
/// columns, and no numbers of nulls.
pub(crate) fn of_manifest(table: &TableOnDemand) -> Statistics {
    let column = |(place, field): (usize, &FieldRef)| {
        let unknown = ColumnStatistics::new_unknown();
        let Some((bounds, is_exact)) = table.bounds(place) else { return unknown };
        let ends = value(field.data_type(), &bounds.min).zip(value(field.data_type(), &bounds.max));
        let Some((min, max)) = ends else { return unknown };
        let is_whole = !bounds.is_min_truncated && !bounds.is_max_truncated && !bounds.has_nan;
        let is_exact = is_exact && is_whole && !is_zero(&min) && !is_zero(&max);
        let told = |end: ScalarValue| if is_exact { Precision::Exact(end) } else { Precision::Inexact(end) };
        ColumnStatistics { min_value: told(min), max_value: told(max), ..unknown }
    };
    Statistics {
        num_rows: Precision::Exact(table.rows() as usize),
        total_byte_size: Precision::Inexact(table.bytes() as usize),
        column_statistics: table.schema().fields().iter().enumerate().map(column).collect(),
    }
}

fn is_zero(end: &ScalarValue) -> bool {
    matches!(end, ScalarValue::Float32(Some(0.0)) | ScalarValue::Float64(Some(0.0)))
}

/// Converts a bound to DataFusion's type. A truncated text may be invalid UTF-8; `is_exact` says that it was truncated.
fn value(of: &DataType, value: &Value) -> Option<ScalarValue> {
    Some(match (of, value) {
        (DataType::Boolean, Value::Boolean(value)) => ScalarValue::Boolean(Some(*value)),
        (DataType::Float32, Value::Float(bits)) => {
            ScalarValue::Float32(Some(f32::from_bits(u32::try_from(*bits).ok()?)))
        }
        (DataType::Float64, Value::Float(bits)) => ScalarValue::Float64(Some(f64::from_bits(*bits))),
        (DataType::Utf8, Value::Bytes(text)) => {
            ScalarValue::Utf8(Some(String::from_utf8(text.clone()).ok()?))
        }
        (DataType::Int8, Value::Integer(value)) => ScalarValue::Int8(Some((*value).try_into().ok()?)),
        (DataType::Int16, Value::Integer(value)) => ScalarValue::Int16(Some((*value).try_into().ok()?)),
        (DataType::Int32, Value::Integer(value)) => ScalarValue::Int32(Some((*value).try_into().ok()?)),
        (DataType::Int64, Value::Integer(value)) => ScalarValue::Int64(Some((*value).try_into().ok()?)),
        (DataType::UInt8, Value::Integer(value)) => ScalarValue::UInt8(Some((*value).try_into().ok()?)),
        (DataType::UInt16, Value::Integer(value)) => ScalarValue::UInt16(Some((*value).try_into().ok()?)),
        (DataType::UInt32, Value::Integer(value)) => ScalarValue::UInt32(Some((*value).try_into().ok()?)),
        (DataType::UInt64, Value::Integer(value)) => ScalarValue::UInt64(Some((*value).try_into().ok()?)),
        (DataType::Date32, Value::Integer(value)) => ScalarValue::Date32(Some((*value).try_into().ok()?)),
        (DataType::Decimal128(precision, scale), Value::Integer(value)) => {
            ScalarValue::Decimal128(Some(*value), *precision, *scale)
        }
        (DataType::Timestamp(unit, zone), Value::Integer(value)) => {
            let (value, zone) = (Some((*value).try_into().ok()?), zone.clone());
            match unit {
                TimeUnit::Second => ScalarValue::TimestampSecond(value, zone),
                TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(value, zone),
                TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(value, zone),
                TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(value, zone),
            }
        }
        _ => return None,
    })
}
