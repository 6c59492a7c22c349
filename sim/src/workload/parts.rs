//! Commits whose parts are published ahead: as those of large tables, of a few small parts.
//!
//! The idea: a root lists its parts, and the number of a part gives its bytes. So whichever snapshot a client reads, it
//! knows every byte, from the root and from where it found the part. Between its parts and its commit a client dies,
//! gives the commit up or is late. Then the parts go, and otherwise they stay as long as a snapshot has them.

use super::grown::judge;
use super::{Client, MS, first_difference, violated};
use crate::faults::Chore;
use crate::kernel::{rest, world};
use crate::parties::Phase;
use crate::profile::Profile;
use crate::random::Random;
use farpool_files::beneath::{
    ChangedTable, OpenedSnapshot, TableCommit, Unlisted, UnlistedPart, open_parts, open_snapshot,
    session_of_pool,
};
use farpool_files::{Error, ErrorKind, FarFile, Pool};
use farpool_tables::TABLE_PREFIX;
use farpool_wire::control::{NO_PART, PartAt, PartRange, Replaces, SnapshotAt};
use farpool_wire::{CommitId, Name};

/// Most parts that a table has.
const PARTS_MAX: usize = 12;
/// Most bytes of a part.
const PART_BYTES_MAX: u64 = 20 << 10;
/// Bytes of a root for each part that it lists.
const LISTED_BYTES: usize = 24;
/// Most snapshots that a client has open.
const OPEN_MAX: usize = 3;

/// Part, as a root lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    at: PartAt,
    /// First snapshot that has it.
    added: u64,
    bytes: u32,
}

impl Listed {
    fn content(&self) -> Vec<u8> {
        let mut source = Random::new(self.at.commit.0 ^ u64::from(self.at.index) << 40);
        let mut content = Vec::with_capacity(self.bytes as usize + 8);
        while content.len() < self.bytes as usize {
            content.extend_from_slice(&source.draw().to_le_bytes());
        }
        content.truncate(self.bytes as usize);
        content
    }
}

