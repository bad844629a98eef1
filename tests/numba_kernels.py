"""A Numba kernel that writes the SM ids of its blocks, and whether Numba can compile any kernel at all here."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest


@cache
def _refusal() -> str | None:
    """The reason why Numba cannot compile; None if it can. For example, numba-cuda 0.30 cannot with numpy 2.5."""
    import numba_cuda
    import numpy
    from numba import cuda
    from numba.cuda import types

    def nothing(values):
        values[0] = 0

    try:
        cuda.compile_ptx(nothing, (types.Array(types.uint32, 1, "C"),), cc=(9, 0))
    except Exception as error:  # whatever it is, it does not concern partitions
        return f"numba-cuda {numba_cuda.__version__} cannot compile a kernel with numpy {numpy.__version__}: {error!r}"
    return None


def skip_unless_numba_compiles() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed here")
    refusal = _refusal()
    if refusal is not None:
        pytest.skip(refusal)


def sm_id_kernel() -> Any:
    """``kernel[blocks, threads, stream](sms)``: each block writes the id of its SM."""
    from llvmlite import ir
    from numba import cuda
    from numba.cuda import types
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    # Numba does not expose %smid.
    @intrinsic
    def sm_id(typing_context):
        def generate(context, builder, sig, args):
            read = ir.InlineAsm(ir.FunctionType(ir.IntType(32), []), "mov.u32 $0, %smid;", "=r", side_effect=True)
            return builder.call(read, [])

        return signature(types.uint32), generate

    @cuda.jit
    def where(sms):
        sms[cuda.blockIdx.x] = sm_id()

    return where
