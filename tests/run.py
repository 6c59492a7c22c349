#!/usr/bin/env python3
"""Runs a test program under a deadline. If a test hangs, prints its name and where it waits, and ends all of its
processes.

    tests/run.py [--seconds N] PROGRAM ARGUMENT...

It is used as cargo's `runner`, and before other commands. The output of Rust's test harness is passed on and read. A
test that "has been running for over 60 seconds" has N seconds more (default: FARPOOL_TEST_SECONDS, or 900). Other
programs must print something at least every N seconds. When the program ends, processes that it left are ended too,
whatever their parent is, and their mounts are detached. Run by root, mounts are private to the program, so that tests
do not see each other's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 900.0
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
LATE = re.compile(rb"test (\S+) has been running for over \d+ seconds")
DONE = re.compile(rb"test (\S+) \.\.\. (?:ok|FAILED|ignored)")


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def parents() -> dict[int, int]:
    """Returns the parent of each process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # The name of the process is in parentheses and may contain parentheses.
        words = read(stat).rpartition(")")[2].split()
        if len(words) > 1:
            found[int(stat.parent.name)] = int(words[1])
    return found


def descendants() -> list[int]:
    started_by, found = parents(), [os.getpid()]
    for one in found:
        found += [child for child, parent in started_by.items() if parent == one]
    return found[1:]


def what_is_waited_for() -> list[str]:
    """Returns a line for each process of the test and for each thread, with the kernel function in which it waits."""
    lines = []
    for process in descendants():
        folder = Path("/proc", str(process))
        command = read(folder / "cmdline").replace("\0", " ")
        lines.append(f"  {process} {command[:300] or read(folder / 'comm')}")
        for thread in sorted(folder.glob("task/*")):
            lines.append(f"    {read(thread / 'comm')}: {read(thread / 'wchan') or 'running'}")
    return lines


def end_all() -> None:
    """Kills all descendants. Orphans are among them, because this process is their subreaper."""
    while left := descendants():
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)


def keep_mounts_apart() -> None:
    """Moves this process and its children into their own mount namespace, if that is permitted."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def mounts() -> set[str]:
    """Returns the mount points of FUSE file systems, escaped as the kernel writes them."""
    lines = [line.split() for line in read(Path("/proc/self/mounts")).splitlines()]
    return {words[1] for words in lines if words[2].startswith("fuse")}


def detach_dead(before: set[str]) -> None:
    """Detaches new mounts whose processes were ended."""
    for written in mounts() - before:
        place = written.encode().decode("unicode_escape").encode("latin-1").decode()
        try:
            os.statvfs(place)  # `stat` could still be answered from the kernel's cache.
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                subprocess.run(["umount", "--lazy", place], timeout=10)


class Run:
    def __init__(self, command: list[str], seconds: float):
        self.seconds = seconds
        self.late: dict[bytes, float] = {}
        self.heard = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
        self.line = b""

    def reap(self) -> None:
        """Reaps orphans that have ended: a killed server must not look alive to the next one."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self.process.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    def hear(self, said: bytes) -> None:
        self.heard = time.monotonic()
        *lines, self.line = (self.line + said).split(b"\n")
        for line in lines:
            if late := LATE.search(line):
                self.late[late[1]] = self.heard
            elif done := DONE.search(line):
                self.late.pop(done[1], None)

    def overdue(self) -> str:
        """Returns a text that names the tests that did not end in time. Empty if there are none."""
        now = time.monotonic()
        names = [name.decode() for name, since in self.late.items() if now - since > self.seconds]
        if names:
            return f"{', '.join(names)} did not end within {60 + self.seconds:.0f} s"
        if now - self.heard > self.seconds and not self.late:
            return f"{self.process.args[0]} printed nothing for {self.seconds:.0f} s"
        return ""

    def follow(self) -> int:
        """Passes the output on until the program ends, and returns its exit code."""
        signal.signal(signal.SIGCHLD, lambda *_: self.reap())
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                if selector.select(1.0):
                    said = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not said:
                        break
                    sys.stdout.buffer.write(said)
                    sys.stdout.buffer.flush()
                    self.hear(said)
                elif self.process.poll() is not None:
                    break  # An orphan still has the output open.
                if overdue := self.overdue():
                    print(f"tests/run.py: {overdue}. What runs, and what it waits in:", file=sys.stderr)
                    print("\n".join(what_is_waited_for()), file=sys.stderr, flush=True)
                    return 124
        # The output is closed shortly before the process ends.
        try:
            code = self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            print(f"tests/run.py: {self.process.args[0]} has closed its output and goes on", file=sys.stderr)
            return 124
        return 128 - code if code < 0 else code


def main(words: list[str]) -> int:
    seconds = float(os.environ.get("FARPOOL_TEST_SECONDS", SECONDS))
    if words[:1] == ["--seconds"]:
        seconds, words = float(words[1]), words[2:]
    if not words:
        sys.exit(__doc__)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    keep_mounts_apart()
    mounted = mounts()
    try:
        return Run(words, seconds).follow()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_all()
        detach_dead(mounted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
