#!/usr/bin/env python3
"""SQL over tables of format 1 (one file, never changed) and of format 2 (put and appended), in turns in one session.

    make formats                                        # TPC-H at scale 1
    make formats SCALE=0.1 FORMATS="--rounds 9 --placements ship"
    python engines/tests/reference.py DIR --scale 1 && bench/tables/formats.py --sql farpool-sql --data DIR

Each pool has every table in both formats, with the same rows and the same row groups. The parts of a table of format 2
are whole row groups; a table of one row group is appended to an empty one. The queries are scans of the kinds that
other systems push down, and TPC-H. Each runs with each placement on both formats, one right after the other, once to
warm up and then in rounds; which format comes first alternates. New pools are made several times, because the places
that rows have in memory differ from pool to pool. Both formats must return the same rows.

A ratio is the time on format 2 by that on format 1 in the same round of the same pool. Its median is shown, and the
middle half of all ratios.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from pathlib import Path
from statistics import fmean, median, quantiles

import pyarrow as pa
import pyarrow.parquet as pq
from changes import number_of, opened, put, put_in_parts
from measuring import check, lines_of, machine, write_json

import farpool
from farpool.demo.cluster import Cluster

sys.path.append(str(Path(__file__).resolve().parents[1] / "sql"))

import run as sql

FORMATS = (1, 2)
GROUP_ROWS = 65_536
PLACEMENTS = ("ship", "fetch", "split", "auto")
# Memory of a pool beside the rows of both formats, which fill their regions in part.
MEMORY_PART, SPARE_BYTES = 2, 1 << 30


def parts_of(table: pa.Table, count: int) -> list[pa.Table]:
    """Divides a table into parts of whole row groups. One that has a single row group follows an empty part."""
    groups = -(-table.num_rows // GROUP_ROWS)
    if groups < 2:
        return [table.slice(0, 0), table]
    count = min(count, groups)
    bounds = [groups * at // count * GROUP_ROWS for at in range(count + 1)]
    return [table.slice(first, last - first) for first, last in zip(bounds, bounds[1:], strict=False)]


def of_format(query: str, tables: list[str], number: int) -> str:
    """Returns the query over the tables of a format."""
    return re.sub(rf"\b({'|'.join(tables)})\b", rf"\g<1>{number}", query)


def row_groups(pool: farpool.Pool, name: str) -> int:
    return pool.scan(name).select(rows=farpool.len()).collect(placement="ship").report["row_groups"]


def put_tables(pool: farpool.Pool, tables: dict[str, pa.Table], parts: int) -> dict[str, int]:
    """Puts all tables in both formats. Returns how many row groups each has, once, as both formats have as many."""
    found = {}
    for name, table in tables.items():
        print(f"putting {name}", file=sys.stderr)
        put(pool, f"{name}1", table, protection="none")
        put_in_parts(pool, f"{name}2", parts_of(table, parts), protection="none")
        first, second = (opened(pool, f"{name}{number}") for number in FORMATS)
        check(f"rows of {name} in format 2", second.num_rows, first.num_rows)
        check(f"snapshots of {name} in both formats", (number_of(first), number_of(second) > 0), (0, True))
        found[name] = row_groups(pool, f"{name}1")
        check(f"row groups of {name} in format 2", row_groups(pool, f"{name}2"), found[name])
    return found


class Times:
    """Seconds of one query in one placement on both formats, by round."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {number: [] for number in FORMATS}

    def ratios(self) -> list[float]:
        first, second = self.seconds.values()
        return [two / one for one, two in zip(first, second, strict=True)]


def run_rounds(command: list[str], queries: dict[str, str], tables: list[str], args, times: dict) -> None:
    """Runs all queries in one session, and adds their times."""
    steps = []
    for turn in range(args.rounds + 1):
        for at, name in enumerate(queries):
            for placement in args.placements:
                for number in FORMATS if (turn + at) % 2 else reversed(FORMATS):
                    steps.append((name, placement, number, turn > 0))
    asked = [(f"{name} {way}", way, of_format(queries[name], tables, number)) for name, way, number, _ in steps]
    first: dict[str, list[str]] = {}
    for (name, placement, number, counts), (one, rows) in zip(steps, sql.answers(command, asked), strict=True):
        # Headers name tables in some queries, so they are left out.
        sql.check(name, f"{placement} of format {number}", first.setdefault(name, rows[1:]), rows[1:])
        if counts:
            times.setdefault((name, placement), Times()).seconds[number].append(one["seconds"])


