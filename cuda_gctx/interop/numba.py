"""Numba kernels in a partition: launch them on ``numba_stream(partition)``.

Numba has no current stream: launches without a stream run on the default stream, on all SMs. Pass the stream to copies
and fills of arrays as well.
"""

from __future__ import annotations

from typing import Any

from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["numba_stream"]

# The oldest version with which this was tested.
MINIMUM = "0.30"


def numba_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream, as a Numba stream that keeps it and its context alive.

    target: the partition, context or stream, or an object with ``__cuda_stream__``.
    """
    cuda = load("numba.cuda", "numba-cuda", MINIMUM, versioned="numba_cuda")
    stream = own_stream(target)
    # Numba requires a current primary context.
    with stream.device.context.current():
        external = cuda.external_stream(stream.handle)
    external.owner = stream
    return external
