//! What a scan does with a far table's rows beside them, and the program it becomes.
//!
//! Pure: no I/O, no clock.

use farpool::operators::{Aggregate, Instruction, KeySet, Lookup, Operator, Plan, Program, SortKey, Type};
use std::sync::Arc;

/// Groups that are held at the same time beside the data: others leave as partial ones, and are merged here.
const GROUPS: u32 = 65_536;

/// A column of what leaves a scan, over the columns of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
}

/// What becomes of rows that pass the filters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// They leave: all of them, or any so many.
    Rows(Option<u64>),
    /// The first columns are keys, by which aggregates of others are made. Without aggregates: each once.
    Groups { keys: usize, aggregates: Vec<Aggregate> },
    /// The first ones in an order leave.
    Top { keys: Vec<SortKey>, rows: u32 },
}

/// What is known of a column that leaves, whatever the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It has the values of an earlier one.
    Copy { of: usize, place: usize },
    /// It has one value.
    Constant { place: usize },
}

/// Rows that would have no partner, as it is known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Narrowing {
    /// Each true for rows that may have one.
    pub(crate) filters: Vec<Vec<Instruction>>,
    /// Columns of the table, and the keys that they are looked up in.
    pub(crate) joins: Vec<(Vec<u16>, Arc<KeySet>)>,
}

impl Narrowing {
    /// Bytes of keys, which each step brings to each node.
    pub(crate) fn key_bytes(&self) -> u64 {
        self.joins.iter().map(|(_, set)| set.travel_bytes() as u64).sum()
    }
}

/// Filters, then columns, then an ending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pipeline {
    pub(crate) filters: Vec<Vec<Instruction>>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) ending: Ending,
}

impl Pipeline {
    /// The program over a table of these columns, or why there is none.
    pub(crate) fn plan(&self, table: &[Type], narrowing: &Narrowing) -> Result<Plan, String> {
        let mut near = Vec::new();
        let filters = self.filters.iter().chain(&narrowing.filters);
        // One after the other would look at each row group's rows several times.
        let filter = filters.cloned().reduce(|mut all, one| {
            all.extend(one);
            all.push(Instruction::And);
            all
        });
        near.extend(filter.map(Operator::Filter));
        let mut key_sets = Vec::new();
        for (keys, set) in &narrowing.joins {
            let number = key_sets.len() as u8;
            near.push(Operator::SemiJoin {
                keys: keys.clone(),
                lookup: Lookup::Keys,
                number,
                is_anti: false,
            });
            key_sets.push(Arc::clone(set));
        }
        if !self.is_whole(table.len()) {
            near.push(Operator::Project(self.outputs.iter().map(|output| output.code.clone()).collect()));
        }
        match &self.ending {
            Ending::Rows(limit) => near.extend(limit.map(Operator::Limit)),
            Ending::Groups { keys, aggregates } => near.push(Operator::Group {
                keys: (0..*keys as u16).collect(),
                aggregates: aggregates.clone(),
                groups: GROUPS,
            }),
            Ending::Top { keys, rows } => near.push(Operator::Top { keys: keys.clone(), rows: *rows }),
        }
        let near = Program::check(table.to_vec(), near).map_err(|flaw| flaw.to_string())?;
        let finish = Program::check(near.output().to_vec(), Vec::new()).map_err(|flaw| flaw.to_string())?;
        let name = |place: usize| {
            self.outputs.get(place).map_or_else(|| format!("#{place}"), |output| output.name.clone())
        };
        let columns = near.output().iter().enumerate().map(|(place, of)| (name(place), *of)).collect();
        Ok(Plan { near, finish, columns, key_sets })
    }

    /// What a program does, if it is one that a pipeline becomes. Its columns take these names.
    pub(crate) fn of(program: &Program, names: &[String]) -> Result<Pipeline, String> {
        let mut filters = Vec::new();
        let mut columns: Option<Vec<Vec<Instruction>>> = None;
        let mut ending = Ending::Rows(None);
        for operator in program.operators() {
            match operator {
                Operator::Filter(code) if columns.is_none() => filters.push(code.clone()),
                Operator::Project(list) if columns.is_none() => columns = Some(list.clone()),
                Operator::Limit(rows) => ending = Ending::Rows(Some(*rows)),
                Operator::Group { keys, aggregates, .. } if keys.iter().copied().eq(0..keys.len() as u16) => {
                    ending = Ending::Groups { keys: keys.len(), aggregates: aggregates.clone() };
                }
                Operator::Top { keys, rows } => ending = Ending::Top { keys: keys.clone(), rows: *rows },
                other => return Err(format!("a program of a scan with {other:?} in this place")),
            }
        }
        let whole =
            || (0..program.input().len() as u16).map(|column| vec![Instruction::Column(column)]).collect();
        let columns = columns.unwrap_or_else(whole).into_iter().enumerate();
        let name = |place: usize| names.get(place).cloned().unwrap_or_default();
        let outputs = columns.map(|(place, code)| Output { name: name(place), code }).collect();
        Ok(Pipeline { filters, outputs, ending })
    }

    /// Returns what is known of the columns that leave.
    pub(crate) fn leaving(&self) -> Vec<Leaving> {
        let count = match &self.ending {
            // Behind the keys there are aggregates of the others.
            Ending::Groups { keys, .. } => *keys,
            Ending::Rows(_) | Ending::Top { .. } => self.outputs.len(),
        };
        let outputs = &self.outputs[..count.min(self.outputs.len())];
        let known = |(place, output): (usize, &Output)| {
            let of = outputs[..place].iter().position(|known| known.code == output.code);
            match (of, &output.code[..]) {
                (_, [Instruction::Literal(_)]) => Some(Leaving::Constant { place }),
                (Some(of), _) => Some(Leaving::Copy { of, place }),
                _ => None,
            }
        };
        outputs.iter().enumerate().filter_map(known).collect()
    }

    /// Whether all columns of the table leave as they are.
    fn is_whole(&self, columns: usize) -> bool {
        let stays = |(place, output): (usize, &Output)| matches!(output.code[..], [Instruction::Column(of)] if usize::from(of) == place);
        self.outputs.len() == columns && self.outputs.iter().enumerate().all(stays)
    }
}
