//! What can go wrong with region memory. Each kind carries the value and what would have been permitted.

use farpool_wire::limits::{NODE_REGIONS_MAX, REGION_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::{Epoch, RegionIndex};
use std::fmt;
use std::io;

/// Why the arena did not do as told. Nothing has changed when one of these comes back.
#[derive(Debug)]
pub enum RegionError {
    /// No permitted region size.
    RegionBytes {
        /// What was asked for.
        bytes: u64,
    },
    /// No permitted number of regions.
    RegionCount {
        /// What was asked for.
        count: u32,
    },
    /// More than the host has.
    HostMemory {
        /// All regions together.
        wanted_bytes: u64,
        /// `MemTotal` of `/proc/meminfo`.
        host_bytes: u64,
    },
    /// The operating system refused.
    System {
        /// What it was asked to do.
        what: &'static str,
        /// For how many bytes.
        bytes: u64,
        /// What it said.
        source: io::Error,
    },
    /// No region with this index.
    NoSuchRegion {
        /// What was asked for.
        region: RegionIndex,
        /// Regions of the arena.
        region_count: u32,
    },
    /// The gate is open or suspended, and this needs it closed.
    NotClosed {
        /// Which region.
        region: RegionIndex,
        /// Its epoch now.
        epoch: Epoch,
    },
    /// The gate is closed, so there is nothing to suspend or resume.
    NotOpen {
        /// Which region.
        region: RegionIndex,
        /// Its epoch now.
        epoch: Epoch,
    },
    /// Epochs only grow.
    EpochOrder {
        /// Which region.
        region: RegionIndex,
        /// The epoch asked for.
        asked: Epoch,
        /// Its epoch now.
        current: Epoch,
    },
    /// The region may hold somebody's bytes: scrub it first.
    NotClean {
        /// Which region.
        region: RegionIndex,
        /// Bytes from its start that may have been written.
        dirty_bytes: u64,
    },
    /// The region is anonymous memory, or not open to writers, so no such descriptor of it is given out.
    NotShared {
        /// Which region.
        region: RegionIndex,
    },
}

impl RegionError {
    pub(crate) fn system(what: &'static str, bytes: u64, source: impl Into<io::Error>) -> Self {
        RegionError::System { what, bytes, source: source.into() }
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::RegionBytes { bytes } => write!(
                f,
                "a region of {bytes} B is not possible: a power of two from {REGION_BYTES_MIN} to {REGION_BYTES_MAX} B is"
            ),
            RegionError::RegionCount { count } => {
                write!(f, "{count} regions are not possible: 1 to {NODE_REGIONS_MAX} are")
            }
            RegionError::HostMemory { wanted_bytes, host_bytes } => {
                write!(f, "{wanted_bytes} B of regions are more than this host's memory of {host_bytes} B")
            }
            RegionError::System { what, bytes, source } => {
                write!(f, "the operating system refused to {what} ({bytes} B): {source}")
            }
            RegionError::NoSuchRegion { region, region_count } => {
                write!(f, "no region {region}: there are {region_count}, counted from 0")
            }
            RegionError::NotClosed { region, epoch } => {
                write!(f, "region {region} is still open at epoch {epoch}: close it first")
            }
            RegionError::NotOpen { region, epoch } => {
                write!(f, "region {region} is closed at epoch {epoch}")
            }
            RegionError::EpochOrder { region, asked, current } => {
                write!(f, "epoch {asked} cannot follow epoch {current} of region {region}")
            }
            RegionError::NotClean { region, dirty_bytes } => {
                write!(
                    f,
                    "the first {dirty_bytes} B of region {region} may have been written: scrub it first"
                )
            }
            RegionError::NotShared { region } => {
                write!(f, "region {region} has no descriptor with that access")
            }
        }
    }
}

impl std::error::Error for RegionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RegionError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
