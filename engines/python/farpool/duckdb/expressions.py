"""Converts expressions of DuckDB to expressions of queries over one far table.

The idea: only expressions with the same meaning on both sides are converted, and each computed value must have the type
that DuckDB gives it. A comparison is converted if both sides compare the values themselves, even if they first convert
them to different types. That holds for integers of any width, decimals of any scale, dates and times. All other
expressions raise `NotShipped` with the reason.

Never here: arithmetic in a filter that may overflow. DuckDB may not evaluate it for rows that another part of the
filter drops.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from typing import Any

import farpool
from farpool.duckdb.binder import FLOATS, INTEGERS, ZONED, Binder, Node, NotShipped, decimal_digits, nodes

# Levels of nesting at which an expression is left to DuckDB. Queries do not nest that deep.
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
_SIGNS = ("+", "-", "*", "/")
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_CLOCKS = {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"}


def _is_text(node: Node) -> bool:
    """Reports whether a node is a string literal."""
    return node.get("class") == "CONSTANT" and node["literal"]["kind"] == "STRING"


class Expressions(Binder):
    """Converts values and conditions of one block's table."""

    def value(self, node: Node, depth: int = 0) -> farpool.Expr:
        """Converts an expression to a value of each row. Raises NotShipped."""
        if depth > _DEPTH_MAX:
            raise NotShipped(f"it is nested more than {_DEPTH_MAX} levels deep")
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
            raise NotShipped(f"{self.text(node)} cannot be pushed down")
        self._check_type(made, node)
        return made

    def _check_type(self, made: farpool.Expr, node: Node) -> None:
        """Raises NotShipped unless a value has the type that DuckDB gives the expression. For decimals the digits after
        the point must be the same."""
        wanted = self.type_of(node)
        try:
            found = self.scan.select(made.alias("x")).schema["x"]
        except farpool.InvalidError as why:
            raise NotShipped(str(why)) from why
        if (digits := decimal_digits(wanted)) is not None:
            here = decimal_digits(found.upper())
            is_it = here is not None and here[1] == digits[1]
        else:
            is_it = {**INTEGERS, "FLOAT": "float32", "DOUBLE": "float64"}.get(wanted) == found
        if not is_it:
            raise NotShipped(f"{self.text(node)} has type {wanted} in DuckDB, but {found} when pushed down")

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
            raise NotShipped("a division by a value that may be zero")
        if any(decimal_digits(of) for of in types):
            raise NotShipped("a division of decimals")
        return made[0] / made[1]

    def _number(self, node: Node, beside: str, sign: str) -> farpool.Expr:
        """Converts a constant in arithmetic with a value of type `beside`."""
        own = self.type_of(node)
        if beside in FLOATS:
            return farpool.lit(self.constant(node, beside))
        if beside in INTEGERS and own in INTEGERS:
            return farpool.lit(self.constant(node))
        if decimal_digits(beside) and (own in INTEGERS or decimal_digits(own)):
            number = farpool.lit(self.constant(node))
            # The scale of a product is the sum of both scales, so the constant needs the scale that it is written with.
            digits, scale = decimal_digits(own) or (19, 0)
            return number.cast(f"decimal({digits}, {scale})") if sign == "*" else number
        raise NotShipped(f"arithmetic of {self.text(node)} and {beside}")

    def _cast(self, node: Node, depth: int) -> farpool.Expr:
        """Converts a cast to a wider type, which can hold every value."""
        child, to = node["child"], self.type_of(node)
        of = self.type_of(child)
        made = self.value(child, depth + 1)
        if to == of:
            return made
        if of in INTEGERS and to in INTEGERS:
            narrow, wide = INTEGERS[of], INTEGERS[to]
            if _BITS[wide] > _BITS[narrow] and (narrow.startswith("u") or not wide.startswith("u")):
                return made.cast(wide)
        if of in INTEGERS and to == "DOUBLE" or (of, to) == ("FLOAT", "DOUBLE"):
            return made.cast("double")
        raise NotShipped(f"a cast from {of} to {to}")

    # Conditions.

    def condition(self, node: Node, depth: int = 0) -> farpool.Expr:
        """Converts an expression to a condition: true, false or unknown for each row. Raises NotShipped."""
        if depth > _DEPTH_MAX:
            raise NotShipped(f"it is nested more than {_DEPTH_MAX} levels deep")
        kind = node.get("type")
        column = self.column(node)
        if column is not None:
            if self.type_of(node) != "BOOLEAN":
                raise NotShipped(f"column {column!r} is not boolean")
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
            # DuckDB casts all three to one type. If that is DOUBLE, large integers lose digits.
            of = [self.type_of(one) in FLOATS for one in compared]
            if not of[0] and of[1] != of[2]:
                raise NotShipped("BETWEEN of an integer with other types of bounds")
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
        raise NotShipped(f"{node.get('class', kind)} cannot be pushed down")

    def _compared(self, node: Node) -> farpool.Expr:
        """Converts a value in a filter."""
        if any(part.get("class") == "FUNCTION" for part in nodes(node)) and self.type_of(node) in INTEGERS:
            raise NotShipped(f"{self.text(node)} may overflow in rows that DuckDB does not evaluate")
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
            # A NaN with its sign bit set is less than all numbers in queries, and greater than all in DuckDB.
            if kind in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
                return compared | (made < -math.inf)
            if kind in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"):
                return compared & (made >= -math.inf)
            return compared
        one, other = self.type_of(left), self.type_of(right)
        is_taken = (
            one == other
            and one != "TIMESTAMP_NS"
            or one in INTEGERS
            and other in INTEGERS
            or bool(decimal_digits(one) and decimal_digits(other))
            or one in _CLOCKS
            and other in _CLOCKS
        )
        if not is_taken:
            raise NotShipped(f"{one} compared with {other}")
        self.check_no_nan(left)
        self.check_no_nan(right)
        return _COMPARISONS[kind](made, self._compared(right))

    def _check_texts(self, compared: list[Node]) -> None:
        """Raises NotShipped if string literals stand among values of different types. DuckDB casts all of them to one
        type; the first value must be no literal, and the others of one type."""
        texts = [_is_text(one) for one in compared]
        others = {self.type_of(one) for one, is_text in zip(compared, texts, strict=True) if not is_text}
        if texts[0] or any(texts) and len(others) > 1:
            raise NotShipped("a comparison of text with other types")

    def _beside(self, node: Node, of: str) -> Any:
        """Returns the value of a constant that is compared with values of type `of`."""
        if _is_text(node):
            # A string literal takes the type of the other side.
            own = of
        else:
            own = self.type_of(node)
        numbers = own in INTEGERS or own == "HUGEINT" or decimal_digits(own)
        if of in INTEGERS and (numbers or own == "DOUBLE") or decimal_digits(of) and numbers:
            return self.constant(node, own)
        if of == "DOUBLE" and (numbers or own in FLOATS):
            return self.constant(node, of)
        if (
            of == own
            and of in ("FLOAT", "VARCHAR", "DATE", "BLOB", "BOOLEAN", ZONED)
            or of in _CLOCKS
            and own in _CLOCKS
        ):
            return self.constant(node, own)
        if (of, own) == ("DATE", "TIMESTAMP") or of in _CLOCKS and own == "DATE":
            return self.constant(node, "TIMESTAMP")
        raise NotShipped(f"{self.text(node)} of type {own} compared with {of}")

    def _in(self, children: list[Node]) -> farpool.Expr:
        value, listed = children[0], children[1:]
        self._check_texts(children)
        made, of = self._compared(value), self.type_of(value)
        if len(listed) > _LIST_VALUES_MAX:
            raise NotShipped(f"a list of {len(listed)} values: at most {_LIST_VALUES_MAX} are permitted")
        if not all(self.is_constant(one) for one in listed):
            raise NotShipped("a list with computed values")
        found = [self._beside(one, of) for one in listed]
        # The values of a list must have the type of the column.
        if of in INTEGERS and not all(isinstance(one, int) for one in found):
            raise NotShipped(f"a list with numbers of other types than {of}")
        if of == "DATE" and any(isinstance(one, datetime.datetime) for one in found):
            raise NotShipped("a list of timestamps for dates")
        if any(isinstance(one, float) and math.isnan(one) for one in found):
            self.check_no_nan(value)
        made = made.is_in(found)
        try:
            self.scan.filter(made)
        except farpool.InvalidError as why:
            raise NotShipped(str(why)) from why
        return made

    def _like(self, node: Node) -> farpool.Expr:
        """Converts LIKE, and functions that can be written as LIKE. In DuckDB, LIKE has no default escape; in queries
        the escape is a backslash."""
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
            raise NotShipped(f"the function {name} cannot be pushed down")
        if any(self.type_of(one) != "VARCHAR" for one in arguments) or not all(map(self.is_constant, arguments[1:])):
            raise NotShipped(f"{name} with arguments other than text and constants")
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


def _escaped(pattern: str, escape: str) -> str:
    """Rewrites a pattern with another escape character so that its escape is a backslash."""
    if len(escape) != 1:
        raise NotShipped(f"the escape character {escape!r}")
    made, left = [], iter(pattern)
    for one in left:
        if one == escape:
            following = next(left, None)
            if following is None:
                raise NotShipped(f"the pattern {pattern!r} ends in its escape character")
            made.append(f"\\{following}")
        else:
            made.append("\\\\" if one == "\\" else one)
    return "".join(made)
