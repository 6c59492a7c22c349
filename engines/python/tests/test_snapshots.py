"""Far tables that change, from Python: appends, snapshots, history and rollback."""

import datetime
import json
import os
import signal
import subprocess
import threading
import uuid

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import NODE_ARGUMENTS, PATIENCE_SECONDS, wait_until

import farpool
import farpool.duckdb
from farpool import col
from farpool.demo.cluster import Cluster


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    words = [None if i % 7 == 0 else f"word {i % 100}" for i in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "word": pa.array(words, pa.string())})


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
    assert abs(datetime.datetime.now(datetime.UTC) - latest.time) < datetime.timedelta(minutes=10)
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


class Telling:
    """Rows that tell when they begin to be read."""

    def __init__(self, table: pa.Table, begun: threading.Event):
        self.table = table
        self.begun = begun

    def __arrow_c_stream__(self, requested_schema=None):
        self.begun.set()
        return self.table.__arrow_c_stream__(requested_schema)


def test_append_that_is_interrupted_adds_no_rows(pool, interruptible):
    pool.put_table("t", rows(0, 10))
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pool.append("t", Telling(rows(10, 500_000), begun))
    thread.join()
    assert pool.history("t") == []
    assert pool.table("t").num_rows == 10
    pool.drop_table("t")


def test_appends_of_several_threads_all_land(pool):
    pool.put_table("t", rows(0, 0))
    threads = [
        threading.Thread(
            target=lambda start=start: [pool.append("t", rows(i, i + 10)) for i in range(start, start + 50, 10)]
        )
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


def test_rows_are_deleted_and_updated_by_conditions(pool):
    pool.put_table("t", rows(0, 1000))
    assert pool.delete_rows("t", col("id") >= 2000) == 0
    assert pool.table("t").snapshot is None
    assert pool.delete_rows("t", (col("id") >= 10) & (col("id") < 20)) == 10
    # It is not known whether the word of a row without one is another one.
    others = [i for i in range(1000) if not 10 <= i < 20 and i % 7 != 0 and i % 100 != 1]
    assert pool.update_rows("t", {"word": None, "id": col("id") + 5000}, col("word") != "word 1") == len(others)
    found = pool.table("t").to_arrow()
    assert sorted(found.filter(pc.field("id") >= 5000)["id"].to_pylist()) == [i + 5000 for i in others]
    assert set(found.filter(pc.field("id") >= 5000)["word"].to_pylist()) == {None}
    assert [entry.summary for entry in pool.history("t")] == ["update, 990 rows written anew", "delete 10 rows"]
    assert set(pool.table("t", snapshot=1).to_arrow()["id"].to_pylist()) == {*range(10), *range(20, 1000)}
    assert pool.delete_rows("t") == 990
    assert pool.table("t").to_arrow().equals(rows(0, 0))
    assert pool.delete_rows("t") == 0
    pool.drop_table("t")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pool: pool.delete_rows("t", col("nothing") > 1), "nothing"),
        (lambda pool: pool.delete_rows("t", col("id")), "true or false"),
        (lambda pool: pool.delete_rows("t", col("id").sum()), "aggregate"),
        (lambda pool: pool.update_rows("t", {"nothing": 1}), "no column"),
        (lambda pool: pool.update_rows("t", {}), "empty"),
        (lambda pool: pool.update_rows("t", {"id": None}), "null"),
        (lambda pool: pool.update_rows("t", {"id": col("word")}), "does not fit"),
        (lambda pool: pool.append("t", pa.table({"id": [None, 1], "word": ["a", "b"]})), "null"),
        (lambda pool: pool.append("t", rows(0, 1), commit_id=""), "commit id"),
        (lambda pool: pool.table("t", snapshot=0), "counted from 1"),
        (lambda pool: pool.rollback("t", 0), "no snapshot 0"),
    ],
)
def test_changes_that_do_not_fit_are_refused_and_nothing_changes(pool, change, why):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("word", pa.string())])
    pool.put_table("t", pa.table({"id": [1, 2], "word": ["a", "b"]}, schema=schema))
    pool.append("t", pa.table({"id": [3], "word": [None]}, schema=schema))
    with pytest.raises(farpool.InvalidError, match=why):
        change(pool)
    assert pool.table("t").snapshot == 1
    assert pool.table("t").to_arrow().to_pydict() == {"id": [1, 2, 3], "word": ["a", "b", None]}
    pool.drop_table("t")


