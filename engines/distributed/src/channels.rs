//! Connections to workers (processes on other machines that run parts of queries), and errors that name the worker.
//!
//! The idea: if a worker dies or hangs, the query must fail with the worker's name within seconds. Therefore
//! connections are probed while a request is in flight, and errors get the address of the worker.

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
use futures::StreamExt;
use futures::stream::BoxStream;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::codegen::http::HeaderMap;
use tonic::transport::{Channel, Endpoint};
use url::{Host, Url};

/// Time limit for connecting to a worker.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval between probes of a connection, and time limit for the answer to one.
const PROBE: Duration = Duration::from_secs(5);
/// Number of connections that are kept for reuse. If there are more, all are dropped and opened again when needed.
const CHANNELS_MAX: usize = 1_024;

/// Policy for connections to other machines. They are neither encrypted nor authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// Permits this machine only.
    Refused,
    /// Permits all machines. Anyone who can reach a worker can run plans there, and anyone on the network path can read
    /// and change rows.
    Insecure,
}

impl Beyond {
    /// Checks that this worker may be contacted.
    pub(crate) fn check(self, url: &Url) -> Result<()> {
        let is_here = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if is_here || self == Beyond::Insecure {
            return Ok(());
        }
        exec_err!(
            "worker {url} is not on this machine, and the connection would be neither encrypted nor authenticated: \
             pass --insecure-workers (to a worker: --insecure-listen) to permit it"
        )
    }
}

/// Connections by address. Clones share them.
#[derive(Clone)]
pub(crate) struct Channels {
    beyond: Beyond,
    open: Arc<Mutex<HashMap<Url, Channel>>>,
}

impl Channels {
    pub(crate) fn new(beyond: Beyond) -> Channels {
        Channels { beyond, open: Arc::default() }
    }

    pub(crate) fn worker(&self, url: &Url) -> Result<Named> {
        self.beyond.check(url)?;
        let mut open = self.open.lock();
        let channel = match open.get(url) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(url.to_string());
                let endpoint = endpoint.map_err(|error| exec_datafusion_err!("worker {url}: {error}"))?;
                let channel = endpoint
                    .connect_timeout(CONNECT)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(PROBE)
                    .keep_alive_timeout(PROBE)
                    .connect_lazy();
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
