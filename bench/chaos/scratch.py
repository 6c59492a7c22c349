#!/usr/bin/env python3
"""Runs brokers, nodes and clients as real processes, each host a network namespace, under constant faults.

    make chaos                          # 20 minutes
    make chaos CHAOS="--minutes 2 --seed 7"

Three hosts have an etcd member and a broker each, four have a node, and two have clients. There are four kinds of
clients:

- DuckDB spills into the pool, with a mirror. Every answer is compared.
- A client writes and reads files, with a mirror. Every byte is compared.
- Ghosts lease memory, are stopped until their leases have ended by the clock of every host, and then use their old
  rights at a node.
- Victims are killed while they write.

Meanwhile brokers, members, nodes and clients are killed (SIGKILL) or stopped (SIGSTOP) for longer than a lease, their
hosts are cut off, and the disks of brokers are filled. Only one node and one broker's host have a fault at a time. The
next node gets a fault when the lost copies of the last one are repaired. A mirror and a cluster of three must survive
that.

Needs root, ip (Debian: iproute2), etcd (FARPOOL_ETCD), the farpool command (FARPOOL_BIN), the `zombie` program of the
tests beside it, and the wheel. All hosts are on one machine: the faults are real, the networks are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from hosts import FARPOOL, KINDS, Machines, Server

ZOMBIE = str(Path(FARPOOL).with_name("zombie"))
TTL_S, GRACE_S = 3, 1
GHOST_TRIES = 2_000
ROWS = 250_000
UNPROTECTED = "unprotected bytes"
FAILURES_SHOWN = 20
MIB = 1 << 20


class Pool(Machines):
    """The processes of a pool, and the counters of the run."""

    def __init__(self, seed: int):
        super().__init__(
            seed,
            nodes=4,
            clients=2,
            ttl_seconds=TTL_S,
            grace_seconds=GRACE_S,
            has_shm=False,
            node_arguments=["--memory", "768MiB", "--region-size", "1MiB"],
        )
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        # Bytes of which only one copy is left, by kind of client. These clients must not notice a fault.
        self.unprotected: dict[str, int] = {}

    def count(self, what: str, times: int = 1) -> None:
        with self.lock:
            self.counts[what] += times

    def fail(self, what: str) -> None:
        with self.lock:
            self.failures.append(what)
            if len(self.failures) <= FAILURES_SHOWN:
                print(f"failure: {what}", file=sys.stderr)

    # Each of these methods causes faults, one after the other, until the run is over.

    def _befall(self, server: Server, name: str) -> None:
        kind = self.random.choice(KINDS)
        self.fault(f"{name} {kind}")
        self.befall(server, kind)

    def trouble_nodes(self) -> None:
        while not self.over.is_set():
            self._befall(self.random.choice(self.nodes), "node")
            # Time for clients to notice a lost copy and repair it, before the next fault.
            self.rest(7.0, 9.0)
            while any(self.unprotected.values()) and not self.over.is_set():
                self.rest(0.2, 0.3)

    def trouble_brokers(self) -> None:
        while not self.over.is_set():
            at = self.random.randrange(3)
            match self.random.randrange(4):
                case 0:
                    self.fill(at)
                case 1:
                    self._befall(self.members[at], "etcd member")
                case _:
                    self._befall(self.brokers[at], "broker")
            self.await_members()
            self.rest(0.2, 1.0)

    def fill(self, at: int) -> None:
        """Fills a broker's disk for a while."""
        self.fault("disk full")
        ballast = self.folder / f"disk{at}" / "ballast"
        try:
            with ballast.open("wb") as file:
                while True:
                    file.write(bytes(MIB))
        except OSError:
            pass
        self.rest(0.5, 4.0)
        ballast.unlink(missing_ok=True)
        if self.members[at].has_ended():
            self.members[at].start()

    def trouble_clients(self) -> None:
        """Cuts clients off from the pool for moments, and kills clients."""
        while not self.over.is_set():
            if self.random.randrange(2):
                host = self.hosts[self.random.choice(["c0", "c1"])]
                self.fault("client cut off")
                host.set_isolated(True)
                self.rest(0.1, 0.4 * TTL_S)
                host.set_isolated(False)
            else:
                victim = self.client("victim", "c1", stdout=subprocess.DEVNULL)
                self.rest(0.8, 2.0)
                self.fault("client killed")
                victim.kill()
                victim.wait()
            self.rest(0.5, 2.0)

    def client(self, kind: str, host: str, **more) -> subprocess.Popen:
        command = [sys.executable, __file__, "--client", kind, "--url", self.url]
        return self.hosts[host].start(*command, log=self.folder / f"{kind}.log", stdin=subprocess.PIPE, **more)

    def haunt(self) -> None:
        """Runs ghosts, one after the other."""
        environment = {**os.environ, "ZOMBIE_PLAINTEXT": "1"}
        brokers = self.url.removeprefix("farpool://")
        while not self.over.is_set():
            order = ["ghost", "tcp", brokers, "/dev/null", "4", str(int(GRACE_S * 1000)), str(GHOST_TRIES)]
            ghost = self.hosts["c1"].start(
                ZOMBIE, *order, log=self.folder / "ghost.log", stdout=subprocess.PIPE, env=environment
            )
            if ghost.stdout.readline().strip() != "leased":
                # Its node or its broker had a fault before the ghost had its lease.
                ghost.kill()
                ghost.wait()
                self.count("ghosts that could not begin")
                continue
            self.rest(0.0, 0.5)
            self.fault("client stopped")
            ghost.send_signal(signal.SIGSTOP)
            time.sleep(TTL_S + GRACE_S + 0.5)
            ghost.send_signal(signal.SIGCONT)
            for line in ghost.stdout:
                words = line.split(maxsplit=2)
                if words[0] == "count":
                    self.count(words[2].strip(), int(words[1]))
            ghost.wait()

    def work(self, kind: str, host: str) -> None:
        """Runs a client that must not notice any fault. It ends when its standard input ends."""
        client = self.client(kind, host, stdout=subprocess.PIPE)
        threading.Thread(target=lambda: (self.over.wait(), client.stdin.close()), daemon=True).start()
        for line in client.stdout:
            told = json.loads(line)
            if told["what"] == UNPROTECTED:
                self.unprotected[kind] = told["times"]
                continue
            self.count(told["what"], told["times"])
            if told.get("text"):
                self.fail(f"{told['what']}: {told['text']}")
        if client.wait() != 0:
            self.fail(f"client {kind} ended with {client.returncode}; see {self.folder / (kind + '.log')}")


