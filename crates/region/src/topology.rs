//! NUMA nodes of this machine, read from `/sys`: CPUs, memory, distances, and what firmware promises.
//!
//! A node with memory and no CPUs is usually CXL memory. Bandwidths and latencies that firmware promises (its HMAT
//! table) appear under `nodeN/access*/initiators`, where they exist. Kernels from 6.9 on have system-wide interleave
//! weights. All of it is text, so tests use trees of their own. Missing or unreadable values are left out, because
//! kernels differ. Only a machine that lists no node with memory is an error.

use std::fmt;
use std::path::Path;

/// Rates and latencies of a node's memory that firmware promises, seen from the nearest CPUs; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Promised {
    /// Read bandwidth in MB a second.
    pub read_mb_per_s: Option<u64>,
    /// Write bandwidth in MB a second.
    pub write_mb_per_s: Option<u64>,
    /// Read latency in ns.
    pub read_latency_ns: Option<u64>,
    /// Write latency in ns.
    pub write_latency_ns: Option<u64>,
}

/// NUMA node with memory.
#[derive(Clone, Debug, PartialEq)]
pub struct NumaNode {
    /// Number of the node.
    pub id: u32,
    /// CPUs of the node.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub bytes: u64,
    /// Bytes of memory that are free.
    pub free_bytes: u64,
    /// Bytes of memory that are free or easily dropped: half of what is in active use as cache counts.
    pub available_bytes: u64,
    /// Pairs of the number of a node and the distance to it, in units of ACPI: the distance of a node to itself is 10.
    pub distances: Vec<(u32, u32)>,
    /// Promises of the firmware.
    pub promised: Promised,
    /// Weight of the node when the kernel interleaves pages system-wide; `None` if it has none, as before kernel 6.9.
    pub weight: Option<u32>,
    /// Number of the kernel's memory tier; lower is faster.
    pub kernel_tier: Option<u32>,
}

impl NumaNode {
    /// Reports whether the node has no CPUs. Such a node is taken to be CXL memory.
    pub fn is_cpu_less(&self) -> bool {
        self.cpus.is_empty()
    }
}

impl NumaNode {
    /// Reads one node from a directory with the layout of `/sys`. `None` if it does not exist or has no memory.
    pub fn read_at(sys: &Path, id: u32) -> Option<NumaNode> {
        node(sys, &sys.join("devices/system/node"), id, &[id])
    }
}

/// All nodes with memory, ordered by number.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Nodes; at least one.
    pub nodes: Vec<NumaNode>,
}

impl Topology {
    /// Reads the topology of this machine.
    pub fn read() -> Result<Topology, NoTopology> {
        Topology::read_at(Path::new("/sys"))
    }

    /// Reads the topology from a directory with the layout of `/sys`.
    pub fn read_at(sys: &Path) -> Result<Topology, NoTopology> {
        let root = sys.join("devices/system/node");
        let no_topology = || NoTopology { path: root.display().to_string() };
        let mut ids: Vec<u32> = std::fs::read_dir(&root)
            .map_err(|_| no_topology())?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .collect();
        ids.sort_unstable();
        let nodes: Vec<NumaNode> = ids.iter().copied().filter_map(|id| node(sys, &root, id, &ids)).collect();
        if nodes.is_empty() { Err(no_topology()) } else { Ok(Topology { nodes }) }
    }

    /// Chooses a near and a far tier; `None` on a machine with one node. The near tier is the node with the most memory
    /// among those with CPUs. The far tier is the nearest node without CPUs, or the farthest node if all have CPUs.
    pub fn tiers(&self) -> Option<(&NumaNode, &NumaNode)> {
        let near = self
            .nodes
            .iter()
            .filter(|node| !node.is_cpu_less())
            .max_by_key(|node| (node.bytes, u32::MAX - node.id))?;
        let distance = |node: &NumaNode| {
            let known = near.distances.iter().find(|(to, _)| *to == node.id);
            known.map_or(u32::MAX, |(_, distance)| *distance)
        };
        let others = || self.nodes.iter().filter(|node| node.id != near.id);
        let cpu_less =
            others().filter(|node| node.is_cpu_less()).min_by_key(|node| (distance(node), node.id));
        let far = cpu_less.or_else(|| others().max_by_key(|node| (distance(node), u32::MAX - node.id)))?;
        Some((near, far))
    }
}

