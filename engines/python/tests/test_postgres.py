"""PostgreSQL over `farpool mount`: temporary files in far memory, and tables on disk behind a cache in far memory."""

import random
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import wait_until
from postgres import Mount, Postgres, postgres

import farpool

ROWS = 400_000
SPILLING = {
    "sort": "SELECT md5(string_agg(id::text, ',')) FROM (SELECT id FROM t ORDER BY word, key OFFSET 0) AS s",
    "hash": "SELECT count(*), sum(n) FROM (SELECT word, count(*) AS n FROM t GROUP BY word) AS s",
    "join": "SELECT count(*), sum(a.key::bigint * b.id) FROM t AS a JOIN t AS b ON a.key = b.id",
}
MEMORY = {"shared_buffers": "16MB", "work_mem": "1MB", "max_wal_size": "256MB", "fsync": "on"}


@pytest.fixture
def server() -> Iterator[Postgres]:
    # The planner can only choose plans that spill with these settings.
    with postgres(**MEMORY, log_temp_files=0, max_parallel_workers_per_gather=0, hash_mem_multiplier=1) as server:
        yield server


@pytest.fixture
def mounts() -> Iterator[list[Mount]]:
    """Collects mounts and ends them after the test, when the server has ended."""
    started: list[Mount] = []
    yield started
    for mount in started:
        mount.stop()


def scratch(server: Postgres, mounts: list[Mount], binary: str, url: str, *more: str) -> Mount:
    """Puts the server's temporary files into far memory."""
    at = server.folder_for(server.folder / "scratch")
    mounts.append(Mount(binary, "scratch", str(at), "--pool", url, *more))
    server.sql(f"CREATE TABLESPACE far LOCATION '{at}'")
    server.sql("ALTER ROLE postgres SET temp_tablespaces = 'far'")
    return mounts[-1]


def cached(server: Postgres, mounts: list[Mount], binary: str, url: str, *more: str) -> Mount:
    """Gives the server a tablespace that is cached in far memory."""
    folder, at = (server.folder_for(server.folder / name) for name in ("kept", "at"))
    flags = ("--pool", url, "--local-cache", "0B", "--exclusive", *more)
    mounts.append(Mount(binary, "cache", str(folder), str(at), *flags))
    server.sql(f"CREATE TABLESPACE kept LOCATION '{at}'")
    return mounts[-1]


def fill(server: Postgres) -> None:
    server.sql(
        "CREATE TABLE t AS SELECT id, (id::bigint * 7919 % 1000003)::int AS key, lpad(id::text, 100, 'w') AS word"
        f" FROM generate_series(1, {ROWS}) AS id"
    )


def spilled_paths(server: Postgres) -> set[str]:
    return set(re.findall(r'temporary file: path "([^"]*)"', server.log()))


def test_what_overflows_goes_to_far_memory_and_the_answers_are_the_same(farpool_binary, shared_cluster, server, mounts):
    fill(server)
    answers = {name: server.sql(query) for name, query in SPILLING.items()}
    before = spilled_paths(server)
    assert before and all("base/pgsql_tmp" in path for path in before)
    scratch(server, mounts, farpool_binary, shared_cluster.url)
    for name, query in SPILLING.items():
        assert server.sql(query) == answers[name], name
    # PostgreSQL falls back to its own disk, without a message, if a tablespace cannot be used.
    paths = spilled_paths(server) - before
    assert paths and all(path.startswith("pg_tblspc/") for path in paths)
    table = "CREATE TEMP TABLE s AS SELECT * FROM t; CREATE INDEX ON s (key); SELECT count(*), sum(key) FROM s"
    assert server.sql(table) == server.sql("SELECT count(*), sum(key) FROM t")


def test_a_pool_that_is_too_small_ends_the_query_and_no_other(farpool_binary, shared_cluster, server, mounts):
    fill(server)
    scratch(server, mounts, farpool_binary, shared_cluster.url, "--quota", "8MiB", "--write-through")
    with pytest.raises(RuntimeError, match="No space left on device"):
        server.sql(SPILLING["sort"])
    assert server.sql("SELECT count(*) FROM t") == str(ROWS)


def test_a_node_or_a_mount_that_dies_never_makes_an_answer_wrong_and_later_queries_go_on(
    farpool_binary, cluster, server, mounts
):
    def right_or_told(query: Future[str]) -> None:
        # Pages that the kernel has cached are right and are read without the mount.
        try:
            assert query.result(120) == answer
        except RuntimeError as error:
            assert re.search("could not (read|write|open)|Input/output error|not connected", str(error)), error

    fill(server)
    answer = server.sql(SPILLING["sort"])
    mount = scratch(server, mounts, farpool_binary, cluster.url, "--protection", "none", "--write-through")
    for killed in ("node", "mount"):
        with farpool.connect(cluster.url) as pool, ThreadPoolExecutor(1) as executor:
            query = executor.submit(server.sql, SPILLING["sort"])
            wait_until(lambda pool=pool: pool.status()["leased_bytes"] > 0, "the query spills")
            if killed == "node":
                cluster.kill("node-1")
                cluster.kill("node-2")
            else:
                mount.kill()
            right_or_told(query)
        if killed == "node":
            cluster.start_node(1)
            with farpool.connect(cluster.url) as pool:
                wait_until(lambda pool=pool: len(pool.status()["nodes"]) == 1, "a node is there again")
        # Temporary files are in the server's own folder after the mount has ended.
        assert server.sql(SPILLING["sort"]) == answer


