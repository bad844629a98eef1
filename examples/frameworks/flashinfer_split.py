"""Code written for flashinfer.green_ctx: the import is all that changes."""

from __future__ import annotations

import torch

from cuda_gctx.compat.flashinfer import split_device_green_ctx_by_sm_count


def main() -> None:
    device = torch.device("cuda:0")
    streams, resources = split_device_green_ctx_by_sm_count(device, [8, 16, 24])
    print([resource.sm.smCount for resource in resources])
    for stream in streams:
        with torch.cuda.stream(stream):
            x = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
            y = x @ x
        stream.synchronize()
        assert y.isfinite().all()


if __name__ == "__main__":
    main()
