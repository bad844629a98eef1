"""Pictures of curves: some panels next to each other, each with one axis over another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from cuda_gctx.draw.svg import Drawing, Entry, colours_of, legend

# Left and right of a panel: the labels of the values, half of the last label below.
MARGIN, GAP, LEFT, RIGHT, HEAD = 20, 16, 44, 26, 36


@dataclass(frozen=True)
class Panel:
    """Curves over one axis. curves: by name, pairs of x and y.

    is_logarithmic: the axis of the values; that below is logarithmic to the base 2 where its labels are given as sizes.
    """

    title: str
    curves: dict[str, Sequence[tuple[float, float]]]
    unit: str
    ticks: Sequence[tuple[float, str]]
    is_logarithmic: bool = True
    begins_at: float = 0.0


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]


def _steps(low: float, high: float) -> list[float]:
    """Round numbers that cover the values."""
    grain = 10.0 ** floor(log10(high - low))
    step = next(grain * factor for factor in (0.2, 0.5, 1, 2) if (high - low) / (grain * factor) <= 6)
    return [step * at for at in range(floor(low / step), ceil(high / step) + 1)]


def draw_panel(drawing: Drawing, panel: Panel, colours: dict[str, str], box: tuple[float, float, float, float]) -> None:
    """A panel in a box of x, y, width and height."""
    left, top, width, height = box
    drawing.text(left, top - 10, f"{panel.title}, {panel.unit}", bold=True)
    values = [y for curve in panel.curves.values() for _, y in curve]
    low = min(values) if panel.is_logarithmic else min(panel.begins_at, *values)
    levels = _decades(low, max(values)) if panel.is_logarithmic else _steps(low, max(values))
    places = [log2(x) for x, _ in panel.ticks]

    def at_x(x: float) -> float:
        return left + width * (log2(x) - places[0]) / (places[-1] - places[0])

    def at_y(y: float) -> float:
        first, last, value = (log10(one) if panel.is_logarithmic else one for one in (levels[0], levels[-1], y))
        return top + height * (1 - (value - first) / (last - first))

    for level in levels:
        drawing.line(left, at_y(level), left + width, at_y(level))
        drawing.text(left - 6, at_y(level) + 4, f"{level:g}", size=11, kind="faint", anchor="end")
    for x, words in panel.ticks:
        if words:
            drawing.line(at_x(x), top, at_x(x), top + height)
            drawing.text(at_x(x), top + height + 15, words, size=11, kind="faint", anchor="middle")
    names = {x: words for x, words in panel.ticks if words}
    for name, curve in panel.curves.items():
        points = [(at_x(x), at_y(y)) for x, y in curve]
        hovers = [f"{name}, {names.get(x, f'{x:g}')}: {y:.4g} {panel.unit}" for x, y in curve]
        drawing.curve(points, colours[name], hovers)


def picture(title: str, origin: str, rows: Sequence[Sequence[Panel]], width: float = 780, height: float = 150) -> str:
    """Rows of panels with one legend, as an SVG picture."""
    names = [name for row in rows for panel in row for name in panel.curves]
    colours = colours_of(names)
    drawing = Drawing(title)
    drawing.text(MARGIN, 32, title, size=17, bold=True)
    drawing.text(MARGIN, 51, origin, kind="faint")
    entries = [Entry(colour, "", name, "") for name, colour in colours.items()]
    y = 64 + legend(drawing, MARGIN, 64, entries, width - MARGIN)
    for row in rows:
        each = (width - 2 * MARGIN - (len(row) - 1) * GAP) / len(row)
        y += HEAD
        for number, panel in enumerate(row):
            left = MARGIN + number * (each + GAP) + LEFT
            draw_panel(drawing, panel, colours, (left, y, each - LEFT - RIGHT, height))
        y += height + 24
    return drawing.svg(width, y + 8)
