//! Contract that every store of a broker must fulfil.

use farpool_broker::stores::Store;
use farpool_lease::broker::{Durable, NamedFile, Record, place_of};
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
        leased_by_admin: extents.iter().map(place_of).filter(|place| place.2.0 % 3 == 1).collect(),
        extents,
    }
}

pub fn load(store: &dyn Store) -> Durable {
    store.load().expect("loads")
}

/// Commits batches one after the other. After each, the store must hold what the records say, in their order.
pub fn conformance(store: &mut dyn Store) -> Durable {
    assert_eq!(load(store), Durable::default(), "a new store is empty");
    let batches = [
        vec![Record::Key([7; 32]), Record::Term(Term(1))],
        vec![Record::NextFile(FileId(1)), Record::Name(name("a"), file(0, 3))],
        // The last record of a name or number in a batch wins.
        vec![
            Record::Term(Term(2)),
            Record::Term(Term(3)),
            Record::Name(name("b"), file(1, 1)),
            Record::DropName(name("b")),
            Record::DropName(name("a")),
            Record::Name(name("a"), file(2, 0)),
            Record::Name(name("größte Datei"), file(3, NAMED_EXTENTS_MAX)),
        ],
        vec![Record::DropName(name("never there"))],
        vec![],
        vec![
            Record::DropName(name("a")),
            Record::Name(name("z"), file(2, 0)),
            Record::NextFile(FileId(u64::MAX)),
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
        Record::Term(Term(99)),
        Record::Name(name("first"), file(4, 1)),
        Record::Name(name("too long"), file(5, NAMED_EXTENTS_MAX + 1)),
        Record::DropName(name("z")),
    ];
    if store.commit(&batch).is_ok() {
        batch.iter().for_each(|record| expected.apply(record.clone()));
    }
    assert_eq!(load(store), expected, "all of a batch or none");
    store.commit(&[Record::Term(Term(100))]).expect("a refused batch does not end the store");
    expected.apply(Record::Term(Term(100)));
    assert_eq!(load(store), expected);
    expected
}
