"""Far tables as datasets of pyarrow, for engines that read datasets: DuckDB, Polars and pyarrow.

    lineitem = farpool.dataset.FarDataset(pool, "lineitem")
    duckdb.sql("SELECT count(*) FROM lineitem WHERE l_quantity < 10")

The idea: these engines push the columns and the filter of a scan down to the dataset and do not check the filter again.
The parts of the filter that are understood become a query, which reads only the columns, row groups and rows that it
needs. If a part is not understood, pyarrow applies the whole filter to the rows of that query.

Rows arrive while the query runs, some row groups at a time. A table need not fit in memory.

Never here: a filter that is ignored.
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

# Scans whose reports are kept. Older reports are dropped.
_REPORTS_MAX = 64


class FarDataset(ds.Dataset):
    """A far table, or a query over one, as a dataset of pyarrow. It has no fragments.

    Each scan opens the table by its name, or always the same `snapshot`. If the table was replaced, the new one must
    have the same columns. `placement` is that of scans (see `farpool.Scan.collect`; default "auto"). `key`,
    `encrypt_answers` and `snapshot` are those of `Pool.table`.
    """

    def __init__(
        self,
        pool: farpool.Pool,
        table: str,
        *,
        key: bytes | None = None,
        encrypt_answers: bool = False,
        snapshot: int | None = None,
        placement: str | None = None,
    ):
        """Opens the table. Raises the errors of `Pool.scan`, and InvalidError (unknown `placement`)."""
        self.pool = pool
        self.table = table
        self.placement = placement
        self._open = lambda: pool.scan(table, key=key, encrypt_answers=encrypt_answers, snapshot=snapshot)
        self._begin(self._open())

    @classmethod
    def _of_query(
        cls, base: FarDataset, query: Callable[[farpool.Scan], farpool.Scan], placement: str | None
    ) -> FarDataset:
        """Returns the result of a query over `base` as a dataset."""
        self = cls.__new__(cls)
        self.pool, self.table, self.placement = (
            base.pool,
            base.table,
            base.placement if placement is None else placement,
        )
        self._open = lambda: query(base._scan())
        self._begin(self._open())
        return self

    def _begin(self, scan: farpool.Scan) -> None:
        scan.stream(**self._how)  # Refuses an unknown placement.
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
        """Returns the reports of the last 64 scans, the oldest first: row groups, bytes, seconds. See
        `farpool.Stream.report`."""
        with self._lock:
            streams = list(self._streams)
        return [stream.report for stream in streams]

    def _scan(self) -> farpool.Scan:
        """Opens the table and returns the query. Raises InvalidError if the table has other columns now."""
        scan = self._open()
        found = pa.schema(scan)
        if not found.equals(self._schema):
            raise farpool.InvalidError(
                f"far table {self.table!r} was replaced by a table with other columns (before: {_words(self._schema)}; "
                f"now: {_words(found)}): register it again"
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
        """Returns a scan of these columns, with the rows for which the filter is true. Other arguments of pyarrow, such
        as batch sizes, are ignored."""
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
        raise TypeError("a far dataset belongs to the session of this process and cannot be pickled: make another one")

    # The other methods of pyarrow's class need a C++ object that this class does not have.
    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a far dataset has no fragments: use scanner(), which scans it as a whole")

    get_fragments = _get_fragments = filter = replace_schema = take = sort_by = join = join_asof = _refused
    _scanner_options = _refused
    partition_expression = property(_refused)


class FarScanner:
    """One scan of a far dataset. It has the methods of pyarrow's scanners."""

    def __init__(
        self, dataset: FarDataset, columns: list[str] | dict[str, pc.Expression] | None, filter: pc.Expression | None
    ):
        schema = dataset.schema
        asked = schema.names if columns is None else columns
        self.dataset = dataset
        self.filter = filter
        # Parts of the filter that pyarrow has to apply, with the reasons.
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
        """Adds the understood parts of the filter to the scan. If parts are left, also returns the columns that the
        filter needs."""
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
            # Each condition alone is a valid query, but all of them together are too large for one.
            self.left.append(str(why))
        return scan, _filters.fields(tree) if self.left else set()

    def _by_pyarrow(self, reader: pa.RecordBatchReader) -> ds.Scanner:
        return ds.Scanner.from_batches(reader, columns=self._columns, filter=self.filter if self.left else None)

    def to_reader(self) -> pa.RecordBatchReader:
        """Starts the query and returns its rows as they arrive."""
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
    """Returns the columns that a projection reads."""
    if not isinstance(columns, dict):
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise farpool.InvalidError(f"no columns {unknown}; the table has {_words(schema)}")
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
