"""One query in one mode, in a process of its own: so that no mode finds the state of another.

Started by the demonstration as `python -m farpool.demo.run JSON`; answers with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb

from farpool.demo.digest import ResultDigest

ROWS_PER_BATCH = 100_000


@dataclass(frozen=True)
class Mode:
    name: str
    title: str
    transport: Literal["auto", "tcp", "shm"] = "auto"  # of far memory

    @property
    def is_limited(self) -> bool:
        return self is not ENOUGH

    @property
    def spills(self) -> bool:
        return self not in (NO_SPILL, ENOUGH)


NO_SPILL = Mode("no-spill", "no spill")
DISK = Mode("disk", "local disk")
FAR_TCP = Mode("far-tcp", "far tcp", "tcp")
FAR_SHM = Mode("far-shm", "far shm", "shm")
ENOUGH = Mode("enough", "enough memory")
MODES = {mode.name: mode for mode in (NO_SPILL, DISK, FAR_TCP, FAR_SHM, ENOUGH)}


@dataclass(frozen=True)
class Task:
    """What the process is told. JSON on its command line."""

    mode: str
    sql: str
    database: str
    threads: int
    limit_bytes: int
    spill_directory: str  # of mode `disk`
    pool_url: str  # of the far modes


@dataclass(frozen=True)
class Outcome:
    """What it answers. Either an `error`, or everything else."""

    error: str = ""
    is_out_of_memory: bool = False
    seconds: float = 0.0  # from the start of the query to its last row, without the digest
    rows: int = 0
    columns: tuple[tuple[str, str], ...] = ()  # name and digest
    spill_written_bytes: int = 0  # as counted by the kernel (disk) or the pool (far)
    spill_read_bytes: int = 0
    spill_peak_bytes: int = 0  # as reported by DuckDB
    files_left: int = 0


class Runner:
    """Runs tasks in child processes. `stop` may be called at any time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def run(self, task: Task) -> Outcome:
        command = [sys.executable, "-m", "farpool.demo.run", json.dumps(asdict(task))]
        # A session of its own: Ctrl-C reaches the demonstration only, which then ends the child.
        self._child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        stdout, stderr = self._child.communicate()
        if self._child.returncode != 0:
            return Outcome(error=f"the query process ended with {self._child.returncode}: {stderr.strip()[-2000:]}")
        return Outcome(**json.loads(stdout.splitlines()[-1]))

    def stop(self) -> None:
        if self._child and self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def execute(task: Task) -> Outcome:
    mode = MODES[task.mode]
    con = duckdb.connect(task.database, read_only=True, config={"threads": task.threads})
    if mode.is_limited:
        con.execute(f"SET memory_limit = '{task.limit_bytes}B'")
    # The coverage setting adds the peak of the temporary directory to what DuckDB reports.
    con.execute("SET enable_profiling = 'no_output'; SET profiling_coverage = 'ALL'")
    if not mode.spills:
        con.execute("SET temp_directory = ''")
        return _measure(con, task, lambda: (0, 0))
    if mode is DISK:
        directory = Path(task.spill_directory)
        con.execute(f"SET temp_directory = '{directory}'")
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
        is_out_of_memory = isinstance(error, duckdb.OutOfMemoryException) or text.startswith("Out of Memory Error")
        return Outcome(error=text, is_out_of_memory=is_out_of_memory)
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


def _process_io_bytes() -> tuple[int, int]:
    """Bytes this process has given to write calls and got from read calls.

    The database is open for reading only, so what DuckDB writes here is spill. What it reads is
    spill and table data together, hence no figure.
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
