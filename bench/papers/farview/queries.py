"""The paper's queries, each written for every contender: farpool, SQL, Polars, pyarrow and RCPU."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from tables import COLUMNS, VALUES

import farpool


@dataclass(frozen=True)
class Select:
    """SELECT * FROM S WHERE S.a < X AND S.b < Y, which keeps `percent` of the rows."""

    percent: int
    result = COLUMNS
    is_ordered = True

    @property
    def limit(self) -> int:
        return round(VALUES * (self.percent / 100) ** 0.5)

    def sql(self) -> str:
        return f"select * from t where a < {self.limit} and b < {self.limit}"

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.filter(farpool.col("a") < self.limit, farpool.col("b") < self.limit)

    def polars(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter((pl.col("a") < self.limit) & (pl.col("b") < self.limit))

    def pyarrow(self, table: pa.Table) -> pa.Table:
        return table.filter(pc.and_(pc.less(table["a"], self.limit), pc.less(table["b"], self.limit)))

    def rcpu(self, rows: int) -> str:
        return f"select {rows} 0 {self.limit} 1 {self.limit}"


@dataclass(frozen=True)
class Decrypted(Select):
    """The query of `Select` over an encrypted table. At 100 % it reads the whole table."""

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan if self.percent == 100 else super().far(scan)

    def polars(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame if self.percent == 100 else super().polars(frame)

    def rcpu(self, rows: int) -> str:
        return f"decrypted {rows} 0 {self.limit} 1 {self.limit}"


@dataclass(frozen=True)
class Distinct:
    """SELECT DISTINCT S.a FROM S."""

    key: str
    is_ordered = False

    @property
    def result(self) -> tuple[str, ...]:
        return (self.key,)

    def sql(self) -> str:
        return f"select distinct {self.key} from t"

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.select(self.key).distinct()

    def polars(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(pl.col(self.key).unique())

    def pyarrow(self, table: pa.Table) -> pa.Table:
        return pa.table({self.key: pc.unique(table[self.key])})

    def rcpu(self, rows: int) -> str:
        return f"distinct {rows} {COLUMNS.index(self.key)}"


@dataclass(frozen=True)
class Group:
    """SELECT S.a, SUM(S.b) FROM S GROUP BY S.a."""

    key: str
    is_ordered = False

    @property
    def result(self) -> tuple[str, ...]:
        return (self.key, "v")

    def sql(self) -> str:
        return f"select {self.key}, sum(v) as v from t group by {self.key}"

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.group_by(self.key).agg(farpool.col("v").sum().alias("v"))

    def polars(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.group_by(self.key).agg(pl.col("v").sum())

    def pyarrow(self, table: pa.Table) -> pa.Table:
        return table.group_by(self.key, use_threads=False).aggregate([("v", "sum")]).rename_columns([self.key, "v"])

    def rcpu(self, rows: int) -> str:
        return f"group {rows} {COLUMNS.index(self.key)} {COLUMNS.index('v')}"


@dataclass(frozen=True)
class Project:
    """SELECT of three adjacent columns."""

    result = ("c2", "c3", "c4")
    is_ordered = True

    def sql(self) -> str:
        return "select c2, c3, c4 from t"

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.select(*self.result)


@dataclass(frozen=True)
class Regex:
    """SELECT S.s FROM S WHERE S.s matches a pattern."""

    pattern: str
    width: int
    result = ("s",)
    is_ordered = True

    def sql(self) -> str:
        return f"select s from t where regexp_matches(s, '{self.pattern}')"

    def sql_of_datafusion(self) -> str:
        return f"select s from t where s ~ '{self.pattern}'"

    def far(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.filter(farpool.col("s").matches(self.pattern))

    def polars(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("s").str.contains(self.pattern))

    def pyarrow(self, table: pa.Table) -> pa.Table:
        return table.filter(pc.match_substring_regex(table["s"], self.pattern))

    def rcpu(self, rows: int) -> str:
        return f"regex {rows} {self.width} {self.pattern}"


Query = Select | Decrypted | Distinct | Group | Project | Regex


def canonical(query: Query, result: object) -> list[np.ndarray]:
    """Converts an answer to a form that is equal for all contenders: columns of numbers, with groups sorted by their
    keys."""
    if isinstance(result, np.ndarray):  # rows of RCPU
        width = query.width if isinstance(query, Regex) else 8 * len(query.result)
        found = result.reshape(-1, width)
        columns = [found.reshape(-1)] if isinstance(query, Regex) else list(found.view(np.int64).T)
    else:
        table = result.to_arrow() if hasattr(result, "to_arrow") else result
        assert tuple(table.column_names) == tuple(query.result), f"{table.column_names}, not {query.result}"
        if isinstance(query, Regex):
            text = pa.chunked_array([chunk.cast(pa.string()) for chunk in table["s"].chunks], pa.string())
            columns = [np.concatenate([text_bytes(chunk) for chunk in text.chunks])]
        else:
            columns = [table[name].cast(pa.int64()).to_numpy() for name in query.result]
    if not query.is_ordered:
        order = np.argsort(columns[0], kind="stable")
        columns = [column[order] for column in columns]
    return columns


def text_bytes(chunk: pa.StringArray) -> np.ndarray:
    _, offsets, values = chunk.buffers()
    if values is None or len(chunk) == 0:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)
    return np.frombuffer(values, np.uint8)[ends[chunk.offset] : ends[chunk.offset + len(chunk)]]


def check(name: str, query: Query, result: object, expected: list[np.ndarray]) -> None:
    """Fails unless the answer is the expected one."""
    found = canonical(query, result)
    same = len(found) == len(expected) and all(map(np.array_equal, found, expected))
    assert same, f"{name}, {query}: another answer: {[len(c) for c in found]}, not {[len(c) for c in expected]} values"
