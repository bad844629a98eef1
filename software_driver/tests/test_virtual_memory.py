"""Virtual memory, as cuda.bindings calls it: what is mapped, who may use it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

from .common import run_on_machine

MIB = 1 << 20
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED = 0, 1, 2, 101, 801

END = "\nprint(json.dumps(answers))\n"
BEGIN = """
import ctypes, json, os
from cuda.bindings import driver as cu

GRAIN = 2 << 20

def code(answer):
    return int(answer[0])

def value(answer):
    assert code(answer) == 0, answer
    found = answer[1] if len(answer) == 2 else answer[1:]
    return int(found) if isinstance(found, cu.CUdeviceptr) else found

def properties(device=0, shared=False):
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.requestedHandleTypes = cu.CUmemAllocationHandleType(1 if shared else 0)
    return made

def access(flags=3, device=0):
    made = cu.CUmemAccessDesc()
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.flags = cu.CUmemAccess_flags(flags)
    return [made]

def read(address, size):
    found = ctypes.create_string_buffer(size)
    return code(cu.cuMemcpyDtoH(found, address, size)), found.raw

value((*cu.cuInit(0), 0))
context = value(cu.cuDevicePrimaryCtxRetain(0))
cu.cuCtxSetCurrent(context)
answers = {}
"""


def answers(program: str, *arguments: str) -> Any:
    """What a program answers that cuda.bindings runs on the software driver."""
    done = run_on_machine(BEGIN + program + END, *arguments, machine="h200@13.0,devices=2")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memory_is_there_where_it_is_mapped_and_as_long() -> None:
    found = answers("""
first, second = (value(cu.cuMemCreate(2 * GRAIN, properties(), 0)) for _ in range(2))
address = value(cu.cuMemAddressReserve(8 * GRAIN, 0, 0, 0))
answers["not mapped"] = code(cu.cuMemsetD8(address, 1, 1))
cu.cuMemMap(address, 2 * GRAIN, 0, first, 0)
cu.cuMemMap(address + 2 * GRAIN, 2 * GRAIN, 0, second, 0)
answers["no access"] = code(cu.cuMemsetD8(address, 1, 1))
answers["access"] = code(cu.cuMemSetAccess(address, 4 * GRAIN, access(), 1))
# One fill over both, and two addresses of one piece of memory.
answers["filled"] = code(cu.cuMemsetD8(address + GRAIN, 7, 2 * GRAIN))
cu.cuMemMap(address + 6 * GRAIN, 2 * GRAIN, 0, first, 0)
cu.cuMemSetAccess(address + 6 * GRAIN, 2 * GRAIN, access(1), 1)
answers["same bytes"] = read(address + 7 * GRAIN, 2)[1].hex()
answers["read only"] = code(cu.cuMemsetD8(address + 6 * GRAIN, 1, 1))
answers["gap"] = code(cu.cuMemsetD8(address + 3 * GRAIN, 1, 2 * GRAIN))
where = cu.CUmemLocation()
where.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
flags = []
for device in (0, 1):
    where.id = device
    flags.append(value(cu.cuMemGetAccess(where, address)))
answers["flags"] = [int(one) for one in flags]
free = value(cu.cuMemGetInfo())[0]
cu.cuMemRelease(first), cu.cuMemRelease(second)
answers["released"] = value(cu.cuMemGetInfo())[0] - free
retained = value(cu.cuMemRetainAllocationHandle(address + 5))
answers["retained"] = [int(retained) == int(first), code(cu.cuMemRelease(retained)), code(cu.cuMemRelease(retained))]
answers["part"] = code(cu.cuMemUnmap(address, GRAIN))
answers["unmapped"] = [code(cu.cuMemUnmap(address, 4 * GRAIN)), value(cu.cuMemGetInfo())[0] - free]
answers["occupied"] = code(cu.cuMemAddressFree(address, 8 * GRAIN))
answers["last"] = [code(cu.cuMemUnmap(address + 6 * GRAIN, 2 * GRAIN)), value(cu.cuMemGetInfo())[0] - free]
answers["after"] = code(cu.cuMemsetD8(address, 1, 1))
answers["freed"] = [code(cu.cuMemAddressFree(address, size * GRAIN)) for size in (7, 8, 8)]
""")
    assert found == {
        "not mapped": INVALID_VALUE,
        "no access": INVALID_VALUE,
        "access": SUCCESS,
        "filled": SUCCESS,
        "same bytes": "0707",
        "read only": INVALID_VALUE,
        "gap": INVALID_VALUE,
        "flags": [3, 0],
        "released": 0,
        "retained": [True, SUCCESS, INVALID_VALUE],
        "part": INVALID_VALUE,
        "unmapped": [SUCCESS, 4 * MIB],
        "occupied": INVALID_VALUE,
        "last": [SUCCESS, 8 * MIB],
        "after": INVALID_VALUE,
        "freed": [INVALID_VALUE, SUCCESS, INVALID_VALUE],
    }


def test_what_the_header_excludes_is_refused() -> None:
    found = answers("""
