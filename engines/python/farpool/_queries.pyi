"""Types and docstrings of queries over far tables: expressions, scans and their rows."""

import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import pyarrow

from farpool._farpool import ArrowStream, Placement
from farpool._stats import Report

Value: TypeAlias = None | bool | int | float | str | bytes | decimal.Decimal | datetime.date
"""Python values that a query can compare a column with. A `datetime` is also a `date`. With a time zone it is an
instant, without one a local time."""
Column: TypeAlias = str | Expr
JoinKeys: TypeAlias = str | list[str | tuple[str, str]] | dict[str, str]
"""Columns that a join compares: a column of both tables, a list of columns or of pairs (mine, theirs), or a dict {mine:
theirs}."""

def col(name: str) -> Expr:
    """Returns the column of this name."""

def lit(value: Value) -> Expr:
    """Returns a value as an expression. The value takes the type of the other side of a comparison or computation, if
    it is the same value in that type. Raises InvalidError."""

def len() -> Expr:
    """Returns the number of rows, for `agg` and `select`. The column of the result is called "len"."""

class Expr:
    """A value of each row, or an aggregate over rows.

    Comparisons, `+ - * / %`, `&`, `|` and `~` make other expressions. One side may be a Python value. NULL follows the
    rules of SQL.

    `/` returns a float64, also for integers. The result of `%` has the sign of the left side. A NaN equals a NaN of the
    same bits; it is greater than all numbers, or less than all if its sign bit is set. -0.0 equals 0.0. If integers or
    decimals overflow, the query raises InvalidError when it runs.

    The name of an expression is that of its leftmost column, unless `alias` or a keyword argument sets one.
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
        """Reports whether the value is one of these. If None is among them: true or unknown, as in SQL."""
    def between(self, least: Expr | Value, most: Expr | Value) -> Expr:
        """Reports whether the value lies between two values, both included."""
    def is_null(self) -> Expr: ...
    def is_not_null(self) -> Expr: ...
    def like(self, pattern: str) -> Expr:
        """Reports whether the whole text matches SQL's pattern: `%` is any text, `_` any character, and `\\` makes the
        next character literal."""
    def ilike(self, pattern: str) -> Expr:
        """Reports whether the whole text matches SQL's pattern as `like` does, without regard to case."""
    def matches(self, pattern: str) -> Expr:
        """Reports whether a regular expression (of the Rust crate `regex`) matches anywhere in the text."""
    def cast(self, to: object) -> Expr:
        """Converts to another type: its name, such as "int32", "decimal(12, 2)" or "timestamp(us)", or a type of
        pyarrow. A value that does not fit ends the query with InvalidError. Raises InvalidError (no type of this name).
        """

    def alias(self, name: str) -> Expr:
        """Returns the same expression under another name."""
    def sum(self) -> Expr:
        """Sums the values. The sum of integers is a decimal(38, 0), that of decimals a decimal of 38 digits, that of
        floats a float64."""
    def min(self) -> Expr: ...
    def max(self) -> Expr: ...
    def mean(self) -> Expr:
        """Returns the mean, as a float64."""
    def count(self) -> Expr:
        """Counts the rows in which the value is not null."""

