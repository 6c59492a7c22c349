//! Connections to workers (processes on other machines that run parts of queries), and errors that name the worker.
//!
//! The idea: if a worker dies or hangs, the query must fail with the worker's name within seconds. Therefore
//! connections are probed while a request is in flight, and errors get the address of the worker.

use crate::encrypted;
use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use farpool_lock::Mutex;
use farpool_transport::{Exposure, Tls};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Uri};
use tonic::transport::{Channel, Endpoint};
use url::Url;

/// Time limit for connecting to a worker.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval between probes of a connection, and time limit for the answer to one.
const PROBE: Duration = Duration::from_secs(5);
/// Number of connections that are kept for reuse. If there are more, all are dropped and opened again when needed.
const CHANNELS_MAX: usize = 1_024;

/// Connections by address. Clones share them.
#[derive(Clone)]
pub(crate) struct Channels {
    exposure: Exposure,
    open: Arc<Mutex<HashMap<Url, Channel>>>,
}

impl Channels {
    pub(crate) fn new(exposure: Exposure) -> Channels {
        Channels { exposure, open: Arc::default() }
    }

    pub(crate) fn worker(&self, url: &Url) -> Result<Named> {
        encrypted::check(&self.exposure, url)?;
        let mut open = self.open.lock();
        let channel = match open.get(url) {
            Some(channel) => channel.clone(),
            None => {
                let (host, port) = (url.host_str(), url.port_or_known_default());
                let (Some(host), Some(port)) = (host, port) else {
                    return exec_err!("{url} is not an address of a worker");
                };
                // The connector encrypts, so the endpoint need not know of it.
                let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"));
                let endpoint = endpoint
                    .map_err(|error| exec_datafusion_err!("worker {url}: {error}"))?
                    .connect_timeout(CONNECT)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(PROBE)
                    .keep_alive_timeout(PROBE);
                let channel = match &self.exposure.tls {
                    None => endpoint.connect_lazy(),
                    Some(tls) => {
                        // `url` writes an IPv6 address in brackets.
                        let host = host.trim_matches(['[', ']']).to_owned();
                        endpoint.connect_with_connector_lazy(Encrypting { tls: tls.clone(), host, port })
                    }
                };
                if open.len() >= CHANNELS_MAX {
                    open.clear();
                }
                open.insert(url.clone(), channel.clone());
                channel
            }
        };
        Ok(Named { url: url.clone(), channel: create_worker_client(BoxCloneSyncChannel::new(channel)) })
    }
}

/// Connector that encrypts connections to one worker.
#[derive(Clone)]
struct Encrypting {
    tls: Tls,
    host: String,
    port: u16,
}

impl Service<Uri> for Encrypting {
    type Response = TokioIo<encrypted::Encrypted>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let Encrypting { tls, host, port } = self.clone();
        Box::pin(async move { encrypted::connect(&tls, &host, port).await.map(TokioIo::new) })
    }
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        Ok(Box::new(self.worker(url)?))
    }
}

/// Connection to a worker. Its errors name the worker.
pub(crate) struct Named {
    url: Url,
    channel: Box<dyn WorkerChannel>,
}

/// Adds the worker's address to an error. A transport error means that the worker is lost; any other error was reported
/// by the worker.
fn naming(url: &Url, error: DataFusionError) -> DataFusionError {
    let status = match &error {
        DataFusionError::External(inner) => inner.downcast_ref::<tonic::Status>(),
        _ => None,
    };
    match status {
        Some(status) => {
            exec_datafusion_err!(
                "worker {url} failed: {}: {}; retry the query, it runs without this worker",
                status.code(),
                causes(status)
            )
        }
        None => error.context(format!("at worker {url}")),
    }
}

/// Returns the message of a status with its causes.
fn causes(status: &tonic::Status) -> String {
    let mut said = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

fn naming_each<T: 'static>(
    url: &Url,
    stream: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let url = url.clone();
    stream.map(move |item| item.map_err(|error| naming(&url, error))).boxed()
}

#[async_trait]
impl WorkerChannel for Named {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let stream = self.channel.coordinator_channel(headers, request, messages, metrics, context).await;
        let stream = stream.map_err(|error| naming(&self.url, error))?;
        Ok(naming_each(&self.url, stream))
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let streams = self.channel.execute_task(headers, request, metrics, context).await;
        let streams = streams.map_err(|error| naming(&self.url, error))?;
        Ok(streams.into_iter().map(|stream| naming_each(&self.url, stream)).collect())
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        self.channel.get_worker_info(request).await.map_err(|error| naming(&self.url, error))
    }
}
