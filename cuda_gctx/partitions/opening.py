"""Opening: contexts for groups of SMs, from the store or new, and the claim on their SMs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuda_gctx._core.context import ContextOptions
from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import before_driver_closes
from cuda_gctx._core.errors import CapturingError, ResourceOverlapWarning
from cuda_gctx._core.loan import (
    capturing_stream,
    claim,
    create_unclaimed_context,
    is_capturing,
    rename,
    sm_identity,
)
from cuda_gctx._core.resources import SMResource, WorkqueueResourceOptions
from cuda_gctx._core.stream import Stream
from cuda_gctx.partitions.layout import Layout
from cuda_gctx.partitions.split import names_of_groups, refuse_missing_workqueues, split_layout
from cuda_gctx.partitions.store import Key, Loan, StoredContext, driver_and_device, store

# Splits that are remembered for each driver and device.
MOST_SPLITS = 4096

# The end of messages about SMs that live contexts have.
ADVICE = "close the others first, or open one layout with all partitions"


@dataclass(frozen=True)
class Wanted:
    """One context to open: its name in messages, its SMs (groups of one split), and its hardware queues."""

    name: str
    groups: Sequence[SMResource]
    workqueue: WorkqueueResourceOptions | None = None


def refuse_capture(whole: SMResource, streams: Sequence[Stream] = ()) -> None:
    """Raise CapturingError while a stream is known to be capturing: contexts cannot be made then."""
    capturing = next((f"{stream!r}" for stream in streams if is_capturing(stream)), None) or capturing_stream(whole)
    if capturing is not None:
        raise CapturingError(
            f"{capturing} is capturing a graph, and contexts cannot be made during a capture: open the partitions "
            "before it"
        )


def _make(device: Device, key: Key, wanted: Wanted) -> StoredContext:
    queues = []
    if wanted.workqueue is not None:
        queues = [device.resources.workqueue]  # refuses where the driver has none
        queues[0].configure(wanted.workqueue)
    options = ContextOptions([*wanted.groups, *queues], name=wanted.name)
    return StoredContext(key, create_unclaimed_context(device.device_id, options))


class Opening:
    """Contexts that are being opened: their SMs are claimed, and no context is made yet.

    Ends with loan() or abandon(). Between the steps, callers may run foreign code, such as that of a warning.
    """

    def __init__(
        self,
        device: Device,
        wanted: Sequence[Wanted],
        *,
        exclusive: bool = False,
        only_free: bool = False,
        group: int = 0,
        advice: str = ADVICE,
    ) -> None:
        self._device = device
        self._wanted = wanted
        names = [one.name for one in wanted for _ in one.groups]
        groups = [sms for one in wanted for sms in one.groups]
        self._claim = claim(groups, names, exclusive, group, advice, only_free=only_free)

    def warn(self, stacklevel: int) -> None:
        """Warn if live contexts use the SMs; stacklevel: as for warnings.warn() in the caller."""
        if self._claim.overlap_report:
            warnings.warn(self._claim.overlap_report, ResourceOverlapWarning, stacklevel + 1)

    def abandon(self) -> None:
        self._claim.release()

    def loan(
        self, streams: Sequence[Stream] = (), in_use: Mapping[Key, tuple[StoredContext, Loan]] | None = None
    ) -> Loan:
        """Lend a context for each that is wanted: all of them, or raise an error that leaves nothing behind.

        streams: more streams that may be capturing. in_use: contexts that can be shared, with their loans.
        """
        whole = self._device.resources.sm
        where = driver_and_device(whole, self._device)
        keys = [(*where, *map(sm_identity, one.groups), one.workqueue) for one in self._wanted]
        shared = {key: in_use[key] for key in keys if in_use is not None and key in in_use}
        needed = [key for key in keys if key not in shared]
        own: dict[Key, StoredContext | None] = dict(zip(needed, store._take(needed), strict=True))
        made: dict[Key, StoredContext] = {}
        try:
            if None in own.values():
                refuse_capture(whole, streams)
            for key, one in zip(keys, self._wanted, strict=True):
                if key in own and own[key] is None:
                    made[key] = _make(self._device, key, one)
        except BaseException:
            for stored in reversed(made.values()):
                stored.close()
            store._put([stored for stored in own.values() if stored is not None])
            raise
        for key, one in zip(keys, self._wanted, strict=True):
            taken = own.get(key)
            if taken is not None:
                rename(taken.context, one.name)
        lent = {key: stored for key, stored in {**own, **made}.items() if stored is not None}
        contexts = [shared[key][0] if key in shared else lent[key] for key in keys]
        return Loan(contexts, list(lent.values()), self._claim, [loan for _, loan in shared.values()])


def open_contexts(
    device: Device, wanted: Sequence[Wanted], *, exclusive: bool = False, advice: str = ADVICE, stacklevel: int
) -> Loan:
    """Lend a context for each that is wanted: all of them, or raise an error that leaves nothing behind.

    exclusive: refuse SMs that a live context uses, instead of warning. advice: the end of that warning; stacklevel: as
    for warnings.warn() in the caller.
    """
    opening = Opening(device, wanted, exclusive=exclusive, advice=advice)
    try:
        opening.warn(stacklevel + 1)
        return opening.loan()
    except BaseException:
        opening.abandon()
        raise


_splits: dict[tuple[int, int], dict[object, list[SMResource]]] = {}


def _forget_driver(driver: int) -> None:
    for key in [key for key in _splits if key[0] == driver]:
        del _splits[key]


before_driver_closes(_forget_driver)


def known_split(
    device: Device, request: object, split: Callable[[], list[SMResource]], streams: Sequence[Stream] = ()
) -> list[SMResource]:
    """The groups that `split` makes for a request, called once for each driver and device: they never change."""
    whole = device.resources.sm
    known = _splits.setdefault(driver_and_device(whole, device), {})
    groups = known.get(request)
    if groups is None:
        refuse_capture(whole, streams)  # some splits make a context in between
        if len(known) >= MOST_SPLITS:
            known.clear()
        groups = known[request] = split()
    return groups


def wanted_by(device: Device, layout: Layout, streams: Sequence[Stream] = ()) -> list[Wanted]:
    """The contexts to open for a layout, that of the background partition last, if there is one."""
    refuse_missing_workqueues(device, layout)
    groups = known_split(device, layout, lambda: split_layout(layout, device.resources.sm), streams)
    queues = [*(spec.workqueue for spec in layout.specs), None]
    return [
        Wanted(name, [sms], queue)
        for name, sms, queue in zip(names_of_groups(layout, groups), groups, queues, strict=False)
    ]
