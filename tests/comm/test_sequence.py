"""What a sequence passes to the driver: arguments with the addresses of the launch, copies, and orders of streams."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

import pytest

from cuda_gctx import Device
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._topology import MixedCommOp
from cuda_gctx.extending import LaunchSequence
from cuda_software_driver import library_folder

pytestmark = pytest.mark.sim_only

WORDS = 4
IMAGE = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .align 8 .b8 arguments[{8 * WORDS}]) {{ ret; }}
"""
NUMBER_AT = 24
CALL = MixedCommOp.ALLGATHER << 16
BYTES = 256


@pytest.fixture
def device(sim: Any) -> Device:
    sim("h200", devices=1, unknown="ignore")
    ctypes.CDLL(os.path.join(library_folder(), "libcuda.so.1"))  # which cuda.bindings opens by this name
    return Device(0)


def arguments_of(graph: int) -> list[tuple[int, ...]]:
    """The words that the kernels of a graph are launched with."""
    cu = driver()
    nodes, count = call("cuGraphGetNodes", cu.CUgraph(graph), 16)
    found = []
    for node in nodes[:count]:
        params = call("cuGraphKernelNodeGetParams", node)
        first = ctypes.c_uint64.from_address(int(params.kernelParams)).value
        found.append(struct.unpack(f"<{WORDS}Q", ctypes.string_at(first, 8 * WORDS)))
    return found


def test_each_launch_has_its_addresses_and_its_number(device: Device) -> None:
    with device.context.current():
        library = call("cuLibraryLoadData", IMAGE.encode(), [], [], 0, [], [], 0)
        function = int(call("cuKernelGetFunction", call("cuLibraryGetKernel", library, b"kernel")))
    sequence, stream = LaunchSequence(), device.create_stream()
    content = struct.pack("<QQQII", 5, 0, 0, CALL, 9)
    for programmatic in (False, True):
        sequence.kernel(function, 2, 64, 0, content, {8: (1, 100), 16: (0, 0)}, NUMBER_AT, programmatic)
    for count in (0, 0xFFFE, 0xFFFF):
        with stream.capture() as captured:
            sequence.launch(stream, (1 << 40, 1 << 50), count)
        number = CALL | (count % 0xFFFF + 1) | 9 << 32
        assert arguments_of(captured.graph.handle) == [(5, (1 << 50) + 100, 1 << 40, number)] * 2
    with device.context.current():
        call("cuLibraryUnload", library)


def test_launches_are_counted() -> None:
    numbers = Numbers()
    assert [numbers.take(1) for _ in range(3)] == [0, 1, 2]
    assert numbers.take(3) == 3
    assert numbers.take(1) == 6


def test_copies_run_on_their_streams_in_order(device: Device) -> None:
    context = device.context
    before, stream = context.create_stream(), context.create_stream()
    with context.current():
        one, other, third = (int(call("cuMemAlloc", BYTES)) for _ in range(3))
        call("cuMemsetD8", one, 7, BYTES)
        sequence = LaunchSequence([before])
        sequence.wait(1, 0)
        sequence.copy(1, (1, 0), (0, 0), BYTES)
        sequence.wait(0, 1)
        sequence.copy(0, (None, third), (1, 0), BYTES)
        sequence.launch(stream, (one, other), 0)
        stream.sync()
        found = ctypes.create_string_buffer(BYTES)
        call("cuMemcpyDtoH", found, third, BYTES)
        assert found.raw == b"\7" * BYTES
        for address in (one, other, third):
            call("cuMemFree", address)


def test_what_a_sequence_does_not_have_is_refused(device: Device) -> None:
    sequence = LaunchSequence()
    with pytest.raises(RuntimeError, match="a sequence of 1 streams has no stream 1"):
        sequence.copy(1, (0, 0), (0, 0), 16)
    with pytest.raises(RuntimeError, match="a word lies outside of the arguments of a kernel"):
        sequence.kernel(1, 1, 32, 0, bytes(16), {16: (0, 0)}, 0)
    with pytest.raises(RuntimeError, match="a word lies outside of the arguments of a kernel"):
        sequence.kernel(1, 1, 32, 0, bytes(16), {}, 14)
    sequence.copy(0, (3, 0), (0, 0), 16)
    with pytest.raises(RuntimeError, match="a sequence needs 4 addresses, not 2"):
        sequence.launch(device.create_stream(), (1, 2), 0)
