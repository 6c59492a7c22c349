"""`sql_pushdown`: a statement of DuckDB of which the parts over one far table run beside it.

The idea: DuckDB says how it reads a statement (`json_serialize_sql`), we take a SELECT over one far table apart, and
write the statement anew (`json_deserialize_sql`) with the table replaced by a relation of which less is left to do:
rows that pass the filter, the first ones in an order, or groups with their aggregates. Whatever is not understood
stays in the statement, word by word, so it is DuckDB's to do. What the parts of an expression mean is asked of DuckDB,
not known here: constants are computed by it, and types are those it gives.

A statement written anew is used only if DuckDB reads it as what it was meant to be, and gives it columns of the same
names and types. Otherwise the statement runs as it was, over relations.

Never here: a guess at what a function of DuckDB does; rows.
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

# First rows in an order that nodes hold.
_TOP_ROWS_MAX = 65_536


@dataclass
class Block:
    """A SELECT over one far table: what of it runs beside the table, and what DuckDB does behind that, and why."""

    table: str
    sql: str
    shipped: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    dataset: FarDataset | None = None

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What was done for it, each time it was run. See `farpool.Stream.report`."""
        return [] if self.dataset is None else self.dataset.reports

    def __str__(self) -> str:
        lines = [f"{self.table}: {self.sql}"]
        lines += [f"  beside the data: {one}" for one in self.shipped] or [
            "  beside the data: what DuckDB's scan asks for"
        ]
        lines += [f"  by DuckDB: {one}" for one in self.left]
        for report in self.reports:
            lines.append(
                f"  ran ({report['placement']}): of {report['row_groups']} row groups {report['shipped']} shipped, "
                f"{report['fetched']} fetched, {report['skipped']} skipped; {report['rows']} rows, "
                f"{report['link_bytes']} bytes over links in {report['seconds']:.3f} s"
            )
        return _shown("\n".join(lines))


class Pushdown:
    """A statement that is ready to run: a relation of DuckDB, and what is known about its blocks. Whatever a relation
    does, this does as well; each time it is asked for rows it runs."""

    def __init__(self, relation: Any, sql: str, blocks: list[Block], left: list[str]):
        self.relation = relation
        self.sql = sql
        self.blocks = blocks
        # Why the statement as a whole runs as it was.
        self.left = left

    @property
    def report(self) -> dict[str, Any]:
        """The same as `str` says, in parts."""
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
        return _shown("\n".join([*(f"as it was written: {why}" for why in self.left), *map(str, self.blocks)]))

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
    """Runs a SELECT of DuckDB, and as much of it as can be beside the far tables that it reads: filters, GROUP BY with
    count, sum, min, max and avg, DISTINCT, ORDER BY with LIMIT, and LIMIT, of each SELECT over one table, wherever it
    stands. DuckDB does the rest. Names and types of the columns, and the rows, are those that DuckDB gives by itself;
    floats that were added or averaged may differ in their last digits, and where there is no order, which rows a LIMIT
    leaves is not said.

    Far tables are those of `register`; with a `pool`, also its tables that no relation of `con` has the name of. `placement`
    says where their parts run (see `farpool.Scan.collect`), instead of what was registered. With `explain` it prints
    what would run where, and nothing is read.

    Returns a relation with a report of its blocks. Nothing runs before rows are asked for.

    Raises what DuckDB raises of the statement, and what `Pool.scan` raises.
    """
    # Names of Python that the statement may read from are those of whoever calls.
    frame = sys._getframe(1)
    names = {**frame.f_globals, **frame.f_locals}
    statement = _Statement(con, sql, pool, placement, names)
    done = statement.pushdown()
    if explain:
        print(done)
    return done


