"""Far tables as relations of DuckDB: which filters are pushed down, that none is ignored, and which errors are
raised."""

import datetime
import decimal
import random

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import farpool
import farpool.duckdb
from farpool.dataset import FarDataset

ROWS = 600_000
GROUPS = 10  # row groups of 65,536 rows
LARGE_ROWS = 3_000_000
TIMEOUT_SECONDS = 2


def numbers(rows: int = ROWS) -> pa.Table:
    """Returns a table with sorted ids, so that row groups can be skipped, and eight columns in total."""
    ids = pa.array(range(rows), pa.int64())
    columns = {"id": ids, "few": pc.bit_wise_and(ids, 15), "x": pc.divide(ids.cast(pa.float64()), 7.0)}
    columns["word"] = pa.array([f"word {row}" for row in range(1_000)] * (rows // 1_000))
    return pa.table(columns | {f"pad{index}": ids for index in range(4)})


@pytest.fixture
def con():
    with duckdb.connect(config={"threads": 2}) as con:
        yield con


@pytest.fixture
def far(pool, con):
    """Registers a table of the pool, and drops it after the test."""
    pool.put_table("relations", numbers())
    yield farpool.duckdb.register(con, pool, "relations", as_="t", placement="fetch")["t"]
    pool.drop_table("relations")


def test_only_the_columns_and_row_groups_of_a_query_are_read(pool, con, far):
    before = pool.stats()
    rows = con.sql("SELECT id, few FROM t WHERE id BETWEEN 70_000 AND 70_003 AND few <> 1 ORDER BY id").fetchall()
    assert rows == [(row, row & 15) for row in range(70_000, 70_004) if row & 15 != 1]
    after, (report,) = pool.stats(), far.reports
    assert after["row_groups_read"] - before["row_groups_read"] == 1
    assert after["row_groups_skipped"] - before["row_groups_skipped"] == GROUPS - 1
    assert (report["fetched"], report["skipped"], report["rows"]) == (1, GROUPS - 1, len(rows))
    # One row group of two columns of eight bytes each. The table has a hundred times as many bytes.
    assert 0 < report["link_bytes"] <= 2 * 8 * 65_536
    assert pool.table("relations").nbytes > 30 * report["link_bytes"]


def test_filters_run_at_the_nodes_when_asked_to(pool, con, far):
    shipped = farpool.duckdb.register(con, pool, {"relations": "s"}, placement="ship")["s"]
    assert con.sql("SELECT count(*), max(word) FROM s WHERE few = 3 AND id < 1_000").fetchall() == [(63, "word 995")]
    (report,) = shipped.reports
    assert (report["placement"], report["shipped"], report["fetched"]) == ("ship", 1, 0)
    assert report["rows"] == 63 and report["link_bytes"] < 16_384


def test_a_far_table_joins_local_ones(con, far):
    con.execute("CREATE TABLE own AS SELECT i * 1_000 AS id, i AS n FROM range(5) r(i)")
    joined = con.sql("SELECT own.n, t.word FROM own JOIN t USING (id) ORDER BY n").fetchall()
    assert joined == [(n, f"word {n * 1_000 % 1_000}") for n in range(5)]
    assert con.sql("SELECT count(*) FROM t a JOIN t b ON a.id = b.id + 1 WHERE a.id < 10").fetchall() == [(9,)]


def test_a_variable_is_a_relation_as_well(pool, con, far):
    variable = FarDataset(pool, "relations")
    assert con.sql("SELECT sum(few) FROM variable WHERE id < 16").fetchall() == [(120,)]
    assert variable.reports[0]["rows"] == 16


def test_rows_come_while_the_query_runs(con, far):
    # DuckDB reads a row group for each of its threads, and more while its buffer has room.
    con.execute("SET streaming_buffer_size = '64KiB'")
    with con.sql("FROM t").to_arrow_reader(2_048) as reader:
        assert next(reader).num_rows > 0
        # Two steps are in progress at most: the one that is read, and the next one.
        (report,) = far.reports
        assert 0 < report["fetched"] < GROUPS
    assert con.sql("SELECT id FROM t LIMIT 3").fetchall() == [(0,), (1,), (2,)]
    assert far.reports[-1]["fetched"] < GROUPS


def test_streams_have_the_rows_of_collect_and_are_taken_once(pool, far):
    scan = pool.scan("relations")
    queries = [
        scan.filter(farpool.col("few") == 3),
        scan.select("id", "word").limit(100_000),
        scan.limit(0),
        scan.group_by("few").agg(farpool.len()),
        scan.select("id").sort("id", descending=True).limit(5),
        scan.select("id").sort("id", descending=True),
        scan.filter(farpool.col("id") < 0),
        scan.select("few").limit(70_000).filter(farpool.col("few") > 7),
    ]
    for query in queries:
        for placement in ("fetch", "ship", "split"):
            stream = query.stream(placement=placement)
            found = pa.table(stream)
            assert found.schema == pa.schema(query)
            limited = query is queries[1] or query is queries[7]
            if limited:
                assert found.num_rows == query.to_arrow(placement="fetch").num_rows
            else:
                assert found.equals(query.to_arrow(placement="fetch"))
            assert (stream.report["placement"], stream.report["rows"]) == (placement, found.num_rows)
            with pytest.raises(farpool.InvalidError, match="already read"):
                pa.table(stream)
    with pytest.raises(farpool.InvalidError, match="nowhere"):
        scan.stream(placement="nowhere")


def every_kind(rows: int = 2_000) -> pa.Table:
    rng = random.Random(7)

    def some(values: list, of: pa.DataType) -> pa.Array:
        return pa.array([rng.choice([*values, None]) for _ in range(rows)], of)

    moments = [datetime.datetime(2020, 1, day, 12) for day in (1, 2, 3)]
    zoned = [moment.replace(tzinfo=datetime.UTC) for moment in moments]
    columns = {
        "i": some([-3, 0, 7, 2**40], pa.int64()),
        "u": some([0, 7, 255], pa.uint8()),
        "f": some([0.5, -1.5, float("nan"), float("inf"), float("-inf")], pa.float64()),
        "g": some([0.5, -1.5, float("nan")], pa.float32()),
        "d": some([decimal.Decimal("1.50"), decimal.Decimal("-7.25")], pa.decimal128(12, 2)),
        "day": some([moment.date() for moment in moments], pa.date32()),
        "at": some(moments, pa.timestamp("us")),
        "ns": some(moments, pa.timestamp("ns")),
        "zoned": some(zoned, pa.timestamp("us", "UTC")),
        "s": some(["", "a", "größe"], pa.string()),
        "b": some([b"", b"\x00", b"ab"], pa.binary()),
        "w": some([b"ab", b"cd"], pa.binary(2)),
        "ok": some([True, False], pa.bool_()),
    }
    return pa.table(columns)


def test_filters_of_pyarrow_keep_the_rows_that_they_keep_there(pool):
    """This holds for filters that are understood and for others. In pyarrow, comparing NaN with a number is false, not
    null."""
    table = every_kind()
    pool.put_table("kinds", table)
    far, near = FarDataset(pool, "kinds"), pyarrow.dataset.dataset(table)
    field = pc.field
    nan = float("nan")
    moment = datetime.datetime(2020, 1, 2, 12)
    understood = [
        field("i") > 0,
        7 >= field("u"),
        ~(field("i") == 7),
        field("f") > 0.0,
        ~(field("f") >= 0.5),
        (field("f") < 1.0) | field("s").is_null(),
        field("g") != 0.5,
        field("d") <= decimal.Decimal("1.50"),
        field("day") == moment.date(),
        field("at") >= moment,
        field("ns") < pa.scalar(moment, pa.timestamp("ns")),
        field("zoned") > pa.scalar(moment, pa.timestamp("us", "Europe/Zurich")),
        field("s").isin(["a", "größe"]) & field("ok"),
        ~field("i").isin([7, -3]),
        ~pc.if_else(pc.is_valid(field("i")), field("i").isin([7]), pa.scalar(None, pa.bool_())),
        field("b") > b"\x00",
        field("w") == pa.scalar(b"cd", pa.binary(2)),
        field("f").is_valid() & ~field("s").is_valid(),
        field("i").isin(list(range(3_000))),
        field("u") == 7.0,
        pc.scalar(True),
    ]
    left = [
        field("f") == nan,
        ~(field("f") > nan),
        field("f").is_null(nan_is_null=True),
        field("i") + 1 > 5,
        field("i").cast(pa.float64()) > 0.5,
        pc.match_substring(field("s"), "ö") & (field("i") > 0),
        field("ns") > pa.scalar(1_577_966_400_000_000_001, pa.timestamp("ns")),
        field("f") > field("g").cast(pa.float64()),
        field("i").isin([7, None]),
        (field("u") > 0) & (field("i") - 1 > 0),
    ]
    for filters, is_exact in ((understood, True), (left, False)):
        for expression in filters:
            scanner = far.scanner(columns=["s", "i"], filter=expression)
            assert (scanner.left == []) == is_exact, (expression, scanner.left)
            expected = near.to_table(columns=["s", "i"], filter=expression)
            assert scanner.to_table().to_pylist() == expected.to_pylist(), expression
            assert far.count_rows(filter=expression) == expected.num_rows, expression
            assert far.head(3, columns=["i"], filter=expression).num_rows == min(3, expected.num_rows)
    computed = {"more": field("i") + 1, "s": field("s")}
    assert far.to_table(columns=computed).to_pylist() == near.to_table(columns=computed).to_pylist()
    known = {"columns": ["day", "u", "zoned"], "filter": field("i") == 7}
    assert far.to_table(**known).to_pylist() == near.to_table(**known).to_pylist()
    # A part that is not understood does not prevent the other parts from being pushed down.
    scanner = far.scanner(filter=left[5])
    assert len(scanner.left) == 1
    scanner.to_table()
    assert far.reports[-1]["rows"] < table.num_rows
    for name in ("filter", "get_fragments", "sort_by", "take", "join", "replace_schema"):
        with pytest.raises(NotImplementedError):
            getattr(far, name)(None)
    with pytest.raises(farpool.InvalidError, match="nothing_of_it"):
        far.to_table(columns=["nothing_of_it"])
    pool.drop_table("kinds")


def test_names_are_those_that_were_asked_for(pool, con, far):
    pool.put_table("relations/two", pa.table({"a": [1, 2]}))
    try:
        assert set(farpool.duckdb.register(con, pool)) >= {"relations", "relations/two"}
        assert con.sql('SELECT sum(a) FROM "relations/two"').fetchall() == [(3,)]
        assert set(farpool.duckdb.register(con, pool, ["relations"])) == {"relations"}
        assert set(farpool.duckdb.register(con, pool, {"relations/two": "two", "relations": "one"})) == {"two", "one"}
        assert con.sql("SELECT count(*) FROM one, two").fetchall() == [(2 * ROWS,)]
        farpool.duckdb.unregister(con, "TWO")
        with pytest.raises(duckdb.CatalogException):
            con.sql("FROM two")
        with pytest.raises(farpool.InvalidError, match="two"):
            farpool.duckdb.unregister(con, "two")
        with pytest.raises(farpool.InvalidError, match="both"):
            farpool.duckdb.register(con, pool, {"relations/two": "A", "relations": "a"})
        with pytest.raises(farpool.InvalidError, match="as_"):
            farpool.duckdb.register(con, pool, as_="x")
        with pytest.raises(farpool.InvalidError, match="nowhere"):
            farpool.duckdb.register(con, pool, "relations", as_="nowhere_is_no_table", placement="nowhere")
        with pytest.raises(farpool.NotFoundError):
            farpool.duckdb.register(con, pool, ["relations/two", "no such table"])
        with pytest.raises(duckdb.CatalogException):
            con.sql("FROM nowhere_is_no_table")
    finally:
        pool.drop_table("relations/two")


@pytest.mark.parametrize("kind", ["TABLE", "VIEW", "TEMP TABLE", "TEMP VIEW", None])
def test_a_name_that_the_connection_has_is_not_hidden_without_a_word(far, pool, kind):
    with duckdb.connect() as con:
        if kind is None:
            con.register("Own", pa.table({"id": [1]}))
        else:
            con.execute(f"CREATE {kind} Own AS SELECT 1 AS id")
        for names in ({"relations": "own"}, {"relations": "OWN"}):
            with pytest.raises(farpool.ExistsError, match="(?i)'own' is a .*replace=True"):
                farpool.duckdb.register(con, pool, names)
        assert con.sql("FROM own").fetchall() == [(1,)]
        if kind not in ("TEMP TABLE", "TEMP VIEW"):
            farpool.duckdb.register(con, pool, "relations", as_="own", replace=True)
            assert con.sql("SELECT count(*) FROM own").fetchall() != [(1,)]
            # A name that farpool registered may be registered again.
            farpool.duckdb.register(con, pool, "relations", as_="own", placement="ship")
            farpool.duckdb.unregister(con, "own")
            if kind is not None:
                assert con.sql("FROM own").fetchall() == [(1,)]


def test_a_table_with_a_key_is_read_with_it(pool, con):
    pool.put_table("secret", pa.table({"a": [1, 2, 3]}), key=b"0" * 16)
    with pytest.raises(farpool.InvalidError, match="key"):
        farpool.duckdb.register(con, pool, "secret")
    farpool.duckdb.register(con, pool, "secret", key=b"0" * 16, encrypt_answers=True)
    assert con.sql("SELECT a FROM secret WHERE a > 1").fetchall() == [(2,), (3,)]
    assert farpool.duckdb.sql_pushdown(con, "SELECT sum(a) FROM secret").fetchall() == [(6,)]
    pool.drop_table("secret")


def test_a_query_reads_the_table_that_there_is_then(pool, con):
    pool.put_table("changing", pa.table({"a": [1, 2]}))
    farpool.duckdb.register(con, pool, "changing")
    query = "SELECT max(a) FROM changing"
    relation, pushdown = con.sql(query), farpool.duckdb.sql_pushdown(con, query)
    assert relation.fetchall() == pushdown.fetchall() == [(2,)]
    pool.put_table("changing", pa.table({"a": [7]}), replace=True)
    assert relation.fetchall() == pushdown.fetchall() == [(7,)]
    pool.put_table("changing", pa.table({"a": ["text"]}), replace=True)
    for act in (relation.fetchall, pushdown.fetchall, lambda: farpool.duckdb.sql_pushdown(con, query)):
        with pytest.raises((duckdb.Error, farpool.InvalidError), match="replaced by a table with other columns"):
            act()
    pool.drop_table("changing")
    for act in (relation.fetchall, pushdown.fetchall, lambda: farpool.duckdb.sql_pushdown(con, query)):
        with pytest.raises((duckdb.Error, farpool.NotFoundError), match="changing"):
            act()
    assert con.sql("SELECT 42").fetchall() == [(42,)]


def test_a_closed_connection_or_pool_is_told(pool, far):
    with duckdb.connect() as closed:
        pass
    for act in (
        lambda: farpool.duckdb.register(closed, pool, "relations"),
        lambda: farpool.duckdb.sql_pushdown(closed, "SELECT 1"),
    ):
        with pytest.raises(duckdb.ConnectionException):
            act()


def test_a_pool_that_was_closed_ends_the_query_that_meets_it(con):
    with farpool.embedded("64MiB") as pool:
        pool.put_table("t", pa.table({"a": [1]}))
        farpool.duckdb.register(con, pool, "t")
    with pytest.raises(duckdb.Error, match="closed"):
        con.sql("FROM t").fetchall()
    assert con.sql("SELECT 42").fetchall() == [(42,)]


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("placement", ["fetch", "ship", "split"])
def test_a_node_that_is_lost_in_the_middle_ends_the_query_by_its_name(cluster, con, transport, placement):
    with farpool.connect(cluster.url) as patient:
        patient.put_table("t", numbers(LARGE_ROWS))
    with farpool.connect(cluster.url, transport=transport, timeout=f"{TIMEOUT_SECONDS}s") as pool:
        farpool.duckdb.register(con, pool, "t", placement=placement)
        reader = con.sql("FROM t").to_arrow_reader(2_048)
        rows = next(reader).num_rows
        cluster.kill("node-2")
        # An error is raised after the rows that arrived; the result never just ends early. If this process has mapped
        # the node's memory, it can read published bytes even after the node has ended. Then all rows arrive.
        try:
            for batch in reader:
                rows += batch.num_rows
        except (OSError, pa.ArrowException, duckdb.Error) as error:
            assert "node-2" in str(error)
        else:
            assert transport == "shm" and rows == LARGE_ROWS
        assert con.sql("SELECT 42").fetchall() == [(42,)]
        try:
            summed = farpool.duckdb.sql_pushdown(con, "SELECT sum(id) FROM t").fetchall()
        except (duckdb.Error, farpool.Error) as error:
            assert "node-2" in str(error)
        else:
            assert transport == "shm" and summed == [(LARGE_ROWS * (LARGE_ROWS - 1) // 2,)]
        pool.drop_table("t")
