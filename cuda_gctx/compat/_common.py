"""What the drop-ins share: the device that torch means, and contexts that are made once and lent again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from cuda_gctx._core.device import Device
from cuda_gctx._core.errors import ResourceOverlapWarning
from cuda_gctx._core.lease import claim
from cuda_gctx.interop.torch import load_torch
from cuda_gctx.partitions.store import KeptContexts, Lease, store

__all__ = ["lease", "torch_device"]


def torch_device(index: int | None) -> Device:
    """The device with torch's number, None for torch's current one. RuntimeError if there is none, as in torch."""
    try:
        return Device(load_torch().cuda.current_device() if index is None else index)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def lease(
    key: tuple[object, ...],
    make: Callable[[], KeptContexts],
    names: Sequence[str],
    *,
    exclusive: bool = False,
    advice: str = "",
    stacklevel: int,
) -> Lease:
    """The use of the contexts of `key`: kept ones if there are any, else what `make` gives.

    advice: what a warning of overlap ends with; stacklevel: as warnings.warn() would take it in the caller.
    """
    kept = store._take(key)
    place = None
    try:
        if kept is None:
            kept = make()
        place = claim(kept.groups, names, exclusive, 0)
        if place.overlap_report:
            warnings.warn(place.overlap_report + advice, ResourceOverlapWarning, stacklevel + 1)
        return Lease(kept, place)
    except BaseException:
        if place is not None:
            place.release()
        if kept is not None:
            store._put(kept)
        raise
