//! `farpool csi driver`: answers the kubelet and its helpers. Its services share what is in this file.

use crate::controller::ControllerService;
use crate::csi;
use crate::csi::controller_server::ControllerServer;
use crate::csi::identity_server::IdentityServer;
use crate::csi::node_server::NodeServer;
use crate::figures::Figures;
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::records::{Records, is_id};
use crate::volumes::volume_server_client::VolumeServerClient;
use crate::volumes::{ListRequest, ServedVolume};
use crate::{sockets, volume_server};
use farpool_command::exit::Failure;
use farpool_command::{exposure, monitoring, supervisor};
use farpool_files::units::{bytes, show_bytes};
use farpool_files::{Pool, PoolOptions, StatusReport};
use farpool_lock::Mutex;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::{Channel, Server};

/// Name of the driver, which storage classes and pods give.
pub(crate) const NAME: &str = "csi.farpool.io";

/// Flags of the driver.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket to answer the kubelet at
    #[arg(long, value_name = "unix:///PATH", value_parser = sockets::path, default_value = "unix:///csi/csi.sock")]
    endpoint: PathBuf,
    /// Name of this machine, as Kubernetes knows it
    #[arg(long, value_name = "NAME")]
    node_id: String,
    /// Socket of the volume server on this machine
    #[arg(long, value_name = "unix:///PATH", value_parser = sockets::path, default_value = volume_server::SOCKET)]
    volume_server: PathBuf,
    /// Directory with the records of volumes, which must outlive the driver
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farpool-csi/records")]
    records: PathBuf,
    /// Size of volumes that name none
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "1GiB")]
    default_size: u64,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Longest name of a machine in bytes (CSI permits 256).
const NODE_ID_BYTES_MAX: usize = 253;

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.node_id.is_empty() || args.node_id.len() > NODE_ID_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "--node-id {:?}: a name of 1 to {NODE_ID_BYTES_MAX} bytes is permitted",
            args.node_id
        )));
    }
    let exposure = args.exposure.exposure()?;
    let endpoint = args.monitoring.endpoint(exposure.tls.as_ref())?;
    let records = Records::open(&args.records)
        .map_err(|error| Failure::Failed(format!("--records {}: {error}", args.records.display())))?;
    let options = PoolOptions {
        label: Some("farpool csi driver".into()),
        tls: exposure.tls,
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let server = VolumeServerClient::new(sockets::connect(&args.volume_server)?);
        let driver = Arc::new(Driver {
            node_id: args.node_id.clone(),
            default_size_bytes: args.default_size,
            records,
            server,
            pool: PoolOf { url: args.exposure.pool.clone(), options, session: Mutex::default() },
            busy: Mutex::default(),
        });
        let figures = Figures { driver: driver.clone(), runtime: tokio::runtime::Handle::current() };
        let _shown = monitoring::serve(endpoint, Arc::new(figures))?;
        serve(args, driver).await
    });
    runtime.shutdown_background();
    done
}

async fn serve(args: &Args, driver: Arc<Driver>) -> Result<(), Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let listener = sockets::listen("--endpoint", &args.endpoint).await?;
    writeln!(std::io::stdout(), "ready unix://{}", args.endpoint.display())?;
    let ready = supervisor::ready("serving the kubelet", || {})?;
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let served = Server::builder()
        .add_service(IdentityServer::new(IdentityService(driver.clone())))
        .add_service(ControllerServer::new(ControllerService(driver.clone())))
        .add_service(NodeServer::new(NodeService(driver)))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
        .await;
    drop(ready);
    // The kubelet takes a socket without a listener for a driver that starts again.
    let _ = std::fs::remove_file(&args.endpoint);
    served.map_err(Failure::failed)
}

/// What the services of the driver share.
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
