"""`farpool.duckdb.sql_pushdown`: which parts run beside the data, which do not, and why. Answers must be those of
DuckDB."""

import duckdb
import pyarrow as pa
import pytest
from test_scan_differential import difference

import farpool
import farpool.duckdb
from farpool.dataset import FarDataset

ROWS = 300_000


def orders() -> pa.Table:
    with duckdb.connect() as con:
        return con.sql(
            "SELECT i AS id, (i % 50)::INTEGER AS few, (i % 1000 / 10)::DECIMAL(12, 2) AS price, "
            "CASE WHEN i % 9 = 0 THEN NULL ELSE 'word ' || (i % 70) END AS word, i / 3 AS ratio, "
            "DATE '2020-01-01' + (i // 1000)::INTEGER AS day, TIMESTAMP '2020-01-01' + to_seconds(i) AS moment, "
            "i % 2 = 0 AS ok FROM range(300_000) r(i)"
        ).to_arrow_table()


ORDERS = orders()


@pytest.fixture(scope="module")
def pool():
    with farpool.embedded("256MiB", nodes=2, region_size="4MiB") as pool:
        pool.put_table("orders", ORDERS)
        yield pool


@pytest.fixture
def con(pool):
    with duckdb.connect() as con:
        con.register("given", ORDERS)
        con.execute("CREATE TABLE own AS FROM given")
        farpool.duckdb.register(con, pool, "orders", placement="ship")
        yield con


