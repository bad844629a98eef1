"""Numba kernels in a partition: ``numba_stream(partition)`` is the stream to launch them on.

Numba has no current stream: what is given no stream runs on the default one, on all SMs. Arrays that are copied or
filled take a stream as well.
"""

from __future__ import annotations

from typing import Any

from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["numba_stream"]

# The oldest one that this has been tried with.
MINIMUM = "0.30"


def numba_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream as one of Numba's, which keeps it and its context alive."""
    cuda = load("numba.cuda", "numba-cuda", MINIMUM, versioned="numba_cuda")
    stream = own_stream(target)
    # Numba wants a primary context to be current.
    with stream.device.context.current():
        made = cuda.external_stream(stream.handle)
    made.owner = stream
    return made
