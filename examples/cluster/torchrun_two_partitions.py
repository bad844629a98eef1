"""Ranks with two partitions each: collectives in one, GEMMs in the other. The layout comes from outside.

    cuda-gctx run --layout comm=16,compute=rest -- \\
        torchrun --standalone --nproc-per-node 2 examples/cluster/torchrun_two_partitions.py

With a CUDA build of torch it takes a GPU for each rank, NCCL and GEMMs; without, gloo, and kernels that spin.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from cuda_gctx import Device, Partitions
from cuda_gctx.interop.nccl import agree, new_group
from cuda_gctx.interop.torch import fork
from cuda_gctx.tune import spin

STEPS = 4


def on_gpus(parts: Partitions) -> float:
    """Each step sums one tensor over the ranks, next to a GEMM."""
    group = new_group(parts.comm)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.ones(1 << 24, device="cuda")
    for _ in range(STEPS):
        with fork() as start:
            with parts.compute.torch(after=start):
                torch.mm(a, a)
            with parts.comm.torch(after=start):
                dist.all_reduce(x, group=group)
    return x[0].item()


def on_hosts(parts: Partitions) -> float:
    """The same, with kernels that keep the SMs busy, and sums on the hosts."""
    x = torch.ones(1024)
    for _ in range(STEPS):
        spin(parts.compute.stream, 2 * parts.compute.sm_count, 100_000)
        spin(parts.comm.stream, 2 * parts.comm.sm_count, 10_000)
        dist.all_reduce(x)
    return x[0].item()


def main() -> None:
    has_gpus = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    dev = Device(rank % Device.count())
    if has_gpus:
        torch.cuda.set_device(rank)
    with dev.partition() as parts:
        agree(parts)  # all ranks go on, or all stop with the same error
        report = parts.verify()
        total = on_gpus(parts) if has_gpus else on_hosts(parts)
        parts.sync()
        sizes = ", ".join(f"{part.name} {part.sm_count} SMs" for part in parts)
        line = f"rank {rank} of {size} on {dev.name}: {sizes}; isolated: {not report.problems}; sum {total:.0f}"
        sys.stdout.write(line + "\n")  # one write, since the ranks share the output
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
