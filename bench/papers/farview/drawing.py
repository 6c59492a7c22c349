"""Panels as SVG. A writer of its own: a hundred lines, files of some kilobytes that are the same for the same figures,
and no package as large as matplotlib in an environment that is made for one run."""

import math
from html import escape

from measuring import Figure, Panel, size_text

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 30, 44
LEGEND_LINE = 16
# Who is who in every figure; dashes tell tcp from shm. Others take what is left, in turn.
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


def log_ticks(least: float, most: float) -> list[float]:
    """Powers of ten from the one below to the one above."""
    return [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]


def y_tick(panel: Panel, value: float) -> str:
    if panel.y_unit != "s":
        return f"{value:g}"
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 0.999:
            return f"{value * scale:g} {unit}"
    return f"{value * 1e9:g} ns"


def shown(panel: Panel) -> dict:
    """Of local engines the best is drawn, where it is known; tables have them all."""
    if "LCPU best" not in panel.series:
        return panel.series
    return {
        name: points
        for name, points in panel.series.items()
        if not name.startswith("LCPU ") or name in ("LCPU best", "LCPU DuckDB")
    }


def draw(figure: Figure) -> str:
    """All panels of a figure, beside each other in rows of three, and one legend below."""
    across = min(len(figure.panels), 3)
    down = -(-len(figure.panels) // across)
    names = list(dict.fromkeys(name for panel in figure.panels for name in shown(panel)))
    columns = max(across * WIDTH // 210, 1)
    legend = -(-len(names) // columns) * LEGEND_LINE + 8
    width, height = across * WIDTH, down * HEIGHT + legend
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for at, panel in enumerate(figure.panels):
        parts.append(f'<g transform="translate({at % across * WIDTH},{at // across * HEIGHT})">')
        parts += draw_panel(panel, names)
        parts.append("</g>")
    for at, name in enumerate(names):
        x, y = at % columns * 210 + 14, down * HEIGHT + at // columns * LEGEND_LINE + 10
        parts.append(
            f'<path d="M{x} {y}h26" {stroke(names, name)}/><text x="{x + 32}" y="{y + 4}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def colour_of(names: list[str], name: str) -> str:
    known = name.rsplit(", ", 1)[0] if name.startswith("FV") else name.replace(",", "")
    return COLOURS.get(known) or OTHER_COLOURS[names.index(name) % len(OTHER_COLOURS)]


def stroke(names: list[str], name: str) -> str:
    dashes = ' stroke-dasharray="5 3"' if name.endswith("tcp") else ""
    return f'fill="none" stroke="{colour_of(names, name)}" stroke-width="1.8"{dashes}'


def x_tick(panel: Panel, x: float) -> str:
    if panel.x_unit == "bytes":
        return size_text(x).replace("iB", "").replace(" ", "")
    return f"{x:g}" if x < 1e3 else f"{x / 1e3:g}k" if x < 1e6 else f"{x / 1e6:g}M"


def draw_panel(panel: Panel, names: list[str]) -> list[str]:
    series = shown(panel)
    points = [point for each in series.values() for point in each]
    xs = sorted({point.x for point in points})
    y_ticks = log_ticks(min(point.median for point in points), max(point.median for point in points) * 1.0001)
    x_span = math.log(xs[-1] / xs[0]) or 1.0
    y_span = math.log(y_ticks[-1] / y_ticks[0]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * math.log(x / xs[0]) / x_span
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(y / y_ticks[0]) / y_span

    title = f"{panel.title}, GB/s" if panel.y_unit == "GB/s" else panel.title
    parts = [
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-weight="bold">{escape(title)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>',
    ]
    for value in y_ticks:
        y = place(xs[0], value)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{y_tick(panel, value)}</text>')
    for x in xs:
        across = place(x, y_ticks[0])[0]
        parts.append(
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{x_tick(panel, x)}</text>'
        )
    for name, each in series.items():
        places = [place(point.x, point.median) for point in each]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="{path}" {stroke(names, name)}/>')
        colour = colour_of(names, name)
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in places]
    return parts
