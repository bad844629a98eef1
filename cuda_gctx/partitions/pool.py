"""Pools: layouts of one device, built on first use and kept open."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NoReturn, Protocol

from cuda_gctx._core.extension import (
    CUDAWarning,
    Device,
    Stream,
    StreamOptions,
    as_int,
    demand_closable,
    demand_not_current,
    spelling,
)
from cuda_gctx.partitions.arrangements import Arrangement, Arrangements, Place
from cuda_gctx.partitions.layout import Layout, Request, layout_of, remember
from cuda_gctx.partitions.opening import Opening, order_for
from cuda_gctx.partitions.order import Key, Order
from cuda_gctx.partitions.partitions import (
    ClosedPartitionsError,
    Partitions,
    assemble,
    close_together,
    contexts_of,
    lent_streams,
    refuse_pickling,
    with_background,
)
from cuda_gctx.partitions.store import Loan, StoredContext

_pool_numbers = count(1)

# Layouts that a pool keeps. A program with more than these computes its layouts, and would fill the device memory.
MOST_LAYOUTS = 64


class Switchable(Protocol):
    """A value that defines where each part of a program runs. A pool can switch to it, as to a layout."""

    @property
    def parts(self) -> Sequence[str]:
        """The names of the parts."""

    @property
    def layout(self) -> Layout | None:
        """The layout of the partitions that it needs."""

    @property
    def places(self) -> Mapping[str, str]:
        """The partition of each part that runs in a partition."""

    def _placed(self, partitions: Partitions) -> Mapping[str, Stream]:
        """The stream of each of these parts."""

    def _on_whole_device(self, device: Device) -> Mapping[str, tuple[str, int]]:
        """The name and the priority of the stream of each other part."""

    def __hash__(self) -> int: ...


class PartitionPool:
    """Layouts of one device, built on first use and kept open: looking up a known layout makes no driver call.

    Layouts may overlap each other, because only one is in use at a time. Layouts of the same split share their
    contexts. Thread-safe.
    """

    def __init__(self, device: Device, *, limit: int = MOST_LAYOUTS) -> None:
        """limit: the largest number of layouts. Beyond it, the pool warns, and drops those used longest ago."""
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        self._device = device
        self._limit = as_int("limit", limit, 1)
        self._group = next(_pool_numbers)
        # Both are reentrant: warnings, signals and the garbage collector run foreign code in the middle of a call. Who
        # needs both takes that of building first; building itself never waits for the other, so that a switch to a
        # known layout never waits for the driver to make contexts.
        self._building = threading.RLock()  # layouts and loans
        self._lock = threading.RLock()  # arrangements
        self._closed = False
        self._has_warned = False
        self._built: dict[Layout, Partitions] = {}
        self._prepared: dict[object, Partitions] = {}  # by what prepare() was given
        self._loans: dict[Key, tuple[StoredContext, Loan]] = {}
        self._loan_of: dict[Layout, Loan] = {}
        self._arrangements = Arrangements(self._lock, self._prepared)
        self._device_streams: dict[tuple[str, int], Stream] = {}  # streams on the whole device, by name and priority

    @property
    def device(self) -> Device:
        """The device that is split."""
        return self._device

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that have been built."""
        return tuple(self._built)

    @property
    def limit(self) -> int:
        """The largest number of layouts."""
        return self._limit

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
        """Build a layout, or look up a known one, and return its partitions. Does not order work: use switch() for
        that.

        requests, named: the requests by position or by name, or one mapping or Layout, as for Device.partition().

        Work in the partitions of other layouts continues. New work in these partitions runs concurrently with it, on
        the same SMs where the layouts overlap. Call prepare() to build layouts before they are needed, and to inspect
        them.

        Building a layout raises an error while a stream of this package, or a blocking stream of the primary context,
        captures a graph. The driver does not report streams of other libraries: if one may be capturing, pass it as
        `stream` (any object with ``__cuda_stream__``).
        """
        spelled = spelling(requests, named)
        try:
            return self._prepared[spelled]
        except (KeyError, TypeError):  # not requested in these words before, or with an unhashable value
            pass
        layout = layout_of(requests, named)
        parts = self._built.get(layout)
        if parts is None:
            parts = self._build(layout, stream)
        remember(self._prepared, spelled, parts)
        if parts.is_closed:  # meanwhile: whoever closes them forgets their spellings after that
            self._prepared.pop(spelled, None)
        return parts

    @property
    def current(self) -> Partitions:
        """The partitions of the last switch().

        Raises AttributeError before the first switch, and after a switch to a plan without partitions.
        """
        current = self._arrangements.current
        if current is None:
            self._demand_open()
            raise AttributeError("the pool has no current layout: call pool.switch() first")
        if current.partitions is None:
            raise AttributeError(
                "the current plan of the pool has no partitions: all of its parts use the whole device"
            )
        return current.partitions

    def switch(
        self,
        /,
        *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request,
        stream: object = None,
        **named: Request,
    ) -> Partitions:
        """Make a layout current, ordered after the work of earlier layouts, and return its partitions.

        On the device, later work of each new partition waits for the work enqueued so far in partitions of earlier
        layouts: those that share or may share its SMs, and those with the same name, even on other SMs. The host does
        not wait. A partition with the same name and the same SMs in both layouts continues without waiting. Switching
        to the current layout does nothing.

        While streams of the current layout capture a graph, switch() orders the graph: the streams that the new
        partitions have lent so far join the capture, behind the streams of the old ones. A capture ends on the stream
        on which it began: switch back before that. Back in its first layout, only the streams of that layout are part
        of the capture. The first switch after the capture orders the work outside of it.
        RuntimeError if streams of the pool are in a capture that does not include the current layout.

        requests, named, stream: as for prepare().
        """
        known: Partitions | None = self._arrangements.switch_known(spelling(requests, named))
        if known is not None:
            return known
        parts = self.prepare(*requests, stream=stream, **named)
        with self._lock:
            arrangements = self._arrangements
            new = arrangements.by_key.get(parts)
            if new is None:
                self._demand_open()
                new = arrangements.add(parts, parts, [(part.name, part) for part in with_background(parts)])
            arrangements.enter(new)
        return parts

    def _arrangement_of(self, plan: Switchable, parts: Partitions | None) -> Arrangement:
        keys = plan._on_whole_device(self._device)
        for key in dict.fromkeys(keys.values()):
            if key not in self._device_streams or self._device_streams[key].is_closed:
                self._device_streams[key] = self._device.create_stream(StreamOptions(priority=key[1]))
        placed = plan._placed(parts) if parts is not None else {}
        uses: dict[str, Place] = {}
        streams: dict[str, Stream] = {}
        for part in plan.parts:
            if parts is not None and part in placed:
                uses[part], streams[part] = parts[plan.places[part]], placed[part]
            else:
                uses[part] = streams[part] = self._device_streams[keys[part]]
        return self._arrangements.add(plan, parts, uses.items(), streams)

    def _build(self, layout: Layout, stream: Any) -> Partitions:
        watched = [] if stream is None else [stream if isinstance(stream, Stream) else Stream(stream)]
        with self._building:
            self._demand_open()
            order = order_for(self._device, layout, watched)
        parts = self._open_layout(layout, order, watched)
        if len(self._built) > self._limit:
            self._drop_oldest(parts)
        return parts

    def _open_layout(self, layout: Layout, order: Order, watched: Sequence[Stream]) -> Partitions:
        opening = Opening(self._device, order, group=self._group)
        try:
            opening.warn(stacklevel=4)
            # The lock is not held until here: a warning can run code that uses the pool, on this thread or others.
            with self._building:
                self._demand_open()
                built = self._built.get(layout)
                if built is None:
                    loan = opening.loan(watched, self._loans)
                    for stored in loan.contexts:
                        self._loans.setdefault(stored.key, (stored, loan))
                    self._loan_of[layout] = loan
                    parts = assemble(self._device, layout, order, loan, self)
                    return self._built.setdefault(layout, parts)
        except BaseException:
            opening.abandon()
            raise
        opening.abandon()
        return built

    def _layouts_at_work(self, parts: Partitions) -> list[str]:
        """Other layouts with unfinished work on the streams that they lent."""
        contexts = set(contexts_of(parts))
        with self._building:  # so that none of them is dropped meanwhile
            return [
                repr(layout)
                for layout, others in self._built.items()
                if others is not parts
                and not all(
                    stream.is_closed or stream.is_done
                    for part in with_background(others)
                    if part.context not in contexts
                    for stream in lent_streams(part)
                )
            ]

    def _note_verified(self, parts: Partitions) -> None:
        with self._lock:
            self._arrangements.note_verified(parts)

    def drop(
        self, /, *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request, **named: Request
    ) -> None:
        """Forget a layout and close its partitions. Their contexts return to the store once no other layout uses them.

        requests, named: as for prepare(). Does nothing if the pool has not built the layout.

        Work in its partitions continues, and later switches are ordered after it. Raises RuntimeError for the current
        layout, and while one of the contexts is current on a thread.
        """
        layout = layout_of(requests, named)
        with self._building, self._lock:
            parts = self._built.get(layout)
            if parts is not None:
                if self._arrangements.has_in_use(parts):
                    raise RuntimeError(
                        f"{layout} is the current layout of the pool, or was left during a capture: switch to another "
                        "layout first"
                    )
                self._drop(layout, parts)

    def _drop(self, layout: Layout, parts: Partitions) -> None:
        close_together(parts, release=False)
        del self._built[layout]
        self._arrangements.forget(parts)
        for spelled in [spelled for spelled, prepared in list(self._prepared.items()) if prepared is parts]:
            self._prepared.pop(spelled, None)
        del self._loan_of[layout]
        in_use = {stored for loan in self._loan_of.values() for stored in loan.contexts}
        for loan in dict.fromkeys(loan for _, loan in self._loans.values()):
            if in_use.isdisjoint(loan.own):
                loan.release()
                for stored in loan.own:
                    del self._loans[stored.key]

    def _drop_oldest(self, newest: Partitions) -> None:
        """Drop the least recently used layouts beyond the limit."""
        with self._building, self._lock:
            used = {
                parts: 0
                for parts in self._built.values()
                if parts is not newest and not self._arrangements.has_in_use(parts)
            }
            for arrangement in self._arrangements.by_key.values():
                if arrangement.partitions in used:
                    used[arrangement.partitions] = max(used[arrangement.partitions], arrangement.last_switch)
            for parts in sorted(used, key=lambda parts: used[parts])[: max(0, len(self._built) - self._limit)]:
                self._drop(parts.layout, parts)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the pool has reached its limit of {self._limit} layouts: it drops those that were used longest ago, "
                "and closes their partitions. Use the same layouts again and again, drop() what is not needed, or give "
                "the pool a higher limit",
                CUDAWarning,
                stacklevel=5,
            )

    def close(self) -> None:
        """Close all partitions of the pool.

        Raises RuntimeError while one of their contexts is current, and CapturingError while a stream that the pool made
        for a plan captures a graph.
        """
        with self._building, self._lock:
            for parts in self._built.values():
                demand_not_current(contexts_of(parts))
            for stream in self._device_streams.values():
                demand_closable(stream)
            self._closed = True
            built = list(self._built.values())
            self._built.clear()
            self._loans.clear()
            self._loan_of.clear()
            # Before the contexts, which its events keep alive.
            self._arrangements.clear()
            for stream in self._device_streams.values():
                stream.close()
            self._device_streams.clear()
            for parts in built:
                close_together(parts)
            self._prepared.clear()

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


def switch_to(pool: PartitionPool, plan: Switchable) -> dict[str, Stream]:
    """Switch a pool to a plan (see Plan.switch() of the tuner); returns the stream of each of its parts.

    The pool creates each stream on the whole device once, and closes it. These streams share SMs with every partition.
    """
    arrangements = pool._arrangements
    new: Arrangement | None = arrangements.switch_to_known(plan)
    if new is None:
        parts = pool.prepare(plan.layout) if plan.layout is not None else None
        with pool._lock:
            pool._demand_open()
            new = arrangements.by_key.get(plan)
            if new is None or not new.is_open:
                new = pool._arrangement_of(plan, parts)
            arrangements.enter(new)
    return new.streams.copy()
