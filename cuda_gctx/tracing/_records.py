"""The files of the recorder: one for each process, of records of 56 bytes, in the order in which CUPTI gave them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Context", "Item", "Process", "read_process"]

_RECORD = struct.Struct("<BBHIIIQQQQII")
_CHUNK = 65536 * _RECORD.size
_FORMAT = 1
# The tags of records, as in recorder.cpp.
_PROGRAM, _CLOCK, _CONTEXT, _TEXT, _KERNEL, _COPY, _FILL, _GRAPH, _WAIT, _LAUNCH, _DROPPED, _ENDED = range(1, 13)
_KINDS = {_KERNEL: "kernel", _COPY: "copy", _FILL: "fill", _GRAPH: "graph"}


@dataclass(frozen=True)
class Context:
    """A context of a process. parent: the id of the primary context of a green one."""

    number: int
    device: int
    sm_count: int
    is_green: bool
    parent: int


class Item(NamedTuple):
    """One thing that a device did. Times are nanoseconds of CLOCK_REALTIME; queued is 0 where it is unknown."""

    kind: str  # kernel, copy, fill or graph
    name: str
    device: int
    context: int
    stream: int
    start: int
    end: int
    queued: int
    graph: int
    bytes: int


@dataclass
class Process:
    """What one process recorded.

    error_ns: how far its times may be from those of other processes. has_ended: false if it was killed.
    """

    pid: int
    program: str = "?"
    contexts: dict[int, Context] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)  # context, start, end
    dropped: int = 0
    error_ns: int = 0
    has_ended: bool = False


def _units(path: Path) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """The records of a file, each with its text. An incomplete last record, of a killed process, is left out."""
    with path.open("rb") as file:
        data = b""
        while chunk := file.read(_CHUNK):
            data += chunk
            place = 0
            while place + _RECORD.size <= len(data):
                record = _RECORD.unpack_from(data, place)
                end = place + (1 + record[1]) * _RECORD.size
                if end > len(data):
                    break
                yield record, data[place + _RECORD.size : end]
                place = end
            data = data[place:]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def read_process(path: Path) -> Process:
    """Read the file of a process. Raises ValueError if it is of another version of the recorder."""
    process = Process(int(path.name.split(".", 1)[0]))
    names: dict[int, str] = {}
    clocks: list[tuple[int, int, int]] = []
    launches: dict[int, int] = {}
    for record, text in _units(path):
        tag, _, device, context, stream, correlation, start, end, queued, size, name, graph = record
        if tag in _KINDS:
            kind = _KINDS[tag]
            item = Item(
                kind, names.get(name, kind), device, context, stream, start, end, queued or -correlation, graph, size
            )
            process.items.append(item)
        elif tag == _TEXT:
            names[correlation] = _text(text)
        elif tag == _LAUNCH:
            launches[correlation] = start
        elif tag == _WAIT:
            process.waits.append((context, start, end))
        elif tag == _CONTEXT:
            process.contexts[context] = Context(context, device, size, bool(graph), correlation)
        elif tag == _CLOCK:
            clocks.append((start, end, queued))
        elif tag == _DROPPED:
            process.dropped += size
        elif tag == _PROGRAM:
            if name != _FORMAT:
                raise ValueError(f"{path.name} has format {name}, and this version reads {_FORMAT}")
            process.program = _text(text)
        elif tag == _ENDED:
            process.has_ended = True
    # The pair of clocks that were read in the shortest time.
    there, here, process.error_ns = min(clocks, key=lambda clock: clock[2], default=(0, 0, 0))
    shift = here - there

    def placed(item: Item) -> Item:
        queued = item.queued if item.queued > 0 else launches.get(-item.queued, 0)
        return item._replace(start=item.start + shift, end=item.end + shift, queued=queued + shift if queued else 0)

    process.items = sorted(map(placed, process.items), key=lambda item: item.start)
    process.waits = sorted((context, start + shift, end + shift) for context, start, end in process.waits)
    return process
