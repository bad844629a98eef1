"""Sentences of the driver's header about single functions, in our own words, each with a program that tries it.

A program gets a `World` (world.py) with the primary context current; the same programs run on the software driver and
on a card. SEEDED are functions that a seed chose among all that were modelled; the others of the first hundred were
chosen by hand.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from .world import CALLBACK, PTX, World

# random.Random(34).sample() of the 324 functions that were modelled when they were chosen, without the two that have no
# sentence: cuGetExportTable and cuProfilerStart are of another header, or undocumented.
SEEDED = {
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
    "cuModuleGetLoadingMode",
    "cuModuleLoadData",
    "cuStreamGetGreenCtx",
    "cuStreamGetPriority",
    "cuTensorMapEncodeIm2colWide",
}

INVALID_VALUE, INVALID_DEVICE, INVALID_PTX, UNSUPPORTED_PTX, INVALID_HANDLE = 1, 101, 218, 222, 400
ILLEGAL_STATE, NOT_FOUND = 401, 500
PRIMARY_ACTIVE, CONTEXT_IS_DESTROYED, NOT_PERMITTED, NOT_SUPPORTED, INVALID_CONFIGURATION = 708, 709, 800, 801, 915
INVALID_CONTEXT = 201
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT, DETACHED = 900, 901, 906, 917
Check = Callable[[World], Any]


class Sentence(NamedTuple):
    function: str
    text: str
    check: Check
    since: int  # the first driver version that the sentence holds for,
    until: int  # and the first one after that which says something else

    def holds_for(self, version: int) -> bool:
        return self.since <= version < self.until


# By their numbers, which the rows of functions.def name.
SENTENCES: dict[int, Sentence] = {}


def says(number: int, function: str, text: str, since: int = 0, until: int = 99999) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        assert number not in SENTENCES
        SENTENCES[number] = Sentence(function, text, check, since, until)
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


@says(1, "cuModuleLoadData", "PTX text that ends with a zero byte is loaded into the current context.")
def _(world: World) -> None:
    module = world.out("cuModuleLoadData", world.buffer(PTX))
    assert world.out("cuModuleGetFunction", module, b"nothing")


@says(2, "cuLaunchKernel", "A CUkernel is taken where a function is due; a block has threads, and a grid has blocks.")
def _(world: World) -> None:
    assert launch(world, world["CUkernel"], world["CUstream"]) == 0
    assert launch(world, world["CUfunction"], world["CUstream"], threads=0) == INVALID_VALUE


@says(3, "cuStreamGetGreenCtx", "Null for a stream of the primary context; the green context for one of its streams.")
def _(world: World) -> None:
    found = ctypes.c_void_p(1)
    world.must("cuStreamGetGreenCtx", world["CUstream"], ctypes.byref(found))
    assert found.value is None
    stream = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0)
    world.must("cuStreamGetGreenCtx", stream, ctypes.byref(found))
    assert found.value == world["CUgreenCtx"]


@says(4, "cuCtxGetCurrent", "Without a current context the result is null, and the call succeeds.")
def _(world: World) -> None:
    world.must("cuCtxSetCurrent", None)
    assert world.out("cuCtxGetCurrent") == 0


@says(5, "cuGraphExecEventWaitNodeSetEvent", "The node of the graph itself stays as it is.")
def _(world: World) -> None:
    graph, other = world.out("cuGraphCreate", 0), world.out("cuEventCreate", 0)
    node = world.out("cuGraphAddEventWaitNode", graph, None, 0, world["CUevent"])
    exec_ = world.out("cuGraphInstantiateWithFlags", graph, 0)
    world.must("cuGraphExecEventWaitNodeSetEvent", exec_, node, other)
    found = ctypes.c_void_p()
    world.must("cuGraphEventWaitNodeGetEvent", node, ctypes.byref(found))
    assert found.value == world["CUevent"]


@says(6, "cuCtxGetDevResource", "The SMs of a green context are those that it was made with.")
def _(world: World) -> None:
    context = world.out("cuCtxFromGreenCtx", world["CUgreenCtx"])
    found = world.buffer()
    world.must("cuCtxGetDevResource", context, found, 1)
    assert found.raw[96:100] == world.resource().raw[96:100]


@says(7, "cuMemAlloc_v2", "No bytes are an invalid value.")
def _(world: World) -> None:
    assert (code := world.code("cuMemAlloc_v2", world.buffer(), 0)) == INVALID_VALUE, code


@says(8, "cuLibraryGetKernel", "A name that the library has no kernel of is not found.")
def _(world: World) -> None:
    assert (code := world.code("cuLibraryGetKernel", world.buffer(), world["CUlibrary"], b"missing")) == NOT_FOUND, code


def description_of_two_splits(world: World) -> int:
    groups = []
    for least in (8, 16):
        group, count = world.buffer(), ctypes.c_uint(1)
        world.must("cuDevSmResourceSplitByCount", group, ctypes.byref(count), world.resource(), None, 0, least)
        groups.append(group.raw[:144])
    joined = world.buffer(b"".join(groups))
    return world.code("cuDevResourceGenerateDesc", world.buffer(), joined, 2)


@says(9, "cuDevResourceGenerateDesc", "Resources of SMs are outputs of one split call.", since=13010)
def _(world: World) -> None:
    assert description_of_two_splits(world) == INVALID_CONFIGURATION


@says(133, "cuDevResourceGenerateDesc", "Resources of two split calls make a description.", until=13010)
def _(world: World) -> None:
    assert description_of_two_splits(world) == 0


@says(
    10,
    "cuMemPoolGetAttribute",
    "A pool keeps nothing above its use, and reuses what events allow, unless told otherwise.",
)
def _(world: World) -> None:
    release_threshold, follow_events = 4, 1
    for attribute, expected in ((release_threshold, 0), (follow_events, 1)):
        value = world.buffer()
        world.must("cuMemPoolGetAttribute", world["CUmemoryPool"], attribute, value)
        assert int.from_bytes(value.raw[:4], "little") == expected


@says(11, "cuGraphNodeSetParams", "The type in the parameters is that of the node.")
def _(world: World) -> None:
    kernel_type = world.buffer((0).to_bytes(4, "little"))
    assert world.code("cuGraphNodeSetParams", world["CUgraphNode"], kernel_type) != 0


@says(12, "cuKernelGetName", "A null kernel or a null result is an invalid value.")
def _(world: World) -> None:
    assert (code := world.code("cuKernelGetName", world.buffer(), None)) == INVALID_VALUE, code
    assert (code := world.code("cuKernelGetName", None, world["CUkernel"])) == INVALID_VALUE, code


@says(13, "cuDeviceGetName", "A name that is longer than the caller's room is cut, and ends with a zero byte.")
def _(world: World) -> None:
    room = world.buffer(b"x" * 16)
    world.must("cuDeviceGetName", room, 8, 0)
    assert room.raw[:9].index(0) == 7
    assert room.raw[8:9] == b"x"


@says(15, "cuFuncIsLoaded", "A module that is loaded eagerly has loaded functions.")
def _(world: World) -> None:
    assert integer(world, "cuFuncIsLoaded", world["CUfunction"]) == 1


@says(16, "cuDeviceGetP2PAttribute", "Both devices exist, and they are not the same one.")
def _(world: World) -> None:
    assert (code := world.code("cuDeviceGetP2PAttribute", world.buffer(), 2, 0, 0)) == INVALID_DEVICE, code
    assert (code := world.code("cuDeviceGetP2PAttribute", world.buffer(), 2, 0, 99)) == INVALID_DEVICE, code


@says(17, "cuGraphMemcpyNodeGetParams", "They are those that the node was made with.")
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


@says(18, "cuKernelSetAttribute", "What can only be read is an invalid value.")
def _(world: World) -> None:
    registers, dynamic_shared = 4, 8
    assert (code := world.code("cuKernelSetAttribute", registers, 1, world["CUkernel"], 0)) == INVALID_VALUE, code
    world.must("cuKernelSetAttribute", dynamic_shared, 1024, world["CUkernel"], 0)
    assert integer(world, "cuKernelGetAttribute", dynamic_shared, world["CUkernel"], 0) == 1024


@says(19, "cuKernelGetAttribute", "What is set of the function counts, and the kernel still answers its own value.")
def _(world: World) -> None:
    dynamic_shared, function = 8, world.out("cuKernelGetFunction", world["CUkernel"])
    world.must("cuFuncSetAttribute", function, dynamic_shared, 2048)
    world.must("cuKernelSetAttribute", dynamic_shared, 1024, world["CUkernel"], 0)
    assert integer(world, "cuKernelGetAttribute", dynamic_shared, world["CUkernel"], 0) == 1024
    assert integer(world, "cuFuncGetAttribute", dynamic_shared, function) == 2048


@says(20, "cuTensorMapEncodeIm2colWide", "Only cards of compute capability 10.0 and newer have it.")
def _(world: World) -> None:
    major = integer(world, "cuDeviceGetAttribute", 75, 0)
    words = world.buffer((1).to_bytes(8, "little") * 16)
    code = world.code(
        "cuTensorMapEncodeIm2colWide", world.buffer(), 0, 3, None, words, words, 0, 0, 1, 1, words, 0, 0, 0, 0, 0
    )
    assert major >= 10 or code != 0


@says(22, "cuModuleGetLoadingMode", "It is eager or lazy.")
def _(world: World) -> None:
    assert integer(world, "cuModuleGetLoadingMode") in (1, 2)


@says(23, "cuDeviceGetExecAffinitySupport", "The answer is 1 or 0.")
def _(world: World) -> None:
    assert integer(world, "cuDeviceGetExecAffinitySupport", 0, 0) in (0, 1)


def work_is_done_after(world: World, wait: Callable[[], int], stream: int) -> None:
    host = world.pinned()
    target = (ctypes.c_ubyte * 4096).from_address(host)
    world.must("cuMemsetD8Async", world["CUdeviceptr"], 7, 4096, stream)
    world.must("cuMemcpyDtoHAsync_v2", host, world["CUdeviceptr"], 4096, stream)
    assert wait() == 0
    assert set(target) == {7}


@says(24, "cuCtxSynchronize_v2", "For the primary context it waits for the work of green contexts, too.", since=13000)
def _(world: World) -> None:
    stream = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0)
    work_is_done_after(world, lambda: world.code("cuCtxSynchronize_v2", world["CUcontext"]), stream)


@says(25, "cuCtxSynchronize", "All that was asked for before is done when it returns.")
def _(world: World) -> None:
    work_is_done_after(world, lambda: world.code("cuCtxSynchronize"), world["CUstream"])


@says(26, "cuLibraryLoadData", "A library needs no current context.")
def _(world: World) -> None:
    world.must("cuCtxSetCurrent", None)
    assert world["CUlibrary"]


@says(27, "cuGraphGetRootNodes", "Places beyond the nodes that there are become null, and the number is the real one.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1))
    assert listed(world, "cuGraphGetRootNodes", graph, 3) == ([nodes[0], None, None], 1)


@says(28, "cuMemAllocPitch_v2", "Elements have 4, 8 or 16 bytes, and the pitch is at least the width.")
def _(world: World) -> None:
    for element, expected in ((4, 0), (8, 0), (16, 0), (2, INVALID_VALUE), (32, INVALID_VALUE)):
        pitch = ctypes.c_size_t()
        got = world.code("cuMemAllocPitch_v2", world.buffer(), ctypes.byref(pitch), 100, 4, element)
        assert (element, got) == (element, expected)
        assert got != 0 or pitch.value >= 100


@says(29, "cuStreamGetPriority", "A priority out of the range is the nearest one in it.")
def _(world: World) -> None:
    least, greatest = ctypes.c_int(), ctypes.c_int()
    world.must("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    for asked, expected in ((-1000, greatest.value), (1000, least.value)):
        stream, found = ctypes.c_void_p(), ctypes.c_int()
        world.must("cuStreamCreateWithPriority", ctypes.byref(stream), 1, ctypes.c_int(asked))
        world.must("cuStreamGetPriority", stream, ctypes.byref(found))
        assert found.value == expected


# Chosen by hand.


@says(30, "cuCtxGetApiVersion", "A null context is the current one.")
def _(world: World) -> None:
    version = ctypes.c_uint()
    world.must("cuCtxGetApiVersion", None, ctypes.byref(version))
    assert version.value >= 3010


@says(31, "cuCtxSetCacheConfig", "What is set is what is read, and nothing beyond the four.")
def _(world: World) -> None:
    world.must("cuCtxSetCacheConfig", 2)
    assert integer(world, "cuCtxGetCacheConfig") == 2
    assert (code := world.code("cuCtxSetCacheConfig", 4)) == INVALID_VALUE, code


@says(32, "cuFuncGetName", "The name is the one in the image.")
def _(world: World) -> None:
    name = ctypes.c_char_p()
    world.must("cuFuncGetName", ctypes.byref(name), world["CUfunction"])
    assert name.value == b"nothing"


@says(33, "cuFuncGetParamInfo", "An index beyond the last parameter is an invalid value.")
def _(world: World) -> None:
    assert (code := world.code("cuFuncGetParamInfo", world["CUfunction"], 0, world.buffer(), None)) == INVALID_VALUE, (
        code
    )


@says(34, "cuGraphClone", "Changes of the original do not reach the clone.")
def _(world: World) -> None:
    graph, _nodes = graph_of(world, nodes=2)
    clone = world.out("cuGraphClone", graph)
    world.out("cuGraphAddEmptyNode", graph, None, 0)
    assert listed(world, "cuGraphGetNodes", clone, 5)[1] == 2


@says(35, "cuGraphNodeFindInClone", "The copy of a node is in the clone, and is not the node itself.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, nodes=1)
    clone = world.out("cuGraphClone", graph)
    found = world.out("cuGraphNodeFindInClone", nodes[0], clone)
    assert found != nodes[0]
    assert found in listed(world, "cuGraphGetNodes", clone, 1)[0]


@says(36, "cuGraphDestroyNode", "The edges of the node go with it.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1), (1, 2), nodes=3)
    world.must("cuGraphDestroyNode", nodes[1])
    count = ctypes.c_size_t()
    world.must("cuGraphGetEdges", graph, None, None, ctypes.byref(count))
    assert count.value == 0


def destroyed_soon(world: World, release: Callable[[int], Any]) -> bool:
    """Whether the destructor of a user object runs after what `release` does with its one reference."""
    called = threading.Event()
    destroy = CALLBACK(lambda _: called.set())
    world.keep.append(destroy)
    release(world.out("cuUserObjectCreate", None, destroy, 1, 1))
    return called.wait(5)


@says(37, "cuUserObjectRelease", "The last release calls the destructor.")
def _(world: World) -> None:
    assert destroyed_soon(world, lambda own: world.must("cuUserObjectRelease", own, 1))


@says(38, "cuUserObjectRetain", "References that are retained can be released.")
def _(world: World) -> None:
    world.must("cuUserObjectRetain", world["CUuserObject"], 2)
    world.must("cuUserObjectRelease", world["CUuserObject"], 3)


@says(39, "cuMemPoolTrimTo", "Memory that is in use stays.")
def _(world: World) -> None:
    address = world.out("cuMemAllocAsync", 4096, world["CUstream"])
    world.must("cuMemPoolTrimTo", world["CUmemoryPool"], 0)
    world.must("cuMemsetD8Async", address, 1, 4096, world["CUstream"])


@says(40, "cuMemGetAddressRange_v2", "The base and the size of the allocation around an address; either may be null.")
def _(world: World) -> None:
    base, bytes_ = ctypes.c_uint64(), ctypes.c_size_t()
    memory = world["CUdeviceptr"]
    world.must("cuMemGetAddressRange_v2", ctypes.byref(base), None, memory + 100)
    world.must("cuMemGetAddressRange_v2", None, ctypes.byref(bytes_), memory + 100)
    assert (base.value, bytes_.value) == (memory, 4096)


@says(41, "cuMemHostGetFlags", "Those that the memory was allocated with.")
def _(world: World) -> None:
    portable = 1
    host = world.out("cuMemHostAlloc", 4096, portable)
    flags = ctypes.c_uint()
    world.must("cuMemHostGetFlags", ctypes.byref(flags), host)
    assert flags.value & portable


@says(42, "cuPointerGetAttributes", "An address that the driver does not know is no error.")
def _(world: World) -> None:
    which, value = (ctypes.c_int * 1)(2), ctypes.c_uint(77)
    data = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    world.must("cuPointerGetAttributes", 1, which, data, ctypes.addressof(world.buffer()))
    assert value.value == 0


@says(43, "cuDeviceGetUuid_v2", "The same device has the same identity.")
def _(world: World) -> None:
    one, other = world.buffer(), world.buffer()
    world.must("cuDeviceGetUuid_v2", one, 0)
    world.must("cuDeviceGetUuid_v2", other, 0)
    assert one.raw[:16] == other.raw[:16] != bytes(16)


@says(44, "cuDeviceTotalMem_v2", "It is what a context reports as the total.")
def _(world: World) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    world.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert size(world, "cuDeviceTotalMem_v2", 0) == total.value


@says(45, "cuGraphNodeSetEnabled", "An empty node cannot be switched off.")
def _(world: World) -> None:
    assert (
        code := world.code("cuGraphNodeSetEnabled", world["CUgraphExec"], world["CUgraphNode"], 0)
    ) == INVALID_VALUE, code


@says(46, "cuGraphGetEdges_v2", "From and to are both given, or neither.")
def _(world: World) -> None:
    graph, _nodes = graph_of(world, (0, 1))
    count = ctypes.c_size_t(1)
    assert (
        code := world.code("cuGraphGetEdges_v2", graph, world.buffer(), None, None, ctypes.byref(count))
    ) == INVALID_VALUE, code


@says(47, "cuGraphAddDependencies", "An edge that is there is an invalid value.")
def _(world: World) -> None:
    graph, nodes = graph_of(world, (0, 1))
    pair = (ctypes.c_void_p * 1)(nodes[0]), (ctypes.c_void_p * 1)(nodes[1])
    assert (code := world.code("cuGraphAddDependencies", graph, *pair, 1)) == INVALID_VALUE, code


@says(48, "cuModuleGetGlobal_v2", "A null place for the address or for the size is passed over.")
def _(world: World) -> None:
    bytes_ = ctypes.c_size_t()
    world.must("cuModuleGetGlobal_v2", None, ctypes.byref(bytes_), world["CUmodule"], b"variable")
    assert bytes_.value == 4


@says(49, "cuLibraryEnumerateKernels", "At most as many handles as there is room for.")
def _(world: World) -> None:
    handles = (ctypes.c_void_p * 2)(1, 1)
    world.must("cuLibraryEnumerateKernels", handles, 1, world["CUlibrary"])
    assert list(handles) == [world["CUkernel"], 1]


@says(50, "cuModuleGetFunctionCount", "The number of kernels in the module.")
def _(world: World) -> None:
    assert integer(world, "cuModuleGetFunctionCount", world["CUmodule"]) == 1


@says(51, "cuThreadExchangeStreamCaptureMode", "The mode that was set before is given back.")
def _(world: World) -> None:
    mode = ctypes.c_int(2)
    world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 0
    world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 2


@says(52, "cuStreamGetId", "Every stream has its own.")
def _(world: World) -> None:
    ids = set()
    for stream in (world["CUstream"], world["capturing"], None):
        value = ctypes.c_uint64()
        world.must("cuStreamGetId", stream, ctypes.byref(value))
        ids.add(value.value)
    assert len(ids) == 3


@says(53, "cuEventElapsedTime", "An event that was never recorded, or that keeps no time, is an invalid handle.")
def _(world: World) -> None:
    milliseconds, untimed = ctypes.c_float(), world.out("cuEventCreate", 2)
    world.must("cuEventRecord", untimed, world["CUstream"])
    for other in (untimed, world.out("cuEventCreate", 0)):
        assert (code := world.code("cuEventElapsedTime", ctypes.byref(milliseconds), world["CUevent"], other)) == 400, (
            code
        )


@says(54, "cuStreamIsCapturing", "It is asked without harm to the capture.")
def _(world: World) -> None:
    stream, status = world["capturing"], ctypes.c_int()
    world.must("cuStreamBeginCapture_v2", stream, 0)
    world.must("cuStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 1
    world.must("cuStreamEndCapture", stream, world.buffer())


@says(55, "cuLaunchHostFunc", "The function is called after what was queued before, with its argument.")
def _(world: World) -> None:
    host, seen = world.pinned(), []
    world.must("cuMemsetD8Async", host, 7, 1, world["CUstream"])

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(given: int) -> None:
        seen.append((given, ctypes.c_ubyte.from_address(host).value))

    world.must("cuLaunchHostFunc", world["CUstream"], function, 5)
    world.must("cuStreamSynchronize", world["CUstream"])
    assert seen == [(5, 7)]


@says(56, "cuGraphRetainUserObject", "Moved references are the graph's, and go with it.")
def _(world: World) -> None:
    def move(own: int) -> None:
        graph = world.out("cuGraphCreate", 0)
        world.must("cuGraphRetainUserObject", graph, own, 1, 1)
        world.must("cuGraphDestroy", graph)

    assert destroyed_soon(world, move)


@says(57, "cuDevicePrimaryCtxGetState", "The flags and whether the context is active.")
def _(world: World) -> None:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    world.must("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    world.must("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert (flags.value, active.value) == (4, 1)


# From 100 on: sentences that this driver was once found to break.


def asked_by_another_thread(world: World, mode: int, call: Callable[[], int]) -> int:
    """A call of a thread with a capture mode of its own."""
    answers: list[int] = []

    def ask() -> None:
        world.must("cuCtxSetCurrent", world["CUcontext"])
        world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(mode)))
        answers.append(call())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers[0]


@says(100, "cuEventQuery", "A watchdog that asks an event ends a global capture of another thread.")
def _(world: World) -> None:
    capturing, event = world["capturing"], world["CUevent"]
    world.must("cuStreamBeginCapture_v2", capturing, 0)
    assert asked_by_another_thread(world, 0, lambda: world.code("cuEventQuery", event)) == CAPTURE_UNSUPPORTED
    assert (code := world.code("cuStreamEndCapture", capturing, world.buffer())) == CAPTURE_INVALIDATED, code


@says(101, "cuThreadExchangeStreamCaptureMode", "A thread whose own mode is not global may ask during such a capture.")
def _(world: World) -> None:
    capturing, event = world["capturing"], world["CUevent"]
    world.must("cuStreamBeginCapture_v2", capturing, 0)
    assert asked_by_another_thread(world, 1, lambda: world.code("cuEventQuery", event)) == 0
    assert (code := world.code("cuStreamEndCapture", capturing, world.buffer())) == 0, code


@says(102, "cuStreamAddCallback", "A callback may not make, free or destroy what is not of a stream, nor ask a device.")
def _(world: World) -> None:
    stream, out, codes = world["capturing"], world.buffer(), []
    calls = (
        ("cuMemFree_v2", world["CUdeviceptr"]),
        ("cuGreenCtxDestroy", world["CUgreenCtx"]),
        ("cuDevicePrimaryCtxRetain", out, 0),
        ("cuCtxSetCurrent", world["CUcontext"]),
        ("cuMemAlloc_v2", out, 64),
        ("cuDeviceGetCount", out),
    )

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def callback(*_: Any) -> None:
        codes.extend((call[0], world.code(*call)) for call in calls)

    world.must("cuStreamAddCallback", stream, callback, None, 0)
    world.must("cuStreamSynchronize", stream)
    assert codes == [(call[0], NOT_PERMITTED) for call in calls]


@says(127, "cuLaunchHostFunc", "What is asked of streams and events inside a function is answered (recorded).")
def _(world: World) -> None:
    stream, other, codes = world["capturing"], world["CUstream"], []
    event = world["CUevent"]

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(_: int) -> None:
        codes.append(world.code("cuEventRecord", event, other))
        codes.append(world.code("cuStreamGetId", other, world.buffer()))

    world.must("cuLaunchHostFunc", stream, function, None)
    world.must("cuStreamSynchronize", stream)
    assert codes == [0, 0]


def own_context(world: World) -> int:
    """A context that cuCtxCreate made, current."""
    return world.out("cuCtxCreate_v2", 0, 0)


def used(world: World) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    world.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


@says(103, "cuCtxDestroy_v2", "Memory of the context goes with it.")
def _(world: World) -> None:
    context = own_context(world)
    memory = world.out("cuMemAlloc_v2", 64 << 20)
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", world["CUcontext"])
    assert (code := world.code("cuMemcpyDtoH_v2", world.buffer(), memory, 4)) == INVALID_VALUE, code
    assert (code := world.code("cuMemFree_v2", memory)) == INVALID_VALUE, code


@says(104, "cuCtxDestroy_v2", "Modules of the context go with it and say so, and so do their functions (recorded).")
def _(world: World) -> None:
    context = own_context(world)
    module = world.out("cuModuleLoadData", world.buffer(PTX))
    function = world.out("cuModuleGetFunction", module, b"nothing")
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", world["CUcontext"])
    assert (code := world.code("cuModuleUnload", module)) == CONTEXT_IS_DESTROYED, code
    assert (code := world.code("cuFuncLoad", function)) == INVALID_HANDLE, code


@says(106, "cuCtxDestroy_v2", "Events of the context cannot be used any more.")
def _(world: World) -> None:
    context = own_context(world)
    event = world.out("cuEventCreate", 0)
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", world["CUcontext"])
    assert (code := world.code("cuEventRecord", event, None)) == CONTEXT_IS_DESTROYED, code


@says(107, "cuCtxDestroy_v2", "All memory that the context had can be had again.")
def _(world: World) -> None:
    before = used(world)
    context = own_context(world)
    world.out("cuMemAlloc_v2", 64 << 20)
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", world["CUcontext"])
    assert used(world) == before


@says(108, "cuCtxDestroy_v2", "Work of the context is done before its memory goes.")
def _(world: World) -> None:
    host = world.pinned()
    context = own_context(world)
    stream, memory = world.out("cuStreamCreate", 1), world.out("cuMemAlloc_v2", 1 << 20)
    world.must("cuMemsetD8Async", memory, 7, 1 << 20, stream)
    world.must("cuMemcpyDtoHAsync_v2", host, memory, 4096, stream)
    world.must("cuCtxDestroy_v2", context)
    assert set((ctypes.c_ubyte * 4096).from_address(host)) == {7}


@says(
    109,
    "cuDevicePrimaryCtxRelease_v2",
    "The last release ends memory and modules of the context, and not what pools gave (recorded).",
)
def _(world: World) -> None:
    memory, module = world["CUdeviceptr"], world["CUmodule"]
    pooled = world.out("cuMemAllocAsync", 1 << 20, world["CUstream"])
    world.must("cuDevicePrimaryCtxRelease_v2", 0)
    world.must("cuCtxSetCurrent", world.out("cuDevicePrimaryCtxRetain", 0))
    assert (code := world.code("cuMemFree_v2", memory)) == INVALID_VALUE, code
    assert (code := world.code("cuModuleUnload", module)) == INVALID_HANDLE, code
    world.must("cuMemFree_v2", pooled)


@says(110, "cuLaunchKernel", "A function is of the context that its module was loaded in.")
def _(world: World) -> None:
    function = world["CUfunction"]
    own_context(world)
    assert launch(world, function, world.out("cuStreamCreate", 1)) == INVALID_HANDLE


@says(111, "cuLaunchKernel", "A kernel of a library is of every context.")
def _(world: World) -> None:
    kernel = world["CUkernel"]
    own_context(world)
    assert launch(world, kernel, world.out("cuStreamCreate", 1)) == 0


def external_event(world: World, call: str, asked: str, kind: int, *given: int) -> None:
    stream, graph, count = world["capturing"], ctypes.c_void_p(), ctypes.c_size_t(1)
    assert (code := world.code(call, *given)) == ILLEGAL_STATE, code
    world.must("cuStreamBeginCapture_v2", stream, 0)
    world.must(call, *given)
    world.must("cuStreamEndCapture", stream, ctypes.byref(graph))
    node, found, named = (ctypes.c_void_p * 1)(), ctypes.c_int(), ctypes.c_void_p()
    world.must("cuGraphGetNodes", graph, node, ctypes.byref(count))
    assert count.value == 1
    world.must("cuGraphNodeGetType", node[0], ctypes.byref(found))
    world.must(asked, node[0], ctypes.byref(named))
    assert (found.value, named.value) == (kind, world["CUevent"])


@says(
    112,
    "cuEventRecordWithFlags",
    "An external record is a node of the graph, and an illegal state outside of a capture.",
)
def _(world: World) -> None:
    given = (world["CUevent"], world["capturing"], 1)
    external_event(world, "cuEventRecordWithFlags", "cuGraphEventRecordNodeGetEvent", 7, *given)


@says(113, "cuStreamWaitEvent", "An external wait is a node of the graph, and an illegal state outside of a capture.")
def _(world: World) -> None:
    given = (world["capturing"], world["CUevent"], 1)
    external_event(world, "cuStreamWaitEvent", "cuGraphEventWaitNodeGetEvent", 6, *given)


@says(114, "cuStreamBeginCapture_v2", "Work on the legacy stream ends the capture of a blocking stream.")
def _(world: World) -> None:
    memory = world["CUdeviceptr"]
    for flags, expected, end in ((0, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED), (1, 0, 0)):
        stream = world.out("cuStreamCreate", flags)
        world.must("cuStreamBeginCapture_v2", stream, 2)
        assert (code := world.code("cuMemsetD8Async", memory, 0, 64, None)) == expected, code
        assert (code := world.code("cuStreamEndCapture", stream, world.buffer())) == end, code


def refuses_flags(call: Callable[[int], int]) -> None:
    for flags in (3, 5, 6, 7, 0x100):
        assert (flags, call(flags)) == (flags, INVALID_VALUE)


@says(115, "cuCtxCreate_v2", "A context has one way to wait.")
def _(world: World) -> None:
    refuses_flags(lambda flags: world.code("cuCtxCreate_v2", world.buffer(), flags, 0))


@says(116, "cuDevicePrimaryCtxSetFlags_v2", "A context has one way to wait.")
def _(world: World) -> None:
    refuses_flags(lambda flags: world.code("cuDevicePrimaryCtxSetFlags_v2", 0, flags))


@says(117, "cuCtxSetFlags", "A context has one way to wait.")
def _(world: World) -> None:
    refuses_flags(lambda flags: world.code("cuCtxSetFlags", flags))


@says(118, "cuCtxSetLimit", "A stack that no thread can have is an invalid value.")
def _(world: World) -> None:
    assert (code := world.code("cuCtxSetLimit", 0, 1 << 40)) == INVALID_VALUE, code


@says(119, "cuCtxGetLimit", "What persists in the L2 cache is at most what the card allows.")
def _(world: World) -> None:
    l2_bytes, most = 6, integer(world, "cuDeviceGetAttribute", 108, 0)
    assert (code := world.code("cuCtxSetLimit", l2_bytes, most + (1 << 30))) == INVALID_VALUE, code
    world.must("cuCtxSetLimit", l2_bytes, most)
    assert size(world, "cuCtxGetLimit", l2_bytes) == most


def loads(world: World, changes: dict[tuple[bytes, bytes], int]) -> None:
    for (old, new), expected in changes.items():
        image, out = world.buffer(PTX.replace(old, new)), world.buffer()
        code = world.code("cuModuleLoadData", out, image)
        assert (new, code) == (new, expected), code


@says(120, "cuModuleLoadData", "PTX of a version that the driver does not know is refused.")
def _(world: World) -> None:
    loads(world, {(b"7.0", b"9.9"): UNSUPPORTED_PTX})


@says(121, "cuModuleLoadData", "PTX for a newer card is refused, and for this one it is taken from its version on.")
def _(world: World) -> None:
    old, new = b"7.0\n.target sm_70", b"8.0\n.target sm_90a"
    loads(world, {(b"sm_70", b"sm_120"): INVALID_PTX, (b"sm_70", b"sm_90a"): INVALID_PTX, (old, new): 0})


@says(122, "cuModuleLoadData", "Text that is no PTX is refused, and PTX is taken.")
def _(world: World) -> None:
    text = b"ld.global.v2.u32 {%r1, %r2}, [%rd1]; @%p bra end; end: ret;"
    declared = b".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p; " + text
    loads(world, {(b"ret;", b"this is no instruction;"): INVALID_PTX, (b"ret;", declared): 0})


@says(128, "cuLibraryLoadData", "What the driver cannot compile is refused where it is used (recorded).")
def _(world: World) -> None:
    image = world.buffer(PTX.replace(b"7.0", b"9.9"))
    library = world.out("cuLibraryLoadData", image, None, None, 0, None, None, 0)
    assert (code := world.code("cuLibraryGetModule", world.buffer(), library)) == UNSUPPORTED_PTX, code


@says(123, "cuGraphInstantiateWithFlags", "A graph for the device cannot free its memory by itself.")
def _(world: World) -> None:
    assert (
        code := world.code("cuGraphInstantiateWithFlags", world.buffer(), world["CUgraph"], 1 | 4)
    ) == INVALID_VALUE, code


@says(124, "cuStreamDestroy_v2", "Work of a stream that is destroyed goes on, and the context waits for it.")
def _(world: World) -> None:
    stream, host = world.out("cuStreamCreate", 1), world.pinned()
    target = (ctypes.c_ubyte * 4096).from_address(host)
    world.must("cuMemsetD8Async", world["CUdeviceptr"], 7, 4096, stream)
    world.must("cuMemcpyDtoHAsync_v2", host, world["CUdeviceptr"], 4096, stream)
    world.must("cuStreamDestroy_v2", stream)
    world.must("cuCtxSynchronize")
    assert set(target) == {7}


@says(
    125, "cuGreenCtxDestroy", "Work of a green context that is destroyed goes on, and the primary context waits for it."
)
def _(world: World) -> None:
    stream, host = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0), world.pinned()
    target = (ctypes.c_ubyte * 4096).from_address(host)
    world.must("cuMemsetD8Async", world["CUdeviceptr"], 7, 4096, stream)
    world.must("cuMemcpyDtoHAsync_v2", host, world["CUdeviceptr"], 4096, stream)
    world.must("cuGreenCtxDestroy", world["CUgreenCtx"])
    world.must("cuCtxSynchronize")
    assert set(target) == {7}


@says(126, "cuGetErrorString", "What the driver says of an error, word by word.")
def _(world: World) -> None:
    for code, expected in ((1, b"invalid argument"), (101, b"invalid device ordinal")):
        text = ctypes.c_char_p()
        world.must("cuGetErrorString", code, ctypes.byref(text))
        assert text.value == expected


@says(129, "cuDevicePrimaryCtxSetFlags", "Its first version wants a context that is not active (recorded).")
def _(world: World) -> None:
    assert (code := world.code("cuDevicePrimaryCtxSetFlags", 0, 0)) == PRIMARY_ACTIVE, code


@says(130, "cuGraphGetNodes", "A list with room for nothing is an invalid value (recorded).")
def _(world: World) -> None:
    graph, nodes = graph_of(world)
    count = ctypes.c_size_t(0)
    code = world.code("cuGraphGetNodes", graph, (ctypes.c_void_p * 2)(), ctypes.byref(count))
    assert code == INVALID_VALUE, code
    assert listed(world, "cuGraphGetNodes", graph, 2) == (nodes, 2)


@says(131, "cuMemcpyPeerAsync", "A copy between devices is not captured, and ends the capture (recorded).")
def _(world: World) -> None:
    stream, memory, context = world["capturing"], world["CUdeviceptr"], world["CUcontext"]
    world.must("cuMemcpyPeerAsync", memory, context, memory + 64, context, 64, stream)
    world.must("cuStreamBeginCapture_v2", stream, 2)
    code = world.code("cuMemcpyPeerAsync", memory, context, memory + 64, context, 64, stream)
    assert code == CAPTURE_UNSUPPORTED, code
    assert (code := world.code("cuStreamEndCapture", stream, world.buffer())) == CAPTURE_INVALIDATED, code


@says(132, "cuStreamWriteValue32", "Its first version is there where the attribute of the device says so.")
def _(world: World) -> None:
    offered, memory = integer(world, "cuDeviceGetAttribute", 92, 0), world["CUdeviceptr"]
    code = world.code("cuStreamWriteValue32", world["CUstream"], memory, 1, 0)
    assert code == (0 if offered else NOT_SUPPORTED), code
    world.must("cuStreamWriteValue32_v2", world["CUstream"], memory, 1, 0)


# Sentences that one header says, and another does not: `since` and `until` are the versions of these headers.


def after_its_green_context(world: World) -> tuple[int, int]:
    """The answers of a question about a stream, and of its end, when the stream's green context is gone."""
    stream = world.out("cuGreenCtxStreamCreate", world["CUgreenCtx"], 1, 0)
    world.must("cuGreenCtxDestroy", world["CUgreenCtx"])
    return world.code("cuStreamQuery", stream), world.code("cuStreamDestroy_v2", stream)


