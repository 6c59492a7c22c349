//! What pools and files do with functions, tables, and a broker and nodes of this process.

use crate::embedded::{EmbeddedOptions, embedded};
use crate::error::Error;
use crate::file::FarFile;
use crate::function::{self, Caller, CallerOptions, Function, FunctionInfo};
use crate::pool::Pool;
use crate::table::{self, FarTable, PutOptions, TableInfo};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use farpool_sealing::TableKey;
use std::convert::Infallible;
use std::fmt::Display;

impl Pool {
    /// A pool inside this process: a broker and nodes that end with the session.
    pub fn embedded(options: EmbeddedOptions) -> Result<Pool, Error> {
        embedded(options)
    }

    /// Opens a far table. One that is encrypted tells its columns and how many rows it has; to read it,
    /// [`Pool::table_with_key`].
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none of this name,
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if its bytes are gone,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a file has its name and is no far table.
    pub fn table(&self, name: &str) -> Result<FarTable, Error> {
        table::open_table(self, name, None)
    }

    /// Opens an encrypted far table with the key that it was put with.
    ///
    /// Errors: those of [`Pool::table`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it has another key, or is not
    /// encrypted; [`ErrorKind::Refused`](crate::ErrorKind::Refused) if what it says of itself was changed.
    pub fn table_with_key(&self, name: &str, key: &TableKey) -> Result<FarTable, Error> {
        table::open_table(self, name, Some(key))
    }

    /// The published far tables, in the order of their names.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        table::tables(self)
    }

    /// Returns whether there is a far table of this name, be it lost.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for what is no name of a table.
    pub fn has_table(&self, name: &str) -> Result<bool, Error> {
        table::has_table(self, name)
    }

    /// Drops a far table: its name, and the memory it takes.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        table::drop_table(self, name)
    }

    /// Makes a far table of this name out of batches, which have all the columns of `schema`. Metadata of the schema is
    /// not kept.
    ///
    /// Errors: [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is a table of this name ([`PutOptions::replace`]
    /// replaces it); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a column is of a type that far tables do not have,
    /// if a batch does not fit the schema, or if a row is larger than a region;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if the pool has no room.
    pub fn put_table(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<(), Error> {
        self.try_put_table(name, schema, batches.into_iter().map(Ok::<_, Infallible>))
    }

    /// The same, of batches that may fail to come: then it is [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), and nothing
    /// has changed.
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
        table::put_table(self, name, schema, batches, options)
    }

    /// Keeps a function in the pool under a name, for everybody.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a resident one, which nodes have anyway, or if it is no
    /// name; [`ErrorKind::Exists`](crate::ErrorKind::Exists) if the name is taken and not to be replaced;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted).
    pub fn put_function(&self, name: &str, function: &Function, replace: bool) -> Result<(), Error> {
        function::put_function(self, name, function, replace)
    }

    /// A function that the pool keeps.
    ///
    /// Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), [`ErrorKind::Lost`](crate::ErrorKind::Lost),
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a file has its name and is none.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        function::stored_function(self, name)
    }

    /// The functions that the pool keeps, in the order of their names.
    pub fn functions(&self) -> Result<Vec<FunctionInfo>, Error> {
        function::stored_functions(self)
    }

    /// Forgets a function.
    pub fn drop_function(&self, name: &str) -> Result<(), Error> {
        function::drop_function(self, name)
    }
}

impl FarFile {
    /// Lanes over this file, which must be published.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is not, if the range is not in it or too large, or if
    /// the output is to be too large.
    pub fn caller(&self, options: CallerOptions) -> Result<Caller, Error> {
        Caller::over(self, options)
    }
}
