"""What a switch costs, what a pool forgets, and what waits for nobody."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest

from cuda_gctx import (
    CapturingError,
    ClosedError,
    CUDAError,
    CUDAWarning,
    Device,
    GraphSet,
    Layout,
    PartitionPool,
    Partitions,
    system,
)
from cuda_gctx.partitions import opening
from cuda_gctx.tune import Plan, spin

from ..common import refusal
from ..raw import Raw

Machines = Callable[..., Any]
MS = 1_000_000

PAIRS = {
    2: (Layout(a=16, b=None), Layout(a=64, b=None)),
    3: (Layout(a=16, b=16, c=None), Layout(a=32, b=64, c=None)),
    6: (Layout(a=8, b=8, c=8, d=8, e=8, f=None), Layout(a=16, b=16, c=16, d=16, e=16, f=None)),
}
PARTS = ("decode", "prefill")
BESIDE = Layout(decode=16, prefill=None)
OVERLAY = Plan("overlay", PARTS, BESIDE, {"prefill": "prefill"}, first="decode")
APART = Plan("partitions", PARTS, BESIDE, {part: part for part in PARTS})
WIDE = Plan("partitions", PARTS, Layout(decode=64, prefill=None), {part: part for part in PARTS})


def used(pool: PartitionPool, *layouts: Layout) -> None:
    """Switch to each, and let other code know the stream of each partition."""
    for layout in (*layouts, *layouts):
        for part in pool.switch(layout):
            assert part.stream.handle
    pool.device.sync()


def calls_of(machine: Any, action: Callable[[], object]) -> dict[str, int]:
    before = machine.calls()
    action()
    after = machine.calls()
    return {name: number - before.get(name, 0) for name, number in after.items() if number != before.get(name, 0)}


# ---- what it costs


@pytest.mark.parametrize(
    ("number", "waits"),
    [(2, 4), (3, 5), (6, 11)],
)
def test_the_driver_calls_of_a_switch(sim: Machines, number: int, waits: int) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        used(pool, *PAIRS[number])
        expected = {"cuCtxRecordEvent": number, "cuCtxWaitEvent": waits, "cuStreamIsCapturing": 2 * number}
        if waits < number**2:  # all wait for all: one waits, and the others for that
            expected["cuEventRecord"] = 1
        for layout in PAIRS[number]:
            pool.device.sync()
            assert calls_of(machine, lambda layout=layout: pool.switch(layout)) == expected  # type: ignore[misc]


def test_the_driver_calls_of_a_switch_between_plans(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        for plan in (OVERLAY, APART, WIDE, OVERLAY, APART):
            for stream in plan.switch(pool).values():
                assert stream.handle
        pool.device.sync()
        # What stays where it was is not recorded, and waits for nothing.
        assert calls_of(machine, lambda: OVERLAY.switch(pool)) == {
            "cuCtxGetId": 1,
            "cuCtxRecordEvent": 1,
            "cuStreamIsCapturing": 3,
            "cuStreamWaitEvent": 1,
        }
        pool.device.sync()
        assert sum(calls_of(machine, lambda: APART.switch(pool)).values()) == 5
        pool.device.sync()
        assert sum(calls_of(machine, lambda: WIDE.switch(pool)).values()) == 10


@pytest.mark.parametrize("target", [PAIRS[2], PAIRS[6], (OVERLAY, WIDE)], ids=["two", "six", "plans"])
def test_a_switch_is_one_call_of_the_core_and_leaves_no_objects(dev: Device, target: tuple[Any, Any]) -> None:
    """One call: the GIL, which each of them gives up once, can be lost to other threads only once."""
    with PartitionPool(dev) as pool:
        switches: list[Callable[[], object]] = [
            (lambda plan=one: plan.switch(pool)) if isinstance(one, Plan) else (lambda layout=one: pool.switch(layout))
            for one in target
        ]
        for switch in switches * 50:  # until the interpreter has specialised what they run
            switch()
        called: list[str] = []
        frames: list[str] = []

        def note(frame: FrameType, event: str, function: Any) -> None:
            if event == "call":
                frames.append(frame.f_code.co_name)
            homes = getattr(function, "__module__", None), type(getattr(function, "__self__", None)).__module__
            if event == "c_call" and any((home or "").startswith("cuda_gctx") for home in homes):
                called.append(function.__name__)

        sys.setprofile(note)
        try:
            switches[0]()
        finally:
            sys.setprofile(None)
        is_plan = isinstance(target[0], Plan)
        known = "switch_to" if is_plan else "switch_known"
        assert [name for name in called if name != "spelling"] == [known]
        # Between launches, the caches are those of others, and each frame costs as much as a driver call.
        assert [name for name in frames if name not in ("__hash__", "<genexpr>")] == [
            *("<lambda>", "switch"),
            *["switch_to"] * is_plan,
        ]
        dev.sync()
        before = sys.getallocatedblocks()
        for switch in switches * 100:
            switch()
        assert sys.getallocatedblocks() - before < 100


def test_a_second_switch_to_the_same_costs_no_driver_call(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        for target in (lambda: pool.switch(PAIRS[2][0]), lambda: OVERLAY.switch(pool)):
            target()
            assert calls_of(machine, target) == {}


# ---- graphs


def test_a_function_that_closes_the_stream_on_which_it_is_captured_ends_no_capture(dev: Device) -> None:
    def close(part: Any) -> None:
        spin(part.stream, 1, 1000)
        with part.stream:
            pass

    with PartitionPool(dev) as pool, GraphSet(pool) as graphs:
        pool.switch(a=8, b=None)
        spin(pool.current.a.stream, 1, 1000)
        dev.sync()
        graphs.capture("a", 1, close)
        graphs.replay("a", 1)
        graphs.capture("a", 2, lambda part: spin(part.stream, 1, 1000))
        pool.current.a.stream.sync()
        assert len(pool.prepare(a=16)) == 1  # contexts are not made during a capture


# ---- who waits for whom on the host


@pytest.fixture
def slow_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[PartitionPool, Layout], None]]:
    """Begins to build a layout on another thread, which goes on when the test is over."""
    may_go_on = threading.Event()
    is_building = threading.Event()
    threads = []
    claim = opening.claim

    def slowly(*args: Any, **keywords: Any) -> Any:
        is_building.set()
        may_go_on.wait()
        return claim(*args, **keywords)

    def start(pool: PartitionPool, layout: Layout) -> None:
        monkeypatch.setattr(opening, "claim", slowly)
        threads.append(threading.Thread(target=pool.prepare, args=(layout,)))
        threads[0].start()
        is_building.wait()

    yield start
    may_go_on.set()
    for thread in threads:
        thread.join()


def test_a_known_layout_waits_for_no_build_however_it_is_spelled(
    sim: Machines, slow_build: Callable[[PartitionPool, Layout], None]
) -> None:
    sim("h200")  # with nothing in the store, so that there is something to build
    pool = PartitionPool(Device(0))
    known, other = pool.prepare(Layout(a=8, b=None)), pool.prepare(8, None)
    slow_build(pool, Layout(c=16, d=None))
    done: list[Partitions] = []

    def use() -> None:
        done.append(pool.prepare(Layout(a=8, b=None)))
        done.append(pool.prepare({"a": 8, "b": None}))
        done.append(pool.switch(a=8, b=None))
        done.append(pool.switch([8, None]))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(60)  # for ever, if it waits for the build
    assert done == [known, known, known, other]


# ---- what a pool forgets


def test_a_pool_forgets_the_names_of_dropped_layouts(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0), limit=2) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", CUDAWarning)  # of the limit

        def kept_by_arrangements(numbers: range) -> int:
            for number in numbers:
                pool.switch({f"n{number}": 16, "b": None})
            gc.collect()
            traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/arrangements.py")])
            return sum(trace.size for trace in traces.traces)

        tracemalloc.start()
        try:
            before = kept_by_arrangements(range(50))
            assert kept_by_arrangements(range(50, 1000)) - before < 4096
        finally:
            tracemalloc.stop()


def test_a_name_that_a_pool_has_dropped_stays_ordered_behind_its_work(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0)) as pool:
        for layout in ({"a": 16, "b": None}, {"c": 32, "d": None}, {"e": 64, "a": 16, "f": None}):
            pool.prepare(layout).verify()  # then the pool knows which SMs are shared
        first = pool.switch(a=16, b=None).a.stream
        spin(first, 16, 50 * MS)
        done = first.record()
        pool.switch(c=32, d=None)
        pool.drop(a=16, b=None)
        later = pool.switch(e=64, a=16, f=None).a.stream  # on other SMs, none of which c shares
        spin(later, 16, 1)
        later.sync()
        assert done.is_done


def test_a_dropped_layout_is_closed_and_its_contexts_are_used_again(sim: Machines) -> None:
    machine = sim("h200")
    with PartitionPool(Device(0)) as pool:
        parts, stays = pool.switch(decode=16, prefill=None), pool.switch(decode=64)
        stream = parts.decode.stream
        pool.drop(decode=16, prefill=None)
        assert pool.layouts == (stays.layout,)
        assert parts.is_closed
        assert stream.is_closed
        with pytest.raises(ClosedError):
            parts.decode  # noqa: B018
        assert system.idle_contexts == 2
        made = machine.calls("cuGreenCtxCreate")
        again = pool.switch(decode=16, prefill=None)
        assert again is not parts
        assert machine.calls("cuGreenCtxCreate") == made


def test_contexts_of_a_dropped_layout_stay_with_the_layouts_that_share_them(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0)) as pool:
        first, second = pool.prepare(decode=16), pool.prepare(decode=16, prefill=None)
        context = first.decode.context.id
        pool.drop(decode=16)
        assert system.idle_contexts == 0
        assert second.decode.context.id == context
        spin(second.decode.stream, 1, 1000)
        second.verify()
        pool.drop(decode=16, prefill=None)
        assert system.idle_contexts == 2
        assert pool.prepare(decode=16).decode.context.id == context


def test_the_current_layout_is_not_dropped_and_an_unknown_one_is_none_of_the_pools(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        pool.drop(decode=16)
        parts = pool.switch(decode=16)
        error = refusal(RuntimeError, lambda: pool.drop(decode=16))
        assert "Layout(decode=16) is the current layout of the pool" in str(error)
        OVERLAY.switch(pool)
        assert "is the current layout of the pool" in str(refusal(RuntimeError, lambda: pool.drop(OVERLAY.layout)))
        with parts.decode.context.current():
            refusal(RuntimeError, lambda: pool.drop(decode=16))
        assert not parts.is_closed
        pool.drop(decode=16)


def test_work_of_a_dropped_layout_is_still_waited_for(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        for layout in PAIRS[2]:
            pool.prepare(layout)
        busy = pool.switch(PAIRS[2][0]).b
        spin(busy.stream, busy.sm_count, 5 * MS)
        behind = busy.stream.record(options={"timing_enabled": True})
        pool.switch(a=24)
        pool.drop(PAIRS[2][0])
        stream = pool.switch(PAIRS[2][1]).a.stream
        begin = stream.record(options={"timing_enabled": True})
        dev.sync()
        assert begin - behind >= 0


def test_nothing_refers_to_a_dropped_layout(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        gone = weakref.ref(pool.switch(decode=16))
        pool.prepare({"decode": 16})
        pool.switch(decode=64)
        pool.drop(decode=16)
        assert gone() is None


def test_a_pool_beyond_its_limit_warns_once_and_drops_what_was_used_longest_ago(sim: Machines) -> None:
    sim("h200")
    sizes = count(8, 8)
    with PartitionPool(Device(0), limit=3) as pool:
        assert pool.limit == 3
        first, second, third = (pool.switch(a=next(sizes)) for _ in range(3))
        pool.switch(first.layout)
        with pytest.warns(CUDAWarning, match="limit of 3 layouts") as warned:
            fourth = pool.switch(a=next(sizes))
        assert [warning.filename for warning in warned] == [__file__]
        assert pool.layouts == (first.layout, third.layout, fourth.layout)
        assert second.is_closed
        fifth = pool.prepare(a=next(sizes))  # warnings are errors in the tests
        assert set(pool.layouts) == {first.layout, fourth.layout, fifth.layout}


def test_the_current_layout_and_the_new_one_are_kept_whatever_the_limit(dev: Device) -> None:
    with PartitionPool(dev, limit=1) as pool:
        first = pool.switch(a=8)
        with pytest.warns(CUDAWarning, match="limit of 1 layouts"):
            second = pool.prepare(a=16)
        assert pool.layouts == (first.layout, second.layout)


# ---- what fails


@pytest.mark.parametrize(
    ("call", "nth"),
    [(call, nth) for call, calls in (("cuCtxRecordEvent", 2), ("cuCtxWaitEvent", 4)) for nth in range(1, calls + 1)],
)
def test_a_switch_that_failed_changed_nothing_and_is_repeated(sim: Machines, call: str, nth: int) -> None:
    machine = sim("h200")
    one, other = PAIRS[2]
    with PartitionPool(Device(0)) as pool:
        used(pool, one, other)
        old = pool.switch(one)
        spin(old.b.stream, old.b.sm_count, 5 * MS)
        behind = old.b.stream.record(options={"timing_enabled": True})
        machine.fail(call, nth=nth)
        assert refusal(CUDAError, lambda: pool.switch(other)).call == call
        assert pool.current is old
        stream = pool.switch(other).a.stream
        begin = stream.record(options={"timing_enabled": True})
        pool.device.sync()
        assert begin - behind >= 0


def test_a_pool_whose_streams_a_reset_of_the_device_has_taken_says_so(sim: Machines) -> None:
    sim("h200", check=False)  # what the driver destroys in a reset is not destroyed here
    streams, sequence = Plan("streams", PARTS), Plan("sequence", PARTS)
    with PartitionPool(Device(0)) as pool:
        spin(streams.switch(pool)["decode"], 1, MS)
        sequence.switch(pool)
        streams.switch(pool)["decode"].close()
        sequence.switch(pool)
        Raw().call("cuDevicePrimaryCtxReset_v2", 0)
        for _ in range(2):  # the second switch has no arrangement for the place of the closed stream
            refusal(ClosedError, lambda: streams.switch(pool))


# ---- captures


@pytest.mark.parametrize("where", ["current", "next"])
@pytest.mark.parametrize("by_driver", [False, True], ids=["through the package", "by other code"])
def test_a_switch_is_refused_during_a_capture_of_the_layouts_concerned(
    dev: Device, where: str, by_driver: bool
) -> None:
    with PartitionPool(dev) as pool:
        other = pool.switch(c=24, d=None)
        old, new = pool.prepare(c=24, d=None), pool.prepare(a=16, b=None)
        stream = (old.c if where == "current" else new.a).stream
        capture = stream.capture()
        if by_driver:
            Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 1)
        else:
            capture.__enter__()
        refusal(CapturingError, lambda: pool.switch(a=16, b=None))
        assert pool.current is other
        if by_driver:
            Raw().call("cuGraphDestroy", ctypes.c_void_p(Raw().handle_of_capture(stream.handle)))
        else:
            capture.__exit__(None, None, None)  # it was not invalidated
            capture.graph.close()
        assert pool.switch(a=16, b=None) is new


CODES = ["CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["cuCtxRecordEvent", "cuCtxWaitEvent"])
def test_a_capture_that_other_code_begins_in_the_middle_of_a_call_is_named(sim: Machines, call: str, code: str) -> None:
    machine = sim("h200", driver="13.0")
    with PartitionPool(Device(0)) as pool:
        pool.prepare(a=64, b=None)
        parts = pool.switch(a=16, b=None)
        calls: list[Callable[[], object]] = [lambda: pool.switch(a=64, b=None), lambda: parts.b.wait(parts.a)]
        for act in calls:
            machine.fail(call, code=code, nth=1)
            assert "in the middle of this call" in str(refusal(CapturingError, act))
        assert pool.current is parts
        pool.switch(a=64, b=None)


@pytest.mark.parametrize("code", CODES)
def test_a_capture_that_other_code_begins_before_a_context_is_created_is_named(sim: Machines, code: str) -> None:
    machine = sim("h200", driver="13.0")
    machine.fail("cuGreenCtxCreate", code=code, nth=1)
    assert "in the middle of this call" in str(refusal(CapturingError, lambda: Device(0).partition(a=8)))
    Device(0).partition(a=8).close()


def test_a_switch_leaves_captures_of_other_layouts_alone(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        pool.switch(c=24, d=None)
        pool.prepare(a=16, b=None)
        third = pool.prepare(e=32, f=None)
        with third.e.stream.capture() as capture:
            pool.switch(a=16, b=None)
        capture.graph.close()


def test_no_call_of_the_package_ends_a_capture_of_another_thread(dev: Device) -> None:
    """Captures begin and end on one thread, while another one switches, records, waits and syncs as fast as it can."""
    with PartitionPool(dev) as pool:
        parts, others = pool.switch(a=16, b=None), pool.prepare(c=24, d=None)
        stop = threading.Event()
        refused: list[RuntimeError] = []

        def disturb() -> None:
            calls = [
                lambda: pool.switch(c=24, d=None),
                lambda: pool.switch(a=16, b=None),
                lambda: parts.a.wait(others.c),
                parts.a.sync,
                lambda: parts.a.record().close(),
                parts.a.stream.sync,
            ]
            while not stop.is_set():
                for call in calls:
                    try:
                        call()
                    except CapturingError as error:
                        refused.append(error)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(300):
                with parts.a.stream.capture("relaxed") as capture:
                    spin(parts.a.stream, 1, 0)
                capture.graph.close()  # raises if it was invalidated
        finally:
            stop.set()
            thread.join()
        assert all(isinstance(error, CapturingError) for error in refused)
