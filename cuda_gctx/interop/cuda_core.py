"""cuda.core in a partition: ``launch(core_stream(partition), config, kernel, ...)``.

The other way needs no function: ``cuda_gctx.Stream(theirs)`` adopts a stream of cuda.core.
"""

from __future__ import annotations

from typing import Any

from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["core_stream"]

# The first one whose names are stable.
MINIMUM = "1.0"
# It runs on cuda-bindings, and does not ask for it: the major version is that of the driver.
BINDINGS = "12.0"


def core_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream as a cuda.core.Stream, which keeps it and its context alive."""
    load("cuda.bindings", "cuda-bindings", BINDINGS)
    core = load("cuda.core", "cuda-core", MINIMUM)
    stream = own_stream(target)
    device = core.Device(stream.device.device_id)
    # cuda.core makes streams on a device that it has made current; what was current on this thread is so again after.
    with stream.device.context.current():
        device.set_current()
        return device.create_stream(stream)
