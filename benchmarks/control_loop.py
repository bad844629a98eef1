"""The answers of the tuner for a control loop next to GEMMs, at several rates of calls.

    python benchmarks/control_loop.py [--rates 50 200 1000] [--budget 60] [--out FILE]

A call of 20 us has to find room next to GEMMs of about a millisecond, whose blocks fill the SMs. Each rate is tuned
with the default budget, and counts as answered if the tuner chooses a plan. On a GPU the kernels are torch's; on the
software driver they only take time, as a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import reporting

from cuda_gctx import Device, Stream, tune
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.results import write_result

RATES = (50.0, 200.0, 1000.0)

Work = dict[str, Callable[[Stream], object]]


def kernels_of_torch() -> Work:
    import torch

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    product, y = torch.empty_like(a), torch.empty_like(x)
    torch.cuda.synchronize()

    def vision(stream: Stream) -> None:
        for _ in range(4):
            torch.mm(a, b, out=product)

    return {"control": lambda stream: torch.softmax(x, -1, out=y), "vision": vision}


def kernels_of_the_rehearsal(device: Device) -> Work:
    blocks = 8 * device.sm_count
    return {
        "control": lambda stream: tune.spin(stream, 8, 20_000),
        "vision": lambda stream: tune.spin(stream, blocks, 1_000_000),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="calls per second")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each rate")
    parser.add_argument("--out", type=Path, help="write the reports as JSON to this file")
    arguments = parser.parse_args()
    device = Device(0)
    result: dict[str, Any] = described(device, "A control loop next to GEMMs, by the tuner", reporting.REPOSITORY)
    work = kernels_of_the_rehearsal(device) if result["simulated"] else kernels_of_torch()
    reports = []
    for rate in arguments.rates:
        objective = tune.TailLatency("control", rate=rate)
        report = tune.overlap(**work, device=device, objective=objective, budget_s=arguments.budget, progress=False)
        print(f"\n{rate:g} calls per second: {'answered' if report.choice is not None else 'UNDECIDED'}\n{report}")
        reports.append({"rate": rate, "report": json.loads(report.to_json())})
    if arguments.out is not None:
        write_result({**result, "rows": reports}, arguments.out)
    answered = sum(row["report"]["choice"] is not None for row in reports)
    print(f"\n{answered} of {len(reports)} rates are answered")
    return 0 if answered == len(reports) else 1


if __name__ == "__main__":
    sys.exit(main())
