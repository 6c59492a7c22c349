//! Latency of a memory access on this machine, for each cache level and for DRAM.
//!
//! Each access reads the address of the next one from a linked list, so the CPU can neither overlap nor predict the
//! accesses. For a cache, the list is half as large as the cache. For DRAM, it is so large that hardly any of it is
//! cached.

use super::list::List;
use crate::harness::statistics::median;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Number of accesses that are timed together.
const STEPS: u32 = 200_000;
/// Largest number of accesses that load the list into its cache before the timed ones.
const WARM_UP_STEPS: usize = 1 << 20;
/// Size of the list for DRAM as a multiple of the largest cache, within the bounds that follow.
const BEYOND: u64 = 8;
const BEYOND_BYTES_MIN: u64 = 64 << 20;
const BEYOND_BYTES_MAX: u64 = 1 << 30;

/// Cache of a CPU, or DRAM.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// Name: `L1`, `L2`, `L3` or `DRAM`.
    pub(super) name: String,
    /// Bytes of the list that measures this level.
    pub(super) bytes: u64,
}

/// Measures the time of an access at each level, in ns: the median of `rounds`, in which all levels take turns.
pub(super) fn measure(rounds: u32) -> Vec<(Level, f64)> {
    let levels = levels(Path::new("/sys/devices/system/cpu/cpu0/cache"));
    let lists: Vec<Vec<[u64; 8]>> = levels.iter().map(|level| List::new(level.bytes).nodes()).collect();
    let mut times = vec![Vec::new(); levels.len()];
    for _ in 0..rounds {
        for (nodes, times) in lists.iter().zip(&mut times) {
            // Reloads the list into its cache, from which the other lists have evicted it.
            let first = walk(nodes, 0, nodes.len().min(WARM_UP_STEPS) as u32);
            let begun = Instant::now();
            black_box(walk(nodes, first, STEPS));
            times.push(begun.elapsed().as_nanos() as f64 / f64::from(STEPS));
        }
    }
    levels.into_iter().zip(times).map(|(level, times)| (level, median(times.into_iter()))).collect()
}

/// Follows the list from a node. Returns the node it ends at.
fn walk(nodes: &[[u64; 8]], from: usize, steps: u32) -> usize {
    (0..steps).fold(from, |at, _| nodes[at][0] as usize)
}

/// Reads the data caches of a CPU from sysfs, smallest first, and adds DRAM. Without information in sysfs, the only
/// level is DRAM.
fn levels(folder: &Path) -> Vec<Level> {
    let read = |index: &Path, file: &str| std::fs::read_to_string(index.join(file)).unwrap_or_default();
    let caches = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut caches: Vec<(u64, u64)> = caches
        .filter(|index| matches!(read(&index.path(), "type").trim(), "Data" | "Unified"))
        .filter_map(|index| {
            let level = read(&index.path(), "level").trim().parse().ok()?;
            let kib: u64 = read(&index.path(), "size").trim().strip_suffix('K')?.parse().ok()?;
            Some((level, kib << 10))
        })
        .collect();
    caches.sort_unstable();
    let largest = caches.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let beyond = (BEYOND * largest).clamp(BEYOND_BYTES_MIN, BEYOND_BYTES_MAX);
    let mut levels: Vec<Level> = caches
        .into_iter()
        .map(|(level, bytes)| Level { name: format!("L{level}"), bytes: bytes / 2 })
        .collect();
    levels.push(Level { name: "DRAM".to_owned(), bytes: beyond });
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_data_caches_that_sysfs_names_and_the_memory_beyond() {
        let folder = tempfile::tempdir().unwrap();
        for (index, [level, kind, size]) in [
            ["3", "Unified", "32768K"],
            ["1", "Data", "32K"],
            ["1", "Instruction", "64K"],
            ["2", "Unified", "1024K"],
        ]
        .into_iter()
        .enumerate()
        {
            let index = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&index).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                std::fs::write(index.join(name), format!("{text}\n")).unwrap();
            }
        }
        let level = |name: &str, bytes| Level { name: name.to_owned(), bytes };
        let wanted =
            [level("L1", 16 << 10), level("L2", 512 << 10), level("L3", 16 << 20), level("DRAM", 256 << 20)];
        assert_eq!(levels(folder.path()), wanted);
    }

    #[test]
    fn levels_of_a_machine_that_names_no_cache_are_its_memory_alone() {
        let levels = levels(Path::new("/nonexistent"));
        assert_eq!(levels, [Level { name: "DRAM".to_owned(), bytes: BEYOND_BYTES_MIN }]);
    }

    #[test]
    fn walk_visits_every_node_before_it_is_back() {
        let nodes = List::new(64 << 10).nodes();
        let mut seen = vec![false; nodes.len()];
        let mut at = 0;
        for _ in 0..nodes.len() {
            assert!(!std::mem::replace(&mut seen[at], true));
            at = walk(&nodes, at, 1);
        }
        assert_eq!((at, seen.iter().all(|seen| *seen)), (0, true));
    }
}
