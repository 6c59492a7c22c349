"""A pool whose brokers, nodes and clients are real processes, each host a network namespace of this machine.

Needs root, ip (Debian: iproute2), etcd (FARPOOL_ETCD), the farpool command (FARPOOL_BIN) and the wheel.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache" / "farpool" / "target"))
FARPOOL = os.environ.get("FARPOOL_BIN", str(TARGET / "release" / "farpool"))
ETCD = os.environ.get("FARPOOL_ETCD") or shutil.which("etcd") or "etcd"
PREFIX = "10.204.0."
BROKERS = 3
START_SECONDS = 60
# Seconds until a pool must have all copies again.
REPAIR_SECONDS = 180
KINDS = ("killed", "stopped", "cut off")


def run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


class Host:
    """A network namespace on a bridge of this machine."""

    def __init__(self, bridge: str, name: str, number: int):
        self.name, self.address = f"{bridge}-{name}", f"{PREFIX}{number}"
        self.way = f"{bridge}{number}"
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.way, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", self.way, "master", bridge, "up")
        for command in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            run("ip", "-n", self.name, *command)
        run("ip", "-n", self.name, "link", "set", "lo", "up")

    def start(self, *command: str, log: Path, **more) -> subprocess.Popen:
        with log.open("ab") as err:
            return subprocess.Popen(["ip", "netns", "exec", self.name, *command], stderr=err, text=True, **more)

    def set_isolated(self, is_isolated: bool) -> None:
        run("ip", "link", "set", self.way, "down" if is_isolated else "up", check=False)

    def remove(self) -> None:
        run("ip", "netns", "del", self.name, check=False)


class Server:
    """A process that is restarted when it ends."""

    def __init__(self, host: Host, command: list[str], log: Path):
        self.host, self.command, self.log = host, command, log
        self.process: subprocess.Popen | None = None

    @property
    def name(self) -> str:
        """Name of the host, which is that of a node as well."""
        return self.host.name.split("-")[1]

    def start(self) -> None:
        self.process = self.host.start(*self.command, log=self.log, stdout=subprocess.DEVNULL)

    def send(self, number: int) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


class Machines:
    """Brokers with etcd members, nodes and hosts for clients, under faults. A context manager; leaving it ends all
    processes. Their output stays in `folder` unless `is_good` is set."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        clients: int,
        ttl_seconds: int,
        grace_seconds: int,
        has_shm: bool,
        node_arguments: Sequence[str],
    ):
        self.folder = Path(tempfile.mkdtemp(prefix="farpool-chaos-"))
        self.random = random.Random(seed)
        self.ttl_seconds, self.grace_seconds = ttl_seconds, grace_seconds
        self.faults: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.is_good = False
        # Incarnation of each node when all copies were last there, and the nodes that have started again since.
        self.lives: dict[str, str] = {}
        self.restarted: set[str] = set()
        self.bridge = f"fpc{os.getpid() % 10_000}"
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{PREFIX}254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        names = [f"{kind}{at}" for kind, count in (("b", BROKERS), ("n", nodes), ("c", clients)) for at in range(count)]
        self.hosts = {name: Host(self.bridge, name, at + 1) for at, name in enumerate(names)}
        brokers = [self.hosts[f"b{at}"] for at in range(BROKERS)]
        self.url = "farpool://" + ",".join(f"{host.address}:7700" for host in brokers)
        self.members = [self._member(at, brokers) for at in range(BROKERS)]
        self.brokers = [self._broker(at, brokers) for at in range(BROKERS)]
        shm = ["--shm-dir", str(self.folder)] if has_shm else ["--no-shm"]
        self.nodes = [self._node(at, [*node_arguments, *shm]) for at in range(nodes)]

    def __enter__(self) -> Machines:
        try:
            for server in self.members + self.brokers + self.nodes:
                server.start()
            self.await_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for server in self.brokers + self.nodes + self.members:
            server.send(signal.SIGCONT)
            server.kill()
        for host in self.hosts.values():
            host.remove()
        run("ip", "link", "del", self.bridge, check=False)
        for at in range(BROKERS):
            run("umount", str(self.folder / f"disk{at}"), check=False)
        if self.is_good:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"the output of the processes is in {self.folder}")

    def _member(self, at: int, brokers: list[Host]) -> Server:
        disk = self.folder / f"disk{at}"
        disk.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk))
        clients, peers = f"http://{brokers[at].address}:2379", f"http://{brokers[at].address}:2380"
        command = [ETCD, "--name", f"e{at}", "--data-dir", str(disk / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", ",".join(f"e{at}=http://{one.address}:2380" for at, one in enumerate(brokers))]
        # The default since etcd 3.5. Otherwise a member that was cut off ends the lead of another one when it is back.
        command += ["--initial-cluster-state", "new", "--pre-vote"]
        return Server(brokers[at], command, self.folder / f"etcd{at}.log")

    def _broker(self, at: int, brokers: list[Host]) -> Server:
        store = "etcd://" + ",".join(f"{host.address}:2379" for host in brokers)
        command = [FARPOOL, "broker", "--listen", f"{brokers[at].address}:7700", "--plaintext", "--store", store]
        command += ["--ttl", f"{self.ttl_seconds}s", "--grace", f"{self.grace_seconds}s"]
        return Server(brokers[at], command, self.folder / f"broker{at}.log")

    def _node(self, at: int, arguments: Sequence[str]) -> Server:
        host = self.hosts[f"n{at}"]
        command = [FARPOOL, "node", "--name", f"n{at}", "--host-label", f"host{at}", "--broker", self.url]
        command += ["--listen", f"{host.address}:7800", "--plaintext", "--no-lock", "--no-reserve", *arguments]
        return Server(host, command, self.folder / f"node{at}.log")

    def await_nodes(self) -> None:
        """Waits until all nodes are up. Ends the program if they are not within 60 s."""
        import farpool

        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                with farpool.connect(self.url, transport="tcp", plaintext=True) as session:
                    if len(session.status()["nodes"]) == len(self.nodes):
                        return
            except farpool.Error:
                pass
            time.sleep(0.2)
        sys.exit(f"the pool did not start within {START_SECONDS} s; its logs are in {self.folder}")

    def restart(self) -> None:
        """Starts the processes that have ended, and waits until all nodes are up."""
        for server in self.members + self.brokers + self.nodes:
            if server.has_ended():
                server.start()
        self.await_nodes()

    def fault(self, what: str) -> None:
        with self.lock:
            self.faults[what] += 1

    def rest(self, least: float, most: float) -> None:
        self.over.wait(self.random.uniform(least, most))

    def befall(self, server: Server, kind: str) -> None:
        """Kills, stops or cuts off a process for a while."""
        match kind:
            case "killed":
                if server in self.nodes:
                    self.restarted.add(server.name)
                server.kill()
                self.rest(0.2, 2.0)
            case "stopped":
                server.send(signal.SIGSTOP)
                self.rest(0.2, 2 * (self.ttl_seconds + self.grace_seconds))
                server.send(signal.SIGCONT)
            case _:
                server.host.set_isolated(True)
                self.rest(0.2, 1.5 * self.ttl_seconds)
                server.host.set_isolated(False)
        if server.has_ended():
            server.start()

    def leader(self) -> Server:
        """Returns the broker that became leader last, by its log."""

        def when(at: int) -> str:
            lines = (self.folder / f"broker{at}.log").read_text(errors="replace").splitlines()
            # A line begins with its timestamp, and may not be complete yet.
            return max((line.split('"')[3] for line in lines if '"event":"leader"' in line), default="")

        return self.brokers[max(range(len(self.brokers)), key=when)]

    def farpool(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [FARPOOL, *words, "--pool", self.url, "--plaintext"]
        return subprocess.run(command, capture_output=True, text=True)

    def status(self) -> dict | None:
        """Returns the state of the pool, or None while no broker answers."""
        done = self.farpool("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def await_copies(self) -> str:
        """Waits until the leader has heard of all nodes, and all copies are there. Returns what is missing after 180 s,
        as text. The leader must know that a node has started again: until then it counts the copies that the node
        had."""
        until = time.monotonic() + REPAIR_SECONDS
        while time.monotonic() < until:
            if status := self.status():
                repairs = status["repairs"]
                missing = repairs["lost_files"] + repairs["endangered_files"] + repairs["leaving_files"]
                lives = {node["name"]: node["incarnation"] for node in status["nodes"] if node["alive"]}
                knows = all(lives.get(name) != self.lives.get(name) for name in self.restarted)
                if not missing and len(lives) == len(self.nodes) and knows:
                    self.lives = lives
                    self.restarted.clear()
                    return ""
            time.sleep(0.1)
        return f"copies are missing after {REPAIR_SECONDS} s: {status and status['repairs']}"

    def await_members(self) -> None:
        """Waits until all members are healthy: two of three must keep running at the next fault."""
        while not self.over.is_set() and not all(self.is_healthy(member) for member in self.members):
            self.rest(0.1, 0.2)

    def is_healthy(self, member: Server) -> bool:
        """Reports whether a member knows a leader and has applied all committed entries."""
        if member.has_ended():
            member.start()
        try:
            with urllib.request.urlopen(f"http://{member.host.address}:2379/health", timeout=1) as answer:
                return json.load(answer)["health"] == "true"
        except OSError:
            return False
