"""The latency of a short kernel whose requests arrive at random times, next to GEMMs.

    python benchmarks/arrivals.py [--seconds S] [--out DIR]

A closed loop asks again when it has the answer, so that it meets a slow state once for each slow answer. Here the
arrivals are those of a Poisson process, which does not depend on answers, and a latency counts from the arrival,
whether or not the host was able to launch the kernel then. On a GPU the kernels are
those of benchmarks/partitions.py, which are torch's; on the software driver they only take time, as a rehearsal. Takes
half a minute.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import reporting

from cuda_gctx import Device, ResourceOverlapWarning, Stream, StreamOptions
from cuda_gctx.measure.loop import Load, RandomCalls
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.statistics import quantile
from cuda_gctx.tune import spin

PER_SECOND = (1000, 4000, 10_000)
SEED = 7
LOAD_DEPTH = 4
SHARES = (0.5, 0.9, 0.99, 0.999)

Kernel = Callable[[Stream], object]


def kernels_of_torch() -> tuple[Kernel, Kernel]:
    """The short kernel and the GEMM."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    product, y = torch.empty_like(a), torch.empty_like(x)
    torch.cuda.synchronize()

    def short(stream: Stream) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
            torch.sigmoid(x, out=y)

    def gemm(stream: Stream) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
            torch.matmul(a, b, out=product)

    return short, gemm


def kernels_of_the_rehearsal(device: Device) -> tuple[Kernel, Kernel]:
    blocks = 16 * device.sm_count
    return lambda stream: spin(stream, 8, 5000), lambda stream: spin(stream, blocks, 200_000)


def row_of(
    short: Callable[[], object],
    gemm: Callable[[], object],
    streams: tuple[Stream, Stream | None, Stream],
    rate: float,
    most: int,
) -> dict[str, Any]:
    """Latencies at one rate of arrivals, and how many GEMMs completed in a second meanwhile."""
    short_stream, load_stream, idle = streams
    latencies: list[float] = []
    with ExitStack() as closing:
        load = closing.enter_context(Load(load_stream, gemm, LOAD_DEPTH)) if load_stream is not None else None
        calls = RandomCalls(short_stream, idle, rate, most, random.Random(SEED))
        closing.callback(calls.close)
        while calls.left:
            if load is not None:
                load.fill()
            latencies += calls.make(short)
        latencies += calls.rest()
    count, seconds = load.completed() if load is not None else (0, 0.0)
    us = {f"p{share * 100:g}": round(1e6 * quantile(latencies, share), 3) for share in SHARES}
    gemms = round(count / seconds, 1) if seconds else None
    return {"per_second": rate, "requests": len(latencies), "us": us, "gemms_per_second": gemms}


def measured(device: Device, kernels: tuple[Kernel, Kernel], seconds: float) -> list[dict[str, Any]]:
    """A row for each rate of arrivals and each placement."""
    short, gemm = kernels
    rows = []
    with ExitStack() as closing:
        parts = closing.enter_context(device.partition(short=16))
        plain, other, idle = (closing.enter_context(device.create_stream()) for _ in range(3))
        urgent = closing.enter_context(device.create_stream(StreamOptions(priority=device.priority_range[1])))
        placements: tuple[tuple[str, Stream, str, Stream | None], ...] = (
            ("plain stream", plain, "(none)", None),
            ("highest-priority stream", urgent, "plain stream", other),
            ("16-SM partition only", parts.short.stream, "plain stream", other),
            ("16-SM partition", parts.short.stream, "background partition", parts.background.stream),
        )
        for _, stream, _, load in placements:  # what is loaded at the first launch waits for the device
            for one, kernel in ((stream, short), (load, gemm)):
                if one is not None:
                    kernel(one)
                    one.sync()
        for rate in PER_SECOND:
            for short_on, stream, load_on, load in placements:

                def call(stream: Stream = stream) -> None:
                    short(stream)

                def fill(load: Stream | None = load) -> None:
                    assert load is not None
                    gemm(load)

                row = row_of(call, fill, (stream, load, idle), rate, round(rate * seconds))
                rows.append({"short_kernel_on": short_on, "load_on": load_on, **row})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row (default: 2)")
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON file (default: benchmarks/results; simulated: none)"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", ResourceOverlapWarning)
    device = Device(0)
    head = described(device, "Latencies of random arrivals, written by benchmarks/arrivals.py", reporting.REPOSITORY)
    kernels = kernels_of_the_rehearsal(device) if head["simulated"] else kernels_of_torch()
    result = {**head, "seed": SEED, "rows": measured(device, kernels, options.seconds)}
    for row in result["rows"]:
        us = ", ".join(f"{name} {value:.1f}" for name, value in row["us"].items())
        gemms = f"{row['gemms_per_second']}/s" if row["gemms_per_second"] else "none"
        print(f"{row['per_second']:6}/s {row['short_kernel_on']:24} load on {row['load_on']:21} {us} us, GEMMs {gemms}")
    if options.out is not None or not head["simulated"]:
        print(reporting.write(result, "arrivals", options.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
