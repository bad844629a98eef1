"""The priorities of streams, as the driver takes them."""

from __future__ import annotations

from itertools import count

from cuda_gctx._device import Device
from cuda_gctx._stream import StreamOptions


def highest_priority(device: Device) -> int:
    """The smallest number, which goes first: found by asking for one more until that is refused."""
    for priority in count(-1, -1):
        try:
            device.create_stream(StreamOptions(priority=priority)).close()
        except ValueError:
            break
    return priority + 1
