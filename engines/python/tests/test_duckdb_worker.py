"""`farpool.duckdb.ship`: a DuckDB beside the data runs queries. A local DuckDB gives the expected answers."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pytest
from conftest import PATIENCE_SECONDS

import farpool
import farpool.duckdb
from farpool.demo.cluster import read_line

ROWS = 400_000


@pytest.fixture(scope="module")
def orders() -> pa.Table:
    with duckdb.connect() as con:
        return con.sql(
            "SELECT i AS id, i % 1000 AS few, CASE WHEN i % 9 > 0 THEN 'word ' || i % 70 END AS word, "
            f"(i % 100 / 4)::DECIMAL(12, 2) AS price FROM range({ROWS}) r(i)"
        ).to_arrow_table()


@contextmanager
def started_worker(url: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """Runs a worker. Gives its address and its process."""
    command = [sys.executable, "-m", "farpool.duckdb_worker", "--pool", url]
    command += ["--listen", "127.0.0.1:0", "--memory-limit", "200MB", "--threads", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield read_line(process, 30).removeprefix("ready ").strip(), process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                assert process.wait(30) in (0, -signal.SIGKILL)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="module")
def worker(shared_cluster, orders) -> Iterator[str]:
    with farpool.connect(shared_cluster.url) as pool:
        pool.put_table("shipped_orders", orders)
        with started_worker(shared_cluster.url) as (address, _):
            yield address
        pool.drop_table("shipped_orders")


QUERIES = [
    "SELECT few, count(*), sum(price), min(word) FROM orders GROUP BY few ORDER BY few",
    "SELECT a.id, b.word FROM orders a JOIN orders b ON a.id = b.id + 1 WHERE a.few = 7 ORDER BY a.id",
    "SELECT median(id), count(DISTINCT word) FROM orders",
    "WITH best AS (SELECT few, max(id) id FROM orders GROUP BY few) SELECT sum(id) FROM best",
    "SELECT * FROM orders ORDER BY id",
    "SELECT id FROM orders WHERE id < 0",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_query_that_was_shipped_gives_what_it_gives_here(worker, orders, sql):
    found = farpool.duckdb.ship(worker, sql.replace("orders", "shipped_orders")).read_all()
    with duckdb.connect() as con:
        wanted = con.sql(sql).to_arrow_table()
    assert found.schema == wanted.schema
    assert found.combine_chunks() == wanted.combine_chunks()


def test_rows_that_were_shipped_are_a_relation_of_duckdb_here(worker):
    rows = farpool.duckdb.ship(worker, "SELECT few FROM shipped_orders WHERE few < 3")
    assert rows is not None
    with duckdb.connect() as con:
        assert con.sql("SELECT few, count(*) FROM rows GROUP BY ALL ORDER BY 1").fetchall() == [
            (few, ROWS // 1000) for few in range(3)
        ]


def test_query_given_up_half_way_leaves_the_worker_to_others(worker):
    reader = farpool.duckdb.ship(worker, "SELECT * FROM shipped_orders")
    assert reader.read_next_batch().num_rows > 0
    del reader
    assert farpool.duckdb.ship(worker, "SELECT count(*) FROM shipped_orders").read_all()[0][0].as_py() == ROWS


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE t AS SELECT 1", "a single SELECT is permitted, not CREATE"),
        ("SELECT 1; SELECT 2", "a single SELECT is permitted, not SELECT, SELECT"),
        ("", "not nothing"),
        ("COPY shipped_orders TO 'out.csv'", "not COPY"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM read_text('/proc/self/environ')", "disabled"),
        ("SELECT * FROM pool", "pool"),
        ("SELECT * FROM no_such_table", "no_such_table"),
        ("SELECT nothing FROM shipped_orders", "nothing"),
        ("SELEC 1", "syntax error"),
        ("SELECT '" + "x" * (1 << 20) + "'", "1048576 are permitted"),
    ],
)
def test_what_is_no_query_over_far_tables_is_refused_by_name(worker, sql, why):
    with pytest.raises(farpool.InvalidError, match=why):
        farpool.duckdb.ship(worker, sql)


def test_query_that_needs_more_memory_than_the_worker_may_have_fails_alone(worker):
    rows = "SELECT list(id ORDER BY word) FROM (SELECT * FROM shipped_orders, range(200))"
    with pytest.raises((farpool.InvalidError, pa.ArrowException), match="(?i)memory"):
        farpool.duckdb.ship(worker, rows).read_all()
    assert farpool.duckdb.ship(worker, "SELECT 1").read_all()[0][0].as_py() == 1


def test_worker_that_is_not_there_is_unreachable():
    with pytest.raises(farpool.UnreachableError, match="grpc://127.0.0.1:1"):
        farpool.duckdb.ship("grpc://127.0.0.1:1", "SELECT 1")
    with pytest.raises(farpool.InvalidError, match="no-such-scheme"):
        farpool.duckdb.ship("no-such-scheme://x", "SELECT 1")


# A query that takes long enough for its worker to be lost on the way.
LONG = "SELECT count(*), sum(a.id * b.few) FROM shipped_orders a JOIN shipped_orders b ON a.few = b.few"


@pytest.mark.parametrize("loss", [signal.SIGKILL, signal.SIGSTOP])
def test_query_goes_to_the_next_worker_if_one_is_lost_or_silent(shared_cluster, worker, loss):
    wanted = farpool.duckdb.ship(worker, LONG).read_all()
    with started_worker(shared_cluster.url) as (first, process):
        rows: list[pa.Table] = []
        query = threading.Thread(
            target=lambda: rows.append(farpool.duckdb.ship([first, worker], LONG).read_all()), daemon=True
        )
        query.start()
        # It has begun, or has not: either way the other worker has to answer.
        query.join(0.05)
        process.send_signal(loss)
        query.join(PATIENCE_SECONDS)
        assert rows == [wanted], "the other worker answers"


def test_lost_workers_are_passed_over_and_the_last_one_is_named(worker):
    lost = "grpc://127.0.0.1:1"
    assert farpool.duckdb.ship([lost, worker, lost], "SELECT 7 AS n").read_all().to_pylist() == [{"n": 7}]
    with pytest.raises(farpool.UnreachableError, match=lost):
        farpool.duckdb.ship([lost, lost], "SELECT 7")
    with pytest.raises(farpool.InvalidError, match="no worker is named"):
        farpool.duckdb.ship([], "SELECT 7")
    with pytest.raises(farpool.InvalidError, match="single SELECT"):
        farpool.duckdb.ship([worker, lost], "DROP TABLE t")


def test_worker_without_certificates_stays_on_this_machine_unless_told_otherwise(shared_cluster):
    command = [sys.executable, "-m", "farpool.duckdb_worker", "--listen", "0.0.0.0:0", "--pool", shared_cluster.url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert refused.returncode == 2 and "--insecure-listen" in refused.stderr


def test_worker_without_certificates_on_another_machine_is_asked_only_if_that_is_permitted():
    # 192.0.2.0/24 is reserved for documentation, so nobody answers there.
    with pytest.raises(farpool.RefusedError, match="neither encrypted nor authenticated"):
        farpool.duckdb.ship("grpc://192.0.2.1:7810", "SELECT 1")
    with pytest.raises(farpool.UnreachableError, match="does not answer"):
        farpool.duckdb.ship("grpc://no-such-host.invalid:7810", "SELECT 1", insecure=True)
