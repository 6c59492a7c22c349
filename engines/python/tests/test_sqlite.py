"""SQLite with the loadable extension: its answers are those of SQLite without it, whatever else happens."""

import contextlib
import json
import os
import random
import select
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import PATIENCE_SECONDS, start_cluster, wait_until
from postgres import Mount

import farpool

WORKER = Path(__file__).with_name("sqlite_worker.py")
ROWS = 200_000


@pytest.fixture(scope="session")
def extension(farpool_binary) -> str:
    path = Path(farpool_binary).with_name("libfarpool_sqlite.so")
    if not path.is_file():
        pytest.fail(f"no {path}: `make test-python` builds it", pytrace=False)
    return str(path)


@pytest.fixture(scope="session")
def python() -> str:
    """Returns a Python whose sqlite3 can load extensions."""
    test = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)"
    for path in ("/usr/bin/python3", "python3"):
        if subprocess.run([path, "-c", test], capture_output=True, timeout=PATIENCE_SECONDS).returncode == 0:
            return path
    pytest.fail("no Python here has a sqlite3 that loads extensions: install Debian's python3", pytrace=False)


class Worker:
    """A process with a connection, running sqlite_worker.py."""

    def __init__(self, python: str, extension: str, database: Path, flags: str = "", **variables: str):
        environment = {**os.environ, "FARPOOL_SQLITE": flags, "SQLITE_TMPDIR": "/nowhere", **variables}
        self._process = subprocess.Popen(
            [python, str(WORKER), extension, str(database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        if self._line("its start") != '"ready"\n':
            raise RuntimeError(self._process.communicate(timeout=PATIENCE_SECONDS)[1])

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._process.kill()
            self._process.communicate()

    def close(self) -> None:
        """Ends the process as a program does that closes its connections."""
        if self._process.poll() is None:
            self._process.communicate(timeout=PATIENCE_SECONDS)

    def kill_within(self, seconds: float) -> None:
        """Kills the process with SIGKILL after this time, or when it answers."""
        select.select([self._process.stdout], [], [], seconds)
        self._process.kill()
        self._process.wait()

    def _line(self, what: str) -> str:
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            pytest.fail(f"the worker did not answer within {PATIENCE_SECONDS} s: {what}")
        return self._process.stdout.readline()

    def tell(self, sql: str) -> None:
        self._sql = sql
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()

    def hear(self) -> list:
        answer = json.loads(self._line(self._sql))
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])
        return answer

    def run(self, sql: str) -> list:
        self.tell(sql)
        return self.hear()

    def stats(self) -> dict[str, int]:
        return json.loads(self.run("PRAGMA farpool_stats")[0][0])


@pytest.fixture
def far(python, extension, shared_cluster, tmp_path) -> Iterator[Worker]:
    """Opens a new database through the extension."""
    flags = f"--pool {shared_cluster.url} --local-cache 0B"
    with Worker(python, extension, tmp_path / "far.db", flags) as worker:
        yield worker


@pytest.fixture
def stock(python, far, tmp_path) -> Iterator[Worker]:
    """Opens the same database in a SQLite without the extension."""
    with Worker(python, "stock", tmp_path / "far.db") as worker:
        yield worker


def fill(worker: Worker, rows: int = ROWS) -> None:
    worker.run("CREATE TABLE t (id INTEGER PRIMARY KEY, key INTEGER, word TEXT)")
    worker.run(
        f"WITH n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})"
        " INSERT INTO t SELECT i, (i * 7919) % 1000003, printf('%0100d', i) FROM n"
    )


SPILLING = {
    "sort": "SELECT sum(id * at) FROM (SELECT id, row_number() OVER (ORDER BY word || key, key) AS at FROM t)",
    "distinct": "SELECT count(*) FROM (SELECT DISTINCT key, word FROM t UNION SELECT key, word FROM t)",
    "index": "SELECT count(*), sum(a.key) FROM t AS a JOIN t AS b USING (word) WHERE a.key % 3 = 0",
}


@pytest.mark.parametrize("query", SPILLING)
def test_what_overflows_goes_to_far_memory_and_the_answer_is_that_of_stock_sqlite(far, stock, query):
    fill(far)
    # SQLITE_TMPDIR names a folder that does not exist.
    for worker in (far, stock):
        worker.run("PRAGMA cache_size = 100")
        worker.run("PRAGMA temp_store = FILE")
    before = far.stats()["bytes_written"]
    answer = far.run(SPILLING[query])
    assert far.stats()["bytes_written"] - before > 5 << 20
    stock.run("PRAGMA temp_store = MEMORY")
    assert answer == stock.run(SPILLING[query])
    wait_until(lambda: far.stats()["leased_bytes"] <= 512 << 20, "what was spilled is given back")


def test_temporary_tables_lie_in_far_memory(far):
    far.run("PRAGMA temp_store = FILE")
    far.run("PRAGMA temp.cache_size = 20")
    far.run("CREATE TEMP TABLE s (id INTEGER PRIMARY KEY, word TEXT)")
    numbers = (
        "WITH n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) SELECT i, printf('%0100d', i) FROM n"
    )
    far.run(f"INSERT INTO s {numbers}")
    far.run("SAVEPOINT p")
    far.run("UPDATE s SET word = id WHERE id % 3 = 0")
    far.run("ROLLBACK TO p")
    assert far.stats()["bytes_written"] > 10 << 20
    assert far.run("SELECT count(*), sum(word = printf('%0100d', id)) FROM s") == [[100_000, 100_000]]
    assert far.run("PRAGMA temp.integrity_check") == [["ok"]]


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_whoever_writes_the_other_reads_what_is_there(far, stock, journal):
    far.run(f"PRAGMA journal_mode = {journal}")
    fill(far, 20_000)
    rng = random.Random(5)
    expected = far.run("SELECT sum(key) FROM t")[0][0]
    for worker in (far, stock):
        # Every read goes to the file, because the page cache is tiny.
        worker.run("PRAGMA cache_size = 2")
    for turn in range(300):
        writer, reader = rng.sample((far, stock), 2)
        step, at = rng.randrange(1, 1000), rng.randrange(20_000)
        writer.run(f"UPDATE t SET key = key + {step} WHERE id = {at}")
        expected += step
        if turn % 50 == 7:
            rng.choice((far, stock)).run("PRAGMA wal_checkpoint(TRUNCATE)")
        assert reader.run("SELECT sum(key) FROM t")[0][0] == expected, turn
    for worker in (far, stock):
        assert worker.run("PRAGMA integrity_check") == [["ok"]]

    def is_read_from_far_memory() -> bool:
        assert far.run("SELECT sum(key) FROM t")[0][0] == expected
        return far.stats()["far_hits"] > 0

    # Far memory may be classified as slow on a busy machine, and is then skipped for a while.
    wait_until(is_read_from_far_memory, "some of it is read from far memory")


def test_a_database_larger_than_local_memory_is_read_from_far_memory_once_it_was_read(far):
    fill(far)
    far.run("PRAGMA cache_size = 50")
    count = "SELECT sum(length(word)) FROM t"
    answer = far.run(count)

    def is_read_from_far_memory() -> bool:
        before = far.stats()
        assert far.run(count) == answer
        after = far.stats()
        hits, misses = (after[name] - before[name] for name in ("far_hits", "misses"))
        return hits > 0.95 * (hits + misses)

    # Far memory may be classified as slow on a busy machine, and is then skipped for a while.
    wait_until(is_read_from_far_memory, "nearly all of it is read from far memory")


def test_a_node_that_dies_costs_the_cache_and_what_was_spilled_and_no_answer_is_wrong(
    cluster, python, extension, tmp_path
):
    flags = f"--pool {cluster.url} --protection none --local-cache 0B"
    with Worker(python, extension, tmp_path / "far.db", flags) as far, ThreadPoolExecutor(1) as executor:
        fill(far)
        for pragma in ("cache_size = 50", "temp_store = FILE"):
            far.run(f"PRAGMA {pragma}")
        total = far.run("SELECT sum(key) FROM t")
        spilled = far.stats()["bytes_written"]
        running = executor.submit(far.run, SPILLING["sort"])
        # The pool shows when the query is under way. The worker is busy and cannot answer.
        with farpool.connect(cluster.url, protection="none") as pool:
            wait_until(lambda: pool.status()["leased_bytes"] > 0 or running.done(), "something is spilled")
        cluster.kill("node-1")
        cluster.kill("node-2")
        with pytest.raises(RuntimeError, match="disk I/O error|unable to open|full"):
            running.result(120)
        assert "node" in far.run("PRAGMA farpool_error")[0][0]
        assert far.run("SELECT sum(key) FROM t") == total, spilled
        far.run("UPDATE t SET key = key + 1")
        assert far.run("SELECT sum(key) FROM t") == [[total[0][0] + ROWS]]
        assert far.run("PRAGMA integrity_check") == [["ok"]]


def test_a_broker_that_dies_makes_no_answer_wrong_and_costs_no_database(cluster, python, extension, tmp_path):
    flags = f"--pool {cluster.url} --local-cache 0B"
    with Worker(python, extension, tmp_path / "far.db", flags) as far, ThreadPoolExecutor(1) as executor:
        fill(far)
        for pragma in ("cache_size = 50", "temp_store = FILE"):
            far.run(f"PRAGMA {pragma}")
        total = far.run("SELECT sum(key) FROM t")
        answer = far.run(SPILLING["sort"])
        running = executor.submit(far.run, SPILLING["sort"])
        with farpool.connect(cluster.url) as pool:
            wait_until(lambda: pool.status()["leased_bytes"] > 0 or running.done(), "something is spilled")
        cluster.kill("broker")
        try:
            assert running.result(120) == answer
        except RuntimeError as error:
            assert "disk I/O error" in str(error) or "unable to open" in str(error), error
        assert far.run("SELECT sum(key) FROM t") == total
        far.run("UPDATE t SET key = key + 1")
        assert far.run("SELECT sum(key) FROM t") == [[total[0][0] + ROWS]]
        assert far.run("PRAGMA integrity_check") == [["ok"]]


def test_a_cached_mount_that_dies_under_stock_sqlite_leaves_a_database_that_is_whole(
    farpool_binary, python, short_lease_cluster, tmp_path
):
    folder = tmp_path / "kept"
    folder.mkdir()
    database = folder / "far.db"
    with Worker(python, "stock", database) as stock:
        fill(stock, 20_000)
    flags = ["--pool", short_lease_cluster.url, "--size", "64MiB", "--local-cache", "0B"]
    mount = Mount(farpool_binary, "cache", str(folder), str(folder), *flags)
    try:
        for turn in range(5):
            with Worker(python, "stock", database) as stock:
                stock.run("PRAGMA cache_size = 10")
                before = stock.run("SELECT sum(key) FROM t")
                stock.run("UPDATE t SET key = key + 1")
                stock.tell("UPDATE t SET key = key + 1")
                wait_until(Path(f"{database}-journal").exists, "the update is under way")
                mount.kill()
                with contextlib.suppress(RuntimeError):
                    stock.hear()
            mount.start()
            with Worker(python, "stock", database) as stock:
                assert stock.run("PRAGMA integrity_check") == [["ok"]], turn
                gained = stock.run("SELECT sum(key) FROM t")[0][0] - before[0][0]
                assert gained in (20_000, 40_000), "what was committed, and all of an update or nothing"
    finally:
        mount.stop()


def test_a_database_whose_name_another_one_has_taken_is_not_written_to(far, stock, tmp_path):
    fill(far, 10)
    (tmp_path / "other.db").write_bytes((tmp_path / "far.db").read_bytes())
    (tmp_path / "other.db").rename(tmp_path / "far.db")
    for worker in (far, stock):
        with pytest.raises(RuntimeError, match="readonly"):
            worker.run("UPDATE t SET key = 0")
    assert far.run("SELECT count(*) FROM t WHERE key > 0") == [[9]]


def test_a_database_whose_name_another_one_has_taken_leaves_the_log_of_the_other_alone(far, python, tmp_path):
    far.run("PRAGMA journal_mode = WAL")
    fill(far, 10)
    for path in tmp_path.glob("far.db*"):
        path.unlink()
    with Worker(python, "stock", tmp_path / "far.db") as other:
        other.run("PRAGMA journal_mode = WAL")
        other.run("CREATE TABLE theirs (n INTEGER)")
        assert (tmp_path / "far.db-wal").stat().st_size > 0
        far.close()
        with Worker(python, "stock", tmp_path / "far.db") as third:
            assert third.run("SELECT name FROM sqlite_master") == [["theirs"]]


def test_a_process_that_ends_gives_its_far_memory_back_at_once(farpool_binary, python, extension, tmp_path):
    # Nodes must be told to free the memory: the TTL is longer than this test waits.
    with start_cluster(farpool_binary, ttl="10m") as cluster, farpool.connect(cluster.url) as pool:
        with Worker(python, extension, tmp_path / "far.db", f"--pool {cluster.url} --local-cache 0B") as far:
            fill(far, 20_000)
            far.run("PRAGMA cache_size = 50")

            def is_in_far_memory() -> bool:
                far.run("SELECT sum(key) FROM t")
                return far.stats()["far_writes"] > 0

            wait_until(is_in_far_memory, "some of it lies in far memory")
            assert pool.status()["leased_bytes"] > 0
        wait_until(lambda: pool.status()["leased_bytes"] == 0, "it is given back")


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_process_killed_in_the_middle_of_writing_leaves_a_database_that_is_whole(
    python, extension, short_lease_cluster, tmp_path, journal
):
    flags = f"--pool {short_lease_cluster.url}"
    database = tmp_path / "far.db"
    with Worker(python, extension, database, flags) as far:
        far.run(f"PRAGMA journal_mode = {journal}")
        fill(far, 20_000)
    rng = random.Random(3)
    for turn in range(10):
        with Worker(python, extension, database, flags) as far:
            far.run("PRAGMA cache_size = 10")
            far.tell("UPDATE t SET key = key + 1")
            far.kill_within(rng.random() * 0.2)
        with Worker(python, "stock", database) as stock:
            assert stock.run("PRAGMA integrity_check") == [["ok"]], turn
            updated = stock.run("SELECT count(DISTINCT key - (id * 7919) % 1000003) FROM t")
            assert updated == [[1]], "all of an update is there, or nothing"


@pytest.mark.parametrize(
    ("flags", "match"),
    {
        "--pool farpool://127.0.0.1:1": "127.0.0.1:1",
        "--pool nowhere": "nowhere",
        "--cache much": "'much'.*4GiB",
        "--block 5000B": "5000.*4096 to 4194304",
        "--protection two": "none, mirror, local or rs",
    }.items(),
)
def test_settings_that_cannot_be_meant_are_told_when_the_extension_is_loaded(
    python, extension, shared_cluster, tmp_path, flags, match
):
    if "--pool" not in flags:
        flags += f" --pool {shared_cluster.url}"
    with pytest.raises(RuntimeError, match=f"(?s){match}"):
        Worker(python, extension, tmp_path / "far.db", flags)


def test_the_pool_and_a_flag_come_from_variables_and_flags_come_first(python, extension, shared_cluster, tmp_path):
    variables = {"FARPOOL_POOL": shared_cluster.url, "FARPOOL_SQLITE_LOCAL_CACHE": "0B"}
    with Worker(python, extension, tmp_path / "far.db", **variables) as far:
        fill(far)
        assert far.run("SELECT count(*) FROM t") == [[ROWS]]
    with pytest.raises(RuntimeError, match='FARPOOL_SQLITE_CACHE: cache: "1GB" is not a size'):
        Worker(python, extension, tmp_path / "other.db", FARPOOL_SQLITE_CACHE="1GB", **variables)
    flags = f"--pool {shared_cluster.url} --cache 64MiB"
    with Worker(python, extension, tmp_path / "far.db", flags, FARPOOL_POOL="farpool://127.0.0.1:1") as far:
        assert far.run("SELECT count(*) FROM t") == [[ROWS]]
