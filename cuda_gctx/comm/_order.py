"""The order of the calls of a context's handlers: one at a time, each behind the one before, on any of its streams."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from cuda_gctx import LEGACY_DEFAULT_STREAM, Context, Device, Stream
from cuda_gctx.comm._calls import Turns
from cuda_gctx.comm._driver_calls import call, driver

__all__ = ["Order"]

# torch reports 0 for it.
LEGACY = LEGACY_DEFAULT_STREAM.handle


@cache
def _torch() -> Any:
    return import_module("torch")


class Order(Turns):
    """Gives each call its stream: torch's current one, ordered behind the stream of the call before.

    All handlers of a context share one order. Kernels of two handlers can each need all SMs of a partition: ranks that
    began them in different orders would wait for each other.
    """

    _of_contexts: ClassVar[WeakValueDictionary[Context, Order]] = WeakValueDictionary()
    _making = Lock()

    @classmethod
    def of(cls, context: Context, torch_device: Any) -> Order:
        """The order of a context."""
        with cls._making:
            order = cls._of_contexts.get(context)
            if order is None:
                order = cls._of_contexts[context] = cls(context, torch_device)
            order._handlers += 1
            return order

    def leave(self) -> None:
        """Ends the use by a handler. The last one lets go of the stream of the last call."""
        with self._making:
            self._handlers -= 1
            if self._handlers == 0:
                self.forget()

    def __init__(self, context: Context, torch_device: Any) -> None:
        def current(index: Any) -> int:
            return int(_torch().cuda.current_stream(torch_device).cuda_stream)

        # torch's own wrapper makes an object of each stream, which takes longer than a launch. Triton asks in this way.
        raw = getattr(getattr(_torch(), "_C", None), "_cuda_getCurrentRawStream", current)
        super().__init__(raw, torch_device.index, LEGACY)
        self._context = context
        self._device = Device(torch_device.index)
        self._handlers = 0

    def next(self, handle: int) -> Stream:
        stream = self._wrapped(handle)
        if stream.context != self._context:
            raise RuntimeError(
                f"the handler belongs to {self._context!r}, and torch's current stream to {stream.context!r}: call "
                "it inside 'with partition.torch():' of that partition. Two partitions that share a communicator "
                "would deadlock"
            )
        if self.previous is not None:
            _order(self.previous, stream)
        return stream

    def stream_of_context(self) -> Stream:
        """torch's current stream if it is one of the context, or else a new one."""
        stream = self._wrapped(self.handle())
        return stream if stream.context == self._context else self._context.create_stream()

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
