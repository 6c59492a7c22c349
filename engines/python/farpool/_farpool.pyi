"""The compiled half of Farpool.

Sizes and offsets are bytes, as `int` or, where a parameter says `Size`, also as text such as
"64MiB" or "4GiB". Times are text such as "250ms" or "5s". All calls that may leave the process
release the GIL and wait for one peer no longer than the pool's `timeout`; a broker that does not answer is
asked again for 10 s. Objects may be shared by threads; they
may not be used in a forked child, which gets `ForkError`: connect again there.
"""

import builtins
import datetime
import decimal
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, Self, TypeAlias, TypedDict, overload

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
from typing_extensions import Buffer

Size: TypeAlias = int | str
PathLike: TypeAlias = str | os.PathLike[str]
FileClass: TypeAlias = Literal["scratch", "cache", "pinned"]
Transport: TypeAlias = Literal["auto", "tcp", "shm"]
Protection: TypeAlias = Literal["none", "mirror", "local"]
"""What keeps a scratch file readable when a node is lost.

"mirror": two copies, on nodes of different host labels; a lost copy is made anew in the background.
"local": a copy on a disk of this machine, written behind; it also takes what finds no room in the pool.
"none": nothing; what lay on a lost node raises LostError.
"""

Value: TypeAlias = None | bool | int | float | str | bytes | decimal.Decimal | datetime.date
"""What a query may compare with; a `datetime` is a `date`. One with a time zone is an instant, one without the reading
of a clock."""
Column: TypeAlias = str | Expr
JoinKeys: TypeAlias = str | list[str | tuple[str, str]] | dict[str, str]
"""Columns that are compared: one of both tables, several, pairs (mine, theirs), or {mine: theirs}."""
Placement: TypeAlias = Literal["auto", "fetch", "ship", "split"]
"""Where a query runs: here over columns that are fetched, at the nodes that hold them, or both at once: nodes begin
from the front, and fetching from the back, until they meet. "auto": where it is expected to take least, by the rates of
links, nodes and this process that were seen, and by earlier runs of the same query; of a query that is new, a few row
groups are run first. The rows are the same."""

__version__: str

class Error(OSError):
    """Base of all errors of this package. The text says what was refused, by whom, and what helps."""

class LostError(Error):
    """Bytes are gone because the named memory node is, and no other copy is left. Writing the file anew is
    the only cure."""

class ExhaustedError(Error):
    """The pool has no more bytes to lease to this session. Delete files, wait, or add a node."""

class LeaseError(Error):
    """The bytes cannot be read because the last write to them failed: write them anew."""

class NotFoundError(Error, FileNotFoundError):
    """No file of this name, published or of this session."""

class ExistsError(Error, FileExistsError):
    """The name is taken."""

class ForkError(Error):
    """The object was made before a fork and is used in the child."""

class InvalidError(Error, ValueError):
    """An argument is wrong; the text names it, its value and what is permitted."""

class ClosedError(Error):
    """The pool or file was closed, by us or with its session."""

class UnreachableError(Error):
    """Broker or node did not answer within the timeout. The bytes may still be there: try again."""

class TamperedError(Error):
    """A node answered with other bytes than were written to a sealed file, and no other copy is left. Write
    the file anew; nothing is leased from that node any more."""

class FunctionError(Error):
    """A shipped function did not end well; the text says how, and where in it."""

class RefusedError(Error):
    """The address is beyond this machine and `plaintext` was not asked for; or a peer refused what its other
    errors have no name for, or broke the protocol."""

class FileInfo(NamedTuple):
    name: str
    size: int
    file_class: FileClass
    published: bool

class TableInfo(NamedTuple):
    name: str
    size: int
    lost: bool

class ArrowStream(Protocol):
    """Batches by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class PoolStats(TypedDict):
    """Counters of this session since it connected, and gauges. Reading them asks nobody."""

    read_ops: int
    bytes_read: int
    write_ops: int
    bytes_written: int
    broker_calls: int
    """Requests to the broker, renewals excepted."""
    leased_bytes: int
    """Gauge: what this session holds on nodes, in whole regions."""
    used_bytes: int
    """Gauge: how much of it files occupy, in whole extents. A mirrored extent counts twice."""
    leased_bytes_total: int
    failed_ops: int
    """Reads and writes that raised."""
    nodes_lost: int
    dropped_copy_bytes: int
    """Copies given up because a write did not reach them."""
    unprotected_bytes: int
    """Gauge: bytes of protected files whose next loss would be for good, because their second copy is
    still to be made or the local disk has not taken them."""
    repaired_bytes: int
    """Copies made anew in the background."""
    disk_bytes_written: int
    """Local copies: bytes that reached the disk's file."""
    disk_bytes_read: int
    """Local copies: bytes read back, because no node had them."""
    spun_ns: int
    """CPU time that threads of this process have spun while they waited for nodes, in all pools together."""
    row_groups_read: int
    """Row groups of far tables that queries needed."""
    row_groups_skipped: int
    """Row groups that queries passed over: their statistics show that no row passes the filters."""

