"""Random queries over random tables. A scan that is fetched, shipped or split must answer as DuckDB does to equivalent
SQL.

Integers, decimals, text, times, and floats that are not computed must be equal. Floats that were added or divided may
differ by at most `BOUND` of the sum of their terms. If a value does not fit, both sides must refuse the query.

FARPOOL_PIPELINES sets the number of queries, and FARPOOL_SEED the first one.
"""

import math
import os
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import random_queries

import farpool

BOUND = 1e-9
FIRST = int(os.environ.get("FARPOOL_SEED", "1"))
PIPELINES = int(os.environ.get("FARPOOL_PIPELINES", "400"))
QUERIES_OF_A_TABLE = 20
# Number of tests that the queries are divided into, so that a failing query is found quickly.
TESTS = 8
PLACEMENTS = ("auto", "fetch", "ship", "split")


def rows_of(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []


def is_same(one: Any, other: Any, weight: float) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        if math.isnan(one) or math.isnan(other) or math.isinf(one) or math.isinf(other):
            return one == other or (math.isnan(one) and math.isnan(other))
        return abs(one - other) <= BOUND * max(weight, abs(one), abs(other))
    return one == other


def key(row: tuple) -> tuple:
    """Returns a sort key by which nearly equal rows are neighbours."""

    def of(value: Any) -> tuple:
        match value:
            case None:
                return (0, "")
            case float():
                return (2, "nan") if math.isnan(value) else (1, float(f"{value:.6g}") + 0.0)
            case bool() | int():
                return (1, value)
            case bytes():
                return (3, value)
            case str():
                return (2, value)
        try:
            return (1, float(value))
        except TypeError:
            return (4, str(value))

    return tuple(map(of, row))


def difference(found: list[tuple], expected: list[tuple], is_ordered: bool) -> str | None:
    """Returns a text about the first difference, or `None`."""
    if len(found) != len(expected):
        return f"{len(found)} rows, where DuckDB has {len(expected)}"
    floats = [abs(value) for row in expected for value in row if isinstance(value, float) and math.isfinite(value)]
    # Terms that cancelled out were at most this large: every value of a float column is below 1e6.
    weight = max([1.0, *floats]) if not floats else max(1e6, *floats)
    if not is_ordered:
        found, expected = sorted(found, key=key), sorted(expected, key=key)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not all(is_same(mine, theirs, weight) for mine, theirs in zip(one, other, strict=True)):
            return f"row {index}: {one}, where DuckDB has {other}"
    return None


def answer_of_duckdb(con: duckdb.DuckDBPyConnection, sql: str) -> tuple[pa.Table | None, Exception | None]:
    """Returns DuckDB's answer, or its error if a value does not fit."""
    try:
        return con.sql(sql).to_arrow_table(), None
    except (duckdb.OutOfRangeException, duckdb.ConversionException) as refusal:
        return None, refusal


@pytest.mark.parametrize("part", range(TESTS))
def test_scans_answer_what_duckdb_answers(part: int):
    first = FIRST + part * PIPELINES // TESTS
    after = FIRST + (part + 1) * PIPELINES // TESTS
    refused = 0
    table_number, table, scan = None, None, None
    with farpool.embedded("64MiB", nodes=2, region_size="1MiB") as pool, duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.execute("SET error_on_division_by_zero = false")
        for seed in range(first, after):
            if table_number != seed // QUERIES_OF_A_TABLE:
                table_number = seed // QUERIES_OF_A_TABLE
                table = random_queries.table(table_number)
                pool.put_table("t", table, replace=True, layout=random_queries.layout(table_number, table))
                scan = pool.scan("t")
                con.register("t", table)
            query = random_queries.query(seed, scan)
            for name, other in query.others.items():
                con.register(name, other)
            repeat = f"FARPOOL_SEED={seed} FARPOOL_PIPELINES=1\n{query.sql}\n{query.scan.explain()}"
            expected, refusal = answer_of_duckdb(con, query.sql)
            try:
                found = query.scan.to_arrow(placement=PLACEMENTS[seed % 3])
            except farpool.InvalidError as error:
                # DuckDB does not compute unused expressions. It refuses the value when it must compute all of them.
                refusals = [answer_of_duckdb(con, sql)[1] for sql in query.computed] + [refusal]
                assert any(refusals), f"{error}\n{repeat}"
                refused += 1
                continue
            if expected is None:
                # The scan did not compute a row that is not needed.
                refused += 1
                continue
            assert found.column_names == (expected.column_names), repeat
            if query.limit is not None:
                assert found.num_rows == min(query.limit, expected.num_rows), repeat
                assert set(found["id"].to_pylist()) <= set(expected["id"].to_pylist()), repeat
                continue
            what = difference(rows_of(found), rows_of(expected), query.is_ordered)
            if what is not None:
                pytest.fail(f"{what}\n{repeat}", pytrace=False)
        stats = pool.stats()
    assert refused <= max(5, (after - first) // 10)
    if after - first >= 40:
        assert stats["row_groups_skipped"] > 0 and stats["row_groups_read"] > 0
