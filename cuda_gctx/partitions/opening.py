"""Opening: contexts for groups of SMs, and the claim on their SMs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cuda_gctx._core.extension import (
    CapturingError,
    Context,
    Device,
    LeaseGroup,
    Opening,
    ResourceOverlapWarning,
    SMResource,
    Stream,
    before_driver_closes,
    capturing_stream,
    claim,
    driver_and_device,
    granted_context,
    is_capturing,
)
from cuda_gctx.partitions.layout import BACKGROUND, Layout, PartitionSpec
from cuda_gctx.partitions.split import split_layout

# Splits that are remembered for each driver and device.
MOST_SPLITS = 4096

# The end of messages about SMs that other leases have.
ADVICE = "close the others first, or open one layout with all partitions"


# The request of a background partition.
REMAINING = PartitionSpec()


@dataclass(frozen=True)
class Wanted:
    """One context to open: its name in messages, SMs (groups of one split), and the request of its partition."""

    name: str
    groups: tuple[SMResource, ...]
    spec: PartitionSpec = REMAINING


def refuse_capture(whole: SMResource, streams: Sequence[Stream] = ()) -> None:
    """Raise CapturingError while a known stream is capturing: contexts cannot be made then."""
    capturing = capturing_stream(whole)
    for stream in streams:
        if is_capturing(stream):
            capturing = repr(stream)
    if capturing is not None:
        raise CapturingError(
            f"{capturing} is capturing a graph, and contexts cannot be created during a capture: open the partitions "
            "first"
        )


def claim_all(
    device: Device,
    wanted: Sequence[Wanted],
    *,
    exclusive: bool = False,
    only_free: bool = False,
    are_partitions: bool = True,
    inside: Context | None = None,
    group: LeaseGroup | None = None,
    advice: str = ADVICE,
) -> Opening:
    """Claim the SMs of contexts that are to be opened; the arguments are those of claim()."""
    requests = []
    for request in wanted:
        queues = None
        if request.spec.workqueue is not None:
            queues = device.resources.workqueue  # refuses where the driver has none
            queues.configure(request.spec.workqueue)
        requests.append((request.name, request.groups, queues))
    return claim(
        device.device_id,
        requests,
        exclusive=exclusive,
        only_free=only_free,
        are_partitions=are_partitions,
        inside=inside,
        group=group,
        advice=advice,
    )


def warn_of_overlap(opening: Opening, stacklevel: int, told: set[Any] | None = None, key: object = None) -> None:
    """Warn if other leases have SMs of an opening, unless this warning was given before for the key.

    stacklevel: as for warnings.warn() in the caller.
    """
    report = opening.overlap_report
    if not report or (told is not None and key in told):
        return
    if told is not None:
        told.add(key)
    warnings.warn(report, ResourceOverlapWarning, stacklevel + 1)


def open_contexts(
    device: Device,
    wanted: Sequence[Wanted],
    *,
    exclusive: bool = False,
    are_partitions: bool = True,
    inside: Context | None = None,
    advice: str = ADVICE,
    told: set[tuple[int, int]] | None = None,
    stacklevel: int,
) -> list[Context]:
    """Open all contexts with one lease, or raise an error and leave nothing behind.

    exclusive: refuse SMs of other leases, instead of warning. are_partitions: in messages, and not contexts that their
    users close. inside: the context whose SMs are split. advice: the end of that warning. told: the drivers and devices
    that need no further warning; stacklevel: as for warnings.warn() in the caller.
    """
    with claim_all(
        device, wanted, exclusive=exclusive, are_partitions=are_partitions, inside=inside, advice=advice
    ) as opening:
        key = driver_and_device(device.resources.sm) if told is not None else None
        warn_of_overlap(opening, stacklevel + 1, told, key)
        return opening.lease()


Known = TypeVar("Known")

_known: dict[tuple[int, int], dict[object, Any]] = {}


def _forget_driver(driver: int) -> None:
    for key in [key for key in list(_known) if key[0] == driver]:
        _known.pop(key, None)


before_driver_closes(_forget_driver)


def known_split(device: Device, request: object, split: Callable[[], Known], streams: Sequence[Stream] = ()) -> Known:
    """The result of `split` for a request. It never changes, so `split` runs once for each driver and device."""
    whole = device.resources.sm
    key = driver_and_device(whole)
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


def wanted_of(layout: Layout, whole: SMResource) -> tuple[Wanted, ...]:
    """The contexts of a layout over some SMs, that of the background partition last, if there is one."""
    groups = split_layout(layout, whole)
    wanted = []
    for name, sms, spec in zip([*layout.names, BACKGROUND], groups, [*layout.specs, REMAINING], strict=False):
        wanted.append(Wanted(name, (sms,), spec))
    return tuple(wanted)


def divided_sms(device: Device) -> SMResource:
    """The SMs that partitions divide: those of the device, or the part that other code has left to this thread."""
    context = granted_context(device.device_id)
    if context is None:
        return device.resources.sm
    return known_split(device, ("SMs of context", context.id), lambda: context.resources.sm)


def wanted_for(whole: SMResource, layout: Layout, streams: Sequence[Stream] = ()) -> tuple[Wanted, ...]:
    """The same, remembered."""
    # Names and specs, and not the layout: they have all that a layout is equal by.
    key = whole, layout.names, layout.specs
    return known_split(whole.device, key, partial(wanted_of, layout, whole), streams)
