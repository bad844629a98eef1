"""The order of a handler's calls: one at a time, each behind the one before, on whichever stream of one context."""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx import LEGACY_DEFAULT_STREAM, Context, Device, Stream
from cuda_gctx.comm._driver_calls import call, driver

__all__ = ["Order"]

# torch reports 0 for it.
LEGACY = LEGACY_DEFAULT_STREAM.handle


@cache
def _torch() -> Any:
    return import_module("torch")


class Order:
    """Gives each call its stream: torch's current one, ordered behind the stream of the call before.

    lock: what a call holds while it fills and launches its kernels.
    """

    def __init__(self, context: Context, torch_device: Any) -> None:
        self.lock = threading.Lock()
        self._context = context
        self._torch_device = torch_device
        self._index = torch_device.index
        self._device = Device(self._index)
        # torch's own wrapper makes an object of each stream, which takes longer than a launch. Triton asks in this way.
        self._raw_stream = getattr(getattr(_torch(), "_C", None), "_cuda_getCurrentRawStream", None)
        self._previous: Stream | None = None
        self._streams: dict[int, Stream] = {}  # by handle

    def stream(self) -> Stream:
        """The stream of a call, ordered behind the call before if that was on another one."""
        raw, previous = self._raw_stream, self._previous
        handle = self._current_handle() if raw is None else raw(self._index) or LEGACY
        if previous is not None and previous.handle == handle:
            return previous
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._wrapped(handle)
            if stream.context != self._context:
                raise RuntimeError(
                    f"the handler belongs to {self._context!r}, and torch's current stream to {stream.context!r}: call "
                    "it inside 'with partition.torch():' of that partition. Two partitions that share a communicator "
                    "would wait for each other forever"
                )
            self._streams[handle] = stream
        if previous is not None:
            _order(previous, stream)
        self._previous = stream
        return stream

    def stream_of_context(self) -> Stream:
        """torch's current stream if it is one of the context, or else a new one."""
        stream = self._wrapped(self._current_handle())
        return stream if stream.context == self._context else self._context.create_stream()

    def _current_handle(self) -> int:
        return int(_torch().cuda.current_stream(self._torch_device).cuda_stream) or LEGACY

    def _wrapped(self, handle: int) -> Stream:
        # torch's default stream is that of the primary context.
        with self._device.context.current():
            return Stream.from_handle(handle)


def _order(previous: Stream, stream: Stream) -> None:
    """Orders what comes on a stream behind what is on another one. What is being captured does not run yet."""
    before, after = _capture_of(previous), _capture_of(stream)
    if before == after:
        stream.wait(previous)
    elif before is None:
        # A capture cannot wait for work outside of it: the host does, in the mode that a capture allows.
        cu = driver()
        mode = call("cuThreadExchangeStreamCaptureMode", cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            with previous.context.current():
                call("cuStreamSynchronize", previous.handle)
        finally:
            call("cuThreadExchangeStreamCaptureMode", mode)


def _capture_of(stream: Stream) -> int | None:
    """The capture that a stream takes part in; None if there is none."""
    # A default stream is that of the current context.
    with stream.context.current():
        status, number, *_ = call("cuStreamGetCaptureInfo", stream.handle)
    return None if status == driver().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE else int(number)
