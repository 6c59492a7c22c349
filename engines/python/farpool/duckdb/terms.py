"""Converts groups, orders and aggregates of a block, a SELECT over one far table."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import farpool
from farpool.duckdb.binder import FLOATS, INTEGERS, Node, NotShipped, decimal_digits, nodes
from farpool.duckdb.expressions import Expressions

_AGGREGATES: dict[str, Callable[[farpool.Expr], farpool.Expr]] = {
    "count": lambda expression: expression.count(),
    "sum": lambda expression: expression.sum(),
    "min": lambda expression: expression.min(),
    "max": lambda expression: expression.max(),
    "avg": lambda expression: expression.mean(),
    "mean": lambda expression: expression.mean(),
}


@dataclass
class Aggregate:
    """An aggregate of the statement, and its expression in the query."""

    node: Node
    expression: farpool.Expr


@dataclass
class Order:
    """A sort key."""

    column: str
    is_descending: bool
    nulls_first: bool


def _is_plain(star: Node) -> bool:
    """Reports whether a star stands for all columns, by their own names."""
    return not (star["columns"] or star["replace_list"] or star["rename_list"])


class Terms(Expressions):
    """Converts the clauses of a block. Raises NotShipped for clauses that have another meaning at the nodes."""

    def check_rows(self, select_list: Iterable[Node]) -> None:
        """Raises NotShipped unless each row of the table gives one row of the result."""
        for node in nodes(list(select_list)):
            kind = node.get("class")
            if kind == "WINDOW" or kind == "FUNCTION" and not self.is_scalar(node):
                raise NotShipped(f"{self.text(node)} is not computed row by row")

    def check_functions(self, parts: Any) -> None:
        """Raises NotShipped unless each function is scalar or an aggregate. A macro may be either and is refused."""
        for node in nodes(parts):
            if node.get("class") == "FUNCTION" and not self.is_scalar(node) and not self.is_aggregate(node):
                raise NotShipped(f"the function {node['function_name']} cannot be pushed down")

    def order(self, order: Node, select_list: list[Node]) -> Order:
        """Converts a sort key, which must be a column. Applies DuckDB's settings for the default order."""
        plain = [one for one in select_list if one.get("class") == "STAR" and _is_plain(one)]
        if any(one.get("class") == "STAR" and not any(one is star for star in plain) for one in nodes(select_list)):
            raise NotShipped("ORDER BY with a star that computes or renames columns")
        node = self._chosen(order["expression"], select_list, by_name=True)
        column = self.column(node)
        if column is None:
            raise NotShipped(f"ORDER BY {self.text(node)}, which is not a column")
        self.check_comparable(node)
        self.check_no_nan(node)
        kind, nulls = order["type"], order["null_order"].replace(" ", "_").lower()
        if kind == "ORDER_DEFAULT":
            kind = "DESCENDING" if self.setting("default_order").startswith("desc") else "ASCENDING"
        if nulls == "order_default":
            nulls = self.setting("default_null_order")
        if nulls not in ("nulls_first", "nulls_last"):
            raise NotShipped(f"the order of NULLs {nulls}")
        return Order(column, kind == "DESCENDING", nulls == "nulls_first")

    def key(self, node: Node, select_list: list[Node]) -> Node:
        """Returns the expression of a group key. The key may be written as a position or name in the SELECT list."""
        if self.column(node) is not None:
            return node
        return self._chosen(node, select_list, by_name=True)

    def _chosen(self, node: Node, select_list: list[Node], by_name: bool) -> Node:
        """Resolves a position or alias in the SELECT list. Returns any other node unchanged."""
        if node.get("class") == "CONSTANT":
            place = self.whole(node)
            if any(one.get("class") == "STAR" for one in select_list) or not 1 <= place <= len(select_list):
                raise NotShipped(f"position {place}, which is not a column of the SELECT list")
            return select_list[place - 1]
        if by_name and node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            wanted = node["column_names"][0].lower()
            named = [one for one in select_list if one.get("alias", "").lower() == wanted]
            if len(named) == 1:
                return named[0]
            if named:
                raise NotShipped(f"{wanted} is ambiguous: several columns have this name")
        return node

    def aggregates(self, parts: Any) -> list[Node]:
        """Returns the calls of aggregates in these parts of a statement."""
        return [node for node in nodes(parts) if self.is_aggregate(node)]

    def aggregate(self, node: Node) -> Aggregate:
        """Converts an aggregate. Raises NotShipped for one with FILTER, DISTINCT or ORDER BY."""
        name = node["function_name"]
        if self.kinds(name) != {"aggregate CONSISTENT"}:
            raise NotShipped(f"{name} is also the name of another function")
        if node["filter"] is not None or node["distinct"] or node["order_bys"]["orders"] or node["export_state"]:
            raise NotShipped(f"{self.text(node)} has DISTINCT, FILTER or ORDER BY")
        arguments = [argument["expression"] for argument in node["arguments"]]
        if name == "count_star" or name == "count" and not arguments:
            return Aggregate(node, farpool.len())
        if name not in _AGGREGATES or len(arguments) != 1:
            raise NotShipped(f"the aggregate {self.text(node)} cannot be pushed down")
        if name == "count" and self.is_constant(arguments[0]):
            self.constant(arguments[0])
            return Aggregate(node, farpool.len())
        self.check_comparable(arguments[0])
        of = self.type_of(arguments[0])
        if name in ("sum", "avg", "mean") and not (of in INTEGERS or of in FLOATS or decimal_digits(of)):
            raise NotShipped(f"{name} of type {of}")
        if name in ("min", "max"):
            self.check_no_nan(arguments[0])
        return Aggregate(node, _AGGREGATES[name](self.value(arguments[0])))

    def reference(self, name: str, leaves: farpool.Scan, node: Node) -> Node:
        """Returns a reference to a column that the query computed, cast to the type that DuckDB gives the original
        expression."""
        wanted, found = self.type_of(node), leaves.schema[name]
        text = f'"{name}"'
        have = decimal_digits(found.upper())
        if have is not None and wanted != f"DECIMAL({have[0]},{have[1]})":
            digits = decimal_digits(wanted)
            if not (digits and digits[1] == have[1] or wanted == "HUGEINT" and have[1] == 0):
                raise NotShipped(f"{self.text(node)} has type {wanted} in DuckDB, but {found} when pushed down")
            text = f"CAST({text} AS {wanted})"
        statement = json.loads(self._ask("SELECT json_serialize_sql($1)", f"SELECT {text}"))
        return statement["statements"][0]["node"]["select_list"][0]

    def replace(self, node: Node, replaced: list[tuple[Node, Node]], names: list[str], is_grouped: bool) -> None:
        """Rewrites a block to compute its remaining expressions over the result of the query. Each first element of
        `replaced` is replaced by the second."""
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
                raise NotShipped(f"{self.text(part)} together with groups")
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
