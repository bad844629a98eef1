"""The folder of the headers for C and C++."""

from __future__ import annotations

from pathlib import Path

from cuda_gctx._core import extension


def get_include() -> str:
    """The folder of cuda_gctx.h, cuda_gctx.hpp and cuda_gctxConfig.cmake; the folder above it has libcuda_gctx.so."""
    return str(Path(extension.__file__).parents[1] / "include")
