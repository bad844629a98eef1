"""cuda.core in a partition: ``launch(core_stream(partition), config, kernel, ...)``.

In the other direction, ``cuda_gctx.Stream(theirs)`` adopts a stream of cuda.core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cuda_gctx._core.extension import Device, Stream
from cuda_gctx.interop._frameworks import Target, load, own_stream

__all__ = ["core_stream"]

Answer = TypeVar("Answer")

# The first version with stable names.
MINIMUM = "1.0"
# cuda-core needs cuda-bindings without requiring it, because the major version has to be that of the driver.
BINDINGS = "12.0"


def _load() -> Any:
    load("cuda.bindings", "cuda-bindings", BINDINGS)
    return load("cuda.core", "cuda-core", MINIMUM)


class DeviceOfCore:
    """The functions of Device that cuda.core implements."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._theirs = _load().Device(device.device_id)

    def _current(self, action: Callable[[Any], Answer]) -> Answer:
        """Call `action` with the device of cuda.core while its primary context is current, and return the result."""
        # cuda.core works only on the device that it made current. The block restores the previous context.
        with self._device.context.current():
            self._theirs.set_current()
            return action(self._theirs)

    @property
    def properties(self) -> Any:
        return self._theirs.properties

    @property
    def memory_resource(self) -> Any:
        return self._current(lambda device: device.memory_resource)

    @memory_resource.setter
    def memory_resource(self, resource: Any) -> None:
        self._theirs.memory_resource = resource

    @property
    def default_stream(self) -> Stream:
        # The handle of a default stream means that of the current context.
        return self._current(lambda device: Stream(device.default_stream))

    def allocate(self, size: int, stream: Target) -> Any:
        their_stream = core_stream(stream)
        return self._current(lambda device: device.allocate(size, stream=their_stream))

    def can_access_peer(self, peer: int) -> bool:
        answer: bool = self._theirs.can_access_peer(peer)
        return answer

    def create_graph_builder(self) -> Any:
        return self._current(lambda device: device.create_graph_builder())

    def create_stream(self, stream: Stream) -> Any:
        return self._current(lambda device: device.create_stream(stream))


def core_stream(target: Target) -> Any:
    """The stream of a partition, a context or a stream, as a cuda.core.Stream that keeps it and its context alive.

    target: the partition, context or stream, or an object with ``__cuda_stream__``.
    """
    if isinstance(target, _load().Stream):
        return target
    stream = own_stream(target)
    return DeviceOfCore(stream.device).create_stream(stream)
