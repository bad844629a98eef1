"""A persistent Triton kernel in a partition: as many programs as the partition has SMs, not as the device has."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import smid

from cuda_gctx import Device


@triton.jit
def add_one(values, sms, size, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    tl.store(sms + first, smid())
    for begin in range(first * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = begin + tl.arange(0, BLOCK)
        tl.store(values + at, tl.load(values + at, mask=at < size) + 1, mask=at < size)


def main() -> None:
    dev = Device(0)
    x = torch.zeros(1 << 20, device="cuda:0")
    with dev.partition(control=16) as parts:
        parts.verify()
        part = parts.control
        sms = torch.empty(part.sm_count, device="cuda:0", dtype=torch.int32)
        with part.torch():
            add_one[(part.sm_count,)](x, sms, x.numel(), BLOCK=1024)
        ran = set(sms.tolist())
        print(f"control has {part.sm_count} SMs, {part.sm_count} programs ran on {len(ran)} of them")
        assert ran <= set(part.sm_ids)
    assert x.eq(1).all()


if __name__ == "__main__":
    main()
