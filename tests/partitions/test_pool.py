"""A pool keeps layouts: the first use builds, every later one costs next to nothing and no driver call."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import (
    CapturingError,
    ClosedError,
    ContextOptions,
    CUDAError,
    Device,
    EventOptions,
    Layout,
    PartitionPool,
    PartitionSpec,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    system,
)
from cuda_gctx._core.extension import run_probe
from cuda_gctx.partitions import Partitions
from cuda_gctx.tune import Plan, spin

from ..common import leases, on_another_thread, refusal, run_python, split
from ..raw import Raw

Machines = Callable[..., Any]

SIX: list[Any] = [{"decode": 8, "prefill": None}, {"decode": 16, "prefill": None}, (8, 8), [8, 16, None], 8, 0.25]
SIX = [(layout,) if isinstance(layout, (int, float)) else layout for layout in SIX]


def test_the_first_use_builds_and_every_spelling_finds_it(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        parts = pool.prepare({"decode": 8, "prefill": None})
        assert pool.prepare({"decode": 8, "prefill": None}) is parts
        assert pool.prepare(Layout(decode=8, prefill=None)) is parts
        assert pool.prepare({"decode": PartitionSpec(8), "prefill": PartitionSpec()}) is parts
        assert pool.prepare([8, None]) is pool.prepare((8, None)) is pool.prepare(Layout(8, None)) is not parts
        assert pool.layouts == (Layout(decode=8, prefill=None), Layout(8, None))
        assert len(pool) == 2
        assert parts.decode.stream.resources.sm.sm_count == parts.decode.sm_count


GROWING = """
import gc, sys
from cuda_gctx._core.extension import spelling

requests = [8, 8] if sys.argv[1] == "list" else {"a": 8, "b": 8}

def grow(phase, info):
    if phase == "stop":
        requests.extend([8] * 4000) if sys.argv[1] == "list" else requests.update((f"z{k}", 8) for k in range(2000))

gc.callbacks.append(grow)
kept = []
for i in range(300):
    if sys.argv[1] == "list":
        del requests[2:]
    else:
        requests.clear()
        requests.update(a=8, b=8)
    gc.set_threshold(1, 1, 1)
    kept.append([i])
    spelling((requests,), {})
    gc.set_threshold(0)
