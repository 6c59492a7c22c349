"""Aggregates over no rows and over groups without values. DuckDB over its own table gives the expected answers. The
same query runs as `sql_pushdown`, as a relation and as `Pool.scan`."""

import decimal
import math

import duckdb
import pyarrow as pa
import pytest

import farpool
import farpool.duckdb
from farpool import col

# Two full row groups and a partial one.
ROWS = 140_000
PLACEMENTS = ("auto", "fetch", "ship", "split")
NUMBERS = {"whole": pa.int64(), "narrow": pa.float32(), "wide": pa.float64(), "exact": pa.decimal128(15, 2)}
OTHERS = {"flag": pa.bool_(), "day": pa.date32(), "moment": pa.timestamp("us"), "word": pa.string()}


def has_value(row: int) -> bool:
    """Reports whether a row has a value. By group: no row has one, every second, each, a single one, only some in the
    last row group, each."""
    return [False, row % 4 == 1, True, row == 3, row > 132_000, True][row % 6]


def facts() -> pa.Table:
    """Returns the test table. Its sums are exact in any order."""
    makers = {
        "whole": lambda row: row - 70_000,
        "narrow": lambda row: row % 250 / 4,
        "wide": lambda row: row % 999 / 8,
        "exact": lambda row: decimal.Decimal(row % 9_000 - 4_500).scaleb(-2),
        "flag": lambda row: row % 2 == 1,
        "day": lambda row: row // 100,
        "moment": lambda row: row * 1_000,
        "word": lambda row: f"w {row % 77}",
    }
    columns = {"id": pa.array(range(ROWS)), "key": pa.array([row % 6 if row % 6 < 5 else None for row in range(ROWS)])}
    for name, of in {**NUMBERS, **OTHERS}.items():
        columns[name] = pa.array([makers[name](row) if has_value(row) else None for row in range(ROWS)], of)
    return pa.table(columns)


@pytest.fixture(scope="module")
def pool():
    with farpool.embedded("256MiB", nodes=2) as pool:
        pool.put_table("facts", facts())
        pool.put_table("empty", facts().slice(0, 0))
        yield pool


@pytest.fixture(scope="module")
def own(pool):
    """Opens a database with copies of the same tables."""
    with duckdb.connect() as con:
        for name in ("facts", "empty"):
            con.register("given", pool.table(name).to_arrow())
            con.execute(f"CREATE TABLE {name} AS FROM given")
        yield con


def shown(rows: list[tuple]) -> list[tuple]:
    """Returns rows in an order, with NaN as text and numbers in a form in which equal ones compare equal."""

    def one(value):
        if isinstance(value, float) and math.isnan(value):
            return "NaN"
        return float(value) + 0.0 if isinstance(value, float | int | decimal.Decimal) else str(value)

    return sorted((tuple(map(one, row)) for row in rows), key=repr)


def found(con: duckdb.DuckDBPyConnection, sql: str) -> dict[str, list[tuple]]:
    """Returns the answer of a connection in which the far tables are registered."""
    return {"relation": con.sql(sql).fetchall(), "pushdown": farpool.duckdb.sql_pushdown(con, sql).fetchall()}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_aggregates_over_nothing_and_over_null_are_those_of_duckdb(pool, own, placement):
    outputs, aggregates = ["count(*)"], [farpool.len()]
    for name in [*NUMBERS, *OTHERS]:
        functions = ["count", "min", "max", *(["sum", "avg"] if name in NUMBERS else [])]
        outputs += [f"{function}({name})" for function in functions]
        names = ["mean" if function == "avg" else function for function in functions]
        aggregates += [getattr(col(name), function)().alias(f"{function} {name}") for function in names]
    sources = {
        "facts": pool.scan("facts"),
        "facts WHERE key = 0": pool.scan("facts").filter(col("key") == 0),
        "facts WHERE id < 0": pool.scan("facts").filter(col("id") < 0),
        "empty": pool.scan("empty"),
    }
    with duckdb.connect() as con:
        farpool.duckdb.register(con, pool, placement=placement)
        for source, scan in sources.items():
            for keys in ([], ["key"]):
                grouping = f" GROUP BY {keys[0]}" if keys else ""
                sql = f"SELECT {', '.join([*keys, *outputs])} FROM {source}{grouping}"
                wanted = shown(own.sql(sql).fetchall())
                for how, rows in found(con, sql).items():
                    assert shown(rows) == wanted, (how, sql)
                query = scan.group_by(*keys).agg(*aggregates) if keys else scan.select(*aggregates)
                rows = query.to_arrow(placement=placement)
                rows = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
                assert shown(rows) == wanted, ("scan", sql)
