"""The functions of flashinfer.green_ctx that split the SMs of a device, without their leaks.

Arguments, results and exceptions are FlashInfer's. There is one additional warning: ResourceOverlapWarning, the first
time that live contexts already use the SMs. A context lives as long as a stream of its split. Then it is stored for the
next split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cuda_gctx._core.extension import (
    Context,
    CUDAError,
    Device,
    SMResource,
    SMResourceOptions,
    SplitError,
    as_bool,
    as_int,
    context_stream,
)
from cuda_gctx.compat._common import torch_device
from cuda_gctx.interop.library_sms import plan_flashinfer_by_stream
from cuda_gctx.interop.torch import load_torch, torch_stream
from cuda_gctx.partitions.lending import open_each, open_groups
from cuda_gctx.partitions.opening import known_split

__all__ = [
    "SMCounts",
    "SplitResource",
    "checkCudaErrors",
    "create_green_ctx_streams",
    "empty_per_locality_domain",
    "get_compute_capability",
    "get_cudevice",
    "get_device_resource",
    "get_locality_domain_count",
    "get_sm_count_constraint",
    "split_device_green_ctx",
    "split_device_green_ctx_by_locality_domain",
    "split_device_green_ctx_by_sm_count",
    "split_resource",
    "split_resource_by_sm_count",
]

# What the driver answers to a split that does not fit, in the words of FlashInfer, by which its own tests skip.
_NO_FIT = "CUDA error code=915(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)"
_NOTHING_LEFT = "CUDA error code=914(CUDA_ERROR_INVALID_RESOURCE_TYPE)"

# FlashInfer's smallest group and its alignment, by the major compute capability; 9 also stands for newer ones.
_CONSTRAINTS = {6: (1, 1), 7: (2, 2), 8: (4, 2), 9: (8, 8)}


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


def _sms(resource: Any) -> SMResource:
    sms = resource.resource if isinstance(resource, SplitResource) else resource
    if not isinstance(sms, SMResource):
        raise TypeError(
            f"resource must be a SplitResource or an SMResource, not {type(resource).__name__}: pass the result of "
            "get_device_resource() or of a split of this module (a structure of the driver does not say which SMs it "
            "contains)"
        )
    return sms


def _cu_device(cu_dev: Any) -> Device:
    # A CUdevice of cuda.bindings has no __index__.
    return torch_device(int(cu_dev) if hasattr(cu_dev, "getPtr") else as_int("cu_dev", cu_dev))


def _device(dev: Any) -> Device:
    asked = load_torch().device(dev)
    if asked.type != "cuda":
        raise ValueError(f"dev must be a CUDA device, not {asked}")
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

    cu_dev: the result of get_cudevice(), or a CUdevice of cuda.bindings.
    """
    return _split_resource(_cu_device(cu_dev).resources.sm)


def get_sm_count_constraint(major: int, minor: int) -> tuple[int, int]:
    """The smallest number of SMs of a group and its alignment, for a device with this compute capability.

    major, minor: the compute capability. If the machine has no such device, the answer is FlashInfer's; ValueError
    below 6.0.
    """
    major, minor = as_int("major", major), as_int("minor", minor)
    for device in map(Device, range(Device.count())):
        if device.compute_capability == (major, minor):
            whole = device.resources.sm
            return whole.min_partition_size, whole.coscheduled_alignment
    constraint = _CONSTRAINTS.get(min(major, 9))
    if constraint is None:
        raise ValueError(f"Unsupported CUDA capability: {major}.{minor}")
    return constraint


