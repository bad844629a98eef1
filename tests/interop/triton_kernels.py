"""Kernels of Triton, which reads their sources from this file. Importing it needs Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def count_programs(x: Any) -> None:
    """Adds 1 to a counter for each program of the grid."""
    tl.atomic_add(x, 1)
