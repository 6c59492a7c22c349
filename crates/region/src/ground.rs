//! The memory below an arena: where regions lie that no client maps, and how the files of the others are made.
//!
//! The idea: ordinary memory and devices have one range of addresses for all regions. A region of ordinary memory
//! leaves its range for a file while clients map it, and its pages with it. Huge pages are too few for that: each
//! region is a file from the start, and gets another one when it must leave the first. Memory that was asked for on one
//! NUMA node is bound to it, and the kernel is asked afterwards where the pages are.
//!
//! Never here: a gate, or a decision when memory may be touched.

use crate::donation::{self, Donation, DonationError};
use crate::error::RegionError;
use crate::mapping::{FileMemory, HUGE_PAGE_BYTES, MappedSlice, Mapping, PAGE_BYTES_MIN};
use crate::memfd;
use crate::options::ArenaOptions;
use crate::topology::Topology;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Memory of an arena.
pub(crate) struct Ground {
    region_bytes: u64,
    numa_node: Option<u32>,
    kind: Kind,
}

enum Kind {
    /// Ordinary memory: one anonymous mapping.
    Pages(Mapping),
    /// Mapped device. The descriptor keeps other nodes from it.
    Device(Mapping, #[expect(dead_code, reason = "held for its lock")] OwnedFd),
    /// Huge pages of this many bytes, in a file for each region.
    HugePages(u64),
}

impl Ground {
    /// Checks that the host has the memory, and reserves addresses for it. It makes no page present, but for a few of a
    /// NUMA node, which are looked at and given back.
    pub(crate) fn new(options: &ArenaOptions) -> Result<Ground, RegionError> {
        let &ArenaOptions { region_bytes, region_count, huge_pages, numa_node, .. } = options;
        let wanted_bytes = region_bytes * u64::from(region_count);
        if let Some(node) = numa_node {
            check_node(node, wanted_bytes)?;
        }
        let failed = |errno| RegionError::system("reserve memory for all regions", wanted_bytes, errno);
        let kind = match &options.donation {
            Donation::Ordinary => {
                check_host(wanted_bytes)?;
                let mapping = Mapping::reserve(wanted_bytes as usize).map_err(failed)?;
                if huge_pages && region_bytes >= HUGE_PAGE_BYTES as u64 {
                    mapping.ask_for_huge_pages().map_err(failed)?;
                }
                Kind::Pages(mapping)
            }
            Donation::HugePages { page_bytes } => {
                donation::check_huge_pages(
                    Path::new("/sys"),
                    *page_bytes,
                    region_bytes,
                    region_count,
                    numa_node,
                )?;
                Kind::HugePages(*page_bytes)
            }
            Donation::Device(path) => {
                let fd = donation::open_device(path, region_bytes, region_count)?;
                let mapping = Mapping::shared(fd.as_fd(), wanted_bytes as usize).map_err(|errno| {
                    let why = format!("it cannot be mapped: {}", io::Error::from(errno));
                    DonationError::Device { path: path.clone(), why }
                })?;
                Kind::Device(mapping, fd)
            }
        };
        let ground = Ground { region_bytes, numa_node, kind };
        if let Kind::Pages(mapping) = &ground.kind {
            ground.bind(mapping)?;
            if numa_node.is_some() {
                let some = mapping.slice(0, HUGE_PAGE_BYTES.min(region_bytes as usize));
                ground.populate(some)?;
                some.discard().map_err(failed)?;
            }
        }
        Ok(ground)
    }

    /// Returns the region's range of the addresses of all regions. `None` if each region is a file.
    pub(crate) fn range(&self, index: u32) -> Option<MappedSlice<'_>> {
        let bytes = self.region_bytes as usize;
        match &self.kind {
            Kind::Pages(mapping) | Kind::Device(mapping, _) => {
                Some(mapping.slice(index as usize * bytes, bytes))
            }
            Kind::HugePages(_) => None,
        }
    }

