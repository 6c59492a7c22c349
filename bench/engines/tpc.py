"""Runs TPC-H and TPC-DS in an engine with little memory, and compares the places to which it can spill.

    python bench/engines/tpc.py duckdb --data DIR --memory 64MiB
    python bench/engines/tpc.py datafusion --data DIR --memory 64MiB --json FILE --plot FILE
    python bench/engines/tpc.py duckdb --suite tpcds --data DIR --memory 64MiB

DIR was made by `engines/tests/reference.py DIR --scale 1` or by `bench/engines/tpcds_data.py DIR --scale 1`.

Each query runs in its own process in each of these ways in turn, once to warm up and then `--rounds` times:

    enough      with all the memory that it needs
    disk        in little memory, spilling to --disk
    tcp, shm    in little memory, spilling to far memory of a node that this program starts
    null        spilling to memory that no far memory can beat: for DuckDB the memory of its own process, behind the
                hook of far memory; for DataFusion a tmpfs
    NAME        in little memory, spilling to the pool of --pool NAME=URL, such as one behind a shaped link:
                MEASURE=tpc bench/netns.sh target/release/farpool duckdb --data DIR ..

With --group SIZE each process in little memory runs in a memory cgroup. Its limit is SIZE more than the process's
memory, so that the kernel can cache neither the spill on disk nor the tables. Rows are compared with those of "enough".
A query counts as spilling if it writes at least 1 MiB to the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from drawing import Bars, draw
from memory_group import Group, why_not

TMPFS = "/dev/shm"
UNITS = {"MiB": 20, "GiB": 30}
SPILLS_BYTES = 1 << 20
ENOUGH, DISK, NULL = "enough", "disk", "null"


def size(text: str) -> int:
    if text[-3:] not in UNITS or not text[:-3].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of MiB or GiB is permitted")
    return int(text[:-3]) << UNITS[text[-3:]]


def named(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or name in (ENOUGH, DISK, NULL, "tcp", "shm") or not url.startswith("farpool://"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: NAME=farpool://HOST:PORT is permitted, and a name that is not a way"
        )
    return name, url


def arguments() -> argparse.Namespace:
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache/farpool/target"), "release")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["duckdb", "datafusion"])
    parser.add_argument("--suite", choices=["tpch", "tpcds"], default="tpch", help="[default: tpch]")
    parser.add_argument("--data", type=Path, required=True, help="folder made by reference.py or tpcds_data.py")
    parser.add_argument(
        "--memory", type=size, required=True, help="memory limit of the runs in little memory, such as 96MiB"
    )
    parser.add_argument("--group", type=size, help="run in a memory cgroup with this much beyond --memory; needs root")
    parser.add_argument("--queries", help="queries to run, such as 1,6,14 [default: all]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ways", type=lambda text: text.split(","), help="run only these ways, besides enough memory")
    parser.add_argument("--pool", type=named, action="append", default=[], metavar="NAME=farpool://HOST:PORT")
    parser.add_argument(
        "--plaintext", action="store_true", help="connect to --pool without TLS, even on another machine"
    )
    parser.add_argument("--protection", default="none", help="protection of data spilled to far memory [default: none]")
    parser.add_argument("--pool-memory", default="4GiB", help="memory of each node that is started [default: 4GiB]")
    parser.add_argument("--disk", default="/var/tmp", help="folder on a disk to spill to [default: /var/tmp]")
    parser.add_argument("--bin", type=Path, default=target, help="folder with farpool and farpool-sql")
    parser.add_argument("--json", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--plot", type=Path, help="draw seconds of all ways to this file, as SVG")
    args = parser.parse_args()
    if not 1 <= args.rounds <= 100:
        parser.error(f"--rounds {args.rounds}: 1 to 100 are permitted")
    if args.group is not None and (why := why_not()):
        parser.error(f"--group: {why}")
    args.data = args.data / args.suite
    if not list(args.data.glob("data/*.parquet")):
        maker = "engines/tests/reference.py" if args.suite == "tpch" else "bench/engines/tpcds_data.py"
        parser.error(f"no tables in {args.data}/data: {maker} makes them")
    there = [int(path.stem[1:]) for path in sorted(args.data.glob("queries/q*.sql"))]
    args.queries = [int(number) for number in args.queries.split(",")] if args.queries else there
    if wrong := set(args.queries) - set(there):
        parser.error(f"--queries {min(wrong)}: {there[0]} to {there[-1]} are permitted")
    return args


@contextlib.contextmanager
def pools(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yields the URLs of the pools by name: one over tcp, one over shared memory, and those of --pool."""
    processes = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen([args.bin / "farpool", *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stdout.readline()
        if not line.startswith("ready "):
            sys.exit(f"farpool {arguments[0]} did not start: see its output above")
        return line.split()[1]

    try:
        started = {}
        for way, flags in (("tcp", ["--no-shm"]), ("shm", [])):
            started[way] = start("broker", "--listen", "127.0.0.1:0", "--store", "memory")
            # Two host labels, so that a mirror is possible.
            for host in ("a", "b") if args.protection == "mirror" else ("a",):
                at = ["--broker", started[way], "--host-label", host]
                start("node", "--name", host, "--memory", args.pool_memory, "--no-reserve", *at, *flags)
        yield {**started, **dict(args.pool)}
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def command(args: argparse.Namespace, way: str, urls: dict[str, str], number: int, folder: Path) -> list[str]:
    query = args.data / f"queries/q{number:02}.sql"
    memory = None if way == ENOUGH else args.memory
    is_far = way in urls
    is_plaintext = args.plaintext and way in dict(args.pool)
    if args.engine == "duckdb":
        spill = urls[way] if is_far else NULL if way == NULL else f"{folder}/spill"
        told = {"query": str(query), "tables": str(args.data / "data"), "rows": f"{folder}/rows", "memory": memory}
        told |= {"threads": args.threads, "spill": spill, "protection": args.protection, "plaintext": is_plaintext}
        return [sys.executable, str(Path(__file__).with_name("duckdb_query.py")), json.dumps(told)]
    flags = [str(args.bin / "farpool-sql"), "--quiet", "--pool", urls.get(way, next(iter(urls.values())))]
    flags += ["--plaintext"] if is_plaintext else []
    if memory is not None:
        flags += ["--memory", f"{memory}B", "--spill", "far" if is_far else "disk"]
        flags += ["--protection", args.protection] if is_far else []
    flags += [f"--parquet={path.stem}={path}" for path in sorted(args.data.glob("data/*.parquet"))]
    return [*flags, "--explain", "--json", "--format", "csv", "--output", f"{folder}/rows", "--file", str(query)]


def run(args: argparse.Namespace, way: str, urls: dict[str, str], number: int) -> dict | str:
    """Returns the output of one run with its rows, or the reason why it failed."""
    folder = Path(tempfile.mkdtemp(prefix="farpool-tpc-", dir=TMPFS if way == NULL else args.disk))
    try:
        with contextlib.ExitStack() as stack:
            is_limited = args.group and way != ENOUGH
            group = stack.enter_context(Group("tpc", args.memory + args.group)) if is_limited else None
            done = subprocess.run(
                command(args, way, urls, number, folder),
                capture_output=True,
                text=True,
                env={**os.environ, "TMPDIR": str(folder)},
                preexec_fn=group.join if group else None,
            )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            return next((line for line in lines if "Error" in line), lines[-1])
        rows = sorted((folder / "rows").read_text().splitlines())
        if args.engine == "duckdb":
            return {**json.loads(done.stdout), "rows": rows}
        told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")][-1]
        files = told["temporary_files"] or {}
        written = sum(spill["bytes"] for spill in told["spills"])
        return {"seconds": told["seconds"], "written": written, "rows": rows, "files": files}
    finally:
        shutil.rmtree(folder)


def alike(left: list[str], wanted: list[str]) -> bool:
    """Reports whether two values are equal, apart from the last digits of floats."""

    def same(one: str, other: str) -> bool:
        try:
            return abs(float(one) - float(other)) <= 1e-9 * abs(float(other))
        except ValueError:
            return one == other

    pairs = [(one.split(","), other.split(",")) for one, other in zip(left, wanted, strict=False)]
    return len(left) == len(wanted) and all(len(a) == len(b) and all(map(same, a, b)) for a, b in pairs)


def measure(args: argparse.Namespace, ways: list[str], urls: dict[str, str], number: int) -> dict[str, dict]:
    seen: dict[str, dict] = {way: {"all": []} for way in ways}
    wanted = None
    for turn in range(args.rounds + 1):
        for shift in range(len(ways)):
            # "enough" runs first, because the others are compared with its rows.
            way = ways[(shift + turn) % len(ways)]
            if "failed" in seen[way]:
                continue
            if sys.stderr.isatty():
                print(f"\rq{number:02} round {turn} of {args.rounds}: {way:12}", end="", file=sys.stderr, flush=True)
            told = run(args, way, urls, number)
            if isinstance(told, str):
                seen[way]["failed"] = told
                continue
            wanted = told["rows"] if wanted is None else wanted
            if told["rows"] != wanted and not alike(told["rows"], wanted):
                sys.exit(f"q{number:02} {way} returns {told['rows'][:3]}, not {wanted[:3]}")
            if turn:
                seen[way]["all"].append(told["seconds"])
            seen[way]["written"] = told["written"]
    for one in seen.values():
        if one["all"] and "failed" not in one:
            one["seconds"] = statistics.median(one["all"])
    return seen


def mean(ratios: list[float]) -> str:
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f}" if ratios else "-"


def show(args: argparse.Namespace, ways: list[str], found: dict[int, dict]) -> None:
    far = [way for way in ways if way not in (ENOUGH, DISK)]
    print(
        f"| query | MiB spilled | {' | '.join(f'{way}, s' for way in ways)} | {' | '.join(f'disk/{w}' for w in far)} |"
    )
    print(f"| --- |{' --- |' * (1 + len(ways) + len(far))}")
    spilling, all_of_them = {}, {}
    for number, seen in found.items():
        seconds = {way: one["seconds"] for way, one in seen.items() if "seconds" in one}
        written = seen.get(DISK, {}).get("written", 0)
        cells = [f"{seconds[way]:.2f}" if way in seconds else "fails" for way in ways]
        ratios = [f"{seconds[DISK] / seconds[way]:.2f}" if {DISK, way} <= seconds.keys() else "-" for way in far]
        print(f"| {number} | {written >> 20} | {' | '.join(cells)} | {' | '.join(ratios)} |")
        if len(seconds) == len(ways):
            all_of_them[number] = seconds
            if written >= SPILLS_BYTES:
                spilling[number] = seconds
    print()
    for name, those in (("that spill", spilling), ("that all ways complete", all_of_them)):
        cells = []
        for way in ways[1:] if those else []:
            of_enough = mean([seconds[way] / seconds[ENOUGH] for seconds in those.values()])
            of_disk = mean([seconds[DISK] / seconds[way] for seconds in those.values() if DISK in seconds])
            cells.append(f"{way} {of_enough}x of enough" + (f", disk/{way} {of_disk}" if way != DISK else ""))
        print(f"{len(those)} queries {name}, geometric means: {'; '.join(cells)}.")
    for number, seen in found.items():
        for way in ways:
            if "failed" in seen[way]:
                print(f"q{number:02} {way} failed: {seen[way]['failed'][:160]}")
    group = f", in memory cgroups of {(args.memory + args.group) >> 20} MiB" if args.group else ""
    sizes = f"{args.memory >> 20} MiB{group}, {args.threads} threads, protection {args.protection}"
    print(f"\n{args.suite} on {args.engine}, {sizes}; medians of {args.rounds} rounds.")


def main() -> None:
    args = arguments()
    with pools(args) as urls:
        ways = [ENOUGH, DISK, *urls, NULL]
        ways = [way for way in ways if way == ENOUGH or not args.ways or way in args.ways]
        found = {number: measure(args, ways, urls, number) for number in args.queries}
    if sys.stderr.isatty():
        print(f"\r{'':60}\r", end="", file=sys.stderr)
    show(args, ways, found)
    if args.json:
        told = {
            "suite": args.suite,
            "engine": args.engine,
            "memory": args.memory,
            "group": args.group,
            "protection": args.protection,
        }
        args.json.write_text(json.dumps({**told, "queries": found}, indent=1) + "\n")
    if args.plot:
        seconds = {way: [seen[way].get("seconds") for seen in found.values()] for way in ways}
        title = f"{args.suite} on {args.engine}, {args.memory >> 20} MiB: seconds"
        args.plot.write_text(draw([Bars(title, [f"q{number}" for number in found], seconds)]))


if __name__ == "__main__":
    main()
