"""Runs a broker and memory nodes as processes of this machine, and checks that they leave nothing behind."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import farpool
from farpool._farpool import _size_text

READY_SECONDS = 300
STOP_SECONDS = 60
# Seconds until all memory must be given back. A client that ends cleanly gives it back at once. One that is lost takes
# TTL and grace, longer on a busy machine.
GIVEN_BACK_SECONDS = 120


class Cluster:
    """One broker and several nodes. A context manager; leaving it ends every process."""

    def __init__(
        self,
        binary: str,
        node_memory_bytes: int,
        node_count: int = 2,
        broker_arguments: tuple[str, ...] = (),
        node_arguments: tuple[str, ...] = (),
        hosts: bool = False,
        address: str | None = None,
        store: str = "memory",
    ):
        """Sets the arguments; starts nothing. With `hosts`, each node has a host label of its own, as mirrors need.
        `address` is that at which the processes listen; beyond loopback they need certificates. `store` is where the
        broker keeps its state, as its flag of this name says."""
        # An address of the loopback device that no other process of this machine takes: whatever else starts, nobody
        # answers where a broker or a node was killed. A process id has 22 bits at most.
        pid = os.getpid()
        self._host = address or f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
        self.url = ""
        self._hosts = hosts
        self._store = store
        self._broker_arguments = broker_arguments
        self._node_arguments = node_arguments
        self._binary = binary
        self._node_memory_bytes = node_memory_bytes
        self._node_count = node_count
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # in the order in which they were started
        self._logs = Path(tempfile.mkdtemp(prefix="farpool-demo-logs-"))

    def __enter__(self) -> Cluster:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def what_is_left(self) -> list[str]:
        """Returns what clients have not given back, as text. Waits up to 120 s until that is nothing."""
        deadline = time.monotonic() + GIVEN_BACK_SECONDS
        with farpool.connect(self.url, transport="tcp") as pool:
            while True:
                status = pool.status()
                left = []
                if status["leased_bytes"]:
                    left.append(f"{_size_text(status['leased_bytes'])} are still leased")
                if status["files"]:
                    left.append(f"{len(status['files'])} files are still in the pool")
                if not left or time.monotonic() > deadline:
                    return left
                time.sleep(0.05)

    def process_id(self, name: str) -> int:
        """Returns the process id of "broker", "node-1", ..."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """Kills one process with SIGKILL, as a crash would: "broker", "node-1", ..."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        process.stdout.close()

    def stall(self, name: str) -> None:
        """Stops one process with SIGSTOP, as a host that hangs would. `go_on` continues it."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def start_node(self, number: int, *arguments: str) -> None:
        """Starts "node-1", "node-2", ... with these arguments, or with `node_arguments`. A node that was killed starts
        empty."""
        name = f"node-{number}"
        memory = str(self._node_memory_bytes)
        host = ["--host-label", f"host-{number}"] if self._hosts else []
        listen = ["--listen", f"{self._host}:0"]
        self._start(
            name,
            ["node", "--name", name, "--memory", memory, "--broker", self.url]
            + [*listen, *host, *(arguments or self._node_arguments)],
        )

    def go_on(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def stop(self) -> list[str]:
        """Ends all processes, nodes first. Returns what did not end as it should, as text."""
        left = []
        while self._processes:
            name, process = self._processes.popitem()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)  # a stopped process gets SIGTERM only after SIGCONT
            try:
                code = process.wait(STOP_SECONDS)
                if code != 0:
                    left.append(f"{name} ended with {code}: {self._log_tail(name)}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                left.append(f"{name} did not end within {STOP_SECONDS} s of SIGTERM and was killed")
            process.stdout.close()
        shutil.rmtree(self._logs, ignore_errors=True)
        return left

    def _start_all(self) -> None:
        arguments = ["broker", "--listen", f"{self._host}:0", "--store", self._store, *self._broker_arguments]
        self.url = self._start("broker", arguments)[1]
        for number in range(1, self._node_count + 1):
            self.start_node(number)

    def _start(self, name: str, arguments: list[str]) -> list[str]:
        """Starts a process and returns the words of its "ready" line."""
        with self._log_path(name).open("wb") as log:
            # A process session of its own, so that Ctrl-C does not end the pool while the query runs.
            process = subprocess.Popen(
                [self._binary, *arguments], stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
            )
        self._processes[name] = process
        line = read_line(process, READY_SECONDS)
        if not line.startswith("ready "):
            raise RuntimeError(f"{name} did not report that it is ready, but printed '{line}': {self._log_tail(name)}")
        return line.split()

    def _log_path(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _log_tail(self, name: str) -> str:
        return self._log_path(name).read_text(errors="replace").strip()[-1000:] or "it logged nothing"


def read_line(process: subprocess.Popen[bytes], timeout_seconds: float) -> str:
    """Returns the next line of an unbuffered process, or the part of it that came before its end or the timeout."""
    line = b""
    deadline = time.monotonic() + timeout_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(deadline - time.monotonic(), 0)):
            byte = process.stdout.read(1)
            if not byte:
                break
            line += byte
    return line.decode(errors="replace").strip()
