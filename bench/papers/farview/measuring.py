"""Measures contenders in turns. Defines points, series and panels of a figure, and their tables."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from contenders import Contender

# A contender is called repeatedly in each round. Such a turn ends after this many seconds or calls, whichever comes
# first, and its median counts: the time of a single short call means little.
TURN_SECONDS = 0.02
TURN_CALLS = 200
# The machine is quiet if its CPUs are idle for at least this share of LOOK_SECONDS.
IDLE_SHARE = 0.9
LOOK_SECONDS = 0.1


@dataclass
class Point:
    """Median, minimum and maximum of the rounds, in the unit of the panel (seconds or GB/s)."""

    x: float
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, x: float, values: Iterable[float]) -> "Point":
        values = list(values)
        return cls(x, statistics.median(values), min(values), max(values))


@dataclass
class Panel:
    """One diagram of a figure: series of points over one axis."""

    title: str
    x_label: str
    # Unit of the x axis: "bytes" or "count".
    x_unit: str
    y_label: str = "response time"
    # Unit of the y axis: "s", "GB/s", or empty for ratios.
    y_unit: str = "s"
    series: dict[str, list[Point]] = field(default_factory=dict)
    # Pairs of series whose ratios are printed below the table: the time of the second over that of the first.
    ratios: tuple[tuple[str, str], ...] = ()

    def add(self, x: float, times: dict[str, list[float]]) -> None:
        for name, values in times.items():
            self.series.setdefault(name, []).append(Point.of(x, values))

    def at(self, name: str, x: float) -> float | None:
        return next((point.median for point in self.series.get(name, []) if point.x == x), None)


@dataclass
class Figure:
    """One figure of the paper: its claim, and our panels and notes."""

    name: str
    title: str
    paper: str
    panels: list[Panel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Quiet:
    """Waits before each round until nothing else runs on the machine, at most this many seconds in total."""

    def __init__(self, seconds: float):
        self._left = seconds
        # Rounds that started while something else was running.
        self.disturbed = 0
        self.rounds = 0

    def wait(self) -> None:
        self.rounds += 1
        if self._left <= 0:
            self.disturbed += idle_share(LOOK_SECONDS) < IDLE_SHARE
            return
        begun = time.monotonic()
        while idle_share(LOOK_SECONDS) < IDLE_SHARE:
            if time.monotonic() - begun > self._left:
                self.disturbed += 1
                break
        self._left -= time.monotonic() - begun


def idle_share(seconds: float) -> float:
    """Measures the share of all CPUs that is idle during the next seconds."""

    def ticks() -> list[int]:
        with open("/proc/stat") as file:
            return [int(word) for word in file.readline().split()[1:]]

    before = ticks()
    time.sleep(seconds)
    spent = [after - earlier for earlier, after in zip(before, ticks(), strict=True)]
    return (spent[3] + spent[4]) / max(sum(spent), 1)


def in_turns(
    contenders: dict[str, Contender],
    rounds: int,
    quiet: Quiet,
    check: Callable[[str, object], None] | None = None,
) -> dict[str, list[float]]:
    """Returns the seconds of each contender in each round. Each contender answers once before, untimed, and that answer
    is checked."""
    for name, call in contenders.items():
        answer = call()[1]
        if check:
            check(name, answer)
        del answer
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        quiet.wait()
        for name, call in contenders.items():
            turn = []
            begun = time.perf_counter()
            while not turn or (time.perf_counter() - begun < TURN_SECONDS and len(turn) < TURN_CALLS):
                seconds, answer = call()
                # Freed before the next call starts, outside of the timed part.
                del answer
                turn.append(seconds)
            times[name].append(statistics.median(turn))
    return times


def best_engine(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """Returns the times of the local engine with the smallest median, under the name "LCPU best"."""
    local = {name: values for name, values in times.items() if name.startswith("LCPU ")}
    return {"LCPU best": min(local.values(), key=statistics.median)} if local else {}


def size_text(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:g} {unit}"
        value /= 1024
    raise AssertionError


def x_text(panel: Panel, x: float) -> str:
    return size_text(x) if panel.x_unit == "bytes" else f"{x:,.0f}"


def y_text(panel: Panel, y: float | None) -> str:
    if y is None:
        return "-"
    if panel.y_unit != "s":
        return f"{y:.2f}"
    return f"{y * 1e6:.1f} µs" if y < 1e-3 else f"{y * 1e3:.2f} ms" if y < 1 else f"{y:.2f} s"


def tables_of(panel: Panel) -> list[str]:
    """Returns a table in Markdown: a row for each x, a column for each series, and the ratios."""
    xs = sorted({point.x for points in panel.series.values() for point in points})
    header = [panel.x_label, *panel.series]
    lines = [[x_text(panel, x), *(y_text(panel, panel.at(name, x)) for name in panel.series)] for x in xs]
    rows = markdown(header, lines)
    pairs = [pair for pair in panel.ratios if set(pair) <= set(panel.series)]
    if pairs:
        header = [panel.x_label, *(f"{slower} / {ours}" for ours, slower in pairs)]
        lines = []
        for x in xs:
            both = [(panel.at(ours, x), panel.at(slower, x)) for ours, slower in pairs]
            told = [f"{slower / ours:.2f}" if ours and slower else "-" for ours, slower in both]
            lines.append([x_text(panel, x), *told])
        rows += ["", *markdown(header, lines)]
    return rows


def markdown(header: list[str], lines: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *lines)]
