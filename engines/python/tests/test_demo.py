"""The demonstration compares what it reports, says what it simulated, and leaves nothing behind."""

import io
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from farpool.demo.digest import ResultDigest
from farpool.demo.queries import QUERIES
from farpool.demo.report import WIDTH, QueryResult, Setting, sentences
from farpool.demo.run import MODES, Outcome
from farpool.demo.steps import Steps

TABLE = pa.table(
    {
        "integer": pa.array([1, 2, None, 4, 5, 6]),
        "text": pa.array(["a", "", None, "dé", "x" * 1000, "z"]),
        "flag": pa.array([True, False, None, True, True, False]),
        "day": pa.array([1, 2, 3, None, 5, 6], pa.date32()),
        "price": pa.array([Decimal(n) if n else None for n in (1, 2, 3, 4, 0, 6)], pa.decimal128(15, 2)),
    }
)


def digest(table: pa.Table, rows_per_batch: int) -> list[tuple[str, str]]:
    result = ResultDigest(table.schema)
    for batch in table.to_batches(rows_per_batch):
        result.add(batch)
    return result.columns()


@pytest.mark.parametrize("rows_per_batch", [1, 2, 4, 5])
def test_a_digest_does_not_see_batches(rows_per_batch):
    assert digest(TABLE, rows_per_batch) == digest(TABLE, 100)


@pytest.mark.parametrize("column", TABLE.column_names)
def test_a_digest_sees_every_change_of_value_null_and_order(column):
    values = TABLE[column].to_pylist()
    other = {"integer": 9, "text": "other", "flag": False, "day": TABLE["day"][5].as_py(), "price": Decimal(9)}[column]
    changes = [
        [*values[::-1]],
        [None, *values[1:]],
        [other, *values[1:]],
        values[:-1],
        [values[0], values[0], *values[2:]],
    ]
    original = digest(TABLE.select([column]), 100)
    for change in changes:
        changed = pa.table({column: pa.array(change, TABLE.schema.field(column).type)})
        assert digest(changed, 100) != original


def test_a_digest_sees_where_one_string_ends_and_the_next_begins():
    assert digest(pa.table({"s": ["ab", "c"]}), 9) != digest(pa.table({"s": ["a", "bc"]}), 9)


REPOSITORY = Path(__file__).resolve().parents[3]
DEMONSTRATION = [sys.executable, "-m", "farpool.demo", "--scale", "0.1", "--queries", "sort,q21", "--no-keep-data"]


def demonstrate(farpool_binary: str, tmp_path: Path, command: list[str]) -> tuple[dict, str]:
    """Runs the demonstration, and returns its figures and its output."""
    report = tmp_path / "report.json"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = str(REPOSITORY / "bench" / "capped-disk.sh")
    environment = {
        **os.environ,
        "FARPOOL_BIN": farpool_binary,
        "FARPOOL_CAPPED_DISK": script,
        "TMPDIR": str(temporary),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--json", str(report)], env=environment, stdout=pipe, stderr=pipe, text=True
    ) as run:
        out, errors = run.communicate(timeout=1_500)
    assert run.returncode == 0, out + errors
    assert list(temporary.iterdir()) == []
    # Another demonstration may run at the same time.
    assert list(Path("/sys/fs/cgroup").glob(f"**/farpool-demo-{run.pid}")) == []
    assert max(map(len, out.splitlines())) <= WIDTH
    return json.loads(report.read_text()), out


def check_queries(queries: list[dict], modes: tuple[str, ...]) -> None:
    assert [query["query"] for query in queries] == ["sort", "q21"]
    for query in queries:
        runs = {mode: run for mode, [run] in query["runs"].items()}
        assert runs["no-spill"]["failed_for"] == "memory"
        assert runs["small-volume"]["failed_for"] == "volume"
        for mode in modes:
            assert runs[mode]["spill_written_bytes"] > 1_000_000
            assert runs[mode]["columns"] == runs["enough"]["columns"]


def test_the_demonstration_ends_with_equal_rows_and_nothing_left(farpool_binary, tmp_path):
    report, said = demonstrate(farpool_binary, tmp_path, DEMONSTRATION)
    assert report["setting"]["why_no_pods"] == "" and report["setting"]["why_no_cloud_volume"] == ""
    check_queries(report["queries"], ("cloud-volume", "disk", "far-tcp", "far-shm"))
    for sentence in ("Far memory won: ", "Far memory lost: ", "Simulated: "):
        assert sentence in said


def test_where_there_are_no_control_groups_the_demonstration_says_so_and_goes_on(farpool_binary, tmp_path):
    hidden = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
    report, said = demonstrate(
        farpool_binary, tmp_path, ["unshare", "--mount", "sh", "-c", hidden, "sh", *DEMONSTRATION]
    )
    assert "no cgroup hierarchy" in report["setting"]["why_no_pods"] and "Not in pods: " in said
    assert report["setting"]["why_no_cloud_volume"] and "No cloud volume: " in said
    check_queries(report["queries"], ("disk", "far-tcp", "far-shm"))


def test_a_step_says_how_long_it_took_the_last_time(tmp_path):
    def step() -> str:
        out = io.StringIO()
        with Steps(tmp_path, out).step("Counting to three", "counting"):
            pass
        return out.getvalue()

    assert re.fullmatch(r"Counting to three: \d+\.\d s\n", step())
    assert re.fullmatch(r"Counting to three: \d+\.\d s \(the last time \d+\.\d s\)\n", step())


def test_the_report_says_where_far_memory_won_and_lost_by_what_was_measured():
    def result(name: str, **seconds: float) -> QueryResult:
        outcomes = {mode: [Outcome(seconds=taken, rows=1, spill_written_bytes=1)] for mode, taken in seconds.items()}
        outcomes["small-volume"] = [Outcome(error="full", failed_for="volume")]
        return QueryResult(
            QUERIES[name], 1, {MODES[mode.replace("_", "-")].name: runs for mode, runs in outcomes.items()}
        )

    setting = Setting(1, 2, 1, 1 << 30, 1 << 28, "", "", "a throttle", "here")
    times = {"enough": 1.0, "disk": 2.0, "cloud_volume": 8.0}
    results = [result("sort", far_tcp=4.0, far_shm=1.5, **times), result("q18", far_tcp=1.0, far_shm=1.0, **times)]
    won, lost, simulated = sentences(results, setting)
    assert "completed all 2 queries that died on a small volume" in won
    assert "of the time of cloud volume it took 0.12 to 0.50 over tcp and 0.12 to 0.19 over shm;" in won
    assert "of the time of this machine's disk it took 0.50 over tcp (q18) and 0.50 to 0.75 over shm." in won
    assert "of the time of this machine's disk it took 2.00 over tcp (sort);" in lost
    assert "a throttle" in simulated
