//! Running a program over batches of rows, and merging what several runs produce.
//!
//! The idea: a [`Prepared`] is a program with its patterns compiled, made once. A [`Run`] takes the batches of one
//! share of a table, for example the row groups on one node. Its output is partial: a group may occur again in the
//! output of another run, and a top (the first rows in an order) covers only the rows of its own run. A [`Merge`] of
//! all outputs gives the result. The result is the same however the rows were divided and in whatever order the
//! outputs came. Only sums of floats may differ, by a rounding of what compensated summation leaves out. Rows that are
//! neither grouped nor sorted come in the order in which their batches are pushed.

mod batch;
mod bounds;
mod expr;
mod group;
mod hash;
mod heap;
mod keep;
mod lookup;
mod merge;
mod sort;
mod top;

pub use batch::{data_type, type_of, widened};
pub use bounds::{BATCH_BYTES_MAX, Bounds, Stopped};
pub(crate) use expr::cast::date_text;
pub use expr::cast::{as_float, rescaled};
pub use lookup::bloom::Bloom;
pub use lookup::key_set::KeySet;
pub use lookup::keys::Keys;
pub use lookup::{LookupTable, Lookups};
pub use merge::Merge;
pub use sort::{SameValues, sorted, sorted_by_values};

use crate::expression::Flaw;
use crate::program::{Operator, Program};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use batch::{Rows, batch_of, bytes_of, columns_of, plain};
use bounds::{Steps, bounded};
use expr::{Compiled, Limits};
use group::Grouping;
use keep::kept;
use std::sync::Arc;
use top::Top;

/// Most regular expressions and LIKE patterns of one program. Each takes up to about 1 MiB.
const PATTERNS_MAX: usize = 32;

/// Program that is ready to run, with its patterns compiled. The lookups of its semi-joins come with each run.
#[derive(Debug)]
pub struct Prepared {
    program: Arc<Program>,
    steps: Vec<Vec<Compiled>>,
}

impl Prepared {
    /// Compiles the patterns of a program.
    ///
    /// # Errors
    /// A pattern that is no regular expression or is too large, or more than 32 patterns.
    pub fn new(program: Arc<Program>) -> Result<Prepared, Flaw> {
        let mut patterns = PATTERNS_MAX;
        let mut steps = Vec::new();
        for (operator, step) in program.steps().iter().enumerate() {
            let compile = |expression| Compiled::new(expression, &mut patterns);
            let compiled = step.expressions.iter().map(compile).collect::<Result<Vec<_>, String>>();
            let mut compiled = compiled.map_err(|what| Flaw { operator, what })?;
            for (number, one) in compiled.iter_mut().enumerate() {
                one.share(&step.expressions[number], &step.expressions[..number]);
            }
            steps.push(compiled);
        }
        Ok(Prepared { program, steps })
    }

    /// Checks that each semi-join has its lookup, of the right kind and with keys of the right types.
    fn check(&self, lookups: &Lookups) -> Result<(), Flaw> {
        for (operator, step) in self.program.operators().iter().enumerate() {
            let Operator::SemiJoin { keys, lookup, number, .. } = step else { continue };
            let input = input_of(&self.program, operator);
            let types: Vec<_> = keys.iter().map(|key| input[usize::from(*key)]).collect();
            let given = lookups.get(usize::from(*number));
            if !given.is_some_and(|given| given.fits(*lookup, &types)) {
                let what = format!("lookup {number} is missing, or its kind or key types do not match");
                return Err(Flaw { operator, what });
            }
        }
        Ok(())
    }

    /// Returns the program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the bytes of memory that the prepared program takes, at most about 33 MiB: its patterns, and what their
    /// searches cache on one thread.
    pub fn held_bytes(&self) -> usize {
        size_of::<Prepared>() + self.steps.iter().flatten().map(Compiled::held_bytes).sum::<usize>()
    }
}

