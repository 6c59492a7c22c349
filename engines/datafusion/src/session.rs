//! A DataFusion session over a pool.

use crate::catalog::{FarCatalog, FarSchema, hides};
use crate::external;
use crate::extremes::extremes;
use crate::far_hash_join::SpillHashJoins;
use crate::memory::SessionPool;
use crate::options::Options;
use crate::recipes;
use crate::rules::ShipToScans;
use crate::ship_keys::ShipJoinKeys;
use crate::substrait;
use datafusion::arrow::array::RecordBatch;
use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::{DataFusionError, Result, TableReference, exec_datafusion_err, exec_err};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::TrackConsumersPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder, TempFileFactory};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionConfig, SessionContext};
use farpool::table::{PutOptions, TABLE_PREFIX};
use farpool::{Error, FileId, PUTS_MAX, Pool, Recipe, shown};
use futures::StreamExt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::runtime::Builder;

/// Name of the catalog that holds the far tables. It is the session's default.
pub const CATALOG: &str = "farpool";
/// Name of the schema within [`CATALOG`]. It is the session's default.
pub const SCHEMA: &str = "public";
/// [`ShipToScans`] is inserted before this rule of DataFusion, and thereby before the last push-down of filters.
const BEFORE: &str = "EnsureCooperative";
/// [`ShipJoinKeys`] and [`SpillHashJoins`] are inserted before this rule of DataFusion, and thereby after the last
/// push-down of filters.
const BEHIND: &str = "SanityCheckPlan";

/// Number of memory consumers that an out-of-memory error names.
const CONSUMERS_NAMED: NonZeroUsize = NonZeroUsize::new(5).unwrap();

/// Number of threads that run the query of a recipe.
const MAKERS: usize = 2;

/// Number of batches that wait, at most, to be put into a new far table. The query that makes them then waits.
const AHEAD: usize = 4;

/// DataFusion session with the far tables of a pool by their names, and any other tables registered in it.
#[derive(Clone)]
pub struct FarSession {
    context: SessionContext,
    pool: Pool,
}

impl FarSession {
    /// Opens a session over the tables of a pool, without a memory limit.
    pub fn new(pool: &Pool, options: Options) -> Result<FarSession> {
        FarSession::within(pool, options, runtime(None, None)?)
    }

    /// Opens a session with the memory limit and temporary files of this runtime environment, which [`runtime`] makes.
    pub fn within(pool: &Pool, options: Options, runtime: Arc<RuntimeEnv>) -> Result<FarSession> {
        let builder = builder(SessionConfig::new(), options).with_runtime_env(runtime);
        Ok(FarSession::over(pool, builder.with_default_features().build()))
    }

    /// Opens a session with a state that was built from [`builder`] or [`builder_for`] and extended. It makes lost
    /// tables again by their recipes.
    pub fn over(pool: &Pool, state: SessionState) -> FarSession {
        let session = FarSession::assemble(pool, state);
        let state = session.context.state_weak_ref();
        pool.make_by_recipe(recipes::KIND, move |pool, file_name, file, recipe| {
            let name = file_name.strip_prefix(TABLE_PREFIX).unwrap_or(file_name);
            let Some(state) = state.upgrade().map(|state| state.read().clone()) else {
                return Err(Error::not_rebuilt("the session that knows recipes of queries has ended"));
            };
            // The caller may be a thread of a runtime, which cannot wait for another future.
            let make = || -> Result<()> {
                let threads = Builder::new_multi_thread().worker_threads(MAKERS).enable_all().build()?;
                threads.block_on(make_again(pool, state, name, file, recipe))
            };
            match std::thread::scope(|scope| scope.spawn(make).join()) {
                Ok(made) => made.map_err(|error| Error::not_rebuilt(error.strip_backtrace())),
                Err(_) => Err(Error::not_rebuilt("the query of the recipe panicked")),
            }
        });
        session
    }

    /// Makes a session that leaves lost tables as they are.
    fn assemble(pool: &Pool, state: SessionState) -> FarSession {
        let context = SessionContext::new_with_state(state);
        extremes().into_iter().for_each(|function| context.register_udaf(Arc::unwrap_or_clone(function)));
        let schema = Arc::new(FarSchema::new(pool.clone()));
        context.register_catalog(CATALOG, Arc::new(FarCatalog::new(SCHEMA, schema)));
        FarSession { context, pool: pool.clone() }
    }