def test_a_broker_that_dies_makes_no_answer_wrong_and_costs_no_table(farpool_binary, cluster, server, mounts):
    fill(server)
    answer = server.sql(SPILLING["sort"])
    scratch(server, mounts, farpool_binary, cluster.url, "--write-through")
    cached(server, mounts, farpool_binary, cluster.url, "--size", "128MiB")
    server.sql("CREATE TABLE kept TABLESPACE kept AS SELECT * FROM t")
    with farpool.connect(cluster.url) as pool, ThreadPoolExecutor(1) as executor:
        before = pool.status()["leased_bytes"]
        query = executor.submit(server.sql, SPILLING["sort"])
        wait_until(lambda: pool.status()["leased_bytes"] > before or query.done(), "the query spills")
        cluster.kill("broker")
        try:
            assert query.result(120) == answer
        except RuntimeError as error:
            assert re.search("could not (read|write|open)|Input/output error", str(error)), error
    assert server.sql("SELECT count(*), sum(key) FROM kept") == server.sql("SELECT count(*), sum(key) FROM t")
    server.sql("UPDATE kept SET key = key + 1")
    assert server.sql("SELECT count(*) FROM kept JOIN t USING (id) WHERE kept.key = t.key + 1") == str(ROWS)


def test_tables_behind_a_cache_are_read_from_far_memory_and_written_to_the_disk(
    farpool_binary, cluster, server, mounts
):
    mount = cached(server, mounts, farpool_binary, cluster.url, "--size", "256MiB")
    server.sql(
        "CREATE TABLE customer (id int PRIMARY KEY USING INDEX TABLESPACE kept, balance bigint, filler char(200))"
        " TABLESPACE kept"
    )
    server.sql("INSERT INTO customer SELECT id, 0, 'x' FROM generate_series(1, 200000) AS id")
    server.sql("CHECKPOINT")
    rng, total = random.Random(9), 0
    for turn in range(200):
        first = rng.randrange(1, 199_900)
        window = f"id BETWEEN {first} AND {first + 99}"
        if rng.random() < 0.2:
            server.sql(f"UPDATE customer SET balance = balance + 1 WHERE {window}")
            total += 100
        else:
            assert server.sql(f"SELECT count(*) FROM customer WHERE {window}") == "100"
        if turn == 150:
            cluster.kill("node-1")
    assert server.sql("SELECT sum(balance) FROM customer") == str(total)
    server.stop()
    mount.stop()
    # The folder itself has all the data. It is mounted where the far mount was.
    subprocess.run(["mount", "--bind", server.folder / "kept", server.folder / "at"], check=True)
    try:
        checked = server.tool("pg_checksums", "--check", "-D", str(server.data))
        assert "Bad checksums:  0" in checked.stdout
        server.start()
        assert server.sql("SELECT sum(balance) FROM customer") == str(total)
        server.stop()
    finally:
        subprocess.run(["umount", "--lazy", server.folder / "at"], check=True)


@pytest.mark.parametrize("killed", ["server", "mount", "node"])
def test_pgbench_loses_nothing_that_was_committed_whatever_dies(farpool_binary, cluster, server, mounts, killed):
    mount = cached(server, mounts, farpool_binary, cluster.url, "--size", "128MiB")
    server.sql("CREATE EXTENSION amcheck")
    server.tool("pgbench", "-i", "-s", "4", "--tablespace=kept", "--index-tablespace=kept", "postgres")
    with ThreadPoolExecutor(1) as executor:
        bench = executor.submit(server.tool, "pgbench", "-c", "4", "-t", "800", "-n", "postgres", check=False)
        wait_until(lambda: int(server.sql("SELECT count(*) FROM pgbench_history")) > 200, "it is under way")
        {"server": server.kill, "mount": mount.kill, "node": lambda: cluster.kill("node-1")}[killed]()
        done = bench.result(600)
    if killed == "node":
        assert done.returncode == 0, done.stderr
    else:
        server.stop("immediate")
        if killed == "mount":
            mount.start()
        server.start()
    sums = "SELECT sum(abalance) FROM pgbench_accounts", "SELECT sum(delta) FROM pgbench_history"
    assert server.sql(sums[0]) == server.sql(sums[1])
    server.tool("pg_amcheck", "--heapallindexed", "--parent-check", "postgres")
    server.stop()
    assert "Bad checksums:  0" in server.tool("pg_checksums", "--check", "-D", str(server.data)).stdout


def test_a_mount_over_a_folder_that_is_not_empty_is_refused(farpool_binary, shared_cluster, tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(RuntimeError, match="not empty"):
        Mount(farpool_binary, "scratch", str(tmp_path), "--pool", shared_cluster.url)


def test_folder_is_empty_after_the_mount(farpool_binary, shared_cluster, tmp_path):
    at = tmp_path / "at"
    at.mkdir()
    mount = Mount(farpool_binary, "scratch", str(at), "--pool", shared_cluster.url)
    Path(at / "file").write_bytes(b"far" * 1000)
    assert Path(at / "file").read_bytes() == b"far" * 1000
    mount.stop()
    assert list(at.iterdir()) == []
