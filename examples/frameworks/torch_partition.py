"""torch in two partitions at the same time: one line for each, and a timeline that shows the overlap."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from cuda_gctx import Device, Timeline
from cuda_gctx.interop.torch import fork


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=Path, help="write the timeline there as a picture")
    svg: Path | None = parser.parse_args().svg

    many_rows = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
    few_rows = torch.randn(8, 4096, device="cuda:0", dtype=torch.bfloat16)
    alone = (
        many_rows @ many_rows,
        few_rows @ many_rows,
    )  # also loads the kernels, which would otherwise delay the first block

    with Device(0).partition(control=16, rest=None) as parts:
        timeline = Timeline(parts)
        for _ in range(2):  # the first round makes the handles and workspaces of cuBLAS on the new streams
            torch.cuda.synchronize()
            with fork() as start:
                with parts.rest.torch(after=start) as stream, timeline.span(stream, "bulk"):
                    for _ in range(4):
                        long = many_rows @ many_rows
                for step in range(8):
                    with parts.control.torch(after=start) as stream, timeline.span(stream, f"step {step}"):
                        for _ in range(4):
                            short = few_rows @ many_rows
            trace = timeline.read()
            timeline = Timeline(parts)

        # Outside again, after both.
        right = [torch.allclose(x, y, rtol=0.05, atol=2) for x, y in zip(alone, (long, short), strict=True)]
        print(f"the same as without partitions: {all(right)}")
        print(trace)
        bulk = next(span for span in trace.spans if span.name == "bulk")
        during = sum(span.start_ns < bulk.end_ns and bulk.start_ns < span.end_ns for span in trace.spans) - 1
        print(f"{during} of 8 steps ran next to the bulk work")
        if svg is not None:
            trace.svg(svg)


if __name__ == "__main__":
    main()
