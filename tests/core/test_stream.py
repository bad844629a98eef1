"""Streams: made on any context, on any thread, with nothing current; and adopted from others."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from cuda_gctx import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    CapturingError,
    ClosedError,
    Context,
    DefaultStream,
    Device,
    EventOptions,
    Stream,
    StreamOptions,
)
from cuda_gctx._core.extension import lent

from ..common import DRIVERS, green, on_another_thread, small_contexts, split
from ..raw import Raw

LEGACY, PER_THREAD = 1, 2


@pytest.fixture
def ctx(dev: Device) -> Iterator[Context]:
    (ctx,) = small_contexts(dev, 1)
    with ctx:
        yield ctx


class Foreign:
    """Any other library's stream."""

    def __init__(self, *answer: Any) -> None:
        self._answer = answer

    def __cuda_stream__(self) -> Any:
        return self._answer


def test_a_stream_has_its_properties(dev: Device, ctx: Context) -> None:
    with ctx.create_stream() as stream:
        assert (stream.context, stream.device) == (ctx, dev)
        assert stream.resources.sm.sm_count == ctx.sm_count
        assert (stream.priority, stream.is_nonblocking, stream.is_owned) == (0, True, True)
        assert (stream.is_done, stream.is_closed) == (True, False)
        assert stream.__cuda_stream__() == (0, stream.handle)
        assert f"{stream.handle:#x}" in repr(stream)
        assert str(ctx.id) in repr(stream)
    assert stream.is_closed


def test_creating_needs_nothing_current_on_any_thread(dev: Device, ctx: Context) -> None:
    raw = Raw()

    def create() -> tuple[Stream, int]:
        assert raw.current() == 0
        stream = ctx.create_stream()
        stream.record().close()
        stream.sync()
        return stream, raw.current()

    stream, current = on_another_thread(create)
    assert current == 0
    assert stream.context == ctx
    assert stream.is_done
    stream.close()


def test_a_device_makes_streams_of_its_primary_context(dev: Device) -> None:
    with dev.create_stream() as stream:
        assert stream.context == dev.context
        assert not stream.context.is_green
        assert stream.resources.sm.sm_count == dev.sm_count


def test_blocking_streams_are_for_ordinary_contexts_alone(dev: Device, ctx: Context) -> None:
    with dev.create_stream(StreamOptions(nonblocking=False)) as stream:
        assert not stream.is_nonblocking
    with pytest.raises(ValueError, match="must be non-blocking: keep nonblocking=True"):
        ctx.create_stream(StreamOptions(nonblocking=False))


def test_priorities_within_the_range_are_kept(dev: Device, ctx: Context) -> None:
    lowest, highest = dev.priority_range
    for context in (ctx, dev.context):
        for priority in (lowest, lowest - 1, highest):
            with context.create_stream(StreamOptions(priority=priority)) as stream:
                assert stream.priority == priority


@pytest.mark.parametrize("priority", [1, -6, 1000, -1_000_000])
def test_priorities_out_of_range_are_refused_with_the_range(dev: Device, ctx: Context, priority: int) -> None:
    assert dev.priority_range == (0, -5)
    for context in (ctx, dev.context):
        with pytest.raises(ValueError, match=f"{priority} is out of range: the lowest is 0, the highest -5"):
            context.create_stream(StreamOptions(priority=priority))


def test_closing_twice_does_nothing_and_with_closes(sim: Callable[..., Any]) -> None:
    machine = sim()
    with Device(0).create_stream() as stream:
        pass
    stream.close()
    assert stream.is_closed
    assert machine.calls("cuStreamDestroy") == 1


def test_a_dropped_stream_is_destroyed(sim: Callable[..., Any]) -> None:
    machine = sim()
    stream = Device(0).create_stream()
    assert len(machine.ledger().live_of("stream")) == 1
    del stream
    gc.collect()
    assert not machine.ledger().live_of("stream")


def test_equality_and_hash_follow_the_drivers_ids(dev: Device, ctx: Context) -> None:
    with ctx.create_stream() as stream, ctx.create_stream() as other:
        same = Stream.from_handle(stream.handle)
        assert stream == same
        assert hash(stream) == hash(same)
        assert stream != other
        assert len({stream, same, other}) == 2
        assert stream != stream.handle


