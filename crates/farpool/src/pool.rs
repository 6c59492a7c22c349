//! Pools for users: files by name, tables, functions, and pools inside this process.

use crate::FarFile;
use crate::embedded::{EmbeddedOptions, embedded};
use crate::monitoring::{Endpoint, Serving};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_calls::{Function, FunctionInfo, FunctionStored, FunctionVersion};
use farpool_files::{CreateOptions, Error, FileClass, IfTaken, PoolOptions, Protection, Recipe};
use farpool_tables::operators::{Expr, Plan};
use farpool_tables::{
    ColumnChange, Committed, FarTable, GroupChange, HistoryEntry, PutOptions, RowsChanged, TableInfo,
    TableKey, TableOnDemand, TableSnapshot, TableTransaction, TableVersion, TableWatch,
};
use farpool_transport::Dialer;
use farpool_wire::FileId;
use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// A session with a pool. Clones share the session, which ends with [`close`](farpool_files::Pool::close) or when the
/// last clone is dropped.
///
/// A program begins with [`Pool::connect`], [`Pool::connect_with`] or [`Pool::embedded`]. `create` and `open` return
/// files, `table` and `put_table` read and write tables, and `function` and `put_function` do the same for stored
/// functions; each kind has a method that lists and one that deletes. Methods may be called in any order and from
/// many threads; they wait for the broker or for nodes and hold no lock that the caller could see. A background
/// thread renews the leases.
///
/// It dereferences to [`farpool_files::Pool`] and has all its methods.
#[derive(Clone)]
pub struct Pool {
    inner: farpool_files::Pool,
    serving: Arc<Serving>,
}

impl Deref for Pool {
    type Target = farpool_files::Pool;
    fn deref(&self) -> &farpool_files::Pool {
        &self.inner
    }
}

impl From<farpool_files::Pool> for Pool {
    fn from(inner: farpool_files::Pool) -> Pool {
        let serving = Arc::new(Serving::new(&inner));
        Pool { inner, serving }
    }
}

impl Pool {
    /// Opens a session with the pool of the broker at `farpool://host:port`. Brokers that stand in for each other are
    /// separated by commas: `farpool://host:port,host:port`.
    pub fn connect(url: &str) -> Result<Pool, Error> {
        farpool_files::Pool::connect(url).map(Pool::from)
    }

    /// Opens a session with options.
    pub fn connect_with(url: &str, options: PoolOptions) -> Result<Pool, Error> {
        farpool_files::Pool::connect_with(url, options).map(Pool::from)
    }

    /// Opens a session with the pool that `FARPOOL_POOL` names. Certificates are those of `FARPOOL_CERTS` and so on, as
    /// for the command, unless the options have some. An error if there is no address.
    pub fn connect_from_environment(options: PoolOptions) -> Result<Pool, Error> {
        farpool_files::Pool::connect_from_environment(options).map(Pool::from)
    }

    /// Opens a session from another host than this machine, as the simulator does.
    pub fn connect_from(host: Arc<dyn Dialer>, url: &str, options: PoolOptions) -> Result<Pool, Error> {
        farpool_files::Pool::connect_from(host, url, options).map(Pool::from)
    }

    /// Starts a pool inside this process: a broker and nodes that end with the session.
    pub fn embedded(options: EmbeddedOptions) -> Result<Pool, Error> {
        embedded(options).map(Pool::from)
    }

    /// Serves metrics, health and state of this session over HTTP until the session ends, and returns the address. Bind
    /// the endpoint before the session is opened, so that a port in use is noticed first.
    pub fn serve_http(&self, endpoint: Endpoint) -> io::Result<SocketAddr> {
        self.serving.begin(endpoint)
    }

    /// Ends the session as [`farpool_files::Pool::close`] does, and stops serving it over HTTP.
    pub fn close(&self) {
        self.serving.end();
        self.inner.close();
    }

    /// Creates a file that is private to this session until it is published.
    pub fn create(&self, name: &str, class: FileClass, options: CreateOptions) -> Result<FarFile, Error> {
        self.inner.create(name, class, options).map(FarFile)
    }

    /// Opens a file of this session, or a published one.
    pub fn open(&self, name: &str) -> Result<FarFile, Error> {
        self.inner.open(name).map(FarFile)
    }

