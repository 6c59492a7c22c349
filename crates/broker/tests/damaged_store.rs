//! A damaged file of a store is refused, or serves exactly the last commit. It never causes a panic.
//!
//! An earlier version was tried with 45 single flipped bits: 17 gave other names or other files under a name, 6 lost
//! names, and 3 panicked. `FARPOOL_DAMAGES` sets how many damages are tried. Each is drawn from its number as the seed;
//! a failure names the number.

#[expect(dead_code, reason = "the contract itself is looked at in `stores`")]
mod contract;

use contract::{file, load, name};
use farpool_broker::stores::{RedbStore, Store};
use farpool_lease::broker::{Durable, StateChange};
use farpool_wire::{FileId, Term};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Damages that are tried by default.
const DAMAGES: u64 = 400;
const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Pseudo-random numbers (Splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Fills a store as a broker does: files of every size, and names that come and go, in many commits.
fn commit_names(store: &mut RedbStore, rounds: std::ops::Range<u64>) -> Durable {
    for round in rounds {
        let mut records =
            vec![StateChange::Term(Term(round + 1)), StateChange::NextFile(FileId(round * 10 + 10))];
        for index in 0..8 {
            let number = round * 8 + index;
            records.push(StateChange::Name(
                name(&format!("x/{number:05}")),
                file(number, 1 + number as usize % 40),
            ));
        }
        if round > 2 {
            records.push(StateChange::DropName(name(&format!("x/{:05}", round * 8 - 20))));
        }
        store.commit(&records).expect("commits");
    }
    load(store)
}

/// File to be damaged: its bytes, those of some commits before, and the state of the last commit.
struct Subject {
    what: &'static str,
    bytes: Vec<u8>,
    before: Vec<u8>,
    holds: Durable,
}

/// Returns a file that was closed, and one whose broker was killed.
fn subjects(folder: &Path) -> Vec<Subject> {
    let path = folder.join("store");
    let mut store = RedbStore::open(&path).expect("made");
    store.commit(&[StateChange::Key([7; 32])]).expect("commits");
    commit_names(&mut store, 0..20);
    let killed_before = std::fs::read(&path).expect("read");
    let holds = commit_names(&mut store, 20..22);
    let killed = Subject {
        what: "of a broker that was killed",
        bytes: std::fs::read(&path).expect("read"),
        before: killed_before.clone(),
        holds: holds.clone(),
    };
    drop(store);
    let closed = std::fs::read(&path).expect("read");
    vec![killed, Subject { what: "that was closed", bytes: closed, before: killed_before, holds }]
}

/// Returns offsets of bytes in sectors that are not all zeros. Most of a file is empty.
fn used(bytes: &[u8]) -> Vec<usize> {
    let pages = bytes.chunks(SECTOR).enumerate();
    pages
        .filter(|(_, sector)| sector.iter().any(|byte| *byte != 0))
        .map(|(index, _)| index * SECTOR)
        .collect()
}

/// Damages a file, with `number` as the seed. Returns the damaged bytes and a description.
fn damage(subject: &Subject, used: &[usize], number: u64) -> (Vec<u8>, String) {
    let mut random = Random(number);
    let mut bytes = subject.bytes.clone();
    let sector = used[random.below(used.len())];
    let page = sector / PAGE * PAGE;
    let end = bytes.len().min(page + PAGE);
    let done = match random.below(10) {
        0..=4 => {
            let at = (sector + random.below(SECTOR)).min(bytes.len() - 1);
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        5 => {
            // The first two pages, ours and redb's header, decide about everything else.
            let at = random.below(2 * PAGE);
            bytes[at] = random.next() as u8;
            format!("byte {at} is another")
        }
        6 => {
            let length = random.below(bytes.len());
            bytes.truncate(length);
            format!("cut off after {length} bytes")
        }
        7 => {
            bytes[page..end].fill(0);
            format!("page at {page} zeroed")
        }
        8 => {
            bytes[page..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
            format!("page at {page} random")
        }
        _ => {
            // A torn page: its first sectors are new and the others old, or the other way around.
            let from = page + SECTOR * random.below(PAGE / SECTOR);
            let torn = if random.below(2) == 0 { from..end } else { page..from };
            let range = torn.start.min(subject.before.len())..torn.end.min(subject.before.len());
            bytes[range.clone()].copy_from_slice(&subject.before[range.clone()]);
            format!("bytes {range:?} from before")
        }
    };
    (bytes, done)
}

/// Permitted results of opening a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Refused,
    /// It was opened and has the last commit.
    Right,
}

/// Opens a file as a broker does and goes on with it. Panics if the store returns anything that was not committed.
fn fate(path: &Path, bytes: &[u8], holds: &Durable, what: &str) -> Fate {
    std::fs::write(path, bytes).expect("written");
    match RedbStore::open(path) {
        Err(error) => {
            let message = error.to_string();
            assert!(
                std::fs::read(path).expect("read") == bytes,
                "{what}: a refused file is left as it was: {message}"
            );
            assert!(!message.contains('\n'), "{what}: one sentence: {message}");
            Fate::Refused
        }
        Ok(mut store) => {
            assert_eq!(load(&store), *holds, "{what}: believed");
            // The store can be used: the next commit is stored, and everything before it is still there.
            let next = StateChange::Name(name("next"), file(1_000, 3));
            let mut expected = holds.clone();
            expected.apply(next.clone());
            match store.commit(&[next]) {
                Ok(()) => assert_eq!(load(&store), expected, "{what}: after a commit"),
                Err(error) => assert!(error.to_string().contains("damaged"), "{what}: {error}"),
            }
            Fate::Right
        }
    }
}

#[test]
fn damaged_file_is_refused_as_it_is_or_holds_what_was_committed_last() {
    let folder = tempfile::tempdir().expect("a folder");
    let damages = match std::env::var("FARPOOL_DAMAGES") {
        Ok(count) => count.parse().expect("FARPOOL_DAMAGES is a number"),
        Err(_) => DAMAGES,
    };
    let subjects = subjects(folder.path());
    let used: Vec<Vec<usize>> = subjects.iter().map(|subject| used(&subject.bytes)).collect();
    let path = folder.path().join("damaged");
    let mut fates: BTreeMap<(&str, Fate), u64> = BTreeMap::new();
    for subject in &subjects {
        let whole = fate(&path, &subject.bytes, &subject.holds, subject.what);
        assert_eq!(whole, Fate::Right, "a file that nobody damaged is opened");
    }
    for number in 0..damages {
        let at = (number % 2) as usize;
        let (bytes, done) = damage(&subjects[at], &used[at], number);
        let what = format!("damage {number} of a file {}: {done}", subjects[at].what);
        *fates.entry((subjects[at].what, fate(&path, &bytes, &subjects[at].holds, &what))).or_default() += 1;
    }
    println!("{damages} damages: {fates:?}");
    let refused: u64 =
        fates.iter().filter(|((_, fate), _)| *fate == Fate::Refused).map(|(_, count)| count).sum();
    assert!(refused > damages / 4, "most damages hit something: {fates:?}");
}

#[test]
fn every_bit_of_the_pages_that_say_which_commit_is_the_last_may_flip() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged");
    for subject in subjects(folder.path()) {
        // Our own front page, then redb's header. In both, the used bytes are in the first sectors.
        for at in
            (0..24).chain(SECTOR..SECTOR + 12).chain(2 * SECTOR..2 * SECTOR + 12).chain(PAGE..PAGE + 320)
        {
            let bit = at % 8;
            let mut bytes = subject.bytes.clone();
            bytes[at] ^= 1 << bit;
            fate(
                &path,
                &bytes,
                &subject.holds,
                &format!("bit {bit} of byte {at} of a file {}", subject.what),
            );
        }
        // All bits of the one byte that says which of redb's two commits is the last.
        for bit in 0..8 {
            let mut bytes = subject.bytes.clone();
            bytes[PAGE + 9] ^= 1 << bit;
            fate(
                &path,
                &bytes,
                &subject.holds,
                &format!("bit {bit} of redb's flags of a file {}", subject.what),
            );
        }
    }
}

#[test]
fn file_whose_redb_is_that_of_some_commits_ago_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let subject = subjects(folder.path()).remove(0);
    let mut bytes = subject.bytes.clone();
    let end = bytes.len().min(subject.before.len());
    bytes[PAGE..end].copy_from_slice(&subject.before[PAGE..end]);
    let path = folder.path().join("damaged");
    std::fs::write(&path, &bytes).expect("written");
    let error = RedbStore::open(&path).err().expect("names were lost").to_string();
    assert!(error.contains("damaged") && error.contains("was the last"), "{error}");
}

