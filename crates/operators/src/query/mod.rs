//! Queries over one table, by the names of its columns: what people and engines write. [`Query::plan`] makes two
//! programs of one: what runs beside the data, and what finishes the merged result.
//!
//! The idea: up to the first grouping, top or limit everything runs beside the data. What comes behind it sees merged
//! rows only, so it is a program of its own, run by the same code where the rows are merged.

mod expr;
mod written;

pub use expr::{Expr, Literal, col, lit};

use crate::expression::{Binary, Instruction};
use crate::limits::{GROUPS_MAX, KEYS_MAX, LOOKUPS_MAX};
use crate::program::{Aggregate, Function, Lookup, Operator, Program, SortKey, partial_type};
use crate::run::KeySet;
use crate::types::Type;
use arrow_array::RecordBatch;
use arrow_schema::Schema;
use std::fmt;
use std::sync::Arc;

/// What is wrong with a query: the step and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError(pub String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QueryError {}

/// What is computed over the rows of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Agg {
    /// Rows.
    Rows,
    /// Rows in which it is not NULL.
    Count(Expr),
    /// The sum.
    Sum(Expr),
    /// The least.
    Min(Expr),
    /// The greatest.
    Max(Expr),
    /// The mean, a float64.
    Avg(Expr),
}

/// A sort key by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// The column.
    pub column: String,
    /// Greatest first.
    pub is_descending: bool,
    /// NULL before all else.
    pub nulls_first: bool,
}

impl By {
    /// Least first, NULL last.
    pub fn ascending(column: impl Into<String>) -> By {
        By { column: column.into(), is_descending: false, nulls_first: false }
    }

    /// Greatest first, NULL last.
    pub fn descending(column: impl Into<String>) -> By {
        By { column: column.into(), is_descending: true, nulls_first: false }
    }
}

/// A query as far as it has been written.
#[derive(Clone, Debug)]
pub struct Query {
    input: Vec<Type>,
    /// What runs beside the data.
    near: Vec<Operator>,
    /// What finishes the merged rows; nothing while none is needed.
    finish: Option<Vec<Operator>>,
    /// The columns as they stand now.
    columns: Vec<(String, Type)>,
    /// What semi-joins look up in, by number.
    key_sets: Vec<Arc<KeySet>>,
    failed: Option<QueryError>,
    groups: u32,
}

/// A query as programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Runs beside the data.
    pub near: Program,
    /// Runs over the merged rows.
    pub finish: Program,
    /// The columns of the result.
    pub columns: Vec<(String, Type)>,
    /// What the semi-joins of both look up in, by number: exact keys.
    pub key_sets: Vec<Arc<KeySet>>,
}

impl Plan {
    /// Numbers of what the program beside the data looks up in.
    pub fn near_key_sets(&self) -> impl Iterator<Item = usize> {
        self.near.operators().iter().filter_map(|operator| match operator {
            Operator::SemiJoin { number, .. } => Some(usize::from(*number)),
            _ => None,
        })
    }

    /// The same with a Bloom filter beside the data instead of the keys of this number, which the merged rows are
    /// looked up in again: they are the same rows. Nothing if that cannot be: of an anti-join, where rows do not leave
    /// as they are, or without their keys.
    pub fn by_filter(&self, number: usize) -> Option<Plan> {
        let mut operators = self.near.operators().to_vec();
        let is_it = |operator: &Operator| matches!(operator, Operator::SemiJoin { number: of, .. } if usize::from(*of) == number);
        let at = operators.iter().position(is_it)?;
        let Operator::SemiJoin { keys, lookup, is_anti: false, .. } = &mut operators[at] else { return None };
        *lookup = Lookup::Bloom;
        let mut places = keys.clone();
        for operator in &operators[at + 1..] {
            match operator {
                Operator::Filter(_) | Operator::SemiJoin { .. } => {}
                Operator::Project(list) => {
                    let moved =
                        |place: &u16| list.iter().position(|code| code[..] == [Instruction::Column(*place)]);
                    let moved = places.iter().map(|place| Some(moved(place)? as u16));
                    places = moved.collect::<Option<_>>()?;
                }
                Operator::Group { .. } | Operator::Top { .. } | Operator::Limit(_) => return None,
            }
        }
        let exact =
            Operator::SemiJoin { keys: places, lookup: Lookup::Keys, number: number as u8, is_anti: false };
        let near = Program::check(self.near.input().to_vec(), operators).ok()?;
        let finish = std::iter::once(exact).chain(self.finish.operators().iter().cloned()).collect();
        let finish = Program::check(near.output().to_vec(), finish).ok()?;
        Some(Plan { near, finish, columns: self.columns.clone(), key_sets: self.key_sets.clone() })
    }
}