def test_transaction_changes_all_tables_or_none(pool):
    pool.put_table("a", rows(0, 10))
    with pool.transaction() as both:
        both.append("a", rows(10, 12))
        both.put_table("b", rows(0, 3))
        assert pool.table("a").num_rows == 10
        assert both.snapshots == {}
    assert both.snapshots == {"a": 1, "b": 1}
    assert (pool.table("a").num_rows, pool.table("b").num_rows) == (12, 3)
    with pytest.raises(ZeroDivisionError), pool.transaction() as both:
        both.append("a", rows(12, 14))
        both.append("b", rows(3, 4))
        raise ZeroDivisionError
    with pytest.raises(farpool.ClosedError):
        both.append("a", rows(12, 14))
    with pytest.raises(farpool.ConflictError, match=r"is at snapshot 2, and 1 is expected.*append 1 rows"):
        with pool.transaction() as both:
            both.append("a", rows(12, 14))
            both.put_table("b", rows(0, 1), replace=True, expected=1)
            pool.append("b", rows(3, 4))
    assert both.snapshots == {}
    assert (pool.table("a").num_rows, pool.table("b").num_rows) == (12, 4)
    with pytest.raises(farpool.ExistsError), pool.transaction() as both:
        both.put_table("a", rows(0, 1))
    for name in ["a", "b"]:
        pool.drop_table(name)


def test_program_that_is_run_again_appends_once(pool):
    run = str(uuid.uuid4())
    pool.put_table("a", rows(0, 10))
    for _ in range(3):
        assert pool.append("a", rows(10, 15), commit_id=f"{run} 1") == 1
    assert pool.append("a", rows(15, 16), commit_id=f"{run} 2") == 2
    assert pool.append("a", rows(10, 15), commit_id=f"{run} 1") == 1
    assert pool.table("a").to_arrow().equals(rows(0, 16))
    pool.put_table("b", rows(0, 0))
    for is_again in [False, True]:
        with pool.transaction(commit_id=f"{run} 3") as both:
            both.append("a", rows(16, 20))
            both.append("b", rows(0, 4))
        assert both.was_made_before == is_again
        assert both.snapshots == {"a": 3, "b": 1}
    assert (pool.table("a").num_rows, pool.table("b").num_rows) == (20, 4)
    for name in ["a", "b"]:
        pool.drop_table(name)
    pool.put_table("a", rows(0, 10))
    assert pool.append("a", rows(10, 15), commit_id=f"{run} 1") == 1, "the commit was one of the dropped table"
    assert pool.table("a").num_rows == 15
    pool.drop_table("a")


def test_duckdb_reads_an_earlier_snapshot_and_its_relations_can_be_appended(pool):
    con = duckdb.connect()
    pool.put_table("t", rows(0, 10))
    assert pool.append("t", con.sql("SELECT range AS id, 'word ' || range AS word FROM range(10, 13)")) == 1
    pool.append("t", rows(13, 20))
    farpool.duckdb.register(con, pool, "t")
    farpool.duckdb.register(con, pool, "t", snapshot=1, as_="before")
    assert con.sql("SELECT count(*), max(id) FROM t").fetchall() == [(20, 19)]
    assert con.sql("SELECT count(*), max(id) FROM before").fetchall() == [(13, 12)]
    assert con.sql("SELECT count(*) FROM t WHERE id NOT IN (SELECT id FROM before)").fetchall() == [(7,)]
    assert farpool.duckdb.sql_pushdown(con, "SELECT max(id) FROM before WHERE id < 12").fetchall() == [(11,)]
    pool.append("t", con.sql("SELECT id + 1000 AS id, word FROM before"))
    assert con.sql("SELECT count(*) FROM t WHERE id >= 1000").fetchall() == [(13,)]
    with pytest.raises(farpool.InvalidError, match="name a single one"):
        farpool.duckdb.register(con, pool, ["t", "u"], snapshot=1)
    with pytest.raises(farpool.NotFoundError, match="snapshot 99"):
        farpool.duckdb.register(con, pool, "t", snapshot=99, as_="none")
    pool.drop_table("t")


