"""What ways differ in: whose memory there is, and how much of it."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "farpool"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target")) / "release"
GROUPS = Path("/sys/fs/cgroup/memory")
# What an engine takes besides what it keeps of the database.
PROCESS_BYTES = 48 << 20
DISK, ENOUGH = "disk", "enough memory"


def size(text: str) -> int:
    number, unit = text[:-3], text[-3:]
    if unit not in ("MiB", "GiB") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of MiB or GiB is permitted")
    return int(number) << {"MiB": 20, "GiB": 30}[unit]


@dataclass(frozen=True)
class Far:
    """A pool, and the transport by which it is used; "auto" is what the client takes by itself."""

    url: str
    transport: str = "auto"
    is_plaintext: bool = False

    def flags(self) -> list[str]:
        plaintext = ["--plaintext"] if self.is_plaintext else []
        return ["--pool", self.url, "--transport", self.transport, *plaintext]


@dataclass(frozen=True)
class Setting:
    """One run: `far` is None where it is the disk, or enough memory, that is measured."""

    way: str
    local_bytes: int
    far_bytes: int
    updates: float
    seconds: float
    seed: int
    far: Far | None = None
    databases: int = 1


@contextlib.contextmanager
def pool(memory_bytes: int, nodes: int = 1) -> Iterator[str]:
    """The address of a broker whose nodes have so much memory together."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen([TARGET / "farpool", *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process.stdout.readline()

    try:
        url = start("broker", "--listen", "127.0.0.1:0", "--store", "memory").split()[1]
        for number in range(nodes):
            start("node", "--name", f"far-{number}", "--memory", str(memory_bytes // nodes), "--broker", url)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


class Group:
    """A memory cgroup (version 1): what its processes and the system keep for them is no more than so much."""

    def __init__(self, name: str, limit_bytes: int):
        self._folder = GROUPS / f"farpool-{name}-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (GROUPS / "cgroup.procs").write_text(pid)
        # What is kept of files for it goes with it, so that the next way finds nothing.
        with contextlib.suppress(OSError):
            (self._folder / "memory.force_empty").write_text("0")
        self._folder.rmdir()


def forget(folder: Path) -> None:
    """Nothing of these files is in the system's memory."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def quantiles(times_us: list[float]) -> dict[str, float]:
    times_us = sorted(times_us)
    return {"p50_us": times_us[len(times_us) // 2], "p99_us": times_us[int(len(times_us) * 0.99)]}
