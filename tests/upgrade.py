#!/usr/bin/env python3
"""Runs the farpool command of an earlier commit together with this one: in all roles, and through a rolling upgrade.

    make upgrade-test                    # builds the earlier command, and runs both parts
    tests/upgrade.py --old OLD --new NEW         # etcd is FARPOOL_ETCD, or the installed one

Part 1 starts a broker and a node, each of either version, mounts a folder by a command of either version, writes a file
there, and compares what it reads. A function that one version has stored is listed by both. Part 2 upgrades three
brokers and three nodes one by one while DuckDB runs queries that spill, with mirrors: a broker is stopped and started
anew, a node is drained and another takes its place. The Python module is this version's. Needs root, for the mounts.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb

import farpool
import farpool.duckdb

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench" / "brokers"), str(ROOT / "engines" / "python" / "tests")]
from local import Etcd, free_port, wait  # noqa: E402
from spilling import answer_in_memory, spilling_query  # noqa: E402

START_SECONDS = 120
END_SECONDS = 120
FILE_BYTES = 32 << 20
FUNCTION = ROOT / "examples" / "functions" / "sum_all.wat"


class Process:
    """A command that says `ready` and then runs until it is told to end."""

    def __init__(self, binary: str, *arguments: str):
        self.command = [binary, *arguments]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log)
        alarm = threading.Timer(START_SECONDS, self.process.kill)
        alarm.start()
        line = self.process.stdout.readline().decode()
        alarm.cancel()
        if not line.startswith("ready "):
            self.log.seek(0)
            sys.exit(f"{' '.join(self.command)} printed {line!r} and {self.log.read().decode()[-2000:]}")
        self.ready = line.split()[1]

    def end(self) -> int:
        """Ends the process and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_SECONDS)
        self.process.stdout.close()
        return code


