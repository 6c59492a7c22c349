//! Refusals of the broker that concern a node, as errors that name the node and its host.
//!
//! The idea: a refusal carries only the id of the node, which means nothing to a user. The broker's status has the
//! names of nodes, and so has this session for each node it has used. An error about a loss also says what to do.

use crate::error::{Error, name_and_host};
use crate::nodes::Nodes;
use farpool_wire::control::NodeStatus;
use farpool_wire::{Code, NodeId, Refusal};

/// Advice for a lost published file, to a user who has the bytes elsewhere.
const PUBLISH_AGAIN: &str = "put the table again, or write and publish the file again";

/// Turns a refusal of the broker into an error. `status` asks the broker for its status of a node.
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
                "bytes of the file were lost: memory node {} has been without them for {} or longer; \
                 {PUBLISH_AGAIN}",
                name_and_host(&node.info),
                seconds(node.present_ms)
            ),
            None => format!("{refusal}; {PUBLISH_AGAIN}"),
        },
        Code::NotReported if id != NodeId(0) => match status(id) {
            Some(node) => format!(
                "memory node {} (last report {} ago) has not reported the file's regions as sealed; publish the file \
                 again",
                name_and_host(&node.info),
                seconds(node.heard_ms_ago)
            ),
            None => format!("{refusal}; publish the file again"),
        },
        // A refusal without a node id concerns the whole pool.
        Code::NoNodes if id != NodeId(0) => {
            let node = nodes.shown(id).map_or(String::new(), |shown| format!(", {shown},"));
            format!(
                "a memory node that has bytes of the file{node} has not connected since the broker started; start \
                 that node or, if its bytes are gone, {PUBLISH_AGAIN}"
            )
        }
        _ => return error,
    };
    error.told(format!("{broker}: {why}"))
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}
