#!/usr/bin/env python3
"""Measures how fast far tables are put, beside what the same machine does with the same rows otherwise.

    bench/tables/puts.py                                        # 1 GiB over shared memory, five rounds
    bench/tables/puts.py --transport tcp --size 256MiB --rounds 3 --json puts.json

A broker and two nodes run on this machine, over shared memory, or over loopback, which is not a network. In each round
the same rows are put from Arrow in memory, once with one thread, and from a Parquet file, in a random order. Beside
that, Arrow copies them, they are decoded from the Parquet file alone, DuckDB makes a table of them in memory, and
`farpool bench io` writes to far files. After each put all rows are read back and their sums are compared.

Prints medians of seconds, and of GB/s: bytes of the rows in Arrow, in 10^9, by time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import farpool
from farpool._farpool import _size_bytes, _size_text
from farpool.demo.cluster import Cluster

PUT, PUT_ALONE, PUT_PARQUET = "put from Arrow", "put from Arrow, 1 thread", "put from Parquet"
COPY, DECODE, DUCKDB, IO = "Arrow's own copy", "Parquet's decode", "DuckDB's CREATE TABLE", "farpool bench io, writes"
NODES = 2
# Memory of the pool, in sizes of the rows. A put takes twice their size until its memory is sealed, and nodes prepare
# half of what is free.
SHARE = 6
# Rows of a chunk of the table in memory, as readers of files give them.
CHUNK_ROWS = 131_072
# Seconds until nodes must have wiped what was dropped.
WIPED_SECONDS = 300
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("kind", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("amount", pa.int64()),
        pa.field("shop", pa.string()),
        pa.field("note", pa.string()),
    ]
)
# Text of which each row has another value, and the number in it.
NOTE = "note no. "
SQL = f"""
    SELECT i AS id, i % 1000 AS kind, (i % 997) / 4 AS price, DATE '2020-01-01' + (i % 2000)::INTEGER AS day,
           CASE WHEN i % 10 > 0 THEN hash(i) % 1000000 END AS amount, 'shop ' || i % 97 AS shop,
           '{NOTE}' || hash(i + 1) % 1000000000 AS note
    FROM range(?) r(i)
