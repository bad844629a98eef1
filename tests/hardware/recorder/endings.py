"""What is answered of objects whose context is gone, and of external events: codes alone.

Each question has a process of its own, since some of the answers may be its end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .contract import arguments
from .world import World

# One or two functions for each kind of object that a context may own.
ASKED = (
    *("cuModuleUnload", "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuFuncLoad", "cuFuncGetAttribute"),
    *("cuFuncGetModule", "cuLaunchKernel", "cuLibraryGetModule", "cuKernelGetFunction", "cuLibraryUnload"),
    *("cuArrayDestroy", "cuArray3DGetDescriptor_v2", "cuMipmappedArrayDestroy", "cuMipmappedArrayGetLevel"),
    *("cuMemFree_v2", "cuMemFreeAsync", "cuMemcpyDtoH_v2", "cuMemGetAddressRange_v2", "cuMemFreeHost"),
    *("cuMemHostGetFlags", "cuStreamQuery", "cuStreamGetId", "cuStreamDestroy_v2", "cuEventQuery", "cuEventRecord"),
    *("cuEventSynchronize", "cuEventDestroy_v2", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"),
)
POOLED = "cuMemFree_v2 of a pool's memory"
EVENT_FLAGS = {"timing": 0, "no timing": 2}


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
    return asked


ENDINGS = questions()
