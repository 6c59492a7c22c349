"""The joins of `farpool bench join` in engines: the same tuples, count(*) and the sum of all payloads.

    farpool bench join --build 16Mi --probe 64Mi --write DIR
    python bench/papers/hash-joins-cxl/engines.py DIR --threads 2 duckdb polars datafusion

Each engine runs in its own process, once to warm up and then `--rounds` times. Medians are printed. Every answer is
compared with one that NumPy computes by key. Engines store columns, do not know the keys in advance, and answer SQL. A
figure of `farpool bench join` beside them shows the cost of a join kernel, not the gain of an engine. Needs numpy,
pyarrow and the named engines.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

QUERY = "SELECT count(*), sum(r.v + s.v) FROM r JOIN s ON r.k = s.k"


def load(folder):
    import numpy as np

    def columns(name):
        rows = np.fromfile(os.path.join(folder, name), dtype=np.int64).reshape(-1, 2)
        return np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])

    return columns("r.bin"), columns("s.bin")


def wanted(build, probe):
    import numpy as np

    keys = int(max(build[0].max(), probe[0].max())) + 1
    counts = np.bincount(build[0], minlength=keys)
    # Payloads are row numbers, small enough that sums of doubles are exact.
    sums = np.bincount(build[0], weights=build[1].astype(np.float64), minlength=keys).astype(np.int64)
    return int(counts[probe[0]].sum()), int((sums[probe[0]] + counts[probe[0]] * probe[1]).sum())


def duckdb(build, probe, threads):
    import duckdb as engine
    import pyarrow as pa

    connection = engine.connect()
    connection.execute(f"SET threads = {threads}")
    for name, (keys, values) in (("r", build), ("s", probe)):
        rows = pa.table({"k": keys, "v": values})
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
        del rows
    return engine.__version__, lambda: connection.execute(QUERY).fetchone()


def polars(build, probe, threads):
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as engine

    r = engine.DataFrame({"k": build[0], "v": build[1]}).lazy()
    s = engine.DataFrame({"k": probe[0], "w": probe[1]}).lazy()
    query = s.join(r, on="k").select(engine.len(), (engine.col("v") + engine.col("w")).sum().alias("sum"))
    return engine.__version__, lambda: query.collect(engine="streaming").row(0)


def datafusion(build, probe, threads):
    os.environ["TOKIO_WORKER_THREADS"] = str(threads)
    import datafusion as engine
    import pyarrow as pa

    context = engine.SessionContext(engine.SessionConfig().with_target_partitions(threads))
    for name, (keys, values) in (("r", build), ("s", probe)):
        share = -(-len(keys) // threads)
        parts = [
            pa.table({"k": keys[at : at + share], "v": values[at : at + share]}).to_batches(max_chunksize=1 << 16)
            for at in range(0, len(keys), share)
        ]
        context.register_record_batches(name, parts)

    def run():
        batch = pa.Table.from_batches(context.sql(QUERY).collect()).to_pydict()
        return tuple(column[0] for column in batch.values())

    return engine.__version__, run


ENGINES = {"duckdb": duckdb, "polars": polars, "datafusion": datafusion}


def measure(name, arguments):
    build, probe = load(arguments.folder)
    answer = wanted(build, probe)
    version, run = ENGINES[name](build, probe, arguments.threads)
    times = []
    for turn in range(arguments.rounds + 1):
        begun = time.perf_counter()
        found = tuple(int(value) for value in run())
        if turn > 0:
            times.append(time.perf_counter() - begun)
        if found != answer:
            sys.exit(f"WRONG ROWS of {name}: {found} instead of {answer}")
    seconds = statistics.median(times)
    rows = len(build[0]) + len(probe[0])
    point = {"engine": f"{name} {version}", "s": seconds, "mtuples_per_s": rows / seconds / 1e6, "times_s": times}
    print(json.dumps(point), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where farpool bench join --write put r.bin and s.bin")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        measure(arguments.engines[0], arguments)
        return
    for name in arguments.engines:
        options = ["--alone", "--threads", str(arguments.threads), "--rounds", str(arguments.rounds)]
        subprocess.run([sys.executable, __file__, arguments.folder, name, *options], check=True)


if __name__ == "__main__":
    main()