def test_small_files_become_one_and_queries_open_those_that_they_need(pool):
    pool.put_table("t", rows(0, 0))
    for start in range(0, 500, 10):
        pool.append("t", rows(start, start + 10), compact=False)
    query = pool.scan("t").filter(col("id") >= 490)
    answer = query.collect()
    assert answer.num_rows == 10
    assert answer.report["files"] - answer.report["files_skipped"] == 1
    assert "skipped by their bounds" in query.explain()
    assert pool.scan("t").count() == 500
    first = pool.table("t")
    assert pool.compact("t") == first.snapshot + 1
    assert pool.compact("t") is None
    assert pool.table("t").to_arrow().equals(rows(0, 500))
    assert first.to_arrow().equals(rows(0, 500))
    assert pool.scan("t").filter(col("id") >= 490).collect().report["files"] == 1
    pool.drop_table("t")


def test_partitions_and_order_rule_files_out(pool):
    words = pa.table({"word": ["b", "a", None, "b"], "id": pa.array([4, 3, 2, 1], pa.int64())})
    pool.put_table("t", words, partition_by=["word"], sort_by=["id"])
    pool.append("t", words)
    answer = pool.scan("t").filter(col("word") == "b").collect()
    assert answer.to_arrow()["id"].to_pylist() == [1, 4, 1, 4]
    # The manifest has no bounds of a file with nulls alone, so such files are opened.
    assert answer.report["files"] - answer.report["files_skipped"] == 4
    assert pool.compact("t") is not None
    assert pool.scan("t").filter(col("word") == "b").to_arrow()["id"].to_pylist() == [1, 1, 4, 4]
    with pytest.raises(farpool.InvalidError, match="nothing"):
        pool.put_table("u", words, partition_by=["nothing"])
    pool.drop_table("t")


def test_columns_change_and_rows_stay_as_they_were_written(pool):
    old = pa.table(
        {
            "id": pa.array(range(5), pa.int64()),
            "n": pa.array([1, None, 127, -128, 0], pa.int8()),
            "day": pa.array([datetime.date(1970, 1, 2)] * 5, pa.date32()),
            "word": ["a", "b", None, "d", "e"],
        }
    )
    pool.put_table("t", old)
    changes = {
        "widen": {"n": pa.int64(), "day": pa.timestamp("ms")},
        "drop": ["word"],
        "rename": {"id": "number"},
        "add": {"word": pa.int32(), "price": pa.decimal128(9, 2)},
    }
    assert pool.alter_table("t", **changes) == 1
    midnight = datetime.datetime(1970, 1, 2)
    new = pa.table(
        {
            "number": pa.array(range(5), pa.int64()),
            "n": pa.array([1, None, 127, -128, 0], pa.int64()),
            "day": pa.array([midnight] * 5, pa.timestamp("ms")),
            "word": pa.nulls(5, pa.int32()),
            "price": pa.nulls(5, pa.decimal128(9, 2)),
        }
    )
    assert pool.table("t").to_arrow().equals(new)
    more = new.set_column(3, "word", pa.array([7] * 5, pa.int32())).set_column(1, "n", pa.array([1 << 40] * 5))
    assert pool.append("t", more) == 2
    assert pool.table("t").to_arrow().equals(pa.concat_tables([new, more]))
    for placement in ["fetch", "ship", "split"]:
        found = (
            pool.scan("t").filter(col("n") > 100).select(col("word").sum().alias("sum"), col("n").max().alias("most"))
        )
        rows = found.collect(placement=placement)
        assert rows.to_arrow().to_pylist() == [{"sum": 35, "most": 1 << 40}], placement
    told = json.loads(pool.scan("t").select("n").explain(format="json"))
    assert (told["row_groups"], told["row_groups_of_earlier_columns"]) == (2, 1)
    assert "fetches 1 row groups in every placement" in pool.scan("t").select("n").explain()
    assert json.loads(pool.scan("t").select("number").explain(format="json"))["row_groups_of_earlier_columns"] == 0
    assert pool.table("t", snapshot=1).column_names == ["number", "n", "day", "word", "price"]
    assert pool.history("t")[1].summary.startswith("widen column n to Int64, widen column day to Timestamp(")
    pool.drop_table("t")


def test_columns_that_cannot_change_so_are_refused(pool):
    pool.put_table("t", rows(0, 10))
    refused = [
        ({}, "no change"),
        ({"drop": ["other"]}, 'no column "other"; the columns are id, word'),
        ({"rename": {"id": "word"}}, 'a column "word" already'),
        ({"widen": {"id": pa.int32()}}, "Int64 cannot be widened to Int32"),
        ({"widen": {"word": pa.binary()}}, "Utf8 cannot be widened to Binary"),
        ({"add": {"list": pa.list_(pa.int8())}}, '"list" is of type List'),
        ({"add": {"list": "int8"}}, "str is no type of a column"),
    ]
    for changes, expected in refused:
        with pytest.raises(farpool.InvalidError) as told:
            pool.alter_table("t", **changes)
        assert expected in str(told.value)
    with pytest.raises(farpool.NotFoundError):
        pool.alter_table("missing", drop=["id"])
    assert pool.history("t") == []
    pool.drop_table("t")


