"""A session's ledger and faults: what is alive and who made it, misuse, lost memory, call counts, errors to order."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cuda_software_driver import LedgerError, session

from .common import refusal
from .objects import Device, Event, GreenContext, Stream
from .raw import Raw, RawError

MIB = 1 << 20
OUT_OF_MEMORY, UNKNOWN = 2, 999


def leak(divisor: int = 1) -> float:
    with session("h200"), Device() as dev:
        dev.create_stream()
        return 1 / divisor


def kinds(machine: Any) -> list[str]:
    return [note.kind for note in machine.ledger().misuse]


# ---- the ledger


def test_every_live_object_is_reported_with_the_line_that_made_it() -> None:
    with session("h200", check=False, trace=True) as machine:
        dev = Device()
        ctx = dev.green()
        stream = ctx.create_stream()
        event = dev.create_event()
        raw = dev.raw
        raw.set_current(dev.handle)
        memory = raw.handle("cuMemAlloc_v2", ctypes.c_size_t(4096))
        found = {entry.kind: entry for entry in machine.ledger().live}
        assert found.keys() == {"primary context retain", "green context", "stream", "event", "device memory"}
        assert found["stream"].handle == stream.handle
        assert found["device memory"].amount == 4096
        for kind in ("stream", "event", "device memory", "green context"):
            where = found[kind].where
            assert where is not None
            assert __file__ in where or "objects.py" in where or "raw.py" in where
            assert where in str(machine.ledger())
            assert any(frame.filename == __file__ for frame in found[kind].stack or ())
        orders = [entry.order for entry in machine.ledger().live]
        assert orders == sorted(orders)
        raw.call("cuMemFree_v2", ctypes.c_void_p(memory))
        raw.set_current(0)
        things: tuple[Event | Stream | GreenContext | Device, ...] = (event, stream, ctx, dev)
        for thing in things:
            thing.close()
    assert machine.ledger().is_clean


def test_objects_of_other_threads_are_reported_by_their_thread() -> None:
    with session("h200", check=False, trace=True) as machine:
        dev = Device()
        here = dev.create_stream()
        with ThreadPoolExecutor(1) as executor:
            there = executor.submit(dev.create_stream).result()
        first, second = machine.ledger().live_of("stream")
        assert first.thread != second.thread
        assert first.where is not None
        assert second.where is None
        for thing in (here, there, dev):
            thing.close()
    assert machine.ledger().is_clean


def test_without_tracing_nothing_is_known_of_where() -> None:
    with session("h200", check=False) as machine:
        with Device() as dev, dev.create_stream():
            (entry,) = machine.ledger().live_of("stream")
        assert entry.where is None


def test_a_leak_raises_at_the_end() -> None:
    error = refusal(LedgerError, leak)
    assert "(simulated)" in str(error)
    assert "alive: stream" in str(error)


def test_an_error_of_the_block_goes_before_the_leak() -> None:
    refusal(ZeroDivisionError, lambda: leak(0))


def test_double_destroy_and_use_after_destroy_are_distinguished() -> None:
    with session("h200", check=False) as machine:
        raw = Raw()
        raw.retain()
        stream = raw.handle("cuStreamCreate", 1)
        raw.destroy_stream(stream)
        refusal(RawError, lambda: raw.call("cuStreamSynchronize", ctypes.c_void_p(stream)))
        refusal(RawError, lambda: raw.destroy_stream(stream))
        assert kinds(machine) == ["use after destroy", "double destroy"]
        assert [note.function for note in machine.ledger().misuse] == ["cuStreamSynchronize", "cuStreamDestroy_v2"]
        assert refusal(LedgerError, machine.check)


def test_a_context_that_goes_before_its_streams_is_the_wrong_order() -> None:
    with session("h200", check=False) as machine:
        with Device() as dev, dev.green() as ctx:
            ctx.create_stream()
        assert kinds(machine) == ["wrong order"]
        assert "1 streams" in machine.ledger().misuse[0].detail


def test_memory_that_goes_with_its_context_was_leaked() -> None:
    with session("h200", check=False) as machine:
        with Device() as dev, dev.current():
            _, freed = (dev.raw.handle("cuMemAlloc_v2", ctypes.c_size_t(64)) for _ in range(2))
            dev.raw.call("cuMemFree_v2", ctypes.c_uint64(freed))
        assert kinds(machine) == ["wrong order"]
        assert "1 allocations" in machine.ledger().misuse[0].detail


def test_a_context_that_is_destroyed_with_work_to_do_is_named() -> None:
    with session("h200", check=False) as machine:
        dev = Device()
        with dev.current():
            memory = ctypes.c_uint64(dev.raw.handle("cuMemAlloc_v2", ctypes.c_size_t(64)))
        with dev.green() as ctx, ctx.create_stream() as stream:
            dev.raw.call("cuMemsetD8Async", memory, 7, ctypes.c_size_t(64), ctypes.c_void_p(stream.handle))
        assert kinds(machine) == ["wrong order"]
        assert "destroyed while it has work to do" in machine.ledger().misuse[0].detail


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_context_that_is_destroyed_below_the_current_one_is_noted(is_elsewhere: bool) -> None:
    with session("h200", check=False) as machine:
        dev = Device()
        raw, primary = dev.raw, dev.handle
        pushed, done = threading.Event(), threading.Event()

        def push(context: int) -> None:
            raw.push(context)
            raw.push(primary)
            pushed.set()
            done.wait(60)

        with dev.green() as ctx:
            thread = threading.Thread(target=push, args=(ctx.handle,))
            if is_elsewhere:
                thread.start()
                pushed.wait(60)
            else:
                done.set()
                push(ctx.handle)
        assert kinds(machine) == ["wrong thread" if is_elsewhere else "wrong order"]
        assert "lies below the current one" in machine.ledger().misuse[0].detail
        done.set()
        while raw.current():
            raw.pop()
        if is_elsewhere:
            thread.join()


def test_a_context_that_is_current_elsewhere_is_destroyed_by_the_wrong_thread() -> None:
    with session("h200", check=False) as machine:
        dev, held, done = Device(), threading.Event(), threading.Event()
        raw = dev.raw

        def hold(ctx: int) -> None:
            raw.push(ctx)
            held.set()
            done.wait(30)
            raw.pop()

        with dev.green() as ctx:
            thread = threading.Thread(target=hold, args=(ctx.handle,))
            thread.start()
            assert held.wait(30)
        done.set()
        thread.join()
        assert kinds(machine) == ["wrong thread"]


def test_a_handle_that_never_was_is_listed_and_fails_nobody() -> None:
    # The call is refused with an error that the program sees, and nothing is lost by it.
    with session("h200") as machine, Raw().primary():
        refusal(RawError, lambda: Raw().call("cuStreamSynchronize", ctypes.c_void_p(0x1234567)))
        assert kinds(machine) == ["unknown handle"]
        assert machine.ledger().faults == ()
        assert "unknown handle" in str(machine.ledger())
    assert machine.ledger().is_clean


def test_device_memory_is_lost_with_every_destroyed_context() -> None:
    with session("h200") as machine, Device() as dev:
        before = machine.memory()
        for count in range(1, 4):
            ctx = dev.green()
            assert machine.memory()["contexts"] == 4 * MIB
            ctx.close()
            now = machine.memory()
            assert (now["contexts"], now["lost"]) == (0, 4 * MIB * count)
            assert before["free"] - now["free"] == 4 * MIB * count
        assert machine.ledger().lost_bytes == 12 * MIB
        assert (machine.ledger().green_contexts_made, machine.ledger().green_contexts_destroyed) == (3, 3)
        assert "12582912 bytes" in str(machine.ledger())
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with dev.current():
            dev.raw.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        assert (free.value, total.value) == (machine.memory()["free"], machine.memory()["total"])


def test_calls_are_counted_by_function() -> None:
    with session("h200") as machine, Device() as dev:
        for _ in range(3):
            dev.create_stream().close()
        assert machine.calls("cuStreamDestroy") == 3
        assert machine.calls("cuGreenCtxCreate") == 0
        assert machine.calls()["cuStreamDestroy"] == 3


# ---- faults


def outcomes(dev: Device, times: int) -> list[int]:
    """The code of each creation of an event; 0 where it succeeds."""
    answers = []
    for _ in range(times):
        try:
            dev.create_event().close()
            answers.append(0)
        except RawError as error:
            answers.append(error.code)
    return answers


def test_the_nth_call_fails_once() -> None:
    with session("h200") as machine, Device() as dev:
        machine.fail("cuEventCreate", nth=3)
        assert outcomes(dev, 5) == [0, 0, OUT_OF_MEMORY, 0, 0]
        assert machine.faults()["rules"][0]["fired"] == 1


def test_every_call_fails_until_the_faults_are_cleared() -> None:
    with session("h200") as machine, Device() as dev:
        machine.fail("cuEventCreate", code="CUDA_ERROR_UNKNOWN")
        assert outcomes(dev, 3) == [UNKNOWN] * 3
        machine.clear_faults()
        assert outcomes(dev, 1) == [0]


def test_a_code_may_be_a_number_and_a_function_an_exported_name() -> None:
    with session("h200") as machine, Raw().primary():
        raw = Raw()
        machine.fail("cuMemAlloc_v2", code=1)
        error = refusal(RawError, lambda: raw.handle("cuMemAlloc_v2", ctypes.c_size_t(16)))
        assert error.code == 1


def test_chance_is_the_same_for_the_same_seed() -> None:
    def failures(seed: int) -> list[int]:
        with session("h200") as machine, Device() as dev:
            machine.fail("cuEventCreate", probability=0.3, seed=seed)
            return outcomes(dev, 200)

    first = failures(7)
    assert failures(7) == first
    assert failures(8) != first
    assert 20 < sum(answer != 0 for answer in first) < 100


def test_a_star_is_any_function() -> None:
    with session("h200", check=False) as machine:
        raw = Raw()
        raw.retain()
        machine.fail("*", code="CUDA_ERROR_UNKNOWN", nth=1)
        assert raw.code("cuCtxSynchronize") == UNKNOWN
        raw.call("cuCtxSynchronize")


def test_contexts_run_out_of_memory_after_so_many() -> None:
    with session("h200") as machine, Device() as dev:
        machine.limit_contexts(2)
        groups, _ = dev.split([8, 8, 8])
        alive = [GreenContext(dev.raw, one) for one in groups[:2]]
        assert refusal(RawError, lambda: GreenContext(dev.raw, groups[2])).code == OUT_OF_MEMORY
        alive.pop().close()
        alive.append(GreenContext(dev.raw, groups[2]))
        for ctx in alive:
            ctx.close()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            {"function": "voodoo"},
            "'voodoo' is not a function of the software driver: software_driver/cpp/abi/functions",
        ),
        ({"function": "cuStreamCreat"}, "did you mean 'cuStreamCreate'?"),
        ({"function": "cuCoredumpGetAttribute"}, "is not modelled: each call returns CUDA_ERROR_NOT_SUPPORTED"),
        ({"function": "cuMemAlloc", "code": "CUDA_ERROR_NICE"}, "'CUDA_ERROR_NICE' is not the name of a CUresult"),
        ({"function": "cuMemAlloc", "code": 0}, "code is 0 (CUDA_SUCCESS)"),
        ({"function": "cuMemAlloc", "nth": 0}, "nth is 0;"),
        ({"function": "cuMemAlloc", "probability": 1.5}, "probability is 1.5; it must be 0 to 1"),
        ({"function": "cuMemAlloc", "nth": 1, "probability": 0.5}, "not both"),
    ],
    ids=str,
)
def test_a_fault_that_cannot_be_is_refused(rule: dict[str, Any], words: str) -> None:
    with session("h200") as machine:
        assert words in str(refusal(ValueError, lambda: machine.fail(**rule)))


@pytest.mark.parametrize("spec", [("voodoo", "13.0"), ("h200", "12.2"), ("h200", "13.6"), ("h200", "12.10")])
def test_a_machine_that_is_not_modelled_is_refused(spec: tuple[str, str]) -> None:
    def start() -> None:
        with session(*spec):
            pass

    refusal(ValueError, start)


def test_sessions_nest() -> None:
    def count() -> int:
        found = ctypes.c_int()
        Raw().call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    with session("h200") as outer, Device() as dev, dev.create_stream() as stream:
        with session("b200", devices=2):
            assert count() == 2
        assert count() == 1
        assert outer.ledger().live_of("stream")[0].handle == stream.handle
