"""The picture of a timeline: tracks of rows along a time axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from cuda_gctx.draw.durations import UNITS, in_words
from cuda_gctx.draw.svg import MARGIN, Drawing, colours_of, heading, ink_on, text_width

__all__ = ["draw_timeline", "layers"]

HEAD = 84
LEFT, PLOT = 245, 860  # where the time axis begins, and how long it is
ROW, BAR = 24, 18
GAP, LEAST_TRACK = 12, 34


class _Span(Protocol):
    """A piece of work: its name, where it ran, and when (ns)."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


class _Track(Protocol):
    """A group of rows of one colour. str() is a line about it."""

    @property
    def name(self) -> str: ...


Span = TypeVar("Span", bound=_Span)
Track = TypeVar("Track", bound=_Track)


def layers(bars: Iterable[Span]) -> list[list[Span]]:
    """The bars in as few layers as possible without overlaps in a layer."""
    stacked: list[list[Span]] = []
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


def draw_timeline(title: str, subtitle: str, tracks: Mapping[Track, Mapping[str, Sequence[_Span]]], note: str) -> str:
    """Draw the SVG, with times since the first start. tracks: the spans of each row of each track."""
    spans = [span for rows in tracks.values() for row in rows.values() for span in row]
    begin = min((span.start_ns for span in spans), default=0)
    length = max(max((span.end_ns for span in spans), default=0) - begin, 1)
    heights = [max(len(rows) * ROW, LEAST_TRACK) for rows in tracks.values()]
    colours = colours_of(track.name for track in tracks)
    drawing = Drawing(f"{title}: {subtitle}")
    width = LEFT + PLOT + 2 * MARGIN
    heading(drawing, title, subtitle, width)
    _draw_axis(drawing, length, HEAD + sum(heights) + GAP * (len(tracks) - 1) + 6)
    y: float = HEAD
    for (track, rows), height in zip(tracks.items(), heights, strict=True):
        colour = colours[track.name]
        drawing.rectangle(MARGIN, y, 6, height, fill=colour, corner=2)
        # A single row needs no label in addition to its track.
        labels = list(rows) if len(rows) > 1 else [""] * len(rows)
        labelled = max(text_width(label, 11) for label in labels)
        drawing.text(MARGIN + 14, y + 13, track.name, bold=True, room=LEFT - 8 - labelled - 8 - (MARGIN + 14))
        drawing.text(MARGIN + 14, y + 28, str(track), size=11, kind="faint")
        for position, (label, row) in enumerate(zip(labels, rows.values(), strict=True)):
            if label:
                drawing.text(LEFT - 8, y + position * ROW + 16, label, size=11, kind="faint", anchor="end")
            _draw_row(drawing, row, y + position * ROW, begin, length, colour)
        y += height + GAP
    drawing.text(MARGIN, y + 14, note, size=11, kind="faint")
    return drawing.svg(width, y + 30)


def _draw_axis(drawing: Drawing, length: int, bottom: float) -> None:
    times, unit, size = _ticks(length)
    for time in times:
        x = LEFT + time * PLOT / length
        drawing.line(x, HEAD - 6, x, bottom)
        drawing.text(x, HEAD - 12, f"{time // size} {unit}", size=11, kind="faint", anchor="middle")


def _draw_row(drawing: Drawing, row: Sequence[_Span], top: float, begin: int, length: int, colour: str) -> None:
    scale, stacked = PLOT / length, layers(row)
    each = BAR / max(len(stacked), 1)
    for number, layer in enumerate(stacked):
        y = top + 3 + number * each
        for span in layer:
            start, end = span.start_ns - begin, span.end_ns - begin
            width, x = max((end - start) * scale, 1), LEFT + start * scale
            hover = f"{span.name}: {in_words(start)} to {in_words(end)}, took {in_words(end - start)}\n{span.where}"
            # A thin gap between bars that follow each other.
            shown = max(width - 0.6, 0.6)
            drawing.rectangle(x, y, shown, each, fill=colour, corner=3 if each > 10 else 0, hover=hover)
            if each > 10 and text_width(span.name, 11) + 8 < width:
                drawing.text(x + 6, y + each / 2 + 4, span.name, size=11, kind="mark", fill=ink_on(colour))
