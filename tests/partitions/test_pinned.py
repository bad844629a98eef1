"""What a framework has seen is not destroyed before the driver is closed: by no close(), not by the store."""

from __future__ import annotations

import ctypes
import gc
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_gctx import Context, CUDAWarning, Device, Stream, StreamOptions, system
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop._frameworks import own_stream
from cuda_gctx.partitions import store
from cuda_gctx.tune import spin
from cuda_software_driver import LedgerError, session

from ..common import green, refusal, run_python, split
from ..raw import Raw, RawError

Machines = Callable[..., Any]


@pytest.fixture
def machine(sim: Machines) -> Iterator[Any]:
    yield sim("h200")
    gc.collect()


def works(stream: int) -> bool:
    """Whether the driver still knows a stream, by its handle alone."""
    try:
        Raw().call("cuStreamQuery", ctypes.c_void_p(stream))
    except RawError:
        return False
    return True


def capture(stream: int, *, begin: bool) -> None:
    if begin:
        Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 2)
        return
    graph = ctypes.c_void_p()
    Raw().call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    Raw().call("cuGraphDestroy", graph)


def small(dev: Device, **options: Any) -> Context:
    [group], _ = split(dev.resources.sm, [8])
    return green(dev, group, **options)


HAND_OVER: list[Callable[[Stream], Any]] = [
    lambda stream: stream.__cuda_stream__(),
    own_stream,
]


@pytest.mark.parametrize("hand_over", HAND_OVER)
def test_a_stream_that_was_handed_over_outlives_everything_here(
    machine: Any, hand_over: Callable[[Stream], Any]
) -> None:
    ctx = small(Device(0))
    stream = ctx.create_stream()
    handle = stream.handle
    hand_over(stream)
    stream.close()
    ctx.close()
    del stream, ctx
    gc.collect()
    store.drop()
    store.limit = store.limit
    assert works(handle)
    assert machine.calls("cuGreenCtxDestroy") == machine.calls("cuStreamDestroy_v2") == 0


def test_reading_a_handle_or_naming_a_stream_again_is_not_handing_it_over(machine: Any) -> None:
    ctx = small(Device(0))
    stream = ctx.create_stream()
    assert stream.handle
    assert Stream(stream) == stream
    stream.close()
    ctx.close()
    assert machine.ledger().live_of("green context") == machine.ledger().live_of("stream") == ()


