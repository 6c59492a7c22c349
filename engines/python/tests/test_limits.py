"""attach() in a control group with a memory limit, as in a pod: it sets DuckDB's memory limit to what is left of it."""

import subprocess
import sys

import pytest

from farpool.demo.pod import Pods

MIB = 1 << 20
LIMIT_BYTES = 512 * MIB
# Prints DuckDB's memory limit before and after attach().
SCRIPT = """
import sys, duckdb, farpool.duckdb
url, own, asked = sys.argv[1:]
con = duckdb.connect()
if own:
    con.execute(f"SET memory_limit = '{own}'")
def limit():
    return con.execute("SELECT current_setting('memory_limit')").fetchone()[0]
before = limit()
with farpool.connect(url) as pool:
    farpool.duckdb.attach(con, pool, memory_limit=asked or None)
    print(before, "|", limit())
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


def limits(command: list[str]) -> tuple[float, float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("|")
    return size(before), size(after)


def test_attach_leaves_room_for_the_process_in_its_pod(shared_cluster, pods):
    pod = pods.make(LIMIT_BYTES)
    script = [sys.executable, "-c", SCRIPT, shared_cluster.url]
    before, after = limits(pod.command([*script, "", ""]))
    assert before == pytest.approx(0.8 * LIMIT_BYTES, rel=0.01), "DuckDB's default, however much Python holds"
    assert 0.3 * LIMIT_BYTES < after < 0.6 * LIMIT_BYTES
    assert limits(pod.command([*script, "100MiB", ""])) == (100 * MIB, 100 * MIB), "an own setting stays"
    assert limits(pod.command([*script, "100MiB", "200MiB"])) == (100 * MIB, 200 * MIB)
    before, after = limits([*script, "", ""])
    assert before == after, "without a group there is nothing to fit"
    pod.remove()