@says(134, "cuGreenCtxDestroy", "Calls with its streams, also their end, say that the context is gone.", until=13010)
def _(world: World) -> None:
    assert after_its_green_context(world) == (CONTEXT_IS_DESTROYED, CONTEXT_IS_DESTROYED)


@says(135, "cuGreenCtxDestroy", "Its streams are detached, and can be destroyed.", since=13010)
def _(world: World) -> None:
    assert after_its_green_context(world) == (DETACHED, 0)


def tensor_of_2_to_the(world: World, power: int) -> int:
    """A tensor of bytes in one dimension, from which one copy takes 16."""
    size, box, step = ((value).to_bytes(8, "little") for value in (1 << power, 16, 1))
    shape = world.buffer(size), None, world.buffer(box), world.buffer(step), 0, 0, 0, 0
    return world.code("cuTensorMapEncodeTiled", world.buffer(), 0, 1, world["CUdeviceptr"], *shape)


@says(136, "cuTensorMapEncodeTiled", "A dimension has 2^32 elements at most.", until=13050)
def _(world: World) -> None:
    assert (tensor_of_2_to_the(world, 32), tensor_of_2_to_the(world, 33)) == (0, INVALID_VALUE)


@says(137, "cuTensorMapEncodeTiled", "A dimension has 2^31 elements at most.", since=13050)
def _(world: World) -> None:
    assert (tensor_of_2_to_the(world, 31), tensor_of_2_to_the(world, 32)) == (0, INVALID_VALUE)


