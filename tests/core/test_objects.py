"""Objects of the core as Python objects: made without their constructors, twice, copied, hashed and compared."""

from __future__ import annotations

import collections
import copy
import ctypes
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import (
    CapturingError,
    ClosedError,
    Context,
    ContextCurrentError,
    ContextOptions,
    Device,
    DeviceResources,
    Event,
    ForkedError,
    ResourceOverlapWarning,
    SMResource,
    Stream,
    StreamOptions,
    WorkqueueResource,
)
from cuda_gctx._core import extension as errors_of_core
from cuda_gctx._core.extension import Lease, Opening, Stamps, context_stream, run_probe
from cuda_software_driver import session

from ..common import green, leases, refusal, small_contexts, split
from ..raw import Raw

MADE_ELSEWHERE = [Context, Event, SMResource, DeviceResources, WorkqueueResource, Lease, Opening]


@pytest.mark.parametrize("kind", MADE_ELSEWHERE, ids=lambda kind: kind.__name__)
def test_objects_without_content_cannot_be_made(dev: Device, kind: Any) -> None:
    class Child(kind):  # type: ignore[misc]
        pass

    for make in (kind, lambda: kind.__new__(kind), Child, lambda: kind.__new__(Child)):
        assert "from" in str(refusal(TypeError, make))


class Careless(Stream):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("make", [Careless, lambda: Stream.__new__(Stream)], ids=["subclass", "__new__"])
@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.handle,
        lambda stream: stream.context,
        lambda stream: stream.is_done,
        lambda stream: stream.sync(),
        lambda stream: stream.record(),
        lambda stream: stream.__cuda_stream__(),
        hash,
        lambda stream: run_probe([stream], [1], 0, 10**9),
    ],
)
def test_a_stream_that_was_never_initialized_raises(dev: Device, make: Any, use: Callable[[Any], Any]) -> None:
    stream = make()
    assert "never initialized" in str(refusal(RuntimeError, lambda: use(stream)))
    assert repr(stream) == "<Stream: never initialized>"
    stream.close()


def test_a_stream_is_initialized_once(dev: Device) -> None:
    with dev.create_stream() as stream, dev.create_stream() as other:
        handle = stream.handle
        assert "already" in str(refusal(RuntimeError, lambda: stream.__init__(other)))  # type: ignore[misc]
        assert stream.handle == handle
        stream.sync()


def test_stamps_are_initialized_once_and_first(dev: Device) -> None:
    assert "never initialized" in str(refusal(RuntimeError, lambda: Stamps.__new__(Stamps, dev, 1).read()))
    stamps = Stamps(dev, 2)
    assert "already" in str(refusal(RuntimeError, lambda: stamps.__init__(dev, 3)))  # type: ignore[misc]
    assert len(stamps.read()) == 2


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda function: function.__name__)
def test_copies_are_refused_with_what_to_do(dev: Device, copying: Callable[[Any], Any]) -> None:
    whole = dev.resources.sm
    with dev.create_stream() as stream, stream.record() as event:
        for thing in (dev.context, stream, event, whole, dev.resources, ContextOptions([whole]), dev.context.current()):
            error = refusal(TypeError, lambda thing=thing: copying(thing))
            assert str(error).startswith(f"{type(thing).__name__} objects cannot be pickled or copied: ")


def test_a_closed_object_is_still_found_by_its_hash(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    stream = ctx.create_stream()
    event = stream.record()
    things: list[Any] = [ctx, stream, event]
    numbers = [hash(thing) for thing in things]
    table = dict.fromkeys(things, 1)
    weak = weakref.WeakSet(things)
    for thing in reversed(things):
        thing.close()
    assert [hash(thing) for thing in things] == numbers
    for thing in things:
        assert thing in weak
        assert table.pop(thing) == 1
    assert not table


def test_options_are_values(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [8, 16])
    assert ContextOptions(groups, name="a") == ContextOptions(collections.UserList(groups), name="a")
    assert hash(ContextOptions(groups)) == hash(ContextOptions(tuple(groups)))
    assert ContextOptions(groups) != ContextOptions(groups, exclusive=True)
    assert dev.resources.sm == Device(0).resources.sm
    assert groups[0] != groups[1]
    assert groups == split(dev.resources.sm, [8, 16])[0]


def test_options_can_be_dicts(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 8)
    _, highest = dev.priority_range
    with dev.create_context({"resources": [group], "name": "a"}) as ctx:
        assert ctx.name == "a"
        with ctx.create_stream({"priority": highest}) as stream:
            assert stream.priority == highest
            with stream.record(options={"timing_enabled": True}) as event:
                assert event.is_timing_enabled
        with dev.create_event({"blocking_sync": True}) as event:
            assert event.is_blocking_sync
    assert "did you mean 'priority'?" in str(refusal(TypeError, lambda: dev.create_stream({"prio": 1})))
    assert "StreamOptions or a dict" in str(refusal(TypeError, lambda: dev.create_stream(3)))  # type: ignore[arg-type]


def test_a_device_takes_the_stream_of_others(dev: Device) -> None:
    class Foreign:
        def __init__(self, handle: int) -> None:
            self.handle = handle

        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, self.handle)

    with dev.create_stream(StreamOptions()) as stream:
        assert dev.create_stream(Foreign(stream.handle)) == stream


