//! Connections to workers (processes on other machines that run parts of queries), and failover from one to another.
//!
//! The idea: the session sends the plan of each task to the worker that should run it, and to some more, its stand-ins.
//! Nobody runs a task before somebody asks for its rows. Who asks takes all rows of the task before passing on the
//! first one. If the connection breaks or the worker does not answer a probe, he throws away what came, and asks the
//! next worker. So rows are never passed on twice, and only the tasks of the lost worker run again. A task that takes
//! far longer than the others of its stage is asked of the next worker as well, and whoever has all rows first counts.
//!
//! Everybody finds the same stand-ins without a message: the workers of the query have an order, and the stand-ins of a
//! worker are the next ones.

use crate::encrypted;
use crate::io_threads::io_threads;
use crate::kept_rows::{Keeper, KeptRows, MemoryLeft};
use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{
    DataFusionError, Result, exec_datafusion_err, exec_err, internal_err, plan_datafusion_err,
};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    MaybeEncoded, ProducerHead, SetPlanRequest, TaskKey, WorkerChannel, WorkerToCoordinatorMsg,
};
use farpool_host::{Event, Host, Machine};
use farpool_lock::{Mutex, RwLock};
use farpool_transport::{Exposure, Tls};
use futures::future::{BoxFuture, Shared, try_join_all};
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt, TryFutureExt};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::interval;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, HeaderValue, Uri};
use tonic::transport::{Channel, Endpoint};
use url::Url;

/// Time limit for connecting to a worker.
const CONNECT: Duration = Duration::from_secs(1);
/// Interval between probes of a connection, and time limit for the answer to one. A worker that stands still is noticed
/// after one second at most.
const PROBE: Duration = Duration::from_millis(500);
/// Workers that get the plan of a task, besides the one that should run it.
const STAND_INS: usize = 3;
/// Number of times that all workers with the plan of a task are asked for its rows. One that is only slow may answer
/// the second time.
const ROUNDS: usize = 2;
/// Time after which a task that has not ended is asked of a stand-in as well: this, and [`HEDGE_FACTOR`] times what 95
/// of 100 tasks of its stage took.
const HEDGE: Duration = Duration::from_secs(1);
/// See [`HEDGE`].
const HEDGE_FACTOR: u32 = 3;
/// Interval at which that time is computed anew.
const HEDGE_LOOK: Duration = Duration::from_millis(250);
/// Header with the addresses of the workers of a query, separated by commas.
const PEERS: &str = "farpool-workers";
/// Number of workers in that header, at most. Those of larger sessions have no stand-ins.
const PEERS_MAX: usize = 128;
/// Number of connections that are kept for reuse. If there are more, all are dropped and opened again when needed.
const CHANNELS_MAX: usize = 1_024;

/// Number of a query, and of one of its stages.
type StageKey = (u128, usize);

/// Connections by address, and the workers of queries. Clones share both.
#[derive(Clone)]
pub(crate) struct Channels {
    exposure: Exposure,
    open: Arc<Mutex<HashMap<Url, Channel>>>,
    /// Workers of queries that begin now, in the order that says who stands in for whom.
    peers: Arc<RwLock<Arc<[Url]>>>,
    /// Workers of queries that have begun in this session, by the number of the query.
    begun: Arc<Mutex<HashMap<u128, Arc<[Url]>>>>,
    /// Number of times that another worker was asked for the rows of a task.
    failed_over: Arc<AtomicU64>,
    /// Number of times that another worker was asked as well, because a task took long.
    hedged: Arc<AtomicU64>,
    /// Times that tasks took until all of their rows were here, by the number of the query and of the stage.
    took: Arc<Mutex<HashMap<StageKey, Vec<Duration>>>>,
}

/// Query that runs. It ends with the last one of these that is dropped.
struct Running {
    channels: Channels,
    query: u128,
    _told: watch::Sender<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.channels.begun.lock().remove(&self.query);
        self.channels.took.lock().retain(|(query, _), _| *query != self.query);
    }
}

