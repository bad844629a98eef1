"""A kernel whose result can be checked: each block adds its number to a sum, and notes the SM that it runs on."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from cuda_gctx import Partition, system
from cuda_gctx.cli._exit import Failure

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry sum(.param .u64 out)
{
  .reg .b32 %r<3>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [out];
  mov.u32 %r1, %ctaid.x;
  red.global.add.u32 [%d1], %r1;
  mov.u32 %r2, %smid;
  mul.wide.u32 %d2, %r1, 4;
  add.s64 %d3, %d1, %d2;
  st.global.u32 [%d3+4], %r2;
  ret;
}
\0"""
BLOCKS = 4096


@dataclass(frozen=True)
class SumResult:
    """The result of one launch, and the number of SMs of the partition and of others."""

    total: int
    expected: int
    sms: int
    foreign_sms: int


def run(part: Partition, sm_ids: frozenset[int]) -> SumResult:
    """Launch the kernel in a partition of these SMs, and read what it computed."""
    driver = ctypes.CDLL(system.driver_path)

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(driver, name)(*arguments):
            raise Failure(f"{name} returned {code}")

    library, kernel, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    words = (ctypes.c_uint32 * (BLOCKS + 1))()
    size = ctypes.c_size_t(ctypes.sizeof(words))
    with part.context.current():
        call("cuLibraryLoadData", ctypes.byref(library), PTX, None, None, 0, None, None, 0)
        call("cuMemAlloc_v2", ctypes.byref(memory), size)
        try:
            call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"sum")
            call("cuMemsetD8_v2", memory, 0, size)
            part.context.sync()
            addresses = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
            shape = (BLOCKS, 1, 1, 32, 1, 1, 0)
            call("cuLaunchKernel", kernel, *shape, ctypes.c_void_p(part.stream.handle), addresses, None)
            part.stream.sync()
            call("cuMemcpyDtoH_v2", words, memory, size)
        finally:
            call("cuMemFree_v2", memory)
            call("cuLibraryUnload", library)
    seen = set(words[1:])
    return SumResult(words[0], 32 * sum(range(BLOCKS)), len(seen & sm_ids), len(seen - sm_ids))
