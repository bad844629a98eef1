"""The default streams of CUDA as objects that belong to no context: the one that is current at each use counts."""

from __future__ import annotations

from typing import Any

from cuda_gctx._core.extension import Stream

__all__ = ["LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "DefaultStream"]


class DefaultStream:
    """A default stream of whichever context is current on the calling thread.

    It has the attributes of a Stream, and every function that takes a stream takes it. `here` is the Stream of the
    context that is current now, which keeps that context.
    """

    __slots__ = ("_name", "handle")

    def __init__(self, name: str, handle: int) -> None:
        self._name = name
        self.handle = handle

    def here(self) -> Stream:
        """The stream of the current context."""
        return Stream.from_handle(self.handle)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Stream, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.here(), name)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def __reduce__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return self._name


LEGACY_DEFAULT_STREAM = DefaultStream("LEGACY_DEFAULT_STREAM", 1)
PER_THREAD_DEFAULT_STREAM = DefaultStream("PER_THREAD_DEFAULT_STREAM", 2)
