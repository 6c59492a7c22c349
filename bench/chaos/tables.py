#!/usr/bin/env python3
"""Appends to one table from many processes while nodes, brokers and the processes themselves are killed.

    make chaos-tables                                                # 64 appenders for 10 minutes over TCP
    make chaos-tables CHAOS="--minutes 2 --appenders 16 --transport shm --seed 7"

Three hosts have an etcd member and a broker each, five have a node, two have the processes that append, and one has
those that read. The table has a mirror. Each append has a number that no other has, and its rows are computed from it,
also how many there are. An appender writes to a file of its own that it begins an append, and then whether it was
acknowledged, so that a SIGKILL loses neither.

Readers open the table, read all rows of the snapshot, read it again after a while, beside the data, by fetching and by
opening that snapshot by its number, and compare. They compare as well what must be in it:

- each append is there once with all of its rows, or not at all;
- what was acknowledged before the table was opened is there;
- what was acknowledged with a snapshot is there from that one on, and in none before;
- all appends that an earlier snapshot had are there, and no more in all than the number of the snapshot.

Meanwhile nodes, brokers and appending processes are killed (SIGKILL), stopped for up to twice a lease, or cut off. The
next node has a fault when all copies are there again. In the end all faults are over, and the last snapshot and some of
the earlier ones that are kept are compared once more. Then the table is dropped, and all memory has to be free.

An append that fails is counted, and may or may not have landed. So is a read that fails. If rows are lost, because
both copies were, that is an error, and not a violation. Exit code: 1 if there were violations, if rows are lost, if a
process hung or ended by itself, or if memory was not given back.

Needs root, ip (Debian: iproute2), etcd (FARPOOL_ETCD), the farpool command (FARPOOL_BIN) and the wheel. All hosts are
on one machine: the faults are real, the networks are not.
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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from hosts import KINDS, Machines, Server

import farpool

sys.path.append(str(Path(__file__).resolve().parents[1] / "tables"))

from changes import append, drop, kept_snapshots, number_of, opened, put

NAME = "appended"
NODES, READERS = 5, 2
TTL_S, GRACE_S = 2, 1
APPENDERS_OF_PROCESS = 4
# An append has this many rows at most. The key of a row is the number of its append and, below, its place there.
ROWS_MAX, ROW_BITS = 40, 6
# Number of an append: that of its appender and, below, a count.
COUNT_BITS = 20
MIXED, CHECKED = 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93
# Failures one after the other, with which an appender begins another session, and the seconds that it waits.
FAILURES_MAX, WAIT_SECONDS = 3, 0.5
# Seconds that a process has for its last operation, and the pool to give back all memory.
END_SECONDS, FREE_SECONDS = 180, 180
# Kept snapshots that are compared at the end.
HISTORY_READ = 20
SHOWN_MAX = 20


# Rows, and what must be true of them.


def counts_of(numbers: np.ndarray) -> np.ndarray:
    """Returns how many rows each append has."""
    mixed = (numbers.astype(np.uint64) * np.uint64(MIXED)) >> np.uint64(40)
    return (1 + mixed % np.uint64(ROWS_MAX)).astype(np.int64)


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Returns the keys of all rows of appends, which are given in order."""
    counts = counts_of(numbers)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(numbers << ROW_BITS, counts) + places


def checks_of(keys: np.ndarray) -> np.ndarray:
    return ((keys.astype(np.uint64) * np.uint64(CHECKED)) >> np.uint64(1)).astype(np.int64)


def rows_of(number: int) -> pa.Table:
    """Returns the rows of an append."""
    keys = keys_of(np.array([number]))
    return pa.table({"key": keys, "append": np.full(len(keys), number), "checked": checks_of(keys)})