def test_compute_capability_has_names(dev: Device) -> None:
    capability = dev.compute_capability
    assert capability == (capability.major, capability.minor)


@pytest.mark.parametrize("error", [CapturingError, ClosedError, ContextCurrentError, ForkedError])
def test_errors_have_their_public_names_and_are_runtime_errors(error: type[Exception]) -> None:
    assert issubclass(error, RuntimeError)
    assert f"{error.__module__}.{error.__name__}" == f"cuda_gctx.{error.__name__}"
    assert str(pickle.loads(pickle.dumps(error("why")))) == "why"


def test_every_public_error_of_the_core_names_the_package() -> None:
    errors = [
        found for found in vars(errors_of_core).values() if isinstance(found, type) and issubclass(found, Exception)
    ]
    assert {found.__name__ for found in errors} <= set(cuda_gctx.__all__)
    assert {found.__module__ for found in errors} == {"cuda_gctx"}


def test_the_classes_are_the_same_after_a_reload(tmp_path: Path) -> None:
    program = """
import importlib, cuda_gctx
def classes():
    return [one for one in (getattr(cuda_gctx, name) for name in cuda_gctx.__all__) if isinstance(one, type)]
before = classes()
importlib.reload(cuda_gctx)
assert classes() == before
assert cuda_gctx.Device().sm_count
"""
    # In the clone, the sources may come before the installed package.
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)


def test_a_warning_says_who_has_the_sms_exclusively(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 8)
    warned = pytest.warns(ResourceOverlapWarning, match="'mine' has its SMs exclusively")
    with green(dev, group, exclusive=True, name="mine"), warned:
        green(dev, group).close()


def test_our_own_streams_are_adopted_without_a_question(sim: Callable[..., Any]) -> None:
    machine = sim()
    (ctx,) = small_contexts(Device(0), 1)
    with ctx, ctx.create_stream() as stream:
        kept = context_stream(ctx)
        before = dict(machine.calls())
        assert Stream.from_handle(stream.handle) == stream
        assert Stream.from_handle(kept.handle) == kept
        assert machine.calls() == before
        kept.close()


# ---- captures

CAPTURE_BREAKERS: dict[str, Callable[[Device, Context, Stream, Event, SMResource], Any]] = {
    "ctx.record_event": lambda dev, ctx, stream, event, group: ctx.record_event(),
    "ctx.wait_event": lambda dev, ctx, stream, event, group: ctx.wait_event(event),
    "ctx.wait_context": lambda dev, ctx, stream, event, group: ctx.wait_context(dev.context),
    "ctx is waited for": lambda dev, ctx, stream, event, group: dev.context.wait_context(ctx),
    "ctx.sync": lambda dev, ctx, stream, event, group: ctx.sync(),
    "stream.sync": lambda dev, ctx, stream, event, group: stream.sync(),
    "stream.is_done": lambda dev, ctx, stream, event, group: stream.is_done,
    "dev.create_context": lambda dev, ctx, stream, event, group: green(dev, group),
    "dev.partition": lambda dev, ctx, stream, event, group: dev.partition(8),
}


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
@pytest.mark.parametrize("kept", [False, True], ids=["own stream", "kept stream"])
@pytest.mark.parametrize("name", CAPTURE_BREAKERS)
def test_what_would_spoil_a_capture_is_refused(sim: Callable[..., Any], name: str, kept: bool, driver: str) -> None:
    sim("h200", driver=driver)
    dev, raw = Device(0), Raw()
    groups, _ = split(dev.resources.sm, [8, 8])
    ctx = green(dev, groups[0])
    stream = context_stream(ctx) if kept else ctx.create_stream()
    with ctx.create_event() as event:
        raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 0)
        refusal(CapturingError, lambda: CAPTURE_BREAKERS[name](dev, ctx, stream, event, groups[1]))
        graph = raw.handle_of_capture(stream.handle)
        raw.call("cuGraphDestroy", ctypes.c_void_p(graph))
        CAPTURE_BREAKERS["ctx.record_event"](dev, ctx, stream, event, groups[1]).close()
    stream.close()
    ctx.close()


