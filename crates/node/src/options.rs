//! Settings of a node.

use crate::extension::Extend;
use crate::host_memory::{HostMemory, MemorySource};
use crate::socket_folder::SocketFolder;
use farpool_region::donation::Donation;
use farpool_transport::Exposure;
use farpool_wire::Name;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Settings of a node.
pub struct NodeOptions {
    /// Name of the node. A node that starts under the name of an earlier one replaces it.
    pub name: Name,
    /// Bytes to donate, rounded down to whole regions. A node with less than one region does not start.
    pub memory_bytes: u64,
    /// Bytes of a region: a power of two from 1 MiB to 2 GiB.
    pub region_bytes: u64,
    /// Address to serve on. Port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address (`host:port`) that clients get. Default: the address it serves on.
    pub advertise: Option<String>,
    /// Address (`host:port`) of the broker. Several brokers of one pool are separated by commas.
    pub broker: String,
    /// Certificates of the node, and the exposure of its connections. Default: this machine only, in plaintext.
    pub exposure: Exposure,
    /// Name of the node's failure domain: nodes that may fail together have the same one. Default: the host's name.
    pub host_label: Option<Name>,
    /// Kind of memory that is donated. Huge pages and devices are taken when the node starts and kept until it ends:
    /// the node does not watch the memory of its host then. Clients cannot map memory of a device. Default: ordinary
    /// memory.
    pub donation: Donation,
    /// NUMA node that donated memory comes from. The pressure on this node counts too, if [`PressureOptions::source`]
    /// watches it. Default: the kernel chooses.
    pub numa_node: Option<u32>,
    /// True if transparent huge pages are requested, for regions of ordinary memory that clients do not map.
    pub huge_pages: bool,
    /// True if donated memory is locked into RAM where the system permits it.
    pub lock_memory: bool,
    /// True if donated pages are prefaulted in the background, so that no first write pays for them.
    pub prefault: bool,
    /// True if clients on this host are served by shared memory. A node with limits ignores this and does not: such
    /// clients copy by themselves, and no limit could be enforced.
    pub shared_memory: bool,
    /// Folder in which the socket for shared memory is a file. `None`: it is in the abstract namespace, which only
    /// processes of the same network namespace reach.
    pub socket_folder: Option<SocketFolder>,
    /// Limits of the work for clients.
    pub limits: Limits,
    /// Bytes per second that the node copies at most, to have copies of published files that lack some, within
    /// [`Limits::BYTES_PER_SECOND`]. Default 256 MiB.
    pub repair_bytes_per_second: u64,
    /// Extension of the node. Default: none.
    pub extension: Extend,
    /// Rules for returning memory to the host.
    pub pressure: PressureOptions,
}

/// Rules for returning memory to the host.
#[derive(Clone)]
pub struct PressureOptions {
    /// Source of samples of the host's memory. With `None` the node takes no samples and returns no memory to the host,
    /// however little the host has left. Default: [`HostMemory`].
    pub source: Option<Arc<dyn MemorySource>>,
    /// Bytes that stay available to others. Default: a tenth of the host's memory and at least 2 GiB, but at most a
    /// quarter.
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that holders get to move their data elsewhere once they are asked to. Default 10,000.
    pub evacuate_ms: u64,
    /// Percentage of the regions that may hold pinned or published files. The node takes these regions back from their
    /// owners in an emergency only. Default 100.
    pub firm_percent: u32,
}

impl Default for PressureOptions {
    fn default() -> PressureOptions {
        let source = Some(Arc::new(HostMemory::find()) as Arc<dyn MemorySource>);
        PressureOptions { source, reserve_bytes: None, evacuate_ms: 10_000, firm_percent: 100 }
    }
}

/// Limits of the work for moving clients' bytes over sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes moved per second, both directions together, within [`Limits::BYTES_PER_SECOND`]. Default: no limit.
    pub bytes_per_second: Option<u64>,
    /// CPU time of the threads that serve connections, in thousandths of a CPU, from [`Limits::CPU_MILLI_MIN`] to all
    /// CPUs. With such a limit these threads do not spin. Default: no limit.
    pub cpu_milli: Option<u32>,
}

impl Limits {
    /// Permitted limits of bytes per second. At the least one, the largest morsel of work (1 MiB) takes a second.
    pub const BYTES_PER_SECOND: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000;
    /// Least permitted limit of CPU time. Below it a connection's control messages would wait for seconds.
    pub const CPU_MILLI_MIN: u32 = 10;

    /// Reports whether there is any limit.
    pub fn is_limited(&self) -> bool {
        *self != Limits::default()
    }

    /// Checks the limits. The error names the one that is not permitted, and the permitted range.
    pub fn check(&self) -> Result<(), String> {
        if let Some(bytes) = self.bytes_per_second.filter(|bytes| !Limits::BYTES_PER_SECOND.contains(bytes)) {
            let (least, most) = (Limits::BYTES_PER_SECOND.start(), Limits::BYTES_PER_SECOND.end());
            return Err(format!(
                "the bandwidth limit is {bytes} bytes per second; {least} to {most} are permitted (1MB/s to 1TB/s)"
            ));
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let most = cpus.saturating_mul(1_000);
        if let Some(milli) = self.cpu_milli.filter(|milli| !(Limits::CPU_MILLI_MIN..=most).contains(milli)) {
            return Err(format!(
                "the CPU limit is {} CPUs; {} to {cpus} are permitted on this machine",
                f64::from(milli) / 1e3,
                f64::from(Limits::CPU_MILLI_MIN) / 1e3
            ));
        }
        Ok(())
    }
}

impl NodeOptions {
    /// Returns the settings of a node on a free loopback port with default regions.
    pub fn new(name: Name, memory_bytes: u64, broker: String) -> Self {
        NodeOptions {
            name,
            memory_bytes,
            region_bytes: farpool_wire::limits::REGION_BYTES_DEFAULT,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            broker,
            exposure: Exposure::default(),
            host_label: None,
            donation: Donation::Ordinary,
            numa_node: None,
            huge_pages: true,
            lock_memory: true,
            prefault: true,
            shared_memory: true,
            socket_folder: None,
            limits: Limits::default(),
            repair_bytes_per_second: 256 << 20,
            extension: Box::new(|_, _, _| Ok(Box::new(()))),
            pressure: PressureOptions::default(),
        }
    }
}
