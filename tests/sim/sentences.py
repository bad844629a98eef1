"""Sentences of the driver's header about single functions, in our own words, each with a program that tries it.

The list grows: SEEDED are functions that a seed chose among all that were modelled, the others were chosen by hand. A
program gets a `World` (tests/hardware/recorder/contract.py) with the primary context current, so that it can be run on
a card too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ..hardware.recorder.contract import PTX, World, nothing

# random.Random(34).sample() of the 324 functions that were modelled when they were chosen, without the two that have no
# sentence: cuGetExportTable and cuProfilerStart are of another header, or undocumented.
SEEDED = {
    "cuArray3DCreate_v2",
    "cuCtxGetCurrent",
    "cuCtxGetDevResource",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuDevResourceGenerateDesc",
    "cuDeviceGetExecAffinitySupport",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuFuncIsLoaded",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphGetRootNodes",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphNodeSetParams",
    "cuKernelGetName",
    "cuKernelSetAttribute",
    "cuLaunchKernel",
    "cuLibraryGetKernel",
    "cuLibraryLoadData",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemPoolGetAttribute",
    "cuMipmappedArrayCreate",
    "cuModuleGetLoadingMode",
    "cuModuleLoadData",
    "cuStreamGetGreenCtx",
    "cuStreamGetPriority",
    "cuTensorMapEncodeIm2colWide",
}

INVALID_VALUE, INVALID_DEVICE, NOT_FOUND, NOT_SUPPORTED, INVALID_CONFIGURATION = 1, 101, 500, 801, 915
Check = Callable[[World], Any]
SENTENCES: dict[str, list[tuple[str, Check]]] = {}


def says(function: str, sentence: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        SENTENCES.setdefault(function, []).append((sentence, check))
        return check

    return add


def integer(world: World, name: str, *arguments: Any) -> int:
    value = ctypes.c_int(-77)
    world.must(name, ctypes.byref(value), *arguments)
    return value.value


def size(world: World, name: str, *arguments: Any) -> int:
    value = ctypes.c_size_t(77)
    world.must(name, ctypes.byref(value), *arguments)
    return value.value


def graph_of(world: World, *edges: tuple[int, int], nodes: int = 2) -> tuple[int, list[int]]:
    graph = world.out("cuGraphCreate", 0)
    made = [world.out("cuGraphAddEmptyNode", graph, None, 0) for _ in range(nodes)]
    for before, after in edges:
        pair = (ctypes.c_void_p * 1)(made[before]), (ctypes.c_void_p * 1)(made[after])
        world.must("cuGraphAddDependencies", graph, *pair, 1)
    return graph, made


def listed(world: World, name: str, owner: int, room: int) -> tuple[list[int | None], int]:
    nodes, count = (ctypes.c_void_p * room)(*[1] * room), ctypes.c_size_t(room)
    world.must(name, owner, nodes, ctypes.byref(count))
    return list(nodes), count.value


def launch(world: World, function: int, stream: int | None, threads: int = 32, shared: int = 0) -> int:
    return world.code("cuLaunchKernel", function, 1, 1, 1, threads, 1, 1, shared, stream, None, None)


# Chosen by the seed.


@says("cuModuleLoadData", "PTX text that ends with a zero byte is loaded into the current context.")
def _(world: World) -> None:
    module = world.out("cuModuleLoadData", world.buffer(PTX))
    assert world.out("cuModuleGetFunction", module, b"nothing")


@says("cuLaunchKernel", "A CUkernel is taken where a function is due; a block has threads, and a grid has blocks.")
def _(world: World) -> None:
    assert launch(world, world["CUkernel"], world["CUstream"]) == 0
    assert launch(world, world["CUfunction"], world["CUstream"], threads=0) == INVALID_VALUE


@says("cuStreamGetGreenCtx", "Null for a stream of the primary context; the green context for one of its streams.")
def _(world: World) -> None:
    found = ctypes.c_void_p(1)
    world.must("cuStreamGetGreenCtx", world["CUstream"], ctypes.byref(found))
    assert found.value is None
    stream = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0)
    world.must("cuStreamGetGreenCtx", stream, ctypes.byref(found))
    assert found.value == world["CUgreenCtx"]


@says("cuCtxGetCurrent", "Without a current context the result is null, and the call succeeds.")
def _(world: World) -> None:
    world.must("cuCtxSetCurrent", None)
    assert world.out("cuCtxGetCurrent") == 0


@says("cuGraphExecEventWaitNodeSetEvent", "The node of the graph itself stays as it is.")
def _(world: World) -> None:
    graph, other = world.out("cuGraphCreate", 0), world.out("cuEventCreate", 0)
    node = world.out("cuGraphAddEventWaitNode", graph, None, 0, world["CUevent"])
    exec_ = world.out("cuGraphInstantiateWithFlags", graph, 0)
    world.must("cuGraphExecEventWaitNodeSetEvent", exec_, node, other)
    found = ctypes.c_void_p()
    world.must("cuGraphEventWaitNodeGetEvent", node, ctypes.byref(found))
    assert found.value == world["CUevent"]


@says("cuCtxGetDevResource", "The SMs of a green context are those that it was made with.")
def _(world: World) -> None:
    context = world.out("cuCtxFromGreenCtx", world["CUgreenCtx"])
    found = world.buffer()
    world.must("cuCtxGetDevResource", context, found, 1)
    assert found.raw[96:100] == world.resource().raw[96:100]


@says("cuMemAlloc_v2", "No bytes are an invalid value.")
def _(world: World) -> None:
    assert world.code("cuMemAlloc_v2", world.buffer(), 0) == INVALID_VALUE


@says("cuLibraryGetKernel", "A name that the library has no kernel of is not found.")
def _(world: World) -> None:
    assert world.code("cuLibraryGetKernel", world.buffer(), world["CUlibrary"], b"missing") == NOT_FOUND


@says("cuDevResourceGenerateDesc", "Resources of SMs are outputs of one split call (from 13.1 on).")
def _(world: World) -> None:
    groups = []
    for least in (8, 16):
        group, count = world.buffer(), ctypes.c_uint(1)
        world.must("cuDevSmResourceSplitByCount", group, ctypes.byref(count), world.resource(), None, 0, least)
        groups.append(group.raw[:144])
    joined = world.buffer(b"".join(groups))
    assert world.code("cuDevResourceGenerateDesc", world.buffer(), joined, 2) == INVALID_CONFIGURATION


@says(
    "cuMemPoolGetAttribute", "A pool keeps nothing above its use, and reuses what events allow, unless told otherwise."
)
def _(world: World) -> None:
    release_threshold, follow_events = 4, 1
    for attribute, expected in ((release_threshold, 0), (follow_events, 1)):
        value = world.buffer()
        world.must("cuMemPoolGetAttribute", world["CUmemoryPool"], attribute, value)
        assert int.from_bytes(value.raw[:4], "little") == expected


@says("cuGraphNodeSetParams", "The type in the parameters is that of the node.")
def _(world: World) -> None:
    kernel_type = world.buffer((0).to_bytes(4, "little"))
    assert world.code("cuGraphNodeSetParams", world["CUgraphNode"], kernel_type) != 0


@says("cuKernelGetName", "A null kernel or a null result is an invalid value.")
def _(world: World) -> None:
    assert world.code("cuKernelGetName", world.buffer(), None) == INVALID_VALUE
    assert world.code("cuKernelGetName", None, world["CUkernel"]) == INVALID_VALUE


@says("cuDeviceGetName", "A name that is longer than the caller's room is cut, and ends with a zero byte.")
def _(world: World) -> None:
    room = world.buffer(b"x" * 16)
    world.must("cuDeviceGetName", room, 8, 0)
    assert room.raw[:9].index(0) == 7
    assert room.raw[8:9] == b"x"


def levels_of(world: World, asked: int) -> int:
    array, level, count = world.array(levels=asked), world.buffer(), 0
    while world.code("cuMipmappedArrayGetLevel", level, array, count) == 0:
        count += 1
    return count


@says("cuMipmappedArrayCreate", "The number of levels is at most 1 + log2 of the longest extent.")
def _(world: World) -> None:
    assert levels_of(world, 100) == 1 + 6


@says("cuFuncIsLoaded", "A module that is loaded eagerly has loaded functions.")
def _(world: World) -> None:
    assert integer(world, "cuFuncIsLoaded", world["CUfunction"]) == 1


@says("cuDeviceGetP2PAttribute", "Both devices exist, and they are not the same one.")
def _(world: World) -> None:
    assert world.code("cuDeviceGetP2PAttribute", world.buffer(), 2, 0, 0) == INVALID_DEVICE
    assert world.code("cuDeviceGetP2PAttribute", world.buffer(), 2, 0, 99) == INVALID_DEVICE


@says("cuGraphMemcpyNodeGetParams", "They are those that the node was made with.")
def _(world: World) -> None:
    host, device = 1, 2
    copy = bytearray(200)
    copy[32:36] = host.to_bytes(4, "little")
    source = world.pinned()
    copy[40:48] = source.to_bytes(8, "little")
    copy[120:124] = device.to_bytes(4, "little")
    copy[136:144] = world["CUdeviceptr"].to_bytes(8, "little")
    for place, count in ((176, 64), (184, 1), (192, 1)):
        copy[place : place + 8] = count.to_bytes(8, "little")
    given, found = world.buffer(bytes(copy)), world.buffer()
    node = world.out("cuGraphAddMemcpyNode", world["CUgraph"], None, 0, given, world["CUcontext"])
    world.must("cuGraphMemcpyNodeGetParams", node, found)
    assert found.raw[:200] == bytes(copy)


@says("cuKernelSetAttribute", "What can only be read is an invalid value.")
def _(world: World) -> None:
    registers, dynamic_shared = 4, 8
    assert world.code("cuKernelSetAttribute", registers, 1, world["CUkernel"], 0) == INVALID_VALUE
    world.must("cuKernelSetAttribute", dynamic_shared, 1024, world["CUkernel"], 0)
    assert integer(world, "cuKernelGetAttribute", dynamic_shared, world["CUkernel"], 0) == 1024


@says("cuKernelGetAttribute", "What is set of the function counts, and the kernel still answers its own value.")
def _(world: World) -> None:
    dynamic_shared, function = 8, world.out("cuKernelGetFunction", world["CUkernel"])
    world.must("cuFuncSetAttribute", function, dynamic_shared, 2048)
    world.must("cuKernelSetAttribute", dynamic_shared, 1024, world["CUkernel"], 0)
    assert integer(world, "cuKernelGetAttribute", dynamic_shared, world["CUkernel"], 0) == 1024
    assert integer(world, "cuFuncGetAttribute", dynamic_shared, function) == 2048


@says("cuTensorMapEncodeIm2colWide", "Only cards of compute capability 10.0 and newer have it.")
def _(world: World) -> None:
    major = integer(world, "cuDeviceGetAttribute", 75, 0)
    words = world.buffer((1).to_bytes(8, "little") * 16)
    code = world.code(
        "cuTensorMapEncodeIm2colWide", world.buffer(), 0, 3, None, words, words, 0, 0, 1, 1, words, 0, 0, 0, 0, 0
    )
    assert major >= 10 or code == NOT_SUPPORTED


@says("cuArray3DCreate_v2", "Without height and depth it has one dimension, and depth alone is none.")
def _(world: World) -> None:
    for height, depth, expected in ((0, 0, 0), (64, 0, 0), (64, 2, 0), (0, 2, INVALID_VALUE)):
        words = b"".join(value.to_bytes(8, "little") for value in (64, height, depth))
        shape = world.buffer(words + (0x20).to_bytes(4, "little") + (1).to_bytes(4, "little"))
        assert world.code("cuArray3DCreate_v2", world.buffer(), shape) == expected, (height, depth)


@says("cuModuleGetLoadingMode", "It is eager or lazy.")
def _(world: World) -> None:
    assert integer(world, "cuModuleGetLoadingMode") in (1, 2)


@says("cuDeviceGetExecAffinitySupport", "The answer is 1 or 0.")
def _(world: World) -> None:
    assert integer(world, "cuDeviceGetExecAffinitySupport", 0, 0) in (0, 1)


def work_is_done_after(world: World, wait: Callable[[], int], stream: int) -> None:
    host = world.pinned()
    target = (ctypes.c_ubyte * 4096).from_address(host)
    world.must("cuMemsetD8Async", world["CUdeviceptr"], 7, 4096, stream)
    world.must("cuMemcpyDtoHAsync_v2", host, world["CUdeviceptr"], 4096, stream)
    assert wait() == 0
    assert set(target) == {7}


@says("cuCtxSynchronize_v2", "For the primary context it waits for the work of green contexts, too.")
def _(world: World) -> None:
    stream = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0)
    work_is_done_after(world, lambda: world.code("cuCtxSynchronize_v2", world["CUcontext"]), stream)


@says("cuCtxSynchronize", "All that was asked for before is done when it returns.")
def _(world: World) -> None:
    work_is_done_after(world, lambda: world.code("cuCtxSynchronize"), world["CUstream"])


@says("cuLibraryLoadData", "A library needs no current context.")
def _(world: World) -> None:
    world.must("cuCtxSetCurrent", None)
    assert world["CUlibrary"]


@says("cuGraphGetRootNodes", "Places beyond the nodes that there are become null, and the number is the real one.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1))
    assert listed(world, "cuGraphGetRootNodes", graph, 3) == ([nodes[0], None, None], 1)


@says("cuMemAllocPitch_v2", "Elements have 4, 8 or 16 bytes, and the pitch is at least the width.")
def _(world: World) -> None:
    pitch = ctypes.c_size_t()
    for element, expected in ((4, 0), (8, 0), (16, 0), (2, INVALID_VALUE), (32, INVALID_VALUE)):
        got = world.code("cuMemAllocPitch_v2", world.buffer(), ctypes.byref(pitch), 100, 4, element)
        assert got == expected, element
    assert pitch.value >= 100


@says("cuStreamGetPriority", "A priority out of the range is the nearest one in it.")
def _(world: World) -> None:
    least, greatest = ctypes.c_int(), ctypes.c_int()
    world.must("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    for asked, expected in ((-1000, greatest.value), (1000, least.value)):
        stream, found = ctypes.c_void_p(), ctypes.c_int()
        world.must("cuStreamCreateWithPriority", ctypes.byref(stream), 1, ctypes.c_int(asked))
        world.must("cuStreamGetPriority", stream, ctypes.byref(found))
        assert found.value == expected


# Chosen by hand.


@says("cuCtxGetApiVersion", "A null context is the current one.")
def _(world: World) -> None:
    version = ctypes.c_uint()
    world.must("cuCtxGetApiVersion", None, ctypes.byref(version))
    assert version.value >= 3010


@says("cuCtxSetCacheConfig", "What is set is what is read, and nothing beyond the four.")
def _(world: World) -> None:
    world.must("cuCtxSetCacheConfig", 2)
    assert integer(world, "cuCtxGetCacheConfig") == 2
    assert world.code("cuCtxSetCacheConfig", 4) == INVALID_VALUE


@says("cuFuncGetName", "The name is the one in the image.")
def _(world: World) -> None:
    name = ctypes.c_char_p()
    world.must("cuFuncGetName", ctypes.byref(name), world["CUfunction"])
    assert name.value == b"nothing"


@says("cuFuncGetParamInfo", "An index beyond the last parameter is an invalid value.")
def _(world: World) -> None:
    assert world.code("cuFuncGetParamInfo", world["CUfunction"], 0, world.buffer(), None) == INVALID_VALUE


@says("cuGraphClone", "Changes of the original do not reach the clone.")
def _(world: World) -> None:
    graph, _nodes = graph_of(world, nodes=2)
    clone = world.out("cuGraphClone", graph)
    world.out("cuGraphAddEmptyNode", graph, None, 0)
    assert listed(world, "cuGraphGetNodes", clone, 5)[1] == 2


@says("cuGraphNodeFindInClone", "The copy of a node is in the clone, and is not the node itself.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, nodes=1)
    clone = world.out("cuGraphClone", graph)
    found = world.out("cuGraphNodeFindInClone", nodes[0], clone)
    assert found != nodes[0]
    assert found in listed(world, "cuGraphGetNodes", clone, 1)[0]


@says("cuGraphDestroyNode", "The edges of the node go with it.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1), (1, 2), nodes=3)
    world.must("cuGraphDestroyNode", nodes[1])
    count = ctypes.c_size_t()
    world.must("cuGraphGetEdges", graph, None, None, ctypes.byref(count))
    assert count.value == 0


@says("cuUserObjectRelease", "More references than there are is an invalid value.")
def _(world: World) -> None:
    assert world.code("cuUserObjectRelease", world["CUuserObject"], 2) == INVALID_VALUE


@says("cuUserObjectRetain", "A reference that is retained can be released.")
def _(world: World) -> None:
    world.must("cuUserObjectRetain", world["CUuserObject"], 2)
    world.must("cuUserObjectRelease", world["CUuserObject"], 3)
    assert world.code("cuUserObjectRelease", world["CUuserObject"], 1) == INVALID_VALUE


@says("cuMemPoolTrimTo", "Memory that is in use stays.")
def _(world: World) -> None:
    address = world.out("cuMemAllocAsync", 4096, world["CUstream"])
    world.must("cuMemPoolTrimTo", world["CUmemoryPool"], 0)
    world.must("cuMemsetD8Async", address, 1, 4096, world["CUstream"])


@says("cuMemGetAddressRange_v2", "The base and the size of the allocation around an address; either may be null.")
def _(world: World) -> None:
    base, bytes_ = ctypes.c_uint64(), ctypes.c_size_t()
    memory = world["CUdeviceptr"]
    world.must("cuMemGetAddressRange_v2", ctypes.byref(base), None, memory + 100)
    world.must("cuMemGetAddressRange_v2", None, ctypes.byref(bytes_), memory + 100)
    assert (base.value, bytes_.value) == (memory, 4096)


@says("cuMemHostGetFlags", "Those that the memory was allocated with.")
def _(world: World) -> None:
    portable = 1
    host = world.out("cuMemHostAlloc", 4096, portable)
    flags = ctypes.c_uint()
    world.must("cuMemHostGetFlags", ctypes.byref(flags), host)
    assert flags.value & portable


@says("cuPointerGetAttributes", "An address that the driver does not know is no error.")
def _(world: World) -> None:
    which, value = (ctypes.c_int * 1)(2), ctypes.c_uint(77)
    data = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    world.must("cuPointerGetAttributes", 1, which, data, ctypes.addressof(world.buffer()))
    assert value.value == 0


@says("cuDeviceGetUuid_v2", "The same device has the same identity.")
def _(world: World) -> None:
    one, other = world.buffer(), world.buffer()
    world.must("cuDeviceGetUuid_v2", one, 0)
    world.must("cuDeviceGetUuid_v2", other, 0)
    assert one.raw[:16] == other.raw[:16] != bytes(16)


@says("cuDeviceTotalMem_v2", "It is what a context reports as the total.")
def _(world: World) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    world.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert size(world, "cuDeviceTotalMem_v2", 0) == total.value


@says("cuGraphNodeSetEnabled", "An empty node cannot be switched off.")
def _(world: World) -> None:
    assert world.code("cuGraphNodeSetEnabled", world["CUgraphExec"], world["CUgraphNode"], 0) == INVALID_VALUE


@says("cuGraphGetEdges_v2", "From and to are both given, or neither.")
def _(world: World) -> None:
    graph, _nodes = graph_of(world, (0, 1))
    count = ctypes.c_size_t(1)
    assert world.code("cuGraphGetEdges_v2", graph, world.buffer(), None, None, ctypes.byref(count)) == INVALID_VALUE


@says("cuGraphAddDependencies", "An edge that is there is an invalid value.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1))
    pair = (ctypes.c_void_p * 1)(nodes[0]), (ctypes.c_void_p * 1)(nodes[1])
    assert world.code("cuGraphAddDependencies", graph, *pair, 1) == INVALID_VALUE


@says("cuModuleGetGlobal_v2", "A null place for the address or for the size is passed over.")
def _(world: World) -> None:
    bytes_ = ctypes.c_size_t()
    world.must("cuModuleGetGlobal_v2", None, ctypes.byref(bytes_), world["CUmodule"], b"variable")
    assert bytes_.value == 4


@says("cuLibraryEnumerateKernels", "At most as many handles as there is room for.")
def _(world: World) -> None:
    handles = (ctypes.c_void_p * 2)(1, 1)
    world.must("cuLibraryEnumerateKernels", handles, 1, world["CUlibrary"])
    assert list(handles) == [world["CUkernel"], 1]


@says("cuModuleGetFunctionCount", "The number of kernels in the module.")
def _(world: World) -> None:
    assert integer(world, "cuModuleGetFunctionCount", world["CUmodule"]) == 1


@says("cuThreadExchangeStreamCaptureMode", "The mode that was set before is given back.")
def _(world: World) -> None:
    mode = ctypes.c_int(2)
    world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 0
    world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 2


@says("cuStreamGetId", "Every stream has its own.")
def _(world: World) -> None:
    ids = set()
    for stream in (world["CUstream"], world["capturing"], None):
        value = ctypes.c_uint64()
        world.must("cuStreamGetId", stream, ctypes.byref(value))
        ids.add(value.value)
    assert len(ids) == 3


@says("cuEventElapsedTime", "An event that was never recorded, or that keeps no time, is an invalid handle.")
def _(world: World) -> None:
    milliseconds, untimed = ctypes.c_float(), world.out("cuEventCreate", 2)
    world.must("cuEventRecord", untimed, world["CUstream"])
    for other in (untimed, world.out("cuEventCreate", 0)):
        assert world.code("cuEventElapsedTime", ctypes.byref(milliseconds), world["CUevent"], other) == 400


@says("cuStreamIsCapturing", "It is asked without harm to the capture.")
def _(world: World) -> None:
    stream, status = world["capturing"], ctypes.c_int()
    world.must("cuStreamBeginCapture_v2", stream, 0)
    world.must("cuStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 1
    world.must("cuStreamEndCapture", stream, world.buffer())


@says("cuLaunchHostFunc", "The function is called after what was queued before, with its argument.")
def _(world: World) -> None:
    host, seen = world.pinned(), []
    world.must("cuMemsetD8Async", host, 7, 1, world["CUstream"])

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(given: int) -> None:
        seen.append((given, ctypes.c_ubyte.from_address(host).value))

    world.must("cuLaunchHostFunc", world["CUstream"], function, 5)
    world.must("cuStreamSynchronize", world["CUstream"])
    assert seen == [(5, 7)]


@says("cuGraphRetainUserObject", "Moved references are the graph's, and no longer the caller's.")
def _(world: World) -> None:
    own = world.out("cuUserObjectCreate", None, nothing, 1, 1)
    graph = world.out("cuGraphCreate", 0)
    world.must("cuGraphRetainUserObject", graph, own, 1, 1)
    assert world.code("cuUserObjectRelease", own, 1) == INVALID_VALUE
    world.must("cuGraphReleaseUserObject", graph, own, 1)


@says("cuDevicePrimaryCtxGetState", "The flags and whether the context is active.")
def _(world: World) -> None:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    world.must("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    world.must("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert (flags.value, active.value) == (4, 1)
