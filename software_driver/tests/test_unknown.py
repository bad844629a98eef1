"""Calls that read what was not executed fail: results of kernels, and times of unknown duration."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cuda_software_driver import Session, session

from .common import run_on_machine
from .objects import NOT_READY, Device
from .raw import RawError

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 total;
.visible .global .align 4 .u32 later;
.visible .const .align 4 .u32 limit;
.visible .entry scale(.param .u64 in, .param .u64 out) { wgmma.fence.sync.aligned; ret; }
.visible .entry shift(.param .u64 in, .param .u64 out) { wgmma.fence.sync.aligned; ret; }
.visible .entry boxed(.param .align 8 .b8 box[24]) { wgmma.fence.sync.aligned; ret; }
.visible .entry alone() { wgmma.fence.sync.aligned; ret; }
\0"""
SIZE = 4096
TIMED = 0  # the flags of an event
KERNELS = ("scale", "shift")


class Machine:
    """A session in which kernels of the driver's own interface are launched on the default stream."""

    def __init__(self, sim: Session) -> None:
        self.sim, self.dev = sim, Device()
        self.raw = self.dev.raw
        self.raw.set_current(self.dev.handle)
        self._library = self.raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        self._memory: list[int] = []
        self.host = (ctypes.c_char * SIZE)()

    def close(self) -> None:
        for address in self._memory:
            self.raw.call("cuMemFree_v2", ctypes.c_uint64(address))
        self.raw.call("cuLibraryUnload", ctypes.c_void_p(self._library))
        self.raw.set_current(0)
        self.dev.close()

    def memory(self, size: int = SIZE) -> int:
        self._memory.append(self.raw.handle("cuMemAlloc_v2", ctypes.c_size_t(size)))
        return self._memory[-1]

    def free(self, address: int) -> None:
        self._memory.remove(address)
        self.raw.call("cuMemFree_v2", ctypes.c_uint64(address))

    def launch(self, name: str, *values: Any, stream: int = 0) -> None:
        kernel = self.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self._library), name.encode())
        given = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in values]
        addresses = (ctypes.c_void_p * max(len(given), 1))(*(ctypes.addressof(value) for value in given))
        shape = (1, 1, 1, 32, 1, 1, 0)
        self.raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), *shape, ctypes.c_void_p(stream), addresses, None)

    def read(self, address: int, size: int = SIZE) -> None:
        self.raw.call("cuMemcpyDtoH_v2", self.host, ctypes.c_uint64(address), ctypes.c_size_t(size))

    def write(self, address: int, size: int = SIZE) -> None:
        self.raw.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), self.host, ctypes.c_size_t(size))

    def copy(self, to: int, of: int, size: int = SIZE) -> None:
        self.raw.call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(of), ctypes.c_size_t(size))

    def fill(self, address: int, size: int = SIZE) -> None:
        self.raw.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def read_later(self, into: int, address: int, stream: int) -> None:
        """Queue a copy to pinned host memory."""
        copy = (ctypes.c_void_p(into), ctypes.c_uint64(address), ctypes.c_size_t(SIZE), ctypes.c_void_p(stream))
        self.raw.call("cuMemcpyDtoHAsync_v2", *copy)

    def is_known(self, address: int, size: int = SIZE) -> bool:
        code = self.raw.code("cuMemcpyDtoH_v2", self.host, ctypes.c_uint64(address), ctypes.c_size_t(size))
        assert code in {0, 801}
        return code == 0

    def pinned(self) -> int:
        return self.raw.handle("cuMemHostAlloc", ctypes.c_size_t(SIZE), 0)

    def free_pinned(self, address: int) -> None:
        self.raw.call("cuMemFreeHost", ctypes.c_void_p(address))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with session("h200") as sim:
        made = Machine(sim)
        yield made
        made.close()


