#!/usr/bin/env python3
"""Figures 2, 4, 5, 6 and table 1 of "Hash Joins Meet CXL: A Fresh Look", measured on Farpool.

    bench/papers/hash-joins-cxl/run.py                        # virtual, emulated, and numa if there are two nodes
    bench/papers/hash-joins-cxl/run.py emulated --size 256MiB --rounds 5 --plots DIR --json FILE
    bench/papers/hash-joins-cxl/run.py --quick                # a test that it runs: half a minute, figures mean little

Experiments, machine and results: README.md beside this file. Needs Python from 3.11 on, and Rust.
"""

import argparse
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

from drawing import Bars, Lines, draw
from environment import PROGRAMS, ROOT, TARGET

BACKENDS = ("virtual", "emulated", "numa")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Bytes of the paper's probe side: 256 Mi rows of 16 bytes.
PAPER_BYTES = 4 << 30
LEAST_SIZE, MOST_SIZE = 4 << 20, 16 << 30
# Near and far memory that a join with the largest build side needs, in multiples of the probe side.
ROOM = 8
# Parameters from table 1, and from section 4.3 for the best measured ones.
PAPER = {"partitioned": (2.3534, 1.0977, 0.5528, 1.1703), "non_partitioned": (3.7879, 0.3746, 0.5104, 1.0214)}
PAPER_BEST = (0.4972, 1.2719)


def size_bytes(text: str) -> int:
    unit = text[-3:]
    if unit not in UNITS or not text[:-3].isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write it as 64MiB or 1GiB")
    size = int(text[:-3]) * UNITS[unit]
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise argparse.ArgumentTypeError(f"{text}: 4MiB to 16GiB are permitted")
    return size


def size_text(size: int) -> str:
    return f"{size >> 30}GiB" if size % (1 << 30) == 0 else f"{size >> 20}MiB"


def node_bytes() -> list[int]:
    """Returns the free memory, in bytes, of each NUMA node that has memory."""
    found = []
    for meminfo in sorted(Path("/sys/devices/system/node").glob("node*/meminfo")):
        words = {line.split()[2]: int(line.split()[3]) << 10 for line in meminfo.read_text().splitlines() if line}
        if words.get("MemTotal:", 0):
            found.append(words.get("MemFree:", 0))
    return found


def default_size(backend: str) -> int:
    if backend != "numa":
        # Emulated far memory is slowed to a twentieth, so a larger table would only take longer. The smallest table has
        # ten chunks of 2 MiB at this size.
        return 112 << 20
    size = PAPER_BYTES
    while size > LEAST_SIZE and size * ROOM > min(node_bytes()):
        size //= 2
    return size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=", ".join(BACKENDS))
    parser.add_argument(
        "--size", type=size_bytes, help="size of the probe side [default: chosen by the memory of the machine]"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, in each of which all contenders take turns; medians are shown"
    )
    parser.add_argument(
        "--slower", type=float, default=20.0, help="divide the paper's rates by this number in the emulation"
    )
    parser.add_argument("--quick", action="store_true", help="8MiB and one round")
    parser.add_argument("--no-build", action="store_true", help="use the program that is built already")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file, as JSON")
    parser.add_argument("--plots", metavar="DIR", help="draw the figures to this folder, as SVG")
    args = parser.parse_args()
    wrong = [name for name in args.backends if name not in BACKENDS]
    if wrong:
        parser.error(f"{wrong[0]}: {', '.join(BACKENDS)} are permitted")
    if not 1 <= args.rounds <= 100:
        parser.error(f"--rounds {args.rounds}: 1 to 100 are permitted")
    if not args.backends:
        args.backends = ["virtual", "emulated", *(["numa"] if len(node_bytes()) > 1 else [])]
    return args


