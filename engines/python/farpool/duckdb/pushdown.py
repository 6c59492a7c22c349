"""`sql_pushdown`: runs the parts of a DuckDB statement that read one far table beside that table.

The idea: DuckDB parses the statement (`json_serialize_sql`). This module analyses each SELECT over one far table, and
replaces the table by a relation that leaves less work to DuckDB: rows that pass the filter, the first rows in an order,
or groups with their aggregates. DuckDB writes the new statement (`json_deserialize_sql`). Every part that is not
understood stays in the statement, unchanged. Types of expressions and values of constants are asked of DuckDB.

The new statement is used only if DuckDB parses it back to the same tree, and gives it columns of the same names and
types. Otherwise the original statement runs over the relations.

Never here: rows, or a guess at what a function of DuckDB does.
"""

from __future__ import annotations

import copy
import json
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb

import farpool
from farpool._farpool import _shown
from farpool.duckdb.binder import NotShipped, is_same, nodes
from farpool.duckdb.relations import _dataset_type, registered
from farpool.duckdb.terms import Aggregate, Terms

if TYPE_CHECKING:
    from farpool.dataset import FarDataset

# Rows that nodes keep for ORDER BY with LIMIT, at most. A larger limit is left to DuckDB.
_TOP_ROWS_MAX = 65_536


@dataclass
class Block:
    """A SELECT over one far table: which parts run beside the table, and which parts DuckDB runs, with the reasons.

    `shipped` and `left` describe these parts as text. `dataset` is `None` if no part runs beside the table.
    """

    table: str
    sql: str
    shipped: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    dataset: FarDataset | None = None

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Returns the reports of the block's scans, one for each run. See `farpool.Stream.report`."""
        return [] if self.dataset is None else self.dataset.reports

    def __str__(self) -> str:
        lines = [f"{self.table}: {self.sql}"]
        lines += [f"  pushed down: {one}" for one in self.shipped] or [
            "  pushed down: columns and filters of DuckDB's scan"
        ]
        lines += [f"  by DuckDB: {one}" for one in self.left]
        for report in self.reports:
            lines.append(
                f"  ran ({report['placement']}): of {report['row_groups']} row groups {report['shipped']} shipped, "
                f"{report['fetched']} fetched, {report['skipped']} skipped; {report['rows']} rows, "
                f"{report['link_bytes']} bytes transferred in {report['seconds']:.3f} s"
            )
        return _shown("\n".join(lines))


class Pushdown:
    """A statement that is ready to run: a relation of DuckDB, and reports about its blocks.

    It has all methods of a DuckDB relation. It runs each time rows are requested.
    """

    def __init__(self, relation: Any, sql: str, blocks: list[Block], left: list[str]):
        self.relation = relation
        self.sql = sql
        self.blocks = blocks
        # Reasons why the original statement runs unchanged.
        self.left = left

    @property
    def report(self) -> dict[str, Any]:
        """Returns the contents of `str` as a dictionary."""
        blocks = [
            {
                "table": block.table,
                "sql": block.sql,
                "shipped": block.shipped,
                "left": block.left,
                "reports": block.reports,
            }
            for block in self.blocks
        ]
        return {"sql": self.sql, "left": self.left, "blocks": blocks}

    def __str__(self) -> str:
        return _shown("\n".join([*(f"run by DuckDB as written: {why}" for why in self.left), *map(str, self.blocks)]))

    def __repr__(self) -> str:
        return f"<farpool.duckdb.Pushdown of {len(self.blocks)} blocks: {_shown(self.sql)}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.relation, name)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.relation.__arrow_c_stream__(requested_schema)


