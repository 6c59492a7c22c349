"""Types and docstrings of the compiled module of Farpool. Those of queries are in `_queries`, and those of tables in
`_tables`.

Sizes and offsets are in bytes: an `int` or, for parameters of type `Size`, also text such as "64MiB" or "4GiB". Times
are text such as "250ms" or "5s".

Every call that may contact another process releases the GIL. It waits for one peer no longer than the pool's `timeout`.
A request to a broker that does not answer is retried for 10 s.

Threads may share objects. A forked child may not use them: they raise `ForkError`. Call `connect` again in the child.
"""

import builtins
import datetime
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, overload

import pyarrow
from typing_extensions import Buffer

from farpool._queries import Expr as Expr
from farpool._queries import GroupBy as GroupBy
from farpool._queries import Rows as Rows
from farpool._queries import Scan as Scan
from farpool._queries import Stream as Stream
from farpool._queries import Value
from farpool._queries import col as col
from farpool._queries import len as len
from farpool._queries import lit as lit
from farpool._stats import PoolStats, PoolStatus
from farpool._tables import SnapshotInfo as SnapshotInfo
from farpool._tables import Table as Table
from farpool._tables import TableChange as TableChange
from farpool._tables import TableData
from farpool._tables import TableInfo as TableInfo
from farpool._tables import Transaction as Transaction
from farpool._tables import Watch as Watch

Size: TypeAlias = int | str
PathLike: TypeAlias = str | os.PathLike[str]
FileClass: TypeAlias = Literal["scratch", "cache", "pinned"]
Transport: TypeAlias = Literal["auto", "tcp", "shm"]
Protection: TypeAlias = Literal["none", "mirror", "local"] | str
"""Protection of a file against the loss of a memory node.

- "mirror": two copies, on nodes with different host labels. A lost copy is made again in the background.
- "local": a copy on a disk of this machine, written in the background. The disk also takes data that does not fit in
  the pool. For scratch files.
- "rs(4,2)": parity, for pinned files and tables. A file has stripes of 4 parts and 2 with parity, each on another host,
  and any 4 of them give the others. It takes 1.5 times the memory. 2 to 12 parts and 1 to 4 with parity are permitted.
- "none": no copy. Reading bytes of a lost node raises LostError.
"""

Placement: TypeAlias = Literal["auto", "fetch", "ship", "split"]
"""Placement of a query.

- "fetch": columns are fetched, and the query runs in this process.
- "ship": the query runs at the nodes that store the columns.
- "split": both at once. Nodes start at the front of the table and this process at the back, until they meet.
- "auto": the placement with the shortest estimated time. The estimate uses the speeds of links, nodes and this process
  that were measured before, and earlier runs of the same query. If the query is new, a few row groups are run first.

The rows are the same with every placement.
"""

__version__: str

class Error(OSError):
    """Base class of all errors of this package. The text says what was refused, by whom, and what you can do."""

class LostError(Error):
    """The bytes are lost: the memory node that is named lost them, and there is no other copy. Write the file again."""

class ExhaustedError(Error):
    """The pool has no free memory for this session. Delete files, wait, or add a node."""

class LeaseError(Error):
    """The bytes cannot be read because the last write to them failed. Write them again."""

class NotFoundError(Error, FileNotFoundError):
    """Neither this session nor the pool has a file of this name."""

class ExistsError(Error, FileExistsError):
    """A file or table of this name exists already."""

class ForkError(Error):
    """The object was made before a fork and is used in the child process."""

class InvalidError(Error, ValueError):
    """An argument is wrong. The text names the argument, its value and the permitted values."""

class ConflictError(Error):
    """Another commit has changed the table meanwhile. Nothing was changed."""

class ClosedError(Error):
    """The pool or file was closed, by `close` or with its session."""

class UnreachableError(Error):
    """A broker or node did not answer within the timeout. The bytes may still be there: retry later."""

class TamperedError(Error):
    """A node returned other bytes than were written to an encrypted file, and there is no other copy. Write the file
    again. This session leases no more memory from that node."""

class FunctionError(Error):
    """A function that ran beside the data failed. The text says how, and where in the function."""

