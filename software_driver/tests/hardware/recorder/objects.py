"""Attributes, modules, graphs and descriptors of tensors: through ctypes, for calls that leave results out."""

from __future__ import annotations

import ctypes
from typing import Any

from .gpu import (
    Code,
    Gpu,
    Refused,
)
from .notes import Note

VARIABLES = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[400];
.visible .global .align 4 .u32 answer = 42;
.global .align 8 .u64 quiet[3] = {1, 2, 3};
.visible .const .align 4 .f32 scale = 0f3F800000;
.visible .entry work(.param .u64 out) { ret; }
.visible .entry idle() { ret; }
\0"""
# Where the card and its host are, and not what it can do.
PLACES = {"PCI_BUS_ID", "PCI_DEVICE_ID", "PCI_DOMAIN_ID", "GPU_PCI_DEVICE_ID", "GPU_PCI_SUBSYSTEM_ID", "HOST_NUMA_ID"}


# Older names of attributes, which some versions of the bindings list too.
OLDER_NAMES = {
    "MAXIMUM_TEXTURE2D_ARRAY_HEIGHT",
    "MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES",
    "MAXIMUM_TEXTURE2D_ARRAY_WIDTH",
    "REGISTERS_PER_BLOCK",
    "SHARED_MEMORY_PER_BLOCK",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
}


def raw_call(name: str, *arguments: Any) -> Code:
    return int(getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments))


def made(name: str, *arguments: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    code = raw_call(name, ctypes.byref(handle), *arguments)
    if code != 0:
        raise Refused(name, code)
    return handle


def record_attributes(gpu: Gpu, note: Note) -> Any:
    """Each attribute that driver and bindings know, by its name in cuda.h."""
    prefix = "CU_DEVICE_ATTRIBUTE_"
    for member in gpu.driver.module.CUdevice_attribute:
        name = member.name.removeprefix(prefix)
        if name in PLACES | OLDER_NAMES or name == "MAX" or int(member) < 1:
            continue
        code, value = gpu.driver.call("cuDeviceGetAttribute", member, gpu.device)
        if code == 0:
            note(name, lambda value=value: value)
    return note.answers


def record_modules(gpu: Gpu, note: Note) -> Any:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    both = (ctypes.byref(address), ctypes.byref(size))
    module = made("cuModuleLoadData", VARIABLES)
    library = made("cuLibraryLoadData", VARIABLES, None, None, 0, None, None, 0)
    kernel = made("cuLibraryGetKernel", library, b"work")
    functions = {"module": ("cuModuleGetGlobal_v2", module), "library": ("cuLibraryGetGlobal", library)}

    def asked(function: str, owner: Any, name: bytes) -> Any:
        """The code, and what the call left of an address and a size of 7."""
        address.value, size.value = 7, 7
        code = raw_call(function, *both, owner, name)
        return [code, "set" if address.value not in (0, 7) else address.value, size.value]

    for what, (function, owner) in functions.items():
        for name in ("table", "answer", "quiet", "scale", "missing"):
            note(f"{what}: {name}", lambda f=function, o=owner, n=name: asked(f, o, n.encode()))
        note(f"{what}: address alone", lambda f=function, o=owner: raw_call(f, both[0], None, o, b"table"))
        note(f"{what}: size alone", lambda f=function, o=owner: raw_call(f, None, both[1], o, b"table"))
        note(f"{what}: neither", lambda f=function, o=owner: raw_call(f, None, None, o, b"table"))
    note("module: the name of a kernel", lambda: asked("cuModuleGetGlobal_v2", module, b"work"))
    note("module: no name", lambda: asked("cuModuleGetGlobal_v2", module, b""))

    def content(name: bytes) -> Any:
        asked("cuModuleGetGlobal_v2", module, name)
        copy = ctypes.create_string_buffer(size.value)
        return [raw_call("cuMemcpyDtoH_v2", copy, address, size), sorted(set(copy.raw))]

    note("module: content of table", lambda: content(b"table"))
    note("module: content of answer", lambda: content(b"answer"))
    note("module: free", lambda: raw_call("cuMemFree_v2", address))

    def extent() -> Any:
        base, length = ctypes.c_uint64(), ctypes.c_size_t()
        asked("cuModuleGetGlobal_v2", module, b"table")
        code = raw_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), address)
        return [code, address.value - base.value, length.value]

    note("module: extent of table", extent)
    note("cuProfilerStart", lambda: raw_call("cuProfilerStart"))
    note("cuProfilerStop", lambda: raw_call("cuProfilerStop"))
    raw_call("cuCtxSetCurrent", None)
    place, width = ctypes.c_size_t(), ctypes.c_size_t()
    info = (kernel, ctypes.c_size_t(0), ctypes.byref(place), ctypes.byref(width))
    value = ctypes.c_int()
    note("without a context: cuLibraryGetGlobal", lambda: raw_call("cuLibraryGetGlobal", *both, library, b"answer"))
    note("without a context: cuKernelGetParamInfo", lambda: raw_call("cuKernelGetParamInfo", *info))
    note(
        "without a context: cuKernelGetAttribute",
        lambda: raw_call("cuKernelGetAttribute", ctypes.byref(value), 0, kernel, 0),
    )
    note("without a context: cuProfilerStart", lambda: raw_call("cuProfilerStart"))
    return note.answers


def record_graphs(gpu: Gpu, note: Note) -> Any:
    function = made("cuModuleGetFunction", made("cuModuleLoadData", VARIABLES), b"idle")
    stream = made("cuStreamCreate", 1)

    def launch() -> Code:
        return raw_call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    raw_call("cuStreamBeginCapture_v2", stream, 2)
    launch()
    raw_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    raw_call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))

    def into_a_capture(mode: int) -> Any:
        status = ctypes.c_int()
        raw_call("cuStreamBeginCapture_v2", stream, mode)
        answers = {"a launch before": launch(), "cuGraphLaunch": raw_call("cuGraphLaunch", executable, stream)}
        raw_call("cuStreamIsCapturing", stream, ctypes.byref(status))
        answers |= {"status": status.value, "a launch after": launch()}
        return answers | {"cuStreamEndCapture": raw_call("cuStreamEndCapture", stream, ctypes.byref(graph))}

    for mode in range(3):
        note(f"an executable graph launched into a capture of mode {mode}", lambda mode=mode: into_a_capture(mode))
    return note.answers


def record_tensor_maps(gpu: Gpu, note: Note) -> Any:
    """A descriptor at addresses that are multiples of what stands before the colon, and of no more."""
    host = ctypes.create_string_buffer(1024)
    start = (ctypes.addressof(host) + 255) // 256 * 256
    sizes, strides = (ctypes.c_uint64 * 2)(64, 64), (ctypes.c_uint64 * 1)(256)
    box, steps = (ctypes.c_uint32 * 2)(32, 8), (ctypes.c_uint32 * 2)(1, 1)
    float32 = 7

    def encode(offset: int) -> Code:
        shape = (sizes, strides, box, steps, 0, 0, 0, 0)
        tensor = ctypes.c_void_p(int(gpu.out) // 256 * 256)
        return raw_call("cuTensorMapEncodeTiled", ctypes.c_void_p(start + offset), float32, 2, tensor, *shape)

    for offset in (128, 64, 32, 16, 8):
        note(f"{offset}: encode", lambda offset=offset: encode(offset))
    return note.answers
