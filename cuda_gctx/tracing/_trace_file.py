"""The file of a trace for ui.perfetto.dev: lanes of partitions, rows of streams, busy SMs, and marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import BinaryIO

from cuda_gctx.tracing._lanes import Lane, united
from cuda_gctx.tracing._marks import Mark
from cuda_gctx.tracing._perfetto import PerfettoWriter, Track
from cuda_gctx.tracing._records import Item, Process

__all__ = ["write"]


def _details(item: Item) -> dict[str, int | str]:
    details: dict[str, int | str] = {}
    if 0 < item.queued < item.start:
        details["queued before, ns"] = item.start - item.queued
    if item.bytes:
        details["bytes"] = item.bytes
    if item.graph:
        details["graph"] = item.graph
    return details


def _busy_sms(lanes: Sequence[Lane]) -> Iterator[tuple[int, int]]:
    """The SMs of busy partitions, from each time on at which that changes."""

    def changes(lane: Lane) -> Iterator[tuple[int, int]]:
        for start, end in lane.busy:
            yield start, lane.sm_count
            yield end, -lane.sm_count

    busy = 0
    ordered = merge(*(changes(lane) for lane in lanes if not lane.is_outside))
    for time, changed in groupby(ordered, key=lambda change: change[0]):
        busy += sum(change for _, change in changed)
        yield time, busy


def _write_waits(writer: PerfettoWriter, track: Track, process: Process) -> None:
    for start, end in united(sorted((start, end) for _, start, end in process.waits)):
        writer.slice(track, "wait", "wait", start, end)


def write(out: BinaryIO, lanes: Sequence[Lane], marks: Sequence[Mark]) -> None:
    """Write lanes and marks.

    Each process and device has a lane for each partition, with a row for each stream, a counter of the SMs of busy
    partitions, and a row of marks: layouts that were opened, switches, and waits of the host.
    """
    times = [lane.start for lane in lanes] + [mark.time for mark in marks]
    times += [start for lane in lanes for _, start, _ in lane.process.waits]
    with PerfettoWriter(out, min(times, default=0)) as writer:
        for pid, device in dict.fromkeys((lane.process.pid, lane.device) for lane in lanes):
            own = [lane for lane in lanes if (lane.process.pid, lane.device) == (pid, device)]
            process = own[0].process
            top = writer.process(pid, f"{process.program} {pid}", device)
            counter = writer.counter(top, "SMs of busy partitions", "SMs")
            for time, busy in _busy_sms(own):
                writer.count(counter, time, busy)
            row = writer.lane(top, "marks")
            for mark in marks:
                if mark.pid == pid:
                    writer.mark(row, str(mark), mark.event, mark.time)
            _write_waits(writer, writer.lane(top, "waits of the host"), process)
            for lane in own:
                name = lane.name if lane.is_outside else f"{lane.name} ({lane.sm_count} SMs)"
                place = writer.lane(top, name)
                category = "outside" if lane.is_outside else "partition"
                for (_, stream), items in sorted(lane.streams.items(), key=lambda entry: entry[0]):
                    track = writer.lane(place, f"stream {stream}")
                    for item in items:
                        writer.slice(track, item.name, category, item.start, item.end, _details(item))
