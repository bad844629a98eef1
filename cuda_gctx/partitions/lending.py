"""Contexts for code without partitions: over free SMs while there are enough, otherwise over others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cuda_gctx._core.extension import (
    Context,
    Device,
    ResourceOverlapError,
    SMResource,
    SMResourceOptions,
    SplitError,
    WorkqueueResourceOptions,
    before_driver_closes,
    together,
)
from cuda_gctx.partitions.free import FreeSMs, open_free, pieces_of, wanted_among_free
from cuda_gctx.partitions.layout import PartitionSpec, layout_of
from cuda_gctx.partitions.opening import Wanted, known_split, open_contexts

__all__ = ["open_each", "open_groups", "open_one"]


# Pools of streams split a device again and again, over the same SMs.
ONCE = "close the others first, or split once. This is said once for each device"
_told: set[tuple[int, int]] = set()


def _forget_driver(driver: int) -> None:
    _told.difference_update([key for key in _told if key[0] == driver])


before_driver_closes(_forget_driver)


class _TooFewError(Exception):
    """There are too few free SMs."""


def open_one(
    device: Device,
    name: str,
    sms: SMResource | int | None,
    workqueue: WorkqueueResourceOptions | None = None,
    *,
    exclusive: bool,
    advice: str,
    stacklevel: int,
) -> Context:
    """Open one context.

    sms: the SMs of the context; or their least number, of free SMs if there are enough; or None for the whole device.
    exclusive: raise ResourceOverlapError for SMs that a live context uses, instead of a warning. advice, stacklevel: as
    in open_contexts().
    """
    if workqueue is not None:
        device.resources.workqueue  # noqa: B018  refuses where the driver has none
    spec = PartitionSpec(workqueue=workqueue)
    if isinstance(sms, int):
        group = _beyond_units(device, sms)
        if group is None:
            context = _one_of_free(device, name, sms, spec, exclusive=exclusive)
            if context is not None:
                return context
            group = _with_shared(FreeSMs(device.resources.sm), sms)
    else:
        group = device.resources.sm if sms is None else sms
    wanted = [Wanted(name, (group,), spec)]
    return open_contexts(
        device, wanted, exclusive=exclusive, are_partitions=False, advice=advice, stacklevel=stacklevel + 1
    )[0]


def _one_of_free(device: Device, name: str, count: int, spec: PartitionSpec, *, exclusive: bool) -> Context | None:
    """The context over free SMs; None, or ResourceOverlapError with `exclusive`, if these are too few."""

    def find() -> tuple[Wanted, ...]:
        free = FreeSMs(device.resources.sm)
        pieces = free.fitting(count)
        if pieces is None:
            if exclusive:
                raise ResourceOverlapError(
                    f"{free.words()}, and {count} were requested: close other contexts, or request fewer"
                )
            raise _TooFewError
        return (Wanted(name, (free.take(pieces),), spec),)

    try:
        return open_free(device, find, exclusive=exclusive, are_partitions=False)[1][0]
    except _TooFewError:
        return None


def _beyond_units(device: Device, count: int) -> SMResource | None:
    """The SMs for a number above that of all units of the device together; None for other numbers."""
    units, _ = pieces_of(device.resources.sm)
    if count <= sum(unit.sm_count for unit in units):
        return None
    whole = device.resources.sm
    try:
        [group], _ = whole.split(SMResourceOptions([count]))
    except SplitError:
        # More than the aligned groups hold.
        return whole
    return group


def _with_shared(free: FreeSMs, count: int) -> SMResource:
    """All free SMs, and as few others as necessary; the whole device if these are too few."""
    pieces = free.all_of_one_context()
    for unit in free.all_units:
        if sum(piece.sm_count for piece in pieces) >= count:
            break
        if unit not in pieces:
            pieces.append(unit)
    if sum(piece.sm_count for piece in pieces) < count:
        return free.whole
    return together(free.whole, pieces)


def open_groups(
    device: Device,
    names: Sequence[str],
    counts: Sequence[int],
    split: Callable[[], list[SMResource]],
    request: object,
    *,
    stacklevel: int,
) -> list[Context]:
    """Open a context for each group of a split, the remainder last, or for as many free SMs if some are taken.

    names: the names of the groups and the remainder. counts: the SM counts of the groups. split: makes the groups and
    the remainder, once for each request; request: its argument. stacklevel: as in open_contexts().
    """
    groups = known_split(device, request, split)
    contexts = _groups_of_free(device, names, counts)
    if contexts is not None:
        return contexts
    return open_each(device, names, groups, stacklevel=stacklevel + 1)


def open_each(device: Device, names: Sequence[str], groups: Sequence[SMResource], *, stacklevel: int) -> list[Context]:
    """Open a context for each of these groups, also if their SMs are in use. stacklevel: as in open_contexts().

    The first time that live contexts use the SMs, there is a warning.
    """
    wanted = [Wanted(name, (group,)) for name, group in zip(names, groups, strict=True)]
    return open_contexts(device, wanted, are_partitions=False, advice=ONCE, told=_told, stacklevel=stacklevel + 1)


def _groups_of_free(device: Device, names: Sequence[str], counts: Sequence[int]) -> list[Context] | None:
    """The contexts over free SMs; the remainder gets the rest. None if all SMs are free, or too few."""
    layout = layout_of((*(max(count, 1) for count in counts), None), {})

    def find() -> tuple[Wanted, ...]:
        if FreeSMs(device.resources.sm).is_whole:
            raise SplitError("all SMs are free")
        found = wanted_among_free(device.resources.sm, layout)
        return tuple(replace(request, name=name) for request, name in zip(found, names, strict=True))

    try:
        return open_free(device, find, are_partitions=False)[1]
    except SplitError:
        return None
