"""Runs one query in one mode, in its own process, so that no mode is affected by the state of another.

The demonstration starts it as `python -m farpool.demo.run JSON`. It prints one line of JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb

from farpool.demo.digest import ResultDigest
from farpool.demo.pod import Pod

ROWS_PER_BATCH = 100_000
QUERY_SECONDS = 1800


@dataclass(frozen=True)
class Mode:
    name: str
    title: str
    spills_to: Literal["nothing", "folder", "far"]
    transport: Literal["auto", "tcp", "shm"] = "auto"  # transport to far memory
    is_limited: bool = True  # False if the query has enough memory
    must_fail: bool = False  # True if it must run out of memory, or out of space in the volume


NO_SPILL = Mode("no-spill", "no spill", "nothing", must_fail=True)
SMALL_VOLUME = Mode("small-volume", "small volume", "folder", must_fail=True)
CLOUD_VOLUME = Mode("cloud-volume", "cloud volume", "folder")
DISK = Mode("disk", "this machine's disk", "folder")
FAR_TCP = Mode("far-tcp", "far memory, tcp", "far", "tcp")
FAR_SHM = Mode("far-shm", "far memory, shm", "far", "shm")
ENOUGH = Mode("enough", "enough memory", "nothing", is_limited=False)
MODES = {mode.name: mode for mode in (NO_SPILL, SMALL_VOLUME, CLOUD_VOLUME, DISK, FAR_TCP, FAR_SHM, ENOUGH)}


@dataclass(frozen=True)
class Task:
    """Arguments of the process: JSON on its command line."""

    mode: str
    sql: str
    database: str
    threads: int
    limit_bytes: int
    spill_directory: str  # for modes that spill to a folder
    spill_limit_bytes: int  # size of the small volume
    pool_url: str  # for modes with far memory


@dataclass(frozen=True)
class Outcome:
    """Result of the process: an `error`, or all other fields."""

    error: str = ""
    failed_for: Literal["", "memory", "volume", "other"] = ""
    seconds: float = 0.0  # from the start of the query to its last row, without the digest
    rows: int = 0
    columns: tuple[tuple[str, str], ...] = ()  # name and digest
    spill_written_bytes: int = 0  # counted by the kernel (disk) or the pool (far)
    spill_read_bytes: int = 0
    spill_peak_bytes: int = 0  # reported by DuckDB
    files_left: int = 0


class Runner:
    """Runs tasks in child processes. `stop` may be called at any time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def run(self, task: Task, pod: Pod | None) -> Outcome:
        command = [sys.executable, "-m", "farpool.demo.run", json.dumps(asdict(task))]
        # A process session of its own: Ctrl-C reaches only the demonstration, which then ends the child.
        self._child = subprocess.Popen(
            pod.command(command) if pod else command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = self._child.communicate(timeout=QUERY_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return Outcome(error=f"the query took longer than {QUERY_SECONDS} s", failed_for="other")
        if self._child.returncode == -signal.SIGKILL and pod and pod.oom_kills():
            return Outcome(error="the kernel killed it: its pod has no memory left", failed_for="memory")
        if self._child.returncode != 0:
            said = f"the query process ended with {self._child.returncode}: {stderr.strip()[-2000:]}"
            return Outcome(error=said, failed_for="other")
        return Outcome(**json.loads(stdout.splitlines()[-1]))

    def stop(self) -> None:
        if self._child and self._child.poll() is None:
            self._child.kill()
            self._child.communicate()


def execute(task: Task) -> Outcome:
    mode = MODES[task.mode]
    con = duckdb.connect(task.database, read_only=True, config={"threads": task.threads})
    if mode.is_limited:
        con.execute(f"SET memory_limit = '{task.limit_bytes}B'")
    # DuckDB's report includes the peak size of the temporary directory with this coverage only.
    con.execute("SET enable_profiling = 'no_output'; SET profiling_coverage = 'ALL'")
    if mode.spills_to == "nothing":
        con.execute("SET temp_directory = ''")
        return _measure(con, task, lambda: (0, 0))
    if mode.spills_to == "folder":
        directory = Path(task.spill_directory)
        con.execute(f"SET temp_directory = '{directory}'")
        if mode is SMALL_VOLUME:
            con.execute(f"SET max_temp_directory_size = '{task.spill_limit_bytes}B'")
        outcome = _measure(con, task, _process_io_bytes)
        con.close()
        files_left = sum(1 for path in directory.rglob("*") if path.is_file()) if directory.exists() else 0
        return Outcome(**{**asdict(outcome), "files_left": files_left})

    import farpool
    import farpool.duckdb

    with farpool.connect(task.pool_url, transport=mode.transport) as pool:
        farpool.duckdb.attach(con, pool)
        outcome = _measure(con, task, lambda: _pool_io_bytes(pool))
        con.close()
        return Outcome(**{**asdict(outcome), "files_left": len(pool.list())})


def _measure(con: duckdb.DuckDBPyConnection, task: Task, spill_io: Any) -> Outcome:
    written_before, read_before = spill_io()
    digest_seconds = 0.0
    start = time.perf_counter()
    try:
        reader = con.sql(task.sql).to_arrow_reader(ROWS_PER_BATCH)
        digest = ResultDigest(reader.schema)
        for batch in reader:
            digest_start = time.perf_counter()
            digest.add(batch)
            digest_seconds += time.perf_counter() - digest_start
    except (duckdb.Error, OSError) as error:  # pyarrow turns errors of a later batch into OSError
        text = str(error).strip()
        return Outcome(error=text, failed_for=_reason(error, text))
    seconds = time.perf_counter() - start - digest_seconds
    written, read = spill_io()
    profile = json.loads(con.get_profiling_information(format="json"))
    return Outcome(
        seconds=seconds,
        rows=digest.row_count,
        columns=tuple(digest.columns()),
        spill_written_bytes=written - written_before,
        spill_read_bytes=read - read_before,
        spill_peak_bytes=profile["system"]["peak_temp_dir_size"],
    )


def _reason(error: Exception, text: str) -> Literal["memory", "volume", "other"]:
    if not isinstance(error, duckdb.OutOfMemoryException) and not text.startswith("Out of Memory Error"):
        return "other"
    # DuckDB raises the same type for both. The text names this setting if the folder for spill is full.
    return "volume" if "max_temp_directory_size" in text else "memory"


def _process_io_bytes() -> tuple[int, int]:
    """Returns the bytes that this process has passed to write calls, and 0.

    The database is opened read-only, so all bytes that DuckDB writes here are spill. The bytes that it reads are spill
    and table data together, so 0 stands for the bytes of spill read.
    """
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1]), 0
    return 0, 0


def _pool_io_bytes(pool: Any) -> tuple[int, int]:
    stats = pool.stats()
    return stats["bytes_written"], stats["bytes_read"]


if __name__ == "__main__":
    print(json.dumps(asdict(execute(Task(**json.loads(sys.argv[1]))))))
