#!/usr/bin/env python3
"""Compares an etcd lock that guards shared memory with Farpool's leases, while a holder is paused.

    bench/brokers/naive_lock.py [--rounds 20]

In both variants, a first client holds 64 pages and writes its stamp to them repeatedly. It is stopped (SIGSTOP) for
longer than its lease. A second client gets the same memory and writes its own stamp once to each page. Then the first
client continues, and the second one reads its pages. A page with the first client's stamp is a lost update.

Naive variant: the memory is a file that both clients map. An etcd lease and key say who may write. The client checks
them before each pass over the pages, as recipes for locks do. Farpool variant: a node with exactly that much memory.
"""

from __future__ import annotations

import argparse
import base64
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from local import Etcd, Farpool, free_port, wait

import farpool

PAGES, PAGE = 64, 64 << 10
TTL = 2
MIB = 1 << 20


def ask(member: str, what: str, body: dict) -> dict:
    request = urllib.request.Request(f"http://{member}/v3/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read().splitlines()[0])


def lock(member: str) -> str:
    """Waits for the lock. Returns the id of its etcd lease."""
    lease = ask(member, "lease/grant", {"TTL": TTL})["ID"]
    key = base64.b64encode(b"lock").decode()
    take = {
        "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
        "success": [{"request_put": {"key": key, "value": "", "lease": lease}}],
    }
    while not ask(member, "kv/txn", take).get("succeeded"):
        ask(member, "lease/keepalive", {"ID": lease})
        time.sleep(0.02)
    return lease


def stamps(memory, stamp: int) -> None:
    for page in range(PAGES):
        memory[page * PAGE : (page + 1) * PAGE] = bytes([stamp]) * PAGE
        # A real writer computes what it writes, and can be stopped between any two pages.
        time.sleep(0.001)


def naive_first(member: str, path: str) -> None:
    lease = lock(member)
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), PAGES * PAGE)
        print("holds", flush=True)
        while int(ask(member, "lease/keepalive", {"ID": lease})["result"].get("TTL", 0)) > 0:
            stamps(memory, 1)
    print("over", flush=True)


def naive(member: str) -> int:
    """Runs a round with the etcd lock. Returns the number of pages with lost updates."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(PAGES * PAGE)
        first = child("naive", member, file.name)
        first.send_signal(signal.SIGSTOP)
        lease = lock(member)
        memory = mmap.mmap(file.fileno(), PAGES * PAGE)
        stamps(memory, 2)
        first.send_signal(signal.SIGCONT)
        assert first.stdout.readline().strip() == "over"
        first.wait()
        lost = sum(memory[page * PAGE] != 2 or memory[(page + 1) * PAGE - 1] != 2 for page in range(PAGES))
        ask(member, "lease/revoke", {"ID": lease})
    return lost


def far_first(url: str) -> None:
    pool = farpool.connect(url, transport="shm", protection="none")
    file = pool.create("first")
    try:
        for number in range(1 << 30):
            for page in range(PAGES):
                file.write_at(page * PAGE, b"\1" * PAGE)
                time.sleep(0.001)
            if number == 0:
                print("holds", flush=True)
    except farpool.Error as error:
        print(f"over: {error}", flush=True)


def far(url: str) -> int:
    first = child("far", url)
    first.send_signal(signal.SIGSTOP)
    pool = farpool.connect(url, transport="shm", protection="none")
    # The whole memory of the node. When it can be leased, it is the memory that the first client held.
    wait(lambda: pool.reserve(PAGES * PAGE) is None, 30, "the second client holds the memory")
    file = pool.create("second")
    for page in range(PAGES):
        file.write_at(page * PAGE, b"\2" * PAGE)
    first.send_signal(signal.SIGCONT)
    assert first.stdout.readline().startswith("over")
    first.kill()
    first.wait()
    lost = sum(bytes(file.read_at(page * PAGE, PAGE)) != b"\2" * PAGE for page in range(PAGES))
    pool.close()
    return lost


def child(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, __file__, "--first", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "holds"
    # The first client is stopped at a random moment within a pass.
    time.sleep(0.02 + os.urandom(1)[0] / 5_000)
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        {"naive": naive_first, "far": far_first}[args.first[0]](*args.first[1:])
        return
    etcd = Etcd(1)
    member = etcd.members[0]
    wait(lambda: ask(member, "kv/put", {"key": "YQ==", "value": ""}), 60, "etcd")
    address = f"127.0.0.1:{free_port()}"
    broker = Farpool("broker", "--listen", address, "--ttl", f"{TTL}s", "--grace", "500ms")
    url = f"farpool://{address}"
    memory = f"{PAGES * PAGE // MIB}MiB"
    node = Farpool("node", "--name", "n", "--memory", memory, "--region-size", "1MiB", "--broker", url, "--no-reserve")
    lost = {"an etcd lock": 0, "Farpool": 0}
    try:
        for number in range(args.rounds):
            lost["an etcd lock"] += naive(member)
            lost["Farpool"] += far(url)
            print(f"round {number + 1}: {lost}", flush=True)
    finally:
        for process in (node, broker):
            process.kill()
        etcd.close()
    for what, pages in lost.items():
        print(f"{what:14} lost {pages} of {args.rounds * PAGES} updates, in {args.rounds} pauses")


if __name__ == "__main__":
    main()
