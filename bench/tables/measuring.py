"""Memory of processes, and tables of results, for the programs of this folder."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

MIB = 1 << 20
SAMPLE_SECONDS = 0.1


def memory_of(process_id: int) -> dict[str, int]:
    """Returns the bytes that only this process has in memory, and those of files that others may map too, such as the
    memory that a node shares with clients. Zeros if the process has ended."""
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}
    return {"own": found.get("RssAnon", 0), "shared": found.get("RssShmem", 0)}


class Memory:
    """Peaks of the memory of processes, by name, of samples every 0.1 s. A context manager."""

    def __init__(self, **processes: int):
        self._processes = {"client": os.getpid(), **processes}
        self.peaks = {name: {"own": 0, "shared": 0, "both": 0} for name in self._processes}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def now(self, name: str) -> int:
        """Returns the bytes that a process has in memory now."""
        return sum(memory_of(self._processes[name]).values())

    def _watch(self) -> None:
        while True:
            for name, process_id in self._processes.items():
                found = memory_of(process_id)
                found["both"] = sum(found.values())
                self.peaks[name] = {kind: max(most, found[kind]) for kind, most in self.peaks[name].items()}
            if self._over.wait(SAMPLE_SECONDS):
                return

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def lines(self) -> list[str]:
        rows = [[name, *(mib(peak[kind]) for kind in ("own", "shared", "both"))] for name, peak in self.peaks.items()]
        return lines_of(["memory, at most, MiB", "own", "shared", "both"], rows)


def mib(count: float) -> str:
    return f"{count / MIB:,.1f}"


def lines_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table. Its first column is aligned to the left."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    lines = []
    for first, *others in [header, ["-" * width for width in widths], *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def machine() -> str:
    return f"{os.cpu_count()} x {platform.processor() or platform.machine()}, Linux {platform.release()}"


def check(what: str, found: object, wanted: object) -> None:
    """Ends the program if a result is not the right one."""
    if found != wanted:
        sys.exit(f"{what}: {str(found)[:300]} and not {str(wanted)[:300]}")


def write_json(path: str | None, told: dict) -> None:
    if path:
        Path(path).write_text(json.dumps(told, indent=1) + "\n")
