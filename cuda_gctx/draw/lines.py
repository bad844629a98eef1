"""The picture of curves: values over the number of SMs, with the interval of each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.svg import MARGIN, Drawing, Entry, colours_of, heading, legend, round_ticks

__all__ = ["Line", "Point", "draw_lines"]

LEFT, WIDTH, HEIGHT = 90, 620, 300
SMALL = 11
TICKS, SM_TICKS = 6, 10


@dataclass(frozen=True)
class Point:
    """A time in ns at a number of SMs, with its interval."""

    sm_count: int
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Line:
    """The points of one curve, and its name."""

    name: str
    points: tuple[Point, ...]


def draw_lines(title: str, subtitle: str, lines: Sequence[Line], note: str) -> str:
    """Draw the SVG: times from 0 upwards, over SMs from 0 to the largest count."""
    colours = colours_of([line.name for line in lines])
    width = LEFT + WIDTH + 2 * MARGIN
    drawing = Drawing(f"{title}: {subtitle}")
    heading(drawing, title, subtitle, width)
    entries = [Entry(colour, "", name, "") for name, colour in colours.items()]
    entries.append(Entry(None, "", "97.5% interval", "", "spread"))
    top = 66 + legend(drawing, MARGIN, 66, entries, width - MARGIN) + 14
    bottom = top + HEIGHT
    points = [point for line in lines for point in line.points]
    most_sms = max(point.sm_count for point in points)
    most_ns = 1.05 * max(point.high_ns for point in points)

    def x(sms: float) -> float:
        return LEFT + WIDTH * sms / most_sms

    def y(ns: float) -> float:
        return bottom - HEIGHT * ns / most_ns

    for ns in round_ticks(most_ns, TICKS):
        drawing.line(LEFT, y(ns), LEFT + WIDTH, y(ns))
        drawing.text(LEFT - 8, y(ns) + 4, in_words(ns) if ns else "0", size=SMALL, kind="faint", anchor="end")
    for sms in round_ticks(most_sms, SM_TICKS):
        drawing.text(x(sms), bottom + 16, f"{sms:.0f}", size=SMALL, kind="faint", anchor="middle")
    for line in lines:
        ordered = sorted(line.points, key=lambda point: point.sm_count)
        places = [(x(point.sm_count), y(point.median_ns)) for point in ordered]
        for before, after in pairwise(places):
            drawing.line(*before, *after, colour=colours[line.name])
        for point in ordered:
            interval = f"{in_words(point.low_ns)} to {in_words(point.high_ns)}"
            hover = f"{line.name}, {point.sm_count} SMs: {in_words(point.median_ns)}\n{interval}"
            high, low = y(point.high_ns), y(point.low_ns)
            drawing.rectangle(x(point.sm_count) - 2, high, 4, max(low - high, 1), kind="spread", hover=hover)
            drawing.rectangle(
                x(point.sm_count) - 3, y(point.median_ns) - 3, 6, 6, fill=colours[line.name], corner=3, hover=hover
            )
    drawing.text(MARGIN, bottom + 36, f"Time of a call over the number of SMs. {note}", size=SMALL, kind="faint")
    return drawing.svg(width, bottom + 52)
