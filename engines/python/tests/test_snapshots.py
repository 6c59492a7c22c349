"""Far tables that change, from Python: appends, snapshots, history and rollback."""

import datetime
import threading

import pyarrow as pa
import pytest

import farpool
from farpool import col


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [None if i % 7 == 0 else f"word {i % 100}" for i in ids]})


def test_appended_rows_are_a_snapshot_and_earlier_ones_can_be_read(pool):
    pool.put_table("t", rows(0, 1000))
    first = pool.table("t")
    assert first.snapshot is None
    assert pool.history("t") == []
    assert pool.append("t", rows(1000, 1010)) == 1
    assert pool.append("t", rows(1010, 1020)) == 2
    assert first.to_arrow().equals(rows(0, 1000))
    assert pool.table("t").to_arrow().equals(rows(0, 1020))
    assert pool.table("t", snapshot=1).to_arrow().equals(rows(0, 1010))
    found = pool.scan("t", snapshot=1).filter(col("id") >= 1005).to_arrow()
    assert found["id"].to_pylist() == list(range(1005, 1010))
    latest, earlier = pool.history("t")
    assert (latest.snapshot, earlier.snapshot, latest.kept) == (2, 1, True)
    assert latest.summary == "append 10 rows"
    assert abs(datetime.datetime.now(datetime.timezone.utc) - latest.time) < datetime.timedelta(minutes=10)
    assert pool.rollback("t", 1) == 3
    assert pool.table("t").num_rows == 1010
    assert [(table.name, table.lost) for table in pool.tables()] == [("t", False)]
    pool.drop_table("t")


def test_what_cannot_be_appended_or_read_is_refused(pool):
    pool.put_table("t", rows(0, 10))
    pool.append("t", rows(10, 20))
    with pytest.raises(farpool.InvalidError, match=r"columns of the table are \(id Int64, word Utf8\)"):
        pool.append("t", pa.table({"id": [1]}))
    with pytest.raises(farpool.NotFoundError):
        pool.append("missing", rows(0, 1))
    with pytest.raises(farpool.NotFoundError, match="snapshot 99"):
        pool.table("t", snapshot=99)
    with pytest.raises(farpool.NotFoundError, match="snapshot 99"):
        pool.rollback("t", 99)
    assert pool.table("t").to_arrow().equals(rows(0, 20))
    pool.drop_table("t")


def test_appends_of_several_threads_all_land(pool):
    pool.put_table("t", rows(0, 0))
    threads = [
        threading.Thread(target=lambda start=start: [pool.append("t", rows(i, i + 10)) for i in range(start, start + 50, 10)])
        for start in range(0, 400, 100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    found = sorted(pool.table("t").to_arrow()["id"].to_pylist())
    assert found == [i for start in range(0, 400, 100) for i in range(start, start + 50)]
    pool.drop_table("t")


def test_encrypted_tables_change_with_their_key_alone(pool):
    key = b"sixteen bytes..!"
    pool.put_table("t", rows(0, 10), key=key)
    pool.append("t", rows(10, 20), key=key)
    assert pool.table("t", key=key).to_arrow().equals(rows(0, 20))
    for wrong in [None, b"another key.....", b"sixteen bytes..?"]:
        with pytest.raises(farpool.InvalidError):
            pool.append("t", rows(20, 30), key=wrong)
        with pytest.raises(farpool.InvalidError):
            pool.table("t", key=wrong)
    pool.drop_table("t")