print("done")
"""


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_requests_that_a_collection_changes_during_the_call_are_read_whole(kind: str) -> None:
    """A list that grew while it was read was written behind the end of a tuple."""
    done = run_python(GROWING, kind)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("call", ["drop", "layouts"])
def test_a_finalizer_can_build_layouts_in_the_middle_of_a_call(dev: Device, call: str) -> None:
    """drop() raised "dictionary changed size during iteration", and left the layout half dropped."""
    names, threshold = [f"x{number}" for number in range(100)], gc.get_threshold()

    def build(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and names:
            pool.prepare({names.pop(): 8})

    pairs = [(number, number) for number in range(4000)]  # so that the interpreter keeps no unused ones
    with PartitionPool(dev, limit=1000) as pool:
        gc.callbacks.append(build)
        try:
            while names:
                pool.prepare(a=16, b=None)
                gc.set_threshold(1, 1000, 1000)
                layouts = pool.drop(a=16, b=None) if call == "drop" else pool.layouts
                gc.set_threshold(*threshold)
                assert layouts is None or Layout(a=16, b=None) in layouts
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(build)
        assert (Layout(a=16, b=None) in pool.layouts) == (call == "layouts")
        assert len(pairs) == 4000


def test_numbers_that_are_equal_are_not_the_same_request(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        one = pool.prepare((1,))
        assert one[0].sm_count < dev.sm_count
        assert pool.prepare({"a": 1}) is not one
        # 1.0 and True are equal to 1, and cannot be requested.
        for spelled in ((1.0,), [1.0], {"a": 1.0}):
            with pytest.raises(ValueError, match="not a share"):
                pool.prepare(spelled)
        with pytest.raises(TypeError, match="bool"):
            pool.prepare((True,))
        with pytest.raises(TypeError, match="bool"):
            pool.prepare({"a": True})


def test_the_order_of_the_names_is_part_of_a_layout(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        first, second = pool.prepare({"a": 8, "b": 16}), pool.prepare({"b": 16, "a": 8})
        assert (first.names, second.names) == (("a", "b"), ("b", "a"))
        assert [part.name for part in pool.prepare({"b": 16, "a": 8})] == ["b", "a"]
        assert pool.prepare({"b": 8, "a": 16}).a.sm_count == 16
        for parts, names in ((pool.prepare(a=8, b=16), ("a", "b")), (pool.prepare(b=16, a=8), ("b", "a"))):
            assert parts.names == names


def test_equal_groups_of_several_layouts_share_one_context(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        first, second = pool.prepare(decode=16), pool.prepare(decode=16, prefill=None)
        assert machine.calls("cuGreenCtxCreate") == 2
        assert first.decode.context == second.decode.context
        assert first.decode.stream.handle == second.decode.stream.handle
        assert first.background.context == second.prefill.context
        # Work in a shared context is work of both layouts.
        spin(second.decode.stream, 1, 1_000_000)
        assert first.verify().in_use == ()
    assert system.idle_contexts == 2
    stream = None
    pool = PartitionPool(Device(0))
    pool.prepare(decode=16)
    stream = pool.prepare(decode=16, prefill=None).decode.stream
    del pool
    gc.collect()
    assert system.idle_contexts == 0  # a stream in use keeps its context, and those of its layout
    assert stream.is_done
    del stream
    gc.collect()
    assert system.idle_contexts == 2


# From Python 3.14 on, the interpreter shows one warning at a time: a thread that warns waits for the one that shows.
SHOWS_ONE_AT_A_TIME = pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="from Python 3.14 on, a thread that warns waits for the one that shows a warning",
)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("thread", [pytest.param(True, marks=SHOWS_ONE_AT_A_TIME), False])
def test_a_warning_may_run_code_that_uses_the_pool(
    sim: Machines, monkeypatch: pytest.MonkeyPatch, same: bool, thread: bool
) -> None:
    machine = sim("h200")
    dev = Device(0)
    pool = PartitionPool(dev)
    found: list[Partitions] = []
    warned: list[object] = []

    def hook(*args: object, **kwargs: object) -> None:
        warned.append(args)
        if len(warned) == 1:
            found.append(on_another_thread(parts_of_hook) if thread else parts_of_hook())

    def parts_of_hook() -> Partitions:
        return pool.prepare(decode=8) if same else pool.prepare(decode=16)

    with dev.partition(mine=24), pool, warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", hook)
        made = machine.calls("cuGreenCtxCreate")
        parts = on_another_thread(lambda: pool.prepare(decode=8))
        assert pool.prepare(decode=8) is parts
        assert (found[0] is parts) == same
        assert machine.calls("cuGreenCtxCreate") - made == (2 if same else 4)


def test_a_warning_may_wait_for_a_thread_that_switches(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200")
    dev = Device(0)
    found: list[Partitions] = []

    def hook(*args: object, **kwargs: object) -> None:
        found.append(on_another_thread(lambda: pool.switch(decode=16)))

    with PartitionPool(dev) as pool, warnings.catch_warnings():
        known = pool.prepare(decode=16)
        warnings.simplefilter("ignore")
        with dev.partition(mine=24):
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", hook)
            pool.prepare(decode=8)
    assert found
    assert all(parts is known for parts in found)


def elapsed(pool: PartitionPool, before: Any, after: Any) -> float:
    """Milliseconds until a short kernel in a partition of `after` ends, next to 5 ms of work in one of `before`."""
    timed = EventOptions(timing_enabled=True)
    old = pool.switch(before[0])
    busy = old[before[1]].stream_pool(1)[0]
    begin = busy.record(old[before[1]].context.create_event(timed))
    spin(busy, old[before[1]].sm_count, 5_000_000)
    new = pool.switch(after[0])
    assert pool.current is new
    part = new[after[1]]
    later = part.stream_pool(3, priority=-1)[2]  # made after the switch
    spin(later, 1, 10_000)
    end = later.record(part.context.create_event(timed))
    pool.device.sync()
    return end - begin


def test_a_switch_is_ordered_on_the_device_behind_work_on_the_same_sms(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        assert "call pool.switch() first" in str(refusal(AttributeError, lambda: pool.current))
        assert not hasattr(pool, "current")
        narrow, wide = Layout(decode=16, prefill=None), Layout(decode=64, prefill=None)
        assert elapsed(pool, (narrow, "prefill"), (wide, "decode")) >= 5


def test_a_switch_lets_partitions_that_stay_go_on(sim: Machines) -> None:
    sim("h200")
    first, second = Layout(decode=16), Layout(decode=16, prefill=None)
    with PartitionPool(Device(0)) as pool:
        assert pool.prepare(first).decode.context == pool.prepare(second).decode.context
        assert elapsed(pool, (first, "background"), (second, "decode")) < 1
        assert elapsed(pool, (first, "decode"), (second, "prefill")) < 1


def test_a_switch_waits_for_layouts_before_the_last_one(dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with PartitionPool(dev) as pool:
        first = pool.switch(a=16, b=None)
        begin = first.b.stream.record(first.b.context.create_event(timed))
        spin(first.b.stream, first.b.sm_count, 5_000_000)
        pool.switch(Layout(a=16, c=24, d=None))
        last = pool.switch(a=64, b=None)
        spin(last.a.stream, 1, 10_000)
        end = last.a.stream.record(last.a.context.create_event(timed))
        dev.sync()
        assert end - begin >= 5


def test_switching_to_the_current_layout_and_preparing_change_nothing(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        parts = pool.switch(decode=16)
        pool.prepare(decode=32)
        assert pool.current is parts
        before = machine.calls()
        assert pool.switch(decode=16) is pool.switch(Layout(decode=16)) is parts
        assert machine.calls() == before
    with pytest.raises(ClosedError):
        pool.current  # noqa: B018
    with pytest.raises(RuntimeError, match="pool has been closed"):
        pool.switch(decode=16)


NARROW, WIDE = Layout(decode=16, prefill=None), Layout(decode=64, prefill=None)


def test_a_layout_that_is_dropped_during_a_capture_leaves_the_capture_alone(dev: Device) -> None:
    with PartitionPool(dev) as pool, dev.create_stream() as stream:
        layouts = Layout(a=16, b=16), Layout(a=32, b=8)
        for layout in layouts:
            pool.prepare(layout)
        spin(pool.switch(layouts[0]).a.stream, 1, 50_000_000)
        pool.switch(layouts[1])
        with stream.capture() as capture:
            pool.drop(layouts[0])
        capture.graph.close()


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_a_switch_leaves_a_capture_of_another_stream_alone(dev: Device, mode: Any) -> None:
    layouts = NARROW, WIDE, Layout(decode=32, prefill=None)
    with PartitionPool(dev) as pool, dev.create_stream() as stream:
        for layout in layouts:
            pool.prepare(layout)
        for part in pool.switch(NARROW):
            spin(part.stream, 1, 20_000_000)
        with stream.capture(mode) as capture:
            for layout in layouts:  # the last switch asks whether the work in the first layout has ended
                pool.switch(layout)
        capture.graph.close()


def test_a_pool_is_not_closed_while_a_stream_of_a_plan_captures(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        parts, streams = pool.switch(NARROW), Plan("streams", ("a", "b")).switch(pool)
        with streams["b"].capture() as capture:
            refusal(CapturingError, pool.close)
        capture.graph.close()
        assert pool.prepare(NARROW) is parts
        assert not any(stream.is_closed for stream in streams.values())
    assert parts.is_closed


def test_options_are_part_of_a_layout(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        exact = SMResourceOptions(10, backfill=True)
        assert pool.prepare((exact,)) is pool.prepare((SMResourceOptions(10, backfill=True),))
        assert pool.prepare((exact,))[0].sm_count == 10


def test_looking_up_makes_no_driver_call(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        for layout in SIX:
            for part in pool.prepare(layout):
                assert part.stream.is_done
        before = machine.calls()
        for _ in range(100):
            for layout in SIX:
                assert pool.prepare(layout)[0].stream is not None
        assert machine.calls() == before


def test_memory_is_flat_over_many_look_ups(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        for layout in SIX:
            pool.prepare(layout)
        free = machine.memory()["free"]
        made = machine.calls("cuGreenCtxCreate")
        for turn in range(10_000):
            pool.prepare(SIX[turn % 6])
        assert machine.memory()["free"] == free
        assert machine.calls("cuGreenCtxCreate") == made


def test_layouts_of_one_pool_may_overlap_and_others_are_reported(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        pool.prepare((8, None))
        pool.prepare({"decode": 8})  # warnings are errors in the tests
        with pytest.warns(ResourceOverlapWarning, match="decode"):
            dev.partition(mine=8).close()
        with PartitionPool(dev) as other:
            for build, size in ((other.prepare, 8), (other.switch, 16)):
                with pytest.warns(ResourceOverlapWarning, match="shares? SMs") as caught:
                    build((size, None))
                assert caught[0].filename == __file__
    [group], _ = split(dev.resources.sm, [8])
    with dev.create_context(ContextOptions([group])), PartitionPool(dev) as pool:
        with pytest.warns(ResourceOverlapWarning):
            pool.prepare((8,))
        pool.prepare((8,))  # warns once


def test_partitions_of_two_layouts_name_the_context_that_they_share_each_by_its_own_name(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        first, second = pool.prepare({"a": 16}), pool.prepare({"b": 16})
        assert first.a.context == second.b.context
        assert (first.a.context.name, second.b.context.name) == ("a", "b")


def test_contexts_of_a_closed_pool_are_used_again(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    with PartitionPool(dev) as pool:
        pool.prepare({"decode": 16, "prefill": None})
    made = machine.calls("cuGreenCtxCreate")
    assert system.idle_contexts == made
    with dev.partition(decode=16, prefill=None), PartitionPool(dev) as pool:
        assert machine.calls("cuGreenCtxCreate") == made
    del pool
    abandoned = PartitionPool(dev)
    abandoned.prepare((16, None))
    del abandoned
    gc.collect()
    assert machine.calls("cuGreenCtxCreate") == made
    assert system.idle_contexts == made


def test_partitions_of_a_pool_are_closed_by_the_pool_alone(dev: Device) -> None:
    pool = PartitionPool(dev)
    with pool.prepare((8,)) as parts:
        stream = parts[0].stream
    assert not parts.is_closed
    assert "belong to a pool" in str(refusal(RuntimeError, parts.close))
    with parts[0].context.current():
        assert "is current" in str(refusal(RuntimeError, pool.close))
        assert pool.prepare((8,)) is parts
    pool.close()
    pool.close()
    assert pool.is_closed
    assert parts.is_closed
    assert stream.is_closed
    for use in (lambda: pool.prepare((8,)), lambda: pool.prepare((16,)), pool.__enter__):
        assert "pool has been closed" in str(refusal(RuntimeError, use))


def test_a_layout_that_fails_is_not_kept(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        refusal(SplitError, lambda: pool.prepare({"a": 500}))
        refusal(ValueError, lambda: pool.prepare({"a": -1}))
        refusal(TypeError, lambda: pool.prepare("8"))  # type: ignore[arg-type]
        machine.fail("cuGreenCtxCreate", nth=2, code="CUDA_ERROR_UNKNOWN")
        refusal(CUDAError, lambda: pool.prepare((8, 16)))
        assert len(pool) == 0
        assert leases() == 0
        assert len(pool.prepare((8, 16))) == 2
    with pytest.raises(TypeError, match="must be a Device"):
        PartitionPool(0)  # type: ignore[arg-type]


def test_building_is_refused_during_capture_and_switching_is_not(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        known = pool.prepare((8,))
        graph = ctypes.c_void_p()
        capturing = ctypes.c_void_p(known[0].stream.handle)
        Raw().call("cuStreamBeginCapture_v2", capturing, 0)
        try:
            message = str(refusal(RuntimeError, lambda: pool.prepare((24, 8))))
            assert pool.prepare((8,)) is known
        finally:
            Raw().call("cuStreamEndCapture", capturing, ctypes.byref(graph))
            Raw().call("cuGraphDestroy", graph)
        assert "is capturing a graph" in message
        assert len(pool) == 1
        assert len(pool.prepare((24, 8))) == 2


class Foreign:
    """A stream that another library made."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_a_foreign_stream_that_captures_is_known_when_it_is_named(dev: Device) -> None:
    dev.set_current()
    raw = Raw()
    handle = ctypes.c_void_p()
    raw.call("cuStreamCreate", ctypes.byref(handle), 1)  # non-blocking: the driver does not report this
    graph = ctypes.c_void_p()
    unmade = (SMResourceOptions(14, backfill=True),)  # asked for by no other test: it has to be made
    with PartitionPool(dev) as pool:
        raw.call("cuStreamBeginCapture_v2", handle, 2)
        try:
            error = refusal(RuntimeError, lambda: pool.prepare(unmade, stream=Foreign(handle.value or 0)))
        finally:
            raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))
            raw.call("cuGraphDestroy", graph)
        assert "is capturing a graph" in str(error)
        assert len(pool.prepare(unmade, stream=Foreign(handle.value or 0))) == 1
        gc.collect()
        raw.call("cuStreamDestroy_v2", handle)