/// Returns the bytes of a root: the number of its snapshot, then its parts.
fn root_bytes(snapshot: u64, parts: &[Listed]) -> Vec<u8> {
    let mut bytes = snapshot.to_le_bytes().to_vec();
    for Listed { at, added, bytes: length } in parts {
        bytes.extend_from_slice(&at.commit.0.to_le_bytes());
        bytes.extend_from_slice(&at.index.to_le_bytes());
        bytes.extend_from_slice(&added.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    bytes
}

/// Reads the root of a snapshot.
fn read_root(opened: &OpenedSnapshot) -> Result<Vec<Listed>, Error> {
    let mut bytes = vec![0; opened.root.length() as usize];
    opened.root.read_at(0, &mut bytes)?;
    let (number, listed) = bytes.split_first_chunk().expect("a root begins with a number");
    if u64::from_le_bytes(*number) != opened.at.snapshot {
        violated("I11", format!("{:?} has the root of snapshot {}", opened.at, u64::from_le_bytes(*number)));
    }
    let of = |bytes: &[u8]| {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let at = PartAt { commit: CommitId(u64_at(0)), index: u32_at(8) };
        Listed { at, added: u64_at(12), bytes: u32_at(20) }
    };
    Ok(listed.chunks_exact(LISTED_BYTES).map(of).collect())
}

/// Snapshot that a client has open.
pub(crate) struct OpenParts {
    opened: OpenedSnapshot,
    parts: Vec<(Listed, FarFile)>,
    /// Time in ns until which the client keeps it open.
    until: u64,
}

impl OpenParts {
    fn open(pool: &Pool, name: &str, snapshot: u64, until: u64) -> Result<OpenParts, Error> {
        let session = session_of_pool(pool);
        let opened = open_snapshot(session, name, snapshot)?;
        let listed = read_root(&opened)?;
        let at: Vec<PartAt> = listed.iter().map(|part| part.at).collect();
        let files = open_parts(session, opened.at.table, &at)?;
        Ok(OpenParts { opened, parts: listed.into_iter().zip(files).collect(), until })
    }

    /// Reads all parts, and compares every byte.
    fn compare(&self) -> Result<(), Error> {
        for (listed, file) in &self.parts {
            let mut found = vec![0; listed.bytes as usize];
            file.read_at(0, &mut found)?;
            let expected = listed.content();
            world(|world| {
                world.oracle.checks += 1;
                world.tally.bytes_compared += found.len() as u64;
            });
            if found != expected {
                let difference = first_difference(&found, &expected);
                violated("I11", format!("{listed:?} of {:?}: {difference}", self.opened.at));
            }
        }
        Ok(())
    }
}

impl Client {
    fn parts_name(&self) -> String {
        world(|world| format!("{TABLE_PREFIX}{}/parts", world.plan.tenant_of(self.index)))
    }

    /// Makes parts of a commit, with the numbers from `first` on.
    fn new_parts(
        &mut self,
        pool: &Pool,
        name: &str,
        commit: CommitId,
        snapshot: u64,
        first: u32,
    ) -> Result<(Vec<UnlistedPart>, Vec<Listed>), Error> {
        let (mut parts, mut listed) = (Vec::new(), Vec::new());
        for index in first..first + self.random.range(1, 3) as u32 {
            let bytes = self.random.skewed(1, PART_BYTES_MAX) as u32;
            let part = Listed { at: PartAt { commit, index }, added: snapshot, bytes };
            let mut file = Unlisted::create(pool, name.to_owned(), None)?;
            file.append(&part.content())?;
            parts.push(UnlistedPart { index, file });
            listed.push(part);
        }
        Ok((parts, listed))
    }

    pub(super) fn commit_parts(&mut self) {
        let result = self.try_to_commit_parts();
        let is_lost = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost);
        self.outcome("commit parts", result);
        if is_lost && self.random.one_in(4) || self.random.one_in(50) {
            let dropped = self.pool().delete(&self.parts_name());
            self.outcome("drop parts", dropped);
        }
    }

    fn try_to_commit_parts(&mut self) -> Result<(), Error> {
        let (pool, name, from) = (self.pool(), self.parts_name(), self.now());
        let mut listed = Vec::new();
        let before = match open_snapshot(session_of_pool(&pool), &name, 0) {
            Ok(opened) => {
                listed = read_root(&opened).inspect_err(|error| judge(error, &name, None, from))?;
                Some(opened)
            }
            Err(error) => {
                judge(&error, &name, None, from);
                match error.kind() {
                    ErrorKind::NotFound => None,
                    _ => return Err(error),
                }
            }
        };
        let mut commit = TableCommit::begin(&pool, None)?;
        let table = before.as_ref().map_or(commit.new_table(0), |before| before.at.table);
        let snapshot = before.as_ref().map_or(1, |before| before.at.snapshot + 1);
        let (mut parts, mut added) = self.new_parts(&pool, &name, commit.id(), snapshot, 0)?;
        if self.random.one_in(2) {
            commit.publish_ahead(table, &parts)?;
            match self.random.below(8) {
                0 if world(|world| {
                    world.plan.profile != Profile::Still && world.parties.phase == Phase::Faulty
                }) =>
                {
                    world(|world| {
                        world.tally.fault("client died before its commit");
                        world.chore_in(0, Chore::Kill(self.process));
                    });
                    rest(MS);
                    return Ok(());
                }
                1 => return Ok(()),
                2 => rest(self.random.skewed(MS, world(|world| 2 * world.plan.life_ns()))),
                _ => {}
            }
            let (more, more_added) =
                self.new_parts(&pool, &name, commit.id(), snapshot, parts.len() as u32)?;
            parts.extend(more);
            added.extend(more_added);
        }
        let mut removed = Vec::new();
        while listed.len() + added.len() > PARTS_MAX || !listed.is_empty() && self.random.one_in(3) {
            let Listed { at, added, .. } =
                listed.swap_remove(self.random.below(listed.len() as u64) as usize);
            removed.push(PartRange { added, commit: at.commit, first: at.index, last: at.index });
        }
        listed.extend(added);
        let mut root = Unlisted::create(&pool, name.clone(), None)?;
        root.append(&root_bytes(snapshot, &listed))?;
        let replaces = before.as_ref().map_or(Replaces::Nothing, |before| Replaces::Only(before.root_id));
        self.perhaps_lose_an_answer();
        let change = ChangedTable {
            name: Name::new(name.clone()).expect("it is a name"),
            table,
            snapshot,
            replaces,
            former: NO_PART,
            root: &root,
            parts: &parts,
            removed,
            restores: 0,
            restored: Vec::new(),
        };
        let made = commit.send(b"parts", &[change])?.made;
        let at = SnapshotAt { table, snapshot };
        let is_made = world(|world| {
            world.oracle.checks += 1;
            world.parties.snapshots.rows(at).is_some()
        });
        if !is_made || made.iter().any(|made| made.snapshot != snapshot) {
            violated("I11", format!("{name:?} was committed as {at:?}, and is {made:?}"));
        }
        Ok(())
    }

    /// Reads a snapshot that is open, or opens one: the latest, or an earlier one.
    pub(super) fn read_parts(&mut self) {
        let (pool, name, now) = (self.pool(), self.parts_name(), self.now());
        self.parts.retain(|open| open.until > now);
        if self.parts.len() < OPEN_MAX && (self.parts.is_empty() || self.random.one_in(2)) {
            let latest = world(|world| world.parties.snapshots.latest(&name));
            let earlier = latest.filter(|_| self.random.one_in(3)).map(|at| {
                let snapshot = at.snapshot - self.random.skewed(1, 8).min(at.snapshot - 1);
                SnapshotAt { snapshot, ..at }
            });
            let ns = self.random.skewed(MS, world(|world| 10 * world.plan.life_ns()));
            let opened = OpenParts::open(&pool, &name, earlier.map_or(0, |at| at.snapshot), now + ns);
            if let Err(error) = &opened {
                judge(error, &name, earlier, now);
            }
            let opened = self.outcome("open parts", opened);
            self.parts.extend(opened);
        }
        if self.parts.is_empty() {
            return;
        }
        let which = self.random.below(self.parts.len() as u64) as usize;
        let open = self.parts.swap_remove(which);
        let result = open.compare();
        if let Err(error) = &result {
            judge(error, &name, Some(open.opened.at), now);
        }
        if self.outcome("read parts", result).is_some() {
            self.parts.push(open);
        }
    }
}