def _groups(sms: SMResource, counts: Sequence[int], *, chained: bool) -> list[SMResource]:
    """The groups and the remainder, which may be empty."""
    whole = sms.device.resources.sm
    grain = whole.coscheduled_alignment
    # Rounded for the device, because the remainder has a finer grain; counts that are too large stay as they are.
    least, most = whole.min_partition_size, whole.sm_count + 1
    rounded = SMResourceOptions([-(-min(max(count, least), most) // grain) * grain for count in counts])
    if not chained:
        planned, _ = sms.split(rounded, dry_run=True)
        # Large units of the driver will do, which promise no co-scheduling; pairs will not.
        aligned = sum(group.min_partition_size >= grain for group in planned)
        if aligned < len(planned):
            raise RuntimeError(f"Insufficient SMs: {aligned} of {len(planned)} groups can be aligned ({_NO_FIT})")
    groups, remainder = sms.split(rounded)
    return [*groups, remainder]


def _groups_and_remainder(whole: SMResource, counts: Sequence[int], *, chained: bool) -> list[SMResource]:
    split = _groups(whole, counts, chained=chained)
    if split[-1].sm_count == 0:
        raise RuntimeError(
            f"Insufficient SMs: groups of {[group.sm_count for group in split[:-1]]} leave none of "
            f"{whole.sm_count} for the remainder, which is also a group: request fewer ({_NOTHING_LEFT})"
        )
    return split


@contextmanager
def _in_their_words() -> Iterator[None]:
    """Errors of the driver with its code and name as FlashInfer writes them, and splits that do not fit as these."""
    try:
        yield
    except SplitError as refusal:
        raise RuntimeError(f"Insufficient SMs: {refusal.args[0]} ({_NO_FIT})") from refusal
    except CUDAError as error:
        if error.code:
            error.args = (f"CUDA error code={error.code}({error.name}): {error}",)
        raise


def checkCudaErrors(result: tuple[Any, ...]) -> Any:
    """The result of a call of cuda.bindings behind its error code: None, a value, or a tuple of several.

    result: what the call returned. RuntimeError with the code and its name if the call failed.
    """
    code, *values = result
    if code.value:
        raise RuntimeError(f"CUDA error code={code.value}({code.name})")
    return tuple(values) if len(values) > 1 else values[0] if values else None


def _split_off(sms: SMResource, counts: Sequence[int], *, chained: bool) -> tuple[list[SplitResource], SplitResource]:
    with _in_their_words():
        # Once for each request, because the split of a group may make a context.
        *groups, remainder = known_split(
            sms.device, (__name__, sms, chained, *counts), partial(_groups, sms, counts, chained=chained)
        )
    return [_split_resource(group) for group in groups], _split_resource(remainder)


def split_resource(resource: Any, num_groups: int, min_count: int) -> tuple[list[SplitResource], SplitResource]:
    """Split `num_groups` groups of at least `min_count` SMs each off a resource. Returns ``(groups, remainder)``.

    resource: the result of get_device_resource() or of a split, or an SMResource. RuntimeError if it has fewer SMs.
    """
    sms = _sms(resource)
    groups, least = as_int("num_groups", num_groups, 1), as_int("min_count", min_count, 0)
    # The driver is asked once for equal groups of a device. A group or a remainder has a finer grain.
    chained = sms != sms.device.resources.sm
    return _split_off(sms, [least] * min(groups, sms.sm_count + 1), chained=chained)


def split_resource_by_sm_count(
    cu_dev: int, resource: Any, sm_counts: Sequence[int]
) -> tuple[list[SplitResource], SplitResource]:
    """Split groups of the given SM counts off a resource, each rounded up. Returns ``(groups, remainder)``.

    cu_dev: the result of get_cudevice(). resource: as in split_resource(), of this device. sm_counts: the number of SMs
    of each group. RuntimeError if the resource has fewer SMs.
    """
    [sms] = _of_device(_cu_device(cu_dev), [resource])
    counts = [as_int(f"sm_counts[{place}]", count, 1) for place, count in enumerate(sm_counts)]
    return _split_off(sms, counts, chained=True) if counts else ([], _split_resource(sms))


def _of_device(device: Device, resources: Sequence[Any]) -> list[SMResource]:
    found = [_sms(resource) for resource in resources]
    for sms in found:
        if sms.device != device:
            raise ValueError(
                f"cu_dev is device {device.device_id}, but a resource belongs to device {sms.device.device_id}"
            )
    return found


def create_green_ctx_streams(cu_dev: int, resources: Sequence[Any]) -> list[Any]:
    """Create a torch stream for each resource, in a context over its SMs. A context lives as long as its streams.

    cu_dev: the result of get_cudevice(). resources: results of splits, of this device. RuntimeError for a resource with
    no SMs.
    """
    device = _cu_device(cu_dev)
    groups = _of_device(device, resources)
    if not groups:
        return []
    if not all(sms.sm_count for sms in groups):
        raise RuntimeError(f"a stream cannot be created on a resource without SMs: omit it ({_NOTHING_LEFT})")
    names = [f"group {position}" for position in range(len(groups))]
    with _in_their_words():
        return _lend(open_each(device, names, groups, stacklevel=2))[0]


def _lend(contexts: Sequence[Context]) -> tuple[list[Any], list[SplitResource]]:
    # Each stream keeps the lease of all contexts: nothing else refers to them from here on.
    plan_flashinfer_by_stream()
    return (
        [torch_stream(context_stream(context)) for context in contexts],
        [_split_resource(context.resources.sm) for context in contexts],
    )


def _split(device: Device, counts: Sequence[int], *, chained: bool) -> tuple[list[Any], list[SplitResource]]:
    """chained: split groups off the remainder of others, as FlashInfer does; equal groups are aligned."""
    with _in_their_words():
        whole = device.resources.sm
        names = [*(f"group {position}" for position in range(len(counts))), "the remainder"]
        request = (__name__, chained, *counts)
        split = partial(_groups_and_remainder, whole, counts, chained=chained)
        return _lend(open_groups(device, names, counts, split, request, stacklevel=3))


def split_device_green_ctx(dev: Any, num_groups: int, min_count: int) -> tuple[list[Any], list[SplitResource]]:
    """Split a torch.device into `num_groups` groups of at least `min_count` SMs each, and one of the remaining SMs.

    dev: a torch.device.

    Returns a torch stream and a resource for each group, the remainder last. RuntimeError if the device has fewer SMs;
    ValueError for numbers that no device allows.
    """
    groups, least = as_int("num_groups", num_groups, 1), as_int("min_count", min_count, 0)
    device = _device(dev)
    # One group more than there are SMs is too many already.
    return _split(device, [least] * min(groups, device.sm_count + 1), chained=False)


def split_device_green_ctx_by_sm_count(dev: Any, sm_counts: Sequence[int]) -> tuple[list[Any], list[SplitResource]]:
    """Split a torch.device into groups of the given SM counts, each rounded up to a size that the device supports.

    dev: a torch.device. sm_counts: the number of SMs of each group.

    Returns a torch stream and a resource for each group, the remaining SMs last. RuntimeError if the device has fewer
    SMs, ValueError without counts or for one that is not positive.
    """
    counts = [as_int(f"sm_counts[{place}]", count) for place, count in enumerate(sm_counts)]
    if not counts:
        raise ValueError("sm_counts is empty: pass at least one SM count")
    for count in counts:
        if count <= 0:
            raise ValueError(f"SM count must be positive, got {count}")
    return _split(_device(dev), counts, chained=True)


def get_locality_domain_count(dev: Any) -> int:
    """The number of locality domains of a device; 1 if the driver reports none (before 13.4).

    dev: a torch.device.
    """
    return _device(dev).locality_domains


def split_device_green_ctx_by_locality_domain(dev: Any, backfill: bool = True) -> tuple[list[Any], list[SplitResource]]:
    """A torch stream and a resource for each locality domain of a torch.device, in their order.

    dev: a torch.device. backfill: give each group an equal share of all SMs, including SMs outside of all domains,
    instead of only the SMs of its domain. RuntimeError if the device has fewer than two locality domains.
    """
    equal = as_bool("backfill", backfill)
    device = _device(dev)
    domains = device.locality_domains
    if domains < 2:
        raise RuntimeError(
            f"device {device.device_id} has {domains} locality domain: a split by locality domain needs a device with "
            "at least two, and driver 13.4 or newer"
        )
    whole = device.resources.sm
    count = whole.sm_count // domains // 2 * 2 if equal else None
    options = SMResourceOptions(
        [count] * domains, coscheduled_sm_count=2, backfill=equal, locality_domain=list(range(domains))
    )
    with _in_their_words():
        groups = known_split(device, (__name__, whole, options), lambda: whole.split(options)[0])
        names = [f"locality domain {domain}" for domain in range(domains)]
        return _lend(open_each(device, names, groups, stacklevel=2))


def empty_per_locality_domain(part_shape: Any, dtype: Any, dev: Any) -> NoReturn:
    """Raise NotImplementedError: this package partitions SMs and does not allocate memory.

    part_shape, dtype, dev: as in FlashInfer; ignored.
    """
    raise NotImplementedError(
        "empty_per_locality_domain() allocates memory in locality domains, and this package partitions SMs only: "
        "allocate with FlashInfer's own function, and use the streams of split_device_green_ctx_by_locality_domain()"
    )
