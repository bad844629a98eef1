"""The virtual clock: what kernels cost and where they run, stream order, priorities, events, queues, the background."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from cuda_software_driver import Block, Session, session

from .objects import Device, Stream

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry long() { ret; }
.visible .entry quick() { ret; }
.visible .entry add(.param .u64 values, .param .u32 amount) { ret; }
\0"""
LONG_NS, QUICK_NS = 1_500_000, 5_000
THREADS = 1024  # two blocks fit on one SM
TIMED = 0  # the flags of an event


class Machine:
    """One simulated H200 with kernels of known cost."""

    def __init__(self, sim: Session) -> None:
        self.sim, self.dev = sim, Device()
        self.raw = self.dev.raw
        sim.kernel("long", block_ns=LONG_NS)
        sim.kernel("quick", block_ns=QUICK_NS)
        with self.dev.current():
            self._library = self.raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)

    def close(self) -> None:
        self.raw.call("cuLibraryUnload", ctypes.c_void_p(self._library))
        self.dev.close()

    def launch(
        self, name: str, stream: Stream, blocks: int, threads: int = THREADS, values: Sequence[Any] = ()
    ) -> None:
        kernel = self.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self._library), name.encode())
        addresses = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        shape = (blocks, 1, 1, threads, 1, 1, 0)
        with stream.context.current():
            self.raw.call(
                "cuLaunchKernel", ctypes.c_void_p(kernel), *shape, ctypes.c_void_p(stream.handle), addresses, None
            )

    def took_ns(self, name: str, stream: Stream, blocks: int) -> int:
        """The virtual time that a launch needs, by events before and after it."""
        with stream.record(TIMED) as begin:
            self.launch(name, stream, blocks)
            with stream.record(TIMED) as end:
                end.sync()
                return round((end - begin) * 1e6)


@contextmanager
def simulated(**options: Any) -> Iterator[Machine]:
    with session("h200", **options) as sim:
        machine = Machine(sim)
        yield machine
        machine.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as made:
        yield made


# ---- what runs where, and how long


@pytest.mark.parametrize(("blocks", "times"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3), (64, 4), (65, 5)])
def test_blocks_that_share_an_sm_share_its_throughput(machine: Machine, blocks: int, times: int) -> None:
    small, rest = machine.dev.partition(16)
    with small, rest, small.create_stream() as stream:
        took = machine.took_ns("long", stream, blocks)
    assert times * LONG_NS <= took < times * LONG_NS + 50_000