def test_what_the_legacy_stream_answers_during_a_capture_refuses_to_build(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        machine.fail("cuStreamIsCapturing", code="CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", nth=1)
        error = refusal(RuntimeError, lambda: pool.prepare((8,)))
        assert "a blocking stream of the primary context is capturing" in str(error)
        assert len(pool.prepare((8,))) == 1


@pytest.mark.gpu_only
def test_a_blocking_foreign_stream_that_captures_is_known_without_a_name(dev: Device) -> None:
    dev.set_current()
    raw = Raw()
    handle, graph = ctypes.c_void_p(), ctypes.c_void_p()
    raw.call("cuStreamCreate", ctypes.byref(handle), 0)
    with PartitionPool(dev) as pool:
        raw.call("cuStreamBeginCapture_v2", handle, 2)
        try:
            error = refusal(RuntimeError, lambda: pool.prepare((SMResourceOptions(18, backfill=True),)))
        finally:
            raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))  # answers an error if the question spoiled it
            raw.call("cuGraphDestroy", graph)
            raw.call("cuStreamDestroy_v2", handle)
    assert "a blocking stream of the primary context is capturing" in str(error)


def test_sixteen_threads_switch_among_layouts(dev: Device) -> None:
    layouts = [Layout(first=8, second=None), Layout(8, 8), Layout(16), Layout(0.25)]
    found: dict[int, set[Partitions]] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(16)

    def work(number: int) -> None:
        try:
            start.wait(timeout=30)
            mine = layouts[number % 4]
            seen = set()
            for _ in range(200):
                parts = pool.prepare(mine)
                assert parts[0].stream.resources.sm.sm_count == parts[0].sm_count
                assert parts.layout == mine
                seen.add(parts)
            found[number] = seen
        except BaseException as error:
            errors.append(error)

    with PartitionPool(dev) as pool:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(pool) == 4
        assert {number: len(seen) for number, seen in found.items()} == dict.fromkeys(range(16), 1)
        assert len(set.union(*found.values())) == 4
        found.clear()


def test_verify_reports_other_layouts_in_use(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0)) as pool:
        mine, other = pool.prepare((8, None)), pool.prepare((16, 8))
        assert mine.verify().in_use == ()
        assert other[0].stream.is_done
        # Of virtual time, an hour; of real time, a millisecond.
        refusal(RuntimeError, lambda: run_probe([other[0].stream], [1], 3_600_000_000_000, 1_000_000))
        report = mine.verify()
        assert report.in_use == ("Layout(16, 8)",)
        assert "Layout(16, 8) of the same pool had unfinished work" in str(report)
        other[0].stream.sync()
