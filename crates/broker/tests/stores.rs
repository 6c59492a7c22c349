//! One contract for every store of a broker, and what is particular to the one on disk.

use farpool_broker::stores::{MemoryStore, RedbStore, Store};
use farpool_lease::broker::{Durable, NamedFile, Record, place_of};
use farpool_wire::control::NamedExtent;
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use farpool_wire::*;
use redb::{Database, TableDefinition};
use std::path::Path;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn file(id: u64, extent_count: usize) -> NamedFile {
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

fn load(store: &dyn Store) -> Durable {
    store.load().expect("loads")
}

/// Commits batches one behind the other; after each, the store holds what the records say, in their order.
fn conformance(store: &mut dyn Store) -> Durable {
    assert_eq!(load(store), Durable::default(), "a new store is empty");
    let batches = [
        vec![Record::Key([7; 32]), Record::Term(Term(1))],
        vec![Record::NextFile(FileId(1)), Record::Name(name("a"), file(0, 3))],
        // Within a batch the last word on a name or number holds.
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

    // A file beyond its limit cannot be read back by everyone; a store may refuse it, but then all of its batch.
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

#[test]
fn memory_store_keeps_the_contract() {
    conformance(&mut MemoryStore::default());
}

#[test]
fn redb_store_keeps_the_contract_and_loads_the_same_when_reopened() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.redb");
    let mut store = RedbStore::open(&path).expect("made");
    let expected = conformance(&mut store);
    drop(store);
    for _ in 0..2 {
        assert_eq!(load(&RedbStore::open(&path).expect("opened again")), expected);
    }
}

/// The whole point of a store: what `commit` returned for is in the file even if nothing is closed in order.
#[test]
fn redb_store_copied_while_open_holds_what_was_committed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("broker.redb"), folder.path().join("after-the-crash.redb"));
    let mut store = RedbStore::open(&path).expect("made");
    store.commit(&[Record::Term(Term(8)), Record::Name(name("kept"), file(1, 2))]).expect("commits");
    std::fs::copy(&path, &copy).expect("copied");
    let expected = load(&store);
    assert_eq!(load(&RedbStore::open(&copy).expect("repaired")), expected);
}

/// Opens what cannot be opened; the message, and the file's bytes before and after.
fn refusal_of(path: &Path) -> String {
    let before = std::fs::read(path).ok();
    let Err(error) = RedbStore::open(path) else { panic!("{} was opened", path.display()) };
    assert!(std::fs::read(path).ok() == before, "a refused file is left as it was: {error}");
    let message = error.to_string();
    assert!(message.contains(&path.display().to_string()), "says which file: {message}");
    message
}

#[test]
fn redb_file_of_another_format_is_refused_with_both_versions_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    // The one before had no tenants.
    for other in [1u64, 3] {
        let path = folder.path().join(format!("{other}.redb"));
        drop(RedbStore::open(&path).expect("made"));
        let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
        let database = Database::open(&path).expect("a redb file");
        let transaction = database.begin_write().expect("begins");
        let format = other.to_le_bytes();
        transaction.open_table(meta).expect("meta").insert("format", &format[..]).expect("inserted");
        transaction.commit().expect("commits");
        drop(database);
        let message = refusal_of(&path);
        let names_both = message.contains(&format!("format {other};")) && message.contains("format 2 only");
        assert!(names_both, "{message}");
    }
}

#[test]
fn file_that_is_not_a_store_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    for (called, content) in [("notes.txt", b"hello".to_vec()), ("image.bin", vec![0xa5; 300_000])] {
        let path = folder.path().join(called);
        std::fs::write(&path, content).expect("written");
        refusal_of(&path);
    }
}

#[test]
fn redb_file_of_another_program_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("theirs.redb");
    let theirs: TableDefinition<'_, u64, u64> = TableDefinition::new("meta");
    let database = Database::create(&path).expect("made");
    let transaction = database.begin_write().expect("begins");
    transaction.open_table(theirs).expect("made").insert(1, 2).expect("inserted");
    transaction.commit().expect("commits");
    drop(database);
    let message = refusal_of(&path);
    assert!(message.contains("not a broker store"), "{message}");
}

/// A broker that was killed between making its file and the first commit must be able to start again.
#[test]
fn store_made_but_never_committed_to_is_opened_as_new() {
    let folder = tempfile::tempdir().expect("a folder");
    for called in ["empty file", "empty database"] {
        let path = folder.path().join(called);
        match called {
            "empty file" => std::fs::write(&path, []).expect("written"),
            _ => drop(Database::create(&path).expect("made")),
        }
        assert_eq!(load(&RedbStore::open(&path).expect("opened")), Durable::default(), "{called}");
    }
}

#[test]
fn path_that_cannot_be_a_store_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    refusal_of(folder.path());
    refusal_of(&folder.path().join("no such folder").join("broker.redb"));
}

/// Two brokers over one store would give two files one id.
#[test]
fn store_in_use_is_refused_to_a_second_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.redb");
    let store = RedbStore::open(&path).expect("made");
    refusal_of(&path);
    drop(store);
    RedbStore::open(&path).expect("free again");
}
