"""Bars and lines as SVG: files of some kilobytes that are the same for the same figures, and no package to install."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 32, 46
LEGEND_LINE, LEGEND_COLUMN = 16, 150
COLOURS = ("#222222", "#d04000", "#0060a8", "#7a3e9d", "#009e90", "#a09000", "#999999")


@dataclass
class Bars:
    """A bar for each name within each group; one that was not measured is None."""

    title: str
    groups: Sequence[str]
    series: dict[str, Sequence[float | None]]


@dataclass
class Lines:
    """Points (x, y) of each name."""

    title: str
    x_label: str
    series: dict[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


def draw(panels: Sequence[Bars | Lines]) -> str:
    """Panels beside each other, and one legend below."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    widths = [
        max(WIDTH, LEFT + RIGHT + 46 * len(panel.groups)) if isinstance(panel, Bars) else WIDTH for panel in panels
    ]
    width, height = sum(widths), HEIGHT + LEGEND_LINE * -(-len(names) // (sum(widths) // LEGEND_COLUMN)) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for at, panel in enumerate(panels):
        parts.append(f'<g transform="translate({sum(widths[:at])},0)">')
        parts += bars(panel, widths[at], names) if isinstance(panel, Bars) else lines(panel, widths[at], names)
        parts.append("</g>")
    for at, name in enumerate(names):
        across, down = at % (width // LEGEND_COLUMN), at // (width // LEGEND_COLUMN)
        x, y = 14 + across * LEGEND_COLUMN, HEIGHT + down * LEGEND_LINE + 2
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="10" fill="{colour(names, name)}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 9}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def colour(names: Sequence[str], name: str) -> str:
    return COLOURS[names.index(name) % len(COLOURS)]


def ticks(most: float) -> list[float]:
    """Four to eight round numbers from 0 to at least `most`."""
    step = 10.0 ** math.floor(math.log10(most or 1.0))
    step = next(each for each in (step / 5, step / 2, step, step * 2) if most / each <= 7)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def tick_text(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"{value / 1e3:g}k" if value < 1e7 else f"{value / 1e6:g}M"


def frame(title: str, width: int, marks: list[float]) -> list[str]:
    parts = [f'<text x="{width / 2}" y="18" text-anchor="middle" font-weight="bold">{escape(title)}</text>']
    for value in marks:
        y = height_of(value, marks)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{width - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick_text(value)}</text>')
    return parts


def height_of(value: float, marks: list[float]) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / marks[-1]


def bars(panel: Bars, width: int, names: Sequence[str]) -> list[str]:
    marks = ticks(max((value for each in panel.series.values() for value in each if value is not None), default=1.0))
    parts = frame(panel.title, width, marks)
    each_group = (width - LEFT - RIGHT) / len(panel.groups)
    each_bar = each_group * 0.8 / len(panel.series)
    for at, group in enumerate(panel.groups):
        middle = LEFT + (at + 0.5) * each_group
        parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(group)}</text>')
        for number, (name, values) in enumerate(panel.series.items()):
            if values[at] is None:
                continue
            x, y = middle - each_group * 0.4 + number * each_bar, height_of(values[at], marks)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{each_bar * 0.92:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                f'fill="{colour(names, name)}"><title>{escape(name)}: {values[at]:g}</title></rect>'
            )
    return parts


def lines(panel: Lines, width: int, names: Sequence[str]) -> list[str]:
    points = [point for each in panel.series.values() for point in each]
    marks, across = ticks(max(y for _, y in points)), ticks(max(x for x, _ in points))
    parts = frame(panel.title, width, marks)

    def place(x: float) -> float:
        return LEFT + (width - LEFT - RIGHT - 8) * x / across[-1]

    for x in across:
        parts.append(f'<text x="{place(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick_text(x)}</text>')
    parts.append(f'<text x="{width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>')
    for name, each in panel.series.items():
        path = "M" + "L".join(f"{place(x):.1f} {height_of(y, marks):.1f}" for x, y in each)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour(names, name)}" stroke-width="1.8"/>')
        if len(each) <= 20:
            spots = [f'cx="{place(x):.1f}" cy="{height_of(y, marks):.1f}"' for x, y in each]
            parts += [f'<circle {spot} r="2.6" fill="{colour(names, name)}"/>' for spot in spots]
    return parts