/// Damage to a file that a broker has open is found at the latest when the file is next opened.
#[test]
fn file_damaged_while_it_is_in_use_is_never_believed_afterwards() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    for number in 0..40 {
        let _ = std::fs::remove_file(&path);
        let mut store = RedbStore::open(&path).expect("made");
        let mut expected = commit_names(&mut store, 0..12);
        let bytes = std::fs::read(&path).expect("read");
        let used = used(&bytes);
        let mut random = Random(number);
        let at = used[random.below(used.len())];
        let torn: Vec<u8> = (0..SECTOR).map(|_| random.next() as u8).collect();
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&torn, at as u64).expect("written");
        for round in 12..16 {
            let record = StateChange::Name(name(&format!("x/{round:05}")), self::file(round, 4));
            match store.commit(std::slice::from_ref(&record)) {
                Ok(()) => expected.apply(record),
                Err(_) => break,
            }
        }
        drop(store);
        if let Ok(store) = RedbStore::open(&path) {
            assert_eq!(load(&store), expected, "damage {number} at {at}: believed");
        }
    }
}

fn aside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.display().to_string().contains(".damaged-")).collect()
}

#[test]
fn damaged_file_is_rebuilt_with_the_names_that_are_whole_and_kept_under_another_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let subject = subjects(folder.path()).remove(1);
    let path = folder.path().join("damaged");
    std::fs::write(&path, &subject.bytes).expect("written");
    let error = RedbStore::rebuild(&path).err().expect("it is whole").to_string();
    assert!(error.contains("it is not damaged"), "{error}");

    // One page of records is lost: the one with x/00150.
    let mut bytes = subject.bytes.clone();
    let places = |bytes: &[u8]| {
        let wanted = b"files/x/00150";
        let found = bytes.windows(wanted.len()).enumerate().filter(|(_, window)| window == wanted);
        found.map(|(at, _)| at).collect::<Vec<_>>()
    };
    for at in places(&bytes) {
        let page = at / PAGE * PAGE;
        bytes[page..page + PAGE].fill(0);
    }
    std::fs::write(&path, &bytes).expect("written");
    let error = RedbStore::open(&path).err().expect("damaged").to_string();
    assert!(error.contains("--rebuild-store"), "{error}");
    let rebuilt = RedbStore::rebuild(&path).expect("rebuilt");
    let found = load(&rebuilt.store);
    assert_eq!(rebuilt.names, found.names.len());
    assert!(!found.names.contains_key(&name("x/00150")), "its record is lost");
    let whole =
        found.names.iter().filter(|(name, file)| subject.holds.names.get(*name) == Some(*file)).count();
    assert!(whole > 100, "{whole} of {} names were whole", subject.holds.names.len());
    // A dropped name may come back, without its bytes. But no name may have a file that it never had.
    let had =
        |name: &str, id: FileId| name.strip_prefix("x/").and_then(|number| number.parse().ok()) == Some(id.0);
    assert!(found.names.iter().all(|(name, file)| had(name, file.file)), "no name has another file");
    assert_eq!(found.key, subject.holds.key, "sessions can go on");
    assert!(found.term >= subject.holds.term && found.next_file >= subject.holds.next_file);
    assert_eq!(std::fs::read(&rebuilt.aside).expect("kept"), bytes);
    assert_eq!(aside(folder.path()), std::slice::from_ref(&rebuilt.aside));
    drop(rebuilt);
    RedbStore::open(&path).expect("whole again");
}

#[test]
fn file_that_is_no_damaged_store_is_not_rebuilt() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    assert!(RedbStore::rebuild(&path).is_err(), "there is nothing");
    std::fs::write(&path, "hello").expect("written");
    assert!(RedbStore::rebuild(&path).is_err(), "it is none");
    assert_eq!(std::fs::read(&path).expect("read"), b"hello");
    assert!(aside(folder.path()).is_empty());
}
