"""The picture of a timeline: groups of rows along a time axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cuda_gctx.draw.durations import UNITS
from cuda_gctx.draw.svg import MARGIN, Drawing, colours_of, heading, ink_on, text_width

__all__ = ["Bar", "Group", "Row", "draw_timeline", "layers"]

HEAD = 84
LEFT, PLOT = 245, 860  # where the time axis begins, and how long it is
ROW, BAR = 24, 18
GROUP_GAP, LEAST_GROUP = 12, 34


@dataclass(frozen=True)
class Bar:
    """A piece of work on a row: its name, when it ran (ns), and its hover text."""

    name: str
    start_ns: int
    end_ns: int
    hover: str


@dataclass(frozen=True)
class Row:
    """Work of one stream."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Group:
    """Rows of one colour, with a name and a line about it."""

    name: str
    note: str
    rows: tuple[Row, ...]


class _Timed(Protocol):
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


Timed = TypeVar("Timed", bound=_Timed)


def layers(bars: Iterable[Timed]) -> list[list[Timed]]:
    """The bars in as few layers as possible without overlaps in a layer."""
    stacked: list[list[Timed]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start_ns, -bar.end_ns)):
        for layer in stacked:
            if layer[-1].end_ns <= bar.start_ns:
                layer.append(bar)
                break
        else:
            stacked.append([bar])
    return stacked


def _ticks(length: int) -> tuple[list[int], str, int]:
    """At most ten round times from 0 to `length`, and the name and size of their unit."""
    steps = (first * 10**power for power in range(19) for first in (1, 2, 5))
    step = next(step for step in steps if length // step < 10)
    name, size = next(unit for unit in reversed(UNITS) if step >= unit[1])
    return list(range(0, length + 1, step)), name, size


def draw_timeline(title: str, subtitle: str, groups: Sequence[Group], note: str) -> str:
    """Draw the SVG, with times since the first start."""
    bars = [bar for group in groups for row in group.rows for bar in row.bars]
    begin = min((bar.start_ns for bar in bars), default=0)
    length = max(max((bar.end_ns for bar in bars), default=0) - begin, 1)
    heights = [max(len(group.rows) * ROW, LEAST_GROUP) for group in groups]
    colours = colours_of(group.name for group in groups)
    drawing = Drawing(f"{title}: {subtitle}")
    width = LEFT + PLOT + 2 * MARGIN
    heading(drawing, title, subtitle, width)
    _draw_axis(drawing, length, HEAD + sum(heights) + GROUP_GAP * (len(groups) - 1) + 6)
    y: float = HEAD
    for group, height in zip(groups, heights, strict=True):
        colour = colours[group.name]
        drawing.rectangle(MARGIN, y, 6, height, fill=colour, corner=2)
        labels = max((text_width(row.label, 11) for row in group.rows), default=0)
        drawing.text(MARGIN + 14, y + 13, group.name, bold=True, room=LEFT - 8 - labels - 8 - (MARGIN + 14))
        drawing.text(MARGIN + 14, y + 28, group.note, size=11, kind="faint")
        for position, row in enumerate(group.rows):
            top = y + position * ROW
            if row.label:
                drawing.text(LEFT - 8, top + 16, row.label, size=11, kind="faint", anchor="end")
            _draw_row(drawing, row, top, begin, length, colour)
        y += height + GROUP_GAP
    drawing.text(MARGIN, y + 14, note, size=11, kind="faint")
    return drawing.svg(width, y + 30)


def _draw_axis(drawing: Drawing, length: int, bottom: float) -> None:
    times, unit, size = _ticks(length)
    for time in times:
        x = LEFT + time * PLOT / length
        drawing.line(x, HEAD - 6, x, bottom)
        drawing.text(x, HEAD - 12, f"{time // size} {unit}", size=11, kind="faint", anchor="middle")


def _draw_row(drawing: Drawing, row: Row, top: float, begin: int, length: int, colour: str) -> None:
    scale = PLOT / length
    stacked = layers(row.bars)
    each = BAR / max(len(stacked), 1)
    for number, layer in enumerate(stacked):
        y = top + 3 + number * each
        for bar in layer:
            width = max((bar.end_ns - bar.start_ns) * scale, 1)
            x = LEFT + (bar.start_ns - begin) * scale
            named = each > 10 and text_width(bar.name, 11) + 8 < width
            # A thin gap between bars that follow each other.
            shown = max(width - 0.6, 0.6)
            drawing.rectangle(x, y, shown, each, fill=colour, corner=3 if each > 10 else 0, hover=bar.hover)
            if named:
                drawing.text(x + 6, y + each / 2 + 4, bar.name, size=11, kind="mark", fill=ink_on(colour))
