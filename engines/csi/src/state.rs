//! State that the services of the driver share: records, the volume server, the pool, and the volumes that are being
//! changed.

use crate::csi;
use crate::records::{Records, VolumeRecord, is_id};
use crate::serving::blocking;
use crate::sockets;
use crate::spec::VolumeSpec;
use crate::volumes::volume_server_client::VolumeServerClient;
use crate::volumes::{EndRequest, ListRequest, ServedVolume};
use farpool_command::exit::Failure;
use farpool_files::units::show_bytes;
use farpool_files::{Pool, PoolOptions, StatusReport};
use farpool_host::{Event, Host, Machine};
use farpool_lock::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

/// Name of the driver, which storage classes and pods give.
pub(crate) const NAME: &str = "csi.farpool.io";

/// Key of the topology, whose value is the name of the machine.
pub(crate) const TOPOLOGY: &str = "topology.farpool.io/node";

/// Longest value of a label of Kubernetes in bytes, which a topology becomes.
const LABEL_BYTES_MAX: usize = 63;

/// Prefix of texts that stand for others which Kubernetes or a file system does not permit.
pub(crate) const DIGEST: &str = "sha256-";

/// Longest time for the pool to say how much memory it has.
const POOL_ANSWER: Duration = Duration::from_secs(10);

/// The driver of a machine.
pub(crate) struct Driver {
    pub(crate) node_id: String,
    pub(crate) default_size_bytes: u64,
    pub(crate) records: Arc<Records>,
    server: VolumeServerClient<Channel>,
    pool: PoolOf,
    /// Volumes for which a request is under way.
    busy: Mutex<BTreeSet<String>>,
}

/// Pool of the driver. It is connected to when its state is asked for.
struct PoolOf {
    url: String,
    options: PoolOptions,
    session: Mutex<Option<Pool>>,
}

/// Memory of a pool.
pub(crate) struct Capacity {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Number of hosts that its nodes are on.
    pub(crate) hosts: usize,
}

/// Right to change a volume, which one request has at a time.
pub(crate) struct Held<'d> {
    busy: &'d Mutex<BTreeSet<String>>,
    volume: String,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.volume);
    }
}

impl Driver {
    /// Connects to the volume server and to the pool when they are needed.
    pub(crate) fn new(
        node_id: String,
        default_size_bytes: u64,
        records: Records,
        volume_server: &Path,
        (url, options): (String, PoolOptions),
    ) -> Result<Driver, Failure> {
        let server = VolumeServerClient::new(sockets::connect(volume_server)?);
        let pool = PoolOf { url, options, session: Mutex::default() };
        let records = Arc::new(records);
        Ok(Driver { node_id, default_size_bytes, records, server, pool, busy: Mutex::default() })
    }

    /// Returns a client of the volume server.
    pub(crate) fn server(&self) -> VolumeServerClient<Channel> {
        self.server.clone()
    }

    /// Takes the right to change a volume.
    pub(crate) fn hold(&self, volume: &str) -> Result<Held<'_>, Status> {
        if !self.busy.lock().insert(volume.to_owned()) {
            return Err(Status::aborted(format!(
                "another request for volume {volume} is under way; ask again"
            )));
        }
        Ok(Held { busy: &self.busy, volume: volume.to_owned() })
    }

    /// Returns the record of a volume. `None` if there is none.
    pub(crate) async fn record(&self, volume: &str) -> Result<Option<VolumeRecord>, Status> {
        let (records, volume) = (Arc::clone(&self.records), volume.to_owned());
        blocking(move || records.load(&volume)).await
    }

    /// Writes the record of a volume.
    pub(crate) async fn keep(&self, volume: &str, record: &VolumeRecord) -> Result<(), Status> {
        let (records, volume, record) = (Arc::clone(&self.records), volume.to_owned(), record.clone());
        blocking(move || records.store(&volume, &record)).await
    }

    /// Ends a volume, and removes its record.
    pub(crate) async fn end(&self, volume: &str) -> Result<(), Status> {
        self.server().end(EndRequest { volume: volume.to_owned() }).await.map_err(of_server)?;
        let (records, volume) = (Arc::clone(&self.records), volume.to_owned());
        blocking(move || records.remove(&volume)).await
    }

    /// Ends volumes that are served, are in no pod, and have no record, which somebody has removed.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let Ok(listed) = self.server().list(ListRequest::default()).await else { return };
        for served in listed.into_inner().volumes {
            let volume = served.volume;
            // A request for a volume that has a record is never refused because of this.
            if !matches!(self.record(&volume).await, Ok(None)) {
                continue;
            }
            let Ok(_held) = self.hold(&volume) else { continue };
            // It may have begun, or ended, since it was looked at.
            let is_unknown = matches!(self.record(&volume).await, Ok(None));
            let is_unused =
                matches!(self.served(&volume).await, Ok(Some(served)) if served.targets.is_empty());
            if !is_unknown || !is_unused {
                continue;
            }
            let event = match self.end(&volume).await {
                Ok(()) => {
                    Event::warn("volume_swept", format!("volume {volume} had no record, and was ended"))
                }
                Err(status) => Event::error(
                    "volume_not_swept",
                    format!("volume {volume} has no record, and cannot be ended: {}", status.message()),
                ),
            };
            Machine.log(&event.about(volume));
        }
    }

    /// Asks the volume server for a volume. `None` if it is not mounted.
    pub(crate) async fn served(&self, volume: &str) -> Result<Option<ServedVolume>, Status> {
        let listed =
            self.server().list(ListRequest { volume: volume.to_owned() }).await.map_err(of_server)?;
        Ok(listed.into_inner().volumes.pop())
    }

    /// Asks the pool for its memory.
    pub(crate) async fn capacity(self: &Arc<Self>) -> Result<Capacity, Status> {
        let driver = self.clone();
        let asked = blocking(move || {
            driver.pool.status().map_err(|error| Status::unavailable(format!("the pool's memory: {error}")))
        });
        let report = timeout(POOL_ANSWER, asked).await.map_err(|_| {
            Status::unavailable(format!(
                "the pool has not said within {POOL_ANSWER:?} how much memory it has"
            ))
        })??;
        let bytes = |count: fn(&farpool_files::NodeStatus) -> u64| -> u64 {
            let alive = report.nodes.iter().filter(|node| node.alive && !node.draining);
            alive.map(|node| count(node) * node.info.region_bytes).sum()
        };
        let free = bytes(|node| node.counts.free.into());
        let held = bytes(|node| {
            let counts = &node.counts;
            [counts.leased, counts.named, counts.cleaning].map(u64::from).iter().sum()
        });
        let alive = report.nodes.iter().filter(|node| node.alive && !node.draining);
        let hosts: BTreeSet<_> = alive.map(|node| &node.info.host_label).collect();
        Ok(Capacity { total_bytes: free + held, free_bytes: free, hosts: hosts.len() })
    }

    /// Refuses a volume that is larger than the whole pool. Its own pool, if it names one, is asked only by the process
    /// that serves it.
    pub(crate) async fn check_size(self: &Arc<Self>, spec: &VolumeSpec) -> Result<(), Status> {
        if spec.pool.is_some() {
            return Ok(());
        }
        let pool = self.capacity().await?;
        let copies = spec.copies(pool.hosts);
        if spec.size_bytes.saturating_mul(copies) > pool.total_bytes {
            let copies = if copies > 1 { ", in two copies," } else { "" };
            return Err(Status::out_of_range(format!(
                "a volume of {}{copies} is larger than the pool, which has {}",
                show_bytes(spec.size_bytes),
                show_bytes(pool.total_bytes)
            )));
        }
        Ok(())
    }
}

