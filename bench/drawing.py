#!/usr/bin/env python3
"""Draws figures as SVG. A file has some kilobytes, is the same for the same figures, and needs no package.

    farpool bench io --json | bench/drawing.py io > io.svg                        # also for waiting
    bench/drawing.py place place-1gbit.json place-10gbit.json local.json > place.svg      # a row for each link

The scripts of papers and engines draw with the functions of this module.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 32, 46
LINE = 14
CELL_HEIGHT, CELLS_LEFT = 42, 130
COLOURS = ("#222222", "#d04000", "#0060a8", "#7a3e9d", "#009e90", "#a09000", "#999999", "#c0306a", "#508030")


def tick_text(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"{value / 1e3:g}k" if value < 1e7 else f"{value / 1e6:g}M"


class Panel:
    """A diagram: its title, its series and its size."""

    title: str
    series: dict
    width, height = WIDTH, HEIGHT


@dataclass
class Bars(Panel):
    """Bars for each name within each group, side by side or stacked. A bar that was not measured is None."""

    title: str
    groups: Sequence[str]
    series: dict[str, Sequence[float | None]]
    # Labels above the stacks. The bars are stacked if there are labels.
    above: Sequence[str] = ()

    def __post_init__(self) -> None:
        lines = [group.split("\n") for group in self.groups]
        each = max(46, 8 + 6 * max(len(line) for group in lines for line in group))
        self.width = max(WIDTH, LEFT + RIGHT + each * len(lines))
        self.height = HEIGHT + LINE * (max(map(len, lines)) - 1)

    def parts(self, strokes: dict[str, str]) -> list[str]:
        stacks = [[value or 0.0 for value in group] for group in zip(*self.series.values(), strict=True)]
        marks = ticks(0.0, max(map(sum if self.above else max, stacks)) or 1.0)
        each = (self.width - LEFT - RIGHT) / len(self.groups)
        parts, each_bar = frame(self, marks, linear(marks), tick_text), each * 0.8 / len(self.series)
        for at, (group, stack) in enumerate(zip(self.groups, stacks, strict=True)):
            middle = LEFT + (at + 0.5) * each
            for number, line in enumerate(group.split("\n")):
                parts.append(text(middle, HEIGHT - BOTTOM + 16 + number * LINE, line))
            for number, (name, values) in enumerate(self.series.items()):
                if values[at] is None:
                    continue
                x, width, least = middle - each * 0.4 + (number + 0.5) * each_bar, each_bar * 0.92, 0.0
                if self.above:
                    x, width, least = middle, each * 0.8, sum(stack[:number])
                low, high = (height_of(linear(marks)(value)) for value in (least, least + values[at]))
                parts.append(
                    f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" {strokes[name]} stroke-width="{width:.1f}">'
                    f"<title>{escape(name)}: {values[at]:g}</title></path>"
                )
            if self.above:
                parts.append(text(middle, height_of(linear(marks)(sum(stack))) - 4, self.above[at]))
        return parts


@dataclass
class Lines(Panel):
    """Points (x, y) of each name, over two logarithmic axes or none."""

    title: str
    x_label: str
    series: dict[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    is_log: bool = False
    # Least value of the y axis if no axis is logarithmic.
    least: float = 0.0
    x_text: Callable[[float], str] = tick_text
    y_text: Callable[[float], str] = tick_text

    def parts(self, strokes: dict[str, str]) -> list[str]:
        points = [point for each in self.series.values() for point in each if not self.is_log or min(point) > 0]
        xs, ys = zip(*points, strict=True) if points else ((1.0,), (1.0,))
        if self.is_log:
            low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys) * 1.0001))
            across, marks, share = sorted(set(xs)), [10.0**power for power in range(low, high + 1)], logarithmic
        else:
            across, marks, share = ticks(0.0, max(xs)), ticks(self.least, max(ys)), linear
        parts = frame(self, marks, share(marks), self.y_text)

        def place(x: float) -> float:
            return LEFT + 8 + (self.width - LEFT - RIGHT - 16) * share(across)(x)

        parts += [text(place(x), HEIGHT - BOTTOM + 16, self.x_text(x)) for x in across]
        parts.append(text(self.width / 2, HEIGHT - 8, self.x_label))
        for name, each in self.series.items():
            places = [f"{place(x):.1f} {height_of(share(marks)(y)):.1f}" for x, y in each if (x, y) in points]
            parts.append(f'<path d="M{"L".join(places)}" fill="none" {strokes[name]} stroke-width="1.8"/>')
            # A line of length 0 with round ends is a dot.
            spots = "".join(f"M{spot}h0" for spot in places if len(each) <= 20)
            parts.append(f'<path d="{spots}" {strokes[name]} stroke-width="5" stroke-linecap="round"/>')
        return parts


@dataclass
class Cells(Panel):
    """A table in which each cell has a colour and a text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]

    def __post_init__(self) -> None:
        self.series = {}
        self.each = max(84, 8 + 6 * max(map(len, self.columns)))
        self.width = CELLS_LEFT + self.each * len(self.columns) + 16
        self.height = 2 * TOP + CELL_HEIGHT * len(self.rows)

    def parts(self, strokes: dict[str, str]) -> list[str]:
        parts = [text(CELLS_LEFT, 18, self.title, "start", ' font-weight="bold"')]
        middles = [CELLS_LEFT + (at + 0.5) * self.each for at in range(len(self.columns))]
        parts += [text(x, 2 * TOP - 14, column) for x, column in zip(middles, self.columns, strict=True)]
        for at, (name, cells) in enumerate(self.rows):
            y = 2 * TOP + at * CELL_HEIGHT
            parts.append(text(CELLS_LEFT - 10, y + CELL_HEIGHT / 2 + 4, name, "end"))
            for x, (colour, words) in zip(middles, cells, strict=True):
                size = f'x="{x - self.each / 2 + 1}" y="{y + 1}" width="{self.each - 2}" height="{CELL_HEIGHT - 2}"'
                parts += [f'<rect {size} fill="{colour}"/>', text(x, y + CELL_HEIGHT / 2 + 4, words)]
        return parts


