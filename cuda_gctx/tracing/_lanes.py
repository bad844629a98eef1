"""Lanes: the partitions of traced processes, by their names, and the work outside of all partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuda_gctx.tracing._records import Context, Item, Process

__all__ = ["OUTSIDE", "Lane", "Names", "lanes_of", "merged"]

OUTSIDE = "outside of all partitions"

# The names of contexts, by process and number of the context.
Names = Mapping[tuple[int, int], str]


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Unite spans that are sorted by their beginning and overlap."""
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


@dataclass
class Lane:
    """The work of one partition of a process on a device, or its work outside of partitions."""

    process: Process
    device: int
    name: str
    sm_count: int = 0
    items: list[Item] = field(default_factory=list)

    @property
    def is_outside(self) -> bool:
        return self.name == OUTSIDE

    @property
    def streams(self) -> dict[int, list[Item]]:
        found: dict[int, list[Item]] = {}
        for item in self.items:
            found.setdefault(item.stream, []).append(item)
        return found

    def busy(self) -> list[tuple[int, int]]:
        """The times in which something of the lane runs."""
        return merged([(item.start, item.end) for item in self.items])


def _name(context: Context, name: str | None) -> str:
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
        for item in process.items:
            context = process.contexts.get(item.context, Context(item.context, item.device, 0, False, 0))
            name = _name(context, names.get((process.pid, context.number)))
            lane = by_place.setdefault((item.device, name != OUTSIDE, name), Lane(process, item.device, name))
            lane.sm_count = max(lane.sm_count, context.sm_count)
            lane.items.append(item)
        lanes += [by_place[place] for place in sorted(by_place)]
    return lanes