def say(what: str, times: int, text: str = "") -> None:
    # A single write, because two threads of a client print.
    sys.stdout.write(json.dumps({"what": what, "times": times, "text": text}) + "\n")
    sys.stdout.flush()


def connect(url: str):
    import farpool

    pool = farpool.connect(url, transport="tcp", plaintext=True, protection="mirror")

    def tell() -> None:
        while True:
            say(UNPROTECTED, pool.stats()["unprotected_bytes"])
            time.sleep(0.25)

    threading.Thread(target=tell, daemon=True).start()
    return pool


def is_over() -> bool:
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


def spilling_client(url: str) -> None:
    import duckdb

    import farpool.duckdb

    query = f"""
    SELECT sum(place * (weight % 1000)), max(length(padding))
    FROM (SELECT row_number() OVER (ORDER BY weight, padding) AS place, weight, padding
          FROM (SELECT hash(i) AS weight, repeat('y', 40) || hash(i + 1) AS padding FROM range({ROWS}) t(i)))
    """
    with duckdb.connect(config={"temp_directory": ""}) as con:
        wanted = con.execute(query).fetchall()
    pool = connect(url)
    while not is_over():
        before = pool.stats()["bytes_written"]
        with duckdb.connect(config={"memory_limit": "40MB", "threads": 1, "preserve_insertion_order": "false"}) as con:
            try:
                farpool.duckdb.attach(con, pool)
                found = con.execute(query).fetchall()
            except Exception as error:
                say("queries that failed", 1, str(error)[:500])
                continue
        say("queries", 1)
        say("bytes spilled", pool.stats()["bytes_written"] - before)
        if found != wanted:
            say("wrong answers", 1, f"{found} and not {wanted}")
    pool.close()


