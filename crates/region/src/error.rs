//! Errors of region memory. Each kind carries the value and what would have been permitted.

use crate::donation::DonationError;
use farpool_wire::limits::{NODE_REGIONS_MAX, REGION_BYTES_MAX, REGION_BYTES_MIN};
use farpool_wire::{Epoch, RegionIndex};
use std::fmt;
use std::io;

/// Reason why the arena did not do as asked. Unless a method says otherwise, an error means that nothing has changed.
#[derive(Debug)]
pub enum RegionError {
    /// Region size that is not permitted.
    RegionBytes {
        /// Bytes of a region that were asked for.
        bytes: u64,
    },
    /// Number of regions that is not permitted.
    RegionCount {
        /// Number of regions that was asked for.
        count: u32,
    },
    /// More memory than the host has.
    HostMemory {
        /// Bytes of all regions together.
        wanted_bytes: u64,
        /// Bytes of the host's memory, `MemTotal` of `/proc/meminfo`.
        host_bytes: u64,
    },
    /// Memory of the kind that was asked for, which the host cannot give.
    Donation(DonationError),
    /// Refusal of the operating system.
    System {
        /// Operation that was refused, as a verb phrase.
        what: &'static str,
        /// Bytes that the operation was for.
        bytes: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Index that belongs to no region.
    NoSuchRegion {
        /// Index that was asked for.
        region: RegionIndex,
        /// Number of regions of the arena.
        region_count: u32,
    },
    /// Gate that is open or suspended, while the operation needs it closed.
    NotClosed {
        /// Region that is not closed.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
    },
    /// Gate that is closed, so that there is nothing to suspend or resume.
    NotOpen {
        /// Region that is closed.
        region: RegionIndex,
        /// Epoch of the region.
        epoch: Epoch,
    },
    /// Epoch that may not follow the region's present one, because epochs only grow, or that is out of range: 0, or
    /// above the largest one.
    EpochOrder {
        /// Region whose epoch was to change.
        region: RegionIndex,
        /// Epoch that was asked for.
        asked: Epoch,
        /// Epoch of the region.
        current: Epoch,
    },
    /// Region that may hold bytes of an earlier lease, and must be scrubbed (zeroed) first.
    NotClean {
        /// Region that is not clean.
        region: RegionIndex,
        /// Number of bytes from the start that may have been written.
        dirty_bytes: u64,
    },
    /// Region of anonymous memory or of a device, which has no descriptor, or a sealed one, which has none for writing.
    NotShared {
        /// Region without such a descriptor.
        region: RegionIndex,
    },
}

impl RegionError {
    pub(crate) fn system(what: &'static str, bytes: u64, source: impl Into<io::Error>) -> Self {
        RegionError::System { what, bytes, source: source.into() }
    }
}

impl From<DonationError> for RegionError {
    fn from(error: DonationError) -> Self {
        RegionError::Donation(error)
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::RegionBytes { bytes } => write!(
                f,
                "a region of {bytes} B is not permitted: use a power of two from {REGION_BYTES_MIN} to \
                 {REGION_BYTES_MAX} B"
            ),
            RegionError::RegionCount { count } => {
                write!(f, "{count} regions are not permitted: use 1 to {NODE_REGIONS_MAX}")
            }
            RegionError::HostMemory { wanted_bytes, host_bytes } => {
                write!(f, "{wanted_bytes} B of regions are more than this host's memory of {host_bytes} B")
            }
            RegionError::Donation(error) => write!(f, "{error}"),
            RegionError::System { what, bytes: 0, source } => {
                write!(f, "the operating system refused to {what}: {source}")
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
                write!(f, "the first {dirty_bytes} B of region {region} may have been written: wipe it first")
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
