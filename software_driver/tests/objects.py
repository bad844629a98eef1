"""Contexts, streams and events of the driver as small objects, for tests that need many of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from .raw import DEFAULT_STREAM, RESOURCE_BYTES, SM, STREAM_NON_BLOCKING, Raw

NOT_READY = 600
DISABLE_TIMING, BLOCKING_SYNC = 2, 1
IGNORE_COSCHEDULING = 1  # CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING


class Closing:
    """An object that a ``with`` block closes."""

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Event(Closing):
    def __init__(self, raw: Raw, flags: int = DISABLE_TIMING) -> None:
        self.raw = raw
        self.handle = raw.handle("cuEventCreate", flags)

    def close(self) -> None:
        self.raw.call("cuEventDestroy_v2", ctypes.c_void_p(self.handle))

    def sync(self) -> None:
        self.raw.call("cuEventSynchronize", ctypes.c_void_p(self.handle))

    @property
    def is_done(self) -> bool:
        return self.raw.code("cuEventQuery", ctypes.c_void_p(self.handle)) != NOT_READY

    def __sub__(self, begin: Event) -> float:
        """The time between two events in ms."""
        took = ctypes.c_float()
        self.raw.call(
            "cuEventElapsedTime", ctypes.byref(took), ctypes.c_void_p(begin.handle), ctypes.c_void_p(self.handle)
        )
        return took.value


class Stream(Closing):
    def __init__(self, context: Context, priority: int) -> None:
        self.context, self.raw = context, context.raw
        with context.current():
            self.handle = self.raw.handle("cuStreamCreateWithPriority", STREAM_NON_BLOCKING, priority)

    def close(self) -> None:
        self.raw.destroy_stream(self.handle)

    def record(self, flags: int = DISABLE_TIMING) -> Event:
        with self.context.current():
            event = Event(self.raw, flags)
            self.raw.call("cuEventRecord", ctypes.c_void_p(event.handle), ctypes.c_void_p(self.handle))
        return event

    def wait(self, event: Event) -> None:
        self.raw.call("cuStreamWaitEvent", ctypes.c_void_p(self.handle), ctypes.c_void_p(event.handle), 0)

    def sync(self) -> None:
        self.raw.call("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    @property
    def is_done(self) -> bool:
        return self.raw.code("cuStreamQuery", ctypes.c_void_p(self.handle)) != NOT_READY


class Context(Closing):
    """A primary context, until subclasses change that."""

    def __init__(self, raw: Raw, handle: int) -> None:
        self.raw, self.handle = raw, handle

    def close(self) -> None:
        self.raw.call("cuDevicePrimaryCtxRelease_v2", 0)

    def create_stream(self, priority: int = 0) -> Stream:
        return Stream(self, priority)

    def create_event(self, flags: int = DISABLE_TIMING) -> Event:
        with self.current():
            return Event(self.raw, flags)

    @contextmanager
    def current(self) -> Iterator[None]:
        self.raw.push(self.handle)
        try:
            yield
        finally:
            self.raw.pop()

    def sync(self) -> None:
        with self.current():
            self.raw.call("cuCtxSynchronize")


class GreenContext(Context):
    """A green context over an SM resource."""

    def __init__(self, raw: Raw, resource: ctypes.Array[ctypes.c_char]) -> None:
        description = raw.handle("cuDevResourceGenerateDesc", resource, 1)
        self.green = raw.handle("cuGreenCtxCreate", ctypes.c_void_p(description), 0, DEFAULT_STREAM)
        super().__init__(raw, raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(self.green)))

    def close(self) -> None:
        self.raw.call("cuGreenCtxDestroy", ctypes.c_void_p(self.green))


class Device(Context):
    """Device 0, by its primary context, which stays retained until close()."""

    def __init__(self) -> None:
        raw = Raw()
        super().__init__(raw, raw.handle("cuDevicePrimaryCtxRetain", 0))

    def split(
        self, counts: list[int], flags: int = 0
    ) -> tuple[list[ctypes.Array[ctypes.c_char]], ctypes.Array[ctypes.c_char]]:
        """Groups of one size, by count, and the rest."""
        whole, rest = ctypes.create_string_buffer(RESOURCE_BYTES), ctypes.create_string_buffer(RESOURCE_BYTES)
        groups = ctypes.create_string_buffer(RESOURCE_BYTES * len(counts))
        number = ctypes.c_uint(len(counts))
        self.raw.call("cuDeviceGetDevResource", 0, whole, SM)
        self.raw.call("cuDevSmResourceSplitByCount", groups, ctypes.byref(number), whole, rest, flags, counts[0])
        assert number.value == len(counts)
        pieces = [groups.raw[i * RESOURCE_BYTES : (i + 1) * RESOURCE_BYTES] for i in range(len(counts))]
        return [ctypes.create_string_buffer(piece, RESOURCE_BYTES) for piece in pieces], rest

    def green(self, count: int = 8) -> GreenContext:
        (group,), _ = self.split([count])
        return GreenContext(self.raw, group)

    def partition(self, count: int, flags: int = 0) -> tuple[GreenContext, GreenContext]:
        """A context of `count` SMs, and a context of the others."""
        (group,), rest = self.split([count], flags)
        return GreenContext(self.raw, group), GreenContext(self.raw, rest)
