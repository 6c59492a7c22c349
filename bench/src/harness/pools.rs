//! Pools of far memory (a broker and memory nodes) that are measured, and far files in them.

use super::bursts::Target;
use super::cpu::Ran;
use super::files::TMPFS;
use super::processes::{Server, farpool, start};
use super::shape::Emulated;
use crate::exit::Failure;
use farpool::{
    CreateOptions, FarFile, FileClass, Pool, PoolOptions, Protection, ReadRange, Tls, TlsFiles,
    TransportChoice, WriteRange,
};
use farpool_transport::Exposure;
use farpool_transport::shaped::LinkShape;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Pool: a broker and its memory nodes. They were started for a benchmark, or they exist already. On drop, the
/// processes that were started end, the nodes before the broker.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    _broker: Option<Server>,
    url: String,
    tls: Option<Tls>,
    plaintext: bool,
    pids: Vec<u32>,
}

const NODE: &str = "bench";
const REGION_BYTES: u64 = 64 << 20;

/// Capacity that a pool must have for a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes of all files together.
    pub(crate) bytes: u64,
    pub(crate) clients: u64,
    pub(crate) nodes: u64,
}

impl Room {
    /// Returns the bytes of memory for each node. They hold the files, the memory that each session leases ahead of its
    /// use (at least 128 MiB) and, for each session, one partly used region per node. All of these are counted twice,
    /// because nodes may still be wiping the regions of the previous files.
    fn node_bytes(self) -> u64 {
        let ahead = (128 << 20) + self.bytes / 4 + self.nodes * REGION_BYTES;
        let all = 2 * (self.bytes + self.clients * ahead);
        (all / self.nodes).next_multiple_of(REGION_BYTES) + REGION_BYTES
    }

    fn node_names(self) -> Vec<String> {
        (1..=self.nodes).map(|index| format!("{NODE}-{index}")).collect()
    }
}

/// Pool that somebody else has started.
pub(crate) struct Existing<'a> {
    pub(crate) url: &'a str,
    /// True if it is accessed without TLS, even on another machine.
    pub(crate) plaintext: bool,
    /// Process ids of the nodes that run on this machine. Their CPU time is measured.
    pub(crate) pids: &'a [u32],
}

/// Creates certificates for a broker, nodes and an administrator, in a temporary directory in memory. The directory may
/// be dropped once all processes have started, because they read the certificates at the start only.
fn issue(nodes: &[String]) -> Result<TempDir, Failure> {
    let folder = tempfile::tempdir_in(TMPFS)?;
    let mut certs = Command::new(farpool()?);
    certs.args(["certs", "init", "--days", "1"]).arg(folder.path());
    nodes.iter().for_each(|name| _ = certs.args(["--node", name]));
    match certs.stdout(Stdio::null()).status()?.success() {
        true => Ok(folder),
        false => Err(Failure::failed("no certificates were made")),
    }
}

impl Cluster {
    /// Starts a broker and nodes. `node_flags` are given to every node.
    pub(crate) fn start(room: Room, node_flags: &[String]) -> Result<Cluster, Failure> {
        Cluster::start_under(None, room, node_flags)
    }

    /// Starts a broker and nodes that use TLS. `node_flags` are given to every node.
    pub(crate) fn start_with_tls(room: Room, node_flags: &[String]) -> Result<Cluster, Failure> {
        Cluster::start_under(Some(issue(&room.node_names())?), room, node_flags)
    }

    fn start_under(certs: Option<TempDir>, room: Room, node_flags: &[String]) -> Result<Cluster, Failure> {
        let folder = certs.as_ref().map(|folder| folder.path().display().to_string());
        let more: Vec<&str> = folder.iter().flat_map(|folder| ["--certs", folder]).collect();
        let start = |flags: &[&str]| start(&[flags, &more[..]].concat());
        let (broker, url) = start(&["broker", "--listen", "127.0.0.1:0"])?;
        let memory = room.node_bytes().to_string();
        let mut nodes = Vec::new();
        for name in &room.node_names() {
            // Results must not depend on the memory that the machine has left.
            let mut flags =
                vec!["node", "--name", name, "--memory", &memory, "--no-reserve", "--broker", &url];
            flags.extend(node_flags.iter().map(String::as_str));
            nodes.push(start(&flags)?.0);
        }
        let tls = certs.map(|folder| Tls::load(&TlsFiles::in_folder(folder.path(), "admin")));
        let tls = tls.transpose().map_err(Failure::failed)?;
        let pids = nodes.iter().map(Server::pid).collect();
        Ok(Cluster { nodes, _broker: Some(broker), url, tls, plaintext: false, pids })
    }

