"""Opening: contexts for groups of SMs, from the store or new, and the claim on their SMs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cuda_gctx._core.extension import (
    CapturingError,
    ContextOptions,
    CUDAError,
    Device,
    ResourceOverlapWarning,
    SMResource,
    Stream,
    before_driver_closes,
    capturing_stream,
    claim,
    create_unclaimed_context,
    is_capturing,
    rename,
    serve_as,
)
from cuda_gctx.partitions.layout import Layout, PartitionSpec
from cuda_gctx.partitions.order import Key, Order, Wanted, driver_and_device
from cuda_gctx.partitions.split import names_of_groups, refuse_missing_workqueues, split_layout
from cuda_gctx.partitions.store import Loan, StoredContext, put_back, take_stored, take_stored_set

# Splits that are remembered for each driver and device.
MOST_SPLITS = 4096

# The end of messages about SMs that live contexts have.
ADVICE = "close the others first, or open one layout with all partitions"


def refuse_capture(
    whole: SMResource,
    streams: Sequence[Stream] = (),
    because: str = "contexts cannot be created during a capture: open the partitions first",
) -> None:
    """Raise CapturingError while a known stream is capturing."""
    capturing = next((f"{stream!r}" for stream in streams if is_capturing(stream)), None) or capturing_stream(whole)
    if capturing is not None:
        raise CapturingError(f"{capturing} is capturing a graph, and {because}")


def _make(device: Device, wanted: Wanted) -> StoredContext:
    queues = []
    if wanted.workqueue is not None:
        queues = [device.resources.workqueue]  # refuses where the driver has none
        queues[0].configure(wanted.workqueue)
    options = ContextOptions([*wanted.groups, *queues], name=wanted.name)
    try:
        return StoredContext(wanted, create_unclaimed_context(device.device_id, options))
    except CUDAError as error:
        name_partition(error, wanted.name, sum(sms.sm_count for sms in wanted.groups))
        raise


def name_partition(error: CUDAError, name: str, sm_count: int) -> None:
    """Add the partition to the message of a failed driver call, and what to do."""
    if not error.call:
        return  # refused before the driver was called, with what to do
    advice = "run cuda-gctx doctor"
    if error.name == "CUDA_ERROR_OUT_OF_MEMORY":
        advice = "free device memory, or open fewer contexts (system.memory() counts them)"
    error.args = (f"partition {name} ({sm_count} SMs): {error}: {advice}",)


class Opening:
    """Contexts that are being opened: their SMs are claimed, and the contexts do not exist yet.

    Ends with loan() or abandon(). Between the steps, callers may run foreign code, such as that of a warning.
    """

    def __init__(
        self,
        device: Device,
        order: Order,
        *,
        exclusive: bool = False,
        only_free: bool = False,
        group: int = 0,
        advice: str = ADVICE,
    ) -> None:
        self._device = device
        self._order = order
        self._claim = claim(order.groups, order.names, exclusive, group, advice, only_free=only_free)

    def warn(self, stacklevel: int, told: set[tuple[int, int]] | None = None) -> None:
        """Warn if live contexts use the SMs, unless this warning was given before for the device.

        stacklevel: as for warnings.warn() in the caller.
        """
        if not self._claim.overlap_report:
            return
        if told is not None:
            key = driver_and_device(self._device.resources.sm, self._device)
            if key in told:
                return
            told.add(key)
        warnings.warn(self._claim.overlap_report, ResourceOverlapWarning, stacklevel + 1)

    def abandon(self) -> None:
        self._claim.release()

    def loan(
        self, streams: Sequence[Stream] = (), in_use: Mapping[Key, tuple[StoredContext, Loan]] | None = None
    ) -> Loan:
        """Lend all requested contexts, or raise an error and leave nothing behind.

        streams: more streams that may be capturing. in_use: contexts that can be shared, with their loans.
        """
        order = self._order
        if not in_use:
            kept = take_stored_set(order)
            if kept is not None:
                return Loan(kept, kept, self._claim, order)
        shared = (
            {request.key: in_use[request.key] for request in order.wanted if request.key in in_use} if in_use else {}
        )
        taken = self._own([request for request in order.wanted if request.key not in shared], streams)
        if not shared:
            contexts = taken
        else:
            lent = {stored.key: stored for stored in taken}
            contexts = [
                shared[request.key][0] if request.key in shared else lent[request.key] for request in order.wanted
            ]
        for stored, request in zip(contexts, order.wanted, strict=True):
            if stored.served is not request:
                serve_as(stored.context, request.groups)
                if request.key not in shared:
                    rename(stored.context, request.name)
                    stored.served = request
        return Loan(contexts, taken, self._claim, None if shared else order, [loan for _, loan in shared.values()])

    def _own(self, requests: Sequence[Wanted], streams: Sequence[Stream]) -> list[StoredContext]:
        """A context for each request, from the store or new."""
        available = take_stored(request.key for request in requests)
        created: dict[Wanted, StoredContext] = {}
        try:
            if None in available:
                refuse_capture(self._device.resources.sm, streams)
            for request, stored in zip(requests, available, strict=True):
                if stored is None:
                    created[request] = _make(self._device, request)
        except BaseException:
            for stored in reversed(created.values()):
                stored.close()
            put_back([stored for stored in available if stored is not None])
            raise
        return [stored or created[request] for request, stored in zip(requests, available, strict=True)]


def open_contexts(
    device: Device,
    order: Order,
    *,
    exclusive: bool = False,
    advice: str = ADVICE,
    told: set[tuple[int, int]] | None = None,
    stacklevel: int,
) -> Loan:
    """Lend all requested contexts, or raise an error and leave nothing behind.

    exclusive: refuse SMs that a live context uses, instead of warning. advice: the end of that warning. told: the
    drivers and devices that need no further warning; stacklevel: as for warnings.warn() in the caller.
    """
    opening = Opening(device, order, exclusive=exclusive, advice=advice)
    try:
        opening.warn(stacklevel + 1, told)
        return opening.loan()
    except BaseException:
        opening.abandon()
        raise


Known = TypeVar("Known")

_known: dict[tuple[int, int], dict[object, Any]] = {}


def _forget_driver(driver: int) -> None:
    for key in [key for key in _known if key[0] == driver]:
        del _known[key]


before_driver_closes(_forget_driver)


def known_split(device: Device, request: object, split: Callable[[], Known], streams: Sequence[Stream] = ()) -> Known:
    """The result of `split` for a request. It never changes, so `split` runs once for each driver and device."""
    whole = device.resources.sm
    key = driver_and_device(whole, device)
    splits = _known.get(key)
    if splits is None:
        splits = _known.setdefault(key, {})
    groups: Known | None = splits.get(request)
    if groups is None:
        refuse_capture(whole, streams)  # some splits make a context in between
        groups = split()
        if len(splits) >= MOST_SPLITS:
            splits.clear()
        # One object for all, whichever thread was first.
        groups = splits.setdefault(request, groups)
    return groups


def _order_for(device: Device, layout: Layout) -> Order:
    refuse_missing_workqueues(device, layout)
    groups = split_layout(layout, device.resources.sm)
    specs = [*layout.specs, PartitionSpec()]
    return Order.of(
        Wanted(name, (sms,), spec.workqueue, spec.request)
        for name, sms, spec in zip(names_of_groups(layout, groups), groups, specs, strict=False)
    )


def order_for(device: Device, layout: Layout, streams: Sequence[Stream] = ()) -> Order:
    """The contexts of a layout, that of the background partition last, if there is one."""
    return known_split(device, layout, lambda: _order_for(device, layout), streams)