def sql_pushdown(
    con: duckdb.DuckDBPyConnection,
    sql: str,
    pool: farpool.Pool | None = None,
    placement: str | None = None,
    explain: bool = False,
) -> Pushdown:
    """Runs a SELECT of DuckDB, and as much of it as possible beside the far tables that it reads.

    Of each SELECT over one table, wherever it stands, these parts run beside the data: filters, GROUP BY with count,
    sum, min, max and avg, DISTINCT, ORDER BY with LIMIT, and LIMIT. DuckDB does the rest. The rows, and the names and
    types of columns, are those of plain DuckDB. Sums and averages of floats may differ in their last digits. Without an
    ORDER BY, any rows may remain after a LIMIT.

    Far tables are those of `register`. With a `pool`, its tables can be used too, if `con` has no relation of the same
    name. `placement` (see `farpool.Scan.collect`) overrides the one that was registered. With `explain` it
    prints where each part would run, and reads nothing.

    Returns a relation with a report of its blocks. Nothing runs before rows are requested.

    Raises DuckDB's errors for the statement, and the errors of `Pool.scan`.

        farpool.duckdb.sql_pushdown(con, "SELECT item, sum(price) FROM sales GROUP BY item").fetchall()
    """
    # DuckDB lets a statement read from Python variables. These are the variables of the caller.
    frame = sys._getframe(1)
    names = {**frame.f_globals, **frame.f_locals}
    statement = _Statement(con, sql, pool, placement, names)
    done = statement.pushdown()
    if explain:
        print(done)
    return done


