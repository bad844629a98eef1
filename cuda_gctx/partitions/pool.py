"""Pools: layouts of one device that are built at their first use and stay open."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NoReturn, TypeAlias

from cuda_gctx._core.arguments import spelling
from cuda_gctx._core.context import Context
from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.loan import capture_of, demand_not_current
from cuda_gctx._core.stream import Stream, StreamOptions
from cuda_gctx.partitions.layout import Layout, Request, layout_of, remember
from cuda_gctx.partitions.opening import Opening, order_for
from cuda_gctx.partitions.order import Key, Order
from cuda_gctx.partitions.partitions import ClosedPartitionsError, Partition, Partitions, refuse_pickling
from cuda_gctx.partitions.store import Loan, StoredContext

_pool_numbers = count(1)

# Where work runs: a partition, or a stream on the whole device.
Place: TypeAlias = Partition | Stream


def _key(place: Place) -> Context | Stream:
    """What two settings have in common if they have the same place: partitions of two layouts may share a context."""
    return place.context if isinstance(place, Partition) else place


def _streams_of(place: Place) -> list[Stream]:
    return place._streams() if isinstance(place, Partition) else [place]


def _may_share(one: Place, other: Place) -> bool:
    """Whether they share SMs, or may."""
    if isinstance(one, Partition) and isinstance(other, Partition):
        return one._group.overlaps(other._group) is not False
    return True


class _Setting:
    """What is current in a pool: the partitions of a layout, and streams on the whole device."""

    __slots__ = ("keys", "partitions", "places", "whole")

    def __init__(self, partitions: Partitions | None, whole: tuple[Stream, ...]) -> None:
        self.partitions = partitions
        self.whole = whole
        self.places: tuple[Place, ...] = (*(partitions._all if partitions is not None else ()), *whole)
        self.keys = {_key(place) for place in self.places}

    def streams(self) -> list[Stream]:
        """All streams that were lent so far."""
        return [stream for place in self.places for stream in _streams_of(place)]


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
        self._known: dict[object, Partitions] = {}  # by what prepare() was given
        self._loans: dict[Key, tuple[StoredContext, Loan]] = {}
        self._current: _Setting | None = None
        self._whole: dict[tuple[str, int], Stream] = {}  # streams on the whole device, by name and priority
        # The work that was enqueued in places of other settings when a switch left them.
        self._behind: dict[Place, tuple[_Setting, Event]] = {}
        # Settings that were left during a capture, which could not record that work.
        self._left_in_capture: list[_Setting] = []

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

    def prepare(
        self,
        /,
        *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request,
        stream: object = None,
        **named: Request,
    ) -> Partitions:
        """Build a layout, or look up a known one, and return its partitions. It orders nothing: switch() does.

        requests, named: the requests by position or by name, or one mapping or Layout, as for Device.partition().

        Work in the partitions of other layouts continues, and what is enqueued in these partitions runs next to it,
        on the same SMs where the layouts overlap. Use it to build layouts before they are needed, and to read them.

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
        """The partitions of the last switch(); None before the first one, or if it was to a plan without partitions."""
        return self._current.partitions if self._current is not None else None

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

        requests, named, stream: as for prepare().
        """
        parts = self.prepare(*requests, stream=stream, **named)
        with self._lock:
            self._demand_open()
            self._enter(parts, ())
        return parts

    def switch_all(
        self, layout: Layout | None, whole: Sequence[tuple[str, int]], stream: object = None
    ) -> tuple[Partitions | None, dict[tuple[str, int], Stream]]:
        """switch() to a layout, or to none, with further streams on the whole device (see Plan.switch() of the tuner).

        whole: names and priorities of these streams. The pool makes each of them once, and closes them. They share SMs
        with every partition. stream: as for prepare(). Returns the partitions and the streams.
        """
        parts = self.prepare(layout, stream=stream) if layout is not None else None
        with self._lock:
            self._demand_open()
            for key in whole:
                if key not in self._whole or self._whole[key].is_closed:
                    self._whole[key] = self._device.create_stream(StreamOptions(priority=key[1]))
            streams = {key: self._whole[key] for key in whole}
            self._enter(parts, tuple(streams.values()))
        return parts, streams

    def _enter(self, parts: Partitions | None, whole: tuple[Stream, ...]) -> None:
        old = self._current
        same = old is not None and old.partitions is parts and old.whole == whole
        new = old if same and old is not None else _Setting(parts, whole)
        if not same or self._left_in_capture:
            if old is not None:
                self._switch(old, new)
            self._current = new

    def _switch(self, old: _Setting, new: _Setting) -> None:
        captures = {
            stream: capture
            for setting in dict.fromkeys((old, new, *self._left_in_capture))
            for stream in setting.streams()
            if not stream.is_closed and (capture := capture_of(stream))
        }
        if not captures:
            left, self._left_in_capture = self._left_in_capture, []
            for setting in dict.fromkeys((*left, old)):
                if setting is not new:
                    self._order(setting, new)
            return
        if old is new:
            return
        mine = {captures[stream] for stream in old.streams() if stream in captures}
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
    def _order_capture(old: _Setting, new: _Setting, captures: Mapping[Stream, int]) -> None:
        lent = [
            (place, stream)
            for place in new.places
            for stream in (
                dict.fromkeys((place.stream, *place._streams())) if isinstance(place, Partition) else [place]
            )
            if not stream.is_closed
        ]
        # A stream that joins a capture has to be joined again: on the way back, no more of them join.
        inside = [(place, stream) for place, stream in lent if stream in captures]
        both = old.keys & new.keys
        for place in old.places:
            if _key(place) in both:
                continue
            followers = [
                stream for later, stream in inside or lent if _key(later) not in both and _may_share(place, later)
            ]
            for stream in _streams_of(place):
                if stream in captures and followers:
                    event = stream.record()
                    for follower in followers:
                        follower.wait(event)

    def _order(self, old: _Setting, new: _Setting) -> None:
        for place in old.places:
            if isinstance(place, Stream) and place.is_closed:
                continue
            _, event = self._behind.get(place, (old, None))
            self._behind[place] = old, place.record(event)
        both = old.keys & new.keys
        for place, (setting, event) in list(self._behind.items()):
            if setting is not old and event.is_done:
                del self._behind[place]
                continue
            # What both settings have ran together with all else in either.
            if setting is old and _key(place) in both:
                continue
            for later in new.places:
                if _key(later) not in both and _may_share(place, later):
                    if isinstance(later, Partition):
                        later.context.wait_event(event)
                    else:
                        later.wait(event)

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
            for stream in self._whole.values():
                stream.close()
            self._whole.clear()
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
