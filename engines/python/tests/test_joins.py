"""Semi-joins and anti-joins: which keys are equal, how the keys are sent, and which errors are raised."""

import datetime
import decimal
import json

import duckdb
import pyarrow as pa
import pytest

import farpool
from farpool import col

ROWS = 300_000
PLACEMENTS = ("auto", "fetch", "ship", "split")
DAY = datetime.date(2024, 1, 1)


@pytest.fixture(scope="module")
def local():
    with farpool.embedded("256MiB", nodes=2) as pool:
        rows = range(ROWS)
        orders = pa.table(
            {
                "id": pa.array(rows, pa.int64()),
                "customer": pa.array([row * 7_919 % 50_000 if row % 10 else None for row in rows], pa.int32()),
                # Values are a prime apart, so that a bitmap of the range would be too large.
                "code": pa.array([row * 1_000_003 for row in rows], pa.int64()),
                "mode": pa.array([["AIR", "RAIL", "SHIP", None][row % 4] for row in rows]),
            }
        )
        pool.put_table("orders", orders)
        yield pool


def rows(query: farpool.Scan, placement: str) -> list[tuple]:
    table = query.to_arrow(placement=placement)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def joins(query: farpool.Scan) -> list[dict]:
    return json.loads(query.explain(format="json"))["semi_joins"]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_null_is_like_nothing(local, placement):
    orders = local.scan("orders").filter(col("id") < 8).select("id", "mode")
    other = pa.table({"mode": ["AIR", None, "TRUCK", "AIR"]})
    assert rows(orders.semi_join(other, on="mode"), placement) == [(0, "AIR"), (4, "AIR")]
    assert [row for row, _ in rows(orders.anti_join(other, on="mode"), placement)] == [1, 2, 3, 5, 6, 7]
    none = other.slice(0, 0)
    assert orders.semi_join(none, on="mode").count(placement=placement) == 0
    assert orders.anti_join(none, on="mode").count(placement=placement) == 8


@pytest.mark.parametrize(
    "on", ["id", ["id"], [("id", "id")], {"id": "id"}, ("id",), ["id", ("mode", "mode")], {"id": "id", "mode": "mode"}]
)
def test_keys_are_named_in_any_way(local, on):
    other = pa.table({"mode": ["AIR", "RAIL"], "id": [4, 5], "else": [1, 2]})
    assert local.scan("orders").semi_join(other, on=on).select("id").to_arrow()["id"].to_pylist() == [4, 5]


def test_keys_come_from_anything_that_reads_as_arrow(local):
    orders = local.scan("orders")
    other = pa.table({"key": [3, 5, 5]})
    with duckdb.connect() as con:
        relation = con.sql("SELECT key FROM other")
        for keys in (
            other,
            other.to_batches()[0],
            relation,
            pa.RecordBatchReader.from_batches(other.schema, other.to_batches()),
        ):
            assert orders.semi_join(keys, on={"id": "key"}).count() == 2
    # A query, and the result of a query.
    small = orders.filter(col("id").is_in([7, 8, 9])).select(col("id").alias("key"))
    assert orders.semi_join(small, on={"id": "key"}).count() == 3
    assert orders.semi_join(small.collect(), on={"id": "key"}).count() == 3
    assert orders.semi_join(local.table("orders"), on="id").count() == ROWS


def test_keys_of_other_types_are_the_same_values(local):
    orders = local.scan("orders")
    for values, of in [
        ([1, 2**31, -1, None], pa.int64()),
        ([1, 2], pa.uint8()),
        ([decimal.Decimal("1.00"), decimal.Decimal("1.50")], pa.decimal128(9, 2)),
    ]:
        other = pa.table({"customer": pa.array(values, of)})
        found = orders.semi_join(other, on="customer").select("customer").distinct().to_arrow()["customer"].to_pylist()
        assert set(found) <= {1, 2}, of
        assert 1 in found, of
    for wrong in (pa.array(["1"]), pa.array([1.0]), pa.array([DAY]), pa.array([True])):
        with pytest.raises(
            farpool.InvalidError, match=r"semi-join: customer: keys of .* cannot be compared with int32"
        ):
            orders.semi_join(pa.table({"customer": wrong}), on="customer")


def test_what_is_wrong_is_said_where_it_was_written(local):
    orders, other = local.scan("orders"), pa.table({"id": [1]})
    for on, text in [
        ("nothing", r'no column "nothing"; there are id, customer'),
        ({"id": "key"}, r'the other table has no column "key"; there are id'),
        ([], r"0 keys: 1 to 32 are permitted"),
        (7, r"on is 7: a column, a list of columns or of pairs"),
        ([7], r"on is \[7\]: a column"),
        ({"id": 7}, r"on is \{'id': 7\}: a column"),
    ]:
        with pytest.raises(farpool.InvalidError, match=text):
            orders.semi_join(other, on=on)
    with pytest.raises(farpool.InvalidError, match="only limit may follow sort"):
        orders.sort("id").semi_join(other, on="id")
    with pytest.raises(farpool.InvalidError, match="cannot read rows from an object of type int"):
        orders.semi_join(7, on="id")