def draw(
    *rows: Sequence[Panel], caption: str = "", colours: dict[str, str] | None = None, dashed: Collection[str] = ()
) -> str:
    """Draws rows of panels with a legend and a caption, and returns the SVG. Names that `colours` lacks get a colour in
    turn."""
    panels = [panel for row in rows for panel in row]
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    given = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)} | (colours or {})
    strokes = {name: f'stroke="{given[name]}"' + ' stroke-dasharray="5 3"' * (name in dashed) for name in names}
    width = max((sum(panel.width for panel in row) for row in rows), default=WIDTH)
    parts, top = [], 0
    for row in rows:
        left = 0
        for panel in row:
            parts += [f'<g transform="translate({left},{top})">', *panel.parts(strokes), "</g>"]
            left += panel.width
        top += max(panel.height for panel in row)
    column = 46 + 6 * max(map(len, names), default=0)
    for at, name in enumerate(names):
        x, y = 14 + at % (width // column) * column, top + at // (width // column) * LINE + 8
        parts += [f'<path d="M{x} {y}h22" {strokes[name]} stroke-width="3"/>', text(x + 28, y + 4, name, "start")]
    height = top + LINE * (-(-len(names) // (width // column)) + bool(caption)) + 8
    parts += [text(14, height - 8, caption, "start")] if caption else []
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
    head += 'font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def ticks(least: float, most: float) -> list[float]:
    """Returns four to eight round numbers. The first is not above `least`, and the last is not below `most`."""
    span = most - least or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    step = next(each for each in (step / 5, step / 2, step, step * 2) if span / each <= 7)
    return [step * number for number in range(math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9) + 1)]


def linear(marks: Sequence[float]) -> Callable[[float], float]:
    """Returns a function from a value to its position on an axis, from 0 to 1."""
    return lambda value: (value - marks[0]) / (marks[-1] - marks[0] or 1.0)


def logarithmic(marks: Sequence[float]) -> Callable[[float], float]:
    return lambda value: math.log(value / marks[0]) / (math.log(marks[-1] / marks[0]) or 1.0)


def height_of(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def frame(
    panel: Panel, marks: Sequence[float], share: Callable[[float], float], shown: Callable[[float], str]
) -> list[str]:
    parts = [text(panel.width / 2, 18, panel.title, more=' font-weight="bold"')]
    for value in marks:
        y = height_of(share(value))
        parts.append(f'<path d="M{LEFT} {y:.1f}H{panel.width - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 5, y + 4, shown(value), "end"))
    return parts


def each_once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def beside_p99(names: Sequence[str]) -> dict:
    """Returns the colours of medians, and dashed lines of the same colours for p99."""
    colours = dict(zip(names, COLOURS, strict=False))
    dashed = {f"{name}, p99": colour for name, colour in colours.items()}
    return {"colours": colours | dashed, "dashed": dashed}


def io(found: dict) -> str:
    """Draws throughput and times by depth for the smallest number of clients, and scaling with clients and nodes at the
    greatest depth."""
    points = found["points"]
    names = each_once(point["target"] for point in points)
    clients, nodes = (min(point[key] for point in points) for key in ("clients", "nodes"))
    rows = []
    for access in each_once(point["access"] for point in points):
        depth = max(point["depth"] for point in points if point["access"] == access)

        def lines(x: str, y: str, suffix: str = "", access: str = access, **fixed: int) -> dict:
            chosen = [point for point in points if {"access": access, **fixed}.items() <= point.items()]
            places = {name: [(point[x], point[y]) for point in chosen if point["target"] == name] for name in names}
            return {name + suffix: each for name, each in places.items() if each}

        few = {"clients": clients, "nodes": nodes}
        times = lines("depth", "p50_us", **few) | lines("depth", "p99_us", ", p99", **few)
        row = [
            Lines(f"{access}: GB/s", "depth", lines("depth", "gb_per_s", **few), is_log=True),
            Lines(f"{access}: p50 and p99, us", "depth", times, is_log=True),
        ]
        for x, other in (("clients", {"nodes": nodes}), ("nodes", {"clients": clients})):
            rates = lines(x, "gb_per_s", depth=depth, **other)
            row.append(Lines(f"{access}, depth {depth}: GB/s", x, rates, is_log=True))
        rows.append([panel for panel in row if any(len(each) > 1 for each in panel.series.values())])
    return draw(*filter(None, rows), caption=f"farpool bench io, {found['machine']}", **beside_p99(names))


def waiting(found: dict) -> str:
    def lines(*keys: str, suffix: str = "") -> dict:
        return {
            way["waiting"] + suffix: [(at["depth"], sum(at[key] for key in keys)) for at in way["quiet"]]
            for way in found["ways"]
        }

    times, cpu = lines("p50_us") | lines("p99_us", suffix=", p99"), lines("client_cpu_us", "server_cpu_us")
    row = [
        Lines("8 KiB reads over tcp: p50 and p99, us", "depth", times, is_log=True),
        Lines("CPU of both sides for a read, us", "depth", cpu, is_log=True),
    ]
    return draw(row, caption=f"farpool bench waiting, {found['machine']}", **beside_p99([*cpu]))


def place(*found: dict) -> str:
    """Draws the chosen placement and its time relative to the best: a row for each link, a column for each query."""
    runs = [run for each in found for run in each["runs"]]
    queries = each_once(cell["query"] for run in runs for cell in run["cells"])
    colours = {"fetch": "#b3cde3", "ship": "#ccebc5", "split": "#decbe4"}

    def chosen(cell: dict) -> tuple[str, str]:
        first = cell["first_seconds"] / min(cell["seconds"][mode] for mode in colours)
        return colours[cell["chosen"]], f"{cell['chosen']} ({first:.2f})"

    def over_best(cell: dict) -> tuple[str, str]:
        # The colour is stronger the closer the ratio is to 1.5.
        share = min(max(cell["auto_over_best"] - 1.0, 0.0) / 0.5, 1.0)
        mix = [cold + (hot - cold) * share for cold, hot in ((229, 215), (245, 90), (224, 70))]
        return "#" + "".join(f"{round(part):02x}" for part in mix), f"{cell['auto_over_best']:.2f}"

    def table(title: str, shown: Callable[[dict], tuple[str, str]]) -> list[Cells]:
        rows = []
        for run in runs:
            cells = {cell["query"]: shown(cell) for cell in run["cells"]}
            rows.append((run["link"], [cells.get(query, ("none", "")) for query in queries]))
        return [Cells(title, queries, rows)]

    of = f"farpool bench place, {runs[0]['bytes'] >> 20} MiB, medians of {runs[0]['rounds']} rounds"
    return draw(
        table("what the planner chose, and how long the first run took over the best", chosen),
        table("its time over that of the best forced placement, once learnt", over_best),
        caption=f"{of}, {runs[0]['machine']}",
    )


BENCHES = {"io": io, "waiting": waiting, "place": place}


def main() -> None:
    name, *files = sys.argv[1:] or [""]
    if name not in BENCHES or (len(files) > 1 and name != "place"):
        sys.exit(__doc__)
    print(BENCHES[name](*(json.loads(Path(file).read_text()) for file in files or ["/dev/stdin"])), end="")


if __name__ == "__main__":
    main()
