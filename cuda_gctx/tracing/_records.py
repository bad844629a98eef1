"""The files of the recorder: one for each process, of records of 56 bytes, in the order in which CUPTI gave them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

__all__ = ["Context", "Item", "Process", "Record", "StreamItems", "Tag", "read_process", "records_from"]

_RECORD = struct.Struct("<BBHIIIQQQQII")
_CHUNK = 65536 * _RECORD.size
_FORMAT = 1


class Tag(IntEnum):
    """The kinds of records, as in recorder.cpp."""

    PROGRAM = 1
    CLOCK = 2
    CONTEXT = 3
    TEXT = 4
    KERNEL = 5
    COPY = 6
    FILL = 7
    GRAPH = 8
    WAIT = 9
    LAUNCH = 10
    DROPPED = 11
    ENDED = 12
    REPLACED = 13


class Record(NamedTuple):
    """A record of a file. What the fields mean depends on the tag: recorder.cpp has the list."""

    tag: int
    text_records: int
    device: int
    context: int
    stream: int
    correlation: int
    start: int
    end: int
    queued: int
    size: int
    name: int
    graph: int


@dataclass(frozen=True)
class Context:
    """A context of a process. parent: the id of the primary context of a green one."""

    number: int
    device: int
    sm_count: int
    is_green: bool
    parent: int

    @classmethod
    def of(cls, record: Record) -> Context:
        """The context that a record describes."""
        return cls(record.context, record.device, record.size, bool(record.graph), record.correlation)


class Item(NamedTuple):
    """A kernel, copy, fill or launch of a graph. Times are nanoseconds of CLOCK_REALTIME; queued is 0 if unknown."""

    kind: int  # Tag.KERNEL, COPY, FILL or GRAPH
    name: str
    start: int
    end: int
    queued: int
    graph: int
    bytes: int


@dataclass
class StreamItems:
    """The items of a stream, in the order of the starts.

    Columns: a trace can have tens of millions of items, each of which takes 41 bytes here.
    """

    names: dict[int, str]
    kinds: bytearray = field(default_factory=bytearray)
    name_numbers: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    queued: array[int] = field(default_factory=lambda: array("q"))
    graphs: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Item]:
        columns = (self.kinds, self.name_numbers, self.starts, self.ends, self.queued, self.graphs, self.sizes)
        for kind, name, start, end, queued, graph, size in zip(*columns, strict=True):
            yield Item(kind, self.name_of(kind, name), start, end, queued, graph, size)

    def name_of(self, kind: int, number: int) -> str:
        """The name of a kernel, or the word for another kind of item."""
        return self.names.get(number) or Tag(kind).name.lower()

    def settle(self, shift: int, launches: dict[int, int]) -> None:
        """Shift times to another clock, look launches up, and sort by the start."""
        # A correlation, which is negative, stands for a launch that another record describes.
        queued = array("q", (time if time > 0 else launches.get(-time, 0) for time in self.queued))
        # A graph without times, because its nodes run in several contexts, stands at its launch.
        self.starts = array("q", (shift + (time or begun) for time, begun in zip(self.starts, queued, strict=True)))
        self.ends = array("q", (shift + (time or begun) for time, begun in zip(self.ends, queued, strict=True)))
        self.queued = array("q", (time + shift if time else 0 for time in queued))
        starts = self.starts
        if any(map(int.__gt__, starts, islice(starts, 1, None))):
            order = sorted(range(len(starts)), key=starts.__getitem__)
            self.kinds = bytearray(map(self.kinds.__getitem__, order))
            for name in ("name_numbers", "starts", "ends", "queued", "graphs", "sizes"):
                column = getattr(self, name)
                setattr(self, name, array(column.typecode, map(column.__getitem__, order)))


# A device, a context and a stream.
Place = tuple[int, int, int]


@dataclass
class Process:
    """The records of a process.

    shift: from the clock of its records to CLOCK_REALTIME. error_ns: how far its times may be from those of other
    processes. has_ended: false if it was killed. was_replaced: true if another profiler received the records from some
    time on.
    """

    pid: int
    program: str = "?"
    contexts: dict[int, Context] = field(default_factory=dict)
    streams: dict[Place, StreamItems] = field(default_factory=dict)
    waits: list[tuple[int, int, int]] = field(default_factory=list)  # context, start, end
    dropped: int = 0
    shift: int = 0
    error_ns: int = 0
    is_simulated: bool = False
    has_ended: bool = False
    was_replaced: bool = False


def records_from(path: Path, place: int = 0) -> Iterator[tuple[Record, bytes, int]]:
    """The records of a file from a place on, each with its text and the place behind it.

    Leaves out an incomplete last record, which is of a process that writes or was killed.
    """
    with path.open("rb") as file:
        file.seek(place)
        data = b""
        while chunk := file.read(_CHUNK):
            data += chunk
            at = 0
            while at + _RECORD.size <= len(data):
                record = Record(*_RECORD.unpack_from(data, at))
                end = at + (1 + record.text_records) * _RECORD.size
                if end > len(data):
                    break
                yield record, data[at + _RECORD.size : end], place + end
                at = end
            data = data[at:]
            place += at


def text_of(data: bytes) -> str:
    """The text that follows a record."""
    return data.rstrip(b"\0").decode(errors="replace")


def read_process(path: Path) -> Process:
    """Read the file of a process. Raises ValueError if it is of another version of the recorder."""
    process = Process(int(path.name.split(".", 1)[0]))
    names: dict[int, str] = {}
    clocks: list[tuple[int, int, int]] = []
    launches: dict[int, int] = {}
    for record, text, _ in records_from(path):
        tag, _, device, context, stream, correlation, start, end, queued, size, name, graph = record
        if Tag.KERNEL <= tag <= Tag.GRAPH:
            place = device, context, stream
            items = process.streams.get(place)
            if items is None:
                items = process.streams[place] = StreamItems(names)
            items.kinds.append(tag)
            items.name_numbers.append(name)
            items.starts.append(start)
            items.ends.append(end)
            # The launch stands before or behind its kernel. That of a graph is also the launch of its other nodes.
            items.queued.append(-correlation if graph else launches.pop(correlation, -correlation))
            items.graphs.append(graph)
            items.sizes.append(size)
        elif tag == Tag.TEXT:
            names[correlation] = text_of(text)
        elif tag == Tag.LAUNCH:
            launches[correlation] = start
        elif tag == Tag.WAIT:
            process.waits.append((context, start, end))
        elif tag == Tag.CONTEXT:
            process.contexts[context] = Context.of(record)
        elif tag == Tag.CLOCK:
            clocks.append((start, end, queued))
        elif tag == Tag.DROPPED:
            process.dropped += size
        elif tag == Tag.PROGRAM:
            if name != _FORMAT:
                raise ValueError(f"{path.name} has format {name}, and this version reads {_FORMAT}")
            process.program, process.is_simulated = text_of(text), bool(graph)
        elif tag == Tag.ENDED:
            process.has_ended = True
        elif tag == Tag.REPLACED:
            process.was_replaced = True
    # The pair of clocks that were read in the shortest time.
    there, here, process.error_ns = min(clocks, key=lambda clock: clock[2], default=(0, 0, 0))
    shift = process.shift = here - there
    for items in process.streams.values():
        items.settle(shift, launches)
    process.waits = sorted((context, start + shift, end + shift) for context, start, end in process.waits)
    return process
