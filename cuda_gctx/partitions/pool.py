"""Pools: layouts of one device that are built at their first use and kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from cuda_gctx._core.device import Device
from cuda_gctx._core.stream import Stream
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.partitions.opening import open_layout
from cuda_gctx.partitions.partitions import Partitions

_pool_numbers = count(1)
# Spellings of layouts that a pool knows at once; others cost a few microseconds more.
_MOST_SPELLINGS = 1024


def _spelling(layout: object) -> object:
    """A hashable form of what get() was given, quickly made. The types belong to it: 1, 1.0 and True are equal."""
    kind = type(layout)
    if kind is dict:
        values = layout.values()  # type: ignore[attr-defined]
        return (*layout, *values, *map(type, values))  # type: ignore[misc]
    if kind is tuple or kind is list:
        return (*layout, *map(type, layout))  # type: ignore[misc,call-overload]
    return layout if kind is Layout else None


class PartitionPool:
    """Layouts of one device, built at their first use and kept: switching to a known one makes no driver call.

    The layouts may overlap each other, because one is in use at a time. Usable from any thread.
    """

    def __init__(self, device: Device) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"a PartitionPool is made for a Device, not for {type(device).__name__}")
        self._device = device
        self._group = next(_pool_numbers)
        self._lock = threading.Lock()
        self._closed = False
        self._built: dict[Layout, Partitions] = {}
        self._known: dict[object, Partitions] = {}

    @property
    def device(self) -> Device:
        """The device that is split."""
        return self._device

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that have been built."""
        return tuple(self._built)

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def get(self, layout: Layout | Mapping[str, Request] | Sequence[Request], *, stream: object = None) -> Partitions:
        """The partitions of a layout, built if it is used for the first time.

        Building is refused while a stream of this package, or a blocking one of the primary context, is capturing a
        graph. The driver does not tell of the streams of others: give the one that may be capturing as `stream`
        (anything with ``__cuda_stream__``).
        """
        spelling = _spelling(layout)
        try:
            return self._known[spelling]
        except (KeyError, TypeError):
            return self._build(Layout.of(layout), spelling, stream)

    def _build(self, layout: Layout, spelling: object, stream: Any) -> Partitions:
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool has been closed")
            parts = self._built.get(layout)
            if parts is None:
                watched = [] if stream is None else [stream if isinstance(stream, Stream) else Stream(stream)]
                lease, names = open_layout(
                    self._device, layout, exclusive=False, group=self._group, streams=watched, stacklevel=4
                )
                parts = Partitions._make(self._device, layout, lease, names, self)
                self._built[layout] = parts
            if spelling is not None and len(self._known) < _MOST_SPELLINGS:
                with suppress(TypeError):  # of something unhashable, which is then looked up as a Layout each time
                    self._known[spelling] = parts
            return parts

    def _in_use(self, mine: Partitions) -> list[str]:
        """Other layouts with unfinished work on the streams that they lent."""
        return [
            repr(layout)
            for layout, parts in list(self._built.items())
            if parts is not mine and any(not stream.is_done for part in parts for stream in part._streams())
        ]

    def close(self) -> None:
        """Closes all partitions of the pool. RuntimeError while one of their contexts is current."""
        with self._lock:
            for parts in self._built.values():
                for part in parts._all:
                    part._demand_not_current()
            self._closed = True
            self._known.clear()
            for parts in self._built.values():
                parts._close()
            self._built.clear()

    def __enter__(self) -> PartitionPool:
        if self._closed:
            raise RuntimeError("the pool has been closed")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._built)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} layouts"
        return f"<PartitionPool of device {self._device.device_id}: {state}>"
