"""The two functions of flashinfer.green_ctx that split a device, without their leaks.

The same arguments, results and exceptions, with one more warning: ResourceOverlapWarning if live contexts use the SMs.
The contexts live as long as a stream of their split, and are then stored for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cuda_gctx._core.arguments import as_int
from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import CUDAError, SplitError
from cuda_gctx._core.loan import context_stream, loaned
from cuda_gctx._core.resources import SMResource, SMResourceOptions
from cuda_gctx.compat._common import torch_device
from cuda_gctx.interop.torch import load_torch, torch_stream
from cuda_gctx.partitions.lending import open_groups

__all__ = [
    "SMCounts",
    "SplitResource",
    "create_green_ctx_streams",
    "get_compute_capability",
    "get_cudevice",
    "get_device_resource",
    "get_sm_count_constraint",
    "split_device_green_ctx",
    "split_device_green_ctx_by_sm_count",
    "split_resource",
    "split_resource_by_sm_count",
]

# What the driver answers to a split that does not fit, in the words of FlashInfer, by which its own tests skip.
_NO_FIT = "CUDA error code=915(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)"
_NOTHING_LEFT = "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE)"


@dataclass(frozen=True)
class SMCounts:
    """The fields of the driver's structure for SMs, under the driver's names."""

    smCount: int
    minSmPartitionSize: int
    smCoscheduledAlignment: int
    flags: int


@dataclass(frozen=True)
class SplitResource:
    """The SMs of one group: ``sm`` has the fields of the driver's structure, ``resource`` is the SMResource."""

    sm: SMCounts
    resource: SMResource


def _split_resource(sms: SMResource) -> SplitResource:
    return SplitResource(SMCounts(sms.sm_count, sms.min_partition_size, sms.coscheduled_alignment, sms.flags), sms)


def _device(dev: Any) -> Device:
    asked = load_torch().device(dev)
    if asked.type != "cuda":
        raise ValueError(f"SMs are split on a cuda device, not on {asked}")
    return torch_device(asked.index)


def get_compute_capability(device: Any) -> tuple[int, int]:
    """The compute capability of a torch.device."""
    return _device(device).compute_capability


def get_cudevice(dev: Any) -> int:
    """The driver's device: a CUdevice, as an int.

    dev: a torch.device.
    """
    return _device(dev).device_id


def get_device_resource(cu_dev: int) -> SplitResource:
    """All SMs of a device.

    cu_dev: the result of get_cudevice().
    """
    return _split_resource(Device(cu_dev).resources.sm)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}() passes structures of the driver on, which would lose the owner of the contexts: use "
        "split_device_green_ctx() or split_device_green_ctx_by_sm_count(), or Device.partition() for new code"
    )


def split_resource(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError, which names the functions to use."""
    _refuse("split_resource")


def split_resource_by_sm_count(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError, which names the functions to use."""
    _refuse("split_resource_by_sm_count")


def create_green_ctx_streams(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError, which names the functions to use."""
    _refuse("create_green_ctx_streams")


def get_sm_count_constraint(major: int, minor: int) -> tuple[int, int]:
    """The smallest number of SMs of a group and its alignment, from a device with this compute capability.

    major, minor: the compute capability; ValueError if no device of the machine has it.
    """
    major, minor = as_int("major", major), as_int("minor", minor)
    for device in map(Device, range(Device.count())):
        if device.compute_capability == (major, minor):
            whole = device.resources.sm
            return whole.min_partition_size, whole.coscheduled_alignment
    raise ValueError(f"this machine has no device of compute capability {major}.{minor}")


def _groups(whole: SMResource, counts: Sequence[int], *, chained: bool) -> list[SMResource]:
    """The groups and the remainder."""
    grain = whole.coscheduled_alignment
    # Rounded for the device, because the remainder has a finer grain; counts that are too large stay as they are.
    least, most = whole.min_partition_size, whole.sm_count + 1
    rounded = SMResourceOptions([-(-min(max(count, least), most) // grain) * grain for count in counts])
    try:
        if not chained:
            planned, _ = whole.split(rounded, dry_run=True)
            # Large units of the driver will do, which promise no co-scheduling; pairs will not.
            aligned = sum(group.min_partition_size >= grain for group in planned)
            if aligned < len(planned):
                raise RuntimeError(f"Insufficient SMs: {aligned} of {len(planned)} groups can be aligned ({_NO_FIT})")
        groups, remainder = whole.split(rounded)
    except SplitError as refusal:
        raise RuntimeError(f"Insufficient SMs: {refusal.args[0]} ({_NO_FIT})") from refusal
    split = [*groups, remainder]
    if split[-1].sm_count == 0:
        raise RuntimeError(
            f"Insufficient SMs: groups of {[group.sm_count for group in split[:-1]]} leave none of {whole.sm_count} "
            f"for the remainder, which is a group as well: request fewer ({_NOTHING_LEFT})"
        )
    return split


@contextmanager
def _in_their_words() -> Iterator[None]:
    """Errors of the driver with its code and name as FlashInfer writes them."""
    try:
        yield
    except CUDAError as error:
        if error.code:
            error.args = (f"CUDA error code={error.code}({error.name}): {error}",)
        raise


def _split(device: Device, counts: Sequence[int], *, chained: bool) -> tuple[list[Any], list[SplitResource]]:
    """chained: groups may be split off the remainder of others, as in FlashInfer; equal groups are aligned."""
    with _in_their_words():
        whole = device.resources.sm
        names = [*(f"group {position}" for position in range(len(counts))), "the remainder"]
        request = (__name__, chained, *counts)
        split = partial(_groups, whole, counts, chained=chained)
        loan = open_groups(device, names, counts, split, request, stacklevel=3)
        # Each stream keeps the contexts of the whole split: nothing else refers to them from here on.
        contexts = [loaned(stored.context, loan, name) for name, stored in zip(names, loan.contexts, strict=True)]
        return (
            [torch_stream(context_stream(context)) for context in contexts],
            [_split_resource(context.resources.sm) for context in contexts],
        )


def split_device_green_ctx(dev: Any, num_groups: int, min_count: int) -> tuple[list[Any], list[SplitResource]]:
    """Split a torch.device into `num_groups` groups of at least `min_count` SMs each, and one of the remaining SMs.

    dev: a torch.device.

    Returns a torch stream and a resource for each group, the remainder last. RuntimeError if the device has fewer SMs,
    ValueError for numbers that are never possible.
    """
    groups, least = as_int("num_groups", num_groups, 1), as_int("min_count", min_count, 0)
    device = _device(dev)
    # One group more than there are SMs is too many already.
    return _split(device, [least] * min(groups, device.sm_count + 1), chained=False)


def split_device_green_ctx_by_sm_count(dev: Any, sm_counts: Sequence[int]) -> tuple[list[Any], list[SplitResource]]:
    """Split a torch.device into groups of these numbers of SMs, each rounded up to what the device can give.

    dev: a torch.device. sm_counts: the number of SMs of each group.

    Returns a torch stream and a resource for each group, the remaining SMs last. RuntimeError if the device has fewer
    SMs, ValueError without counts or for one that is not positive.
    """
    counts = [as_int(f"sm_counts[{place}]", count) for place, count in enumerate(sm_counts)]
    if not counts:
        raise ValueError("sm_counts is empty: give at least one number of SMs")
    for count in counts:
        if count <= 0:
            raise ValueError(f"SM count must be positive, got {count}")
    return _split(_device(dev), counts, chained=True)