    /// Runs a statement. `CREATE TABLE .. AS` puts a far table, which all users of the pool see. A statement that would
    /// hide a far table is refused. DataFusion runs everything else.
    pub async fn execute(&self, plan: LogicalPlan) -> Result<DataFrame> {
        match &plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                let name = create.name.table();
                if matches!(&*create.input, LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row) {
                    return exec_err!(
                        "far table {0} would stay empty, because rows cannot be added later: use CREATE TABLE {0} AS \
                         SELECT ..",
                        shown(name)
                    );
                }
                if !create.or_replace && self.has_far_table(name).await? {
                    return match create.if_not_exists {
                        true => self.context.read_empty(),
                        false => exec_err!(
                            "a far table {} exists already; CREATE OR REPLACE TABLE replaces it",
                            shown(name)
                        ),
                    };
                }
                let rows = DataFrame::new(self.context.state(), create.input.as_ref().clone());
                let config = self.context.copied_config();
                let set = config.options().extensions.get::<Options>().cloned().unwrap_or_default();
                let protection = set.table_protection;
                let made_by = match set.recipes {
                    true => recipes::made_by(&self.pool, &self.context.state(), create, protection).await,
                    false => None,
                };
                let options =
                    PutOptions { replace: create.or_replace, protection, made_by, ..PutOptions::default() };
                self.put(name, rows, options).await?;
                return self.context.read_empty();
            }
            // DataFusion's OR REPLACE would drop the far table, for all users.
            LogicalPlan::Ddl(DdlStatement::CreateView(create)) => {
                self.check_hides_none(&create.name).await?;
            }
            LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)) if !create.if_not_exists => {
                self.check_hides_none(&create.name).await?;
            }
            _ => {}
        }
        self.context.execute_logical_plan(plan).await
    }

    async fn check_hides_none(&self, name: &TableReference) -> Result<()> {
        let is_here = name.schema().is_none_or(|schema| schema == SCHEMA)
            && name.catalog().is_none_or(|catalog| catalog == CATALOG);
        match is_here && self.has_far_table(name.table()).await? {
            true => hides(name.table()),
            false => Ok(()),
        }
    }

    async fn has_far_table(&self, name: &str) -> Result<bool> {
        let (pool, wanted) = (self.pool.clone(), name.to_owned());
        let found = tokio::task::spawn_blocking(move || pool.has_table(&wanted)).await;
        found.map_err(|error| exec_datafusion_err!("looking for {}: {error}", shown(name)))?.map_err(external)
    }

    /// Reads a Substrait plan of any producer, over the tables of this session. [`FarSession::execute`] runs it.
    ///
    /// Errors name the part that is invalid, not supported, or beyond a limit
    /// ([`PLAN_BYTES_MAX`](crate::PLAN_BYTES_MAX) and the other `PLAN_` constants). It must be called within a tokio
    /// runtime.
    pub async fn substrait(&self, bytes: impl Into<Vec<u8>>) -> Result<LogicalPlan> {
        substrait::read(self.context.state(), bytes.into()).await
    }

    /// Returns the optimized plan of a query as Substrait. The same query always gives the same bytes. Far tables keep
    /// the names used in the query.
    pub async fn to_substrait(&self, sql: &str) -> Result<Vec<u8>> {
        let state = self.context.state();
        let plan = state.create_logical_plan(sql).await?;
        let plan = state.optimize(&plan)?;
        substrait::write(state, plan).await
    }

    /// Puts the rows of a query as a far table, while they are computed. Runs the query again if bytes of the table are
    /// lost before they have a copy, or if a node that was to have them does not answer.
    pub async fn put(&self, name: &str, rows: DataFrame, options: PutOptions) -> Result<()> {
        let is_worth_it = |error: &DataFusionError| {
            let DataFusionError::External(error) = error else { return false };
            error.downcast_ref::<Error>().is_some_and(Error::is_worth_putting_again)
        };
        for _ in 1..PUTS_MAX {
            match self.put_once(name, rows.clone(), options.clone()).await {
                Err(error) if is_worth_it(&error) => {}
                other => return other,
            }
        }
        self.put_once(name, rows, options).await
    }

    async fn put_once(&self, name: &str, rows: DataFrame, options: PutOptions) -> Result<()> {
        let mut rows = rows.execute_stream().await?;
        let schema = rows.schema();
        let (send, mut receive) = tokio::sync::mpsc::channel::<Result<RecordBatch>>(AHEAD);
        let (pool, table) = (self.pool.clone(), name.to_owned());
        let put = tokio::task::spawn_blocking(move || {
            pool.put_table_with(&table, schema, std::iter::from_fn(|| receive.blocking_recv()), &options)
                .map_err(external)
        });
        while let Some(batch) = rows.next().await {
            // The receiving task has ended; its result, which is awaited below, says why.
            if send.send(batch).await.is_err() {
                break;
            }
        }
        drop(send);
        put.await.map_err(|error| exec_datafusion_err!("putting far table {name:?}: {error}"))?
    }

    /// Returns DataFusion's session.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }
}

