//! What a query reads of a table, before anything is decided about where.

use farpool_operators::{Plan, Program};
use std::sync::Arc;

/// What a query reads of a table.
pub(crate) struct Scope {
    /// The program beside the data, over these columns alone.
    pub(crate) program: Arc<Program>,
    pub(crate) columns: Vec<usize>,
    /// Row groups, in ascending order; those that cannot have rows of use are not among them.
    pub(crate) groups: Vec<usize>,
}

impl Scope {
    pub(crate) fn new(plan: &Plan, groups: Vec<usize>) -> Scope {
        let (program, columns) = plan.near.narrowed();
        Scope { program: Arc::new(program), columns, groups }
    }
}