class RefusedError(Error):
    """The address is on another machine, and neither certificates nor `plaintext` were given. Also raised if a peer
    refused a request for a reason that has no class of its own, or broke the protocol."""

class FileInfo(NamedTuple):
    name: str
    size: int
    file_class: FileClass
    published: bool

class FunctionVersion(NamedTuple):
    """A version of a stored function, which never changes. `stored` is in UTC, by the clock of its client. `owner` is
    the tenant; without certificates it is the name of a user, which nobody checks."""

    version: int
    stored: datetime.datetime
    owner: str
    form: Literal["wasm", "native"]
    entry: str
    digest: bytes
    size: int
    tags: builtins.list[str]

class ArrowStream(Protocol):
    """Object that exports batches by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class _Relay:
    port: int | None

    def close(self) -> None: ...

def _relay_to(pool: Pool, address: str, behind: str) -> _Relay: ...
def _relay_from(pool: Pool, before: str, address: str) -> _Relay: ...
def _has_certificates(pool: Pool) -> bool: ...
def _group_memory() -> tuple[int, int] | None: ...
def _shown(text: str) -> str: ...
def _size_bytes(what: str, value: Size) -> int: ...
def _size_text(bytes: int) -> str: ...
def connect(
    url: str | None = None,
    *,
    transport: Transport = "auto",
    timeout: str = "5s",
    reserve: Size = 0,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    certs: PathLike | None = None,
    tenant: str | None = None,
    plaintext: bool = False,
    protection: Protection | None = None,
    local_folder: PathLike | None = None,
    encrypted: bool = False,
    http: str | None = None,
    http_token: PathLike | None = None,
) -> Pool:
    """Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".

    Without `url` the environment names the pool (`FARPOOL_POOL`) and its certificates (`FARPOOL_CERTS` and so on).
    `transport="auto"` uses shared memory to nodes on this machine and TCP to all others. A call waits for one peer no
    longer than `timeout`. `reserve` bytes (default 0) are leased before this returns.

    Connections to other machines are encrypted, and both sides prove their identity by certificates. Pass `ca`, `cert`
    and `key` (PEM files); or pass `certs`, a folder made by `farpool certs init`, which uses the administrator's
    certificate or that of `tenant`. Without certificates, brokers and nodes on other machines are refused, unless you
    set `plaintext`. Then everybody on the network may read and change what is stored.

    `protection` is the default for scratch files: "mirror" (copies on two nodes of different host labels), "local" (a
    copy in `local_folder`, by default the system's folder for temporary files) or "none". If it is not given: "mirror"
    if the pool has nodes of two host labels, otherwise "local".

    With `encrypted`, scratch files are encrypted and authenticated before they leave this process: memory nodes can
    neither read them nor change them unnoticed. Local copies are not encrypted.

    If `http` is an address, such as "127.0.0.1:9710" (port 0 picks a free one), metrics and state of the session are
    served there over HTTP until it is closed. Requests need the token of the file `http_token`, if one is given;
    addresses of other machines need one.

    Raises UnreachableError, RefusedError (on another machine without certificates, or one side does not trust the
    other), InvalidError (url, transport, timeout, protection, certificates, http), ExhaustedError (reserve).

        with farpool.connect("farpool://127.0.0.1:7700") as pool:
            pool.reserve("1GiB")
    """

def embedded(
    memory: Size = "1GiB",
    *,
    nodes: int = 1,
    region_size: Size = "64MiB",
    transport: Transport = "auto",
    protection: Protection | None = None,
    local_folder: PathLike | None = None,
) -> Pool:
    """Starts a broker and `nodes` memory nodes inside this process, with `memory` bytes in total.

    Use it for tests and to try things out: the memory is that of this process, and stays in the pool when the machine
    runs short of it. Each node divides its memory into regions of `region_size` bytes. The nodes end with this process
    and share one host, so `protection` is "none" unless given. `transport` and `local_folder` are those of `connect`.
    """

class Pool:
    """A session with a pool. Closing it gives back all memory that no published file holds."""

    @property
    def url(self) -> str:
        """Address of the pool: "farpool://host:port" of its broker."""
    @property
    def local_folder(self) -> str:
        """Folder for local copies of scratch files."""
    @property
    def http_address(self) -> str | None:
        """Address at which the session is served over HTTP. None without `http`."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Ends the session. Its unpublished files are deleted, and their `File` objects raise ClosedError."""
    def create(
        self,
        name: str,
        *,
        file_class: FileClass = "scratch",
        size_hint: Size = 0,
        protection: Protection | None = None,
    ) -> File:
        """Makes an empty file, which only this session sees until it is published.

        It takes no far memory yet, and does not look whether the name is taken, so it may hide a published file of the
        same name from this session. With `size_hint`, this many bytes may be leased ahead. The `protection` of scratch
        files is by default the session's (see `connect`); that of pinned files is "none", "rs(4,2)" or the
        like, or "mirror", which is the default where the pool has two hosts.

        Raises ExistsError if this session has a file of this name, InvalidError (also if no file can be made in the
        folder for local copies).

            with pool.create("runs/0", size_hint="1MiB") as file:
                file.write_at(0, b"more than this machine can hold")
        """

    def open(self, name: str) -> File:
        """Opens a file of this session, or a published file for reading. Raises NotFoundError."""
    def exists(self, name: str) -> bool:
        """Reports whether this session has a file of this name, or the pool a published one."""
    def delete(self, name: str) -> None:
        """Deletes a file and gives its memory back. Raises NotFoundError, UnreachableError (published file)."""
    def rename(self, old: str, new: str) -> None:
        """Renames a file. Raises NotFoundError, ExistsError (this session or, for a published file, the pool has a file
        of the new name)."""
    def publish(self, name: str, *, replace: bool = False) -> None:
        """Publishes a file of this session under its name: any session may open it, and nobody can write to it any
        more. With `replace`, a published file of that name is replaced. Raises NotFoundError, ExistsError (without
        `replace`), LostError, UnreachableError."""
    def rebuild_with(self, prefix: str, function: Callable[[Pool, str], object]) -> None:
        """Sets a function that rebuilds published files whose names start with `prefix`, after a node lost their bytes.

        `function(pool, name)` must publish, with `replace`, a file of that name with exactly the same bytes. It is
        called in the thread that opens such a file or reads it by an earlier `File`, and that thread waits for it. If
        it raises an exception, the text becomes part of that thread's LostError. If two prefixes match, the later call
        of `rebuild_with` wins.
        """

    def list(self, prefix: str = "") -> builtins.list[FileInfo]:
        """Returns the files of this session and the published files whose names start with `prefix`."""
    def put_table(
        self,
        name: str,
        data: TableData,
        *,
        replace: bool = False,
        layout: Literal["columns", "rows"] = "columns",
        key: bytes | None = None,
        protection: Protection | None = None,
        threads: int = 0,
        progress: Callable[[int, int], object] | None = None,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
    ) -> None:
        """Makes a far table of Arrow data, or of files that pyarrow can read.

        `data` is any object with `__arrow_c_stream__` (tables of pyarrow, Polars, pandas and DuckDB, readers of
        batches), a LazyFrame of Polars, a dataset or Parquet file of pyarrow, or a path (.parquet, .csv, .arrow,
        .feather, folders of .parquet). With `replace` it atomically replaces a table of that name once it is complete.
        Until then the old table can be read.

        With `layout="rows"` the values of a row lie together, as in row stores, and all rows have the same width: no
        text, no nulls. A query beside the data then reads only the cache lines of its columns, but a client that
        fetches rows fetches all columns.

        With a `key` of 16 bytes the table is encrypted: nobody can read it without the key, and changes are detected.
        The names and types of columns, and the numbers of rows and nulls, are not encrypted.

        Where the pool has two hosts, each row group has copies on two of them, unless `protection` is "none". With
        `protection="rs(4,2)"` the row groups get parity on other hosts in place of copies. A scan goes on when a host
        is lost. If bytes are lost before they have a copy, data that has a length is put again.

        `partition_by` names columns whose values divide the rows, at most 1,024 partitions: each file has rows of one
        of them, so that a query opens the files of the partitions alone that it asks for. `sort_by` names columns by
        which each file is sorted, ascending and null first. Rows that are appended are divided and sorted in the same
        way.

        Rows are encoded by `threads` threads: 1 to 256, or 0 for as many as this process may use CPUs. `progress` is
        called with the rows and the bytes written so far, at most ten times a second, and once when all are written.
        If it raises an exception, so does this, and there is no table.

        Raises ExistsError (there is a table of this name, and no `replace`), InvalidError (a type that far tables do
        not have, a row larger than a region, a file that cannot be read, a key of another length, a pool with one host
        and a mirror, `threads`), ExhaustedError.

            pool.put_table("sales", "sales.parquet")
        """

    def append(
        self,
        name: str,
        data: TableData,
        *,
        key: bytes | None = None,
        protection: Protection | None = None,
        threads: int = 0,
        progress: Callable[[int, int], object] | None = None,
        commit_id: str | None = None,
        compact: bool = True,
    ) -> int:
        """Adds rows behind those of a far table, and returns the number of the snapshot that has them.

        `data`, `threads` and `progress` are those of `put_table`. Tables that were opened before do not change. Several
        clients may append at a time.

        A program that may be run again gives a `commit_id`, a text of its own: if rows were appended with it before,
        nothing is appended. It is known as long as the snapshot that it made is kept, and for 10 minutes at least.

        An append that finds many small files behind the others makes them fewer afterwards, in a snapshot of its own,
        unless `compact` is false.

        Raises NotFoundError, InvalidError (the columns are not those of the table), ConflictError (it has got other
        columns meanwhile), ExhaustedError.

            pool.append("sales", "sales-2026-11-30.parquet", commit_id="sales of 2026-11-30")
        """

    def transaction(self, *, commit_id: str | None = None) -> Transaction:
        """Begins a transaction: in a `with` block far tables are appended to or replaced, all of them at its end, or
        none if it raises an exception. `commit_id` is that of `append`.

            with pool.transaction() as both:
                both.append("orders", orders)
                both.append("lineitem", lines)
        """

    def delete_rows(
        self, name: str, where: Expr | None = None, *, key: bytes | None = None, protection: Protection | None = None
    ) -> int:
        """Deletes the rows of a far table for which a condition is true, such as `col("year") < 2020`; without one all
        rows. Returns their number. Row groups without such rows are not written again.

        Raises NotFoundError, InvalidError (the condition does not fit the columns), ConflictError (another commit has
        changed the same rows meanwhile: the text says who).
        """

    def update_rows(
        self,
        name: str,
        values: dict[str, Expr | Value],
        where: Expr | None = None,
        *,
        key: bytes | None = None,
        protection: Protection | None = None,
    ) -> int:
        """Gives columns of a far table other values, in the rows for which a condition is true; without one in all
        rows. The values are expressions over the columns as they were, or Python values, by the names of the columns.
        Returns the number of these rows.

        Raises the errors of `delete_rows`, and InvalidError (no such column, a value that does not fit it).

            pool.update_rows("sales", {"price": col("price") * 1.1}, col("year") == 2026)
        """

    def compact(self, name: str, *, key: bytes | None = None, protection: Protection | None = None) -> int | None:
        """Makes the files of a far table fewer: small ones, as appends make them, become one.

        Others may read and change the table meanwhile. Returns the number of the snapshot, or None if there was nothing
        to do. Raises NotFoundError, LostError, InvalidError (the key is wrong or missing), ExhaustedError.
        """

    def history(self, name: str) -> builtins.list[SnapshotInfo]:
        """Returns the snapshots of a far table, the latest first."""
    def watch(self, name: str, *, timeout: str | None = None) -> Watch:
        """Returns an iterator over the later changes of a far table, which the broker tells as they are made.

        It ends once none has come for `timeout`, such as `"30s"`; without one it waits for ever. Raises NotFoundError
        (there is no such table), InvalidError (name, timeout).
        """

    def rollback(self, name: str, snapshot: int, *, key: bytes | None = None) -> int:
        """Goes back to an earlier snapshot of a far table, and returns the number of the new one, which has its rows.
        Raises NotFoundError (the snapshot has ended, or never was), InvalidError (the table was not changed since it
        was made, the key is wrong), ConflictError (the table was changed meanwhile: the text says by whom)."""
    def alter_table(
        self,
        name: str,
        *,
        add: dict[str, pyarrow.DataType] | None = None,
        drop: Sequence[str] | None = None,
        rename: dict[str, str] | None = None,
        widen: dict[str, pyarrow.DataType] | None = None,
        allow_nulls: Sequence[str] | None = None,
        key: bytes | None = None,
    ) -> int:
        """Changes columns of a far table, and returns the number of the snapshot that has them.

        No row is written anew: those that the table has already have NULL in a column that is added. A column can be
        widened to an integer or a float with more bits, a decimal of a higher precision, and from a date to a timestamp
        in s or ms. Tables that were opened before do not change. Raises NotFoundError, InvalidError (there is no such
        column, or one of that name already, or a type does not hold each value of the present one).

            pool.alter_table("sales", add={"shop": pa.string()}, rename={"price": "euros"}, drop=["year"])
        """

    def table(
        self, name: str, *, key: bytes | None = None, encrypt_answers: bool = False, snapshot: int | None = None
    ) -> Table:
        """Opens a far table, or an earlier `snapshot` of it. An encrypted one can be read only with its `key`. With
        `encrypt_answers`, nodes also encrypt the results of queries, even over encrypted connections. Raises
        NotFoundError, LostError, InvalidError (the file of this name is no table, the key is wrong or missing),
        RefusedError (it was modified)."""
    def scan(
        self, name: str, *, key: bytes | None = None, encrypt_answers: bool = False, snapshot: int | None = None
    ) -> Scan:
        """Returns a query over a far table, to be refined step by step. It reads nothing yet.

        `key`, `encrypt_answers` and `snapshot` are those of `table`. Raises the errors of `table`, and InvalidError (it
        has columns of a type that queries do not support, or is encrypted and no key is given).

            pool.scan("sales").filter(col("price") > 2.7).select("item").to_arrow()
        """

    def tables(self) -> builtins.list[TableInfo]:
        """Returns the far tables of the pool."""
    def drop_table(self, name: str) -> None:
        """Drops a far table. Raises NotFoundError."""
    @overload
    def run(
        self,
        function: Function | str,
        on: Table,
        args: bytes = b"",
        *,
        columns: Sequence[str] | None = None,
        placement: Placement = "auto",
        deadline: str = "10s",
        output_size: Size | None = None,
        fresh: bool = False,
    ) -> builtins.list[Called]: ...
    @overload
    def run(
        self,
        function: Function | str,
        on: File | str,
        args: bytes = b"",
        *,
        placement: Literal["auto", "ship", "fetch"] = "auto",
        deadline: str = "10s",
        output_size: Size | None = None,
        fresh: bool = False,
    ) -> Called:
        """Runs a function where the bytes of a published file, or the columns of a far table, are stored.

        `function` is a `Function`, the name of one stored in the pool, or "resident:NAME". `on` is a File, the name of
        one, or a Table. For a table the function runs once at every node that has row groups of it, and sees `columns`
        in this order. `args` are bytes that the function gets.

        `placement` is "ship" (at the node that holds the bytes), "fetch" (here, over fetched bytes), "split" (tables
        only: at nodes and here at once; the output of this process comes last) or "auto" (the one that was fastest so
        far). Resident and native functions run at nodes only.

        The call is stopped after `deadline` (1 ms to 1 h). Its output has at most `output_size` bytes (default 16 MiB).
        With `fresh`, a module starts with a new heap, without data of earlier calls.

        Returns a `Called`, or a list of them for a table. If a node dies or is silent, the call is made again where
        other copies or parity are, or once `rebuild_with` has rebuilt the file.
        Raises FunctionError (the function failed), RefusedError (it cannot be used, or nodes do not run functions),
        LostError (bytes that it was to read are lost), UnreachableError (the node does not answer), NotFoundError,
        InvalidError.
        """

    def put_function(
        self, name: str, function: Function, *, replace: bool = False, protection: str | None = None
    ) -> int:
        """Stores a function. Returns the number of its version. `replace` adds one, unless the newest is the same.
        `protection`: "none", "mirror" (default) or "rs(4,2)". Raises ExistsError, InvalidError, ExhaustedError."""
    def tag_function(self, name: str, tag: str) -> int:
        """Lets a tag name a version, "NAME@VERSION" or "NAME" for the newest, and no other one. Returns the number."""
    def function_versions(self, name: str) -> builtins.list[FunctionVersion]:
        """Returns the versions of a function, newest first. Raises the errors of `function`."""
    def function(self, name: str) -> Function:
        """Returns a function: "NAME" (newest), "NAME@VERSION", "NAME@TAG". Raises NotFoundError, LostError."""
    def functions(self) -> builtins.list[str]:
        """Returns the names of the functions stored in the pool."""
    def drop_function(self, name: str) -> None:
        """Drops a function ("NAME"), a version ("NAME@VERSION") or a tag ("NAME@TAG"). Raises NotFoundError."""
    def reserve(self, nbytes: Size) -> None:
        """Leases this many bytes ahead of use, so that writing them needs no broker. Raises ExhaustedError."""
    def stats(self) -> PoolStats:
        """Returns the counters of this session and what it holds. Contacts no other process."""
    def status(self) -> PoolStatus:
        """Returns the state of the pool, as the broker knows it. Raises UnreachableError."""

class Function:
    """A function that can be run beside far memory."""

    @staticmethod
    def wasm(module: bytes, entry: str) -> Function:
        """Makes a function of a WebAssembly module and the name of one of its exports."""
    @staticmethod
    def resident(name: str) -> Function:
        """Names a function that nodes were built with. All nodes have `walk`, `checksum` and `find`."""
    @staticmethod
    def native(object: bytes, entry: str, key: bytes, signature: bytes) -> Function:
        """Makes a function of a shared object, the name of one of its symbols, and the Ed25519 public key and signature
        that authorise it."""
    @property
    def form(self) -> Literal["resident", "wasm", "native"]: ...
    @property
    def entry(self) -> str:
        """Name of the export or symbol that is called, or of the resident function."""
    @property
    def digest(self) -> bytes:
        """SHA-256 of the function's bytes."""

class Called:
    """Result of a call of a function."""

    @property
    def output(self) -> bytes: ...
    def numpy(self, dtype: object) -> Any:
        """Returns the output as a NumPy array of this type, which shares the bytes of `output`."""
    def arrow(self) -> Any:
        """Returns the output as a `pyarrow.Table`. It must be an Arrow IPC stream."""
    @property
    def ran(self) -> float:
        """Seconds for which the function itself ran."""
    @property
    def hops(self) -> int:
        """Number of times that the call moved to another node."""
    @property
    def supplied(self) -> int:
        """Number of 64 KiB blocks that were not where the function ran and had to be loaded."""
    @property
    def trace(self) -> str:
        """Trace id of the call, which the nodes where it ran write to their logs."""
    @property
    def node(self) -> str | None:
        """Name of the node where the call ended; None for this machine."""

class File:
    """A far file. Offsets need no alignment. Operations on different ranges may run at the same time."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def file_class(self) -> FileClass: ...
    @property
    def protection(self) -> Protection:
        """Protection of the file against the loss of a node. "none" for files that are not scratch."""
    @property
    def encrypted(self) -> bool:
        """True if the file is encrypted and authenticated before it leaves this process."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def read_at(self, offset: int, n: int) -> bytes:
        """Returns `n` bytes from `offset`, or fewer at the end of the file. Bytes that were never written are zeros.
        Raises LostError, LeaseError, UnreachableError, ClosedError, InvalidError (negative argument)."""
    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fills a writable, contiguous buffer from `offset`. Returns the number of bytes; raises as `read_at`."""
    def write_at(self, offset: int, buffer: Buffer) -> int:
        """Writes all of a contiguous buffer at `offset`, and grows the file as needed. Returns the number of bytes
        written. Raises ExhaustedError, LostError, LeaseError, UnreachableError, ClosedError, InvalidError (buffer not
        contiguous, negative offset, published file). After an error, write the range again before you read it."""
    def read_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """Does `read_into` for many ranges, and waits only once. Returns the number of bytes of each."""
    def write_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """Does `write_at` for many ranges, and waits only once. Returns the number of bytes of each. Ranges should not
        overlap."""
    def truncate(self, size: int) -> None:
        """Sets the size. Memory that is freed is given back; bytes that are added read as zeros."""
    def close(self) -> None:
        """Closes this handle. The file stays in the pool until it is deleted or the session ends."""
