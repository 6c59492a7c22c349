//! Methods of `farpool.Pool`.

use super::{PyPool, call_rebuilder, if_taken, numbered, opened, protection, table_key};
use crate::expression::PyExpr;
use crate::file::PyFile;
use crate::function::{self, Asked, PyFunction};
use crate::scan::PyScan;
use crate::table::{self, PyTable, Told};
use crate::transaction::{self, PyTransaction};
use crate::watch::PyWatch;
use crate::{errors, expression, forks, units};
use arrow_array::RecordBatchReader;
use farpool::operators::Expr;
use farpool::table::{Compaction, PutOptions};
use farpool::{CreateOptions, FileClass, Pool};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyDict, PyList, PyWeakrefReference};
use std::sync::atomic::Ordering;

#[pymethods]
impl PyPool {
    /// Address of the pool: `farpool://host:port` of its broker.
    #[getter]
    fn url(&self) -> String {
        self.pool.url().to_owned()
    }

    /// Folder for local copies of scratch files.
    #[getter]
    fn local_folder(&self) -> String {
        self.local_folder.display().to_string()
    }

    /// Address at which this session is served over HTTP. None without `http`.
    #[getter]
    fn http_address(&self) -> Option<String> {
        self.http_address.map(|address| address.to_string())
    }