def mean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(fmean(map(math.log, values)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sql", required=True, help="the program farpool-sql")
    parser.add_argument("--data", required=True, help="folder made by engines/tests/reference.py")
    parser.add_argument("--what", choices=["all", "tpch", "cases"], default="all", help="queries; default all")
    parser.add_argument("--queries", help="queries of TPC-H to run, such as 1,6,14; default all")
    parser.add_argument("--placements", type=lambda text: text.split(","), default=["ship", "fetch"])
    parser.add_argument("--pools", type=int, default=3, help="pools that are made one after the other; default 3")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each pool; default 5")
    parser.add_argument("--parts", type=int, default=4, help="parts of a table of format 2; default 4")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of each pool; default 1")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="shm", help="default shm")
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    if unknown := set(args.placements) - set(PLACEMENTS):
        parser.error(f"--placements {min(unknown)}: {', '.join(PLACEMENTS)} are permitted")
    for name, most in (("pools", 100), ("rounds", 1000), ("nodes", 16)):
        if not 1 <= getattr(args, name) <= most:
            parser.error(f"--{name} {getattr(args, name)}: 1 to {most} are permitted")
    if not 2 <= args.parts <= 1000:
        parser.error(f"--parts {args.parts}: 2 to 1000 are permitted")
    return args


def main() -> None:
    args = arguments()
    queries = ({} if args.what == "tpch" else dict(sql.CASES)) | ({} if args.what == "cases" else sql.tpch(args))
    tables = {path.stem: pq.read_table(path) for path in sql.tables(args)}
    memory = MEMORY_PART * len(FORMATS) * sum(table.nbytes for table in tables.values()) + SPARE_BYTES
    transport = ["--no-shm"] if args.transport == "tcp" else []
    times: dict[tuple[str, str], Times] = {}
    groups: dict[str, int] = {}
    for number in range(1, args.pools + 1):
        print(f"pool {number} of {args.pools}", file=sys.stderr)
        arguments_of_nodes = ("--no-reserve", "--no-lock", *transport)
        share = memory // args.nodes
        with Cluster(os.environ["FARPOOL_BIN"], share, args.nodes, node_arguments=arguments_of_nodes) as cluster:
            with farpool.connect(cluster.url) as pool:
                groups = put_tables(pool, tables, args.parts)
            run_rounds([args.sql, "--pool", cluster.url, "--quiet"], queries, list(tables), args, times)
    rows, figures = [], []
    for (name, placement), found in times.items():
        ratios = found.ratios()
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        one, two = (median(found.seconds[number]) for number in FORMATS)
        figures.append({"query": name, "placement": placement, "seconds": found.seconds, "ratio": median(ratios)})
        texts = [f"{one * 1e3:.1f}", f"{two * 1e3:.1f}", f"{median(ratios):.3f}", f"{low:.3f}", f"{high:.3f}"]
        rows.append([name, placement, *texts])
    print("\n".join(lines_of(["query", "placement", "format 1, ms", "format 2, ms", "ratio", "25 %", "75 %"], rows)))
    print()
    total: dict[str, dict[str, float]] = {}
    for placement in args.placements:
        mine = [found for (_, of), found in times.items() if of == placement]
        ratios = [median(found.ratios()) for found in mine]
        sums = [sum(median(found.seconds[number]) for found in mine) for number in FORMATS]
        total[placement] = {"mean": mean(ratios), "least": min(ratios), "most": max(ratios), "sums": sums[1] / sums[0]}
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{placement}: geometric mean {mean(ratios):.3f} ({spread}), sums of medians {sums[1] / sums[0]:.3f}")
    rounds = f"{args.pools} pools of {args.rounds} rounds"
    over = {"tcp": "loopback", "shm": "shared memory"}[args.transport]
    print(f"\n{rounds}, {args.nodes} nodes over {over}, up to {args.parts} parts of each table. {machine()}")
    told = {"machine": machine(), "transport": args.transport, "nodes": args.nodes, "parts": args.parts}
    write_json(args.json, told | {"row groups": groups, "placements": total, "queries": figures})


if __name__ == "__main__":
    main()
