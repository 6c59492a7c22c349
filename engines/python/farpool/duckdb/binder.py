"""Asks DuckDB about the parts of a statement.

The idea: DuckDB is asked rather than imitated. It reports the type of each expression, the value of each constant, and
the kind of function that a name stands for.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import duckdb

import farpool

if TYPE_CHECKING:
    from farpool.dataset import FarDataset

# A part of a statement, as `json_serialize_sql` of DuckDB returns it.
Node = dict[str, Any]

INTEGERS = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
}
FLOATS = {"FLOAT": "float", "DOUBLE": "double"}
ZONED = "TIMESTAMP WITH TIME ZONE"
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
# Keys of a node that do not change its meaning: its position in the text, and its alias.
_ASIDE = {"query_location", "query_location_length", "alias"}


class NotShipped(Exception):
    """Raised for a part of a statement that is left to DuckDB. The text says why."""


def is_same(one: Any, other: Any) -> bool:
    """Reports whether two parts of statements are equal, apart from their positions in the text."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                key: plain(value)
                for key, value in part.items()
                if key not in ("query_location", "query_location_length")
            }
        return [plain(value) for value in part] if isinstance(part, list) else part

    return plain(one) == plain(other)


def nodes(part: Any, into_subqueries: bool = False) -> Iterator[Node]:
    """Yields a part of a statement and all parts within it. Enters subqueries only with `into_subqueries`."""
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            if part.get("class") != "SUBQUERY" or into_subqueries:
                left += reversed(list(part.values()))
        elif isinstance(part, list):
            left += reversed(part)


def decimal_digits(of: str) -> tuple[int, int] | None:
    """Returns the number of digits of a DECIMAL type, and how many are after the point. `None` for other types."""
    found = _DECIMAL.fullmatch(of)
    return None if found is None else (int(found[1]), int(found[2]))


