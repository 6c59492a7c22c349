"""Jobs that run in pods: queries and sorts that exceed their memory. Each prints one line of JSON: seconds, rows, and a
digest of its result.

    jobs.py duckdb:sort --data DIR --scratch DIR [--attach]

`--data` has `tpch.duckdb`, `lineitem.parquet` and `lineitem.csv`. Temporary files go to `--scratch`. With `--attach`,
DuckDB spills into the pool of FARPOOL_POOL instead.
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
POLARS_SQL_ORDER = ["l_extendedprice", "l_orderkey", "l_linenumber"]


def duckdb_job(name: str, data: Path, scratch: Path, attach: bool) -> dict:
    import duckdb

    from farpool.demo.digest import ResultDigest
    from farpool.demo.queries import QUERIES

    con = duckdb.connect(str(data / "tpch.duckdb"), read_only=True)
    if attach:
        import farpool.duckdb

        farpool.duckdb.attach(con)
    else:
        con.execute(f"SET temp_directory = '{scratch}'")
    reader = con.sql(QUERIES[name].sql).to_arrow_reader(BATCH_ROWS)
    digest = ResultDigest(reader.schema)
    for batch in reader:
        digest.add(batch)
    return {"rows": digest.row_count, "digest": [list(column) for column in digest.columns()]}


def datafusion_job(data: Path, scratch: Path) -> dict:
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    pool_bytes = 160 << 20
    runtime = RuntimeEnvBuilder().with_disk_manager_specified(str(scratch)).with_fair_spill_pool(pool_bytes)
    ctx = SessionContext(SessionConfig().with_target_partitions(2), runtime)
    ctx.register_parquet("lineitem", str(data / "lineitem.parquet"))
    rows, last = 0, hashlib.sha256()
    order = ", ".join(POLARS_SQL_ORDER)
    for batch in ctx.sql(f"SELECT l_orderkey, l_linenumber, l_extendedprice, l_comment FROM lineitem ORDER BY {order}"):
        batch = batch.to_pyarrow()
        rows += batch.num_rows
        last.update(batch.column(0).cast("int64").to_numpy().tobytes())
    return {"rows": rows, "digest": last.hexdigest()}


def polars_job(data: Path, scratch: Path) -> dict:
    import polars as pl

    result = scratch / "sorted.parquet"
    pl.scan_parquet(data / "lineitem.parquet").sort(POLARS_SQL_ORDER).sink_parquet(result, engine="streaming")
    keys = pl.scan_parquet(result).select("l_orderkey").collect(engine="streaming")["l_orderkey"].to_numpy()
    return {"rows": len(keys), "digest": hashlib.sha256(keys.astype("int64").tobytes()).hexdigest()}


def sqlite_job(data: Path, scratch: Path) -> dict:
    import csv
    import sqlite3

    con = sqlite3.connect("")  # a temporary database, on the disk
    con.execute("PRAGMA temp_store = FILE")
    con.execute("PRAGMA cache_size = -65536")
    con.execute("CREATE TABLE lineitem (orderkey INT, linenumber INT, price REAL, comment TEXT)")
    with (data / "lineitem.csv").open(newline="") as file:
        con.executemany("INSERT INTO lineitem VALUES (?, ?, ?, ?)", csv.reader(file))
    rows, digest = 0, hashlib.sha256()
    for row in con.execute("SELECT * FROM lineitem ORDER BY price, orderkey, linenumber"):
        rows += 1
        digest.update(b"%d," % row[0])
    return {"rows": rows, "digest": digest.hexdigest()}


def sort_job(data: Path, scratch: Path) -> dict:
    """Sorts lines as the shuffle of Spark does: sorted runs on disk, then a merge to a file."""
    result = scratch / "sorted.csv"
    command = ["sort", "--buffer-size=96M", "--parallel=2", "--field-separator=,", "--key=3,3g", "--key=1,1n"]
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
    parser.add_argument("--attach", action="store_true")
    args = parser.parse_args()
    begun = time.perf_counter()
    engine, _, query = args.job.partition(":")
    if engine == "duckdb":
        result = duckdb_job(query, args.data, args.scratch, args.attach)
    else:
        result = JOBS[engine](args.data, args.scratch)
    print(json.dumps({**result, "seconds": time.perf_counter() - begun}))


if __name__ == "__main__":
    main()
