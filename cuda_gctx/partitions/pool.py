"""Pools: layouts of one device that are built at their first use and stay open."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NoReturn

from cuda_gctx._core.arguments import spelling
from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.loan import capture_of, demand_not_current
from cuda_gctx._core.stream import Stream
from cuda_gctx.partitions.layout import Layout, Request, layout_of, remember
from cuda_gctx.partitions.opening import Opening, order_for
from cuda_gctx.partitions.order import Key, Order
from cuda_gctx.partitions.partitions import ClosedPartitionsError, Partition, Partitions, refuse_pickling
from cuda_gctx.partitions.store import Loan, StoredContext

_pool_numbers = count(1)


class PartitionPool:
    """Layouts of one device, built at their first use and kept open: a known one is looked up without a driver call.

    The layouts may overlap each other, because one is in use at a time; those that the same split serves share their
    contexts. Usable from any thread.
    """

    def __init__(self, device: Device) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"a PartitionPool is made for a Device, not for {type(device).__name__}")
        self._device = device
        self._group = next(_pool_numbers)
        # Reentrant: warnings, signals and the garbage collector run foreign code in the middle of a call.
        self._lock = threading.RLock()
        self._closed = False
        self._built: dict[Layout, Partitions] = {}
        self._known: dict[object, Partitions] = {}  # by what get() was given
        self._loans: dict[Key, tuple[StoredContext, Loan]] = {}
        self._current: Partitions | None = None
        # The work that was enqueued in partitions of other layouts when switch() left them.
        self._behind: dict[Partition, tuple[Partitions, Event]] = {}
        # Layouts that were left during a capture, which could not record that work.
        self._left_in_capture: list[Partitions] = []

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
        """Whether the pool has been closed."""
        return self._closed

    def get(
        self,
        /,
        *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request,
        stream: object = None,
        **named: Request,
    ) -> Partitions:
        """The partitions of a layout, which takes the same forms as in Device.partition(); built at its first use.

        A known layout is only looked up: work in the partitions of another layout continues (see switch()).

        Building is refused while a stream of this package, or a blocking one of the primary context, is capturing a
        graph. The driver does not report the streams of other libraries: pass the one that may be capturing as `stream`
        (any object with ``__cuda_stream__``).
        """
        spelled = spelling(requests, named)
        try:
            return self._known[spelled]
        except (KeyError, TypeError):  # not requested in these words before, or with an unhashable value
            pass
        layout = layout_of(requests, named)
        parts = self._built.get(layout)
        if parts is None:
            parts = self._build(layout, stream)
        with self._lock:
            if not self._closed:
                remember(self._known, spelled, parts)
        return parts

    @property
    def current(self) -> Partitions | None:
        """The partitions of the last switch(); None before the first one."""
        return self._current

    def switch(
        self,
        /,
        *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request,
        stream: object = None,
        **named: Request,
    ) -> Partitions:
        """Make a layout the current one, behind the work of earlier layouts, and return its partitions.

        On the device, all later work of each partition of the new layout waits for the work that is enqueued so far in
        those partitions of earlier layouts whose SMs it shares or may share. The host does not wait. Partitions with
        the same SMs in both layouts go on without waiting. Switching to the current layout does nothing.

        While streams of the current layout capture a graph, it orders the graph: those streams of the new layout wait
        that are part of the capture, or else all that it has lent so far, which then become part of it. A capture ends
        on the stream on which it began: switch back before that. The work outside of the capture is ordered by the
        first switch after it. RuntimeError if streams of the pool are in a capture that the current layout is not part
        of.

        The arguments are those of get().
        """
        parts = self.get(*requests, stream=stream, **named)
        with self._lock:
            self._demand_open()
            old = self._current
            if parts is not old or self._left_in_capture:
                if old is not None:
                    self._switch(old, parts)
                self._current = parts
        return parts

    def _switch(self, old: Partitions, new: Partitions) -> None:
        captures = {
            stream: capture
            for layout in dict.fromkeys((old, new, *self._left_in_capture))
            for part in layout._all
            for stream in part._streams()
            if not stream.is_closed and (capture := capture_of(stream))
        }
        if not captures:
            left, self._left_in_capture = self._left_in_capture, []
            for layout in dict.fromkeys((*left, old)):
                if layout is not new:
                    self._order(layout, new)
            return
        if old is new:
            return
        mine = {captures[stream] for part in old._all for stream in part._streams() if stream in captures}
        if set(captures.values()) != mine or len(mine) > 1:
            raise RuntimeError(
                f"captures of graphs that use streams of the pool: {len(set(captures.values()))}, of which the current "
                f"layout is part of {len(mine)}. A switch orders one capture, which the current layout is part of: "
                "switch before or after the others"
            )
        self._order_capture(old, new, captures)
        if old not in self._left_in_capture:
            self._left_in_capture.append(old)

    @staticmethod
    def _order_capture(old: Partitions, new: Partitions, captures: Mapping[Stream, int]) -> None:
        lent = [
            (part, stream)
            for part in new._all
            for stream in dict.fromkeys((part.stream, *part._streams()))
            if not stream.is_closed
        ]
        # A stream that joins a capture has to be joined again: on the way back, no more of them join.
        inside = [(part, stream) for part, stream in lent if stream in captures]
        both = {part.context for part in old._all} & {part.context for part in new._all}
        for part in old._all:
            followers = [
                stream
                for later, stream in inside or lent
                if later.context not in both and part._group.overlaps(later._group) is not False
            ]
            for stream in part._streams():
                if stream in captures and followers:
                    event = stream.record()
                    for follower in followers:
                        follower.wait(event)

    def _order(self, old: Partitions, new: Partitions) -> None:
        for part in old._all:
            _, event = self._behind.get(part, (old, None))
            self._behind[part] = old, part.record(event)
        mine = {part.context for part in new._all}
        for part, (layout, event) in list(self._behind.items()):
            if layout is not old and event.is_done:
                del self._behind[part]
                continue
            # What both layouts have is disjoint from all else in either.
            both = {other.context for other in layout._all} & mine
            for later in new._all:
                if later.context not in both and part._group.overlaps(later._group) is not False:
                    later.context.wait_event(event)

    def _build(self, layout: Layout, stream: Any) -> Partitions:
        watched = [] if stream is None else [stream if isinstance(stream, Stream) else Stream(stream)]
        with self._lock:
            self._demand_open()
            order = order_for(self._device, layout, watched)
        opening = Opening(self._device, order, group=self._group)
        try:
            opening.warn(stacklevel=3)
            # The lock is not held until here: a warning can run code that uses the pool, on this thread or others.
            with self._lock:
                self._demand_open()
                known = self._built.get(layout)
                if known is None:
                    return self._opened(layout, order, opening.loan(watched, self._loans))
        except BaseException:
            opening.abandon()
            raise
        opening.abandon()
        return known

    def _opened(self, layout: Layout, order: Order, loan: Loan) -> Partitions:
        parts = Partitions._make(self._device, layout, order, loan, self._in_use)
        for stored in loan.contexts:
            self._loans.setdefault(stored.key, (stored, loan))
        return self._built.setdefault(layout, parts)

    def _in_use(self, mine: Partitions) -> list[str]:
        """Other layouts with unfinished work on the streams that they lent."""
        own = {part.context for part in mine._all}
        return [
            repr(layout)
            for layout, parts in list(self._built.items())
            if parts is not mine and not all(part._is_idle() for part in parts._all if part.context not in own)
        ]

    def close(self) -> None:
        """Close all partitions of the pool. Raises RuntimeError while one of their contexts is current."""
        with self._lock:
            for parts in self._built.values():
                demand_not_current([part._context for part in parts._all])
            self._closed = True
            built = list(self._built.values())
            self._built.clear()
            self._known.clear()
            self._loans.clear()
            self._behind.clear()
            self._left_in_capture.clear()
            self._current = None
            for parts in built:
                parts._close()

    def _demand_open(self) -> None:
        if self._closed:
            raise ClosedPartitionsError("the pool has been closed")

    def __enter__(self) -> PartitionPool:
        self._demand_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._built)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} layouts"
        return f"<PartitionPool of device {self._device.device_id}: {state}>"
