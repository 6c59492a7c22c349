//! Worker: runs parts of queries over the far tables of a pool.

use crate::channels::Channels;
use crate::codec::ScanCodec;
use crate::encrypted;
use crate::io_threads::io_threads;
use crate::session::check;
use crate::workers::info;
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::execution::SessionState;
use datafusion_distributed::{
    DistributedExt, Worker, WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse, WorkerQueryContext,
};
use farpool::Pool;
use farpool_datafusion::{FarTempFiles, Options, runtime};
use farpool_transport::Exposure;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use url::Url;

/// Interval between probes of a connection, and time limit for the answer to one.
const PROBE: Duration = Duration::from_secs(10);
/// Largest message to a worker in bytes. Plans are the largest messages.
const PLAN_BYTES_MAX: usize = 64 << 20;

/// Serves plans that clients send over connections to this listener, until `stop` completes. Queries that still run
/// then fail, because their connections close. `near` are the names of the memory nodes on the same host.
///
/// Connections are encrypted if there are certificates, and then only peers with the identity of this session are
/// served. Without certificates, anyone who reaches the listener may run plans over all tables of the pool that are not
/// encrypted. Plans that read anything else, or write, are refused.
///
/// Errors: the certificate is not one of a server; without certificates, the listener is reachable from other machines,
/// unless `exposure` permits plaintext.
pub async fn serve(
    listener: TcpListener,
    pool: &Pool,
    near: &[String],
    exposure: &Exposure,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    check_listener(listener.local_addr()?, exposure)?;
    // Messages have threads of their own, so that tasks which compute do not delay them.
    let codec = ScanCodec::new(pool).running_on(Handle::current());
    let channels = Channels::new(exposure.clone());
    let files = FarTempFiles::new(pool, None).map_err(io::Error::other)?;
    let environment = runtime(None, Some(Arc::new(files))).map_err(io::Error::other)?;
    let build = move |query: WorkerQueryContext| {
        let (codec, channels) = (codec.clone(), channels.clone());
        async move { state(query, codec, &channels) }
    };
    let worker = Worker::from_session_builder(build).with_version(info(near)).with_runtime_env(environment);
    let router = Server::builder()
        .http2_keepalive_interval(Some(PROBE))
        .http2_keepalive_timeout(Some(PROBE))
        .add_service(worker.into_worker_server().max_decoding_message_size(PLAN_BYTES_MAX));
    let (tls, listener) = (exposure.tls.clone(), listener.into_std()?);
    let server = async move {
        let listener = TcpListener::from_std(listener)?;
        let served = match tls {
            Some(tls) => router.serve_with_incoming(encrypted::incoming(listener, tls)).await,
            None => router.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))).await,
        };
        served.map_err(io::Error::other)
    };
    let server = io_threads()?.spawn(server);
    let stop_serving = server.abort_handle();
    let served = tokio::select! {
        served = server => served.map_err(io::Error::other).flatten(),
        () = stop => Ok(()),
    };
    stop_serving.abort();
    served
}

/// Checks that a worker may listen at an address. [`serve`] does that as well.
///
/// Errors: those of [`serve`], with the kind `PermissionDenied`.
pub fn check_listener(address: SocketAddr, exposure: &Exposure) -> io::Result<()> {
    let denied = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    match &exposure.tls {
        Some(tls) => tls.check_serves().map_err(|error| denied(error.to_string())),
        None if address.ip().is_loopback() || exposure.plaintext => Ok(()),
        None => Err(denied(format!(
            "{address} can be reached from other machines, and anyone there could run plans: give certificates \
             (--certs), or pass --insecure-listen to permit it"
        ))),
    }
}

fn state(query: WorkerQueryContext, codec: ScanCodec, channels: &Channels) -> Result<SessionState> {
    let channels = channels.of_query(&query.headers)?;
    let mut builder = query.builder;
    let config = builder.config().get_or_insert_default();
    config.options_mut().extensions.insert(Options::default());
    // A task of this worker is asked for like those of others. The address is that of no worker.
    let nowhere = Url::parse("none:").map_err(|error| plan_datafusion_err!("{error}"))?;
    config.set_extension(Arc::new(Worker::default().to_local_worker_context(nowhere)));
    builder.aggregate_functions().get_or_insert_default().extend(farpool_datafusion::extremes());
    let builder = builder
        .with_distributed_user_codec(codec)
        .with_distributed_channel_resolver(channels)
        .with_distributed_worker_plan_rewrite_handler(refuse_others);
    Ok(builder.build())
}

/// Refuses plans that do more than read far tables. A plan comes from an untrusted client, and must not reach anything
/// else of this host.
fn refuse_others(event: WorkerPlanRewriteEvent) -> Result<WorkerPlanRewriteEventResponse> {
    match check(&event.plan) {
        Ok(()) => Ok(WorkerPlanRewriteEventResponse::new(event.plan)),
        Err(what) => plan_err!("a plan with {what} is refused: workers only read far tables"),
    }
}