@pytest.mark.parametrize(("blocks", "waves"), [(1, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_blocks_that_only_wait_run_in_waves(machine: Machine, blocks: int, waves: int) -> None:
    machine.sim.kernel("long", block_ns=LONG_NS, throughput=0)
    small, rest = machine.dev.partition(16)
    with small, rest, small.create_stream() as stream:
        took = machine.took_ns("long", stream, blocks)
    assert waves * LONG_NS <= took < waves * LONG_NS + 50_000


@pytest.mark.parametrize("blocks", [1_000_000, 2**31 - 1])
def test_a_launch_costs_the_same_however_many_blocks_it_has(machine: Machine, blocks: int) -> None:
    with machine.dev.create_stream() as stream:
        took = machine.took_ns("quick", stream, blocks)
    assert took == pytest.approx(blocks / 132 * QUICK_NS, rel=1e-3)


def test_a_host_function_runs_once_per_block_with_its_sm(machine: Machine) -> None:
    seen: list[tuple[int, int]] = []
    totals = (ctypes.c_uint64 * 64)()

    def add(block: Block) -> None:
        address, amount = block.arguments
        assert address == ctypes.addressof(totals)
        totals[block.index] += amount
        assert block.end_ns - block.start_ns == 2 * 7_000  # two share an SM
        seen.append((block.index, block.smid))

    machine.sim.kernel("add", add, block_ns=7_000)
    small, rest = machine.dev.partition(8)
    with small, rest, small.create_stream() as stream:
        machine.launch("add", stream, 64, values=[ctypes.c_uint64(ctypes.addressof(totals)), ctypes.c_uint32(3)])
        assert seen == []  # nothing has been waited for
        stream.sync()
    assert sorted(index for index, _ in seen) == list(range(64))
    assert {smid for _, smid in seen} == {0, 1, 16, 17, 32, 33, 48, 49}  # as recorded of the first group of 8
    assert list(totals) == [3] * 64


def test_an_idle_stream_takes_no_time(machine: Machine) -> None:
    with machine.dev.create_stream() as stream:
        assert machine.took_ns("quick", stream, 1) < QUICK_NS + 20_000
        before = machine.sim.time_ns()
        stream.sync()
        assert machine.sim.time_ns() - before < 10_000


@pytest.mark.parametrize("whole_device", [True, False], ids=["device", "partition"])
def test_a_wait_includes_the_work_of_a_closed_stream(machine: Machine, whole_device: bool) -> None:
    small, rest = machine.dev.partition(16)
    with small, rest:
        begin = machine.sim.time_ns()
        with (machine.dev if whole_device else small).create_stream() as stream:
            machine.launch("long", stream, 1)
        machine.dev.sync()
        assert machine.sim.time_ns() - begin >= LONG_NS


def test_time_passes_on_request(machine: Machine) -> None:
    with machine.dev.create_stream() as stream:
        machine.launch("long", stream, 1)
        assert not stream.is_done
        machine.sim.advance(2 * LONG_NS)
        assert stream.is_done


# ---- order


def test_work_on_one_stream_runs_in_order_and_on_two_at_once(machine: Machine) -> None:
    dev = machine.dev
    with dev.create_stream() as one, dev.create_stream() as two:
        start = machine.sim.time_ns()
        for _ in range(3):
            machine.launch("long", one, 1)
        one.sync()
        in_order = machine.sim.time_ns() - start
        start = machine.sim.time_ns()
        for stream in (one, two):
            machine.launch("long", stream, 1)
        one.sync()
        two.sync()
        at_once = machine.sim.time_ns() - start
    assert 3 * LONG_NS <= in_order < 3 * LONG_NS + 100_000
    assert LONG_NS <= at_once < LONG_NS + 100_000


def test_a_stream_waits_for_an_event_of_another(machine: Machine) -> None:
    dev = machine.dev
    with dev.create_stream() as one, dev.create_stream() as two:
        start = machine.sim.time_ns()
        machine.launch("long", one, 1)
        with one.record() as event:
            two.wait(event)
            machine.launch("quick", two, 1)
            two.sync()
            assert machine.sim.time_ns() - start >= LONG_NS + QUICK_NS
            assert event.is_done


def test_a_higher_priority_takes_the_next_free_place_and_moves_nobody_out(machine: Machine) -> None:
    def waits(priority: int) -> int:
        with (
            machine.dev.create_stream() as first,
            machine.dev.create_stream() as queued,
            machine.dev.create_stream(priority) as urgent,
        ):
            machine.launch("long", first, 2 * 132)
            machine.launch("long", queued, 3 * 2 * 132)
            took = machine.took_ns("quick", urgent, 1)
            first.sync()
            queued.sync()
        return took

    # Both wait for the blocks that run; the urgent one only for them, the other for all that stood before it.
    assert 2 * LONG_NS * 0.9 < waits(-5) < 2 * LONG_NS * 1.5
    assert waits(0) > 2 * LONG_NS * 3.5


def test_streams_of_one_hardware_queue_wait_for_each_other() -> None:
    def took(connections: int) -> int:
        with simulated(connections=connections) as machine:
            streams = [machine.dev.create_stream() for _ in range(4)]
            start = machine.sim.time_ns()
            # The second launch of a stream waits at the head of its queue, and holds up what stands behind it.
            for stream in streams:
                machine.launch("long", stream, 1)
                machine.launch("long", stream, 1)
            for stream in streams:
                stream.sync()
            for stream in streams:
                stream.close()
            return machine.sim.time_ns() - start

    assert took(8) < 2 * LONG_NS + 100_000
    assert took(1) > 4 * LONG_NS


# ---- background load


def quick_next_to_load(quick: str, load: str) -> int:
    """How long a short kernel takes while blocks of a long one are on every SM that they may use."""
    with simulated() as machine:
        small, rest = machine.dev.partition(16)
        streams = {
            "plain": machine.dev.create_stream(),
            "other": machine.dev.create_stream(),
            "priority": machine.dev.create_stream(-5),
            "partition": small.create_stream(),
            "complement": rest.create_stream(),
        }
        if load != "none":
            machine.launch("long", streams[load], 8 * 132)
        took = machine.took_ns("quick", streams[quick], 16)
        machine.dev.sync()
        for stream in streams.values():
            stream.close()
        small.close()
        rest.close()
        return took


@pytest.mark.parametrize(
    ("quick", "load", "waits"),
    [
        ("plain", "none", False),
        ("plain", "other", True),
        ("priority", "other", True),
        ("partition", "none", False),
        ("partition", "other", True),
        ("partition", "complement", False),
    ],
)
def test_a_partition_does_not_wait_if_the_load_has_only_the_other_sms(quick: str, load: str, waits: bool) -> None:
    took = quick_next_to_load(quick, load)
    if waits:
        assert took > 0.9 * LONG_NS
    else:
        assert took < 5 * QUICK_NS
