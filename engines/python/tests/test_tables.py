"""Far tables, over every transport: tables of pyarrow come back unchanged, and other libraries read them."""

import datetime
import decimal
import itertools
import json
import subprocess
import time

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

import farpool

ROWS = 70_000


def column(values: list, kind: pa.DataType) -> pa.Array:
    """Repeats the values, with nulls in between."""
    cycle = [*values, None]
    return pa.array([cycle[row % len(cycle)] for row in range(ROWS)], type=kind)


def every_type() -> pa.Table:
    moment = datetime.datetime(2026, 11, 21, 12, 30)
    columns = {
        "bool": column([True, False], pa.bool_()),
        "float": column([1.5, -0.0, float("inf")], pa.float32()),
        "double": column([1.5, 1e300], pa.float64()),
        "decimal": column([decimal.Decimal("12.34"), decimal.Decimal("-0.01")], pa.decimal128(20, 2)),
        "date": column([datetime.date(1970, 1, 1), datetime.date(2026, 11, 21)], pa.date32()),
        "string": column(["", "größe", "x" * 100], pa.string()),
        "unique": pa.array([f"row {row}" for row in range(ROWS)]),
        "binary": column([b"", b"\x00\xff"], pa.binary()),
        "fixed": column([b"abc", b"def"], pa.binary(3)),
    }
    for bits in (8, 16, 32, 64):
        columns[f"int{bits}"] = column([-(2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1], getattr(pa, f"int{bits}")())
        columns[f"uint{bits}"] = column([0, 2**bits - 1], getattr(pa, f"uint{bits}")())
    for unit in ("s", "ms", "us", "ns"):
        columns[f"timestamp_{unit}"] = column([moment], pa.timestamp(unit))
        columns[f"zoned_{unit}"] = column([moment], pa.timestamp(unit, "Europe/Zurich"))
    return pa.table(columns)


def test_tables_of_all_types_come_back(pool):
    table = every_type()
    for name, expected in [("all", table), ("slice", table.slice(3, 65_600)), ("empty", table.slice(0, 0))]:
        pool.put_table(name, expected)
        far = pool.table(name)
        assert far.num_rows == expected.num_rows
        assert far.column_names == expected.column_names
        found = far.to_arrow()
        found.validate(full=True)
        assert found.equals(expected)
        assert pa.table(far).equals(expected)
        pool.drop_table(name)
    assert pool.tables() == []


def test_columns_are_fetched_by_name(pool):
    pool.put_table("t", every_type())
    before = pool.stats()["bytes_read"]
    some = pool.table("t").to_arrow(["int64", "bool"])
    assert pool.stats()["bytes_read"] - before < 2 * 8 * ROWS
    assert some.equals(every_type().select(["int64", "bool"]))
    with pytest.raises(farpool.InvalidError, match="no column 'nothing'|no column \"nothing\""):
        pool.table("t").to_arrow(["nothing"])
    pool.drop_table("t")


def test_duckdb_and_readers_of_batches_are_tables(pool):
    pool.put_table("duck", duckdb.sql("select range as n, 'text ' || range as s from range(100000)").arrow())
    with duckdb.connect() as con:
        con.register("far", pool.table("duck").to_arrow())
        assert con.sql("select count(*), sum(n) from far").fetchall() == [(100_000, 4_999_950_000)]
    pool.drop_table("duck")


def test_text_and_bytes_of_every_layout_are_kept_plainly():
    texts = ["a", None, "größe", "a", "x" * 100]
    names = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0, 2], pa.int8()), pa.array(["a", "größe", "x" * 100]))
    holes = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, 0, 3], pa.int16()), pa.array(["a", None, "größe", "x" * 100])
    )
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(5, pa.int32()), pa.array([], pa.string()))
    given = {
        "large": pa.array(texts, pa.large_string()),
        "view": pa.array(texts, pa.string_view()),
        "dictionary": names,
        "holes": holes,
        "bytes": pa.array([text and text.encode() for text in texts], pa.large_binary()),
        "bytes_view": pa.array([text and text.encode() for text in texts], pa.binary_view()),
    }
    with farpool.embedded("64MiB") as pool:
        pool.put_table("t", pa.table(given | {"nothing": nothing}).slice(1))
        found = pool.table("t").to_arrow()
        for name, column in given.items():
            of = pa.binary() if name.startswith("bytes") else pa.string()
            assert found[name].type == of
            assert found[name].to_pylist() == column.to_pylist()[1:]
        assert found["nothing"].to_pylist() == [None] * 4
        assert pool.scan("t").filter(farpool.col("holes").is_null()).count() == 1


