"""torch in two partitions at the same time: one line for each, and tensors pass in and out as on one stream."""

from __future__ import annotations

import torch

from cuda_gctx import Device, Stream
from cuda_gctx.interop.torch import fork


def main() -> None:
    dev = Device(0)
    x = torch.randn(2048, 2048, device="cuda:0")
    with dev.partition(decode=16, prefill=None) as parts:
        with fork() as start:
            with parts.decode.torch(after=start) as stream:
                y = torch.sigmoid(x)
                print(f"decode runs on {Stream(stream).resources.sm.sm_count} SMs")
            with parts.prefill.torch(after=start) as stream:
                z = x @ x
                print(f"prefill runs on {Stream(stream).resources.sm.sm_count} SMs")
        # Outside again, after both.
        print(f"the same as without partitions: {torch.equal(y + z, torch.sigmoid(x) + x @ x)}")


if __name__ == "__main__":
    main()
