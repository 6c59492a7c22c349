"""Jobs that run in pods: queries and sorts that exceed their memory. Each prints one line of JSON: seconds, rows, and a
digest of its result.

    jobs.py duckdb:sort --data DIR --scratch DIR [--memory BYTES | --attach]

`--data` has `tpch.duckdb`, `lineitem.parquet` and `lineitem.csv`. Temporary files go to `--scratch`. With `--memory`,
the memory of the pod, the engine is told to keep within a part of it; otherwise all its settings are as they are. With
`--attach`, DuckDB spills into the pool of FARPOOL_POOL, and `attach` sets its memory from the pod's limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

BATCH_ROWS = 100_000
# Part of the pod's memory that an engine is told to keep within. DuckDB takes 80 % by itself, which leaves too little
# for Python. What DataFusion and Polars do not count is larger.
SHARES = {"duckdb": 0.5, "datafusion": 0.3, "polars": 0.25}
ORDER = ["l_extendedprice", "l_orderkey", "l_linenumber"]


def duckdb_job(name: str, data: Path, scratch: Path, memory_bytes: int | None, attach: bool) -> dict:
    import duckdb

    from farpool.demo.digest import ResultDigest
    from farpool.demo.queries import QUERIES

    con = duckdb.connect(str(data / "tpch.duckdb"), read_only=True)
    if attach:
        import farpool.duckdb

        farpool.duckdb.attach(con)
    else:
        con.execute(f"SET temp_directory = '{scratch}'")
        if memory_bytes:
            con.execute(f"SET memory_limit = '{round(memory_bytes * SHARES['duckdb'])} bytes'")
    reader = con.sql(QUERIES[name].sql).to_arrow_reader(BATCH_ROWS)
    digest = ResultDigest(reader.schema)
    for batch in reader:
        digest.add(batch)
    return {"rows": digest.row_count, "digest": [list(column) for column in digest.columns()]}


def datafusion_job(data: Path, scratch: Path, memory_bytes: int | None) -> dict:
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    runtime, config = RuntimeEnvBuilder().with_disk_manager_specified(str(scratch)), SessionConfig()
    if memory_bytes:
        # Partitions share the memory, and two of them have too little of it each to merge what they have spilled.
        pool_bytes = round(memory_bytes * SHARES["datafusion"])
        runtime, config = runtime.with_fair_spill_pool(pool_bytes), config.with_target_partitions(1)
    ctx = SessionContext(config, runtime)
    ctx.register_parquet("lineitem", str(data / "lineitem.parquet"))
    rows, last = 0, hashlib.sha256()
    for batch in ctx.sql(f"SELECT * FROM lineitem ORDER BY {', '.join(ORDER)}"):
        batch = batch.to_pyarrow()
        rows += batch.num_rows
        last.update(batch.column("l_orderkey").cast("int64").to_numpy().tobytes())
    return {"rows": rows, "digest": last.hexdigest()}


def polars_job(data: Path, scratch: Path, memory_bytes: int | None) -> dict:
    """Groups almost all rows apart. Polars does not spill a sort."""
    if memory_bytes:
        # Polars reads these variables when it is imported. Spilling is new there and off by default.
        os.environ["POLARS_OOC_MEMORY_BUDGET_MB"] = str(round(memory_bytes * SHARES["polars"]) >> 20)
        os.environ["POLARS_OOC_SPILL_DIR"] = str(scratch)
    import polars as pl

    result = scratch / "grouped.parquet"
    keys = ["l_orderkey", "l_suppkey"]
    values = [pl.col("l_quantity").sum(), pl.col("l_extendedprice").sum(), pl.len().alias("count")]
    lineitem = pl.scan_parquet(data / "lineitem.parquet")
    lineitem.group_by(keys).agg(values).sink_parquet(result, engine="streaming")
    # Groups come in any order, so the digest adds up what depends on each one as a whole.
    mixed = pl.col("l_orderkey") * 1_000_003 + pl.col("l_suppkey") * 7919 + pl.col("count") * 31
    cents = (pl.col("l_extendedprice") * 100 + pl.col("l_quantity")).cast(pl.Int64)
    summed = pl.scan_parquet(result).select(pl.len(), (mixed * 131 + cents).sum().alias("digest"))
    rows, digest = summed.collect(engine="streaming").row(0)
    return {"rows": rows, "digest": digest}


def sqlite_job(data: Path, scratch: Path, memory_bytes: int | None) -> dict:
    """Sorts a temporary database. SQLite has little memory by default, so there is nothing to limit."""
    import csv
    import sqlite3

    con = sqlite3.connect("")  # a temporary database, on the disk
    con.execute("PRAGMA temp_store = FILE")
    con.execute("PRAGMA cache_size = -65536")
    with (data / "lineitem.csv").open(newline="") as file:
        lines = csv.reader(file)
        names = next(lines)
        con.execute(f"CREATE TABLE lineitem ({', '.join(f'{name} NUMERIC' for name in names)})")
        con.executemany(f"INSERT INTO lineitem VALUES ({', '.join('?' for _ in names)})", lines)
    rows, digest = 0, hashlib.sha256()
    for row in con.execute(f"SELECT * FROM lineitem ORDER BY {', '.join(ORDER)}"):
        rows += 1
        digest.update(b"%d," % row[0])
    return {"rows": rows, "digest": digest.hexdigest()}


def sort_job(data: Path, scratch: Path, memory_bytes: int | None) -> dict:
    """Sorts lines as the shuffle of Spark does: sorted runs on disk, then a merge to a file."""
    result = scratch / "sorted.csv"
    command = [
        "sort",
        "--buffer-size=96M",
        "--parallel=2",
        "--field-separator=,",
        "--key=6,6g",
        "--key=1,1n",
        "--key=4,4n",
    ]
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch)}
    subprocess.run([*command, "--output", result, data / "lineitem.csv"], check=True, env=environment)
    rows, digest = 0, hashlib.sha256()
    with result.open("rb") as file:
        for line in file:
            rows += 1
            digest.update(line)
    return {"rows": rows, "digest": digest.hexdigest()}


JOBS = {"datafusion": datafusion_job, "polars": polars_job, "sqlite": sqlite_job, "sort": sort_job}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--memory", type=int)
    way.add_argument("--attach", action="store_true")
    args = parser.parse_args()
    begun = time.perf_counter()
    engine, _, query = args.job.partition(":")
    if engine == "duckdb":
        result = duckdb_job(query, args.data, args.scratch, args.memory, args.attach)
    else:
        result = JOBS[engine](args.data, args.scratch, args.memory)
    print(json.dumps({**result, "seconds": time.perf_counter() - begun}))


if __name__ == "__main__":
    main()
