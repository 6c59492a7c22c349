//! Encoding of commits of tables, for every store that keeps bytes: their keys, and their fields in the form of the
//! wire.

use farpool_lease::broker::{CommitRecord, StateChange};
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::{PartRange, SnapshotAt};
use farpool_wire::limits::PARTS_REMOVED_MAX;
use farpool_wire::{Bytes, CommitId, List, SessionId, TableId, WireError};

/// Prefix of the keys of commits of tables.
pub const COMMITS: &str = "commits/";
/// Prefix of the keys of open commits of tables.
pub const OPEN_COMMITS: &str = "open/";

type Ranges = List<PartRange, PARTS_REMOVED_MAX>;

/// Returns the key of a commit, by the snapshot that it made.
pub fn commit_key(at: SnapshotAt) -> String {
    format!("{COMMITS}{:016x}/{:016x}", at.table.0, at.snapshot)
}

/// Returns the key of a commit that is open.
pub fn open_commit_key(table: TableId, commit: CommitId) -> String {
    format!("{OPEN_COMMITS}{:016x}/{:016x}", table.0, commit.0)
}

/// Returns the two numbers behind a prefix in a key. `None` if the key is of another form.
fn numbers(key: &str, prefix: &str) -> Option<(u64, u64)> {
    let (first, second) = key.strip_prefix(prefix)?.split_once('/')?;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16);
    Some((number(first)?, number(second)?))
}

/// Encodes a commit.
///
/// Errors: it has more ranges of parts than can be stored.
pub fn encode_commit(record: &CommitRecord) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::new();
    record.id.put(&mut bytes);
    record.session.put(&mut bytes);
    record.at_ms.put(&mut bytes);
    record.summary.put(&mut bytes);
    Ranges::new(record.removed.clone())?.put(&mut bytes);
    Ranges::new(record.restored.clone())?.put(&mut bytes);
    Ok(bytes)
}

fn decode_commit(bytes: &[u8]) -> Result<CommitRecord, WireError> {
    let mut from = Cursor::new(bytes);
    let record = CommitRecord {
        id: CommitId::take(&mut from)?,
        session: SessionId::take(&mut from)?,
        at_ms: u64::take(&mut from)?,
        summary: Bytes::take(&mut from)?,
        removed: Ranges::take(&mut from)?.into_vec(),
        restored: Ranges::take(&mut from)?.into_vec(),
    };
    from.finish()?;
    Ok(record)
}

/// Returns the change of a value about commits. `None` if the key is of something else.
pub fn change_of(key: &str, payload: &[u8]) -> Option<Result<StateChange, String>> {
    if let Some((table, snapshot)) = numbers(key, COMMITS) {
        let at = SnapshotAt { table: TableId(table), snapshot };
        let record = decode_commit(payload).map_err(|error| error.to_string());
        return Some(record.map(|record| StateChange::Commit(at, record)));
    }
    let (table, commit) = numbers(key, OPEN_COMMITS)?;
    let session = payload.try_into().map(|session| SessionId(u64::from_le_bytes(session)));
    let open = |session| StateChange::OpenCommit(TableId(table), CommitId(commit), session);
    Some(session.map(open).map_err(|_| format!("has {} bytes", payload.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_is_read_as_it_was_stored_and_other_keys_and_bytes_are_not() {
        let range = PartRange { added: 3, commit: CommitId(9), first: 1, last: 4 };
        let record = CommitRecord {
            id: CommitId(u64::MAX),
            session: SessionId(5),
            at_ms: 1_700_000_000_000,
            summary: Bytes::new(b"append".to_vec()).expect("short"),
            removed: vec![range, PartRange { first: 7, last: 7, ..range }],
            restored: vec![range],
        };
        let at = SnapshotAt { table: TableId(0xabc), snapshot: 17 };
        let bytes = encode_commit(&record).expect("few ranges");
        let change = change_of(&commit_key(at), &bytes);
        assert_eq!(change, Some(Ok(StateChange::Commit(at, record))));
        let open = change_of(&open_commit_key(TableId(1), CommitId(2)), &7u64.to_le_bytes());
        assert_eq!(open, Some(Ok(StateChange::OpenCommit(TableId(1), CommitId(2), SessionId(7)))));
        assert!(matches!(change_of(&commit_key(at), &bytes[1..]), Some(Err(_))));
        assert!(matches!(change_of("open/0000000000000001/0000000000000002", &[1]), Some(Err(_))));
        for key in ["commits/1/2", "commits/0000000000000001", "open/x", "files/commits/", "meta/term"] {
            assert_eq!(change_of(key, &bytes), None, "{key}");
        }
    }
}
