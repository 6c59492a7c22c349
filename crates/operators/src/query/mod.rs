//! Queries over one table, by the names of its columns, as people and engines write them. [`Query::plan`] makes two
//! programs of a query: one runs beside the data, the other finishes the merged result.
//!
//! The idea: everything up to the first grouping, top or limit runs beside the data. Whatever follows must see merged
//! rows, so it is a program of its own, run by the same code where the rows are merged.

mod expr;
mod written;

pub use expr::{Expr, Literal, col, lit};

use crate::expression::{Binary, Instruction};
use crate::limits::{GROUPS_MAX, KEYS_MAX, LOOKUPS_MAX};
use crate::program::{Aggregate, AggregateFunction, JoinLookup, Operator, Program, SortKey, partial_type};
use crate::run::KeySet;
use crate::types::Type;
use arrow_array::RecordBatch;
use arrow_schema::Schema;
use std::fmt;
use std::sync::Arc;

/// Error in a query: the step and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError(pub String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QueryError {}

/// Aggregate over the rows of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Agg {
    /// Number of rows.
    Rows,
    /// Number of rows in which the value is not NULL.
    Count(Expr),
    /// Sum of the values.
    Sum(Expr),
    /// Least value.
    Min(Expr),
    /// Greatest value.
    Max(Expr),
    /// Mean, a float64.
    Avg(Expr),
}

/// Sort key by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// Name of the column.
    pub column: String,
    /// True if the greatest value comes first.
    pub is_descending: bool,
    /// True if NULL comes before all values.
    pub nulls_first: bool,
}

impl By {
    /// Sorts by the least value first, NULL last.
    pub fn ascending(column: impl Into<String>) -> By {
        By { column: column.into(), is_descending: false, nulls_first: false }
    }

    /// Sorts by the greatest value first, NULL last.
    pub fn descending(column: impl Into<String>) -> By {
        By { column: column.into(), is_descending: true, nulls_first: false }
    }
}

/// Query under construction. Each method adds a step and returns the query; [`Query::plan`] reports the first error.
#[derive(Clone, Debug)]
pub struct Query {
    input: Vec<Type>,
    /// Operators that run beside the data.
    near: Vec<Operator>,
    /// Operators over the merged rows. `None` until a grouping, top or limit needs them.
    finish: Option<Vec<Operator>>,
    /// Columns after the last step.
    columns: Vec<(String, Type)>,
    /// Keys of the semi-joins. The number of a semi-join is the position of its keys here.
    key_sets: Vec<Arc<KeySet>>,
    /// Error of the first step that failed. `None` if none did.
    failed: Option<QueryError>,
    /// Most groups that a run beside the data holds at a time.
    groups: u32,
}

/// Query as two programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Program that runs beside the data.
    pub near: Program,
    /// Program that runs over the merged rows.
    pub finish: Program,
    /// Columns of the result.
    pub columns: Vec<(String, Type)>,
    /// Keys of the semi-joins of both programs. The number of a semi-join is the position of its keys here.
    pub key_sets: Vec<Arc<KeySet>>,
}

impl Plan {
    /// Returns the numbers of the key sets that the program beside the data uses.
    pub fn near_key_sets(&self) -> impl Iterator<Item = usize> {
        self.near.operators().iter().filter_map(|operator| match operator {
            Operator::SemiJoin { number, .. } => Some(usize::from(*number)),
            _ => None,
        })
    }

    /// Returns the plan with a Bloom filter beside the data instead of key set `number`. The merged rows are then
    /// looked up in the exact keys, so the result is the same. `None` if that would change the result: the semi-join is
    /// an anti-join, a later operator beside the data groups or limits the rows, or a later projection drops a key.
    pub fn by_filter(&self, number: usize) -> Option<Plan> {
        let mut operators = self.near.operators().to_vec();
        let is_it = |operator: &Operator| matches!(operator, Operator::SemiJoin { number: of, .. } if usize::from(*of) == number);
        let at = operators.iter().position(is_it)?;
        let Operator::SemiJoin { keys, lookup, is_anti: false, .. } = &mut operators[at] else { return None };
        *lookup = JoinLookup::Bloom;
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
        let exact = Operator::SemiJoin {
            keys: places,
            lookup: JoinLookup::Keys,
            number: number as u8,
            is_anti: false,
        };
        let near = Program::check(self.near.input().to_vec(), operators).ok()?;
        let finish = std::iter::once(exact).chain(self.finish.operators().iter().cloned()).collect();
        let finish = Program::check(near.output().to_vec(), finish).ok()?;
        Some(Plan { near, finish, columns: self.columns.clone(), key_sets: self.key_sets.clone() })
    }
}

