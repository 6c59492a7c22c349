//! Memory in chunks of 2 MiB, each on the tier that it was meant for, and what the kernel says of it.
//!
//! The idea: which tier a chunk is on is written down in a map that operators read: they need the tier of each morsel
//! to mix near and far ones. The ratio is exact and of this region alone, as it is made here and not by weights of the
//! whole system; the unit is a huge page, as smaller parts of one cannot lie on different nodes. Pages are made present
//! at once, by several threads, each chunk from its node. Whether they came from there is asked of the kernel
//! ([`TieredRegion::landed`]), never assumed: a node may be full, and a policy that is accepted may name a node that is
//! not there.

use crate::plan::interleave::Interleave;
use crate::plan::traffic::Side;
use crate::policy;
use farpool_region::{HUGE_PAGE_BYTES, PrivateMemory};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What lies on one tier as a whole.
pub const CHUNK_BYTES: usize = HUGE_PAGE_BYTES;
/// Chunks are looked at in pages of this size; no host has smaller ones.
const PAGE_BYTES: usize = 4_096;

/// Where the memory of two tiers comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// NUMA node of the near tier; nothing: wherever the kernel likes.
    pub near: Option<u32>,
    /// NUMA node of the far tier.
    pub far: Option<u32>,
}

impl Nodes {
    /// Tiers that are only emulated: all memory is of one kind.
    pub const ANY: Nodes = Nodes { near: None, far: None };

    /// Of one tier.
    pub fn of(&self, side: Side) -> Option<u32> {
        match side {
            Side::Near => self.near,
            Side::Far => self.far,
        }
    }
}

/// Private memory whose chunks lie near or far.
pub struct TieredRegion {
    memory: PrivateMemory,
    nodes: Nodes,
    chunks: Vec<Side>,
}

impl TieredRegion {
    /// So many bytes, made up to whole chunks, of which so many lie near; present when this returns, as zeros. By so
    /// many threads.
    pub fn new(
        bytes: usize,
        interleave: Interleave,
        nodes: Nodes,
        threads: usize,
    ) -> Result<TieredRegion, RegionError> {
        let count = bytes.div_ceil(CHUNK_BYTES).max(1);
        let refused = |doing, errno: rustix::io::Errno| RegionError { doing, bytes, errno };
        let all = count.checked_mul(CHUNK_BYTES);
        let all = all.ok_or(refused("reserving", rustix::io::Errno::NOMEM))?;
        // All of it is made present, so what cannot be would end the process.
        let info = rustix::system::sysinfo();
        if all as u128 > u128::from(info.totalram) * u128::from(info.mem_unit) {
            return Err(refused("the machine has less than", rustix::io::Errno::NOMEM));
        }
        let memory = PrivateMemory::reserve(all).map_err(|errno| refused("reserving", errno))?;
        let side = |chunk| if interleave.is_near(chunk) { Side::Near } else { Side::Far };
        let chunks: Vec<Side> = (0..count as u64).map(side).collect();
        // Without huge pages all is as right and a little slower, so it is no error that a kernel has none.
        let _ = memory.ask_for_huge_pages();
        let region = TieredRegion { memory, nodes, chunks };
        for (chunk, side) in region.chunks.iter().enumerate() {
            if let Some(node) = nodes.of(*side) {
                let range = region.chunk(chunk);
                policy::prefer(range, node)
                    .map_err(|errno| refused("asking for memory of a node for", errno))?;
            }
        }
        region.populate(threads).map_err(|errno| refused("making present", errno))?;
        Ok(region)
    }

    /// Bytes, a multiple of [`CHUNK_BYTES`].
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Never: there is at least one chunk.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The tier that each chunk was meant for.
    pub fn chunk_map(&self) -> &[Side] {
        &self.chunks
    }

    /// The tier of whatever lies at this byte. Panics if there is none.
    pub fn side_of(&self, offset: usize) -> Side {
        self.chunks[offset / CHUNK_BYTES]
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// All of it, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Where it begins, for [`TierMemory`](crate::TierMemory), which lends chunks out.
    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// One chunk. Panics if there is none.
    pub fn chunk(&self, chunk: usize) -> &[u8] {
        &self.bytes()[chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES]
    }

    /// Asks the kernel where the pages of each chunk lie.
    pub fn landed(&self) -> Result<Landed, RegionError> {
        let mut landed = Landed { chunks: self.chunks.len(), ..Landed::default() };
        for (chunk, side) in self.chunks.iter().enumerate() {
            let asked = policy::nodes_of(self.chunk(chunk), PAGE_BYTES);
            let pages = asked.map_err(|errno| RegionError {
                doing: "asking where pages lie of",
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
            // A thread that panicked has said so already.
            others.into_iter().filter_map(|other| other.join().ok()).fold(own, Result::and)
        })
    }
}

impl fmt::Debug for TieredRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let near = self.chunks.iter().filter(|side| **side == Side::Near).count();
        f.debug_struct("TieredRegion")
            .field("chunks", &self.chunks.len())
            .field("near", &near)
            .field("nodes", &self.nodes)
            .finish()
    }
}

