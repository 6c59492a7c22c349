"""Limits of a pod on this machine: a memory limit that includes the page cache, and a slow volume.

The processes of a pod run in a control group (cgroup). Its memory limit covers their own memory and the page cache of
the files that they read and write. This module makes such groups with version 1 or 2 of cgroups. If this process may
not make them, the module says why. It needs only the standard library.

Version 2 permits processes only in groups that have no children with controllers. If this process is not in the root
group, the processes of its group are therefore moved to a child group while `Pods` is open.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
VOLUME_IOPS = 3000
VOLUME_MB_PER_SECOND = 125
REMOVE_SECONDS = 10


class NotHere(Exception):
    """Raised if this machine does not let this process do something. The text says why."""


@dataclass(frozen=True)
class Pod:
    """A control group with a memory limit."""

    path: Path

    def command(self, command: list[str]) -> list[str]:
        """Returns a command that runs `command` inside this group from its first instruction on."""
        # The shell enters the group before it executes the command, so that all memory of the command counts.
        return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.path), *command]

    def oom_kills(self) -> int:
        """Returns the number of processes of the group that the kernel killed because it was out of memory."""
        events = self.path / ("memory.events" if (self.path / "memory.events").exists() else "memory.oom_control")
        words = (line.split() for line in events.read_text().splitlines())
        return next((int(count) for name, count in words if name == "oom_kill"), 0)

    def remove(self) -> None:
        """Removes the group once its processes have ended, and drops its page cache."""
        deadline = time.monotonic() + REMOVE_SECONDS
        with contextlib.suppress(OSError):
            (self.path / "memory.force_empty").write_text("0")
        while True:
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the control group {self.path} cannot be removed: {error}") from error
                time.sleep(0.02)


class Pods:
    """Makes pods below one control group. A context manager; leaving it removes the groups."""

    def __init__(self) -> None:
        self._count = 0
        self._undo = contextlib.ExitStack()
        self._parent: Path | None = None
        self.is_v2 = (CGROUPS / "cgroup.controllers").exists()
        self.why_not = ""

    def __enter__(self) -> Pods:
        try:
            self._parent = self._make_parent()
        except NotHere as why:
            self.why_not = str(why)
        except OSError as error:
            self._undo.close()
            self.why_not = f"no control group can be made: {error.strerror} ({error.filename})"
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def can_limit_memory(self) -> bool:
        return self._parent is not None

    def make(self, memory_bytes: int, slow_folder: Path | None = None) -> Pod:
        """Makes a pod with `memory_bytes`. With `slow_folder`, the disk of that folder has the rates of a cloud volume
        (version 2)."""
        if self._parent is None:
            raise NotHere(self.why_not)
        self._count += 1
        pod = Pod(self._made(self._parent / f"pod-{self._count}"))
        try:
            if self.is_v2:
                (pod.path / "memory.max").write_text(str(memory_bytes))
                swap = pod.path / "memory.swap.max"
                if swap.exists():
                    swap.write_text("0")
                if slow_folder:
                    bytes_per_second = VOLUME_MB_PER_SECOND * 1_000_000
                    rates = f"rbps={bytes_per_second} wbps={bytes_per_second} riops={VOLUME_IOPS} wiops={VOLUME_IOPS}"
                    (pod.path / "io.max").write_text(f"{disk_of(slow_folder)} {rates}")
            else:
                (pod.path / "memory.limit_in_bytes").write_text(str(memory_bytes))
                with_swap = pod.path / "memory.memsw.limit_in_bytes"
                if with_swap.exists():
                    with_swap.write_text(str(memory_bytes))
        except BaseException:
            pod.remove()
            raise
        return pod

    def check_slow_volume(self, folder: Path) -> None:
        """Raises NotHere unless groups can limit the rates of the disk below `folder`."""
        if self._parent is None:
            raise NotHere(self.why_not)
        if not self.is_v2:
            raise NotHere("cgroups of version 1 do not throttle what is written back from the page cache")
        if "io" not in (self._parent / "cgroup.controllers").read_text().split():
            raise NotHere("the io controller of cgroups is not delegated to this process")
        try:
            self.make(64 << 20, folder).remove()
        except OSError as error:
            raise NotHere(f"the rates of the disk below {folder} cannot be limited: {error.strerror}") from error

    def _make_parent(self) -> Path:
        name = f"farpool-demo-{os.getpid()}"
        if not self.is_v2:
            memory = CGROUPS / "memory"
            if not memory.is_dir():
                raise NotHere(f"no cgroup hierarchy with memory is mounted at {CGROUPS}")
            return self._made(memory / _own_group("memory") / name)
        own = CGROUPS / _own_group("")
        for parent in (CGROUPS, own):
            # Only the root group may have processes beside children with controllers. It has no `cgroup.type`.
            is_root = not (parent / "cgroup.type").exists()
            if parent == own or (is_root and os.access(parent, os.W_OK)):
                break
        if "memory" not in (parent / "cgroup.controllers").read_text().split():
            raise NotHere(f"the memory controller of cgroups is not delegated to this process's group ({parent})")
        if not os.access(parent, os.W_OK) or not os.access(parent / "cgroup.subtree_control", os.W_OK):
            raise NotHere(
                f"the control group {parent} is not this user's: "
                "run as root, or below systemd-run --user --scope --property=Delegate=yes"
            )
        if not is_root:
            leaf = self._made(parent / f"{name}-rest")
            self._undo.callback(_move_processes, leaf, parent)
            _move_processes(parent, leaf)
        self._enable(parent)
        made = self._made(parent / name)
        self._enable(made)
        return made

    def _made(self, path: Path) -> Path:
        path.mkdir()
        self._undo.callback(Pod(path).remove)
        return path

    def _enable(self, group: Path) -> None:
        """Enables the memory controller, and io if there is one, for the children of a group."""
        control = group / "cgroup.subtree_control"
        there = (group / "cgroup.controllers").read_text().split()
        for controller in ("memory", "io"):
            if controller in there and controller not in control.read_text().split():
                control.write_text(f"+{controller}")
                self._undo.callback(control.write_text, f"-{controller}")


class CappedDisk:
    """A folder on its own file system with limited rates, made by `bench/capped-disk.sh`. A context manager."""

    def __init__(self, script: Path, size_bytes: int, folder: Path):
        self._command = [str(script), str(VOLUME_IOPS), str(VOLUME_MB_PER_SECOND), str(size_bytes)]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.path = Path()

    def __enter__(self) -> CappedDisk:
        # The disk exists while the script's command runs, which ends when this process closes its end of the pipe.
        self._process = subprocess.Popen(
            [*self._command, "/bin/sh", "-c", 'echo "$0"; exec cat', "{}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "DISK": str(self._folder)},
        )
        line = self._process.stdout.readline().strip()
        if not line:
            said = self._process.communicate(timeout=REMOVE_SECONDS)[1].strip()
            raise NotHere(said.splitlines()[-1] if said else "capped-disk.sh ended without output")
        self.path = Path(line)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=60)


def disk_of(folder: Path) -> str:
    """Returns the numbers "major:minor" of the whole disk that stores `folder`, as `io.max` needs them."""
    number = os.stat(folder).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if (device / "partition").exists():
        return (device.resolve().parent / "dev").read_text().strip()
    return f"{os.major(number)}:{os.minor(number)}"


def _own_group(controller: str) -> str:
    """Returns the path of this process's group in a hierarchy. `controller` is empty for version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise NotHere(f"/proc/self/cgroup names no group{f' with {controller}' if controller else ''}")


def _move_processes(source: Path, target: Path) -> None:
    for process in (source / "cgroup.procs").read_text().split():
        # A process may have ended in the meantime.
        with contextlib.suppress(ProcessLookupError):
            (target / "cgroup.procs").write_text(process)
