"""Files that DuckDB reads from elsewhere: cached in far memory, or published there."""

import os
import time
from pathlib import Path

import duckdb
import numpy
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from conftest import wait_until
from remote_files import CountedFolder

import farpool
import farpool.duckdb

ROWS = 1_500_000
COLUMNS = 8
SUMS = f"SELECT {', '.join(f'sum(c{at})::DECIMAL(18, 3)' for at in range(COLUMNS))} FROM 's3://numbers.parquet'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a Parquet file that is larger than the memory limit of these tests' connections."""
    folder = tmp_path_factory.mktemp("bucket")
    rng = numpy.random.default_rng(1)
    columns = {f"c{at}": rng.random(ROWS) for at in range(COLUMNS)}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "numbers.parquet", row_group_size=100_000)
    age(folder / "numbers.parquet")
    return folder


def age(path: Path) -> None:
    """Makes a file old. DuckDB does not cache a file that may still be changing."""
    os.utime(path, (time.time() - 3600, time.time() - 3600))


@pytest.mark.parametrize("cache", [True, False])
def test_what_was_read_of_remote_files_is_read_again_from_far_memory_if_asked(pool, folder, cache):
    bucket = CountedFolder(folder)
    with duckdb.connect(config={"threads": 2, "memory_limit": "70MB"}) as con:
        con.register_filesystem(bucket)
        farpool.duckdb.attach(con, pool, cache=cache)
        answer = con.execute(SUMS).fetchall()
        first, bucket.reads = bucket.reads, 0
        assert first > 10
        assert con.execute(SUMS).fetchall() == answer
        # Blocks of less than 256 KiB, such as the footer, are not cached.
        assert bucket.reads * 10 < first if cache else bucket.reads * 2 > first
        assert (pool.stats()["bytes_written"] > 0) == cache
    assert pool.stats()["used_bytes"] == 0