/// Returns the types of the columns that an operator gets.
fn input_of(program: &Program, operator: usize) -> &[crate::types::Type] {
    match operator {
        0 => program.input(),
        _ => &program.steps()[operator - 1].output,
    }
}

/// Run of a program over one share of a table.
///
/// The order of calls is [`Run::new`], then [`Run::push`] for each batch, then [`Run::finish`]. Both `push` and
/// `finish` return batches that the caller sends or merges: `push` the rows that pass at once, and partial groups
/// that found no room; `finish` the groups or the top that the run still holds. [`Run::is_done`] tells the caller
/// that it may stop early. [`Run::refill`] renews the step budget between batches; a caller that bounds the whole run
/// never calls it. After an error from `push` the run must be dropped. A run belongs to one thread and takes no lock;
/// many runs share one [`Prepared`] and the tables in [`Lookups`].
pub struct Run {
    prepared: Arc<Prepared>,
    lookups: Lookups,
    bounds: Bounds,
    steps: Steps,
    end: End,
}

/// State of the last operator. `Limit` has the number of rows that may still be output.
enum End {
    Rows,
    Limit(u64),
    Groups(Grouping),
    Top(Top),
}

impl Run {
    /// Starts a run with the lookups of its semi-joins.
    ///
    /// # Errors
    /// A lookup that is missing, of another kind, or with keys of other types.
    pub fn new(prepared: Arc<Prepared>, lookups: Lookups, bounds: Bounds) -> Result<Run, Flaw> {
        heap::keep_freed_blocks();
        prepared.check(&lookups)?;
        let bounds = Bounds {
            batch_bytes_max: bounds.batch_bytes_max.min(BATCH_BYTES_MAX),
            held_bytes_max: bounds.held_bytes_max.min(BATCH_BYTES_MAX),
            ..bounds
        };
        let program = &prepared.program;
        let last = program.operators().len().saturating_sub(1);
        let input = input_of(program, last);
        // This cannot fail: the check of the program covers it.
        let flaw = |stopped: Stopped| Flaw { operator: last, what: stopped.to_string() };
        let end = match program.operators().last() {
            Some(Operator::Group { keys, aggregates, groups }) => {
                let keys = keys.iter().map(|key| usize::from(*key)).collect();
                let groups = *groups as usize;
                let held = bounds.held_bytes_max;
                let grouping = Grouping::new(keys, aggregates, input, groups, held, bounds.seed);
                End::Groups(grouping.map_err(flaw)?)
            }
            Some(Operator::Top { keys, rows }) => {
                End::Top(Top::new(keys, input, *rows as usize, bounds.held_bytes_max).map_err(flaw)?)
            }
            Some(Operator::Limit(rows)) => End::Limit(*rows),
            _ => End::Rows,
        };
        Ok(Run { prepared, lookups, steps: Steps::new(bounds.steps_max), bounds, end })
    }

    /// Reports whether further batches change nothing, because a limit has been reached.
    pub fn is_done(&self) -> bool {
        matches!(self.end, End::Limit(0))
    }

    /// Renews the budget of steps to its full size. For callers that bound each batch and not the whole run.
    pub fn refill(&mut self) {
        self.steps.refill();
    }

