"""Expressions of DuckDB, as it writes them in JSON, as those of queries over one far table.

The idea: only what means the same on both sides is taken, and DuckDB is asked rather than imitated. It says the type
of each expression and the value of each constant; what is computed here must have that type. Comparisons are taken
where both sides compare the values themselves (whole numbers of any width, decimals of any scale, dates and times),
whatever type each turns them into. All else raises `NotShipped`, which says why.

Never here: arithmetic in a filter that may overflow. DuckDB may not look at rows that another part of the filter drops.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

import farpool

if TYPE_CHECKING:
    from farpool.dataset import FarDataset

Node = dict[str, Any]

# Deeper than queries nest.
_DEPTH_MAX = 48
_LIST_VALUES_MAX = 1_024

_COMPARISONS: dict[str, Callable[[Any, Any], farpool.Expr]] = {
    "COMPARE_EQUAL": lambda left, right: left == right,
    "COMPARE_NOTEQUAL": lambda left, right: left != right,
    "COMPARE_LESSTHAN": lambda left, right: left < right,
    "COMPARE_LESSTHANOREQUALTO": lambda left, right: left <= right,
    "COMPARE_GREATERTHAN": lambda left, right: left > right,
    "COMPARE_GREATERTHANOREQUALTO": lambda left, right: left >= right,
}
_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_NOTEQUAL": "COMPARE_NOTEQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
_INTEGERS = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
}
_SIGNS = ("+", "-", "*", "/")
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_FLOATS = {"FLOAT": "float", "DOUBLE": "double"}
_CLOCKS = {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"}
_ZONED = "TIMESTAMP WITH TIME ZONE"
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_AGGREGATES: dict[str, Callable[[farpool.Expr], farpool.Expr]] = {
    "count": lambda expression: expression.count(),
    "sum": lambda expression: expression.sum(),
    "min": lambda expression: expression.min(),
    "max": lambda expression: expression.max(),
    "avg": lambda expression: expression.mean(),
    "mean": lambda expression: expression.mean(),
}
# Parts of a node that say where it was written, or what it is called.
_ASIDE = {"query_location", "query_location_length", "alias"}


class NotShipped(Exception):
    """Why a part of a statement is left to DuckDB."""


@dataclass
class Aggregate:
    node: Node
    expression: farpool.Expr


@dataclass
class Order:
    column: str
    is_descending: bool
    nulls_first: bool


def is_same(one: Any, other: Any) -> bool:
    """Whether two parts of statements are the same, wherever they were written."""

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
    """A part of a statement and the parts of it; not those of subqueries unless asked for."""
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            if part.get("class") != "SUBQUERY" or into_subqueries:
                left += reversed(list(part.values()))
        elif isinstance(part, list):
            left += reversed(part)


def _is_text(node: Node) -> bool:
    return node.get("class") == "CONSTANT" and node["literal"]["kind"] == "STRING"


def _is_plain(star: Node) -> bool:
    """Whether all that a star stands for are columns, by their own names."""
    return not (star["columns"] or star["replace_list"] or star["rename_list"])


def _decimal(of: str) -> tuple[int, int] | None:
    """Digits, and those behind the point."""
    found = _DECIMAL.fullmatch(of)
    return None if found is None else (int(found[1]), int(found[2]))


class Terms:
    """Of one block. `table` is the table that it reads, `base` what stands behind it; `bind` makes a relation of SQL,
    and `written` makes SQL of a statement. `functions` says what kinds of function those of the statement are."""

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
            raise NotShipped("names of columns that differ by case alone")
        self._select = json.loads(self._ask("SELECT json_serialize_sql('SELECT 1')"))
        self._types: dict[str, str] = {}
        # Columns, and whether statistics say that none of their values is NaN or infinite.
        self._finite: dict[str, bool] = {}

    def _ask(self, sql: str, *parameters: Any) -> Any:
        return self.con.sql(sql, params=list(parameters)).fetchall()[0][0]

    # What DuckDB says.

    def text(self, node: Node) -> str:
        """An expression as SQL."""
        return self.written(self._statement(node)).removeprefix("SELECT ")

    def _statement(self, node: Node, table: Node | None = None) -> Any:
        statement = copy.deepcopy(self._select)
        select = statement["statements"][0]["node"]
        select["select_list"] = [{**node, "alias": ""}]
        if table is not None:
            select["from_table"] = table
        return statement

    def type_of(self, node: Node) -> str:
        """The type that DuckDB gives it."""
        known = self.normal(node)
        if known not in self._types:
            try:
                relation = self.bind(self.written(self._statement(node, self.table)))
            except duckdb.Error as error:
                raise NotShipped(f"it does not stand by itself: {error}") from error
            self._types[known] = str(relation.types[0])
        return self._types[known]

    def kinds(self, function: str) -> set[str]:
        """What a function is: words of DuckDB."""
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
        """Text compares by its bytes only without a collation."""
        if self.type_of(node) == "VARCHAR" and self.setting("default_collation"):
            raise NotShipped("text under a collation")

    def check_no_nan(self, node: Node) -> None:
        """DuckDB knows one NaN, above all numbers; queries know one of each bits, above or below them by its sign."""
        if self.may_be_nan(node):
            raise NotShipped(f"{self.text(node)} may be NaN, which DuckDB sorts and groups otherwise")

    def may_be_nan(self, node: Node) -> bool:
        """Whether a value may be NaN, as far as the table's statistics tell."""
        if self.type_of(node) not in _FLOATS:
            return False
        parts = list(nodes(node))
        # One operation on finite numbers may leave an infinity, and two of them NaN.
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

    # What is there.

    def column(self, node: Node) -> str | None:
        """The column of the table that it is."""
        if node.get("class") != "COLUMN_REF":
            return None
        names = node["column_names"]
        if len(names) == 2 and names[0].lower() != self.alias or len(names) > 2:
            return None
        return self.columns.get(names[-1].lower())

    def columns_of(self, block: Node) -> list[str]:
        """The columns that anything in a block may mean, in subqueries as well."""
        named = set()
        for node in nodes(block, into_subqueries=True):
            if node.get("class") in ("STAR", "LAMBDA"):
                return self.base.schema.names
            if node.get("class") == "COLUMN_REF":
                # The first name may be that of a table, or of a column that has parts.
                named |= {name.lower() for name in node["column_names"]}
        found = [name for name in self.base.schema.names if name.lower() in named]
        return found or self.base.schema.names[:1]

    def normal(self, node: Any) -> str:
        """A form in which the same expressions are the same text."""

        def plain(part: Any) -> Any:
            if isinstance(part, dict):
                column = self.column(part)
                if column is not None:
                    return {"column": column}
                return {key: plain(value) for key, value in part.items() if key not in _ASIDE}
            return [plain(value) for value in part] if isinstance(part, list) else part

        return json.dumps(plain(node), sort_keys=True)

    def is_constant(self, node: Node) -> bool:
        """Whether it is the same for all rows and at all times."""
        for part in nodes(node):
            kind = part.get("class")
            if kind == "FUNCTION" and self.kinds(part["function_name"]) != {"scalar CONSISTENT"}:
                return False
            if kind is not None and kind not in ("CONSTANT", "CAST", "FUNCTION", "OPERATOR", "TYPE"):
                return False
        return True

    def constant(self, node: Node, of: str | None = None) -> Any:
        """Its value, as this type."""
        text = self.text(node)
        text = text if of is None else f"CAST({text} AS {of})"
        is_zoned = (of or self.type_of(node)) == _ZONED
        try:
            found = self._ask(f"SELECT epoch_us({text})" if is_zoned else f"SELECT {text}")
            if is_zoned and found is not None:
                found = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=found)
        except (duckdb.Error, OverflowError, ValueError) as error:
            raise NotShipped(f"the value of {text}: {error}") from error
        if found is None:
            raise NotShipped(f"{text} is NULL")
        # Of all clocks DuckDB hands infinity over as one of these.
        if isinstance(found, datetime.date) and found in (type(found).min, type(found).max):
            raise NotShipped(f"{text} may be infinite")
        return found

    def whole(self, node: Node) -> int:
        """A number of rows."""
        found = self.constant(node) if self.is_constant(node) else None
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise NotShipped(f"{self.text(node)} is no number of rows")
        return found

    # Values.

    def value(self, node: Node, depth: int = 0) -> farpool.Expr:
        """What it is of each row. Raises NotShipped."""
        if depth > _DEPTH_MAX:
            raise NotShipped(f"it nests deeper than {_DEPTH_MAX}")
        column = self.column(node)
        if column is not None:
            return farpool.col(column)
        kind = node.get("class")
        if (
            kind == "FUNCTION"
            and self.is_scalar(node)
            and node["function_name"] in _SIGNS
            and len(node["arguments"]) == 2
        ):
            made = self._arithmetic(node, depth)
        elif kind == "CAST" and not node["try_cast"]:
            made = self._cast(node, depth)
        else:
            raise NotShipped(f"{self.text(node)} is not known here")
        self._check_type(made, node)
        return made

    def _check_type(self, made: farpool.Expr, node: Node) -> None:
        """That it has the type which DuckDB gives it; of decimals as many digits behind the point."""
        wanted = self.type_of(node)
        try:
            found = self.scan.select(made.alias("x")).schema["x"]
        except farpool.InvalidError as why:
            raise NotShipped(str(why)) from why
        if (digits := _decimal(wanted)) is not None:
            here = _decimal(found.upper())
            is_it = here is not None and here[1] == digits[1]
        else:
            is_it = {**_INTEGERS, "FLOAT": "float32", "DOUBLE": "float64"}.get(wanted) == found
        if not is_it:
            raise NotShipped(f"{self.text(node)} is {wanted} in DuckDB, and {found} here")

    def _arithmetic(self, node: Node, depth: int) -> farpool.Expr:
        sign = node["function_name"]
        sides = [argument["expression"] for argument in node["arguments"]]
        fixed = [self.is_constant(side) for side in sides]
        if all(fixed):
            raise NotShipped(f"{self.text(node)} is a constant")
        types = [self.type_of(side) for side in sides]
        made = [
            self._number(side, types[1 - index], sign) if fixed[index] else self.value(side, depth + 1)
            for index, side in enumerate(sides)
        ]
        match sign:
            case "+":
                return made[0] + made[1]
            case "-":
                return made[0] - made[1]
            case "*":
                return made[0] * made[1]
        if not fixed[1] or self.constant(sides[1]) == 0:
            raise NotShipped("a quotient by what may be zero")
        if any(_decimal(of) for of in types):
            raise NotShipped("a quotient of decimals")
        return made[0] / made[1]

    def _number(self, node: Node, beside: str, sign: str) -> farpool.Expr:
        """A constant in arithmetic beside a type."""
        own = self.type_of(node)
        if beside in _FLOATS:
            return farpool.lit(self.constant(node, beside))
        if beside in _INTEGERS and own in _INTEGERS:
            return farpool.lit(self.constant(node))
        if _decimal(beside) and (own in _INTEGERS or _decimal(own)):
            number = farpool.lit(self.constant(node))
            # Of a product the digits behind the point add up, those that it is written with.
            digits, scale = _decimal(own) or (19, 0)
            return number.cast(f"decimal({digits}, {scale})") if sign == "*" else number
        raise NotShipped(f"{self.text(node)} beside {beside}")

    def _cast(self, node: Node, depth: int) -> farpool.Expr:
        """As a wider type, which every value fits."""
        child, to = node["child"], self.type_of(node)
        of = self.type_of(child)
        made = self.value(child, depth + 1)
        if to == of:
            return made
        if of in _INTEGERS and to in _INTEGERS:
            narrow, wide = _INTEGERS[of], _INTEGERS[to]
            if _BITS[wide] > _BITS[narrow] and (narrow.startswith("u") or not wide.startswith("u")):
                return made.cast(wide)
        if of in _INTEGERS and to == "DOUBLE" or (of, to) == ("FLOAT", "DOUBLE"):
            return made.cast("double")
        raise NotShipped(f"{of} as {to}")

    # Conditions.

    def condition(self, node: Node, depth: int = 0) -> farpool.Expr:
        """What is true, false or unknown of each row. Raises NotShipped."""
        if depth > _DEPTH_MAX:
            raise NotShipped(f"it nests deeper than {_DEPTH_MAX}")
        kind = node.get("type")
        column = self.column(node)
        if column is not None:
            if self.type_of(node) != "BOOLEAN":
                raise NotShipped(f"column {column!r} is neither true nor false")
            return farpool.col(column)
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            parts = [self.condition(part, depth + 1) for part in node["children"]]
            made = parts[0]
            for part in parts[1:]:
                made = made & part if kind == "CONJUNCTION_AND" else made | part
            return made
        if kind in _COMPARISONS:
            return self._comparison(kind, node["left"], node["right"])
        if kind == "COMPARE_BETWEEN":
            compared = [node["input"], node["lower"], node["upper"]]
            self._check_texts(compared)
            # All three are compared as what holds all of them, which of large numbers is less than they are.
            of = [self.type_of(one) in _FLOATS for one in compared]
            if not of[0] and of[1] != of[2]:
                raise NotShipped("whole numbers between whole and other ones")
            least = self._comparison("COMPARE_GREATERTHANOREQUALTO", node["input"], node["lower"])
            return least & self._comparison("COMPARE_LESSTHANOREQUALTO", node["input"], node["upper"])
        if kind == "OPERATOR_NOT":
            return ~self.condition(node["children"][0], depth + 1)
        if kind == "OPERATOR_IS_NULL":
            return self._compared(node["children"][0]).is_null()
        if kind == "OPERATOR_IS_NOT_NULL":
            return self._compared(node["children"][0]).is_not_null()
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            made = self._in(node["children"])
            return made if kind == "COMPARE_IN" else ~made
        if node.get("class") == "FUNCTION" and self.is_scalar(node):
            return self._like(node)
        raise NotShipped(f"{node.get('class', kind)} is not known here")

    def _compared(self, node: Node) -> farpool.Expr:
        """A value in a filter."""
        if any(part.get("class") == "FUNCTION" for part in nodes(node)) and self.type_of(node) in _INTEGERS:
            raise NotShipped(f"{self.text(node)} may overflow in rows that DuckDB does not look at")
        self.check_comparable(node)
        return self.value(node)

    def _comparison(self, kind: str, left: Node, right: Node) -> farpool.Expr:
        if self.is_constant(left):
            left, right, kind = right, left, _FLIPPED[kind]
        if self.is_constant(left):
            raise NotShipped("a comparison of constants")
        made = self._compared(left)
        if self.is_constant(right):
            value = self._beside(right, self.type_of(left))
            compared = _COMPARISONS[kind](made, farpool.lit(value))
            if not self.may_be_nan(left):
                return compared
            if isinstance(value, float) and math.isnan(value):
                raise NotShipped("a comparison of NaN with NaN")
            # What is below all numbers here is NaN with a sign, which DuckDB has above them.
            if kind in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
                return compared | (made < -math.inf)
            if kind in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"):
                return compared & (made >= -math.inf)
            return compared
        one, other = self.type_of(left), self.type_of(right)
        is_taken = (
            one == other
            and one != "TIMESTAMP_NS"
            or one in _INTEGERS
            and other in _INTEGERS
            or bool(_decimal(one) and _decimal(other))
            or one in _CLOCKS
            and other in _CLOCKS
        )
        if not is_taken:
            raise NotShipped(f"{one} beside {other}")
        self.check_no_nan(left)
        self.check_no_nan(right)
        return _COMPARISONS[kind](made, self._compared(right))

    def _check_texts(self, compared: list[Node]) -> None:
        """That a text among several has the type of the first of them, as all of them take one type."""
        texts = [_is_text(one) for one in compared]
        others = {self.type_of(one) for one, is_text in zip(compared, texts, strict=True) if not is_text}
        if texts[0] or any(texts) and len(others) > 1:
            raise NotShipped("texts and other values side by side")

    def _beside(self, node: Node, of: str) -> Any:
        """A constant that is compared with values of a type."""
        if _is_text(node):
            # It takes the type of what it stands beside.
            own = of
        else:
            own = self.type_of(node)
        numbers = own in _INTEGERS or own == "HUGEINT" or _decimal(own)
        if of in _INTEGERS and (numbers or own == "DOUBLE") or _decimal(of) and numbers:
            return self.constant(node, own)
        if of == "DOUBLE" and (numbers or own in _FLOATS):
            return self.constant(node, of)
        if (
            of == own
            and of in ("FLOAT", "VARCHAR", "DATE", "BLOB", "BOOLEAN", _ZONED)
            or of in _CLOCKS
            and own in _CLOCKS
        ):
            return self.constant(node, own)
        if (of, own) == ("DATE", "TIMESTAMP") or of in _CLOCKS and own == "DATE":
            return self.constant(node, "TIMESTAMP")
        raise NotShipped(f"{self.text(node)} of {own} beside {of}")

    def _in(self, children: list[Node]) -> farpool.Expr:
        value, listed = children[0], children[1:]
        self._check_texts(children)
        made, of = self._compared(value), self.type_of(value)
        if len(listed) > _LIST_VALUES_MAX:
            raise NotShipped(f"a list of {len(listed)} values")
        if not all(self.is_constant(one) for one in listed):
            raise NotShipped("a list of what is computed")
        found = [self._beside(one, of) for one in listed]
        # A list has values of the type itself.
        if of in _INTEGERS and not all(isinstance(one, int) for one in found):
            raise NotShipped(f"a list of other numbers for {of}")
        if of == "DATE" and any(isinstance(one, datetime.datetime) for one in found):
            raise NotShipped("a list of times for dates")
        if any(isinstance(one, float) and math.isnan(one) for one in found):
            self.check_no_nan(value)
        made = made.is_in(found)
        try:
            self.scan.filter(made)
        except farpool.InvalidError as why:
            raise NotShipped(str(why)) from why
        return made

    def _like(self, node: Node) -> farpool.Expr:
        """LIKE and what can be said as such. DuckDB's has no escape of its own; that of queries is a backslash."""
        name = node["function_name"]
        arguments = [argument["expression"] for argument in node["arguments"]]
        if name not in (
            "~~",
            "!~~",
            "like_escape",
            "not_like_escape",
            "prefix",
            "starts_with",
            "suffix",
            "ends_with",
            "contains",
        ):
            raise NotShipped(f"the function {name}")
        if any(self.type_of(one) != "VARCHAR" for one in arguments) or not all(map(self.is_constant, arguments[1:])):
            raise NotShipped(f"{name} of other than text and constants")
        made = self._compared(arguments[0])
        pattern = self.constant(arguments[1])
        if name in ("~~", "!~~"):
            pattern = pattern.replace("\\", "\\\\")
        elif name in ("like_escape", "not_like_escape"):
            pattern = _escaped(pattern, self.constant(arguments[2]))
        else:
            pattern = re.sub(r"[\\%_]", r"\\\g<0>", pattern)
            pattern = pattern if name in ("prefix", "starts_with") else f"%{pattern}"
            pattern = pattern if name in ("suffix", "ends_with") else f"{pattern}%"
        made = made.like(pattern)
        return ~made if name in ("!~~", "not_like_escape") else made

    # Groups and orders.

    def check_rows(self, select_list: Iterable[Node]) -> None:
        """That each row leaves one row, whatever is computed of it."""
        for node in nodes(list(select_list)):
            kind = node.get("class")
            if kind == "WINDOW" or kind == "FUNCTION" and not self.is_scalar(node):
                raise NotShipped(f"{self.text(node)} is not of each row by itself")

    def check_functions(self, parts: Any) -> None:
        """That each function is of a row or of a group. A macro may be either."""
        for node in nodes(parts):
            if node.get("class") == "FUNCTION" and not self.is_scalar(node) and not self.is_aggregate(node):
                raise NotShipped(f"the function {node['function_name']}")

    def order(self, order: Node, select_list: list[Node]) -> Order:
        plain = [one for one in select_list if one.get("class") == "STAR" and _is_plain(one)]
        if any(one.get("class") == "STAR" and not any(one is star for star in plain) for one in nodes(select_list)):
            raise NotShipped("an order beside a star that computes or renames columns")
        node = self._chosen(order["expression"], select_list, by_name=True)
        column = self.column(node)
        if column is None:
            raise NotShipped(f"an order by {self.text(node)}, which is no column")
        self.check_comparable(node)
        self.check_no_nan(node)
        kind, nulls = order["type"], order["null_order"].replace(" ", "_").lower()
        if kind == "ORDER_DEFAULT":
            kind = "DESCENDING" if self.setting("default_order").startswith("desc") else "ASCENDING"
        if nulls == "order_default":
            nulls = self.setting("default_null_order")
        if nulls not in ("nulls_first", "nulls_last"):
            raise NotShipped(f"NULL where {nulls} says")
        return Order(column, kind == "DESCENDING", nulls == "nulls_first")

    def key(self, node: Node, select_list: list[Node]) -> Node:
        """What a group is made of, which may be said by its place or name among what is selected."""
        if self.column(node) is not None:
            return node
        return self._chosen(node, select_list, by_name=True)

    def _chosen(self, node: Node, select_list: list[Node], by_name: bool) -> Node:
        if node.get("class") == "CONSTANT":
            place = self.whole(node)
            if any(one.get("class") == "STAR" for one in select_list) or not 1 <= place <= len(select_list):
                raise NotShipped(f"by column {place} of what is selected")
            return select_list[place - 1]
        if by_name and node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            wanted = node["column_names"][0].lower()
            named = [one for one in select_list if one.get("alias", "").lower() == wanted]
            if len(named) == 1:
                return named[0]
            if named:
                raise NotShipped(f"by {wanted}, which several columns are called")
        return node

    def aggregates(self, parts: Any) -> list[Node]:
        return [node for node in nodes(parts) if self.is_aggregate(node)]

    def aggregate(self, node: Node) -> Aggregate:
        name = node["function_name"]
        if self.kinds(name) != {"aggregate CONSISTENT"}:
            raise NotShipped(f"{name} is a name of something else as well")
        if node["filter"] is not None or node["distinct"] or node["order_bys"]["orders"] or node["export_state"]:
            raise NotShipped(f"{self.text(node)} is of some of the rows of a group")
        arguments = [argument["expression"] for argument in node["arguments"]]
        if name == "count_star" or name == "count" and not arguments:
            return Aggregate(node, farpool.len())
        if name not in _AGGREGATES or len(arguments) != 1:
            raise NotShipped(f"the aggregate {self.text(node)}")
        if name == "count" and self.is_constant(arguments[0]):
            self.constant(arguments[0])
            return Aggregate(node, farpool.len())
        self.check_comparable(arguments[0])
        of = self.type_of(arguments[0])
        if name in ("sum", "avg", "mean") and not (of in _INTEGERS or of in _FLOATS or _decimal(of)):
            raise NotShipped(f"{name} of {of}")
        if name in ("min", "max"):
            self.check_no_nan(arguments[0])
        return Aggregate(node, _AGGREGATES[name](self.value(arguments[0])))

    def reference(self, name: str, leaves: farpool.Scan, node: Node) -> Node:
        """What stands for an expression that a query has computed, with the type that DuckDB gives it."""
        wanted, found = self.type_of(node), leaves.schema[name]
        text = f'"{name}"'
        have = _decimal(found.upper())
        if have is not None and wanted != f"DECIMAL({have[0]},{have[1]})":
            digits = _decimal(wanted)
            if not (digits and digits[1] == have[1] or wanted == "HUGEINT" and have[1] == 0):
                raise NotShipped(f"{self.text(node)} is {wanted} in DuckDB, and {found} here")
            text = f"CAST({text} AS {wanted})"
        statement = json.loads(self._ask("SELECT json_serialize_sql($1)", f"SELECT {text}"))
        return statement["statements"][0]["node"]["select_list"][0]

    def replace(self, node: Node, replaced: list[tuple[Node, Node]], names: list[str], is_grouped: bool) -> None:
        """Has a block compute what is left over what was computed: each of the first by each of the second."""
        known = {self.normal(one): reference for one, reference in replaced}
        called = {name.lower() for name in names}

        def put(part: Any) -> Any:
            if isinstance(part, list):
                return [put(one) for one in part]
            if not isinstance(part, dict):
                return part
            if "class" in part and (reference := known.get(self.normal(part))) is not None:
                return {**copy.deepcopy(reference), "alias": part.get("alias", "")}
            if part.get("class") in ("SUBQUERY", "STAR", "WINDOW", "LAMBDA"):
                raise NotShipped(f"{self.text(part)} beside groups")
            if part.get("class") == "COLUMN_REF" and (
                self.column(part) is not None or part["column_names"][0].lower() not in called
            ):
                raise NotShipped(f"{self.text(part)} is neither grouped by nor aggregated")
            return {key: put(value) for key, value in part.items()}

        chosen = []
        for one, name in zip(node["select_list"], names, strict=True):
            chosen.append({**put(one), "alias": one.get("alias") or name})
        for modifier in node["modifiers"]:
            if modifier["type"] != "ORDER_MODIFIER":
                continue
            for order in modifier["orders"]:
                by = order["expression"]
                is_named = by.get("class") == "COLUMN_REF" and [name.lower() for name in by["column_names"]] in [
                    [name] for name in called
                ]
                if not is_named and by.get("class") != "CONSTANT":
                    order["expression"] = put(by)
        node["select_list"] = chosen
        if is_grouped:
            node["where_clause"] = None if node["having"] is None else put(node["having"])
            node["having"], node["group_expressions"], node["group_sets"] = None, [], []
        else:
            node["where_clause"] = None


def _escaped(pattern: str, escape: str) -> str:
    """A pattern with its own escape as one with a backslash."""
    if len(escape) != 1:
        raise NotShipped(f"the escape {escape!r}")
    made, left = [], iter(pattern)
    for one in left:
        if one == escape:
            following = next(left, None)
            if following is None:
                raise NotShipped(f"the pattern {pattern!r} ends with its escape")
            made.append(f"\\{following}")
        else:
            made.append("\\\\" if one == "\\" else one)
    return "".join(made)
