#!/usr/bin/env python3
"""Measures what the protection of far tables costs: time and memory of putting them, and scans before and after a loss.

    bench/protection/measure.py                        # 1 GiB, five rounds
    bench/protection/measure.py --size 64MiB --rounds 1 --transport shm

A broker and six nodes, each with a host label of its own, run on this machine, over loopback, which is not a network,
or over shared memory.
In each round the same table is put without protection, with a mirror and with rs(4,2), in a random order, and scanned:
once beside the data, and once by fetching all columns. Then a node is killed, and the tables that are protected are
scanned again. Every result is compared with the right one.

Prints medians, and ratios to the table without protection of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from statistics import median

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import farpool
from farpool._farpool import _size_bytes, _size_text
from farpool.demo.cluster import Cluster

NONE, MIRROR, RS = "none", "mirror", "rs(4,2)"
HOSTS = 6
ROW_BYTES = 32
# Seconds in which nodes wipe memory that was given back, and prepare as much for the next put.
SETTLE_SECONDS = 8
# Memory of the pool, in sizes of the table. The tables take 4.5 of them, and nodes prepare half of what is free.
SHARE = 9


def rows_of(count: int) -> pa.Table:
    sql = f"SELECT i AS id, i % 1000 AS kind, i * 7 AS price, hash(i) % 100000 AS noise FROM range({count}) r(i)"
    with duckdb.connect() as con:
        table = con.sql(sql).to_arrow_table()
    return table.cast(pa.schema([(name, pa.int64()) for name in table.column_names]))


def leased_bytes(pool: farpool.Pool) -> int:
    """Returns the bytes of regions that are not free, once two looks agree."""
    before = -1
    while True:
        now = sum(node["donated_bytes"] - node["free_bytes"] for node in pool.status()["nodes"])
        if now == before:
            return now
        before = now
        time.sleep(0.6)


class Measured:
    """Times of one kind of table, by what was done, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.bytes: list[int] = []

    def add(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds)


def scan(pool: farpool.Pool, name: str, placement: str, rows: int) -> float:
    """Returns the seconds that a scan takes. Raises AssertionError if its result is wrong."""
    begun = time.perf_counter()
    groups = pool.scan(name).filter(farpool.col("noise") >= 0).group_by("kind")
    found = groups.agg(rows=farpool.len(), price=farpool.col("price").sum(), id=farpool.col("id").sum())
    result = found.to_arrow(placement=placement)
    seconds = time.perf_counter() - begun
    sums = [pc.sum(result[column]).as_py() for column in ["rows", "price", "id"]]
    id_sum = rows * (rows - 1) // 2
    assert sums == [rows, 7 * id_sum, id_sum], f"{name}, {placement}: {sums}"
    return seconds


def one_round(binary: str, transport: str, table: pa.Table, measured: dict[str, Measured], scans: int) -> None:
    memory = table.nbytes * SHARE // HOSTS + (256 << 20)
    with Cluster(binary, memory, HOSTS, hosts=True, node_arguments=("--no-reserve",)) as cluster:
        with farpool.connect(cluster.url, transport=transport) as pool:
            kinds = [NONE, MIRROR, RS]
            random.shuffle(kinds)
            # Nodes prepare memory for sealing once somebody has published.
            pool.put_table("first", table.slice(0, 1000))
            pool.drop_table("first")
            time.sleep(SETTLE_SECONDS)
            for kind in kinds:
                time.sleep(SETTLE_SECONDS)
                before = leased_bytes(pool)
                begun = time.perf_counter()
                pool.put_table(kind, table, protection=kind)
                measured[kind].add("put", time.perf_counter() - begun)
                measured[kind].bytes.append(leased_bytes(pool) - before)
            for _ in range(scans):
                random.shuffle(kinds)
                for kind in kinds:
                    for placement in ["ship", "fetch"]:
                        measured[kind].add(f"{placement}, intact", scan(pool, kind, placement, table.num_rows))
            pool.drop_table(NONE)
            cluster.kill(f"node-{random.randint(1, HOSTS)}")
            for at in range(scans + 1):
                for kind in [MIRROR, RS]:
                    for placement in ["ship", "fetch"]:
                        seconds = scan(pool, kind, placement, table.num_rows)
                        # The first scan finds out that the node is gone.
                        measured[kind].add(f"{placement}, {'at the loss' if at == 0 else 'degraded'}", seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1GiB", help="bytes of the table; default 1GiB")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with a new pool; default 5")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp", help="default tcp")
    parser.add_argument("--scans", type=int, default=9, help="scans of each kind in a round; default 9")
    parser.add_argument("--seed", type=int, default=1, help="seed of the orders and of the node that is killed")
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    random.seed(args.seed)
    table = rows_of(_size_bytes("--size", args.size) // ROW_BYTES)
    measured = {kind: Measured() for kind in [NONE, MIRROR, RS]}
    for number in range(1, args.rounds + 1):
        print(f"round {number} of {args.rounds}", flush=True)
        one_round(os.environ["FARPOOL_BIN"], args.transport, table, measured, args.scans)
    over = {"tcp": "loopback", "shm": "shared memory"}[args.transport]
    print(f"\n{_size_text(table.nbytes)} in {table.num_rows} rows, {HOSTS} nodes over {over}, {os.cpu_count()} CPUs\n")
    print(f"{'':24}{NONE:>16}{MIRROR:>22}{RS:>22}")
    told: dict = {
        "transport": args.transport,
        "machine": platform.processor() or platform.machine(),
        "rows": table.num_rows,
        "figures": {},
    }
    for what in dict.fromkeys(what for kind in measured.values() for what in kind.times):
        # A scan of a table that has lost a node is compared with one of a table that is intact.
        base = median(measured[NONE].times[what.split(",")[0] + ", intact" if "," in what else what])
        cells = []
        for kind, found in measured.items():
            if what not in found.times:
                cells.append("-")
                continue
            seconds = median(found.times[what])
            told["figures"].setdefault(what, {})[kind] = found.times[what]
            # Puts are compared by time, scans by speed.
            ratio = seconds / base if what == "put" else base / seconds
            cells.append(f"{seconds:.3f} s" + ("" if kind == NONE else f" ({ratio:.2f})"))
        print(f"{what:24}{cells[0]:>16}{cells[1]:>22}{cells[2]:>22}")
    sizes = {kind: median(found.bytes) for kind, found in measured.items()}
    told["bytes"] = sizes
    cells = [f"{size / sizes[NONE]:.2f}" for size in sizes.values()]
    print(f"{'memory':24}{cells[0]:>16}{cells[1]:>22}{cells[2]:>22}")
    print(
        "\nIn brackets: time of a put and speed of a scan, as multiples of those of an intact table without protection."
    )
    if args.json:
        with open(args.json, "w") as out:
            json.dump(told, out, indent=1)


if __name__ == "__main__":
    main()