@dataclass
class Rows:
    """Rows of a snapshot, in the order in which they were read."""

    key: np.ndarray
    append: np.ndarray
    checked: np.ndarray

    @staticmethod
    def of(table: pa.Table) -> Rows:
        return Rows(*(table[name].to_numpy() for name in ("key", "append", "checked")))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and all(
            np.array_equal(one, two) for one, two in zip(vars(self).values(), vars(other).values(), strict=True)
        )

    def numbers(self) -> set[int]:
        return set(np.unique(self.append).tolist())

    def violations(self) -> list[str]:
        """Returns what is wrong with the rows alone: appends that are there in part or twice, and wrong values."""
        wrong = []
        if not np.array_equal(self.checked, checks_of(self.key)) or not np.array_equal(
            self.append, self.key >> ROW_BITS
        ):
            wrong.append("rows have values that nobody wrote")
        keys = np.sort(self.key)
        wanted = keys_of(np.unique(self.append))
        if not np.array_equal(keys, wanted):
            for what, some in (
                ("are there several times", keys[1:][keys[1:] == keys[:-1]]),
                ("are missing beside others of their append", np.setdiff1d(wanted, keys)),
                ("are of no append", np.setdiff1d(keys, wanted)),
            ):
                appends = np.unique(some >> ROW_BITS).tolist()
                if appends:
                    wrong.append(f"{len(some)} rows {what}: appends {appends[:10]}")
        return wrong