def test_partitions_that_a_framework_has_seen_stay_in_the_store(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(decode=16) as parts:
        handle = own_stream(parts.decode).handle
    assert len(store) == 2
    store.drop()
    assert len(store) == 1
    assert works(handle)
    with dev.partition(other=16) as parts:
        assert parts.other.stream.handle == handle


def test_neither_the_limit_of_the_store_concerns_them(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "limit", 1)
    dev = Device(0)
    with dev.partition(decode=16) as parts:
        handle = own_stream(parts.decode).handle
    for size in (24, 32):
        dev.partition(size).close()
    assert len(store) == 2  # the pinned one, and one within the limit
    assert works(handle)


def test_closing_gives_the_sms_back(machine: Any) -> None:
    dev = Device(0)
    ctx = small(dev, exclusive=True)
    stream = ctx.create_stream()
    own_stream(stream)
    ctx.close()
    stream.close()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dev.partition(8, exclusive=True).close()


def test_a_closed_context_of_the_user_serves_the_next_request_for_its_sms(machine: Any) -> None:
    dev = Device(0)
    handles = []
    for _ in range(3):
        ctx = small(dev, name="mine")
        stream = ctx.create_stream(StreamOptions(priority=-1))
        own_stream(stream)
        handles.append((ctx.handle, stream.handle))
        stream.close()
        ctx.close()
        gc.collect()
        memory = system.memory()[0]
        assert (memory.contexts, memory.stored, memory.pinned, memory.destroyed) == (1, 1, 1, 0)
    assert len(set(handles)) == 1
    with dev.partition(8) as parts:
        assert parts[0].context.handle == handles[0][0]
        assert system.memory()[0].stored == 0
    other, _ = split(dev.resources.sm, [16])
    with green(dev, *other) as ctx:  # other SMs: another context
        assert ctx.handle != handles[0][0]


def test_a_closed_stream_serves_the_next_one_with_the_same_options(machine: Any) -> None:
    dev = Device(0)
    first = dev.create_stream()
    handle = first.handle
    own_stream(first)
    first.close()
    gc.collect()
    with dev.create_stream(StreamOptions(priority=-1)) as other, dev.create_stream({"nonblocking": False}) as third:
        assert handle not in (other.handle, third.handle)
    capture(handle, begin=True)
    with dev.create_stream() as meanwhile:
        assert meanwhile.handle != handle
    capture(handle, begin=False)
    with dev.create_stream() as again:
        assert again.handle == handle


def test_few_of_the_closed_streams_are_asked_for_the_next_one(machine: Any) -> None:
    dev = Device(0)
    busy = [dev.create_stream() for _ in range(50)]
    idle = dev.create_stream()
    for stream in (*busy, idle):
        own_stream(stream)
    captured, handle = [stream.handle for stream in busy], idle.handle
    for known in captured:
        capture(known, begin=True)
    for stream in (*busy, idle):
        stream.close()
    handles = []
    for _ in range(20):
        asked = machine.calls("cuStreamIsCapturing") + machine.calls("cuStreamQuery")
        with dev.create_stream() as stream:
            handles.append(stream.handle)
        assert machine.calls("cuStreamIsCapturing") + machine.calls("cuStreamQuery") - asked < 10
    assert handle in handles  # each has its turn
    for known in captured:
        capture(known, begin=False)


def test_memory_reports_what_frameworks_have_seen(machine: Any) -> None:
    with Device(0).partition(a=8, b=8) as parts:
        assert system.memory()[0].pinned == 0
        own_stream(parts.a)
        own_stream(parts.a)
        assert system.memory()[0].pinned == 1
    assert system.memory()[0].pinned == 1


def test_one_warning_comes_when_half_of_the_limit_is_passed(machine: Any) -> None:
    store.pinned_limit = 4
    try:
        with Device(0).partition(a=8, b=8, c=8, d=8) as parts:
            own_stream(parts.a)
            own_stream(parts.b)
            with pytest.warns(CUDAWarning, match="frameworks have seen 3 green contexts of device 0, more than half"):
                own_stream(parts.c)
            own_stream(parts.d)  # warnings are errors in the tests: there is no second one
    finally:
        store.pinned_limit = 512


def test_the_warning_needs_no_partitions() -> None:
    done = run_python(
        "import sys, warnings\n"
        "from cuda_gctx import ContextOptions, CUDAWarning, Device, SMResourceOptions\n"
        "from cuda_gctx._core.extension import set_pinned_limit\n"
        "from cuda_software_driver import session\n"
        "set_pinned_limit(2)\n"
        "with session('h200'), warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    dev = Device(0)\n"
        "    for group in dev.resources.sm.split(SMResourceOptions([8, 8]))[0]:\n"
        "        dev.create_context(ContextOptions([group])).create_stream().__cuda_stream__()\n"
        "    print([w.category is CUDAWarning and w.filename == '<string>' for w in caught])\n"
        "    print('cuda_gctx.partitions' in sys.modules)\n"
    )
    assert done.stdout.split() == ["[True]", "False"], done.stderr


def test_a_context_with_an_open_capture_is_lent_again_when_it_has_ended(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(decode=16) as parts:
        context, handle = parts.decode.context.handle, parts.decode.stream.handle
        capture(handle, begin=True)
    assert (len(store), system.memory()[0].stored) == (1, 2)
    capture(handle, begin=False)
    with dev.partition(decode=16) as parts:
        assert parts.decode.context.handle == context
        parts.decode.record().sync()


def test_a_context_with_an_open_capture_is_set_aside(machine: Any) -> None:
    dev = Device(0)
    with dev.partition(decode=16) as parts:
        context, handle = parts.decode.context.handle, parts.decode.stream.handle
        own_stream(parts.decode)
    with dev.partition(decode=16) as parts:
        capture(handle, begin=True)
    for _ in range(2):
        with dev.partition(decode=16) as parts:
            assert parts.decode.context.handle != context
            parts.decode.record().sync()
    capture(handle, begin=False)


def test_a_context_of_the_user_with_an_open_capture_is_set_aside(machine: Any) -> None:
    dev = Device(0)
    ctx = small(dev)
    stream = ctx.create_stream()
    context, handle = ctx.handle, stream.handle
    own_stream(stream)
    capture(handle, begin=True)
    stream.close()
    ctx.close()
    gc.collect()
    with small(dev) as other:
        assert other.handle != context
    capture(handle, begin=False)
    with small(dev) as again:
        assert again.handle == context


@pytest.mark.sim_only
def test_a_session_destroys_them_last_and_in_order() -> None:
    with session("h200") as machine:  # checks the ledger at its end
        dev = Device(0)
        ctx = small(dev)
        for owner in (ctx, dev):
            stream = owner.create_stream()
            own_stream(stream)
            stream.close()
        ctx.close()
        with dev.partition(16) as parts:
            own_stream(parts[0])
        gc.collect()
    assert machine.ledger().misuse == ()


@pytest.mark.sim_only
def test_a_session_still_reports_what_the_user_left() -> None:
    kept = []

    def leave() -> None:
        with session("h200"):
            ctx = small(Device(0))
            stream = ctx.create_stream()
            own_stream(stream)
            kept.extend([ctx, stream])

    error = str(refusal(LedgerError, leave))
    assert "alive: green context" in error
    assert "alive: stream" in error
    kept.clear()
    gc.collect()


@pytest.mark.sim_only
def test_what_a_machine_that_is_set_aside_has_shown_is_not_destroyed_afterwards() -> None:
    with session("h200") as outer:
        ctx = small(Device(0))
        stream = ctx.create_stream()
        handle = stream.handle
        own_stream(stream)
        gc.collect()
        with session("h200"):
            del stream, ctx
            gc.collect()
        assert works(handle)
        assert outer.calls("cuGreenCtxDestroy") == 0


def test_what_is_made_current_for_the_frameworks_is_seen(torch: Any, dev: Device) -> None:
    with dev.partition(8) as parts:
        pinned = system.memory()[0].pinned
        with current_stream_of_frameworks(parts[0].stream):
            pass
        assert system.memory()[0].pinned >= max(pinned, 1)


@pytest.mark.sim_only
def test_nothing_is_called_in_a_forked_child() -> None:
    done = run_python(
        "import gc, os, warnings\n"
        "from cuda_gctx import Device\n"
        "from cuda_gctx.interop._frameworks import own_stream\n"
        "from cuda_software_driver import session\n"
        "with session('h200', check=False) as machine:\n"
        "    with Device(0).partition(8) as parts:\n"
        "        kept = own_stream(parts[0])\n"
        "    calls = sum(machine.calls().values())\n"
        "    if os.fork() == 0:\n"
        "        del kept, parts\n"
        "        gc.collect()\n"
        "        print(sum(machine.calls().values()) - calls, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    assert done.stdout.strip() == "0", done.stderr


def show(ctx: Context) -> None:
    """To a framework, and close it."""
    with ctx.create_stream() as stream:
        stream.__cuda_stream__()
    ctx.close()


@pytest.fixture
def few() -> Iterator[None]:
    before = store.pinned_limit
    store.pinned_limit = 3
    yield
    store.pinned_limit = before


@pytest.mark.filterwarnings("ignore:frameworks have seen")
def test_beyond_the_limit_no_context_is_shown(machine: Any, few: None) -> None:
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8] * 5)
    for group in groups[:3]:
        show(green(dev, group))
    ctx = green(dev, groups[3])
    stream = ctx.create_stream()
    message = str(refusal(RuntimeError, stream.__cuda_stream__))
    assert "have seen 3 green contexts" in message
    assert "12 MiB" in message
    assert "store.pinned_limit" in message
    assert "store.drop(pinned=True)" in message
    stream.close()
    ctx.close()
    assert len(machine.ledger().live_of("green context")) == 3  # it was not shown, and is gone
    show(green(dev, groups[0]))  # one that was seen before counts once


@pytest.mark.filterwarnings("ignore:frameworks have seen")
def test_the_program_may_drop_what_frameworks_have_seen(machine: Any, few: None) -> None:
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8] * 4)
    for group in groups[:2]:
        show(green(dev, group))
    with dev.partition(8) as parts:
        parts[0].stream.__cuda_stream__()
    used = green(dev, groups[3])
    stream = used.create_stream()
    store.drop()
    assert len(machine.ledger().live_of("green context")) == 4
    store.drop(pinned=True)
    assert len(machine.ledger().live_of("green context")) == 1
    assert not machine.ledger().misuse
    stream.__cuda_stream__()
    stream.close()
    used.close()
    store.drop(pinned=True)
    assert not machine.ledger().live_of("green context")