    pub(crate) fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// Reports whether pages go back to the host when a region is given back.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(self.kind, Kind::Pages(_))
    }

    /// Reports whether regions can be files, which clients map.
    pub(crate) fn has_files(&self) -> bool {
        !matches!(self.kind, Kind::Device(..))
    }

    /// Makes the pages of a range present.
    pub(crate) fn populate(&self, range: MappedSlice<'_>) -> Result<(), RegionError> {
        range
            .populate()
            .map_err(|errno| RegionError::system("populate a region's pages", range.bytes() as u64, errno))?;
        self.check_place(range)
    }

    /// Makes a file of zeros for a region, with all of its pages present.
    pub(crate) fn file(&self) -> Result<FileMemory, RegionError> {
        let bytes = self.region_bytes;
        let refused = |errno| RegionError::system("create the file of a region", bytes, errno);
        let huge_page_bytes = self.huge_page_bytes();
        let fd = memfd::create("farpool-region", bytes, huge_page_bytes).map_err(refused)?;
        memfd::seal_for_lease(&fd).map_err(refused)?;
        let mapping = Mapping::shared(fd.as_fd(), bytes as usize).map_err(refused)?;
        self.bind(&mapping)?;
        match huge_page_bytes {
            // The kernel takes them from the right node only when they are touched.
            Some(_) => mapping.whole().populate_or_fail().map_err(refused)?,
            None => {
                memfd::allocate(&fd, bytes).map_err(refused)?;
                mapping.whole().populate().map_err(refused)?;
            }
        }
        self.check_place(mapping.whole())?;
        Ok(FileMemory::new(fd, mapping))
    }

    fn huge_page_bytes(&self) -> Option<u64> {
        match self.kind {
            Kind::HugePages(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn bind(&self, mapping: &Mapping) -> Result<(), RegionError> {
        let Some(node) = self.numa_node else { return Ok(()) };
        let what = "bind memory to a NUMA node (containers need the capability SYS_NICE for that)";
        let refused = |errno| RegionError::system(what, mapping.bytes() as u64, errno);
        mapping.whole().bind(node).map_err(refused)
    }

    /// Checks that the pages of a range are on the NUMA node that was asked for.
    fn check_place(&self, range: MappedSlice<'_>) -> Result<(), RegionError> {
        let Some(node) = self.numa_node else { return Ok(()) };
        let page_bytes = self.huge_page_bytes().map_or(PAGE_BYTES_MIN, |bytes| bytes as usize);
        match range.astray(node, page_bytes) {
            Ok((_, 0)) => Ok(()),
            Ok((looked_at, pages)) => Err(DonationError::Astray { node, pages, looked_at }.into()),
            // The binding itself is strict. Where asking is not permitted, it must do.
            Err(Errno::PERM | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(RegionError::system("ask where memory lies", range.bytes() as u64, errno)),
        }
    }
}

fn check_host(wanted_bytes: u64) -> Result<(), RegionError> {
    let host_bytes = host_memory_bytes()
        .map_err(|error| RegionError::system("read the host's memory from /proc/meminfo", 0, error))?;
    if wanted_bytes > host_bytes {
        return Err(RegionError::HostMemory { wanted_bytes, host_bytes });
    }
    Ok(())
}

fn check_node(node: u32, wanted_bytes: u64) -> Result<(), DonationError> {
    let nodes = Topology::read().map_or(Vec::new(), |topology| topology.nodes);
    let Some(found) = nodes.iter().find(|one| one.id == node) else {
        return Err(DonationError::NoSuchNode { node, present: nodes.iter().map(|node| node.id).collect() });
    };
    if wanted_bytes > found.bytes {
        return Err(DonationError::NodeMemory { node, wanted_bytes, node_bytes: found.bytes });
    }
    Ok(())
}

/// Returns `MemTotal` of this host, in bytes.
fn host_memory_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or(io::ErrorKind::InvalidData.into())
}
