"""Random programs on the NULL stream, blocking streams and the stream of a thread compute what their calls say."""

from __future__ import annotations

import pytest

from .common import answers

pytestmark = pytest.mark.sim_only

# Each stream changes a cell of its own, by the cell of the NULL stream; the NULL stream changes its cell by any other.
# The NULL stream is ordered with the other streams, so that the cells are those of a model in which each call ends at
# once.
CODE = r"""
import ctypes, random
MIX = b'''.version 8.0
.target sm_90
.address_size 64
.visible .entry mix(.param .u64 out, .param .u64 in, .param .u32 by) {
.reg .b32 %r<6>; .reg .b64 %d<4>;
ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in]; ld.param.u32 %r1, [by];
ld.global.u32 %r2, [%d1]; ld.global.u32 %r3, [%d2];
mad.lo.u32 %r2, %r2, 31, %r3; add.u32 %r2, %r2, %r1; st.global.u32 [%d1], %r2; ret; }
.visible .entry idle(){ret;}\0'''
use()
library = ask(cu.cuLibraryLoadData(MIX, [], [], 0, [], [], 0))
mix, idle = (cu.CUfunction(int(ask(cu.cuLibraryGetKernel(library, name)))) for name in (b"mix", b"idle"))
CELLS = 6
def run(seed):
    choose = random.Random(seed)
    null, streams = cu.CUstream(choose.randrange(2)), {1: cu.CUstream(2)}
    memory, model = int(ask(cu.cuMemAlloc(4 * CELLS))), [1] * CELLS
    ask(cu.cuMemsetD32(memory, 1, CELLS))
    def change(stream, cell, given):
        by = choose.randrange(1000)
        if choose.random() < 0.5:
            ask(cu.cuLaunchKernel(idle, 30_000, 1, 1, 1, 1, 1, 0, stream, 0, 0))
        words = (memory + 4 * cell, memory + 4 * given, by), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        ask(cu.cuLaunchKernel(mix, 1, 1, 1, 1, 1, 1, 0, stream, words, 0))
        model[cell] = (model[cell] * 31 + model[given] + by) % 2**32
    def demand(cell):
        found = bytearray(4)
        ask(cu.cuMemcpyDtoH(found, memory + 4 * cell, 4))
        assert int.from_bytes(found, "little") == model[cell], (seed, cell)
    for step in range(60):
        kind, cell = choose.randrange(10), choose.randrange(CELLS)
        if kind == 0 and cell not in streams and cell > 1:
            streams[cell] = ask(cu.cuStreamCreateWithPriority(0, -1) if step % 2 else cu.cuStreamCreate(0))
        elif kind == 1 and cell in streams and cell > 1:
            ask(cu.cuStreamDestroy(streams.pop(cell)))
        elif kind < 4:
            change(null, 0, cell)
        elif kind == 4:
            demand(cell)
        elif kind == 5:
            ask(cu.cuMemsetD32Async(memory + 4 * cell, step, 1, null))
            model[cell] = step
        else:
            own = choose.choice(list(streams))
            change(streams[own], own, choose.choice([own, 0]))
    ask(cu.cuCtxSynchronize())
    for cell in range(CELLS):
        demand(cell)
for seed in range(SEEDS):
    run(seed)
print("right")
"""


@pytest.mark.parametrize("verify", ["0", "1"])
def test_streams_are_ordered_in_random_programs(verify: str) -> None:
    assert answers(CODE.replace("SEEDS", "60"), CUDA_GCTX_VERIFY=verify) == "right"