    /// True if `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<farpool.Pool {}{state}>", self.pool.url())
    }

    /// Ends the session. Its unpublished files are deleted, and their `File` objects raise ClosedError.
    fn close(&self, py: Python<'_>) {
        if self.forks == forks() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let pool = &*self.pool;
            py.detach(|| pool.close());
        }
    }

    /// Makes an empty file, which only this session sees until it is published.
    ///
    /// It takes no far memory yet, and does not look whether the name is taken, so it may hide a published file of the
    /// same name from this session. With `size_hint`, this many bytes may be leased ahead. The `protection` of scratch
    /// files is by default the session's (see `connect`); that of pinned files is "none", "rs(4,2)" or the like, or
    /// "mirror", which is the default where the pool has two hosts. Raises ExistsError if this session has a file of
    /// this name, InvalidError (also if no file can be made in the folder for local copies).
    ///
    /// >>> with pool.create("runs/0", size_hint="1MiB") as file:
    /// ...     file.write_at(0, b"more than this machine can hold")
    /// 31
    #[pyo3(signature = (name, *, file_class="scratch", size_hint=None, protection=None))]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        file_class: &str,
        size_hint: Option<&Bound<'_, PyAny>>,
        protection: Option<&str>,
    ) -> PyResult<PyFile> {
        let class = FileClass::from_word(file_class).ok_or_else(|| {
            errors::invalid(
                py,
                format!("file_class is {file_class:?}; 'scratch', 'cache' or 'pinned' is permitted"),
            )
        })?;
        let options = CreateOptions {
            size_hint: size_hint.map_or(Ok(0), |size_hint| units::bytes("size_hint", size_hint))?,
            protection: self::protection(py, protection)?,
            ..CreateOptions::default()
        };
        self.run(py, |pool| pool.create(name, class, options)).map(PyFile::new)
    }

    /// Opens a file of this session, or a published file for reading. Raises NotFoundError.
    ///
    /// >>> with pool.open("runs/0") as file:
    /// ...     file.read_at(5, 4)
    /// b'than'
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<PyFile> {
        self.run(py, |pool| pool.open(name)).map(PyFile::new)
    }

    /// Reports whether this session has a file of this name, or the pool a published one.
    ///
    /// >>> pool.exists("runs/0"), pool.exists("runs/9")
    /// (True, False)
    fn exists(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.run(py, |pool| pool.exists(name))
    }

    /// Deletes a file and gives its memory back. Raises NotFoundError, UnreachableError (published file).
    ///
    /// >>> pool.create("left over").close()
    /// >>> pool.delete("left over")
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.delete(name))
    }

    /// Renames a file. Raises NotFoundError, ExistsError (this session or, for a published file, the pool has a file of
    /// the new name).
    ///
    /// >>> pool.create("draft").close()
    /// >>> pool.rename("draft", "final")
    /// >>> pool.exists("final")
    /// True
    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.run(py, |pool| pool.rename(old, new))
    }

    /// Publishes a file of this session under its name: any session may open it, and nobody can write to it any more.
    ///
    /// Raises NotFoundError, ExistsError (without `replace`), LostError, UnreachableError.
    ///
    /// >>> with pool.create("answers", file_class="pinned") as file:
    /// ...     file.write_at(0, b"42")
    /// 2
    /// >>> pool.publish("answers")
    #[pyo3(signature = (name, *, replace=false))]
    fn publish(&self, py: Python<'_>, name: &str, replace: bool) -> PyResult<()> {
        self.run(py, |pool| pool.publish(name, if_taken(replace)))
    }

    /// Sets a function that rebuilds published files whose names start with `prefix`, after a node lost their bytes.
    /// `function(pool, name)` must publish, with `replace`, a file of that name with exactly the same bytes.
    ///
    /// It is called in the thread that opens such a file or reads it by an earlier `File`, and that thread waits for
    /// it. If it raises an exception, the text becomes part of that thread's LostError. If two prefixes match, the
    /// later call wins.
    fn rebuild_with(slf: &Bound<'_, Self>, prefix: &str, function: Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if !function.is_callable() {
            let text = format!("function is {function}; it must be callable with a pool and a name");
            return Err(errors::invalid(py, text));
        }
        let pool = PyWeakrefReference::new(slf)?.unbind();
        let place = {
            let mut rebuilders = slf.get().rebuilders.lock();
            rebuilders.push(function.unbind());
            rebuilders.len() - 1
        };
        // The thread that needs the file has released the GIL while it waits.
        let rebuild = move |_: &Pool, name: &str| {
            Python::attach(|py| call_rebuilder(py, &pool, place, name))
                .map_err(|error| farpool::Error::not_rebuilt(error.to_string()))
        };
        slf.get().run(py, |pool| {
            pool.rebuild_with(prefix, rebuild);
            Ok(())
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the lock is taken, a thread is using the functions, so they are not garbage.
        match self.rebuilders.try_lock() {
            Some(rebuilders) => rebuilders.iter().try_for_each(|function| visit.call(function)),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut *self.rebuilders.lock());
        drop(functions);
    }

    /// Returns the files of this session and the published files whose names start with `prefix`.
    ///
    /// >>> pool.list("answers")
    /// [FileInfo(name='answers', size=2, file_class='pinned', published=True)]
    #[pyo3(signature = (prefix=""))]
    fn list<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyList>> {
        let found = self.run(py, |pool| pool.list(prefix))?;
        let info = py.import("farpool._farpool")?.getattr("FileInfo")?;
        let list = PyList::empty(py);
        for file in found {
            list.append(info.call1((file.name, file.bytes, file.class.word(), file.is_published))?)?;
        }
        Ok(list)
    }

    /// Makes a far table of any object that has `__arrow_c_stream__`: tables of pyarrow, Polars, pandas and DuckDB, and
    /// readers of batches. It also takes a LazyFrame of Polars, a dataset or Parquet file of pyarrow, or a path that
    /// pyarrow can read (.parquet, .csv, .arrow, .feather, folders of .parquet). With `replace` it atomically replaces
    /// a table of that name once it is complete; until then the old table can be read.
    ///
    /// The values of a row lie together with `layout="rows"`, and all rows have the same width: no text, no nulls. With
    /// a `key` of 16 bytes the table is encrypted: nobody can read it without the key, and changes are detected. The
    /// names and types of columns, and the numbers of rows and nulls, are not encrypted.
    ///
    /// Where the pool has two hosts, each row group has copies on two of them, unless `protection` is "none". With
    /// `protection="rs(4,2)"` the row groups get parity on other hosts in place of copies. A scan goes on when a host
    /// is lost. If bytes are lost before they have a copy, data that has a length is put again.
    ///
    /// `partition_by` names columns whose values divide the rows: each file has rows of one partition, so that a query
    /// opens the files of the partitions alone that it asks for. `sort_by` names columns by which each file is sorted.
    /// Rows that are appended are divided and sorted in the same way.
    ///
    /// Rows are encoded by `threads` threads: 1 to 256, or 0 for as many as this process may use CPUs. `progress` is a
    /// function that is called with the rows and the bytes written so far, at most ten times a second, and once when
    /// all are written. If it raises an exception, so does this, and there is no table.
    ///
    /// Raises ExistsError (there is a table of this name, and no `replace`), InvalidError (a type that far tables do
    /// not have, a row larger than a region, a file that cannot be read, a key of another length, a pool with one host
    /// and a mirror, `threads`), ExhaustedError.
    ///
    /// >>> import pyarrow
    /// >>> items = pyarrow.table({"item": ["cup", "jug", "cup"], "year": [2024, 2025, 2026], "price": [2.5, 9.0, 3.0]})
    /// >>> pool.put_table("sales", items)
    #[pyo3(signature = (
        name, data, *, replace=false, layout="columns", key=None, protection=None, threads=0, progress=None,
        partition_by=Vec::new(), sort_by=Vec::new()
    ))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn put_table(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        replace: bool,
        layout: &str,
        key: Option<&[u8]>,
        protection: Option<&str>,
        threads: usize,
        progress: Option<&Bound<'_, PyAny>>,
        partition_by: Vec<String>,
        sort_by: Vec<String>,
    ) -> PyResult<()> {
        let layout = table::layout(py, layout)?;
        let (protection, key) = (self::protection(py, protection)?, table_key(py, key)?);
        let told = Told::new(progress)?;
        let options = PutOptions {
            layout,
            key,
            replace,
            protection,
            threads,
            progress: Some(told.progress()),
            partition_by,
            sort_by,
            ..PutOptions::default()
        };
        table::put(data, &told, |batches| {
            self.run(py, |pool| Ok(pool.put_table_with(name, batches.schema(), batches, &options)))
        })
    }

    /// Adds rows behind those of a far table, and returns the number of the snapshot that has them. Tables that were
    /// opened before do not change. Several clients may append at a time. `threads` and `progress` are those of
    /// `put_table`. An append that finds many small files behind the others makes them fewer afterwards, in a snapshot
    /// of its own, unless `compact` is false.
    ///
    /// A program that may be run again gives a `commit_id`, a text of its own: if rows were appended with it before,
    /// nothing is appended. It is known as long as the snapshot that it made is kept, and for 10 minutes at least.
    ///
    /// Raises NotFoundError, InvalidError (the columns are not those of the table), ConflictError (it has got other
    /// columns meanwhile), ExhaustedError.
    ///
    /// >>> pool.put_table("mugs", pyarrow.table({"item": ["mug"]}))
    /// >>> pool.append("mugs", pyarrow.table({"item": ["big mug"]}), commit_id="big mugs of 2026")
    /// 1
    /// >>> pool.append("mugs", pyarrow.table({"item": ["big mug"]}), commit_id="big mugs of 2026")
    /// 1
    /// >>> pool.table("mugs").num_rows, [entry.summary for entry in pool.history("mugs")]
    /// (2, ['append 1 rows'])
    /// >>> pool.drop_table("mugs")
    #[pyo3(signature = (
        name, data, *, key=None, protection=None, threads=0, progress=None, commit_id=None, compact=true
    ))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn append(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        key: Option<&[u8]>,
        protection: Option<&str>,
        threads: usize,
        progress: Option<&Bound<'_, PyAny>>,
        commit_id: Option<&str>,
        compact: bool,
    ) -> PyResult<u64> {
        let (protection, key) = (self::protection(py, protection)?, table_key(py, key)?);
        let compaction = if compact { Compaction::Auto } else { Compaction::Off };
        let told = Told::new(progress)?;
        let progress = Some(told.progress());
        let options = PutOptions { key, protection, threads, progress, compaction, ..PutOptions::default() };
        table::put(data, &told, |batches| {
            let append = |pool: &Pool| {
                let mut transaction = transaction::begun(pool, commit_id)?;
                let made = transaction
                    .append(name, batches.schema(), batches, &options)
                    .and_then(|()| transaction.commit());
                Ok(made.map(|made| made.tables.first().map_or(0, |(_, committed)| committed.snapshot)))
            };
            self.run(py, append)
        })
    }

    /// Begins a transaction: in a `with` block far tables are appended to or replaced, all of them at its end, or none
    /// if it raises an exception. `commit_id` is that of `append`.
    ///
    /// >>> with pool.transaction() as both:
    /// ...     both.put_table("sold", pyarrow.table({"item": ["jug"]}))
    /// ...     both.put_table("left", pyarrow.table({"item": ["cup", "mug"]}))
    /// >>> both.snapshots
    /// {'sold': 1, 'left': 1}
    /// >>> pool.drop_table("sold")
    /// >>> pool.drop_table("left")
    #[pyo3(signature = (*, commit_id=None))]
    fn transaction(slf: &Bound<'_, Self>, commit_id: Option<&str>) -> PyResult<PyTransaction> {
        let begun = slf.get().run(slf.py(), |pool| transaction::begun(pool, commit_id))?;
        Ok(PyTransaction::new(slf.clone().unbind(), begun))
    }

    /// Deletes the rows of a far table for which a condition is true, such as `col("year") < 2020`; without one all
    /// rows. Returns their number.
    ///
    /// Raises NotFoundError, InvalidError (the condition does not fit the columns), ConflictError (another commit has
    /// changed the same rows meanwhile).
    ///
    /// >>> pool.put_table("old", pyarrow.table({"year": [2019, 2024, 2026]}))
    /// >>> pool.delete_rows("old", farpool.col("year") < 2025)
    /// 2
    /// >>> pool.drop_table("old")
    #[pyo3(signature = (name, r#where=None, *, key=None, protection=None))]
    fn delete_rows(
        &self,
        py: Python<'_>,
        name: &str,
        r#where: Option<&Bound<'_, PyExpr>>,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<u64> {
        let protection = self::protection(py, protection)?;
        let (told, key) = (Told::default(), table_key(py, key)?);
        let options =
            PutOptions { key, protection, progress: Some(told.progress()), ..PutOptions::default() };
        let condition = r#where.map(|condition| condition.get().value(py, "a condition")).transpose()?;
        Ok(told.check(self.run(py, |pool| pool.delete_rows(name, condition.as_ref(), &options)))??.rows)
    }

    /// Gives columns of a far table other values, in the rows for which a condition is true; without one in all rows.
    /// The values are expressions over the columns as they were, or Python values, by the names of the columns. Returns
    /// the number of these rows.
    ///
    /// Raises the errors of `delete_rows`, and InvalidError (no such column, a value that does not fit it).
    ///
    /// >>> pool.put_table("prices", pyarrow.table({"item": ["cup", "mug"], "price": [2.5, 4.0]}))
    /// >>> pool.update_rows("prices", {"price": farpool.col("price") * 2.0}, farpool.col("item") == "mug")
    /// 1
    /// >>> pool.table("prices").to_arrow(["price"]).to_pydict()
    /// {'price': [2.5, 8.0]}
    /// >>> pool.drop_table("prices")
    #[pyo3(signature = (name, values, r#where=None, *, key=None, protection=None))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn update_rows(
        &self,
        py: Python<'_>,
        name: &str,
        values: &Bound<'_, PyDict>,
        r#where: Option<&Bound<'_, PyExpr>>,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<u64> {
        let protection = self::protection(py, protection)?;
        let (told, key) = (Told::default(), table_key(py, key)?);
        let options =
            PutOptions { key, protection, progress: Some(told.progress()), ..PutOptions::default() };
        let condition = r#where.map(|condition| condition.get().value(py, "a condition")).transpose()?;
        let value = |(column, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            PyResult::Ok((column.extract::<String>()?, expression::of(&value)?.value(py, "an update")?))
        };
        let values: Vec<(String, Expr)> = values.iter().map(value).collect::<PyResult<_>>()?;
        if values.is_empty() {
            return Err(errors::invalid(py, "values is empty: at least one column is needed"));
        }
        let changed = self.run(py, |pool| pool.update_rows(name, &values, condition.as_ref(), &options));
        Ok(told.check(changed)??.rows)
    }

    /// Makes the files of a far table fewer: small ones, as appends make them, become one. Others may read and change
    /// the table meanwhile. Returns the number of the snapshot, or None if there was nothing to do.
    ///
    /// Raises NotFoundError, LostError, InvalidError (the key is wrong or missing), ExhaustedError.
    #[pyo3(signature = (name, *, key=None, protection=None))]
    fn compact(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&[u8]>,
        protection: Option<&str>,
    ) -> PyResult<Option<u64>> {
        let protection = self::protection(py, protection)?;
        let (told, key) = (Told::default(), table_key(py, key)?);
        let options =
            PutOptions { key, protection, progress: Some(told.progress()), ..PutOptions::default() };
        told.check(self.run(py, |pool| Ok(pool.compact_table(name, &options)?.map(|made| made.snapshot))))?
    }

    /// Returns the snapshots of a far table, the latest first: a `SnapshotInfo` for each that is still known.
    fn history<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        table::history(py, self.run(py, |pool| pool.table_history(name))?)
    }

    /// Returns an iterator over the later changes of a far table, which the broker tells as they are made: a
    /// `TableChange` for each snapshot in order, and if the table is replaced by another file or dropped. It ends once
    /// none has come for `timeout`, such as `"30s"`; without one it waits for ever.
    ///
    /// Raises NotFoundError (there is no such table), InvalidError (name, timeout). The iterator raises ClosedError
    /// (the pool was closed), UnreachableError, ExhaustedError (too many iterators wait).
    ///
    /// >>> list(pool.watch("sales", timeout="10ms"))
    /// []
    #[pyo3(signature = (name, *, timeout=None))]
    fn watch(&self, py: Python<'_>, name: &str, timeout: Option<&str>) -> PyResult<PyWatch> {
        let timeout_ms = timeout.map(|timeout| units::millis(py, "timeout", timeout)).transpose()?;
        self.run(py, |pool| pool.watch_table(name)).map(|watch| PyWatch::new(watch, timeout_ms))
    }

    /// Goes back to an earlier snapshot of a far table, and returns the number of the new one, which has its rows.
    ///
    /// Raises NotFoundError (the snapshot has ended), ConflictError (the table was changed meanwhile).
    #[pyo3(signature = (name, snapshot, *, key=None))]
    fn rollback(&self, py: Python<'_>, name: &str, snapshot: u64, key: Option<&[u8]>) -> PyResult<u64> {
        let options = PutOptions { key: table_key(py, key)?, ..PutOptions::default() };
        self.run(py, |pool| Ok(pool.roll_back_table(name, snapshot, &options)?.snapshot))
    }

    /// Changes columns of a far table, and returns the number of the snapshot that has them. No row is written anew:
    /// those that the table has already have NULL in a column that is added. `add` and `widen` map names to types of
    /// pyarrow, `rename` names to new ones. Tables that were opened before do not change.
    ///
    /// A column can be widened to an integer or a float with more bits, a decimal of a higher precision, and from a
    /// date to a timestamp in s or ms.
    ///
    /// Raises NotFoundError, InvalidError (there is no such column, or one of that name already, or a type does not
    /// hold each value of the present one).
    ///
    /// >>> pool.put_table("shops", pyarrow.table({"shop": ["at the sea"], "size": pyarrow.array([3], pyarrow.int8())}))
    /// >>> new = {"since": pyarrow.date32()}
    /// >>> pool.alter_table("shops", widen={"size": pyarrow.int64()}, rename={"shop": "name"}, add=new)
    /// 1
    /// >>> pool.table("shops").to_arrow().to_pylist(), pool.drop_table("shops")
    /// ([{'name': 'at the sea', 'size': 3, 'since': None}], None)
    #[pyo3(signature = (name, *, add=None, drop=None, rename=None, widen=None, allow_nulls=None, key=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of Python
    fn alter_table(
        &self,
        py: Python<'_>,
        name: &str,
        add: Option<&Bound<'_, PyDict>>,
        drop: Option<Vec<String>>,
        rename: Option<&Bound<'_, PyDict>>,
        widen: Option<&Bound<'_, PyDict>>,
        allow_nulls: Option<Vec<String>>,
        key: Option<&[u8]>,
    ) -> PyResult<u64> {
        let (drop, allow_nulls) = (drop.unwrap_or_default(), allow_nulls.unwrap_or_default());
        let changes = table::column_changes(add, drop, rename, widen, allow_nulls)?;
        let options = PutOptions { key: table_key(py, key)?, ..PutOptions::default() };
        self.run(py, |pool| Ok(pool.alter_table(name, &changes, &options)?.snapshot))
    }

    /// Opens a far table. An encrypted one can be read only with its `key`. With `encrypt_answers`, nodes also encrypt
    /// the results of queries, even if the connection is encrypted, under a key for each scan.
    ///
    /// Raises NotFoundError, LostError, InvalidError (the file of this name is no table, or the key is wrong or
    /// missing), RefusedError (the table was modified).
    ///
    /// >>> table = pool.table("sales")
    /// >>> table.num_rows, table.column_names
    /// (3, ['item', 'year', 'price'])
    #[pyo3(signature = (name, *, key=None, encrypt_answers=false, snapshot=None))]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&[u8]>,
        encrypt_answers: bool,
        snapshot: Option<u64>,
    ) -> PyResult<PyTable> {
        let key = table_key(py, key)?;
        self.run(py, |pool| opened(pool, name, key.as_ref(), encrypt_answers, snapshot)).map(PyTable::new)
    }

    /// Returns a query over a far table, to be refined step by step. It reads nothing yet. `key` and `encrypt_answers`
    /// are those of `table`.
    ///
    /// Raises the errors of `table`, and InvalidError (it has columns of a type that queries do not support, or is
    /// encrypted and no key is given).
    ///
    /// >>> from farpool import col
    /// >>> pool.scan("sales").filter(col("price") > 2.7).select("item", "year").to_arrow().to_pylist()
    /// [{'item': 'jug', 'year': 2025}, {'item': 'cup', 'year': 2026}]
    #[pyo3(signature = (name, *, key=None, encrypt_answers=false, snapshot=None))]
    fn scan(
        &self,
        py: Python<'_>,
        name: &str,
        key: Option<&[u8]>,
        encrypt_answers: bool,
        snapshot: Option<u64>,
    ) -> PyResult<PyScan> {
        let key = table_key(py, key)?;
        self.run(py, |pool| {
            let table = pool.table_on_demand(name, numbered(snapshot)?, key.as_ref())?;
            PyScan::new(if encrypt_answers { table.encrypting_answers() } else { table })
        })
    }

    /// Returns the far tables of the pool.
    ///
    /// >>> [table.name for table in pool.tables()]
    /// ['sales']
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = self.run(py, Pool::tables)?;
        let info = py.import("farpool._farpool")?.getattr("TableInfo")?;
        let list = PyList::empty(py);
        for table in found {
            list.append(info.call1((table.name, table.bytes, table.is_lost))?)?;
        }
        Ok(list)
    }

    /// Runs a function where the bytes of a published file, or the columns of a far table, are stored.
    ///
    /// `function` is a `Function`, the name of one stored in the pool, or "resident:NAME". `on` is a File, the name of
    /// one, or a Table. For a table it runs once at every node that has row groups of it, and sees `columns` in this
    /// order. `place` is "ship" (at the node that holds the bytes), "fetch" (here, over fetched bytes) or "auto"
    /// (whichever was faster so far). Resident and native functions run at nodes only.
    ///
    /// Returns a `Called`, or a list of them for a table. A call is not retried when its node dies, unless
    /// `rebuild_with` defines how to rebuild the file.
    ///
    /// Raises FunctionError (the function failed), RefusedError (the function cannot be used, or nodes do not run
    /// functions), LostError (bytes of the window were lost, for example because their node died), UnreachableError
    /// (the node does not answer), NotFoundError, InvalidError.
    ///
    /// >>> import struct
    /// >>> called = pool.run("resident:checksum", on="answers", args=struct.pack("<QQ", 0, 2))
    /// >>> len(called.output)
    /// 4
    #[pyo3(name = "run", signature = (
        function, on, args=b"".to_vec(), *, columns=None, placement="auto", deadline="10s", output_size=None, fresh=false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn run_function<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        on: &Bound<'py, PyAny>,
        args: Vec<u8>,
        columns: Option<Vec<String>>,
        placement: &str,
        deadline: &str,
        output_size: Option<&Bound<'py, PyAny>>,
        fresh: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = Asked { columns, placement, deadline, output_size, fresh };
        // Checks first that the pool is open and of this process, before errors in the arguments are reported.
        self.run(py, |_| Ok(()))?;
        function::run(py, &self.pool, function, on, &args, asked)
    }

    /// Stores a function under a name, for all sessions. Returns the number of its version. With `replace`, a function
    /// of this name gets another version, unless its newest is the same. `protection`: "none", "mirror" (the default on
    /// two hosts), "rs(DATA,PARITY)". Raises ExistsError, InvalidError, ExhaustedError.
    #[pyo3(signature = (name, function, *, replace=false, protection=None))]
    fn put_function(
        &self,
        py: Python<'_>,
        name: &str,
        function: &PyFunction,
        replace: bool,
        protection: Option<&str>,
    ) -> PyResult<u32> {
        let (if_taken, protection) = (if_taken(replace), self::protection(py, protection)?);
        Ok(self.run(py, |pool| pool.put_function(name, &function.0, if_taken, protection))?.version)
    }

    /// Lets a tag name a version of a stored function, "NAME@VERSION" or "NAME" for the newest, and no other one.
    /// Returns the number of the version. Raises NotFoundError, InvalidError.
    fn tag_function(&self, py: Python<'_>, name: &str, tag: &str) -> PyResult<u32> {
        self.run(py, |pool| pool.tag_function(name, tag))
    }

    /// Returns the versions of a stored function, the newest first. Raises NotFoundError, LostError, InvalidError.
    fn function_versions<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        function::listed(py, self.run(py, |pool| pool.function_versions(name))?)
    }

    /// Returns a function stored in the pool: the newest version of "NAME", or "NAME@VERSION" or "NAME@TAG". Raises
    /// NotFoundError, LostError, InvalidError.
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<PyFunction> {
        self.run(py, |pool| pool.function(name)).map(PyFunction)
    }

    /// Returns the names of the functions stored in the pool.
    fn functions(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let found = self.run(py, Pool::functions)?;
        Ok(found.into_iter().map(|info| info.name).collect())
    }

    /// Drops a function ("NAME"), a version of it with its tags ("NAME@VERSION") or a tag ("NAME@TAG") from the pool.
    /// Raises NotFoundError, InvalidError (the only version).
    fn drop_function(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.drop_function(name))
    }

    /// Drops a far table. Raises NotFoundError.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |pool| pool.drop_table(name))
    }

    /// Leases this many bytes ahead of use, so that writing them needs no broker. Raises ExhaustedError.
    ///
    /// >>> pool.reserve("1MiB")
    fn reserve(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = units::bytes("nbytes", nbytes)?;
        self.run(py, |pool| pool.reserve(bytes))
    }

    /// Returns the counters of this session and what it holds. Contacts no other process.
    ///
    /// >>> pool.stats()["bytes_written"] > 0
    /// True
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.forks != forks() {
            return Err(errors::forked(py));
        }
        let stats = PyDict::new(py);
        for (name, value) in self.pool.stats().named() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// Returns the state of the pool, as the broker knows it. Raises UnreachableError.
    ///
    /// >>> sorted(file["name"] for file in pool.status()["files"])[0]
    /// 'answers'
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.status_now(py)
    }
}
