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
    with dev.partition(control=16) as parts:
        parts.verify()
        with parts.control.cupy():
            seen = cupy.zeros(4096, cupy.uint32)
            where((seen.size,), (32,), (seen,))
        ran = set(cupy.asnumpy(seen).tolist())
        print(f"control has {parts.control.sm_count} SMs, the kernel ran on {len(ran)} of them")
        assert ran <= set(parts.control.sm_ids)


if __name__ == "__main__":
    main()