impl PoolOf {
    fn status(&self) -> Result<StatusReport, farpool_files::Error> {
        let open = self.session.lock().clone();
        let pool = match open {
            Some(pool) => pool,
            None => {
                // Others may connect meanwhile, and one session is kept.
                let opened = Pool::connect_with(&self.url, self.options.clone())?;
                self.session.lock().get_or_insert(opened).clone()
            }
        };
        pool.status()
    }
}

/// Checks an id of a volume that a request names.
pub(crate) fn check_id(volume: &str) -> Result<(), Status> {
    match volume {
        "" => Err(Status::invalid_argument("the request names no volume")),
        id if is_id(id) => Ok(()),
        other => Err(Status::not_found(format!("there is no volume {other:?}"))),
    }
}

/// Turns an error of the volume server into one for the kubelet.
pub(crate) fn of_server(status: Status) -> Status {
    match status.code() {
        // The transport says so, and not the volume server.
        tonic::Code::Unavailable | tonic::Code::Cancelled if status.source().is_some() => {
            Status::unavailable(format!(
                "the volume server of this machine does not answer ({}); see the pods of the DaemonSet volume-server",
                status.message()
            ))
        }
        _ => status,
    }
}

/// Checks what a request wants to use a volume for.
pub(crate) fn check_uses(asked: &[csi::VolumeCapability]) -> Result<(), Status> {
    if asked.is_empty() {
        return Err(Status::invalid_argument("the request names no volume capability"));
    }
    asked.iter().try_for_each(|one| crate::spec::check_use(Some(one)))
}

/// Returns a text that stands for another one.
pub(crate) fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    format!("{DIGEST}{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Returns the topology of a machine. Its value becomes a label of Kubernetes, so names that cannot be one have another
/// text there.
pub(crate) fn topology(node_id: &str) -> csi::Topology {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = node_id.as_bytes();
    let value = match bytes.len() <= LABEL_BYTES_MAX && is_end(bytes.first()) && is_end(bytes.last()) {
        true => node_id.to_owned(),
        false => digest(node_id).chars().take(LABEL_BYTES_MAX).collect(),
    };
    csi::Topology { segments: HashMap::from([(TOPOLOGY.to_owned(), value)]) }
}

/// Reports whether a topology is that of a machine, or none at all.
pub(crate) fn is_here(asked: &csi::Topology, node_id: &str) -> bool {
    let here = topology(node_id);
    asked.segments.get(TOPOLOGY).is_none_or(|value| here.segments.get(TOPOLOGY) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_of_every_machine_is_a_label_of_its_own() {
        let value = |name: &str| topology(name).segments[TOPOLOGY].clone();
        assert_eq!(value("m1.example"), "m1.example");
        let long = format!("{}.example", "m".repeat(63));
        for name in [long.as_str(), "m1-"] {
            let value = value(name);
            assert!(value.starts_with(DIGEST) && value.len() <= LABEL_BYTES_MAX, "{name}: {value}");
            assert!(is_here(&topology(name), name) && !is_here(&topology(name), "m1"));
        }
        assert!(is_here(&csi::Topology::default(), "m1"));
    }
}
