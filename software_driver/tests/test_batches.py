"""Batches of copies, and attributes of streams and of kernel nodes."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json

import pytest

from cuda_software_driver import session

from .common import run_on_machine
from .objects import Device
from .raw import Raw

INVALID_VALUE, NOT_SUPPORTED = 1, 801
STREAM_ORDER, DURING_CALL = 1, 2
PRIORITY, SYNC_POLICY, COOPERATIVE = 8, 3, 2
BINDINGS = importlib.metadata.version("cuda-bindings")


class Attributes(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


class Copies:
    """Four buffers of a device, and a batch that copies the first two to the last two."""

    def __init__(self, raw: Raw, order: int = STREAM_ORDER) -> None:
        self.raw = raw
        self.memory = [raw.handle("cuMemAlloc_v2", ctypes.c_size_t(64)) for _ in range(4)]
        for value, address in enumerate(self.memory, 1):
            raw.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(64))
        self.targets = (ctypes.c_uint64 * 2)(*self.memory[2:])
        self.sources = (ctypes.c_uint64 * 2)(*self.memory[:2])
        self.sizes = (ctypes.c_size_t * 2)(64, 32)
        self.attributes = (Attributes * 1)(Attributes(order))
        self.firsts = (ctypes.c_size_t * 1)(0)

    def run(self, stream: int, *failed: object) -> int:
        name = "cuMemcpyBatchAsync" if failed else "cuMemcpyBatchAsync_v2"
        arrays = (self.targets, self.sources, self.sizes, ctypes.c_size_t(2), self.attributes, self.firsts)
        return self.raw.code(name, *arrays, ctypes.c_size_t(1), *failed, ctypes.c_void_p(stream))

    def found(self) -> list[str]:
        """The first and the last byte of both targets."""
        texts = []
        for address in self.targets:
            bytes_ = ctypes.create_string_buffer(64)
            self.raw.call("cuMemcpyDtoH_v2", bytes_, ctypes.c_uint64(address), ctypes.c_size_t(64))
            texts.append(bytes_.raw[:1].hex() + bytes_.raw[-1:].hex())
        return texts


@pytest.mark.parametrize("driver", ["12.8", "13.0", "13.5"])
def test_batch_copies_in_the_order_of_its_stream(driver: str) -> None:
    with session("h200", driver=driver, check=False):
        dev = Device()
        dev.raw.set_current(dev.handle)
        copies = Copies(dev.raw)
        with dev.create_stream() as stream:
            assert copies.run(stream.handle, None) == 0
            stream.sync()
            assert copies.found() == ["0101", "0204"]
            if driver != "12.8":
                assert copies.run(stream.handle) == 0


def test_batch_that_cannot_be_copies_nothing_and_says_which_copy() -> None:
    with session("h200", driver="12.8", check=False):
        dev = Device()
        dev.raw.set_current(dev.handle)
        copies = Copies(dev.raw)
        failed = ctypes.c_size_t()
        with dev.create_stream() as stream:
            copies.sizes[1] = 65
            assert copies.run(stream.handle, ctypes.byref(failed)) == INVALID_VALUE
            assert failed.value == 1
            copies.sizes[1] = 32
            copies.attributes[0].order = 0
            assert copies.run(stream.handle, None) == INVALID_VALUE
            copies.attributes[0].order = STREAM_ORDER
            copies.firsts[0] = 1
            assert copies.run(stream.handle, None) == INVALID_VALUE
            copies.firsts[0] = 0
            assert copies.run(0, None) == INVALID_VALUE
            stream.sync()
            assert copies.found() == ["0303", "0404"]


def test_source_may_go_when_the_call_returns() -> None:
    with session("h200", check=False):
        dev = Device()
        dev.raw.set_current(dev.handle)
        copies = Copies(dev.raw, DURING_CALL)
        source = ctypes.create_string_buffer(b"\x07" * 64)
        copies.sources[0] = ctypes.addressof(source)
        with dev.create_stream() as stream:
            assert copies.run(stream.handle) == 0
            ctypes.memset(source, 9, 64)
            stream.sync()
            assert copies.found()[0] == "0707"


NODES = """
import ctypes, json
from cuda.bindings import driver as cu

