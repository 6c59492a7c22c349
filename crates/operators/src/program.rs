//! Programs: operators in a row, over the columns of one table.
//!
//! A program is bounded in every direction before it runs: in bytes, operators, columns, depth, and in the rows and
//! groups it may hold. It says nothing about where the columns lie: that comes with each request.

use crate::expression::{Expression, Flaw, Instruction, limited};
use crate::limits::*;
use crate::types::{Arithmetic, Type};
use std::collections::BTreeSet;

/// What is computed over the rows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Rows, or those whose column is not NULL.
    Count,
    /// Of numbers. Whole numbers are added exactly, as decimals of 38 digits.
    Sum,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

/// One aggregate. An average is a sum and a count, divided by whoever merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// What is computed.
    pub function: Function,
    /// Over which column; nothing to count rows.
    pub column: Option<u16>,
}

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Which.
    pub column: u16,
    /// Greatest first.
    pub is_descending: bool,
    /// NULL before all else.
    pub nulls_first: bool,
}

/// What a semi-join looks up in. Both are given with each request, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A Bloom filter: some rows without a partner stay.
    Bloom,
    /// The keys themselves: exact.
    Keys,
}

/// One step over batches of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Operator {
    /// Keeps rows for which it is true.
    Filter(Vec<Instruction>),
    /// Replaces the columns by these.
    Project(Vec<Vec<Instruction>>),
    /// Keeps rows whose keys are found (or are not: an anti-join, by keys only).
    SemiJoin {
        /// Columns of the input.
        keys: Vec<u16>,
        /// How it is looked up.
        lookup: Lookup,
        /// Which of the lookups that come with a request.
        number: u8,
        /// Keeps those that are not found.
        is_anti: bool,
    },
    /// One row for each combination of keys: the keys, then the aggregates as partial values. Without aggregates:
    /// DISTINCT. Without keys: one row for all. NULL is a key like any other. Holds at most `groups` at a time; the
    /// others leave as partial groups, to be merged by whoever takes them.
    Group {
        /// Columns of the input.
        keys: Vec<u16>,
        /// In the order of the output.
        aggregates: Vec<Aggregate>,
        /// Groups held at the same time.
        groups: u32,
    },
    /// The first rows in an order; among equals those that come first.
    Top {
        /// The first key weighs most.
        keys: Vec<SortKey>,
        /// How many.
        rows: u32,
    },
    /// Any rows, but no more than so many.
    Limit(u64),
}

/// Operators that have been checked, each with the types of what it leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    input: Vec<Type>,
    operators: Vec<Operator>,
    steps: Vec<Step>,
}

/// A checked operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its expressions, in order.
    pub expressions: Vec<Expression>,
    /// The columns it leaves.
    pub output: Vec<Type>,
}

impl Program {
    /// Checks operators over columns of these types.
    pub fn check(input: Vec<Type>, operators: Vec<Operator>) -> Result<Program, Flaw> {
        let flaw = |operator| move |what| Flaw { operator, what };
        limited("columns", input.len(), COLUMNS_MAX).map_err(flaw(0))?;
        limited("operators", operators.len(), OPERATORS_MAX).map_err(flaw(0))?;
        if let Some(wrong) = input.iter().find(|of| !of.is_valid()) {
            return Err(Flaw { operator: 0, what: format!("a column of {wrong} is not permitted") });
        }
        let mut steps: Vec<Step> = Vec::new();
        for (index, operator) in operators.iter().enumerate() {
            let columns = steps.last().map_or(&input, |step| &step.output);
            if index + 1 < operators.len() && ends(operator) {
                let what = "a grouping, top or limit that is not the last operator".to_owned();
                return Err(Flaw { operator: index, what });
            }
            let step = check_step(operator, columns).map_err(flaw(index))?;
            steps.push(step);
        }
        Ok(Program { input, operators, steps })
    }

    /// The columns it reads from.
    pub fn input(&self) -> &[Type] {
        &self.input
    }

