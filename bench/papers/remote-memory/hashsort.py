"""Hash+Sort (section 5.2.2): a hash join and a sort that both spill, in PostgreSQL, with their transfer rates over
time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from machine import ENOUGH, PROCESS_BYTES, Far, forget
from memory_group import Group
from servers import Mount, Server, tool

ROW_BYTES = 190
WORK_MEM = "8MB"
TOP = 100_000
STEP_SECONDS = 0.1
TABLES = """
CREATE TABLE orders AS
  SELECT i AS orderkey, (i::bigint * 7919 % 150001)::int AS custkey, 'O' AS orderstatus, i % 1000 / 7.0 AS totalprice,
         date '1992-01-01' + i % 2400 AS orderdate, lpad(i::text, 60, 'o') AS comment
  FROM generate_series(1, {orders}) AS i;
CREATE TABLE lineitem AS
  SELECT (i - 1) / 4 + 1 AS orderkey, (i - 1) % 4 AS linenumber, (i::bigint * 104729 % 200003)::int AS partkey,
         i % 50 AS quantity, (i::bigint * 48271 % 2147483647)::float8 / 100 AS extendedprice,
         date '1992-01-01' + i % 2500 AS shipdate, lpad(i::text, 60, 'l') AS comment
  FROM generate_series(1, {orders} * 4) AS i;
VACUUM ANALYZE orders; VACUUM ANALYZE lineitem;
CREATE EXTENSION pg_prewarm
"""
# Selects all columns, as the paper's query does, and returns one row.
QUERY = f"""
SELECT count(*), sum(hashtext(s::text)::bigint) FROM (
  SELECT l.*, o.custkey, o.orderstatus, o.totalprice, o.orderdate, o.comment AS remark
  FROM lineitem AS l JOIN orders AS o ON l.orderkey = o.orderkey
  ORDER BY l.extendedprice, l.orderkey, l.linenumber LIMIT {TOP}) AS s
"""


class HashSort:
    """Runs the query. The tables are in the server's memory. The spill goes to the server's disk or to a scratch
    mount."""

    def __init__(self, folder: Path, size_bytes: int):
        self._folder = folder
        self._buffers = size_bytes * 3 // 2
        self._server = Server(folder)
        self._server.start(self._buffers)
        for statement in TABLES.format(orders=size_bytes // ROW_BYTES // 4).strip().split(";"):
            self._server.sql(statement)
        self._server.sql("CHECKPOINT")
        self._server.stop()
        self._answer = None

    def run(self, way: str, far: Far | None) -> dict:
        forget(self._server.data)
        mount = None
        with Group("hashsort", self._buffers + PROCESS_BYTES + (1 << 40) * (way == ENOUGH)) as group:
            try:
                if far:
                    at = self._server.folder_for(self._folder / "scratch")
                    mount = Mount("scratch", at, "--protection", "none", *far.flags())
                    group.add(mount.pid)
                self._server.start(self._buffers, group)
                if far:
                    self._server.sql(f"CREATE TABLESPACE far LOCATION '{at}'")
                self._server.sql("SELECT pg_prewarm('orders'), pg_prewarm('lineitem')")
                return self._measure(way, "far" if far else "")
            finally:
                if far:
                    self._server.sql("DROP TABLESPACE IF EXISTS far")
                self._server.stop()
                if mount:
                    mount.stop()
                    at.rmdir()

    def _measure(self, way: str, tablespace: str) -> dict:
        """Returns the seconds of the query, and the bytes per second that its process read and wrote in each
        interval."""
        memory = "4GB" if way == ENOUGH else WORK_MEM
        told = [f"SET work_mem = '{memory}'", f"SET temp_tablespaces = '{tablespace}'", "SET enable_mergejoin = off"]
        session = subprocess.Popen(
            [tool("psql"), "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", self._folder, "-U", "postgres"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        session.stdin.write(f"{'; '.join(told)}; SELECT pg_backend_pid();\n")
        session.stdin.flush()
        io = Path("/proc", session.stdout.readline().strip(), "io")
        session.stdin.write(f"{QUERY};\n")
        session.stdin.close()
        begun = time.perf_counter()
        seen = [(0.0, *moved(io))]
        while session.poll() is None:
            time.sleep(STEP_SECONDS)
            try:
                seen.append((time.perf_counter() - begun, *moved(io)))
            except OSError:
                break
        answer = session.stdout.read().strip()
        seconds = time.perf_counter() - begun
        self._answer = self._answer or answer
        if session.wait() or answer != self._answer:
            sys.exit(f"{way}: psql ended with {session.returncode} and answered {answer!r}, not {self._answer!r}")
        steps = []
        for (before, *earlier), (now, *later) in zip(seen, seen[1:], strict=False):
            read, written = ((at - was) / (now - before) for was, at in zip(earlier, later, strict=True))
            steps.append({"seconds": now, "read": read, "written": written})
        return {"seconds": seconds, "bytes": seen[-1][1] + seen[-1][2] - seen[0][1] - seen[0][2], "steps": steps}

    def stop(self) -> None:
        self._server.stop()


def moved(io: Path) -> tuple[int, int]:
    """Returns the total bytes that a process has read and written."""
    lines = dict(line.split(": ") for line in io.read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])