READ = """
import ctypes
from cuda_software_driver import library_path

PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry scale(.param .u64 out)"
PTX += b"{ wgmma.fence.sync.aligned; ret; }\\n\\0"

def main():
    driver, context = ctypes.CDLL(library_path()), ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    library, kernel, memory, read = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    driver.cuLibraryLoadData(ctypes.byref(library), PTX, None, None, 0, None, None, 0)
    driver.cuLibraryGetKernel(ctypes.byref(kernel), library, b"scale")
    driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    return driver.cuMemcpyDtoH_v2(ctypes.byref(read), memory, ctypes.c_size_t(4))
"""

NOT_SUPPORTED = "answered 801"
LAUNCH_FAILED = "answered 719"


# ---- what fails


def test_copy_of_a_missing_result_fails_and_names_the_kernel(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    into = machine.memory()
    machine.launch("scale", 0, into)
    for _ in range(2):
        with pytest.raises(RawError, match=f"cuMemcpyDtoH_v2 {NOT_SUPPORTED}"):
            machine.read(into)
        assert "cuMemcpyDtoH_v2 fails: it reads memory that kernel scale writes" in capfd.readouterr().err


def test_program_without_a_session_gets_the_same_answer() -> None:
    program = READ + "\nprint(main())\n"
    for policy, answer in ((None, "801"), ("error", "801"), ("warn", "0"), ("ignore", "0")):
        machine = "h200" if policy is None else f"h200,unknown={policy}"
        command = [sys.executable, "-c", program]
        found = subprocess.run(
            command, env={**os.environ, "CUDA_SOFTWARE_DRIVER_MACHINE": machine}, capture_output=True, text=True
        )
        assert found.stdout.split() == [answer], (policy, found.stderr)
        assert ("kernel scale" in found.stderr) == (policy != "ignore")


@pytest.mark.parametrize("wait", ["stream", "event", "context", "query"])
def test_first_wait_that_covers_a_queued_copy_fails_once(machine: Machine, wait: str) -> None:
    into, pinned = machine.memory(), machine.pinned()
    with machine.dev.create_stream() as stream, stream.record(TIMED) as start:
        start.sync()
        machine.launch("scale", 0, into, stream=stream.handle)
        machine.read_later(pinned, into, stream.handle)

        def query() -> None:
            while (code := machine.raw.code("cuStreamQuery", ctypes.c_void_p(stream.handle))) == NOT_READY:
                pass
            if code:
                raise RawError("cuStreamQuery", code)

        with stream.record(TIMED) as end:
            waits = {"stream": stream.sync, "event": end.sync, "context": machine.dev.sync, "query": query}
            # A copy on another stream does not cover the work.
            machine.read(machine.memory())
            with pytest.raises(RawError, match=NOT_SUPPORTED):
                waits[wait]()
            stream.sync()
            end.sync()
            machine.dev.sync()
    machine.free_pinned(pinned)


def test_failure_travels_to_a_stream_that_waits_for_the_work(machine: Machine) -> None:
    into, pinned = machine.memory(), machine.pinned()
    with machine.dev.create_stream() as first, machine.dev.create_stream() as second:
        machine.launch("scale", 0, into, stream=first.handle)
        machine.read_later(pinned, into, first.handle)
        with first.record(TIMED) as event:
            second.wait(event)
            with pytest.raises(RawError, match=NOT_SUPPORTED):
                second.sync()
            first.sync()
    machine.free_pinned(pinned)


def test_graph_fails_at_its_wait_at_each_launch(machine: Machine) -> None:
    raw, into, pinned = machine.raw, machine.memory(), machine.pinned()
    with machine.dev.create_stream() as stream:
        raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 0)
        machine.launch("scale", 0, into, stream=stream.handle)
        machine.read_later(pinned, into, stream.handle)
        ended = ctypes.c_void_p()
        raw.call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(ended))
        run = raw.handle("cuGraphInstantiateWithFlags", ended, ctypes.c_ulonglong(0))
        for _ in range(2):
            raw.call("cuGraphLaunch", ctypes.c_void_p(run), ctypes.c_void_p(stream.handle))
            with pytest.raises(RawError, match=NOT_SUPPORTED):
                stream.sync()
            stream.sync()
        raw.call("cuGraphExecDestroy", ctypes.c_void_p(run))
        raw.call("cuGraphDestroy", ended)
    machine.free_pinned(pinned)


