"""Calls of the driver's memory and launch functions through cuda.bindings, with errors as this package raises them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx import CUDAError

__all__ = ["call", "driver"]


@cache
def driver() -> Any:
    """cuda.bindings.driver, which is loaded at first use."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ImportError(
            f"the kernels of cuda_gctx.comm need cuda-bindings of the driver's major version: {error}",
            name="cuda.bindings",
        ) from error


def call(name: str, *arguments: Any) -> Any:
    """The outputs of a driver function after its result code: nothing, one value or a tuple."""
    result, *values = getattr(driver(), name)(*arguments)
    if int(result) != 0:
        _, text = driver().cuGetErrorName(result)
        error = text.decode() if text else f"error {int(result)}"
        raise CUDAError(f"{name} failed: {error}", code=int(result), name=error, call=name)
    return values[0] if len(values) == 1 else tuple(values) or None
