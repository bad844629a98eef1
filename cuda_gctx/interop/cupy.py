"""CuPy in a partition: its operations run on the partition's stream, in order with those before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cuda_gctx._stream import Stream
from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["cupy_stream", "use"]

# The first one with Stream.from_external.
MINIMUM = "14.0"


@cache
def _stream_class(cupy: Any) -> Any:
    class PartitionStream(cupy.cuda.Stream):  # type: ignore[misc]
        """A stream of this package as CuPy's, which keeps the one that it stands for alive."""

        def __del__(self) -> None:
            # CuPy 14 destroys the stream of any Stream object here. This one's is not its own.
            pass

    return PartitionStream


def cupy_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream as a cupy.cuda.Stream, which keeps it and its context alive."""
    cupy = load("cupy", "cupy", MINIMUM)
    stream: Stream = own_stream(target)
    # CuPy takes the current device for that of the stream.
    with cupy.cuda.Device(stream.device.device_id):
        return _stream_class(cupy).from_external(stream)


@contextmanager
def use(target: Target) -> Iterator[Any]:
    """Makes CuPy work in a partition, a context or a stream for the length of a block, and gives its CuPy stream.

    What CuPy was given before on the stream that is current outside comes first, and what it is given there after the
    block waits for the work of the block. The device of the partition is current inside.
    """
    stream = own_stream(target)
    inner = cupy_stream(stream)
    cupy = load("cupy", "cupy", MINIMUM)
    # CuPy's object for a stream of others does not know its device.
    with cupy.cuda.Device(stream.device.device_id):
        outer = cupy.cuda.get_current_stream()
        inner.wait_event(outer.record(cupy.cuda.Event(disable_timing=True)))
        with inner:
            try:
                yield inner
            finally:
                outer.wait_event(inner.record(cupy.cuda.Event(disable_timing=True)))
