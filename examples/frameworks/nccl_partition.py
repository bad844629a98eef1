"""An all_reduce of torch.distributed in a partition, with a communicator that fits it: alone, or by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from cuda_gctx import Device
from cuda_gctx.interop.nccl import new_group


def main() -> None:
    number = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(number)
    where = torch.device("cuda", number)
    dev = Device(number)
    # NCCL changes what is current on the thread; in this block it does not matter.
    with dev.context.current():
        if "RANK" in os.environ:
            dist.init_process_group("nccl", device_id=where)
        else:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=where)

    with dev.partition(comm=16) as parts:
        group = new_group(parts.comm)
        x = torch.ones(1 << 20, device=where)
        with parts.comm.torch():
            dist.all_reduce(x, group=group)
        print(f"the sum over {dist.get_world_size()} ranks is {x[0].item():.0f}")
        assert x.eq(dist.get_world_size()).all()
        torch.cuda.synchronize()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
