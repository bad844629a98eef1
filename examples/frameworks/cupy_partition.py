"""CuPy in a partition, and a kernel that writes the SM ids of its blocks."""

from __future__ import annotations

import cupy

from cuda_gctx import Device

KERNEL = r"""
extern "C" __global__ void where(unsigned* sm) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  sm[blockIdx.x] = id;
}
"""


def main() -> None:
    dev = Device(0)
    where = cupy.RawKernel(KERNEL, "where")
    with dev.partition(decode=16) as parts:
        parts.verify()
        with parts.decode.cupy():
            seen = cupy.zeros(4096, cupy.uint32)
            where((seen.size,), (32,), (seen,))
        ran = set(cupy.asnumpy(seen).tolist())
        print(f"decode has {parts.decode.sm_count} SMs, the kernel ran on {len(ran)} of them")
        assert ran <= set(parts.decode.sm_ids)


if __name__ == "__main__":
    main()
