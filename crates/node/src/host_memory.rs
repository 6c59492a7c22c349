//! Memory that is left on this host, and in the control groups of this process.
//!
//! The tightest limit decides, so all limits are checked: those of [`UsableMemory`], and the NUMA node that the donated
//! memory comes from, if one was chosen.

use crate::pressure::{BoundedMemory, Sample};
use farpool_host::UsableMemory;
use farpool_region::topology::NumaNode;
use std::io;
use std::path::Path;

/// Source of samples of the memory that is left on a host.
pub trait MemorySource: Send + Sync {
    /// Takes a sample. An error means that nothing is known this time.
    fn sample(&self) -> io::Result<Sample>;
}

/// The real source: `/proc` and `/sys/fs/cgroup`.
#[derive(Clone, Debug)]
pub struct HostMemory {
    usable: UsableMemory,
    numa_node: Option<u32>,
}

impl HostMemory {
    /// Finds the control groups of this process.
    pub fn find() -> HostMemory {
        HostMemory { usable: UsableMemory::find(), numa_node: None }
    }

    /// Does the same as [`Self::find`] with another root of `/proc` and `/sys`.
    pub fn find_below(root: &Path) -> HostMemory {
        HostMemory { usable: UsableMemory::find_below(root), numa_node: None }
    }

    /// Watches a NUMA node as well: memory that is bound to it can be short while the host has plenty.
    #[must_use]
    pub fn and_node(mut self, numa_node: u32) -> HostMemory {
        self.numa_node = Some(numa_node);
        self
    }
}

impl MemorySource for HostMemory {
    fn sample(&self) -> io::Result<Sample> {
        // If a group's limit appears or vanishes, the spaces after it have other places in this sample than in the one
        // before, and the rates of change that are computed from the two are wrong once.
        let mut spaces = self.usable.spaces()?;
        let root = self.usable.root();
        let node = self.numa_node.and_then(|node| NumaNode::read_at(&root.join("sys"), node));
        spaces.extend(node.map(|node| BoundedMemory {
            total_bytes: node.bytes,
            available_bytes: node.available_bytes.min(node.bytes),
        }));
        let stalls = std::fs::read_to_string(root.join("proc/pressure/memory")).ok();
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
    fn stalls_are_seen_where_the_host_reports_them() {
        let folder = tempfile::tempdir().unwrap();
        assert!(HostMemory::find_below(folder.path()).sample().is_err());
        put(folder.path(), &[("proc/meminfo", MEMINFO)]);
        let sample = || HostMemory::find_below(folder.path()).sample().unwrap();
        assert_eq!((sample().spaces.len(), sample().stalled_us), (1, None));
        let stalls = "some avg10=0.00 total=70\nfull avg10=0.00 total=7\n";
        put(folder.path(), &[("proc/pressure/memory", stalls)]);
        assert_eq!(sample().stalled_us, Some((70, 7)));
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
