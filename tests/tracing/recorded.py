"""Builds files of the recorder."""

from __future__ import annotations

import struct

from cuda_gctx.tracing._records import Tag

RECORD = struct.Struct("<BBHIIIQQQQII")
SHIFT = 1_000_000  # between the clock of the records and the clock of the host
FIELDS = ("device", "context", "stream", "correlation", "start", "end", "queued", "size", "name", "graph")


def record(tag: Tag, text: str = "", **fields: int) -> bytes:
    data = text.encode() + b"\0" if text else b""
    units = -(-len(data) // RECORD.size)
    head = RECORD.pack(tag, units, *(fields.pop(name, 0) for name in FIELDS))
    assert not fields
    return head + data.ljust(units * RECORD.size, b"\0")


HEAD = (
    record(Tag.PROGRAM, "loop.py", name=1)
    + record(Tag.CLOCK, start=500, end=500 + SHIFT + 40, queued=50)
    + record(Tag.CLOCK, start=900, end=900 + SHIFT, queued=9)
    + record(Tag.CONTEXT, context=1, size=132)
    + record(Tag.CONTEXT, context=2, size=16, graph=1, correlation=1)
    + record(Tag.TEXT, "gemm", correlation=1)
    + record(Tag.TEXT, "relu", correlation=2)
)