def test_commands_tell_of_snapshots_go_back_and_compact(shared_cluster, farpool_binary, tmp_path):
    def command(*arguments: object, key: object = "") -> subprocess.CompletedProcess[str]:
        keys = ["--key-file", str(key)] if key else []
        command = [farpool_binary, "table", *map(str, arguments), *keys, "--pool", shared_cluster.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    right, wrong, short = tmp_path / "right", tmp_path / "wrong", tmp_path / "short"
    right.write_bytes(bytes(range(16)))
    wrong.write_bytes(bytes(16))
    short.write_bytes(b"x")
    with farpool.connect(shared_cluster.url) as pool:
        for name, key in [("plain", None), ("secret", right)]:
            bytes_of_key = key and key.read_bytes()
            pool.put_table(name, rows(0, 100), key=bytes_of_key)
            assert "was not changed since" in command("history", name).stdout
            for start in range(100, 500, 100):
                pool.append(name, rows(start, start + 100), key=bytes_of_key, compact=False)
            told = json.loads(command("history", name, "--json").stdout)["snapshots"]
            assert [one["snapshot"] for one in told] == [4, 3, 2, 1]
            assert {(one["kept"], one["summary"]) for one in told} == {(True, "append 100 rows")}
            assert "append 100 rows" in command("history", name).stdout
            assert json.loads(command("describe", name, "--json", key=key).stdout)["files"] == 5
            back = json.loads(command("rollback", name, 2, "--json", key=key).stdout)
            assert back == {"name": name, "snapshot": 5}
            assert pool.table(name, key=bytes_of_key).to_arrow().equals(rows(0, 300))
            made = command("compact", name, key=key)
            assert made.stdout == f"{name} has fewer files in snapshot 6.\n", made.stderr
            assert command("compact", name, key=key).stdout == f"{name} has no files that would become fewer.\n"
            described = json.loads(command("describe", name, "--json", key=key).stdout)
            assert (described["files"], described["rows"], described["snapshot"]) == (1, 300, 6)
            assert pool.table(name, key=bytes_of_key).to_arrow().equals(rows(0, 300))
            missing = command("rollback", name, 99, key=key)
            assert (missing.returncode, missing.stdout) == (1, "")
            assert "snapshot 99" in missing.stderr
        for arguments in [("rollback", "secret", 1), ("compact", "secret")]:
            assert "no key was given" in command(*arguments).stderr
            assert "the key is wrong" in command(*arguments, key=wrong).stderr
            refused = command(*arguments, key=short)
            assert (refused.returncode, str(short) in refused.stderr) == (2, True)
            assert (
                "a key was given, but the table is not"
                in command(arguments[0], "plain", *arguments[2:], key=right).stderr
            )
        assert [entry.snapshot for entry in pool.history("secret")] == [6, 5, 4, 3, 2, 1]
        for name in ["plain", "secret"]:
            assert command("drop", name).returncode == 0


def test_snapshot_that_was_held_for_too_long_has_ended(farpool_binary):
    times = ("--snapshot-age", "100ms", "--snapshots-kept", "0", "--snapshot-hold", "2s")
    with Cluster(farpool_binary, 256 << 20, broker_arguments=times, node_arguments=NODE_ARGUMENTS) as cluster:
        with farpool.connect(cluster.url) as pool:
            pool.put_table("t", rows(0, 10))
            pool.append("t", rows(10, 20), compact=False)
            held = pool.table("t")
            assert held.snapshot == 1
            pool.append("t", rows(20, 30), compact=False)
            found = []

            def has_ended() -> bool:
                try:
                    assert held.to_arrow().equals(rows(0, 20)), "the rows of the snapshot, or an error"
                except farpool.Error as error:
                    found.append(str(error))
                return bool(found)

            wait_until(has_ended, "the snapshot ends")
            assert "snapshot 1 of table" in found[0] and "held for too long" in found[0]
            assert pool.table("t").to_arrow().equals(rows(0, 30))
            pool.drop_table("t")
