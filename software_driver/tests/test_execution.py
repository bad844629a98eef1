"""Kernels in PTX are executed: results, waiting between blocks, kernels and the host, and the ends of faulty ones."""

from __future__ import annotations

import base64
import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence

import pytest

from cuda_software_driver import Session, session

from .objects import Device, GreenContext
from .raw import Raw, RawError

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[10] = {98, 108, 111, 99, 107, 32, 37, 100, 10};
.visible .global .align 4 .u32 total;
.visible .entry add(.param .u64 out, .param .u64 count)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [count];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mov.u32 %r3, %tid.x;
mad.lo.s32 %r4, %r1, %r2, %r3;
cvt.u64.u32 %d3, %r4;
setp.ge.u64 %p, %d3, %d2;
@%p ret;
shl.b64 %d4, %d3, 2;
add.s64 %d5, %d1, %d4;
ld.global.u32 %r5, [%d5];
add.s32 %r6, %r5, %r4;
st.global.u32 [%d5], %r6;
red.global.add.u32 [total], %r4;
ret;
}
// Each block adds one, and waits until all have.
.visible .entry meet(.param .u64 out, .param .u64 count)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
ld.param.u32 %r1, [count];
mov.u32 %r2, %tid.x;
setp.ne.s32 %p, %r2, 0;
@%p bra DONE;
atom.global.add.u32 %r3, [%d1], 1;
WAIT:
ld.volatile.global.u32 %r4, [%d1];
setp.lt.u32 %p, %r4, %r1;
@%p bra WAIT;
DONE:
bar.sync 0;
red.global.add.u32 [%d1+4], 1;
ret;
}
// Waits for a word, and sets it to the next number.
.visible .entry pass_on(.param .u64 out, .param .u64 turn, .param .u64 turns)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
ld.param.u32 %r1, [turn];
ld.param.u32 %r2, [turns];
WAIT:
ld.volatile.global.u32 %r3, [%d1];
setp.ne.u32 %p, %r3, %r1;
@%p bra WAIT;
add.u32 %r3, %r3, 1;
st.volatile.global.u32 [%d1], %r3;
add.u32 %r1, %r1, 2;
setp.lt.u32 %p, %r1, %r2;
@%p bra WAIT;
ret;
}
.visible .entry latch(.param .u64 flag)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [flag];
WAIT:
nanosleep.u32 100;
ld.volatile.global.u32 %r1, [%d1];
setp.eq.u32 %p, %r1, 0;
@%p bra WAIT;
ret;
}
// The sum of the numbers of a block's threads, and where it ran.
.visible .entry sums(.param .u64 out)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
mov.u32 %r1, %tid.x;
shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;
add.s32 %r1, %r1, %r2;
shfl.sync.bfly.b32 %r2, %r1, 8, 31, -1;
add.s32 %r1, %r1, %r2;
shfl.sync.bfly.b32 %r2, %r1, 4, 31, -1;
add.s32 %r1, %r1, %r2;
shfl.sync.bfly.b32 %r2, %r1, 2, 31, -1;
add.s32 %r1, %r1, %r2;
shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
add.s32 %r1, %r1, %r2;
mov.u32 %r3, %tid.x;
setp.ne.s32 %p, %r3, 0;
@%p ret;
mov.u32 %r4, %ctaid.x;
mul.wide.u32 %d2, %r4, 8;
add.s64 %d2, %d1, %d2;
mov.u32 %r5, %smid;
st.global.v2.u32 [%d2], {%r1, %r5};
ret;
}
.visible .entry hello()
{
.reg .b32 %r<8>;
.reg .b64 %d<8>;
.local .align 8 .b8 depot[8];
.param .b64 format;
.param .b64 values;
.param .b32 result;
mov.u64 %d1, depot;
cvta.local.u64 %d2, %d1;
mov.u32 %r1, %ctaid.x;
st.local.u32 [%d1], %r1;
mov.u64 %d3, text;
cvta.global.u64 %d3, %d3;
st.param.b64 [format], %d3;
st.param.b64 [values], %d2;
call (result), vprintf, (format, values);
ret;
}
.visible .entry spoil(.param .u64 out)
{
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
st.global.u32 [%d1+1048576], 7;
ret;
}
.visible .entry matrix(.param .u64 out)
{
ret.uni;
wgmma.fence.sync.aligned;
}
.visible .entry third(.param .u32 first, .param .align 4 .b8 triple[12], .param .u64 out)
{
.reg .b32 %r<4>;
.reg .b64 %d<4>;
ld.param.u32 %r1, [first];
ld.param.u32 %r2, [triple+8];
ld.param.u64 %d1, [out];
add.u32 %r1, %r1, %r2;
st.global.u32 [%d1], %r1;
ret;
}
// Gives the other rank its value, waits for that of the other one, and adds them.
.visible .entry sum(.param .u64 mine, .param .u64 theirs, .param .u64 value)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<4>;
ld.param.u64 %d1, [mine];
ld.param.u64 %d2, [theirs];
ld.param.u32 %r1, [value];
st.global.u32 [%d2+4], %r1;
membar.sys;
atom.global.exch.b32 %r2, [%d2], 1;
WAIT:
ld.volatile.global.u32 %r3, [%d1];
setp.eq.u32 %p, %r3, 0;
@%p bra WAIT;
ld.volatile.global.u32 %r4, [%d1+4];
add.u32 %r4, %r4, %r1;
st.global.u32 [%d1+8], %r4;
ret;
}
// Each thread computes until `spin` nanoseconds have passed, twice, and its block writes the time that it took.
.visible .entry spin(.param .u64 out, .param .u64 spin)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [spin];
mov.u64 %d6, %globaltimer;
mov.u32 %r4, 0;
AGAIN:
mov.u64 %d3, %globaltimer;
SPIN:
mov.u64 %d4, %globaltimer;
sub.s64 %d5, %d4, %d3;
setp.lt.u64 %p, %d5, %d2;
@%p bra SPIN;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p, %r4, 2;
@%p bra AGAIN;
sub.s64 %d5, %d4, %d6;
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %d4, %r1, 4;
add.s64 %d1, %d1, %d4;
st.global.u32 [%d1], %d5;
ret;
}
"""
SIZE = 4096
ILLEGAL_ADDRESS, TIMEOUT, NOT_SUPPORTED = 700, 702, 801


class Machine:
    """A session with the kernels above."""

    def __init__(self, sim: Session) -> None:
        self.sim, self.dev = sim, Device()
        self.raw = self.dev.raw
        self.raw.set_current(self.dev.handle)
        self.library = self.raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)

    def close(self) -> None:
        self.raw.code("cuLibraryUnload", ctypes.c_void_p(self.library))
        self.raw.set_current(0)
        self.dev.close()

    def memory(self) -> int:
        address = self.raw.handle("cuMemAlloc_v2", ctypes.c_size_t(SIZE))
        self.raw.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(SIZE))
        return address

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.raw.call("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self) -> ctypes.Array[ctypes.c_uint32]:
        address = self.raw.handle("cuMemHostAlloc", ctypes.c_size_t(SIZE), 0)
        words = (ctypes.c_uint32 * (SIZE // 4)).from_address(address)
        ctypes.memset(address, 0, SIZE)
        return words

    def free_pinned(self, words: ctypes.Array[ctypes.c_uint32]) -> None:
        self.raw.call("cuMemFreeHost", ctypes.byref(words))

    def launch(self, name: str, *values: int, grid: int = 1, block: int = 32, stream: int = 0) -> None:
        kernel = self.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self.library), name.encode())
        given = [ctypes.c_uint64(value) for value in values]
        addresses = (ctypes.c_void_p * max(len(given), 1))(*(ctypes.addressof(value) for value in given))
        shape = (grid, 1, 1, block, 1, 1, 0)
        self.raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), *shape, ctypes.c_void_p(stream), addresses, None)

    def words(self, address: int, count: int) -> Sequence[int]:
        into = ctypes.create_string_buffer(4 * count)
        self.raw.call("cuMemcpyDtoH_v2", into, ctypes.c_uint64(address), ctypes.c_size_t(4 * count))
        return struct.unpack(f"{count}I", into.raw)


def start(spec: str) -> Iterator[Machine]:
    with session(spec) as sim:
        made = Machine(sim)
        yield made
        made.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield from start("h200")


@pytest.fixture
def impatient() -> Iterator[Machine]:
    """A machine that soon ends kernels that wait for what nobody does."""
    yield from start("h200,patience_ms=20")


def test_kernel_computes_its_result_and_changes_variables(machine: Machine) -> None:
    out = machine.memory()
    machine.launch("add", out, 1000, grid=8, block=128)
    machine.launch("add", out, 1000, grid=8, block=128)
    assert machine.words(out, 1001) == (*(2 * i for i in range(1000)), 0)
    total, size = ctypes.c_uint64(), ctypes.c_size_t()
    name = (ctypes.byref(total), ctypes.byref(size), ctypes.c_void_p(machine.library), b"total")
    machine.raw.call("cuLibraryGetGlobal", *name)
    assert machine.words(total.value, 1) == (2 * sum(range(1000)),)
    machine.free(out)


def test_blocks_of_a_grid_wait_for_each_other(machine: Machine) -> None:
    out = machine.memory()
    machine.launch("meet", out, 132, grid=132, block=64)
    assert machine.words(out, 2) == (132, 132 * 64)
    machine.free(out)


def test_two_kernels_signal_each_other(machine: Machine) -> None:
    out = machine.memory()
    with machine.dev.create_stream() as one, machine.dev.create_stream() as two:
        machine.launch("pass_on", out, 0, 40, block=1, stream=one.handle)
        machine.launch("pass_on", out, 1, 40, block=1, stream=two.handle)
        one.sync()
        two.sync()
    assert machine.words(out, 1) == (40,)
    machine.free(out)


def test_two_ranks_of_a_process_sum_on_their_devices() -> None:
    """Each in a host thread and on a device of its own, with a kernel that waits for the kernel of the other one."""
    with session("h200", devices=2):
        raw = Raw()
        contexts = [raw.handle("cuDevicePrimaryCtxRetain", ordinal) for ordinal in range(2)]
        raw.set_current(contexts[0])
        library = raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        memory, sums, here = [0, 0], [0, 0], threading.Barrier(2)

        def rank(me: int) -> None:
            other = 1 - me
            raw.set_current(contexts[me])
            memory[me] = raw.handle("cuMemAlloc_v2", ctypes.c_size_t(SIZE))
            raw.call("cuMemsetD8_v2", ctypes.c_uint64(memory[me]), ctypes.c_ubyte(0), ctypes.c_size_t(SIZE))
            raw.call("cuCtxEnablePeerAccess", ctypes.c_void_p(contexts[other]), 0)
            here.wait()
            kernel = raw.handle("cuLibraryGetKernel", ctypes.c_void_p(library), b"sum")
            given = [ctypes.c_uint64(value) for value in (memory[me], memory[other], 10 + me)]
            addresses = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in given))
            raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, addresses, None)
            raw.call("cuCtxSynchronize")
            found = ctypes.c_uint32()
            raw.call("cuMemcpyDtoH_v2", ctypes.byref(found), ctypes.c_uint64(memory[me] + 8), ctypes.c_size_t(4))
            sums[me] = found.value
            here.wait()
            raw.call("cuMemFree_v2", ctypes.c_uint64(memory[me]))
            raw.set_current(0)

        threads = [threading.Thread(target=rank, args=(me,)) for me in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raw.code("cuLibraryUnload", ctypes.c_void_p(library))
        raw.set_current(0)
        for ordinal in range(2):
            raw.call("cuDevicePrimaryCtxRelease_v2", ordinal)
        assert sums == [21, 21]


def test_kernel_waits_for_the_host_while_another_stream_goes_on(machine: Machine) -> None:
    flag, out = machine.pinned(), machine.memory()
    with machine.dev.create_stream() as waiting, machine.dev.create_stream() as working:
        machine.launch("latch", ctypes.addressof(flag), stream=waiting.handle)
        machine.launch("add", out, 4, stream=working.handle)
        working.sync()
        assert not waiting.is_done
        flag[0] = 1
        waiting.sync()
    machine.free(out)
    machine.free_pinned(flag)


def test_wait_ends_when_another_thread_of_the_host_ends_the_kernel(machine: Machine) -> None:
    flag = machine.pinned()
    with machine.dev.create_stream() as stream:
        machine.launch("latch", ctypes.addressof(flag), stream=stream.handle)
        timer = threading.Timer(0.05, flag.__setitem__, (0, 1))
        timer.start()
        stream.sync()
        timer.join()
    machine.free_pinned(flag)


def test_kernel_that_nobody_ends_is_reported_with_block_and_line(
    impatient: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    flag = impatient.pinned()
    impatient.launch("latch", ctypes.addressof(flag))
    assert impatient.raw.code("cuCtxSynchronize") == TIMEOUT
    assert "nobody can end it, kernel latch, block (0, 0, 0), line " in capfd.readouterr().err


def test_blocks_of_disjoint_partitions_run_on_disjoint_sms(machine: Machine) -> None:
    seen = []
    (first, second), _ = machine.dev.split([16, 16])
    for resource in (first, second):
        with GreenContext(machine.raw, resource) as context, context.create_stream() as stream:
            out = machine.memory()
            machine.launch("sums", out, grid=200, stream=stream.handle)
            stream.sync()
            found = machine.words(out, 400)
            assert set(found[::2]) == {sum(range(32))}
            seen.append(set(found[1::2]))
            machine.free(out)
    assert [len(sms) for sms in seen] == [16, 16]
    assert not seen[0] & seen[1]


def test_illegal_address_fails_all_further_calls(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    out = machine.memory()
    machine.launch("spoil", out, block=1)
    assert machine.raw.code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert "a write of 4 bytes" in capfd.readouterr().err
    with pytest.raises(RawError, match=f"answered {ILLEGAL_ADDRESS}"):
        machine.memory()
    assert machine.raw.code("cuCtxSynchronize") == ILLEGAL_ADDRESS


def test_kernel_with_an_unknown_instruction_is_not_executed(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    out = machine.memory()
    machine.launch("matrix", out)
    with pytest.raises(RawError, match=f"answered {NOT_SUPPORTED}"):
        machine.words(out, 1)
    error = capfd.readouterr().err
    assert "kernel matrix writes, and the kernel was not executed (not known is line " in error
    assert ": wgmma.fence.sync.aligned;)" in error
    machine.free(out)


def test_printf_of_kernels_is_on_the_standard_output(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.launch("hello", grid=2, block=1)
    machine.raw.call("cuCtxSynchronize")
    assert sorted(capfd.readouterr().out.splitlines()) == ["block 0", "block 1"]


def test_declared_time_of_an_executed_kernel_counts(machine: Machine) -> None:
    machine.sim.kernel("add", block_ns=3_000_000)
    out = machine.memory()
    with machine.dev.create_stream() as stream:
        begin = stream.record(flags=0)
        machine.launch("add", out, 32, stream=stream.handle)
        end = stream.record(flags=0)
        stream.sync()
        assert end - begin == pytest.approx(3, abs=0.1)
        begin.close()
        end.close()
    assert machine.words(out, 3) == (0, 1, 2)
    machine.free(out)


PIECES = (
    b""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 step = 5;
.visible .func (.param .b32 result) twice(.param .b32 value)
{
.reg .b32 %r<4>;
ld.param.u32 %r1, [value];
add.u32 %r2, %r1, %r1;
st.param.b32 [result], %r2;
ret;
}
\0""",
    b""".version 7.0
.target sm_70
.address_size 64
.extern .global .align 4 .u32 step;
.extern .func (.param .b32 result) twice(.param .b32 value);
.visible .entry linked(.param .u64 out)
{
.reg .b32 %r<4>;
.reg .b64 %d<4>;
.param .b32 value;
.param .b32 result;
ld.param.u64 %d1, [out];
ld.global.u32 %r1, [step];
st.param.b32 [value], %r1;
call (result), twice, (value);
ld.param.b32 %r2, [result];
st.global.u32 [%d1], %r2;
ret;
}
\0""",
)


