"""The groups of a layout on a device, dry runs of layouts, and the sizes that one partition can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from cuda_gctx._core.extension import Device, SMResource, SMResourceOptions, SplitError
from cuda_gctx.partitions.layout import BACKGROUND, OPTION_FIELDS, Layout, PartitionSpec

# More than a share loses by being rounded to its digits, on a device of a thousand units.
SHARE_SLACK = 1e-6


def count_of(name: str, spec: PartitionSpec, whole: SMResource) -> int | None:
    if not isinstance(spec.sms, float):
        return spec.sms if isinstance(spec.sms, int) else None
    grain = whole.coscheduled_alignment
    units = floor(spec.sms * whole.sm_count / grain + SHARE_SLACK)
    if units * grain < whole.min_partition_size:
        least = max(grain, whole.min_partition_size)
        raise ValueError(
            f"partition {name}: {spec.sms} of {whole.sm_count} SMs are {spec.sms * whole.sm_count:.1f}, fewer than the "
            f"smallest partition ({least} SMs): request a share of {least / whole.sm_count:.3f} or more, or a number "
            "of SMs"
        )
    return units * grain


def _refusal(error: SplitError, layout: Layout, names: Sequence[str], whole: SMResource) -> str:
    advice = [error.advice] if error.advice else []
    if error.suggestion is not None:
        counts = error.suggestion.count
        fitting = counts if isinstance(counts, tuple) else (counts,)
        # A partition without a name has its number instead.
        requests = (str(sms) if name.isdigit() else f"{name}={sms}" for name, sms in zip(names, fitting, strict=False))
        advice.insert(0, f"a layout that fits is {', '.join(requests)}")
    size = f"{whole.sm_count} SMs (alignment {whole.coscheduled_alignment})"
    return f"{layout} does not fit into {size}: {'; '.join(advice)}"


def split_layout(layout: Layout, whole: SMResource, *, dry_run: bool = False) -> list[SMResource]:
    """The groups in the order of the layout, then the remaining SMs, if there are any."""
    counted: list[str] = []
    options: list[tuple[Any, ...]] = []
    open_at = None
    for position, (name, spec) in enumerate(zip(layout.names, layout.specs, strict=True)):
        if spec.workqueue is not None:
            whole.device.resources.workqueue  # noqa: B018  refuses where the driver has none, before anything is made
        # The partition that takes the whole remainder is not part of the split: it is what the split leaves.
        if spec.sms is None and not spec.aligned:
            open_at = position
            continue
        counted.append(name)
        if isinstance(spec.sms, SMResourceOptions):
            options.append(tuple(getattr(spec.sms, field) for field in OPTION_FIELDS))
        else:
            options.append((count_of(name, spec, whole), None, None, False, None, False))
    groups: list[SMResource] = []
    remainder = whole
    if counted:
        try:
            groups, remainder = whole.split(SMResourceOptions(*zip(*options, strict=True)), dry_run=dry_run)
        except SplitError as error:
            if open_at is not None and error.suggestion == SMResourceOptions([None]):
                error.suggestion, error.advice = None, f"request fewer, so that some remain for {layout.names[open_at]}"
            error.args = (_refusal(error, layout, counted, whole),)
            raise
    if open_at is None:
        return [*groups, remainder] if remainder.sm_count else groups
    if not remainder.sm_count:
        raise SplitError(
            f"{layout} does not fit: the other partitions take all {whole.sm_count} SMs, and none remain for "
            f"{layout.names[open_at]}: request fewer for the others"
        )
    return [*groups[:open_at], remainder, *groups[open_at:]]


@dataclass(frozen=True)
class PlannedPartition:
    """One partition of a layout that is not open. Its attributes are those of Partition."""

    name: str
    requested: Any
    sm_count: int
    coscheduled_alignment: int
    strategy: str | None


def plan(device: Device, layout: Layout) -> tuple[PlannedPartition, ...]:
    """The partitions that opening a layout would create, with the background partition last. Creates no context.

    device: the device to split. The other arguments are those of Device.partition().

    Raises the errors of opening it, such as SplitError for a layout that does not fit.
    """
    groups = split_layout(layout, device.resources.sm, dry_run=True)
    requests = [*(spec.request for spec in layout.specs), None]
    return tuple(
        PlannedPartition(name, requested, group.sm_count, group.coscheduled_alignment, group.strategy)
        for name, requested, group in zip([*layout.names, BACKGROUND], requests, groups, strict=False)
    )


@dataclass(frozen=True)
class PartitionSize:
    """A size that a partition can have.

    aligned: whether an SM count requests it, and it consists of units of the driver, in which large thread-block
    clusters fit. If not, request it with ``SMResourceOptions(count, backfill=True)``.
    cluster_sms: the size of its sets of SMs that are each guaranteed to be in one GPC.
    """

    sm_count: int
    aligned: bool
    cluster_sms: int
    strategy: str | None


def partition_sizes(device: Device) -> list[PartitionSize]:
    """Every size that one partition of the device can have, according to the driver."""
    whole = device.resources.sm
    sizes = []
    for count in range(2, whole.sm_count + 1, 2):
        for backfill in (False, True):
            if not backfill and count % whole.coscheduled_alignment:
                continue
            try:
                [group], _ = whole.split(SMResourceOptions([count], backfill=backfill), dry_run=True)
            except SplitError:
                continue
            if group.sm_count == count:
                sizes.append(PartitionSize(count, not backfill, group.coscheduled_alignment, group.strategy))
                break
    return sizes