# DuckDB warns about results of a connection that are read as Arrow. They can be put all the same.
@pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")
def test_files_and_what_reads_them_are_tables(tmp_path):
    table = pa.table({"id": range(150_000), "word": [f"w{row % 7}" for row in range(150_000)]})
    parquet, csv = tmp_path / "a.parquet", tmp_path / "a.csv"
    pa.parquet.write_table(table, parquet, row_group_size=10_000)
    pa.csv.write_csv(table, csv)
    pa.feather.write_feather(table, tmp_path / "a.arrow")
    (tmp_path / "folder").mkdir()
    pa.parquet.write_table(table, tmp_path / "folder" / "part-0.parquet")
    (tmp_path / "b.parquet").write_bytes(b"no such thing")
    with duckdb.connect() as con, farpool.embedded("256MiB") as pool:
        sources = {
            "path": parquet,
            "text": str(parquet),
            "csv": csv,
            "arrow": tmp_path / "a.arrow",
            "folder": tmp_path / "folder",
            "file": pa.parquet.ParquetFile(parquet),
            "dataset": pa.dataset.dataset(parquet),
            "scanner": pa.dataset.dataset(parquet).scanner(columns=["id", "word"]),
            "reader": pa.csv.open_csv(csv),
            "table": table,
            "batches": pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=7_000)),
            "frame": polars.from_arrow(table),
            "lazy frame": polars.scan_parquet(parquet),
            "pandas": table.to_pandas(),
            "relation": con.sql(f"select * from '{parquet}' order by id"),
            "connection": con.cursor().execute(f"select * from '{csv}' order by id"),
        }
        for name, source in sources.items():
            pool.put_table("t", source, replace=True)
            assert pool.table("t").to_arrow().equals(table), name
        # Sources that can be read again are appended as well.
        for name in ["path", "csv", "dataset", "table", "frame", "relation"]:
            pool.put_table("t", table.slice(0, 10), replace=True)
            pool.append("t", sources[name])
            assert pool.table("t").to_arrow().equals(pa.concat_tables([table.slice(0, 10), table])), name
        for source, words in [
            (tmp_path / "none.parquet", "does not exist"),
            (tmp_path / "b.parquet", "cannot be read as parquet"),
            ("a.xlsx", "has an unknown format: .parquet, .csv"),
        ]:
            with pytest.raises(farpool.InvalidError, match=words):
                pool.put_table("t", source, replace=True)
        assert pool.table("t").num_rows == 10 + table.num_rows


def test_number_of_threads_makes_no_difference(pool):
    table = every_type()
    table = pa.concat_tables([table, table.slice(5, 60_000), table])
    for threads in [1, 2, 7]:
        pool.put_table("t", table, threads=threads, replace=True)
        assert pool.table("t").to_arrow().equals(table), threads
        pool.append("t", table.slice(0, 70_001), threads=threads)
        assert pool.table("t").to_arrow().equals(pa.concat_tables([table, table.slice(0, 70_001)])), threads
    pool.drop_table("t")
    with pytest.raises(farpool.InvalidError, match="threads is 257; 1 to 256 are permitted"):
        pool.put_table("t", table, threads=257)
    assert pool.tables() == []


def test_progress_of_puts_is_told_and_may_end_them(pool):
    table = pa.table({"n": range(1_000_000), "text": [f"text {row}" for row in range(1_000_000)]})
    told: list[tuple[int, int]] = []

    def tell(rows: int, nbytes: int) -> None:
        told.append((rows, nbytes))

    begun = time.monotonic()
    pool.put_table("t", table, progress=tell)
    # The first call comes at once, and the last when all rows are written, however soon after the one before.
    assert 1 <= len(told) <= 2 + (time.monotonic() - begun) / 0.1
    assert all(one[0] < next[0] and one[1] < next[1] for one, next in itertools.pairwise(told))
    assert told[-1][0] == 1_000_000
    assert 16_000_000 < told[-1][1] <= pool.table("t").nbytes
    told.clear()
    pool.append("t", table.slice(0, 10), progress=tell)
    assert told[-1][0] == 10

    def enough(rows: int, nbytes: int) -> None:
        raise KeyError(f"{rows} rows are enough")

    with pytest.raises(KeyError, match="rows are enough"):
        pool.append("t", table, progress=enough)
    with pytest.raises(KeyError, match="rows are enough"):
        pool.put_table("u", table, progress=enough)
    assert pool.table("t").num_rows == 1_000_010
    pool.drop_table("t")
    assert pool.tables() == []
    with pytest.raises(farpool.InvalidError, match="progress is 7; it must be callable"):
        pool.put_table("t", table, progress=7)