def test_linked_pieces_of_ptx_call_each_other(machine: Machine) -> None:
    raw, ptx = machine.raw, 1
    link = ctypes.c_void_p()
    raw.call("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
    for piece in PIECES:
        raw.call("cuLinkAddData_v2", link, ptx, piece, ctypes.c_size_t(len(piece)), None, 0, None, None)
    image, size = ctypes.c_void_p(), ctypes.c_size_t()
    raw.call("cuLinkComplete", link, ctypes.byref(image), ctypes.byref(size))
    raw.call("cuLibraryUnload", ctypes.c_void_p(machine.library))
    machine.library = raw.handle("cuLibraryLoadData", image, None, None, 0, None, None, 0)
    raw.call("cuLinkDestroy", link)
    out = machine.memory()
    machine.launch("linked", out, block=1)
    assert machine.words(out, 1) == (10,)
    machine.free(out)


def test_link_of_what_has_no_ptx_is_refused(machine: Machine) -> None:
    link, object_file = ctypes.c_void_p(), 3
    machine.raw.call("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
    with pytest.raises(RawError, match=f"answered {NOT_SUPPORTED}"):
        machine.raw.call("cuLinkAddData_v2", link, object_file, b"....", ctypes.c_size_t(4), None, 0, None, None)
    machine.raw.call("cuLinkDestroy", link)


PACKED = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry packed(.param .u64 out)
{
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d1, [out];
mov.u32 %r1, 1;
add.u32 %r2, %r1, %r1;
add.u32 %r3, %r2, %r1;
add.u32 %r4, %r3, %r1;
mul.lo.u32 %r5, %r4, %r3;
sub.u32 %r6, %r5, %r3;
st.global.u32 [%d1], %r6;
ret;
}
"""
BY_ZSTD = (
    "KLUv/WA4AOUFAPIKIxlgeQNc2e4xbWrTSHXDMMMwM9vaQynoYPAE/DG0TxkqUCGBZ0Ypm5TbRJFuZTgk2fR5rwMxDgoMhpSRYXF9"
    "yy6GkL3Z00NxXU4JQIdpKNDGIXlTT509FuzNGlGu9xVp1DyQb01Ra45a7L1/SlWtNmdE6e+qGtX6VMroTCzRVds+RaN1JnxpLKsq"
    "/c0DFSDQKNIHDQ1cTqyDaNaCgnsueVnMyOxVDkYGHrICAM7VuzVNbG67BMwk4pwB"
)
BY_LZ4 = (
    "9FcudmVyc2lvbiA3LjAKLnRhcmdldCBzbV83MAouYWRkcmVzc19zaXplIDY0Ci52aXNpYmxlIC5lbnRyeSBwYWNrZWQoLnBhcmFt"
    "IC51NjQgb3V0KQp7Ci5yZWcgLmIzMiAlcjw4PjsRAFE2NCAlZBEAImxkNwABNgDxAiVkMSwgW291dF07Cm1vdi51OQCTMSwgMTsK"
    "YWRkEAAiMiwVACklchcAJTMsHAAIFwAkNCwcAJMxOwptdWwubG8aACU1LB8AUzsKc3ViFwAkNiwcAAAXAIF0Lmdsb2JhbB0AUFsl"
    "ZDFdGgCgNjsKcmV0Owp9Cg=="
)


def container(payload: bytes, flags: int) -> bytes:
    """A fat binary with one image, as nvcc writes it: PTX for sm_70."""
    packed = len(payload) if flags else 0
    head = struct.pack("<HHIQIIIIQQQQ", 1, 0x101, 64, len(payload), packed, 0, 0, 70, 0, 0x11 | flags, 0, len(PACKED))
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(head) + len(payload)) + head + payload


@pytest.mark.parametrize(
    ("payload", "flags"),
    [(PACKED, 0), (base64.b64decode(BY_ZSTD), 0x8000), (base64.b64decode(BY_LZ4), 0x2000)],
    ids=["plain", "zstd", "lz4"],
)
def test_ptx_of_a_fat_binary_is_executed(machine: Machine, payload: bytes, flags: int) -> None:
    machine.raw.call("cuLibraryUnload", ctypes.c_void_p(machine.library))
    image = container(payload, flags)
    machine.library = machine.raw.handle("cuLibraryLoadData", image, None, None, 0, None, None, 0)
    out = machine.memory()
    machine.launch("packed", out, block=1)
    assert machine.words(out, 1) == (9,)
    machine.free(out)


@pytest.mark.parametrize("spin_ns", [1_000, 100_000, 400_000_000])
def test_kernel_that_waits_for_the_timer_goes_on_at_its_time(machine: Machine, spin_ns: int) -> None:
    out = machine.memory()
    machine.launch("spin", out, spin_ns, grid=264, block=1024)
    took = machine.words(out, 264)
    assert min(took) >= 2 * spin_ns
    assert max(took) < 2 * spin_ns + 2_000
    machine.free(out)


def test_kernel_uses_memory_that_its_graph_frees(machine: Machine) -> None:
    raw, words = machine.raw, machine.pinned()
    stream = raw.handle("cuStreamCreate", 1)
    raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 1)
    memory = raw.handle("cuMemAllocAsync", ctypes.c_size_t(SIZE), ctypes.c_void_p(stream))
    raw.call(
        "cuMemsetD8Async", ctypes.c_uint64(memory), ctypes.c_ubyte(0), ctypes.c_size_t(SIZE), ctypes.c_void_p(stream)
    )
    machine.launch("add", memory, 64, block=64, stream=stream)
    into, size = ctypes.c_void_p(ctypes.addressof(words)), ctypes.c_size_t(256)
    raw.call("cuMemcpyDtoHAsync_v2", into, ctypes.c_uint64(memory), size, ctypes.c_void_p(stream))
    raw.call("cuMemFreeAsync", ctypes.c_uint64(memory), ctypes.c_void_p(stream))
    graph = ctypes.c_void_p()
    raw.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    executable = raw.handle("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))
    raw.call("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))
    raw.call("cuStreamSynchronize", ctypes.c_void_p(stream))
    assert list(words[:64]) == list(range(64))
    raw.call("cuGraphExecDestroy", ctypes.c_void_p(executable))
    raw.call("cuGraphDestroy", graph)
    raw.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    machine.free_pinned(words)


def test_arguments_of_one_buffer_lie_where_the_kernel_has_them(machine: Machine) -> None:
    out = machine.memory()
    kernel = machine.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(machine.library), b"third")
    values = struct.pack("<IIIIQ", 1, 2, 3, 4, out)
    size = ctypes.c_size_t(len(values))
    keys = (1, ctypes.addressof(buffer := ctypes.create_string_buffer(values)), 2, ctypes.addressof(size), 0)
    extra = (ctypes.c_void_p * len(keys))(*keys)
    machine.raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, extra)
    assert machine.words(out, 1) == (5,)
    assert buffer.raw[: len(values)] == values
    machine.free(out)
