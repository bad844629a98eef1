"""The virtual clock against times of a card: what kernels of the shape that real products have cost there."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cuda_software_driver import Session, session

from .common import HARDWARE
from .objects import IGNORE_COSCHEDULING, Context, Device, Stream

TIMES = json.loads((HARDWARE / "times" / "h200-driver-13.0.json").read_text())
TOLERANCE = 0.15
GEMM_TOLERANCE = 0.1
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry gemm() { ret; }
.visible .entry decode() { ret; }
.visible .entry prefill() { ret; }
.visible .entry quick() { ret; }
\0"""
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
KIB, MIB = 1024, 1024**2
# The GEMM as cuBLAS launches it: a persistent block on each SM of the device, which take tiles of 128 x 256.
GEMM: dict[str, int] = {"tiles": 2048, "tile_ns": 77_000, "tile_bytes": 2_440_000, "registers": 168}
GEMM_SHAPE: dict[str, int] = {"blocks": 132, "threads": 384, "shared": 200 * KIB}
STEP_BLOCKS, STEP_BYTES = 8448, MIB


class Machine:
    """One simulated H200 with the kernels of this file."""

    def __init__(self, sim: Session) -> None:
        self.sim, self.dev = sim, Device()
        self.raw = self.dev.raw
        with self.dev.current():
            self._library = self.raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        for name in ("gemm", "decode"):
            self.raw.call("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 227 * KIB, ctypes.c_void_p(self._kernel(name)), 0)
        sim.kernel("gemm", **GEMM)
        sim.kernel("quick", block_ns=34_000)
        sim.kernel("decode", block_ns=1_000, block_bytes=STEP_BYTES)
        sim.kernel("prefill", block_ns=100_000, block_bytes=2_000_000)

    def _kernel(self, name: str) -> int:
        return self.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self._library), name.encode())

    def close(self) -> None:
        self.raw.call("cuLibraryUnload", ctypes.c_void_p(self._library))
        self.dev.close()

    def launch(self, name: str, stream: Stream, blocks: int, threads: int = 256, shared: int = 0) -> None:
        shape = (blocks, 1, 1, threads, 1, 1, shared)
        with stream.context.current():
            self.raw.call(
                "cuLaunchKernel",
                ctypes.c_void_p(self._kernel(name)),
                *shape,
                ctypes.c_void_p(stream.handle),
                None,
                None,
            )

    def took_us(self, name: str, stream: Stream, blocks: int, **shape: int) -> float:
        start = self.sim.time_ns()
        self.launch(name, stream, blocks, **shape)
        stream.sync()
        return (self.sim.time_ns() - start) / 1000

    @contextmanager
    def partition(self, count: int) -> Iterator[tuple[Context, Context]]:
        """A context of so many SMs, and one of all others."""
        own, others = self.dev.partition(count, IGNORE_COSCHEDULING)
        with own, others:
            yield own, others

    @contextmanager
    def stream_over(self, count: int) -> Iterator[Stream]:
        if count == 132:
            with self.dev.create_stream() as stream:
                yield stream
            return
        with self.partition(count) as (own, _), own.create_stream() as stream:
            yield stream


@pytest.fixture
def machine() -> Iterator[Machine]:
    with session("h200") as sim:
        made = Machine(sim)
        yield made
        made.close()


@pytest.mark.parametrize(("sms", "recorded"), TIMES["decode"]["bytes_per_ns"].items())
def test_a_memory_bound_step_gets_the_bandwidth_of_its_sms(machine: Machine, sms: str, recorded: float) -> None:
    with machine.stream_over(int(sms)) as stream:
        took = machine.took_us("decode", stream, STEP_BLOCKS)
    assert STEP_BLOCKS * STEP_BYTES / took / 1000 == pytest.approx(recorded, rel=TOLERANCE)


@pytest.mark.parametrize(("sms", "recorded"), TIMES["gemm"]["us"].items())
def test_a_gemm_slows_down_with_its_sms_and_not_in_proportion(machine: Machine, sms: str, recorded: float) -> None:
    with machine.stream_over(int(sms)) as stream:
        took = machine.took_us("gemm", stream, **GEMM_SHAPE)
    assert took == pytest.approx(recorded, rel=GEMM_TOLERANCE)