def begin_capture(stream: int) -> None:
    Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 1)


def end_capture(stream: int) -> None:
    Raw().call("cuGraphDestroy", ctypes.c_void_p(Raw().handle_of_capture(stream)))  # raises if it was invalidated


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
def test_a_stream_is_not_closed_while_it_captures(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    (ctx,) = small_contexts(Device(0), 1)
    with ctx, ctx.create_stream() as stream, ctx.create_stream() as side:
        handle = stream.handle
        begin_capture(handle)
        side.wait(stream)
        for capturing in (stream, side):
            assert "end it first" in str(refusal(CapturingError, capturing.close))
            refusal(CapturingError, lambda capturing=capturing: capturing.__exit__(None, None, None))
            assert not capturing.is_closed
        stream.wait(side)
        end_capture(handle)
        side.close()
        stream.close()
        assert side.is_closed
        assert stream.is_closed


def test_a_capture_outlives_the_last_object_of_its_stream(sim: Callable[..., Any]) -> None:
    sim("h200", driver="13.0")
    (ctx,) = small_contexts(Device(0), 1)
    stream = ctx.create_stream()
    handle = stream.handle
    begin_capture(handle)
    refusal(CapturingError, ctx.close)
    assert not ctx.is_closed
    del stream
    gc.collect()
    with ctx.create_stream() as other:
        assert other.handle != handle
    end_capture(handle)
    ctx.close()
    assert leases() == 0


def test_a_dropped_stream_whose_raw_value_is_known_stays_until_its_lease_ends(dev: Device) -> None:
    (ctx,) = small_contexts(dev, 1)
    handle = ctx.create_stream().handle  # as torch.cuda.ExternalStream(ctx.create_stream().handle)
    gc.collect()
    for _ in range(3):
        with ctx.create_stream() as other:
            assert other.handle != handle
    adopted = Stream.from_handle(handle)
    adopted.record().sync()
    del adopted
    ctx.close()
    (again,) = small_contexts(dev, 1)
    streams = [again.create_stream() for _ in range(8)]
    assert handle in [stream.handle for stream in streams]
    for stream in streams:
        stream.close()
    again.close()


def test_a_closed_stream_whose_raw_value_is_known_is_the_next_one_of_its_kind(dev: Device) -> None:
    cuda_gctx.system.release_contexts(exposed=True)  # a context that others have used may have more such streams
    with small_contexts(dev, 1)[0] as ctx:
        stream = ctx.create_stream()
        handle = stream.handle
        stream.close()
        with ctx.create_stream() as again:
            assert again.handle == handle


# ---- contexts that others destroy


def test_kept_streams_of_a_context_that_its_owner_destroyed_are_left_alone(sim: Callable[..., Any]) -> None:
    machine = sim(check=False)
    raw = Raw()
    with raw.ordinary_context() as handle:
        ctx = Context.from_handle(handle)
        stream = context_stream(ctx)
        own = ctx.create_stream()
    noted = len(machine.ledger().misuse)  # of whoever destroyed it under its streams
    assert "destroyed by its owner" in str(refusal(ClosedError, stream.sync))
    own.close()
    stream.close()
    ctx.close()
    assert len(machine.ledger().misuse) == noted


# ---- machines that take each other's place


def test_objects_of_one_machine_never_reach_another(sim: Callable[..., Any]) -> None:
    outer = sim()
    (ctx,) = small_contexts(Device(0), 1)
    stream, event = ctx.create_stream(), ctx.create_event()
    kept = context_stream(ctx)
    with session("h200", driver="13.1") as inner:
        assert "inactive" in str(refusal(RuntimeError, stream.sync))
        assert "inactive" in str(refusal(RuntimeError, ctx.create_stream))
        with Device(0).create_stream() as other:
            other.sync()
        del stream, event, kept, ctx
        gc.collect()
        assert not inner.ledger().misuse
    ledger = outer.ledger()
    assert not ledger.misuse
    assert not ledger.live_of("event")
    assert leases() == 0
