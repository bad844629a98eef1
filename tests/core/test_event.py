"""Events: of streams and contexts, with and without the time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Device, EventOptions

from ..common import on_another_thread, small_contexts
from ..raw import Probe

TIMED = EventOptions(timing_enabled=True)


def test_an_event_has_its_properties(dev: Device) -> None:
    with dev.create_event(EventOptions(timing_enabled=True, blocking_sync=True)) as event:
        assert (event.is_timing_enabled, event.is_blocking_sync, event.is_closed) == (True, True, False)
        assert (event.context, event.device) == (dev.context, dev)
        assert event.handle != 0
        assert f"{event.handle:#x}" in repr(event)
        assert "timing" in repr(event)
    with dev.create_event() as plain:
        assert (plain.is_timing_enabled, plain.is_blocking_sync) == (False, False)
        assert "timing" not in repr(plain)


def test_an_event_that_was_never_recorded_is_done(dev: Device) -> None:
    with dev.create_event() as event:
        assert event.is_done
        event.sync()


def test_an_event_is_done_after_the_work_before_it(dev: Device) -> None:
    with Probe(dev) as probe, dev.create_stream() as stream, dev.context.current():
        probe.launch(stream)
        with stream.record() as event:
            event.sync()
            assert event.is_done
        assert stream.is_done


def test_the_difference_of_two_events_is_in_milliseconds(dev: Device) -> None:
    start, end = dev.create_event(TIMED), dev.create_event(TIMED)
    with Probe(dev) as probe, dev.create_stream() as stream, dev.context.current(), start, end:
        stream.record(start)
        for _ in range(10):
            probe.launch(stream)
        stream.record(end)
        end.sync()
        # Ten launches of at least 0.2 ms each; and nobody waits a minute for them.
        assert 2 <= end - start < 60_000
        assert start - start == 0
        assert isinstance(end - start, float)


@pytest.mark.parametrize("driver", ["12.4", "12.8", "13.0", "13.4"])
def test_events_take_the_time_on_every_driver(sim: Callable[..., Any], driver: str) -> None:
    machine = sim("h200", driver=driver)
    (ctx,) = small_contexts(Device(0), 1)
    with ctx.create_stream() as stream, stream.record(options=TIMED) as start:
        start.sync()
        machine.advance(5_000_000)
        with stream.record(options=TIMED) as end:
            end.sync()
            assert 5 <= end - start < 6
    ctx.close()


def test_events_without_the_time_cannot_be_subtracted(dev: Device) -> None:
    with dev.create_stream() as stream, stream.record() as plain, stream.record(options=TIMED) as timed:
        stream.sync()
        for difference in (lambda: timed - plain, lambda: plain - timed, lambda: plain - plain):
            with pytest.raises(RuntimeError, match=r"stream\.record\(options=EventOptions\(timing_enabled=True\)\)"):
                difference()


@pytest.mark.parametrize("other", [1, 1.0, None, "event"])
def test_only_events_can_be_subtracted(dev: Device, other: Any) -> None:
    with dev.create_event(TIMED) as event:
        with pytest.raises(TypeError):
            event - other
        with pytest.raises(TypeError):
            other - event


def test_events_are_equal_to_themselves_alone(dev: Device) -> None:
    with dev.create_event() as event, dev.create_event() as other:
        assert event == event
        assert event != other
        assert event != event.handle
        assert len({event, other}) == 2


def test_an_event_of_one_context_orders_streams_of_another(dev: Device) -> None:
    first, second = small_contexts(dev, 2)
    with first.create_stream() as a, second.create_stream() as b, first.create_event() as event:
        a.record(event)
        b.wait(event)
        b.record(event)
        event.sync()
    first.close()
    second.close()


def test_events_work_on_any_thread(dev: Device) -> None:
    with dev.create_stream() as stream:
        event = on_another_thread(stream.record)
        event.sync()
        event.close()


def test_closing_twice_does_nothing_and_dropping_destroys(sim: Callable[..., Any]) -> None:
    machine = sim()
    event = Device(0).create_event()
    event.close()
    event.close()
    assert event.is_closed
    assert machine.calls("cuEventDestroy") == 1
    dropped = Device(0).create_event()
    del dropped
    gc.collect()
    assert machine.calls("cuEventDestroy") == 2


def test_an_event_may_be_closed_before_what_waits_for_it_ran(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    with ctx.create_stream() as a, ctx.create_stream() as b:
        with a.record() as event:
            b.wait(event)
        b.sync()
    ctx.close()
