"""A kernel of cuda.core on the stream of a partition; it writes the SM ids of its blocks."""

from __future__ import annotations

import numpy
from cuda.core import Device as CoreDevice
from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

from cuda_gctx import Device
from cuda_gctx.interop.cuda_core import core_stream

KERNEL = r"""
extern "C" __global__ void where(unsigned* sm) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  sm[blockIdx.x] = id;
}
"""
BLOCKS = 4096


def main() -> None:
    core = CoreDevice(0)
    core.set_current()
    program = Program(KERNEL, code_type="c++", options=ProgramOptions(arch=f"sm_{core.arch}"))
    kernel = program.compile("cubin").get_kernel("where")
    buffer = LegacyPinnedMemoryResource().allocate(4 * BLOCKS)
    seen = numpy.from_dlpack(buffer).view(numpy.uint32)

    dev = Device(0)
    with dev.partition(control=16) as parts:
        parts.verify()
        stream = core_stream(parts.control)
        launch(stream, LaunchConfig(grid=BLOCKS, block=32), kernel, buffer)
        stream.sync()
        ran = set(seen.tolist())
        print(f"control has {parts.control.sm_count} SMs, the kernel ran on {len(ran)} of them")
        assert ran <= set(parts.control.sm_ids)


if __name__ == "__main__":
    main()
