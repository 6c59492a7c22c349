//! Contract that every store of a broker must fulfil.

use farpool_broker::stores::Store;
use farpool_lease::broker::{CommitRecord, Durable, NamedFile, StateChange};
use farpool_wire::control::{NamedRegion, PartRange, PlacesBuilder, SnapshotAt};
use farpool_wire::limits::{NAMED_REGIONS_MAX, PARTS_REMOVED_MAX};
use farpool_wire::*;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Returns a file with this number of runs, each with two copies in regions of their own.
pub fn file(id: u64, run_count: usize) -> NamedFile {
    let region = |index: usize| NamedRegion {
        node: NodeId(1 + index as u64 % 2),
        incarnation: Incarnation(2),
        region: RegionIndex(index as u32),
        epoch: Epoch(id + 4),
        handle: Handle(5 << 100),
    };
    let mut adding = PlacesBuilder::default();
    for run in 0..run_count {
        adding.push(4096, [(region(2 * run), 64), (region(2 * run + 1), 128)]).expect("fits");
    }
    let places = adding.finish().expect("fits");
    NamedFile {
        file: FileId(id),
        class: FileClass::Pinned,
        tenant: name("größter Mieter"),
        copies_wanted: 2,
        recipe: Bytes::new(vec![1; (id % 3) as usize]).expect("short"),
        places,
        root_of: id.is_multiple_of(2).then_some(SnapshotAt { table: TableId(id), snapshot: 1 + id }),
    }
}

/// Returns a commit that removes this number of ranges of parts.
fn commit(id: u64, range_count: usize) -> CommitRecord {
    let range = |index| PartRange { added: id, commit: CommitId(7), first: index, last: index };
    CommitRecord {
        id: CommitId(id),
        session: SessionId(8),
        at_ms: 1_700_000_000_000,
        summary: Bytes::new(vec![9; (id % 3) as usize]).expect("short"),
        removed: (0..range_count as u32).map(range).collect(),
        restored: vec![range(1); range_count % 2],
    }
}

/// Most runs of a file that [`file`] makes.
pub const RUNS_MAX: usize = NAMED_REGIONS_MAX / 2;

pub fn load(store: &dyn Store) -> Durable {
    store.load().expect("loads")
}

/// Commits batches of changes to a new, empty store. After each, the store must load the state that the changes so far
/// give, applied in their order. Returns the last state, for callers that open the store again.
pub fn conformance(store: &mut dyn Store) -> Durable {
    assert_eq!(load(store), Durable::default(), "a new store is empty");
    let at = |snapshot| SnapshotAt { table: TableId(3), snapshot };
    let batches = [
        vec![StateChange::Key([7; 32]), StateChange::Term(Term(1))],
        vec![StateChange::NextFile(FileId(1)), StateChange::Name(name("a"), file(0, 3))],
        // The last record of a name or number in a batch wins.
        vec![
            StateChange::Term(Term(2)),
            StateChange::Term(Term(3)),
            StateChange::Name(name("b"), file(1, 1)),
            StateChange::DropName(name("b")),
            StateChange::DropName(name("a")),
            StateChange::Name(name("a"), file(2, 0)),
            StateChange::Name(name("größte Datei"), file(3, RUNS_MAX)),
        ],
        vec![StateChange::DropName(name("never there"))],
        vec![],
        vec![
            StateChange::DropName(name("a")),
            StateChange::Name(name("z"), file(2, 0)),
            StateChange::NextFile(FileId(u64::MAX)),
        ],
        vec![
            StateChange::Commit(at(1), commit(1, 0)),
            StateChange::Commit(at(2), commit(2, PARTS_REMOVED_MAX)),
            StateChange::OpenCommit(TableId(3), CommitId(4), SessionId(5)),
            StateChange::OpenCommit(TableId(3), CommitId(6), SessionId(5)),
        ],
        vec![
            StateChange::DropCommit(at(1)),
            StateChange::CloseCommit(TableId(3), CommitId(6)),
            StateChange::OpenCommit(TableId(3), CommitId(4), SessionId(0)),
        ],
    ];

    let mut expected = Durable::default();
    for batch in &batches {
        store.commit(batch).expect("commits");
        batch.iter().for_each(|record| expected.apply(record.clone()));
        assert_eq!(load(store), expected, "after {} records", batch.len());
    }

    // A large file is stored in several values, of which all or none are there.
    let batch = [
        StateChange::Term(Term(99)),
        StateChange::Name(name("first"), file(4, 1)),
        StateChange::Name(name("größte Datei"), file(5, RUNS_MAX)),
        StateChange::DropName(name("z")),
    ];
    store.commit(&batch).expect("commits");
    batch.iter().for_each(|record| expected.apply(record.clone()));
    assert_eq!(load(store), expected);
    store.commit(&[StateChange::Term(Term(100))]).expect("commits");
    expected.apply(StateChange::Term(Term(100)));
    assert_eq!(load(store), expected);
    expected
}
