"""Table 3 of paper 001 in DuckDB: its groupings of a selection, over a far table in three ways, and over a local table.

run.py starts it in the project's environment. The argument is a JSON object with the groupings, the table's bytes, the
rounds and the path of the farpool command. The results are printed as JSON.

    local       the table is in DuckDB's own memory, in this process
    relation    the table is a relation: DuckDB fetches the columns and computes everything (the paper's remote table)
    pushdown    farpool.duckdb.sql_pushdown: the filter and the groups are computed at the node
    ship        farpool.duckdb.ship: a DuckDB beside the node runs the statement, and rows come back over Arrow Flight

Each DuckDB has one thread. Answers are compared group by group with those of the local table before the timed runs.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import farpool
import farpool.duckdb
from farpool.demo.cluster import Cluster, read_line

TABLE = "groupings"
ROW_BYTES = 64
# Memory that sessions lease ahead, and regions that are not full.
SPARE_BYTES = 1 << 30
READY_SECONDS = 300


def mixed(values: np.ndarray) -> np.ndarray:
    """Returns pseudo-random numbers, the same as bench/src/harness/contents.rs."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def table(rows: int) -> pa.Table:
    """Returns the columns of `farpool bench place` that the statements read, and five other columns."""
    random = mixed(np.arange(rows, dtype=np.uint64))
    columns = {"a": random % np.uint64(100), "b": random >> np.uint64(33), "c": np.arange(rows, dtype=np.uint64)}
    others = {f"d{number}": mixed(random ^ np.uint64(number)) >> np.uint64(1) for number in range(5)}
    return pa.table({name: column.astype(np.int64) for name, column in (columns | others).items()})


def statement(kept: int, groups: int) -> str:
    return f"SELECT c % {groups} AS key, sum(b) AS sum FROM {TABLE} WHERE a < {kept} GROUP BY key"


def in_order(answer: pa.Table) -> pa.Table:
    whole = pa.table({name: pc.cast(answer[name], pa.int64()) for name in ("key", "sum")})
    return whole.sort_by("key").combine_chunks()


@contextlib.contextmanager
def worker(url: str) -> Iterator[str]:
    """Starts a DuckDB beside the node and returns its address."""
    command = [sys.executable, "-m", "farpool.duckdb_worker", "--pool", url]
    command += ["--listen", "127.0.0.1:0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            line = read_line(process, READY_SECONDS)
            if not line.startswith("ready "):
                sys.exit(f"the worker said {line!r} and not that it is ready")
            yield line.removeprefix("ready ").strip()
        finally:
            process.terminate()
            process.wait()


def ways(url: str, whole: pa.Table, stack: contextlib.ExitStack) -> dict[tuple[str, str], Callable[[str], pa.Table]]:
    """Returns functions that run a statement, by the pair of way and transport to the far table."""

    def connect() -> duckdb.DuckDBPyConnection:
        return stack.enter_context(duckdb.connect(config={"threads": 1}))

    local = connect()
    local.register("arrow", whole)
    local.execute(f"CREATE TABLE {TABLE} AS SELECT * FROM arrow")
    local.unregister("arrow")
    found: dict[tuple[str, str], Callable[[str], pa.Table]] = {
        ("local", ""): lambda sql: local.sql(sql).to_arrow_table()
    }
    for transport in ("shm", "tcp"):
        pool = stack.enter_context(farpool.connect(url, transport=transport))
        con = connect()
        farpool.duckdb.register(con, pool, TABLE, placement="fetch")

        def pushed(sql: str, con: duckdb.DuckDBPyConnection = con) -> pa.Table:
            done = farpool.duckdb.sql_pushdown(con, sql, placement="ship")
            if not any(block.shipped for block in done.blocks):
                sys.exit(f"nothing of {sql} runs beside the data:\n{done}")
            return done.to_arrow_table()

        found["relation", transport] = lambda sql, con=con: con.sql(sql).to_arrow_table()
        found["pushdown", transport] = pushed
    address = stack.enter_context(worker(url))
    found["ship", "tcp"] = lambda sql: farpool.duckdb.ship(address, sql).read_all()
    return found


def measure(told: dict) -> list[dict]:
    whole = table(told["size"] // ROW_BYTES)
    found = []
    with (
        Cluster(
            told["farpool"], 2 * told["size"] + SPARE_BYTES, node_count=1, node_arguments=("--no-reserve",)
        ) as cluster,
        contextlib.ExitStack() as stack,
    ):
        writer = stack.enter_context(farpool.connect(cluster.url))
        writer.put_table(TABLE, whole)
        runs = ways(cluster.url, whole, stack)
        del whole
        for kept, groups in told["groupings"]:
            sql = statement(kept, groups)
            wanted = in_order(runs["local", ""](sql))
            for way, run in runs.items():
                if in_order(run(sql)) != wanted:
                    sys.exit(f"WRONG ROWS of DuckDB, {' over '.join(way)}: {sql}")
            times: dict[tuple[str, str], list[float]] = {way: [] for way in runs}
            for _ in range(told["rounds"]):
                for way, run in runs.items():
                    begun = time.perf_counter()
                    answer = run(sql)
                    times[way].append(time.perf_counter() - begun)
                    del answer
            for (way, transport), seconds in times.items():
                one = {"kept": kept, "groups": groups, "way": way, "transport": transport}
                found.append(one | {"seconds": statistics.median(seconds)})
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
