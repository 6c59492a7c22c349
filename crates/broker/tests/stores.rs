//! One contract for every store of a broker, and tests of the store on disk.

mod contract;

use contract::{conformance, file, load, name};
use farpool_broker::stores::{MemoryStore, RedbStore, Store};
use farpool_lease::broker::{Durable, StateChange};
use farpool_wire::Term;
use redb::{Database, TableDefinition};
use std::path::Path;

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

/// A commit that has returned is in the file even if nothing is closed in order.
#[test]
fn redb_store_copied_while_open_holds_what_was_committed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("broker.redb"), folder.path().join("after-the-crash.redb"));
    let mut store = RedbStore::open(&path).expect("made");
    store
        .commit(&[StateChange::Term(Term(8)), StateChange::Name(name("kept"), file(1, 2))])
        .expect("commits");
    std::fs::copy(&path, &copy).expect("copied");
    let expected = load(&store);
    assert_eq!(load(&RedbStore::open(&copy).expect("repaired")), expected);
}

/// Opens a file that must be refused, and checks that it was not changed. Returns the message.
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
    let is_refused = |path: &Path, other: u64| {
        let message = refusal_of(path);
        let names_both = message.contains(&format!("format {other};")) && message.contains("formats 3 to 5");
        assert!(names_both, "{message}");
    };
    // Formats 1 and 2 had only redb's data, with a table that names the format.
    for other in [1u64, 2] {
        let path = folder.path().join(format!("{other}.redb"));
        let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
        let database = Database::create(&path).expect("a redb file");
        let transaction = database.begin_write().expect("begins");
        let format = other.to_le_bytes();
        transaction.open_table(meta).expect("meta").insert("format", &format[..]).expect("inserted");
        transaction.commit().expect("commits");
        drop(database);
        is_refused(&path, other);
    }
    let path = folder.path().join("later");
    drop(RedbStore::open(&path).expect("made"));
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[8..16].copy_from_slice(&6u64.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..16]).to_le_bytes();
    bytes[16..20].copy_from_slice(&checksum);
    std::fs::write(&path, bytes).expect("written");
    is_refused(&path, 6);
}

/// Records of the format before are read by the tests of `records`.
#[test]
fn redb_file_of_the_format_before_is_opened_and_has_this_format_from_then_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("former");
    let expected = conformance(&mut RedbStore::open(&path).expect("made"));
    let new = std::fs::read(&path).expect("read");
    let mut bytes = new.clone();
    bytes[8..16].copy_from_slice(&3u64.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..16]).to_le_bytes();
    bytes[16..20].copy_from_slice(&checksum);
    std::fs::write(&path, bytes).expect("written");
    assert_eq!(load(&RedbStore::open(&path).expect("opened")), expected);
    assert_eq!(std::fs::read(&path).expect("read")[..20], new[..20]);
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

/// A broker that was killed between creating its file and the first commit must be able to start again.
#[test]
fn store_made_but_never_committed_to_is_opened_as_new() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("empty file");
    std::fs::write(&path, []).expect("written");
    for _ in 0..2 {
        assert_eq!(load(&RedbStore::open(&path).expect("opened")), Durable::default());
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "it was made beside, and put in its place: {left:?}");
}

#[test]
fn path_that_cannot_be_a_store_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    refusal_of(folder.path());
    refusal_of(&folder.path().join("no such folder").join("broker.redb"));
}

/// Two brokers with one store would give the same id to two files.
#[test]
fn store_in_use_is_refused_to_a_second_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.redb");
    let store = RedbStore::open(&path).expect("made");
    refusal_of(&path);
    drop(store);
    RedbStore::open(&path).expect("free again");
}