class Binder:
    """Answers questions about one block, a SELECT over one far table.

    `table` is the table in the statement and `base` its far dataset. `bind` makes a relation from SQL text, and
    `written` makes SQL text from a statement in JSON. `functions` maps names of functions in the statement to their
    kinds.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        bind: Callable[[str], Any],
        written: Callable[[Any], str],
        functions: dict[str, set[str]],
        base: FarDataset,
        table: Node,
    ):
        self.functions = functions
        self.con, self.bind, self.written, self.base, self.table = con, bind, written, base, table
        self.scan = base._scan()
        self.alias = (table["alias"] or table["table_name"]).lower()
        self.columns = {name.lower(): name for name in base.schema.names}
        if len(self.columns) < len(base.schema.names):
            raise NotShipped("names of columns that differ only in case")
        self._select = json.loads(self._ask("SELECT json_serialize_sql('SELECT 1')"))
        self._types: dict[str, str] = {}
        # True if the table's statistics show that a column has neither NaN nor infinity, by column.
        self._finite: dict[str, bool] = {}

    def _ask(self, sql: str, *parameters: Any) -> Any:
        return self.con.sql(sql, params=list(parameters)).fetchall()[0][0]

    # Questions to DuckDB.

    def text(self, node: Node) -> str:
        """Returns an expression as SQL."""
        return self.written(self._statement(node)).removeprefix("SELECT ")

    def _statement(self, node: Node, table: Node | None = None) -> Any:
        statement = copy.deepcopy(self._select)
        select = statement["statements"][0]["node"]
        select["select_list"] = [{**node, "alias": ""}]
        if table is not None:
            select["from_table"] = table
        return statement

    def type_of(self, node: Node) -> str:
        """Returns DuckDB's type of an expression."""
        known = self.normal(node)
        if known not in self._types:
            try:
                relation = self.bind(self.written(self._statement(node, self.table)))
            except duckdb.Error as error:
                raise NotShipped(f"it cannot run on its own: {error}") from error
            self._types[known] = str(relation.types[0])
        return self._types[known]

    def kinds(self, function: str) -> set[str]:
        """Returns the kinds of a function, as DuckDB lists them, such as "scalar CONSISTENT"."""
        return self.functions.get(function.lower(), set())

    def is_scalar(self, node: Node) -> bool:
        kinds = self.kinds(node["function_name"])
        return bool(kinds) and all(kind.startswith("scalar ") for kind in kinds)

    def is_aggregate(self, node: Node) -> bool:
        return node.get("class") == "FUNCTION" and any(
            kind.startswith("aggregate ") for kind in self.kinds(node["function_name"])
        )

    def setting(self, name: str) -> str:
        return str(self._ask("SELECT current_setting($1)", name)).lower()

    def check_comparable(self, node: Node) -> None:
        """Raises NotShipped for text under a collation: nodes compare text by its bytes."""
        if self.type_of(node) == "VARCHAR" and self.setting("default_collation"):
            raise NotShipped("text with a collation")

    def check_no_nan(self, node: Node) -> None:
        """Raises NotShipped if a value may be NaN. DuckDB has one NaN, greater than all numbers. Queries tell NaNs
        apart by their bits and order them by their sign."""
        if self.may_be_nan(node):
            raise NotShipped(f"{self.text(node)} may be NaN, which DuckDB sorts and groups differently")

    def may_be_nan(self, node: Node) -> bool:
        """Reports whether a value may be NaN. It uses the table's statistics."""
        if self.type_of(node) not in FLOATS:
            return False
        parts = list(nodes(node))
        # One operation on finite numbers may return infinity; a second operation may turn that into NaN.
        is_simple = sum(part.get("class") == "FUNCTION" for part in parts) <= 1
        columns = {self.column(part) for part in parts if self.column(part) is not None}
        return not (is_simple and all(map(self._is_finite, columns)))

    def _is_finite(self, column: str) -> bool:
        if column not in self._finite:
            is_finite = True
            if self.scan.schema[column] in ("float32", "float64"):
                value = farpool.col(column)
                beyond = self.scan.filter((value >= math.inf) | (value <= -math.inf))
                is_finite = json.loads(beyond.explain(format="json"))["row_groups"] == 0
            self._finite[column] = is_finite
        return self._finite[column]

    # Columns and constants.

    def column(self, node: Node) -> str | None:
        """Returns the name of the table's column that a node refers to. `None` if it is no column of the table."""
        if node.get("class") != "COLUMN_REF":
            return None
        names = node["column_names"]
        if len(names) == 2 and names[0].lower() != self.alias or len(names) > 2:
            return None
        return self.columns.get(names[-1].lower())

    def columns_of(self, block: Node) -> list[str]:
        """Returns the columns that a block may refer to, subqueries included. Returns the first column if it refers to
        none."""
        named = set()
        for node in nodes(block, into_subqueries=True):
            if node.get("class") in ("STAR", "LAMBDA"):
                return self.base.schema.names
            if node.get("class") == "COLUMN_REF":
                # The first of several names is a table, or a column with fields.
                named |= {name.lower() for name in node["column_names"]}
        found = [name for name in self.base.schema.names if name.lower() in named]
        return found or self.base.schema.names[:1]

    def normal(self, node: Any) -> str:
        """Returns a text that is the same for equal expressions."""

        def plain(part: Any) -> Any:
            if isinstance(part, dict):
                column = self.column(part)
                if column is not None:
                    return {"column": column}
                return {key: plain(value) for key, value in part.items() if key not in _ASIDE}
            return [plain(value) for value in part] if isinstance(part, list) else part

        return json.dumps(plain(node), sort_keys=True)

    def is_constant(self, node: Node) -> bool:
        """Reports whether an expression has the same value for all rows and in every run."""
        for part in nodes(node):
            kind = part.get("class")
            if kind == "FUNCTION" and self.kinds(part["function_name"]) != {"scalar CONSISTENT"}:
                return False
            if kind is not None and kind not in ("CONSTANT", "CAST", "FUNCTION", "OPERATOR", "TYPE"):
                return False
        return True

    def constant(self, node: Node, of: str | None = None) -> Any:
        """Returns the value of a constant expression, cast to the type `of` if given. Raises NotShipped (also for
        NULL)."""
        text = self.text(node)
        text = text if of is None else f"CAST({text} AS {of})"
        is_zoned = (of or self.type_of(node)) == ZONED
        try:
            found = self._ask(f"SELECT epoch_us({text})" if is_zoned else f"SELECT {text}")
            if is_zoned and found is not None:
                found = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=found)
        except (duckdb.Error, OverflowError, ValueError) as error:
            raise NotShipped(f"the value of {text}: {error}") from error
        if found is None:
            raise NotShipped(f"{text} is NULL")
        # DuckDB returns an infinite date or timestamp as the least or greatest value of Python's type.
        if isinstance(found, datetime.date) and found in (type(found).min, type(found).max):
            raise NotShipped(f"{text} may be infinite")
        return found

    def whole(self, node: Node) -> int:
        """Returns the value of a constant that gives a number of rows. Raises NotShipped if it gives none."""
        found = self.constant(node) if self.is_constant(node) else None
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise NotShipped(f"{self.text(node)} is not a number of rows")
        return found