def test_waiting_orders_work_across_contexts(dev: Device) -> None:
    first, second = small_contexts(dev, 2)
    with first.create_stream() as a, second.create_stream() as b, dev.create_stream() as c:
        with a.record() as event:
            b.wait(event)
        b.wait(a)
        c.wait(Foreign(0, b.handle))
        for stream in (a, b, c):
            stream.sync()
            assert stream.is_done
    first.close()
    second.close()


def test_record_returns_the_event_it_was_given(dev: Device, ctx: Context) -> None:
    with ctx.create_stream() as stream, ctx.create_event() as event:
        assert stream.record(event) is event
        with stream.record(options=EventOptions(timing_enabled=True)) as timed:
            assert timed.is_timing_enabled
            assert timed.context == ctx
        with pytest.raises(ValueError, match="options apply only to a new event"):
            stream.record(event, EventOptions())


# ---- streams of others


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_foreign_stream_of_a_green_context_answers_is_green(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    raw = Raw()
    with raw.green_context(16) as context, raw.stream(context) as handle:
        adopted = Stream.from_handle(handle)
        assert adopted.context.is_green
        assert adopted.context.handle == context
        assert adopted.context.sm_count == adopted.resources.sm.sm_count == 16
        assert not adopted.is_owned
        adopted.sync()
        adopted.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_foreign_stream_of_our_context_is_known_to_be_its(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    (ctx,) = small_contexts(Device(0), 1)
    with Raw().stream(ctx.handle) as handle:
        adopted = Stream.from_handle(handle)
        assert adopted.context == ctx
        adopted.close()
    ctx.close()


def test_a_foreign_stream_of_the_primary_context(dev: Device) -> None:
    with Raw().stream(dev.context.handle) as handle:
        adopted = Stream(Foreign(0, handle))
        assert adopted.context == dev.context
        assert not adopted.context.is_green
        assert adopted.handle == handle
        adopted.close()


def test_closing_an_adopted_stream_leaves_it_to_its_owner(dev: Device) -> None:
    with Raw().stream(dev.context.handle) as handle:
        adopted = Stream.from_handle(handle)
        adopted.close()
        assert adopted.is_closed
        again = Stream.from_handle(handle)
        again.sync()
        again.close()


def test_an_adopted_stream_keeps_its_owner(dev: Device) -> None:
    with Raw().stream(dev.context.handle) as handle:
        owner = Foreign(0, handle)
        gone = weakref.ref(owner)
        adopted = Stream(owner)
        explicit = Stream.from_handle(handle, owner)
        del owner
        gc.collect()
        assert gone() is not None
        adopted.close()
        explicit.close()
        del adopted, explicit
        gc.collect()
        assert gone() is None


def test_our_own_handle_gives_an_object_that_keeps_the_stream(dev: Device, ctx: Context) -> None:
    stream = ctx.create_stream()
    same = Stream.from_handle(stream.handle)
    stream.close()
    assert not same.is_closed
    same.sync()
    same.close()


def test_a_lent_stream_is_another_object_that_keeps_its_owner(dev: Device, ctx: Context) -> None:
    class Owner:
        pass

    owner = Owner()
    kept = weakref.ref(owner)
    stream = ctx.create_stream()
    lent_stream = lent(stream, owner)
    del owner
    assert lent_stream is not stream
    assert lent_stream == stream
    stream.close()
    lent_stream.sync()
    gc.collect()
    assert kept() is not None
    del lent_stream
    gc.collect()
    assert kept() is None
    with pytest.raises(ClosedError, match="the stream has been closed"):
        lent(stream, None)


def test_a_stream_at_a_recycled_address_is_another_stream(dev: Device) -> None:
    raw = Raw()
    context = dev.context.handle
    addresses = []
    adopted: list[Stream] = []  # kept, so that the package still knows the older ones
    for _ in range(6):
        with raw.stream(context) as handle:
            stream = Stream.from_handle(handle)
            addresses.append(handle)
            assert all(older != stream for older in adopted)
            assert stream not in set(adopted)
            adopted.append(stream)
    for stream in adopted:
        stream.close()
    if len(set(addresses)) == len(addresses):
        pytest.skip("this driver did not use an address twice")


def test_a_stream_that_other_code_made_in_a_context_of_ours_belongs_to_that(sim: Callable[..., Any]) -> None:
    machine = sim("h200", driver="13.0")
    raw = Raw()
    (ctx,) = small_contexts(Device(0), 1)
    handle = raw.create_stream(ctx.handle)
    asked = machine.calls("cuCtxFromGreenCtx")
    stream = Stream.from_handle(handle)
    assert stream.context == ctx
    assert machine.calls("cuCtxFromGreenCtx") == asked
    stream.close()
    raw.call("cuStreamDestroy_v2", ctypes.c_void_p(handle))
    ctx.close()


def test_adopting_a_stream_that_captures_leaves_the_capture_alone(dev: Device) -> None:
    # The driver invalidates a capture when its stream is asked for its id, its flags or whether it is done.
    raw = Raw()
    graph = ctypes.c_void_p()
    with raw.stream(dev.context.handle) as handle:
        raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(handle), 2)
        stream = Stream.from_handle(handle)
        assert stream == Stream.from_handle(handle)
        assert stream.context == dev.context
        assert stream.priority <= 0
        for question in (lambda: stream.is_done, lambda: stream.is_nonblocking):
            with pytest.raises(RuntimeError, match="is capturing a graph"):
                question()
        raw.call("cuStreamEndCapture", ctypes.c_void_p(handle), ctypes.byref(graph))
        raw.call("cuGraphDestroy", graph)
        assert stream.is_done
        stream.close()


def test_our_stream_at_the_address_of_an_adopted_one_that_is_gone(dev: Device) -> None:
    raw = Raw()
    with raw.stream(dev.context.handle) as handle:
        stale = Stream.from_handle(handle)
    with dev.create_stream() as ours:
        same = Stream.from_handle(ours.handle)
        assert same == ours
        assert same.is_owned
        stale.close()
        assert Stream.from_handle(ours.handle) == ours
        ours.sync()


@pytest.mark.parametrize(("special", "green"), [(LEGACY, True), (LEGACY, False), (PER_THREAD, False)])
def test_a_default_stream_belongs_to_the_context_that_was_current(
    dev: Device, ctx: Context, special: int, green: bool
) -> None:
    owner = ctx if green else dev.context
    with owner.current():
        stream = Stream.from_handle(special)
    assert stream.context == owner
    stream.record().close()
    stream.sync()
    assert stream.is_done
    stream.close()


def test_the_per_thread_stream_is_refused_in_a_green_context(ctx: Context) -> None:
    # The driver answers INVALID_HANDLE to whatever is done with it there.
    with ctx.current(), pytest.raises(RuntimeError, match="no such default stream"):
        Stream.from_handle(PER_THREAD)


@pytest.mark.parametrize("special", [LEGACY, PER_THREAD])
def test_a_default_stream_without_a_context_is_refused(dev: Device, special: int) -> None:
    Raw().set_current(0)
    with pytest.raises(RuntimeError, match="no context is current"):
        Stream.from_handle(special)


def test_a_literal_zero_is_not_a_stream(dev: Device) -> None:
    with pytest.raises(ValueError, match="use 1 for the legacy default stream"):
        Stream.from_handle(0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((), "two ints"),
        ((0,), "two ints"),
        ((0, 1, 2), "two ints"),
        (("0", 1), "the version of __cuda_stream__ must be an int, not str"),
        ((False, 1), "the version of __cuda_stream__ must be an int, not bool"),
        ((0, "1"), "handle must be an int from 0 to .*, not str"),
        ((0, None), "handle must be an int from 0 to .*, not NoneType"),
    ],
)
def test_a_wrong_answer_of_the_protocol_is_refused(dev: Device, answer: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Stream(Foreign(*answer))


def test_an_answer_of_the_protocol_may_have_ints_of_numpy(dev: Device) -> None:
    with dev.create_stream() as stream, Stream(Foreign(numpy.int32(0), numpy.uint64(stream.handle))) as same:
        assert same == stream


@pytest.mark.parametrize("version", [1, -1, 99])
def test_an_unknown_version_of_the_protocol_is_refused(dev: Device, version: int) -> None:
    with pytest.raises(ValueError, match=f"version {version}"):
        Stream(Foreign(version, 1))


def test_handle_zero_by_the_protocol_is_the_default_stream(dev: Device, ctx: Context) -> None:
    with ctx.current():
        stream = Stream(Foreign(0, 0))
    assert stream.context == ctx
    stream.sync()
    stream.close()


@pytest.mark.parametrize("handle", [-1, 2**64])
def test_a_protocol_answer_that_is_not_a_handle_is_refused(dev: Device, handle: int) -> None:
    with pytest.raises(ValueError, match="handle"):
        Stream(Foreign(0, handle))


def test_groups_of_different_sizes_give_streams_of_different_sizes(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [8, 16, 24])
    contexts = [green(dev, group) for group in groups]
    streams = [ctx.create_stream() for ctx in contexts]
    assert [stream.resources.sm.sm_count for stream in streams] == [8, 16, 24]
    for stream in streams:
        stream.close()
    for ctx in contexts:
        ctx.close()


# ---- the default streams by name


@pytest.mark.parametrize(("default", "handle"), [(LEGACY_DEFAULT_STREAM, 1), (PER_THREAD_DEFAULT_STREAM, 2)])
def test_a_named_default_stream_is_that_of_the_context_that_is_current(
    dev: Device, default: DefaultStream, handle: int
) -> None:
    assert default.handle == handle
    with pytest.raises(RuntimeError, match="no context is current"):
        default.sync()
    with dev.context.current(), dev.create_stream() as stream:
        assert default.here() == Stream.from_handle(handle)
        assert default.context == dev.context
        assert Stream(default) == dev.create_stream(default) == default.here()
        stream.wait(default)
        stream.wait(default.record())
        default.sync()
        assert default.is_done
    assert pickle.loads(pickle.dumps(default)) is default
    assert not hasattr(default, "no_such_attribute")


# ---- what is asked of the driver


def test_a_stream_that_nobody_else_knows_is_not_asked_whether_it_captures(sim: Callable[..., Any]) -> None:
    machine = sim("h200", driver="13.0")
    a, b = small_contexts(Device(0), 2)
    with a, b, a.create_stream() as stream, b.create_stream() as other:
        before = machine.calls("cuStreamIsCapturing")
        event = stream.record()
        other.wait(event)
        stream.sync()
        assert stream.is_done
        a.record_event(event)
        b.wait_event(event)
        b.sync()
        assert machine.calls("cuStreamIsCapturing") == before
        assert stream.handle
        stream.sync()
        assert machine.calls("cuStreamIsCapturing") == before + 1
        event.close()


def knows_its_handle(stream: Stream, known: Stream) -> None:
    assert stream.handle


def waits_for_the_stream(stream: Stream, known: Stream) -> None:
    stream.wait(known)


def waits_for_an_event_that_is_known(stream: Stream, known: Stream) -> None:
    with stream.context.create_event() as event:
        Raw().call("cuEventRecord", ctypes.c_void_p(event.handle), ctypes.c_void_p(known.handle))
        stream.wait(event)


def captures(stream: Stream, known: Stream) -> None:
    with stream.capture():
        pass


@pytest.mark.parametrize("meets", [knows_its_handle, waits_for_the_stream, waits_for_an_event_that_is_known, captures])
def test_a_stream_that_may_be_in_a_capture_refuses_what_would_invalidate_it(
    sim: Callable[..., Any], meets: Callable[[Stream, Stream], None]
) -> None:
    machine = sim("h200", driver="13.0")
    raw = Raw()
    graph = ctypes.c_void_p()
    (ctx,) = small_contexts(Device(0), 1)
    with ctx, ctx.create_stream() as stream, ctx.create_stream() as known:
        handle = ctypes.c_void_p(known.handle)
        if meets is captures:
            captures(stream, known)
            asked = machine.calls("cuStreamIsCapturing")
            stream.sync()
            assert machine.calls("cuStreamIsCapturing") == asked + 1
            return
        target = ctypes.c_void_p(stream.handle) if meets is knows_its_handle else handle
        raw.call("cuStreamBeginCapture_v2", target, 1)
        meets(stream, known)
        for call in (stream.sync, lambda: stream.is_done, ctx.record_event, ctx.sync):
            with pytest.raises(CapturingError):
                call()
        if meets is not knows_its_handle:
            known.wait(stream)
        raw.call("cuStreamEndCapture", target, ctypes.byref(graph))
        raw.call("cuGraphDestroy", graph)


def test_a_stream_that_is_used_again_ends_no_capture_of_another_one(dev: Device) -> None:
    # A card ends a global capture when another stream is asked whether it is done, also by another thread.
    with dev.partition(8, 8) as parts:
        seen = parts[0].context.create_stream()
        seen.__cuda_stream__()
        handle = seen.handle
        seen.close()
        with parts[1].stream.capture("global") as capture:
            again = on_another_thread(parts[0].context.create_stream)
        assert again.handle == handle
        again.close()
        capture.graph.close()
