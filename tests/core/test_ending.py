"""Work that goes on when its partition is closed: what waits for the device waits for it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cuda_gctx import Context, ContextOptions, CUDAWarning, Device, SMResourceOptions, Stream
from cuda_gctx.partitions import store
from cuda_gctx.tune import spin
from cuda_software_driver import Session, session

from ..common import small_contexts
from ..raw import Raw

BYTES, WRITTEN = 4096, 7
LONG_NS = 20_000_000


class Work:
    """Host memory that a stream writes when a long kernel before it has ended."""

    def __init__(self, dev: Device) -> None:
        self.raw, self.dev = Raw(), dev
        with dev.context.current():
            self.address = self.raw.handle("cuMemHostAlloc", ctypes.c_size_t(BYTES), 0)
        self._shown = (ctypes.c_ubyte * BYTES).from_address(self.address)
        ctypes.memset(self.address, 0, BYTES)

    def begin(self, stream: Stream) -> None:
        spin(stream, 1, LONG_NS)
        size, handle = ctypes.c_size_t(BYTES), ctypes.c_void_p(stream.handle)
        self.raw.call("cuMemsetD8Async", ctypes.c_void_p(self.address), ctypes.c_ubyte(WRITTEN), size, handle)

    @property
    def is_done(self) -> bool:
        return set(self._shown) == {WRITTEN}

    def wait_as_other_libraries_do(self) -> None:
        """As ``torch.cuda.synchronize()``."""
        with self.dev.context.current():
            self.raw.call("cuCtxSynchronize")


@contextmanager
def work_on(dev: Device) -> Iterator[Work]:
    work = Work(dev)
    try:
        yield work
    finally:
        dev.sync()
        with dev.context.current():
            work.raw.call("cuMemFreeHost", ctypes.c_void_p(work.address))


@pytest.fixture
def work(dev: Device) -> Iterator[Work]:
    with work_on(dev) as made:
        yield made


def new_context(dev: Device) -> Context:
    groups, _ = dev.resources.sm.split(SMResourceOptions(count=16))
    return dev.create_context(ContextOptions([groups[0]]))


def close_all(context: Context, stream: Stream) -> None:
    stream.close()
    context.close()


def close_the_context_first(context: Context, stream: Stream) -> None:
    context.close()
    stream.close()


ENDS: list[Callable[[Context, Stream], None]] = [close_all, close_the_context_first]
WAITS: list[Callable[[Work], None]] = [lambda work: work.dev.sync(), Work.wait_as_other_libraries_do]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("wait", WAITS, ids=["Device.sync", "cuCtxSynchronize"])
def test_waits_for_the_device_cover_work_whose_partition_was_closed(
    dev: Device, work: Work, end: Callable[[Context, Stream], None], wait: Callable[[Work], None]
) -> None:
    context = new_context(dev)
    stream = context.create_stream()
    spin(stream, 1, 1_000)  # loads the kernel
    stream.sync()
    work.begin(stream)
    end(context, stream)
    assert context.is_closed
    wait(work)
    assert work.is_done


def test_waits_for_the_device_cover_work_of_what_was_dropped(dev: Device, work: Work) -> None:
    def run() -> None:
        work.begin(new_context(dev).create_stream())

    run()
    gc.collect()
    work.wait_as_other_libraries_do()
    assert work.is_done


def test_waits_for_the_device_cover_work_of_what_frameworks_had_seen(dev: Device, work: Work) -> None:
    context = new_context(dev)
    stream = context.create_stream()
    stream.__cuda_stream__()
    work.begin(stream)
    close_all(context, stream)
    store.drop(pinned=True)
    work.wait_as_other_libraries_do()
    assert work.is_done


def test_a_wait_for_such_work_leaves_a_capture_of_its_thread_alone(dev: Device, work: Work) -> None:
    context, capturing = small_contexts(dev, 2)
    stream = context.create_stream()
    work.begin(stream)
    close_all(context, stream)
    with capturing.create_stream().capture() as captured:
        dev.sync()
        assert work.is_done
    captured.graph.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
class TestEnds:
    """When the contexts go, which the ledger says."""

    @pytest.fixture
    def machine(self, driver: str) -> Iterator[Session]:
        with session("h200", driver=driver) as made:
            yield made

    @staticmethod
    def alive(machine: Session) -> int:
        ledger = machine.ledger()
        return ledger.green_contexts_made - ledger.green_contexts_destroyed

    def end_with_work(self, dev: Device, work: Work) -> None:
        context = new_context(dev)
        stream = context.create_stream()
        work.begin(stream)
        close_all(context, stream)

    def test_an_idle_one_goes_at_once(self, machine: Session) -> None:
        close_all(context := new_context(Device(0)), context.create_stream())
        assert self.alive(machine) == 0

    def test_one_with_work_goes_when_the_device_is_waited_for(self, machine: Session) -> None:
        with work_on(dev := Device(0)) as work:
            self.end_with_work(dev, work)
            assert self.alive(machine) == 1
            dev.sync()
            assert self.alive(machine) == 0

    def test_one_with_work_goes_when_another_is_made(self, machine: Session) -> None:
        with work_on(dev := Device(0)) as work:
            self.end_with_work(dev, work)
            work.wait_as_other_libraries_do()
            with new_context(dev):
                assert self.alive(machine) == 1

    def test_its_sms_are_free_at_once(self, machine: Session) -> None:
        with work_on(dev := Device(0)) as work:
            self.end_with_work(dev, work)
            groups, _ = dev.resources.sm.split(SMResourceOptions(count=16))
            dev.create_context(ContextOptions([groups[0]], exclusive=True)).close()

    def test_one_with_work_goes_with_the_driver(self, driver: str) -> None:
        with session("h200", driver=driver) as machine:
            spin(new_context(Device(0)).create_stream(), 1, LONG_NS)
            assert self.alive(machine) == 1

    def test_one_that_ends_asks_few_of_those_that_go_on(self, machine: Session) -> None:
        dev = Device(0)
        groups, _ = dev.resources.sm.split(SMResourceOptions(count=[8] * 10))
        contexts = [dev.create_context(ContextOptions([group])) for group in groups]
        for context in contexts:
            with context.create_stream() as stream:
                spin(stream, 1, LONG_NS)
        for context in contexts[:-1]:
            context.close()
        before = machine.calls("cuEventQuery")
        contexts[-1].close()
        assert machine.calls("cuEventQuery") - before == 5


@pytest.mark.sim_only
def test_a_driver_that_cannot_be_asked_keeps_the_context(sim: Any) -> None:
    machine = sim("h200", driver="13.0")
    dev = Device(0)
    context = new_context(dev)
    machine.fail("cuGreenCtxRecordEvent")
    with pytest.warns(CUDAWarning, match="cuGreenCtxRecordEvent"):
        context.close()
    assert machine.ledger().green_contexts_destroyed == 0
    machine.clear_faults()
    dev.sync()
    assert machine.ledger().green_contexts_destroyed == 1