def test_a_remote_file_that_has_changed_is_read_anew(shared_cluster, folder, tmp_path):
    bucket = CountedFolder(tmp_path)
    (tmp_path / "numbers.parquet").write_bytes((folder / "numbers.parquet").read_bytes())
    age(tmp_path / "numbers.parquet")
    with farpool.connect(shared_cluster.url) as pool, duckdb.connect(config={"memory_limit": "70MB"}) as con:
        con.register_filesystem(bucket)
        farpool.duckdb.attach(con, pool, cache=True)
        before = con.execute(SUMS).fetchall()
        table = pyarrow.parquet.read_table(tmp_path / "numbers.parquet").slice(ROWS // 2)
        pyarrow.parquet.write_table(table, tmp_path / "numbers.parquet", row_group_size=100_000)
        after = con.execute(SUMS).fetchall()
        assert after != before
        assert after == con.execute(SUMS.replace("s3://", f"{tmp_path}/")).fetchall()


def test_a_lost_node_costs_protected_blocks_nothing_and_others_until_they_are_dropped(cluster, folder):
    bucket = CountedFolder(folder)
    for number, protection in enumerate(("local", "none")):
        with farpool.connect(cluster.url) as pool, duckdb.connect(config={"memory_limit": "70MB"}) as con:
            con.register_filesystem(bucket)
            farpool.duckdb.attach(con, pool, cache=True, protection=protection)
            answer = con.execute(SUMS).fetchall()
            cluster.kill(f"node-{number + 1}")
            if protection == "local":
                first, bucket.reads = bucket.reads, 0
                assert con.execute(SUMS).fetchall() == answer
                assert bucket.reads * 10 < first
                continue
            with pytest.raises(duckdb.Error, match="node"):
                con.execute(SUMS).fetchall()
            con.execute("SET enable_external_file_cache = false")
            assert con.execute(SUMS).fetchall() == answer
            cluster.start_node(number + 1)
            wait_until(lambda: pool.status()["donated_bytes"] > 0, "a node is back")
            con.execute("SET enable_external_file_cache = true")
            assert con.execute(SUMS).fetchall() == answer
            first, bucket.reads = bucket.reads, 0
            assert con.execute(SUMS).fetchall() == answer
            assert bucket.reads * 10 < first


def test_what_was_read_and_finds_no_room_in_the_pool_lies_on_the_disk_of_local_copies(folder, tmp_path):
    bucket = CountedFolder(folder)
    with (
        farpool.embedded("32MiB", region_size="16MiB", protection="local", local_folder=tmp_path) as pool,
        duckdb.connect(config={"threads": 2, "memory_limit": "70MB"}) as con,
    ):
        con.register_filesystem(bucket)
        farpool.duckdb.attach(con, pool, cache=True)
        answer = con.execute(SUMS).fetchall()
        first, bucket.reads = bucket.reads, 0
        assert con.execute(SUMS).fetchall() == answer == con.execute(SUMS.replace("s3://", f"{folder}/")).fetchall()
        assert bucket.reads * 10 < first
        stats = pool.stats()
        assert stats["leased_bytes_total"] <= 32 << 20 < stats["bytes_written"]


def test_what_was_read_and_finds_no_room_at_all_fails_queries_until_it_is_dropped(folder):
    bucket = CountedFolder(folder)
    with (
        farpool.embedded("32MiB", region_size="16MiB", protection="none") as pool,
        duckdb.connect(config={"threads": 2, "memory_limit": "70MB"}) as con,
    ):
        con.register_filesystem(bucket)
        farpool.duckdb.attach(con, pool, cache=True)
        with pytest.raises(duckdb.Error, match="ExhaustedError|max_temp_directory_size"):
            con.execute(SUMS).fetchall()
        con.execute("SET enable_external_file_cache = false")
        answer = con.execute(SUMS).fetchall()
        assert answer == con.execute(SUMS.replace("s3://", f"{folder}/")).fetchall()


@pytest.fixture
def sales():
    numbers = numpy.arange(400_000)
    text = pyarrow.array(f"{number:040}" for number in numbers)
    return pyarrow.table({"id": numbers, "day": numbers // 1_000, "amount": numbers % 97 / 7.0, "text": text})


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_published_file_is_a_relation_of_which_only_what_a_query_needs_is_read(pool, con, sales, ending):
    sink = pyarrow.BufferOutputStream()
    if ending == "parquet":
        pyarrow.parquet.write_table(sales, sink, row_group_size=20_000, compression="none")
    else:
        pyarrow.feather.write_feather(sales, sink, compression="uncompressed", chunksize=20_000)
    with pool.create("sales/1", file_class="pinned") as file:
        file.write_at(0, sink.getvalue())
    pool.rename("sales/1", f"sales/1.{ending}")
    pool.publish(f"sales/1.{ending}")
    try:
        farpool.duckdb.register_file(con, pool, f"sales/1.{ending}", as_="sales")
        query = "SELECT count(*), sum(amount)::DECIMAL(18, 3) FROM {} WHERE day = 17"
        plan = con.execute(f"EXPLAIN {query.format('sales')}").fetchall()[0][1]
        assert "day" in plan and "Filters" in plan and "text" not in plan
        before = pool.stats()["bytes_read"]
        found = con.execute(query.format("sales")).fetchall()
        narrow = pool.stats()["bytes_read"] - before
        con.register("here", sales)
        assert found == con.execute(query.format("here")).fetchall()
        everything = "SELECT count(*), sum(hash(COLUMNS(*))) FROM {}"
        before = pool.stats()["bytes_read"]
        assert con.execute(everything.format("sales")).fetchall() == con.execute(everything.format("here")).fetchall()
        assert narrow * 2 < pool.stats()["bytes_read"] - before
        farpool.duckdb.register_file(con, pool, "sales", as_="all_sales")
        assert con.execute("SELECT count(*) FROM all_sales").fetchone() == (400_000,)
    finally:
        pool.delete(f"sales/1.{ending}")


def test_files_that_cannot_be_relations_are_refused_by_name(pool, con):
    with pytest.raises(farpool.NotFoundError, match="'nothing'"):
        farpool.duckdb.register_file(con, pool, "nothing", as_="t")
    with pool.create("notes.txt", file_class="pinned") as file:
        file.write_at(0, b"far")
    pool.publish("notes.txt")
    try:
        with pytest.raises(farpool.InvalidError, match=r"'notes.txt'.*\.parquet"):
            farpool.duckdb.register_file(con, pool, "notes.txt", as_="t")
    finally:
        pool.delete("notes.txt")


@pytest.mark.parametrize("kind", ["TABLE", "VIEW", "TEMP TABLE", "TEMP VIEW"])
def test_a_name_that_the_database_has_is_not_given_to_a_file(shared_cluster, con, kind):
    con.execute(f"CREATE {kind} Sales AS SELECT 1 AS id")
    table = pyarrow.table({"id": [2, 3]})
    with farpool.connect(shared_cluster.url) as pool:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink)
        with pool.create("few.parquet", file_class="pinned") as file:
            file.write_at(0, sink.getvalue())
        pool.publish("few.parquet")
        try:
            for taken in ("sales", "SALES"):
                with pytest.raises(farpool.ExistsError, match=repr(taken)):
                    farpool.duckdb.register_file(con, pool, "few.parquet", as_=taken)
            with pytest.raises(farpool.InvalidError, match="as_ is empty"):
                farpool.duckdb.register_file(con, pool, "few.parquet", as_="")
            assert con.execute("FROM sales").fetchall() == [(1,)]
            con.register("given", table)
            with pytest.raises(farpool.ExistsError, match="'given'"):
                farpool.duckdb.register_file(con, pool, "few.parquet", as_="given")
            if not kind.startswith("TEMP"):
                farpool.duckdb.register_file(con, pool, "few.parquet", as_="sales", replace=True)
                assert con.execute("FROM sales").fetchall() == [(2,), (3,)]
                con.unregister("sales")
                assert con.execute("FROM sales").fetchall() == [(1,)]
            # A name that farpool registered may be registered again.
            for _ in range(2):
                farpool.duckdb.register_file(con, pool, "few.parquet", as_="few")
            assert con.execute("FROM few").fetchall() == [(2,), (3,)]
        finally:
            pool.delete("few.parquet")
