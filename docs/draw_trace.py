"""Draws the picture of a trace for docs/trace.md and docs/control-loop.md, from the software driver.

python docs/draw_trace.py
"""

from __future__ import annotations

from pathlib import Path

import cuda_gctx
from cuda_gctx import Device, Partitions
from cuda_gctx.tune import spin
from cuda_software_driver import session

IMAGES = Path(__file__).resolve().parent / "images"
CONTROL_NS, BULK_NS = 50_000, 400_000


def control_loop(parts: Partitions) -> None:
    """Control steps next to bulk kernels on two streams, as in examples/control_loop."""
    with parts.rest.create_stream() as other:
        for stream in (parts.rest.stream, other, parts.rest.stream):
            spin(stream, blocks=2 * parts.rest.sm_count, spin_ns=BULK_NS)
        for _ in range(23):
            blocks = parts.control.sm_count
            spin(parts.control.stream, blocks, CONTROL_NS)
            parts.control.sync()
        parts.sync()


if __name__ == "__main__":
    with session("h200"), Device().partition(control=16, rest=None) as parts:
        parts.verify()  # loads the kernel
        with cuda_gctx.trace() as trace:
            control_loop(parts)
        print(trace)
        trace.svg(IMAGES / "trace.svg")
