"""The two functions of sgl_kernel.spatial, with which SGLang multiplexes prefill and decode, without their leaks.

Arguments and results are the same. All pairs of a device belong to one pool. They overlap each other on purpose, so
there is no warning, and equal splits share their contexts. The contexts stay open until the process ends.
"""

from __future__ import annotations

import threading
from typing import Any

from cuda_gctx._core.extension import Device, SplitError, as_int, before_driver_closes
from cuda_gctx.compat._common import torch_device
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.partitions.layout import Layout
from cuda_gctx.partitions.order import driver_and_device
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
    key = driver_and_device(device.resources.sm, device)
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
    the SMs that the first one leaves. A repeated call with the same pair returns the same streams. RuntimeError if a
    count is not positive, or if the counts do not fit.
    """
    counts = as_int("SM_a", SM_a), as_int("SM_b", SM_b)
    if min(counts) <= 0:
        raise RuntimeError(f"SM counts must be positive, not {counts[0]} and {counts[1]}")
    parts = _pair(_pool(torch_device(device_id)), *counts)
    return torch_stream(parts["a"]), torch_stream(parts["b"])


def _pair(pool: PartitionPool, first: int, second: int) -> Partitions:
    try:
        return pool.prepare(Layout(a=first, b=second))
    except SplitError as refusal:
        layout, reason = Layout(a=first, b=None), refusal
    try:
        parts = pool.prepare(layout)
    except SplitError:
        raise RuntimeError(f"Not enough SMs: {reason}") from reason
    taken, left = parts["a"].sm_count, parts["b"].sm_count
    if left < second:
        pool.drop(layout)
        raise RuntimeError(
            f"Not enough SMs: of {pool.device.sm_count}, the first stream gets {taken} and leaves {left}, fewer "
            f"than the {second} requested for the second"
        )
    return parts