def test_command_tells_of_tables_and_drops_them(shared_cluster, farpool_binary):
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [farpool_binary, "table", *arguments, "--pool", shared_cluster.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    with farpool.connect(shared_cluster.url) as pool:
        assert "No far table" in command("list").stdout
        table = every_type()
        pool.put_table("all types", table)
        (listed,) = json.loads(command("list", "--json").stdout)["tables"]
        assert listed == {"name": "all types", "bytes": pool.table("all types").nbytes, "lost": False}
        told = json.loads(command("describe", "all types", "--json").stdout)
        assert (told["rows"], told["row_groups"], told["bytes"]) == (ROWS, 2, listed["bytes"])
        assert sum(node["row_groups"] for node in told["nodes"]) == 2
        assert told["recipe"] is None
        columns = {column["name"]: column for column in told["columns"]}
        assert list(columns) == table.column_names
        assert columns["decimal"] | {"bytes": 0} == {
            "name": "decimal",
            "type": "decimal(20, 2)",
            "nulls": table["decimal"].null_count,
            "bytes": 0,
            "min": "-0.01",
            "max": "12.34",
        }
        assert (columns["date"]["min"], columns["date"]["max"]) == ("1970-01-01", "2026-11-21")
        assert (columns["float"]["min"], columns["float"]["max"]) == ("-0.0", "inf")
        assert columns["string"]["max"] is None, "what was cut off is not the value"
        text = command("describe", "all types").stdout
        assert text.startswith("all types | 70000 rows | 2 row groups") and "timestamp(us, zoned)" in text
        assert "all types" in command("list").stdout
        assert command("drop", "all types").stdout == "dropped far table all types\n"
        missing = command("describe", "all types")
        assert (missing.returncode, pool.tables()) == (1, [])
        assert 'opening far table "all types"' in missing.stderr


def test_a_table_that_there_is_stays_unless_it_is_to_be_replaced(pool):
    pool.put_table("t", pa.table({"n": [1]}))
    try:
        with pytest.raises(farpool.ExistsError, match='"t"'):
            pool.put_table("t", pa.table({"n": [2]}))
        assert pool.table("t").to_arrow()["n"].to_pylist() == [1]
        pool.put_table("t", pa.table({"n": [2]}), replace=True)
        assert pool.table("t").to_arrow()["n"].to_pylist() == [2]
    finally:
        pool.drop_table("t")


def test_what_is_no_table_is_refused(pool):
    with pytest.raises(farpool.InvalidError, match="__arrow_c_stream__"):
        pool.put_table("t", [1, 2])
    with pytest.raises(farpool.InvalidError, match="nested"):
        pool.put_table("t", pa.table({"nested": [[1], [2]]}))

    def failing():
        yield pa.record_batch({"n": [1]})
        raise RuntimeError("no more batches")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), failing())
    with pytest.raises(farpool.InvalidError, match="no more batches"):
        pool.put_table("t", reader)
    with pytest.raises(farpool.NotFoundError):
        pool.table("t")
    with pytest.raises(FileNotFoundError):
        pool.drop_table("t")
    assert pool.tables() == []


def test_encrypted_tables_are_read_with_their_key_alone(pool):
    key, table = bytes(range(16)), every_type()
    pool.put_table("secret", table, key=key)
    far = pool.table("secret", key=key)
    assert far.encrypted
    assert far.to_arrow().equals(table)
    wanted = farpool.col("int64") == 0
    expected = table.filter(pyarrow.compute.field("int64") == 0).select(["string", "int64"])
    for placement in ("auto", "fetch", "ship", "split"):
        for encrypt in (False, True):
            scan = pool.scan("secret", key=key, encrypt_answers=encrypt).filter(wanted).select("string", "int64")
            assert pa.table(scan.collect(placement=placement)).equals(expected)
    closed = pool.table("secret")
    assert (closed.encrypted, closed.num_rows, closed.column_names) == (True, ROWS, table.column_names)
    with pytest.raises(farpool.InvalidError, match='"secret" is encrypted'):
        closed.to_arrow()
    with pytest.raises(farpool.InvalidError, match='"secret" is encrypted'):
        pool.scan("secret")
    with pytest.raises(farpool.InvalidError, match='"secret".*the key is wrong'):
        pool.scan("secret", key=bytes(16))
    with pytest.raises(farpool.InvalidError, match="the key has 15 bytes; 16 are needed"):
        pool.put_table("other", table, key=bytes(15))
    pool.put_table("plain", table)
    with pytest.raises(farpool.InvalidError, match="not encrypted"):
        pool.table("plain", key=key)
    assert not pool.table("plain").encrypted
    pool.drop_table("secret")
    pool.drop_table("plain")
