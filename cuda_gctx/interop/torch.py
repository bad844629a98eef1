"""PyTorch in a partition: its operations run on the partition's stream, in order with those before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cuda_gctx._stream import Stream
from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["torch_stream", "use"]

# The first one that is built for CUDA 12.4, where green contexts begin.
MINIMUM = "2.4"


def load_torch() -> Any:
    torch = load("torch", "torch", MINIMUM)
    if torch.version.cuda is None:
        raise ImportError(f"this needs torch {MINIMUM} or newer built for CUDA, and found {torch.__version__} without")
    return torch


@cache
def _stream_class(torch: Any) -> Any:
    class PartitionStream(torch.cuda.ExternalStream):  # type: ignore[misc]
        """A stream of this package as torch's; ``stream`` is the one that it stands for, and lives as long."""

        stream: Stream

        def __new__(cls, stream: Stream) -> PartitionStream:
            self: PartitionStream = super().__new__(cls, stream.handle, device=stream.device.device_id)
            self.stream = stream
            return self

    return PartitionStream


def torch_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream as a torch.cuda.Stream, which keeps it and its context alive.

    Tensors that were given to it by record_stream must be freed before it is: their memory is returned by way of it.
    """
    return _stream_class(load_torch())(own_stream(target))


@contextmanager
def use(target: Target) -> Iterator[Any]:
    """Makes torch work in a partition, a context or a stream for the length of a block, and gives its torch stream.

    What torch was given before on the stream that is current outside comes first, and what it is given there after the
    block waits for the work of the block: tensors pass in and out as if there were one stream.
    """
    torch = load_torch()
    inner = torch_stream(target)
    outer = torch.cuda.current_stream(inner.device)
    inner.wait_stream(outer)
    with torch.cuda.stream(inner):
        try:
            yield inner
        finally:
            outer.wait_stream(inner)
