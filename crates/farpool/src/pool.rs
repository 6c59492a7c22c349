//! A pool as its user sees it: files by name, tables, functions, and a broker and nodes of this process.

use crate::FarFile;
use crate::embedded::{EmbeddedOptions, embedded};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_calls::{Function, FunctionInfo};
use farpool_files::{CreateOptions, Error, FileClass, IfTaken, PoolOptions};
use farpool_tables::{FarTable, PutOptions, TableInfo, TableKey};
use farpool_transport::Dialer;
use std::convert::Infallible;
use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;

/// A session with a pool. Clones are the same session; it ends with [`close`](farpool_files::Pool::close) or the last
/// clone.
///
/// It is a [`farpool_files::Pool`], and has the methods of that.
#[derive(Clone)]
pub struct Pool(farpool_files::Pool);

impl Deref for Pool {
    type Target = farpool_files::Pool;
    fn deref(&self) -> &farpool_files::Pool {
        &self.0
    }
}

impl Pool {
    /// Opens a session with the pool of the broker at `farpool://host:port`. Several brokers that stand in for each
    /// other have commas between: `farpool://host:port,host:port`.
    pub fn connect(url: &str) -> Result<Pool, Error> {
        farpool_files::Pool::connect(url).map(Pool)
    }

    /// Opens a session with settings.
    pub fn connect_with(url: &str, options: PoolOptions) -> Result<Pool, Error> {
        farpool_files::Pool::connect_with(url, options).map(Pool)
    }

    /// Opens a session from another host than this machine: the simulator's.
    pub fn connect_from(host: Arc<dyn Dialer>, url: &str, options: PoolOptions) -> Result<Pool, Error> {
        farpool_files::Pool::connect_from(host, url, options).map(Pool)
    }

    /// A pool inside this process: a broker and nodes that end with the session.
    pub fn embedded(options: EmbeddedOptions) -> Result<Pool, Error> {
        embedded(options).map(Pool)
    }

    /// Creates a file, private to this session until it is published.
    pub fn create(&self, name: &str, class: FileClass, options: CreateOptions) -> Result<FarFile, Error> {
        self.0.create(name, class, options).map(FarFile)
    }

    /// Opens a file of this session, or a published one.
    pub fn open(&self, name: &str) -> Result<FarFile, Error> {
        self.0.open(name).map(FarFile)
    }

    /// Says how published files whose names begin with `prefix` are built anew when a node has taken their
    /// bytes away: `rebuild` is called with this pool and the name, and publishes (with [`IfTaken::Replace`]) a file of
    /// that name with the very same bytes. It is called when such a file is opened, or read by a handle opened
    /// before; whoever asked waits for it. Of two prefixes that fit, the one given last counts.
    pub fn rebuild_with(
        &self,
        prefix: &str,
        rebuild: impl Fn(&Pool, &str) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        self.0.rebuild_with(prefix, move |pool, name| rebuild(&Pool(pool.clone()), name));
    }

    /// Opens a far table. One that is encrypted tells its columns and how many rows it has; to read it,
    /// [`Pool::table_with_key`].
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none of this name,
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if its bytes are gone,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a file has its name and is no far table.
    pub fn table(&self, name: &str) -> Result<FarTable, Error> {
        farpool_tables::open_table(self, name, None)
    }

    /// Opens an encrypted far table with the key that it was put with.
    ///
    /// Errors: those of [`Pool::table`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it has another key, or is
    /// not encrypted; [`ErrorKind::Refused`](crate::ErrorKind::Refused) if what it says of itself was changed.
    pub fn table_with_key(&self, name: &str, key: &TableKey) -> Result<FarTable, Error> {
        farpool_tables::open_table(self, name, Some(key))
    }

    /// The published far tables, in the order of their names.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        farpool_tables::tables(self)
    }

    /// Returns whether there is a far table of this name, be it lost.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for what is no name of a table.
    pub fn has_table(&self, name: &str) -> Result<bool, Error> {
        farpool_tables::has_table(self, name)
    }

    /// Drops a far table: its name, and the memory it takes.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        farpool_tables::drop_table(self, name)
    }

    /// Makes a far table of this name out of batches, which have all the columns of `schema`. Metadata of the schema is
    /// not kept.
    ///
    /// Errors: [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is a table of this name
    /// ([`PutOptions::replace`] replaces it); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a column is of a
    /// type that far tables do not have, if a batch does not fit the schema, or if a row is larger than a region;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if the pool has no room.
    pub fn put_table(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<(), Error> {
        self.try_put_table(name, schema, batches.into_iter().map(Ok::<_, Infallible>))
    }

    /// The same, of batches that may fail to come: then it is [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), and
    /// nothing has changed.
    pub fn try_put_table<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
    ) -> Result<(), Error> {
        self.put_table_with(name, schema, batches, &PutOptions::default())
    }

    /// The same, with options. Rows of fixed width refuse columns of any width and nulls with
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    pub fn put_table_with<E: Display>(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        options: &PutOptions,
    ) -> Result<(), Error> {
        farpool_tables::put_table(self, name, schema, batches, options)
    }

    /// Keeps a function in the pool under a name, for everybody.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a resident one, which nodes have anyway, or if it
    /// is no name; [`ErrorKind::Exists`](crate::ErrorKind::Exists) if the name is taken and not to be replaced;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted).
    pub fn put_function(&self, name: &str, function: &Function, if_taken: IfTaken) -> Result<(), Error> {
        farpool_calls::put_function(self, name, function, if_taken)
    }

    /// A function that the pool keeps.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), [`ErrorKind::Lost`](crate::ErrorKind::Lost),
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a file has its name and is none.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        farpool_calls::stored_function(self, name)
    }

    /// The functions that the pool keeps, in the order of their names.
    pub fn functions(&self) -> Result<Vec<FunctionInfo>, Error> {
        farpool_calls::stored_functions(self)
    }

    /// Forgets a function.
    pub fn drop_function(&self, name: &str) -> Result<(), Error> {
        farpool_calls::drop_function(self, name)
    }
}