def test_host_memory_that_a_kernel_should_have_written_fails_the_wait(machine: Machine) -> None:
    pinned = machine.pinned()
    machine.launch("scale", 0, pinned)
    with pytest.raises(RawError, match=NOT_SUPPORTED):
        machine.dev.sync()
    machine.dev.sync()
    machine.free_pinned(pinned)


def test_wait_for_a_word_that_a_kernel_should_have_written_ends_and_fails(machine: Machine) -> None:
    flag = machine.memory()
    machine.launch("scale", 0, flag)
    machine.dev.sync()
    with machine.dev.create_stream() as stream:
        word = (ctypes.c_void_p(stream.handle), ctypes.c_uint64(flag), ctypes.c_uint(77), ctypes.c_uint(1))
        machine.raw.call("cuStreamWaitValue32_v2", *word)
        with pytest.raises(RawError, match=NOT_SUPPORTED):
            stream.sync()
        machine.raw.call("cuStreamWriteValue32_v2", *word[:3], ctypes.c_uint(0))
        machine.raw.call("cuStreamWaitValue32_v2", *word)
        stream.sync()


def test_function_that_raises_fails_the_launch(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(block: Any) -> None:
        raise ValueError(f"block {block.index}")

    into = machine.memory()
    machine.sim.kernel("scale", fail, block_ns=1_000)
    machine.launch("scale", 0, into)
    with pytest.raises(RawError, match=LAUNCH_FAILED):
        machine.dev.sync()
    machine.dev.sync()
    assert not machine.is_known(into)
    assert "ValueError: block 0" in capfd.readouterr().err
    machine.sim.kernel("scale", lambda block: None, block_ns=1_000, reads=[])
    machine.launch("scale", 0, into)
    assert machine.is_known(into)


def test_free_succeeds_although_a_copy_failed(machine: Machine) -> None:
    into, pinned = machine.memory(), machine.pinned()
    machine.launch("scale", 0, into)
    machine.read_later(pinned, into, 0)
    machine.free(into)
    with pytest.raises(RawError, match=NOT_SUPPORTED):
        machine.dev.sync()
    machine.free_pinned(pinned)


def test_time_that_includes_a_kernel_of_unknown_duration_fails(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    def time(name: str) -> float:
        with machine.dev.create_stream() as stream, stream.record(TIMED) as begin:
            machine.launch(name, stream=stream.handle)
            with stream.record(TIMED) as end:
                end.sync()
                return end - begin

    with pytest.raises(RawError, match=f"cuEventElapsedTime {NOT_SUPPORTED}"):
        time("alone")
    assert "includes kernel alone, whose duration is not known" in capfd.readouterr().err
    machine.sim.kernel("alone", block_ns=7_000)
    assert time("alone") > 0
    machine.sim.kernel("alone", lambda block: None)  # a result, and no cost
    with pytest.raises(RawError, match=NOT_SUPPORTED):
        time("alone")


def test_policy_must_be_one_of_three() -> None:
    with (
        pytest.raises(ValueError, match="unknown must be error, warn or ignore, not 'raise'"),
        session(unknown="raise"),
    ):
        pass


# ---- what shares memory shares its marks

PROGRAM = """
import ctypes, json, os, sys
from cuda.bindings import driver as cu

PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry scale(.param .u64 out)"
PTX += b"{ wgmma.fence.sync.aligned; ret; }\\n\\0"
GRAIN = 2 << 20

def value(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

def start():
    cu.cuInit(0)
    cu.cuCtxSetCurrent(value(cu.cuDevicePrimaryCtxRetain(0)))

def scale(address):
    kernel = value(cu.cuLibraryGetKernel(value(cu.cuLibraryLoadData(PTX, None, None, 0, None, None, 0)), b"scale"))
    kernel = cu.CUfunction(int(kernel))
    value((*cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((int(address),), (ctypes.c_uint64,)), 0), 0))
    value((*cu.cuCtxSynchronize(), 0))

def read(address):
    return int(cu.cuMemcpyDtoH(bytearray(4), address, 4)[0])

def properties():
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.requestedHandleTypes = cu.CUmemAllocationHandleType(1)
    return made

def mapped(memory):
    address = value(cu.cuMemAddressReserve(GRAIN, 0, 0, 0))
    value((*cu.cuMemMap(address, GRAIN, 0, memory, 0), 0))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = cu.CUmemAccess_flags(3)
    value((*cu.cuMemSetAccess(address, GRAIN, [access], 1), 0))
    return address
"""


def test_both_addresses_of_mapped_memory_have_its_marks() -> None:
    done = run_on_machine(
        PROGRAM
        + """
start()
memory = value(cu.cuMemCreate(GRAIN, properties(), 0))
first, second = mapped(memory), mapped(memory)
scale(first)
answers = [read(second)]
cu.cuMemsetD8(second, 0, GRAIN)
answers.append(read(first))
print(answers)
"""
    )
    assert done.stdout == "[801, 0]\n", done.stderr


@pytest.mark.parametrize("kind", ["handle", "descriptor"])
def test_exported_memory_carries_its_marks_to_another_process(kind: str) -> None:
    """The child reads what the parent's kernel should have written, writes it, and marks it again."""
    done = run_on_machine(
        PROGRAM
        + """
ask, answer = os.pipe(), os.pipe()
shared = sys.argv[1] == "handle"
child = os.fork()
# The end of either process ends the reads of the other.
for end in (ask[1], answer[0]) if child == 0 else (ask[0], answer[1]):
    os.close(end)
if child == 0:
    start()
    handed = os.read(ask[0], 64)
    if shared:
        handle = cu.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), handed, 64)
        address = value(cu.cuIpcOpenMemHandle(handle, 1))
    else:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/{int(handed)}", os.O_RDWR)
        address = mapped(value(cu.cuMemImportFromShareableHandle(descriptor, cu.CUmemAllocationHandleType(1))))
    print(read(address), end=" ", flush=True)
    cu.cuMemsetD8(address, 0, 4096)
    print(read(address), end=" ", flush=True)
    os.write(answer[1], b".")
    os.read(ask[0], 1)
    scale(address)
    os.write(answer[1], b".")
    os._exit(0)
start()
if shared:
    address = value(cu.cuMemAlloc(4096))
    handed = ctypes.string_at(int(value(cu.cuIpcGetMemHandle(address)).getPtr()), 64)
else:
    memory = value(cu.cuMemCreate(GRAIN, properties(), 0))
    address = mapped(memory)
    handed = b"%d" % int(value(cu.cuMemExportToShareableHandle(memory, cu.CUmemAllocationHandleType(1), 0)))
scale(address)
os.write(ask[1], handed)
os.read(answer[0], 1)
print(read(address), end=" ", flush=True)
os.write(ask[1], b".")
os.read(answer[0], 1)
print(read(address), flush=True)
os.waitpid(child, 0)
""",
        kind,
    )
    assert done.stdout == "801 0 0 801\n", done.stderr


# ---- what is marked


def test_a_kernel_reaches_the_whole_allocation_and_no_other(machine: Machine) -> None:
    first, second, third = (machine.memory() for _ in range(3))
    machine.launch("scale", 0, second + 100)
    assert machine.is_known(first)
    assert not machine.is_known(second, 1)
    assert not machine.is_known(second + SIZE - 1, 1)
    assert machine.is_known(third)


def test_pointers_inside_structures_are_arguments(machine: Machine) -> None:
    inside = machine.memory()
    machine.launch("boxed", (ctypes.c_uint64 * 3)(1, inside, 3))
    assert not machine.is_known(inside)


def test_variables_of_its_module_are_marked_unless_they_are_constant(machine: Machine) -> None:
    def place(name: bytes) -> int:
        found = ctypes.c_uint64()
        machine.raw.call("cuLibraryGetGlobal", ctypes.byref(found), None, ctypes.c_void_p(machine._library), name)
        return found.value

    total, limit = place(b"total"), place(b"limit")
    machine.launch("alone")
    assert not machine.is_known(total, 4)
    assert not machine.is_known(place(b"later"), 4)
    assert machine.is_known(limit, 4)
    machine.fill(total, 4)
    machine.sim.kernel("alone", block_ns=1_000, writes=[])
    machine.launch("alone")
    assert machine.is_known(total, 4)


def test_only_what_a_kernel_writes_is_marked_if_that_is_declared(machine: Machine) -> None:
    source, target = machine.memory(), machine.memory()
    machine.sim.kernel("scale", block_ns=1_000, writes=[1])
    machine.launch("scale", source, target)
    assert machine.is_known(source)
    assert not machine.is_known(target)
    machine.sim.kernel("scale", block_ns=1_000, writes=[])
    machine.write(target)
    machine.launch("scale", source, target)
    assert machine.is_known(target)
    with pytest.raises(ValueError, match="the first argument has number 0"):
        machine.sim.kernel("scale", writes=[-1])


def test_a_function_computes_from_what_is_known_only(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = machine.memory(), machine.memory()
    machine.sim.kernel("scale", lambda block: None, reads=[0], writes=[1])
    machine.launch("scale", source, target)
    assert machine.is_known(target)
    machine.launch("shift", 0, source)
    machine.launch("scale", source, target)
    assert not machine.is_known(target)
    assert "kernel shift" in capfd.readouterr().err  # not the kernel that was computed
    machine.write(source)
    machine.launch("scale", source, target)
    assert machine.is_known(target)
    machine.launch("shift", 0, target)
    machine.sim.kernel("scale", lambda block: None)  # which may read what it is to write
    machine.launch("scale", source, target)
    assert not machine.is_known(target)


def test_marks_end_with_the_memory(machine: Machine) -> None:
    for _ in range(3):
        address = machine.memory()
        assert machine.is_known(address)
        machine.launch("scale", 0, address)
        machine.dev.sync()
        machine.free(address)


def test_a_graph_marks_at_each_launch(machine: Machine) -> None:
    raw, into = machine.raw, machine.memory()
    with machine.dev.create_stream() as stream:
        raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 0)
        machine.launch("scale", 0, into, stream=stream.handle)
        ended = ctypes.c_void_p()
        raw.call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(ended))
        graph = ended.value
        assert machine.is_known(into)
        run = raw.handle("cuGraphInstantiateWithFlags", ctypes.c_void_p(graph), ctypes.c_ulonglong(0))
        for _ in range(2):
            raw.call("cuGraphLaunch", ctypes.c_void_p(run), ctypes.c_void_p(stream.handle))
            stream.sync()
            assert not machine.is_known(into)
            machine.fill(into)
            assert machine.is_known(into)
        raw.call("cuGraphExecDestroy", ctypes.c_void_p(run))
        raw.call("cuGraphDestroy", ctypes.c_void_p(graph))


def test_marks_follow_the_bytes(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """Kernels, copies and fills of random ranges, against a model of which kernel each byte is from."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    size, count = 256, 4
    memory = [machine.memory(size) for _ in range(count)]
    model: list[list[str | None]] = [[None] * size for _ in range(count)]

    def some_range() -> tuple[int, int, int]:
        begin = chance.randrange(size)
        return chance.randrange(count), begin, chance.randint(1, size - begin)

    for _ in range(400):
        which, at, length = some_range()
        match chance.randrange(6):
            case 0:
                name = chance.choice(KERNELS)
                machine.launch(name, 0, memory[which] + at)
                model[which] = [name] * size
            case 1:
                machine.fill(memory[which] + at, length)
                model[which][at : at + length] = [None] * length
            case 2:
                machine.write(memory[which] + at, length)
                model[which][at : at + length] = [None] * length
            case 3 | 4:
                source = chance.randrange(count)
                start = chance.randint(0, size - length)
                machine.copy(memory[which] + at, memory[source] + start, length)
                model[which][at : at + length] = model[source][start : start + length]
            case _:
                expected = {name for name in model[which][at : at + length] if name is not None}
                assert machine.is_known(memory[which] + at, length) == (not expected)
                said = capfd.readouterr().err
                assert not expected or any(f"kernel {name} " in said for name in expected)
