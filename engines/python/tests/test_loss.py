"""Processes die during a query: what the user sees, and what is left behind.

Each test lets a query spill until it is well under way and kills a process with SIGKILL, or stops it for a while. It
compares the answer row for row, or measures a time.
"""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import loss
import pytest
from conftest import wait_until
from spilling import answer_in_memory, spilling_query

import farpool
import farpool.duckdb

ROWS = 3_000_000
UNDER_WAY_BYTES = 20 << 20
QUERY_SECONDS = 300  # ample for an undisturbed query
TIMEOUT_SECONDS = 120


def leased_bytes(pool: farpool.Pool, node: str) -> int:
    return sum(status["leased_bytes"] for status in pool.status()["nodes"] if status["name"] == node)


def is_under_way(pool: farpool.Pool) -> bool:
    return pool.stats()["bytes_written"] > UNDER_WAY_BYTES


def lose_a_node(binary: str, setting: loss.Setting) -> None:
    # A query may move fewer bytes than usual, and end before the event. Then another seed is tried. A busy machine may
    # let the other node miss the short timeouts of a stall, and then no copy is left. Then the times are longer.
    slowness = 1
    for seed in range(8):
        run = loss.run(binary, setting, seed, slowness)
        if run.verdict == "failed" and "UnreachableError" in run.text and setting.event == "stall" and slowness < 16:
            slowness *= 4
        elif run.verdict != "early":
            assert run.verdict == "right", f"seed {seed}: {run.verdict}: {run.text} {run.stats}"
            return
    pytest.fail("the query ended before its node was lost, eight times")


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("query", loss.QUERIES)
@pytest.mark.parametrize("protection", ["mirror", "local"])
def test_a_protected_query_survives_a_node_killed_under_it(farpool_binary, protection, query, transport):
    lose_a_node(farpool_binary, loss.Setting(protection, transport, query))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("protection", ["mirror", "local"])
def test_a_protected_query_survives_a_node_that_stalls_and_goes_on(farpool_binary, protection, transport):
    # More threads than CPUs: some write and read while others wait for the stopped node.
    lose_a_node(farpool_binary, loss.Setting(protection, transport, "join", event="stall", threads=4))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_an_unprotected_query_names_the_node_killed_under_it_and_the_connection_lives(cluster, con, transport):
    with (
        farpool.connect(cluster.url, transport=transport, timeout=f"{TIMEOUT_SECONDS}s", protection="none") as pool,
        ThreadPoolExecutor(1) as executor,
    ):
        farpool.duckdb.attach(con, pool, protection="none")
        query = executor.submit(lambda: con.execute(spilling_query(ROWS)).fetchall())
        wait_until(lambda: is_under_way(pool) and leased_bytes(pool, "node-2") > 0, "a spill to node-2")
        assert not query.done()
        cluster.kill("node-2")
        killed = time.monotonic()
        with pytest.raises(duckdb.Error, match="node-2"):
            query.result(QUERY_SECONDS)
        # A node that was killed is noticed at once, without waiting for the timeout of a request.
        assert time.monotonic() - killed < TIMEOUT_SECONDS
        assert con.execute("SELECT 42").fetchone() == (42,)
        con.close()
        assert pool.list() == []
        # An interrupted write keeps its extents out of use until the session knows that the node is lost.
        wait_until(lambda: pool.stats()["used_bytes"] == 0, "every byte is given back")


@pytest.mark.parametrize("protection", ["local", "none"])
def test_a_broker_killed_mid_query_does_not_disturb_it(cluster, con, protection):
    with farpool.connect(cluster.url) as pool, ThreadPoolExecutor(1) as executor:
        expected = answer_in_memory(ROWS)
        farpool.duckdb.attach(con, pool, protection=protection)
        pool.reserve(768 << 20)
        query = executor.submit(lambda: con.execute(spilling_query(ROWS)).fetchall())
        wait_until(lambda: is_under_way(pool), "a spill")
        assert not query.done()
        cluster.kill("broker")
        assert query.result(QUERY_SECONDS) == expected


@pytest.mark.parametrize("protection", ["local", "none"])
def test_a_query_that_needs_more_than_is_leased_goes_on_without_a_broker_only_on_the_disk(cluster, con, protection):
    with farpool.connect(cluster.url) as pool, ThreadPoolExecutor(1) as executor:
        expected = answer_in_memory(ROWS)
        farpool.duckdb.attach(con, pool, protection=protection)
        query = executor.submit(lambda: con.execute(spilling_query(ROWS)).fetchall())
        wait_until(lambda: is_under_way(pool), "a spill")
        assert not query.done()
        cluster.kill("broker")
        if protection == "local":
            assert query.result(QUERY_SECONDS) == expected
        else:
            with pytest.raises(duckdb.Error, match="UnreachableError.*broker"):
                query.result(QUERY_SECONDS)
        assert con.execute("SELECT 42").fetchone() == (42,)
        con.close()
        assert pool.stats()["used_bytes"] == 0


CLIENT = """
import sys
import duckdb, farpool, farpool.duckdb
from spilling import spilling_query

pool = farpool.connect(sys.argv[1], transport=sys.argv[2], protection="local", local_folder=sys.argv[3])
con = duckdb.connect(config={"threads": 2, "memory_limit": "100MB"})
farpool.duckdb.attach(con, pool)
print("attached", flush=True)
while True:
    con.execute(spilling_query(3_000_000))
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_regions_of_a_killed_client_become_free(cluster, transport, tmp_path):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, cluster.url, transport, str(tmp_path)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with farpool.connect(cluster.url) as observer:
            assert client.stdout.readline() == "attached\n"
            wait_until(lambda: observer.status()["leased_bytes"] > UNDER_WAY_BYTES, "a spill of the client")
            client.send_signal(signal.SIGKILL)
            wait_until(lambda: observer.status()["leased_bytes"] == 0, "the regions of the killed client are free")
            assert observer.status()["files"] == []
        client.wait()
        assert list(tmp_path.iterdir()) == []
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