/// Where a result stands among keys and partial values.
enum Finished {
    Value(u16),
    Mean { sum: u16, count: u16 },
}

/// Whether a projection would leave so many columns as they are.
fn changes_nothing(expressions: &[Vec<Instruction>], columns: usize) -> bool {
    let stays = |(at, code): (usize, &Vec<Instruction>)| match code[..] {
        [Instruction::Column(of)] => usize::from(of) == at,
        _ => false,
    };
    expressions.len() == columns && expressions.iter().enumerate().all(stays)
}

impl Query {
    /// Over a table of these columns.
    pub fn over(columns: Vec<(String, Type)>) -> Query {
        Query {
            input: columns.iter().map(|(_, of)| *of).collect(),
            near: Vec::new(),
            finish: None,
            columns,
            key_sets: Vec::new(),
            failed: None,
            groups: 65_536,
        }
    }

    /// Groups that a run beside the data holds at a time, 1 to 1,048,576. The answer does not depend on it.
    #[must_use]
    pub fn groups_at_a_time(mut self, groups: u32) -> Query {
        if !(1..=GROUPS_MAX).contains(&groups) {
            self.failed.get_or_insert(QueryError(format!(
                "{groups} groups at a time: 1 to {GROUPS_MAX} are permitted"
            )));
        }
        self.groups = groups;
        self
    }

    /// The columns as they stand now.
    pub fn columns(&self) -> &[(String, Type)] {
        &self.columns
    }

    /// Rows for which it is true.
    #[must_use]
    pub fn filter(self, condition: Expr) -> Query {
        self.step("filter", |query| {
            let (code, of) = condition.compile(&query.columns)?;
            if of != Type::Boolean {
                return Err(format!("{condition} is {of} where true or false is wanted"));
            }
            query.push(Operator::Filter(code));
            Ok(())
        })
    }

    /// These columns instead.
    #[must_use]
    pub fn select(self, list: impl IntoIterator<Item = (String, Expr)>) -> Query {
        let list: Vec<_> = list.into_iter().collect();
        self.step("select", |query| query.project(list))
    }

    /// Rows whose keys are those of a row of another table: each pair is a column here and one of `other`. NULL is like
    /// nothing. A key is compared as this table's type; one that the type has no value for is that of no row.
    #[must_use]
    pub fn semi_join(
        self,
        on: impl IntoIterator<Item = (String, String)>,
        schema: &Schema,
        other: &[RecordBatch],
    ) -> Query {
        let on: Vec<_> = on.into_iter().collect();
        self.step("semi-join", |query| query.join(&on, schema, other, false))
    }

    /// Rows whose keys are those of no row of another table, and those with a NULL among them.
    #[must_use]
    pub fn anti_join(
        self,
        on: impl IntoIterator<Item = (String, String)>,
        schema: &Schema,
        other: &[RecordBatch],
    ) -> Query {
        let on: Vec<_> = on.into_iter().collect();
        self.step("anti-join", |query| query.join(&on, schema, other, true))
    }

    /// One row for each combination of the keys that there is, with the aggregates. Without keys: one row.
    #[must_use]
    pub fn group_by(
        self,
        keys: impl IntoIterator<Item = (String, Expr)>,
        aggregates: impl IntoIterator<Item = (String, Agg)>,
    ) -> Query {
        let (keys, aggregates): (Vec<_>, Vec<_>) =
            (keys.into_iter().collect(), aggregates.into_iter().collect());
        self.step("group by", |query| query.group(keys, aggregates))
    }

