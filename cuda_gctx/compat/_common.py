"""The device of torch, for all drop-ins."""

from __future__ import annotations

from cuda_gctx._core.extension import Device
from cuda_gctx.interop.torch import load_torch

__all__ = ["torch_device"]


def torch_device(index: int | None) -> Device:
    """The device with an index of torch; None: torch's current device. RuntimeError, as in torch, if there is none."""
    try:
        return Device(load_torch().cuda.current_device() if index is None else index)
    except ValueError as error:
        raise RuntimeError(str(error)) from None
