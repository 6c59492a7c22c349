//! Pools for users: files by name, tables, functions, and pools inside this process.

use crate::FarFile;
use crate::embedded::{EmbeddedOptions, embedded};
use crate::monitoring::{Endpoint, Serving};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_calls::{Function, FunctionInfo, FunctionStored, FunctionVersion};
use farpool_files::{CreateOptions, Error, FileClass, IfTaken, PoolOptions, Protection, Recipe};
use farpool_tables::{FarTable, PutOptions, TableInfo, TableKey};
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
