"""CuPy in a partition: its operations run on the partition's stream, in order with those before and after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

from cuda_gctx._core.extension import Stream
from cuda_gctx.interop._block import Block
from cuda_gctx.interop._fork import Fork, demand_fork
from cuda_gctx.interop._frameworks import Target, load, own_stream, refuse_default_of_green
from cuda_gctx.interop.library_sms import cupy_block, demand_choice

__all__ = ["Fork", "cupy_stream", "current", "fork", "use"]

# The first version with Stream.from_external.
MINIMUM = "14.0"

# CuPy's objects for streams. They do not keep streams of this package alive.
_external_streams: WeakKeyDictionary[Stream, Any] = WeakKeyDictionary()


@cache
def _stream_class(cupy: Any) -> Any:
    class PartitionStream(cupy.cuda.Stream):  # type: ignore[misc]
        """A CuPy stream over a stream of this package, which it keeps alive."""

        def __del__(self) -> None:
            # CuPy 14 destroys the stream of any Stream object here. This object does not own its stream.
            pass

    return PartitionStream


class _Handle:
    """The handle of a stream, for CuPy objects that do not keep the stream alive."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def cupy_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream, as a cupy.cuda.Stream that keeps its SMs in use.

    target: the partition, context or stream, or an object with ``__cuda_stream__``.
    """
    return _as_cupys(load("cupy", "cupy", MINIMUM), own_stream(target))


def _as_cupys(cupy: Any, stream: Stream) -> Any:
    # CuPy assumes that the stream is on the current device.
    with cupy.cuda.Device(stream.device.device_id):
        return _stream_class(cupy).from_external(stream)


class _Streams:
    """The streams of CuPy with their devices, for forks: CuPy's objects for foreign streams do not store a device."""

    def name(self) -> str:
        return "cupy"

    def current(self) -> tuple[Any, int]:
        cupy = load("cupy", "cupy", MINIMUM)
        return cupy.cuda.get_current_stream(), cupy.cuda.Device().id

    def key(self, stream: tuple[Any, int]) -> object:
        return stream[0].ptr, stream[1]

    def record(self, stream: tuple[Any, int]) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(stream[1]):
            return stream[0].record(cupy.cuda.Event(disable_timing=True))

    def wait(self, stream: tuple[Any, int], event: Any) -> None:
        with sys.modules["cupy"].cuda.Device(stream[1]):
            stream[0].wait_event(event)


_streams = _Streams()


def fork() -> Fork:
    """A ``with`` block whose blocks run concurrently: ``with fork() as start: with part.cupy(after=start): ...``.

    Like cuda_gctx.interop.torch.fork(), for CuPy.
    """
    return Fork(_streams)


def use(target: Target, library_sms: Literal["off", "on"] = "off", after: Fork | None = None) -> Block:
    """Run CuPy on a context or a stream within a block, which returns its CuPy stream.

    Write ``part.cupy()`` for a partition.

    The block starts after earlier work of CuPy on the stream that is current outside. Later work on that stream waits
    for the block. The device of the partition is current inside.

    The block can be reused, nested, entered on several threads, and used as a decorator. With an await or a yield
    inside, the blocks of a thread may end in the wrong order; this raises RuntimeError.

    target: the context or stream, or an object with ``__cuda_stream__``.
    library_sms: whether cuBLAS gets the SM count of the partition as a hint. after: a fork(); the block starts at its
    beginning and runs concurrently with its other blocks, and the end of the fork waits for it.
    """
    demand_choice(library_sms, ("off", "on"))
    demand_fork(after, _streams)

    def enter(stream: Stream, undo: ExitStack) -> tuple[Any, Callable[[], None]]:
        cupy = load("cupy", "cupy", MINIMUM)
        device = stream.device.device_id
        inner = _as_cupys(cupy, stream)
        undo.enter_context(cupy.cuda.Device(device))
        if after is None:
            outer = cupy.cuda.get_current_stream()
            _follow((inner, device), (outer, device))
            join = partial(_follow, (outer, device), (inner, device))
        else:
            after.start((inner, device))
            join = partial(after.end, (inner, device))
        undo.enter_context(inner)
        undo.enter_context(cupy_block(cupy, stream, library_sms))
        return inner, join

    return Block(target, enter)


def _follow(later: tuple[Any, int], earlier: tuple[Any, int]) -> None:
    _streams.wait(later, _streams.record(earlier))


@contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Make a stream CuPy's current one in a block, without ordering it; does nothing if CuPy has no device.

    CuPy must be imported, and the stream must outlive the block. This is cheap for a stream that was used before.
    """
    cupy = sys.modules["cupy"]
    device = cupy.cuda.Device
    external = _external_streams.get(stream)
    if external is None:
        if not cupy.is_available():
            yield
            return
        load("cupy", "cupy", MINIMUM)
        refuse_default_of_green(stream)
        stream.__cuda_stream__()  # marks the stream as seen by a framework, so that it is never destroyed
        with device(stream.device.device_id):
            external = _external_streams[stream] = _stream_class(cupy).from_external(_Handle(stream.handle))
    # An external stream of CuPy does not know its device.
    with device(stream.device.device_id), external:
        yield