def node_of_two_contexts(world: World) -> int:
    """Adds a node with a function of the primary context that names another context."""
    function, other = world["CUfunction"], own_context(world)
    words = [0, 0, function, *[1 | 1 << 32] * 3, 0, 0, 0, 0, other]
    parameters = world.buffer(b"".join(word.to_bytes(8, "little") for word in words))
    world.must("cuCtxSetCurrent", world["CUcontext"])
    return world.code("cuGraphAddNode", world.buffer(), world["CUgraph"], None, 0, parameters)


@says(138, "cuGraphAddNode", "Beside a function, the context that is named is ignored (recorded).", until=13040)
def _(world: World) -> None:
    assert (code := node_of_two_contexts(world)) == 0, code


@says(139, "cuGraphAddNode", "A function and the context that is named are of one context.", since=13040)
def _(world: World) -> None:
    assert (code := node_of_two_contexts(world)) == INVALID_CONTEXT, code


def pool_at(world: World, kind: int) -> int:
    pinned, nothing_shared = 1, 0
    words = (pinned, nothing_shared, kind, 0)
    return world.code(
        "cuMemPoolCreate", world.buffer(), world.buffer(b"".join(one.to_bytes(4, "little") for one in words))
    )


@says(140, "cuMemPoolCreate", "Memory of the host is of a NUMA node that has a number.", since=12060, until=13000)
def _(world: World) -> None:
    host, current = 2, 4
    assert (pool_at(world, host), pool_at(world, current)) == (INVALID_VALUE, INVALID_VALUE)


