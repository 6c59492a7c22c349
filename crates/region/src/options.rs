//! Options of an arena.

use crate::donation::Donation;

/// Size and options of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// Bytes of a region: a power of two from `REGION_BYTES_MIN` to `REGION_BYTES_MAX`.
    pub region_bytes: u64,
    /// Number of regions: 1 to `NODE_REGIONS_MAX`. All together take at most the memory of the host, NUMA node or
    /// device.
    pub region_count: u32,
    /// Kind of memory. Default: [`Donation::Ordinary`].
    pub donation: Donation,
    /// NUMA node that all of the memory comes from. `None`, which is the default, lets the kernel choose. It has no
    /// effect on a device, which lies where it lies.
    pub numa_node: Option<u32>,
    /// True to ask for transparent huge pages (2 MiB) of ordinary memory. It has no effect on smaller regions, which
    /// could not be given back singly. Default: false.
    pub huge_pages: bool,
    /// True to lock pages in memory when they are prefaulted or shared, where the system permits it. Default: false.
    pub lock: bool,
}

impl ArenaOptions {
    /// Returns the defaults for regions of this size and number.
    pub fn new(region_bytes: u64, region_count: u32) -> ArenaOptions {
        ArenaOptions {
            region_bytes,
            region_count,
            donation: Donation::Ordinary,
            numa_node: None,
            huge_pages: false,
            lock: false,
        }
    }
}
