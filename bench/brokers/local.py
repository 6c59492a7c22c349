"""Starts processes on this machine's loopback: members of an etcd cluster, brokers for failover, nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache" / "farpool" / "target"))
FARPOOL = os.environ.get("FARPOOL_BIN", str(TARGET / "release" / "farpool"))
ETCD = os.environ.get("FARPOOL_ETCD") or shutil.which("etcd") or "etcd"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Etcd:
    """A running etcd cluster. `close` ends it."""

    def __init__(self, count: int = 3):
        self.folder = Path(tempfile.mkdtemp(prefix="farpool-etcd-"))
        ports = [(free_port(), free_port()) for _ in range(count)]
        self.members = [f"127.0.0.1:{clients}" for clients, _ in ports]
        cluster = ",".join(f"e{at}=http://127.0.0.1:{peers}" for at, (_, peers) in enumerate(ports))
        self.processes = []
        for at, (clients, peers) in enumerate(ports):
            clients_url, peers_url = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
            command = [ETCD, "--name", f"e{at}", "--data-dir", str(self.folder / f"e{at}"), "--log-level", "error"]
            command += ["--listen-client-urls", clients_url, "--advertise-client-urls", clients_url]
            command += ["--listen-peer-urls", peers_url, "--initial-advertise-peer-urls", peers_url]
            command += ["--initial-cluster", cluster, "--initial-cluster-state", "new"]
            log = (self.folder / f"e{at}.log").open("wb")
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(self.members)

    def leader(self) -> int:
        """Returns the index of the member that leads."""
        for at, member in enumerate(self.members):
            request = urllib.request.Request(f"http://{member}/v3/maintenance/status", b"{}")
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=1) as answer:
                status = json.load(answer)
                if status.get("leader") == status["header"]["member_id"]:
                    return at
        raise RuntimeError("no member of the cluster leads")

    def is_whole(self) -> bool:
        """Reports whether each member knows a leader and has applied all committed entries."""
        for member in self.members:
            with urllib.request.urlopen(f"http://{member}/health", timeout=1) as answer:
                if json.load(answer)["health"] != "true":
                    return False
        return True

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Farpool:
    """A broker or a node. `kill` ends it."""

    def __init__(self, *arguments: str):
        self.arguments = arguments
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        command = [FARPOOL, *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            sys.exit(f"{' '.join(command)} printed {line!r}")

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def quantile(values: list[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, min(len(values), -int(-len(values) * share // 1)) - 1)] if values else float("nan")


def wait(until, seconds: float, what: str) -> float:
    """Calls `until` until it is true, and returns the seconds that this took. An exception counts as false."""
    begun = time.monotonic()
    while True:
        try:
            if until():
                return time.monotonic() - begun
        except Exception as error:
            last = error
        else:
            last = None
        if time.monotonic() - begun > seconds:
            sys.exit(f"not within {seconds} s: {what} ({last})")
        time.sleep(0.01)
