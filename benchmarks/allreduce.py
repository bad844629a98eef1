"""A GEMM and an all-reduce on two GPUs: sequentially, on plain streams, and in partitions.

    python benchmarks/allreduce.py [--out DIR] [--seed N] [--budget SECONDS]

One process per GPU, NCCL through torch.distributed, NVLink multicast off. Every step is joined: the next one begins
when both are done. The GEMM is 8192 x 8192 x 8192 in bf16, without and with an SM count hint.
All plans of all message sizes are measured in rounds in random order, each batch behind steps of the same plan that are
not counted; the first round only warms up. Behind the least number of rounds, another one begins only if it fits into
the budget. A time is the larger of the two GPUs. Needs torch and two GPUs.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import tables

from cuda_gctx import Device, PartitionPool
from cuda_gctx.interop.library_sms import cublas_sms
from cuda_gctx.interop.nccl import new_group
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.summaries import summary

SIZE = 8192
MEBIBYTES = (1, 16, 64, 256)
COMM_SMS = (8, 16, 32)
STEPS, WARM_STEPS = 15, 5
LEAST_ROUNDS, MOST_ROUNDS = 5, 15
START_SECONDS = 120  # the most that imports, communicators and the first round take
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

Key: TypeAlias = tuple[int | None, str]  # the size of the message in MiB if there is one, and the plan
Step: TypeAlias = tuple[Any, Callable[[], None], int | None]  # where it is timed, and the SM count hint


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
        parts = pool.prepare({"comm": sms})
        left = parts.background.sm_count
        streams = torch_stream(parts.background), torch_stream(parts.comm)
        yield Plan(f"{sms} + {left} SMs", *streams, group)
        yield Plan(f"{sms} + {left} SMs, hint of {left}", *streams, group, left)


def steps_of(
    plans: Sequence[Plan],
    groups: Mapping[int, Any],
    messages: Mapping[int, Any],
    torch: Any,
    dist: Any,
    multiply: Callable[[], object],
) -> dict[Key, Step]:
    """What is measured: each plan with each message, and its parts alone."""
    one, everybody = plans[0].gemm, plans[0].group
    alone_in = {"all SMs": (one, everybody)}
    for sms, group in groups.items():
        alone_in[f"{sms} SMs"] = next(plan.comm for plan in plans if plan.group is group), group
    steps: dict[Key, Step] = {(None, "GEMM alone"): (one, alone(one, torch, multiply), None)}
    for mebibytes, message in messages.items():
        for where, (stream, group) in alone_in.items():
            reduced = partial(dist.all_reduce, message, group=group)
            steps[mebibytes, f"all-reduce alone, {where}"] = stream, alone(stream, torch, reduced), None
        for plan in plans:
            step = partial(joined, plan, torch, dist, multiply, message)
            steps[mebibytes, plan.name] = plan.gemm, step, plan.hint
    return steps


def measure(rank: int, store: str, out: Path, seed: int, budget_s: float) -> None:
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

    def of_both(value: float) -> float:
        """The larger of the values of both GPUs."""
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=slowest)
        return float(largest)

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
        return of_both(begin.elapsed_time(end) * 1000 / STEPS)

    with ExitStack() as closing:
        pool = closing.enter_context(PartitionPool(device))
        groups = {sms: new_group(pool.prepare({"comm": sms}).comm) for sms in COMM_SMS}
        plans = list(plans_of(torch, pool, dist.group.WORLD, groups))
        messages = {size: torch.randn(size * 2**19, device="cuda", dtype=torch.bfloat16) for size in MEBIBYTES}
        steps = steps_of(plans, groups, messages, torch, dist, multiply)
        times: dict[Key, list[float]] = {key: [] for key in steps}
        order = random.Random(seed)  # the same on both GPUs
        began = longest_s = 0.0
        for number in range(MOST_ROUNDS + 1):
            round_began = time.monotonic()
            # The first round only warms up.
            began = round_began if number == 1 else began
            if number > LEAST_ROUNDS and of_both(round_began - began) + longest_s > budget_s:
                break
            for _, (key, (stream, step, sms)) in in_rounds(steps.items(), 1, order):
                with hinted(sms):
                    taken = microseconds(stream, step)
                if key[0] is not None:
                    messages[key[0]].normal_()  # the sums grow with each step
                if number:
                    times[key].append(taken)
            took_s = of_both(time.monotonic() - round_began)
            longest_s = max(longest_s, took_s) if number else 0.0
            if rank == 0:
                print(f"round {number}: {took_s:.1f} s", flush=True)
        rows = [{"mebibytes": size, "plan": name, "us": summary(taken)} for (size, name), taken in times.items()]
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
        path = tables.write(result, "allreduce" if seed == 0 else f"allreduce-again-{seed}", out)
        print(f"{path}\n")
        print(tables.allreduce_section(result))
    torch.cuda.synchronize()
    dist.barrier(group=slowest)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--seed", type=int, default=0, help="of the random order; also the number of the result's file")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to measure, behind a round that warms up")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        measure(arguments.rank, arguments.store, arguments.out, arguments.seed, arguments.budget)
        return 0
    # Ranks meet through a file: a port that was free a moment ago may be taken.
    with TemporaryDirectory() as meeting:
        command = [sys.executable, *sys.argv, "--store", f"{meeting}/store"]
        workers = [
            subprocess.Popen([*command, "--rank", str(rank)], env=os.environ | NO_MULTICAST) for rank in range(2)
        ]
        # A rank that is gone, or waits for ever, takes the other one along.
        end = time.monotonic() + START_SECONDS + arguments.budget
        while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
            if any(worker.poll() not in (None, 0) for worker in workers):
                break
            time.sleep(0.2)
        for worker in workers:
            worker.kill()
        return max(abs(worker.wait()) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
