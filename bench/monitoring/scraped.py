"""Measures `farpool bench io` while the metrics of broker and node are scraped every second, beside without.

    scraped.py --farpool PROGRAM [--rounds 10] [--seconds 2] [--size 512MiB]

Broker and node are the same processes all the time. Rounds with and without scrapes alternate, so that a slow change of
the machine meets both. Each line shows the median throughput of both, and the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

ACCESSES = "8k-read,8k-write,512k-read,512k-write"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """Runs a server, and yields it with the address that it prints when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        if not line.startswith("ready "):
            sys.exit(f"{' '.join(command)} said {line!r}")
        yield process, line.split()[1]
    finally:
        process.kill()
        process.wait()


@contextmanager
def scraped(ports: list[int], counts: list[int]) -> Iterator[None]:
    """Scrapes every second, as Prometheus does, and appends how often."""
    ended = threading.Event()
    scrapes = 0

    def run() -> None:
        nonlocal scrapes
        while not ended.wait(1.0):
            for port in ports:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
                scrapes += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        counts.append(scrapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--farpool", required=True, help="the command farpool, with farpool-bench beside it")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each measured point")
    parser.add_argument("--size", default="512MiB")
    parser.add_argument("--access", default=ACCESSES)
    args = parser.parse_args()

    ports = [free_port(), free_port()]
    http = [("--http", f"127.0.0.1:{port}") for port in ports]
    broker = started(args.farpool, "broker", "--listen", "127.0.0.1:0", *http[0])
    with broker as (_, url):
        node = ["node", "--name", "n1", "--memory", "2GiB", "--no-reserve", "--broker", url, *http[1]]
        with started(args.farpool, *node) as (process, _):
            measure(args, url, process.pid, ports)


def measure(args: argparse.Namespace, url: str, pid: int, ports: list[int]) -> None:
    bench = [args.farpool, "bench", "io", "--pool", url, "--node-pid", str(pid), "--json", "--rounds", "1"]
    bench += ["--seconds", str(args.seconds), "--size", args.size, "--access", args.access]
    figures: dict[tuple, dict[str, list[float]]] = defaultdict(lambda: {"with": [], "without": []})
    counts: list[int] = []

    def round_of(kind: str) -> None:
        output = subprocess.run(bench, check=True, stdout=subprocess.PIPE, text=True).stdout
        for point in json.loads(output)["points"]:
            if point["target"] != "memcpy":
                key = (point["access"], point["target"], point["depth"])
                figures[key][kind].append(point["gb_per_s"])

    round_of("without")
    figures.clear()
    for number in range(args.rounds):
        # Which one comes first alternates as well.
        for kind in ("with", "without") if number % 2 else ("without", "with"):
            if kind == "with":
                with scraped(ports, counts):
                    round_of(kind)
            else:
                round_of(kind)
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)

    print(f"{sum(counts)} scrapes in {len(counts)} rounds")
    everything = []
    for (access, target, depth), both in figures.items():
        ratios = [scraped / plain for scraped, plain in zip(both["with"], both["without"], strict=True)]
        everything += ratios
        print(
            f"{access}, {target}, depth {depth}: {statistics.median(both['without']):.3f} GB/s without, "
            f"{statistics.median(both['with']):.3f} with scrapes, ratio {statistics.median(ratios):.4f}"
        )
    print(f"all: ratio {statistics.median(everything):.4f} (median of {len(everything)})")


if __name__ == "__main__":
    main()