/// Source of a column of a grouping's result: a column of the grouping's output (keys, then partial values), or a mean
/// of two of them.
enum ResultColumn {
    Value(u16),
    Mean { sum: u16, count: u16 },
}

/// Reports whether a projection would leave all of `columns` columns as they are.
fn changes_nothing(expressions: &[Vec<Instruction>], columns: usize) -> bool {
    let stays = |(at, code): (usize, &Vec<Instruction>)| match code[..] {
        [Instruction::Column(of)] => usize::from(of) == at,
        _ => false,
    };
    expressions.len() == columns && expressions.iter().enumerate().all(stays)
}

impl Query {
    /// Makes an empty query over a table of these columns.
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

    /// Sets the groups that a run beside the data may hold at a time, 1 to 1,048,576. The result does not depend on
    /// it.
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

    /// Returns the columns after the last step.
    pub fn columns(&self) -> &[(String, Type)] {
        &self.columns
    }

    /// Keeps the rows for which the condition is true.
    #[must_use]
    pub fn filter(self, condition: Expr) -> Query {
        self.step("filter", |query| {
            let (code, of) = condition.compile(&query.columns)?;
            if of != Type::Boolean {
                return Err(format!("{condition} is of type {of}: a condition (true or false) is needed"));
            }
            query.push(Operator::Filter(code));
            Ok(())
        })
    }

    /// Replaces the columns by these.
    #[must_use]
    pub fn select(self, list: impl IntoIterator<Item = (String, Expr)>) -> Query {
        let list: Vec<_> = list.into_iter().collect();
        self.step("select", |query| query.project(list))
    }

    /// Keeps the rows whose keys occur in another table. Each pair is a column here and a column of `other`. NULL
    /// equals nothing. Keys are compared as this table's type; a key that has no value in that type matches no row.
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

    /// Keeps the rows whose keys do not occur in another table, and the rows with a NULL among their keys.
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

    /// Makes one row of each combination of keys, with the aggregates. Without keys it makes one row.
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

    /// Keeps one of each set of equal rows.
    #[must_use]
    pub fn distinct(self) -> Query {
        let keys: Vec<_> = self.columns.iter().map(|(name, _)| (name.clone(), col(name.clone()))).collect();
        self.step("distinct", |query| query.group(keys, Vec::new()))
    }

    /// Keeps the first rows in an order.
    #[must_use]
    pub fn top(self, by: impl IntoIterator<Item = By>, rows: u32) -> Query {
        let by: Vec<_> = by.into_iter().collect();
        self.step("top", |query| {
            let mut keys: Vec<SortKey> = Vec::new();
            for By { column, is_descending, nulls_first } in by {
                let column = query.position(&column)?;
                // A second key of the same column cannot break a tie.
                if keys.iter().all(|known| known.column != column) {
                    keys.push(SortKey { column, is_descending, nulls_first });
                }
            }
            query.push(Operator::Top { keys, rows });
            query.end();
            Ok(())
        })
    }

    /// Keeps at most this many rows, whichever they are.
    #[must_use]
    pub fn limit(self, rows: u64) -> Query {
        self.step("limit", |query| {
            query.push(Operator::Limit(rows));
            query.end();
            Ok(())
        })
    }

    /// Returns the query as programs, or the first error of any step.
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

    /// Begins the program over merged rows, after a grouping, top or limit.
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
            return Err(format!("a query may have at most {LOOKUPS_MAX} semi-joins"));
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
        self.push(Operator::SemiJoin { keys, lookup: JoinLookup::Keys, number, is_anti });
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
            return Err("a grouping cannot follow another grouping, a top-k or a limit".to_owned());
        }
        let key_count = keys.len();
        let mut inputs = keys;
        let mut aggregates: Vec<Aggregate> = Vec::new();
        let mut results: Vec<(String, ResultColumn)> = Vec::new();
        for (name, agg) in list {
            let (functions, over): (&[AggregateFunction], Option<Expr>) = match agg {
                Agg::Rows => (&[AggregateFunction::Count], None),
                Agg::Count(expr) => (&[AggregateFunction::Count], Some(expr)),
                Agg::Sum(expr) => (&[AggregateFunction::Sum], Some(expr)),
                Agg::Min(expr) => (&[AggregateFunction::Min], Some(expr)),
                Agg::Max(expr) => (&[AggregateFunction::Max], Some(expr)),
                Agg::Avg(expr) => (&[AggregateFunction::Sum, AggregateFunction::Count], Some(expr)),
            };
            // Each expression is one column of the grouping's input, however many aggregates use it.
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
                [sum, count] => ResultColumn::Mean { sum, count },
                _ => ResultColumn::Value(places[0]),
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
                ResultColumn::Value(at) => (vec![Instruction::Column(at)], partial[usize::from(at)]),
                ResultColumn::Mean { sum, count } => {
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
