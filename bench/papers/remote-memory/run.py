#!/usr/bin/env python3
"""Figures of "Accelerating Relational Databases by Leveraging Remote Memory and RDMA" (SIGMOD 2016), on Farpool.

    bench/papers/remote-memory/run.py                     # all of them: about half an hour
    bench/papers/remote-memory/run.py rangescan --engine postgres --size 512MiB --plots DIR
    bench/papers/remote-memory/run.py --quick             # a test that it runs: a minute, figures mean little

Experiments, machine and results: README.md beside this file. Needs Linux, root, memory cgroups, Debian's python3,
PostgreSQL (Debian's, or that of the folder FARPOOL_POSTGRES), and `make build sqlite`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from drawing import Bars, Lines, draw
from hashsort import HashSort
from machine import DISK, ENOUGH, Far, Setting, pool, size
from memory_group import why_not
from rangescan import Postgres, Sqlite
from tpcc import ITEMS, MIXES, QUICK_ITEMS, Tpcc

ENGINES = {"sqlite": Sqlite, "postgres": Postgres}
Panel = Bars | Lines


class Run:
    """The pool, the folder and the rounds of one figure."""

    def __init__(self, args: argparse.Namespace, figure: str):
        self.args = args
        self.figure = figure
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Run:
        self.folder = Path(tempfile.mkdtemp(prefix=f"farpool-{self.figure}-", dir=self.args.folder))
        self.folder.chmod(0o755)
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fars(self, memory_bytes: int, nodes: int = 1) -> dict[str, Far]:
        """Returns the pools to measure, by name: one on this machine over each transport, and those of --pool."""
        url = self._stack.enter_context(pool(memory_bytes, nodes))
        given = dict(one.split("=", 1) for one in self.args.pool)
        return {
            **{f"far, {transport}": Far(url, transport) for transport in ("tcp", "shm")},
            **{f"far, {name}": Far(url, "auto", self.args.plaintext) for name, url in given.items()},
        }

    def setting(self, way: str, far: Far | None, seed: int, **changed: object) -> Setting:
        args = self.args
        told = {"local_bytes": args.local, "far_bytes": args.size * 3 // 2, "updates": 0.0, "seconds": args.seconds}
        return Setting(way=way, far=far, seed=seed, **{**told, **changed})

    def in_turns(self, turns: dict[tuple, Callable[[int], dict]]) -> list[dict]:
        """Returns medians over the rounds. In each round every setting runs once."""
        results: dict[tuple, list[dict]] = {key: [] for key in turns}
        for number in range(self.args.rounds):
            for key, measure in turns.items():
                if sys.stderr.isatty():
                    told = f"{self.figure}, round {number + 1} of {self.args.rounds}: {', '.join(map(str, key))}"
                    print(f"\r{told:78}", end="", file=sys.stderr, flush=True)
                results[key].append(measure(number))
        if sys.stderr.isatty():
            print(f"\r{'':78}\r", end="", file=sys.stderr)
        return [{"key": list(key), **middle(runs)} for key, runs in results.items()]


def middle(runs: list[dict]) -> dict:
    """Returns the median of each number. All other values come from the run with the median first number."""
    first = next(name for name, value in runs[0].items() if isinstance(value, int | float))
    best = sorted(runs, key=lambda run: run[first])[len(runs) // 2]
    numbers = [name for name, value in runs[0].items() if isinstance(value, int | float)]
    return {**best, **{name: statistics.median(run[name] for run in runs) for name in numbers}}


def table(header: list[str], rows: Iterator[list[str]] | list[list[str]]) -> None:
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def per_second_row(one: dict, others: dict[str, dict], name: str) -> list[str]:
    ratios = [f"{one['per_second'] / others[way]['per_second']:.2f}x" for way in (DISK, ENOUGH)]
    return [name, f"{one['per_second']:,.0f}", f"{one['p50_us']:,.0f}", f"{one['p99_us']:,.0f}", *ratios]


def all_ways(fars: dict[str, Far]) -> dict[str, Far | None]:
    return {DISK: None, **fars, ENOUGH: None}


def rangescan(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figures 7 to 10: the table is four times as large as local memory."""
    found: list[dict] = []
    panels: list[Panel] = []
    shares = (0.2,) if args.quick else (0.0, 0.2)
    for engine in args.engine:
        with Run(args, "rangescan") as run:
            database = ENGINES[engine](run.folder, args.size)
            ways = all_ways(run.fars(args.size * 2 + (256 << 20)))
            turns = {
                (engine, updates, way): lambda seed, database=database, way=way, far=far, updates=updates: database.run(
                    run.setting(way, far, seed, updates=updates)
                )
                for updates in shares
                for way, far in ways.items()
            }
            figures = run.in_turns(turns)
            database.stop()
        print(f"## RangeScan on {engine}, figures 7 to 10: {sizes(args)}\n")
        for updates in shares:
            those = {one["key"][2]: one for one in figures if one["key"][1] == updates}
            print(f"{updates:.0%} of the queries update\n")
            table(
                ["where", "ranges/s", "p50 us", "p99 us", "of disk", "of enough memory"],
                [per_second_row(one, those, way) for way, one in those.items()],
            )
        per_second = {way: [one["per_second"] for one in figures if one["key"][2] == way] for way in ways}
        panels.append(Bars(f"{engine}: ranges a second", [f"{share:.0%} updates" for share in shares], per_second))
        found += figures
    return found, panels