def test_a_memory_bound_step_is_slower_next_to_others_in_other_sms(machine: Machine) -> None:
    with machine.partition(32) as (own, others), own.create_stream() as decode, others.create_stream() as prefill:
        alone = machine.took_us("decode", decode, STEP_BLOCKS)
        machine.launch("prefill", prefill, 20_000)
        together = machine.took_us("decode", decode, STEP_BLOCKS)
        prefill.sync()
    low, high = TIMES["decode_beside_prefill"]["slower"]
    assert low <= together / alone <= high


def p99_us(machine: Machine, where: str) -> float:
    """The short kernel's p99, at moments spread over the GEMMs."""
    with (
        machine.partition(16) as (own, others),
        own.create_stream() as inside,
        others.create_stream() as outside,
        machine.dev.create_stream() as plain,
        machine.dev.create_stream() as other,
        machine.dev.create_stream(-5) as urgent,
    ):
        quick = {"plain": other, "priority": urgent}.get(where, inside)
        load = outside if where == "background partition" else plain
        samples = []
        for i in range(60):
            if where != "alone":
                for _ in range(2):
                    machine.launch("gemm", load, **GEMM_SHAPE)
            machine.sim.advance(100_000 + i * 37 % 11 * 131_000)
            samples.append(machine.took_us("quick", quick, 16, threads=1024))
        machine.dev.sync()
    return sorted(samples)[-1]


@pytest.mark.parametrize(("where", "recorded"), TIMES["background_load"]["p99_us"].items())
def test_only_a_partition_next_to_work_in_another_is_out_of_reach_of_persistent_blocks(
    machine: Machine, where: str, recorded: float
) -> None:
    assert p99_us(machine, where) == pytest.approx(recorded, rel=TOLERANCE)


def test_a_memory_bound_kernel_needs_enough_threads_on_each_sm(machine: Machine) -> None:
    def rate(registers: int, shared: int = 0) -> float:
        machine.sim.kernel("decode", block_ns=1_000, block_bytes=STEP_BYTES, registers=registers)
        return STEP_BLOCKS * STEP_BYTES / machine.took_us("decode", stream, STEP_BLOCKS, shared=shared) / 1000

    with machine.dev.create_stream() as stream:
        eight, four, two, one = (rate(registers) for registers in (32, 64, 128, 255))  # blocks on an SM
        assert eight == pytest.approx(four, rel=0.01)  # half of the threads are enough
        assert four > 1.05 * two
        assert two > 1.4 * one
        # Two blocks again, which load into shared memory too.
        assert rate(32, shared=100 * KIB) > 1.05 * two


def test_a_block_without_tiles_ends_at_once(machine: Machine) -> None:
    machine.sim.kernel("gemm", tiles=10, tile_ns=50_000)
    with machine.dev.create_stream() as stream:
        assert 50 <= machine.took_us("gemm", stream, 100_000) < 55
        assert 250 <= machine.took_us("gemm", stream, 2) < 255


def test_tiles_without_a_time_are_refused(machine: Machine) -> None:
    for wrong in ({"tiles": 3}, {"tile_ns": 3}, {"tile_bytes": 3}):
        with pytest.raises(ValueError, match="pass both tiles and tile_ns, or neither"):
            machine.sim.kernel("gemm", **wrong)


def test_copies_of_one_direction_take_turns(machine: Machine) -> None:
    size, count = 25_000_000, 8
    raw = machine.raw
    with machine.dev.current():
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        raw.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), 0)
        raw.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(size * count))
        streams = [machine.dev.create_stream() for _ in range(2 * count)]
        start = machine.sim.time_ns()
        for i, stream in enumerate(streams):
            there = ctypes.c_uint64(device.value + i // 2 * size)
            handle: Any = ctypes.c_void_p(stream.handle)
            if i % 2:
                raw.call("cuMemcpyHtoDAsync_v2", there, host, ctypes.c_size_t(size), handle)
            else:
                raw.call("cuMemcpyDtoHAsync_v2", host, there, ctypes.c_size_t(size), handle)
        for stream in streams:
            stream.sync()
            stream.close()
        took = machine.sim.time_ns() - start
        raw.call("cuMemFree_v2", device)
        raw.call("cuMemFreeHost", host)
    one_after_the_other = count * size / 25
    assert took == pytest.approx(one_after_the_other, rel=0.05)  # both directions at once
