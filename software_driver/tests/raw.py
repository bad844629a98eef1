"""The driver's functions through ctypes, with the handles as ints."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda_software_driver import library_path

STREAM_NON_BLOCKING = 1
SM = 1
DEFAULT_STREAM = 1
RESOURCE_BYTES = 144


class RawError(Exception):
    """A raw call answered an error."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered {code}")
        self.code = code


class Raw:
    """Calls of a driver library, which is initialised."""

    def __init__(self, path: str | None = None) -> None:
        self.library = ctypes.CDLL(path or library_path())
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        if code := self.code(name, *arguments):
            raise RawError(name, code)

    def code(self, name: str, *arguments: Any) -> int:
        """The CUresult of a call."""
        result: int = getattr(self.library, name)(*arguments)
        return result

    def handle(self, name: str, *arguments: Any) -> int:
        """The handle that a call writes to its first parameter."""
        result = ctypes.c_void_p()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def current(self) -> int:
        return self.handle("cuCtxGetCurrent")

    def set_current(self, context: int) -> None:
        self.call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def push(self, context: int) -> None:
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))

    def pop(self) -> int:
        return self.handle("cuCtxPopCurrent_v2")

    def create_stream(self, context: int) -> int:
        self.push(context)
        try:
            return self.handle("cuStreamCreate", STREAM_NON_BLOCKING)
        finally:
            self.pop()

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def retain(self, device: int = 0) -> int:
        """Retains the primary context of a device, and makes it current."""
        context = self.handle("cuDevicePrimaryCtxRetain", device)
        self.set_current(context)
        return context

    @contextmanager
    def primary(self, device: int = 0) -> Iterator[int]:
        """The primary context of a device, current within a block."""
        context = self.retain(device)
        try:
            yield context
        finally:
            self.set_current(0)
            self.call("cuDevicePrimaryCtxRelease_v2", device)