"""


def rows_of(count: int) -> pa.Table:
    with duckdb.connect() as con:
        table = con.sql(SQL, params=[count]).to_arrow_table().cast(SCHEMA)
    return pa.Table.from_batches(table.to_batches(max_chunksize=CHUNK_ROWS), SCHEMA)


def rows_with(size_bytes: int) -> pa.Table:
    """Returns rows of about this many bytes."""
    sample = rows_of(10_000)
    return rows_of(max(1, size_bytes * sample.num_rows // sample.nbytes))


def sums(batches: pa.RecordBatchReader) -> dict[str, float]:
    """Returns sums over all columns, and over the places of the rows, so that their order counts."""
    found: dict[str, float] = {"rows": 0, "places": 0}

    def add(what: str, values: pa.Array) -> None:
        found[what] = found.get(what, 0) + (pc.sum(values).as_py() or 0)

    for batch in batches:
        places = pa.array(range(found["rows"], found["rows"] + batch.num_rows), pa.int64())
        add("places", pc.multiply(pc.bit_wise_and(places, 1023), pc.bit_wise_and(batch["id"], 1023)))
        found["rows"] += batch.num_rows
        for name in ["id", "kind", "price", "amount"]:
            add(name, batch[name])
        add("no amount", pc.cast(pc.is_null(batch["amount"]), pa.int64()))
        add("day", pc.cast(pc.cast(batch["day"], pa.int32()), pa.int64()))
        add("shop", pc.cast(pc.utf8_slice_codeunits(batch["shop"], len("shop ")), pa.int64()))
        add("note", pc.cast(pc.utf8_slice_codeunits(batch["note"], len(NOTE)), pa.int64()))
    return found


class Bench:
    """Measurements over one pool."""

    def __init__(self, pool: farpool.Pool, table: pa.Table, parquet: Path, args: argparse.Namespace):
        self._pool = pool
        self._table = table
        self._parquet = parquet
        self._settle_seconds = args.settle
        self._expected = sums(table.to_reader())
        self._io = [os.environ["FARPOOL_BIN"], "bench", "io", "--access", "512k-write", "--depths", "1,16"]
        self._io += ["--rounds", "1", "--seconds", str(args.io_seconds), "--json"]
        self._io += ["--size", str(max(min(table.nbytes, 512 << 20), 8 << 20))]
        self._transport = args.transport

    def measured(self) -> dict[str, Callable[[], float]]:
        """Returns functions that measure once, in seconds."""
        return {
            PUT: lambda: self._put(self._table),
            PUT_ALONE: lambda: self._put(self._table, threads=1),
            PUT_PARQUET: lambda: self._put(self._parquet),
            COPY: lambda: timed(self._table.combine_chunks),
            DECODE: lambda: timed(lambda: pq.read_table(self._parquet)),
            DUCKDB: self._duckdb,
            IO: self._io_writes,
        }

    def _put(self, source: pa.Table | Path, threads: int = 0) -> float:
        self._settle()
        seconds = timed(lambda: self._pool.put_table("t", source, protection="none", threads=threads))
        found = sums(pa.RecordBatchReader.from_stream(self._pool.table("t")))
        assert found == self._expected, f"{found} came back, but not {self._expected}"
        self._pool.drop_table("t")
        return seconds

    def _settle(self) -> None:
        """Waits until nodes have wiped what was dropped, and gives them time to prepare it for the next put."""
        deadline = time.monotonic() + WIPED_SECONDS
        while any(node["free_bytes"] < node["donated_bytes"] for node in self._pool.status()["nodes"]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nodes did not wipe what was dropped within {WIPED_SECONDS} s")
            time.sleep(0.05)
        time.sleep(self._settle_seconds)

    def _duckdb(self) -> float:
        with duckdb.connect() as con:
            con.register("given", self._table)
            seconds = timed(lambda: con.execute("CREATE TABLE t AS SELECT * FROM given"))
            ((count,),) = con.sql("SELECT count(*) FROM t").fetchall()
        assert count == self._table.num_rows
        return seconds

    def _io_writes(self) -> float:
        """Returns the seconds in which as many bytes are written to a far file, at the better of two depths."""
        output = subprocess.run(self._io, check=True, stdout=subprocess.PIPE, text=True).stdout
        points = [point for point in json.loads(output)["points"] if point["target"] == self._transport]
        return self._table.nbytes / 1e9 / max(point["gb_per_s"] for point in points)


def timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1GiB", help="bytes of the rows in Arrow; default 1GiB")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of which measures everything; default 5")
    parser.add_argument("--transport", choices=["shm", "tcp"], default="shm", help="default shm")
    parser.add_argument("--settle", type=float, default=4, help="seconds before each put; default 4")
    parser.add_argument("--io-seconds", type=float, default=1, help="seconds of each point of bench io; default 1")
    parser.add_argument("--seed", type=int, default=1, help="seed of the orders")
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    random.seed(args.seed)
    table = rows_with(_size_bytes("--size", args.size))
    times: dict[str, list[float]] = {}
    node_bytes = table.nbytes * SHARE // NODES + (256 << 20)
    with (
        tempfile.TemporaryDirectory(prefix="farpool-puts-") as folder,
        Cluster(os.environ["FARPOOL_BIN"], node_bytes, NODES, node_arguments=("--no-reserve",)) as cluster,
        farpool.connect(cluster.url, transport=args.transport) as pool,
    ):
        parquet = Path(folder) / "rows.parquet"
        pq.write_table(table, parquet)
        # Nodes prepare memory for sealing once somebody has published.
        pool.put_table("first", table.slice(0, 1000))
        pool.drop_table("first")
        measured = Bench(pool, table, parquet, args).measured()
        for number in range(1, args.rounds + 1):
            print(f"round {number} of {args.rounds}", flush=True)
            for what in random.sample(list(measured), len(measured)):
                times.setdefault(what, []).append(measured[what]())
        encoded_bytes = parquet.stat().st_size
    over = {"tcp": "loopback", "shm": "shared memory"}[args.transport]
    print(
        f"\n{_size_text(table.nbytes)} in {table.num_rows} rows, {_size_text(encoded_bytes)} in Parquet; {NODES} nodes "
        f"over {over}, {len(os.sched_getaffinity(0))} CPUs\n"
    )
    print(f"{'':28}{'seconds':>12}{'GB/s':>10}")
    speed = {what: table.nbytes / 1e9 / median(found) for what, found in times.items()}
    for what in measured:
        print(f"{what:28}{median(times[what]):>12.3f}{speed[what]:>10.2f}")
    print(
        f"\nA put from Arrow has {speed[PUT] / speed[COPY]:.2f} of the speed of Arrow's own copy, "
        f"{speed[PUT] / speed[DUCKDB]:.2f} of DuckDB's, and {speed[PUT] / speed[IO]:.2f} of that of plain writes; one "
        f"from Parquet {speed[PUT_PARQUET] / speed[DECODE]:.2f} of that of the decode alone."
    )
    if args.json:
        told = {
            "transport": args.transport,
            "rows": table.num_rows,
            "bytes": table.nbytes,
            "cpus": len(os.sched_getaffinity(0)),
            "seconds": times,
            "gb_per_s": speed,
        }
        with open(args.json, "w") as out:
            json.dump(told, out, indent=1)


if __name__ == "__main__":
    main()
