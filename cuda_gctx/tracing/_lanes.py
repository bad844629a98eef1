"""Lanes: the partitions of traced processes, by their names, and the work outside of all partitions."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge

from cuda_gctx.tracing._records import Context, Process, StreamItems

__all__ = ["OUTSIDE", "Lane", "Names", "Spans", "lane_name", "lanes_of", "united"]

OUTSIDE = "outside of all partitions"

# The names of contexts, by process and number of the context.
Names = Mapping[tuple[int, int], str]


@dataclass
class Spans:
    """Times in which something is so: spans that are apart, in their order, as columns of beginnings and ends."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total(self) -> int:
        return sum(self.ends) - sum(self.starts)


def united(spans: Iterable[tuple[int, int]]) -> Spans:
    """Unite spans that are sorted by their beginning and overlap."""
    found = Spans()
    last = -1
    for start, end in spans:
        if start > last:
            found.starts.append(start)
            found.ends.append(end)
            last = end
        elif end > last:
            found.ends[-1] = last = end
    return found


@dataclass
class Lane:
    """The work of one partition of a process on a device, or its work outside of partitions.

    busy: the times in which something of the lane runs.
    """

    process: Process
    device: int
    name: str
    sm_count: int = 0
    # The key has the number of the context, too: streams of two contexts may have one number.
    streams: dict[tuple[int, int], StreamItems] = field(default_factory=dict)
    busy: Spans = field(default_factory=Spans)

    @property
    def is_outside(self) -> bool:
        return self.name == OUTSIDE

    @property
    def start(self) -> int:
        """The start of the first item."""
        return self.busy.starts[0]


def lane_name(context: Context, name: str | None) -> str:
    """The lane of the work in a context: by the name of its partition, else by its SMs."""
    if name is not None:
        return name
    return f"green, {context.sm_count} SMs" if context.is_green else OUTSIDE


def lanes_of(processes: Sequence[Process], names: Names) -> list[Lane]:
    """The lanes of processes, those outside of partitions first in each process and device.

    Contexts without a name are named by their SMs.
    """
    lanes: list[Lane] = []
    for process in processes:
        by_place: dict[tuple[int, bool, str], Lane] = {}
        for (device, number, stream), items in process.streams.items():
            context = process.contexts.get(number, Context(number, device, 0, False, 0))
            name = lane_name(context, names.get((process.pid, number)))
            lane = by_place.setdefault((device, name != OUTSIDE, name), Lane(process, device, name))
            lane.sm_count = max(lane.sm_count, context.sm_count)
            lane.streams[number, stream] = items
        for lane in by_place.values():
            lane.busy = united(merge(*(zip(one.starts, one.ends, strict=True) for one in lane.streams.values())))
        lanes += [by_place[place] for place in sorted(by_place)]
    return lanes