fn node(sys: &Path, root: &Path, id: u32, ids: &[u32]) -> Option<NumaNode> {
    let folder = root.join(format!("node{id}"));
    let meminfo = text(&folder.join("meminfo"))?;
    let bytes = kib(&meminfo, "MemTotal:")?;
    // A node may have CPUs and no memory.
    if bytes == 0 {
        return None;
    }
    let distance = text(&folder.join("distance")).unwrap_or_default();
    let distances = ids.iter().copied().zip(distance.split_whitespace());
    let weight = sys.join(format!("kernel/mm/mempolicy/weighted_interleave/node{id}"));
    let part = |key| kib(&meminfo, key).unwrap_or(0);
    let free_bytes = part("MemFree:");
    let cache_bytes = part("Inactive(file):") + (part("Active(file):") + part("SReclaimable:")) / 2;
    Some(NumaNode {
        id,
        cpus: text(&folder.join("cpulist")).map_or_else(Vec::new, |list| numbers(&list)),
        bytes,
        free_bytes,
        available_bytes: free_bytes.saturating_add(cache_bytes),
        distances: distances.filter_map(|(to, distance)| Some((to, distance.parse().ok()?))).collect(),
        promised: promised(&folder),
        weight: text(&weight).and_then(|weight| weight.parse().ok()),
        kernel_tier: kernel_tier(sys, id),
    })
}

/// Reads the promises of firmware. Access class 0 is seen from the nearest initiators of any kind, class 1 from the
/// nearest CPUs.
fn promised(folder: &Path) -> Promised {
    let of = |class: &str| {
        let folder = folder.join(class).join("initiators");
        let value = |name| text(&folder.join(name))?.parse().ok().filter(|value: &u64| *value > 0);
        Promised {
            read_mb_per_s: value("read_bandwidth"),
            write_mb_per_s: value("write_bandwidth"),
            read_latency_ns: value("read_latency"),
            write_latency_ns: value("write_latency"),
        }
    };
    let nearest_cpus = of("access1");
    if nearest_cpus == Promised::default() { of("access0") } else { nearest_cpus }
}

fn kernel_tier(sys: &Path, id: u32) -> Option<u32> {
    let folder = sys.join("devices/virtual/memory_tiering");
    let entries = std::fs::read_dir(folder).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let tier = entry.file_name().to_str()?.strip_prefix("memory_tier")?.parse().ok()?;
        numbers(&text(&entry.path().join("nodelist"))?).contains(&id).then_some(tier)
    })
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the bytes on a line of `meminfo`, which counts in KiB.
fn kib(meminfo: &str, key: &str) -> Option<u64> {
    // A whole word, because `Inactive(file):` ends like `Active(file):`.
    let is_line = |line: &&str| line.split_whitespace().any(|word| word == key);
    let line = meminfo.lines().find(is_line)?;
    let value: u64 = line.split_once(key)?.1.split_whitespace().next()?.parse().ok()?;
    value.checked_mul(1_024)
}

/// Parses a list such as `0-3,8`, at most 65,536 numbers. Entries that are not numbers or ranges are left out.
fn numbers(list: &str) -> Vec<u32> {
    const COUNT_MAX: usize = 1 << 16;
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    parts.flatten().take(COUNT_MAX).collect()
}

/// Error: the directory lists no node with memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoTopology {
    path: String,
}

impl fmt::Display for NoTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lists no NUMA node with memory", self.path)
    }
}

impl std::error::Error for NoTopology {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tree;

    fn meminfo(id: u32, total: u64, free: u64) -> String {
        let caches = "Node 0 Inactive(file): 100 kB\nNode 0 Active(file): 10 kB\nNode 0 SReclaimable: 4 kB";
        format!("Node {id} MemTotal:       {total} kB\nNode {id} MemFree:        {free} kB\n{caches}")
    }