class Scan:
    """A query over a far table. Each step returns a new query. Nothing is read before `collect`, `to_arrow`, `stream`
    or `count`.

    A query may have one grouping, `distinct`, or `sort` or `top_k` with its limit. Later steps see the rows of that
    result. A step raises InvalidError if it is wrong; the text lists what is permitted.

        scan = pool.scan("sales").filter(col("year") > 2024)
        scan.group_by("item").agg(total=col("price").sum()).collect()
    """

    @property
    def column_names(self) -> list[str]: ...
    @property
    def schema(self) -> dict[str, str]:
        """Types of the query's columns, as text, by name."""
    def filter(self, *conditions: Expr) -> Scan:
        """Keeps the rows for which all conditions are true."""
    def semi_join(self, other: ArrowStream | Scan, on: JoinKeys, *, placement: Placement = "auto") -> Scan:
        """Keeps the rows whose keys occur in another table.

        `other` is any object that can be read as Arrow, or a scan, which is run at once with this `placement` (see
        `collect`). `on` is a column of both tables, a list of columns or of pairs (mine, theirs), or a dict {mine:
        theirs}. NULL matches nothing. Keys of another type are converted to the type of this scan's key if that loses
        nothing. The keys are sent to the nodes of this scan's table, unless the query is fetched.

        Raises InvalidError (no such column, types that cannot be compared), and the errors of `collect` if `other` is a
        scan.
        """

    def anti_join(self, other: ArrowStream | Scan, on: JoinKeys, *, placement: Placement = "auto") -> Scan:
        """Keeps the rows whose keys do not occur in another table, or contain a NULL. Arguments as in `semi_join`."""
    def select(self, *columns: Column | list[Column], **named: Expr | Value) -> Scan:
        """Keeps only these columns, or computes new ones. If all of them are aggregates, the result is one row."""
    def with_columns(self, *columns: Column | list[Column], **named: Expr | Value) -> Scan:
        """Adds these columns. They replace columns of the same name."""
    def group_by(self, *keys: Column | list[Column], **named: Expr | Value) -> GroupBy:
        """Groups by these keys: the result has one row for each combination that occurs. Call `agg` on it to set the
        aggregates."""
    def distinct(self) -> Scan:
        """Removes duplicate rows."""
    def sort(
        self,
        *by: Column | list[Column],
        descending: bool | Sequence[bool] = False,
        nulls_last: bool | Sequence[bool] = False,
    ) -> Scan:
        """Sorts all rows, in the client. If `limit` follows, only the first rows are kept, at the nodes too. NULL comes
        first unless `nulls_last`. NaN comes after all numbers, or before them if its sign bit is set. Only `limit` may
        follow."""
    def top_k(self, k: int, *, by: Column | list[Column], reverse: bool = False) -> Scan:
        """Returns the `k` rows with the greatest values of these columns, the greatest first and NULL last; with
        `reverse` those with the least."""
    def limit(self, rows: int) -> Scan:
        """Keeps at most this many rows: the first ones after `sort`, otherwise any."""
    def count(self, *, placement: Placement = "auto") -> int:
        """Runs the query and returns its number of rows, without keeping them. Raises the errors of `collect`."""
    def collect(self, *, placement: Placement = "auto") -> Rows:
        """Runs the query and returns its rows.

        `placement` chooses the placement: at the nodes ("ship"), here over fetched columns ("fetch"), both at once
        ("split"), or the one with the shortest estimated time ("auto"). `report` of the result says what was chosen.
        The rows are the same in each case. Groups are sorted by their keys, null first; other rows are in the order of
        the table.

        Raises LostError, ClosedError (the table was dropped or replaced), UnreachableError, InvalidError (a value that
        does not fit its type, a pattern that is no regular expression).
        """

    def to_arrow(self, *, placement: Placement = "auto") -> pyarrow.Table:
        """Runs the query and returns its rows as a `pyarrow.Table`. Raises the errors of `collect`."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Runs the query as `collect` does, for any library that reads Arrow, and for `Pool.put_table`, which makes a
        table of it."""
    def stream(self, *, placement: Placement = "auto") -> Stream:
        """Returns the rows as a stream, some row groups at a time, so that they need not all be in memory at once. The
        result of a grouping, sort or join comes as a whole. Rows and order are those of `collect`. An error is raised
        when the rows are read."""
    def __arrow_c_schema__(self) -> object:
        """Exports the names and types of the columns to any library that reads Arrow, such as `pyarrow.schema`."""
    def explain(self, *, format: Literal["text", "json"] = "text") -> str:
        """Describes what the query would read, where steps would run, and estimates. Reads no rows."""

class GroupBy:
    """A query and the keys that it is grouped by."""

    def agg(self, *aggregates: Expr | list[Expr], **named: Expr) -> Scan:
        """Sets the aggregates to compute over the rows of each group."""

class Rows:
    """Rows of a query, in the memory of this process. Any library that reads Arrow streams can take them, such as
    `pyarrow.table` and DuckDB, any number of times and without a copy."""

    @property
    def num_rows(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    @property
    def report(self) -> Report:
        """Report of the query: placement, row groups, bytes and times."""
    def explain(self) -> str:
        """Returns the report as text: the estimates beside the measured values."""
    def __len__(self) -> int: ...
    def to_arrow(self) -> pyarrow.Table: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class Stream:
    """Rows of a query, as they arrive. They can be read once, by any library that reads Arrow streams. The query starts
    with the first read, runs some row groups ahead of the reader, and ends when the reader is dropped."""

    @property
    def report(self) -> Report:
        """Report of the query so far."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports the rows to any library that reads Arrow, once. Raises InvalidError the second time."""
