//! Programs: a list of operators over the columns of one table.
//!
//! A program is bounded before it runs: in bytes, operators, columns, stack depth, and in the rows and groups it may
//! hold. It does not say where the columns lie: each request does.

use crate::expression::{Expression, Flaw, Instruction, limited};
use crate::limits::*;
use crate::types::{Arithmetic, Type};
use std::collections::BTreeSet;

/// Function of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateFunction {
    /// Number of rows, or of the rows whose column is not NULL.
    Count,
    /// Sum of numbers. Whole numbers are added exactly, as decimals of 38 digits.
    Sum,
    /// Least value.
    Min,
    /// Greatest value.
    Max,
}

/// Aggregate over the rows of a group. An average is requested as a sum and a count and divided after the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// Function that is computed.
    pub function: AggregateFunction,
    /// Column it is computed over. `None` counts rows.
    pub column: Option<u16>,
}

/// Column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Number of the column.
    pub column: u16,
    /// True if the greatest value comes first.
    pub is_descending: bool,
    /// True if NULL comes before all values.
    pub nulls_first: bool,
}

/// Kind of lookup that a semi-join uses. The lookups themselves come with each request to run the program, in a list.
/// A semi-join names one by its number in that list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinLookup {
    /// A Bloom filter: some rows without a match pass too.
    Bloom,
    /// The keys themselves: exact.
    Keys,
}

/// Operator over batches of rows. Each gets the rows that the operator before it kept or made.
#[derive(Clone, Debug, PartialEq)]
pub enum Operator {
    /// Keeps the rows for which the expression is true.
    Filter(Vec<Instruction>),
    /// Replaces the columns by the values of these expressions.
    Project(Vec<Vec<Instruction>>),
    /// Semi-join: keeps the rows whose keys the lookup contains.
    SemiJoin {
        /// Key columns of the input.
        keys: Vec<u16>,
        /// Kind of the lookup.
        lookup: JoinLookup,
        /// Number of the lookup among those of the request, from 0.
        number: u8,
        /// True for an anti-join: keeps the rows whose keys are not found. Allowed with [`JoinLookup::Keys`] only.
        is_anti: bool,
    },
    /// Grouping: one row for each combination of keys, with the keys and then the aggregates as partial values. A
    /// grouping without aggregates is DISTINCT; one without keys makes one row of all rows. NULL is a key like any
    /// other. If there are more than `groups` groups, some are output early, as partial groups that the receiver
    /// merges.
    Group {
        /// Key columns of the input.
        keys: Vec<u16>,
        /// Aggregates in the order of the output.
        aggregates: Vec<Aggregate>,
        /// Groups that may be held at the same time.
        groups: u32,
    },
    /// Top: the first rows in an order. Among equal rows the earliest rows of the table win.
    Top {
        /// Sort keys, the most significant first.
        keys: Vec<SortKey>,
        /// Number of rows to keep.
        rows: u32,
    },
    /// Limit: any rows, but at most this many.
    Limit(u64),
}

/// Program that has been checked: its operators, each with the types of the columns that it produces.
///
/// A program is plain data, without a lock. [`Program::check`] is the only way to make one, so whoever has a
/// `Program` need not check it again. [`crate::codec`] decodes one from bytes and ends in `check`. The getters tell
/// how to run it: [`Program::input`] has the types of the columns to read, [`Program::reads`] which of them the
/// operators use, [`Program::narrowed`] the same program over those alone, and [`Program::output`] the types of the
/// result. [`Program::steps`] has, operator by operator, the checked expressions that [`crate::Prepared`] compiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    input: Vec<Type>,
    operators: Vec<Operator>,
    steps: Vec<CheckedOperator>,
}

/// Checked form of one operator.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedOperator {
    /// Expressions of the operator, in order.
    pub expressions: Vec<Expression>,
    /// Types of the columns that the operator produces.
    pub output: Vec<Type>,
}

impl Program {
    /// Checks the operators over columns of the types `input`.
    ///
    /// # Errors
    /// The first operator that breaks a rule or a limit, and what is wrong with it.
    pub fn check(input: Vec<Type>, operators: Vec<Operator>) -> Result<Program, Flaw> {
        let flaw = |operator| move |what| Flaw { operator, what };
        limited("columns", input.len(), COLUMNS_MAX).map_err(flaw(0))?;
        limited("operators", operators.len(), OPERATORS_MAX).map_err(flaw(0))?;
        if let Some(wrong) = input.iter().find(|of| !of.is_valid()) {
            return Err(Flaw { operator: 0, what: format!("a column of {wrong} is not permitted") });
        }
        let mut steps: Vec<CheckedOperator> = Vec::new();
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

    /// Returns the types of the columns that the program reads from.
    pub fn input(&self) -> &[Type] {
        &self.input
    }

    /// Returns the operators as they were given.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// Returns the checked form of each operator, in order.
    pub fn steps(&self) -> &[CheckedOperator] {
        &self.steps
    }

    /// Returns the types of the columns that the program produces. The hidden columns that partial groups have behind
    /// them, for the exact merge of sums, are not among them.
    pub fn output(&self) -> &[Type] {
        self.steps.last().map_or(&self.input, |step| &step.output)
    }

    /// Reports for each column of the input whether the program reads it. The others need not be fetched or sent.
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
                // Operators behind a projection or a grouping see only its output, so nothing more of the input is
                // read.
                Operator::Project(_) => return reads,
                Operator::Group { keys, aggregates, .. } => {
                    keys.iter().copied().for_each(&mut mark);
                    aggregates.iter().filter_map(|aggregate| aggregate.column).for_each(&mut mark);
                    return reads;
                }
                Operator::Filter(_) | Operator::Top { .. } | Operator::Limit(_) => {}
            }
        }
        // There is no projection or grouping, so the output has all columns of the input.
        vec![true; self.input.len()]
    }

    /// Returns the same program over only the columns that it reads, and the numbers of these columns in the present
    /// input, in ascending order.
    pub fn narrowed(&self) -> (Program, Vec<usize>) {
        let reads = self.reads();
        let places: Vec<usize> = (0..reads.len()).filter(|place| reads[*place]).collect();
        // Every column that an operator names is read, so `places` contains it.
        let moved = |column: u16| places.partition_point(|place| *place < usize::from(column)) as u16;
        let input: Vec<Type> = places.iter().map(|place| self.input[*place]).collect();
        let mut operators = Vec::new();
        let mut is_input = true;
        for operator in &self.operators {
            let operator = operator.clone();
            operators.push(if is_input { operator.over(&moved) } else { operator });
            // Column numbers behind a projection or a grouping mean columns of its output.
            is_input &= !matches!(operators.last(), Some(Operator::Project(_) | Operator::Group { .. }));
        }
        match Program::check(input, operators) {
            Ok(narrowed) => (narrowed, places),
            // Not reached, because the same operators passed the check before. Reading all columns is right too.
            Err(_) => (self.clone(), (0..self.input.len()).collect()),
        }
    }
}

