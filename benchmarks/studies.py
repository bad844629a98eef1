"""Studies on real work: pairs that people want to run concurrently, and what the tuner reports for each.

    python benchmarks/studies.py [--out DIR] [--only NAME] [--budget SECONDS] [--processes N]

Each study is measured in two processes, one after the other: openings, clocks and memory placement differ between them.

- gemm-sigmoid: an 8192 x 8192 x 8192 bf16 GEMM and an 8192 x 8192 sigmoid.
- prefill-decode: large GEMMs, as in a prefill, and GEMMs of 16 rows, which read weights, as in a decode.
- critical-load: a short kernel whose slowest calls matter, and a background load of GEMMs without end.
- gemms: what an SM count hint does to single GEMMs in partitions of several sizes.

Needs torch and a GPU. The study of two GPUs is benchmarks/allreduce.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tables

from cuda_gctx import Device, Partition, PartitionPool, tune
from cuda_gctx.measure.loop import AHEAD, in_rounds, timed_batch
from cuda_gctx.measure.machine import described, file_name, folder_of_results
from cuda_gctx.measure.statistics import summary

SIZE = 8192


def gemm_and_sigmoid(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b, x = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "gemm": lambda stream: torch.mm(a, b, out=out),
        "sigmoid": lambda stream: torch.sigmoid(x, out=y),
    }, "makespan"


def prefill_and_decode(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    tokens = torch.randn(4096, SIZE, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(16, SIZE, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    # More than the L2 cache holds, so that each call reads from memory, as the layers of a model do.
    layers = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    many, few = torch.empty_like(tokens), torch.empty_like(rows)

    def decode(stream: Any) -> None:
        for layer in layers:
            torch.mm(rows, layer, out=few)

    return {
        "prefill": lambda stream: torch.mm(tokens, weights, out=many),
        "decode": decode,
    }, tune.Throughput(prefill=1, decode=4)


def critical_and_load(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "critical": lambda stream: torch.sigmoid(x, out=y),
        "load": lambda stream: torch.mm(a, b, out=out),
    }, tune.TailLatency("critical", quantile=0.99, others=0.75)


STUDIES: dict[str, tuple[str, Callable[[Any], tuple[dict[str, Callable[[Any], object]], Any]]]] = {
    "gemm-sigmoid": ("8192 x 8192 x 8192 bf16 GEMM, and sigmoid of 8192 x 8192 bf16", gemm_and_sigmoid),
    "prefill-decode": (
        "4096 x 8192 x 8192 bf16 GEMM, and four times 16 x 8192 x 8192, four such calls for each GEMM",
        prefill_and_decode,
    ),
    "critical-load": (
        "sigmoid of 256 x 4096 bf16, one call at a time, next to 8192 x 8192 x 8192 bf16 GEMMs without end, which "
        "have to keep 75% of their rate",
        critical_and_load,
    ),
}


LEFT_OUT_SMS = (8, 16, 24, 64)  # the GEMM runs in the background partition of a partition of so many
GEMM_ROUNDS, GEMM_CALLS = 15, 4
LIMIT_S = 600  # of a process


def gemms_of(torch: Any) -> dict[str, Callable[[], object]]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    bias = torch.randn(SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    small, inner = a[:2048, :4096], b[:4096, :4096]
    few = torch.empty(2048, 4096, device="cuda", dtype=torch.bfloat16)
    return {
        "8192 x 8192 x 8192, mm": lambda: torch.mm(a, b, out=out),
        "2048 x 4096 x 4096, mm": lambda: torch.mm(small, inner, out=few),
        "8192 x 8192 x 8192, linear with bias": lambda: torch.nn.functional.linear(a, b, bias),
    }


def measure_gemms(torch: Any, device: Device) -> list[dict[str, Any]]:
    """Times of GEMMs in microseconds, by turns without and with an SM count hint."""
    rows = []
    with PartitionPool(device) as pool:
        for left_out in (0, *LEFT_OUT_SMS):
            part = pool.get(other=left_out).background if left_out else device.create_stream()
            assert part is not None
            stream = part.stream if isinstance(part, Partition) else part
            sms = device.sm_count if left_out == 0 else part.sm_count
            for name, call in gemms_of(torch).items():
                samples: dict[str, list[float]] = {"off": [], "on": []}

                def calls(call: Callable[[], object] = call) -> list[Any]:
                    for _ in range(GEMM_CALLS):
                        call()
                    return []

                for number, (choice, taken) in in_rounds(samples.items(), GEMM_ROUNDS + 2):
                    with part.torch(library_sms=choice):
                        found = timed_batch([stream], calls, AHEAD.least_s).seconds[0] / GEMM_CALLS
                    if number >= 2:
                        taken.append(found)
                us = {choice: summary(taken, 1e-6) for choice, taken in samples.items()}
                rows.append({"sm_count": sms, "gemm": name, "us": us})
    return rows


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All studies, in this process."""
    import torch

    device = Device(0)
    result: dict[str, Any] = described(
        device, "Studies of the tuner, written by benchmarks/studies.py", tables.REPOSITORY
    )
    result["studies"] = []
    for name, (title, work_of) in STUDIES.items():
        if arguments.only in (None, name):
            work, objective = work_of(torch)
            report = tune.overlap(
                device=device, objective=objective, budget_s=arguments.budget, seed=arguments.seed, **work
            )
            print(f"\n{name}: {title}\n{report}", flush=True)
            result["studies"].append({"name": name, "title": title, "reports": [json.loads(report.to_json())]})
            del work
            torch.cuda.empty_cache()
    if arguments.only in (None, "gemms"):
        result["gemms"] = measure_gemms(torch, device)
        for row in result["gemms"]:
            times = ", ".join(f"{choice} {us['median']:.1f} us" for choice, us in row["us"].items())
            print(f"{row['sm_count']:4} SMs  {row['gemm']:40} {times}", flush=True)
    return result


def in_processes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The studies of several processes in one result."""
    results = []
    with TemporaryDirectory() as folder:
        for number in range(arguments.processes):
            path = Path(folder) / f"{number}.json"
            command = [sys.executable, __file__, "--seed", str(number), "--part", str(path)]
            command += ["--budget", str(arguments.budget)]
            command += ["--only", arguments.only] if arguments.only else []
            subprocess.run(command, check=True, timeout=LIMIT_S)
            results.append(json.loads(path.read_text()))
    first, *others = results
    for other in others:
        for study, again in zip(first["studies"], other["studies"], strict=True):
            study["reports"] += again["reports"]
    return first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--only", choices=[*STUDIES, "gemms"], help="one study")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each study")
    parser.add_argument("--processes", type=int, default=2, help="measure each study in so many processes")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        arguments.part.write_text(json.dumps(measure(arguments)))
        return 0
    result = in_processes(arguments)
    path = folder_of_results(arguments.out, tables.RESULTS) / file_name(result, "studies")
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{path}")
    for study in result["studies"]:
        first, *others = tables.reports_of(study)
        for other in others:
            print(f"\n{study['name']}\n{first.compare(other)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
