"""What the software driver reads out of program images: parameters, shared and local memory, registers, limits."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

import pytest

from cuda_gctx import system
from cuda_gctx.sim import session

from ..raw import Raw

pytestmark = pytest.mark.sim_only

NO_BINARY = 209
MAX_THREADS, SHARED, CONSTANT, LOCAL, REGISTERS, MAX_DYNAMIC = 0, 1, 2, 3, 4, 8
PTX = b"""
.version 7.0
.target sm_90
.address_size 64
.const .align 4 .b8 table[800];
.extern .shared .align 16 .b8 dynamic[];
.visible .entry plain(.param .u64 out, .param .u32 n) { ret; }
.visible .entry rich(.param .u64 out)
.maxntid 128, 2, 1
{
  .local .align 4 .b8 __local_depot0[256];
  .shared .align 4 .b8 a[400];
  .shared .f64 b;
  ld.shared.u32 %r1, [a];
  ret;
}
\0"""


def cubin() -> bytes:
    """Machine code of one kernel, reduced to what a driver reads: no instructions."""

    def entry(kind: int, payload: bytes) -> bytes:
        return struct.pack("<BBH", 4, kind, len(payload)) + payload

    def parameter(number: int, offset: int, size: int) -> bytes:
        return entry(0x17, struct.pack("<IHHI", 0, number, offset, size << 18))

    symbol = 7
    sections = [
        (b"", 0, b"", 0, 0),
        (b".shstrtab", 3, b"", 0, 0),
        (b".text.work", 1, b"\0" * 16, 16, symbol),
        (
            b".nv.info",
            1,
            entry(0x2F, struct.pack("<II", symbol, 46)) + entry(0x11, struct.pack("<II", symbol, 256)),
            0,
            0,
        ),
        (
            b".nv.info.work",
            1,
            parameter(1, 8, 4) + parameter(0, 0, 8) + entry(0x05, struct.pack("<III", 64, 2, 1)),
            0,
            0,
        ),
        (b".nv.shared.work", 8, b"", 1424, 0),
        (b".nv.shared.reserved.0", 8, b"", 0, 0),
    ]
    names = b"\0".join(name for name, *_ in sections) + b"\0"
    body, headers, offset, name_at = b"", b"", 64, 0
    for name, kind, content, size, info in sections:
        data = names if name == b".shstrtab" else content
        headers += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, offset, size or len(data), 0, info, 1, 0)
        body, offset, name_at = body + data, offset + len(data), name_at + len(name) + 1
    start = b"\x7fELF" + bytes([2, 1]) + bytes(10)
    start += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, offset, 0, 64, 0, 0, 64, len(sections), 1)
    return start + body + headers


class Kernels:
    def __init__(self, raw: Raw, image: bytes) -> None:
        self.raw = raw
        self._library = ctypes.c_void_p(raw.handle("cuLibraryLoadData", image, None, None, 0, None, None, 0))

    def attribute(self, name: str, which: int) -> int:
        kernel = self.raw.handle("cuLibraryGetKernel", self._library, name.encode())
        value = ctypes.c_int()
        self.raw.call("cuKernelGetAttribute", ctypes.byref(value), which, ctypes.c_void_p(kernel), 0)
        return value.value

    def parameters(self, name: str) -> list[tuple[int, int]]:
        kernel = ctypes.c_void_p(self.raw.handle("cuLibraryGetKernel", self._library, name.encode()))
        offset, size, count = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        self.raw.call("cuKernelGetParamCount", kernel, ctypes.byref(count))
        found = []
        for number in range(count.value):
            self.raw.call(
                "cuKernelGetParamInfo", kernel, ctypes.c_size_t(number), ctypes.byref(offset), ctypes.byref(size)
            )
            found.append((offset.value, size.value))
        return found

    def close(self) -> None:
        self.raw.call("cuLibraryUnload", self._library)


@pytest.fixture
def raw() -> Iterator[Raw]:
    with session("h200", "13.5"):
        made = Raw()
        context = ctypes.c_void_p()
        made.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        made.call("cuCtxSetCurrent", context)
        yield made
        made.call("cuCtxSetCurrent", None)
        made.call("cuDevicePrimaryCtxRelease_v2", 0)


def test_a_kernel_says_what_its_text_declares(raw: Raw) -> None:
    kernels = Kernels(raw, PTX)
    assert [kernels.attribute("rich", which) for which in (MAX_THREADS, SHARED, CONSTANT, LOCAL)] == [
        256,
        408,
        800,
        256,
    ]
    assert kernels.attribute("rich", MAX_DYNAMIC) == 48 * 1024 - 408
    assert [kernels.attribute("plain", which) for which in (MAX_THREADS, SHARED, LOCAL)] == [1024, 0, 0]
    assert kernels.parameters("plain") == [(0, 8), (8, 4)]
    kernels.close()


def test_a_kernel_says_what_its_machine_code_declares(raw: Raw) -> None:
    kernels = Kernels(raw, cubin())
    found = [kernels.attribute("work", which) for which in (MAX_THREADS, SHARED, LOCAL, REGISTERS)]
    assert found == [128, 400, 256, 46]
    assert kernels.parameters("work") == [(0, 8), (8, 4)]
    kernels.close()


@pytest.mark.parametrize("kept", range(64, 900, 44))
def test_machine_code_that_is_not_what_it_says_is_refused_or_read(raw: Raw, kept: int) -> None:
    # Sizes and places beyond the file, which itself stays as long as its header says.
    image = cubin()
    library = ctypes.CDLL(system.driver_path)
    made = ctypes.c_void_p()
    broken = image[:kept] + b"\xff" * (len(image) - kept)
    assert library.cuLibraryLoadData(ctypes.byref(made), broken, None, None, 0, None, None, 0) in {0, NO_BINARY}
    if made:
        raw.call("cuLibraryUnload", made)