impl Operator {
    /// Returns the operator with each column number `n` replaced by `moved(n)`.
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

/// Reports whether the operator has to be the last of a program.
fn ends(operator: &Operator) -> bool {
    matches!(operator, Operator::Group { .. } | Operator::Top { .. } | Operator::Limit(_))
}

/// Returns the type of the partial value of an aggregate over a column.
///
/// # Errors
/// A function that needs a column and has none, or a sum of values that are not numbers.
pub fn partial_type(function: AggregateFunction, column: Option<Type>) -> Result<Type, String> {
    match (function, column) {
        (AggregateFunction::Count, _) => Ok(Type::Int64),
        (_, None) => Err("sum, min and max need a column".to_owned()),
        (AggregateFunction::Min | AggregateFunction::Max, Some(of)) => Ok(of),
        (AggregateFunction::Sum, Some(of)) => match (of.arithmetic(), of) {
            (Some(Arithmetic::Integer), _) => Ok(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: 0 }),
            (Some(Arithmetic::Float), _) => Ok(Type::Float64),
            (_, Type::Decimal { scale, .. }) => Ok(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale }),
            _ => Err(format!("cannot sum a column of type {of}: a number is needed")),
        },
    }
}

/// Checks that no column is twice among the keys: the second one would be held as well and change nothing.
fn each_once(keys: impl Iterator<Item = u16>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let twice = |key: u16| {
        if seen.insert(key) { Ok(()) } else { Err(format!("column {key} is named twice among the keys")) }
    };
    keys.into_iter().try_for_each(twice)
}

fn check_step(operator: &Operator, columns: &[Type]) -> Result<CheckedOperator, String> {
    let of = |column: u16| {
        let found = columns.get(usize::from(column)).copied();
        found.ok_or_else(|| format!("column {column} does not exist: there are {} columns", columns.len()))
    };
    let same = |expressions| CheckedOperator { expressions, output: columns.to_vec() };
    Ok(match operator {
        Operator::Filter(instructions) => {
            let expression = Expression::check(instructions.clone(), columns)?;
            if expression.of() != Type::Boolean {
                return Err(format!(
                    "the filter condition is of type {}: boolean is needed",
                    expression.of()
                ));
            }
            same(vec![expression])
        }
        Operator::Project(list) => {
            limited("columns", list.len(), COLUMNS_MAX)?;
            let check = |instructions: &Vec<Instruction>| Expression::check(instructions.clone(), columns);
            let expressions = list.iter().map(check).collect::<Result<Vec<_>, _>>()?;
            let output = expressions.iter().map(Expression::of).collect();
            CheckedOperator { expressions, output }
        }
        Operator::SemiJoin { keys, lookup, is_anti, .. } => {
            limited("keys", keys.len(), KEYS_MAX)?;
            if keys.is_empty() {
                return Err("a semi-join needs at least one key".to_owned());
            }
            keys.iter().try_for_each(|key| of(*key).map(|_| ()))?;
            if *lookup == JoinLookup::Bloom && *is_anti {
                return Err(
                    "an anti-join by a Bloom filter would lose rows: exact keys are needed".to_owned()
                );
            }
            same(Vec::new())
        }
        Operator::Group { keys, aggregates, groups } => {
            limited("keys", keys.len(), KEYS_MAX)?;
            limited("aggregates", aggregates.len(), AGGREGATES_MAX)?;
            if keys.is_empty() && aggregates.is_empty() {
                return Err("a grouping needs at least one key or aggregate".to_owned());
            }
            if !(1..=GROUPS_MAX).contains(groups) {
                return Err(format!("{groups} groups at a time: 1 to {GROUPS_MAX} are permitted"));
            }
            each_once(keys.iter().copied())?;
            let mut output = keys.iter().map(|key| of(*key)).collect::<Result<Vec<_>, _>>()?;
            for Aggregate { function, column } in aggregates {
                output.push(partial_type(*function, column.map(of).transpose()?)?);
            }
            CheckedOperator { expressions: Vec::new(), output }
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
