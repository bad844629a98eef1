"""What the software driver reads out of program images: parameters, memory, registers, limits, variables."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

import pytest

from cuda_software_driver import library_path, session

from .raw import Raw

INVALID_VALUE, INVALID_CONTEXT, NO_BINARY, NOT_FOUND = 1, 201, 209, 500
MAX_THREADS, SHARED, CONSTANT, LOCAL, REGISTERS, MAX_DYNAMIC = 0, 1, 2, 3, 4, 8
PTX = b"""
.version 7.8
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


VARIABLES = b"""
.version 7.8
.target sm_90
.address_size 64
.extern .global .align 4 .u32 elsewhere;
.visible .global .align 4 .b8 zeros[400];
.visible .global .align 4 .u32 answer = 42;
.global .align 4 .s32 signed[4] = {-1, 0x10, 3};
.visible .global .align 4 .f32 scales[3] = {0f3F800000, 2.5, 0f40400000};
.visible .global .align 8 .u16 grid[2][3] = {{1, 2, 3}, {4, 5, 6}};
.visible .global .align 16 .v4 .f32 vectors[2];
.visible .const .align 1 .b8 text[] = {104, 105};
.visible .entry work(.param .u64 out) {
  .shared .align 4 .b8 a[400];
  ld.global.u32 %r1, [answer];
  ret;
}
.visible .global .f64 last;
\0"""


def cubin() -> bytes:
    """Machine code of one kernel and three variables, reduced to what a driver reads: no instructions."""

    def entry(kind: int, payload: bytes) -> bytes:
        return struct.pack("<BBH", 4, kind, len(payload)) + payload

    def parameter(number: int, offset: int, size: int) -> bytes:
        return entry(0x17, struct.pack("<IHHI", 0, number, offset, size << 18))

    def variable(name_at: int, section: int, offset: int, size: int) -> bytes:
        return struct.pack("<IBBHQQ", name_at, 0x11, 0, section, offset, size)

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
        (b".nv.global", 8, b"", 64, 0),
        (b".nv.global.init", 1, struct.pack("<II", 7, 42), 0, 0),
        (b".strtab", 3, b"\0empty\0answer\0outside\0", 0, 0),
        (b".symtab", 2, variable(1, 7, 32, 32) + variable(7, 8, 4, 4) + variable(14, 8, 4, 8), 0, 0),
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


