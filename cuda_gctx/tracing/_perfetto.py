"""A trace for ui.perfetto.dev, in Perfetto's protobuf format.

Only a dozen fields of TracePacket are written, so that no protobuf library is needed. The numbers of the fields are
those of perfetto/protos/trace/perfetto_trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from cuda_gctx.tracing._lanes import Lane, merged
from cuda_gctx.tracing._marks import Mark
from cuda_gctx.tracing._records import Item

__all__ = ["write"]

# TracePacket
_TIMESTAMP, _SEQUENCE, _EVENT, _TRACK = 8, 10, 11, 60
# TrackDescriptor, ProcessDescriptor, CounterDescriptor
_UUID, _NAME, _PROCESS, _PARENT, _COUNTER, _CHILD_ORDER, _RANK = 1, 2, 3, 5, 8, 11, 12
_PID, _PROCESS_NAME, _UNIT = 1, 6, 6
_EXPLICIT = 3
# TrackEvent, DebugAnnotation
_TYPE, _TRACK_UUID, _CATEGORY, _EVENT_NAME, _VALUE, _ANNOTATION = 9, 11, 22, 23, 30, 4
_KEY, _INTEGER = 10, 4
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4
# A second device of a process is a process of its own.
_DEVICES = 10_000_000


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


class _Writer:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._tracks = 0

    def _packet(self, data: bytes) -> None:
        self._out.write(_bytes(1, data + _number(_SEQUENCE, 1)))

    def track(self, name: str, parent: int = 0, rank: int = 0, more: bytes = b"") -> int:
        """Write a track, whose children stand in the order in which they are written; returns its number."""
        self._tracks += 1
        data = _number(_UUID, self._tracks) + _bytes(_NAME, name) + _number(_CHILD_ORDER, _EXPLICIT)
        data += (_number(_PARENT, parent) if parent else b"") + _number(_RANK, rank) + more
        self._packet(_bytes(_TRACK, data))
        return self._tracks

    def process(self, pid: int, name: str) -> int:
        return self.track(name, more=_bytes(_PROCESS, _number(_PID, pid) + _bytes(_PROCESS_NAME, name)))

    def event(self, time: int, kind: int, track: int, more: bytes = b"") -> None:
        data = _number(_TYPE, kind) + _number(_TRACK_UUID, track) + more
        self._packet(_number(_TIMESTAMP, time) + _bytes(_EVENT, data))

    def slice(self, item: Item, track: int, category: str) -> None:
        annotations = {"queued before, ns": item.start - item.queued if item.queued else 0, "bytes": item.bytes}
        annotations["graph"] = item.graph
        more = _bytes(_EVENT_NAME, item.name) + _bytes(_CATEGORY, category)
        for key, value in annotations.items():
            if value > 0:
                more += _bytes(_ANNOTATION, _bytes(_KEY, key) + _number(_INTEGER, value))
        self.event(item.start, _BEGIN, track, more)
        self.event(item.end, _END, track)


def _rows(items: Iterable[Item]) -> list[list[Item]]:
    """The items in as few rows as keep those of a row apart: nodes of a graph overlap on one stream."""
    rows: list[list[Item]] = []
    for item in items:
        row = next((row for row in rows if row[-1].end <= item.start), None)
        if row is None:
            rows.append([item])
        else:
            row.append(item)
    return rows


def _busy_sms(lanes: Sequence[Lane]) -> Iterator[tuple[int, int]]:
    """How many SMs of busy partitions there are, from each time on at which that changes."""
    changes: dict[int, int] = {}
    for lane in lanes:
        if not lane.is_outside:
            for start, end in lane.busy():
                changes[start] = changes.get(start, 0) + lane.sm_count
                changes[end] = changes.get(end, 0) - lane.sm_count
    busy = 0
    for time, change in sorted(changes.items()):
        busy += change
        yield time, busy


def write(out: BinaryIO, lanes: Sequence[Lane], marks: Sequence[Mark]) -> None:
    """Write lanes and marks.

    Each process and device has a lane for each partition, with a row for each stream, a counter of the SMs of busy
    partitions, and a row of marks: layouts that were opened, switches, and waits of the host.
    """
    writer = _Writer(out)
    places = dict.fromkeys((lane.process.pid, lane.device) for lane in lanes)
    for pid, device in places:
        own = [lane for lane in lanes if (lane.process.pid, lane.device) == (pid, device)]
        process = own[0].process
        top = writer.process(pid + device * _DEVICES, f"{process.program} {pid}, device {device}")
        counter = writer.track("SMs of busy partitions", top, more=_bytes(_COUNTER, _bytes(_UNIT, "SMs")))
        for time, busy in _busy_sms(own):
            writer.event(time, _COUNT, counter, _number(_VALUE, busy))
        row = writer.track("marks", top, 1)
        for mark in marks:
            if mark.pid == pid:
                writer.event(mark.time, _INSTANT, row, _bytes(_EVENT_NAME, str(mark)) + _bytes(_CATEGORY, mark.event))
        waits = writer.track("waits of the host", top, 2)
        for start, end in merged([(start, end) for _, start, end in process.waits]):
            writer.event(start, _BEGIN, waits, _bytes(_EVENT_NAME, "wait") + _bytes(_CATEGORY, "wait"))
            writer.event(end, _END, waits)
        for rank, lane in enumerate(own, 3):
            name = lane.name if lane.is_outside else f"{lane.name} ({lane.sm_count} SMs)"
            parent = writer.track(name, top, rank)
            category = "outside" if lane.is_outside else "partition"
            for stream, items in sorted(lane.streams.items()):
                for number, found in enumerate(_rows(items), 1):
                    text = f"stream {stream}" if number == 1 else f"stream {stream} ({number})"
                    track = writer.track(text, parent, stream)
                    for item in found:
                        writer.slice(item, track, category)
