//! Catalog, schema and table providers that show the far tables of a pool to DataFusion, beside other registered
//! tables.

use crate::as_of::parts_of;
use crate::source::{FarSource, GroupsEach};
use crate::translate::condition;
use crate::{external, statistics};
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{CatalogProvider, SchemaProvider, Session};
use datafusion::common::{DFSchema, Result, Statistics, exec_datafusion_err, exec_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use farpool::operators::run::type_of;
use farpool::operators::{Instruction, Operator, Program};
use farpool::table::TableOnDemand;
use farpool::{ErrorKind, FarTable, Pool, TraceId};
use farpool_lock::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Table provider over one far table. The files of a table with snapshots are opened when it is scanned, but for those
/// in which no row passes the filters of the scan.
#[derive(Debug)]
pub struct FarTableProvider {
    table: TableOnDemand,
}

impl FarTableProvider {
    /// Makes a provider of a table.
    pub fn new(table: impl Into<TableOnDemand>) -> FarTableProvider {
        FarTableProvider { table: table.into() }
    }

    /// Returns the table.
    pub fn table(&self) -> &TableOnDemand {
        &self.table
    }
}

/// Opens the files that filters over columns of a table do not rule out. Filters that are not understood rule out none.
fn open_passing(table: &TableOnDemand, filters: &[Arc<dyn PhysicalExpr>]) -> Result<FarTable> {
    let types = table.schema().fields().iter().map(|field| type_of(field.data_type()));
    let known = filters.iter().filter_map(|filter| condition(filter, table.schema()).ok());
    let all = known.reduce(|mut all, one| {
        all.extend(one);
        all.push(Instruction::And);
        all
    });
    let steps = all.map(Operator::Filter).into_iter().collect();
    // Columns of types that queries do not know are an error later.
    let near = types.collect::<Option<Vec<_>>>().and_then(|types| Program::check(types, steps).ok());
    let opened = match near {
        Some(near) => table.open_passing(&near, &[]),
        None => table.open_all(),
    };
    opened.map_err(external)
}

#[async_trait]
impl TableProvider for FarTableProvider {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.table.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(match self.table.opened() {
            Some(table) => {
                let all: Vec<usize> = (0..table.schema().fields().len()).collect();
                statistics::of_table(table, &all)
            }
            None => statistics::of_manifest(&self.table),
        })
    }

    // Filters are applied later, from the physical plan, when DataFusion has simplified them. Here they only rule out
    // files.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = match self.table.may_skip_files() {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(vec![support; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize>;
        let columns = match projection {
            Some(columns) => columns,
            None => {
                all = (0..self.table.schema().fields().len()).collect();
                &all
            }
        };
        let each = state.config().get_extension::<GroupsEach>().map_or(GroupsEach::default(), |each| *each);
        let described = DFSchema::try_from(self.schema())?;
        let physical = |filter: &Expr| state.create_physical_expr(filter.clone(), &described).ok();
        let filters: Vec<_> = filters.iter().filter_map(physical).collect();
        let table = self.table.clone();
        let opened = match self.table.opened() {
            Some(table) => table.clone(),
            None => tokio::task::spawn_blocking(move || open_passing(&table, &filters)).await.map_err(
                |error| exec_datafusion_err!("opening far table {:?}: {error}", self.table.name()),
            )??,
        };
        let table = opened.traced(trace_of(state));
        let source = FarSource::try_new(table, columns, state.config().target_partitions(), each)?;
        let scan = DataSourceExec::from_data_source(source);
        Ok(match limit.and_then(|limit| scan.with_fetch(Some(limit))) {
            Some(limited) => limited,
            None => scan,
        })
    }
}

/// Returns the trace id of the statement that is being planned: the same for all of its tables, and most likely no
/// other statement's.
fn trace_of(state: &dyn Session) -> TraceId {
    let mut hasher = DefaultHasher::new();
    state.session_id().hash(&mut hasher);
    state.execution_props().query_execution_start_time.hash(&mut hasher);
    TraceId(hasher.finish().max(1))
}

/// Returns the error for a new table or view that would hide the far table of this name.
pub(crate) fn hides<T>(name: &str) -> Result<T> {
    exec_err!(
        "a far table {name} exists and would be hidden: choose another name, or drop the far table first"
    )
}

/// Catalog schema of all far tables of a pool. Other tables may be registered in it under other names.
pub struct FarSchema {
    pool: Pool,
    others: RwLock<BTreeMap<String, Arc<dyn TableProvider>>>,
}

impl fmt::Debug for FarSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarSchema").finish_non_exhaustive()
    }
}

impl FarSchema {
    /// Makes a schema of the tables of a pool.
    pub fn new(pool: Pool) -> FarSchema {
        FarSchema { pool, others: RwLock::default() }
    }

    fn other(&self, name: &str) -> Option<Arc<dyn TableProvider>> {
        self.others.read().get(name).cloned()
    }
}

#[async_trait]
impl SchemaProvider for FarSchema {
    fn table_names(&self) -> Vec<String> {
        let others = self.others.read();
        let mut names: Vec<String> = others.keys().cloned().collect();
        // This method cannot return an error. If the broker does not answer, far tables are left out, and opening one
        // reports the error.
        let far = self.pool.tables().unwrap_or_default();
        names.extend(far.into_iter().map(|table| table.name).filter(|name| !others.contains_key(name)));
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(other) = self.other(name) {
            return Ok(Some(other));
        }
        let (pool, wanted) = (self.pool.clone(), name.to_owned());
        let open = move || match parts_of(&wanted) {
            Some((table, snapshot)) => match pool.has_table(table)? {
                true => pool.table_on_demand(table, Some(snapshot), None).map(Some),
                false => Ok(None),
            },
            None => match pool.table_on_demand(&wanted, None, None) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                opened => opened.map(Some),
            },
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| exec_datafusion_err!("opening far table {name:?}: {error}"))?;
        let provider = |table| Arc::new(FarTableProvider::new(table)) as Arc<dyn TableProvider>;
        Ok(opened.map_err(external)?.map(provider))
    }

    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        if self.pool.has_table(&name).map_err(external)? {
            return hides(&name);
        }
        Ok(self.others.write().insert(name, table))
    }

    /// Removes a registered table. A far table is dropped from the pool, for all users.
    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let other = self.others.write().remove(name);
        if other.is_some() || !self.table_exist(name) {
            return Ok(other);
        }
        let table = self.pool.table_on_demand(name, None, None).map_err(external)?;
        self.pool.drop_table(name).map_err(external)?;
        Ok(Some(Arc::new(FarTableProvider::new(table))))
    }

    fn table_exist(&self, name: &str) -> bool {
        let far = || parts_of(name).is_none() && self.pool.has_table(name).unwrap_or_default();
        self.other(name).is_some() || far()
    }
}

/// Catalog with a single schema.
#[derive(Debug)]
pub struct FarCatalog {
    name: String,
    schema: Arc<FarSchema>,
}

impl FarCatalog {
    /// Makes a catalog that holds `schema` under this name.
    pub fn new(name: impl Into<String>, schema: Arc<FarSchema>) -> FarCatalog {
        FarCatalog { name: name.into(), schema }
    }
}

impl CatalogProvider for FarCatalog {
    fn schema_names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        (name == self.name).then(|| Arc::clone(&self.schema) as Arc<dyn SchemaProvider>)
    }
}
