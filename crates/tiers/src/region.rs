//! Private memory in chunks of 2 MiB, each meant for one tier, and a check of where its pages really are.
//!
//! The idea: a map holds the tier of each chunk. Operators read the map to mix work on near chunks with work on far
//! ones. The ratio belongs to one region and is exact, because the chunks are placed here and not by system-wide
//! weights of the kernel. A chunk is a huge page, because one huge page cannot lie on two NUMA nodes. When a region is
//! made, several threads touch all of its pages.
//!
//! A policy that the kernel accepts does not prove anything: a node may be full, or may not exist.
//! [`TieredRegion::landed`] asks the kernel where the pages are.

use crate::plan::interleave::Interleave;
use crate::plan::traffic::TierSide;
use farpool_region::{HUGE_PAGE_BYTES, PrivateMemory, numa};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a chunk, which lies on one tier as a whole.
pub const CHUNK_BYTES: usize = HUGE_PAGE_BYTES;
/// Bytes of a page when asking the kernel where pages lie. No host has smaller pages.
const PAGE_BYTES: usize = 4_096;

/// NUMA nodes of the two tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// NUMA node of the near tier; `None` lets the kernel choose.
    pub near: Option<u32>,
    /// NUMA node of the far tier; `None` lets the kernel choose.
    pub far: Option<u32>,
}

impl Nodes {
    /// Emulated tiers: the kernel chooses all memory.
    pub const ANY: Nodes = Nodes { near: None, far: None };

    /// Returns the NUMA node of one tier.
    pub fn of(&self, side: TierSide) -> Option<u32> {
        match side {
            TierSide::Near => self.near,
            TierSide::Far => self.far,
        }
    }
}

/// Private memory whose chunks lie near or far.
pub struct TieredRegion {
    memory: PrivateMemory,
    /// NUMA nodes from which the chunks of the two tiers were requested.
    nodes: Nodes,
    /// Tier on which each chunk was requested.
    chunks: Vec<TierSide>,
}

impl TieredRegion {
    /// Allocates a region of `bytes`, rounded up to whole chunks, with near chunks at the ratio of `interleave`. All
    /// pages are present and zero when this returns; `threads` threads touch them.
    pub fn new(
        bytes: usize,
        interleave: Interleave,
        nodes: Nodes,
        threads: usize,
    ) -> Result<TieredRegion, TierRegionError> {
        let count = bytes.div_ceil(CHUNK_BYTES).max(1);
        let refused = |doing, errno: rustix::io::Errno| TierRegionError { doing, bytes, errno };
        let all = count.checked_mul(CHUNK_BYTES);
        let all = all.ok_or(refused("reserving", rustix::io::Errno::NOMEM))?;
        // All pages will be touched. If they were more than the machine has, the kernel would kill the process.
        let info = rustix::system::sysinfo();
        if all as u128 > u128::from(info.totalram) * u128::from(info.mem_unit) {
            return Err(refused("the machine has too little memory for", rustix::io::Errno::NOMEM));
        }
        let memory = PrivateMemory::reserve(all).map_err(|errno| refused("reserving", errno))?;
        let side = |chunk| if interleave.is_near(chunk) { TierSide::Near } else { TierSide::Far };
        let chunks: Vec<TierSide> = (0..count as u64).map(side).collect();
        // Huge pages only make accesses faster. A kernel without them is no error.
        let _ = memory.ask_for_huge_pages();
        let region = TieredRegion { memory, nodes, chunks };
        for (chunk, side) in region.chunks.iter().enumerate() {
            if let Some(node) = nodes.of(*side) {
                let range = region.chunk(chunk);
                numa::prefer(range, node)
                    .map_err(|errno| refused("binding to a NUMA node failed for", errno))?;
            }
        }
        region.populate(threads).map_err(|errno| refused("prefaulting", errno))?;
        Ok(region)
    }

    /// Returns the size in bytes, a multiple of [`CHUNK_BYTES`].
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Returns false: a region has at least one chunk.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the tier on which each chunk was requested.
    pub fn chunk_map(&self) -> &[TierSide] {
        &self.chunks
    }

    /// Returns the tier on which the byte at `offset` was requested. Panics if the region is shorter.
    pub fn side_of(&self, offset: usize) -> TierSide {
        self.chunks[offset / CHUNK_BYTES]
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Returns all bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Returns the start of the mapping, for [`TierMemory`](crate::TierMemory), which lends chunks.
    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Returns the bytes of one chunk. Panics if there is no such chunk.
    pub fn chunk(&self, chunk: usize) -> &[u8] {
        &self.bytes()[chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES]
    }

    /// Asks the kernel on which NUMA nodes the pages of each chunk really lie.
    pub fn landed(&self) -> Result<Landed, TierRegionError> {
        let mut landed = Landed { chunks: self.chunks.len(), ..Landed::default() };
        for (chunk, side) in self.chunks.iter().enumerate() {
            let asked = numa::nodes_of(self.chunk(chunk), PAGE_BYTES);
            let pages = asked.map_err(|errno| TierRegionError {
                doing: "looking up the NUMA nodes of",
                bytes: self.len(),
                errno,
            })?;
            let node = self.nodes.of(*side);
            let mut elsewhere = 0;
            for page in pages {
                let found = u32::try_from(page).ok();
                landed.count(found, 1);
                elsewhere += u32::from(found.is_none() || node.is_some_and(|node| found != Some(node)));
            }
            if elsewhere > 0 {
                let meant_for = *side;
                landed.astray.push(Astray { chunk, meant_for, node, pages: elsewhere });
            }
        }
        Ok(landed)
    }

    fn populate(&self, threads: usize) -> Result<(), rustix::io::Errno> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= self.chunks.len() {
                    return Ok(());
                }
                self.memory.populate(chunk * CHUNK_BYTES, CHUNK_BYTES)?;
            }
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.clamp(1, 256)).map(|_| scope.spawn(work)).collect();
            let own = work();
            // A thread that panicked has printed its panic already.
            others.into_iter().filter_map(|other| other.join().ok()).fold(own, Result::and)
        })
    }
}

