#!/usr/bin/env python3
"""Measures the figures of "Farview: Disaggregated Memory with Operator Off-loading for Database Engines" on Farpool.

    bench/papers/farview/run.py all --plots DIR      # everything: some minutes
    bench/papers/farview/run.py fig8 fig9 --size 1GiB --rounds 9 --json FILE
    bench/papers/farview/run.py all --quick          # a test that it runs: under a minute, figures mean little

Experiments, machine and results: README.md beside this file.
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

import environment

NAMES = ("fig6", "fig7", "fig8", "fig9", "groups", "fig10", "fig11", "fig12")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LEAST_SIZE, MOST_SIZE = 64 << 10, 4 << 30
# Colours of the series that every figure has. Other series get the remaining colours in turn.
COLOURS = {
    "FV": "#0060a8",
    "FV ship": "#0060a8",
    "FV split": "#7a3e9d",
    "FV fetch": "#009e90",
    "RCPU": "#d04000",
    "LCPU best": "#222222",
    "LCPU copy": "#222222",
    "LCPU DuckDB": "#a09000",
    "LCPU Polars": "#66a0d0",
    "LCPU DataFusion": "#905020",
    "LCPU pyarrow": "#999999",
}
OTHER_COLOURS = ("#c0306a", "#508030", "#0060a8", "#e08000")


def size_bytes(text: str) -> int:
    unit = text[-3:]
    if unit not in UNITS or not text[:-3].isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write it as 64KiB, 256MiB or 1GiB")
    size = int(text[:-3]) * UNITS[unit]
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise argparse.ArgumentTypeError(f"{text}: 64KiB to 4GiB are permitted")
    return size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "figures", nargs="+", choices=[*NAMES, "all"], metavar="FIGURE", help=", ".join([*NAMES, "all"])
    )
    parser.add_argument("--size", type=size_bytes, help="size of the largest table [default: 256MiB]")
    parser.add_argument(
        "--rounds", type=int, help="rounds, in each of which all contenders take turns; medians are shown [default: 5]"
    )
    parser.add_argument("--transports", default="shm,tcp", help="transports of farpool [default: shm,tcp]")
    parser.add_argument("--quick", action="store_true", help="1MiB and one round, unless others are given")
    parser.add_argument(
        "--pool", metavar="farpool://HOST:PORT", help="address of an existing pool [default: start one]"
    )
    parser.add_argument(
        "--plaintext", action="store_true", help="connect to --pool without TLS, even on another machine"
    )
    parser.add_argument(
        "--rcpu-netns", metavar="NAME", help="network namespace in which RCPU serves [default: this one]"
    )
    parser.add_argument("--rcpu-ip", default="127.0.0.1", help="address of RCPU in its namespace [default: 127.0.0.1]")
    parser.add_argument(
        "--patience", type=float, default=0, metavar="SECONDS",
        help="total time to wait for a quiet machine: rounds begin when its CPUs are idle [default: 0]",
    )  # fmt: skip
    parser.add_argument("--no-build", action="store_true", help="use the programs and the wheel that are built already")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file, as JSON")
    parser.add_argument("--plots", metavar="DIR", help="draw each figure to this folder, as SVG")
    args = parser.parse_args()
    args.size = args.size or (1 << 20 if args.quick else 256 << 20)
    args.rounds = args.rounds or (1 if args.quick else 5)
    if not 1 <= args.rounds <= 1_000:
        parser.error(f"--rounds {args.rounds}: 1 to 1000 are permitted")
    args.transports = tuple(args.transports.split(","))
    if not args.transports or not set(args.transports) <= {"shm", "tcp"}:
        parser.error(f"--transports {','.join(args.transports)}: shm and tcp are permitted")
    args.figures = [name for name in NAMES if name in args.figures or "all" in args.figures]
    return args


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def report(figure) -> str:
    from measuring import tables_of

    lines = [f"## {figure.name}: {figure.title}", "", f"The paper: {figure.paper}"]
    for panel in figure.panels:
        lines += ["", f"### {panel.title}", "", *tables_of(panel)]
    lines += [line for note in figure.notes for line in ("", note)]
    return "\n".join([*lines, ""])


def plot(figure) -> str:
    """Draws all panels, three in a row. Dashed lines are tcp, solid lines shm."""
    from drawing import Lines, draw, tick_text
    from measuring import size_text, y_text

    panels, names = [], {}
    for panel in figure.panels:
        shown = panel.series
        if "LCPU best" in shown:
            # Only these two of the local engines are drawn. The tables show all of them.
            drawn = ("LCPU best", "LCPU DuckDB")
            shown = {name: points for name, points in shown.items() if not name.startswith("LCPU ") or name in drawn}
        series = {name: [(point.x, point.median) for point in points] for name, points in shown.items()}
        is_size = panel.x_unit == "bytes"
        panels.append(
            Lines(
                f"{panel.title}, GB/s" if panel.y_unit == "GB/s" else panel.title,
                panel.x_label,
                series,
                is_log=True,
                x_text=(lambda x: size_text(x).replace("iB", "").replace(" ", "")) if is_size else tick_text,
                y_text=(lambda y, panel=panel: y_text(panel, y)) if panel.y_unit == "s" else tick_text,
            )
        )
        for name in series:
            known = name.rsplit(", ", 1)[0] if name.startswith("FV") else name.replace(",", "")
            names[name] = COLOURS.get(known) or OTHER_COLOURS[len(names) % len(OTHER_COLOURS)]
    rows = [panels[at : at + 3] for at in range(0, len(panels), 3)]
    return draw(*rows, colours=names, dashed=[name for name in names if name.endswith("tcp")])


def versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("farpool", "duckdb", "polars", "datafusion", "pyarrow"))


def main() -> None:
    args = arguments()
    if not args.no_build:
        environment.build("farpool-cli", "farpool-bench", "farpool-farview-rcpu")
        sys.argv.append("--no-build")
    environment.enter()
    from contenders import Place
    from figures import FIGURES, Settings
    from measuring import Quiet

    begun, found = time.monotonic(), []
    head = {"machine": machine(), "versions": versions(), "size": args.size, "rounds": args.rounds}
    head["load_before"] = os.getloadavg()[0]
    quiet = Quiet(args.patience)
    place = Place(args.transports, args.pool, args.plaintext, args.rcpu_netns, args.rcpu_ip)
    for name in args.figures:

        def progress(text: str, name: str = name) -> None:
            print(f"[{time.monotonic() - begun:6.1f} s] {name}: {text}", file=sys.stderr, flush=True)

        found.append(FIGURES[name](Settings(args.size, args.rounds, place, quiet, progress)))
        if args.plots:
            Path(args.plots).mkdir(parents=True, exist_ok=True)
            (Path(args.plots) / f"farview-{name}.svg").write_text(plot(found[-1]))
    head |= {"load_after": os.getloadavg()[0], "rounds_in_all": quiet.rounds, "rounds_disturbed": quiet.disturbed}
    print("\n".join(report(figure) for figure in found))
    print(f"{head['machine']}; {head['versions']}.")
    print(
        f"Tables of up to {args.size >> 20} MiB, medians of {args.rounds} rounds, {time.monotonic() - begun:.0f} s;",
        end=" ",
    )
    print(f"load {head['load_before']:.1f} before, {head['load_after']:.1f} behind.")
    print(f"{quiet.disturbed} of {quiet.rounds} rounds began while other programs ran.")
    if args.json:
        figures = [dataclasses.asdict(figure) for figure in found]
        Path(args.json).write_text(json.dumps(head | {"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
