"""Queries over far tables from Python: the meaning of each step, which bytes are read, and which errors are raised."""

import datetime
import decimal
import json
import math
import os

import duckdb
import pyarrow as pa
import pytest
from conftest import wait_until

import farpool
from farpool import col, lit

ROWS = 200_000
DAY = datetime.date(2024, 1, 1)


def orders() -> pa.Table:
    """Returns a table sorted by day, with four row groups."""
    rows = range(ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "day": pa.array([DAY + datetime.timedelta(days=row // 1_000) for row in rows], pa.date32()),
            "price": pa.array([decimal.Decimal(row % 10_007).scaleb(-2) for row in rows], pa.decimal128(12, 2)),
            "mode": pa.array([["AIR", "RAIL", "SHIP", None][row % 4] for row in rows]),
            "rate": pa.array([row / 7 for row in rows], pa.float64()),
        }
    )


@pytest.fixture(scope="module")
def local():
    with farpool.embedded("256MiB", nodes=2) as pool:
        pool.put_table("orders", orders())
        yield pool


def few(pool: farpool.Pool, **columns: pa.Array) -> farpool.Scan:
    """Puts a small table with these columns."""
    pool.put_table("few", pa.table(columns), replace=True)
    return pool.scan("few")


def rows(query: farpool.Scan) -> list[tuple]:
    table = query.to_arrow()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []


def test_scan_over_every_transport(pool):
    pool.put_table("orders", orders().slice(0, 1_000))
    query = pool.scan("orders").filter(col("mode") == "AIR").group_by("mode").agg(col("price").sum(), farpool.len())
    assert rows(query) == [("AIR", sum(orders()["price"].to_pylist()[:1_000:4]), 250)]
    pool.drop_table("orders")


@pytest.mark.parametrize("placement", ["auto", "fetch", "ship", "split"])
def test_rows_are_the_same_wherever_the_query_runs(local, placement):
    scan = local.scan("orders").filter(col("day") >= datetime.date(2024, 3, 1))
    grouped = scan.group_by("mode").agg(col("price").sum(), farpool.len())
    assert grouped.to_arrow(placement=placement).equals(grouped.to_arrow())
    assert scan.collect(placement=placement).to_arrow().to_pylist() == scan.to_arrow().to_pylist()
    assert scan.count(placement=placement) == ROWS - 60_000
    with pytest.raises(farpool.InvalidError, match='"near" is not a placement: auto, fetch, ship and split'):
        scan.collect(placement="near")


def test_report_says_what_was_expected_and_what_it_took(local):
    query = local.scan("orders").group_by("mode").agg(col("price").sum())
    found = query.collect()
    report = found.report
    assert report["placement"] == "auto" and report["chosen"] in ("fetch", "ship", "split")
    assert report["why"].startswith(report["chosen"] + " is limited by ")
    assert report["shipped"] + report["fetched"] + report["skipped"] == report["row_groups"] == 4
    assert set(report["expected"]) == {"fetch", "ship", "split"}
    for estimate in report["expected"].values():
        assert estimate["seconds"] > 0 and estimate["link_bytes"] > 0
    assert report["expected"]["ship"]["link_bytes"] < report["expected"]["fetch"]["link_bytes"]
    assert report["link_bytes"] > 0 and report["seconds"] > 0
    assert found.explain().startswith(f"auto, {report['chosen']}: of 4 row groups ")
    assert "expected: fetch " in found.explain()
    # The costs of a query that has run once are known.
    told = json.loads(query.explain(format="json"))
    assert told["sure"] and told["choice"] in ("fetch", "ship", "split") and told["expected"]["split"]["seconds"] > 0
    assert "expected: fetch " in query.explain()
    forced = query.collect(placement="fetch").report
    assert (forced["placement"], forced["chosen"], forced["fetched"]) == ("fetch", "fetch", 4)


def test_row_groups_and_columns_that_are_not_needed_are_not_read(local):
    scan = local.scan("orders")
    before = local.stats()
    days = col("day").between(datetime.date(2024, 4, 1), datetime.date(2024, 4, 7))
    query = scan.filter(days, col("mode").is_not_null()).select(col("price").sum(), farpool.len())
    with duckdb.connect() as con:
        con.register("orders", orders())
        expected = con.sql(
            "select sum(price), count(*) from orders "
            "where day between '2024-04-01' and '2024-04-07' and mode is not null"
        ).fetchall()
    assert [tuple(row.values()) for row in query.to_arrow(placement="fetch").to_pylist()] == expected
    after = local.stats()
    assert after["row_groups_read"] - before["row_groups_read"] == 1
    assert after["row_groups_skipped"] - before["row_groups_skipped"] == 3
    told = json.loads(query.explain(format="json"))
    assert (told["row_groups"], told["row_groups_skipped"], told["row_groups_total"]) == (1, 3, 4)
    assert told["columns"] == ["day", "price", "mode"] and told["columns_total"] == 5
    assert told["bytes"] == after["bytes_read"] - before["bytes_read"]
    assert told["near"][0] == "filter day >= 2024-04-01 and day <= 2024-04-07 and mode is not null"
    assert told["result"] == {"price": "decimal(38, 2)", "len": "int64"}
    words = query.explain()
    assert "reads 1 of 4 row groups: 3 skipped by their statistics" in words
    assert "reads 3 of 5 columns: day, price, mode" in words


def test_rows_pass_to_other_libraries_as_often_as_they_like(local):
    found = local.scan("orders").filter(col("id") < 10).select("id", "mode").collect()
    assert (found.num_rows, len(found), found.column_names) == (10, 10, ["id", "mode"])
    assert pa.table(found).equals(found.to_arrow())
    assert pa.RecordBatchReader.from_stream(found).read_all().num_rows == 10
    assert duckdb.sql("select count(mode) from found").fetchall() == [(8,)]
    local.put_table("copy", found)
    assert local.table("copy").scan().count() == 10
    cheapest = local.scan("orders").group_by("mode").agg(col("price").min())
    local.put_table("copy", cheapest, replace=True)  # a scan can be put without running it first
    assert local.scan("copy").to_arrow().equals(cheapest.to_arrow())
    assert pa.table(cheapest).equals(cheapest.to_arrow())
    local.drop_table("copy")


def test_count_asks_for_no_column(local):
    scan = local.scan("orders")
    before = local.stats()["bytes_read"]
    assert scan.count() == ROWS
    assert local.stats()["bytes_read"] == before
    assert local.scan("orders").filter(col("id") >= 199_990).count() == 10
    assert local.scan("orders").group_by("mode").agg().count() == 4
    assert local.scan("orders").limit(7).count() == 7
    assert local.scan("orders").sort("id").count() == ROWS


def test_literals_are_values_of_python(local):
    moment = datetime.datetime(2024, 3, 31, 12, 30, 15, 250)
    zoned = moment.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    values = {
        "whole": (pa.int16(), -3),
        "unsigned": (pa.uint64(), 2**64 - 1),
        "float": (pa.float64(), 0.1),
        "single": (pa.float32(), 0.5),
        "decimal": (pa.decimal128(12, 2), decimal.Decimal("-1.50")),
        "text": (pa.string(), "größe"),
        "bytes": (pa.binary(), b"\x00\xff"),
        "fixed": (pa.binary(3), b"abc"),
        "day": (pa.date32(), datetime.date(1905, 6, 30)),
        "clock": (pa.timestamp("us"), moment),
        "instant": (pa.timestamp("us", "Europe/Zurich"), zoned),
        "coarse": (pa.timestamp("ns"), moment),
        "truth": (pa.bool_(), True),
    }
    scan = few(local, **{name: pa.array([value, None], of) for name, (of, value) in values.items()})
    for name, (_, value) in values.items():
        assert scan.filter(col(name) == value).count() == 1, name
        assert scan.filter(lit(value) == col(name)).count() == 1, name
        assert scan.filter(col(name) != value).count() == 0, name
        assert scan.filter(col(name).is_in([value])).count() == 1, name
        assert scan.filter(col(name).is_in([value, None])).count() == 1, name
        assert scan.filter(~col(name).is_in([value, None])).count() == 0, name
        assert scan.filter(col(name).between(value, value)).count() == 1, name
        assert scan.filter(col(name) == None).count() == 0, name  # noqa: E711
        assert scan.filter(col(name).is_null()).count() == 1, name
    assert scan.filter(col("decimal") == decimal.Decimal("-1.500")).count() == 1
    assert scan.filter(col("decimal") < decimal.Decimal("-1.499")).count() == 1
    assert scan.filter(col("decimal") == decimal.Decimal("-15E-1")).count() == 1
    assert scan.filter(col("day") < datetime.datetime(1905, 6, 30, 0, 0, 1)).count() == 1


def test_nan_equals_itself_and_is_the_greatest(local):
    scan = few(local, f=pa.array([1.0, math.nan, None, -0.0, math.inf]))
    assert scan.filter(col("f") > math.inf).count() == 1
    assert scan.filter(col("f") == math.nan).count() == 1
    assert scan.filter(col("f") == 0.0).count() == 1
    found = [value for (value,) in rows(scan.sort("f", nulls_last=True))]
    assert found[:3] == [0.0, 1.0, math.inf] and math.isnan(found[3]) and found[4] is None
    assert rows(scan.select(col("f").min(), top=col("f").count())) == [(-0.0, 4)]


def test_division_gives_floats_and_remainders_the_sign_of_the_left(local):
    scan = few(local, n=pa.array([7, -7, 1, None], pa.int32()), d=pa.array([decimal.Decimal("0.5")] * 4))
    query = scan.select(half=col("n") / 2, rest=col("n") % 3, none=col("n") % 0, over=1 / col("n"), d=col("d") / 2)
    assert query.schema == {"half": "float64", "rest": "int32", "none": "int32", "over": "float64", "d": "float64"}
    assert rows(query)[:2] == [(3.5, 1, None, 1 / 7, 0.25), (-3.5, -1, None, -1 / 7, 0.25)]
    assert rows(query)[3] == (None, None, None, None, 0.25)


def test_order_is_that_of_polars(local):
    scan = few(local, a=pa.array([2, None, 1, 2]), b=pa.array(["x", "y", None, "w"]))
    assert rows(scan.sort("a")) == [(None, "y"), (1, None), (2, "x"), (2, "w")]
    assert rows(scan.sort("a", "b", descending=[True, False], nulls_last=True)) == [
        (2, "w"),
        (2, "x"),
        (1, None),
        (None, "y"),
    ]
    assert rows(scan.sort("a").limit(2)) == [(None, "y"), (1, None)]
    assert rows(scan.top_k(2, by="a")) == [(2, "x"), (2, "w")]
    assert rows(scan.top_k(1, by=["a", "b"], reverse=True)) == [(1, None)]
    assert rows(scan.sort("a").limit(2).select("b")) == [("y",), (None,)]
    assert rows(scan.sort("a").limit(0)) == []


def test_more_rows_than_nodes_hold_are_sorted_by_the_client(local):
    query = local.scan("orders").select("id", key=col("id") % 1_000)
    found = rows(query.sort("key", "id", descending=[True, False]).limit(100_000))
    assert found == sorted(((row, row % 1_000) for row in range(ROWS)), key=lambda row: (-row[1], row[0]))[:100_000]
    assert "top 100000 rows by key descending" in query.sort("key", descending=True).limit(100_000).explain()


def test_names_are_those_of_the_leftmost_column(local):
    scan = local.scan("orders")
    query = scan.with_columns(col("rate") * 2, twice=2 * col("id")).select(["id", "rate"], col("twice").alias("t"))
    assert query.column_names == ["id", "rate", "t"]
    assert rows(query.filter(col("id") == 7)) == [(7, 2.0, 14)]
    assert scan.group_by(month=col("id") / 1_000).agg(n=col("mode").count()).column_names == ["month", "n"]
    assert repr(scan) == '<farpool.Scan of "orders": id, day, price, mode, rate>'


def test_empty_tables_and_empty_answers_keep_their_columns(local):
    scan = few(local, n=pa.array([], pa.int64()), s=pa.array([], pa.string()))
    assert scan.filter(col("n") > 1).to_arrow().schema == pa.schema({"n": pa.int64(), "s": pa.string()})
    assert rows(scan.select(col("n").sum(), farpool.len())) == [(None, 0)]
    assert rows(scan.group_by("s").agg(col("n").sum())) == []
    assert rows(scan.sort("n").limit(3)) == [] and rows(scan.sort("n")) == [] and rows(scan.distinct()) == []
    assert scan.count() == 0


QUERIES = {
    "id = 4711": lambda: col("id") == 4711,
    "id in (1, 5, 199999, -3)": lambda: col("id").is_in([1, 5, 199_999, -3]),
    "id between 65535 and 65536": lambda: col("id").between(65_535, 65_536),
    "not id < 199998": lambda: ~(col("id") < 199_998),
    "id > 199990.5": lambda: col("id") > 199_990.5,
    "day = date '2024-02-29'": lambda: col("day") == datetime.date(2024, 2, 29),
    "day >= timestamp '2024-07-17 00:00:01'": lambda: col("day") >= datetime.datetime(2024, 7, 17, 0, 0, 1),
    "price = 0.07 and id < 50000": lambda: (col("price") == decimal.Decimal("0.07")) & (col("id") < 50_000),
    "price > 100.055": lambda: col("price") > decimal.Decimal("100.055"),
    "price * 2 >= 200.12": lambda: col("price") * 2 >= decimal.Decimal("200.12"),
    "price + 1 < 1.02": lambda: col("price") + 1 < decimal.Decimal("1.02"),
    "mode is null and id < 20": lambda: col("mode").is_null() & (col("id") < 20),
    "mode like '%AI_' escape '\\' and id < 20": lambda: col("mode").like("%AI_") & (col("id") < 20),
    "mode ilike 'a%' escape '\\' and id < 20": lambda: col("mode").ilike("a%") & (col("id") < 20),
    "regexp_matches(mode, '^[RS]') and id < 20": lambda: col("mode").matches("^[RS]") & (col("id") < 20),
    "(mode = 'AIR' or mode is null) and id % 5003 = 1": lambda: (
        ((col("mode") == "AIR") | col("mode").is_null()) & (col("id") % 5_003 == 1)
    ),
    "rate between 1.0 and 2.0": lambda: col("rate").between(1.0, 2.0),
    "rate > 28571.2": lambda: col("rate") > 28_571.2,
    "cast(id as varchar) like '1999_9' escape '\\'": lambda: col("id").cast("text").like("1999_9"),
    "cast(rate as bigint) = 4": lambda: col("rate").cast(pa.int64()) == 4,
    "-id > -3": lambda: -col("id") > -3,
    "id < 3 and true": lambda: (col("id") < 3) & True,
    "mode > 'SHIOP' and id < 9": lambda: (col("mode") > "SHIOP") & (col("id") < 9),
    "id / 2 = 4.5": lambda: col("id") / 2 == 4.5,
}


@pytest.mark.parametrize("sql", QUERIES)
def test_filter_keeps_the_rows_that_duckdb_keeps(local, sql):
    with duckdb.connect() as con:
        con.register("orders", orders())
        expected = con.sql(f"select * from orders where {sql} order by id").fetchall()
    assert rows(local.scan("orders").filter(QUERIES[sql]())) == expected
    assert expected


REFUSED = {
    'no column "prise"; there are id, day': lambda scan: scan.filter(col("prise") > 1),
    'no column "prize"; there are': lambda scan: scan.select("prize"),
    'no column "zz"; there are': lambda scan: scan.sort("zz"),
    r"\(mode > 1\): text and int64 have no common type: cast one of them": lambda scan: scan.filter(col("mode") > 1),
    r"\(day = '2024-01-01'\): date and text": lambda scan: scan.filter(col("day") == "2024-01-01"),
    r"\(mode \+ 1\): text and int64": lambda scan: scan.select(col("mode") + 1),
    r"id is of type int64: a condition \(true or false\) is needed": lambda scan: scan.filter(col("id")),
    "'x' in a list for int64: it is not a value of this type": lambda scan: scan.filter(col("id").is_in([1, "x"])),
    "1.5 in a list for int64": lambda scan: scan.filter(col("id").is_in([1.5])),
    "a pattern of int64: text is needed": lambda scan: scan.filter(col("id").like("1%")),
    "cannot sum a column of type text: a number is needed": lambda scan: scan.select(col("mode").sum()),
    "there is no cast from date to boolean": lambda scan: scan.select(col("day").cast("boolean")),
    "'int7' is not a type of a query; permitted are boolean": lambda scan: scan.select(col("id").cast("int7")),
    r"\{1\} \(set\) cannot be used in a query: None, bool, int": lambda scan: scan.filter(col("id") == {1}),
    "whole numbers of 128 bits are permitted": lambda scan: scan.filter(col("id") == 2**127),
    "decimals of at most 38 digits are permitted": lambda scan: scan.filter(col("price") > decimal.Decimal("NaN")),
    'two columns are named "id": rename one of them with alias': lambda scan: scan.select("id", "id"),
    '"id" is not an aggregate: use sum': lambda scan: scan.group_by("day").agg("id"),
    r"\+ of the aggregate \"id\"": lambda scan: scan.select(col("id").sum() + 1),
    "a select with columns of the aggregate": lambda scan: scan.select("day", col("id").sum()),
    "group_by needs at least one key": lambda scan: scan.group_by(),
    "select needs at least one column": lambda scan: scan.select(),
    "a grouping cannot follow another grouping": lambda scan: scan.distinct().distinct(),
    "only limit may follow sort": lambda scan: scan.sort("id").filter(col("id") > 1),
    "descending is 7: True, False or 1 of them": lambda scan: scan.sort("id", descending=7),
    "sort takes columns only": lambda scan: scan.sort(col("id") + 1),
    'format is "xml": "text" and "json" are permitted': lambda scan: scan.explain(format="xml"),
    "a pattern that cannot be used": lambda scan: scan.filter(col("mode").matches("(")).collect(),
    "9223372036854775807 \\+ 1 does not fit its type": lambda scan: scan.select(lit(2**63 - 1) + col("id")).collect(),
    "does not fit|as int8": lambda scan: scan.select(col("id").cast("int8")).collect(),
    "7 .*is not a column; pass a name or an expression|7 is not a column": lambda scan: scan.select(7),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_named_with_what_is_permitted(local, words):
    with pytest.raises(farpool.InvalidError, match=words):
        REFUSED[words](local.scan("orders"))


def test_truth_of_an_expression_is_a_mistake_that_is_explained():
    with pytest.raises(TypeError, match="write & for and"):
        bool(col("a") > 1 and col("b") > 2)
    with pytest.raises(TypeError):
        {col("a")}


def test_tables_that_queries_do_not_know_say_which_column(local):
    local.put_table("odd", pa.table({"n": [1], "d": pa.array([decimal.Decimal(100)], pa.decimal128(5, -2))}))
    with pytest.raises(farpool.InvalidError, match='column "d" of far table "odd"'):
        local.scan("odd")
    local.drop_table("odd")
    with pytest.raises(farpool.NotFoundError):
        local.scan("odd")


def test_table_that_is_dropped_says_so(local):
    local.put_table("gone", orders())
    scan = local.scan("gone")
    local.drop_table("gone")

    def is_refused() -> bool:
        try:
            scan.filter(col("id") == 3).collect()
        except farpool.ClosedError as error:
            return "was dropped" in str(error)
        return False

    wait_until(is_refused, "a query over a dropped table is refused")


def test_scan_made_before_a_fork_is_refused_in_the_child(local):
    scan = local.scan("orders")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            scan.count()
        except farpool.ForkError:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