impl Channels {
    pub(crate) fn new(exposure: Exposure) -> Channels {
        let peers = Arc::new(RwLock::new(Arc::from([])));
        Channels {
            exposure,
            open: Arc::default(),
            peers,
            begun: Arc::default(),
            failed_over: Arc::default(),
            hedged: Arc::default(),
            took: Arc::default(),
        }
    }

    /// Sets the workers of the queries that begin from now on.
    pub(crate) fn set_peers(&self, peers: impl Iterator<Item = Url>) {
        *self.peers.write() = peers.collect();
    }

    /// Returns the connections for a query of the session that sent these headers.
    ///
    /// Errors: the headers name what is no address of a worker.
    pub(crate) fn of_query(&self, headers: &HeaderMap) -> Result<Channels> {
        let mut peers = Vec::new();
        if let Some(text) = headers.get(PEERS) {
            let text = text.to_str().map_err(|error| plan_datafusion_err!("header {PEERS}: {error}"))?;
            for url in text.split(',').take(PEERS_MAX) {
                peers.push(Url::parse(url).map_err(|error| {
                    plan_datafusion_err!("header {PEERS}: {}: {error}", farpool::shown(url))
                })?);
            }
        }
        let peers = Arc::new(RwLock::new(Arc::from(peers)));
        Ok(Channels { peers, begun: Arc::default(), took: Arc::default(), ..self.clone() })
    }

    /// Returns how often another worker was asked for the rows of a task, because one was lost.
    pub(crate) fn failed_over(&self) -> u64 {
        self.failed_over.load(Ordering::Relaxed)
    }

    /// Returns how often another worker was asked for the rows of a task as well, because one took long.
    pub(crate) fn hedged(&self) -> u64 {
        self.hedged.load(Ordering::Relaxed)
    }

    /// Returns the time after which a task is asked of a stand-in as well. `None` while nobody knows how long its stage
    /// takes.
    fn hedges_after(&self, stage: StageKey) -> Option<Duration> {
        let mut took = self.took.lock().get(&stage)?.clone();
        took.sort_unstable();
        let p95 = *took.get((took.len() * 95).div_ceil(100) - 1)?;
        Some(HEDGE + HEDGE_FACTOR * p95)
    }

    /// Returns the workers of a query.
    fn peers(&self, query: u128) -> Arc<[Url]> {
        self.begun.lock().get(&query).cloned().unwrap_or_else(|| Arc::clone(&self.peers.read()))
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
                    .keep_alive_timeout(PROBE)
                    .executor(IoThreads(io_threads()?));
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
        let channel = create_worker_client(BoxCloneSyncChannel::new(channel));
        Ok(Named { url: url.clone(), channel, channels: self.clone() })
    }
}

