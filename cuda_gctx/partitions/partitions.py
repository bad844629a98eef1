"""Partitions of a device: named, disjoint, and reopened without making contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from numbers import Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

from cuda_gctx._core.extension import (
    ClosedError,
    Context,
    Device,
    Event,
    MadeByCalls,
    SMResource,
    SMResourceOptions,
    Stream,
    StreamOptions,
    as_bool,
    as_int,
    blocks_per_sm,
    capturing_stream,
    close_together,
    context_stream,
    demand_not_forked,
    max_cluster_size,
    max_clusters,
    note_sm_ids,
    seen_sm_ids,
)
from cuda_gctx._core.text import ranges, table
from cuda_gctx.partitions.free import open_free, wanted_among_free
from cuda_gctx.partitions.layout import BACKGROUND, Layout, PartitionSpec, Request, layout_of
from cuda_gctx.partitions.opening import Wanted, divided_sms, open_contexts, wanted_for, wanted_of
from cuda_gctx.partitions.trace_marks import mark_opening
from cuda_gctx.partitions.verification import VerifyReport, verify
from cuda_gctx.partitions.words import given_layout, given_names, no_layout

if TYPE_CHECKING:
    from torch.cuda import Stream as TorchStream

# The threads of the blocks for which tables show the largest cluster.
CLUSTER_THREADS = 128
# Of threads, bytes and streams: beyond any device, and within what the driver's parameters hold.
LARGEST_NUMBER = 2**31 - 1
MOST_STREAMS = 1024  # of each priority that a context lends
LARGEST_HANDLE = 2**64 - 1


class ClosedPartitionsError(ClosedError):
    """Partitions, one of them, or a pool were used after they were closed."""

    __module__ = __name__.rpartition(".")[0]  # the public name


def in_words(request: Any) -> str:
    """A request as a text for tables."""
    if isinstance(request, PartitionSpec):
        return "all aligned" if request.aligned else in_words(request.sms)
    if isinstance(request, SMResourceOptions):
        terms = [str(request.count or "all")]
        terms += ["exactly"] if request.backfill else []
        terms += [f"in {request.coscheduled_sm_count}s"] if request.coscheduled_sm_count else []
        terms += [f"locality domain {request.locality_domain}"] if request.locality_domain is not None else []
        return ", ".join(terms)
    return "all remaining" if request is None else str(request)


def refuse_pickling(self: object) -> NoReturn:
    """Raise TypeError for pickle and copy: a body for __reduce__."""
    raise TypeError(
        f"{type(self).__name__} holds contexts of this process and cannot be copied or pickled: send its layout and "
        "open it in the other process"
    )


def _function(kernel: object) -> int:
    """The handle of a kernel: an int, or the handle of an object; 0 for None, which means the probe."""
    if kernel is None:
        return 0
    handle: Any = getattr(kernel, "handle", kernel)
    if not isinstance(handle, Real) and hasattr(handle, "__int__"):  # one of cuda.bindings
        handle = int(handle)
    try:
        return as_int("kernel", handle, 1, LARGEST_HANDLE)
    except TypeError:
        raise TypeError(
            "kernel must be a CUfunction or CUkernel as an int, or an object with a handle, not "
            f"{type(kernel).__name__}"
        ) from None


class Partition:
    """One part of a device: its context and its streams.

    Its occupancy methods take a kernel and its launch configuration. A kernel is a CUfunction or CUkernel as an int, or
    an object with a ``handle`` such as cuda.core's Kernel. Without a kernel, the result is an upper bound: it holds for
    a kernel with few registers and no static shared memory.

    Example:

        from cuda_gctx import Device

        with Device().partition(control=16, rest=None) as parts:
            part = parts.control
            print(part.name, part.requested, part.sm_count)  # control 16 16
            with part.create_stream() as own, part.record() as event:  # behind all work of the partition
                parts.rest.wait(event)
            part.sync()
    """

    __slots__ = ("_context", "_group", "_pools", "_spec", "_stream", "name")

    def __init__(self, wanted: Wanted, context: Context) -> None:
        self.name = wanted.name
        self._spec = wanted.spec
        self._group = wanted.groups[0]
        self._context = context
        self._stream: Stream | None = None
        self._pools: dict[int, tuple[Stream, ...]] = {}  # by priority

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"partition {self.name} is no block: write 'with parts.{self.name}.torch():' for work of torch, or "
            f"'with parts.{self.name}.context.current():' for other libraries"
        )

    def __exit__(self, *error: object) -> None:
        """Completes the protocol, so that ``with`` calls `__enter__`."""

    @property
    def context(self) -> Context:
        """The green context. It closes with the partitions; a later request for its SMs gets the driver's context."""
        demand_not_forked()
        if self._context.is_closed:
            raise ClosedPartitionsError(f"partition {self.name} has been closed")
        return self._context

    @property
    def sm_count(self) -> int:
        """The number of SMs."""
        return self._group.sm_count

    @property
    def requested(self) -> Any:
        """The request: a number of SMs, a share, None (all remaining SMs), SMResourceOptions or a PartitionSpec."""
        return self._spec.request

    @property
    def strategy(self) -> str | None:
        """How the split formed the partition (see SMResource.strategy); None for the whole device."""
        return self._group.strategy

    @property
    def coscheduled_alignment(self) -> int:
        """The number of its SMs that the driver guarantees to co-schedule; larger clusters may fit."""
        return self._group.coscheduled_alignment

    @property
    def sm_ids(self) -> tuple[int, ...] | None:
        """The ids of its SMs; None until verify() has observed them."""
        return seen_sm_ids(self._context)

    @property
    def stream(self) -> Stream:
        """The stream of the partition. It belongs to the context, and its handle is valid as long as the driver's
        context exists, also after the partitions have been closed.
        """
        demand_not_forked()
        stream = self._stream
        if stream is None or stream.is_closed:
            stream = self._stream = context_stream(self.context)
        return stream

    def stream_pool(self, number: int, priority: int | None = None) -> tuple[Stream, ...]:
        """The first `number` streams of a priority (None: the lowest), which do not include `stream`; each call returns
        the same ones.

        number: at most 1024.
        """
        demand_not_forked()
        number = as_int("number", number, 1, MOST_STREAMS)
        level = StreamOptions(priority=priority).priority or 0
        streams = self._pools.get(level, ())
        if len(streams) < number or any(stream.is_closed for stream in streams):
            # Number 0 is `stream`.
            streams = tuple(
                streams[at] if at < len(streams) and not streams[at].is_closed else self._pooled(at + 1, level)
                for at in range(max(number, len(streams)))
            )
            self._pools[level] = streams
        return streams[:number]

    def _pooled(self, number: int, priority: int) -> Stream:
        return context_stream(self.context, number, priority)

    def create_stream(self, options: Any = None) -> Stream:
        """Create a stream, which the program owns: it keeps the SMs claimed until it is closed.

        options: StreamOptions, or a dict of their fields.
        """
        return self.context.create_stream(options)

    def record(self, event: Event | None = None) -> Event:
        """Record `event`, or a new event, after all work enqueued on all streams of the partition, and return it."""
        return self.context.record_event(event)

    def wait(self, other: Partition | Event) -> None:
        """Make all later work of the partition wait on the device; the host does not wait.

        other: an event, or a partition whose work enqueued so far must finish first.
        """
        if isinstance(other, Partition):
            self.context.wait_context(other.context)
        elif isinstance(other, Event):
            self.context.wait_event(other)
        else:
            raise TypeError(f"wait() expects a Partition or an Event, not {type(other).__name__}")

    def sync(self) -> None:
        """Wait on the host until all work of all streams of the partition has finished."""
        self.context.sync()

    async def done(self) -> None:
        """Wait in a coroutine until all work enqueued so far has finished; the event loop continues."""
        await self.record()

    def torch(
        self, library_sms: Literal["off", "on", "auto"] = "off", after: Any = None
    ) -> AbstractContextManager[TorchStream]:
        """A ``with`` block in which torch works in the partition (see cuda_gctx.interop.torch.use).

        library_sms: "off", "on" or "auto": the SM count hint for cuBLAS.
        after: a fork of cuda_gctx.interop.torch, for blocks that run concurrently.
        """
        from cuda_gctx.interop.torch import use

        return use(self, library_sms, after)

    def cupy(self, library_sms: Literal["off", "on"] = "off", after: Any = None) -> AbstractContextManager[Any]:
        """A ``with`` block in which CuPy works in the partition (see cuda_gctx.interop.cupy.use).

        library_sms: "off" or "on": the SM count hint for cuBLAS.
        after: a fork of cuda_gctx.interop.cupy, for blocks that run concurrently.
        """
        from cuda_gctx.interop.cupy import use

        return use(self, library_sms, after)

    def max_blocks(self, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """The number of blocks that can run at once in the partition, which is also the largest grid of a cooperative
        launch.

        kernel: by default, one with few registers. threads: per block; shared_memory: dynamic, bytes per block.
        """
        per_sm = blocks_per_sm(self.context, *self._shape(kernel, threads, shared_memory))
        return per_sm * self.sm_count

    def max_cluster_size(self, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """The largest thread-block cluster that fits in the partition; 1 on devices without clusters.

        kernel: by default, one with few registers. threads: per block; shared_memory: dynamic, bytes per block.
        """
        return max_cluster_size(self.stream, *self._shape(kernel, threads, shared_memory))

    def max_clusters(self, cluster_size: int, kernel: object = None, *, threads: int, shared_memory: int = 0) -> int:
        """The number of clusters of a size that can run at once in the partition.

        cluster_size: blocks per cluster. kernel: by default, one with few registers. threads: per block;
        shared_memory: dynamic, bytes per block.
        """
        size = as_int("cluster_size", cluster_size, 1, LARGEST_NUMBER)
        return max_clusters(self.stream, *self._shape(kernel, threads, shared_memory), size)

    @staticmethod
    def _shape(kernel: object, threads: int, shared_memory: int) -> tuple[int, int, int]:
        threads = as_int("threads", threads, 1, LARGEST_NUMBER)
        return _function(kernel), threads, as_int("shared_memory", shared_memory, 0, LARGEST_NUMBER)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        if self._context.is_closed:
            return f"<Partition {self.name}: closed>"
        request = "background" if self.name == BACKGROUND else f"requested {in_words(self.requested)}"
        return f"<Partition {self.name}: {self.sm_count} SMs, {request}>"


class Partitions(MadeByCalls):
    """Disjoint parts of a device.

    Access a partition by name (``parts.control``, ``parts["control"]``) or position (``parts[0]``). Iteration,
    unpacking and len() cover the requested partitions in the order of the request. The remaining SMs form one more
    partition, ``parts.background``, for all other work.

    Example:

        from cuda_gctx import Device

        with Device().partition(control=16, rest=64) as parts:
            print(parts.control.sm_count, parts["rest"].sm_count)  # 16 64
            print(parts.background.sm_count)  # 52, on an H200
            parts.verify()  # raises IsolationError if work ran on other SMs
            parts.sync()
    """

    # An instance has a dictionary, in which each open partition is an attribute: nothing is faster to look up.

    _made_by = "Partitions come from Device.partition() or PartitionPool.prepare()"
    _all: tuple[Partition, ...]
    _asked: tuple[Partition, ...]
    _by_name: dict[str, Partition]
    _device: Device
    _layout: Layout
    _pool: Pool | None

    @property
    def device(self) -> Device:
        """The device that is split."""
        return self._device

    @property
    def layout(self) -> Layout:
        """The layout that these partitions were opened for."""
        return self._layout

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the requested partitions, in the order of the request."""
        return self._layout.names

    @property
    def background(self) -> Partition:
        """The partition of the remaining SMs, for all other work.

        Raises AttributeError if there are no such SMs.
        """
        self._demand_open()
        if BACKGROUND in self._by_name:
            return self._by_name[BACKGROUND]
        raise AttributeError  # __getattr__ is asked next, and says why

    @property
    def is_closed(self) -> bool:
        """Tells whether they have been closed."""
        return self._all[0]._context.is_closed

    def __getattr__(self, name: str) -> Partition:
        # Only for names that are not in the instance's dictionary: those of closed partitions, and unknown ones.
        if name.startswith("_"):
            raise AttributeError(name)
        self._demand_open()
        if name == BACKGROUND:
            raise AttributeError("there is no background partition: the requested partitions use all SMs")
        raise AttributeError(self._unknown(name))

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"attribute {name!r} of Partitions cannot be set")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"attribute {name!r} of Partitions cannot be deleted: close() closes all partitions")

    def __getitem__(self, key: str | int) -> Partition:
        self._demand_open()
        if isinstance(key, str):
            try:
                return self._by_name[key]
            except KeyError:
                raise KeyError(self._unknown(key)) from None
        try:
            return self._asked[key]
        except IndexError:
            count = f"{len(self)} partition{'s' if len(self) != 1 else ''}"
            raise IndexError(f"there is no partition {key}: there are {count}, {', '.join(self.names)}") from None

    def __iter__(self) -> Iterator[Partition]:
        self._demand_open()
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, item: object) -> bool:
        return item in self._by_name if isinstance(item, str) else item in self._all

    def sync(self) -> None:
        """Wait on the host until all work of all partitions, the background partition included, has finished."""
        self._demand_open()
        for part in self._all:
            part.sync()

    def verify(self, timeout: float = 10.0) -> VerifyReport:
        """Verify with a probe kernel that each partition runs on exactly its SMs.

        timeout: seconds, after which it raises RuntimeError.

        Returns a VerifyReport, which also says whether they ran at the same time. Raises IsolationError if a partition
        ran on other SMs.
        """
        self._demand_open()
        contexts = {part.name: part.context for part in self._all}
        in_use = self._pool._layouts_at_work(self) if self._pool is not None else []
        covers_device = sum(part.sm_count for part in self._all) == self._device.sm_count
        report = verify(contexts, covers_device=covers_device, in_use=in_use, timeout=timeout)
        for context, proof in zip(contexts.values(), report.contexts, strict=True):
            note_sm_ids(context, proof.sm_ids)
        return report

    def close(self) -> None:
        """Close the partitions: their SMs are free, and a later request for them can get their contexts again.

        The streams that they lent raise from then on. Streams and executable graphs that the program made in them go on
        working, and keep the SMs claimed until they are closed. Closing twice does nothing.

        Raises RuntimeError while one of the contexts is current, CapturingError while a stream of them is capturing,
        and RuntimeError for partitions of a pool, which the pool closes.
        """
        if self._pool is not None:
            raise RuntimeError(
                "these partitions belong to a pool and stay open until it is closed: close the pool, or drop() their "
                "layout"
            )
        close_all(self)

    def _unknown(self, name: str) -> str:
        return f"there is no partition {name!r}: the names are {', '.join(self._by_name)}{given_names(self._layout)}"

    def _demand_open(self) -> None:
        if self.is_closed:
            raise ClosedPartitionsError("the partitions have been closed")

    def __enter__(self) -> Partitions:
        self._demand_open()
        return self

    def __exit__(self, *exc: object) -> None:
        # Partitions of a pool stay open after a block.
        if self._pool is None:
            close_all(self)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __str__(self) -> str:
        if self.is_closed:
            return repr(self)
        clusters = self._clusters()
        rows = [
            (
                part.name,
                "-" if part.name == BACKGROUND else in_words(part.requested),
                part.sm_count,
                ranges(part.sm_ids) if part.sm_ids is not None else "not verified",
                cluster,
                part.strategy,
            )
            for part, cluster in zip(self._all, clusters, strict=True)
        ]
        header = ("partition", "requested", "SMs", "SM ids", "largest cluster", "strategy")
        return f"{self._device.name}\n{table(header, rows)}"

    def _clusters(self) -> list[int | None]:
        """The largest cluster of each partition; None if the driver cannot be queried."""
        with suppress(RuntimeError):  # broken partitions have a table too
            # The query loads a kernel, which a capture may not allow.
            if capturing_stream(self._device.resources.sm) is None:
                return [part.max_cluster_size(threads=CLUSTER_THREADS) for part in self._all]
        return [None for _ in self._all]

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<Partitions of {self._layout}: closed>"
        sizes = ", ".join(f"{part.name} {part.sm_count}" for part in self._all)
        return f"<Partitions of device {self._device.device_id}: {sizes}>"


def with_background(parts: Partitions) -> tuple[Partition, ...]:
    """All partitions of `parts`: the requested ones, then the background partition if there is one."""
    return parts._all


def contexts_of(parts: Partitions) -> list[Context]:
    """The contexts of all partitions, including closed ones."""
    return [part._context for part in parts._all]


def close_all(parts: Partitions) -> None:
    """Close all partitions, or none. The lease of their contexts closes in one step, and the rest only tidies up."""
    close_together(contexts_of(parts))
    for part in parts._all:
        parts.__dict__.pop(part.name, None)
        part._stream, part._pools = None, {}


def sms_of(part: Partition) -> SMResource:
    """The SMs of a partition, from the split of its layout."""
    return part._group


class Pool(Protocol):
    """The interface of a pool for its partitions."""

    def _layouts_at_work(self, parts: Partitions) -> Sequence[str]:
        """Other layouts with unfinished work."""


def assemble(
    device: Device, layout: Layout, wanted: Sequence[Wanted], contexts: Sequence[Context], pool: Pool | None = None
) -> Partitions:
    """The partitions of a layout, in contexts of one lease."""
    parts = Partitions.__new__(Partitions)
    every = tuple(map(Partition, wanted, contexts))
    by_name = dict(zip(map(attrgetter("name"), every), every, strict=True))
    fields = parts.__dict__
    fields.update(by_name)
    fields.pop(BACKGROUND, None)
    fields.update(
        _all=every,
        _asked=every[: len(layout.names)],
        _by_name=by_name,
        _device=device,
        _layout=layout,
        _pool=pool,
    )
    mark_opening(parts, every)
    return parts


def open_layout(device: Device, layout: Layout) -> Partitions:
    """Open a layout on a device like partition(), and ignore the layout of the environment."""
    return _open(device, layout, stacklevel=2)


def _open(
    device: Device, layout: Layout, *, exclusive: bool = False, among: str = "all", stacklevel: int
) -> Partitions:
    if among == "free":
        whole = divided_sms(device)
        wanted, contexts = open_free(device, lambda: wanted_among_free(whole, layout), exclusive=exclusive)
    else:
        wanted = wanted_for(divided_sms(device), layout)
        contexts = open_contexts(device, wanted, exclusive=exclusive, stacklevel=stacklevel + 1)
    return assemble(device, layout, wanted, contexts)


def partition_context(
    context: Context,
    /,
    *requests: Request | Layout | Mapping[str, Request] | Sequence[Request],
    exclusive: bool = False,
    **named: Request,
) -> Partitions:
    """Split the SMs of a context into named, disjoint partitions; see Context.partition().

    requests, named, exclusive: as for partition(). Raises ClosedError if the context is closed.
    """
    layout = layout_of(requests, named)
    device = context.device
    wanted = wanted_of(layout, context.resources.sm)
    contexts = open_contexts(device, wanted, exclusive=as_bool("exclusive", exclusive), inside=context, stacklevel=2)
    return assemble(device, layout, wanted, contexts)


def partition(
    device: Device,
    /,
    *requests: Request | Layout | Mapping[str, Request] | Sequence[Request],
    exclusive: bool = False,
    among: Literal["all", "free"] = "all",
    **named: Request,
) -> Partitions:
    """Split a device: ``control=16, rest=None`` by name, ``8, 8, 16`` by position, or one mapping or Layout.

    requests: by position, or one mapping, sequence or Layout. named: by name. Without requests, the environment
    variable CUDA_GCTX_LAYOUT gives the layout. If it is set, a request for another layout raises ValueError.

    An int is a number of SMs, rounded up to a size that the device supports; a float is a share of the device below 1,
    rounded down; None is all remaining SMs; SMResourceOptions for one group and PartitionSpec express further
    conditions.
    The remaining SMs become the background partition. exclusive: refuse SMs that a live context uses, instead of
    warning.

    It splits the SMs of the device. If other code has limited the thread or process, it splits what is left: the SMs of
    a current context of other code, or of the primary context, if it has fewer. ``context.partition()`` splits the SMs
    of a context of this package.

    among: "free" splits only SMs that no known live context of the process uses (device.resources.sm.free), and claims
    them in the same step. So several libraries can share a device. None then requests all free SMs, and there is no
    background partition. SMs of a context whose ids are unknown count as taken.

    Returns Partitions. Raises SplitError if the requests do not fit or too few SMs are free, ValueError for invalid
    requests, ResourceOverlapError with `exclusive`, and CapturingError during a capture.
    """
    exclusive = as_bool("exclusive", exclusive)
    if among not in ("all", "free"):
        raise ValueError(f"among must be 'all' or 'free', and cannot be the name of a partition, not {among!r}")
    given = given_layout()
    if requests or named:
        layout = layout_of(requests, named)
        if given is not None and given.layout != layout:
            raise ValueError(
                f"{given.text} gives this process {given.layout}, and the program requests {layout}: set the variable "
                "to what the program requests, unset it, or request nothing, dev.partition()"
            )
    elif given is None:
        raise ValueError(no_layout())
    else:
        layout = given.layout
    try:
        return _open(device, layout, exclusive=exclusive, among=among, stacklevel=2)
    except ValueError as error:
        if given is not None:
            error.args = (f"{given.text}: {error.args[0]}", *error.args[1:])
        raise
