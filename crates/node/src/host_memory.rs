//! Memory that is left on this host, and in the control groups of this process.
//!
//! The tightest limit decides, so all limits are checked: the host's memory, and each control group from the process's
//! own upwards, of cgroup version 1 and version 2. So does the NUMA node that the donated memory comes from, if one was
//! chosen. A limit that cannot be read is ignored.

use crate::pressure::{BoundedMemory, Sample};
use farpool_region::topology::NumaNode;
use std::io;
use std::path::{Path, PathBuf};

/// Source of samples of the memory that is left on a host.
pub trait MemorySource: Send + Sync {
    /// Takes a sample. An error means that nothing is known this time.
    fn sample(&self) -> io::Result<Sample>;
}

/// Files of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    limit: PathBuf,
    usage: PathBuf,
    stat: PathBuf,
    /// Prefix of the fields of `stat` that include child groups.
    prefix: &'static str,
}

/// The real source: `/proc` and `/sys/fs/cgroup`.
#[derive(Clone, Debug)]
pub struct HostMemory {
    root: PathBuf,
    groups: Vec<Group>,
    numa_node: Option<u32>,
}

impl HostMemory {
    /// Finds the control groups of this process.
    pub fn find() -> HostMemory {
        HostMemory::find_below(Path::new("/"))
    }

    /// Does the same as [`Self::find`] with another root of `/proc` and `/sys`.
    pub fn find_below(root: &Path) -> HostMemory {
        let listed = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = root.join("sys/fs/cgroup");
        let groups =
            listed.lines().flat_map(|line| groups_of(&mounts, line)).filter(|group| group.usage.is_file());
        HostMemory { root: root.to_owned(), groups: groups.collect(), numa_node: None }
    }

    /// Watches a NUMA node as well: memory that is bound to it can be short while the host has plenty.
    #[must_use]
    pub fn and_node(mut self, numa_node: u32) -> HostMemory {
        self.numa_node = Some(numa_node);
        self
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
    let (mount, names, prefix) = match is_first {
        true => (mounts.join("memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
        false => (mounts.to_owned(), ("memory.max", "memory.current"), ""),
    };
    let inner = mount.join(path.trim_start_matches('/'));
    let folders = inner.ancestors().take_while(|folder| folder.starts_with(&mount));
    let group = |folder: &Path| Group {
        limit: folder.join(names.0),
        usage: folder.join(names.1),
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
    /// Returns the group's limit and what is left of it. `None` if its limit is not below the host's memory.
    fn space(&self, host_bytes: u64) -> Option<BoundedMemory> {
        let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let total_bytes = number(&self.limit).filter(|limit| *limit > 0 && *limit < host_bytes)?;
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

impl MemorySource for HostMemory {
    fn sample(&self) -> io::Result<Sample> {
        let meminfo = std::fs::read_to_string(self.root.join("proc/meminfo"))?;
        let kib = |name| field(&meminfo, name).and_then(|kib| kib.checked_mul(1024));
        let (Some(total_bytes), Some(available_bytes)) = (kib("MemTotal:"), kib("MemAvailable:")) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut spaces = vec![BoundedMemory { total_bytes, available_bytes }];
        // If a group's limit appears or vanishes, the groups after it have other places in this sample than in the one
        // before, and the rates of change that are computed from the two are wrong once.
        spaces.extend(self.groups.iter().filter_map(|group| group.space(total_bytes)));
        let node = self.numa_node.and_then(|node| NumaNode::read_at(&self.root.join("sys"), node));
        spaces.extend(node.map(|node| BoundedMemory {
            total_bytes: node.bytes,
            available_bytes: node.available_bytes.min(node.bytes),
        }));
        let stalls = std::fs::read_to_string(self.root.join("proc/pressure/memory")).ok();
        let stalled = |text: &str, kind: &str| {
            let line = text.lines().find(|line| line.starts_with(kind))?;
            line.rsplit_once("total=")?.1.trim().parse().ok()
        };
        let stalled_us = stalls.and_then(|text| Some((stalled(&text, "some")?, stalled(&text, "full")?)));
        Ok(Sample { spaces, stalled_us })
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
                ("proc/pressure/memory", "some avg10=0.00 total=70\nfull avg10=0.00 total=7\n"),
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
        let sample = HostMemory::find_below(folder.path()).sample().unwrap();
        assert_eq!(sample.stalled_us, Some((70, 7)));
        let spaces: Vec<(u64, u64)> =
            sample.spaces.iter().map(|space| (space.total_bytes, space.available_bytes)).collect();
        assert_eq!(spaces, [(8 << 30, 4 << 30), (1_000_000, 160_000), (2_000_000, 200_000)]);
    }

    #[test]
    fn host_without_groups_or_stalls_is_seen_and_one_without_meminfo_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(HostMemory::find_below(folder.path()).sample().is_err());
        put(folder.path(), &[("proc/meminfo", MEMINFO)]);
        let sample = HostMemory::find_below(folder.path()).sample().unwrap();
        assert_eq!((sample.spaces.len(), sample.stalled_us), (1, None));
    }

    #[test]
    fn chosen_numa_node_is_a_space_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        put(
            folder.path(),
            &[
                ("proc/meminfo", MEMINFO),
                (
                    "sys/devices/system/node/node1/meminfo",
                    "Node 1 MemTotal: 1024 kB\nNode 1 MemFree: 100 kB\n",
                ),
                ("sys/devices/system/node/node1/cpulist", "\n"),
            ],
        );
        let spaces = |node| HostMemory::find_below(folder.path()).and_node(node).sample().unwrap().spaces;
        let of_node = BoundedMemory { total_bytes: 1 << 20, available_bytes: 100 << 10 };
        assert_eq!(spaces(1)[1..], [of_node]);
        assert_eq!(spaces(2).len(), 1, "a node that vanished is no limit");
    }

    #[test]
    fn this_host_tells_what_it_has() {
        let sample = HostMemory::find().sample().unwrap();
        assert!(sample.spaces[0].total_bytes >= sample.spaces[0].available_bytes);
    }
}
