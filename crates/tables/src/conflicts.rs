//! Conflicts: who has changed a table meanwhile, for the error of a commit that cannot be made beside theirs.

use crate::history::HistoryEntry;
use crate::names::file_name;
use farpool_files::beneath::list_snapshots;
use farpool_files::{Error, ErrorKind, Pool};
use std::fmt::Display;

/// Returns the commits that have changed a table after a snapshot, the first one first: the last ones of many.
pub(crate) fn commits_since(pool: &Pool, name: &str, snapshot: u64) -> Result<Vec<HistoryEntry>, Error> {
    let page = list_snapshots(pool, &file_name(name)?, 0)?;
    let since = page.snapshots.iter().filter(|info| info.snapshot > snapshot);
    Ok(since.rev().map(HistoryEntry::of).collect())
}

/// Describes a commit: its snapshot, its session, and what it did.
pub(crate) fn shown(entry: &HistoryEntry) -> String {
    let HistoryEntry { snapshot, session, summary, .. } = entry;
    format!("snapshot {snapshot}, which session {session} made ({summary})")
}

/// Returns the error of a commit that was based on a snapshot of a table which others have changed since, with the last
/// commit of these. Other errors stay as they are.
pub(crate) fn with_whom(pool: &Pool, name: &str, snapshot: u64, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    // If the broker does not answer any more, its refusal says enough.
    let last = commits_since(pool, name, snapshot).ok().and_then(|mut entries| entries.pop());
    last.map_or(error, |last| changed(format_args!("snapshot {snapshot}"), &last))
}

/// Returns the error of a commit that would undo what another one did since it began.
pub(crate) fn changed(since: impl Display, other: &HistoryEntry) -> Error {
    let message = format!("the table has changed since {since}: {}; try again", shown(other));
    Error::new(ErrorKind::Conflict, message)
}
