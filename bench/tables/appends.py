#!/usr/bin/env python3
"""Appends rows to one table many times: does an append take longer when there were many, and does opening the table?

    make appends                                         # 10,000 appends of 10 rows
    make appends APPENDS="--appends 1000 --transport shm --store disk"

One session appends, one append after the other. After 10, 100, 1,000 and 10,000 appends new sessions open the table. At
the end all rows are compared, and queries in each placement have to find each row exactly once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from changes import append, kept_snapshots, number_of, opened, part_files, put
from measuring import Memory, check, lines_of, machine, mib, write_json

import farpool
from farpool import col
from farpool.demo.cluster import Cluster

NAME = "grown"
PLACEMENTS = ("ship", "fetch", "split", "auto")
# Appends at either end whose times are compared.
COMPARED = 100
NODE_BYTES = 2 << 30
WORDS = ("cup", "jug", "mug", "pot", "pan")


def rows_of(number: int, count: int) -> pa.Table:
    """Returns the rows of an append."""
    at = np.arange(count, dtype=np.int64)
    words = pa.array([WORDS[(number + row) % len(WORDS)] for row in range(count)])
    columns = {"append": np.full(count, number, dtype=np.int64), "row": at, "price": (number * 7 + at) % 1000}
    return pa.table({**columns, "word": words})


def openings(url: str, transport: str, count: int, rows: int) -> list[float]:
    """Returns the seconds that opening the table took, each in a new session."""
    seconds = []
    for _ in range(count):
        with farpool.connect(url, transport=transport) as session:
            begun = time.perf_counter()
            table = opened(session, NAME)
            seconds.append(time.perf_counter() - begun)
            check("rows of the table", table.num_rows, rows)
    return seconds


def check_all(pool: farpool.Pool, appends: int, count: int) -> dict[str, float]:
    """Compares all rows, in any order, and the results of a query in each placement. Returns the seconds of each."""
    begun = time.perf_counter()
    found = opened(pool, NAME).to_arrow()
    seconds = {"all rows": time.perf_counter() - begun}
    found = found.sort_by([("append", "ascending"), ("row", "ascending")])
    numbers, at = (np.repeat(np.arange(appends + 1), count), np.tile(np.arange(count), appends + 1))
    for column, wanted in {"append": numbers, "row": at, "price": (numbers * 7 + at) % 1000}.items():
        check(f"column {column}", np.array_equal(found[column].to_numpy(), wanted), True)
    words = np.array(WORDS)[(numbers + at) % len(WORDS)]
    check("column word", np.array_equal(found["word"].to_numpy(zero_copy_only=False), words), True)
    row = col("row")
    for placement in PLACEMENTS:
        begun = time.perf_counter()
        groups = pool.scan(NAME).group_by("append")
        found = groups.agg(rows=farpool.len(), total=row.sum(), most=row.max()).to_arrow(placement=placement)
        seconds[f"groups, {placement}"] = time.perf_counter() - begun
        # Groups come in the order of their keys.
        check(f"groups, {placement}", found["append"].to_pylist(), list(range(appends + 1)))
        sums = {tuple(int(group[name]) for name in ("rows", "total", "most")) for group in found.to_pylist()}
        check(f"rows of groups, {placement}", sums, {(count, count * (count - 1) // 2, count - 1)})
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--appends", type=int, default=10_000, help="number of appends; default 10000")
    parser.add_argument("--rows", type=int, default=10, help="rows of each append; default 10")
    parser.add_argument("--openings", type=int, default=9, help="sessions that open the table each time; default 9")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp", help="default tcp")
    parser.add_argument("--store", choices=["memory", "disk"], default="memory", help="the broker's; default memory")
    parser.add_argument("--compact", choices=["auto", "off"], default="auto", help="of small files; default auto")
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    if not 2 <= args.appends <= 1_000_000 or not 1 <= args.rows <= 100_000 or not 1 <= args.openings <= 1000:
        parser.error("2 to 1000000 --appends, 1 to 100000 --rows and 1 to 1000 --openings are permitted")
    options = {"protection": "none"} | ({} if args.compact == "auto" else {"compact": False})
    snapshot = 0
    marks = sorted({10**power for power in range(1, 7) if 10**power <= args.appends} | {args.appends})
    seconds: list[float] = []
    growth: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="farpool-appends-") as folder:
        store = str(Path(folder, "broker.redb")) if args.store == "disk" else "memory"
        arguments = ("--no-reserve", "--no-lock", "--region-size", "16MiB")
        with (
            Cluster(os.environ["FARPOOL_BIN"], NODE_BYTES, 1, node_arguments=arguments, store=store) as cluster,
            Memory(broker=cluster.process_id("broker"), node=cluster.process_id("node-1")) as memory,
            farpool.connect(cluster.url, transport=args.transport) as pool,
        ):
            put(pool, NAME, rows_of(0, args.rows), protection="none")
            for number in range(1, args.appends + 1):
                rows = rows_of(number, args.rows)
                begun = time.perf_counter()
                before, snapshot = snapshot, append(pool, NAME, rows, **options)
                seconds.append(time.perf_counter() - begun)
                check(f"snapshot {snapshot} of an append is later than {before}", snapshot > before, True)
                if number in marks:
                    files, file_bytes = part_files(pool)
                    times = openings(cluster.url, args.transport, args.openings, (number + 1) * args.rows)
                    leased = {"leased bytes": pool.status()["leased_bytes"], "broker bytes": memory.now("broker")}
                    figures = {"appends": number, "openings": times, "files": files, "file bytes": file_bytes}
                    growth.append(figures | leased)
                    print(f"{number} of {args.appends} appends", flush=True)
            latest = number_of(opened(pool, NAME))
            check(f"latest snapshot {latest} is that of the last append, or later", latest >= snapshot, True)
            kept = len(kept_snapshots(pool, NAME))
            checked = check_all(pool, args.appends, args.rows)
    compared = min(COMPARED, args.appends // 2)
    first, last = median(seconds[:compared]), median(seconds[-compared:])
    header = ["appends", "opening, ms", "longest", "files", "MiB of files", "MiB leased", "MiB of the broker"]
    rows = [
        [
            f"{one['appends']:,}",
            f"{median(one['openings']) * 1e3:.1f}",
            f"{max(one['openings']) * 1e3:.1f}",
            f"{one['files']:,}",
            *(mib(one[kind]) for kind in ("file bytes", "leased bytes", "broker bytes")),
        ]
        for one in growth
    ]
    print("\n" + "\n".join(lines_of(header, rows)))
    print(
        f"\nan append: median of the first {compared} {first * 1e3:.2f} ms, of the last {compared} {last * 1e3:.2f} ms"
    )
    print(f"ratio {last / first:.3f}; all: median {median(seconds) * 1e3:.2f} ms, longest {max(seconds) * 1e3:.1f} ms")
    print("\n" + "\n".join(lines_of(["query at the end", "seconds"], [[k, f"{v:.3f}"] for k, v in checked.items()])))
    print("\n" + "\n".join(memory.lines()))
    over = {"tcp": "loopback", "shm": "shared memory"}[args.transport]
    print(f"\n{args.rows} rows each, {latest} snapshots, of which {kept} are kept, compaction: {args.compact}")
    print(f"over {over}, broker's store: {args.store}. {machine()}")
    told = {"machine": machine(), "transport": args.transport, "store": args.store, "rows of an append": args.rows}
    told |= {"compact": args.compact, "appends": args.appends, "snapshots": latest, "snapshots kept": kept}
    told |= {"first": first, "last": last, "ratio": last / first}
    write_json(args.json, told | {"growth": growth, "queries": checked, "memory": memory.peaks, "seconds": seconds})


if __name__ == "__main__":
    main()