class Logs:
    """Appends of all appenders, by what they wrote to their files."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.begun: set[int] = {0}
        # Snapshot of each append that was acknowledged, in the order in which that was read.
        self.acknowledged: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self.ms: list[float] = []
        self.unconnected: Counter[str] = Counter()

    def read(self) -> int:
        """Reads what was written since the last time. Returns how many appends are acknowledged."""
        for path in sorted(self._folder.glob("appends-*.log")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read().split(b"\n")
            # A line is complete when its end is there.
            self._read[path] = self._read.get(path, 0) + sum(len(line) + 1 for line in lines[:-1])
            for line in lines[:-1]:
                self._take(line.decode())
        return len(self.acknowledged)

    def _take(self, line: str) -> None:
        match line.split(maxsplit=3):
            case ["begin", number]:
                self.begun.add(int(number))
            case ["done", number, snapshot, ms]:
                self.acknowledged[int(number)] = int(snapshot)
                self.ms.append(float(ms))
            case ["failed", number, kind, *_]:
                self.failed[int(number)] = kind
            case ["unconnected", kind, *_]:
                self.unconnected[kind] += 1
            case _:
                raise ValueError(f"a line of an appender: {line!r}")

    def violations(self, snapshot: int, numbers: set[int], before: int, former: set[int]) -> list[str]:
        """Returns what is wrong with the appends of a snapshot. `before` appends were acknowledged before it was opened
        as the latest one. `former` are those of an earlier snapshot."""
        early = set(itertools.islice(self.acknowledged, before))
        until = {number for number, of in self.acknowledged.items() if of <= snapshot}
        later = set(self.acknowledged) - until
        # Each commit makes a snapshot. Some compact files, and append nothing. The table was put with append 0.
        wrong = [] if len(numbers) <= snapshot + 1 else [f"{len(numbers) - 1} appends in snapshot {snapshot}"]
        for what, some in (
            ("acknowledged before the table was opened are missing", early - numbers),
            ("acknowledged with this snapshot or before are missing", until - numbers),
            ("acknowledged with a later snapshot are there", later & numbers),
            ("that nobody began are there", numbers - self.begun),
            ("of an earlier snapshot are missing", former - numbers),
        ):
            if some:
                wrong.append(f"snapshot {snapshot}: {len(some)} appends {what}: {sorted(some)[:10]}")
        return wrong


# Clients, which are processes of their own. They end when their standard input does.


def when_input_ends(then: Callable[[], object]) -> None:
    threading.Thread(target=lambda: (sys.stdin.read(), then()), daemon=True).start()


def connect(args: argparse.Namespace) -> farpool.Pool:
    return farpool.connect(args.url, transport=args.transport, plaintext=True)


def append_numbers(args: argparse.Namespace, appender: int, over: threading.Event) -> None:
    """Appends until the end of the run, and writes to a file what it does."""
    log = os.open(Path(args.folder, f"appends-{appender}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(*words: object) -> None:
        # One system call, so that a line is there before the next step, whatever kills this process.
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    def shown(error: Exception) -> str:
        return f"{type(error).__name__} {' '.join(str(error).split())[:300]}"

    pool, failures = None, 0
    for number in itertools.count(appender << COUNT_BITS):
        if over.is_set():
            break
        if pool is None:
            try:
                pool = connect(args)
            except Exception as error:
                tell("unconnected", shown(error))
                over.wait(WAIT_SECONDS)
                continue
        rows = rows_of(number)
        tell("begin", number)
        begun = time.monotonic()
        try:
            snapshot = append(pool, NAME, rows, protection="mirror")
        except Exception as error:
            tell("failed", number, shown(error))
            failures += 1
            over.wait(WAIT_SECONDS)
            if failures % FAILURES_MAX == 0:
                pool.close()
                pool = None
        else:
            tell("done", number, snapshot, f"{(time.monotonic() - begun) * 1e3:.2f}")
            failures = 0
    if pool is not None:
        pool.close()


def be_appenders(args: argparse.Namespace) -> None:
    over = threading.Event()
    when_input_ends(over.set)
    appenders = range(args.first, args.first + args.count)
    threads = [threading.Thread(target=append_numbers, args=(args, appender, over)) for appender in appenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def readings(pool: farpool.Pool, table: farpool.Table) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
    """Yields ways to read a snapshot that is open."""
    columns = ("key", "append", "checked")
    yield "fetched", table.to_arrow
    for placement in ("ship", "fetch"):
        yield placement, lambda placement=placement: table.scan().select(*columns).to_arrow(placement=placement)
    if snapshot := number_of(table):
        yield "opened by its number", lambda: opened(pool, NAME, snapshot).to_arrow()


def read_once(pool: farpool.Pool, logs: Logs, former: set[int], chance: random.Random) -> tuple[dict, set[int]]:
    """Reads a snapshot several times. Returns what was found, and the appends that it has."""
    before = logs.read()
    table = opened(pool, NAME)
    snapshot = number_of(table)
    ways = list(readings(pool, table))
    chance.shuffle(ways)
    first = None
    wrong: list[str] = []
    checked = 0
    for what, read in ways:
        rows = Rows.of(read())
        checked += len(rows.key)
        if first is None:
            first = rows
        elif rows != first:
            wrong.append(f"snapshot {snapshot}: rows differ when read again ({what}; first {ways[0][0]})")
        time.sleep(chance.uniform(0, 1))
    logs.read()
    numbers = first.numbers()
    wrong += [f"snapshot {snapshot}: {text}" for text in first.violations()]
    wrong += logs.violations(snapshot, numbers, before, former)
    return {"snapshot": snapshot, "rows": checked, "wrong": wrong, "failed": ""}, numbers


def be_reader(args: argparse.Namespace) -> None:
    over = threading.Event()
    when_input_ends(over.set)
    logs, chance, former = Logs(Path(args.folder)), random.Random(args.seed), set()
    pool, failures = None, 0
    while not over.is_set():
        try:
            pool = pool or connect(args)
            told, former = read_once(pool, logs, former, chance)
            failures = 0
        except farpool.Error as error:
            told = {"snapshot": 0, "rows": 0, "wrong": [], "failed": f"{type(error).__name__}: {error}"[:500]}
            failures += 1
            over.wait(WAIT_SECONDS)
            if pool and failures % FAILURES_MAX == 0:
                pool.close()
                pool = None
        print(json.dumps(told), flush=True)
    if pool:
        pool.close()


# The run.


class Pool(Machines):
    """The processes of a pool under faults, and those of its clients."""

    def __init__(self, args: argparse.Namespace, seed: int):
        super().__init__(
            seed,
            nodes=NODES,
            clients=3,
            ttl_seconds=TTL_S,
            grace_seconds=GRACE_S,
            has_shm=args.transport == "shm",
            node_arguments=["--memory", args.memory, "--region-size", "1MiB"],
        )
        self.args, self.seed = args, seed
        self.appending: dict[int, subprocess.Popen] = {}
        self.reading: list[subprocess.Popen] = []
        self.next_appender = itertools.count(1)
        self.read: list[dict] = []
        self.problems: list[str] = []
        self.lost: list[str] = []

    def client(self, kind: str, host: str, *words: str, **more) -> subprocess.Popen:
        command = [sys.executable, __file__, "--client", kind, "--url", self.url, "--folder", str(self.folder), *words]
        command += ["--transport", self.args.transport, "--seed", str(self.seed)]
        return self.hosts[host].start(*command, log=self.folder / f"{kind}.log", stdin=subprocess.PIPE, **more)

    def start_appenders(self, at: int, count: int) -> None:
        """Starts a process with this many appenders, which no process had before."""
        first = next(self.next_appender)
        for _ in range(count - 1):
            next(self.next_appender)
        words = ("--first", str(first), "--count", str(count))
        self.appending[at] = self.client("appenders", f"c{at % 2}", *words, stdout=subprocess.DEVNULL)

    def start_readers(self) -> list[threading.Thread]:
        for _ in range(READERS):
            self.reading.append(self.client("reader", "c2", stdout=subprocess.PIPE))
        threads = [threading.Thread(target=self.follow, args=(reader,)) for reader in self.reading]
        for thread in threads:
            thread.start()
        return threads

    def follow(self, reader: subprocess.Popen) -> None:
        for line in reader.stdout:
            told = json.loads(line)
            for text in told["wrong"][:SHOWN_MAX]:
                print(f"violation: {text}", file=sys.stderr)
            with self.lock:
                self.read.append(told)

    # Each of these methods causes faults, one after the other, until the run is over.

    def trouble(self, server: Server, name: str) -> None:
        kind = self.random.choices(KINDS, [3, 1, 1])[0]
        self.fault(f"{name} {kind}")
        self.befall(server, kind)

    def trouble_nodes(self) -> None:
        while not self.over.is_set():
            self.trouble(self.random.choice(self.nodes), "node")
            if missing := self.await_copies():
                self.problems.append(missing)
            self.rest(0.5, 3.0)

    def trouble_brokers(self) -> None:
        while not self.over.is_set():
            self.rest(4.0, 10.0)
            leader = self.leader()
            server = self.random.choice([leader, leader, *self.brokers])
            self.trouble(server, "leading broker" if server is leader else "broker")
            self.await_members()

    def trouble_clients(self) -> None:
        while not self.over.is_set():
            self.rest(2.0, 6.0)
            kind = self.random.choices(KINDS, [3, 1, 1])[0]
            if kind == "cut off":
                host = self.hosts[f"c{self.random.randrange(2)}"]
                self.fault("host of appenders cut off")
                host.set_isolated(True)
                self.rest(0.2, 1.5 * TTL_S)
                host.set_isolated(False)
                continue
            at, process = self.random.choice(list(self.appending.items()))
            if process.poll() is not None:
                self.problems.append(f"appenders ended with {process.returncode}; see {self.folder}/appenders.log")
            self.fault(f"appenders {kind}")
            if kind == "stopped":
                # Some of them are in the middle of a commit, and their session may end meanwhile.
                process.send_signal(signal.SIGSTOP)
                self.rest(0.2, 2 * (TTL_S + GRACE_S))
                process.send_signal(signal.SIGCONT)
                continue
            process.kill()
            process.wait()
            self.start_appenders(at, self.args.count_of(at))

    def end(self, process: subprocess.Popen, what: str) -> None:
        """Waits for the end of a client whose standard input has ended."""
        try:
            if process.wait(END_SECONDS) != 0:
                self.problems.append(f"{what} ended with {process.returncode}; see {self.folder}/{what}.log")
        except subprocess.TimeoutExpired:
            self.problems.append(f"{what} did not end within {END_SECONDS} s")
            process.kill()
            process.wait()

    def run(self) -> None:
        """Runs clients and faults for the time of the run."""
        for at in range(self.args.processes):
            self.start_appenders(at, self.args.count_of(at))
        followers = self.start_readers()
        troubles = [self.trouble_nodes, self.trouble_brokers, self.trouble_clients]
        troubles = [threading.Thread(target=trouble) for trouble in troubles]
        for thread in troubles:
            thread.start()
        logs, until = Logs(self.folder), time.monotonic() + self.args.minutes * 60
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 30))
            done = logs.read()
            with self.lock:
                faults, reads = sum(self.faults.values()), len(self.read)
                wrong = sum(len(one["wrong"]) for one in self.read)
            told = f"{done} appends, {len(logs.failed)} failed, {faults} faults, {reads} reads, {wrong} violations"
            print(f"{max(left - 30, 0):5.0f} s left: {told}", file=sys.stderr)
        self.over.set()
        for thread in troubles:
            thread.join()
        clients = [(process, "appenders") for process in self.appending.values()]
        clients += [(process, "reader") for process in self.reading]
        for process, _ in clients:
            process.stdin.close()
        for process, what in clients:
            self.end(process, what)
        for thread in followers:
            thread.join()

    def check_all(self, logs: Logs) -> tuple[list[str], int, set[int]]:
        """Compares the last snapshot and earlier ones that are kept. Returns violations, how many rows were compared,
        and the appends that the last snapshot has."""
        wrong, compared, last = [], 0, set()
        before = logs.read()
        doubled = [snapshot for snapshot, times in Counter(logs.acknowledged.values()).items() if times > 1]
        if doubled:
            wrong.append(f"snapshots that were told of several appends: {sorted(doubled)[:10]}")
        try:
            with farpool.connect(self.url, transport="tcp", plaintext=True) as pool:
                table = opened(pool, NAME)
                snapshot = number_of(table)
                first = None
                for what, read in readings(pool, table):
                    rows = Rows.of(read())
                    compared += len(rows.key)
                    first = first or rows
                    if rows != first:
                        wrong.append(f"the last snapshot: rows differ when read again ({what})")
                last = first.numbers()
                wrong += [f"the last snapshot: {text}" for text in first.violations()]
                wrong += logs.violations(snapshot, last, before, set())
                kept = [number for number in kept_snapshots(pool, NAME) if number < snapshot]
                later = last
                for number in kept[:: max(1, len(kept) // HISTORY_READ)]:
                    rows = Rows.of(opened(pool, NAME, number).to_arrow())
                    numbers = rows.numbers()
                    compared += len(rows.key)
                    wrong += [f"snapshot {number}: {text}" for text in rows.violations()]
                    wrong += logs.violations(number, numbers, 0, set())
                    if numbers - later:
                        wrong.append(f"snapshot {number} has appends that a later one has not")
                    later = numbers
        except farpool.LostError as error:
            self.lost.append(str(error)[:500])
        return wrong, compared, last

    def leaked_bytes(self) -> int:
        """Drops the table. Returns the bytes that are still leased when all must be free."""
        with farpool.connect(self.url, transport="tcp", plaintext=True) as pool:
            drop(pool, NAME)
            until = time.monotonic() + FREE_SECONDS
            while (leaked := pool.status()["leased_bytes"]) and time.monotonic() < until:
                time.sleep(0.5)
        return leaked


def quantile(values: list[float], share: float) -> float | None:
    return round(sorted(values)[int(len(values) * share)], 1) if values else None


def summed(pool: Pool, logs: Logs, wrong: list[str], compared: int, last: set[int]) -> dict:
    reads = pool.read
    failed_reads = Counter(one["failed"].split(":")[0] for one in reads if one["failed"])
    unknown = logs.begun - set(logs.acknowledged) - set(logs.failed) - {0}
    return {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "seed": pool.seed,
        "transport": pool.args.transport,
        "minutes": pool.args.minutes,
        "appenders": pool.args.appenders,
        "processes": pool.args.processes,
        "appends": len(logs.begun) - 1,
        "acknowledged": len(logs.acknowledged),
        "acknowledged per second": round(len(logs.acknowledged) / (pool.args.minutes * 60), 1),
        "ms, median": quantile(logs.ms, 0.5),
        "ms, p99": quantile(logs.ms, 0.99),
        "ms, longest": quantile(logs.ms, 0.99999),
        "failed": len(logs.failed),
        "failed by error": dict(Counter(logs.failed.values()).most_common()),
        "of killed processes": len(unknown),
        "not acknowledged, but there": len(last - set(logs.acknowledged) - {0}),
        "sessions that failed": dict(logs.unconnected),
        "faults": dict(sorted(pool.faults.items())),
        "faults in all": sum(pool.faults.values()),
        "snapshots read": sum(not one["failed"] for one in reads),
        "reads that failed": dict(failed_reads),
        "rows checked": sum(one["rows"] for one in reads) + compared,
        "violations": [text for one in reads for text in one["wrong"]] + wrong,
        "lost": pool.lost,
        "problems": pool.problems,
        "failed reads": [one["failed"] for one in reads if one["failed"]][:SHOWN_MAX],
    }


def show(told: dict) -> None:
    for what, value in told.items():
        if isinstance(value, dict):
            print(f"{what:30}" + ("" if value else " none"))
            for kind, times in value.items():
                print(f"    {kind:26} {times:>12,}")
        elif isinstance(value, list):
            print(f"{what:30} {len(value):>12,}")
            for text in value[:SHOWN_MAX]:
                print(f"    {text}")
        else:
            print(f"{what:30} {value if isinstance(value, str) or value is None else format(value, ','):>12}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--appenders", type=int, default=64, help="sessions that append at a time [default: 64]")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
    parser.add_argument("--memory", default="1GiB", help="memory of each of the five nodes [default: 1GiB]")
    parser.add_argument("--seed", type=int, default=None, help="seed for the choice of faults [default: the time]")
    parser.add_argument("--json", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--client", choices=["appenders", "reader"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        (be_reader if args.client == "reader" else be_appenders)(args)
        return 0
    if not 1 <= args.appenders <= 1024 or not 0 < args.minutes <= 10_000:
        parser.error("1 to 1024 --appenders and up to 10000 --minutes are permitted")
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    # The processes, mounts and namespaces of this program end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.processes = -(-args.appenders // APPENDERS_OF_PROCESS)
    args.count_of = lambda at: min(APPENDERS_OF_PROCESS, args.appenders - at * APPENDERS_OF_PROCESS)
    with Pool(args, args.seed if args.seed is not None else int(time.time())) as pool:
        with farpool.connect(pool.url, transport="tcp", plaintext=True) as session:
            put(session, NAME, rows_of(0), protection="mirror")
        pool.run()
        pool.restart()
        if missing := pool.await_copies():
            pool.lost.append(missing)
        logs = Logs(pool.folder)
        wrong, compared, last = pool.check_all(logs)
        told = summed(pool, logs, wrong, compared, last)
        told["leaked bytes"] = pool.leaked_bytes()
        pool.is_good = not (told["violations"] or told["lost"] or told["problems"] or told["leaked bytes"])
    show(told)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    return 0 if pool.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
