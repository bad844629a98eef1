"""One stream, or one whole context, waits for another one: one call, with an event that is kept."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_gctx import CapturingError, ClosedError, Context, CUDAError, Device, Stream
from cuda_gctx._core.extension import is_capturing

from ..common import DRIVERS, leases, refusal, small_contexts
from ..raw import Probe, Raw, RawError


def destroy(graph: int) -> None:
    Raw().call("cuGraphDestroy", ctypes.c_void_p(graph))


def begin(stream: Stream) -> None:
    Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 1)


@pytest.fixture
def machine(sim: Callable[..., Any]) -> Any:
    return sim("h200", driver="13.0")


@pytest.fixture
def contexts(dev: Device) -> Iterator[list[Context]]:
    contexts = small_contexts(dev, 2)
    yield contexts
    for ctx in contexts:
        ctx.close()


@pytest.fixture
def simulated(machine: Any) -> Iterator[list[Context]]:
    contexts = small_contexts(Device(0), 2)
    yield contexts
    for ctx in contexts:
        ctx.close()


def test_a_stream_that_waits_runs_after_the_other_one(contexts: list[Context]) -> None:
    a, b = contexts
    with Probe(a.device) as probe, a.create_stream() as busy, b.create_stream() as later:
        for _ in range(3):
            probe.launch(busy)
            later.wait(busy)
            later.sync()
            assert busy.is_done


def test_a_context_that_waits_runs_after_the_other_one(contexts: list[Context]) -> None:
    a, b = contexts
    with Probe(a.device) as probe, a.create_stream() as busy, b.create_stream() as later:
        for _ in range(3):
            probe.launch(busy)
            b.wait_context(a)
            probe.launch(later)
            later.sync()
            assert busy.is_done


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_event_of_a_wait_is_made_once(sim: Callable[..., Any], driver: str) -> None:
    machine = sim("h200", driver=driver)
    a, b = small_contexts(Device(0), 2)
    with a, b, a.create_stream() as one, b.create_stream() as other, Device(0).create_stream() as third:
        for _ in range(3):
            one.wait(other)
            third.wait(other)
            a.wait_context(b)
        calls = machine.calls()
        assert calls["cuEventCreate"] == 2
        assert calls["cuEventRecord"] == calls["cuStreamWaitEvent"] == 6
        assert calls.get("cuCtxRecordEvent", 0) + calls.get("cuGreenCtxRecordEvent", 0) == 3
        other.wait(one)
        b.wait_context(a)
        assert machine.calls("cuEventCreate") == 4
        assert len(machine.ledger().live_of("event")) == 4
    del a, b
    gc.collect()
    assert leases() == 0


def test_a_context_with_a_reused_event_ends_at_its_close(simulated: list[Context]) -> None:
    a, b = simulated
    a.wait_context(b)
    b.close()
    assert leases() == 1
    assert "has been closed" in str(refusal(ClosedError, lambda: a.wait_context(b)))
    assert "has been closed" in str(refusal(ClosedError, lambda: b.wait_context(a)))


def test_the_primary_context_waits_and_is_waited_for(contexts: list[Context]) -> None:
    primary = contexts[0].device.context
    primary.wait_context(contexts[0])
    contexts[0].wait_context(primary)
    contexts[0].wait_context(contexts[0])


def test_waits_of_many_threads_for_one_stream(simulated: list[Context], machine: Any) -> None:
    a, b = simulated
    together = threading.Barrier(4)
    failures: list[BaseException] = []
    with a.create_stream() as shared, a.create_stream() as capturing:

        def wait() -> None:
            try:
                with b.create_stream() as own:
                    together.wait(60)
                    for _ in range(200):
                        own.wait(shared)
                        b.wait_context(a)
                        assert not is_capturing(own)
            except BaseException as error:  # shown where the test sees it
                failures.append(error)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        together.wait(60)
        for _ in range(200):
            capturing.wait(shared)
        for thread in threads:
            thread.join()
    assert not failures
    assert not machine.ledger().misuse


def test_a_stream_that_waits_for_a_capture_joins_it_and_leaves_it(contexts: list[Context]) -> None:
    a, b = contexts
    with a.create_stream() as main, b.create_stream() as side:
        side.wait(main)
        for _ in range(2):
            with main.capture():
                side.wait(main)
                assert is_capturing(side)
                main.wait(side)
            side.wait(main)  # the same event, outside of the capture
            assert not is_capturing(side)
            main.wait(side)


@pytest.mark.parametrize("known", [False, True])
def test_a_capture_that_waits_for_work_outside_of_it_is_invalidated(contexts: list[Context], known: bool) -> None:
    a, b = contexts
    raw = Raw()
    with a.create_stream() as main, b.create_stream() as outside:
        main.wait(outside)
        if known:
            assert outside.handle
        begin(main)
        assert "CAPTURE" in refusal(CUDAError, lambda: main.wait(outside)).name
        assert not is_capturing(outside)
        with pytest.raises(RawError, match="901"):
            raw.handle_of_capture(main.handle)
        main.wait(outside)
        outside.wait(main)


def test_whole_contexts_wait_for_no_capture(contexts: list[Context]) -> None:
    a, b = contexts
    with a.create_stream() as main:
        with main.capture():
            for call in (lambda: a.wait_context(b), lambda: b.wait_context(a)):
                assert "is capturing a graph" in str(refusal(CapturingError, call))
        a.wait_context(b)
        b.wait_context(a)


def test_foreign_streams_are_waited_for_and_wait(simulated: list[Context], machine: Any) -> None:
    raw = Raw()
    with raw.stream(simulated[0].handle) as handle, simulated[1].create_stream() as stream:
        with Stream.from_handle(handle) as foreign:
            for _ in range(2):
                stream.wait(foreign)
                foreign.wait(stream)
            assert machine.calls("cuEventCreate") == 2
            begin(foreign)
            stream.wait(foreign)
            assert is_capturing(stream)
            foreign.wait(stream)
            destroy(raw.handle_of_capture(handle))
            stream.wait(foreign)
            assert not is_capturing(stream)
        assert len(machine.ledger().live_of("event")) == 1  # that of the other stream


def test_default_streams_are_waited_for(contexts: list[Context]) -> None:
    with contexts[0].device.context.current():
        legacy = Stream.from_handle(1)
    with contexts[0].create_stream() as stream, legacy:
        stream.wait(legacy)
        legacy.wait(stream)
        legacy.wait(legacy)


def test_what_a_reset_has_taken_is_not_waited_for(sim: Callable[..., Any]) -> None:
    machine = sim("h100", driver="13.0", check=False)  # what the driver destroys in a reset is not destroyed here
    dev = Device(0)
    primary, before = dev.context, dev.create_stream()
    other = dev.create_stream()
    other.wait(before)
    primary.wait_context(primary)
    Raw().call("cuDevicePrimaryCtxReset_v2", 0)
    noted = len(machine.ledger().misuse)
    after = dev.create_stream()
    for call in (
        *(lambda: after.wait(before), lambda: before.wait(after), lambda: other.wait(before)),
        *(lambda: primary.wait_context(primary), lambda: dev.context.wait_context(primary)),
    ):
        assert "has been reset" in str(refusal(ClosedError, call))
    after.wait(after)
    dev.context.wait_context(dev.context)
    for stream in (before, other, after):
        stream.close()
    gc.collect()
    assert len(machine.ledger().misuse) == noted


@pytest.mark.parametrize("failing", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"])
def test_a_wait_that_failed_can_be_made_again(simulated: list[Context], machine: Any, failing: str) -> None:
    with simulated[0].create_stream() as one, simulated[1].create_stream() as other:
        machine.fail(failing, nth=1)
        assert refusal(CUDAError, lambda: one.wait(other)).call == failing
        one.wait(other)
        one.wait(other)
        assert len(machine.ledger().live_of("event")) == 1
