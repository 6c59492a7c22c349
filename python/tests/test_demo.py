"""The demonstration compares what it says it compares, and ends with nothing left."""

import json
import os
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest

from farpool.demo.digest import ResultDigest

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


def test_the_demonstration_ends_with_equal_rows_and_nothing_left(farpool_binary, tmp_path):
    report = tmp_path / "report.json"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "farpool.demo", "--scale", "0.1", "--queries", "sort,q21"]
    command += ["--no-keep-data", "--json", str(report)]
    environment = {**os.environ, "FARPOOL_BIN": farpool_binary, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for query in json.loads(report.read_text())["queries"]:
        runs = {mode: run for mode, [run] in query["runs"].items()}
        assert runs["no-spill"]["is_out_of_memory"]
        for mode in ("disk", "far-tcp", "far-shm"):
            assert runs[mode]["spill_written_bytes"] > 1_000_000
            assert runs[mode]["columns"] == runs["enough"]["columns"]
    assert list(temporary.iterdir()) == []