class NodeStatus(TypedDict):
    name: str
    address: str
    host_label: str
    """Its failure domain."""
    donated_bytes: int
    leased_bytes: int
    free_bytes: int
    away_bytes: int
    """Given back to its host, which needs the memory; not among those donated."""

class NamedFileStatus(TypedDict):
    name: str
    size: int
    file_class: FileClass
    lost: bool
    """Whether a node that held some of it has restarted since."""

class PoolStatus(TypedDict):
    """The pool as its broker sees it."""

    url: str
    term: int
    """The life of its broker: greater with each start, and with each of several brokers that comes to lead."""
    nodes: list[NodeStatus]
    """Nodes that are serving; a lost node leaves this list."""
    sessions: int
    """Sessions heard of lately."""
    files: list[NamedFileStatus]
    """Published files only: files of a session are known to that session alone."""
    donated_bytes: int
    leased_bytes: int
    """By all sessions and names; 0 when everything has been given back."""

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
    sealed: bool = False,
) -> Pool:
    """Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".

    Without a URL, it is an embedded pool of this process. `auto` takes shared memory to nodes on
    this machine and TCP to all others. `reserve` bytes are leased before this returns.

    Beyond this machine both sides prove who they are by certificates, and everything is encrypted: `ca`,
    `cert` and `key` are PEM files, or `certs` is a folder that `farpool certs init` made, of which the
    administrator's certificate is used, or that of `tenant`. Brokers and nodes beyond this machine are
    refused without them, unless `plaintext` says that everybody on the network may read and change what
    is stored.

    `protection` is that of scratch files whose creation does not say: "mirror" (two nodes of different
    host labels), "local" (a copy in `local_folder`, by default the system's folder for temporary files)
    or "none". Default: "mirror" if the pool has nodes of two host labels, otherwise "local"; in an
    embedded pool "none". `sealed` scratch files are encrypted and authenticated before they leave this
    process, so that memory nodes can neither read them nor change them unnoticed; local copies are not.

    Raises UnreachableError, RefusedError (beyond this machine, or one side does not trust the other),
    InvalidError (url, transport, timeout, protection, certificates), ExhaustedError (reserve).
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
    """Starts a broker and `nodes` memory nodes inside this process, `memory` bytes in all.

    For tests and for trying things out: it lends this process its own memory. Its nodes end with this
    process, all on one host, so `protection` is "none" unless given (see `connect`).
    """

class Pool:
    """A session with a pool. Closing it gives back every byte that is not published."""

    @property
    def url(self) -> str: ...
    @property
    def local_folder(self) -> str:
        """Where local copies of scratch files lie."""

    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Ends the session. Its unpublished files are gone; their `File` objects raise ClosedError."""

    def create(
        self,
        name: str,
        *,
        file_class: FileClass = "scratch",
        size_hint: Size = 0,
        protection: Protection | None = None,
    ) -> File:
        """Makes an empty file, seen by this session alone until it is published.

        Takes no far memory yet and asks nobody, so it may hide a published file of the same name from this
        session; `size_hint` bytes may be leased ahead. `protection` of a scratch file is the session's
        unless given (see `connect`).
        Raises ExistsError if this session has a file of this name, InvalidError (also: no file can be made
        in the folder for local copies).
        """

    def open(self, name: str) -> File:
        """Opens a file of this session, or a published one (for reading). Raises NotFoundError."""

    def exists(self, name: str) -> bool: ...
    def delete(self, name: str) -> None:
        """Removes a file and gives its bytes back. Raises NotFoundError, UnreachableError (published)."""

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name. Raises NotFoundError, ExistsError (this session or, for a published
        file, the pool has one of that name)."""

    def publish(self, name: str, *, replace: bool = False) -> None:
        """Seals a file of this session and gives it to its name: any session may open it, nobody may write it.

        Raises NotFoundError, ExistsError (without `replace`), LostError, UnreachableError.
        """

    def rebuild_with(self, prefix: str, function: Callable[[Pool, str], object]) -> None:
        """Says how published files whose names start with `prefix` are built anew after a node took their
        bytes away: `function(pool, name)` publishes, with `replace`, a file of that name with the very same
        bytes.

        It is called in the thread that opens such a file, or reads it by a `File` opened before, and that
        thread waits for it. What it raises ends in the text of that thread's LostError. Of two prefixes that
        fit, the one given last counts.
        """

    def list(self, prefix: str = "") -> builtins.list[FileInfo]:
        """The files of this session and the published ones whose names start with `prefix`."""

    def put_table(
        self,
        name: str,
        data: ArrowStream | PathLike | pyarrow.dataset.Dataset | pyarrow.dataset.Scanner | pyarrow.parquet.ParquetFile,
        *,
        replace: bool = False,
        layout: Literal["columns", "rows"] = "columns",
        key: bytes | None = None,
    ) -> None:
        """Makes a far table of anything that has `__arrow_c_stream__`: tables of pyarrow, Polars, pandas and DuckDB,
        readers of batches; of a dataset or Parquet file of pyarrow; or of a path, which pyarrow reads (.parquet, .csv,
        .arrow, .feather, folders of .parquet). With `replace` it takes the place of a table of that name at once, when
        all of it is there; until then the old one is read as before.

        With `layout="rows"` its rows lie one behind the other, each of the same width, as in row stores: no text, no
        nulls. A query beside them reads the cache lines that its columns lie in; whoever fetches them fetches all.

        With a `key` of 16 bytes it is encrypted: only who has the key reads it, and whoever changes it is found out.
        Names and types of columns, and how many rows and nulls there are, can be read without.

        Raises ExistsError (there is a table of this name, and no `replace`), InvalidError (a type that far tables do
        not have, a row larger than a region, a file that cannot be read, a key of another length), ExhaustedError.
        """

    def table(self, name: str, *, key: bytes | None = None, seal_answers: bool = False) -> Table:
        """Opens a far table; one that is encrypted with its `key`, without which nothing of it can be read.
        `seal_answers` has nodes encrypt what queries leave, beside whatever protects the way.

        Raises NotFoundError, LostError, InvalidError (a file that is no table has its name, it has another key or
        none), RefusedError (it was changed).
        """

    def scan(self, name: str, *, key: bytes | None = None, seal_answers: bool = False) -> Scan:
        """A query over a far table, to be narrowed step by step; nothing of it is read yet. `key` and `seal_answers`
        are those of `table`.

        Raises what `table` raises, and InvalidError (it has columns of a type that queries do not know, or is
        encrypted and no key is given).
        """

    def tables(self) -> builtins.list[TableInfo]:
        """The far tables of the pool."""

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
        """Runs a function where the bytes of a published file, or the columns of a far table, lie.

        `function` is a `Function`, the name of one that the pool keeps, or "resident:NAME". On a table it runs once at
        every node that has row groups of it, and finds `columns`, in this order. `placement` is "ship" (where the bytes
        lie), "fetch" (here, over bytes that are fetched), "split" (of a table: at nodes and here at once, whose output
        comes last) or "auto" (whichever takes least, as was seen). Resident and native functions run at nodes alone.

        A call is not made again when its node dies, unless `rebuild_with` says how the file is built anew.

        Raises FunctionError (it did not end well), RefusedError (it cannot be used, or functions are not run there),
        LostError (bytes of the window were lost, as when its node died), UnreachableError (the node does not answer),
        NotFoundError, InvalidError.
        """

    def put_function(self, name: str, function: Function, *, replace: bool = False) -> None:
        """Keeps a function in the pool under a name, for everybody.

        Raises ExistsError unless it may replace another, InvalidError (a resident one), ExhaustedError.
        """

    def function(self, name: str) -> Function:
        """A function that the pool keeps. Raises NotFoundError, LostError, InvalidError."""

    def functions(self) -> builtins.list[str]:
        """The names of the functions that the pool keeps."""

    def drop_function(self, name: str) -> None:
        """Forgets a function. Raises NotFoundError."""

    def reserve(self, nbytes: Size) -> None:
        """Leases this much ahead of use, so that writing it needs no broker. Raises ExhaustedError."""

    def stats(self) -> PoolStats: ...
    def status(self) -> PoolStatus:
        """Asks the broker. Raises UnreachableError."""

class Table:
    """A far table, opened for reading. Anything that reads Arrow streams takes it, such as `pyarrow.table`."""

    @property
    def name(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    @property
    def encrypted(self) -> bool: ...
    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """All of it, or some columns, as a `pyarrow.Table`. Nothing else is fetched.

        Raises LostError, ClosedError (it was dropped or replaced), UnreachableError, InvalidError (no such column).
        """

    def scan(self) -> Scan:
        """A query over it, to be narrowed step by step.

        Raises InvalidError (it has columns of a type that queries do not know).
        """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def col(name: str) -> Expr:
    """The column of this name."""

def lit(value: Value) -> Expr:
    """A value. It takes the type of what it stands beside if it is the same value there. Raises InvalidError."""

def len() -> Expr:
    """The number of rows, for `agg` and `select`; its name is "len"."""

class Expr:
    """A value of each row, or an aggregate over rows.

    Comparisons, `+ - * / %`, `&`, `|` and `~` give others; values of Python may stand on one side. Null is that of SQL.
    `/` gives a float64 (of whole numbers too), `%` the sign of its left side. Floats: NaN equals NaN of the same bits
    and is greater than all numbers, or less if its sign is set; -0.0 equals 0.0. Whole numbers and decimals that
    overflow raise InvalidError when the query runs.
    An expression has the name of its leftmost column, until `alias` or a keyword gives it one.
    """

    __hash__: None  # type: ignore[assignment]
    def __eq__(self, other: Expr | Value) -> Expr: ...  # type: ignore[override]
    def __ne__(self, other: Expr | Value) -> Expr: ...  # type: ignore[override]
    def __lt__(self, other: Expr | Value) -> Expr: ...
    def __le__(self, other: Expr | Value) -> Expr: ...
    def __gt__(self, other: Expr | Value) -> Expr: ...
    def __ge__(self, other: Expr | Value) -> Expr: ...
    def __and__(self, other: Expr | bool) -> Expr: ...
    def __rand__(self, other: bool) -> Expr: ...
    def __or__(self, other: Expr | bool) -> Expr: ...
    def __ror__(self, other: bool) -> Expr: ...
    def __invert__(self) -> Expr: ...
    def __neg__(self) -> Expr: ...
    def __add__(self, other: Expr | Value) -> Expr: ...
    def __radd__(self, other: Value) -> Expr: ...
    def __sub__(self, other: Expr | Value) -> Expr: ...
    def __rsub__(self, other: Value) -> Expr: ...
    def __mul__(self, other: Expr | Value) -> Expr: ...
    def __rmul__(self, other: Value) -> Expr: ...
    def __truediv__(self, other: Expr | Value) -> Expr: ...
    def __rtruediv__(self, other: Value) -> Expr: ...
    def __mod__(self, other: Expr | Value) -> Expr: ...
    def __rmod__(self, other: Value) -> Expr: ...
    def is_in(self, values: Iterable[Value]) -> Expr:
        """Whether it is one of these values. With None among them: true or unknown, as in SQL."""

    def between(self, least: Expr | Value, most: Expr | Value) -> Expr:
        """Whether it lies between two values, both included."""

    def is_null(self) -> Expr: ...
    def is_not_null(self) -> Expr: ...
    def like(self, pattern: str) -> Expr:
        """Whether text is like SQL's pattern as a whole: `%` is any text, `_` any character, `\\` takes the meaning of
        the next."""

    def ilike(self, pattern: str) -> Expr:
        """Likewise, whatever the case of letters."""

    def matches(self, pattern: str) -> Expr:
        """Whether a regular expression (of the Rust crate `regex`) is found anywhere in text."""

    def cast(self, to: object) -> Expr:
        """As another type: its name, such as "int32", "decimal(12, 2)" or "timestamp(us)", or a type of pyarrow.

        A value that does not fit ends the query with InvalidError. Raises InvalidError (no type of this name).
        """

    def alias(self, name: str) -> Expr:
        """The same under another name."""

    def sum(self) -> Expr:
        """Of whole numbers a decimal(38, 0), of decimals one of 38 digits, of floats a float64."""

    def min(self) -> Expr: ...
    def max(self) -> Expr: ...
    def mean(self) -> Expr:
        """A float64."""

    def count(self) -> Expr:
        """Rows in which it is not null."""

class Scan:
    """A query over a far table. Each step gives another query; nothing is read before `collect`, `to_arrow` or `count`.

    A grouping, `distinct`, or a `sort` or `top_k` with its limit may be there once; what follows sees its rows.
    Steps raise InvalidError, which says what is wrong and what there is.
    """

    @property
    def column_names(self) -> list[str]: ...
    @property
    def schema(self) -> dict[str, str]:
        """The types of its columns, in words."""

    def filter(self, *conditions: Expr) -> Scan:
        """Rows for which all of these are true."""

    def semi_join(self, other: ArrowStream | Scan, on: JoinKeys, *, placement: Placement = "auto") -> Scan:
        """Rows whose keys are those of a row of another table: anything that reads as Arrow, or a scan, which is run at
        once, in `placement` as `collect` says. NULL is like nothing. Keys of other types are compared as this scan's where
        that loses nothing. What the keys are is sent to the nodes of this scan's table, unless it is fetched.

        Raises InvalidError (no such column, types that do not compare), and what `collect` raises if `other` is a scan.
        """

    def anti_join(self, other: ArrowStream | Scan, on: JoinKeys, *, placement: Placement = "auto") -> Scan:
        """Rows whose keys are those of no row of another table, or have a NULL among them. As `semi_join` otherwise."""

    def select(self, *columns: Column | list[Column], **named: Expr | Value) -> Scan:
        """These columns instead; if all of them are aggregates, one row of them."""

    def with_columns(self, *columns: Column | list[Column], **named: Expr | Value) -> Scan:
        """Its columns and these, which take the place of columns of their names."""

    def group_by(self, *keys: Column | list[Column], **named: Expr | Value) -> GroupBy:
        """One row for each combination of these that there is, once `agg` says what is computed."""

    def distinct(self) -> Scan:
        """Each row once."""

    def sort(
        self,
        *by: Column | list[Column],
        descending: bool | Sequence[bool] = False,
        nulls_last: bool | Sequence[bool] = False,
    ) -> Scan:
        """All rows in an order, which the client gives them; with a `limit` behind it, only the first are kept, on the
        way as well. NaN comes behind all numbers, and before them if its sign is set. Only `limit` may follow."""

    def top_k(self, k: int, *, by: Column | list[Column], reverse: bool = False) -> Scan:
        """The `k` rows that are greatest by these columns, greatest first, null last; with `reverse` the least."""

    def limit(self, rows: int) -> Scan:
        """No more than so many rows: the first ones behind `sort`, otherwise any."""

    def count(self, *, placement: Placement = "auto") -> int:
        """Runs it and counts its rows. Raises what `collect` raises."""

    def collect(self, *, placement: Placement = "auto") -> Rows:
        """Runs it where `placement` says. Groups come in the order of their keys, null first; other rows in that of the
        table.

        Raises LostError, ClosedError (the table was dropped or replaced), UnreachableError, InvalidError (a value that
        does not fit its type, a pattern that is no regular expression).
        """

    def to_arrow(self, *, placement: Placement = "auto") -> pyarrow.Table:
        """Runs it, and gives its rows as a `pyarrow.Table`. Raises what `collect` raises."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Runs it as `collect` does, for any library that reads Arrow, and for `Pool.put_table`, which makes a table of
        it."""

    def stream(self, *, placement: Placement = "auto") -> Stream:
        """Its rows as they come, so that they need not all be here at once. What groups, sorts the rows or joins comes
        as a whole. They are the rows of `collect`, in its order; what `collect` raises, whoever takes them raises."""

    def __arrow_c_schema__(self) -> object:
        """The names and types of its columns, for any library that reads Arrow, such as `pyarrow.schema`."""

    def explain(self, *, format: Literal["text", "json"] = "text") -> str:
        """What it would read, where each step would run, and what each placement is expected to take. Reads nothing."""

class GroupBy:
    """A query and the keys it groups by."""

    def agg(self, *aggregates: Expr | list[Expr], **named: Expr) -> Scan:
        """What is computed over the rows of each group."""

class Rows:
    """The rows of a query, in this process. Anything that reads Arrow streams takes them, such as `pyarrow.table` and
    DuckDB, as often as it likes and without a copy."""

    @property
    def num_rows(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    @property
    def report(self) -> Report:
        """What was done for them."""

    def explain(self) -> str:
        """The same in words: what was expected beside what it took."""

    def __len__(self) -> int: ...
    def to_arrow(self) -> pyarrow.Table: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class Report(TypedDict):
    """What was done for rows: where row groups of the table were seen to, bytes, seconds."""

    placement: Placement | None
    """What was asked for. Nothing as long as nothing was done."""
    chosen: Placement | None
    """What was done: the placement itself, or what was chosen for "auto"."""
    why: NotRequired[str]
    """The reason of the choice."""
    sure: NotRequired[bool]
    """Whether what the query takes was known from earlier runs."""
    expected: NotRequired[dict[str, dict[str, float]]]
    """Of each placement: `seconds`, `link_bytes`, `node_seconds`, `client_seconds`."""
    tried: int
    """Row groups that were run first, to see."""
    corrected: bool
    """Whether they changed the choice."""
    row_groups: int
    """Of the table."""
    shipped: int
    """Row groups that a node ran the query over."""
    fetched: int
    skipped: int
    """Row groups in which no row can be of use, by their statistics."""
    rows: int
    result_bytes: int
    """What nodes sent of results."""
    fetched_bytes: int
    lookup_bytes: int
    """What nodes were sent for semi-joins."""
    link_bytes: int
    """All three."""
    node_bytes: int
    """What nodes read of columns."""
    node_seconds: float
    """Of all nodes together."""
    client_seconds: float
    """Without waiting."""
    seconds: float
    refusals: list[tuple[str, str]]
    """Why nodes did not do what they were asked for, by node. It was done here."""

class Stream:
    """The rows of a query, as they come. Anything that reads Arrow streams takes them, once; the query runs from then
    on, some row groups ahead of whoever takes them, and ends when nobody does."""

    @property
    def report(self) -> Report:
        """What was done so far."""

    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Raises InvalidError the second time."""

