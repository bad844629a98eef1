"""Contexts: properties, lifetimes, refusals to close, and contexts of other libraries."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from cuda_gctx import (
    ClosedError,
    Context,
    ContextOptions,
    CUDAError,
    Device,
    Event,
    EventOptions,
    PartitionPool,
    SMResourceOptions,
    Stream,
    StreamOptions,
    system,
)
from cuda_gctx._core.extension import spin

from ..common import DRIVERS, green, leases, on_another_thread, refusal, small_contexts, split
from ..raw import Raw, RawError


@pytest.fixture
def ctx(dev: Device) -> Iterator[Context]:
    (group,), _ = split(dev.resources.sm, 16)
    with green(dev, group, name="decode") as ctx:
        yield ctx


def test_a_name_of_a_subclass_of_str_is_the_plain_name(dev: Device) -> None:
    class Part(str, Enum):
        DECODE = "decode"

    (group,), _ = split(dev.resources.sm, 16)
    options = ContextOptions([group], name=Part.DECODE)
    assert (options.name, type(options.name)) == ("decode", str)
    with dev.create_context(options) as ctx:
        assert ctx.name == "decode"


def test_a_context_has_its_properties(dev: Device, ctx: Context) -> None:
    assert (ctx.is_green, ctx.is_closed, ctx.is_current) == (True, False, False)
    assert (ctx.name, ctx.device, ctx.sm_count) == ("decode", dev, 16)
    assert ctx.resources.sm.sm_count == 16
    assert ctx.handle != 0
    assert ctx.handle != dev.context.handle
    assert ctx.id != dev.context.id
    for word in ("decode", "green", "16 SMs"):
        assert word in repr(ctx)


def test_the_lines_of_the_documentation_work(dev: Device) -> None:
    opts = SMResourceOptions(16)
    groups, _ = dev.resources.sm.split(opts)
    ctx = dev.create_context(ContextOptions(resources=[groups[0]]))
    stream = ctx.create_stream()
    assert stream.resources.sm.sm_count == 16
    stream.close()
    ctx.close()


def test_the_primary_context_is_the_devices_own(dev: Device) -> None:
    primary = dev.context
    assert primary == dev.context
    assert hash(primary) == hash(dev.context)
    assert (primary.is_green, primary.is_closed, primary.name) == (False, False, None)
    assert primary.sm_count == dev.sm_count
    assert "primary" in repr(primary)


def test_the_primary_context_cannot_be_closed(dev: Device) -> None:
    with pytest.raises(RuntimeError, match="primary"):
        dev.context.close()
    with pytest.raises(RuntimeError, match="primary"), dev.context:
        pass
    dev.context.create_stream().close()


def test_resources_are_asked_of_the_driver_once(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev = Device(0)
    for _ in range(3):
        (group,), _ = split(dev.resources.sm, 16)
    assert machine.calls("cuDeviceGetDevResource") == 1
    with green(dev, group) as ctx, ctx.create_stream() as stream:
        for _ in range(3):
            assert ctx.resources.sm.sm_count == stream.resources.sm.sm_count == ctx.sm_count == 16
        assert machine.calls("cuCtxGetDevResource") <= 1


def test_several_groups_of_one_split_make_one_context(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [8, 16, 24])
    with green(dev, groups[0], groups[2], remainder) as ctx:
        assert ctx.sm_count == 8 + 24 + remainder.sm_count
        assert ctx.resources.sm.overlaps(groups[1]) is False
        assert ctx.resources.sm.overlaps(groups[2]) is True


# ---- lifetime


def test_a_stream_keeps_a_dropped_context_and_an_event_does_not(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    stream, event = ctx.create_stream(), ctx.create_event()
    least = ctx.sm_count
    del ctx
    gc.collect()
    stream.record(event)
    stream.sync()
    assert event.is_done
    assert stream.context.sm_count == least
    assert leases() == 1
    stream.close()
    assert leases() == 0
    assert event.is_done
    event.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_streams_go_on_working_after_their_context_is_closed(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    ctx, other = small_contexts(dev, 2)
    stream, sibling, outside = ctx.create_stream(), ctx.create_stream(), other.create_stream()
    event = ctx.create_event()
    ctx.close()
    assert leases() == 2
    stream.record(event)
    outside.wait(event)
    stream.wait(sibling)
    stream.wait(outside)
    sibling.record().close()
    stream.sync()
    event.sync()
    assert stream.is_done
    assert stream.handle != 0
    assert stream.is_nonblocking
    assert stream.priority == 0
    assert stream.device == dev
    assert stream.resources.sm.sm_count == dev.resources.sm.min_partition_size
    stream.close()
    sibling.close()
    assert leases() == 1  # the event keeps nothing
    event.close()
    outside.close()
    other.close()


def test_streams_work_after_close_on_any_driver(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    with ctx.create_stream() as stream:
        ctx.close()
        with stream.record() as event:
            event.sync()
        stream.sync()
        assert stream.resources.sm.sm_count == dev.resources.sm.min_partition_size


def test_a_dropped_context_is_destroyed_in_the_right_order(sim: Callable[..., Any]) -> None:
    machine = sim()
    (ctx,) = small_contexts(Device(0), 1)
    keep: list[Any] = [ctx, ctx.create_stream(), ctx.create_event(), ctx.create_stream().record()]
    keep.append(keep)  # a cycle: whatever the collector does first
    ctx = None
    del keep
    gc.collect()
    assert leases() == 0
    assert not machine.ledger().misuse


def test_an_owner_is_kept_as_long_as_what_it_owns(dev: Device) -> None:
    class Owner:
        pass

    with Raw().green_context(8) as handle:
        owner = Owner()
        gone = weakref.ref(owner)
        adopted = Context.from_handle(handle, owner)
        del owner
        gc.collect()
        assert gone() is not None
        adopted.close()
        del adopted
        gc.collect()
        assert gone() is None


def test_with_closes_the_context_also_after_an_error(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    with pytest.raises(ZeroDivisionError), ctx:
        1 / 0  # noqa: B018
    assert ctx.is_closed


# ---- close


def test_closing_twice_does_nothing(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    ctx.close()
    ctx.close()
    assert ctx.is_closed
    assert "closed" in repr(ctx)


def test_close_is_seen_through_every_object_of_the_context(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    with ctx.create_stream() as stream:
        other = stream.context
        adopted = Context.from_handle(ctx.handle)
        assert ctx == other == adopted
        ctx.close()
        assert other.is_closed
        assert adopted.is_closed


def test_close_while_current_here_is_refused(dev: Device, ctx: Context) -> None:
    with ctx.current():
        with pytest.raises(RuntimeError, match=r"'decode'.*current on this thread"):
            ctx.close()
        assert not ctx.is_closed
        assert ctx.is_current
        ctx.create_stream().close()


def test_close_inside_a_block_names_the_block_even_if_another_context_is_current(dev: Device, ctx: Context) -> None:
    with (
        ctx.current(),
        dev.context.current(),
        pytest.raises(RuntimeError, match="'decode' has an open 'with' block on this thread"),
    ):
        ctx.close()
    ctx.close()


@pytest.mark.sim_only
@pytest.mark.parametrize(("kind", "noun"), [(Context, "CUcontext"), (Stream, "CUstream")])
def test_a_handle_of_nothing_is_named(dev: Device, kind: type[Context] | type[Stream], noun: str) -> None:
    with pytest.raises(CUDAError, match=f"^0x3039 is not a live {noun}: cu.* answered CUDA_ERROR_INVALID_"):
        kind.from_handle(12345)


def test_close_while_set_current_here_is_refused(dev: Device, ctx: Context) -> None:
    raw = Raw()
    before = raw.current()
    dev.set_current(ctx)
    with pytest.raises(RuntimeError, match="current on this thread"):
        ctx.close()
    raw.set_current(before)
    ctx.close()


def test_close_while_current_through_other_code_is_refused(dev: Device, ctx: Context) -> None:
    raw = Raw()
    raw.push(ctx.handle)
    with pytest.raises(RuntimeError, match="current on this thread"):
        ctx.close()
    raw.pop()
    ctx.close()


@pytest.mark.parametrize("how", ["current", "set_current"])
def test_close_while_current_on_another_thread_is_refused(dev: Device, ctx: Context, how: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        if how == "current":
            with ctx.current():
                entered.set()
                leave.wait(30)
        else:
            dev.set_current(ctx)
            entered.set()
            leave.wait(30)
            dev.set_current(dev.context)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with pytest.raises(RuntimeError, match="another thread"):
        ctx.close()
    assert not ctx.is_closed
    assert ctx.create_stream().is_done
    leave.set()
    thread.join()
    ctx.close()
    assert ctx.is_closed


def test_a_context_left_current_by_a_thread_that_has_ended_can_be_closed(dev: Device, ctx: Context) -> None:
    on_another_thread(lambda: dev.set_current(ctx))
    ctx.close()
    assert ctx.is_closed


def test_a_context_replaced_by_other_code_can_be_closed(dev: Device, ctx: Context) -> None:
    raw = Raw()
    before = raw.current()
    dev.set_current(ctx)
    raw.set_current(dev.context.handle)
    ctx.close()
    raw.set_current(before)
    assert ctx.is_closed


# ---- closed objects

FREE = {"is_closed", "close", "from_handle"}  # what a closed object answers
OPERATORS = ["__enter__"]


def members_of(kind: type) -> list[str]:
    extra = {Stream: ["__cuda_stream__"], Event: ["__sub__"]}.get(kind, [])
    return sorted(name for name in dir(kind) if not name.startswith("_") and name not in FREE) + OPERATORS + extra


def closed_context(dev: Device) -> Context:
    (ctx,) = small_contexts(dev, 1)
    ctx.close()
    return ctx


def closed_stream(dev: Device) -> Stream:
    stream = dev.create_stream()
    stream.close()
    return stream


def closed_event(dev: Device) -> Event:
    event = dev.create_event()
    event.close()
    return event


CLOSED: dict[type, Callable[[Device], Any]] = {Context: closed_context, Stream: closed_stream, Event: closed_event}
MEMBERS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in CLOSED for name in members_of(kind)]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_closed_object_raises_for_everything(dev: Device, kind: type, name: str) -> None:
    closed = CLOSED[kind](dev)
    event, stream = dev.create_event(), dev.create_stream()
    arguments = {
        "partition": [8, None],
        "wait": [stream],
        "wait_event": [event],
        "wait_context": [dev.context],
        "__sub__": [event],
    }.get(name, [])

    def use() -> object:
        member = getattr(closed, name)
        return member(*arguments) if callable(member) else member

    error = refusal(ClosedError, use)
    assert "closed" in str(error)
    assert closed.is_closed
    event.close()
    stream.close()


@pytest.mark.parametrize("kind", list(CLOSED), ids=lambda kind: kind.__name__)
def test_a_closed_object_is_refused_as_an_argument(dev: Device, kind: type) -> None:
    closed = CLOSED[kind](dev)
    with dev.create_stream() as stream, dev.create_event(None) as event:
        uses: dict[type, list[Callable[[], object]]] = {
            Context: [lambda: dev.set_current(closed)],
            Stream: [lambda: stream.wait(closed), lambda: Stream(closed)],
            Event: [
                lambda: stream.wait(closed),
                lambda: stream.record(closed),
                lambda: dev.context.record_event(closed),
                lambda: dev.context.wait_event(closed),
                lambda: event - closed,
            ],
        }
        for use in uses[kind]:
            assert "closed" in str(refusal(RuntimeError, use))


@pytest.mark.parametrize("kind", list(CLOSED), ids=lambda kind: kind.__name__)
def test_a_closed_object_still_has_a_repr_and_equals_only_itself(dev: Device, kind: type) -> None:
    closed, other = CLOSED[kind](dev), CLOSED[kind](dev)
    assert "closed" in repr(closed)
    assert closed == closed
    assert closed != other


# ---- contexts of other makers


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_foreign_green_context_is_known_as_one(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    with Raw().green_context(16) as handle:
        adopted = Context.from_handle(handle)
        assert (adopted.is_green, adopted.sm_count, adopted.device, adopted.handle) == (True, 16, dev, handle)
        assert adopted == Context.from_handle(handle)
        assert "adopted" in repr(adopted)
        with adopted.create_stream() as stream:
            stream.sync()
            assert stream.resources.sm.sm_count == 16
        with adopted.current():
            assert adopted.is_current


def test_a_foreign_ordinary_context_is_not_green(dev: Device) -> None:
    with Raw().ordinary_context() as handle:
        adopted = Context.from_handle(handle)
        assert (adopted.is_green, adopted.sm_count) == (False, dev.sm_count)
        assert adopted != dev.context
        with adopted.create_stream(StreamOptions(nonblocking=False)) as stream:
            stream.sync()
            assert stream.context == adopted


def test_closing_an_adopted_context_leaves_it_to_its_owner(dev: Device) -> None:
    raw = Raw()
    with raw.green_context(8) as handle:
        adopted = Context.from_handle(handle)
        adopted.close()
        assert adopted.is_closed
        again = Context.from_handle(handle)
        assert again.is_green
        assert not again.is_closed
        with raw.stream(handle) as stream:
            assert Stream.from_handle(stream).context.is_green


def test_our_own_handles_come_back_as_our_own(dev: Device, ctx: Context) -> None:
    same = Context.from_handle(ctx.handle)
    assert same == ctx
    assert hash(same) == hash(ctx)
    assert same.name == "decode"
    assert Context.from_handle(dev.context.handle) == dev.context


def test_the_next_request_for_the_same_sms_gets_the_same_context(dev: Device) -> None:
    seen = set()
    for _ in range(300):
        (ctx,) = small_contexts(dev, 1)
        seen.add(ctx.id)
        ctx.close()
    assert len(seen) == 1


def test_a_context_at_a_recycled_address_is_another_context(dev: Device) -> None:
    raw = Raw()
    first_of: dict[int, int] = {}
    adopted = []  # kept, so that the package still knows the older ones
    for _ in range(6):
        with raw.green_context(8) as handle:
            context = Context.from_handle(handle)
            assert first_of.setdefault(context.id, handle) == handle
            assert all(context != older for older in adopted)
            adopted.append(context)
    assert len(first_of) == 6
    if len(set(first_of.values())) == 6:
        pytest.skip("this driver did not use an address twice")


# ---- work of a whole context


@pytest.mark.parametrize("driver", DRIVERS)
def test_events_of_a_whole_context(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    first, second = small_contexts(Device(0), 2)
    with first.record_event() as event, second.create_event() as mine:
        assert event.context == first
        second.wait_event(event)
        assert second.record_event(mine) is mine
        mine.sync()
        assert event.is_done
    first.sync()
    second.sync()
    first.close()
    second.close()


def test_sync_needs_nothing_current(dev: Device, ctx: Context) -> None:
    ctx.sync()
    on_another_thread(ctx.sync)
    assert not ctx.is_current


# ---- a device that another library resets


def test_what_was_made_on_a_primary_context_is_dead_after_a_reset(sim: Callable[..., Any]) -> None:
    machine = sim("h100", driver="13.0", check=False)  # what the driver destroys in a reset is not destroyed here
    dev = Device(0)
    stream = dev.create_stream()
    event = stream.record(options=EventOptions(timing_enabled=True))
    before = dev.context
    handle, number = before.handle, before.id
    Raw().call("cuDevicePrimaryCtxReset_v2", 0)
    assert {found.kind for found in machine.ledger().live} == set()  # the reset destroyed what there was
    uses: list[Callable[[], object]] = [stream.sync, stream.record, before.sync, stream.capture().__enter__]
    uses += [lambda: stream.is_done, lambda: stream.priority, lambda: stream.record(event), lambda: stream.wait(event)]
    uses += [lambda: stream.handle, stream.__cuda_stream__, lambda: spin(stream, 1, 1)]
    uses += [event.sync, lambda: event.is_done, lambda: event - event, lambda: event.handle, lambda: event.context]
    for use in uses:
        with pytest.raises(ClosedError, match="has been reset"):
            use()
    assert dev.context != before
    assert dev.context.handle == handle
    assert dev.context.id != number
    with dev.create_stream() as later:
        later.sync()
        for use in (lambda: later.wait(event), lambda: later.record(event)):
            with pytest.raises(ClosedError, match="has been reset"):
                use()
    event.close()
    stream.close()
    gc.collect()
    kinds = [misuse.kind for misuse in machine.ledger().misuse]
    assert kinds == ["wrong order"], machine.ledger()  # that of the reset itself
    assert not machine.ledger().live_of("stream")
    assert not machine.ledger().live_of("event")


@pytest.mark.parametrize("is_exposed", [False, True])
def test_a_device_can_be_reset_after_its_green_contexts_are_released(sim: Callable[..., Any], is_exposed: bool) -> None:
    sim("h100", driver="13.0", check=False)
    dev = Device(0)

    def reset() -> None:
        Raw().call("cuDevicePrimaryCtxReset_v2", 0)

    with PartitionPool(dev) as pool:
        pool.switch(b=8)
        assert refusal(RawError, reset).code == 800
    with dev.partition(a=16) as parts:
        assert refusal(RawError, reset).code == 800
        if is_exposed:
            assert parts.a.stream.handle
        parts.a.create_stream().close()
    assert refusal(RawError, reset).code == 800  # idle contexts
    if is_exposed:
        assert system.release_contexts().exposed == 1
        assert refusal(RawError, reset).code == 800
    assert system.release_contexts(exposed=is_exposed).left == 0
    reset()
    with dev.partition(a=16) as parts:
        parts.a.stream.record().sync()
    assert system.release_contexts(exposed=is_exposed).left == 0


def test_a_block_inside_a_block_of_a_context_that_a_reset_has_taken_is_one_of_the_new_one(
    sim: Callable[..., Any],
) -> None:
    sim("h100", driver="13.0", check=False)
    dev = Device(0)
    with dev.context.current():
        Raw().call("cuDevicePrimaryCtxReset_v2", 0)
        with dev.context.current():  # at the same address
            with dev.create_stream() as stream:
                stream.sync()
            assert dev.context.is_current
