"""Studies on real work: pairs that people want to run concurrently, and what the tuner reports for each.

    python benchmarks/studies.py [--out DIR] [--only NAME] [--budget SECONDS] [--processes N] [--limit SECONDS]
                                 [--parts DIR]

Each study is measured in two processes, one after the other: openings, clocks and memory placement differ between them.
With --parts, what each process measures is kept in a folder, and a later run measures only what is missing there.

- gemm-sigmoid: an 8192 x 8192 x 8192 bf16 GEMM and an 8192 x 8192 sigmoid.
- large-small: large GEMMs, and memory-bound ones of 16 rows, which read weights.
- critical-load: a short kernel whose slowest calls matter, and a background load of GEMMs without end.
- gemms: what an SM count hint does to single GEMMs in partitions of several sizes.

Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import reporting

from cuda_gctx import Device, PartitionPool, tune
from cuda_gctx.interop.torch import use
from cuda_gctx.measure.loop import AHEAD, in_rounds, timed_batch
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.summaries import summary
from cuda_gctx.tune import Report

SIZE = 8192


def gemm_and_sigmoid(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b, x = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "gemm": lambda stream: torch.mm(a, b, out=out),
        "sigmoid": lambda stream: torch.sigmoid(x, out=y),
    }, "makespan"


def large_and_small(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    tokens = torch.randn(4096, SIZE, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(16, SIZE, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    # More than the L2 cache holds, so that each call reads from memory, as the layers of a model do.
    layers = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    many, few = torch.empty_like(tokens), torch.empty_like(rows)

    def small(stream: Any) -> None:
        for layer in layers:
            torch.mm(rows, layer, out=few)

    return {
        "large": lambda stream: torch.mm(tokens, weights, out=many),
        "small": small,
    }, tune.Throughput(large=1, small=4)


def critical_and_load(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "critical": lambda stream: torch.sigmoid(x, out=y),
        "load": lambda stream: torch.mm(a, b, out=out),
    }, tune.TailLatency("critical", quantile=0.99, others=0.75)


class Study(NamedTuple):
    """Work, its objective, and how many times the usual budget it needs: batches of calls take longer than of steps."""

    title: str
    work_of: Callable[[Any], tuple[dict[str, Callable[[Any], object]], Any]]
    share: float = 1.0


STUDIES = {
    "critical-load": Study(
        "sigmoid of 256 x 4096 bf16, one call at a time, next to 8192 x 8192 x 8192 bf16 GEMMs without end, which "
        "have to keep 75% of their rate",
        critical_and_load,
        2.0,
    ),
    "large-small": Study(
        "4096 x 8192 x 8192 bf16 GEMM, and four times 16 x 8192 x 8192, four such calls for each GEMM",
        large_and_small,
    ),
    "gemm-sigmoid": Study("8192 x 8192 x 8192 bf16 GEMM, and sigmoid of 8192 x 8192 bf16", gemm_and_sigmoid),
}
OTHERS = {"gemms": 8.0}  # the seconds they take; gemms are measured in the last process only


LEFT_OUT_SMS = (8, 16, 24, 64)  # the GEMM runs in the background partition of a partition of so many
GEMM_ROUNDS, GEMM_CALLS = 15, 4


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
            stream = pool.prepare(other=left_out).background.stream if left_out else device.create_stream()
            sms = stream.resources.sm.sm_count
            for name, call in gemms_of(torch).items():
                samples: dict[str, list[float]] = {"off": [], "on": []}

                def calls(call: Callable[[], object] = call) -> list[Any]:
                    for _ in range(GEMM_CALLS):
                        call()
                    return []

                for number, (choice, taken) in in_rounds(samples.items(), GEMM_ROUNDS + 2):
                    with use(stream, library_sms=choice):
                        found = timed_batch([stream], calls, AHEAD.least_s).seconds[0] / GEMM_CALLS
                    if number >= 2:
                        taken.append(found)
                us = {choice: summary(taken, 1e-6) for choice, taken in samples.items()}
                rows.append({"sm_count": sms, "gemm": name, "us": us})
    return rows


def measured(torch: Any, device: Device, name: str, budget_s: float, seed: int) -> Any:
    """What a process finds for a study, or the GEMMs."""
    if name == "gemms":
        return measure_gemms(torch, device)
    work, objective = STUDIES[name].work_of(torch)
    report = tune.overlap(device=device, objective=objective, budget_s=budget_s, seed=seed, **work)
    print(f"\n{name}: {STUDIES[name].title}\n{report}", flush=True)
    return json.loads(report.to_json())


def part_of(arguments: argparse.Namespace, seed: int, name: str) -> Path:
    """Where a process keeps what it has measured."""
    return Path(arguments.parts) / f"{seed}-{name}.json"


def missing(arguments: argparse.Namespace, seed: int) -> list[str]:
    """What a process has to measure."""
    names = [*STUDIES, *(["gemms"] if seed == arguments.processes - 1 else [])]
    wanted = [name for name in names if arguments.only in (None, name)]
    return [name for name in wanted if not part_of(arguments, seed, name).exists()]


def measure(arguments: argparse.Namespace, until: float) -> None:
    """What is missing of the studies of this process, each into a file of its own."""
    import torch

    device = Device(0)
    for name in missing(arguments, arguments.seed):
        budget_s = arguments.budget * STUDIES[name].share if name in STUDIES else OTHERS[name]
        if time.monotonic() + budget_s > until:
            print(f"{name}: not measured, the limit is reached", flush=True)
            continue
        machine = described(device, "Studies of the tuner, written by benchmarks/studies.py", reporting.REPOSITORY)
        try:
            found = measured(torch, device, name, budget_s, arguments.seed)
        except Exception as error:  # of one study: the others are measured
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        part_of(arguments, arguments.seed, name).write_text(json.dumps({"machine": machine, "found": found}))
        torch.cuda.empty_cache()


def in_processes(arguments: argparse.Namespace) -> None:
    """The studies in several processes, one after the other."""
    until = time.monotonic() + arguments.limit
    for number in range(arguments.processes):
        if not missing(arguments, number):
            continue
        left_s = until - time.monotonic()
        command = [sys.executable, *sys.argv, "--seed", str(number), "--parts", str(arguments.parts)]
        try:
            subprocess.run([*command, "--limit", str(left_s)], check=True, timeout=max(1.0, left_s))
        except subprocess.SubprocessError as error:  # what it has measured so far is kept
            print(f"process {number}: {error}", flush=True)


def joined(parts: Path) -> dict[str, Any]:
    """What the processes have measured, as one result."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(parts.glob("*.json"))}
    if not found:
        raise SystemExit("nothing was measured")
    result: dict[str, Any] = next(iter(found.values()))["machine"]
    by_name = {
        name: [part["found"] for key, part in found.items() if key.partition("-")[2] == name]
        for name in (*STUDIES, *OTHERS)
    }
    result["studies"] = [
        {"name": name, "title": STUDIES[name].title, "reports": by_name[name]}
        for name in reversed(STUDIES)
        if by_name[name]
    ]
    result["gemms"] = [row for rows in by_name["gemms"] for row in rows]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--only", choices=[*STUDIES, *OTHERS], help="one study")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for a study; twice as long for latencies")
    parser.add_argument("--processes", type=int, default=2, help="measure each study in so many processes")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds in all; what does not fit is left out")
    parser.add_argument("--parts", type=Path, help="folder of what single processes measured; it is continued")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        measure(arguments, time.monotonic() + arguments.limit)
        return 0
    with TemporaryDirectory() as folder:
        arguments.parts = arguments.parts or Path(folder)
        arguments.parts.mkdir(parents=True, exist_ok=True)
        in_processes(arguments)
        result = joined(arguments.parts)
        left_out = [
            f"{name} ({number})" for number in range(arguments.processes) for name in missing(arguments, number)
        ]
    path = reporting.write(result, "studies", arguments.out)
    print(f"\n{path}")
    for study in result["studies"]:
        for report in study["reports"]:
            print(f"{study['name']}: {Report.from_json(json.dumps(report))!r}")
    if left_out:
        print(f"not measured, with the number of the process: {', '.join(left_out)}")
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
