//! Steps that a scan runs beside the data, in memory nodes, and the program made of them.
//!
//! Pure: no I/O, no clock.

use farpool::operators::{
    Aggregate, Instruction, JoinLookup, KeySet, Operator, Plan, Program, SortKey, Type,
};
use std::sync::Arc;

/// Number of groups that a node holds at the same time. If there are more, the node sends several partial results of a
/// group, and they are merged in this process.
const GROUPS: u32 = 65_536;

/// Output column of a scan, as an expression over columns of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
}

/// Last step of a scan, applied to the rows that pass its filters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// Returns the rows: all of them, or any `Some(n)` of them.
    Rows(Option<u64>),
    /// Groups by the first `keys` columns and computes the aggregates of the others. Without aggregates it returns
    /// distinct rows.
    Groups { keys: usize, aggregates: Vec<Aggregate> },
    /// Returns the first rows in an order.
    Top { keys: Vec<SortKey>, rows: u32 },
}

/// Output column of a scan whose values follow from a property that all rows have. `place` is its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It equals the output column with the index `of`.
    Copy { of: usize, place: usize },
    /// It has the same value in all rows.
    Constant { place: usize },
}

/// Filters that exclude rows without a join partner, as far as they are known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Narrowing {
    /// Conditions that hold for every row with a partner.
    pub(crate) filters: Vec<Vec<Instruction>>,
    /// Columns of the table, and the key sets to look them up in.
    pub(crate) joins: Vec<(Vec<u16>, Arc<KeySet>)>,
}

impl Narrowing {
    /// Returns the bytes of the key sets, which each step of the scan sends to each node.
    pub(crate) fn key_bytes(&self) -> u64 {
        self.joins.iter().map(|(_, set)| set.travel_bytes() as u64).sum()
    }
}

/// Pipeline of a scan. Its steps, in this order: filters, output columns, last step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pipeline {
    pub(crate) filters: Vec<Vec<Instruction>>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) ending: Ending,
}

impl Pipeline {
    /// Compiles the pipeline to a program over a table whose columns have these types. The error says why that is
    /// impossible.
    pub(crate) fn plan(&self, table: &[Type], narrowing: &Narrowing) -> Result<Plan, String> {
        let mut near = Vec::new();
        let filters = self.filters.iter().chain(&narrowing.filters);
        // The filters are combined to one, so that each row is looked at once.
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
                lookup: JoinLookup::Keys,
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

    /// Makes a pipeline from a program, if the program has the form that [`Pipeline::plan`] makes. `names` are the
    /// names of its output columns.
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
                other => return Err(format!("a program of a scan with {other:?} in an unsupported place")),
            }
        }
        let whole =
            || (0..program.input().len() as u16).map(|column| vec![Instruction::Column(column)]).collect();
        let columns = columns.unwrap_or_else(whole).into_iter().enumerate();
        let name = |place: usize| names.get(place).cloned().unwrap_or_default();
        let outputs = columns.map(|(place, code)| Output { name: name(place), code }).collect();
        Ok(Pipeline { filters, outputs, ending })
    }

    /// Returns the output columns that are copies of other output columns, or constant.
    pub(crate) fn leaving(&self) -> Vec<Leaving> {
        let count = match &self.ending {
            // Only the keys are output as they are; the aggregates follow.
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

    /// Reports whether the output columns are exactly the columns of the table, in order.
    fn is_whole(&self, columns: usize) -> bool {
        let stays = |(place, output): (usize, &Output)| matches!(output.code[..], [Instruction::Column(of)] if usize::from(of) == place);
        self.outputs.len() == columns && self.outputs.iter().enumerate().all(stays)
    }
}
