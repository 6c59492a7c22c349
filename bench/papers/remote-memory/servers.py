"""A PostgreSQL server and mounts, as in `engines/python/tests`, optionally in a memory cgroup."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from machine import ENOUGH, PROCESS_BYTES, PROGRAMS, Setting, forget
from memory_group import Group

sys.path.append(str(Path(__file__).resolve().parents[3] / "engines" / "python" / "tests"))

import postgres

tool = postgres.tool

SETTINGS = {
    # The last commits may be lost if the machine fails, and nothing else, as in SQLite with `synchronous = NORMAL`.
    "synchronous_commit": "off",
    "max_wal_size": "4GB",
    "autovacuum": "off",
    "max_parallel_workers_per_gather": 0,
    "hash_mem_multiplier": 1,
    "effective_io_concurrency": 0,
}


# Transactions of each client if a run is shorter than a second. pgbench accepts only whole seconds.
FEW_TRANSACTIONS = 20


class Mount(postgres.Mount):
    def __init__(self, kind: str, *arguments: str | Path):
        super().__init__(str(PROGRAMS / "farpool"), kind, *map(str, arguments))

    @property
    def pid(self) -> int:
        return self._process.pid


class Server(postgres.Postgres):
    """A server that is not running until it is started with a memory limit. Its files are below `folder`, which its
    user may enter."""

    # Long, because a database as large as the paper's is loaded in one statement.
    patience_seconds = 3_600

    def __init__(self, folder: Path, **settings: str | int):
        super().__init__(folder, **SETTINGS, **settings)
        self.stop()

    def start(self, shared_buffers: int | None = None, group: Group | None = None) -> None:
        if shared_buffers is not None:
            with (self.data / "postgresql.auto.conf").open("w") as file:
                file.write(f"shared_buffers = {shared_buffers >> 13}\n")
        super().start()
        if group:
            for pid in self.pids():
                group.add(pid)

    def pids(self) -> list[int]:
        """Returns the ids of the postmaster and its children. Processes that they start later are in the same group."""
        postmaster = (self.data / "postmaster.pid").read_text().splitlines()[0]
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", postmaster], capture_output=True, text=True).stdout
        return [int(postmaster), *map(int, children.split())]


@contextlib.contextmanager
def behind(server: Server, kept: Path, database_bytes: int, setting: Setting) -> Iterator[None]:
    """Starts a server with a limit on its local memory. Its tablespace in `kept` is behind a cache if memory is far.

    Half of the local memory is for the server itself, the other half for the page cache.
    """
    forget(server.data)
    forget(kept)
    is_enough = setting.way == ENOUGH
    with Group("postgres", (4 * database_bytes if is_enough else setting.local_bytes) + PROCESS_BYTES) as group:
        mount = None
        try:
            if setting.far:
                sizes = ["--size", f"{setting.far_bytes}B", "--local-cache", "0B", "--block", "8KiB", "--exclusive"]
                mount = Mount("cache", kept, kept, *sizes, *setting.far.flags())
                group.add(mount.pid)
            server.start(2 * database_bytes if is_enough else setting.local_bytes // 2, group)
            yield
        finally:
            server.stop()
            if mount:
                mount.stop()


def pgbench(server: Server, scripts: dict[Path, int], seconds: float, clients: int, seed: int) -> dict:
    """Runs scripts by their weights. Returns the transactions per second, the number of each script, and their
    times."""
    with tempfile.TemporaryDirectory(dir=server.folder, ignore_cleanup_errors=True) as logs:
        Path(logs).chmod(0o777)
        # The server's user must be able to read the scripts with any umask.
        for path in scripts:
            path.parent.chmod(0o755)
            path.chmod(0o644)
        files = [word for path, weight in scripts.items() for word in ("-f", f"{path}@{weight}")]
        length = ["-T", str(round(seconds))] if seconds >= 1 else ["-t", str(FEW_TRANSACTIONS)]
        flags = ["-n", "-c", str(clients), "-j", "1", *length, "-M", "prepared"]
        flags += [f"--random-seed={seed}", "-l", f"--log-prefix={logs}/log"]
        told = server.tool("pgbench", *flags, *files, "postgres")
        if re.search("aborted|failed: [^0]", told.stderr):
            sys.exit(f"pgbench: {told.stderr}")
        # A line has for each transaction: client, number, microseconds, script, and time of its end.
        lines = [line.split() for path in Path(logs).iterdir() for line in path.read_text().splitlines()]
    names = [path.name for path in scripts]
    counts = {name: sum(line[3] == str(at) for line in lines) for at, name in enumerate(names)}
    per_second = float(re.search(r"tps = ([\d.]+)", told.stdout)[1])
    times = {name: [float(line[2]) for line in lines if line[3] == str(at)] for at, name in enumerate(names)}
    every = [time for each in times.values() for time in each]
    return {"per_second": per_second, "transactions": counts, "times_us": every, "times_us_of": times}
