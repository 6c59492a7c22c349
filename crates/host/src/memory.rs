//! Memory that this process may use: that of its host, and what its control groups leave of it.
//!
//! All limits are checked: the host's memory, and each control group from the process's own upwards, of cgroup version
//! 1 and version 2. A group of version 2 has two limits, of which the lower one counts: above `memory.max` the kernel
//! kills its processes, and above `memory.high` it slows them down until they hardly run. A limit that cannot be read
//! is ignored.

use std::io;
use std::path::{Path, PathBuf};

/// Space: limited memory, of the host or of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedMemory {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes that are free or easily dropped.
    pub available_bytes: u64,
}

/// Memory of the host, and the control groups of this process.
#[derive(Clone, Debug)]
pub struct UsableMemory {
    root: PathBuf,
    groups: Vec<Group>,
}

/// Files of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// Files with a limit each, of which the lowest counts.
    limits: Vec<PathBuf>,
    usage: PathBuf,
    stat: PathBuf,
    /// Prefix of the fields of `stat` that include child groups.
    prefix: &'static str,
}

impl UsableMemory {
    /// Finds the control groups of this process.
    pub fn find() -> UsableMemory {
        UsableMemory::find_below(Path::new("/"))
    }

    /// Does the same as [`Self::find`] with another root of `/proc` and `/sys`.
    pub fn find_below(root: &Path) -> UsableMemory {
        let listed = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = root.join("sys/fs/cgroup");
        let groups =
            listed.lines().flat_map(|line| groups_of(&mounts, line)).filter(|group| group.usage.is_file());
        UsableMemory { root: root.to_owned(), groups: groups.collect() }
    }

    /// Returns the root of `/proc` and `/sys`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the host's memory, and after it the control groups whose limit is below that.
    pub fn spaces(&self) -> io::Result<Vec<BoundedMemory>> {
        let meminfo = std::fs::read_to_string(self.root.join("proc/meminfo"))?;
        let kib = |name| field(&meminfo, name).and_then(|kib| kib.checked_mul(1024));
        let (Some(total_bytes), Some(available_bytes)) = (kib("MemTotal:"), kib("MemAvailable:")) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut spaces = vec![BoundedMemory { total_bytes, available_bytes }];
        spaces.extend(self.groups.iter().filter_map(|group| group.space(total_bytes)));
        Ok(spaces)
    }

    /// Returns the least limit of the control groups, and the least that one of them has left, which may be another:
    /// a container's group lies in that of its pod. `None` if no group limits this process more than its host does.
    pub fn group_limit(&self) -> Option<BoundedMemory> {
        let groups = self.spaces().ok()?.into_iter().skip(1);
        groups.reduce(|one, other| BoundedMemory {
            total_bytes: one.total_bytes.min(other.total_bytes),
            available_bytes: one.available_bytes.min(other.available_bytes),
        })
    }
}

/// Returns the groups of one line of `/proc/self/cgroup`, innermost first.
fn groups_of(mounts: &Path, line: &str) -> Vec<Group> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Vec::new();
    };
    let is_first = controllers.split(',').any(|controller| controller == "memory");
    if !is_first && !controllers.is_empty() {
        return Vec::new();
    }
    let (mount, limits, usage, prefix): (PathBuf, &[&str], &str, &'static str) = match is_first {
        true => (mounts.join("memory"), &["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"),
        false => (mounts.to_owned(), &["memory.max", "memory.high"], "memory.current", ""),
    };
    let inner = mount.join(path.trim_start_matches('/'));
    let folders = inner.ancestors().take_while(|folder| folder.starts_with(&mount));
    let group = |folder: &Path| Group {
        limits: limits.iter().map(|limit| folder.join(limit)).collect(),
        usage: folder.join(usage),
        stat: folder.join("memory.stat"),
        prefix,
    };
    folders.map(group).collect()
}

/// Returns the number after a name, in lines such as `MemTotal:       1024 kB` or `inactive_file 7`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

