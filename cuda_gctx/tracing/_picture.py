"""The picture of a trace: lanes of partitions along a time axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cuda_gctx.draw.timeline import draw_timeline
from cuda_gctx.tracing._lanes import Lane

__all__ = ["draw_lanes"]

# More bars are too narrow to be seen, and make files that browsers open slowly.
MOST_BARS = 500
NOTE = "A bar is a kernel or a copy. To zoom in, open the file of perfetto() in ui.perfetto.dev."
MERGED_NOTE = "A bar is work without visible gaps. To zoom in, open the file of perfetto() in ui.perfetto.dev."


@dataclass(frozen=True)
class _Track:
    name: str
    sm_count: int

    def __str__(self) -> str:
        return f"{self.sm_count} SMs" if self.sm_count else ""


@dataclass
class _Bar:
    name: str
    where: str
    start_ns: int
    end_ns: int
    count: int = 1


def _bars(items: Iterable[tuple[str, int, int]], where: str, gap: int) -> list[_Bar]:
    """The bars of a row, whose items are sorted. Unites items that are less than `gap` apart, unless it is negative."""
    bars: list[_Bar] = []
    for name, start, end in items:
        if bars and start - bars[-1].end_ns < gap:
            last = bars[-1]
            last.end_ns, last.count = max(last.end_ns, end), last.count + 1
            last.name = f"{last.count} items"
        else:
            bars.append(_Bar(name, where, start, end))
    return bars


def draw_lanes(lanes: Sequence[Lane]) -> str:
    """Draw lanes as SVG, each with a row for each stream."""
    rows = [
        (lane, stream, [(item.name, item.start, item.end) for item in items])
        for lane in lanes
        for (_, stream), items in lane.streams.items()
    ]
    times = [time for _, _, items in rows for _, *times in items for time in times]
    is_merged = sum(len(items) for _, _, items in rows) > MOST_BARS
    gap = (max(times) - min(times)) // MOST_BARS if is_merged else -(2**63)
    several = len({(lane.process.pid, lane.device) for lane in lanes}) > 1
    tracks: dict[_Track, dict[str, list[_Bar]]] = {}
    for lane, stream, items in rows:
        name = f"{lane.name}, process {lane.process.pid}, device {lane.device}" if several else lane.name
        row = f"stream {stream}"
        tracks.setdefault(_Track(name, lane.sm_count), {})[row] = _bars(items, f"{name}, {row}", gap)
    return draw_timeline("Trace", f"{len(rows)} streams", tracks, MERGED_NOTE if is_merged else NOTE)