class _Statement:
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
        """A relation of it. Names of Python are looked up by DuckDB in the frame that calls it, and kept with the
        relation: here in one that has them all."""
        return eval("_farpool_con.sql(_farpool_sql)", {**self.names, "_farpool_con": self.con, "_farpool_sql": sql})

    def one(self, sql: str, *parameters: Any) -> Any:
        return self.con.sql(sql, params=list(parameters)).fetchall()[0][0]

    def written(self, ast: Any) -> str:
        """A statement as text."""
        return self.one("SELECT json_deserialize_sql($1::JSON)", json.dumps(ast))

    def pushdown(self) -> Pushdown:
        read = json.loads(self.one("SELECT json_serialize_sql($1)", self.sql))
        if read.get("error"):
            # What is no statement at all, DuckDB says better.
            return self.as_it_was(str(read.get("error_message")))
        if len(read["statements"]) != 1:
            return self.as_it_was("several statements")
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
            return self.as_it_was("DuckDB writes it down in a way that it reads as something else")
        try:
            after = self.bind(text)
        except duckdb.Error as error:
            return self.as_it_was(f"DuckDB refuses what is left of it: {error}")
        if (before.columns, before.types) != (after.columns, after.types):
            return self.as_it_was("what is left of it has columns of other names or types")
        return Pushdown(after, text, self.blocks, [])

    def functions_of(self, ast: Any) -> dict[str, set[str]]:
        """What kinds of function there are of each name in a statement, macros among them."""
        called = {node["function_name"].lower() for node in nodes(ast, into_subqueries=True) if "function_name" in node}
        if not called:
            return {}
        found: dict[str, set[str]] = {}
        # One look for all: DuckDB lists all that it has for each.
        rows = self.con.sql(
            "SELECT DISTINCT lower(function_name), function_type || ' ' || coalesce(stability, '') "
            "FROM duckdb_functions() WHERE lower(function_name) IN (SELECT unnest($1))",
            params=[sorted(called)],
        )
        for name, kind in rows.fetchall():
            found.setdefault(name, set()).add(kind)
        return found

    def as_it_was(self, why: str) -> Pushdown:
        for block in self.blocks:
            block.left += block.shipped
            block.shipped, block.dataset = [], None
        return Pushdown(self.bind(self.sql), self.sql, self.blocks, [why])

    def offer_tables_of_pool(self, ast: Any) -> None:
        """Tables of the pool that nothing else has the name of are there under their names."""
        if self.pool is None:
            return
        there = {table.name for table in self.pool.tables()}
        for node in nodes(ast, into_subqueries=True):
            name = node.get("table_name") if node.get("type") == "BASE_TABLE" else None
            if name in there and name not in self.names and node["qualified_name"]["path"] == [name]:
                if self.is_unknown(name):
                    self.names[name] = self._known[name] = _dataset_type()(self.pool, name, placement=self.placement)

    def far(self, name: str) -> FarDataset | None:
        """The far table of a name."""
        if name not in self._known:
            found = registered(self.con, name)
            if found is None:
                # A variable of whoever calls, which DuckDB would find as well.
                variable = self.names.get(name)
                is_far = type(variable).__module__ == "farpool.dataset" and self.is_unknown(name)
                found = variable if is_far else None
            self._known[name] = found
        return self._known[name]

    def is_unknown(self, name: str) -> bool:
        """Whether the database has nothing of this name."""
        return not self.one(
            "SELECT count(*) FROM (SELECT table_name FROM duckdb_tables() UNION ALL "
            "SELECT view_name FROM duckdb_views()) WHERE lower(table_name) = lower($1)",
            name,
        )

    def visit(self, node: Any, ctes: frozenset[str]) -> None:
        """Looks for blocks, from the outside. `ctes`: names that mean something of the statement's own there."""
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
            block.left.append("a sample of the table: DuckDB draws it")
            return
        if table["column_name_alias"]:
            block.left.append("columns under other names")
            return
        try:
            terms = Terms(self.con, self.bind, self.written, self.functions, base, table)
        except NotShipped as why:
            block.left.append(str(why))
            return
        _Rewriting(self, block, node, base, terms).run()


class _Rewriting:
    """One block, taken apart. What is changed in it is changed at the end."""

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
        """Has the block read from a query in place of the table."""
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
        """Takes what is understood out of the filter, and returns the rest."""
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
        """The first rows in an order, or any so many. No rows if there is no limit."""
        node, terms = self.node, self.terms
        limits = self.modifiers("LIMIT_MODIFIER")
        if not limits:
            return None
        if self.modifiers("DISTINCT_MODIFIER"):
            raise NotShipped("each row once, and then a limit")
        if node["qualify"] is not None:
            raise NotShipped("QUALIFY")
        terms.check_rows(node["select_list"])
        limit = limits[0]
        if limit["limit_type"] != "ROW_COUNT" or limit["limit"] is None:
            raise NotShipped("a limit that is no number of rows")
        rows = terms.whole(limit["limit"]) + (terms.whole(limit["offset"]) if limit["offset"] else 0)
        columns = terms.columns_of(node)

        def narrowed(scan: farpool.Scan) -> farpool.Scan:
            # Whole rows leave; nobody asks for the other columns behind that.
            return self.narrowed(scan).select(columns)

        orders = [one for modifier in self.modifiers("ORDER_MODIFIER") for one in modifier["orders"]]
        if not orders:
            return lambda scan: narrowed(scan).limit(rows), f"limit {rows}"
        if rows > _TOP_ROWS_MAX:
            raise NotShipped(f"the first {rows} rows in an order: nodes hold {_TOP_ROWS_MAX} at most")
        keys = [terms.order(one, node["select_list"]) for one in orders]
        # Both zeros are one to DuckDB: -0.0 + 0.0 is 0.0.
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

        return query, f"first {rows} rows by {', '.join(key.column for key in keys)}"

    def grouping(self, is_whole: bool) -> tuple[Any, list[str]] | None:
        """Groups with their aggregates, or each row once; and has the block compute what is left over these. Nothing if
        the block does not group."""
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
            raise NotShipped("several sets of groups")
        if is_grouped:
            keys = [terms.key(one, node["select_list"]) for one in node["group_expressions"]]
        else:
            terms.check_rows(node["select_list"])
            keys = list(node["select_list"])
        alone = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
        try:
            before = self.statement.bind(self.statement.written(alone))
        except duckdb.Error as error:
            raise NotShipped(f"it does not stand by itself: {error}") from error
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
            raise NotShipped("one group of nothing")

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
        """That what is left of the block has the columns that it had."""
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
            raise NotShipped(f"DuckDB refuses what is left of it: {error}") from error
        finally:
            del statement.names[name]
        if (after.columns, after.types) != (before.columns, before.types):
            raise NotShipped(
                f"it would have {list(zip(after.columns, after.types, strict=True))} and not "
                f"{list(zip(before.columns, before.types, strict=True))}"
            )
