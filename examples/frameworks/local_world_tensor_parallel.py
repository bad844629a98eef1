"""A tensor-parallel layer without a cluster: its ranks are threads, each with its own SMs of one GPU.

    python examples/frameworks/local_world_tensor_parallel.py

The kernels of the all-reduce are those of several GPUs. Every rank divides its time between GEMM and all-reduce here.
"""

from __future__ import annotations

import torch

from cuda_gctx import Device
from cuda_gctx.comm import MixedCommOp, local_world, run_mixed_comm

RANKS, TOKENS, HIDDEN = 4, 256, 1024


def work(rank) -> bool:
    """One rank: a slice of the weights, a partial product, and the sum over all ranks."""
    with rank.partition.torch(), rank.handler(torch.bfloat16) as handler:
        make = {"device": handler.device, "dtype": torch.bfloat16}
        x = torch.full((TOKENS, HIDDEN // rank.size), 1.0, **make)
        weight = torch.full((HIDDEN // rank.size, HIDDEN), 1 / 64, **make)
        total = run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x @ weight)
        torch.cuda.current_stream().synchronize()
        handler.check()
        return bool((total == HIDDEN / 64).all())


def main() -> None:
    with local_world(RANKS, Device(0), sms=16) as world:
        print(f"the sum over {len(world)} ranks is right: {all(world.run(work))}")


if __name__ == "__main__":
    main()
