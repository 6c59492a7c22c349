"""A process that runs RangeScan on one SQLite database: ranges of 100 customers, optionally with updates of a fifth of
them.

    python3 worker.py EXTENSION|stock DATABASE SECONDS UPDATES SEED

It prints "ready" after it has read everything once, starts when it reads a line, and prints a line of JSON at the end.
It is run by Debian's Python, whose sqlite3 can load extensions.
"""

import json
import random
import sqlite3
import sys
import time

RANGE = 100


def connect(extension: str, database: str) -> sqlite3.Connection:
    if extension != "stock":
        first = sqlite3.connect(":memory:")
        first.enable_load_extension(True)
        first.load_extension(extension)
    con = sqlite3.connect(database, isolation_level=None)
    # SQLite's own cache is small in all settings. The page cache or the extension has the memory.
    con.execute("PRAGMA cache_size = -2048")
    con.execute("PRAGMA synchronous = NORMAL")
    return con


def main(extension: str, database: str, seconds: float, updates: float, seed: int) -> None:
    con = connect(extension, database)
    rows, total = con.execute("SELECT count(*), sum(balance) FROM customer").fetchone()
    print("ready", flush=True)
    sys.stdin.readline()
    rng = random.Random(seed)
    times_us: list[int] = []
    begun = time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds:
        first = rng.randrange(1, rows - RANGE)
        window = (first, first + RANGE - 1)
        if rng.random() < updates:
            con.execute("UPDATE customer SET balance = balance + 1 WHERE id BETWEEN ? AND ?", window)
            total += RANGE
        else:
            found = con.execute("SELECT count(*), sum(length(filler)) FROM customer WHERE id BETWEEN ? AND ?", window)
            if found.fetchone() != (RANGE, RANGE * 200):
                raise SystemExit("WRONG ROWS")
        times_us.append(round((time.perf_counter() - now) * 1e6))
    elapsed = time.perf_counter() - begun
    if con.execute("SELECT sum(balance) FROM customer").fetchone()[0] != total:
        raise SystemExit("WRONG SUM")
    stats = json.loads(con.execute("PRAGMA farpool_stats").fetchone()[0]) if extension != "stock" else {}
    print(json.dumps({"per_second": len(times_us) / elapsed, "times_us": times_us, "stats": stats}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
