//! Control messages about tables whose rows change in snapshots. [`crate::control`] re-exports them.
//!
//! A table consists of parts, published files that never change, and a root, which names the parts of one snapshot. A
//! commit adds parts and gives the table another root, if its root is still the one that the client expects. So each
//! snapshot follows the one before, and its number is one higher. Roots that were replaced stay until their snapshots
//! end.

use crate::catalog::*;
use crate::codec::{Bytes, List, Name, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::NodeInfo;

/// Beginning of the names of tables. Only these have snapshots.
pub const TABLES: &str = "tables/";
/// Beginning of the names of parts, which commits alone publish and drop.
pub const PARTS: &str = ".parts/";
/// Beginning of the names of roots that were replaced.
pub const SNAPSHOTS: &str = ".snapshots/";

/// Number that no part has.
pub const NO_PART: u32 = u32::MAX;

/// Returns the name of a part of a table. Such names are ordered like the parts.
pub fn part_name(table: TableId, at: PartAt) -> Name {
    Name::of_printable(format!("{PARTS}{:016x}/{:016x}/{:08x}", table.0, at.commit.0, at.index))
}

/// Returns the name of a root that was replaced.
pub fn snapshot_name(at: SnapshotAt) -> Name {
    Name::of_printable(format!("{SNAPSHOTS}{:016x}/{:016x}", at.table.0, at.snapshot))
}

wire_struct! {
    /// Part of a table.
    #[derive(Copy, PartialOrd, Ord)]
    PartAt {
        /// Commit that has added the part.
        commit: CommitId,
        /// Number of the part in the commit. A commit can leave numbers out.
        index: u32,
    }
}

wire_struct! {
    /// Snapshot of a table.
    #[derive(Copy, Default, PartialOrd, Ord)]
    SnapshotAt {
        /// Id of the table.
        table: TableId,
        /// Number of the snapshot: 1 for the first one of a table.
        snapshot: u64,
    }
}

wire_struct! {
    /// Part that a commit adds to a table.
    NewPart {
        /// Number of the part in the commit.
        index: u32,
        /// Copies that each run should have, as in `PublishPlaces`.
        copies_wanted: u8,
        /// Places of the part, bound to the name of the part.
        places: Places,
    }
}

wire_struct! {
    /// Parts of a table that a commit has added, one behind the other.
    #[derive(Copy)]
    PartRange {
        /// Number of the first snapshot that has them.
        added: u64,
        /// Commit that has added them.
        commit: CommitId,
        /// Number of the first part in that commit.
        first: u32,
        /// Number of the last part.
        last: u32,
    }
}

wire_struct! {
    /// Request to publish parts ahead of the commit that adds them to a table. They are kept while the session lives,
    /// and dropped if it ends without the commit.
    AddParts {
        /// Session that sealed the parts.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Id of the table.
        table: TableId,
        /// Id of the commit.
        commit: CommitId,
        /// Parts to add.
        parts: List<NewPart, COMMIT_PARTS_MAX>,
        /// True if there will be no commit: what was added is dropped.
        is_over: bool,
    }
}

wire_struct! {
    /// Change of a table in a commit.
    TableChange {
        /// Name of the table, which begins with [`TABLES`].
        name: Name,
        /// Id of the table: that of the one which has the name, or a random one of a new table. A new table takes the
        /// place of the one before, which is dropped.
        table: TableId,
        /// Root that is replaced: `Replaces::Nothing` if the name is new.
        replaces: Replaces,
        /// Number of the part that becomes of a table of one file, which the name has until now; [`NO_PART`]: the file
        /// is dropped, or the name has none.
        former: u32,
        /// Parts of the commit that were published ahead: as many have to be there.
        parts_ahead: u32,
        /// Further parts that the commit adds.
        parts: List<NewPart, COMMIT_PARTS_MAX>,
        /// Copies that each run of the new root should have.
        copies_wanted: u8,
        /// Recipe by which the table can be made again; empty: none.
        recipe: Bytes<RECIPE_BYTES_MAX>,
        /// Places of the new root, bound to the name of the table.
        root: Places,
        /// Parts that the table does not have any more, and parts of this commit that were published ahead and that its
        /// snapshot does not have.
        removed: List<PartRange, PARTS_REMOVED_MAX>,
        /// Snapshot whose parts the table has again; 0: none. It must not have ended.
        restores: u64,
        /// Parts of that snapshot which the one before this commit did not have.
        restored: List<PartRange, PARTS_REMOVED_MAX>,
    }
}

wire_struct! {
    /// Request to change tables, all or none of them.
    CommitTables {
        /// Session that sealed the parts and roots.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Id of the commit: random, or drawn from a text that its client has chosen. A repeated commit is answered as
        /// done.
        commit: CommitId,
        /// Text of the commit that clients show. The broker does not look into it.
        summary: Bytes<SUMMARY_BYTES_MAX>,
        /// Tables, each once.
        changes: List<TableChange, COMMIT_TABLES_MAX>,
    }
}

wire_struct! {
    /// Snapshot that a commit has made.
    #[derive(Copy)]
    SnapshotMade {
        /// Number of the snapshot.
        snapshot: u64,
        /// Id of its root; 0 if the snapshot has ended since.
        root: FileId,
    }
}

wire_struct! {
    /// Answer to `CommitTables`.
    TablesCommitted {
        /// Snapshots, in the order of the changes.
        made: List<SnapshotMade, COMMIT_TABLES_MAX>,
    }
}

wire_struct! {
    /// Request for a snapshot of a table. The session holds it from then on, unless the broker has taken a later
    /// request of the session.
    OpenTable {
        /// Session that asks.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Number of the request in the session, as in `HoldSnapshots`.
        number: u64,
        /// Name of the table.
        name: Name,
        /// Number of the snapshot; 0: the latest.
        snapshot: u64,
    }
}

wire_struct! {
    /// Answer to `OpenTable`.
    TableOpened {
        /// Id of the table; 0 if it is one file, without snapshots.
        table: TableId,
        /// Number of the snapshot.
        snapshot: u64,
        /// Number of the latest snapshot.
        latest: u64,
        /// Root of the snapshot, bound to `name`.
        root: PlacesOpened,
        /// Name that the root has.
        name: Name,
    }
}

wire_struct! {
    /// Request for the places of parts of a table.
    OpenParts {
        /// Id of the table.
        table: TableId,
        /// Parts to open.
        parts: List<PartAt, OPENED_PARTS_MAX>,
    }
}

wire_struct! {
    /// Part of a table, opened.
    PartOpened {
        /// Id of the file.
        file: FileId,
        /// Copies that each run should have.
        copies_wanted: u8,
        /// Places of the part, as in `PlacesOpened`.
        places: Places,
    }
}

wire_struct! {
    /// Answer to `OpenParts`.
    PartsOpened {
        /// The first of the parts, at least one: as many as fit into a message.
        parts: List<PartOpened, OPENED_PARTS_MAX>,
        /// Nodes that the places name.
        nodes: List<NodeInfo, NODES_MAX>,
    }
}

wire_struct! {
    /// Request to hold snapshots, and no others: they do not end while the session lives. It changes nothing if the
    /// broker has taken a later request of the session.
    HoldSnapshots {
        /// Session that holds them.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Number of the request in the session. Each `OpenTable` and `HoldSnapshots` has a higher one than those
        /// before, also if it comes again.
        number: u64,
        /// Snapshots to hold.
        held: List<SnapshotAt, HELD_SNAPSHOTS_MAX>,
    }
}

wire_struct! {
    /// Answer to `HoldSnapshots`.
    SnapshotsHeld {
        /// Number of failure domains with nodes that can grant leases, as in `SessionKept`.
        hosts: u32,
        /// Those that have ended, or that the tenant may not see.
        ended: List<SnapshotAt, HELD_SNAPSHOTS_MAX>,
    }
}

wire_struct! {
    /// Request for a page of the snapshots of a table, the latest first.
    ListSnapshots {
        /// Name of the table.
        name: Name,
        /// Number before which the page begins; 0: at the latest.
        before: u64,
    }
}

wire_struct! {
    /// Snapshot in a listing.
    SnapshotInfo {
        /// Number of the snapshot.
        snapshot: u64,
        /// Id of the commit that made it.
        commit: CommitId,
        /// Session that made it.
        session: SessionId,
        /// Time of the commit by the broker's clock, in ms since 1970.
        at_ms: u64,
        /// True if the snapshot can be read: it has not ended.
        is_kept: bool,
        /// Text of the commit that clients show.
        summary: Bytes<SUMMARY_BYTES_MAX>,
    }
}

wire_struct! {
    /// Answer to `ListSnapshots`.
    SnapshotsListed {
        /// Id of the table; 0 if it is one file, without snapshots.
        table: TableId,
        /// Snapshots of the page.
        snapshots: List<SnapshotInfo, SNAPSHOTS_PAGE_MAX>,
        /// True if earlier ones follow.
        more: bool,
    }
}

wire_struct! {
    /// Name, and the file that it has as far as a client knows.
    KnownName {
        /// The name.
        name: Name,
        /// File that it has; 0: none.
        file: FileId,
    }
}

wire_struct! {
    /// Request to be told when one of some names has another file. Each snapshot of a table has a root of its own, so
    /// this tells of snapshots as well as of files that are replaced or dropped.
    AwaitNames {
        /// Session that asks.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Names, and the files that they have as far as the session knows.
        known: List<KnownName, AWAITED_NAMES_MAX>,
        /// Time in ms for which the answer may be delayed while nothing has changed. More than [`AWAIT_MS_MAX`] counts
        /// as that.
        wait_ms: u32,
    }
}

wire_struct! {
    /// File that a name has.
    #[derive(Copy, Default)]
    NameNow {
        /// Id of the file; 0: there is none that the tenant may see.
        file: FileId,
        /// Snapshot whose root the file is; of table 0, and with number 0, if it is no root.
        root_of: SnapshotAt,
    }
}

wire_struct! {
    /// Answer to `AwaitNames`. It may come early, also if nothing has changed.
    NamesAwaited {
        /// Files of all names, in the order asked.
        now: List<NameNow, AWAITED_NAMES_MAX>,
    }
}
