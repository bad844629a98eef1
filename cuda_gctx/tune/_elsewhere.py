"""Kernels that work runs outside of its place, as a trace of this process shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from cuda_gctx.tracing.block import OUTSIDE, trace
from cuda_gctx.tune._explain import ExplainReport, Runs

__all__ = ["elsewhere"]


def elsewhere(report: ExplainReport, runs: Runs) -> Iterator[str]:
    """A sentence for each kernel that ran in another context than that of its work.

    There is none where this process cannot be traced: without CUPTI, and under a profiler.
    """
    for which, work in enumerate((report.first, report.second)):
        if runs.stand_ins[which]:
            continue
        with ExitStack() as stack:
            try:
                found = stack.enter_context(trace())
            except RuntimeError:
                return
            runs.call(which)
            runs.streams[which].device.sync()
        for kernel, lane in found.kernels_outside_of(runs.streams[which].context):
            place = lane if lane == OUTSIDE else f"in {lane}"
            yield (
                f"{work.name} also runs {kernel} {place}, and its place is {work.context}: launch it on the stream "
                "with which the work is called"
            )
