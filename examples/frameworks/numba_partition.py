"""A Numba kernel in a partition: the stream in its launch is all that changes."""

from __future__ import annotations

import numpy
from numba import cuda

from cuda_gctx import Device
from cuda_gctx.interop.numba import numba_stream


@cuda.jit
def double(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


def main() -> None:
    dev = Device(0)
    with dev.partition(control=16) as parts:
        stream = numba_stream(parts.control)
        values = cuda.to_device(numpy.arange(4096, dtype=numpy.float32), stream=stream)
        double[16, 256, stream](values)
        result = values.copy_to_host(stream=stream)
        stream.synchronize()
        print(f"on {parts.control.sm_count} SMs: {result[:4]}")
        assert (result == 2 * numpy.arange(4096)).all()


if __name__ == "__main__":
    main()
