"""Pools: layouts of one device, built on first use and kept open."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from cuda_gctx._core.extension import (
    CapturingError,
    ClosedError,
    Context,
    ContextCurrentError,
    CUDAWarning,
    Device,
    LeaseGroup,
    Stream,
    StreamOptions,
    Switching,
    any_has_capture,
    as_int,
    demand_not_forked,
    is_capturing,
    is_idle,
    spelling,
)
from cuda_gctx.partitions import trace_marks
from cuda_gctx.partitions.layout import Layout, Request, layout_of, remember
from cuda_gctx.partitions.opening import claim_all, divided_sms, refuse_capture, wanted_for, warn_of_overlap
from cuda_gctx.partitions.partitions import (
    ClosedPartitionsError,
    Partition,
    Partitions,
    assemble,
    close_all,
    contexts_of,
    refuse_pickling,
    sms_of,
    with_background,
)

# Layouts that a pool keeps. A program with more than these computes its layouts, and would fill the device memory.
MOST_LAYOUTS = 64
# Plans that a pool remembers. Those that a program makes anew again and again would fill the memory.
MOST_PLANS = 256


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
    contexts. The SMs that they divide (see Device.partition()) are decided when the pool is made.
    Thread-safe: two threads that build one layout at once get the same partitions.

    Example:

        from cuda_gctx import Device, Layout, PartitionPool

        with PartitionPool(Device()) as pool:  # at the end: pool.close()
            quiet, busy = Layout(control=16, rest=None), Layout(control=64, rest=None)
            for layout in (quiet, busy):
                pool.prepare(layout).verify()  # built once, before the first request
            parts = pool.switch(busy)  # on the device: the host does not wait
            print(parts.control.sm_count, pool.current is parts)  # 64 True
            pool.drop(quiet)
            print(len(pool.layouts))  # 1
    """

    def __init__(self, device: Device, *, limit: int = MOST_LAYOUTS) -> None:
        """limit: the largest number of layouts. Beyond it, the pool warns, and drops those used longest ago."""
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        self._device = device
        self._whole = divided_sms(device)
        self._limit = as_int("limit", limit, 1)
        self._has_warned = False
        self._group = LeaseGroup()  # its state is that of the pool; the dictionaries only remember
        self._built: dict[Layout, Partitions] = {}
        self._prepared: dict[object, Partitions] = {}  # by what prepare() was given
        self._switching = Switching(self._group, self._prepared)
        self._plans: dict[Switchable, dict[str, Stream]] = {}
        self._device_streams: dict[tuple[str, int], Stream] = {}  # streams on the whole device, by name and priority

    @property
    def device(self) -> Device:
        """The device that is split."""
        return self._device

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that have been built."""
        return tuple(self._built.copy())  # tuple() allocates in the middle of the iteration

    @property
    def limit(self) -> int:
        """The largest number of layouts."""
        return self._limit

    @property
    def is_closed(self) -> bool:
        """Tells whether the pool has been closed."""
        return not self._group.is_open

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
        demand_not_forked()
        spelled = spelling(requests, named)
        try:
            parts = self._prepared[spelled]
            if not parts.is_closed:
                return parts
        except (KeyError, TypeError):  # not requested in these words before, or with an unhashable value
            pass
        return self._known_or_built(spelled, layout_of(requests, named), stream)

    def _known_or_built(self, spelled: object, layout: Layout, stream: object) -> Partitions:
        known = self._built.get(layout)
        parts = known if known is not None and not known.is_closed else self._build(layout, stream)
        remember(self._prepared, spelled, parts)
        return parts

    @property
    def current(self) -> Partitions:
        """The partitions of the last switch().

        Raises AttributeError before the first switch, and after a switch to a plan without partitions.
        """
        current = self._switching.current
        if current is None:
            self._demand_open()
            raise AttributeError("the pool has no current layout: call pool.switch() first")
        parts = current if isinstance(current, Partitions) else self._partitions_of(current)
        if parts is None:
            raise AttributeError(
                "the current plan of the pool has no partitions: all of its parts use the whole device"
            )
        return parts

    def _partitions_of(self, plan: Switchable) -> Partitions | None:
        return self._built.get(plan.layout) if plan.layout is not None else None

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

        Raises CapturingError, and changes nothing, while a stream of the current or the new layout captures a graph. A
        captured graph runs in other partitions by ``graph.in_partition()``.

        requests, named, stream: as for prepare().
        """
        spelled = spelling(requests, named)
        try:
            known: Partitions | None = self._switching.switch_known(spelled)
        except ClosedError:  # dropped
            known = None
        if known is not None:
            if trace_marks.folder is not None:
                trace_marks.mark("switch", with_background(known))
            return known
        parts = self._known_or_built(spelled, layout_of(requests, named), stream)
        if parts not in self._switching:
            self._switching.add(parts, [(part.name, part.context, sms_of(part)) for part in with_background(parts)])
        if not self._switching.switch_to(parts):
            self._demand_open()
        if trace_marks.folder is not None:
            trace_marks.mark("switch", with_background(parts))
        return parts

    def _build(self, layout: Layout, stream: Any) -> Partitions:
        watched = [] if stream is None else [stream if isinstance(stream, Stream) else Stream(stream)]
        self._demand_open()
        wanted = wanted_for(self._whole, layout, watched)
        with claim_all(self._device, wanted, group=self._group) as opening:
            warn_of_overlap(opening, stacklevel=4)
            self._demand_open()  # the warning can run code that closes the pool
            if watched:
                refuse_capture(self._device.resources.sm, watched)
            parts = assemble(self._device, layout, wanted, opening.lease(), self)
        built = self._built.setdefault(layout, parts)
        if built is not parts and built.is_closed:
            built = self._built[layout] = parts
        if built is not parts:  # of another thread
            close_all(parts)
        if len(self._built) > self._limit:
            self._drop_oldest(built)
        return built

    def _layouts_at_work(self, parts: Partitions) -> list[str]:
        """Other layouts with unfinished work."""
        own = set(contexts_of(parts))
        return [
            repr(layout)
            for layout, others in self._built.copy().items()
            if others is not parts
            and not others.is_closed
            and not all(is_idle(context) for context in contexts_of(others) if context not in own)
        ]

    def drop(
        self, /, *requests: Layout | Mapping[str, Request] | Sequence[Request] | Request, **named: Request
    ) -> None:
        """Forget a layout and close its partitions. Other layouts keep the contexts that they share with it.

        requests, named: as for prepare(). Does nothing if the pool has not built the layout.

        Work in its partitions continues, and later switches are ordered after it. Raises RuntimeError for the current
        layout, and while one of the contexts is current on a thread.
        """
        parts = self._built.get(layout_of(requests, named))
        if parts is not None:
            if self._is_current(parts):
                raise RuntimeError(f"{parts.layout} is the current layout of the pool: switch to another layout first")
            self._drop(parts)

    def _is_current(self, parts: Partitions) -> bool:
        current = self._switching.current
        return current is parts or (
            current is not None and not isinstance(current, Partitions) and self._partitions_of(current) is parts
        )

    def _drop(self, parts: Partitions) -> None:
        """Each step can be repeated, and a closed layout that is still in a dictionary is built anew when requested."""
        close_all(parts)
        self._switching.remove(parts)
        for plan in [plan for plan in list(self._plans) if plan.layout == parts.layout]:
            self._switching.remove(plan)
            self._plans.pop(plan, None)
        for spelled in [spelled for spelled, prepared in self._prepared.copy().items() if prepared is parts]:
            self._prepared.pop(spelled, None)
        if self._built.get(parts.layout) is parts:
            self._built.pop(parts.layout, None)

    def _drop_oldest(self, newest: Partitions) -> None:
        """Drop the least recently used layouts beyond the limit."""
        keys = self._switching.arrangements()
        age = {key: at for at, key in enumerate(keys)}
        for plan in keys:
            if not isinstance(plan, Partitions):
                parts = self._partitions_of(plan)
                if parts is not None:
                    age[parts] = max(age.get(parts, -1), age[plan])
        candidates = [
            parts for parts in list(self._built.values()) if parts is not newest and not self._is_current(parts)
        ]
        for parts in sorted(candidates, key=lambda parts: age.get(parts, -1))[: len(self._built) - self._limit]:
            self._drop(parts)
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
        """Close all partitions of the pool. Closing twice does nothing.

        Raises ContextCurrentError, and changes nothing, while one of their contexts is current, and CapturingError
        while a stream of them, or one that the pool made for a plan, captures a graph.
        """
        contexts = [
            context for parts in list(self._built.values()) if not parts.is_closed for context in contexts_of(parts)
        ]
        streams = [stream for stream in list(self._device_streams.values()) if not stream.is_closed]
        if self._group.is_open:
            if _has_capture(contexts, streams):
                raise CapturingError("a stream of the pool is capturing a graph: end the capture before you close it")
            current = next((context for context in contexts if context.is_current), None)
            if current is not None or not self._group.close():
                name = "a context" if current is None else f"partition {current.name}"
                raise ContextCurrentError(
                    f"the pool cannot be closed while {name} of it is current on a thread: leave its 'with' block, or "
                    "make another context current by Device.set_current()"
                )
        self._switching.clear()
        for known in (self._built, self._prepared, self._plans, self._device_streams):
            known.clear()

    def _demand_open(self) -> None:
        if not self._group.is_open:
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
        state = "closed" if self.is_closed else f"{len(self)} layouts"
        return f"<PartitionPool of device {self._device.device_id}: {state}>"