@says(141, "cuMemPoolCreate", "Memory of the host is of any NUMA node, or of one that has a number.", since=13000)
def _(world: World) -> None:
    host, current = 2, 4
    assert (pool_at(world, host), pool_at(world, current)) == (0, INVALID_VALUE)


def fill_made_lower(world: World) -> tuple[int, int]:
    """Answers of an executable fill of two rows to another value, and to one row less."""
    graph, nodes = world.out("cuGraphCreate", 0), []

    def fill(value: int, rows: int) -> Any:
        pitch, width = 64, 16
        words = world["CUdeviceptr"], pitch, value | 1 << 32, width, rows
        return world.buffer(b"".join(word.to_bytes(8, "little") for word in words))

    nodes.append(world.out("cuGraphAddMemsetNode", graph, None, 0, fill(1, 2), world["CUcontext"]))
    exec_ = world.out("cuGraphInstantiateWithFlags", graph, 0)
    given = [fill(2, 2), fill(2, 1)]
    one, other = (
        world.code("cuGraphExecMemsetNodeSetParams", exec_, nodes[0], how, world["CUcontext"]) for how in given
    )
    return one, other


@says(142, "cuGraphExecMemsetNodeSetParams", "A fill of several rows stays as it is.", until=12060)
def _(world: World) -> None:
    assert fill_made_lower(world) == (INVALID_VALUE, INVALID_VALUE)


@says(143, "cuGraphExecMemsetNodeSetParams", "A fill of several rows changes its address and value.", since=12060)
def _(world: World) -> None:
    assert fill_made_lower(world) == (0, INVALID_VALUE)