def test_few_keys_travel_and_row_groups_without_any_are_skipped(local):
    query = local.scan("orders").semi_join(pa.table({"id": [5, 70_000]}), on="id")
    told = json.loads(query.explain(format="json"))
    assert (told["row_groups"], told["row_groups_total"]) == (2, 5)
    assert [join["by"] for join in told["semi_joins"]] == ["keys"]
    assert [query.count(placement=placement) for placement in PLACEMENTS] == [2] * len(PLACEMENTS)
    # No other row group has a value between the least and the greatest key, or outside that range.
    apart = local.scan("orders").semi_join(pa.table({"id": [-5, ROWS]}), on="id")
    assert json.loads(apart.explain(format="json"))["row_groups"] == 0
    assert [apart.count(placement=placement) for placement in PLACEMENTS] == [0] * len(PLACEMENTS)
    anti = local.scan("orders").anti_join(pa.table({"id": [5]}), on="id")
    assert json.loads(anti.explain(format="json"))["row_groups"] == 5


def test_many_keys_travel_as_a_filter_and_the_rows_are_the_same(local):
    # Every hundredth of 600,000 keys occurs in the table. A Bloom filter keeps some more rows.
    keys = pa.table({"code": pa.array([at * 10_007 + (at % 100 > 0) for at in range(600_000)], pa.int64())})
    orders = local.scan("orders")
    with duckdb.connect() as con:
        table = local.table("orders").to_arrow()
        con.register("orders", table)
        con.register("keys", keys)
        kept = con.sql("SELECT id FROM orders WHERE code IN (SELECT code FROM keys) ORDER BY id").fetchall()
        count = con.sql("SELECT count(*) FROM orders WHERE code NOT IN (SELECT code FROM keys)").fetchall()
    query = orders.semi_join(keys, on="code").select("code", "id").filter(col("id") >= 0)
    assert [join["by"] for join in joins(query)] == ["filter"]
    assert "Bloom filter" in query.explain()
    for placement in PLACEMENTS:
        assert [(row,) for _, row in rows(query, placement)] == kept
    # Rows that nodes count, or keep because they have no partner, must be exact there.
    anti = orders.anti_join(keys, on="code")
    counted = orders.semi_join(keys, on="code").select(farpool.len())
    assert [join["by"] for join in joins(anti) + joins(counted)] == ["keys", "keys"]
    for placement in PLACEMENTS:
        assert [(anti.count(placement=placement),)] == count
        assert rows(counted, placement) == [(len(kept),)]


def test_too_many_keys_to_travel_are_looked_up_here(local):
    keys = pa.table({"code": pa.array(range(0, 3_000_000 * 3, 3), pa.int64())})
    orders = local.scan("orders")
    anti = orders.anti_join(keys, on="code")
    assert [join["by"] for join in joins(anti)] == ["here"]
    assert len({anti.count(placement=placement) for placement in PLACEMENTS}) == 1
    assert [join["by"] for join in joins(orders.semi_join(keys, on="code"))] == ["filter"]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_joins_stand_anywhere_in_a_query(local, placement):
    orders = local.scan("orders")
    customers = pa.table({"customer": pa.array(range(0, 50_000, 2))})
    modes = pa.table({"mode": ["AIR", "SHIP"]})
    query = (
        orders.semi_join(customers, on="customer")
        .with_columns(twice=col("customer") * 2)
        .anti_join(modes, on="mode")
        .semi_join(pa.table({"key": range(0, 4_000)}), on={"twice": "key"})
        .group_by("mode")
        .agg(farpool.len())
        .semi_join(pa.table({"mode": ["RAIL", "SHIP"]}), on="mode")
    )
    table = local.table("orders").to_arrow()
    with duckdb.connect() as con:
        con.register("orders", table)
        sql = """SELECT mode, count(*) FROM orders WHERE customer % 2 = 0 AND customer * 2 < 4000 AND mode = 'RAIL'
                 GROUP BY mode"""
        assert rows(query, placement) == con.sql(sql).fetchall()


def test_connection_serves_query_after_query_with_lookups(local):
    # Each query's keys take memory for lookups at the node, and would exhaust it if they were not dropped.
    keys = pa.table({"id": pa.array([at * 1_000_003 for at in range(1_000_000)], pa.int64())})
    orders = local.scan("orders")
    counted = orders.semi_join(keys, on="id").select(farpool.len())
    assert [join["by"] for join in joins(counted)] == ["keys"]
    for _ in range(12):
        assert rows(counted, "ship") == [(1,)]