def _has_capture(contexts: Sequence[Context], streams: Sequence[Stream]) -> bool:
    """Return whether a stream captures. A device that has failed or was reset answers nothing: then none does."""
    with suppress(RuntimeError):
        return any_has_capture(contexts) or any(is_capturing(stream) for stream in streams)
    return False


def switch_to(pool: PartitionPool, plan: Switchable) -> dict[str, Stream]:
    """Switch a pool to a plan (see Plan.switch() of the tuner); returns the stream of each of its parts.

    The pool creates each stream on the whole device once. These streams share SMs with every partition.
    """
    streams = pool._plans.get(plan)
    is_known = streams is not None and not any(stream.is_closed for stream in streams.values())
    if streams is None or not is_known or not pool._switching.switch_to(plan):
        parts = pool.prepare(plan.layout) if plan.layout is not None else None
        pool._demand_open()
        streams = _arrange(pool, plan, parts)
        if not pool._switching.switch_to(plan):
            pool._demand_open()
    if trace_marks.folder is not None:
        current = pool._partitions_of(plan)
        trace_marks.mark("switch", () if current is None else with_background(current), str(plan))
    return streams.copy()


def _arrange(pool: PartitionPool, plan: Switchable, parts: Partitions | None) -> dict[str, Stream]:
    """Add a plan to the arrangements of a pool; returns the streams of its parts."""
    keys = plan._on_whole_device(pool._device)
    for key in dict.fromkeys(keys.values()):
        if key not in pool._device_streams or pool._device_streams[key].is_closed:
            pool._device_streams[key] = pool._device.create_stream(StreamOptions(priority=key[1]))
    placed = plan._placed(parts) if parts is not None else {}
    streams: dict[str, Stream] = {}
    uses: list[tuple[str, Any, Any]] = []
    for name in plan.parts:
        if parts is not None and name in placed:
            part: Partition = parts[plan.places[name]]
            streams[name] = placed[name]
            uses.append((name, part.context, sms_of(part)))
        else:
            streams[name] = pool._device_streams[keys[name]]
            uses.append((name, streams[name], None))
    if len(pool._plans) >= MOST_PLANS:
        for oldest in [key for key in pool._switching.arrangements() if key in pool._plans][: MOST_PLANS // 2]:
            if pool._switching.remove(oldest):
                pool._plans.pop(oldest, None)
    pool._switching.add(plan, uses)
    pool._plans[plan] = streams
    return streams