/// Where a region's memory really is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Landed {
    /// Chunks that were looked at.
    pub chunks: usize,
    /// By node, how many pages of 4 KiB lie there; those that lie nowhere have none.
    pub pages: Vec<(Option<u32>, u64)>,
    /// Chunks of which pages do not lie where they were meant to.
    pub astray: Vec<Astray>,
}

/// A chunk that is not, or not as a whole, where it was meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Astray {
    /// Which chunk.
    pub chunk: usize,
    /// Its tier in the map.
    pub meant_for: Side,
    /// The node of that tier; none if any would do.
    pub node: Option<u32>,
    /// How many of its pages lie elsewhere, or nowhere.
    pub pages: u32,
}

impl Landed {
    fn count(&mut self, node: Option<u32>, more: u64) {
        match self.pages.iter_mut().find(|(of, _)| *of == node) {
            Some((_, pages)) => *pages += more,
            None => self.pages.push((node, more)),
        }
    }

    /// What was found of another region besides. Chunks that are astray keep the numbers of their own.
    pub(crate) fn add(&mut self, other: Landed) {
        self.chunks += other.chunks;
        other.pages.into_iter().for_each(|(node, pages)| self.count(node, pages));
        self.astray.extend(other.astray);
    }

    /// Of all pages, the share on a node.
    pub fn share_on(&self, node: u32) -> f64 {
        let all: u64 = self.pages.iter().map(|(_, pages)| pages).sum();
        let there = self.pages.iter().find(|(of, _)| *of == Some(node)).map_or(0, |(_, pages)| *pages);
        there as f64 / all.max(1) as f64
    }
}

/// The kernel said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionError {
    doing: &'static str,
    bytes: usize,
    errno: rustix::io::Errno,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegionError { doing, bytes, errno } = self;
        write!(f, "{doing} {bytes} B of tiered memory: {errno}")?;
        if *errno == rustix::io::Errno::NOMEM {
            // Chunks of different nodes side by side are mappings of their own.
            f.write_str("; vm.max_map_count permits so many changes of node in one process")?;
        }
        Ok(())
    }
}

impl std::error::Error for RegionError {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn chunks_lie_where_the_map_says_and_the_kernel_agrees() {
        // Node 0 is there on every machine, and a policy for it is a policy.
        let nodes = Nodes { near: Some(0), far: Some(0) };
        let region = TieredRegion::new(10 * CHUNK_BYTES, Interleave::ratio(3, 2).unwrap(), nodes, 2).unwrap();
        let near = region.chunk_map().iter().filter(|side| **side == Side::Near).count();
        assert_eq!((region.len(), near), (20 * MIB, 6));
        assert_eq!(region.side_of(0), region.chunk_map()[0]);
        let landed = region.landed().unwrap();
        assert_eq!((landed.chunks, landed.share_on(0)), (10, 1.0));
        assert!(landed.astray.is_empty(), "{landed:?}");
    }

    #[test]
    fn memory_is_zeros_and_keeps_what_is_written() {
        let mut region = TieredRegion::new(3 * MIB, Interleave::FAR, Nodes::ANY, 1).unwrap();
        assert_eq!(region.chunk_map(), [Side::Far; 2]);
        assert!(region.bytes().iter().all(|byte| *byte == 0));
        region.bytes_mut()[3 * MIB] = 7;
        assert_eq!(region.chunk(1)[MIB], 7);
    }

    #[test]
    fn node_that_is_not_there_is_an_error_that_says_what_was_asked() {
        let nodes = Nodes { near: Some(1_000), far: None };
        let error = TieredRegion::new(CHUNK_BYTES, Interleave::NEAR, nodes, 1).unwrap_err().to_string();
        assert!(error.starts_with("asking for memory of a node for 2097152 B"), "{error}");
        let none = Nodes { near: Some(u32::MAX), far: None };
        assert!(TieredRegion::new(CHUNK_BYTES, Interleave::NEAR, none, 1).is_err());
    }

    #[test]
    fn more_than_there_are_addresses_for_is_refused() {
        assert!(TieredRegion::new(usize::MAX - MIB, Interleave::FAR, Nodes::ANY, 1).is_err());
        assert!(TieredRegion::new(1 << 60, Interleave::FAR, Nodes::ANY, 1).is_err());
    }
}