    /// Registers how to rebuild published files whose names begin with `prefix`, after their bytes were lost.
    /// `rebuild` is called with this pool and a name, and must publish a file of that name with exactly the same
    /// bytes (with [`IfTaken::Replace`]). It is called when such a file is opened, or is read by a handle that was
    /// opened before; that operation waits for it. If two prefixes fit a name, the one registered last counts.
    pub fn rebuild_with(
        &self,
        prefix: &str,
        rebuild: impl Fn(&Pool, &str) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        self.inner.rebuild_with(prefix, move |pool, name| rebuild(&Pool::from(pool.clone()), name));
    }

    /// Registers how to make lost files again by recipes of a kind, after all of their copies were lost. `make` is
    /// called with this pool, the name of the file, the id of the lost file and its recipe, by the thread that opens
    /// the file. It must publish a file of that name with [`IfTaken::ReplaceOnly`](crate::IfTaken::ReplaceOnly) and the
    /// same recipe, whose rows and checksum it has compared, or change nothing. The broker gives the task to one
    /// session at a time. If several functions are registered for a kind, the last one counts.
    pub fn make_by_recipe(
        &self,
        kind: &str,
        make: impl Fn(&Pool, &str, FileId, &Recipe) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        let make = move |pool: &farpool_files::Pool, name: &str, file: FileId, recipe: &Recipe| {
            make(&Pool::from(pool.clone()), name, file, recipe)
        };
        self.inner.make_by_recipe(kind, make);
    }

    /// Returns the recipe of a published file, which may be lost. `None` if it has none.
    ///
    /// Errors: there is no such file.
    pub fn recipe(&self, name: &str) -> Result<Option<Recipe>, Error> {
        self.inner.recipe(name)
    }

    /// Opens a far table. An encrypted table shows its columns and the number of its rows; [`Pool::table_with_key`]
    /// opens it for reading.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no table of this name,
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if its bytes are lost,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the file of this name is not a far table.
    pub fn table(&self, name: &str) -> Result<FarTable, Error> {
        farpool_tables::open_table(self, name, None)
    }

    /// Opens an encrypted far table with the key that it was written with.
    ///
    /// Errors: those of [`Pool::table`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the key is another one
    /// or the table is not encrypted; [`ErrorKind::Refused`](crate::ErrorKind::Refused) if the footer was changed
    /// after it was encrypted.
    pub fn table_with_key(&self, name: &str, key: &TableKey) -> Result<FarTable, Error> {
        farpool_tables::open_table(self, name, Some(key))
    }

    /// Finds a far table whose files are opened once it is known which of them a query reads; `snapshot` chooses an
    /// earlier snapshot.
    ///
    /// Errors: those of [`Pool::table_with_key`] and [`Pool::table_snapshot`].
    pub fn table_on_demand(
        &self,
        name: &str,
        snapshot: Option<u64>,
        key: Option<&TableKey>,
    ) -> Result<TableOnDemand, Error> {
        farpool_tables::table_on_demand(self, name, snapshot, key)
    }