impl fmt::Debug for TieredRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let near = self.chunks.iter().filter(|side| **side == TierSide::Near).count();
        f.debug_struct("TieredRegion")
            .field("chunks", &self.chunks.len())
            .field("near", &near)
            .field("nodes", &self.nodes)
            .finish()
    }
}

/// Nodes on which the memory of a region really lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Landed {
    /// Number of chunks that were checked.
    pub chunks: usize,
    /// Number of 4 KiB pages on each NUMA node; the node is `None` for pages that are not present.
    pub pages: Vec<(Option<u32>, u64)>,
    /// Chunks with pages that are not present, or not on the node of their tier.
    pub astray: Vec<Astray>,
}

/// Chunk of which some pages lie on another NUMA node than was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Astray {
    /// Index of the chunk in its region.
    pub chunk: usize,
    /// Tier of the chunk in the map.
    pub meant_for: TierSide,
    /// Node of that tier; `None` if any node would do.
    pub node: Option<u32>,
    /// Number of pages on another node, or not present.
    pub pages: u32,
}

impl Landed {
    fn count(&mut self, node: Option<u32>, more: u64) {
        match self.pages.iter_mut().find(|(of, _)| *of == node) {
            Some((_, pages)) => *pages += more,
            None => self.pages.push((node, more)),
        }
    }

    /// Adds the result of another region. In `astray`, its chunks keep their indexes within that region.
    pub(crate) fn add(&mut self, other: Landed) {
        self.chunks += other.chunks;
        other.pages.into_iter().for_each(|(node, pages)| self.count(node, pages));
        self.astray.extend(other.astray);
    }

    /// Returns the share of all pages that lie on `node`, 0 to 1.
    pub fn share_on(&self, node: u32) -> f64 {
        let all: u64 = self.pages.iter().map(|(_, pages)| pages).sum();
        let there = self.pages.iter().find(|(of, _)| *of == Some(node)).map_or(0, |(_, pages)| *pages);
        there as f64 / all.max(1) as f64
    }
}

/// Error of the kernel while a region was made or looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRegionError {
    /// Step that failed, for the message.
    doing: &'static str,
    /// Size of the region in bytes.
    bytes: usize,
    errno: rustix::io::Errno,
}

impl fmt::Display for TierRegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TierRegionError { doing, bytes, errno } = self;
        write!(f, "{doing} {bytes} B of tiered memory: {errno}")?;
        if *errno == rustix::io::Errno::NOMEM {
            // Each change of node between neighbouring chunks needs a mapping of its own.
            f.write_str("; if memory is free, raise vm.max_map_count: each change of node takes a mapping")?;
        }
        Ok(())
    }
}

impl std::error::Error for TierRegionError {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn chunks_lie_where_the_map_says_and_the_kernel_agrees() {
        // Node 0 exists on every machine.
        let nodes = Nodes { near: Some(0), far: Some(0) };
        let region = TieredRegion::new(10 * CHUNK_BYTES, Interleave::ratio(3, 2).unwrap(), nodes, 2).unwrap();
        let near = region.chunk_map().iter().filter(|side| **side == TierSide::Near).count();
        assert_eq!((region.len(), near), (20 * MIB, 6));
        assert_eq!(region.side_of(0), region.chunk_map()[0]);
        let landed = region.landed().unwrap();
        assert_eq!((landed.chunks, landed.share_on(0)), (10, 1.0));
        assert!(landed.astray.is_empty(), "{landed:?}");
    }

    #[test]
    fn memory_is_zeros_and_keeps_what_is_written() {
        let mut region = TieredRegion::new(3 * MIB, Interleave::FAR, Nodes::ANY, 1).unwrap();
        assert_eq!(region.chunk_map(), [TierSide::Far; 2]);
        assert!(region.bytes().iter().all(|byte| *byte == 0));
        region.bytes_mut()[3 * MIB] = 7;
        assert_eq!(region.chunk(1)[MIB], 7);
    }

    #[test]
    fn node_that_is_not_there_is_an_error_that_says_what_was_asked() {
        let nodes = Nodes { near: Some(1_000), far: None };
        let error = TieredRegion::new(CHUNK_BYTES, Interleave::NEAR, nodes, 1).unwrap_err().to_string();
        assert!(error.starts_with("binding to a NUMA node failed for 2097152 B"), "{error}");
        let none = Nodes { near: Some(u32::MAX), far: None };
        assert!(TieredRegion::new(CHUNK_BYTES, Interleave::NEAR, none, 1).is_err());
    }

    #[test]
    fn more_than_there_are_addresses_for_is_refused() {
        assert!(TieredRegion::new(usize::MAX - MIB, Interleave::FAR, Nodes::ANY, 1).is_err());
        assert!(TieredRegion::new(1 << 60, Interleave::FAR, Nodes::ANY, 1).is_err());
    }
}
