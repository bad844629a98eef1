"""A tensor-parallel layer on several GPUs: the all-reduce of one half of a batch next to the GEMM of the other half.

    NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node 2 examples/comm_compute/several_gpus.py

Every rank holds a slice of the weights; the products are partial sums, which an all-reduce adds up. The all-reduce runs
on 8 SMs, the GEMMs on the others.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from cuda_gctx import Device
from cuda_gctx.comm import MixedCommHandler, MixedCommOp, run_mixed_comm
from cuda_gctx.interop.torch import torch_stream

TOKENS, HIDDEN = 2048, 4096


def layer(comm, handler, halves, weight, outs, sums) -> None:
    """Partial products on the current stream; each is summed over the ranks on the stream of `comm` as it is ready."""
    compute = torch.cuda.current_stream()
    for x, out, total in zip(halves, outs, sums, strict=True):
        torch.mm(x, weight, out=out)
        comm.wait_stream(compute)
        with torch.cuda.stream(comm):
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, out, total)
    # The next layer reads the sums.
    compute.wait_stream(comm)


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=size)
    device = f"cuda:{rank}"
    make = {"device": device, "dtype": torch.bfloat16}
    halves = [torch.full((TOKENS, HIDDEN // size), 1.0, **make) for _ in range(2)]
    weight = torch.full((HIDDEN // size, HIDDEN), 1 / 64, **make)
    outs, sums = ([torch.empty(TOKENS, HIDDEN, **make) for _ in range(2)] for _ in range(2))
    with Device(rank).partition(comm=8, compute=None) as parts:
        with parts.comm.torch():
            handler = MixedCommHandler.from_process_group(parts.comm, torch.bfloat16)
            handler.map_tensors(*outs, *sums)
        with parts.compute.torch(library_sms="on"):
            for _ in range(3):
                layer(torch_stream(parts.comm), handler, halves, weight, outs, sums)
        parts.sync()
        handler.check()
        wanted = HIDDEN // size / 64 * size
        right = all(bool((total == wanted).all()) for total in sums)
        print(f"rank {rank} of {size}: every element is {wanted}: {right}", flush=True)
        handler.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