    /// Runs the program over a batch. `position` is the row number of the batch's first row in the table. Returns the
    /// output that is ready at once: rows, or partial groups that found no room.
    ///
    /// # Errors
    /// A batch with other columns or beyond the bounds, a value that does not fit, or steps that have run out. The
    /// run must not be used after an error.
    pub fn push(&mut self, batch: &RecordBatch, position: u64) -> Result<Vec<RecordBatch>, Stopped> {
        bounded("rows of a batch", batch.num_rows() as u64, self.bounds.batch_rows_max as u64)?;
        let columns = columns_of(batch, self.prepared.program.input())?;
        self.bounded_bytes(&columns)?;
        let positions = || {
            UInt64Array::from_iter_values((0..batch.num_rows() as u64).map(|row| position.wrapping_add(row)))
        };
        let positions = matches!(self.end, End::Top(_)).then(positions);
        let mut rows = Rows { columns, count: batch.num_rows(), positions };
        let prepared = self.prepared.clone();
        for (index, operator) in prepared.program.operators().iter().enumerate() {
            let bytes_max = self.bounds.batch_bytes_max;
            let mut limits = Limits { steps: &mut self.steps, bytes_max, operator: index };
            match operator {
                Operator::Filter(_) => {
                    let Some(filter) = prepared.steps[index].first() else { continue };
                    let is_kept = filter.run(&rows, &[], &mut limits)?;
                    rows = kept(rows, is_kept.as_boolean())?;
                }
                Operator::Project(_) => {
                    let mut columns: Vec<ArrayRef> = Vec::new();
                    let mut bytes = 0u64;
                    for expression in &prepared.steps[index] {
                        let column = expression.run(&rows, &columns, &mut limits)?;
                        bytes += bytes_of(&column) as u64;
                        bounded("bytes of a batch", bytes, bytes_max as u64)?;
                        columns.push(column);
                    }
                    rows.columns = columns;
                }
                Operator::SemiJoin { keys, number, is_anti, .. } => {
                    limits.steps.take(rows.count.saturating_mul(keys.len()))?;
                    let keys: Vec<ArrayRef> =
                        keys.iter().map(|key| rows.columns[usize::from(*key)].clone()).collect();
                    let found = self.lookups[usize::from(*number)].search(&keys, &mut limits)?;
                    let is_kept = match is_anti {
                        true => BooleanArray::new(!found.values(), None),
                        false => found,
                    };
                    rows = kept(rows, &is_kept)?;
                }
                Operator::Group { .. } | Operator::Top { .. } | Operator::Limit(_) => {}
            }
        }
        let mut leaving = Vec::new();
        match &mut self.end {
            End::Rows if rows.count == 0 => {}
            End::Rows => leaving.push(plain_batch(&rows.columns, rows.count, self.bounds.batch_bytes_max)?),
            End::Limit(left) => {
                let count = rows.count.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                if count > 0 {
                    let columns: Vec<ArrayRef> =
                        rows.columns.iter().map(|column| column.slice(0, count)).collect();
                    leaving.push(plain_batch(&columns, count, self.bounds.batch_bytes_max)?);
                }
            }
            End::Groups(groups) => groups.push(&rows, &mut self.steps, &mut leaving)?,
            End::Top(top) => {
                self.steps.take(rows.count)?;
                if let Some(positions) = &rows.positions {
                    top.push(&rows.columns, positions)?;
                }
            }
        }
        Ok(leaving)
    }

    /// Returns what the run still holds: partial groups, or the top rows with their positions in the table.
    ///
    /// # Errors
    /// None that [`Run::push`] would not have returned.
    pub fn finish(mut self) -> Result<Vec<RecordBatch>, Stopped> {
        let mut leaving = Vec::new();
        match &mut self.end {
            End::Rows | End::Limit(_) => {}
            End::Groups(groups) => groups.leave(&mut leaving)?,
            End::Top(top) => leaving.push(top.finish()?),
        }
        Ok(leaving)
    }

    fn bounded_bytes(&self, columns: &[ArrayRef]) -> Result<(), Stopped> {
        let bytes = columns.iter().map(|column| bytes_of(column) as u64).sum();
        bounded("bytes of a batch", bytes, self.bounds.batch_bytes_max as u64)
    }
}

/// Makes a batch of these columns, with dictionaries expanded.
fn plain_batch(columns: &[ArrayRef], rows: usize, bytes_max: usize) -> Result<RecordBatch, Stopped> {
    let columns = columns.iter().map(|column| plain(column, bytes_max)).collect::<Result<Vec<_>, _>>()?;
    let bytes = columns.iter().map(|column| bytes_of(column) as u64).sum();
    bounded("bytes of a batch", bytes, bytes_max as u64)?;
    batch_of(columns, rows)
}
