"""A point in a framework's work after which blocks run concurrently, until it joins them."""

from __future__ import annotations

import threading
from typing import Any, Protocol

__all__ = ["Fork", "FrameworkStreams", "demand_fork"]


class FrameworkStreams(Protocol):
    """The interface of a framework for forks. Streams and events are objects of the framework."""

    def name(self) -> str:
        """The name of the block in messages."""

    def current(self) -> Any:
        """The current stream of the calling thread."""

    def key(self, stream: Any) -> object:
        """A key that identifies a stream."""

    def record(self, stream: Any) -> Any:
        """A new event behind the work of a stream."""

    def wait(self, stream: Any, event: Any) -> None:
        """Make later work of a stream wait for an event."""


class Fork:
    """A point in a framework's work after which blocks run concurrently, until it joins them."""

    def __init__(self, streams: FrameworkStreams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._outer: Any = None
        self._begin: Any = None
        self._open = 0
        # The end of the last block on each stream.
        self._ends: dict[object, Any] = {}

    def __enter__(self) -> Fork:
        if self._outer is not None:
            raise RuntimeError("this fork has already been entered: create another one")
        self._outer = self._streams.current()
        self._begin = self._streams.record(self._outer)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._lock:
            begin, self._begin = self._begin, None
            still_open = self._open
            for end in self._ends.values():
                self._streams.wait(self._outer, end)
        if still_open and begin is not None and kind is None:
            raise RuntimeError(
                f"{still_open} blocks of the fork are still open, on this thread or another one, and their work is not "
                "joined: leave them, and join the threads, before the fork ends"
            )

    def start(self, inner: Any) -> None:
        """Begin a block: its stream, `inner`, waits for the beginning of the fork.

        Raises RuntimeError if the fork is not open.
        """
        with self._lock:
            if self._begin is None:
                raise RuntimeError(
                    "the fork is not open: enter it first, as in 'with fork() as start: with "
                    f"part.{self._streams.name()}(after=start): ...', and leave its blocks before it"
                )
            self._streams.wait(inner, self._begin)
            self._open += 1

    def end(self, inner: Any) -> None:
        """End a block: the end of the fork waits for its stream, `inner`."""
        with self._lock:
            self._open -= 1
            self._ends[self._streams.key(inner)] = self._streams.record(inner)

    def orders(self, streams: FrameworkStreams) -> bool:
        """Return whether the fork orders the streams of this framework."""
        return self._streams is streams


def demand_fork(after: object, streams: FrameworkStreams) -> None:
    """Raise TypeError for an `after` that is not None and not a fork of the framework."""
    if after is not None and not (isinstance(after, Fork) and after.orders(streams)):
        name = streams.name()
        raise TypeError(f"after must be a fork() of cuda_gctx.interop.{name}, not {type(after).__name__}")
