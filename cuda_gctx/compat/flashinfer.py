"""The two functions of flashinfer.green_ctx that split a device, without their leaks.

The same arguments, results and exceptions, with one more warning: ResourceOverlapWarning where the SMs are in use by
contexts that are still alive. The contexts live as long as a stream of their split, and are then kept for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from cuda_gctx._device import Device
from cuda_gctx._errors import SplitError
from cuda_gctx._layout import Layout
from cuda_gctx._resources import SMResource
from cuda_gctx.interop.torch import load_torch, torch_stream
from cuda_gctx.partitions import partition

__all__ = [
    "SMCounts",
    "SplitResource",
    "get_compute_capability",
    "get_sm_count_constraint",
    "split_device_green_ctx",
    "split_device_green_ctx_by_sm_count",
]


@dataclass(frozen=True)
class SMCounts:
    """What the driver's structure tells of SMs, under the driver's names."""

    smCount: int
    minSmPartitionSize: int
    smCoscheduledAlignment: int
    flags: int


@dataclass(frozen=True)
class SplitResource:
    """The SMs of one group: ``sm`` as the driver's structure has it, ``resource`` as this package does."""

    sm: SMCounts
    resource: SMResource


def _split_resource(sms: SMResource) -> SplitResource:
    return SplitResource(SMCounts(sms.sm_count, sms.min_partition_size, sms.coscheduled_alignment, sms.flags), sms)


def _device(dev: Any) -> Device:
    torch = load_torch()
    asked = torch.device(dev)
    if asked.type != "cuda":
        raise ValueError(f"SMs are split on a cuda device, not on {asked}")
    return Device(torch.cuda.current_device() if asked.index is None else asked.index)


def get_compute_capability(device: Any) -> tuple[int, int]:
    """The compute capability of a torch.device."""
    return _device(device).compute_capability


def get_sm_count_constraint(major: int, minor: int) -> tuple[int, int]:
    """The smallest number of SMs and what numbers are multiples of, asked of a device with this compute capability."""
    for device in map(Device, range(Device.count())):
        if device.compute_capability == (major, minor):
            whole = device.resources.sm
            return whole.min_partition_size, whole.coscheduled_alignment
    raise ValueError(f"there is no device of compute capability {major}.{minor} here to ask")


def _split(dev: Any, counts: Sequence[int]) -> tuple[list[Any], list[SplitResource]]:
    device = _device(dev)
    try:
        parts = partition(device, Layout(*counts))
    except SplitError as error:
        raise RuntimeError(f"Insufficient SMs: {error}") from error
    if parts.rest is None:
        raise RuntimeError(
            f"Insufficient SMs: groups of {[part.sm_count for part in parts]} leave none of {device.sm_count} for the "
            "remainder, which is a group as well: ask for fewer"
        )
    # Each stream keeps the contexts of the whole split: nothing else refers to the partitions from here on.
    return [torch_stream(part.stream) for part in parts], [_split_resource(part.context.resources.sm) for part in parts]


def split_device_green_ctx(dev: Any, num_groups: int, min_count: int) -> tuple[list[Any], list[SplitResource]]:
    """Splits a torch.device into so many groups of at least `min_count` SMs each, and one of the SMs that are left.

    Returns a torch stream and a resource for each group, the remainder last. RuntimeError if the device has fewer SMs.
    """
    groups, least = index(num_groups), index(min_count)
    if groups < 1:
        raise ValueError(f"num_groups must be positive, not {groups}")
    if least < 0:
        raise ValueError(f"min_count must not be negative, not {least}")
    # 0 asks for the smallest groups, as it does in the driver.
    return _split(dev, [max(least, 1)] * groups)


def split_device_green_ctx_by_sm_count(dev: Any, sm_counts: Sequence[int]) -> tuple[list[Any], list[SplitResource]]:
    """Splits a torch.device into groups of these numbers of SMs, each rounded up to what the device can give.

    Returns a torch stream and a resource for each group, the SMs that are left last. RuntimeError if the device has
    fewer SMs, ValueError without counts or for one that is not positive.
    """
    counts = [index(count) for count in sm_counts]
    if not counts:
        raise ValueError("sm_counts is empty: give at least one number of SMs")
    for count in counts:
        if count <= 0:
            raise ValueError(f"SM count must be positive, got {count}")
    return _split(dev, counts)
