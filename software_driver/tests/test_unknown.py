"""What nobody computed: memory that kernels without a function should have written, and times that hold guesses."""

from __future__ import annotations

import ctypes
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cuda_software_driver import LedgerError, Session, UnknownResultWarning, session

from .objects import Device
from .raw import RawError

pytest_plugins = ["pytester"]

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 total;
.visible .global .align 4 .u32 later;
.visible .const .align 4 .u32 limit;
.visible .entry scale(.param .u64 in, .param .u64 out) { ret; }
.visible .entry shift(.param .u64 in, .param .u64 out) { ret; }
.visible .entry boxed(.param .align 8 .b8 box[24]) { ret; }
.visible .entry alone() { ret; }
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

    @property
    def unknown(self) -> dict[str, int]:
        return self.sim.ledger().unknown_results

    def is_known(self, address: int, size: int = SIZE) -> bool:
        before = self.unknown
        self.read(address, size)
        return self.unknown == before


@pytest.fixture
def machine() -> Iterator[Machine]:
    with session("h200", unknown="ignore") as sim:
        made = Machine(sim)
        yield made
        made.close()


def run_kernel_and_read(**options: Any) -> None:
    with session("h200", **options) as sim:
        machine = Machine(sim)
        machine.launch("scale", machine.memory(), 0)
        machine.read(machine._memory[0])
        machine.close()


# ---- what is reported


def test_reading_what_a_kernel_without_a_function_writes_is_counted_and_said_once(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    into = machine.memory()
    machine.launch("scale", 0, into)
    assert machine.unknown == {}
    for count in (1, 2):
        machine.read(into)
        assert machine.unknown == {"scale": count}
    assert len(re.findall("memory that kernel scale writes", capfd.readouterr().err)) == 1
    ledger = machine.sim.ledger()
    assert "memory that kernel scale writes was read (2 times)" in str(ledger)
    assert str(ledger).startswith("ledger (simulated): not clean")  # the memory is alive


def test_the_end_of_a_session_warns_or_raises_as_it_is_asked_to() -> None:
    with pytest.warns(UnknownResultWarning, match="kernel scale writes was read") as caught:
        run_kernel_and_read()
    assert caught[0].filename == __file__
    with pytest.raises(LedgerError, match=r"^ledger \(simulated\): clean, but not all is known\n  unknown result: "):
        run_kernel_and_read(unknown="error")
    run_kernel_and_read(unknown="ignore")
    with pytest.raises(ValueError, match="'warn'"):
        run_kernel_and_read(unknown="raise")


def test_no_time_of_an_assumed_cost_is_told_where_that_is_an_error() -> None:
    """Times between events are refused; a stamp, which is memory, is counted."""
    with session("h200", unknown="error", check=False) as sim:
        machine = Machine(sim)
        with machine.dev.create_stream() as stream, stream.record(TIMED) as begin:
            machine.launch("alone", stream=stream.handle)
            with stream.record(TIMED) as end:
                end.sync()
                with pytest.raises(RawError, match="cuEventElapsedTime answered 801"):
                    end - begin
        machine.close()


def test_the_host_reads_its_own_memory_without_a_call(machine: Machine) -> None:
    pinned = machine.raw.handle("cuMemHostAlloc", ctypes.c_size_t(SIZE), 0)
    machine.launch("scale", 0, pinned)
    machine.dev.sync()
    assert machine.unknown == {"scale": 1}
    machine.raw.call("cuMemFreeHost", ctypes.c_void_p(pinned))


def test_a_time_that_includes_a_kernel_without_a_cost_is_counted(machine: Machine) -> None:
    def time(name: str) -> dict[str, int]:
        with machine.dev.create_stream() as stream, stream.record(TIMED) as begin:
            machine.launch(name, stream=stream.handle)
            with stream.record(TIMED) as end:
                end.sync()
                assert end - begin > 0
                assert begin - end < 0
        return machine.sim.ledger().unknown_times

    assert time("alone") == {"alone": 2}
    machine.sim.kernel("alone", block_ns=7_000)
    assert time("alone") == {"alone": 2}
    machine.sim.kernel("alone", lambda block: None)  # a result, and no cost
    assert time("alone") == {"alone": 4}
    assert "includes kernel alone; register its cost" in str(machine.sim.ledger())


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


def test_a_function_computes_from_what_is_known_only(machine: Machine) -> None:
    source, target = machine.memory(), machine.memory()
    machine.sim.kernel("scale", lambda block: None, reads=[0], writes=[1])
    machine.launch("scale", source, target)
    assert machine.is_known(target)
    machine.launch("shift", 0, source)
    machine.launch("scale", source, target)
    machine.read(target)
    assert machine.unknown == {"shift": 1}  # not the kernel that was computed
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


def test_marks_follow_the_bytes(machine: Machine) -> None:
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
                before = machine.unknown
                machine.read(memory[which] + at, length)
                counted = {name for name in KERNELS if machine.unknown.get(name, 0) > before.get(name, 0)}
                expected = {name for name in model[which][at : at + length] if name is not None}
                assert counted <= expected
                assert bool(counted) == bool(expected)


# ---- in pytest

READ = """
import ctypes
from cuda_software_driver import library_path

PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry scale(.param .u64 out) { ret; }\\n\\0"

def test_a_result():
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
    driver.cuMemcpyDtoH_v2(ctypes.byref(read), memory, ctypes.c_size_t(4))
    driver.cuMemFree_v2(memory)
    driver.cuLibraryUnload(library)
    driver.cuDevicePrimaryCtxRelease_v2(0)

def test_without_one():
    pass
"""


@pytest.mark.parametrize("whole_run", [False, True], ids=["marker", "run"])
@pytest.mark.parametrize("policy", ["warn", "error"])
def test_pytest_reports_unknown_results(pytester: pytest.Pytester, whole_run: bool, policy: str) -> None:
    pytester.makepyfile(READ)
    if not whole_run:
        pytester.makeconftest("import pytest\n\n@pytest.fixture(autouse=True)\ndef machine(gpu_sim): pass\n")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:anyio"]
    words += ["-o", f"gpu_sim_unknown={policy}", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    if whole_run:
        words[1:1] = ["-m", "cuda_software_driver", "run", "--", sys.executable]
    result = pytester.run(*words)
    if policy == "warn":
        result.assert_outcomes(passed=2, warnings=1)
        result.stdout.fnmatch_lines(
            ["*UnknownResultWarning: unknown result: memory that kernel scale writes was read*"]
        )
    else:
        result.assert_outcomes(passed=2, errors=1)
        result.stdout.fnmatch_lines(["*unknown result: memory that kernel scale writes was read*"])
        assert "LedgerError" in result.stdout.str()
