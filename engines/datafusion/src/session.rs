//! A DataFusion session over a pool.

use crate::alter::Alteration;
use crate::as_of::{parse_sql, parts_of};
use crate::catalog::{FarCatalog, FarSchema, FarTableProvider, hides};
use crate::changes;
use crate::external;
use crate::extremes::extremes;
use crate::far_hash_join::SpillHashJoins;
use crate::memory::SessionPool;
use crate::options::Options;
use crate::recipes;
use crate::rules::ShipToScans;
use crate::ship_keys::ShipJoinKeys;
use crate::substrait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::{DataFusionError, Result, TableReference, exec_datafusion_err, exec_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::TrackConsumersPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder, TempFileFactory};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    DdlStatement, DmlStatement, LogicalPlan, LogicalPlanBuilder, TableSource, WriteOp,
};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use farpool::table::{Progress, PutOptions, TABLE_PREFIX, Written};
use farpool::{Error, FileId, PUTS_MAX, Pool, Recipe, shown};
use farpool_lock::Mutex;
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

/// Number of batches that wait, at most, to be put into a new far table. The query that makes them then waits. They are
/// as many as some row groups have, so that the query goes on while others are written.
const AHEAD: usize = 16;

/// DataFusion session with the far tables of a pool by their names, and any other tables registered in it.
#[derive(Clone)]
pub struct FarSession {
    context: SessionContext,
    pool: Pool,
    /// Rows and bytes that a statement under way has written to a far table. `None` if none writes.
    written: Arc<Mutex<Option<Written>>>,
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
        FarSession { context, pool: pool.clone(), written: Arc::default() }
    }

    /// Runs one statement in SQL. `AS OF SNAPSHOT n` behind the name of a far table reads an earlier snapshot of it.
    pub async fn sql(&self, text: &str) -> Result<DataFrame> {
        let mut statements = parse_sql(text)?;
        let statement = statements.pop_front().filter(|_| statements.is_empty());
        let Some(statement) = statement else {
            return exec_err!("one statement is needed at a time");
        };
        self.run(statement).await
    }

    /// Runs a statement, as [`parse_sql`](crate::parse_sql) returns it. `ALTER TABLE` changes columns of a far table,
    /// for all users of the pool. [`FarSession::execute`] runs everything else.
    pub async fn run(&self, statement: Statement) -> Result<DataFrame> {
        changes::check_assignments(&statement)?;
        let state = self.context.state();
        match Alteration::of(&state, &statement).await? {
            Some(alteration) => self.alter(alteration).await,
            None => self.execute(state.statement_to_plan(statement).await?).await,
        }
    }

    async fn alter(&self, alteration: Alteration) -> Result<DataFrame> {
        if !self.is_far_table(&alteration.table).await? {
            return if alteration.if_exists { self.no_rows() } else { alteration.refuse() };
        }
        let (pool, options) = (self.pool.clone(), self.options_of_writes());
        let alter =
            move || pool.alter_table(alteration.table.table(), &alteration.changes, &options).map(drop);
        let altered = tokio::task::spawn_blocking(alter).await;
        altered.map_err(|error| exec_datafusion_err!("changing columns: {error}"))?.map_err(external)?;
        self.no_rows()
    }

    /// Runs a plan. `CREATE TABLE .. AS` puts a far table, which all users of the pool see; `INSERT`, `DELETE`,
    /// `UPDATE` and `TRUNCATE` change one, and return the number of rows. A statement that would hide a far table is
    /// refused. DataFusion runs everything else.
    pub async fn execute(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let explained = match &plan {
            LogicalPlan::Explain(explain) => Some(&*explain.plan),
            LogicalPlan::Analyze(analyze) => Some(&*analyze.input),
            _ => None,
        };
        if let Some(LogicalPlan::Dml(DmlStatement { table_name, op, .. })) = explained
            && self.is_far_table(table_name).await?
        {
            return exec_err!("EXPLAIN has no plan for {op} of a far table: explain a SELECT of its rows");
        }
        match &plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                let name = create.name.table();
                if parts_of(name).is_some() {
                    return exec_err!(
                        "{} is the name of an earlier snapshot: choose another name",
                        shown(name)
                    );
                }
                let keys = create.constraints.iter().next().map(|_| "PRIMARY KEY and UNIQUE");
                if let Some(what) = keys.or((!create.column_defaults.is_empty()).then_some("DEFAULT")) {
                    return exec_err!("far tables do not support {what}: leave it out");
                }
                // A table that is made without rows gets them later.
                let is_empty =
                    matches!(&*create.input, LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row);
                if !create.or_replace && self.has_far_table(name).await? {
                    return match create.if_not_exists {
                        true => self.no_rows(),
                        false => exec_err!(
                            "a far table {} exists already; CREATE OR REPLACE TABLE replaces it",
                            shown(name)
                        ),
                    };
                }
                let rows = DataFrame::new(self.context.state(), create.input.as_ref().clone());
                let config = self.context.copied_config();
                let set = config.options().extensions.get::<Options>().cloned().unwrap_or_default();
                let made_by = match set.recipes && !is_empty {
                    true => recipes::made_by(&self.pool, &self.context.state(), create, &set).await,
                    false => None,
                };
                let (replace, partition_by, sort_by) = (create.or_replace, set.partition_by, set.sort_by);
                let options = PutOptions {
                    replace,
                    protection: set.table_protection,
                    made_by,
                    partition_by,
                    sort_by,
                    ..PutOptions::default()
                };
                self.put(name, rows, options).await?;
                return self.no_rows();
            }
            LogicalPlan::Dml(DmlStatement { table_name, op: WriteOp::Insert(op), input, .. })
                if self.is_far_table(table_name).await? =>
            {
                let rows = DataFrame::new(self.context.state(), input.as_ref().clone());
                let options = self.options_of_writes();
                let count = self.insert(table_name.table(), rows, *op, options).await?;
                return self.counted(count);
            }
            LogicalPlan::Dml(DmlStatement {
                table_name,
                op: WriteOp::Delete | WriteOp::Update,
                input,
                ..
            }) if self.is_far_table(table_name).await? => {
                let telling = Telling::begin(&self.written);
                let options = PutOptions { progress: Some(telling.progress()), ..self.options_of_writes() };
                let state = self.context.state();
                let count = changes::change(&self.pool, state, table_name.table(), input, options).await?;
                return self.counted(count);
            }
            LogicalPlan::Dml(DmlStatement { table_name, op: WriteOp::Truncate, .. })
                if self.is_far_table(table_name).await? =>
            {
                let (pool, name) = (self.pool.clone(), table_name.table().to_owned());
                let options = self.options_of_writes();
                let removed = tokio::task::spawn_blocking(move || pool.delete_rows(&name, None, &options));
                let removed = removed.await;
                let removed =
                    removed.map_err(|error| exec_datafusion_err!("TRUNCATE {table_name}: {error}"))?;
                return self.counted(removed.map_err(external)?.rows);
            }
            LogicalPlan::Dml(DmlStatement { table_name, target, .. })
                if is_far(target) && !self.is_far_table(table_name).await? =>
            {
                return exec_err!(
                    "{} is an earlier snapshot, which cannot be changed",
                    shown(table_name.table())
                );
            }
            // DataFusion would say that it does not exist.
            LogicalPlan::Ddl(DdlStatement::DropTable(drop)) if parts_of(drop.name.table()).is_some() => {
                return exec_err!(
                    "{} is an earlier snapshot, which cannot be dropped",
                    shown(drop.name.table())
                );
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

    /// Returns the options of what statements write, as they are set.
    fn options_of_writes(&self) -> PutOptions {
        let config = self.context.copied_config();
        let set = config.options().extensions.get::<Options>().cloned().unwrap_or_default();
        PutOptions { protection: set.table_protection, ..PutOptions::default() }
    }

    /// Returns the result of a statement that returns nothing.
    fn no_rows(&self) -> Result<DataFrame> {
        Ok(DataFrame::new(self.context.state(), LogicalPlanBuilder::empty(false).build()?))
    }

    /// Returns the result of a statement that has changed so many rows.
    fn counted(&self, count: u64) -> Result<DataFrame> {
        let column: ArrayRef = Arc::new(UInt64Array::from(vec![count]));
        self.context.read_batch(RecordBatch::try_from_iter([("count", column)])?)
    }

    async fn check_hides_none(&self, name: &TableReference) -> Result<()> {
        match self.is_far_table(name).await? {
            true => hides(name.table()),
            false => Ok(()),
        }
    }

    /// Reports whether a name in a statement is that of a far table.
    async fn is_far_table(&self, name: &TableReference) -> Result<bool> {
        let is_here = name.schema().is_none_or(|schema| schema == SCHEMA)
            && name.catalog().is_none_or(|catalog| catalog == CATALOG);
        Ok(is_here && self.has_far_table(name.table()).await?)
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
        self.write(name, rows, Write::Put(options)).await.map(drop)
    }

    /// Adds the rows of a query to a far table, or gives it these rows alone, while they are computed. Returns their
    /// number.
    async fn insert(&self, name: &str, rows: DataFrame, op: InsertOp, options: PutOptions) -> Result<u64> {
        let write = match op {
            InsertOp::Append => Write::Append(options),
            InsertOp::Overwrite => Write::Put(PutOptions { replace: true, ..options }),
            InsertOp::Replace => return exec_err!("far tables have no keys by which rows could be replaced"),
        };
        self.write(name, rows, write).await
    }

    async fn write(&self, name: &str, rows: DataFrame, write: Write) -> Result<u64> {
        let is_worth_it = |error: &DataFusionError| {
            let DataFusionError::External(error) = error else { return false };
            error.downcast_ref::<Error>().is_some_and(Error::is_worth_putting_again)
        };
        for _ in 1..PUTS_MAX {
            match self.write_once(name, rows.clone(), write.clone()).await {
                Err(error) if is_worth_it(&error) => {}
                other => return other,
            }
        }
        self.write_once(name, rows, write).await
    }

    async fn write_once(&self, name: &str, rows: DataFrame, mut write: Write) -> Result<u64> {
        let (Write::Put(options) | Write::Append(options)) = &mut write;
        let telling = Telling::begin(&self.written);
        options.progress.get_or_insert_with(|| telling.progress());
        let task = Arc::new(rows.task_ctx());
        let mut rows = execute_stream(in_order(rows.create_physical_plan().await?), task)?;
        let schema = rows.schema();
        // `None` is the end of the rows. If this is dropped before, as by Ctrl-C in a shell, it does not come.
        let (send, mut receive) = tokio::sync::mpsc::channel::<Option<Result<RecordBatch>>>(AHEAD);
        let (pool, table) = (self.pool.clone(), name.to_owned());
        let put = tokio::task::spawn_blocking(move || {
            let given_up = || Some(exec_err!("the statement was given up before it had all rows"));
            let batches = std::iter::from_fn(|| receive.blocking_recv().unwrap_or_else(given_up)).fuse();
            let written = match write {
                Write::Put(options) => pool.put_table_with(&table, schema, batches, &options),
                Write::Append(options) => pool.append_to_table(&table, schema, batches, &options).map(drop),
            };
            written.map_err(external)
        });
        let mut count = 0;
        while let Some(batch) = rows.next().await {
            count += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            // The receiving task has ended; its result, which is awaited below, says why.
            if send.send(Some(batch)).await.is_err() {
                break;
            }
        }
        // It fails if the receiving task has ended.
        let _ = send.send(None).await;
        put.await.map_err(|error| exec_datafusion_err!("writing far table {name:?}: {error}"))??;
        Ok(count)
    }

    /// Returns the rows and bytes that a statement under way has written to a far table. `None` if none writes.
    pub fn written(&self) -> Option<Written> {
        *self.written.lock()
    }

    /// Returns DataFusion's session.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }
}