    /// Wraps a pool that somebody else has started. It keeps running when the result is dropped.
    pub(crate) fn existing(pool: Existing<'_>) -> Cluster {
        let Existing { url, plaintext, pids } = pool;
        let (url, pids) = (url.to_owned(), pids.to_vec());
        Cluster { nodes: Vec::new(), _broker: None, url, tls: None, plaintext, pids }
    }

    /// Returns the process ids of the nodes. For an existing pool, they are those that the user has named.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Returns the time to wait until the nodes are idle. It is short for an existing pool, because its nodes may serve
    /// others all the time.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(if self.nodes.is_empty() { 3 } else { 20 })
    }

    /// Opens a session with an empty file, once `bytes` are free in the pool. The file may grow to `bytes`.
    pub(crate) fn open(&self, way: Way, bytes: u64) -> Result<FarTarget, Failure> {
        let pool = self.connect(way.transport, way.shape, bytes)?;
        let file = pool.create(
            "bench",
            FileClass::Scratch,
            CreateOptions {
                size_hint: bytes,
                protection: Some(Protection::None),
                encrypted: Some(way.is_encrypted),
                ..CreateOptions::default()
            },
        )?;
        Ok(FarTarget { pool, file })
    }

    /// Opens a session once `bytes` are free in the pool.
    pub(crate) fn session(&self, transport: TransportChoice, bytes: u64) -> Result<Pool, Failure> {
        self.connect(transport, None, bytes)
    }

    /// Opens a session, over an emulated link if `shape` is given. Waits until `bytes` are free in the pool.
    fn connect(
        &self,
        transport: TransportChoice,
        shape: Option<LinkShape>,
        bytes: u64,
    ) -> Result<Pool, Failure> {
        let options = PoolOptions {
            transport,
            tls: self.tls.clone(),
            plaintext: self.plaintext,
            label: Some("farpool bench".into()),
            ..PoolOptions::default()
        };
        const PATIENCE: Duration = Duration::from_secs(30);
        let give_up = Instant::now() + PATIENCE;
        let pool = match shape {
            None => Pool::connect_with(&self.url, options)?,
            Some(shape) => {
                let exposure = Exposure { tls: options.tls.clone(), plaintext: options.plaintext };
                Pool::connect_from(Emulated::host(exposure, shape), &self.url, options)?
            }
        };
        loop {
            let status = pool.status()?;
            let free = status.nodes.iter().map(|node| u64::from(node.counts.free) * node.info.region_bytes);
            let free: u64 = free.sum();
            if free >= bytes {
                return Ok(pool);
            }
            if Instant::now() > give_up {
                return Err(Failure::Failed(format!(
                    "{}: {free} bytes are free, {bytes} are needed for each client",
                    self.url
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Options of the path to a far file. `shape` is the latency and bandwidth of an emulated link; `None` uses the real
/// link only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) transport: TransportChoice,
    pub(crate) is_encrypted: bool,
    pub(crate) shape: Option<LinkShape>,
}

/// Far file, and the session it belongs to.
pub(crate) struct FarTarget {
    pool: Pool,
    file: FarFile,
}

impl Target for FarTarget {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        Ok(self.file.read_batch(ranges)?)
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        Ok(self.file.write_batch(ranges)?)
    }
}

impl Drop for FarTarget {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// Waits until processes are nearly idle, because nodes touch all their memory when they start and wipe it after use.
/// Stops waiting after `patience` without an error. The work of the nodes then disturbs the measurement.
pub(crate) fn wait_quiet(pids: &[u32], patience: Duration) -> Result<(), Failure> {
    const LOOK: Duration = Duration::from_millis(50);
    /// Busy share of one CPU below which the processes count as idle.
    const SHARE_MAX: f64 = 0.1;
    let give_up = Instant::now() + patience;
    let mut before = Ran::now(pids)?;
    while Instant::now() < give_up {
        std::thread::sleep(LOOK);
        let now = Ran::now(pids)?;
        if (now.since(&before) as f64) < LOOK.as_nanos() as f64 * SHARE_MAX {
            break;
        }
        before = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_room_for_all_files_twice() {
        for (clients, nodes) in [(1, 1), (4, 1), (1, 4), (4, 4)] {
            let room = Room { bytes: 512 << 20, clients, nodes };
            assert!(room.node_bytes() * nodes >= 2 * room.bytes);
            assert_eq!(room.node_bytes() % REGION_BYTES, 0);
        }
    }
}
