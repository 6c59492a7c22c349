"""DuckDB spills into a pool: right answers, clear errors, and nothing left."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest
from conftest import wait_until
from spilling import answer_in_memory, spilling_query

import farpool
import farpool.duckdb

ROWS = 1_500_000
MIB = 1 << 20


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_spilled_rows_are_those_of_unlimited_memory(pool, con, threads):
    con.execute(f"SET threads = {threads}; SET memory_limit = '{60 + 20 * threads}MB'")
    farpool.duckdb.attach(con, pool)
    assert con.execute(spilling_query(ROWS)).fetchall() == answer_in_memory(ROWS)
    assert pool.stats()["bytes_written"] > 20 * MIB


def test_closing_the_connection_gives_all_far_memory_back(pool, con):
    farpool.duckdb.attach(con, pool)
    con.execute(spilling_query(ROWS))
    con.execute(f"CREATE TEMP TABLE kept AS SELECT hash(i) AS a, hash(i + 1) AS b FROM range({8 * ROWS}) t(i)")
    assert pool.stats()["used_bytes"] > 0
    con.close()
    assert pool.list() == []
    assert pool.stats()["used_bytes"] == 0


def test_a_connection_that_is_dropped_unclosed_leaves_nothing(pool):
    con = duckdb.connect(config={"threads": 2, "memory_limit": "100MB"})
    farpool.duckdb.attach(con, pool)
    con.execute(spilling_query(ROWS))
    del con
    gc.collect()
    assert pool.list() == []


def test_two_databases_share_a_pool_without_meeting(pool, con):
    with duckdb.connect(config={"threads": 2, "memory_limit": "100MB"}) as other:
        first = farpool.duckdb.attach(con, pool)
        second = farpool.duckdb.attach(other, pool)
        assert first.url != second.url
        expected = answer_in_memory(ROWS)
        with ThreadPoolExecutor(2) as executor:
            answers = executor.map(lambda c: c.execute(spilling_query(ROWS)).fetchall(), (con, other))
            assert list(answers) == [expected, expected]


def test_detach_before_any_spill_restores_the_temporary_directory(pool, con, tmp_path):
    con.execute(f"SET temp_directory = '{tmp_path}'")
    settings = "SELECT current_setting('max_temp_directory_size'), current_setting('external_file_cache_spill')"
    for bound in (None, "512MiB"):
        if bound is not None:
            con.execute(f"SET max_temp_directory_size = '{bound}'")
        before = con.execute(settings).fetchone()
        farpool.duckdb.attach(con, pool, cache=True)
        assert con.execute(settings).fetchone() != before
        farpool.duckdb.detach(con)
        assert con.execute(settings).fetchone() == before
    assert con.execute("SELECT current_setting('temp_directory')").fetchone() == (str(tmp_path),)
    assert con.execute(spilling_query(ROWS)).fetchall() == answer_in_memory(ROWS)
    assert pool.stats()["bytes_written"] == 0


def test_detach_after_a_spill_frees_everything_and_later_spills_say_so(pool, con):
    farpool.duckdb.attach(con, pool)
    con.execute(spilling_query(ROWS))
    farpool.duckdb.detach(con)
    assert pool.list() == []
    with pytest.raises(duckdb.Error, match="ClosedError.*detached"):
        con.execute(spilling_query(ROWS))
    assert con.execute("SELECT 42").fetchone() == (42,)
    with pytest.raises(farpool.InvalidError):
        farpool.duckdb.detach(con)


def test_attaching_twice_is_refused(pool, con):
    farpool.duckdb.attach(con, pool)
    with pytest.raises(farpool.InvalidError, match="already"):
        farpool.duckdb.attach(con, pool)


def test_attaching_after_a_spill_elsewhere_is_refused_and_changes_nothing(pool, con, tmp_path):
    con.execute(f"SET temp_directory = '{tmp_path}'")
    con.execute(spilling_query(ROWS))
    with pytest.raises(farpool.InvalidError, match="already"):
        farpool.duckdb.attach(con, pool)
    assert con.execute(spilling_query(ROWS)).fetchall() == answer_in_memory(ROWS)


def test_max_size_bounds_the_spill(pool, con):
    farpool.duckdb.attach(con, pool, max_size=16 * MIB)
    with pytest.raises(duckdb.OutOfMemoryException, match="max_temp_directory_size"):
        con.execute(spilling_query(ROWS))
    assert con.execute("SELECT 42").fetchone() == (42,)


def test_memory_that_nodes_have_given_back_is_told_of_and_used_once_it_comes_back(cluster, con):
    # Regression: hosts were short of memory for a moment. DuckDB's limit of spilled bytes then stayed at 0, without a
    # warning.
    cluster.kill("node-2")
    cluster.kill("node-1")
    # No host has that much memory to spare, so the node donates nothing.
    cluster.start_node(1, "--reserve", "1024GiB")
    with farpool.connect(cluster.url) as pool, duckdb.connect(config={"memory_limit": "100MB"}) as other:
        wait_until(lambda: [node["donated_bytes"] for node in pool.status()["nodes"]] == [0], "all of it is away")
        assert pool.status()["nodes"][0]["away_bytes"] == 512 * MIB
        with (
            pytest.warns(RuntimeWarning, match="nodes donate 0 B, and 512 MiB are given back"),
            ThreadPoolExecutor(2) as executor,
        ):
            list(executor.map(lambda one: farpool.duckdb.attach(one, pool, protection="none"), (con, other)))
        with pytest.raises(duckdb.OutOfMemoryException, match="max_temp_directory_size"):
            con.execute(spilling_query(ROWS))
        other.execute("SET max_temp_directory_size = '7MiB'")
        cluster.kill("node-1")
        cluster.start_node(1)
        bound = "SELECT current_setting('max_temp_directory_size')"
        wait_until(lambda: con.execute(bound).fetchone() == ("512.0 MiB",), "the bound has grown")
        assert con.execute(spilling_query(ROWS)).fetchall() == answer_in_memory(ROWS)
        wait_until(lambda: all(thread.name != "farpool-room" for thread in threading.enumerate()), "no bound grows")
        assert other.execute(bound).fetchone() == ("7.0 MiB",)
        con.close()


def test_a_pool_that_fills_up_in_the_middle_of_a_spill_ends_that_query_only(con):
    rows = 2 * ROWS
    with farpool.embedded("64MiB", region_size="16MiB") as pool:
        farpool.duckdb.attach(con, pool, max_size=1 << 40)
        with pytest.raises(duckdb.Error, match="ExhaustedError"):
            con.execute(spilling_query(rows))
        assert con.execute("SELECT 42").fetchone() == (42,)
        assert con.execute(spilling_query(100_000)).fetchall() == answer_in_memory(100_000)
        con.close()
        assert pool.stats()["used_bytes"] == 0


def test_buffers_wider_than_a_block_spill_to_files_of_their_own(pool, con):
    farpool.duckdb.attach(con, pool)
    for number in range(8):
        con.execute(f"CREATE TEMP TABLE wide_{number} (i INTEGER, s VARCHAR)")
        for i in range(8):
            con.execute(f"INSERT INTO wide_{number} SELECT $i, repeat(chr(97 + $i), 3000000 + $i)", {"i": i})
    assert any(info.name.endswith(".block") for info in pool.list())
    for number in range(8):
        rows = con.execute(f"SELECT s FROM wide_{number} ORDER BY i").fetchall()
        assert rows == [(chr(97 + i) * (3_000_000 + i),) for i in range(8)]


def test_a_spill_asks_the_broker_for_leases_and_nothing_else(pool, con):
    farpool.duckdb.attach(con, pool)
    pool.reserve(256 * MIB)
    before = pool.stats()["broker_calls"]
    con.execute(spilling_query(ROWS))
    stats = pool.stats()
    assert stats["read_ops"] + stats["write_ops"] > 500
    assert stats["broker_calls"] == before


def test_the_file_system_never_shortens_on_touch(pool, con):
    fs = farpool.duckdb.attach(con, pool)
    with fs.open(f"{fs.url}/a", "wb") as file:
        file.write(b"0123456789")
    fs.touch(f"{fs.url}/a", truncate=True)
    assert fs.size(f"{fs.url}/a") == 10
    with fs.open(f"{fs.url}/a", "rb") as file:
        assert (file.read(4), file.read()) == (b"0123", b"456789")
    fs.rm(f"{fs.url}/a")
    assert not fs.exists(f"{fs.url}/a")


def test_duckdb_lists_its_temporary_files_before_and_after_it_has_any(pool, con):
    farpool.duckdb.attach(con, pool)
    assert con.execute("FROM duckdb_temporary_files()").fetchall() == []
    con.execute(f"CREATE TEMP TABLE kept AS SELECT hash(i) AS a, hash(i + 1) AS b FROM range({8 * ROWS}) t(i)")
    assert con.execute("SELECT sum(size) FROM duckdb_temporary_files()").fetchone()[0] > 20 * MIB


def test_duckdb_reads_and_writes_its_own_files_there(pool, con):
    fs = farpool.duckdb.attach(con, pool)
    con.execute(f"COPY (SELECT i, hash(i) AS h FROM range(200000) t(i)) TO '{fs.url}/t.parquet'")
    found = con.execute(f"SELECT count(*), sum(h) FROM '{fs.url}/t.parquet'").fetchone()
    assert found == con.execute("SELECT count(*), sum(hash(i)) FROM range(200000) t(i)").fetchone()