def value(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

def code(answer):
    return int(answer[0])

value((*cu.cuInit(0), 0))
cu.cuCtxSetCurrent(value(cu.cuDevicePrimaryCtxRetain(0)))
memory = [value(cu.cuMemAlloc(64)) for _ in range(4)]
for number, address in enumerate(memory, 1):
    cu.cuMemsetD8(address, number, 64)
resource = value(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
groups, _, _ = value(cu.cuDevSmResourceSplitByCount(1, resource, 0, 8))
green = value(cu.cuGreenCtxCreate(value(cu.cuDevResourceGenerateDesc(groups, 1)), 0, 1))

SIZES, FIRSTS = (ctypes.c_size_t * 2)(64, 32), (ctypes.c_size_t * 1)(0)

def parameters(sources, context=None):
    attributes = cu.CUmemcpyAttributes()
    attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    made = cu.CUgraphNodeParams()
    made.type = cu.CUgraphNodeType(14)
    batch = made.memcpyBatch
    batch.set_dsts_srcs(memory[2:], sources)
    batch.sizes = SIZES
    batch.attrs = [attributes]
    batch.attrsIdxs = FIRSTS
    if context is not None:
        batch.gCtx = context
    return made

answers = {}
graph = value(cu.cuGraphCreate(0))
node = value(cu.cuGraphAddNode(graph, None, None, 0, parameters(memory[:2], green)))
answers["type"] = int(value(cu.cuGraphNodeGetType(node)))
run = value(cu.cuGraphInstantiate(graph, 0))
stream = value(cu.cuStreamCreate(1))

def replay():
    cu.cuGraphLaunch(run, stream)
    cu.cuStreamSynchronize(stream)
    found = []
    for address in memory[2:]:
        bytes_ = bytearray(64)
        cu.cuMemcpyDtoH(bytes_, address, 64)
        found.append([bytes_[0], bytes_[63]])
    return found

answers["first"] = replay()
changed = parameters([memory[1], memory[0]], green)
answers["changed"] = [code(cu.cuGraphExecNodeSetParams(run, node, changed)), replay()]
elsewhere = parameters(memory[:2], int(value(cu.cuCtxGetCurrent())))
answers["other context"] = code(cu.cuGraphExecNodeSetParams(run, node, elsewhere))
answers["off"] = code(cu.cuGraphNodeSetEnabled(run, node, 0))
cu.cuMemsetD8(memory[2], 9, 64)
answers["while off"] = replay()[0]
print(json.dumps(answers))
"""


@pytest.mark.skipif(
    tuple(map(int, BINDINGS.split(".")[:2])) < (13, 5),
    reason=f"cuda-bindings {BINDINGS} know no nodes of batches, which 13.5 do",
)
def test_node_of_a_batch_names_a_green_context() -> None:
    done = run_on_machine(NODES, machine="h200@13.5")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "type": 14,
        "first": [[1, 1], [2, 4]],
        "changed": [0, [[2, 2], [1, 4]]],
        "other context": INVALID_VALUE,
        "off": 0,
        "while off": [9, 9],
    }


def test_attributes_of_streams_are_kept_and_copied_within_a_context() -> None:
    with session("h200", check=False):
        dev = Device()
        raw = dev.raw
        value, found = (ctypes.c_int * 16)(), (ctypes.c_int * 16)()
        with dev.create_stream() as one, dev.create_stream() as other, dev.green() as green:
            handle = ctypes.c_void_p(one.handle)
            for attribute, given, kept in ((PRIORITY, -99, -5), (SYNC_POLICY, 4, 4)):
                value[0] = given
                raw.call("cuStreamSetAttribute", handle, attribute, value)
                raw.call("cuStreamCopyAttributes", ctypes.c_void_p(other.handle), handle)
                raw.call("cuStreamGetAttribute", ctypes.c_void_p(other.handle), attribute, found)
                assert found[0] == kept
            priority = ctypes.c_int()
            raw.call("cuStreamGetPriority", ctypes.c_void_p(other.handle), ctypes.byref(priority))
            assert priority.value == -5
            value[0] = 5
            assert raw.code("cuStreamSetAttribute", handle, SYNC_POLICY, value) == INVALID_VALUE
            assert raw.code("cuStreamSetAttribute", handle, COOPERATIVE, value) == INVALID_VALUE
            with green.create_stream() as far:
                assert raw.code("cuStreamCopyAttributes", ctypes.c_void_p(far.handle), handle) == INVALID_VALUE


PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry alone() { ret; }\n\0"


def test_attributes_of_a_kernel_node_are_set_and_copied() -> None:
    with session("h200", check=False):
        dev = Device()
        raw = dev.raw
        raw.set_current(dev.handle)
        library = raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        kernel = raw.handle("cuLibraryGetKernel", ctypes.c_void_p(library), b"alone")
        graph, nodes = ctypes.c_void_p(), ctypes.c_size_t(2)
        with dev.create_stream() as stream:
            handle = ctypes.c_void_p(stream.handle)
            raw.call("cuStreamBeginCapture_v2", handle, 0)
            for _ in range(2):
                raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), 1, 1, 1, 32, 1, 1, 0, handle, None, None)
            raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        found = (ctypes.c_void_p * 2)()
        raw.call("cuGraphGetNodes", graph, found, ctypes.byref(nodes))
        first, second = (ctypes.c_void_p(node) for node in found)
        value = (ctypes.c_int * 16)(-3)
        raw.call("cuGraphKernelNodeSetAttribute", first, PRIORITY, value)
        raw.call("cuGraphKernelNodeCopyAttributes", second, first)
        answer = (ctypes.c_int * 16)()
        raw.call("cuGraphKernelNodeGetAttribute", second, PRIORITY, answer)
        assert answer[0] == -3
        assert raw.code("cuGraphKernelNodeSetAttribute", first, SYNC_POLICY, value) == INVALID_VALUE
