"""The picture of a comparison: a bar for each plan with its spread, its parts below it, and the bound as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from cuda_gctx.draw.durations import UNITS, in_words
from cuda_gctx.draw.svg import MARGIN, Drawing, Entry, colours_of, legend, lines_of, round_ticks, text_width

__all__ = ["Bar", "Piece", "draw_bars"]

PLOT, LABELS = 560, 190  # the length of the axis, the room for texts behind the bars
NARROWEST, WIDEST = 90, 330  # of the names of the plans
BAR, PIECE, PAD = 14, 5, 10
SMALL = 11
LINE = 17  # from one line of a longer text to the next


@dataclass(frozen=True)
class Piece:
    """The work of a part within a plan, in ns since the start of the step; low, high: of its end in 10% and 90%."""

    name: str
    start_ns: float
    end_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Bar:
    """A plan: its name, median and 10th to 90th percentile in ns, a text behind the bar, and its parts."""

    name: str
    median_ns: float
    low_ns: float
    high_ns: float
    text: str
    is_best: bool
    pieces: tuple[Piece, ...] = ()


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
    names = list(dict.fromkeys(piece.name for bar in bars for piece in bar.pieces))
    colours = colours_of(names)
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
        Entry(None, "", "p10 to p90", "", "spread"),
        Entry(None, "", f"bound: {in_words(bound_ns)}", "", "bound"),
        *(Entry(colour, "", name, "") for name, colour in colours.items()),
    ]
    y += legend(drawing, MARGIN, y, entries, width - MARGIN) + 28
    axis = _Axis(left, bound_ns / 2 if logarithmic else 0, limit_ns, logarithmic)
    heights = [BAR + 2 + PIECE * len(bar.pieces) + PAD for bar in bars]
    bottom = y + sum(heights)
    _draw_axis(drawing, axis, y - 10, bottom)
    tops = [bottom - sum(heights[number:]) for number in range(len(bars))]
    for bar, top in zip(bars, tops, strict=True):
        _draw_bar(drawing, axis, bar, left, top, colours, limit_ns)
    x = axis.x(bound_ns)
    drawing.line(x, y - 6, x, bottom, kind="bound")
    for bar, top in zip(bars, tops, strict=True):
        end = axis.x(max(bar.median_ns, bar.high_ns))
        words = bar.text + " \N{RIGHTWARDS ARROW}" * (bar.median_ns > limit_ns)
        drawing.text(end + 6, top + 11, words, size=SMALL, kind="label", room=LABELS + left + PLOT - end)
    explained = [f"A bar is the median {what}{', and the thin bars are its parts' if names else ''}"]
    if any(bar.median_ns > limit_ns for bar in bars):
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


def _draw_bar(
    drawing: Drawing, axis: _Axis, bar: Bar, left: float, y: float, colours: dict[str, str], limit_ns: float
) -> None:
    drawing.text(left - 10, y + 11, bar.name, bold=bar.is_best, anchor="end", room=left - 10 - MARGIN)
    spread = f"p10 to p90: {in_words(bar.low_ns)} to {in_words(bar.high_ns)}"
    hover = f"{bar.name}: {in_words(bar.median_ns)}\n{spread}"
    end = axis.x(bar.median_ns)
    drawing.rectangle(left, y, max(end - left, 1), BAR, kind="best" if bar.is_best else "bar", corner=2, hover=hover)
    low, high = axis.x(bar.low_ns), axis.x(bar.high_ns)
    if bar.low_ns < limit_ns:
        drawing.rectangle(low, y + BAR / 2 - 2, max(high - low, 2), 4, kind="spread", hover=hover)
    for position, piece in enumerate(bar.pieces):
        start, stop = axis.x(piece.start_ns), axis.x(piece.end_ns)
        top = y + BAR + 2 + PIECE * position
        ends = f"{in_words(piece.low_ns - piece.start_ns)} to {in_words(piece.high_ns - piece.start_ns)}"
        took = f"{piece.name}: {in_words(piece.end_ns - piece.start_ns)}\np10 to p90: {ends}"
        drawing.rectangle(start, top, max(stop - start, 1), PIECE - 1, fill=colours[piece.name], hover=took)
        if piece.low_ns < limit_ns:
            left_end, right_end = axis.x(piece.low_ns), axis.x(piece.high_ns)
            drawing.rectangle(left_end, top + 1, max(right_end - left_end, 1), 2, kind="spread", hover=took)