def far(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figure 12: varying far memory, on one node and on two."""
    shares = (0.25, 1.25) if args.quick else (0.25, 0.5, 0.75, 1.0, 1.25)
    panels: list[Panel] = []
    with Run(args, "far") as run:
        database = Sqlite(run.folder, args.size)
        turns = {("disk", 0, 0.0): lambda seed: database.run(run.setting(DISK, None, seed))}
        for nodes in (1, 2):
            for name, one in run.fars(args.size * 2 + (256 << 20), nodes).items():
                for share in shares:
                    turns[(name, nodes, share)] = lambda seed, one=one, name=name, share=share: database.run(
                        run.setting(name, one, seed, far_bytes=int(args.size * share))
                    )
        figures = run.in_turns(turns)
    print(f"## Far memory of 0 to 1.25 times the database, figure 12: SQLite, {sizes(args)}\n")
    table(
        ["where", "nodes", "of the database", "ranges/s", "p50 us", "of disk"],
        [
            [one["key"][0], str(one["key"][1]), f"{one['key'][2]:.2f}", f"{one['per_second']:,.0f}"]
            + [f"{one['p50_us']:.0f}", f"{one['per_second'] / figures[0]['per_second']:.2f}x"]
            for one in figures
        ],
    )
    for nodes in (1, 2):
        series = {}
        for one in figures:
            if one["key"][1] == nodes:
                start = [(0.0, figures[0]["per_second"])]
                series.setdefault(one["key"][0], start).append((one["key"][2], one["per_second"]))
        panels.append(Lines(f"ranges a second, {nodes} node{'s' * (nodes > 1)}", "far memory / database", series))
    return figures, panels


def local(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figure 24: varying local memory, and far memory for the rest."""
    shares = (0.25, 1.25) if args.quick else (0.125, 0.25, 0.5, 0.75, 1.25)
    with Run(args, "local") as run:
        database = Sqlite(run.folder, args.size)
        ways = {DISK: None, **run.fars(args.size * 2 + (256 << 20))}
        turns = {
            (way, share): lambda seed, way=way, far=far, share=share: database.run(
                run.setting(way, far, seed, local_bytes=int(args.size * share))
            )
            for share in shares
            for way, far in ways.items()
        }
        figures = run.in_turns(turns)
    print(f"## Local memory of 1/8 to 5/4 of the database, figure 24: SQLite, {args.size >> 20} MiB\n")
    by_key = {tuple(one["key"]): one for one in figures}
    table(
        ["local memory / database", *[f"{way}, ranges/s" for way in ways], *[f"{way} of disk" for way in ways][1:]],
        [
            [f"{share:.3g}", *[f"{by_key[way, share]['per_second']:,.0f}" for way in ways]]
            + [f"{by_key[way, share]['per_second'] / by_key[DISK, share]['per_second']:.2f}x" for way in ways][1:]
            for share in shares
        ],
    )
    series = {way: [(share, by_key[way, share]["per_second"]) for share in shares] for way in ways}
    return figures, [Lines("ranges a second", "local memory / database", series)]


def many(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figure 25: several databases at once, all behind the memory of one node."""
    counts = (1, 4) if args.quick else (1, 2, 4)
    each = args.size // 4
    with Run(args, "many") as run:
        database = Sqlite(run.folder, each, counts[-1])
        ways = {DISK: None, **run.fars(args.size * 2 + (256 << 20))}
        turns = {
            (way, count): lambda seed, way=way, far=far, count=count: database.run(
                run.setting(way, far, seed, databases=count, local_bytes=each // 4, far_bytes=each * 3 // 2)
            )
            for count in counts
            for way, far in ways.items()
        }
        figures = run.in_turns(turns)
    print(f"## Some databases behind one node, figure 25: SQLite, {each >> 20} MiB each, a quarter of it local\n")
    by_key = {tuple(one["key"]): one for one in figures}
    table(
        ["databases", *[f"{way}, ranges/s" for way in ways], *[f"{way}, p50 us" for way in ways]],
        [
            [str(count), *[f"{by_key[way, count]['per_second']:,.0f}" for way in ways]]
            + [f"{by_key[way, count]['p50_us']:,.0f}" for way in ways]
            for count in counts
        ],
    )
    series = {way: [(count, by_key[way, count]["per_second"]) for count in counts] for way in ways}
    return figures, [Lines("ranges a second, all together", "databases", series)]


def hashsort(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figure 14: the bytes that a hash join and a sort spill, and how fast they move."""
    with Run(args, "hashsort") as run:
        database = HashSort(run.folder, args.size)
        ways = all_ways(run.fars(args.size * 4 + (256 << 20)))
        figures = run.in_turns(
            {(way,): lambda _, way=way, far=far: database.run(way, far) for way, far in ways.items()}
        )
        database.stop()
    by_way = {one["key"][0]: one for one in figures}
    print(f"## Hash+Sort on PostgreSQL, figure 14: tables of {args.size >> 20} MiB, work_mem 8 MB\n")
    table(
        ["where", "seconds", "moved, MiB", "of disk", "of enough memory"],
        [
            [way, f"{one['seconds']:.2f}", f"{one['bytes'] / 2**20:,.0f}"]
            + [f"{by_way[other]['seconds'] / one['seconds']:.2f}x" for other in (DISK, ENOUGH)]
            for way, one in by_way.items()
        ],
    )
    panels: list[Panel] = [Bars("seconds", ["Hash+Sort"], {way: [one["seconds"]] for way, one in by_way.items()})]
    for what in ("read", "written"):
        series = {
            way: [(step["seconds"], step[what] / 2**20) for step in one["steps"]]
            for way, one in by_way.items()
            if way != ENOUGH
        }
        panels.append(Lines(f"MiB {what} a second", "seconds", series))
    return figures, panels


def tpcc(args: argparse.Namespace) -> tuple[list[dict], list[Panel]]:
    """Measures figures 22 and 23: transactions per second."""
    mixes = [*MIXES][:1] if args.quick else [*MIXES]
    with Run(args, "tpcc") as run:
        database = Tpcc(run.folder, args.size, QUICK_ITEMS if args.quick else ITEMS)
        ways = all_ways(run.fars(args.size * 2 + (256 << 20)))
        turns = {
            (mix, way): lambda seed, mix=mix, way=way, far=far: database.run(run.setting(way, far, seed), mix)
            for mix in mixes
            for way, far in ways.items()
        }
        figures = run.in_turns(turns)
        database.stop()
    print(f"## TPC-C on PostgreSQL, scaled, figures 22 and 23: {sizes(args)}\n")
    for mix in mixes:
        those = {one["key"][1]: one for one in figures if one["key"][0] == mix}
        print(f"{mix} mix\n")
        header = ["where", "transactions/s", "p50 us", "p99 us", "of disk", "of enough memory"]
        table(header, [per_second_row(one, those, way) for way, one in those.items()])
    per_second = {way: [one["per_second"] for one in figures if one["key"][1] == way] for way in ways}
    return figures, [Bars("transactions a second", mixes, per_second)]


def sizes(args: argparse.Namespace) -> str:
    return f"{args.size >> 20} MiB, {args.local >> 20} MiB of local memory"


FIGURES = {one.__name__: one for one in (rangescan, far, local, many, hashsort, tpcc)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)}, or all [default: all]")
    parser.add_argument("--engine", type=lambda text: text.split(","), default=[*ENGINES], help="engines of rangescan")
    parser.add_argument("--quick", action="store_true", help="64MiB, runs of 0.2 s, one round and few points")
    parser.add_argument("--size", type=size, help="size of the database [default: 512MiB]")
    parser.add_argument(
        "--local", type=size, help="local memory that caches a part of the database [default: a quarter of it]"
    )
    parser.add_argument("--seconds", type=float, help="seconds of each run [default: 5]")
    parser.add_argument(
        "--rounds", type=int, help="rounds, in each of which all contenders take turns; medians are shown [default: 5]"
    )
    parser.add_argument("--folder", default="/var/tmp", help="folder on the disk to compare with [default: /var/tmp]")
    parser.add_argument(
        "--pool", action="append", default=[], metavar="NAME=farpool://HOST:PORT", help="measure this pool too"
    )
    parser.add_argument(
        "--plaintext", action="store_true", help="connect to --pool without TLS, even on another machine"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file, as JSON")
    parser.add_argument("--plots", metavar="DIR", help="draw the figures to this folder, as SVG")
    args = parser.parse_args()
    args.size = args.size or (64 << 20 if args.quick else 512 << 20)
    args.seconds = args.seconds or (0.2 if args.quick else 5)
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.local = args.local or args.size // 4
    args.figures = [*FIGURES] if args.figures in ([], ["all"]) else args.figures
    for wrong in [name for name in args.figures if name not in FIGURES]:
        parser.error(f"{wrong}: {', '.join(FIGURES)} and all are permitted")
    for wrong in [name for name in args.engine if name not in ENGINES]:
        parser.error(f"--engine {wrong}: {', '.join(ENGINES)} are permitted")
    if not 0.1 <= args.seconds <= 600 or not 1 <= args.rounds <= 100:
        parser.error(f"--seconds {args.seconds} --rounds {args.rounds}: 0.1 to 600, and 1 to 100, are permitted")
    if why := why_not():
        parser.error(why)
    return args


def main() -> None:
    args = arguments()
    told = {}
    for name in args.figures:
        found, panels = FIGURES[name](args)
        told[name] = found
        if args.plots:
            Path(args.plots).mkdir(parents=True, exist_ok=True)
            Path(args.plots, f"remote-memory-{name}.svg").write_text(draw(panels))
    print(f"Medians of {args.rounds} rounds, runs of {args.seconds:g} s; far memory without protection.")
    if args.json:
        said = {"size": args.size, "local": args.local, "rounds": args.rounds, "seconds": args.seconds}
        Path(args.json).write_text(json.dumps({**said, "figures": told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
