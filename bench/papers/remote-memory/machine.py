"""Settings of a run: local memory, far memory and transport."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "farpool"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
PROGRAMS = Path(os.environ.get("FARPOOL_PROGRAMS", TARGET / "release"))
# Memory of an engine's process, without cached pages of the database.
PROCESS_BYTES = 48 << 20
DISK, ENOUGH = "disk", "enough memory"


def size(text: str) -> int:
    number, unit = text[:-3], text[-3:]
    if unit not in ("MiB", "GiB") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of MiB or GiB is permitted")
    return int(number) << {"MiB": 20, "GiB": 30}[unit]


@dataclass(frozen=True)
class Far:
    """A pool and its transport. "auto" is the client's own choice."""

    url: str
    transport: str = "auto"
    is_plaintext: bool = False

    def flags(self) -> list[str]:
        plaintext = ["--plaintext"] if self.is_plaintext else []
        return ["--pool", self.url, "--transport", self.transport, *plaintext]


@dataclass(frozen=True)
class Setting:
    """Parameters of one run. `far` is None if the disk, or enough memory, is measured."""

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
    """Starts a broker and nodes with this much memory in total, and returns the broker's address."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen([PROGRAMS / "farpool", *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stdout.readline()
        if not line.startswith("ready "):
            sys.exit(f"farpool {arguments[0]} did not start: see its output above")
        return line.split()[1]

    try:
        # A long TTL, because a machine that is busy with a database may renew leases late.
        url = start("broker", "--listen", "127.0.0.1:0", "--store", "memory", "--ttl", "30s")
        for number in range(nodes):
            memory = ["--memory", str(memory_bytes // nodes), "--no-reserve"]
            start("node", "--name", f"far-{number}", *memory, "--broker", url)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def forget(folder: Path) -> None:
    """Drops these files from the page cache."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def quantiles(times_us: list[float]) -> dict[str, float]:
    times_us = sorted(times_us)
    return {"p50_us": times_us[len(times_us) // 2], "p99_us": times_us[int(len(times_us) * 0.99)]}