    /// Returns the published far tables, ordered by name.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        farpool_tables::tables(self)
    }

    /// Reports whether a far table of this name exists, even if its bytes are lost.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name cannot be the name of a table.
    pub fn has_table(&self, name: &str) -> Result<bool, Error> {
        farpool_tables::has_table(self, name)
    }

    /// Drops a far table: removes its name and frees its memory.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        farpool_tables::drop_table(self, name)
    }

    /// Makes a far table from record batches that have all the columns of `schema`. Metadata of the schema is not
    /// kept.
    ///
    /// Errors: [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is a table of this name
    /// ([`PutOptions::replace`] replaces it); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if far tables do not
    /// support the type of a column, if a batch does not fit the schema, or if a row is larger than a region;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if the pool has no room.
    pub fn put_table(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<(), Error> {
        self.try_put_table(name, schema, batches.into_iter().map(Ok::<_, Infallible>))
    }

    /// Makes a far table like [`Pool::put_table`], from batches that may be errors. An error ends it with
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), and nothing has changed.
    pub fn try_put_table<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    ) -> Result<(), Error> {
        self.put_table_with(name, schema, batches, &PutOptions::default())
    }

    /// Makes a far table like [`Pool::try_put_table`], with options. The row layout refuses columns with nulls or
    /// with values of variable width with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    pub fn put_table_with<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<(), Error> {
        farpool_tables::put_table(self, name, schema, batches, options)
    }

    /// Adds rows behind those of a far table. Readers that have opened the table do not see them. Many sessions may
    /// append at a time.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if its columns are others; those of [`Pool::try_put_table`].
    pub fn append_to_table<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<Committed, Error> {
        farpool_tables::append_rows(self, name, schema, batches, options)
    }

    /// Begins a transaction: up to 8 far tables are appended to or replaced in one commit, all of them or none.
    ///
    /// ```no_run
    /// # use arrow_array::RecordBatch;
    /// # use std::convert::Infallible;
    /// # fn load(pool: &farpool::Pool, orders: RecordBatch, lines: RecordBatch) -> Result<(), farpool::Error> {
    /// let mut transaction = pool.transaction().with_id("load of 2026-11-30")?;
    /// let options = Default::default();
    /// transaction.append("orders", orders.schema(), [Ok::<_, Infallible>(orders)], &options)?;
    /// transaction.append("lineitem", lines.schema(), [Ok::<_, Infallible>(lines)], &options)?;
    /// transaction.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction(&self) -> TableTransaction {
        TableTransaction::begin(self)
    }

    /// Deletes the rows of a far table for which a condition is true; without one all rows. Row groups without such
    /// rows stay as they are.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the condition does not fit its columns;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another commit has changed the same row groups meanwhile.
    pub fn delete_rows(
        &self,
        name: &str,
        condition: Option<&Expr>,
        options: &PutOptions,
    ) -> Result<RowsChanged, Error> {
        farpool_tables::delete_rows(self, name, condition, options)
    }

    /// Gives columns of a far table other values, in the rows for which a condition is true; without one in all rows.
    ///
    /// Errors: those of [`Pool::delete_rows`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is no such
    /// column, or if a value does not fit it.
    pub fn update_rows(
        &self,
        name: &str,
        values: &[(String, Expr)],
        condition: Option<&Expr>,
        options: &PutOptions,
    ) -> Result<RowsChanged, Error> {
        farpool_tables::update_rows(self, name, values, condition, options)
    }

    /// Changes rows of a far table: `change` is called with the table of each row group alone, and says what becomes of
    /// it. With `passing`, only row groups are looked at in which a row may pass the filters of that plan, which gives
    /// all columns of the table. Row groups in which something changes are written anew, behind the others, as they
    /// come. `None` if nothing changes.
    ///
    /// Errors: those of `change`; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if rows have not its columns;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another commit has changed the same row groups meanwhile,
    /// or the columns.
    pub fn change_table(
        &self,
        name: &str,
        options: &PutOptions,
        summary: &str,
        passing: Option<&Plan>,
        change: impl FnMut(&FarTable) -> Result<GroupChange, Error>,
    ) -> Result<Option<Committed>, Error> {
        farpool_tables::change_rows(self, name, options, summary, passing, change)
    }

    /// Makes the files of a far table fewer: small ones that follow each other become one, and those of which most row
    /// groups were deleted, or that have not the columns of the table, are written anew. Others may read and change the
    /// table meanwhile. Returns the last commit; `None` if there was nothing to do.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the key is wrong or missing;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if the pool has no room for the new files.
    pub fn compact_table(&self, name: &str, options: &PutOptions) -> Result<Option<Committed>, Error> {
        farpool_tables::compact(self, name, options)
    }

    /// Changes columns of a far table, one change after the other: adds, drops, renames or widens them, or lets them
    /// have nulls. Rows are not written anew: those that are there have NULL in a column that is added. Readers that
    /// have opened the table keep its columns.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is no such column or one of that name already, if a
    /// type cannot be stored or widened so, if no column would be left, or if there is no change.
    pub fn alter_table(
        &self,
        name: &str,
        changes: &[ColumnChange],
        options: &PutOptions,
    ) -> Result<Committed, Error> {
        farpool_tables::alter_table(self, name, changes, options)
    }

    /// Opens a snapshot of a far table that was changed since it was made, by its number; 0: the latest.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table or the snapshot has ended;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the table has no snapshots, or the key is wrong.
    pub fn table_snapshot(
        &self,
        name: &str,
        snapshot: u64,
        key: Option<&TableKey>,
    ) -> Result<TableSnapshot, Error> {
        farpool_tables::table_snapshot(self, name, snapshot, key)
    }

    /// Returns the snapshots of a far table, the latest first. None if the table was not changed since it was made.
    pub fn table_history(&self, name: &str) -> Result<Vec<HistoryEntry>, Error> {
        farpool_tables::history(self, name)
    }

    /// Waits until a far table has another version than the known one, for up to `timeout_ms`: a commit has made a
    /// snapshot, or the table was replaced or dropped. The default version is that of a table which does not exist.
    /// `None` if the time is over. The broker tells it, so nothing is asked by time.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name cannot be the name of a table;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if too many requests of this session, or of all, wait.
    pub fn await_table(
        &self,
        name: &str,
        known: TableVersion,
        timeout_ms: u64,
    ) -> Result<Option<TableVersion>, Error> {
        farpool_tables::await_table(self, name, known, timeout_ms)
    }

    /// Begins to watch a far table: what is returned tells each later change of it.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such table; those of
    /// [`Pool::await_table`].
    pub fn watch_table(&self, name: &str) -> Result<TableWatch, Error> {
        farpool_tables::watch_table(self, name)
    }

    /// Goes back to an earlier snapshot of a far table: a new snapshot has its rows.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the snapshot has ended;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the table has no snapshots;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the table was changed meanwhile: the message names who
    /// did.
    pub fn roll_back_table(
        &self,
        name: &str,
        snapshot: u64,
        options: &PutOptions,
    ) -> Result<Committed, Error> {
        farpool_tables::roll_back(self, name, snapshot, options)
    }

    /// Stores a function in the pool under a name, for all clients. If there is one of this name and it may be
    /// replaced, it becomes its next version, unless it is the same as the newest. All its versions get this
    /// protection; with `None` a mirror if the pool has room on two hosts, otherwise none. Parity of a file as small as
    /// a function becomes a mirror.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the function is resident, so that nodes have it
    /// already, if the name is not permitted, if the pool's hosts cannot give the protection, or if there are too many
    /// versions; [`ErrorKind::Exists`](crate::ErrorKind::Exists) if the name is in use and should not be replaced;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if the pool has no room.
    pub fn put_function(
        &self,
        name: &str,
        function: &Function,
        if_taken: IfTaken,
        protection: Option<Protection>,
    ) -> Result<FunctionStored, Error> {
        farpool_calls::put_function(self, name, function, if_taken, protection)
    }

    /// Lets a tag name a version of a stored function, and no other one. `name` is `NAME`, for the newest version,
    /// `NAME@VERSION`, or `NAME@TAG` of another tag. Returns the number of the version.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such function or version;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the tag is a number or not permitted, or if there are too
    /// many.
    pub fn tag_function(&self, name: &str, tag: &str) -> Result<u32, Error> {
        farpool_calls::tag_function(self, name, tag)
    }

    /// Returns the versions of a stored function, the newest first.
    ///
    /// Errors: those of [`Pool::function`].
    pub fn function_versions(&self, name: &str) -> Result<Vec<FunctionVersion>, Error> {
        farpool_calls::function_versions(self, name)
    }

    /// Reads a stored function: its newest version (`NAME`), or that of a number (`NAME@VERSION`) or a tag
    /// (`NAME@TAG`).
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such name or version,
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if its bytes are lost,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the file of this name is not a function.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        farpool_calls::stored_function(self, name)
    }

    /// Returns the stored functions, ordered by name.
    pub fn functions(&self) -> Result<Vec<FunctionInfo>, Error> {
        farpool_calls::stored_functions(self)
    }

    /// Deletes a stored function (`NAME`), a version of it with its tags (`NAME@VERSION`), or a tag (`NAME@TAG`).
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such name, version or tag;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for the only version.
    pub fn drop_function(&self, name: &str) -> Result<(), Error> {
        farpool_calls::drop_function(self, name)
    }
}
