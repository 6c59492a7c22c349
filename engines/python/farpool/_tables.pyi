"""Types and docstrings of far tables: their snapshots and changes, and transactions."""

import datetime
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from farpool._farpool import ArrowStream, PathLike, Protection
from farpool._queries import Scan

TableData: TypeAlias = (
    ArrowStream | PathLike | pyarrow.dataset.Dataset | pyarrow.dataset.Scanner | pyarrow.parquet.ParquetFile
)
"""Rows that `Pool.put_table` takes."""

class SnapshotInfo(NamedTuple):
    """Snapshot of a far table: each change makes one."""

    snapshot: int
    """Number of the snapshot: 1 for the first change."""
    time: datetime.datetime
    """Time of the change, by the clock of the broker."""
    session: int
    """Session that made the change."""
    kept: bool
    """True if the snapshot can be read: it has not ended."""
    summary: str
    """What was done."""

class TableChange(NamedTuple):
    """Change of a far table. Without a snapshot, `time` and `session` are None, and `summary` is empty."""

    kind: Literal["snapshot", "file", "dropped"]
    """"snapshot": a change has made one. "file": the table is another file, without snapshots. "dropped": there is no
    such table any more."""
    snapshot: int | None
    """Number of the snapshot."""
    time: datetime.datetime | None
    """Time of the change, by the clock of the broker."""
    session: int | None
    """Session that made the change."""
    summary: str
    """What was done."""

class Watch:
    """Iterator over the changes of a far table, in order. Several may wait at a time, up to 16 in a process and 512 in
    a pool: each has a connection to the broker. `next` raises ClosedError (the pool was closed), UnreachableError,
    ExhaustedError (too many wait)."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> TableChange: ...
    def close(self) -> None:
        """Ends the iteration, also that of another thread which waits."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class TableInfo(NamedTuple):
    """Name and size in bytes of a far table. `lost` is True if a node lost some of its bytes."""

    name: str
    size: int
    lost: bool

class Transaction:
    """Changes of far tables that are made together, at the end of a `with` block: all of them, or none.

    Rows are written to the pool when they are given, and can be read after the commit. If another client changes one of
    the tables first, the commit is made over its snapshot, unless a snapshot is `expected`.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def append(
        self,
        name: str,
        data: TableData,
        *,
        expected: int | None = None,
        key: bytes | None = None,
        protection: Protection | None = None,
    ) -> None:
        """Adds rows behind those of a far table. `data`, `key` and `protection` are those of `Pool.append`.

        If `expected` is given, the transaction is committed only if the table has this snapshot then; 0: it was not
        changed since it was made.

        Raises the errors of `Pool.append`, ConflictError (the table has another snapshot), InvalidError (the
        transaction changes this table already, or 8 others), ClosedError (it has ended).
        """

    def put_table(
        self,
        name: str,
        data: TableData,
        *,
        replace: bool = False,
        expected: int | None = None,
        layout: Literal["columns", "rows"] = "columns",
        key: bytes | None = None,
        protection: Protection | None = None,
    ) -> None:
        """Makes a far table, or replaces one of this name. The arguments are those of `Pool.put_table` and `append`;
        `expected` 0: there is no table of this name, or it was not changed. Raises the errors of both."""

    def commit(self) -> None:
        """Changes all tables, or none of them. A `with` block ends with it.

        Raises ConflictError (a table has another snapshot than the expected one, or other columns now: the text says
        who has changed it), InvalidError (no table changes), ClosedError (the transaction has ended).
        """

    @property
    def snapshots(self) -> dict[str, int]:
        """Numbers of the snapshots that the transaction has made, by table. Empty before its commit."""
    @property
    def was_made_before(self) -> bool:
        """True if a transaction of the same `commit_id` was committed before, so that this one has changed nothing."""

class Table:
    """A far table, opened for reading. Any library that reads Arrow streams can take it, such as `pyarrow.table`."""

    @property
    def name(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes that the table takes in the pool."""
    @property
    def snapshot(self) -> int | None:
        """Number of the snapshot that was opened. None if the table was not changed since it was made."""
    @property
    def column_names(self) -> list[str]: ...
    @property
    def encrypted(self) -> bool:
        """True if the table can be read only with a key."""
    @property
    def protection(self) -> str:
        """Protection of the table against the loss of a node: "none", "mirror" or the like of "rs(4,2)". A table with
        fewer parts than the code that was asked for has a mirror."""
    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """Fetches all columns, or only these, as a `pyarrow.Table`. Raises LostError, ClosedError (the table was
        dropped or replaced), UnreachableError, InvalidError (no such column)."""
    def scan(self) -> Scan:
        """Returns a query over the table, to be refined step by step. Raises InvalidError (it has columns of a type
        that queries do not support)."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