    #[test]
    fn node_without_cpus_is_the_far_tier_with_what_firmware_promises() {
        let (of_0, of_1) = (meminfo(0, 33_554_432, 1_024), meminfo(1, 67_108_864, 2_048));
        let root = tree(&[
            ("devices/system/node/online", "0-1"),
            ("devices/system/node/node0/meminfo", &of_0),
            ("devices/system/node/node0/cpulist", "0-3,8"),
            ("devices/system/node/node0/distance", "10 30"),
            ("devices/system/node/node0/access1/initiators/read_bandwidth", "30010"),
            ("devices/system/node/node1/meminfo", &of_1),
            ("devices/system/node/node1/cpulist", ""),
            ("devices/system/node/node1/distance", "30 10"),
            ("devices/system/node/node1/access0/initiators/read_bandwidth", "20950"),
            ("devices/system/node/node1/access0/initiators/read_latency", "300"),
            ("kernel/mm/mempolicy/weighted_interleave/node0", "3"),
            ("kernel/mm/mempolicy/weighted_interleave/node1", "2"),
            ("devices/virtual/memory_tiering/memory_tier4/nodelist", "0"),
            ("devices/virtual/memory_tiering/memory_tier22/nodelist", "1"),
        ]);
        let topology = Topology::read_at(root.path()).unwrap();
        let (near, far) = topology.tiers().unwrap();
        assert_eq!(
            (near.id, &near.cpus[..], near.bytes, near.free_bytes),
            (0, &[0, 1, 2, 3, 8][..], 32 << 30, 1 << 20)
        );
        assert_eq!(far.available_bytes, (2_048 + 100 + 5 + 2) * 1024);
        let alone = NumaNode::read_at(root.path(), 1).unwrap();
        assert_eq!((alone.bytes, NumaNode::read_at(root.path(), 2)), (far.bytes, None));
        assert_eq!((far.id, far.is_cpu_less(), &far.distances[..]), (1, true, &[(0, 30), (1, 10)][..]));
        assert_eq!((near.promised.read_mb_per_s, far.promised.read_mb_per_s), (Some(30_010), Some(20_950)));
        assert_eq!((far.promised.read_latency_ns, far.promised.write_mb_per_s), (Some(300), None));
        assert_eq!(
            (near.weight, far.weight, near.kernel_tier, far.kernel_tier),
            (Some(3), Some(2), Some(4), Some(22))
        );
    }

    #[test]
    fn of_two_sockets_the_other_one_is_far() {
        let (of_0, of_1) = (meminfo(0, 1_000, 0), meminfo(1, 1_000, 0));
        let root = tree(&[
            ("devices/system/node/node0/meminfo", &of_0),
            ("devices/system/node/node0/cpulist", "0"),
            ("devices/system/node/node0/distance", "10 21"),
            ("devices/system/node/node1/meminfo", &of_1),
            ("devices/system/node/node1/cpulist", "1"),
            ("devices/system/node/node1/distance", "21 10"),
        ]);
        let topology = Topology::read_at(root.path()).unwrap();
        assert_eq!(topology.tiers().map(|(near, far)| (near.id, far.id)), Some((0, 1)));
    }

    #[test]
    fn one_node_has_no_tiers_and_a_node_without_memory_is_none() {
        let (of_0, of_1) = (meminfo(0, 1_000, 0), meminfo(1, 0, 0));
        let root = tree(&[
            ("devices/system/node/node0/meminfo", &of_0),
            ("devices/system/node/node0/cpulist", "0-1"),
            ("devices/system/node/node1/meminfo", &of_1),
            ("devices/system/node/nodeX/meminfo", "what is this"),
        ]);
        let topology = Topology::read_at(root.path()).unwrap();
        assert_eq!((topology.nodes.len(), topology.tiers()), (1, None));
    }

    #[test]
    fn tree_without_nodes_is_an_error_that_names_it() {
        let root = tree(&[("devices/system/node/online", "")]);
        let error = Topology::read_at(root.path()).unwrap_err().to_string();
        assert!(error.ends_with("devices/system/node lists no NUMA node with memory"), "{error}");
    }

    #[test]
    fn what_is_no_list_of_numbers_is_left_out() {
        assert_eq!(numbers("0-2,7, 9"), [0, 1, 2, 7, 9]);
        assert_eq!(numbers("x,3-1,-,5"), [5]);
        assert_eq!(numbers("0-4294967295").len(), 1 << 16);
    }
}
