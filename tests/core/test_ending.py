"""Work that goes on when its partition is closed: what waits for the device waits for it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cuda_gctx import Context, ContextOptions, Device, ResourceOverlapWarning, SMResourceOptions, Stream, system
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
    system.release_contexts(exposed=True)
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
    """When contexts go: with release_contexts() and with the driver, and never with work to do."""

    @pytest.fixture
    def machine(self, driver: str) -> Iterator[Session]:
        with session("h200", driver=driver) as made:
            yield made

    @staticmethod
    def alive(machine: Session) -> int:
        ledger = machine.ledger()
        return ledger.green_contexts_made - ledger.green_contexts_destroyed

    def test_a_closed_one_is_idle_until_it_is_released(self, machine: Session) -> None:
        close_all(context := new_context(Device(0)), context.create_stream())
        assert (self.alive(machine), system.idle_contexts) == (1, 1)
        assert system.release_contexts().destroyed == 1
        assert (self.alive(machine), system.idle_contexts) == (0, 0)

    def test_one_with_work_is_left_and_its_sms_are_free(self, machine: Session) -> None:
        with work_on(dev := Device(0)) as work:
            context = new_context(dev)
            stream = context.create_stream()
            work.begin(stream)
            close_all(context, stream)
            assert system.release_contexts(exposed=True).at_work == 1
            groups, _ = dev.resources.sm.split(SMResourceOptions(count=16))
            other = dev.create_context(ContextOptions([groups[0]], exclusive=True))
            assert self.alive(machine) == 2  # not the one in which a stranger's kernel runs
            other.close()

    def test_exposed_ones_are_left_unless_asked_for(self, machine: Session) -> None:
        context = new_context(Device(0))
        with context.create_stream() as stream:
            assert stream.handle
        context.close()
        assert (system.release_contexts().exposed, self.alive(machine)) == (1, 1)
        assert (system.release_contexts(exposed=True).destroyed, self.alive(machine)) == (1, 0)

    def test_one_with_an_event_is_left(self, machine: Session) -> None:
        context = new_context(Device(0))
        event = context.create_event()
        context.close()
        assert (system.release_contexts().in_use, self.alive(machine)) == (1, 1)
        event.close()
        assert system.release_contexts().destroyed == 1

    def test_an_adopted_handle_of_an_idle_one_is_a_use_of_it(self, machine: Session) -> None:
        dev = Device(0)
        context = new_context(dev)
        handle, number = context.handle, context.id
        context.close()
        adopted = Context.from_handle(handle)
        assert adopted.id == number
        assert system.release_contexts(exposed=True).destroyed == 0
        with pytest.warns(ResourceOverlapWarning):
            other = new_context(dev)
        assert other.id != number
        other.close()
        del adopted
        gc.collect()
        with new_context(dev) as again:
            assert machine.ledger().green_contexts_made == 2
            assert again.is_green

    def test_a_creation_that_runs_out_of_memory_releases_idle_ones_once(self, machine: Session) -> None:
        dev = Device(0)
        new_context(dev).close()
        groups, _ = dev.resources.sm.split(SMResourceOptions(count=[24]))
        machine.fail("cuGreenCtxCreate", nth=1)
        dev.create_context(ContextOptions(groups)).close()
        assert machine.ledger().green_contexts_destroyed == 1
