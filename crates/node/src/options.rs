//! What a node is started with.

use crate::extension::Extend;
use crate::host_memory::{HostMemory, MemorySource};
use farpool_transport::Reach;
use farpool_wire::Name;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Settings of a node.
pub struct NodeOptions {
    /// What it is called; a node started again under its name replaces its former life.
    pub name: Name,
    /// Bytes to donate; rounded down to whole regions, at least one.
    pub memory_bytes: u64,
    /// Bytes of a region: a power of two from 1 MiB to 2 GiB.
    pub region_bytes: u64,
    /// Where to serve; port 0 picks a free one.
    pub listen: SocketAddr,
    /// `host:port` that clients are told; by default where it serves.
    pub advertise: Option<String>,
    /// `host:port` of the broker; of several that stand in for each other, with commas between.
    pub broker: String,
    /// What proves this node to others and others to it, and how far its connections go. Default: no further
    /// than this machine, in plaintext.
    pub reach: Reach,
    /// Failure domain; by default the host's name.
    pub host_label: Option<Name>,
    /// Ask for huge pages (network regions).
    pub huge_pages: bool,
    /// Lock donated memory into RAM where the system permits it.
    pub lock_memory: bool,
    /// Touch donated pages in the background, so that no first write pays for them.
    pub prefault: bool,
    /// Serve clients on this host by shared memory. A node with limits does not, whatever is said here: those
    /// clients copy by themselves, and nobody could hold them to anything.
    pub shared_memory: bool,
    /// What it may spend on its clients.
    pub limits: Limits,
    /// What it does for its clients besides. Default: nothing.
    pub extension: Extend,
    /// When it gives memory back to its host.
    pub pressure: PressureOptions,
}

/// When a node gives memory back to its host.
#[derive(Clone)]
pub struct PressureOptions {
    /// What its host's memory looks like; nothing: it is not looked at. Default: [`HostMemory`].
    pub source: Option<Arc<dyn MemorySource>>,
    /// Bytes that are to stay available to others. Default: a tenth of the host's memory and at least 2 GiB, but not
    /// more than a quarter.
    pub reserve_bytes: Option<u64>,
    /// How long what can be moved elsewhere stays once its holders are asked to. Default 10 s.
    pub evacuate_ms: u64,
    /// Of its regions, how many of a hundred may be pinned or published: those go in an emergency only. Default 100.
    pub firm_percent: u32,
}

impl Default for PressureOptions {
    fn default() -> PressureOptions {
        let source = Some(Arc::new(HostMemory::find()) as Arc<dyn MemorySource>);
        PressureOptions { source, reserve_bytes: None, evacuate_ms: 10_000, firm_percent: 100 }
    }
}

/// What a node may spend on moving its clients' bytes over sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes moved in a second, both ways together: [`Limits::BYTES_PER_SECOND`]. Default: no limit.
    pub bytes_per_second: Option<u64>,
    /// CPU time of the threads that serve connections, in thousandths of a CPU: [`Limits::CPU_MILLI_MIN`] to all
    /// CPUs there are. With such a limit they do not spin. Default: no limit.
    pub cpu_milli: Option<u32>,
}

impl Limits {
    /// What a limit to the bytes of a second may be. The largest piece, 1 MiB, takes a second at the least.
    pub const BYTES_PER_SECOND: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000;
    /// The least that a limit to CPU time may be. Below it a connection's control messages would wait for seconds.
    pub const CPU_MILLI_MIN: u32 = 10;

    /// Whether there is any.
    pub fn is_limited(&self) -> bool {
        *self != Limits::default()
    }

    /// Says which limit is not permitted, and what is.
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
    /// A node on a free loopback port with default regions.
    pub fn new(name: Name, memory_bytes: u64, broker: String) -> Self {
        NodeOptions {
            name,
            memory_bytes,
            region_bytes: farpool_wire::limits::REGION_BYTES_DEFAULT,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            broker,
            reach: Reach::default(),
            host_label: None,
            huge_pages: true,
            lock_memory: true,
            prefault: true,
            shared_memory: true,
            limits: Limits::default(),
            extension: Box::new(|_, _| Ok(Box::new(()))),
            pressure: PressureOptions::default(),
        }
    }
}