/// Threads that carry the messages of a connection.
#[derive(Clone)]
struct IoThreads(Handle);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for IoThreads {
    fn execute(&self, future: F) {
        self.0.spawn(future);
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
    channels: Channels,
}

/// Returns the workers that have the plan of a task which the worker at `url` should run: that one, then its stand-ins.
fn with_stand_ins(peers: &[Url], url: &Url) -> Vec<Url> {
    match peers.iter().position(|peer| peer == url) {
        Some(at) if peers.len() <= PEERS_MAX => {
            peers.iter().cycle().skip(at).take(peers.len().min(1 + STAND_INS)).cloned().collect()
        }
        _ => vec![url.clone()],
    }
}

/// Adds the header with the workers of a query.
fn add_peers(headers: &mut HeaderMap, peers: &[Url]) -> Result<()> {
    if (2..=PEERS_MAX).contains(&peers.len()) {
        let text = peers.iter().map(Url::as_str).collect::<Vec<_>>().join(",");
        let text =
            HeaderValue::try_from(text).map_err(|error| plan_datafusion_err!("header {PEERS}: {error}"))?;
        headers.insert(PEERS, text);
    }
    Ok(())
}

/// Reports whether an error means that the worker is lost or cannot be reached. Any other error was reported by it.
fn is_loss(error: &DataFusionError) -> bool {
    matches!(error, DataFusionError::External(inner) if inner.is::<tonic::Status>())
}

/// Adds the worker's address to an error.
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

/// Part of a task's rows that is asked for.
struct Wanted {
    headers: HeaderMap,
    task: TaskKey,
    partitions: Range<usize>,
    metrics: ExecutionPlanMetricsSet,
    context: Arc<TaskContext>,
}

impl Wanted {
    /// Takes all rows of each partition from the first worker that gives them all.
    async fn take(self, channels: Channels, workers: Vec<Url>) -> Result<Vec<KeptRows>> {
        let (begun, stage) = (Instant::now(), (self.task.query_id.as_u128(), self.task.stage_id));
        let ask = |url| self.take_from(&channels, url).map(move |result| (url, result)).boxed();
        let told = format!("task {} of stage {}", self.task.task_number, self.task.stage_id);
        let mut left = (0..ROUNDS).flat_map(|_| &workers);
        let mut asked: FuturesUnordered<_> = left.by_ref().take(1).map(ask).collect();
        let mut looks = interval(HEDGE_LOOK);
        let mut is_hedged = workers.len() < 2;
        let mut failed = None;
        loop {
            select! {
                Some((url, result)) = asked.next() => match result {
                    Ok(rows) => {
                        channels.took.lock().entry(stage).or_default().push(begun.elapsed());
                        return Ok(rows);
                    }
                    Err(error) if is_loss(&error) => {
                        Machine.log(&Event::info("task_failed_over", format!("{told}: {error}")));
                        channels.failed_over.fetch_add(1, Ordering::Relaxed);
                        failed = Some(naming(url, error));
                        if asked.is_empty() {
                            asked.extend(left.next().map(ask));
                        }
                    }
                    Err(error) => return Err(naming(url, error)),
                },
                _ = looks.tick(), if !is_hedged => {
                    if channels.hedges_after(stage).is_some_and(|after| begun.elapsed() > after) {
                        let message = format!("{told} takes long, and is asked of another worker, too");
                        Machine.log(&Event::debug("task_hedged", message));
                        channels.hedged.fetch_add(1, Ordering::Relaxed);
                        asked.extend(left.next().map(ask));
                        is_hedged = true;
                    }
                }
                else => break,
            }
        }
        match failed {
            Some(error) => Err(error),
            None => internal_err!("a task without workers"),
        }
    }

