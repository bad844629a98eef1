"""The picture of a comparison: a bar for each plan, and the bound as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from cuda_gctx.draw.durations import UNITS, in_words
from cuda_gctx.draw.svg import MARGIN, Drawing, Entry, legend, lines_of, round_ticks, text_width

__all__ = ["Bar", "draw_bars"]

PLOT, LABELS = 560, 190  # the length of the axis, the room for texts behind the bars
NARROWEST, WIDEST = 90, 330  # of the names of the plans
BAR, PAD = 14, 12
SMALL = 11
LINE = 17  # from one line of a longer text to the next


@dataclass(frozen=True)
class Bar:
    """A plan: its name, its time in ns, and a text behind the bar."""

    name: str
    ns: float
    text: str
    is_best: bool


class _Axis:
    """Maps times to places, linearly or logarithmically."""

    def __init__(self, left: float, least_ns: float, most_ns: float, logarithmic: bool) -> None:
        self._left, self._least, self._most, self._logarithmic = left, least_ns, most_ns, logarithmic

    def x(self, ns: float) -> float:
        """The place of a time. A time beyond the axis is placed at its end."""
        ns = min(max(ns, self._least), self._most)
        if self._logarithmic:
            share = log10(ns / self._least) / log10(self._most / self._least)
        else:
            share = (ns - self._least) / (self._most - self._least)
        return self._left + PLOT * share

    def ticks(self) -> list[float]:
        if not self._logarithmic:
            return round_ticks(self._most, 8)
        first = floor(log10(self._least))
        times = [10.0**power for power in range(first, first + 20)]
        return [time for time in times if self._least <= time <= self._most]


def draw_bars(
    title: str,
    subtitle: str,
    what: str,
    bars: Sequence[Bar],
    bound_ns: float,
    limit_ns: float,
    *,
    logarithmic: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """Draw the SVG, with the bars from top to bottom.

    what: the quantity that the length of a bar shows. limit_ns: the end of the axis; longer bars end in an arrow.
    notes: explanations below the bars.
    """
    longest = max((text_width(bar.name, 12) * 1.15 for bar in bars), default=0)
    left = MARGIN + min(max(longest, NARROWEST), WIDEST) + 10
    width = left + PLOT + LABELS + MARGIN
    drawing = Drawing(f"{title}: {subtitle}")
    drawing.text(MARGIN, 32, title, size=17, bold=True, room=width - 2 * MARGIN)
    room = width - 2 * MARGIN
    y = _draw_lines(drawing, [subtitle], 51, 12, room)
    entries = [
        Entry(None, "", "best plan", "", "best"),
        Entry(None, "", "other plans", "", "bar"),
        Entry(None, "", f"bound: {in_words(bound_ns)}", "", "bound"),
    ]
    y += legend(drawing, MARGIN, y, entries, width - MARGIN) + 28
    axis = _Axis(left, bound_ns / 2 if logarithmic else 0, limit_ns, logarithmic)
    tops = [y + (BAR + PAD) * number for number in range(len(bars))]
    bottom = y + (BAR + PAD) * len(bars)
    _draw_axis(drawing, axis, y - 10, bottom)
    for bar, top in zip(bars, tops, strict=True):
        _draw_bar(drawing, axis, bar, left, top)
    x = axis.x(bound_ns)
    drawing.line(x, y - 6, x, bottom, kind="bound")
    for bar, top in zip(bars, tops, strict=True):
        end = axis.x(bar.ns)
        words = bar.text + " \N{RIGHTWARDS ARROW}" * (bar.ns > limit_ns)
        drawing.text(end + 6, top + 11, words, size=SMALL, kind="label", room=LABELS + left + PLOT - end)
    explained = [f"The length of a bar is the {what}"]
    if any(bar.ns > limit_ns for bar in bars):
        explained.append("\N{RIGHTWARDS ARROW}: a bar that is longer than the axis")
    y = _draw_lines(drawing, [*explained, *notes], bottom + 18, SMALL, room)
    return drawing.svg(width, y)


def _draw_lines(drawing: Drawing, texts: Sequence[str], y: float, size: float, room: float) -> float:
    """Draw texts one below the other, each in as many lines as it needs; returns the y coordinate below them."""
    lines = [line for text in texts for line in lines_of(text, size, room)]
    for number, line in enumerate(lines):
        drawing.text(MARGIN, y + number * LINE, line, size=size, kind="faint", room=room)
    return y + (len(lines) - 1) * LINE + 15


def _draw_axis(drawing: Drawing, axis: _Axis, top: float, bottom: float) -> None:
    ticks = axis.ticks()
    # One unit for all of them.
    name, size = next((unit for unit in reversed(UNITS) if ticks and ticks[-1] >= unit[1]), UNITS[0])
    for time in ticks:
        x = axis.x(time)
        drawing.line(x, top, x, bottom)
        drawing.text(x, top - 6, f"{time / size:g} {name}", size=SMALL, kind="faint", anchor="middle")


def _draw_bar(drawing: Drawing, axis: _Axis, bar: Bar, left: float, y: float) -> None:
    drawing.text(left - 10, y + 11, bar.name, bold=bar.is_best, anchor="end", room=left - 10 - MARGIN)
    kind = "best" if bar.is_best else "bar"
    width = max(axis.x(bar.ns) - left, 1)
    drawing.rectangle(left, y, width, BAR, kind=kind, corner=2, hover=f"{bar.name}: {in_words(bar.ns)}")