def expected(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """Returns DuckDB's answer over a table of its own with the same rows."""
    return con.sql(sql.replace("orders", "own"))


# Statements, and how the descriptions of the shipped parts of each block start.
SHIPPED = [
    ("SELECT id FROM orders WHERE word LIKE 'word 1%' AND ratio > 99_990", [["filter", "filter"]]),
    ("SELECT id FROM orders WHERE word NOT LIKE '%!%' ESCAPE '!' OR NOT ok", None),
    ("SELECT id FROM orders WHERE contains(word, '69') AND starts_with(word, 'w') AND id < 1_000", [["filter"] * 3]),
    ("SELECT id FROM orders WHERE price IN (1.5, 2) AND few NOT IN (1, 2) AND id < 5_000", [["filter"] * 3]),
    ("SELECT id FROM orders WHERE day < DATE '2020-01-05' - INTERVAL 2 DAY AND moment < '2020-01-01 00:10:00'", None),
    ("SELECT id FROM orders WHERE 0.5 * ratio < 10 AND 1.5 > price AND few BETWEEN 1 AND 30", [["filter"] * 3]),
    ("SELECT count(*), sum(id), avg(few), min(word), max(day), sum(price) FROM orders", [["aggregate"]]),
    (
        "SELECT few, count(word), sum(price * (1 - price)) FROM orders WHERE ok GROUP BY few",
        [["filter", "group", "agg"]],
    ),
    ("SELECT few AS k, sum(id) / count(*) + 1 FROM orders GROUP BY k HAVING max(id) > 299_960 ORDER BY 2 DESC", None),
    (
        "SELECT word, count(*) n FROM orders GROUP BY 1 ORDER BY n DESC, word NULLS FIRST LIMIT 3",
        [["group", "aggregate"]],
    ),
    ("SELECT o.few, count(*) FROM orders o WHERE o.id > 10 GROUP BY o.few ORDER BY max(o.id) LIMIT 5", None),
    ("SELECT DISTINCT few, ok FROM orders WHERE id % 2 = 0 OR id < 7 ORDER BY few, ok", [[]]),
    ("SELECT DISTINCT few, ok FROM orders WHERE id < 70_000 ORDER BY few DESC, ok LIMIT 4", [["filter", "distinct"]]),
    ("SELECT id, word FROM orders ORDER BY price DESC, id LIMIT 3 OFFSET 2", [["top 5 rows"]]),
    ("SELECT * FROM orders WHERE few = 3 ORDER BY word NULLS FIRST, 1 DESC LIMIT 4", None),
    ("SELECT o.* EXCLUDE (word) FROM orders o ORDER BY id DESC LIMIT 3", [["top 3 rows"]]),
    ("SELECT id FROM orders WHERE few BETWEEN '3' AND 4 AND few IN ('3', 5) AND id < 900", [["filter"] * 3]),
    (
        "WITH q AS (SELECT few, max(id) AS m FROM orders GROUP BY few) SELECT own.word FROM q JOIN own ON own.id = q.m",
        None,
    ),
    ("SELECT id FROM orders WHERE id > (SELECT max(id) - 3 FROM orders WHERE ok)", [[], ["filter", "aggregate"]]),
    ("SELECT count(*) FROM orders WHERE ok UNION ALL SELECT id FROM orders WHERE id = 7 AND price = 0.7", None),
    ("SELECT x + 1 FROM (SELECT sum(few) x FROM orders GROUP BY ok) WHERE x > 5", [["group", "aggregate"]]),
    ("SELECT count(*) + (SELECT count(*) FROM own) FROM orders", [[]]),
    ("SELECT few + 1, count(*) FROM orders GROUP BY few + 1", [["group", "aggregate"]]),
    ("SELECT count(1), sum(few * 2), sum(ratio * 0.5), avg(-1 * price), sum(id::DOUBLE) FROM orders", [["aggregate"]]),
]


@pytest.mark.parametrize(("sql", "begins"), SHIPPED, ids=range(len(SHIPPED)))
def test_blocks_run_beside_the_data_with_the_answers_of_duckdb(con, sql, begins):
    pushdown = farpool.duckdb.sql_pushdown(con, sql)
    wanted = expected(con, sql)
    assert (pushdown.columns, pushdown.types) == (wanted.columns, wanted.types), pushdown
    found = pushdown.fetchall()
    what = difference(found, wanted.fetchall(), "ORDER BY" in sql)
    assert what is None, f"{what}\n{pushdown}"
    assert pushdown.left == [], pushdown
    if begins is None:
        assert any(block.shipped for block in pushdown.blocks), pushdown
    else:
        assert len(pushdown.blocks) == len(begins)
        for block, words in zip(pushdown.blocks, begins, strict=True):
            assert len(block.shipped) == len(words), pushdown
            assert all(one.startswith(word) for one, word in zip(block.shipped, words, strict=True)), pushdown
    # It can run a second time, and the report has both runs.
    assert len(pushdown.fetchall()) == len(found)
    for block in pushdown.blocks:
        if block.shipped:
            assert [report["shipped"] > 0 for report in block.reports] == [True, True], pushdown


# Statements, and a part of the reason why something is left to DuckDB.
LEFT = [
    ("SELECT id FROM orders WHERE upper(word) = 'WORD 1'", "upper"),
    ("SELECT id FROM orders WHERE few + 1 > 49", "overflow"),
    ("SELECT few, count(*) FROM orders WHERE month(day) = 3 GROUP BY few", "part of the filter"),
    ("SELECT count(DISTINCT few) FROM orders", "DISTINCT, FILTER or ORDER BY"),
    ("SELECT sum(id) FILTER (ok) FROM orders", "DISTINCT, FILTER or ORDER BY"),
    ("SELECT median(id) FROM orders", "median"),
    ("SELECT few, ok, count(*) FROM orders GROUP BY ROLLUP (few, ok)", "grouping sets"),
    ("SELECT few, count(*) FROM orders GROUP BY ALL", "GROUP BY ALL"),
    ("SELECT DISTINCT ON (few) few, id FROM orders ORDER BY few, id", "DISTINCT ON"),
    ("SELECT id, row_number() OVER (ORDER BY id) FROM orders ORDER BY id LIMIT 2", "not computed row by row"),
    ("SELECT id, unnest([1, 2]) FROM orders ORDER BY id LIMIT 2", "not computed row by row"),
    ("SELECT id FROM orders ORDER BY id % 3, id LIMIT 2", "not a column"),
    ("SELECT few, count(*) FROM orders GROUP BY few, lower(word)", "lower"),
    ("SELECT word FROM orders WHERE word ILIKE 'WORD 1'", "~~*"),
    ("SELECT p FROM orders AS o(p) WHERE p < 3", "other names"),
    ("SELECT count(*) FROM orders TABLESAMPLE 100%", "TABLESAMPLE"),
    ("SELECT round(sum(price / 2), 3) FROM orders", "division"),
    (
        "SELECT own.id FROM own WHERE EXISTS (SELECT max(id) FROM orders WHERE orders.id = own.id + 299_990)",
        "run on its own",
    ),
    ("SELECT id FROM orders ORDER BY id LIMIT 70_000", "65536"),
    ("SELECT sum(few) FROM orders HAVING (SELECT true)", "together with groups"),
    ("SELECT * REPLACE (-id AS id) FROM orders ORDER BY id LIMIT 3", "with a star"),
    ("SELECT -COLUMNS('id') FROM orders ORDER BY id LIMIT 3", "with a star"),
    ("SELECT COLUMNS('id')::VARCHAR FROM orders ORDER BY id DESC LIMIT 3", "with a star"),
    ("SELECT * EXCLUDE (few) RENAME (id AS few) FROM orders ORDER BY few DESC LIMIT 3", "with a star"),
    ("SELECT id FROM orders WHERE day = 'infinity' OR moment < TIMESTAMP '-infinity'", "infinite"),
    ("SELECT id FROM orders WHERE few BETWEEN '1.4' AND 2.5 AND id < 900", "text with other types"),
    ("SELECT count(*) FROM orders WHERE '1.6' BETWEEN few AND price", "text with other types"),
    ("SELECT count(*) FROM orders WHERE id BETWEEN 3 AND 1e3", "other types of bounds"),
    ("SELECT id FROM orders WHERE price IN ('1.555', 2.120)", "text with other types"),
]


@pytest.mark.parametrize(("sql", "why"), LEFT, ids=range(len(LEFT)))
def test_what_is_not_shipped_is_done_by_duckdb_and_said(con, sql, why):
    pushdown = farpool.duckdb.sql_pushdown(con, sql)
    said = [*pushdown.left, *(one for block in pushdown.blocks for one in block.left)]
    assert any(why in one for one in said), pushdown
    wanted = expected(con, sql)
    assert (pushdown.columns, pushdown.types) == (wanted.columns, wanted.types)
    assert sorted(pushdown.fetchall(), key=str) == sorted(wanted.fetchall(), key=str)


def test_less_crosses_the_link_than_over_the_relation(pool, con):
    sql = "SELECT few, sum(price) FROM orders GROUP BY few"
    relation = farpool.duckdb.register(con, pool, {"orders": "plain"}, placement="ship")["plain"]
    assert len(con.sql(sql.replace("orders", "plain")).fetchall()) == 50
    pushdown = farpool.duckdb.sql_pushdown(con, sql)
    assert len(pushdown.fetchall()) == 50
    (shipped,), (plain,) = pushdown.blocks[0].reports, relation.reports
    assert shipped["rows"] == 50 and plain["rows"] == ROWS
    assert shipped["link_bytes"] * 100 < plain["link_bytes"]


def test_an_explanation_is_printed_and_nothing_is_read(pool, con, capsys):
    before = pool.stats()["row_groups_read"]
    sql = "SELECT few, count(*) FROM orders WHERE ok AND upper(word) <> 'A' GROUP BY few LIMIT 1"
    pushdown = farpool.duckdb.sql_pushdown(con, sql, explain=True)
    said = capsys.readouterr().out
    assert "pushed down: filter ok" in said and "by DuckDB: filter" in said and "upper" in said
    assert pool.stats()["row_groups_read"] == before
    assert pushdown.report["blocks"][0]["table"] == "orders" and pushdown.report["blocks"][0]["reports"] == []
    assert len(pushdown.fetchall()) == 1
    assert "row groups" in str(pushdown)


def test_tables_of_a_pool_need_no_registering(pool, con):
    pool.put_table("own", pa.table({"id": [1]}))
    pool.put_table("fresh", pa.table({"a": [1, 2, 2]}))
    sql = "SELECT a, count(*) AS n FROM fresh GROUP BY a ORDER BY a"
    pushdown = farpool.duckdb.sql_pushdown(con, sql, pool, placement="ship")
    assert pushdown.fetchall() == [(1, 1), (2, 2)] and pushdown.blocks[0].shipped
    assert [report["placement"] for report in pushdown.blocks[0].reports] == ["ship"]
    # The database's own tables take precedence, and the call leaves no relation of the pool in the database.
    assert farpool.duckdb.sql_pushdown(con, "SELECT count(*) FROM own", pool).fetchall() == [(ROWS,)]
    with pytest.raises(duckdb.CatalogException):
        con.sql(sql)
    with pytest.raises(duckdb.CatalogException):
        farpool.duckdb.sql_pushdown(con, "FROM no_such_table", pool)
    pool.drop_table("own")
    pool.drop_table("fresh")


def test_names_mean_what_they_mean_in_duckdb(pool, con):
    count = "SELECT count(*) FROM"
    # A name that the statement defines takes precedence in its scope only.
    pushdown = farpool.duckdb.sql_pushdown(
        con, f"WITH ORDERS AS (SELECT 1 AS id) SELECT (SELECT count(*) FROM orders), ({count} (SELECT 1) orders)"
    )
    assert pushdown.fetchall() == [(1, 1)] and pushdown.blocks == []
    pushdown = farpool.duckdb.sql_pushdown(
        con, f"SELECT ({count} (WITH orders AS (SELECT 1) FROM orders)), ({count} orders)"
    )
    assert pushdown.fetchall() == [(1, ROWS)] and len(pushdown.blocks) == 1
    # Python variables of the caller.
    variable, local = FarDataset(pool, "orders"), pa.table({"id": [3]})
    pushdown = farpool.duckdb.sql_pushdown(con, "SELECT local.id, n FROM local, (SELECT count(*) n FROM variable)")
    assert pushdown.fetchall() == [(3, ROWS)] and pushdown.blocks[0].shipped
    del variable, local
    assert pushdown.fetchall() == [(3, ROWS)]
    # A name that is registered again as something else is no far table any more.
    con.register("orders", pa.table({"id": [1, 2]}))
    pushdown = farpool.duckdb.sql_pushdown(con, f"{count} orders")
    assert pushdown.fetchall() == [(2,)] and pushdown.blocks == []


def test_functions_that_hide_those_of_duckdb_are_not_taken_for_them(con):
    con.execute(
        "CREATE MACRO sum(x) AS 42; CREATE MACRO starts_with(a, b) AS true; CREATE MACRO rows_of(x) AS count(x)"
    )
    for sql, rows in [
        ("SELECT sum(id) FROM orders WHERE id < 2", [(42,), (42,)]),
        ("SELECT count(*) FROM orders WHERE starts_with(word, 'x')", [(ROWS,)]),
        ("SELECT few, rows_of(few) FROM orders WHERE few < 1 GROUP BY few", [(0, ROWS // 50)]),
        ("SELECT rows_of(id) FROM orders LIMIT 1", [(ROWS,)]),
    ]:
        pushdown = farpool.duckdb.sql_pushdown(con, sql)
        assert pushdown.fetchall() == rows, pushdown


def test_settings_that_change_what_a_statement_means_are_heeded(con):
    sql = "SELECT word FROM orders ORDER BY word LIMIT 2"
    con.execute("SET default_null_order = 'nulls_first'; SET default_order = 'desc'")
    pushdown = farpool.duckdb.sql_pushdown(con, sql)
    assert pushdown.fetchall() == [(None,), (None,)] and pushdown.blocks[0].shipped
    con.execute("SET default_collation = 'nocase'")
    for text in (sql, "SELECT count(*) FROM orders WHERE word = 'WORD 1'", "SELECT DISTINCT word FROM orders"):
        pushdown = farpool.duckdb.sql_pushdown(con, text)
        assert not any("word" in one for one in pushdown.blocks[0].shipped), pushdown
        assert sorted(pushdown.fetchall(), key=str) == sorted(expected(con, text).fetchall(), key=str)


def test_other_statements_run_as_they_were_written(con):
    pushdown = farpool.duckdb.sql_pushdown(con, "SELECT 1; SELECT max(id) FROM orders")
    assert pushdown.fetchall() == [(ROWS - 1,)] and "several" in pushdown.left[0]
    assert farpool.duckdb.sql_pushdown(con, "CREATE TABLE made AS SELECT count(*) AS n FROM orders").left
    assert con.sql("FROM made").fetchall() == [(ROWS,)]
    with pytest.raises(duckdb.ParserException):
        farpool.duckdb.sql_pushdown(con, "SELEC 1")
    with pytest.raises(duckdb.BinderException, match="nothing_of_it"):
        farpool.duckdb.sql_pushdown(con, "SELECT nothing_of_it FROM orders")
    with pytest.raises(farpool.InvalidError, match="nowhere"):
        farpool.duckdb.sql_pushdown(con, "SELECT count(*) FROM orders", placement="nowhere")


def test_results_are_relations(con):
    pushdown = farpool.duckdb.sql_pushdown(con, "SELECT few, count(*) AS n FROM orders GROUP BY few")
    assert pa.table(pushdown).num_rows == 50
    derived = pushdown.filter("few < 2").order("few")
    del pushdown
    assert derived.fetchall() == [(0, ROWS // 50), (1, ROWS // 50)]
    assert con.sql("SELECT sum(n) FROM derived").fetchall() == [(2 * ROWS // 50,)]
