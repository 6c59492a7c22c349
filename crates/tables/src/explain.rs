//! Explanation of a query before it runs: what it reads and where each step runs. Explaining sends no request.

use crate::FarTable;
use crate::estimates::Estimates;
use crate::footer::RowGroup;
use crate::joining::{Joining, SemiJoin};
use farpool_operators::{Operator, Plan, Type, display};
use farpool_planner::Placement;
use farpool_wire::shown;
use std::fmt;

/// Explanation of a query: what it would read and do, and what each placement is expected to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Name of the table.
    pub table: String,
    /// Number of files of the table.
    pub files_total: usize,
    /// Number of files that are not opened, because by their bounds no row passes. Their row groups and rows are not
    /// counted below.
    pub files_skipped: usize,
    /// Names of the columns that the query reads, in the order of the table.
    pub columns: Vec<String>,
    /// Number of columns of the table.
    pub columns_total: usize,
    /// Number of row groups that the query reads.
    pub row_groups: usize,
    /// Number of row groups of the table's open files.
    pub row_groups_total: usize,
    /// Number of row groups that are fetched in every placement: a column that the query reads was added, or its type
    /// was widened, after their rows were written.
    pub row_groups_of_earlier_columns: usize,
    /// Number of rows of the row groups that the query reads.
    pub rows: u64,
    /// Number of rows of the table's open files.
    pub rows_total: u64,
    /// Bytes of the columns and row groups that the query reads.
    pub bytes: u64,
    /// Steps that run over each row group, one line each.
    pub near: Vec<String>,
    /// Semi-joins among these steps, in order, as they would be done if nodes take part.
    pub semi_joins: Vec<SemiJoin>,
    /// Steps that the client runs over the merged rows, one line each.
    pub finish: Vec<String>,
    /// Names and types of the columns of the result.
    pub result: Vec<(String, Type)>,
    /// Estimates for each placement, from what the session has measured so far.
    pub estimates: Estimates,
}

impl FarTable {
    /// Explains what [`FarTable::run`] would do with this plan.
    pub fn explain(&self, plan: &Plan) -> Explanation {
        let (_, places) = plan.near.narrowed();
        let fields = self.schema().fields();
        let all: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
        let kept = self.groups_that_may_pass(plan);
        let groups: Vec<&RowGroup> = kept.iter().map(|group| &self.row_groups()[*group]).collect();
        let buffers =
            |group: &&RowGroup| -> u64 { group.buffers(&places).map(|buffer| u64::from(buffer.bytes)).sum() };
        let Joining { plan: shipped, joins } = Joining::of(plan, Placement::Split);
        let (mut near, names) = display::lines(&shipped.near, &all);
        let (mut finish, _) = display::lines(&shipped.finish, &names);
        for (line, operator) in near.iter_mut().zip(shipped.near.operators()) {
            if let Operator::SemiJoin { number, .. } = operator
                && let Some(join) = joins.get(usize::from(*number))
            {
                *line += &format!(": {join}");
            }
        }
        for (line, operator) in finish.iter_mut().zip(shipped.finish.operators()) {
            if let Operator::SemiJoin { number, .. } = operator
                && let Some(set) = shipped.key_sets.get(usize::from(*number))
            {
                *line += &format!(": {} keys", set.count());
            }
        }
        Explanation {
            table: self.name().to_owned(),
            files_total: self.files_opened().total,
            files_skipped: self.files_opened().skipped(),
            columns: places.iter().filter_map(|place| all.get(*place).cloned()).collect(),
            columns_total: all.len(),
            row_groups: kept.len(),
            row_groups_total: self.row_groups().len(),
            row_groups_of_earlier_columns: kept
                .iter()
                .filter(|group| !self.has_in_file(**group, &places))
                .count(),
            rows: groups.iter().map(|group| u64::from(group.rows)).sum(),
            rows_total: self.rows(),
            bytes: groups.iter().map(buffers).sum(),
            near,
            semi_joins: joins,
            finish,
            result: plan.columns.clone(),
            estimates: self.estimate(plan, &kept),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.row_groups_total - self.row_groups;
        writeln!(
            f,
            "far table {:?}: {} rows in {} row groups",
            self.table, self.rows_total, self.row_groups_total
        )?;
        if self.files_skipped > 0 {
            let opened = self.files_total - self.files_skipped;
            writeln!(
                f,
                "opens {opened} of {} files: {} skipped by their bounds",
                self.files_total, self.files_skipped
            )?;
        }
        writeln!(
            f,
            "reads {} of {} row groups: {skipped} skipped by their statistics",
            self.row_groups, self.row_groups_total
        )?;
        if self.row_groups_of_earlier_columns > 0 {
            writeln!(
                f,
                "fetches {} row groups in every placement: a column was added or widened after they were written",
                self.row_groups_of_earlier_columns
            )?;
        }
        let columns = if self.columns.is_empty() { "none".to_owned() } else { self.columns.join(", ") };
        let columns = shown(&columns);
        writeln!(f, "reads {} of {} columns: {columns}", self.columns.len(), self.columns_total)?;
        writeln!(f, "reads {} rows, {} bytes", self.rows, self.bytes)?;
        let steps = |f: &mut fmt::Formatter<'_>, what: &str, lines: &[String]| {
            writeln!(f, "{what}{}", if lines.is_empty() { ": no steps" } else { ":" })?;
            lines.iter().try_for_each(|line| writeln!(f, "  {}", shown(line)))
        };
        steps(f, "for each row group", &self.near)?;
        steps(f, "on the client, over the merged rows", &self.finish)?;
        let result = self.result.iter().map(|(name, of)| format!("{name} {of}"));
        writeln!(f, "result: {}", shown(&result.collect::<Vec<_>>().join(", ")))?;
        write!(f, "expected: {}", self.estimates)
    }
}
