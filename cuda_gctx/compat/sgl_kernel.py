"""The functions of sgl_kernel.spatial (package sglang-kernel), for SGLang's prefill and decode, without their leaks.

Arguments and results are the same. All pairs of a device belong to one pool. They overlap each other on purpose, so
there is no warning, and equal splits share their contexts. The contexts stay open until the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cuda_gctx._core.extension import (
    Device,
    SMResourceOptions,
    SplitError,
    as_int,
    before_driver_closes,
    driver_and_device,
)
from cuda_gctx.compat._common import torch_device
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.partitions.layout import Layout
from cuda_gctx.partitions.partitions import Partitions
from cuda_gctx.partitions.pool import PartitionPool

__all__ = ["create_greenctx_stream_by_value", "get_sm_available"]

_pools: dict[tuple[int, int], PartitionPool] = {}
_making = threading.Lock()


def _forget_driver(driver: int) -> None:
    for key in [key for key in _pools if key[0] == driver]:
        _pools.pop(key).close()


before_driver_closes(_forget_driver)


def _pool(device: Device) -> PartitionPool:
    key = driver_and_device(device.resources.sm)
    with _making:
        if key not in _pools:
            _pools[key] = PartitionPool(device)
        return _pools[key]


def get_sm_available(device_id: int | None = None) -> int:
    """The number of SMs of a device.

    device_id: the index of the device; None: torch's current one.
    """
    return torch_device(device_id).sm_count


def create_greenctx_stream_by_value(SM_a: int, SM_b: int, device_id: int | None = None) -> tuple[Any, Any]:
    """Create two torch streams on disjoint SMs: one with at least `SM_a` SMs, one with at least `SM_b`.

    device_id: the index of the device; None: torch's current one.

    Counts are rounded up to sizes that the device supports. If the sum then exceeds the device, the second stream gets
    the SMs that the first one leaves. If these are too few, both streams get their counts in pairs of 2 SMs, which are
    not co-scheduled. A repeated call with the same pair returns the same streams. RuntimeError if a count is not
    positive, or if the counts do not fit.
    """
    counts = as_int("SM_a", SM_a), as_int("SM_b", SM_b)
    if min(counts) <= 0:
        raise RuntimeError(f"SM counts must be positive, not {counts[0]} and {counts[1]}")
    parts = _pair(_pool(torch_device(device_id)), *counts)
    return torch_stream(parts["a"]), torch_stream(parts["b"])


def _pair(pool: PartitionPool, first: int, second: int) -> Partitions:
    for layout in _layouts(pool.device, first, second):
        with suppress(SplitError):
            parts = pool.prepare(layout)
            if parts["b"].sm_count >= second:
                return parts
            pool.drop(layout)
    whole = f"the {pool.device.sm_count} SMs of the device"
    if first + second > pool.device.sm_count:
        raise RuntimeError(f"Not enough SMs: {first} and {second} are more than {whole}")
    raise RuntimeError(f"Not enough SMs: {first} and {second} do not fit into {whole} in pairs of 2 SMs")


def _layouts(device: Device, first: int, second: int) -> Iterator[Layout]:
    """The layouts to try: first the counts of sgl_kernel if they suffice, then the requested counts in pairs of SMs."""
    whole = device.resources.sm

    def rounded(count: int) -> int:
        return min(_multiple(max(count, whole.min_partition_size), whole.coscheduled_alignment), whole.sm_count)

    # sgl_kernel splits off the sum, and then the first group off that.
    if rounded(first) + second <= rounded(first + second):
        yield Layout(a=first, b=second)
        yield Layout(a=first, b=None)
    yield Layout(a=_pairs(first), b=_pairs(second))


def _multiple(count: int, grain: int) -> int:
    return -(-count // grain) * grain


def _pairs(count: int) -> SMResourceOptions:
    return SMResourceOptions([_multiple(count, 2)], backfill=True)
