#!/usr/bin/env python3
"""GROUP BY and DISTINCT by local engines on one thread, over the rows of `farpool bench groups`.

    python3 -m venv ENV && ENV/bin/pip install duckdb polars datafusion pyarrow numpy
    ENV/bin/python local_groups.py [--rows N] [--groups 16,1000] [--rounds N] [--farpool PATH] [--json]

Engines are measured in turns, a round each, and medians are shown, as GB of table a second: a row counts as 64 bytes, of
which one or two columns of eight bytes are read. Results come as Arrow (DuckDB, DataFusion) or as the engine's own
columns (Polars); none are in order. With --farpool its benchmark runs behind them for each number of groups, and ratios
to the best of the others are shown. Each engine's sums are compared with numpy's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ["POLARS_MAX_THREADS"] = "1"

import datafusion
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

ROW_BYTES = 64
BATCH_ROWS = 65_536
KEY_STEP = 7_919


def drawn(places):
    """splitmix64, as crates/cli/src/bench/groups.rs has it."""
    value = places * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def columns(rows, groups, seed):
    places = (np.arange(rows, dtype=np.uint64) * np.uint64(2)) + np.uint64(seed << 32)
    keys = (drawn(places) % np.uint64(groups)) * np.uint64(KEY_STEP)
    numbers = drawn(places + np.uint64(1)) >> np.uint64(34)
    return keys.astype(np.int64), numbers.astype(np.int64)


def engines(table):
    """For each engine two calls, of which the first groups and the second is DISTINCT; both return Arrow or Polars."""
    con = duckdb.connect()
    con.execute("set threads=1")
    con.register("arrow", table)
    con.execute("create table t as select * from arrow")
    frame = pl.from_arrow(table)
    ctx = datafusion.SessionContext(datafusion.SessionConfig({"datafusion.execution.target_partitions": "1"}))
    ctx.register_record_batches("t", [table.to_batches(max_chunksize=8_192)])
    group, distinct = "select key, sum(number) as number from t group by key", "select distinct key from t"
    return {
        "DuckDB": (lambda: con.sql(group).to_arrow_table(), lambda: con.sql(distinct).to_arrow_table()),
        "Polars": (
            lambda: frame.group_by("key").agg(pl.col("number").sum()),
            lambda: frame.select(pl.col("key").unique()),
        ),
        "DataFusion": (lambda: ctx.sql(group).to_arrow_table(), lambda: ctx.sql(distinct).to_arrow_table()),
    }


def check(name, result, keys, numbers, groups):
    """The number of groups, the sum of their keys and, of a GROUP BY, that of the sums."""
    found = np.asarray(result["key"])
    assert len(found) == groups, f"{name}: {len(found)} groups, not {groups}"
    assert int(found.sum()) == int(np.unique(keys).sum()), f"{name}: other keys"
    if numbers is not None:
        total = sum(int(value) for value in result["number"].to_pylist()) if hasattr(
            result["number"], "to_pylist") else int(result["number"].sum())
        assert total == int(numbers.sum()), f"{name}: other sums"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 24)
    parser.add_argument("--groups", default="16,1000,64000,1000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--farpool", help="the farpool command, to be measured beside them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    points = []
    for groups in (int(groups) for groups in args.groups.split(",")):
        keys, numbers = columns(args.rows, groups, args.seed)
        table = pa.table({"key": keys, "number": numbers})
        calls = engines(table)
        count = len(np.unique(keys))
        for name, (group, distinct) in calls.items():
            check(name, group(), keys, numbers, count)
            check(name, distinct(), keys, None, count)
        times = {(name, what): [] for name in calls for what in (0, 1)}
        for _ in range(args.rounds):
            for name, both in calls.items():
                for what, call in enumerate(both):
                    begun = time.perf_counter()
                    result = call()
                    times[name, what].append(time.perf_counter() - begun)
                    del result
        rate = lambda name, what: args.rows * ROW_BYTES / 1e9 / statistics.median(times[name, what])
        ours = {}
        del calls, table
        if args.farpool:
            command = [args.farpool, "bench", "groups", "--json", "--rows", str(args.rows), "--groups", str(groups)]
            command += ["--rounds", str(args.rounds), "--seed", str(args.seed)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for point in found["points"]:
                ours[point["what"], point["bound"] == 1 << 20] = point
        for what, label in enumerate(("GROUP BY, sum", "DISTINCT")):
            rates = {name: rate(name, what) for name in ("DuckDB", "Polars", "DataFusion")}
            point = {"what": label, "groups": groups, "engines": rates}
            if ours:
                whole, bounded = ours[label, True], ours[label, False]
                point["farpool"] = {
                    "run": whole["run_gb_per_s"], "whole": whole["whole_gb_per_s"],
                    "bounded_run": bounded["run_gb_per_s"], "bounded_whole": bounded["whole_gb_per_s"],
                }
            points.append(point)
            if not args.json:
                line = f"{label:14} {groups:>8}  " + "  ".join(f"{n} {r:6.1f}" for n, r in rates.items())
                if ours:
                    best = max(rates.values())
                    own = point["farpool"]
                    line += f"  farpool {own['run']:6.1f} ({own['run'] / best:.1f}x), with merge {own['whole']:6.1f}"
                    line += f" ({own['whole'] / best:.1f}x), bounded {own['bounded_run']:.1f}/{own['bounded_whole']:.1f}"
                print(line, flush=True)
    load = os.getloadavg()[0]
    if args.json:
        json.dump({"rows": args.rows, "rounds": args.rounds, "load": load, "points": points}, sys.stdout)
    else:
        versions = f"DuckDB {duckdb.__version__}, Polars {pl.__version__}, DataFusion {datafusion.__version__}"
        print(f"{args.rows} rows, one thread, GB/s of 64-byte rows, medians of {args.rounds}; {versions}; load {load:.1f}")


if __name__ == "__main__":
    main()
