"""A pod of Kubernetes without a cluster: what limits a process there, made of the same parts of the kernel.

A pod here has a control group whose memory limit counts the page cache, a root file system whose changes are kept apart
(the writable layer), volumes, namespaces of its own for everything but its user, and no privileges. Two of its ends are
not its own doing:

* The kernel kills it when its control group is out of memory.
* The kubelet evicts it when its ephemeral storage is over the limit: its emptyDir volumes, its writable layer and its
  logs together. The kubelet looks every 10 s (`housekeeping-interval`), and so does this module; it then kills every
  process of the pod.

What is emulated: the container runtime and the kubelet's eviction. Needs root, `ip` and `setpriv`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from farpool.demo.pod import Pods

HOUSEKEEPING_SECONDS = 10
NOBODY = 65534
# The pod's side of its network, and the machine's.
MACHINE_IP, POD_IP = "10.204.{}.1", "10.204.{}.2"
# Runs as root in the namespaces of the pod, and becomes its process. The root of the pod is an overlay over that of the
# machine.
ENTER = """
set -eu
root=$1 layer=$2 mounts=$3
shift 3
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$root"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
# The pod's control group is the root of the hierarchy in its namespace, so programs find their limit there.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 -o ro cgroup2 "$root/sys/fs/cgroup"
else
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/memory"
  mount -t cgroup -o ro,memory cgroup "$root/sys/fs/cgroup/memory"
fi
while read -r options from to; do
  mkdir -p "$root$to"
  # Only in the layer of the pod: whoever it runs as reaches its mounts.
  above=$to
  while above=$(dirname "$above") && [ "$above" != / ]; do chmod o+x "$root$above"; done
  mount --rbind "$from" "$root$to"
  [ "$options" = rw ] || mount -o "remount,bind,$options" "$root$to"
done <"$mounts"
cd "$root"
pivot_root . "$root/mnt"
umount --lazy /mnt
cd /
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""


@dataclass(frozen=True)
class Mount:
    """A folder of the machine that the pod sees."""

    source: Path
    at: str
    is_read_only: bool = False
    # True if the kubelet counts it as ephemeral storage, as an emptyDir.
    is_ephemeral: bool = False


@dataclass(frozen=True)
class Limits:
    memory_bytes: int
    ephemeral_bytes: int


@dataclass
class Ended:
    """How a pod ended."""

    how: Literal["completed", "out of memory", "evicted", "failed", "too slow"]
    seconds: float
    output: str = ""
    # Last lines of the log, or why the kubelet evicted the pod.
    why: str = ""
    ephemeral_peak_bytes: int = 0
    memory_peak_bytes: int = 0


@dataclass
class PodRunner:
    """Runs pods on this machine, one or several at a time."""

    pods: Pods
    folder: Path
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, command: list[str], limits: Limits, mounts: list[Mount], environment: dict[str, str], seconds: float
    ) -> Ended:
        with self._lock:
            self._count += 1
            number = self._count
        with _network(number) as network, self._folder(number) as folder:
            group = self.pods.make(limits.memory_bytes)
            try:
                return _run(command, limits, mounts, environment, seconds, network, folder, group)
            finally:
                group.remove()

    @contextlib.contextmanager
    def _folder(self, number: int) -> Iterator[Path]:
        folder = self.folder / f"pod-{number}"
        for name in ("root", "layer/upper", "layer/work"):
            (folder / name).mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _network(number: int) -> Iterator[str]:
    """Makes a network namespace that reaches this machine at `MACHINE_IP`. Yields its name."""
    name = f"fp-pod-{os.getpid()}-{number}"
    outer = f"fp{os.getpid() % 100000}-{number}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{MACHINE_IP.format(number)}/24", "dev", outer)
        _ip("link", "set", outer, "up")
        _ip("-n", name, "addr", "add", f"{POD_IP.format(number)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # Whatever the machine listens on is reached through it.
        _ip("-n", name, "route", "add", "default", "via", MACHINE_IP.format(number))
        yield name
    finally:
        _ip("netns", "del", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _run(
    command: list[str],
    limits: Limits,
    mounts: list[Mount],
    environment: dict[str, str],
    seconds: float,
    network: str,
    folder: Path,
    group,
) -> Ended:
    listed = folder / "mounts"
    listed.write_text("".join(f"{'ro' if one.is_read_only else 'rw'} {one.source} {one.at}\n" for one in mounts))
    unshare = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
    enter = ["ip", "netns", "exec", network, *unshare, "/bin/sh", "-c", ENTER, "pod"]
    enter += [str(folder / "root"), str(folder / "layer"), str(listed)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    enter += ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp", *variables, *command]
    log, output = folder / "log", folder / "output"
    counted = [one.source for one in mounts if one.is_ephemeral] + [folder / "layer" / "upper", log, output]
    begun = time.monotonic()
    with log.open("wb") as stderr, output.open("wb") as stdout:
        process = subprocess.Popen(group.command(enter), stdout=stdout, stderr=stderr, start_new_session=True)
        evicted, peak = "", 0
        next_look = begun + HOUSEKEEPING_SECONDS
        while True:
            try:
                process.wait(max(0.0, min(next_look, begun + seconds) - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() >= begun + seconds:
                _kill(group.path)
                process.wait()
                return Ended("too slow", seconds, why=f"not done after {seconds:.0f} s")
            next_look += HOUSEKEEPING_SECONDS
            used = sum(map(_used_bytes, counted))
            peak = max(peak, used)
            if used > limits.ephemeral_bytes:
                evicted = (
                    f"ephemeral storage: {used >> 20} MiB are over the limit of {limits.ephemeral_bytes >> 20} MiB"
                )
                _kill(group.path)
                process.wait()
                break
    took = time.monotonic() - begun
    ended = Ended("completed", took, output.read_text(errors="replace"), ephemeral_peak_bytes=peak)
    ended.memory_peak_bytes = _peak_memory(group.path)
    lines = log.read_text(errors="replace").strip().splitlines()
    # The end of a traceback may go on for several lines.
    lines = [line for line in lines if "Error" in line or "Exception" in line][-1:] or lines
    if evicted:
        ended.how, ended.why = "evicted", evicted
    elif group.oom_kills():
        ended.how, ended.why = "out of memory", "the kernel killed it: its control group is out of memory"
    elif process.returncode != 0:
        how = signal.Signals(-process.returncode).name if process.returncode < 0 else str(process.returncode)
        ended.how, ended.why = "failed", lines[-1] if lines else f"exit code {how}"
    return ended


def _kill(group: Path) -> None:
    """Kills every process of a control group."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


def _used_bytes(path: Path) -> int:
    """Returns the bytes that a folder takes on its disk, as the kubelet counts them."""
    total = 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _peak_memory(group: Path) -> int:
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (group / name).exists():
            return int((group / name).read_text())
    return 0


@contextlib.contextmanager
def loop_volume(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A volume of its own size: a file system on a loop device. Whoever exceeds it is out of space."""
    folder.mkdir(parents=True)
    image, at = folder / "image", folder / "at"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    at.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        shutil.rmtree(at / "lost+found")
        at.chmod(0o777)
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def check_machine() -> None:
    """Ends the program if this machine cannot run pods."""
    wanted = [name for name in ("ip", "unshare", "setpriv", "mkfs.ext4") if shutil.which(name) is None]
    if os.geteuid() != 0:
        sys.exit("pods take root: namespaces, control groups and mounts are made")
    if wanted:
        sys.exit(f"pods take {', '.join(wanted)} (Debian: iproute2, util-linux, e2fsprogs)")