class _Statement:
    """One statement while it is analysed and rewritten."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        sql: str,
        pool: farpool.Pool | None,
        placement: str | None,
        names: dict[str, Any],
    ):
        self.con, self.sql, self.pool, self.placement = con, sql, pool, placement
        self.names = names
        self.blocks: list[Block] = []
        self.functions: dict[str, set[str]] = {}
        self._known: dict[str, FarDataset | None] = {}

    def bind(self, sql: str) -> Any:
        """Makes a relation from SQL text. DuckDB looks up Python variables in the calling frame and keeps them with the
        relation. `eval` provides a frame that has all of them."""
        return eval("_farpool_con.sql(_farpool_sql)", {**self.names, "_farpool_con": self.con, "_farpool_sql": sql})

    def one(self, sql: str, *parameters: Any) -> Any:
        return self.con.sql(sql, params=list(parameters)).fetchall()[0][0]

    def written(self, ast: Any) -> str:
        """Returns a statement as SQL text."""
        return self.one("SELECT json_deserialize_sql($1::JSON)", json.dumps(ast))

    def pushdown(self) -> Pushdown:
        """Rewrites the statement, or returns the original if that is not possible."""
        read = json.loads(self.one("SELECT json_serialize_sql($1)", self.sql))
        if read.get("error"):
            # DuckDB's own error describes best what is wrong with the text.
            return self.as_it_was(str(read.get("error_message")))
        if len(read["statements"]) != 1:
            return self.as_it_was("the text has several statements")
        self.offer_tables_of_pool(read)
        self.functions = self.functions_of(read)
        ast = copy.deepcopy(read)
        self.visit(ast["statements"][0]["node"], frozenset())
        if not any(block.shipped for block in self.blocks):
            return Pushdown(self.bind(self.sql), self.sql, self.blocks, [])
        before = self.bind(self.sql)
        text = self.written(ast)
        again = json.loads(self.one("SELECT json_serialize_sql($1)", text))
        if not is_same(again, ast):
            return self.as_it_was("DuckDB reads its own text of the rewritten statement as another statement")
        try:
            after = self.bind(text)
        except duckdb.Error as error:
            return self.as_it_was(f"DuckDB refuses the rewritten statement: {error}")
        if (before.columns, before.types) != (after.columns, after.types):
            return self.as_it_was("the rewritten statement has columns of other names or types")
        return Pushdown(after, text, self.blocks, [])

    def functions_of(self, ast: Any) -> dict[str, set[str]]:
        """Returns the kinds of each function in a statement, by name. Macros are included."""
        called = {node["function_name"].lower() for node in nodes(ast, into_subqueries=True) if "function_name" in node}
        if not called:
            return {}
        found: dict[str, set[str]] = {}
        # A single query for all names, because `duckdb_functions()` builds the full list each time.
        rows = self.con.sql(
            "SELECT DISTINCT lower(function_name), function_type || ' ' || coalesce(stability, '') "
            "FROM duckdb_functions() WHERE lower(function_name) IN (SELECT unnest($1))",
            params=[sorted(called)],
        )
        for name, kind in rows.fetchall():
            found.setdefault(name, set()).add(kind)
        return found

    def as_it_was(self, why: str) -> Pushdown:
        """Returns the original statement, with the reason."""
        for block in self.blocks:
            block.left += block.shipped
            block.shipped, block.dataset = [], None
        return Pushdown(self.bind(self.sql), self.sql, self.blocks, [why])

    def offer_tables_of_pool(self, ast: Any) -> None:
        """Makes tables of the pool available by their names, unless a Python variable or the database has the name."""
        if self.pool is None:
            return
        there = {table.name for table in self.pool.tables()}
        for node in nodes(ast, into_subqueries=True):
            name = node.get("table_name") if node.get("type") == "BASE_TABLE" else None
            if name in there and name not in self.names and node["qualified_name"]["path"] == [name]:
                if self.is_unknown(name):
                    self.names[name] = self._known[name] = _dataset_type()(self.pool, name, placement=self.placement)

    def far(self, name: str) -> FarDataset | None:
        """Returns the far table of a name, or `None`."""
        if name not in self._known:
            found = registered(self.con, name)
            if found is None:
                # A Python variable of the caller, which DuckDB would find too.
                variable = self.names.get(name)
                is_far = type(variable).__module__ == "farpool.dataset" and self.is_unknown(name)
                found = variable if is_far else None
            self._known[name] = found
        return self._known[name]

    def is_unknown(self, name: str) -> bool:
        """Reports whether the database has no table or view of this name."""
        return not self.one(
            "SELECT count(*) FROM (SELECT table_name FROM duckdb_tables() UNION ALL "
            "SELECT view_name FROM duckdb_views()) WHERE lower(table_name) = lower($1)",
            name,
        )

    def visit(self, node: Any, ctes: frozenset[str]) -> None:
        """Finds the blocks, the outermost first. `ctes` are names that the statement itself defines at that point."""
        left = [(node, ctes)]
        while left:
            node, ctes = left.pop()
            if isinstance(node, list):
                left += [(one, ctes) for one in node]
                continue
            if not isinstance(node, dict):
                continue
            entries = node.get("cte_map", {}).get("map", []) if isinstance(node.get("cte_map"), dict) else []
            ctes = ctes | {entry["key"].lower() for entry in entries}
            if node.get("type") in ("RECURSIVE_CTE_NODE", "CTE_NODE") and "cte_name" in node:
                ctes = ctes | {node["cte_name"].lower()}
            if node.get("type") == "SELECT_NODE":
                self.block(node, ctes)
            left += [(one, ctes) for one in node.values() if isinstance(one, dict | list)]

    def block(self, node: dict[str, Any], ctes: frozenset[str]) -> None:
        """Rewrites a SELECT if it reads one far table."""
        table = node["from_table"]
        if table["type"] != "BASE_TABLE" or table["table_name"].lower() in ctes:
            return
        if table["qualified_name"]["path"] != [table["table_name"]]:
            return
        base = self.far(table["table_name"])
        if base is None:
            return
        alone = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
        block = Block(base.table, self.written(alone))
        self.blocks.append(block)
        if table["sample"] is not None or node["sample"] is not None or table["at_clause"] is not None:
            block.left.append("TABLESAMPLE")
            return
        if table["column_name_alias"]:
            block.left.append("columns under other names (aliases)")
            return
        try:
            terms = Terms(self.con, self.bind, self.written, self.functions, base, table)
        except NotShipped as why:
            block.left.append(str(why))
            return
        _Rewriting(self, block, node, base, terms).run()


class _Rewriting:
    """Rewrites one block. The block is changed only after all checks have passed."""

    def __init__(self, statement: _Statement, block: Block, node: dict[str, Any], base: FarDataset, terms: Terms):
        self.statement, self.block, self.node, self.base, self.terms = statement, block, node, base, terms
        self.conditions: list[farpool.Expr] = []
        self.words: list[str] = []

    def run(self) -> None:
        block, node = self.block, self.node
        rest = self.filter()
        is_whole = rest is None
        grouping = None
        try:
            grouping = self.grouping(is_whole)
        except NotShipped as why:
            block.left.append(f"groups and aggregates: {why}")
        if grouping is not None:
            self.replace(grouping[0], [*self.words, *grouping[1]])
            return
        query = self.narrowed
        if is_whole:
            try:
                first = self.first_rows()
            except NotShipped as why:
                block.left.append(f"order and limit: {why}")
                first = None
            if first is not None:
                query, words = first
                self.words.append(words)
        if self.words:
            node["where_clause"] = rest
            self.replace(query, self.words)

    def replace(self, query: Any, words: list[str]) -> None:
        """Makes the block read from a query instead of the table."""
        block, statement, table = self.block, self.statement, self.node["from_table"]
        block.dataset = type(self.base)._of_query(self.base, query, statement.placement)
        block.shipped = words
        name = f"farpool_block_{secrets.token_hex(6)}"
        table["alias"] = table["alias"] or table["table_name"]
        table["table_name"] = name
        table["qualified_name"] = {"path": [name]}
        statement.names[name] = block.dataset

    def narrowed(self, scan: farpool.Scan) -> farpool.Scan:
        return scan.filter(*self.conditions)

    def filter(self) -> dict[str, Any] | None:
        """Collects the conditions that are understood, and returns the rest of the filter: `None` if nothing is
        left."""
        where = self.node["where_clause"]
        if where is None:
            return None
        parts = where["children"] if where["type"] == "CONJUNCTION_AND" else [where]
        rest = []
        for part in parts:
            try:
                condition = self.terms.condition(part)
                self.base._scan().filter(*self.conditions, condition)
                self.conditions.append(condition)
                self.words.append(f"filter {self.terms.text(part)}")
            except (NotShipped, farpool.InvalidError) as why:
                rest.append(part)
                self.block.left.append(f"filter {self.terms.text(part)}: {why}")
        if not rest:
            return None
        return rest[0] if len(rest) == 1 else {**where, "children": rest}

    def modifiers(self, kind: str) -> list[dict[str, Any]]:
        return [modifier for modifier in self.node["modifiers"] if modifier["type"] == kind]

    def first_rows(self) -> tuple[Any, str] | None:
        """Returns a query for the first rows in an order, or for any rows if there is no ORDER BY, and its description.
        `None` if the block has no limit."""
        node, terms = self.node, self.terms
        limits = self.modifiers("LIMIT_MODIFIER")
        if not limits:
            return None
        if self.modifiers("DISTINCT_MODIFIER"):
            raise NotShipped("DISTINCT with a limit")
        if node["qualify"] is not None:
            raise NotShipped("QUALIFY")
        terms.check_rows(node["select_list"])
        limit = limits[0]
        if limit["limit_type"] != "ROW_COUNT" or limit["limit"] is None:
            raise NotShipped("a limit that is not a number of rows")
        rows = terms.whole(limit["limit"]) + (terms.whole(limit["offset"]) if limit["offset"] else 0)
        columns = terms.columns_of(node)

        def narrowed(scan: farpool.Scan) -> farpool.Scan:
            # Only the columns of the block are sent. Nothing after the limit needs the others.
            return self.narrowed(scan).select(columns)

        orders = [one for modifier in self.modifiers("ORDER_MODIFIER") for one in modifier["orders"]]
        if not orders:
            return lambda scan: narrowed(scan).limit(rows), f"limit {rows}"
        if rows > _TOP_ROWS_MAX:
            raise NotShipped(f"the top {rows} rows: nodes hold at most {_TOP_ROWS_MAX}")
        keys = [terms.order(one, node["select_list"]) for one in orders]
        # DuckDB sorts -0.0 and 0.0 as equal. Adding 0.0 turns -0.0 into 0.0.
        zeros = {
            f"farpool_o{index}": farpool.col(key.column) + 0.0
            for index, key in enumerate(keys)
            if terms.scan.schema[key.column] in ("float32", "float64")
        }

        def query(scan: farpool.Scan) -> farpool.Scan:
            by = [f"farpool_o{index}" if f"farpool_o{index}" in zeros else key.column for index, key in enumerate(keys)]
            scan = narrowed(scan)
            scan = scan.with_columns(**zeros) if zeros else scan
            scan = scan.sort(
                *by,
                descending=[key.is_descending for key in keys],
                nulls_last=[not key.nulls_first for key in keys],
            ).limit(rows)
            return scan.select(columns) if zeros else scan

        return query, f"top {rows} rows by {', '.join(key.column for key in keys)}"

    def grouping(self, is_whole: bool) -> tuple[Any, list[str]] | None:
        """Returns a query for groups with their aggregates, or for distinct rows, and its description. Rewrites the
        block to compute the remaining expressions over the query's columns. `None` if the block does not group."""
        node, terms = self.node, self.terms
        outside = [node["select_list"], node["having"], node["modifiers"], node["qualify"]]
        aggregates = terms.aggregates(outside)
        is_distinct = bool(self.modifiers("DISTINCT_MODIFIER"))
        is_grouped = bool(node["group_expressions"] or node["group_sets"] or aggregates)
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            raise NotShipped("GROUP BY ALL: name the columns")
        if not is_grouped and node["having"] is None and not is_distinct:
            return None
        if not is_whole:
            raise NotShipped("a part of the filter is left to DuckDB")
        terms.check_functions(outside)
        if node["qualify"] is not None or any(one.get("class") == "WINDOW" for one in nodes(outside)):
            raise NotShipped("window functions")
        if any(modifier["distinct_on_targets"] for modifier in self.modifiers("DISTINCT_MODIFIER")):
            raise NotShipped("DISTINCT ON")
        if is_grouped and node["group_sets"] not in ([], [list(range(len(node["group_expressions"])))]):
            raise NotShipped("grouping sets (ROLLUP, CUBE)")
        if is_grouped:
            keys = [terms.key(one, node["select_list"]) for one in node["group_expressions"]]
        else:
            terms.check_rows(node["select_list"])
            keys = list(node["select_list"])
        alone = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
        try:
            before = self.statement.bind(self.statement.written(alone))
        except duckdb.Error as error:
            raise NotShipped(f"it cannot run on its own: {error}") from error
        names = {}
        keys = [key for index, key in enumerate(keys) if not any(is_same(key, other) for other in keys[:index])]
        made_keys = []
        for key in keys:
            made = terms.value(key)
            terms.check_comparable(key)
            terms.check_no_nan(key)
            names[f"farpool_k{len(made_keys)}"] = key
            made_keys.append((f"farpool_k{len(made_keys)}", made))
        made_aggregates: list[tuple[str, Aggregate]] = []
        for one in aggregates:
            if not any(is_same(one, known.node) for _, known in made_aggregates):
                made_aggregates.append((f"farpool_a{len(made_aggregates)}", terms.aggregate(one)))
        if is_grouped and not keys and not made_aggregates:
            raise NotShipped("a grouping without keys and aggregates")

        def query(scan: farpool.Scan) -> farpool.Scan:
            scan = self.narrowed(scan)
            grouped = [made.alias(name) for name, made in made_keys]
            aggregated = [made.expression.alias(name) for name, made in made_aggregates]
            if not grouped:
                return scan.select(*aggregated)
            if not aggregated:
                return scan.select(*grouped).distinct()
            return scan.group_by(*grouped).agg(*aggregated)

        try:
            leaves = query(self.base._scan())
        except farpool.InvalidError as why:
            raise NotShipped(str(why)) from why
        replaced = [(names[name], terms.reference(name, leaves, names[name])) for name, _ in made_keys]
        replaced += [(made.node, terms.reference(name, leaves, made.node)) for name, made in made_aggregates]
        changed = copy.deepcopy(node)
        terms.replace(changed, replaced, before.columns, is_grouped)
        self.check(changed, query, before)
        node.update(changed)
        words = []
        if keys:
            words.append(f"{'group by' if is_grouped else 'distinct'} {', '.join(terms.text(key) for key in keys)}")
        if made_aggregates:
            words.append(f"aggregate {', '.join(terms.text(made.node) for _, made in made_aggregates)}")
        return query, words

    def check(self, changed: dict[str, Any], query: Any, before: Any) -> None:
        """Raises NotShipped if the rewritten block has other columns than before."""
        statement = self.statement
        name = f"farpool_block_{secrets.token_hex(6)}"
        tried = copy.deepcopy(changed)
        table = tried["from_table"]
        table["alias"] = table["alias"] or table["table_name"]
        table["table_name"], table["qualified_name"] = name, {"path": [name]}
        statement.names[name] = type(self.base)._of_query(self.base, query, statement.placement)
        try:
            alone = {"error": False, "statements": [{"node": tried, "named_param_map": []}]}
            after = statement.bind(statement.written(alone))
        except duckdb.Error as error:
            raise NotShipped(f"DuckDB refuses the rewritten statement: {error}") from error
        finally:
            del statement.names[name]
        if (after.columns, after.types) != (before.columns, before.types):
            raise NotShipped(
                f"its columns would be {list(zip(after.columns, after.types, strict=True))} and not "
                f"{list(zip(before.columns, before.types, strict=True))}"
            )
