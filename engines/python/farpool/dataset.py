"""Far tables as datasets of pyarrow, for engines that read such: DuckDB, Polars, pyarrow itself.

    lineitem = farpool.dataset.FarDataset(pool, "lineitem")
    duckdb.sql("SELECT count(*) FROM lineitem WHERE l_quantity < 10")

The idea: such engines hand the columns and the filter of a scan to the dataset, and do not look at the filter again.
What is understood of it becomes a query, which reads only the columns, row groups and rows that it needs; if a part is
not understood, pyarrow applies all of the filter to the rows that are left.

Rows come while the query runs, some row groups at a time, so a table need not fit in memory.

Never here: a filter that is forgotten.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import farpool
from farpool import _filters
from farpool._farpool import _shown

__all__ = ["FarDataset", "FarScanner"]

# Of so many scans it is remembered what was done.
_REPORTS_MAX = 64


class FarDataset(ds.Dataset):
    """A far table, or a query over one, as a dataset of pyarrow. It has no fragments.

    Each scan reads the table that the name means then, which must have the columns that it had when this was made.
    `placement` says where scans run (see `farpool.Scan.collect`); `key` and `seal_answers` are those of `Pool.table`.
    """

    def __init__(
        self,
        pool: farpool.Pool,
        table: str,
        *,
        key: bytes | None = None,
        seal_answers: bool = False,
        placement: str | None = None,
    ):
        """Raises what `Pool.scan` raises, and InvalidError (no such placement)."""
        self.pool = pool
        self.table = table
        self.placement = placement
        self._open = lambda: pool.scan(table, key=key, seal_answers=seal_answers)
        self._begin(self._open())

    @classmethod
    def _of_query(cls, base: FarDataset, query: Callable[[farpool.Scan], farpool.Scan], placement: str | None) -> FarDataset:
        """What a query over another one leaves."""
        self = cls.__new__(cls)
        self.pool, self.table, self.placement = base.pool, base.table, base.placement if placement is None else placement
        self._open = lambda: query(base._scan())
        self._begin(self._open())
        return self

    def _begin(self, scan: farpool.Scan) -> None:
        scan.stream(**self._how)  # Raises if there is no such placement.
        self._schema = pa.schema(scan)
        self._lock = threading.Lock()
        self._streams: deque[farpool.Stream] = deque(maxlen=_REPORTS_MAX)
        self._scanned = 0

    @property
    def _how(self) -> dict[str, str]:
        return {} if self.placement is None else {"placement": self.placement}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What was done for the last scans, the oldest first: row groups, bytes, seconds. See
        `farpool.Stream.report`."""
        with self._lock:
            streams = list(self._streams)
        return [stream.report for stream in streams]

    def _scan(self) -> farpool.Scan:
        """A query over the table as it is now."""
        scan = self._open()
        found = pa.schema(scan)
        if not found.equals(self._schema):
            raise farpool.InvalidError(
                f"far table {self.table!r} was replaced by one of other columns: it had {_words(self._schema)}, and "
                f"has {_words(found)}; register it again"
            )
        return scan

    def _stream(self, scan: farpool.Scan) -> farpool.Stream:
        stream = scan.stream(**self._how)
        with self._lock:
            self._streams.append(stream)
            self._scanned += 1
        return stream

    def scanner(
        self, columns: list[str] | dict[str, pc.Expression] | None = None, filter: pc.Expression | None = None, **kwargs
    ) -> FarScanner:
        """A scan of these columns, of the rows for which the filter is true. Other arguments of pyarrow's, such as
        sizes of batches, are wishes that are not fulfilled."""
        return FarScanner(self, columns, filter)

    def to_table(self, columns=None, filter=None, **kwargs) -> pa.Table:
        return self.scanner(columns, filter).to_table()

    def to_batches(self, columns=None, filter=None, **kwargs) -> Iterator[pa.RecordBatch]:
        return self.scanner(columns, filter).to_batches()

    def head(self, num_rows: int, columns=None, filter=None, **kwargs) -> pa.Table:
        return self.scanner(columns, filter).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **kwargs) -> int:
        return self.scanner([], filter).count_rows()

    def __repr__(self) -> str:
        return f"<farpool.dataset.FarDataset {self.table!r}: {_shown(', '.join(self._schema.names))}>"

    def __reduce__(self):
        raise TypeError("a far dataset belongs to the session of this process: make another one there")

    # The rest of pyarrow's reaches for an object of C++ that is not there.
    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a far dataset has no fragments and is scanned as a whole: scanner() does that")

    get_fragments = _get_fragments = filter = replace_schema = take = sort_by = join = join_asof = _refused
    _scanner_options = _refused
    partition_expression = property(_refused)


