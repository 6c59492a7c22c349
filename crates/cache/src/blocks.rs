//! Versions of the blocks of a file.
//!
//! A cache keeps versions of blocks, and a version never changes; a file does. If others change the file, its `stat`
//! data change, and all its blocks get a new version. A write through the cache gives new versions only to the blocks
//! it touches: once before the write, so that nobody finds the old bytes, and once after it, so that nobody finds bytes
//! that were read during the write. In the common case of a file that nobody else writes, all other blocks stay cached.

use crate::{Times, Version};
use rustix::fs::Stat;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Age of a file's newest time from which on any later change by others is certain to change its times. A write gets
/// its time when it begins, and its bytes may come later; the clocks of some file systems tick every two seconds.
const SETTLED: Duration = Duration::from_millis(2_100);

/// `stat` data that identify a file's contents: its times of change in ns, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Time of the last change of the contents, in ns: `st_mtim`.
    pub modified_ns: i128,
    /// Time of the last change of contents or metadata, in ns: `st_ctim`.
    pub changed_ns: i128,
    /// Length in bytes.
    pub size: u64,
}

impl From<&Stat> for FileIdentity {
    fn from(stat: &Stat) -> FileIdentity {
        let nanos = |seconds: i64, nanos: u64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        FileIdentity {
            modified_ns: nanos(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: nanos(stat.st_ctime, stat.st_ctime_nsec),
            size: stat.st_size as u64,
        }
    }
}

/// Versions of a file's blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Identity of the file when it was last checked, or changed through the cache.
    identity: FileIdentity,
    /// True if the file's times come from a change through the cache that is complete.
    is_ours: bool,
    /// Version of all blocks that are not in `written`.
    version: Version,
    /// Versions of the blocks that were written through the cache since `version` was given.
    written: HashMap<u64, Version>,
}

impl Blocks {
    pub(crate) fn new(identity: FileIdentity, version: Version) -> Blocks {
        Blocks { identity, is_ours: false, version, written: HashMap::new() }
    }

    /// Reports whether the file had this identity when it was last checked or changed through the cache.
    pub(crate) fn is_of(&self, identity: FileIdentity) -> bool {
        self.identity == identity
    }

    /// Records the file's identity. If others changed the file, all its blocks get a new version.
    pub(crate) fn see(&mut self, identity: FileIdentity, new_version: impl FnOnce() -> Version) {
        if !self.is_of(identity) {
            *self = Blocks::new(identity, new_version());
        }
    }

    pub(crate) fn version(&self, block: u64) -> Version {
        self.written.get(&block).copied().unwrap_or(self.version)
    }

    /// Reports whether blocks may be cached and found: the file is unchanged, and a change that others made since would
    /// show.
    pub(crate) fn is_settled(&self, identity: FileIdentity, times: Times, now_ns: i128) -> bool {
        let newest = identity.modified_ns.max(identity.changed_ns);
        let would_show =
            times == Times::Exclusive || self.is_ours || now_ns - newest > SETTLED.as_nanos() as i128;
        self.identity == identity && would_show
    }

    /// Gives each of these blocks a new version, so that their cached bytes are not found any more.
    pub(crate) fn renew(&mut self, blocks: Range<u64>, mut new_version: impl FnMut() -> Version) {
        self.written.extend(blocks.map(|block| (block, new_version())));
    }

    /// Records the file's identity after a change through the cache whose blocks have new versions already. If a change
    /// by others in the same moment would not show, all blocks get a new version.
    pub(crate) fn changed_by_us(
        &mut self,
        identity: FileIdentity,
        times: Times,
        new_version: impl FnOnce() -> Version,
    ) {
        match times {
            Times::Exclusive | Times::Exact => (self.identity, self.is_ours) = (identity, true),
            Times::Coarse => *self = Blocks::new(identity, new_version()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(at: i128) -> FileIdentity {
        FileIdentity { modified_ns: at, changed_ns: at, size: 100 }
    }

    fn versions() -> impl FnMut() -> Version {
        let mut next = 1..;
        move || Version(next.next().expect("endless"))
    }

    #[test]
    fn blocks_written_through_the_cache_have_new_versions_and_the_others_keep_theirs() {
        let mut version = versions();
        let mut blocks = Blocks::new(identity(0), Version(0));
        blocks.renew(2..4, &mut version);
        blocks.changed_by_us(identity(1), Times::Exact, &mut version);
        assert!(blocks.is_of(identity(1)));
        blocks.see(identity(1), &mut version);
        let versions = [0, 1, 2, 3, 4].map(|block| blocks.version(block));
        assert_eq!(versions, [0, 0, 1, 2, 0].map(Version));
        blocks.renew(3..4, &mut version);
        assert_eq!(blocks.version(3), Version(3));
    }

    #[test]
    fn where_times_are_coarse_a_write_leaves_no_block_that_others_may_have_written_in_the_same_moment() {
        let mut version = versions();
        let mut blocks = Blocks::new(identity(0), Version(0));
        blocks.renew(2..3, &mut version);
        blocks.changed_by_us(identity(1), Times::Coarse, &mut version);
        assert_eq!([0, 2].map(|block| blocks.version(block)), [Version(2); 2]);
    }

    #[test]
    fn blocks_are_kept_and_found_only_if_a_change_by_others_would_show() {
        let settled = SETTLED.as_nanos() as i128;
        let others = Blocks::new(identity(100), Version(0));
        for (now, wanted) in [(100, false), (100 + settled, false), (101 + settled, true)] {
            assert_eq!(others.is_settled(identity(100), Times::Exact, now), wanted, "by others, at {now}");
            assert!(others.is_settled(identity(100), Times::Exclusive, now), "there are no others, at {now}");
        }
        assert!(
            !others.is_settled(identity(90), Times::Exclusive, 100 + 2 * settled),
            "it is another by now"
        );
        for (times, wanted) in [(Times::Exact, true), (Times::Coarse, false)] {
            let mut ours = Blocks::new(identity(0), Version(0));
            ours.changed_by_us(identity(100), times, || Version(1));
            assert_eq!(ours.is_settled(identity(100), times, 100), wanted, "by us, {times:?}");
        }
    }

    #[test]
    fn file_that_others_changed_has_no_block_that_it_had() {
        for other in [
            identity(1),
            FileIdentity { size: 99, ..identity(0) },
            FileIdentity { changed_ns: 7, ..identity(0) },
        ] {
            let mut blocks = Blocks::new(identity(0), Version(0));
            blocks.renew(0..2, || Version(1));
            assert!(!blocks.is_of(other));
            blocks.see(other, || Version(9));
            assert_eq!([0, 1, 2].map(|block| blocks.version(block)), [Version(9); 3]);
        }
    }
}
