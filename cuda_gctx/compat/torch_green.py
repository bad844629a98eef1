"""torch.cuda.green_contexts.GreenContext: the same methods, on contexts that detect overlap and do not lose memory.

Each context has a separate stream, which is torch's current stream between set_context() and pop_context(). The store
keeps an unused context for its next use.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from cuda_gctx._core.extension import (
    Context,
    ContextCurrentError,
    Device,
    FeatureNotSupported,
    SMResource,
    SMResourceOptions,
    Stream,
    WorkqueueResourceOptions,
    as_bool,
    as_int,
    context_stream,
    system,
)
from cuda_gctx.compat._common import torch_device
from cuda_gctx.interop.torch import fork, load_any_torch, load_torch, torch_stream
from cuda_gctx.partitions.lending import open_one

__all__ = [
    "SUPPORTED",
    "GreenContext",
    "SMPartition",
    "execute_on_streams",
    "get_num_locality_domains",
    "is_localization_supported",
]

# As in torch 2.11: the class exists. create() raises an error that names what the driver lacks.
SUPPORTED = True

_SCOPES = {"device_ctx": "device_ctx", "balanced": "green_ctx_balanced"}
# The number of streams in torch's class, after which they repeat.
_STREAMS = 32
_NAME = "GreenContext"
_NO_CUDA = "Green contexts need torch built for CUDA, and this torch is built without it"
_ADVICE = "close the others first, or pass exclusive=True to refuse shared SMs"

# ---- torch's build


def _lacks_cuda(device_id: int | None) -> bool:
    """Tells whether torch is built without CUDA. Imports no torch for the index of a device, which needs none."""
    torch = load_any_torch() if device_id is None else sys.modules.get("torch")
    return torch is not None and torch.version.cuda is None


def _device(device_id: int | None) -> Device:
    if _lacks_cuda(device_id):
        raise RuntimeError(_NO_CUDA)
    return torch_device(device_id)


# ---- the SMs


def _checked_count(whole: SMResource, num_sms: int | None) -> int | None:
    if num_sms is not None and not 0 < num_sms <= whole.sm_count:
        raise RuntimeError(
            f"a green context cannot have {num_sms} SMs: request 1 to {whole.sm_count}, which is the whole device"
        )
    return num_sms


def get_num_locality_domains(device_id: int | None = None) -> int:
    """The number of locality domains of a device; 1 if the driver reports none (before 13.4), or torch has no CUDA.

    device_id: the index of the device; None: torch's current one.
    """
    if device_id is not None:
        as_int("device_id", device_id)
    if _lacks_cuda(device_id) or not system.features()["locality_domains"]:
        return 1
    return torch_device(device_id).locality_domains


def is_localization_supported(device_id: int | None = None) -> bool:
    """Tells whether the driver reports more than one locality domain of a device; False if torch is built without CUDA.

    device_id: the index of the device; None: torch's current one.
    """
    return get_num_locality_domains(device_id) > 1


def _demand_locality_domains() -> None:
    feature = system.features()["locality_domains"]
    if not feature:
        major, minor = system.driver_version
        raise FeatureNotSupported(str(feature.reason), needs=feature.needs, found=f"{major}.{minor}")


class SMPartition:
    """A set of SMs, with the names of torch.cuda.green_contexts.SMPartition. It reserves nothing.

    Create one with from_device(), split(), or GreenContext.sm_partition; ``resource`` is the SMResource. Each of these
    can be split again, on every driver with green contexts.
    """

    def __init__(self, resource: SMResource) -> None:
        if not isinstance(resource, SMResource):
            raise TypeError(f"resource must be an SMResource, not {type(resource).__name__}: use from_device()")
        self.resource = resource

    @classmethod
    def from_device(cls, device_id: int | None = None) -> SMPartition:
        """All SMs of a device.

        device_id: the index of the device; None: torch's current one.
        """
        return cls(_device(device_id).resources.sm)

    @property
    def device_id(self) -> int:
        """The number of its device."""
        return self.resource.device.device_id

    @property
    def sm_count(self) -> int:
        """The number of its SMs."""
        return self.resource.sm_count

    @property
    def coscheduled_sm_count(self) -> int:
        """The number of SMs that the driver guarantees to be co-scheduled."""
        return self.resource.coscheduled_alignment

    @property
    def locality_domain_id(self) -> int | None:
        """The locality domain that the driver reports for its SMs, or None (driver 13.4 and newer)."""
        _demand_locality_domains()
        return self.resource.locality_domain

    def split(
        self,
        *,
        num_sms: int | Sequence[int] = 0,
        coscheduled_sm_count: int | Sequence[int] = 0,
        preferred_coscheduled_sm_count: int | Sequence[int] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: int | Sequence[int | None] | None = None,
    ) -> tuple[tuple[SMPartition, ...], SMPartition | None]:
        """Split off disjoint groups. Returns ``(partitions, remainder)``; an empty remainder is None.

        num_sms: the SMs of each group, rounded up unless `backfill` is set; 0: the SMs that the other groups leave, for
        at most one group, or one in each locality domain. coscheduled_sm_count, preferred_coscheduled_sm_count,
        backfill, locality_domain_ids (locality_domain): as in SMResourceOptions, with 0 for None in the first two. An
        option is one value for all groups, or a sequence. SplitError (a ValueError) if the groups do not fit.
        """
        options: dict[str, Any] = {
            "num_sms": num_sms,
            "coscheduled_sm_count": coscheduled_sm_count,
            "preferred_coscheduled_sm_count": preferred_coscheduled_sm_count,
            "backfill": backfill,
            "locality_domain_ids": locality_domain_ids,
        }
        lengths = {len(value) for value in options.values() if isinstance(value, Sequence)}
        if len(lengths) > 1:
            raise ValueError(f"all options that are sequences must have the same length, not {sorted(lengths)}")
        number = lengths.pop() if lengths else 1
        if number == 0:
            raise ValueError("a split needs at least one group")
        rows = {
            name: list(value) if isinstance(value, Sequence) else [value] * number for name, value in options.items()
        }
        backfills = [as_bool("backfill", value) for value in rows.pop("backfill")]
        domains = self._checked_domains(rows.pop("locality_domain_ids"))
        numbers = {name: [as_int(name, value, 0) or None for value in row] for name, row in rows.items()}
        for place, (count, exact) in enumerate(zip(numbers["num_sms"][:-1], backfills[:-1], strict=True)):
            if exact and count is None:
                raise ValueError(
                    f"group {place} has num_sms=0 and backfill=True, which takes all remaining SMs: make it the last "
                    "group, or set its num_sms"
                )
        groups, remainder = self.resource.split(
            SMResourceOptions(
                numbers["num_sms"],
                numbers["coscheduled_sm_count"],
                numbers["preferred_coscheduled_sm_count"],
                backfills,
                domains,
            )
        )
        return tuple(map(SMPartition, groups)), SMPartition(remainder) if remainder.sm_count else None

    def _checked_domains(self, domains: Sequence[Any]) -> list[int | None]:
        found = [None if value is None else as_int("locality_domain_ids", value, 0) for value in domains]
        named = [domain for domain in found if domain is not None]
        if named:
            _demand_locality_domains()
            last = self.resource.device.locality_domains - 1
            if max(named) > last:
                raise ValueError(
                    f"locality_domain_ids has {max(named)}: the domains of device {self.device_id} are 0 to {last}"
                )
        return found

    def __repr__(self) -> str:
        return f"<SMPartition: {self.sm_count} SMs of device {self.device_id}>"


# ---- the active contexts of a thread


class _Active(threading.local):
    """The contexts that are set on the thread, in order, each with the stack that leaves it."""

    def __init__(self) -> None:
        # The entries also keep the contexts alive.
        self.entries: list[tuple[GreenContext, ExitStack]] = []


_active = _Active()


class GreenContext:
    """A part of a device for torch to work in, with the methods of torch.cuda.green_contexts.GreenContext.

    GreenContext(...) takes the keywords of create(). A ``with`` block is set_context() and pop_context(); it does not
    close the context.
    """

    def __init__(
        self,
        *,
        num_sms: int | None = None,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        sm_partition: SMPartition | None = None,
        device_id: int | None = None,
        exclusive: bool = False,
    ) -> None:
        self._make(num_sms, workqueue_scope, workqueue_concurrency_limit, device_id, sm_partition, exclusive=exclusive)

    @staticmethod
    def create(
        num_sms: int | None = None,
        device_id: int | None = None,
        *,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        sm_partition: SMPartition | None = None,
        exclusive: bool = False,
    ) -> GreenContext:
        """A context with at least `num_sms` SMs (None: all of them) of a device.

        device_id: the index of the device; None: torch's current one. sm_partition: use exactly these SMs.
        workqueue_scope: "device_ctx" or "balanced"; with workqueue_concurrency_limit, how many workloads at once the
        context expects (driver 13.1 and newer). The context gets SMs that no known live context uses. If there are too
        few, it shares some, with a ResourceOverlapWarning. exclusive: raise ResourceOverlapError instead.
        """
        self = GreenContext.__new__(GreenContext)
        self._make(num_sms, workqueue_scope, workqueue_concurrency_limit, device_id, sm_partition, exclusive=exclusive)
        return self

    @staticmethod
    def split(
        *,
        num_sms: int | Sequence[int] = 0,
        coscheduled_sm_count: int | Sequence[int] = 0,
        preferred_coscheduled_sm_count: int | Sequence[int] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: int | Sequence[int | None] | None = None,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        device_id: int | None = None,
    ) -> tuple[GreenContext, ...]:
        """Create contexts over disjoint parts of a device.

        num_sms, coscheduled_sm_count, preferred_coscheduled_sm_count, backfill, locality_domain_ids: as in
        SMPartition.split(). workqueue_scope, workqueue_concurrency_limit, device_id: as in create(), for all contexts.
        """
        partitions, _ = SMPartition.from_device(device_id).split(
            num_sms=num_sms,
            coscheduled_sm_count=coscheduled_sm_count,
            preferred_coscheduled_sm_count=preferred_coscheduled_sm_count,
            backfill=backfill,
            locality_domain_ids=locality_domain_ids,
        )
        contexts: list[GreenContext] = []
        try:
            for partition in partitions:
                self = GreenContext.__new__(GreenContext)
                self._make(None, workqueue_scope, workqueue_concurrency_limit, None, partition, exclusive=False)
                contexts.append(self)
        except BaseException:
            for context in contexts:
                context.close()
            raise
        return tuple(contexts)

    @staticmethod
    def max_workqueue_concurrency(device_id: int | None = None) -> int:
        """The concurrency limit of a device's workqueues (driver 13.1 and newer).

        device_id: the index of the device; None: torch's current one.
        """
        return _device(device_id).resources.workqueue.concurrency_limit

    def _make(
        self,
        num_sms: int | None,
        scope: str | None,
        limit: int | None,
        device_id: int | None,
        sm_partition: SMPartition | None,
        *,
        exclusive: bool,
    ) -> None:
        if _lacks_cuda(None):
            raise RuntimeError(_NO_CUDA)
        torch = load_torch()
        workqueue = None
        if scope is not None:
            if scope not in _SCOPES:
                raise ValueError(f"workqueue_scope is one of {', '.join(map(repr, _SCOPES))}, not {scope!r}")
            workqueue = WorkqueueResourceOptions(_SCOPES[scope], limit)
        elif limit is not None:
            raise RuntimeError("workqueue_concurrency_limit requires workqueue_scope")
        elif num_sms is None and sm_partition is None:
            raise RuntimeError("pass num_sms or sm_partition, workqueue_scope, or both")
        num_sms = None if num_sms is None else as_int("num_sms", num_sms)
        if sm_partition is not None:
            if not isinstance(sm_partition, SMPartition):
                raise TypeError(f"sm_partition must be an SMPartition, not {type(sm_partition).__name__}")
            if num_sms is not None:
                raise ValueError("num_sms and sm_partition are mutually exclusive: give one of them")
            if device_id is not None and device_id != sm_partition.device_id:
                raise ValueError(
                    f"device_id is {device_id}, but sm_partition belongs to device {sm_partition.device_id}"
                )
            device_id = sm_partition.device_id
        exclusive = as_bool("exclusive", exclusive)
        device = torch_device(device_id)
        if not torch._C._cuda_hasPrimaryContext(device.device_id):
            warnings.warn(
                f"device {device.device_id} has no primary context, which every green context needs, and now gets one: "
                "use the device with torch before you make a GreenContext",
                stacklevel=3,
            )
        sms = sm_partition.resource if sm_partition is not None else _checked_count(device.resources.sm, num_sms)
        self._context = open_one(device, _NAME, sms, workqueue, exclusive=exclusive, advice=_ADVICE, stacklevel=3)
        self._sm_count = self._context.sm_count
        self._lock = threading.Lock()
        self._own_stream = context_stream(self._context)
        self._streams: list[Stream] = []
        self._given = 0

    @property
    def context(self) -> Context:
        """The context itself."""
        self._demand_open()
        return self._context

    @property
    def sm_count(self) -> int:
        """The number of SMs: `num_sms`, rounded up to a size that the device supports."""
        return self._sm_count

    @property
    def sm_partition(self) -> SMPartition:
        """Its SMs, which can be split."""
        return SMPartition(self.context.resources.sm)

    @property
    def locality_domain_id(self) -> int | None:
        """The locality domain that the driver reports for its SMs, or None (driver 13.4 and newer)."""
        return self.sm_partition.locality_domain_id

    @property
    def device_id(self) -> int:
        """The index of the device."""
        return self.context.device.device_id

    @property
    def is_closed(self) -> bool:
        """Tells whether it has been closed."""
        return self._context.is_closed

    def set_context(self) -> None:
        """Make it the current context of the thread, and its stream torch's current stream, until pop_context().

        Its work waits for earlier work on the previous stream. Calls can be nested, and made on several
        threads.
        """
        torch = load_torch()
        with self._lock, ExitStack() as entering:
            self._demand_open()
            inner = torch_stream(self._own_stream)
            outer = torch.cuda.current_stream(inner.device)
            inner.wait_stream(outer)
            # On the way out, in reverse. An event belongs to the context that is current where torch makes it, and is
            # recorded on streams of that one: inner's, before it is left. The default stream means that of the current
            # context: the outer one waits after that.
            passed: list[Any] = []
            entering.callback(_wait_for, outer, passed)
            entering.enter_context(self._context.current())
            entering.enter_context(torch.cuda.stream(inner))
            entering.callback(_record, torch, inner, passed)
            _active.entries.append((self, entering.pop_all()))

    def pop_context(self) -> None:
        """Restore the context and the stream before set_context(); that stream waits for the work since then.

        Raises RuntimeError if the thread has not set this context last.
        """
        entries = _active.entries
        if not any(active is self for active, _ in entries):
            raise RuntimeError("pop_context() without set_context(): this GreenContext is not active on this thread")
        if entries[-1][0] is not self:
            raise RuntimeError("another GreenContext was set after this one: pop that one first")
        _, leaving = entries.pop()
        leaving.close()

    def Stream(self) -> Any:
        """A torch.cuda.Stream of the context, not ordered with other streams; the 33rd call returns the first one."""
        with self._lock:
            self._demand_open()
            if len(self._streams) < _STREAMS:
                self._streams.append(context_stream(self._context, 1 + len(self._streams)))
            stream = self._streams[self._given % _STREAMS]
            self._given += 1
            return torch_stream(stream)

    def close(self) -> None:
        """Close the context and release its SMs. Closing twice does nothing. Its streams work until they are dropped.

        ContextCurrentError while it is active on a thread.
        """
        with self._lock:
            if self.is_closed:
                return
            try:
                self._context.close()
            except ContextCurrentError as error:
                raise ContextCurrentError(
                    "an active GreenContext cannot be closed: call pop_context() as often as set_context() was, on the "
                    f"same threads ({error})"
                ) from None

    def _demand_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("the GreenContext is closed: create another one")

    def __enter__(self) -> GreenContext:
        self.set_context()
        return self

    def __exit__(self, *exc: object) -> None:
        self.pop_context()

    def __repr__(self) -> str:
        if self.is_closed:
            return "<GreenContext: closed>"
        return f"<GreenContext: {self.sm_count} SMs of device {self._context.device.device_id}>"


def _record(torch: Any, inner: Any, passed: list[Any]) -> None:
    """Events behind the stream of a context and, as in torch's class, behind torch's current stream."""
    current = torch.cuda.current_stream(inner.device)
    passed += [stream.record_event() for stream in ([inner] if current == inner else [inner, current])]


def _wait_for(outer: Any, passed: list[Any]) -> None:
    for event in passed:
        outer.wait_event(event)


# ---- one function on several streams


def execute_on_streams(streams: Iterable[Any], fn: Callable[[Any], Any], args: Iterable[Any]) -> list[Any]:
    """Run ``fn(arg)`` for each stream and its argument, with the stream as torch's current one. Returns the results.

    streams: torch streams, such as those of GreenContext.Stream(), of torch's current device. fn: enqueues the work.
    args: an argument for each stream; ValueError for another number.

    The streams run concurrently: each waits for the earlier work of torch's current stream, which then waits for all of
    them, also if `fn` raises. A graph capture contains the same order.
    """
    on, given = list(streams), list(args)
    if len(on) != len(given):
        raise ValueError(f"args has {len(given)} entries for {len(on)} streams: pass one argument for each stream")
    torch = load_torch()
    results = []
    with fork() as start:
        for stream, argument in zip(on, given, strict=True):
            start.start(stream)
            try:
                with torch.cuda.stream(stream):
                    results.append(fn(argument))
            finally:
                start.end(stream)
    return results
