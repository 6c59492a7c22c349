//! Tables of numbers for `farpool bench operators`, and the program of operators that selects rows of them.

use crate::Outcome;
use crate::exit::Failure;
use crate::harness::mixing::mix;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_buffer::ScalarBuffer;
use farpool::operators::{
    Bounds, Comparison, Instruction, Operator, Prepared, Program, Run, Scalar, Type, Value,
};
use farpool_kernels::Row;
use std::sync::Arc;

/// Exclusive upper bound of the values in all columns.
const VALUES: u64 = 10_000;
/// Percentages of selected rows, each with the limit that selects them: the first two columns must both be below it.
pub(crate) const SHARES: [(u32, i64); 4] = [(100, 10_000), (50, 7_071), (25, 5_000), (1, 1_000)];
/// Rows of a batch, as many as in a row group of a far table.
pub(crate) const GROUP_ROWS: usize = 1 << 16;

/// Table of eight columns in two layouts: batches of columns (`groups`), and row by row (`numbers`).
pub(crate) struct Tables {
    groups: Vec<RecordBatch>,
    numbers: ScalarBuffer<i64>,
}

/// Receiver of the selected values, in place of a network connection.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[i64]);

impl Tables {
    pub(crate) fn new(rows: usize) -> Result<Tables, Failure> {
        let value = |row: usize, column: usize| (mix((row * 8 + column) as u64) % VALUES) as i64;
        let group = |start: usize| {
            let rows = start..rows.min(start + GROUP_ROWS);
            let column = |column: usize| -> (String, ArrayRef) {
                let values = Int64Array::from_iter_values(rows.clone().map(|row| value(row, column)));
                (column.to_string(), Arc::new(values))
            };
            RecordBatch::try_from_iter((0..8).map(column)).map_err(Failure::failed)
        };
        let numbers: Vec<i64> = (0..rows * 8).map(|at| value(at / 8, at % 8)).collect();
        Ok(Tables {
            groups: (0..rows).step_by(GROUP_ROWS).map(group).collect::<Result<_, _>>()?,
            numbers: numbers.into(),
        })
    }

    /// Returns the table as columns, by row group.
    pub(crate) fn groups(&self) -> &[RecordBatch] {
        &self.groups
    }

    /// Returns the table row by row, as bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.numbers.inner().as_slice()
    }

    /// Returns the table row by row.
    pub(crate) fn rows(&self) -> &[Row] {
        self.numbers.as_chunks().0
    }
}

pub(crate) fn values(group: &RecordBatch, column: usize) -> &[i64] {
    group.column(column).as_primitive::<Int64Type>().values()
}

pub(crate) fn program(tables: &Tables, limit: i64, send: Sink<'_>) -> Outcome {
    program_over(tables.groups.iter().cloned().map(Ok), limit, send)
}

/// Selects the rows whose first two columns are both below `limit`, by a program of operators as a node runs it. Passes
/// the columns of each result to `send`.
pub(crate) fn program_over(
    groups: impl Iterator<Item = Result<RecordBatch, Failure>>,
    limit: i64,
    send: Sink<'_>,
) -> Outcome {
    let less = |column| {
        let value = Some(Value::Integer(i128::from(limit)));
        let literal = Instruction::Literal(Scalar { of: Type::Int64, value });
        [Instruction::Column(column), literal, Instruction::Compare(Comparison::Less)]
    };
    let filter = less(0).into_iter().chain(less(1)).chain([Instruction::And]).collect();
    let program =
        Program::check(vec![Type::Int64; 8], vec![Operator::Filter(filter)]).map_err(Failure::failed)?;
    let prepared = Prepared::new(Arc::new(program)).map_err(Failure::failed)?;
    let mut run = Run::new(Arc::new(prepared), Vec::new(), Bounds::default()).map_err(Failure::failed)?;
    for group in groups {
        for batch in run.push(&group?, 0).map_err(Failure::failed)? {
            (0..8).for_each(|column| send(values(&batch, column)));
        }
    }
    Ok(())
}
