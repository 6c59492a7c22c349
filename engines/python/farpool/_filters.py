"""Converts filters of pyarrow to conditions of queries.

The idea: pyarrow pickles an expression as a small Arrow file. The metadata of its schema is a list of tokens, and its
columns are the literals with their types. This module reads that file, so it loses nothing and does not parse text.
Every part of a filter that it understands becomes a condition that runs beside the data. It reports each other part,
and pyarrow then applies the filter itself.

A condition made here is true, false or null for exactly the same rows as pyarrow's filter. In pyarrow a comparison with
NaN is false. In a query NaN is greater or less than all numbers. Conditions on floats therefore exclude NaN explicitly.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import farpool

# Values in one list of a program, at most.
_LIST_VALUES_MAX = 1_024
_LISTS_MAX = 8
# Levels of nesting at which a filter is left to pyarrow. Queries do not nest that deep.
_DEPTH_MAX = 48

_FLIPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
# Functions of pyarrow without options that change their meaning. A call with options is left to pyarrow.
_PLAIN = {"and_kleene", "or_kleene", "invert", "is_valid", "if_else", *_FLIPPED}


class NotUnderstood(Exception):
    """Raised for an expression that cannot become a condition of a query. The text says why."""


@dataclass
class Node:
    """A node of an expression: a call, a field (`name`) or a literal (`value`)."""

    kind: str
    name: str = ""
    value: Any = None
    arguments: list[Node] | None = None
    options: dict[str, Any] | None = None


def decode(expression: pc.Expression) -> Node:
    """Decodes an expression into a tree. Raises NotUnderstood."""
    try:
        buffer = expression.__reduce__()[1][0]
        tokens = _tokens(memoryview(buffer))
        with pa.ipc.open_file(buffer) as file:
            values = file.get_batch(0).columns
        return _tree(tokens, values)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error, pa.ArrowException) as error:
        raise NotUnderstood(f"this version of pyarrow serializes it in an unknown form: {error}") from error


def fields(node: Node) -> set[str]:
    """Returns the names of the columns that an expression uses."""
    found, left = set(), [node]
    while left:
        node = left.pop()
        if node.kind == "field":
            found.add(node.name)
        left += node.arguments or []
    return found


def conjuncts(node: Node) -> list[Node]:
    """Splits an expression at its ANDs. It is true if all parts are true."""
    parts, left = [], [node]
    while left:
        node = left.pop()
        if node.kind == "call" and node.name == "and_kleene":
            left += reversed(node.arguments)
        else:
            parts.append(node)
    return parts


def condition(node: Node, schema: pa.Schema) -> farpool.Expr:
    """Converts an expression to a condition of a query over the columns of `schema`. Raises NotUnderstood."""
    return _condition(node, schema, 0)


def _condition(node: Node, schema: pa.Schema, depth: int) -> farpool.Expr:
    if depth > _DEPTH_MAX:
        raise NotUnderstood(f"it is nested more than {_DEPTH_MAX} levels deep")
    if node.kind == "field":
        if not pa.types.is_boolean(_type(node, schema)):
            raise NotUnderstood(f"column {node.name!r} is not boolean")
        return farpool.col(node.name)
    if node.kind == "literal":
        if not pa.types.is_boolean(node.value.type):
            raise NotUnderstood(f"a value of {node.value.type} is not boolean")
        return farpool.lit(node.value.as_py())
    arguments = node.arguments
    if node.options and node.name in _PLAIN:
        raise NotUnderstood(f"the function {node.name} has options")
    match node.name, len(arguments):
        case "and_kleene", 2:
            return _condition(arguments[0], schema, depth + 1) & _condition(arguments[1], schema, depth + 1)
        case "or_kleene", 2:
            return _condition(arguments[0], schema, depth + 1) | _condition(arguments[1], schema, depth + 1)
        case "invert", 1:
            return ~_condition(arguments[0], schema, depth + 1)
        case "is_valid", 1:
            return _column(arguments[0], schema).is_not_null()
        case "is_null", 1:
            of = _type(arguments[0], schema)
            if (node.options or {}).get("nan_is_null") and pa.types.is_floating(of):
                raise NotUnderstood("is_null counts NaN as null")
            return _column(arguments[0], schema).is_null()
        case "is_in", 1:
            # pyarrow's `is_in` of null is false, not null.
            return _column(arguments[0], schema).is_not_null() & _is_in(node, schema)
        case "if_else", 3:
            asked, found, other = arguments
            is_sql = (
                (asked.kind, asked.name) == ("call", "is_valid")
                and (found.kind, found.name) == ("call", "is_in")
                and asked.arguments == found.arguments
                and other.kind == "literal"
                and not other.value.is_valid
            )
            if is_sql:
                return _is_in(found, schema)
        case name, 2 if name in _FLIPPED:
            return _comparison(name, *arguments, schema)
    raise NotUnderstood(f"the function {node.name} with {len(arguments)} arguments cannot be pushed down")


def _type(node: Node, schema: pa.Schema) -> pa.DataType:
    if node.kind != "field":
        raise NotUnderstood("a computed value where a column or a constant is needed")
    place = schema.get_field_index(node.name)
    if place < 0:
        raise NotUnderstood(f"no column {node.name!r}")
    return schema.field(place).type


def _column(node: Node, schema: pa.Schema) -> farpool.Expr:
    _type(node, schema)
    return farpool.col(node.name)


def _comparison(name: str, left: Node, right: Node, schema: pa.Schema) -> farpool.Expr:
    if left.kind == "literal":
        left, right, name = right, left, _FLIPPED[name]
    of, column = _type(left, schema), _column(left, schema)
    if right.kind == "field":
        if _type(right, schema) != of or pa.types.is_floating(of):
            raise NotUnderstood(f"{of} compared with {_type(right, schema)}")
        other = farpool.col(right.name)
    elif right.kind == "literal":
        other = farpool.lit(value(right.value, of))
    else:
        raise NotUnderstood("a computed value where a column or a constant is needed")
    match name:
        case "equal":
            return column == other
        case "not_equal":
            return column != other
        case "less":
            found = column < other
        case "less_equal":
            found = column <= other
        case "greater":
            found = column > other
        case _:
            found = column >= other
    # NaN is greater than all numbers in a query, or less if its sign bit is set. In pyarrow every comparison with it is
    # false.
    if not pa.types.is_floating(of):
        return found
    return found & (column >= -math.inf) & (column <= math.inf)


def _is_in(node: Node, schema: pa.Schema) -> farpool.Expr:
    column, of = _column(node.arguments[0], schema), _type(node.arguments[0], schema)
    options = node.options or {}
    matching = options.get("null_matching_behavior")
    listed = options.get("value_set")
    if matching is None or matching.as_py() != 0 or not isinstance(listed, pa.ListScalar):
        raise NotUnderstood("is_in has unknown options")
    listed = listed.values
    if not 0 < len(listed) <= _LISTS_MAX * _LIST_VALUES_MAX or listed.null_count:
        raise NotUnderstood(f"a list of {len(listed)} values, {listed.null_count} of them null")
    values = [value(one, of) for one in listed]
    parts = [values[start : start + _LIST_VALUES_MAX] for start in range(0, len(values), _LIST_VALUES_MAX)]
    found = column.is_in(parts[0])
    for part in parts[1:]:
        found = found | column.is_in(part)
    return found


def value(scalar: pa.Scalar, of: pa.DataType) -> Any:
    """Converts a literal to a Python value that is the same in a column of this type. Raises NotUnderstood."""
    if not scalar.is_valid:
        raise NotUnderstood("a comparison with null")
    try:
        if scalar.type != of:
            is_time = pa.types.is_timestamp(of), pa.types.is_timestamp(scalar.type)
            if any(is_time) and not (all(is_time) and (of.tz is None) == (scalar.type.tz is None)):
                raise NotUnderstood(f"{scalar.type} compared with {of}")
            moved = scalar.cast(of)
            if not moved.cast(scalar.type).equals(scalar):
                raise NotUnderstood(f"a value of {scalar.type} that {of} cannot hold")
            scalar = moved
        if pa.types.is_timestamp(of) and of.unit == "ns":
            if scalar.value % 1_000:
                raise NotUnderstood("a time that is finer than a microsecond")
            scalar = scalar.cast(pa.timestamp("us", of.tz))
        found = scalar.as_py()
    except (ValueError, OverflowError, TypeError, pa.ArrowException) as error:
        raise NotUnderstood(f"a value of {scalar.type} compared with {of}: {error}") from error
    if isinstance(found, float) and math.isnan(found):
        raise NotUnderstood("a comparison with NaN")
    return found


def _tree(tokens: list[tuple[str, str]], values: list[pa.Array]) -> Node:
    # The last element is the innermost call that has not ended. `root` holds an expression that is in no call.
    root = Node("call", "", arguments=[])
    open_calls = [root]
    for key, text in tokens:
        match key:
            case "call":
                call = Node("call", text, arguments=[])
                open_calls[-1].arguments.append(call)
                open_calls.append(call)
            case "end":
                if open_calls.pop().name != text or not open_calls:
                    raise ValueError(f"{text} ends what did not begin")
            case "options":
                options = values[int(text)][0]
                options = {name: options[name] for name in options.type.names} if options.is_valid else {}
                open_calls[-1].options = _told(options)
            case "field_ref":
                open_calls[-1].arguments.append(Node("field", text))
            case "literal":
                open_calls[-1].arguments.append(Node("literal", value=values[int(text)][0]))
            case _:
                raise ValueError(f"{key} is not known")
    if len(open_calls) != 1 or len(root.arguments) != 1:
        raise ValueError("it does not end")
    return root.arguments[0]


def _told(options: dict[str, pa.Scalar]) -> dict[str, Any]:
    """Returns the options without the name of their own type."""
    told = {name: one for name, one in options.items() if name != "_type_name"}
    if "nan_is_null" in told:
        told["nan_is_null"] = told["nan_is_null"].as_py()
    return told


# Field numbers in the FlatBuffers tables of Message.fbs and Schema.fbs, namespace org.apache.arrow.flatbuf.
_MAGIC = b"ARROW1\0\0"
_CONTINUED = 0xFFFF_FFFF
_MESSAGE_HEADER = 2
_SCHEMA_METADATA = 2


def _tokens(file: memoryview) -> list[tuple[str, str]]:
    """Returns the metadata of an Arrow file's schema as pairs, in order. pyarrow returns it as a dict, which drops
    repeated keys."""

    def u32(at: int) -> int:
        return struct.unpack_from("<I", file, at)[0]

    def field(table: int, number: int) -> int:
        """Returns the position of a field of a table."""
        vtable = table - struct.unpack_from("<i", file, table)[0]
        (size,) = struct.unpack_from("<H", file, vtable)
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", file, vtable + place)[0] if place < size else 0
        if offset == 0:
            raise ValueError("a part of it is missing")
        return table + offset

    def behind(at: int) -> int:
        return at + u32(at)

    def text(at: int) -> str:
        start = behind(at)
        return bytes(file[start + 4 : start + 4 + u32(start)]).decode()

    if file[:8] != _MAGIC or u32(8) != _CONTINUED:
        raise ValueError("it is not an Arrow file")
    message = behind(16)
    schema = behind(field(message, _MESSAGE_HEADER))
    pairs = behind(field(schema, _SCHEMA_METADATA))
    tables = [behind(pairs + 4 + 4 * index) for index in range(u32(pairs))]
    return [(text(field(table, 0)), text(field(table, 1))) for table in tables]
