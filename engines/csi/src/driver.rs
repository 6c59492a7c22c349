//! `farpool csi driver`: answers the kubelet and its helpers.

use crate::controller::ControllerService;
use crate::csi::controller_server::ControllerServer;
use crate::csi::identity_server::IdentityServer;
use crate::csi::node_server::NodeServer;
use crate::figures::Figures;
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::records::Records;
use crate::state::Driver;
use crate::{sockets, volume_server};
use farpool_command::exit::Failure;
use farpool_command::{exposure, monitoring, supervisor};
use farpool_files::PoolOptions;
use farpool_files::units::bytes;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

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
        let pool = (args.exposure.pool.clone(), options);
        let driver =
            Driver::new(args.node_id.clone(), args.default_size, records, &args.volume_server, pool)?;
        let driver = Arc::new(driver);
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