class Function:
    """A function to be run beside far memory."""

    @staticmethod
    def wasm(module: bytes, entry: str) -> Function:
        """A WebAssembly module, and which of its exports to call."""

    @staticmethod
    def resident(name: str) -> Function:
        """A function that nodes were built with: `walk`, `checksum` and `find` are everywhere."""

    @staticmethod
    def native(object: bytes, entry: str, key: bytes, signature: bytes) -> Function:
        """A shared object, its symbol, and the Ed25519 public key and signature that vouch for it."""

    @property
    def form(self) -> Literal["resident", "wasm", "native"]: ...
    @property
    def entry(self) -> str: ...
    @property
    def digest(self) -> bytes: ...

class Called:
    """What a call of a function gave."""

    @property
    def output(self) -> bytes: ...
    def numpy(self, dtype: object) -> Any:
        """The output as a NumPy array of this type."""

    def arrow(self) -> Any:
        """The output, which must be an Arrow IPC stream, as a `pyarrow.Table`."""

    @property
    def ran(self) -> float: ...
    @property
    def hops(self) -> int: ...
    @property
    def supplied(self) -> int: ...
    @property
    def node(self) -> str | None: ...

class File:
    """A far file. Offsets need no alignment; operations on different ranges may run at once."""

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
        """What keeps it readable when a node is lost. "none" for files that are not scratch."""

    @property
    def sealed(self) -> bool:
        """Whether it is encrypted and authenticated before it leaves this process."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def read_at(self, offset: int, n: int) -> bytes:
        """`n` bytes from `offset`, fewer only at the end of the file. Bytes never written are zeros.

        Raises LostError, LeaseError, UnreachableError, ClosedError, InvalidError (negative argument).
        """

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fills a writable, contiguous buffer; returns how many bytes there were. Errors as `read_at`."""

    def write_at(self, offset: int, buffer: Buffer) -> int:
        """Writes all of a contiguous buffer, growing the file as needed; returns its length in bytes.

        Raises ExhaustedError, LostError, LeaseError, UnreachableError, ClosedError, InvalidError
        (buffer not contiguous, negative offset, published file). After an error the range must be
        written again before it can be read.
        """

    def read_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """`read_into` for many ranges with one wait; returns their counts."""

    def write_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """`write_at` for many ranges with one wait; returns their counts. Ranges should not overlap."""

    def truncate(self, size: int) -> None:
        """Sets the size. Freed extents are given back; bytes added read as zeros."""

    def close(self) -> None:
        """Lets go of the file, which stays in the pool until it is deleted or the session ends."""
