"""Partitions of a device: named, disjoint, and kept for the next use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from cuda_gctx._core.context import Context
from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.lease import demand_not_current, lend, retire
from cuda_gctx._core.probe import blocks_per_sm, max_cluster_size, max_clusters
from cuda_gctx._core.stream import Stream
from cuda_gctx.draw.table import ranges, table
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.partitions.opening import open_layout
from cuda_gctx.partitions.split import FENCE
from cuda_gctx.partitions.store import Lease, lent_streams
from cuda_gctx.partitions.verification import VerifyReport, verify

if TYPE_CHECKING:
    from cuda_gctx.partitions.pool import PartitionPool


def _function(kernel: object) -> int:
    """The handle of a kernel: an int, or what has one; 0 for None, which means the probe."""
    if kernel is None:
        return 0
    handle: Any = getattr(kernel, "handle", kernel)
    try:
        number = int(handle)
    except (TypeError, ValueError):
        raise TypeError(
            f"a kernel is a CUfunction or CUkernel as an int, or an object with a handle, not {type(kernel).__name__}"
        ) from None
    if isinstance(kernel, bool) or number <= 0:
        raise ValueError(f"{kernel!r} is no handle of a kernel")
    return number


def _positive(name: str, value: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value < 2**31:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


class Partition:
    """One part of a device: its context, and the streams that it lends.

    Its occupancy methods take a kernel (a CUfunction or CUkernel as an int, or an object with a ``handle`` such as
    cuda.core's Kernel), and how it is launched. Without a kernel they answer for one that needs few registers and no
    static shared memory: an upper bound for others.
    """

    __slots__ = ("_context", "_lease", "_lent", "_lock", "_pools", "_position", "_requested", "_stream", "name")

    def __init__(self, name: str, requested: object, position: int, lease: Lease) -> None:
        self.name = name
        self._requested = requested
        self._position = position
        self._lease = lease
        self._context = lend(lease.kept.contexts[position], lease)
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._pools: dict[int | None, list[Stream]] = {}
        self._lent: dict[int, Iterator[Stream]] = {}

    @property
    def context(self) -> Context:
        """Its green context. Closed with the partitions, and kept for their next use."""
        if self._context.is_closed:
            raise RuntimeError(f"partition {self.name} has been closed")
        return self._context

    @property
    def sm_count(self) -> int:
        """How many SMs it has."""
        return self._lease.kept.groups[self._position].sm_count

    @property
    def requested(self) -> Any:
        """What it was asked for: a number of SMs, a fraction, SMResourceOptions or None."""
        return self._requested

    @property
    def strategy(self) -> str | None:
        """How the split made it (see SMResource.strategy)."""
        return self._lease.kept.groups[self._position].strategy

    @property
    def coscheduled_alignment(self) -> int:
        """How many of its SMs are known to sit together, room for a thread-block cluster."""
        return self._lease.kept.groups[self._position].coscheduled_alignment

    @property
    def sm_ids(self) -> tuple[int, ...] | None:
        """The ids of its SMs; None until verify() has seen them."""
        return self._lease.kept.sm_ids.get(self._position)

    @property
    def stream(self) -> Stream:
        """Its stream. The context keeps it: its handle is valid as long as the context is, in the store too."""
        if self._stream is None:
            with self._lock:
                if self._stream is None:
                    self._stream = self._next_stream(None)
        if self._stream.is_closed:
            raise RuntimeError(f"the stream of partition {self.name} has been closed")
        return self._stream

    def stream_pool(self, number: int, priority: int | None = None) -> tuple[Stream, ...]:
        """So many streams of a priority (None: the lowest), the same ones each time."""
        _positive("number", number)
        with self._lock:
            pool = self._pools.setdefault(priority, [])
            while len(pool) < number:
                pool.append(self._next_stream(priority))
            return tuple(pool[:number])

    def _next_stream(self, priority: int | None) -> Stream:
        context, level = self.context, priority or 0
        if level not in self._lent:
            self._lent[level] = lent_streams(context, priority)
        return next(self._lent[level])

    def record(self, event: Event | None = None) -> Event:
        """Records `event`, or a new one, behind all work of all streams of the partition; returns it."""
        return self.context.record_event(event)

    def wait(self, other: Partition | Event) -> None:
        """Lets all later work of the partition wait for an event, or for all work that another partition has so far."""
        if not isinstance(other, (Partition, Event)):
            raise TypeError(f"a partition waits for a Partition or an Event, not for {type(other).__name__}")
        self.context.wait_event(other.record() if isinstance(other, Partition) else other)

    def torch(self, library_sms: Literal["off", "on", "auto"] = "off") -> AbstractContextManager[Any]:
        """Makes torch work in the partition for the length of a ``with`` block (see cuda_gctx.interop.torch.use)."""
        from cuda_gctx.interop.torch import use

        return use(self, library_sms)

    def cupy(self, library_sms: Literal["off", "on"] = "off") -> AbstractContextManager[Any]:
        """Makes CuPy work in the partition for the length of a ``with`` block (see cuda_gctx.interop.cupy.use)."""
        from cuda_gctx.interop.cupy import use

        return use(self, library_sms)

    def max_blocks(self, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """How many blocks run at once in the partition, by the driver: also the largest grid of a cooperative launch.

        threads: per block; shared_memory: dynamic, bytes per block.
        """
        per_sm = blocks_per_sm(self.context, *self._shape(kernel, threads, shared_memory))
        return per_sm * self.sm_count

    def max_cluster_size(self, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """The largest thread-block cluster that fits in the partition, by the driver; 1 where there are no clusters."""
        return max_cluster_size(self.stream, *self._shape(kernel, threads, shared_memory))

    def max_clusters(self, cluster_size: int, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """How many clusters of a size run at once in the partition, by the driver."""
        size = _positive("cluster_size", cluster_size)
        return max_clusters(self.stream, *self._shape(kernel, threads, shared_memory), size)

    @staticmethod
    def _shape(kernel: object, threads: int, shared_memory: int) -> tuple[int, int, int]:
        return _function(kernel), _positive("threads", threads), _positive("shared_memory", shared_memory, 0)

    def _streams(self) -> list[Stream]:
        lent = [stream for pool in self._pools.values() for stream in pool]
        return lent if self._stream is None else [self._stream, *lent]

    def _demand_not_current(self) -> None:
        if not self._context.is_closed:
            demand_not_current(self._context)

    def _close(self) -> None:
        with self._lock:
            for stream in reversed(self._streams()):
                stream.close()
            retire(self._context)

    def __repr__(self) -> str:
        if self._context.is_closed:
            return f"<Partition {self.name}: closed>"
        return f"<Partition {self.name}: {self.sm_count} SMs, asked {self.requested}>"


class Partitions:
    """Disjoint parts of a device, and the fence (``rest``) with the SMs that nobody asked for.

    A partition is found by name (``parts.decode``, ``parts["decode"]``) or position (``parts[0]``); iteration gives
    them in the order asked, the fence last.
    """

    __slots__ = ("__weakref__", "_all", "_by_name", "_closed", "_device", "_layout", "_lease", "_lock", "_pool")

    _all: tuple[Partition, ...]
    _by_name: dict[str, Partition]
    _closed: bool
    _device: Device
    _layout: Layout
    _lease: Lease
    _lock: threading.Lock
    _pool: PartitionPool | None

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("Partitions come from Device.partition() or PartitionPool.get()")

    @classmethod
    def _make(
        cls, device: Device, layout: Layout, lease: Lease, names: Sequence[str], pool: PartitionPool | None
    ) -> Partitions:
        self = cls.__new__(cls)
        requests = [spec.sms for spec in layout.specs]
        self._all = tuple(
            Partition(name, requests[i] if i < len(requests) else None, i, lease) for i, name in enumerate(names)
        )
        self._by_name = {part.name: part for part in self._all}
        self._device = device
        self._layout = layout
        self._lease = lease
        self._lock = threading.Lock()
        self._closed = False
        self._pool = pool
        return self

    @property
    def device(self) -> Device:
        """The device that is split."""
        return self._device

    @property
    def layout(self) -> Layout:
        """What was asked for."""
        return self._layout

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order asked, without the fence."""
        return self._layout.names

    @property
    def rest(self) -> Partition | None:
        """The fence: the SMs that nobody asked for, for all other work; None if there are none."""
        self._demand_open()
        return self._by_name.get(FENCE)

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def __getattr__(self, name: str) -> Partition:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            part = self._by_name[name]
        except KeyError:
            raise AttributeError(f"there is no partition {name!r}: the names are {', '.join(self._by_name)}") from None
        self._demand_open()
        return part

    def __getitem__(self, key: str | int) -> Partition:
        self._demand_open()
        if isinstance(key, str):
            try:
                return self._by_name[key]
            except KeyError:
                raise KeyError(f"there is no partition {key!r}: the names are {', '.join(self._by_name)}") from None
        return self._all[key]

    def __iter__(self) -> Iterator[Partition]:
        self._demand_open()
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, item: object) -> bool:
        return item in self._by_name if isinstance(item, str) else item in self._all

    def verify(self, timeout: float = 10.0) -> VerifyReport:
        """Proves with a probe kernel that every partition runs on its own SMs and all of them at once.

        Raises IsolationError where that is not so; the report tells whether they really ran at the same time.
        """
        self._demand_open()
        in_use = self._pool._in_use(self) if self._pool is not None else []
        report = verify(
            {part.name: part.context for part in self._all}, covers_device=True, in_use=in_use, timeout=timeout
        )
        for position, proof in enumerate(report.contexts):
            self._lease.kept.sm_ids[position] = proof.sm_ids
        return report

    def close(self) -> None:
        """Closes the streams that were lent, and gives the contexts back to the store. Closing twice does nothing.

        RuntimeError while one of the contexts is current, and for partitions of a pool, which its own close() closes.
        """
        if self._pool is not None:
            raise RuntimeError("these partitions belong to a pool, which keeps them until it is closed: close the pool")
        self._close()

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            for part in self._all:
                part._demand_not_current()
            self._closed = True
        for part in reversed(self._all):
            part._close()
        self._lease.release()

    def _demand_open(self) -> None:
        if self._closed:
            raise RuntimeError("the partitions have been closed")

    def __enter__(self) -> Partitions:
        self._demand_open()
        return self

    def __exit__(self, *exc: object) -> None:
        # Partitions of a pool are used in a block and stay.
        if self._pool is None:
            self._close()

    def __str__(self) -> str:
        if self._closed:
            return repr(self)
        rows = [
            (
                part.name,
                "the fence" if part.name == FENCE else "everything left" if part.requested is None else part.requested,
                part.sm_count,
                ranges(part.sm_ids) if part.sm_ids is not None else "not verified",
                f"up to {part.coscheduled_alignment} SMs",
                part.strategy,
            )
            for part in self._all
        ]
        return f"{self._device.name}\n" + table(("partition", "asked", "got", "SMs", "clusters", "strategy"), rows)

    def __repr__(self) -> str:
        if self._closed:
            return f"<Partitions of {self._layout}: closed>"
        told = ", ".join(f"{part.name} {part.sm_count}" for part in self._all)
        return f"<Partitions of device {self._device.device_id}: {told}>"


def partition(device: Device, /, *requests: Request | Layout, exclusive: bool = False, **named: Request) -> Partitions:
    """Splits a device: ``decode=16, prefill=None`` by name, or ``8, 8, 16`` by position, or one Layout.

    Integers are numbers of SMs, rounded up to what the device can give; floats are fractions of the device, rounded
    down; None is everything left; SMResourceOptions for one group and PartitionSpec ask for more. SMs that nobody asked
    for become ``rest``. exclusive: refuse SMs that a live context has, instead of warning.
    """
    if not isinstance(exclusive, bool):
        raise TypeError(
            f"exclusive must be a bool, and cannot be the name of a partition, not {type(exclusive).__name__}"
        )
    if len(requests) == 1 and isinstance(requests[0], Layout) and not named:
        layout = requests[0]
    else:
        layout = Layout(*requests, **named)  # type: ignore[arg-type]
    lease, names = open_layout(device, layout, exclusive=exclusive, group=0, streams=(), stacklevel=3)
    return Partitions._make(device, layout, lease, names, None)
