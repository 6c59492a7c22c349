//! Events that a broker writes to its log about its pool.

use farpool_host::Event;
use farpool_lease::broker::{LostFiles, News};

/// Returns the log event for a change of the pool.
pub(crate) fn event_of(news: News) -> Event {
    match news {
        News::NodeJoined { node, lost } if lost.count == 0 => {
            Event::info("node_joined", format!("node {node} has joined the pool")).node(&*node)
        }
        News::NodeJoined { node, lost } => {
            let message =
                format!("node {node} has joined the pool without what it held before; {}", shown(&lost));
            Event::warn("node_joined", message).node(&*node)
        }
        News::NodeLost { node, silent_ms, files } => {
            let held = match files {
                0 => "no published file has bytes only there".to_owned(),
                files => {
                    format!(
                        "{files} published files have bytes only there and cannot be read until it comes back"
                    )
                }
            };
            let message = format!("node {node} is lost: it has been silent for {silent_ms} ms; {held}");
            Event::warn("node_lost", message).node(&*node)
        }
        News::NodeBack { node } => {
            Event::info("node_back", format!("node {node} is back and has kept its memory")).node(&*node)
        }
        News::NodeReplaced { node, lost } => {
            let message = format!("node {node} has started again with empty memory; {}", shown(&lost));
            Event::warn("node_replaced", message).node(&*node)
        }
        News::NodeEnded { node } => {
            Event::info("node_ended", format!("node {node} has ended as ordered, with nothing left in it"))
                .node(&*node)
        }
        News::SessionLost { session, tenant } => Event::info(
            "session_lost",
            format!("session {session} of tenant {tenant} has not been heard of for too long"),
        )
        .session(session)
        .tenant(&*tenant),
    }
}

/// Says which published files have lost bytes, and what to do.
fn shown(lost: &LostFiles) -> String {
    if lost.count == 0 {
        return "no published file had bytes there".to_owned();
    }
    let first: Vec<String> = lost.first.iter().map(|name| format!("{name:?}")).collect();
    let more = if lost.count > first.len() { ", .." } else { "" };
    format!(
        "{} published files have lost bytes: {}{more}; publish them or put the tables again",
        lost.count,
        first.join(", ")
    )
}