def measure(backend: str, args: argparse.Namespace) -> dict:
    size = args.size or (8 << 20 if args.quick else default_size(backend))
    rounds = 1 if args.quick else args.rounds
    command = [PROGRAMS / "farpool", "bench", "tiers", "--backend", backend, "--size", size_text(size)]
    command += ["--rounds", rounds, "--slower", args.slower, "--json"]
    print(f"{backend}: probe side {size_text(size)}, {rounds} rounds ...", file=sys.stderr, flush=True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def table(header: list[str], rows: list[list]) -> list[str]:
    def text(cell: object) -> str:
        return f"{cell:.3f}" if isinstance(cell, float) else str(cell)

    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return [*lines, *("| " + " | ".join(map(text, row)) + " |" for row in rows), ""]


def phi(lam: float) -> float:
    return lam / (2 * lam**0.5 - 1) if lam >= 1 else 1.0


def best(run: dict) -> dict:
    return max(run["figure_5"], key=lambda point: point["gain"])


def parameters(runs: dict[str, dict]) -> list[str]:
    """Returns table 1: the paper's parameters, those derived from bytes alone, and the measured ones of each
    backend."""
    rows = []
    for join, name in (("partitioned", "PHJ"), ("non_partitioned", "NPHJ")):
        is_partitioned = join == "partitioned"
        rows.append([name, "paper", *PAPER[join], f"{PAPER_BEST[1]} at {PAPER_BEST[0]}" if is_partitioned else "-"])
        for label, run in runs.items():
            of, by_bytes = run["table_1"][join], run["figure_5_best_by_bytes"]
            if label == next(iter(runs)):
                of_bytes = [of["bytes"][key] for key in ("k", "m", "x", "gain")]
                found = f"{by_bytes['gain']:.3f} at {by_bytes['x']:.2f}" if is_partitioned else "-"
                rows.append([name, "bytes" if label != "numa" else "bytes, numa", *of_bytes, found])
            taken = [of["taken"][key] for key in ("k", "m", "x", "gain")]
            found = f"{best(run)['gain']:.3f} at {best(run)['x']:.2f}" if is_partitioned else "-"
            rows.append([name, label, *taken, found])
    return ["## Table 1", "", *table(["join", "", "k", "m", "x*", "g(x*)", "best gain of the phase"], rows)]


def figures(label: str, run: dict) -> list[str]:
    fastest = max(point["bytes_per_s"] for point in run["figure_2"])
    of_bytes = max(point["by_bytes"] for point in run["figure_2"])
    moves = [
        [f"{p['x']:.1f}", f"{2 / p['x'] - 1:.2f}", p["bytes_per_s"] / fastest, p["by_bytes"] / of_bytes]
        for p in run["figure_2"]
    ]
    points = [[f"{p['x']:.2f}", p["gain"], p["by_bytes"]] for p in run["figure_5"]]
    lambdas = [["paper", 2.5353, phi(2.5353)]]
    lambdas += [[whose, of["lambda"], of["phi"]] for whose, of in run["table_1"]["partitioned"].items()]
    bars = [
        [bar["join"], bar["build_probe"], bar["strategy"], bar["near"], *(f"{s * 1e3:.1f}" for s in bar["seconds"]),
         bar["gain"], bar["by_bytes"], bar["paper"]]
        for bar in run["figure_4"]
    ]  # fmt: skip
    one_pass, scaled = run["one_pass"], f"the paper's over {PAPER_BYTES / run['probe_bytes']:.3g}"
    header = ["join", "build:probe", "strategy", "near", "move ms", "partition, build", "join, probe", "gain"]
    return [
        f"## {label}: probe side {size_text(run['probe_bytes'])}, {scaled}",
        "",
        "### Figure 2: copying all of an input to a mix with the near share x, over the fastest",
        "",
        *table(["x", "T(x)", "taken", "bytes"], moves),
        "### Figure 4: whole joins, gain over staying in the far tier; *: ours",
        "",
        *table([*header, "bytes", "paper"], bars),
        "### Figure 5: gain of moving the share x, then partitioning",
        "",
        *table(["x", "taken", "bytes"], points),
        f"One pass that writes near, nothing moved: {one_pass['gain']:.3f}; from bytes {one_pass['by_bytes']:.3f}.",
        "",
        "### Figure 6: what the model projects of lambda = m k",
        "",
        *table(["", "lambda", "phi"], lambdas),
        f"Rates in GB/s: near {run['rates']['near'] / 1e9:.2f}, far {run['rates']['far'] / 1e9:.2f}, together "
        f"{run['rates']['together'] / 1e9:.2f}; {run['rounds']} rounds; {run['machine']}.",
        "",
    ]


def plot(run: dict) -> str:
    """Draws figures 2, 5 and 6, and below them figure 4: a bar for each strategy, and above it the factor by which the
    strategy is faster than the far tier alone."""
    moves, curve, model = run["figure_2"], run["figure_5"], run["table_1"]["partitioned"]
    fastest = max(max(p["bytes_per_s"], p["by_bytes"]) for p in moves)
    k, m, paper = model["taken"]["k"], model["taken"]["m"], PAPER["partitioned"][0] * PAPER["partitioned"][1]
    copies = {
        "taken": [(p["x"], p["bytes_per_s"] / fastest) for p in moves],
        "from bytes": [(p["x"], p["by_bytes"] / fastest) for p in moves],
    }
    gains = {
        "taken": [(p["x"], p["gain"]) for p in curve],
        "from bytes": [(p["x"], p["by_bytes"]) for p in curve],
        "g(x) of k and m": [(x, (k * m * x + k) / (m * x * x + x + k)) for p in curve if (x := p["x"]) <= run["mixed"]],
        "paper": [PAPER_BEST],
    }
    best_by_lambda = {
        "phi": [(step / 20, phi(step / 20)) for step in range(121)],
        "taken": [(model["taken"]["lambda"], model["taken"]["phi"])],
        "from bytes": [(model["bytes"]["lambda"], model["bytes"]["phi"])],
        "paper": [(paper, phi(paper))],
    }
    rows = [
        [
            Lines("figure 2: copying to a mix with x near, over the fastest", "x", copies),
            Lines("figure 5: gain of moving the share x, then partitioning", "x", gains, least=0.6),
            Lines("figure 6: gain that the model projects", "lambda = m k", best_by_lambda, least=0.9),
        ]
    ]
    for join in dict.fromkeys(bar["join"] for bar in run["figure_4"]):
        bars = [bar for bar in run["figure_4"] if bar["join"] == join]
        named = [(bar["strategy"], f"{bar['build_probe']} {bar['near'].strip('-')}") for bar in bars]
        labels = ["\n".join(line for words in each for line in textwrap.wrap(words, 12)) for each in named]
        phases = {
            phase: [bar["seconds"][at] * 1e3 for bar in bars]
            for at, phase in enumerate(("move", "partition, build", "join, probe"))
        }
        above = [f"{bar['gain']:.2f}" for bar in bars]
        title = f"figure 4: {join} joins, ms; above, the gain over the far tier"
        rows.append([Bars(title, labels, phases, above)])
    caption = f"{run['backend']}, probe side {size_text(run['probe_bytes'])}, {run['rounds']} rounds; {run['machine']}"
    return draw(*rows, caption=caption)


def main() -> None:
    args = arguments()
    if not args.no_build:
        print("building the farpool command ...", file=sys.stderr)
        build = ["cargo", "build", "--quiet", "--release", "--locked", "--package", "farpool-cli"]
        build += ["--package", "farpool-bench"]
        subprocess.run(build, check=True, cwd=ROOT, env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)})
    runs = {backend: measure(backend, args) for backend in args.backends}
    lines = parameters(runs)
    for label, run in runs.items():
        lines += figures(label, run)
    print("\n".join(lines))
    for label, run in runs.items() if args.plots else ():
        Path(args.plots).mkdir(parents=True, exist_ok=True)
        Path(args.plots, f"hash-joins-cxl-{label}.svg").write_text(plot(run))
    if "emulated" in runs:
        print("Emulated: ratios mean something, times do not.")
    if args.json:
        Path(args.json).write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
