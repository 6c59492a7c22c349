#!/usr/bin/env python3
"""Tables 1, 2 and 3 of "Move your code, not your data" (HCDS 2025), measured on Farpool.

    bench/papers/move-your-code/run.py                     # all three: some minutes
    bench/papers/move-your-code/run.py table2 --calls 20000 --json FILE --plots DIR
    bench/papers/move-your-code/run.py --quick             # a test that it runs: under a minute, figures mean little

Experiments, machine and results: README.md beside this file. Needs Python from 3.11 on, Rust and cc. Table 3 runs
DuckDB in the project's environment (`make wheel`), which is built if it is missing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

import drawing
import environment
from environment import CACHE, PROGRAMS, ROOT, TARGET

TABLES = ("table1", "table2", "table3")
# Table 1: instructions per cycle of a core, and its clock rates in GHz.
WIDTH, CLOCKS = 6, (2.0, 3.4, 4.0)
PAPER_NS = {
    "L1/L2": 10,
    "L3": 30,
    "DDR5": 100,
    "cross socket": 200,
    "CXL": 300,
    "Optane": 350,
    "intra rack CXL": 400,
    "context switch": 1_000,
    "inter rack CXL": 10_000,
}
# Table 2 of the paper: microseconds, and the number of accesses from which shipping is faster.
PAPER_TABLE_2 = {
    "thread migration": (62, 419),
    "resident": (52, 351),
    "native, first use": (115, 788),
    "wasm, first use, 1 function": (8_300, 57_448),
}
# Table 3 of the paper: by rows kept and number of groups, the seconds with a remote table, a local table and a shipped
# plan.
PAPER_TABLE_3 = {
    "paper-25%-1": (4.2, 3.5, 3.6),
    "paper-25%-1000": (4.2, 3.6, 3.6),
    "paper-25%-250000": (7.1, 6.8, 9.9),
    "paper-4%-1": (3.4, 1.8, 1.8),
    "paper-4%-1000": (3.4, 1.8, 1.8),
    "paper-4%-250000": (3.9, 2.4, 2.8),
    "paper-4%-2500000": (4.6, 2.8, 14.9),
}


def size_bytes(text: str) -> int:
    number, unit = text[:-3], text[-3:]
    if unit not in ("MiB", "GiB") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of MiB or GiB is permitted")
    return int(number) << {"MiB": 20, "GiB": 30}[unit]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--calls", type=int, default=5_000, help="calls of each kind, for table 2 [default: 5000]")
    parser.add_argument(
        "--size", type=size_bytes, default="256MiB", help="size of the far table, for table 3 [default: 256MiB]"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, in each of which all contenders take turns; medians are shown"
    )
    parser.add_argument("--quick", action="store_true", help="few calls, a small table and one round")
    parser.add_argument("--no-build", action="store_true", help="use the programs that are built already")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file, as JSON")
    parser.add_argument("--plots", metavar="DIR", help="draw table 3 to this folder, as SVG")
    args = parser.parse_args()
    wrong = [name for name in args.tables if name not in TABLES]
    if wrong:
        parser.error(f"{wrong[0]}: {', '.join(TABLES)} are permitted")
    if not 100 <= args.calls <= 1_000_000 or not 1 <= args.rounds <= 100:
        parser.error(f"--calls {args.calls} --rounds {args.rounds}: 100 to 1000000, and 1 to 100, are permitted")
    if args.quick:
        args.calls, args.size, args.rounds = 100, 64 << 20, 1
    args.tables = args.tables or list(TABLES)
    return args


def call(*command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def build() -> None:
    environment.build("farpool-cli", "farpool-bench", "farpool-sandbox")
    places = os.environ | {"CARGO_TARGET_DIR": str(TARGET), "CACHE": str(CACHE)}
    for command in (["examples/functions/build.sh"], ["examples/functions/build.sh", "--native"]):
        subprocess.run(command, check=True, cwd=ROOT, env=places)


def table(header: list[str], rows: list[list]) -> list[str]:
    def text(cell: object) -> str:
        return f"{cell:,.2f}" if isinstance(cell, float) else "-" if cell is None else str(cell)

    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return [*lines, *("| " + " | ".join(map(text, row)) + " |" for row in rows), ""]


def functions(args: argparse.Namespace) -> dict:
    """Returns the times of calls, page reads and accesses over both transports."""
    print("calls of functions ...", file=sys.stderr, flush=True)
    farpool = PROGRAMS / "farpool"
    command = [farpool, "bench", "functions", "--calls", args.calls, "--rounds", args.rounds, "--json"]
    if args.quick:
        command += ["--size", "8MiB", "--steps", 10_000, "--work", "1,64", "--waiting", "adaptive"]
    return json.loads(call(*command, "--examples", CACHE / "functions"))


def first_table(found: dict) -> list[str]:
    """Returns table 1: the instructions that a core could have executed while it waits."""
    rows = [
        [name, f"{ns:,} ns, paper", *(f"{ns * WIDTH * clock:,.0f}" for clock in CLOCKS)]
        for name, ns in PAPER_NS.items()
    ]
    seen = {f"{level['level']} of this machine": level["ns"] for level in found["memory"]}
    for point in found["points"]:
        way = f"{point['transport']}, {point['waiting']}"
        kinds = {kind["kind"]: kind["median_us"] * 1e3 for kind in point["kinds"]}
        seen[f"empty round trip, {way}"] = kinds["empty round trip"]
        seen[f"page of 8 KiB, {way}"] = kinds["page of 8 KiB read"]
    rows += [[name, f"{ns:,.0f} ns", *(f"{ns * WIDTH * clock:,.0f}" for clock in CLOCKS)] for name, ns in seen.items()]
    header = ["wait", "takes", *(f"instructions, {clock} GHz" for clock in CLOCKS)]
    return ["## Table 1: what a wait costs a core that does six instructions at once", "", *table(header, rows)]


def second_table(found: dict) -> list[str]:
    migration = found["migration"]["there_and_back_us"]
    rows = [["thread migration", "there and back", migration, None, None, *PAPER_TABLE_2["thread migration"]]]
    for point in found["points"]:
        for kind in point["kinds"]:
            if kind["kind"].startswith(("empty", "page")):
                continue
            paper = PAPER_TABLE_2.get(kind["kind"], (None, None))
            way = f"{point['transport']}, {point['waiting']}"
            beyond, accesses = kind["beyond_empty_us"], kind["break_even_accesses"] or "never"
            rows.append([kind["kind"], way, kind["median_us"], beyond, accesses, *paper])
    header = ["call", "over", "us", "beyond an empty round trip", "pays from accesses", "paper, us", "paper, accesses"]
    access = [
        [
            f"{point['transport']}, {point['waiting']}",
            *(f"{name} {ns:.1f} ns" for name, ns in point["access_ns"].items()),
        ]
        for point in found["points"]
    ]
    width = max(len(row) for row in access)
    access = [row + [""] * (width - len(row)) for row in access]
    return [
        "## Table 2: a call, and the dependent accesses from which on it beats reading a page for each",
        "",
        *table(header, rows),
        *table(["over", *["a dependent access"] * (width - 1)], access),
    ]


def groups(args: argparse.Namespace) -> list:
    print("groupings ...", file=sys.stderr, flush=True)
    command = [PROGRAMS / "farpool", "bench", "place", "--cells", "paper", "--size", f"{args.size}B"]
    found = json.loads(call(*command, "--rounds", args.rounds, "--json"))
    if args.plots:
        Path(args.plots).mkdir(parents=True, exist_ok=True)
        Path(args.plots, "move-your-code.svg").write_text(drawing.place(found))
    return found["runs"]


def groups_in_duckdb(args: argparse.Namespace) -> list:
    print("groupings in DuckDB ...", file=sys.stderr, flush=True)
    groupings = [[int(number) for number in re.findall("[0-9]+", name)] for name in PAPER_TABLE_3]
    told = {"groupings": groupings, "size": args.size, "rounds": args.rounds}
    told |= {"farpool": str(PROGRAMS / "farpool")}
    script = Path(__file__).with_name("groupings.py")
    return json.loads(call(environment.python(), script, json.dumps(told)))


def third_table_in_duckdb(cells: list) -> list[str]:
    """Returns a row for each grouping and transport. The local table and the shipped statement are the same for both
    transports."""
    seconds = {(one["kept"], one["groups"], one["way"], one["transport"]): one["seconds"] for one in cells}
    rows = []
    for name, (remote, local, shipped) in PAPER_TABLE_3.items():
        kept, groups = map(int, re.findall("[0-9]+", name))
        at_home, sent = seconds[kept, groups, "local", ""], seconds[kept, groups, "ship", "tcp"]
        for transport in ("shm", "tcp"):
            fetched, pushed = (seconds[kept, groups, way, transport] for way in ("relation", "pushdown"))
            times = [f"{one * 1e3:.1f}" for one in (fetched, at_home, sent, pushed)]
            ratios = [fetched / at_home, fetched / sent, fetched / pushed, remote / local, remote / shipped]
            rows.append([name.removeprefix("paper-"), transport, *times, *ratios])
    header = [
        "kept-groups",
        "over",
        "relation ms",
        "local table",
        "ship",
        "sql_pushdown",
        "relation/local",
        "relation/ship",
    ]
    header += ["relation/pushdown", "paper: remote/local", "paper: remote/ship"]
    return ["## Table 3 in DuckDB, one thread each: groupings of a selection", "", *table(header, rows)]


def third_table(runs: list) -> list[str]:
    rows = []
    for run in runs:
        for cell in run["cells"]:
            fetch, ship, split, auto = (cell["seconds"][placement] for placement in ("fetch", "ship", "split", "auto"))
            remote, _, shipped = PAPER_TABLE_3[cell["query"]]
            times = [f"{seconds * 1e3:.1f}" for seconds in (fetch, ship, split, auto)]
            over_best = auto / min(fetch, ship, split)
            name = cell["query"].removeprefix("paper-")
            rows.append([name, run["link"], *times, fetch / ship, fetch / auto, over_best, remote / shipped])
    header = [
        "kept-groups",
        "over",
        "fetch ms",
        "ship",
        "split",
        "auto",
        "fetch/ship",
        "fetch/auto",
        "auto/best",
        "paper: remote/ship",
    ]
    return ["## Table 3: groupings of a selection", "", *table(header, rows)]


def main() -> None:
    args = arguments()
    if not args.no_build:
        build()
    found: dict = {}
    lines: list[str] = []
    if {"table1", "table2"} & set(args.tables):
        found["functions"] = functions(args)
        lines += first_table(found["functions"]) if "table1" in args.tables else []
        lines += second_table(found["functions"]) if "table2" in args.tables else []
    if "table3" in args.tables:
        found["groups"] = groups(args)
        lines += third_table(found["groups"])
        found["duckdb"] = groups_in_duckdb(args)
        lines += third_table_in_duckdb(found["duckdb"])
    print("\n".join(lines))
    print(
        "Both sides on one machine: loopback is not a network. The paper's times are of two sockets and message queues."
    )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
