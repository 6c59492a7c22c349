//! State that the services of the driver share: records, the volume server, the pool, and the volumes that are being
//! changed.

use crate::csi;
use crate::records::{Records, is_id};
use crate::sockets;
use crate::volumes::volume_server_client::VolumeServerClient;
use crate::volumes::{ListRequest, ServedVolume};
use farpool_command::exit::Failure;
use farpool_files::units::show_bytes;
use farpool_files::{Pool, PoolOptions, StatusReport};
use farpool_lock::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use tonic::Status;
use tonic::transport::Channel;

/// Name of the driver, which storage classes and pods give.
pub(crate) const NAME: &str = "csi.farpool.io";

/// Key of the topology, whose value is the name of the machine.
pub(crate) const TOPOLOGY: &str = "topology.farpool.io/node";

/// The driver of a machine.
pub(crate) struct Driver {
    pub(crate) node_id: String,
    pub(crate) default_size_bytes: u64,
    pub(crate) records: Records,
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

    /// Asks the volume server for a volume. `None` if it is not mounted.
    pub(crate) async fn served(&self, volume: &str) -> Result<Option<ServedVolume>, Status> {
        let listed =
            self.server().list(ListRequest { volume: volume.to_owned() }).await.map_err(of_server)?;
        Ok(listed.into_inner().volumes.pop())
    }

    /// Returns the memory of the pool in bytes: all of it, and what is free.
    pub(crate) async fn capacity(self: &Arc<Self>) -> Result<(u64, u64), Status> {
        let driver = self.clone();
        let report = tokio::task::spawn_blocking(move || driver.pool.status());
        let report = report.await.map_err(|error| Status::internal(error.to_string()))?;
        let report = report.map_err(|error| Status::unavailable(format!("the pool's memory: {error}")))?;
        let bytes = |count: fn(&farpool_files::NodeStatus) -> u64| -> u64 {
            let alive = report.nodes.iter().filter(|node| node.alive && !node.draining);
            alive.map(|node| count(node) * node.info.region_bytes).sum()
        };
        let free = bytes(|node| node.counts.free.into());
        let held = bytes(|node| {
            let counts = &node.counts;
            [counts.leased, counts.named, counts.cleaning].map(u64::from).iter().sum()
        });
        Ok((free + held, free))
    }

    /// Refuses a volume that is larger than the whole pool. A pool that does not answer refuses nothing here.
    pub(crate) async fn check_size(self: &Arc<Self>, far_bytes: u64, size_bytes: u64) -> Result<(), Status> {
        let (total, _) = self.capacity().await?;
        if far_bytes > total {
            let copies = if far_bytes > size_bytes { ", in two copies," } else { "" };
            return Err(Status::out_of_range(format!(
                "a volume of {}{copies} is larger than the pool, which has {}",
                show_bytes(size_bytes),
                show_bytes(total)
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
            None => self.session.lock().insert(Pool::connect_with(&self.url, self.options.clone())?).clone(),
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
        tonic::Code::Unavailable if status.source().is_some() => Status::unavailable(format!(
            "the volume server of this machine does not answer ({}); see the pod farpool-csi-volume-server",
            status.message()
        )),
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

/// Returns the topology of this machine.
pub(crate) fn topology(node_id: &str) -> csi::Topology {
    csi::Topology { segments: HashMap::from([(TOPOLOGY.to_owned(), node_id.to_owned())]) }
}