    /// What it does, in order, as it was given.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The same, checked.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The columns it leaves.
    pub fn output(&self) -> &[Type] {
        self.steps.last().map_or(&self.input, |step| &step.output)
    }

    /// Whether each column of the input is read: what is not need not be fetched or sent.
    pub fn reads(&self) -> Vec<bool> {
        let mut reads = vec![false; self.input.len()];
        let mut mark = |column: u16| {
            if let Some(read) = reads.get_mut(usize::from(column)) {
                *read = true;
            }
        };
        for (operator, step) in self.operators.iter().zip(&self.steps) {
            step.expressions.iter().flat_map(Expression::columns).for_each(&mut mark);
            match operator {
                Operator::SemiJoin { keys, .. } => keys.iter().copied().for_each(&mut mark),
                // Behind these only their own columns are known.
                Operator::Project(_) => return reads,
                Operator::Group { keys, aggregates, .. } => {
                    keys.iter().copied().for_each(&mut mark);
                    aggregates.iter().filter_map(|aggregate| aggregate.column).for_each(&mut mark);
                    return reads;
                }
                Operator::Filter(_) | Operator::Top { .. } | Operator::Limit(_) => {}
            }
        }
        // Whole rows leave.
        vec![true; self.input.len()]
    }

    /// The same program over the columns that it reads, and no others: their places in its input, in order.
    pub fn narrowed(&self) -> (Program, Vec<usize>) {
        let reads = self.reads();
        let places: Vec<usize> = (0..reads.len()).filter(|place| reads[*place]).collect();
        // Every column that is asked for is read, and so has a new place.
        let moved = |column: u16| places.partition_point(|place| *place < usize::from(column)) as u16;
        let input: Vec<Type> = places.iter().map(|place| self.input[*place]).collect();
        let mut operators = Vec::new();
        let mut is_input = true;
        for operator in &self.operators {
            let operator = operator.clone();
            operators.push(if is_input { operator.over(&moved) } else { operator });
            // Behind these only their own columns are known.
            is_input &= !matches!(operators.last(), Some(Operator::Project(_) | Operator::Group { .. }));
        }
        match Program::check(input, operators) {
            Ok(narrowed) => (narrowed, places),
            // Not reached: the same operators have been checked. Reading all of it is right as well.
            Err(_) => (self.clone(), (0..self.input.len()).collect()),
        }
    }
}

impl Operator {
    /// The same with its columns at other places.
    fn over(self, moved: &impl Fn(u16) -> u16) -> Operator {
        let each = |instruction| match instruction {
            Instruction::Column(column) => Instruction::Column(moved(column)),
            other => other,
        };
        let code = |code: Vec<Instruction>| code.into_iter().map(each).collect::<Vec<_>>();
        let columns = |columns: Vec<u16>| columns.into_iter().map(moved).collect::<Vec<_>>();
        match self {
            Operator::Filter(instructions) => Operator::Filter(code(instructions)),
            Operator::Project(list) => Operator::Project(list.into_iter().map(code).collect()),
            Operator::SemiJoin { keys, lookup, number, is_anti } => {
                Operator::SemiJoin { keys: columns(keys), lookup, number, is_anti }
            }
            Operator::Group { keys, aggregates, groups } => {
                let over =
                    |aggregate: Aggregate| Aggregate { column: aggregate.column.map(moved), ..aggregate };
                let aggregates = aggregates.into_iter().map(over).collect();
                Operator::Group { keys: columns(keys), aggregates, groups }
            }
            Operator::Top { keys, rows } => {
                let over = |key: SortKey| SortKey { column: moved(key.column), ..key };
                Operator::Top { keys: keys.into_iter().map(over).collect(), rows }
            }
            Operator::Limit(rows) => Operator::Limit(rows),
        }
    }
}

/// Whether nothing may come behind it.
fn ends(operator: &Operator) -> bool {
    matches!(operator, Operator::Group { .. } | Operator::Top { .. } | Operator::Limit(_))
}

