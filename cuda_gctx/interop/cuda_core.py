"""cuda.core in a partition: ``launch(core_stream(partition), config, kernel, ...)``.

In the other direction, ``cuda_gctx.Stream(theirs)`` adopts a stream of cuda.core.
"""

from __future__ import annotations

from typing import Any

from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["core_stream"]

# The first version with stable names.
MINIMUM = "1.0"
# cuda-core needs cuda-bindings without requiring it, because the major version has to be that of the driver.
BINDINGS = "12.0"


def core_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream, as a cuda.core.Stream that keeps it and its context alive."""
    load("cuda.bindings", "cuda-bindings", BINDINGS)
    core = load("cuda.core", "cuda-core", MINIMUM)
    stream = own_stream(target)
    device = core.Device(stream.device.device_id)
    # cuda.core makes streams only on the device that it made current. The block restores the previous context.
    with stream.device.context.current():
        device.set_current()
        return device.create_stream(stream)
