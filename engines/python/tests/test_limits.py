"""attach() sets DuckDB's memory limit to what fits a control group with a memory limit, such as a pod, or changes
nothing."""

import subprocess
import sys

import duckdb
import pytest

import farpool.duckdb
import farpool.duckdb.spill
from farpool._farpool import _group_memory
from farpool.demo.pod import Pods

MIB = 1 << 20
LIMIT_BYTES = 512 * MIB
# Prints DuckDB's memory limit before and after attach(), and the memory that it holds in a table of `rows` rows.
SCRIPT = """
import sys, duckdb, farpool.duckdb
url, own, asked, rows = sys.argv[1:]
con = duckdb.connect()
if own:
    con.execute(f"SET memory_limit = '{own}'")
con.execute(f"CREATE TABLE held AS SELECT hash(i) AS a, hash(-i) AS b FROM range({rows}) AS rows(i)")
def limit():
    return con.execute("SELECT current_setting('memory_limit')").fetchone()[0]
before = limit()
with farpool.connect(url) as pool:
    farpool.duckdb.attach(con, pool, memory_limit=asked or None)
    held = con.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()[0]
    print(before, "|", limit(), "|", held, "bytes")
    con.close()
"""
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


@pytest.fixture
def pods():
    with Pods() as pods:
        assert pods.can_limit_memory, pods.why_not
        yield pods


def limits(command: list[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # Lines before the last one are DuckDB's progress bar, which it draws if a query takes longer than 2 s.
    return [size(text) for text in done.stdout.splitlines()[-1].split("|")]


def test_attach_leaves_room_for_the_process_in_its_pod(shared_cluster, pods):
    pod = pods.make(LIMIT_BYTES)
    script = [sys.executable, "-c", SCRIPT, shared_cluster.url]
    before, after, _ = limits(pod.command([*script, "", "", "0"]))
    assert before == pytest.approx(0.8 * LIMIT_BYTES, rel=0.01), "DuckDB's default, however much Python holds"
    assert 0.3 * LIMIT_BYTES < after < 0.6 * LIMIT_BYTES
    assert limits(pod.command([*script, "100MiB", "", "0"]))[:2] == [100 * MIB, 100 * MIB], "an own setting stays"
    assert limits(pod.command([*script, "100MiB", "200MiB", "0"]))[:2] == [100 * MIB, 200 * MIB]
    _, after, held = limits(pod.command([*script, "", "", "12000000"]))
    assert held > 150 * MIB, "nothing of the table has spilled"
    assert held + 32 * MIB < after < 0.95 * LIMIT_BYTES, "there is room beside it"
    before, after, _ = limits([*script, "", "", "0"])
    assert before == after or _group_memory() is not None, "without a group there is nothing to fit"
    pod.remove()


def limit_in(con: duckdb.DuckDBPyConnection) -> float:
    return size(con.execute("SELECT current_setting('memory_limit')").fetchone()[0])


def test_limit_has_room_for_what_duckdb_holds_and_is_never_tiny(shared_cluster, monkeypatch):
    def attached_limit(available_bytes: int, rows: int) -> float:
        monkeypatch.setattr(farpool.duckdb.spill, "_group_memory", lambda: (LIMIT_BYTES, available_bytes))
        with farpool.connect(shared_cluster.url) as pool, duckdb.connect(config={"threads": 1}) as con:
            con.execute(f"CREATE TABLE held AS SELECT hash(i) AS a FROM range({rows}) AS rows(i)")
            farpool.duckdb.attach(con, pool)
            return limit_in(con)

    # The table takes 15.3 MiB. DuckDB counts some more, such as its transactions.
    assert attached_limit(200 * MIB, 2_000_000) == pytest.approx((0.6 * 200 + 15.3) * MIB, abs=8 * MIB)
    assert attached_limit(60 * MIB, 2_000_000) == 64 * MIB
    with pytest.warns(RuntimeWarning, match="has 20 MiB of memory left"):
        assert attached_limit(20 * MIB, 0) == 64 * MIB


@pytest.mark.parametrize("wrong", [{"max_size": (1 << 64) - 1}, {"memory_limit": (1 << 64) - 1}])
def test_limit_that_duckdb_refuses_leaves_the_database_as_it_was(shared_cluster, wrong):
    with farpool.connect(shared_cluster.url) as pool, duckdb.connect(config={"memory_limit": "100MB"}) as con:
        before = con.execute("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall()
        with pytest.raises(duckdb.Error):
            farpool.duckdb.attach(con, pool, **wrong)
        assert con.execute("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall() == before
        with pytest.raises(farpool.InvalidError, match="attach was not called"):
            farpool.duckdb.detach(con)
        farpool.duckdb.attach(con, pool, protection="none")
        farpool.duckdb.detach(con)


def test_database_that_has_spilled_for_a_limit_that_it_cannot_meet_stays_attached(shared_cluster):
    with farpool.connect(shared_cluster.url) as pool, duckdb.connect(config={"threads": 1}) as con:
        con.execute("CREATE TABLE held AS SELECT hash(i) AS a FROM range(2_000_000) AS rows(i)")
        held = con.execute("SELECT bit_xor(a) FROM held").fetchone()
        with pytest.raises(duckdb.OutOfMemoryException):
            farpool.duckdb.attach(con, pool, memory_limit=1)
        assert con.execute("SELECT bit_xor(a) FROM held").fetchone() == held
        with pytest.raises(farpool.InvalidError, match="already attached"):
            farpool.duckdb.attach(con, pool)
        farpool.duckdb.detach(con)