class FarScanner:
    """One scan of a far dataset, as pyarrow's scanners are used."""

    def __init__(
        self, dataset: FarDataset, columns: list[str] | dict[str, pc.Expression] | None, filter: pc.Expression | None
    ):
        schema = dataset.schema
        asked = schema.names if columns is None else columns
        self.dataset = dataset
        self.filter = filter
        # What of the filter pyarrow has to do, in words.
        self.left: list[str] = []
        self._columns = asked if isinstance(asked, dict) else list(asked)
        needed = _needed(asked, schema)
        scan = dataset._scan()
        if filter is not None:
            scan, needed_by_filter = self._filtered(scan, schema)
            needed |= needed_by_filter
        self._is_exact = not self.left and not isinstance(asked, dict) and bool(asked)
        if self._is_exact:
            names = self._columns
        else:
            names = [name for name in schema.names if name in needed] or schema.names[:1]
        self._scan = scan if names == scan.column_names else scan.select(names)
        self.dataset_schema = schema
        if isinstance(asked, dict):
            self.projected_schema = self._by_pyarrow(pa.schema(self._scan).empty_table().to_reader()).projected_schema
        else:
            self.projected_schema = pa.schema([schema.field(name) for name in self._columns])

    def _filtered(self, scan: farpool.Scan, schema: pa.Schema) -> tuple[farpool.Scan, set[str]]:
        """As much of the filter as is understood; and if that is not all, the columns that it needs."""
        try:
            tree = _filters.decode(self.filter)
        except _filters.NotUnderstood as why:
            self.left.append(f"{self.filter}: {why}")
            return scan, set(schema.names)
        conditions = []
        for part in _filters.conjuncts(tree):
            try:
                one = _filters.condition(part, schema)
                scan.filter(one)
                conditions.append(one)
            except (_filters.NotUnderstood, farpool.InvalidError) as why:
                self.left.append(str(why))
        try:
            scan = scan.filter(*conditions)
        except farpool.InvalidError as why:
            # Each by itself is a query, and all of them are too large for one.
            self.left.append(str(why))
        return scan, _filters.fields(tree) if self.left else set()

    def _by_pyarrow(self, reader: pa.RecordBatchReader) -> ds.Scanner:
        return ds.Scanner.from_batches(reader, columns=self._columns, filter=self.filter if self.left else None)

    def to_reader(self) -> pa.RecordBatchReader:
        """Its rows as they come. The query begins."""
        reader = pa.RecordBatchReader.from_stream(self.dataset._stream(self._scan))
        return reader if self._is_exact else self._by_pyarrow(reader).to_reader()

    def to_table(self) -> pa.Table:
        return self.to_reader().read_all()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_reader())

    def head(self, num_rows: int) -> pa.Table:
        if not self.left:
            limited = self._scan.limit(num_rows)
            reader = pa.RecordBatchReader.from_stream(self.dataset._stream(limited))
            return (reader if self._is_exact else self._by_pyarrow(reader).to_reader()).read_all()
        batches, rows = [], 0
        with self.to_reader() as reader:
            while rows < num_rows and (batch := next(reader, None)) is not None:
                batches.append(batch)
                rows += batch.num_rows
        return pa.Table.from_batches(batches, self.projected_schema).slice(0, num_rows)

    def count_rows(self) -> int:
        if not self.left:
            return self._scan.count(**self.dataset._how)
        return sum(batch.num_rows for batch in self.to_batches())


def _needed(columns: list[str] | dict[str, pc.Expression], schema: pa.Schema) -> set[str]:
    """The columns that a projection reads."""
    if not isinstance(columns, dict):
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise farpool.InvalidError(f"no columns {unknown}; there are {_words(schema)}")
        return set(columns)
    needed = set()
    for expression in columns.values():
        try:
            needed |= _filters.fields(_filters.decode(expression))
        except _filters.NotUnderstood:
            return set(schema.names)
    return needed & set(schema.names)


def _words(schema: pa.Schema) -> str:
    return _shown(", ".join(f"{field.name} {field.type}" for field in schema))
