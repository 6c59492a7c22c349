//! History of a table: the snapshots that commits have made.

use crate::names::file_name;
use farpool_files::beneath::list_snapshots;
use farpool_files::{Error, Pool};
use farpool_wire::control::{SnapshotAt, SnapshotInfo};
use farpool_wire::{SessionId, TableId};

/// Snapshot in the history of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Session that made it.
    pub session: SessionId,
    /// Time of the commit by the broker's clock, in ms since 1970.
    pub at_ms: u64,
    /// True if the snapshot can be read: it has not ended.
    pub is_kept: bool,
    /// Description of what was done, in a few words.
    pub summary: String,
}

impl HistoryEntry {
    pub(crate) fn of(info: &SnapshotInfo) -> HistoryEntry {
        HistoryEntry {
            snapshot: info.snapshot,
            session: info.session,
            at_ms: info.at_ms,
            is_kept: info.is_kept,
            summary: String::from_utf8_lossy(&info.summary).into_owned(),
        }
    }
}

/// Returns the snapshots of a table, the latest first, with those that have ended and are still known.
pub fn history(pool: &Pool, name: &str) -> Result<Vec<HistoryEntry>, Error> {
    history_after(pool, name, SnapshotAt::default()).map(|(_, entries)| entries)
}

/// Returns the id of a table, and its snapshots as [`history`] does: those after one, or all if that is of another
/// table. Table 0 has none.
pub(crate) fn history_after(
    pool: &Pool,
    name: &str,
    after: SnapshotAt,
) -> Result<(TableId, Vec<HistoryEntry>), Error> {
    let list = || {
        let (file, mut before, mut entries) = (file_name(name)?, 0, Vec::new());
        loop {
            let page = list_snapshots(pool, &file, before)?;
            let first = if page.table == after.table { after.snapshot + 1 } else { 1 };
            let wanted = page.snapshots.iter().filter(|info| info.snapshot >= first);
            entries.extend(wanted.map(HistoryEntry::of));
            match page.snapshots.last().filter(|last| page.more && last.snapshot > first) {
                Some(last) => before = last.snapshot,
                None => return Ok((page.table, entries)),
            }
        }
    };
    list().map_err(|error: Error| error.during(format_args!("listing the snapshots of far table {name:?}")))
}
