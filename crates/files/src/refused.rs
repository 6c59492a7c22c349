//! What the broker refuses because of a node, told with the name and host of that node.
//!
//! Idea: a refusal carries one number, the node's id, which means nothing to people. The broker's status has names, and
//! so has this session of each node that it has used. Who is told of a loss also reads what to do.

use crate::error::{Error, name_and_host};
use crate::nodes::Nodes;
use farpool_wire::control::NodeStatus;
use farpool_wire::{Code, NodeId, Refusal};

/// What whoever has the bytes elsewhere can do about a published file that was lost.
const PUBLISH_AGAIN: &str = "put the table, or write and publish the file, again";

/// Returns the error that a refusal of the broker is. `status` asks it what it knows of a node.
pub(crate) fn refused(
    broker: &str,
    refusal: Refusal,
    nodes: &Nodes,
    status: impl Fn(NodeId) -> Option<NodeStatus>,
) -> Error {
    let error = Error::of_refusal(broker, refusal);
    let id = NodeId(refusal.detail);
    let why = match refusal.code {
        Code::FileLost => match status(id) {
            Some(node) => format!(
                "the file lost bytes with memory node {}, which has been there without them for {} or longer; \
                 {PUBLISH_AGAIN}",
                name_and_host(&node.info),
                seconds(node.present_ms)
            ),
            None => format!("{refusal}; {PUBLISH_AGAIN}"),
        },
        Code::NotReported => match status(id) {
            Some(node) => format!(
                "memory node {}, last heard of {} ago, has not reported the file's regions as sealed; publish it again",
                name_and_host(&node.info),
                seconds(node.heard_ms_ago)
            ),
            None => format!("{refusal}; publish it again"),
        },
        // Without an id it is about the whole pool.
        Code::NoNodes if id != NodeId(0) => {
            let node = nodes.shown(id).map_or(String::new(), |shown| format!(", {shown},"));
            format!(
                "a memory node that has bytes of the file{node} has not been heard of since the broker started; start \
                 that node, or if its bytes are gone {PUBLISH_AGAIN}"
            )
        }
        _ => return error,
    };
    error.told(format!("{broker}: {why}"))
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}
