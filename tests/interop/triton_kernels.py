"""Kernels of Triton, which reads their sources from this file. Importing it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


# Without annotations, which Triton evaluates: it knows its own types alone.
@triton.jit
def count_programs(x):  # type: ignore[no-untyped-def]
    """Adds 1 to a counter for each program of the grid."""
    tl.atomic_add(x, 1)
