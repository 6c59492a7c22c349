//! The order of the broker to make copies that a node has, and how far it is. The thread that copies and the one that
//! reports share it.

use farpool_host::HostEvent;
use farpool_lock::Mutex;
use farpool_wire::Request;
use farpool_wire::control::{EndRepair, NextRepair, RepairOrder};

/// State of the work on copies.
#[derive(Debug, Default)]
pub(crate) enum Step {
    /// Nothing. The broker may be asked for an order.
    #[default]
    Idle,
    /// An order waits for the thread that copies.
    Ordered(Box<RepairOrder>),
    /// The thread copies.
    Copying,
    /// Copies were made, and the broker has not decided about them.
    Copied(Box<EndRepair>),
}

/// Order that this node has, and how far it is.
#[derive(Debug, Default)]
pub(crate) struct CopyOrder {
    pub(crate) step: Mutex<Step>,
    /// Event that is signalled when there is an order.
    pub(crate) ordered: HostEvent,
}

impl CopyOrder {
    /// Returns the request to send to the broker next, if there is one.
    pub(crate) fn next_request(&self, asked: NextRepair) -> Option<Request> {
        match &*self.step.lock() {
            Step::Idle => Some(Request::NextRepair(asked)),
            Step::Copied(report) => Some(Request::EndRepair((**report).clone())),
            Step::Ordered(_) | Step::Copying => None,
        }
    }

    /// Takes an order.
    pub(crate) fn give(&self, order: RepairOrder) {
        *self.step.lock() = Step::Ordered(Box::new(order));
        self.ordered.signal();
    }

    /// Wakes the thread that copies, when the node stops.
    pub(crate) fn wake(&self) {
        self.ordered.signal();
    }
}
