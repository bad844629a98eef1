"""Opening a layout: contexts out of the store or new ones, and the claim on their SMs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from cuda_gctx._core.context import Context, ContextOptions
from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import ResourceOverlapWarning
from cuda_gctx._core.lease import capturing_stream, claim, create_kept_context, is_capturing
from cuda_gctx._core.resources import SMResource
from cuda_gctx._core.stream import Stream
from cuda_gctx.partitions.layout import Layout
from cuda_gctx.partitions.split import names_of_groups, refuse_missing_workqueues, split_layout
from cuda_gctx.partitions.store import KeptContexts, Lease, driver_and_device, store


def _refuse_capture(whole: SMResource, streams: Sequence[Stream]) -> None:
    capturing = next((f"{stream!r}" for stream in streams if is_capturing(stream)), None) or capturing_stream(whole)
    if capturing is not None:
        raise RuntimeError(
            f"{capturing} is capturing a graph: contexts cannot be made meanwhile; open the partitions before that"
        )


def _make_contexts(device: Device, layout: Layout, groups: Sequence[SMResource]) -> list[Context]:
    contexts: list[Context] = []
    try:
        for position, group in enumerate(groups):
            workqueue = layout.specs[position].workqueue if position < len(layout.specs) else None
            if workqueue is None:
                options = ContextOptions([group])
            else:
                queue = device.resources.workqueue
                queue.configure(workqueue)
                options = ContextOptions([group, queue])
            contexts.append(create_kept_context(device.device_id, options))
    except BaseException:
        while contexts:
            contexts.pop().close()
        raise
    return contexts


def open_layout(
    device: Device, layout: Layout, *, exclusive: bool, group: int, streams: Sequence[Stream], stacklevel: int
) -> tuple[Lease, list[str]]:
    whole = device.resources.sm
    refuse_missing_workqueues(device, layout)
    key = (*driver_and_device(whole, device), layout.specs)
    kept = store._take(key)
    place = None
    try:
        if kept is None:
            _refuse_capture(whole, streams)
        groups = kept.groups if kept is not None else split_layout(layout, whole)
        names = names_of_groups(layout, groups)
        place = claim(groups, names, exclusive, group)
        if place.overlap_report:
            warnings.warn(place.overlap_report, ResourceOverlapWarning, stacklevel=stacklevel)
        if kept is None:
            kept = KeptContexts(key, groups, _make_contexts(device, layout, groups))
        return Lease(kept, place), names
    except BaseException:
        if place is not None:
            place.release()
        if kept is not None:
            store._put(kept)
        raise