/// The type of an aggregate's partial value over a column.
pub fn partial_type(function: Function, column: Option<Type>) -> Result<Type, String> {
    match (function, column) {
        (Function::Count, _) => Ok(Type::Int64),
        (_, None) => Err("a sum, least or greatest without a column".to_owned()),
        (Function::Min | Function::Max, Some(of)) => Ok(of),
        (Function::Sum, Some(of)) => match (of.arithmetic(), of) {
            (Some(Arithmetic::Integer), _) => Ok(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: 0 }),
            (Some(Arithmetic::Float), _) => Ok(Type::Float64),
            (_, Type::Decimal { scale, .. }) => Ok(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale }),
            _ => Err(format!("a sum of {of}: a number is wanted")),
        },
    }
}

/// A key twice says nothing more, and would be held twice.
fn each_once(keys: impl Iterator<Item = u16>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let twice =
        |key: u16| if seen.insert(key) { Ok(()) } else { Err(format!("column {key} twice among the keys")) };
    keys.into_iter().try_for_each(twice)
}

fn check_step(operator: &Operator, columns: &[Type]) -> Result<Step, String> {
    let of = |column: u16| {
        let found = columns.get(usize::from(column)).copied();
        found.ok_or_else(|| format!("column {column}: there are {}", columns.len()))
    };
    let same = |expressions| Step { expressions, output: columns.to_vec() };
    Ok(match operator {
        Operator::Filter(instructions) => {
            let expression = Expression::check(instructions.clone(), columns)?;
            if expression.of() != Type::Boolean {
                return Err(format!("a filter by {}: boolean is wanted", expression.of()));
            }
            same(vec![expression])
        }
        Operator::Project(list) => {
            limited("columns", list.len(), COLUMNS_MAX)?;
            let check = |instructions: &Vec<Instruction>| Expression::check(instructions.clone(), columns);
            let expressions = list.iter().map(check).collect::<Result<Vec<_>, _>>()?;
            let output = expressions.iter().map(Expression::of).collect();
            Step { expressions, output }
        }
        Operator::SemiJoin { keys, lookup, is_anti, .. } => {
            limited("keys", keys.len(), KEYS_MAX)?;
            if keys.is_empty() {
                return Err("a semi-join without keys".to_owned());
            }
            keys.iter().try_for_each(|key| of(*key).map(|_| ()))?;
            if *lookup == Lookup::Bloom && *is_anti {
                return Err("an anti-join by a Bloom filter would lose rows: keys are wanted".to_owned());
            }
            same(Vec::new())
        }
        Operator::Group { keys, aggregates, groups } => {
            limited("keys", keys.len(), KEYS_MAX)?;
            limited("aggregates", aggregates.len(), AGGREGATES_MAX)?;
            if keys.is_empty() && aggregates.is_empty() {
                return Err("a grouping without keys and aggregates".to_owned());
            }
            if !(1..=GROUPS_MAX).contains(groups) {
                return Err(format!("{groups} groups at a time: 1 to {GROUPS_MAX} are permitted"));
            }
            each_once(keys.iter().copied())?;
            let mut output = keys.iter().map(|key| of(*key)).collect::<Result<Vec<_>, _>>()?;
            for Aggregate { function, column } in aggregates {
                output.push(partial_type(*function, column.map(of).transpose()?)?);
            }
            Step { expressions: Vec::new(), output }
        }
        Operator::Top { keys, rows } => {
            limited("keys", keys.len(), KEYS_MAX)?;
            if keys.is_empty() || !(1..=TOP_ROWS_MAX).contains(rows) {
                return Err(format!(
                    "a top of {rows} rows by {} keys: 1 to {TOP_ROWS_MAX} rows and 1 to {KEYS_MAX} keys are permitted",
                    keys.len()
                ));
            }
            each_once(keys.iter().map(|key| key.column))?;
            keys.iter().try_for_each(|key| of(key.column).map(|_| ()))?;
            same(Vec::new())
        }
        Operator::Limit(_) => same(Vec::new()),
    })
}