    async fn take_from(&self, channels: &Channels, url: &Url) -> Result<Vec<KeptRows>> {
        let mut named = channels.worker(url)?;
        let request = ExecuteTaskRequest {
            task_key: self.task,
            target_partition_start: self.partitions.start,
            target_partition_end: self.partitions.end,
            // The plan of the task has it already.
            producer_head: ProducerHead::None,
        };
        let (headers, metrics) = (self.headers.clone(), self.metrics.clone());
        let streams = named.channel.execute_task(headers, request, metrics, &self.context).await?;
        let memory = MemoryLeft::default();
        let keep = |(partition, rows): (usize, BoxStream<'static, Result<RecordBatch>>)| {
            Keeper::new(None, &self.context, &self.metrics, partition, memory.clone()).add_all(rows)
        };
        try_join_all(self.partitions.clone().zip(streams).map(keep)).await
    }
}

#[async_trait]
impl WorkerChannel for Named {
    /// Sends the plan of a task to the worker and to its stand-ins. If one of them is lost, nothing is lost with it
    /// here: who asks for the rows notices.
    async fn coordinator_channel(
        &mut self,
        mut headers: HeaderMap,
        request: SetPlanRequest,
        mut messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let SetPlanRequest { task_key, task_count, plan, query_start_time_ns, .. } = &request;
        if !request.work_unit_feed_declarations.is_empty() {
            return internal_err!("a plan of far tables with feeds of work");
        }
        let plan = plan.clone().encode(context)?;
        let query = task_key.query_id.as_u128();
        let peers = Arc::clone(
            self.channels
                .begun
                .lock()
                .entry(query)
                .or_insert_with(|| Arc::clone(&self.channels.peers.read())),
        );
        add_peers(&mut headers, &peers)?;
        let workers = with_stand_ins(&peers, &self.url);
        let (told, ended) = watch::channel(());
        let running = Running { channels: self.channels.clone(), query, _told: told };
        for url in &workers[1..] {
            let request = SetPlanRequest {
                task_key: *task_key,
                task_count: *task_count,
                plan: MaybeEncoded::Encoded(plan.clone()),
                work_unit_feed_declarations: Vec::new(),
                target_worker_url: url.clone(),
                query_start_time_ns: *query_start_time_ns,
            };
            let mut named = self.channels.worker(url)?;
            let (headers, context, mut ended) = (headers.clone(), Arc::clone(context), ended.clone());
            let none = stream::once(async move { while ended.changed().await.is_ok() {} });
            let none = none.filter_map(async |()| None::<CoordinatorToWorkerMsg>).boxed();
            // It ends with the query.
            tokio::spawn(async move {
                let metrics = ExecutionPlanMetricsSet::new();
                if let Ok(mut told) =
                    named.channel.coordinator_channel(headers, request, none, metrics, &context).await
                {
                    while told.next().await.is_some_and(|told| told.is_ok()) {}
                }
            });
        }
        // Read here, because they end with the query, whether or not the worker is there to take them.
        let (send, mut receive) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                // A worker that is lost takes none.
                let _ = send.send(message);
            }
            drop(running);
        });
        let messages = stream::poll_fn(move |context| receive.poll_recv(context));
        let request = SetPlanRequest { plan: MaybeEncoded::Encoded(plan), ..request };
        let has_stand_ins = workers.len() > 1;
        match self.channel.coordinator_channel(headers, request, messages.boxed(), metrics, context).await {
            Ok(told) => {
                let url = self.url.clone();
                let is_there = move |told: &Result<_>| {
                    let is_lost = told.as_ref().is_err_and(|error| has_stand_ins && is_loss(error));
                    std::future::ready(!is_lost)
                };
                Ok(told
                    .take_while(is_there)
                    .map(move |told| told.map_err(|error| naming(&url, error)))
                    .boxed())
            }
            Err(error) if has_stand_ins && is_loss(&error) => Ok(stream::empty().boxed()),
            Err(error) => Err(naming(&self.url, error)),
        }
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let partitions = request.target_partition_start..request.target_partition_end;
        let wanted = Wanted {
            headers,
            task: request.task_key,
            partitions: partitions.clone(),
            metrics,
            context: Arc::clone(context),
        };
        let peers = self.channels.peers(request.task_key.query_id.as_u128());
        let workers = with_stand_ins(&peers, &self.url);
        // It takes the rows at once, whether or not they are read: the partitions of one connection wait for each
        // other.
        let taking = SpawnedTask::spawn(wanted.take(self.channels.clone(), workers));
        let taken = async move {
            match taking.await {
                Ok(taken) => taken.map(Arc::new).map_err(Arc::new),
                Err(error) => Err(Arc::new(DataFusionError::ExecutionJoin(Box::new(error)))),
            }
        };
        let taken: Shared<BoxFuture<'static, _>> = taken.boxed().shared();
        let read = |at: usize| {
            let taken = taken.clone();
            let read = async move {
                let taken: Arc<Vec<KeptRows>> = taken.await.map_err(DataFusionError::Shared)?;
                match taken.get(at) {
                    Some(rows) => rows.read(),
                    None => internal_err!("a worker gave {} partitions, not {at}", taken.len()),
                }
            };
            read.try_flatten_stream().boxed()
        };
        Ok((0..partitions.len()).map(read).collect())
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        self.channel.get_worker_info(request).await.map_err(|error| naming(&self.url, error))
    }
}