/// Makes a lost table again by the query of its recipe.
async fn make_again(
    pool: &Pool,
    state: SessionState,
    name: &str,
    file: FileId,
    recipe: &Recipe,
) -> Result<()> {
    let query = recipes::query_of(&state, file, recipe).await?;
    // Names of sources must not mean what this session has registered under them.
    let catalogs = Arc::new(MemoryCatalogProviderList::new());
    let state = SessionStateBuilder::new_from_existing(state).with_catalog_list(catalogs).build();
    let session = FarSession::assemble(pool, state);
    for (name, url) in query.parquet {
        let options = ParquetReadOptions::default().file_extension("");
        session.context.register_parquet(name.as_str(), &url, options).await?;
    }
    let plan = session.substrait(query.plan).await?;
    let rows = DataFrame::new(session.context.state(), plan);
    let (protection, made_by) = (query.protection, Some(query.made_by));
    session.put(name, rows, PutOptions { protection, made_by, ..PutOptions::default() }).await
}

/// Makes the runtime environment of a session: its memory limit in bytes, and its temporary files. Without a limit
/// nothing spills. Without `files`, temporary files are on the local disk.
pub fn runtime(
    memory_bytes: Option<usize>,
    files: Option<Arc<dyn TempFileFactory>>,
) -> Result<Arc<RuntimeEnv>> {
    let mut runtime = RuntimeEnvBuilder::new();
    if let Some(bytes) = memory_bytes {
        let pool = TrackConsumersPool::new(SessionPool::new(bytes), CONSUMERS_NAMED);
        runtime = runtime.with_memory_pool(Arc::new(pool));
    }
    if let Some(files) = files {
        let mode = DiskManagerMode::Custom(files);
        runtime = runtime.with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode));
    }
    runtime.build_arc()
}

/// Processes that may run the plans of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plans {
    /// This process only.
    Stay,
    /// Other processes too. They know DataFusion's operators and far scans, but no other operator of this crate.
    Travel,
}

/// Returns a builder of session states over far tables, for callers that add more to it.
pub fn builder(config: SessionConfig, options: Options) -> SessionStateBuilder {
    builder_for(config, options, Plans::Stay)
}

/// Returns a builder as [`builder`] does. With [`Plans::Travel`] it leaves out the joins of this crate, and the rule
/// that gives scans the keys of joins: both work within one process only.
pub fn builder_for(config: SessionConfig, options: Options, plans: Plans) -> SessionStateBuilder {
    let mut config = config
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_create_default_catalog_and_schema(false)
        .with_information_schema(true)
        .with_option_extension(options);
    // Text columns have the same Arrow type in a plan as in far tables.
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let mut rules = PhysicalOptimizer::new().rules;
    let mut insert = |before: &str, rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>| {
        let at = rules.iter().position(|known| known.name() == before).unwrap_or(rules.len());
        rules.insert(at, rule);
    };
    insert(BEFORE, Arc::new(ShipToScans));
    if plans == Plans::Stay {
        insert(BEHIND, Arc::new(ShipJoinKeys));
        insert(BEHIND, Arc::new(SpillHashJoins));
    }
    SessionStateBuilder::new().with_config(config).with_physical_optimizer_rules(rules)
}
