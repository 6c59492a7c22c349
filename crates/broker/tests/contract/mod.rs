//! Contract that every store of a broker must fulfil.

use farpool_broker::stores::Store;
use farpool_lease::broker::{Durable, NamedFile, StateChange, region_key};
use farpool_wire::control::NamedExtent;
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use farpool_wire::*;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn file(id: u64, extent_count: usize) -> NamedFile {
    let extent = |at: usize| NamedExtent {
        node: NodeId(1),
        incarnation: Incarnation(2),
        region: RegionIndex(at as u32),
        epoch: Epoch(id + 4),
        handle: Handle(5 << 100),
        region_offset: 64,
        bytes: 4096,
    };
    let extents: Vec<NamedExtent> = (0..extent_count).map(extent).collect();
    NamedFile {
        file: FileId(id),
        class: FileClass::Pinned,
        tenant: name("größter Mieter"),
        leased_by_admin: extents.iter().map(region_key).filter(|place| place.2.0 % 3 == 1).collect(),
        extents,
    }
}

pub fn load(store: &dyn Store) -> Durable {
    store.load().expect("loads")
}

/// Commits batches of changes to a new, empty store. After each, the store must load the state that the changes so far
/// give, applied in their order. Returns the last state, for callers that open the store again.
pub fn conformance(store: &mut dyn Store) -> Durable {
    assert_eq!(load(store), Durable::default(), "a new store is empty");
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
            StateChange::Name(name("größte Datei"), file(3, NAMED_EXTENTS_MAX)),
        ],
        vec![StateChange::DropName(name("never there"))],
        vec![],
        vec![
            StateChange::DropName(name("a")),
            StateChange::Name(name("z"), file(2, 0)),
            StateChange::NextFile(FileId(u64::MAX)),
        ],
    ];
    let mut expected = Durable::default();
    for batch in &batches {
        store.commit(batch).expect("commits");
        batch.iter().for_each(|record| expected.apply(record.clone()));
        assert_eq!(load(store), expected, "after {} records", batch.len());
    }

    // A file beyond its limit cannot be read back by everybody. A store may refuse it, but then it must refuse the
    // whole batch.
    let batch = vec![
        StateChange::Term(Term(99)),
        StateChange::Name(name("first"), file(4, 1)),
        StateChange::Name(name("too long"), file(5, NAMED_EXTENTS_MAX + 1)),
        StateChange::DropName(name("z")),
    ];
    if store.commit(&batch).is_ok() {
        batch.iter().for_each(|record| expected.apply(record.clone()));
    }
    assert_eq!(load(store), expected, "all of a batch or none");
    store.commit(&[StateChange::Term(Term(100))]).expect("a refused batch does not end the store");
    expected.apply(StateChange::Term(Term(100)));
    assert_eq!(load(store), expected);
    expected
}