def writing_client(url: str) -> None:
    pool = connect(url)
    chance = random.Random(1)
    block, blocks, files = 64 << 10, 64, 4
    held = [pool.create(f"file {at}") for at in range(files)]
    stamps = [[None] * blocks for _ in range(files)]
    done, stamp = 0, 0
    while not is_over():
        for _ in range(64):
            file, at = chance.randrange(files), chance.randrange(blocks)
            try:
                if stamps[file][at] is None or chance.randrange(2):
                    stamp += 1
                    held[file].write_at(at * block, stamp.to_bytes(8, "little") * (block // 8))
                    stamps[file][at] = stamp
                else:
                    found = bytes(held[file].read_at(at * block, block))
                    if found != stamps[file][at].to_bytes(8, "little") * (block // 8):
                        say(
                            "wrong bytes",
                            1,
                            f"block {at} of file {file}: {found[:8]!r}, {stamps[file][at]} was written",
                        )
            except Exception as error:
                say("operations that failed", 1, str(error)[:500])
                # The file is deleted, so that its loss counts once.
                pool.delete(held[file].name)
                held[file], stamps[file] = pool.create(f"file {stamp} instead"), [None] * blocks
            done += 1
        say("file operations", done)
        done = 0
    pool.close()


def victim_client(url: str) -> None:
    pool = connect(url)
    file = pool.create("victim")
    while True:
        file.write_at(0, bytes(4 * MIB))


def leaked_bytes(url: str) -> int:
    """Returns the bytes that are still leased after all clients have been gone for so long that nothing may be."""
    import farpool

    with farpool.connect(url, transport="tcp", plaintext=True, timeout="5s") as pool:
        return pool.status()["leased_bytes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None, help="seed for the choice of faults [default: the time]")
    parser.add_argument("--json", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        {"spilling": spilling_client, "writing": writing_client, "victim": victim_client}[args.client](args.url)
        return 0
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    seed = args.seed if args.seed is not None else int(time.time())
    with Pool(seed) as pool:
        works = [threading.Thread(target=pool.work, args=one) for one in (("spilling", "c0"), ("writing", "c1"))]
        troubles = [pool.trouble_nodes, pool.trouble_brokers, pool.trouble_clients, pool.haunt, pool.haunt]
        troubles = [threading.Thread(target=one) for one in troubles]
        for thread in works + troubles:
            thread.start()
        begun = time.monotonic()
        while (left := args.minutes * 60 - (time.monotonic() - begun)) > 0:
            time.sleep(min(left, 30))
            with pool.lock:
                faults, queries, failures = sum(pool.faults.values()), pool.counts["queries"], len(pool.failures)
            print(f"{left:5.0f} s left: {faults} faults, {queries} queries, {failures} failures", file=sys.stderr)
        pool.over.set()
        for thread in troubles + works:
            thread.join()
        pool.restart()
        time.sleep(TTL_S + GRACE_S + 1)
        leaked = leaked_bytes(pool.url)
        accepted = sum(times for what, times in pool.counts.items() if what.startswith("wrong: "))
        pool.is_good = not (pool.failures or accepted or leaked)
    counts, faults = pool.counts, pool.faults
    stale = {what: times for what, times in counts.items() if what.startswith("stale")}
    figures = {
        "minutes": args.minutes,
        "seed": seed,
        "faults": dict(sorted(faults.items())),
        "faults in all": sum(faults.values()),
        "queries": counts["queries"],
        "queries that failed": counts["queries that failed"],
        "wrong answers": counts["wrong answers"],
        "bytes spilled": counts["bytes spilled"],
        "file operations": counts["file operations"],
        "operations that failed": counts["operations that failed"],
        "wrong bytes": counts["wrong bytes"],
        "stale operations tried": sum(stale.values()) + accepted,
        "stale operations": stale,
        "stale operations accepted": accepted,
        "leaked bytes": leaked,
    }
    for what, value in figures.items():
        print(f"{what:28} {value}")
    if args.json:
        args.json.write_text(json.dumps({**figures, "failures": pool.failures}, indent=1))
    return 0 if pool.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
