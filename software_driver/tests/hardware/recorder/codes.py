"""Codes that the header does not tell: of objects whose context is gone, of external events outside of a capture, of
libraries whose code the driver cannot load.

Each question has a process of its own, since some of the answers may be its end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .contract import arguments
from .world import PTX, World

# One or two functions for each kind of object that a context may own.
ASKED = (
    *("cuModuleUnload", "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuFuncLoad", "cuFuncGetAttribute"),
    *("cuFuncGetModule", "cuLaunchKernel", "cuLibraryGetModule", "cuKernelGetFunction", "cuLibraryUnload"),
    *("cuMemFree_v2", "cuMemFreeAsync", "cuMemcpyDtoH_v2", "cuMemGetAddressRange_v2", "cuMemFreeHost"),
    *("cuMemHostGetFlags", "cuStreamQuery", "cuStreamGetId", "cuStreamDestroy_v2", "cuEventQuery", "cuEventRecord"),
    *("cuEventSynchronize", "cuEventDestroy_v2", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"),
)
POOLED = "cuMemFree_v2 of a pool's memory"
EVENT_FLAGS = {"timing": 0, "no timing": 2}
IMAGES = {
    "PTX of a version to come": PTX.replace(b"7.0", b"9.9"),
    "PTX for a newer card": PTX.replace(b"7.0", b"8.7").replace(b"sm_70", b"sm_120"),
    "PTX of a version before its target": PTX.replace(b"sm_70", b"sm_90"),
    "PTX with a word that is no instruction": PTX.replace(b"ret;", b"this is no instruction;"),
    "no PTX": b"text\0",
}


def destroyed(world: World, make: Callable[[], Any]) -> Any:
    context = world.out("cuCtxCreate_v2", 0, 0)
    made = make()
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", world["CUcontext"])
    return made


def released(world: World, make: Callable[[], Any]) -> Any:
    made = make()
    world.must("cuDevicePrimaryCtxRelease_v2", 0)
    world.must("cuCtxSetCurrent", world.out("cuDevicePrimaryCtxRetain", 0))
    return made


def given_to(world: World, symbol: str) -> list[Any]:
    """The function is asked in the current context's own stream, unless it is a function of streams."""
    given = arguments(world, symbol)
    if symbol.startswith("cuStream"):
        return given
    return [None if one == world.made.get("CUstream") else one for one in given]


def after(world: World, end: Callable[[World, Callable[[], Any]], Any], symbol: str) -> int:
    if symbol == POOLED:
        memory = end(world, lambda: world.out("cuMemAllocAsync", 1 << 20, None))
        return world.code("cuMemFree_v2", memory)
    given = end(world, lambda: given_to(world, symbol))
    return world.code(symbol, *given)


def outside_of_a_capture(world: World, call: str, flags: int) -> int:
    event, stream = world.out("cuEventCreate", flags), world["CUstream"]
    return world.code(call, *((event, stream) if call == "cuEventRecordWithFlags" else (stream, event)), 1)


def inside_a_capture(world: World, call: str, flags: int) -> dict[str, Any]:
    event, stream = world.out("cuEventCreate", flags), world["CUstream"]
    graph, count, kind = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int(-1)
    world.must("cuStreamBeginCapture_v2", stream, 0)
    code = world.code(call, *((event, stream) if call == "cuEventRecordWithFlags" else (stream, event)), 1)
    answers: dict[str, Any] = {"code": code}
    answers["end"] = world.code("cuStreamEndCapture", stream, ctypes.byref(graph))
    if answers["end"] != 0:
        return answers
    world.must("cuGraphGetNodes", graph, None, ctypes.byref(count))
    answers["nodes"] = count.value
    if count.value == 0:
        return answers
    nodes, named = (ctypes.c_void_p * count.value)(), ctypes.c_void_p()
    world.must("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    world.must("cuGraphNodeGetType", nodes[0], ctypes.byref(kind))
    answers["type"] = kind.value
    get = "cuGraphEventRecordNodeGetEvent" if "Record" in call else "cuGraphEventWaitNodeGetEvent"
    answers["its event"] = [world.code(get, nodes[0], ctypes.byref(named)), named.value == event]
    return answers


def loaded(world: World, image: bytes) -> dict[str, int]:
    """The codes of an image that is loaded as a module, and as a library that is then used, as far as it goes."""
    made, asked = ctypes.c_uint64(), {}

    def ask(name: str, symbol: str, *arguments: Any) -> int:
        asked[name] = world.code(symbol, ctypes.byref(made), *arguments)
        return made.value

    ask("module", "cuModuleLoadData", world.buffer(image))
    library = ask("library", "cuLibraryLoadData", world.buffer(image), None, None, 0, None, None, 0)
    if asked["library"] == 0:
        ask("kernels", "cuLibraryGetKernelCount", library)
        ask("module of the library", "cuLibraryGetModule", library)
        kernel = ask("kernel", "cuLibraryGetKernel", library, b"nothing")
        if asked["kernel"] == 0:
            ask("function", "cuKernelGetFunction", kernel)
            asked["launch"] = world.code("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    return asked


def questions() -> dict[str, Callable[[World], Any]]:
    asked: dict[str, Callable[[World], Any]] = {}
    for name, end in {"the context is destroyed": destroyed, "the primary context is released": released}.items():
        for symbol in (*ASKED, POOLED):
            asked[f"{symbol} after {name}"] = lambda world, end=end, symbol=symbol: after(world, end, symbol)
    for call in ("cuEventRecordWithFlags", "cuStreamWaitEvent"):
        for name, flags in EVENT_FLAGS.items():
            for place, ask in {"outside of": outside_of_a_capture, "inside": inside_a_capture}.items():
                asked[f"{call}, external, {place} a capture, {name}"] = lambda world, ask=ask, call=call, flags=flags: (
                    ask(world, call, flags)
                )
    for name, image in IMAGES.items():
        asked[f"a library of {name}"] = lambda world, image=image: loaded(world, image)
    return asked


CODES = questions()
