"""What a layout becomes: its groups of SMs, what a dry run says of them, and the sizes that one partition can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import SplitError
from cuda_gctx._core.resources import SMResource, SMResourceOptions
from cuda_gctx.partitions.layout import Layout, PartitionSpec

FENCE = "rest"


def _only(entry: Any) -> Any:
    """The entry of an option of one group, which may stand in a sequence."""
    return entry[0] if isinstance(entry, tuple) else entry


def _count(name: str, spec: PartitionSpec, whole: SMResource) -> int | None:
    if not isinstance(spec.sms, float):
        return spec.sms if isinstance(spec.sms, int) else None
    grain = whole.coscheduled_alignment
    # The addition takes back what 0.1 + 0.2 and the like lose.
    units = floor(spec.sms * whole.sm_count / grain + 1e-9)
    if units * grain < whole.min_partition_size:
        least = max(grain, whole.min_partition_size)
        raise ValueError(
            f"partition {name}: {spec.sms} of {whole.sm_count} SMs are {spec.sms * whole.sm_count:.1f}, less than the "
            f"smallest partition of {least}: ask for {least / whole.sm_count:.3f} or more, or for a number of SMs"
        )
    return units * grain


def _split_options(layout: Layout, whole: SMResource) -> SMResourceOptions:
    columns = []
    for name, spec in zip(layout.names, layout.specs, strict=True):
        if isinstance(spec.sms, SMResourceOptions):
            asked = spec.sms
            fields = (
                asked.coscheduled_sm_count,
                asked.preferred_coscheduled_sm_count,
                asked.backfill,
                asked.locality_domain,
            )
            columns.append((_only(asked.count), *map(_only, fields)))
        else:
            columns.append((_count(name, spec, whole), None, None, False, None))
    return SMResourceOptions(*zip(*columns, strict=True))


def split_layout(layout: Layout, whole: SMResource, *, dry_run: bool = False) -> list[SMResource]:
    """The groups in the order asked, and the fence if anything is left for it."""
    try:
        groups, remainder = whole.split(_split_options(layout, whole), dry_run=dry_run)
    except SplitError as error:
        message = f"{layout} does not fit: {error}"
        if isinstance(error.suggestion, SMResourceOptions):
            counts = error.suggestion.count
            fitting = counts if isinstance(counts, tuple) else (counts,)
            told = ", ".join(f"{name}={sms}" for name, sms in zip(layout.names, fitting, strict=False))
            message += f"; as partitions: {told}"
        error.args = (message,)
        raise
    return [*groups, remainder] if remainder.sm_count else groups


def names_of_groups(layout: Layout, groups: Sequence[SMResource]) -> list[str]:
    """The names of the groups that a layout became, that of the fence included."""
    return [*layout.names, FENCE][: len(groups)]


def refuse_missing_workqueues(device: Device, layout: Layout) -> None:
    if any(spec.workqueue is not None for spec in layout.specs):
        device.resources.workqueue  # noqa: B018  refuses where the driver has none, before anything is made


@dataclass(frozen=True)
class PlannedPartition:
    """What one partition of a layout would be; the words are those of Partition."""

    name: str
    requested: Any
    sm_count: int
    coscheduled_alignment: int
    strategy: str | None


def plan(device: Device, layout: Layout) -> tuple[PlannedPartition, ...]:
    """What opening a layout would give, in the order asked and the fence last, found without making a context.

    Raises what opening it would raise: SplitError for a layout that does not fit.
    """
    refuse_missing_workqueues(device, layout)
    groups = split_layout(layout, device.resources.sm, dry_run=True)
    requests = [spec.sms for spec in layout.specs] + [None]
    return tuple(
        PlannedPartition(name, requested, group.sm_count, group.coscheduled_alignment, group.strategy)
        for name, requested, group in zip(names_of_groups(layout, groups), requests, groups, strict=False)
    )


@dataclass(frozen=True)
class PartitionSize:
    """A size that a partition can have.

    aligned: its SMs sit together in units of the device's alignment, so that large thread-block clusters fit; if not,
    it is reached with ``SMResourceOptions(count, backfill=True)``.
    cluster_sms: how many of its SMs are known to sit together, by the driver.
    """

    sm_count: int
    aligned: bool
    cluster_sms: int
    strategy: str | None


def partition_sizes(device: Device) -> list[PartitionSize]:
    """Every size that one partition of the device can have, the driver being asked about each."""
    whole = device.resources.sm
    sizes = []
    for wanted in range(2, whole.sm_count + 1, 2):
        for backfill in (False, True):
            if not backfill and wanted % whole.coscheduled_alignment:
                continue
            try:
                [group], _ = whole.split(SMResourceOptions([wanted], backfill=backfill), dry_run=True)
            except SplitError:
                continue
            if group.sm_count == wanted:
                sizes.append(PartitionSize(wanted, not backfill, group.coscheduled_alignment, group.strategy))
                break
    return sizes
