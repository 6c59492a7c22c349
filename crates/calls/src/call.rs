//! Calls of functions: what a caller asks for and gets, and the state of a call that is running.

use crate::Function;
use crate::lists::GroupSelection;
use crate::race::Try;
use farpool_files::{Error, ErrorKind};
use farpool_planner::Placement;
use farpool_wire::TraceId;
use std::time::Duration;

/// Options of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Placement of the call. Default: [`Placement::Auto`]. [`Placement::Split`] is for `call_each` only.
    pub placement: Placement,
    /// A byte of the window. The call is shipped to the node that holds it; `None` (the default) means the node that
    /// holds most of the window.
    pub at: Option<u64>,
    /// True to instantiate the module anew for this call, so that nothing of earlier calls is in its heap.
    pub fresh: bool,
    /// Time after which the call is stopped, from 1 ms to 1 h. Default: 10 s.
    pub deadline: Duration,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions { placement: Placement::Auto, at: None, fresh: false, deadline: Duration::from_secs(10) }
    }
}

impl CallOptions {
    pub(crate) fn deadline_ms(&self) -> Result<u32, Error> {
        match self.deadline.as_millis() {
            ms @ 1..=3_600_000 => Ok(ms as u32),
            ms => {
                let message = format!("the deadline is {ms} ms; 1 to 3600000 ms are permitted");
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Output of the function.
    pub output: Vec<u8>,
    /// Time that the function itself ran, summed over the places where it ran.
    pub ran: Duration,
    /// Number of times that the function continued at another node.
    pub hops: u32,
    /// Number of blocks of 64 KiB that it loaded from elsewhere.
    pub supplied: u32,
    /// Trace id of the call, which the nodes where it ran write to their logs.
    pub trace: TraceId,
    /// Name of the node at which the call ended; `None` for the client.
    pub node: Option<String>,
}

/// State of a call that is running.
#[derive(Clone)]
pub(crate) struct Call<'c> {
    pub(crate) function: &'c Function,
    pub(crate) args: &'c [u8],
    pub(crate) fresh: bool,
    pub(crate) deadline_ms: u32,
    /// True if a silent node is given up soon, because others can do the same.
    pub(crate) is_brief: bool,
    /// One of two tries that this is. `None` if there is only one.
    pub(crate) hedged: Option<Try<'c>>,
    /// Row groups that the function sees.
    pub(crate) lists: GroupSelection,
    pub(crate) trace: TraceId,
    /// State that the function passed on at its last hop. `None` before the first hop.
    pub(crate) state: Option<Vec<u8>>,
    /// True once a node has left a hop to the caller: it cannot reach the next node, or has made very many hops. All
    /// later hops go through the caller, as each would first wait for that node.
    pub(crate) hops_through_caller: bool,
    /// Number of blocks of 64 KiB that were supplied to the function from elsewhere.
    pub(crate) supplied: u32,
    /// Time that the function itself ran so far, in ns.
    pub(crate) ran_ns: u64,
}

impl<'c> Call<'c> {
    pub(crate) fn new(
        function: &'c Function,
        args: &'c [u8],
        fresh: bool,
        deadline_ms: u32,
        trace: TraceId,
    ) -> Call<'c> {
        Call {
            function,
            args,
            fresh,
            deadline_ms,
            is_brief: false,
            hedged: None,
            lists: GroupSelection::All,
            trace,
            state: None,
            hops_through_caller: false,
            supplied: 0,
            ran_ns: 0,
        }
    }
}