impl Group {
    /// Returns the group's lowest limit and what is left of it. `None` if it is not below the host's memory.
    fn space(&self, host_bytes: u64) -> Option<BoundedMemory> {
        let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let limits = self.limits.iter().filter_map(|limit| number(limit));
        let total_bytes = limits.filter(|limit| (1..host_bytes).contains(limit)).min()?;
        let usage = number(&self.usage)?;
        let stat = std::fs::read_to_string(&self.stat).unwrap_or_default();
        let of_files = |kind: &str| field(&stat, &format!("{}{kind} ", self.prefix)).unwrap_or(0);
        // The kernel drops the group's file cache before it kills a process. Half of the active cache is counted as
        // droppable, because dropping it costs those who use it.
        let droppable = of_files("inactive_file").saturating_add(of_files("active_file") / 2);
        let used = usage.saturating_sub(droppable);
        Some(BoundedMemory { total_bytes, available_bytes: total_bytes.saturating_sub(used) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = root.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
    }

    const MEMINFO: &str = "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n";

    #[test]
    fn host_and_each_group_above_that_has_a_limit_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        put(
            folder.path(),
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/pod/app\n3:cpuset:/\n0::/slice/app\n"),
                ("sys/fs/cgroup/memory/pod/app/memory.limit_in_bytes", "1000000\n"),
                ("sys/fs/cgroup/memory/pod/app/memory.usage_in_bytes", "900000\n"),
                (
                    "sys/fs/cgroup/memory/pod/app/memory.stat",
                    "active_file 1\ntotal_inactive_file 50000\ntotal_active_file 20000\n",
                ),
                ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "900000\n"),
                ("sys/fs/cgroup/slice/app/memory.max", "max\n"),
                ("sys/fs/cgroup/slice/app/memory.current", "5\n"),
                ("sys/fs/cgroup/slice/memory.max", "2000000\n"),
                ("sys/fs/cgroup/slice/memory.current", "2500000\n"),
                ("sys/fs/cgroup/slice/memory.stat", "inactive_file 700000\n"),
            ],
        );
        let usable = UsableMemory::find_below(folder.path());
        let spaces: Vec<(u64, u64)> =
            usable.spaces().unwrap().iter().map(|space| (space.total_bytes, space.available_bytes)).collect();
        assert_eq!(spaces, [(8 << 30, 4 << 30), (1_000_000, 160_000), (2_000_000, 200_000)]);
        assert_eq!(usable.group_limit().map(|space| space.total_bytes), Some(1_000_000));
    }

    #[test]
    fn group_that_is_slowed_down_and_one_above_it_that_is_nearly_full_limit_as_well() {
        let folder = tempfile::tempdir().unwrap();
        put(
            folder.path(),
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/slice/pod/app\n"),
                ("sys/fs/cgroup/slice/pod/app/memory.max", "1000000\n"),
                ("sys/fs/cgroup/slice/pod/app/memory.high", "900000\n"),
                ("sys/fs/cgroup/slice/pod/app/memory.current", "100000\n"),
                ("sys/fs/cgroup/slice/pod/memory.max", "4000000\n"),
                ("sys/fs/cgroup/slice/pod/memory.high", "max\n"),
                ("sys/fs/cgroup/slice/pod/memory.current", "3950000\n"),
                ("sys/fs/cgroup/slice/memory.max", "max\n"),
                ("sys/fs/cgroup/slice/memory.high", "5000000\n"),
                ("sys/fs/cgroup/slice/memory.current", "4000000\n"),
            ],
        );
        let usable = UsableMemory::find_below(folder.path());
        let spaces: Vec<(u64, u64)> =
            usable.spaces().unwrap().iter().map(|space| (space.total_bytes, space.available_bytes)).collect();
        assert_eq!(
            spaces[1..],
            [(900_000, 800_000), (4_000_000, 50_000), (5_000_000, 1_000_000)],
            "innermost first"
        );
        let limit = BoundedMemory { total_bytes: 900_000, available_bytes: 50_000 };
        assert_eq!(usable.group_limit(), Some(limit));
    }

    #[test]
    fn host_without_limits_has_no_group() {
        let folder = tempfile::tempdir().unwrap();
        assert!(UsableMemory::find_below(folder.path()).spaces().is_err());
        put(folder.path(), &[("proc/meminfo", MEMINFO)]);
        let usable = UsableMemory::find_below(folder.path());
        assert_eq!((usable.spaces().unwrap().len(), usable.group_limit()), (1, None));
    }
}