def output(*command: str) -> str:
    """Runs a command and returns its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def mixed(versions: dict[str, str]) -> None:
    """Runs broker, node and client of all combinations of versions."""
    data = os.urandom(1 << 20) * (FILE_BYTES >> 20)
    for broker_is, node_is, client_is in itertools.product(versions, repeat=3):
        broker = Process(versions[broker_is], "broker", "--listen", "127.0.0.1:0")
        node = Process(
            versions[node_is], "node", "--name", "n1", "--memory", "256MiB", "--no-reserve", "--broker", broker.ready
        )
        for transport in ("tcp", "shm"):
            with tempfile.TemporaryDirectory() as folder:
                mount = Process(
                    versions[client_is], "mount", "scratch", folder, "--pool", broker.ready, "--transport", transport
                )
                file = Path(folder, "file")
                file.write_bytes(data)
                # Read past the kernel's page cache.
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    found = hashlib.sha256(opened.read()).digest()
                assert found == hashlib.sha256(data).digest(), f"wrong bytes over {transport}"
                assert mount.end() == 0
        assert "n1" in output(versions[client_is], "status", "--pool", broker.ready)
        # A published file is read by clients of both versions, whichever published it. What it means is not known to
        # old ones if new ones store a function.
        pool = ("--json", "--pool", broker.ready)
        pushed = json.loads(output(versions[client_is], "fn", "push", "sum", str(FUNCTION), *pool))
        for reader_is, reader in versions.items():
            [listed] = json.loads(output(reader, "fn", "list", *pool))["functions"]
            is_known = client_is == "old" or reader_is == "new"
            assert pushed["sha256"].startswith(listed["sha256"]) and listed["bytes"] > 0, (pushed, listed)
            assert bool(listed["sha256"]) == is_known, (pushed, listed)
        assert node.end() == 0 and broker.end() == 0
        print(
            f"broker {broker_is}, node {node_is}, client {client_is}: {2 * FILE_BYTES >> 20} MiB compared", flush=True
        )


class Queries:
    """Runs a query that spills again and again, until `end` is called."""

    def __init__(self, url: str, rows: int):
        self.expected, self.rows, self.url = answer_in_memory(rows), rows, url
        self.done, self.failures, self.is_over = 0, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        with farpool.connect(self.url, protection="mirror", timeout="60s") as pool:
            while not self.is_over:
                try:
                    with duckdb.connect(config={"threads": 2, "memory_limit": "100MB"}) as con:
                        farpool.duckdb.attach(con, pool, protection="mirror")
                        if con.execute(spilling_query(self.rows)).fetchall() != self.expected:
                            self.failures.append("wrong rows")
                except (duckdb.Error, farpool.Error) as error:
                    self.failures.append(str(error))
                self.done += 1
            self.spilled_bytes = pool.stats()["bytes_written"]

    def more(self, count: int) -> None:
        """Waits until so many further queries have ended."""
        until = self.done + count
        wait(lambda: self.done >= until or self.failures, 600, f"{count} further queries")

    def end(self) -> None:
        self.is_over = True
        self.thread.join()


def rolling(old: str, new: str, rows: int) -> None:
    """Upgrades a pool process by process while queries run."""
    etcd = Etcd()
    ports = [free_port() for _ in range(3)]
    url = "farpool://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def broker(binary: str, port: int) -> Process:
        return Process(
            binary, "broker", "--listen", f"127.0.0.1:{port}", "--store", etcd.url, "--failover-timeout", "2s"
        )

    def node(binary: str, name: str) -> Process:
        host = ("--host-label", f"host-{name}")
        return Process(binary, "node", "--name", name, "--memory", "1GiB", "--no-reserve", *host, "--broker", url)

    def leads() -> bool:
        with farpool.connect(url, protection="none", timeout="5s") as pool:
            return len(pool.status()["nodes"]) > 0

    try:
        wait(etcd.is_whole, 60, "etcd has a leader")
        brokers = [broker(old, port) for port in ports]
        nodes = {name: node(old, name) for name in ("a", "b", "c")}
        wait(leads, 60, "a broker leads and knows nodes")
        kept = random.Random(7).randbytes(64 << 20)
        with farpool.connect(url) as pool:
            with pool.create("kept", file_class="pinned", protection="none") as file:
                file.write_at(0, kept)
            pool.publish("kept")
        queries = Queries(url, rows)
        try:
            queries.more(1)
            for at, port in enumerate(ports):
                brokers[at].end()
                brokers[at] = broker(new, port)
                wait(leads, 60, "a broker leads")
                queries.more(1)
                print(
                    f"broker {at + 1} of 3 is new: {queries.done} queries, {len(queries.failures)} failed", flush=True
                )
            for at, name in enumerate(list(nodes)):
                # The next node joins before the old one leaves, so that a mirror always finds two hosts.
                nodes[f"{name}2"] = node(new, f"{name}2")
                drained = subprocess.run(
                    [new, "drain", name, "--pool", url], capture_output=True, text=True, timeout=600
                )
                assert drained.returncode == 0, drained.stderr
                left = nodes.pop(name)
                assert left.process.wait(END_SECONDS) == 0
                queries.more(1)
                print(f"node {at + 1} of 3 is new: {queries.done} queries, {len(queries.failures)} failed", flush=True)
        finally:
            queries.end()
        with farpool.connect(url) as pool, pool.open("kept") as file:
            assert file.read_at(0, len(kept)) == kept, "the published file has other bytes"
        print(f"{queries.done} queries spilled {queries.spilled_bytes >> 20} MiB, {len(queries.failures)} failed")
        for process in [*nodes.values(), *brokers]:
            process.end()
        if queries.failures:
            sys.exit("\n".join(queries.failures[:5]))
    finally:
        etcd.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="the farpool command of an earlier version")
    parser.add_argument("--new", required=True, help="the farpool command of this version")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows that each query sorts [default: 2000000]")
    args = parser.parse_args()
    begun = time.monotonic()
    mixed({"old": args.old, "new": args.new})
    rolling(args.old, args.new, args.rows)
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
