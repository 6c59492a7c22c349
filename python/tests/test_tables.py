"""Far tables, over every transport: what pyarrow puts comes back, and other libraries read it."""

import datetime
import decimal

import duckdb
import pyarrow as pa
import pytest

import farpool

ROWS = 70_000


def column(values: list, kind: pa.DataType) -> pa.Array:
    """The values again and again, with nulls between."""
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
