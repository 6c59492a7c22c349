"""Prints one line for each step: its title, its time, and the time that it took in the last run."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

CLEAR_LINE = "\r\x1b[2K"


class Steps:
    """Prints the steps of a run. Stores the time of each in a folder of small files, for the next run."""

    def __init__(self, folder: Path, out: TextIO = sys.stderr):
        self._folder = folder
        self._out = out
        self._is_live = out.isatty()

    @contextlib.contextmanager
    def step(self, title: str, key: str) -> Iterator[Step]:
        """Prints `title` with the time of the `with` block. Times are stored by `key`."""
        path = self._folder / re.sub(r"[^A-Za-z0-9.]+", "-", key)
        step = Step(title, self, _read_seconds(path))
        step.now("")
        yield step
        seconds = time.monotonic() - step.begun
        self._write(f"{title}: {duration(seconds)}{step.last_time()}\n", is_last=True)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{seconds:.3f}\n")

    def _write(self, text: str, is_last: bool) -> None:
        if self._is_live:
            self._out.write(CLEAR_LINE + text)
        elif is_last:
            self._out.write(text)
        self._out.flush()


class Step:
    def __init__(self, title: str, steps: Steps, last_seconds: float | None):
        self.begun = time.monotonic()
        self._title = title
        self._steps = steps
        self._last_seconds = last_seconds

    def now(self, what: str) -> None:
        """Shows the current activity of the step, on a terminal only."""
        doing = f": {what}" if what else ""
        self._steps._write(f"{self._title}{doing} ..{self.last_time()}", is_last=False)

    def last_time(self) -> str:
        return "" if self._last_seconds is None else f" (the last time {duration(self._last_seconds)})"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _read_seconds(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
