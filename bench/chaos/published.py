#!/usr/bin/env python3
"""Loses nodes and brokers under queries, calls, reads and puts of published data: what fails, and what time it takes.

    make chaos-published                                              # 1,000 faults over TCP
    make chaos-published CHAOS="--faults 20 --transport shm --seed 7"
    make chaos-published CHAOS="--bound 2"                            # a second node is lost during the repair

Three hosts have an etcd member and a broker each, five have a node, and one has four clients:

- one scans tables, beside the data and by fetching them,
- one calls functions over a file and a table; some calls hop between nodes,
- one reads blocks of files,
- one puts tables and functions, reads them back, and replaces them.

Every result is compared with the right one. A put may lose what has no copy yet, when its node dies: such a put is made
again, and counted. A fault is that of a node, of the leading broker, or of both at once: a
SIGKILL, a SIGSTOP for up to twice a lease, a cut of the network or, for nodes, a drain. With `--bound 1` the data has
mirrors or the parity rs(2,1), and a fault comes when all copies are there again. With `--bound 2` it has rs(2,2), and a
second node has a fault while the first one is repaired.

The table has one line per kind of fault: how many there were, how many began during an operation, how many operations
these were, and how much longer they took than the median of their kind without a fault. An operation that began before
the fault ahead was over may wait for that one: no broker may lead yet. The times of operations that several faults
concern are in a line of their own. A fault that began during no operation counts for nothing. Exit code: 1 if an
operation failed, if a result was wrong, or if data was lost.

Needs root, ip (Debian: iproute2), etcd (FARPOOL_ETCD), the farpool command (FARPOOL_BIN), the functions of the examples
(FARPOOL_FUNCTIONS) and the wheel. All hosts are on one machine: the faults are real, the networks are not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from hosts import KINDS, REPAIR_SECONDS, Machines, Server

NODES = 5
TTL_S, GRACE_S = 2, 1
MIB = 1 << 20
# Rows of a table, items of a list of 64 bytes each, and bytes of a block that is read.
ROWS, ITEMS, BLOCK_BYTES = 1_500_000, 262_144, 256 << 10
# Documents, for the function that is called at each node.
BODIES = 100_000
BODY, NAME = '{"user": {"id": "ann"}}', b"ann"
STEPS = 2_000
PROTECTIONS = {1: ("mirror", "rs(2,1)"), 2: ("rs(2,2)", "rs(2,2)")}
# Times that a drain is begun.
DRAINS_MAX = 10
# Times that a put is made.
PUTS_MAX = 4


@dataclass(frozen=True)
class Operation:
    """Operation of a client, in seconds of the machine's monotonic clock. `wrong` is empty if the result was right.
    `again` is the number of times that a put was made again."""

    kind: str
    begun: float
    ended: float
    failed: str = ""
    wrong: str = ""
    again: int = 0


@dataclass
class Fault:
    kind: str
    begun: float
    # When all copies were there again.
    whole: float = float("inf")


class Pool(Machines):
    """The processes of a pool under faults, and what its clients did."""

    def __init__(self, args: argparse.Namespace, seed: int):
        super().__init__(
            seed,
            nodes=NODES,
            clients=1,
            ttl_seconds=TTL_S,
            grace_seconds=GRACE_S,
            has_shm=args.transport == "shm",
            node_arguments=["--memory", "768MiB", "--region-size", "4MiB"],
        )
        self.args, self.seed = args, seed
        self.operations: list[Operation] = []
        self.happened: list[Fault] = []
        self.lost: list[str] = []

    def client(self, kind: str) -> subprocess.Popen:
        command = [sys.executable, __file__, "--client", kind, "--url", self.url, "--seed", str(self.seed)]
        command += ["--transport", self.args.transport, "--bound", str(self.args.bound)]
        log = self.folder / f"{kind}.log"
        return self.hosts["c0"].start(*command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def follow(self, kind: str, client: subprocess.Popen) -> None:
        """Takes what a client tells until it ends. It ends when its standard input does."""
        for line in client.stdout:
            operation = Operation(**json.loads(line))
            if operation.failed or operation.wrong:
                print(f"{operation.kind}: {operation.failed or operation.wrong}", file=sys.stderr)
            with self.lock:
                self.operations.append(operation)
        if client.wait() != 0:
            self.lost.append(f"client {kind} ended with {client.returncode}; see {self.folder / (kind + '.log')}")

    def note_missing(self) -> None:
        """Waits until all copies are there. Notes what is not."""
        if missing := self.await_copies():
            self.lost.append(missing)

    def cause_faults(self) -> None:
        self.note_missing()
        while len(self.happened) < self.args.faults and not self.lost and not self.over.is_set():
            self.rest(0.2, 1.0)
            target = self.random.choices(["node", "leader", "node and leader"], [3, 1, 1])[0]
            faults = []
            if target != "leader":
                node = self.random.randrange(NODES)
                faults.append((self.nodes[node], self.random.choice([*KINDS, "drained"])))
            if target != "node":
                faults.append((self.leader(), self.random.choice(KINDS)))
            begun = [self.begin(" and ".join(f"{self.role(server)} {kind}" for server, kind in faults))]
            threads = [threading.Thread(target=self.undergo, args=fault) for fault in faults]
            for thread in threads:
                thread.start()
            if self.args.bound == 2 and target != "leader" and self.await_repair(until=time.monotonic() + 2 * TTL_S):
                second = (node + self.random.randrange(1, NODES)) % NODES
                kind = self.random.choice(KINDS)
                begun.append(self.begin(f"second node {kind}"))
                self.undergo(self.nodes[second], kind)
            for thread in threads:
                thread.join()
            self.await_members()
            self.note_missing()
            for fault in begun:
                fault.whole = time.monotonic()

    def begin(self, kind: str) -> Fault:
        fault = Fault(kind, time.monotonic())
        self.happened.append(fault)
        return fault

    def undergo(self, server: Server, kind: str) -> None:
        if kind != "drained":
            self.befall(server, kind)
            return
        self.restarted.add(server.name)
        # A broker that has just begun to lead may not have heard of the node.
        for _ in range(DRAINS_MAX):
            done = self.farpool("drain", server.name, "--timeout", f"{REPAIR_SECONDS}s")
            if "there is no node" not in done.stderr:
                break
            self.rest(1, 1)
        if done.returncode != 0:
            self.lost.append(f"the drain of {server.name} did not end: {done.stderr.strip()}; {self.status()}")
        server.kill()
        server.start()

    def role(self, server: Server) -> str:
        return "node" if server in self.nodes else "leader"

    def await_repair(self, until: float) -> bool:
        """Waits until copies are missing. Returns False if none are by then."""
        while time.monotonic() < until:
            if (status := self.status()) and status["repairs"]["endangered_files"]:
                return True
        return False


# Clients: each yields pairs of a kind of operation and the operation itself, without end. An operation returns what is
# wrong with its result, or an empty text.

Operations = Iterator[tuple[str, Callable[[], str]]]


def is_wrong(found: object, wanted: object) -> str:
    return "" if found == wanted else f"{str(found)[:200]} and not {str(wanted)[:200]}"


def scans(pool, chance: random.Random, protections: tuple[str, ...]) -> Operations:
    import farpool

    id_sum = ROWS * (ROWS - 1) // 2

    def total(name: str, placement: str) -> str:
        scan = pool.scan(name).filter(farpool.col("noise") >= 0).group_by("kind")
        result = scan.agg(rows=farpool.len(), ids=farpool.col("id").sum()).collect(placement=placement).to_arrow()
        found = {row["kind"]: (row["rows"], int(row["ids"])) for row in result.to_pylist()}
        sums = [sum(pair[at] for pair in found.values()) for at in (0, 1)]
        return is_wrong((len(found), *sums), (1000, ROWS, id_sum))

    def one(name: str) -> str:
        wanted = chance.randrange(ROWS)
        rows = pool.scan(name).filter(farpool.col("id") == wanted).collect(placement="ship").to_arrow()
        return is_wrong(rows.column("price").to_pylist(), [wanted * 7])

    while True:
        for at, protection in enumerate(protections):
            for placement in ("ship", "fetch"):
                yield f"{protection} scan, {placement}", lambda at=at, placement=placement: total(f"t{at}", placement)
            yield f"{protection} row", lambda at=at: one(f"t{at}")


def calls(pool, chance: random.Random, protections: tuple[str, ...]) -> Operations:
    import numpy

    items = linked_list()
    texts = pool.table("bodies")
    rows = texts.num_rows

    def words(*values: int) -> bytes:
        return numpy.array(values, dtype="<u8").tobytes()

    def walk(function: str, hops: int) -> str:
        first = chance.randrange(ITEMS)
        at, total = first, 0
        for _ in range(STEPS):
            total += int(items[at, 1])
            at = int(items[at, 0]) // 64
        called = pool.run(function, "f0", words(first * 64, STEPS, hops), placement="ship")
        return is_wrong(called.numpy("<u8").tolist(), [at * 64, total])

    def each() -> str:
        parts = pool.run("json_path", texts, bytes(8) + b"user.id", columns=["body"], placement="ship")
        counts = [int(numpy.frombuffer(part.output[:8], dtype="<u8")[0]) for part in parts]
        found = b"".join(part.output[len(part.output) - len(NAME) * n :] for part, n in zip(parts, counts, strict=True))
        return is_wrong((sum(counts), found == NAME * rows), (rows, True))

    while True:
        yield "call", lambda: walk("resident:walk", 0)
        yield "call that hops", lambda: walk("resident:walk", 1)
        yield "call of a module", lambda: walk("walk", 0)
        yield "call for each node", each


def reads(pool, chance: random.Random, protections: tuple[str, ...]) -> Operations:
    content = linked_list().tobytes()
    files = [pool.open(f"f{at}") for at in range(len(protections))]

    def read(at: int) -> str:
        first = chance.randrange(len(content) - BLOCK_BYTES)
        found = bytes(files[at].read_at(first, BLOCK_BYTES))
        return "" if found == content[first : first + BLOCK_BYTES] else f"other bytes at {first}"

    def read_many(at: int) -> str:
        return next((wrong for _ in range(64) if (wrong := read(at))), "")

    while True:
        for at, protection in enumerate(protections):
            yield f"{protection} reads", lambda at=at: read_many(at)


def puts(pool, chance: random.Random, protections: tuple[str, ...]) -> Operations:
    import farpool

    table, numbers = table_of(200_000), itertools.count()
    walk = farpool.Function.wasm(Path(os.environ["FARPOOL_FUNCTIONS"], "walk.wasm").read_bytes(), "walk")

    def put(name: str, protection: str) -> str:
        for left in reversed(range(PUTS_MAX)):
            try:
                pool.put_table(name, table, protection=protection, replace=True)
                break
            except farpool.LostError:
                if not left:
                    raise
                puts.again += 1
        return is_wrong(pool.scan(name).count(placement="ship"), table.num_rows)

    def push() -> str:
        name = f"pushed-{next(numbers)}"
        pool.put_function(name, walk)
        found = pool.function(name).digest
        pool.drop_function(name)
        return is_wrong(found, walk.digest)

    while True:
        for at, protection in enumerate(protections):
            yield f"{protection} put", lambda at=at, protection=protection: put(f"put{at}", protection)
        yield "put of a function", push


# Number of puts that were made again since the last operation.
puts.again = 0
CLIENTS = {"scans": scans, "calls": calls, "reads": reads, "puts": puts}


def table_of(rows: int):
    import duckdb

    sql = f"SELECT i AS id, i % 1000 AS kind, i * 7 AS price, hash(i) % 100000 AS noise FROM range({rows}) r(i)"
    with duckdb.connect() as con:
        return con.sql(sql).to_arrow_table()


def linked_list():
    """Returns items of 64 bytes: where the next one is, a value, and zeros. The next one is far away."""
    import numpy

    items = numpy.zeros((ITEMS, 8), dtype="<u8")
    items[:, 0] = (numpy.arange(ITEMS, dtype="<u8") * 5 + 77_777) % ITEMS * 64
    items[:, 1] = numpy.arange(ITEMS)
    return items


def publish(url: str, transport: str, bound: int) -> None:
    """Puts what the clients read."""
    import pyarrow

    import farpool

    with farpool.connect(url, transport=transport, plaintext=True) as pool:
        for at, protection in enumerate(PROTECTIONS[bound]):
            pool.put_table(f"t{at}", table_of(ROWS), protection=protection)
            with pool.create(f"f{at}", file_class="pinned", protection=protection) as file:
                file.write_at(0, linked_list().tobytes())
            pool.publish(f"f{at}")
        pool.put_table("bodies", pyarrow.table({"body": [BODY] * BODIES}), protection=PROTECTIONS[bound][0])
        folder = Path(os.environ["FARPOOL_FUNCTIONS"])
        for name in ("walk", "json_path"):
            pool.put_function(name, farpool.Function.wasm((folder / f"{name}.wasm").read_bytes(), name))


def be_client(args: argparse.Namespace) -> None:
    """Runs one client until its standard input ends, and tells each operation on standard output."""
    import select

    import pyarrow

    import farpool

    # The first table takes seconds, because of what it imports.
    pyarrow.table(pyarrow.table({"item": [0]}).to_reader())
    with farpool.connect(args.url, transport=args.transport, plaintext=True) as pool:
        operations = CLIENTS[args.client](pool, random.Random(args.seed), PROTECTIONS[args.bound])
        while not select.select([sys.stdin], [], [], 0)[0]:
            kind, operation = next(operations)
            begun, failed, wrong = time.monotonic(), "", ""
            try:
                wrong = operation()
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"[:500]
            told = Operation(kind, begun, time.monotonic(), failed, wrong, puts.again)
            puts.again = 0
            print(json.dumps(asdict(told)), flush=True)


# Tasks of clients. Scans and lookups are reads.
TASKS = ("reads", "calls", "puts")


def task_of(operation: Operation) -> str:
    words = operation.kind.replace(",", "").split()
    return "puts" if "put" in words else "calls" if "call" in words else "reads"


def summed(pool: Pool) -> dict:
    """Returns what is told of a run, as a dictionary."""
    operations, faults = pool.operations, pool.happened
    calm: dict[str, list[float]] = defaultdict(list)
    hit: dict[int, list[Operation]] = defaultdict(list)
    # Number of faults that were not over when the operation began, or that began during it.
    concerned: Counter[Operation] = Counter()
    for operation in operations:
        concerned[operation] = sum(f.begun < operation.ended and operation.begun < f.whole for f in faults)
        if not concerned[operation]:
            calm[operation.kind].append(operation.ended - operation.begun)
        for at, fault in enumerate(faults):
            if operation.begun < fault.begun < operation.ended:
                hit[at].append(operation)
    usual = {kind: median(times) for kind, times in calm.items()}

    def line(kind: str | None, task: str | None = None) -> dict:
        """Tells of the faults of a kind, or of the operations that several faults concern."""
        mine = [at for at, fault in enumerate(faults) if kind in (None, fault.kind)]
        struck = {at: [one for one in hit[at] if task in (None, task_of(one))] for at in mine}
        if kind is None:
            struck = {at: [one for one in ones if concerned[one] > 1] for at, ones in struck.items()}
        all_struck = {one for ones in struck.values() for one in ones}
        timed = [one for one in all_struck if one.kind in usual and (concerned[one] > 1) == (kind is None)]
        added = sorted(one.ended - one.begun - usual[one.kind] for one in timed)
        return {
            "faults": len(mine),
            "that hit": sum(bool(ones) for ones in struck.values()),
            "operations": len(all_struck),
            "failed": sum(bool(one.failed) for one in all_struck),
            **{name: round(added[int(len(added) * at)], 3) if added else None for name, at in SHOWN.items()},
        }

    kinds = sorted({fault.kind for fault in faults})
    lines = {kind: line(kind) for kind in kinds} | {"several for one operation": line(None)}
    for kind in [kind for kind in kinds if " and " not in kind and kind.startswith("node")]:
        lines |= {f"{kind}: {task}": line(kind, task) for task in TASKS}
    slowest: dict[str, float] = defaultdict(float)
    for at in hit:
        for one in hit[at]:
            slowest[one.kind] = max(slowest[one.kind], one.ended - one.begun)
    failures = Counter(one.kind for one in operations if one.failed)
    wrong = Counter(one.kind for one in operations if one.wrong)
    return {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "seed": pool.seed,
        "transport": pool.args.transport,
        "bound": pool.args.bound,
        "faults": len(faults),
        "faults that hit an operation": sum(bool(ops) for ops in hit.values()),
        "by fault": lines,
        "by operation": {
            kind: {
                "operations": sum(one.kind == kind for one in operations),
                "failed": failures[kind],
                "wrong": wrong[kind],
                "again": sum(one.again for one in operations if one.kind == kind),
                "usual": round(usual[kind], 3) if kind in usual else None,
                "slowest hit": round(slowest[kind], 3),
            }
            for kind in sorted({one.kind for one in operations})
        },
        "failed": sum(failures.values()),
        "wrong": sum(wrong.values()),
        "lost": pool.lost,
        "texts": [f"{one.kind}: {one.failed or one.wrong}" for one in operations if one.failed or one.wrong],
    }


# Parts of the operations that a fault hit which were delayed no longer.
SHOWN = {"p50": 0.5, "p99": 0.99, "longest": 0.9999}


def show(told: dict) -> None:
    for title, part in (("fault", "by fault"), ("operation", "by operation")):
        lines = told[part]
        names = list(next(iter(lines.values()), {}))
        print("\n" + f"{title:40}" + "".join(f"{name:>13}" for name in names))
        for kind, cells in lines.items():
            print(f"{kind:40}" + "".join(f"{'-' if cells[name] is None else cells[name]:>13}" for name in names))
    print("\np50, p99, longest: seconds that a fault added to the operations during which it began.")
    for name in ("faults", "faults that hit an operation", "failed", "wrong", "lost"):
        print(f"{name:30} {told[name]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=1000, help="number of faults [default: 1000]")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
    parser.add_argument("--bound", type=int, choices=PROTECTIONS, default=1, help="hosts whose loss the data survives")
    parser.add_argument("--seed", type=int, default=None, help="seed for the choice of faults [default: the time]")
    parser.add_argument("--minutes", type=float, default=150, help="longest time of the run [default: 150]")
    parser.add_argument("--json", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        be_client(args)
        return 0
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    # The processes, mounts and namespaces of this program end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Pool(args, args.seed if args.seed is not None else int(time.time())) as pool:
        publish(pool.url, "tcp", args.bound)
        clients = {kind: pool.client(kind) for kind in CLIENTS}
        followers = [threading.Thread(target=pool.follow, args=one) for one in clients.items()]
        causing = threading.Thread(target=pool.cause_faults)
        for thread in [*followers, causing]:
            thread.start()
        give_up = time.monotonic() + args.minutes * 60
        while causing.is_alive() and time.monotonic() < give_up:
            causing.join(30)
            with pool.lock:
                done, failed = len(pool.operations), sum(bool(one.failed or one.wrong) for one in pool.operations)
            print(f"{len(pool.happened)} faults, {done} operations, {failed} failed or wrong", file=sys.stderr)
        pool.over.set()
        causing.join()
        for client in clients.values():
            client.stdin.close()
        for thread in followers:
            thread.join()
        told = summed(pool)
        if len(pool.happened) < args.faults:
            told["lost"].append(f"the run ended after {len(pool.happened)} of {args.faults} faults")
        pool.is_good = not (told["failed"] or told["wrong"] or told["lost"])
    show(told)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    return 0 if pool.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
