"""Writes traces in the protobuf format of Perfetto, which ui.perfetto.dev opens: processes, lanes, slices and counters.

The numbers of fields and of values come from Perfetto's public format, trace_packet.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

__all__ = ["PerfettoWriter", "Track"]

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock; events have times of the second
_EXPLICIT_ORDER, _MERGED_BY_KEY = 3, 3
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BUFFER_BYTES = 1 << 20
# Processes are told apart by their number alone. Linux numbers end below this step, so that it separates devices.
_DEVICE_STEP = 1 << 22
_TIME_BITS = 56
_DIGIT = (1 << 14) - 1

_Frame = tuple[bytes, bytes]  # a packet before and after its time


_SHORT = [bytes((value,)) for value in range(128)]


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _SHORT[value]
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode(errors="replace") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


_SEQUENCE = _field(10, 1)
_IN_SEQUENCE = _SEQUENCE + _field(13, _NEEDS_STATE)


def _frame(event: bytes) -> _Frame:
    """Builds a packet around an event, without its time, which takes 8 bytes."""
    after = _IN_SEQUENCE + _field(11, event)
    return b"\x0a" + _varint(9 + len(after)) + b"\x40", after


@dataclass(eq=False)
class Track:
    """A process, a lane or a counter of a trace.

    rows: the tracks of the file that make up a lane, each with the end of its last slice. Slices of one track of the
    file must not overlap, and kernels of a stream do: the branches of a graph, for example.
    """

    uuid: int
    descriptor: bytes = b""
    lanes: int = 0
    rows: list[tuple[int, int]] = field(default_factory=list)


class PerfettoWriter:
    """Writes a trace into a file. Times are nanoseconds of CLOCK_REALTIME, none of them before `origin`."""

    def __init__(self, file: BinaryIO, origin: int) -> None:
        self._file = file
        self._origin = origin
        self._buffer = bytearray()
        self._uuids = 0
        self._interned: dict[tuple[int, str], int] = {}
        self._slices: dict[tuple[int, str, str], tuple[bytes, _Frame, _Frame]] = {}
        self._counts: dict[tuple[int, int], _Frame] = {}
        self._details: dict[str, bytes] = {}
        # Pairs of bytes of a varint that has the same length for all times: its packet's length is then known before.
        self._digits = [bytes((digit & 127 | 128, digit >> 7 | 128)) for digit in range(_DIGIT + 1)]
        clocks = [
            _field(1, _field(1, clock) + _field(2, time)) for clock, time in ((_REALTIME, origin), (_BOOTTIME, 0))
        ]
        self._add(_field(6, b"".join(clocks) + _field(2, _BOOTTIME)))
        self._add(_SEQUENCE + _field(13, _STATE_CLEARED) + _field(87, 1))

    def __enter__(self) -> PerfettoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    # ---- tracks

    def process(self, pid: int, program: str, device: int) -> Track:
        """Add what a process does on a device."""
        description = _field(1, pid + device * _DEVICE_STEP) + _field(6, f"{program}, GPU {device}")
        return self._describe(_field(3, description) + _field(11, _EXPLICIT_ORDER))

    def lane(self, parent: Track, name: str) -> Track:
        """Add a lane inside a process or a lane. Lanes appear in the order in which they are added."""
        parent.lanes += 1
        placed = _field(2, name) + _field(5, parent.uuid) + _field(12, parent.lanes) + _field(11, _EXPLICIT_ORDER)
        track = self._describe(placed + _field(15, _MERGED_BY_KEY) + _field(17, self._uuids + 1))
        track.rows.append((track.uuid, 0))
        return track

    def counter(self, parent: Track, name: str, unit: str) -> Track:
        """Add a curve of whole numbers."""
        parent.lanes += 1
        placed = _field(2, name) + _field(5, parent.uuid) + _field(12, parent.lanes)
        return self._describe(placed + _field(8, _field(6, unit)))

    def _describe(self, descriptor: bytes) -> Track:
        self._uuids += 1
        self._add(_field(60, _field(1, self._uuids) + descriptor))
        return Track(self._uuids, descriptor)

    # ---- events

    def slice(
        self,
        lane: Track,
        name: str,
        category: str,
        start: int,
        end: int,
        details: Mapping[str, int | str] | None = None,
    ) -> None:
        """Add work with its beginning and end. The viewer shows the details of the selected slice."""
        begins, ends = self._time(name, start), self._time(name, end)
        if end < start:
            raise ValueError(f"{name!r} ends {start - end} ns before its start")
        uuid = self._row(lane, start, end)
        known = self._slices.get((uuid, name, category))
        if known is None:
            event = self._event(_BEGIN, uuid, name, category)
            known = event, _frame(event), _frame(self._event(_END, uuid))
            self._slices[uuid, name, category] = known
        event, opening, closing = known
        if details:
            opening = _frame(event + self._annotations(details))
        self._put(opening, begins)
        self._put(closing, ends)

    def mark(self, track: Track, name: str, category: str, time: int) -> None:
        """Add an instant to a process or a lane."""
        self._put(_frame(self._event(_INSTANT, track.uuid, name, category)), self._time(name, time))

    def count(self, counter: Track, time: int, value: int) -> None:
        """Add a point of a curve, which keeps its value until the next point."""
        frame = self._counts.get((counter.uuid, value))
        if frame is None:
            frame = _frame(self._event(_COUNTER, counter.uuid) + _field(30, value))
            self._counts[counter.uuid, value] = frame
        self._put(frame, self._time("a count", time))

    def _row(self, lane: Track, start: int, end: int) -> int:
        for number, (uuid, busy_until) in enumerate(lane.rows):
            if busy_until <= start:
                lane.rows[number] = uuid, end
                return uuid
        row = self._describe(lane.descriptor)
        lane.rows.append((row.uuid, end))
        return row.uuid

    def _time(self, name: str, time: int) -> bytes:
        since = time - self._origin
        if since < 0:
            raise ValueError(f"{name!r} starts {-since} ns before the trace")
        if since >> _TIME_BITS:
            raise ValueError(f"{name!r} makes the trace longer than {(1 << _TIME_BITS) // 86_400_000_000_000} days")
        digits = self._digits
        last = since >> 42
        low = digits[since & _DIGIT] + digits[since >> 14 & _DIGIT] + digits[since >> 28 & _DIGIT]
        return low + bytes((last & 127 | 128, last >> 7))

    def _event(self, kind: int, uuid: int, name: str | None = None, category: str | None = None) -> bytes:
        event = _field(9, kind) + _field(11, uuid)
        if name is not None:
            event += _field(10, self._number_of(2, name))
        if category is not None:
            event += _field(3, self._number_of(1, category))
        return event

    def _annotations(self, details: Mapping[str, int | str]) -> bytes:
        found = b""
        for name, value in details.items():
            if name not in self._details:
                self._details[name] = _field(1, self._number_of(3, name))
            found += _field(4, self._details[name] + _field(4 if isinstance(value, int) else 6, value))
        return found

    def _number_of(self, kind: int, text: str) -> int:
        """Numbers the texts of each kind, and writes a text when it gets its number."""
        number = self._interned.get((kind, text))
        if number is None:
            number = self._interned[kind, text] = len(self._interned) + 1
            self._add(_IN_SEQUENCE + _field(12, _field(kind, _field(1, number) + _field(2, text))))
        return number

    def _put(self, frame: _Frame, time: bytes) -> None:
        self._buffer += b"".join((frame[0], time, frame[1]))
        if len(self._buffer) > _BUFFER_BYTES:
            self._flush()

    def _add(self, packet: bytes) -> None:
        self._buffer += _field(1, packet)

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()
