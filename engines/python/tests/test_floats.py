"""NaN of either sign and both zeros, with every placement. `sql_pushdown` and relations answer as DuckDB does.
`Pool.scan` uses the total order of IEEE 754, with all bits (spec/pipeline.md, *Floats*)."""

import math
import struct

import duckdb
import pyarrow as pa
import pytest
from test_aggregates import PLACEMENTS, ROWS, found, shown

import farpool
import farpool.duckdb
from farpool import col


def bits(number: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", number))[0]


# NaN of both signs and with other payloads, both zeros, both infinities.
SPECIAL = [0.0, -0.0, math.nan, bits(0xFFF8 << 48), bits(0x7FF8_0000_2000_0000), math.inf, -math.inf, 1.5, -1.5, None]


def floats() -> pa.Table:
    values = [SPECIAL[row % 7 * 3 % 10 if row % 2 else row // 7 % 10] for row in range(ROWS)]
    finite = [None if row % 11 == 0 else -0.0 if row % 5 == 0 else (row % 9 - 4) / 2 for row in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS)),
            "key": pa.array([row % 7 for row in range(ROWS)]),
            "f": pa.array(values, pa.float64()),
            "n": pa.array(values, pa.float32()),
            "finite": pa.array(finite, pa.float64()),
        }
    )


@pytest.fixture(scope="module")
def pool():
    with farpool.embedded("256MiB", nodes=2) as pool:
        pool.put_table("floats", floats())
        yield pool


@pytest.fixture(scope="module")
def own():
    """Opens a database with a copy of the test table."""
    with duckdb.connect() as con:
        con.register("given", floats())
        con.execute("CREATE TABLE floats AS FROM given")
        yield con


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_nan_and_both_zeros_are_what_duckdb_takes_them_for(pool, own, placement):
    """DuckDB has one NaN, greater than all numbers, and one zero. Parts of a statement for which that matters are left
    to DuckDB."""
    signs = ("<", "<=", "=", "<>", ">=", ">")
    conditions = [f"f {sign} {value}" for sign in signs for value in ("0.0", "1.5", "'nan'::DOUBLE")]
    conditions += [f"n {sign} -0.0::FLOAT" for sign in signs]
    conditions += ["f IN (0.0, 1.5)", "f IN ('nan', 0)", "f BETWEEN -1.5 AND 0", "f = n", "f < n", "NOT f > 0"]
    queries = [f"SELECT count(*), count(f) FROM floats WHERE {condition}" for condition in conditions]
    queries += [
        "SELECT min(f), max(f), min(n), max(n) FROM floats",
        "SELECT key, min(f), max(f), min(n), max(n), sum(finite), min(finite) FROM floats GROUP BY key",
        "SELECT DISTINCT f FROM floats",
        "SELECT n, count(*) FROM floats GROUP BY n",
        "SELECT finite, count(*), max(id) FROM floats GROUP BY finite",
        "SELECT f, id FROM floats ORDER BY f, id LIMIT 3000",
        "SELECT n, id FROM floats ORDER BY n DESC NULLS LAST, id LIMIT 3000",
        "SELECT finite, id FROM floats ORDER BY finite, id LIMIT 30000",
        "SELECT finite, id FROM floats ORDER BY finite DESC, id DESC LIMIT 5",
        "SELECT key, max(f * 2), min(finite * 2) FROM floats GROUP BY key",
    ]
    with duckdb.connect() as con:
        farpool.duckdb.register(con, pool, placement=placement)
        for sql in queries:
            wanted = shown(own.sql(sql).fetchall())
            for how, rows in found(con, sql).items():
                assert shown(rows) == wanted, (how, sql)


def test_what_cannot_be_nan_is_grouped_and_ordered_beside_the_data(pool):
    with duckdb.connect() as con:
        farpool.duckdb.register(con, pool, placement="ship")
        for sql in (
            "SELECT finite, count(*) FROM floats GROUP BY finite",
            "SELECT max(finite), min(finite * 2) FROM floats",
            "SELECT finite, id FROM floats ORDER BY finite, id LIMIT 5",
            "SELECT sum(f), count(n) FROM floats",
        ):
            (block,) = farpool.duckdb.sql_pushdown(con, sql).blocks
            assert block.shipped and not block.left, sql
        for sql in ("SELECT f, count(*) FROM floats GROUP BY f", "SELECT max(n) FROM floats"):
            (block,) = farpool.duckdb.sql_pushdown(con, sql).blocks
            assert not block.shipped and "may be NaN" in " ".join(block.left), sql


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_scans_have_the_total_order_of_floats_with_their_bits(pool, placement):
    def numbers(column: pa.ChunkedArray) -> list[int | None]:
        return [
            None if value is None else struct.unpack("<q", struct.pack("<d", value))[0] for value in column.to_pylist()
        ]

    def place(number: int) -> int:
        return number if number >= 0 else number ^ ((1 << 63) - 1)

    given = [number for number in numbers(floats()["f"]) if number is not None]
    least, most = min(given, key=place), max(given, key=place)
    ends = (
        pool.scan("floats")
        .select(col("f").min().alias("least"), col("f").max().alias("most"))
        .to_arrow(placement=placement)
    )
    assert (numbers(ends["least"]), numbers(ends["most"])) == ([least], [most])
    first = numbers(pool.scan("floats").sort("f", nulls_last=True).limit(60_000).to_arrow(placement=placement)["f"])
    assert first == sorted(given, key=place)[:60_000]
    # A key of -0.0 is 0.0.
    keys = numbers(pool.scan("floats").select("f").distinct().to_arrow(placement=placement)["f"])
    negative_zero = struct.unpack("<q", struct.pack("<d", -0.0))[0]
    wanted = {0 if number == negative_zero else number for number in given}
    assert keys == [None, *sorted(wanted, key=place)]