def test_ten_thousand_layouts_stay_below_the_limit(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8] * 15)
    layouts = itertools.chain.from_iterable(itertools.combinations(groups, size) for size in range(1, 16))
    messages: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CUDAWarning)  # it has a test of its own
        for layout in itertools.islice(layouts, 10_000):
            ctx = green(dev, *layout)
            try:
                show(ctx)
            except RuntimeError as error:
                messages.append(str(error))
                ctx.close()
    assert store.pinned_limit == 512
    assert len(messages) == 10_000 - 512
    assert all("have seen 512 green contexts" in message and "2048 MiB" in message for message in messages)
    gc.collect()
    assert len(machine.ledger().live_of("green context")) == 512
    assert machine.memory()["contexts"] == 512 * 4 * 2**20


def test_a_context_that_is_adopted_while_it_waits_has_one_object_when_it_is_taken_again(machine: Any) -> None:
    dev = Device(0)
    first = small(dev)
    first.create_stream().__cuda_stream__()
    handle = first.handle
    first.close()
    adopted = Context.from_handle(handle)
    again = small(dev, name="again")
    assert again.handle == handle
    assert adopted == again
    del adopted
    gc.collect()
    assert Context.from_handle(handle).name == "again"


def test_making_a_stream_asks_few_of_the_busy_ones_that_frameworks_have_seen(machine: Any) -> None:
    context = small(Device(0))
    streams = [context.create_stream() for _ in range(20)]
    for stream in streams:
        stream.__cuda_stream__()
        spin(stream, 1, 10_000_000)
    for stream in streams:
        stream.close()
    before = machine.calls("cuStreamQuery")
    context.create_stream().close()
    assert machine.calls("cuStreamQuery") - before == 4