    /// Each row once.
    #[must_use]
    pub fn distinct(self) -> Query {
        let keys: Vec<_> = self.columns.iter().map(|(name, _)| (name.clone(), col(name.clone()))).collect();
        self.step("distinct", |query| query.group(keys, Vec::new()))
    }

    /// The first rows in an order.
    #[must_use]
    pub fn top(self, by: impl IntoIterator<Item = By>, rows: u32) -> Query {
        let by: Vec<_> = by.into_iter().collect();
        self.step("top", |query| {
            let mut keys: Vec<SortKey> = Vec::new();
            for By { column, is_descending, nulls_first } in by {
                let column = query.position(&column)?;
                // Rows that a column leaves in a tie are not told apart by the same column.
                if keys.iter().all(|known| known.column != column) {
                    keys.push(SortKey { column, is_descending, nulls_first });
                }
            }
            query.push(Operator::Top { keys, rows });
            query.end();
            Ok(())
        })
    }

    /// Any rows, no more than so many.
    #[must_use]
    pub fn limit(self, rows: u64) -> Query {
        self.step("limit", |query| {
            query.push(Operator::Limit(rows));
            query.end();
            Ok(())
        })
    }

    /// As programs. The first error of any step.
    pub fn plan(self) -> Result<Plan, QueryError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let flawed = |flaw: crate::Flaw| QueryError(flaw.to_string());
        let near = Program::check(self.input, self.near).map_err(flawed)?;
        let finish =
            Program::check(near.output().to_vec(), self.finish.unwrap_or_default()).map_err(flawed)?;
        Ok(Plan { near, finish, columns: self.columns, key_sets: self.key_sets })
    }

    fn step(mut self, name: &str, act: impl FnOnce(&mut Query) -> Result<(), String>) -> Query {
        if self.failed.is_none()
            && let Err(why) = act(&mut self)
        {
            self.failed = Some(QueryError(format!("{name}: {why}")));
        }
        self
    }

    fn push(&mut self, operator: Operator) {
        self.finish.as_mut().unwrap_or(&mut self.near).push(operator);
    }

    /// Behind a grouping, top or limit: what follows sees merged rows, in a stage of its own.
    fn end(&mut self) {
        self.finish.get_or_insert_default();
    }

    fn join(
        &mut self,
        on: &[(String, String)],
        schema: &Schema,
        other: &[RecordBatch],
        is_anti: bool,
    ) -> Result<(), String> {
        if !(1..=KEYS_MAX).contains(&on.len()) {
            return Err(format!("{} keys: 1 to {KEYS_MAX} are permitted", on.len()));
        }
        if self.key_sets.len() == LOOKUPS_MAX {
            return Err(format!("one more: a query may have {LOOKUPS_MAX} semi-joins"));
        }
        let (mut keys, mut columns) = (Vec::new(), Vec::new());
        for (mine, theirs) in on {
            let names = || schema.fields().iter().map(|field| &**field.name()).collect::<Vec<_>>().join(", ");
            let none = |_| format!("the other table has no column {theirs:?}; there are {}", names());
            let key = self.position(mine)?;
            keys.push(key);
            columns.push((schema.index_of(theirs).map_err(none)?, self.columns[usize::from(key)].1));
        }
        let set = KeySet::new(&columns, schema, other)?;
        let number = self.key_sets.len() as u8;
        self.key_sets.push(Arc::new(set));
        self.push(Operator::SemiJoin { keys, lookup: Lookup::Keys, number, is_anti });
        Ok(())
    }

    fn position(&self, name: &str) -> Result<u16, String> {
        let names = || self.columns.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
        let found = self.columns.iter().zip(0u16..).find(|((known, _), _)| known == name);
        found.map(|(_, at)| at).ok_or_else(|| format!("no column {name:?}; there are {}", names()))
    }

    fn project(&mut self, list: Vec<(String, Expr)>) -> Result<(), String> {
        let mut columns = Vec::new();
        let mut expressions = Vec::new();
        for (name, expr) in list {
            let (code, of) = expr.compile(&self.columns).map_err(|why| format!("{name}: {why}"))?;
            expressions.push(code);
            columns.push((name, of));
        }
        if !changes_nothing(&expressions, self.columns.len()) {
            self.push(Operator::Project(expressions));
        }
        self.columns = columns;
        Ok(())
    }

    fn group(&mut self, keys: Vec<(String, Expr)>, list: Vec<(String, Agg)>) -> Result<(), String> {
        if self.finish.is_some() {
            return Err("behind a grouping, top or limit: one of them is what a query can have".to_owned());
        }
        let key_count = keys.len();
        let mut inputs = keys;
        let mut aggregates: Vec<Aggregate> = Vec::new();
        let mut results: Vec<(String, Finished)> = Vec::new();
        for (name, agg) in list {
            let (functions, over): (&[Function], Option<Expr>) = match agg {
                Agg::Rows => (&[Function::Count], None),
                Agg::Count(expr) => (&[Function::Count], Some(expr)),
                Agg::Sum(expr) => (&[Function::Sum], Some(expr)),
                Agg::Min(expr) => (&[Function::Min], Some(expr)),
                Agg::Max(expr) => (&[Function::Max], Some(expr)),
                Agg::Avg(expr) => (&[Function::Sum, Function::Count], Some(expr)),
            };
            // One column for each expression, however often it is used.
            let column = over.map(|expr| match inputs.iter().position(|(_, known)| *known == expr) {
                Some(at) => at as u16,
                None => {
                    inputs.push((name.clone(), expr));
                    inputs.len() as u16 - 1
                }
            });
            let mut place = |function| -> u16 {
                let wanted = Aggregate { function, column };
                let at = aggregates.iter().position(|known| *known == wanted).unwrap_or_else(|| {
                    aggregates.push(wanted);
                    aggregates.len() - 1
                });
                (key_count + at) as u16
            };
            let places: Vec<u16> = functions.iter().map(|function| place(*function)).collect();
            let result = match places[..] {
                [sum, count] => Finished::Mean { sum, count },
                _ => Finished::Value(places[0]),
            };
            results.push((name, result));
        }
        self.project(inputs)?;
        let types: Vec<Type> = self.columns.iter().map(|(_, of)| *of).collect();
        let mut partial: Vec<Type> = types[..key_count].to_vec();
        for Aggregate { function, column } in &aggregates {
            let of = column.and_then(|column| types.get(usize::from(column)).copied());
            partial.push(partial_type(*function, of)?);
        }
        let names: Vec<String> = self.columns[..key_count].iter().map(|(name, _)| name.clone()).collect();
        self.push(Operator::Group { keys: (0..key_count as u16).collect(), aggregates, groups: self.groups });
        self.end();
        let mut columns: Vec<(String, Type)> =
            names.into_iter().zip(&partial).map(|(name, of)| (name, *of)).collect();
        let mut expressions: Vec<Vec<Instruction>> =
            (0..key_count as u16).map(|key| vec![Instruction::Column(key)]).collect();
        for (name, result) in results {
            let (code, of) = match result {
                Finished::Value(at) => (vec![Instruction::Column(at)], partial[usize::from(at)]),
                Finished::Mean { sum, count } => {
                    let mut code = vec![Instruction::Column(sum)];
                    if partial[usize::from(sum)] != Type::Float64 {
                        code.push(Instruction::Cast(Type::Float64));
                    }
                    code.extend([Instruction::Column(count), Instruction::Cast(Type::Float64)]);
                    code.push(Instruction::Binary(Binary::Divide));
                    (code, Type::Float64)
                }
            };
            expressions.push(code);
            columns.push((name, of));
        }
        if !changes_nothing(&expressions, partial.len()) {
            self.push(Operator::Project(expressions));
        }
        self.columns = columns;
        Ok(())
    }
}
