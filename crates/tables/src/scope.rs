//! The part of a table that a query reads, known before it is decided where the query runs.

use farpool_operators::{Plan, Program};
use std::sync::Arc;

/// The columns and row groups that a query reads, and the program that runs over them.
pub(crate) struct Scope {
    /// The program that runs over each row group. Its column numbers count within `columns`.
    pub(crate) program: Arc<Program>,
    /// Numbers of the table's columns that the program reads, in ascending order.
    pub(crate) columns: Vec<usize>,
    /// Row groups in ascending order, without those whose statistics show that no row passes.
    pub(crate) groups: Vec<usize>,
}

impl Scope {
    pub(crate) fn new(plan: &Plan, groups: Vec<usize>) -> Scope {
        let (program, columns) = plan.near.narrowed();
        Scope { program: Arc::new(program), columns, groups }
    }
}