other, managed, host, anywhere = (properties() for _ in range(4))
other.location.id = 2
managed.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
host.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
anywhere.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
answers["create"] = [
    code(cu.cuMemCreate(*arguments))
    for arguments in (
        (0, properties(), 0), (GRAIN + 4096, properties(), 0), (GRAIN, properties(), 1), (1 << 50, properties(), 0),
        (GRAIN, other, 0), (GRAIN, managed, 0), (GRAIN, host, 0), (GRAIN, anywhere, 0),
    )
]
granularities = cu.CUmemAllocationGranularity_flags
answers["granularity"] = [value(cu.cuMemGetAllocationGranularity(properties(), one)) for one in granularities]
answers["reserve"] = [
    code(cu.cuMemAddressReserve(*arguments))
    for arguments in (
        (0, 0, 0, 0), (GRAIN + 1, 0, 0, 0), (GRAIN, 3, 0, 0), (GRAIN, 0, 5, 0), (GRAIN, 0, 0, 1), (1 << 60, 0, 0, 0)
    )
]
handle = value(cu.cuMemCreate(GRAIN, properties(), 0))
address = value(cu.cuMemAddressReserve(4 * GRAIN, 64 * GRAIN, 0, 0))
answers["aligned"] = int(address) % (64 * GRAIN)
answers["map"] = [
    code(cu.cuMemMap(*arguments))
    for arguments in (
        (address, 2 * GRAIN, 0, handle, 0), (address + 4096, GRAIN, 0, handle, 0), (address, GRAIN, GRAIN, handle, 0),
        (address, GRAIN, 0, handle, 1), (address + 4 * GRAIN, GRAIN, 0, handle, 0), (address, GRAIN, 0, 12345, 0),
        (address, GRAIN, 0, handle, 0), (address, GRAIN, 0, handle, 0),
    )
]
kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
answers["export"] = code(cu.cuMemExportToShareableHandle(handle, kind, 0))
reader, writer = os.pipe()
answers["import"] = [code(cu.cuMemImportFromShareableHandle(one, kind)) for one in (reader, 999)]
answers["set access"] = [
    code(cu.cuMemSetAccess(*arguments))
    for arguments in (
        (address, 2 * GRAIN, access(), 1), (address, GRAIN, access(), 0), (address, GRAIN, access(3, 5), 1)
    )
]
plain = value(cu.cuMemAlloc(4096))
answers["plain"] = [code(cu.cuMemUnmap(plain, 4096)), code(cu.cuMemRetainAllocationHandle(int(plain)))]
answers["free"] = code(cu.cuMemFree(address))
""")
    assert found == {
        "create": [*[INVALID_VALUE] * 3, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_VALUE, INVALID_VALUE, NOT_SUPPORTED],
        "granularity": [2 * MIB, 2 * MIB],
        "reserve": [*[INVALID_VALUE] * 5, OUT_OF_MEMORY],
        "aligned": 0,
        "map": [*[INVALID_VALUE] * 6, SUCCESS, INVALID_VALUE],
        "export": INVALID_VALUE,
        "import": [INVALID_VALUE, INVALID_VALUE],
        "set access": [INVALID_VALUE, INVALID_VALUE, INVALID_DEVICE],
        "plain": [INVALID_VALUE, INVALID_VALUE],
        "free": INVALID_VALUE,
    }


def test_streams_wait_for_words_and_write_them() -> None:
    found = answers("""
memory, host = value(cu.cuMemAlloc(64)), value(cu.cuMemHostAlloc(64, 0))
words = (ctypes.c_uint32 * 16).from_address(int(host))
waiting, writing = (value(cu.cuStreamCreate(1)) for _ in range(2))
cu.cuMemsetD8(memory, 0, 64)
ready = lambda: code(cu.cuStreamQuery(waiting))
answers["wait"] = [code(cu.cuStreamWaitValue32(waiting, memory, 5, 0)), ready()]
wrote = lambda: code(cu.cuStreamSynchronize(writing))
answers["write less"] = [code(cu.cuStreamWriteValue32(writing, memory, 4, 0)), wrote(), ready()]
answers["write"] = [code(cu.cuStreamWriteValue32(writing, memory, 6, 0)), code(cu.cuStreamSynchronize(waiting))]
answers["bytes"] = read(memory, 8)[1].hex()
# The host writes what a stream waits for; both kinds of wait that look at bits; a comparison beyond the wrap.
for flags, wanted, word in ((1, 9, 9), (2, 6, 4), (3, 0xFFFFFFFE, 0), (0, 0xFFFFFFF0, 3)):
    words[0] = 0xFFFFFFFF if flags == 3 else 0xEFFFFFFF if flags == 0 else 0
    cu.cuStreamWaitValue32(waiting, host, wanted, flags)
    before = ready()
    words[0] = word
    answers[f"flags {flags}"] = [before, code(cu.cuStreamSynchronize(waiting))]