class Module:
    """A loaded image and the variables in it."""

    def __init__(self, raw: Raw, image: bytes) -> None:
        self.raw, self.driver = raw, ctypes.CDLL(library_path())
        self.handle = ctypes.c_void_p(raw.handle("cuModuleLoadData", image))

    def find(self, name: bytes) -> tuple[int, int, int]:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        code = self.driver.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), self.handle, name)
        return code, address.value, size.value

    def read(self, name: bytes) -> bytes:
        code, address, size = self.find(name)
        assert code == 0
        copy = ctypes.create_string_buffer(size)
        self.raw.call("cuMemcpyDtoH_v2", copy, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return copy.raw

    def close(self) -> None:
        self.raw.call("cuModuleUnload", self.handle)


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
    library = ctypes.CDLL(library_path())
    made = ctypes.c_void_p()
    broken = image[:kept] + b"\xff" * (len(image) - kept)
    assert library.cuLibraryLoadData(ctypes.byref(made), broken, None, None, 0, None, None, 0) in {0, NO_BINARY}
    if made:
        raw.call("cuLibraryUnload", made)


def test_variables_have_the_sizes_and_values_of_their_declarations(raw: Raw) -> None:
    module = Module(raw, VARIABLES)
    assert module.read(b"zeros") == bytes(400)
    assert module.read(b"answer") == struct.pack("<I", 42)
    assert module.read(b"signed") == struct.pack("<4i", -1, 16, 3, 0)
    assert module.read(b"scales") == struct.pack("<3f", 1, 2.5, 3)
    assert module.read(b"grid") == struct.pack("<6H", 1, 2, 3, 4, 5, 6)
    assert [len(module.read(name)) for name in (b"vectors", b"last")] == [32, 8]
    assert module.read(b"text") == b"hi"
    assert [module.find(name)[0] for name in (b"elsewhere", b"a")] == [NOT_FOUND] * 2
    assert [module.find(name)[0] for name in (b"work", b"")] == [INVALID_VALUE] * 2
    module.close()


def test_variables_of_machine_code_are_its_symbols(raw: Raw) -> None:
    module = Module(raw, cubin())
    assert (module.read(b"empty"), module.read(b"answer")) == (bytes(32), struct.pack("<I", 42))
    assert module.find(b"outside")[0] == NOT_FOUND
    module.close()


def test_a_variable_is_memory_of_the_device_until_its_module_is_unloaded() -> None:
    with session("h200", check=False) as sim:
        raw, context = Raw(), ctypes.c_void_p()
        raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        raw.call("cuCtxSetCurrent", context)
        module = Module(raw, VARIABLES)
        code, address, size = module.find(b"answer")
        assert code == 0
        where, length = ctypes.c_uint64(address), ctypes.c_size_t(size)
        raw.call("cuMemcpyHtoD_v2", where, struct.pack("<I", 7), length)
        assert module.find(b"answer")[1] == address
        assert module.read(b"answer") == struct.pack("<I", 7)
        assert "device memory" not in {found.kind for found in sim.ledger().live}
        assert module.driver.cuMemFree_v2(where) == INVALID_VALUE
        module.close()
        assert module.driver.cuMemcpyHtoD_v2(where, struct.pack("<I", 7), length) == INVALID_VALUE
        assert [found.function for found in sim.ledger().misuse] == ["cuMemFree_v2", "cuMemcpyHtoD_v2"]
        raw.call("cuDevicePrimaryCtxRelease_v2", 0)


def test_either_the_address_or_the_size_of_a_variable_is_enough(raw: Raw) -> None:
    module = Module(raw, VARIABLES)
    find, size = module.driver.cuModuleGetGlobal_v2, ctypes.c_size_t()
    assert find(None, ctypes.byref(size), module.handle, b"answer") == 0
    assert size.value == 4
    assert find(ctypes.byref(ctypes.c_uint64()), None, module.handle, b"answer") == 0
    assert find(None, None, module.handle, b"answer") == INVALID_VALUE
    assert find(None, ctypes.byref(size), module.handle, None) == INVALID_VALUE
    module.close()


def test_a_library_has_its_variables_on_the_current_device() -> None:
    with session("h200", devices=2) as sim:
        raw, driver = Raw(), ctypes.CDLL(library_path())
        library = ctypes.c_void_p(raw.handle("cuLibraryLoadData", VARIABLES, None, None, 0, None, None, 0))
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        find = (ctypes.byref(address), ctypes.byref(size), library, b"answer")
        assert driver.cuLibraryGetGlobal(*find) == INVALID_CONTEXT
        places = []
        for device in (0, 1):
            context = ctypes.c_void_p()
            raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            raw.call("cuCtxSetCurrent", context)
            raw.call("cuLibraryGetGlobal", *find)
            ordinal = ctypes.c_int()
            raw.call("cuPointerGetAttribute", ctypes.byref(ordinal), 9, address)
            assert ordinal.value == device
            places.append(address.value)
        assert places[0] != places[1]
        raw.call("cuCtxSetCurrent", None)
        # A reset takes the variables of its device, and the library loads itself again.
        raw.call("cuDevicePrimaryCtxReset_v2", 1)
        assert sim.memory(device=1)["allocated"] == 0
        raw.call("cuDevicePrimaryCtxRelease_v2", 1)
        raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
        raw.call("cuCtxSetCurrent", context)
        raw.call("cuLibraryGetGlobal", *find)
        assert sim.memory(device=1)["allocated"] == 4
        raw.call("cuCtxSetCurrent", None)
        raw.call("cuLibraryUnload", library)
        for device in (0, 1):
            assert sim.memory(device=device)["allocated"] == 0
            raw.call("cuDevicePrimaryCtxRelease_v2", device)


MANAGED = b""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 plain = 1;
.visible .global .attribute(.managed) .align 8 .u64 shared[2] = {41, 42};
\0"""


def test_devices_and_the_host_share_a_managed_variable_of_a_library() -> None:
    with session("h200", devices=2):
        raw = Raw()
        library = ctypes.c_void_p(raw.handle("cuLibraryLoadData", MANAGED, None, None, 0, None, None, 0))
        address, size, of_device = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        find = (ctypes.byref(address), ctypes.byref(size), library)
        assert raw.code("cuLibraryGetManaged", *find, b"plain") == NOT_FOUND
        assert raw.code("cuLibraryGetManaged", *find, b"nothing") == NOT_FOUND
        raw.call("cuLibraryGetManaged", *find, b"shared")
        assert size.value == 16
        words = (ctypes.c_uint64 * 2).from_address(address.value)
        assert list(words) == [41, 42]
        for device in (0, 1):
            context = ctypes.c_void_p()
            raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            raw.call("cuCtxSetCurrent", context)
            raw.call("cuLibraryGetGlobal", ctypes.byref(of_device), None, library, b"shared")
            assert of_device.value == address.value
            raw.call("cuMemsetD8_v2", of_device, device, ctypes.c_size_t(1))
            assert list(words) == [device, 42]
        raw.call("cuLibraryUnload", library)
        assert raw.code("cuPointerGetAttribute", ctypes.byref(size), 9, of_device) == INVALID_VALUE
        for device in (0, 1):
            raw.call("cuDevicePrimaryCtxRelease_v2", device)


def test_the_profiler_is_switched_in_a_context(raw: Raw) -> None:
    driver = ctypes.CDLL(library_path())
    assert (driver.cuProfilerStart(), driver.cuProfilerStop()) == (0, 0)
    raw.call("cuCtxSetCurrent", None)
    assert (driver.cuProfilerStart(), driver.cuProfilerStop()) == (INVALID_CONTEXT, INVALID_CONTEXT)


def test_the_parameters_of_a_librarys_kernel_are_asked_in_a_context(raw: Raw) -> None:
    driver, count, place = ctypes.CDLL(library_path()), ctypes.c_size_t(), ctypes.c_size_t()
    library = ctypes.c_void_p(raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0))
    kernel = ctypes.c_void_p(raw.handle("cuLibraryGetKernel", library, b"plain"))
    info = (kernel, ctypes.c_size_t(0), ctypes.byref(place), ctypes.byref(count))
    assert driver.cuKernelGetParamInfo(*info) == 0
    raw.call("cuCtxSetCurrent", None)
    assert driver.cuKernelGetParamInfo(*info) == INVALID_CONTEXT
    assert driver.cuKernelGetParamCount(kernel, ctypes.byref(count)) == INVALID_CONTEXT
    raw.call("cuLibraryUnload", library)
