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

    prompt = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
    token = torch.randn(8, 4096, device="cuda:0", dtype=torch.bfloat16)
    alone = prompt @ prompt, token @ prompt  # also loads the kernels, which would otherwise delay the first block

    with Device(0).partition(decode=16, prefill=None) as parts:
        timeline = Timeline(parts)
        for _ in range(2):  # the first round makes the handles and workspaces of cuBLAS on the new streams
            torch.cuda.synchronize()
            with fork() as start:
                with parts.prefill.torch(after=start) as stream, timeline.span(stream, "prefill"):
                    for _ in range(4):
                        long = prompt @ prompt
                for step in range(8):
                    with parts.decode.torch(after=start) as stream, timeline.span(stream, f"step {step}"):
                        for _ in range(4):
                            short = token @ prompt
            trace = timeline.read()
            timeline = Timeline(parts)

        # Outside again, after both.
        right = [torch.allclose(x, y, rtol=0.05, atol=2) for x, y in zip(alone, (long, short), strict=True)]
        print(f"the same as without partitions: {all(right)}")
        print(trace)
        prefill = next(span for span in trace.spans if span.name == "prefill")
        during = sum(span.start_ns < prefill.end_ns and prefill.start_ns < span.end_ns for span in trace.spans) - 1
        print(f"{during} of 8 steps ran next to the prefill")
        if svg is not None:
            trace.svg(svg)


if __name__ == "__main__":
    main()
