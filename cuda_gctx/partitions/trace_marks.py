"""Tells a trace of this process the names of contexts, and when layouts are opened and switched."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

__all__ = ["TRACE_VARIABLE", "folder", "mark", "mark_open_layouts", "mark_opening", "marks_in"]

TRACE_VARIABLE = "CUDA_GCTX_TRACE"
# The folder of the trace; None without one.
folder = os.environ.get(TRACE_VARIABLE)
# The library that records this process.
_recorder = os.environ.get("CUDA_INJECTION64_PATH")


class _Part(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> Any: ...


# The layouts that are open: a trace that begins later has to know their names. An opening enters its layout before it
# looks at the folder, and a trace sets the folder before it reads the layouts, so that neither misses the other.
_opened: WeakKeyDictionary[object, tuple[_Part, ...]] = WeakKeyDictionary()
_lock = threading.Lock()  # of beginning a trace


def _recorded_time() -> int:
    """The time by the clock of the records, which can be ahead of the host's; 0 if nothing is recorded yet."""
    import ctypes  # which a program without a trace does not need

    if _recorder is None:
        return 0
    read = ctypes.CDLL(_recorder).cuda_gctx_recorded_time
    read.restype = ctypes.c_uint64
    return int(read())


def mark(event: str, parts: Iterable[_Part], name: str | None = None) -> None:
    """Note an event with the names of partitions and the numbers of their contexts, or with another name.

    event: open or switch.
    """
    place = folder
    if place is None:
        return
    contexts = {part.context.id: part.name for part in parts}
    entry = {"event": event, "time": time.time_ns(), "contexts": contexts}
    if recorded_time := _recorded_time():
        entry["recorded_time"] = recorded_time
    line = json.dumps(entry if name is None else {**entry, "names": [name]})
    with suppress(OSError), open(os.path.join(place, f"{os.getpid()}.marks"), "a", encoding="utf-8") as marks:
        marks.write(line + "\n")


def mark_opening(layout: object, parts: tuple[_Part, ...]) -> None:
    """Note that a layout was opened, which stays known while the object lives."""
    _opened[layout] = parts
    if folder is not None:
        mark("open", parts)


def mark_open_layouts() -> None:
    """Note the layouts that are open, when recording has begun: a mark has the time of the records."""
    for reference in _opened.keyrefs():  # a copy: other threads open layouts meanwhile
        if (layout := reference()) is not None and (parts := _opened.get(layout)) is not None:
            with suppress(RuntimeError):  # closed meanwhile
                mark("open", parts)


@contextmanager
def marks_in(place: str, recorder: str) -> Iterator[None]:
    """Note events in a folder while the block runs.

    recorder: the library that records the process.

    Raises RuntimeError if the process is traced already.
    """
    global folder, _recorder
    with _lock:
        if folder is not None:
            raise RuntimeError("this process is traced already, and a process has one trace at a time")
        folder, _recorder = place, recorder
    try:
        yield
    finally:
        folder = None
