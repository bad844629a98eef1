"""cuda.core in a partition: ``launch(core_stream(partition), config, kernel, ...)``.

In the other direction, ``cuda_gctx.Stream(theirs)`` adopts a stream of cuda.core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cuda_gctx._core.device import Device
from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["core_device", "core_stream", "with_core_device"]

Answer = TypeVar("Answer")

# The first version with stable names.
MINIMUM = "1.0"
# cuda-core needs cuda-bindings without requiring it, because the major version has to be that of the driver.
BINDINGS = "12.0"


def _load() -> Any:
    load("cuda.bindings", "cuda-bindings", BINDINGS)
    return load("cuda.core", "cuda-core", MINIMUM)


def core_device(device: Device) -> Any:
    """The cuda.core.Device of a device."""
    return _load().Device(device.device_id)


def with_core_device(device: Device, action: Callable[[Any], Answer]) -> Answer:
    """What `action` returns for the cuda.core.Device of a device, whose primary context is current during the call."""
    # cuda.core works only on the device that it made current. The block restores the previous context.
    theirs = core_device(device)
    with device.context.current():
        theirs.set_current()
        return action(theirs)


def core_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream, as a cuda.core.Stream that keeps it and its context alive.

    target: the partition, context or stream, or an object with ``__cuda_stream__``.
    """
    if isinstance(target, _load().Stream):
        return target
    stream = own_stream(target)
    return with_core_device(stream.device, lambda device: device.create_stream(stream))