cu.cuStreamWaitValue64(waiting, memory + 8, 1 << 40, 0)
cu.cuStreamWriteValue64(writing, memory + 8, 1 << 40, 0)
answers["wide"] = [code(cu.cuCtxSynchronize()), read(memory + 8, 8)[1].hex()]
answers["refused"] = [
    code(cu.cuStreamWriteValue32(writing, memory + 2, 1, 0)),
    code(cu.cuStreamWriteValue64(writing, memory + 4, 1, 0)),
    code(cu.cuStreamWriteValue32(writing, 4096, 1, 0)),
    code(cu.cuStreamWriteValue32(writing, memory, 1, 8)),
    code(cu.cuStreamWaitValue32(waiting, memory, 1, 4)),
    code(cu.cuStreamWaitValue32(waiting, memory, 1, 1 << 30)),
    code(cu.cuStreamBatchMemOp(waiting, 0, [], 0)),
]
def operation(kind, address, word):
    made = cu.CUstreamBatchMemOpParams()
    made.operation = kind
    made.writeValue.operation, made.writeValue.address, made.writeValue.value = kind, address, word
    return made
kinds = cu.CUstreamBatchMemOpType
write, wait = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32, kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
batch = [operation(write, memory + 16, 3), operation(wait, memory + 16, 3), operation(write, memory + 20, 4)]
answers["batch"] = [code(cu.cuStreamBatchMemOp(writing, 3, batch, 0)), wrote(), read(memory + 16, 8)[1].hex()]
batch[2] = operation(write, memory + 21, 4)
batch[0] = operation(write, memory + 16, 8)
answers["all or none"] = [code(cu.cuStreamBatchMemOp(writing, 3, batch, 0)), read(memory + 16, 1)[1].hex()]
# In a graph, at each launch.
cu.cuStreamBeginCapture(writing, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
cu.cuStreamWriteValue32(writing, memory + 24, 7, 0)
graph = value(cu.cuStreamEndCapture(writing))
runnable = value(cu.cuGraphInstantiate(graph, 0))
word = lambda: read(memory + 24, 1)[1].hex()
answers["graph"] = [word(), code(cu.cuGraphLaunch(runnable, writing)), wrote(), word()]
""")
    not_ready = 600
    assert found == {
        "wait": [SUCCESS, not_ready],
        "write less": [SUCCESS, SUCCESS, not_ready],
        "write": [SUCCESS, SUCCESS],
        "bytes": "0600000000000000",
        **{f"flags {flags}": [not_ready, SUCCESS] for flags in range(4)},
        "wide": [SUCCESS, "0000000000010000"],
        "refused": [*[INVALID_VALUE] * 5, NOT_SUPPORTED, INVALID_VALUE],
        "batch": [SUCCESS, SUCCESS, "0300000004000000"],
        "all or none": [INVALID_VALUE, "03"],
        "graph": ["00", SUCCESS, SUCCESS, "07"],
    }


# Run by one process for another one: argv has the handles, and standard input what follows.
PEER = """
import sys
kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
imported = value(cu.cuMemImportFromShareableHandle(int(sys.argv[1]), kind))
found = value(cu.cuMemGetAllocationPropertiesFromHandle(imported))
answers["properties"] = [found.location.id, int(found.requestedHandleTypes)]
address = value(cu.cuMemAddressReserve(GRAIN, 0, 0, 0))
cu.cuMemMap(address, GRAIN, 0, imported, 0)
cu.cuMemRelease(imported)
cu.cuMemSetAccess(address, GRAIN, access(), 1)
memory_handle, event_handle = cu.CUipcMemHandle(), cu.CUipcEventHandle()
ctypes.memmove(memory_handle.getPtr(), bytes.fromhex(sys.argv[2]), 64)
ctypes.memmove(event_handle.getPtr(), bytes.fromhex(sys.argv[3]), 64)
opened, again = (value(cu.cuIpcOpenMemHandle(memory_handle, 1)) for _ in range(2))
event = value(cu.cuIpcOpenEventHandle(event_handle))
answers["same"] = int(opened) == int(again)
answers["flags"] = code(cu.cuIpcOpenMemHandle(memory_handle, 0))
stream = value(cu.cuStreamCreate(1))
answers["event"] = code(cu.cuEventQuery(event))
cu.cuStreamWaitEvent(stream, event, 0)
# The parent's stream waits for this word, and its event follows.
cu.cuStreamWriteValue32(value(cu.cuStreamCreate(1)), address + 64, 1, 0)
answers["waited"] = [code(cu.cuStreamSynchronize(stream)), code(cu.cuEventSynchronize(event))]
answers["recorded"] = code(cu.cuEventQuery(event))
answers["seen"] = [read(address, 4)[1].hex(), read(opened, 4)[1].hex()]
cu.cuMemsetD8(opened + 4, 9, 4)
cu.cuMemsetD8(address + 4, 8, 4)
cu.cuCtxSynchronize()
answers["close"] = [code(cu.cuIpcCloseMemHandle(opened)) for _ in range(3)]
ctypes.memmove(memory_handle.getPtr(), bytes(64), 64)
answers["no handle"] = code(cu.cuIpcOpenMemHandle(memory_handle, 1))
"""

PARENT = """
import subprocess, sys
kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
handle = value(cu.cuMemCreate(GRAIN, properties(shared=True), 0))
address = value(cu.cuMemAddressReserve(GRAIN, 0, 0, 0))
cu.cuMemMap(address, GRAIN, 0, handle, 0)
cu.cuMemSetAccess(address, GRAIN, access(), 1)
descriptor = int(value(cu.cuMemExportToShareableHandle(handle, kind, 0)))
cu.cuMemRelease(handle)
filler, memory = value(cu.cuMemAlloc(512)), value(cu.cuMemAlloc(8192))
cu.cuMemsetD8(address, 5, 4)
cu.cuMemsetD8(memory, 6, 4)
hexed = lambda found, size: ctypes.string_at(int(found.getPtr()), size).hex()
memory_handle = value(cu.cuIpcGetMemHandle(memory))
answers["inside"] = [code(cu.cuIpcGetMemHandle(memory + 512)), code(cu.cuIpcGetMemHandle(address))]
answers["own"] = code(cu.cuIpcOpenMemHandle(memory_handle, 1))
event, timed = value(cu.cuEventCreate(6)), cu.cuEventCreate(4)
answers["timed"] = code(timed)
answers["plain event"] = code(cu.cuIpcGetEventHandle(value(cu.cuEventCreate(2))))
stream = value(cu.cuStreamCreate(1))
cu.cuStreamWaitValue32(stream, address + 64, 1, 0)
cu.cuEventRecord(event, stream)
answers["recorded"] = code(cu.cuEventQuery(event))
handles = hexed(memory_handle, 64), hexed(value(cu.cuIpcGetEventHandle(event)), 64)
peer = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], str(descriptor), *handles],
    pass_fds=[descriptor], stdout=subprocess.PIPE, text=True,
)
# This process makes no calls: its stream goes on all the same.
answers["peer"] = json.loads(peer.communicate()[0])
answers["seen"] = [read(address, 8)[1].hex(), read(memory, 8)[1].hex(), code(cu.cuEventQuery(event))]
"""


def test_processes_share_memory_and_events() -> None:
    found = answers(PARENT, BEGIN + PEER + END)
    assert found == {
        "inside": [INVALID_VALUE, INVALID_VALUE],
        "own": 201,
        "timed": INVALID_VALUE,
        "plain event": 400,
        "recorded": 600,
        "peer": {
            "properties": [0, 1],
            "same": True,
            "flags": INVALID_VALUE,
            "event": 600,
            "waited": [SUCCESS, SUCCESS],
            "recorded": SUCCESS,
            "seen": ["05050505", "06060606"],
            "close": [SUCCESS, SUCCESS, INVALID_VALUE],
            "no handle": INVALID_VALUE,
        },
        "seen": ["0505050508080808", "0606060609090909", SUCCESS],
    }


def test_a_handle_of_a_process_that_has_ended_opens_nothing() -> None:
    gone = (
        "handle = value(cu.cuIpcGetMemHandle(value(cu.cuMemAlloc(4096))))\n"
        "answers['handle'] = ctypes.string_at(int(handle.getPtr()), 64).hex()"
    )
    handle = answers(gone)["handle"]
    found = answers(
        "import sys\nhandle = cu.CUipcMemHandle()\nctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)\n"
        "answers['open'] = code(cu.cuIpcOpenMemHandle(handle, 1))",
        handle,
    )
    assert found == {"open": 205}
