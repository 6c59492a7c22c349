"""Loses memory nodes while DuckDB spills, many times, and compares every answer row for row.

    make loss RUNS=100                                     runs of each protection
    make loss LOSS="--event stall --seed 17 --runs 1"      repeats one run; --help lists the other options

One run starts a pool and lets a query spill into it. When the query has moved a number of bytes that the seed
determines, a node is killed with SIGKILL: while the query writes, while it reads back, or in between. With `--event
stall` the node is stopped instead and continues later. The ordinary tests use the same runs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import median

import duckdb
import pyarrow as pa

import farpool
import farpool.duckdb
from farpool.demo.cluster import Cluster

# Memory limit, least number of bytes written and read back, and SQL, by name. Each answer is ordered by a unique key,
# and each query spills at its limit with two threads.
QUERIES = {
    "sort": (
        "100MB",
        150_000_000,
        "SELECT hash(i) AS weight, repeat('y', 40) || hash(i + 1) AS padding FROM range(1_800_000) t(i) "
        "ORDER BY weight, padding",
    ),
    "aggregate": (
        "100MB",
        80_000_000,
        "SELECT hash(i) % 800_000 AS k, count(*) AS n, max(repeat('z', 20) || hash(i + 7)) AS top "
        "FROM range(2_000_000) t(i) GROUP BY k ORDER BY k",
    ),
    "join": (
        "140MB",
        150_000_000,
        "SELECT a.k, a.p AS left_p, b.p AS right_p "
        "FROM (SELECT hash(i) AS k, repeat('a', 40) || i AS p FROM range(1_200_000) t(i)) a "
        "JOIN (SELECT hash(i) AS k, repeat('b', 40) || i AS p FROM range(0, 2_400_000, 2) t(i)) b USING (k) "
        "ORDER BY a.k",
    ),
}
NODE_MEMORY_BYTES = 384 << 20
QUERY_SECONDS_MAX = 90
ROWS_PER_BATCH = 100_000
UNDISTURBED_RUNS = 3
# Range of a stall, in seconds. It includes stalls shorter and longer than the timeout of a request and than a lease.
STALL_SECONDS = (0.05, 2.5)
STALL_TIMEOUT_MS = 500
STALL_TTL_MS = 1000
STALL_GRACE_MS = 500


@dataclass(frozen=True)
class Setting:
    """Parameters of a run."""

    protection: str
    transport: str
    query: str
    event: str = "kill"
    threads: int = 2


@dataclass(frozen=True)
class Run:
    """Result of a run."""

    verdict: str  # "right", "wrong", "failed", or "early": the query ended before the event
    seconds: float
    stats: dict[str, int]
    text: str = ""  # reason, unless the answer is right


@cache
def expected(query: str) -> pa.Table:
    """Returns the answer of a query that has enough memory."""
    with duckdb.connect(config={"temp_directory": ""}) as con:
        return con.sql(QUERIES[query][2]).to_arrow_reader(ROWS_PER_BATCH).read_all()


def difference(batches: Iterable[pa.RecordBatch], table: pa.Table) -> str:
    """Returns a text about the first row in which an answer differs from the expected table. Empty if they are
    equal."""
    row = 0
    for batch in batches:
        found, wanted = pa.Table.from_batches([batch]), table.slice(row, batch.num_rows)
        if not found.equals(wanted):
            for offset, (one, other) in enumerate(zip(found.to_pylist(), wanted.to_pylist(), strict=False)):
                if one != other:
                    return f"row {row + offset} is {one} and should be {other}"
            return f"there are more than {table.num_rows} rows"
        row += batch.num_rows
    return "" if row == table.num_rows else f"there are {row} rows and should be {table.num_rows}"


def run(binary: str, setting: Setting, seed: int | None, slowness: int = 1) -> Run:
    """Runs a query and loses a node at a moment that the seed determines. Without a seed no node is lost. All times of
    a stall are multiplied by `slowness`."""
    rng = random.Random(f"{setting} {seed}")
    limit, moved_bytes, sql = QUERIES[setting.query]
    moment_bytes = None if seed is None else round(rng.uniform(0.02, 1) * moved_bytes)
    is_mirror = setting.protection == "mirror"
    stalls = setting.event == "stall"
    cluster = Cluster(
        binary,
        NODE_MEMORY_BYTES * (2 if is_mirror else 1),
        node_count=2 if is_mirror else 1,
        broker_arguments=_leases(slowness) if stalls else (),
        node_arguments=("--no-reserve",),  # a run loses a node when its seed says, and otherwise no memory
        hosts=is_mirror,
    )
    victim = rng.choice(["node-1", "node-2"]) if is_mirror else "node-1"
    timeout = f"{STALL_TIMEOUT_MS * slowness}ms" if stalls else "5s"
    with (
        cluster,
        farpool.connect(cluster.url, transport=setting.transport, timeout=timeout) as pool,
        duckdb.connect(config={"threads": setting.threads, "memory_limit": limit}) as con,
        ThreadPoolExecutor(1) as executor,
    ):
        farpool.duckdb.attach(con, pool, protection=setting.protection)
        table = expected(setting.query)
        start = time.monotonic()
        query = executor.submit(lambda: difference(con.sql(sql).to_arrow_reader(ROWS_PER_BATCH), table))
        if moment_bytes is not None and not _wait(query, pool, moment_bytes):
            return Run("early", time.monotonic() - start, pool.stats())
        if moment_bytes is not None and stalls:
            cluster.stall(victim)
            _wait(query, pool, seconds=rng.uniform(*STALL_SECONDS) * slowness)
            cluster.go_on(victim)
        elif moment_bytes is not None:
            cluster.kill(victim)
        try:
            text = query.result(QUERY_SECONDS_MAX)
            verdict = "wrong" if text else "right"
        except Exception as error:  # any exception is the result of this run
            verdict, text = "failed", f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        stats = pool.stats()
        con.close()
        pool.close()
        left = cluster.what_is_left() + cluster.stop()
        if left and verdict == "right":
            verdict, text = "failed", f"left behind: {', '.join(left)}"
        return Run(verdict, seconds, stats, text)


def _leases(slowness: int) -> tuple[str, ...]:
    return ("--ttl", f"{STALL_TTL_MS * slowness}ms", "--grace", f"{STALL_GRACE_MS * slowness}ms")


def _moved_bytes(pool: farpool.Pool) -> int:
    stats = pool.stats()
    return stats["bytes_read"] + stats["bytes_written"]


def _wait(query: Future, pool: farpool.Pool, moved_bytes: float = float("inf"), seconds: float = 90) -> bool:
    """Waits until a query has moved this many bytes, or until the time is over. Reports whether it is still running."""
    give_up = time.monotonic() + seconds
    while not query.done() and _moved_bytes(pool) < moved_bytes and time.monotonic() < give_up:
        time.sleep(0.001)
    return not query.done()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each protection (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first run (default: %(default)s)")
    parser.add_argument("--event", choices=("kill", "stall"), default="kill", help="what becomes of the node")
    parser.add_argument("--protection", choices=("mirror", "local"), help="only this one")
    parser.add_argument("--transport", choices=("tcp", "shm"), help="only this one (default: in turn)")
    parser.add_argument("--query", choices=tuple(QUERIES), help="only this one (default: in turn)")
    parser.add_argument("--threads", type=int, default=2, help="of DuckDB (default: %(default)s)")
    arguments = parser.parse_args()
    binary = os.environ.get("FARPOOL_BIN", "")
    if not os.access(binary, os.X_OK):
        parser.error(f"FARPOOL_BIN='{binary}' is not an executable file: build the binary and set it")

    rows: list[tuple] = []
    for protection in [arguments.protection] if arguments.protection else ["mirror", "local"]:
        settings = [
            Setting(protection, transport, query, arguments.event, arguments.threads)
            for query in ([arguments.query] if arguments.query else QUERIES)
            for transport in ([arguments.transport] if arguments.transport else ["tcp", "shm"])
        ]
        rows += _many(binary, settings, arguments.runs, arguments.seed)
    header = ["protection", "transport", "runs", "right", "wrong", "failed", "noticed"]
    header += ["undisturbed", "disturbed", "most"]
    print(*(f"{word:>12}" for word in header))
    for row in rows:
        print(*(f"{cell:>12}" for cell in row))
    return 0 if all(row[2] == row[3] for row in rows) else 1


def _many(binary: str, settings: list[Setting], run_count: int, seed: int) -> list[tuple]:
    """Runs the settings in turn, and returns a row of the report for each transport."""
    quiet = {setting: [run(binary, setting, None) for _ in range(UNDISTURBED_RUNS)] for setting in settings}
    for setting, runs in quiet.items():
        for one in runs:
            if one.verdict != "right":
                print(f"{setting} undisturbed: {one.verdict}: {one.text}", file=sys.stderr)
    done: dict[Setting, list[Run]] = {setting: [] for setting in settings}
    early = 0
    for number in range(run_count):
        setting = settings[number % len(settings)]
        while (one := run(binary, setting, seed)).verdict == "early":
            early += 1
            seed += 1
        done[setting].append(one)
        if one.verdict != "right":
            print(f"\n{setting}, seed {seed}: {one.verdict}: {one.text}\n{one.stats}", file=sys.stderr)
        seed += 1
        counts = [sum(one.verdict == v for runs in done.values() for one in runs) for v in ("right", "wrong", "failed")]
        line = f"{setting.protection}: {number + 1} of {run_count}, right {counts[0]}, wrong {counts[1]}, failed "
        print(f"\r{line}{counts[2]}, too early {early} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = []
    for transport in dict.fromkeys(setting.transport for setting in settings):
        runs = [one for setting, some in done.items() if setting.transport == transport for one in some]
        before = [one for setting, some in quiet.items() if setting.transport == transport for one in some]
        counts = [sum(one.verdict == verdict for one in runs) for verdict in ("right", "wrong", "failed")]
        seconds = [one.seconds for one in runs]
        shown = (median(one.seconds for one in before), median(seconds), max(seconds)) if runs else ()
        noticed = sum(one.stats["nodes_lost"] or one.stats["dropped_copy_bytes"] > 0 for one in runs)
        times = (f"{value:.2f} s" for value in shown)
        rows.append((settings[0].protection, transport, len(runs), *counts, noticed, *times))
    return rows


if __name__ == "__main__":
    sys.exit(main())