/// Reports whether a table is a far table, of whatever snapshot.
fn is_far(table: &Arc<dyn TableSource>) -> bool {
    source_as_provider(table).is_ok_and(|table| table.downcast_ref::<FarTableProvider>().is_some())
}

/// Returns a plan with the rows of one that may have several partitions, which run beside each other. If the rows of
/// each are in an order, so are all.
fn in_order(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.output_ordering().cloned() {
        Some(order) if plan.output_partitioning().partition_count() > 1 => {
            Arc::new(SortPreservingMergeExec::new(order, plan))
        }
        _ => plan,
    }
}

/// Statement that says what it has written, until this is dropped.
struct Telling(Arc<Mutex<Option<Written>>>);

impl Telling {
    fn begin(written: &Arc<Mutex<Option<Written>>>) -> Telling {
        *written.lock() = Some(Written::default());
        Telling(Arc::clone(written))
    }

    fn progress(&self) -> Progress {
        let all = Arc::clone(&self.0);
        Progress::new(move |written| {
            // A statement that was given up does not say any more what it writes.
            if let Some(all) = &mut *all.lock() {
                *all = written;
            }
            Ok(())
        })
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// How rows become those of a far table.
#[derive(Clone)]
enum Write {
    /// The table is made of them, or has them in place of its own.
    Put(PutOptions),
    /// They come behind its own.
    Append(PutOptions),
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
    session.put(name, rows, query.options).await
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
