"""A GEMM and an all-reduce on two GPUs: sequentially, on plain streams, and in partitions.

    python benchmarks/allreduce.py [--out DIR] [--seed N]

One process per GPU, NCCL through torch.distributed, NVLink multicast off. Every step is joined: the next one begins
when both are done. The GEMM is 8192 x 8192 x 8192 in bf16, without and with an SM count hint.
All plans of all message sizes are measured in rounds in random order, each batch behind steps of the same plan that are
not counted. A time is the larger of the two GPUs. Needs torch and two GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tables

from cuda_gctx import Device, PartitionPool
from cuda_gctx.interop.library_sms import cublas_sms
from cuda_gctx.interop.nccl import new_group
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import described, file_name, folder_of_results
from cuda_gctx.measure.statistics import summary

SIZE = 8192
MEBIBYTES = (1, 16, 64, 256)
COMM_SMS = (8, 16, 24, 32)
STEPS, WARM_STEPS = 20, 5
ROUNDS = 9
LIMIT_SECONDS = 400
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@dataclass(frozen=True)
class Plan:
    """Streams for GEMM and all-reduce, the communicator, and the SM count hint for cuBLAS (None: no hint)."""

    name: str
    gemm: Any
    comm: Any
    group: Any
    hint: int | None = None


def joined(plan: Plan, torch: Any, dist: Any, multiply: Callable[[], object], message: Any) -> None:
    """One step on the streams of a plan, in an order of its own where both are the same stream."""
    with torch.cuda.stream(plan.gemm):
        multiply()
    with torch.cuda.stream(plan.comm):
        dist.all_reduce(message, group=plan.group)
    if plan.comm is not plan.gemm:
        plan.gemm.wait_stream(plan.comm)
        plan.comm.wait_stream(plan.gemm)


def alone(stream: Any, torch: Any, work: Callable[[], object]) -> Callable[[], None]:
    def step() -> None:
        with torch.cuda.stream(stream):
            work()

    return step


def plans_of(torch: Any, pool: PartitionPool, everybody: Any, groups: dict[int, Any]) -> Iterator[Plan]:
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    yield Plan("in sequence", one, one, everybody)
    yield Plan("plain streams", one, other, everybody)
    yield Plan("plain streams, hint of 116 SMs", one, other, everybody, 116)
    for sms, group in groups.items():
        parts = pool.get({"comm": sms})
        assert parts.background is not None
        left = parts.background.sm_count
        streams = torch_stream(parts.background), torch_stream(parts.comm)
        yield Plan(f"{sms} + {left} SMs", *streams, group)
        yield Plan(f"{sms} + {left} SMs, hint of {left}", *streams, group, left)


def measure(rank: int, store: str, out: Path, seed: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device_id = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=device_id)
    slowest = dist.new_group(backend="gloo")
    device = Device(rank)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gemm = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=gemm)

    multiply()  # makes the handle of cuBLAS

    cublas = f"libcublas.so.{torch.version.cuda.split('.')[0]}"

    def hinted(sms: int | None) -> AbstractContextManager[None]:
        return cublas_sms(torch.cuda.current_blas_handle(), sms, cublas) if sms else nullcontext()

    def microseconds(stream: Any, step: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier(group=slowest)
        for _ in range(WARM_STEPS):
            step()
        begin.record(stream)
        for _ in range(STEPS):
            step()
        end.record(stream)
        end.synchronize()
        taken = torch.tensor([begin.elapsed_time(end) * 1000 / STEPS])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=slowest)
        return float(taken)

    rows = []
    with ExitStack() as closing:
        pool = closing.enter_context(PartitionPool(device))
        groups = {sms: new_group(pool.get({"comm": sms}).comm) for sms in COMM_SMS}
        plans = list(plans_of(torch, pool, dist.group.WORLD, groups))
        one = plans[0].gemm
        order = random.Random(seed)
        messages = {size: torch.randn(size * 2**19, device="cuda", dtype=torch.bfloat16) for size in MEBIBYTES}
        steps: dict[tuple[int, str], tuple[Any, Callable[[], None], int | None]] = {}
        for mebibytes, message in messages.items():
            steps[mebibytes, "GEMM alone"] = one, alone(one, torch, multiply), None
            steps[mebibytes, "all-reduce alone"] = one, alone(one, torch, lambda m=message: dist.all_reduce(m)), None
            for plan in plans:
                step = lambda plan=plan, m=message: joined(plan, torch, dist, multiply, m)  # noqa: E731
                steps[mebibytes, plan.name] = plan.gemm, step, plan.hint
        times: dict[tuple[int, str], list[float]] = {key: [] for key in steps}
        # The first round only warms up. The random order is the same on both GPUs.
        for number, (key, (stream, step, sms)) in in_rounds(steps.items(), ROUNDS + 1, order):
            with hinted(sms):
                taken = microseconds(stream, step)
            # The sums grow with each step.
            messages[key[0]].normal_()
            if number:
                times[key].append(taken)
        for (mebibytes, name), samples in times.items():
            us = summary(samples)
            rows.append({"mebibytes": mebibytes, "plan": name, "us": us, "samples": us["samples"]})
    if rank == 0:
        result = described(
            device, "A GEMM and an all-reduce on two GPUs, written by benchmarks/allreduce.py", tables.REPOSITORY
        )
        result |= {
            "seed": seed,
            "steps_per_sample": STEPS,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "rows": rows,
        }
        path = folder_of_results(out, tables.RESULTS) / file_name(
            result, "allreduce" if seed == 0 else f"allreduce-again-{seed}"
        )
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"{path}\n")
        for row in rows:
            print(f"{row['mebibytes']:4} MiB  {row['plan']:40} {row['us']['median']:8.1f} us")
    torch.cuda.synchronize()
    dist.barrier(group=slowest)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--seed", type=int, default=0, help="of the random order; also the number of the result's file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        measure(arguments.rank, arguments.store, arguments.out, arguments.seed)
        return 0
    # Ranks meet through a file: a port that was free a moment ago may be taken.
    with TemporaryDirectory() as meeting:
        command = [sys.executable, *sys.argv, "--store", f"{meeting}/store"]
        workers = [
            subprocess.Popen([*command, "--rank", str(rank)], env=os.environ | NO_MULTICAST) for rank in range(2)
        ]
        # A rank that is gone, or waits for ever, takes the other one along.
        end = time.monotonic() + LIMIT_SECONDS
        while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
            if any(worker.poll() not in (None, 0) for worker in workers):
                break
            time.sleep(0.2)
        for worker in workers:
            worker.kill()
        return max(abs(worker.wait()) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
