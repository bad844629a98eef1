"""A tensor-parallel layer without a cluster: its ranks are threads, each with 8 SMs of one GPU for its all-reduce.

    python examples/comm_compute/one_gpu.py

The GEMMs of all ranks run on the other SMs. The all-reduce of one half of a batch runs next to the GEMM of the other
half, with the kernels that also run between GPUs.
"""

from __future__ import annotations

import torch

from cuda_gctx import Device
from cuda_gctx.comm import MixedCommOp, local_world, run_mixed_comm
from cuda_gctx.interop.torch import torch_stream

RANKS, TOKENS, HIDDEN = 4, 256, 1024


def work(rank, streams) -> bool:
    """One rank: a slice of the weights, partial products of two halves, and their sums over all ranks."""
    compute = torch_stream(streams[rank.rank])
    with rank.partition.torch(), rank.handler(torch.bfloat16) as handler:
        comm = torch.cuda.current_stream()
        make = {"device": handler.device, "dtype": torch.bfloat16}
        halves = [torch.full((TOKENS, HIDDEN // rank.size), 1.0, **make) for _ in range(2)]
        weight = torch.full((HIDDEN // rank.size, HIDDEN), 1 / 64, **make)
        outs, sums = ([torch.empty(TOKENS, HIDDEN, **make) for _ in range(2)] for _ in range(2))
        compute.wait_stream(comm)
        for x, out, total in zip(halves, outs, sums, strict=True):
            with torch.cuda.stream(compute):
                torch.mm(x, weight, out=out)
            comm.wait_stream(compute)
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, out, total)
        comm.synchronize()
        handler.check()
        return all(bool((total == HIDDEN / 64).all()) for total in sums)


def main() -> None:
    with local_world(RANKS, Device(0), sms=8) as world:
        [background] = world.backgrounds
        right = all(world.run(work, background.stream_pool(RANKS)))
        print(f"the sum over {len(world)} ranks is right: {right}")


if __name__ == "__main__":
    main()
