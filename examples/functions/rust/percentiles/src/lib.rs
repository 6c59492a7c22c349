//! Percentiles of a column of numbers.
//!
//! Arguments: u32 number of the column, u32 0, then f64 fractions, each from 0 to 1.
//! Window:    a far table whose column is of integers, floats, Date32 or Timestamp.
//! Output:    u64 number of values, then f64 for each fraction: the least value such that at least this fraction of the
//!            values is not greater (nearest rank). Nulls and NaN are ignored; if nothing is left, the result is
//!            NaN.
//!
//! Values are copied to the heap, 8 bytes each, so a call on more rows than the node permits ends as `MemoryFull`.
//!
//! Never in this crate: a sort of all values. A rank is found by selection.
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::vec::Vec;
use farpool_function::{Call, Failure, export};

export!(percentiles, of_column);

fn of_column(call: &mut Call<'_>) -> Result<(), Failure> {
    let column: u32 = call.arg(0)?;
    let fractions = call.args().get(8..).ok_or(Failure::BAD_ARGUMENTS)?;
    let (fractions, rest) = fractions.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Failure::BAD_ARGUMENTS);
    }
    let mut values = values_of(call, column as usize)?;
    call.output().put(&(values.len() as u64))?;
    for fraction in fractions {
        let fraction = f64::from_le_bytes(*fraction);
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Failure::BAD_ARGUMENTS);
        }
        let percentile = at_rank(&mut values, fraction).unwrap_or(f64::NAN);
        call.output().put(&percentile)?;
    }
    Ok(())
}

fn values_of(call: &Call<'_>, column: usize) -> Result<Vec<f64>, Failure> {
    let columns = call.columns().ok_or(Failure::NO_COLUMN)?;
    if !columns.column(column).is_some_and(|column| column.kind.is_number()) {
        return Err(Failure::NO_COLUMN);
    }
    let mut values = Vec::new();
    for group in columns.groups() {
        let there = group.values(column)?;
        let numbers = (0..there.rows()).filter_map(|row| there.number(row)).filter(|number| !number.is_nan());
        values.extend(numbers);
    }
    Ok(values)
}

fn at_rank(values: &mut [f64], fraction: f64) -> Option<f64> {
    // The next lines round up by hand, because `core` has no `ceil`.
    let product = values.len() as f64 * fraction;
    let below = product as usize;
    let rank = if (below as f64) < product { below } else { below.saturating_sub(1) };
    if values.is_empty() {
        return None;
    }
    Some(*values.select_nth_unstable_by(rank, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::at_rank;

    #[test]
    fn percentile_is_the_least_value_that_enough_values_are_not_greater_than() {
        let mut values = [15.0, 20.0, 35.0, 40.0, 50.0];
        let expected = [(0.0, 15.0), (0.05, 15.0), (0.3, 20.0), (0.4, 20.0), (0.5, 35.0), (1.0, 50.0)];
        for (fraction, value) in expected {
            values.reverse();
            assert_eq!(at_rank(&mut values, fraction), Some(value), "{fraction}");
        }
        assert_eq!(at_rank(&mut [], 0.5), None);
    }
}
