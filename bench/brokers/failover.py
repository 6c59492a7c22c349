#!/usr/bin/env python3
"""Measures how long a pool has no leader, what clients notice, and how soon a new leader knows all regions.

    bench/brokers/failover.py        # 50 kills, 10 machines stopped, 5 minutes without any broker, 10,000 regions
    bench/brokers/failover.py --kills 5 --machines 2 --gone 10 --regions 1000

An etcd cluster of three members, three brokers and two nodes run on loopback. A client in this process moves data all
the time.

1. The leading broker is killed (SIGKILL), and the time until the client has an answer from another leader is measured.
   Then the killed broker is started again.
2. The same for a machine that stops, as far as loopback permits: the leading broker and the leading member of etcd are
   stopped (SIGSTOP) at once.
3. All brokers are killed, and data still moves.
4. The leader is killed while clients have leased many regions of one node. The time until another leader's status shows
   all of these regions is measured.
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import threading
import time
import urllib.request
from statistics import median

from local import Etcd, Farpool, free_port, quantile, wait

import farpool

MIB = 1 << 20


class Load:
    """Writes and reads a far file, and compares each read, until `end` is called."""

    def __init__(self, pool: farpool.Pool):
        self.file = pool.create("load")
        self.file.write_at(0, bytes(2 * MIB))
        self.operations, self.failures, self.is_over = 0, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.is_over:
            offset = self.operations * 8192 % (2 * MIB)
            written = self.operations.to_bytes(8, "little") * 1024
            try:
                self.file.write_at(offset, written)
                if bytes(self.file.read_at(offset, len(written))) != written:
                    self.failures.append("wrong bytes")
            except farpool.Error as error:
                self.failures.append(str(error))
            self.operations += 2
            time.sleep(0.001)

    def end(self) -> None:
        self.is_over = True
        self.thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--machines", type=int, default=10, help="times that both leaders stop at once")
    parser.add_argument("--gone", type=float, default=300, help="seconds without any broker")
    parser.add_argument(
        "--regions", type=int, default=10_000, help="regions of 1 MiB that are leased while the leader is killed"
    )
    parser.add_argument("--json", help="also write the results to this file, as JSON")
    args = parser.parse_args()
    etcd = Etcd()
    ports = [free_port() for _ in range(3)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    url = "farpool://" + ",".join(addresses)
    # A broker is ready before its cluster is. Until then it is a standby.
    brokers = [Farpool("broker", "--listen", address, "--store", etcd.url, "--ttl", "3s") for address in addresses]
    sizes = [("n0", "256MiB"), ("n1", f"{args.regions + 256}MiB")]
    nodes = [
        Farpool(
            "node",
            "--name",
            name,
            "--memory",
            size,
            "--region-size",
            "1MiB",
            "--broker",
            url,
            "--no-reserve",
            "--no-lock",
            "--no-prefault",
            "--no-shm",
            "--host-label",
            name,
        )
        for name, size in sizes
    ]

    def leader() -> int:
        """Returns the leading broker, according to etcd."""
        found = []

        def look() -> bool:
            key = {"key": base64.b64encode(b"farpool/leader").decode()}
            request = urllib.request.Request(f"http://{etcd.members[0]}/v3/kv/range", json.dumps(key).encode())
            with urllib.request.urlopen(request, timeout=5) as answer:
                value = base64.b64decode(json.load(answer)["kvs"][0]["value"]).decode()
            at = addresses.index(value.splitlines()[0])
            if brokers[at].process:
                found.append(at)
            return bool(found)

        wait(look, 60, "a leader")
        return found[0]

    try:
        wait(lambda: farpool.connect(url, timeout="1s").close() or True, 60, "the pool")
        pool = farpool.connect(url, transport="tcp", protection="none", timeout="1s")
        load = Load(pool)
        times = []
        for number in range(args.kills):
            at = leader()
            term = pool.status()["term"]
            brokers[at].kill()
            times.append(wait(lambda before=term: pool.status()["term"] > before, 60, "another leader"))
            brokers[at].start()
            print(f"kill {number + 1}: {times[-1]:.2f} s", flush=True)
        machines = []
        for number in range(args.machines):
            stopped = [brokers[leader()].process, etcd.processes[etcd.leader()]]
            term = pool.status()["term"]
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            machines.append(wait(lambda before=term: pool.status()["term"] > before, 60, "another leader"))
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            print(f"machine {number + 1}: {machines[-1]:.2f} s", flush=True)
            # All three members must be healthy before one is stopped.
            wait(etcd.is_whole, 60, "all members of etcd")
        for broker in brokers:
            broker.kill()
        before, failed_before = load.operations, len(load.failures)
        time.sleep(args.gone)
        gone = (load.operations - before, len(load.failures) - failed_before)
        for broker in brokers:
            broker.start()
        wait(lambda: pool.status()["nodes"], 60, "a leader again")
        holder = farpool.connect(url, transport="tcp", protection="none", reserve=args.regions * MIB)
        held = args.regions * MIB
        wait(lambda: pool.status()["leased_bytes"] >= held, 60, "all regions in the inventory")
        term, at = pool.status()["term"], leader()
        brokers[at].kill()
        without = wait(lambda: pool.status()["term"] > term, 60, "another leader")
        rebuilt = wait(lambda: pool.status()["leased_bytes"] >= held, 60, "all regions in the new leader's inventory")
        holder.close()
        load.end()
        pool.close()
    finally:
        for process in brokers + nodes:
            process.kill()
        etcd.close()
    figures = {
        "kills": args.kills,
        "without a leader, s": {"median": median(times), "p99": quantile(times, 0.99), "most": max(times)},
        "machines": args.machines,
        "both leaders stopped, s": {"median": median(machines or [0]), "most": max(machines, default=0)},
        "without any broker, s": args.gone,
        "operations meanwhile": gone[0],
        "of them failed": gone[1],
        "operations in all": load.operations,
        "failed in all": len(load.failures),
        "regions": args.regions,
        "known to the new leader after, s": rebuilt,
        "after the kill, s": without + rebuilt,
    }
    for what, value in figures.items():
        print(f"{what:34} {value}")
    for failure in load.failures[:5]:
        print(f"failure: {failure}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
