//! `farpool csi driver`: answers the kubelet and its helpers.

use crate::controller::ControllerService;
use crate::csi::controller_server::ControllerServer;
use crate::csi::identity_server::IdentityServer;
use crate::csi::node_server::NodeServer;
use crate::figures::Figures;
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::records::Records;
use crate::spec::size_of_volume;
use crate::state::Driver;
use crate::{sockets, volume_server};
use farpool_command::exit::Failure;
use farpool_command::{exposure, monitoring, supervisor};
use farpool_files::PoolOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
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
    /// Size of volumes that name none; at least 1MiB
    #[arg(long, value_name = "SIZE", value_parser = size_of_volume, default_value = "1GiB")]
    default_size: u64,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Longest name of a machine in bytes, as of Kubernetes. CSI permits 256.
const NODE_ID_BYTES_MAX: usize = 253;

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if args.node_id.is_empty()
        || args.node_id.len() > NODE_ID_BYTES_MAX
        || !args.node_id.bytes().all(is_permitted)
    {
        return Err(Failure::Usage(format!(
            "--node-id {:?}: a name of 1 to {NODE_ID_BYTES_MAX} letters, digits, -, _ and . is permitted",
            args.node_id
        )));
    }
    let exposure = args.exposure.exposure()?;
    let endpoint = args.monitoring.endpoint(exposure.tls.as_ref())?;
    let records = Records::open(&args.records)
        .map_err(|error| Failure::Failed(format!("--records {}: {error}", args.records.display())))?;
    let _alone = sockets::alone("--records", &args.records)?;
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
    let stop = sockets::stop()?;
    let listener = sockets::listen("--endpoint", &args.endpoint).await?;
    writeln!(std::io::stdout(), "ready unix://{}", args.endpoint.display())?;
    let ready = supervisor::ready("serving the kubelet", || {})?;
    tokio::spawn(Arc::clone(&driver).sweep());
    let router = Server::builder()
        .add_service(IdentityServer::new(IdentityService))
        .add_service(ControllerServer::new(ControllerService(driver.clone())))
        .add_service(NodeServer::new(NodeService(driver)));
    // The kubelet takes a socket without a listener for a driver that starts again.
    let served = sockets::serve(router, listener, &args.endpoint, stop).await;
    drop(ready);
    served
}
