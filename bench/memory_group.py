"""Memory cgroups, of version 1 or 2: they limit the memory of processes together with the page cache of their files."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# Version 1 mounts a hierarchy for memory. Version 2 has a single hierarchy for all controllers.
IS_FIRST = (ROOT / "memory").is_dir()
PARENT = ROOT / "memory" if IS_FIRST else ROOT
REMOVE_SECONDS = 10


def why_not() -> str | None:
    """Returns the reason why this process cannot make a memory cgroup, or None if it can. Enables the controller if it
    is off."""
    if os.geteuid() != 0:
        return "a memory cgroup takes root"
    if IS_FIRST:
        return None
    controllers = PARENT / "cgroup.controllers"
    if not controllers.exists():
        return f"no cgroups are mounted at {ROOT}"
    if "memory" not in controllers.read_text().split():
        return f"{controllers} has no memory controller"
    enabled = PARENT / "cgroup.subtree_control"
    if "memory" in enabled.read_text().split():
        return None
    try:
        enabled.write_text("+memory")
    except OSError as error:
        return f"{enabled} does not take +memory: {error.strerror}"
    return None


class Group:
    """A memory cgroup below the root. Leaving it moves its processes out and removes it."""

    def __init__(self, name: str, limit_bytes: int):
        if why := why_not():
            raise RuntimeError(why)
        self._path = PARENT / f"farpool-{name}-{os.getpid()}"
        self._path.mkdir()
        (self._path / ("memory.limit_in_bytes" if IS_FIRST else "memory.max")).write_text(str(limit_bytes))

    def add(self, pid: int) -> None:
        """Moves a process into the group. Processes that it starts later are in the group as well."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def join(self) -> None:
        """Moves this process into the group."""
        self.add(os.getpid())

    def usage_bytes(self) -> int:
        return int((self._path / ("memory.usage_in_bytes" if IS_FIRST else "memory.current")).read_text())

    def oom_kills(self) -> int:
        """Returns the number of processes of the group that were killed because the limit was reached."""
        events = (self._path / ("memory.oom_control" if IS_FIRST else "memory.events")).read_text()
        return next((int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill ")), 0)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self._path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (PARENT / "cgroup.procs").write_text(pid)
        # Drops the page cache of the group, so that the next group starts without cached pages.
        with contextlib.suppress(OSError):
            if IS_FIRST:
                (self._path / "memory.force_empty").write_text("0")
            else:
                (self._path / "memory.reclaim").write_text(str(self.usage_bytes()))
        until = time.monotonic() + REMOVE_SECONDS
        while True:
            try:
                return self._path.rmdir()
            except OSError as error:
                # A killed process may take a moment to end.
                if time.monotonic() > until:
                    raise RuntimeError(f"the cgroup {self._path} cannot be removed: {error}") from error
                time.sleep(0.02)
