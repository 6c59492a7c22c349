"""RangeScan (section 5.2.1): sums over 100 customers from a random one on. Optionally a fifth of the ranges are
updated."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from machine import ENOUGH, PROCESS_BYTES, PROGRAMS, Setting, forget, quantiles
from memory_group import Group
from servers import Server, behind, pgbench

WORKER = Path(__file__).with_name("worker.py")
# Debian's Python, because its sqlite3 can load extensions.
PYTHON = "/usr/bin/python3"
RANGE = 100
SETTLED_SECONDS = 2.5
FILLER_BYTES = 200
# Bytes of a row, with the overhead of the engine.
SQLITE_ROW_BYTES, POSTGRES_ROW_BYTES = 220, 260


class Sqlite:
    """SQLite, with Farpool's extension if memory is far."""

    name = "sqlite"

    def __init__(self, folder: Path, size_bytes: int, databases: int = 1):
        self._folder = folder
        self._paths = [folder / f"customer-{number}.db" for number in range(databases)]
        self.size_bytes = size_bytes
        rows = size_bytes // SQLITE_ROW_BYTES
        for path in self._paths:
            with sqlite3.connect(path) as con:
                con.execute("PRAGMA journal_mode = WAL")
                con.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, balance INTEGER, filler TEXT)")
                con.execute(
                    "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                    f" INSERT INTO customer SELECT i, 0, printf('%0{FILLER_BYTES}d', i) FROM n",
                    (rows,),
                )
            con.close()

    def run(self, setting: Setting) -> dict:
        """Runs all databases at once, each in its own process and memory cgroup."""
        forget(self._folder)
        # The run before may have changed the files, and a file that others changed just now is not cached.
        while any(time.time() - path.stat().st_mtime < SETTLED_SECONDS for path in self._paths):
            time.sleep(0.1)
        limit_bytes = 2 * self.size_bytes if setting.way == ENOUGH else setting.local_bytes
        # The extension gets nearly all local memory, because the system need not cache the same pages.
        sizes = f"--protection none --local-cache {setting.local_bytes * 7 // 8}B --cache {setting.far_bytes}B"
        flags = f"{' '.join(setting.far.flags())} {sizes}" if setting.far else ""
        extension = str(PROGRAMS / "libfarpool_sqlite.so") if setting.far else "stock"
        with contextlib.ExitStack() as stack:
            workers = []
            for number in range(setting.databases):
                group = stack.enter_context(Group(f"sqlite-{number}", limit_bytes + PROCESS_BYTES))
                command = [PYTHON, WORKER, extension, self._paths[number], setting.seconds, setting.updates]
                worker = subprocess.Popen(
                    [str(word) for word in (*command, setting.seed + number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "FARPOOL_SQLITE": flags},
                    preexec_fn=group.join,
                )
                # The worker must end before its group is removed.
                stack.callback(worker.wait)
                stack.callback(worker.kill)
                workers.append(worker)
            for worker in workers:
                if worker.stdout.readline() != "ready\n":
                    sys.exit(f"{setting.way}: the worker ended with {worker.wait()}")
            for worker in workers:
                worker.stdin.write("go\n")
                worker.stdin.flush()
            told = [worker.communicate()[0] for worker in workers]
            if any(worker.returncode for worker in workers):
                sys.exit(f"{setting.way}: workers ended with {[worker.returncode for worker in workers]}")
        found = [json.loads(one) for one in told]
        times_us = sorted(time for one in found for time in one["times_us"])
        per_second = sum(one["per_second"] for one in found)
        return {"per_second": per_second, **quantiles(times_us), "stats": found[0]["stats"]}

    def stop(self) -> None:
        pass


class Postgres:
    """PostgreSQL with a table in a tablespace: a folder on disk, or the same folder behind a cache."""

    name = "postgres"

    def __init__(self, folder: Path, size_bytes: int):
        self.size_bytes = size_bytes
        self._rows = size_bytes // POSTGRES_ROW_BYTES
        self._total = 0
        self._scripts = folder / "scripts"
        self._scripts.mkdir()
        window = f"id BETWEEN :id AND :id + {RANGE - 1}"
        id_line = f"\\set id random(1, {self._rows - RANGE})\n"
        # Fails with a division by zero unless all rows were found.
        checked = f"sum(balance), 1 / (count(*) = {RANGE} AND sum(length(filler)) = {RANGE * FILLER_BYTES})::int"
        (self._scripts / "select").write_text(f"{id_line}SELECT {checked} FROM customer WHERE {window};\n")
        (self._scripts / "update").write_text(f"{id_line}UPDATE customer SET balance = balance + 1 WHERE {window};\n")
        self._server = Server(folder)
        self._kept = self._server.folder_for(folder / "kept")
        self._server.start(256 << 20)
        self._server.sql(f"CREATE TABLESPACE kept LOCATION '{self._kept}'")
        # Leaves free space for updated rows, so that the table does not grow.
        self._server.sql(
            "CREATE TABLE customer (id int PRIMARY KEY USING INDEX TABLESPACE kept, balance bigint, filler text)"
            " WITH (fillfactor = 80, autovacuum_enabled = off) TABLESPACE kept;"
            f" INSERT INTO customer SELECT i, 0, lpad(i::text, {FILLER_BYTES}, '0')"
            f" FROM generate_series(1, {self._rows}) AS i"
        )
        self._server.sql("VACUUM ANALYZE customer")
        self._server.sql("CHECKPOINT")
        self._server.stop()

    def run(self, setting: Setting) -> dict:
        with behind(self._server, self._kept, self.size_bytes, setting):
            self._server.sql("SELECT count(*), sum(length(filler)) FROM customer")
            weights = {"select": 100 - round(setting.updates * 100), "update": round(setting.updates * 100)}
            scripts = {self._scripts / name: weight for name, weight in weights.items() if weight}
            found = pgbench(self._server, scripts, setting.seconds, clients=4, seed=setting.seed)
            self._total += RANGE * found["transactions"].get("update", 0)
            if (got := self._server.sql("SELECT sum(balance) FROM customer")) != str(self._total):
                sys.exit(f"{setting.way}: the sum is {got}, not {self._total}")
        return {"per_second": found["per_second"], **quantiles(found["times_us"])}

    def stop(self) -> None:
        self._server.stop()
