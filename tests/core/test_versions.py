"""What each driver can do, and what the package says where one cannot: 12.3, 12.4, and none at all."""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Context, CUDAError, Device, DriverNotFound, FeatureNotSupported, Stream, StreamOptions

from ..common import DRIVERS, green, on_another_thread, refusal, run_python, small_contexts, split
from ..raw import Raw

Machines = Callable[..., Any]

# ---- before green contexts

GREEN_CALLS: dict[str, Callable[[Device], object]] = {
    "dev.resources.sm": lambda dev: dev.resources.sm,
    "dev.resources.workqueue": lambda dev: dev.resources.workqueue,
    "ctx.resources.sm": lambda dev: dev.context.resources.sm,
    "ctx.resources.workqueue": lambda dev: dev.context.resources.workqueue,
    "ctx.sm_count": lambda dev: dev.context.sm_count,
    "ctx.record_event": lambda dev: dev.context.record_event(),
    "stream.resources.sm": lambda dev: dev.create_stream().resources.sm,
}
SINCE = {"dev.resources.workqueue": "13.1", "ctx.resources.workqueue": "13.1", "ctx.record_event": "12.5"}


@pytest.mark.parametrize("call", GREEN_CALLS)
def test_every_green_call_needs_12_4(sim: Machines, call: str) -> None:
    sim("h200", driver="12.3")
    dev = Device(0)
    error = refusal(FeatureNotSupported, lambda: GREEN_CALLS[call](dev))
    needs = SINCE.get(call, "12.4")
    assert (error.needs, error.found) == (needs, "12.3")
    assert isinstance(error, NotImplementedError)
    assert isinstance(error, CUDAError)
    assert f"CUDA driver {needs} or newer; this driver is 12.3" in str(error)


def test_the_primary_context_works_without_green_contexts(sim: Machines) -> None:
    sim("h200", driver="12.3")
    dev, raw = Device(0), Raw()
    assert dev.sm_count == 132
    with dev.create_stream(StreamOptions(priority=-1)) as stream, stream.record() as event:
        stream.wait(event)
        stream.sync()
        assert event.is_done
        assert stream.context == dev.context
        assert not stream.context.is_green
        assert Stream.from_handle(stream.handle) == stream
    with raw.stream(dev.context.handle) as handle:
        assert Stream.from_handle(handle).context == dev.context
    with raw.ordinary_context() as handle:
        assert not Context.from_handle(handle).is_green
    raw.set_current(0)
    assert dev.set_current() is None
    assert dev.context.is_current
    dev.context.sync()
    dev.sync()
    raw.set_current(0)


def test_everything_has_a_repr_without_green_contexts(sim: Machines) -> None:
    sim("h200", driver="12.3")
    dev = Device(0)
    with dev.create_stream() as stream, dev.create_event() as event:
        assert "primary" in repr(dev.context)
        assert "DeviceResources" in repr(dev.resources)
        for thing in (dev, stream, event):
            assert repr(thing)


# ---- 12.4: no call that makes a stream on a green context


@pytest.fixture
def first_driver(sim: Machines) -> Any:
    return sim("h200", driver="12.4")


def test_streams_are_made_under_a_pushed_context(first_driver: Any) -> None:
    raw = Raw()
    (ctx,) = small_contexts(Device(0), 1)
    with ctx.create_stream(StreamOptions(priority=-2)) as stream:
        assert raw.current() == 0
        assert first_driver.calls("cuStreamCreateWithPriority") == 1
        assert first_driver.calls("cuGreenCtxStreamCreate") == 0
        assert stream.context == ctx
        assert (stream.is_nonblocking, stream.priority) == (True, -2)
        assert stream.resources.sm.sm_count == 8
        foreign = Context.from_handle(ctx.handle)
        assert foreign.is_green
    ctx.close()


def test_streams_are_made_on_any_thread_and_restore_what_was_current(first_driver: Any) -> None:
    raw, dev = Raw(), Device(0)
    ctx, other = small_contexts(dev, 2)
    with other.current(), ctx.create_stream() as stream:
        assert raw.current() == other.handle
        assert stream.context == ctx
    on_another_thread(lambda: ctx.create_stream()).close()
    with ctx.current(), ctx.create_stream():
        assert raw.current() == ctx.handle
    assert raw.current() == 0
    ctx.close()
    other.close()


@pytest.mark.parametrize("function", ["cuStreamCreateWithPriority", "cuCtxPushCurrent"])
def test_what_was_current_is_restored_when_making_a_stream_fails(first_driver: Any, function: str) -> None:
    raw, dev = Raw(), Device(0)
    ctx, other = small_contexts(dev, 2)
    for before in (None, other):
        raw.set_current(before.handle if before is not None else 0)
        first_driver.fail(function, nth=1)
        error = refusal(CUDAError, ctx.create_stream)
        assert error.call == function
        first_driver.clear_faults()
        assert raw.current() == (before.handle if before is not None else 0)
        assert not first_driver.ledger().live_of("stream")
        ctx.create_stream().close()
    raw.set_current(0)
    ctx.close()
    other.close()


def test_a_refused_option_leaves_what_was_current(first_driver: Any) -> None:
    raw = Raw()
    (ctx,) = small_contexts(Device(0), 1)
    with pytest.raises(ValueError, match="priority"):
        ctx.create_stream(StreamOptions(priority=3))
    assert raw.current() == 0
    ctx.close()


# ---- every driver


@pytest.mark.parametrize("driver", [*DRIVERS, "12.9", "13.2", "13.5"])
def test_the_main_job_works_on_every_driver(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    groups, remainder = split(dev.resources.sm, [8, 16, 24])
    contexts = [green(dev, piece) for piece in [*groups, remainder]]
    streams = [ctx.create_stream() for ctx in contexts]
    assert [stream.resources.sm.sm_count for stream in streams] == [8, 16, 24, 84]
    assert all(stream.context.is_green for stream in streams)
    assert len({ctx.id for ctx in contexts}) == 4
    for stream in streams:
        stream.wait(streams[0])
        stream.sync()
    for thing in [*streams, *contexts]:
        thing.close()


# ---- no driver, or something else in its place


def run(code: str, driver: str) -> str:
    child = run_python("import cuda_gctx\n" + code, CUDA_GCTX_DRIVER=driver)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


TRY = """
for attempt in range(2):
    try:
        {use}
    except Exception as error:
        print(type(error).__name__, isinstance(error, cuda_gctx.CUDAError), error)
"""


@pytest.mark.parametrize(
    "use", ["cuda_gctx.Device(0)", "cuda_gctx.Device.count()", "cuda_gctx.system.driver_version", "cuda_gctx.Device()"]
)
def test_without_a_driver_every_use_says_so_and_what_to_do(use: str) -> None:
    lines = run(TRY.format(use=use), "/nonexistent/libcuda.so").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("DriverNotFound True ")
        for part in ("/nonexistent/libcuda.so", "install the NVIDIA driver", "CUDA_GCTX_DRIVER=sim"):
            assert part in line


def test_importing_works_without_a_driver() -> None:
    code = """
from cuda_gctx import (ContextOptions, Device, EventOptions, SMResourceOptions, StreamOptions,
    WorkqueueResourceOptions, system, Context, Stream, Event)
print(SMResourceOptions([8, None]), StreamOptions(), EventOptions(), WorkqueueResourceOptions())
"""
    assert "count=(8, None)" in run(code, "/nonexistent/libcuda.so")


def test_a_library_that_is_not_a_driver_is_distinguished_from_one() -> None:
    library = ctypes.util.find_library("c")
    assert library is not None
    assert run(TRY.format(use="cuda_gctx.Device(0)"), library).startswith(
        "DriverNotFound True libc.so.6 is not a CUDA driver"
    )


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("sim:nosuchcard", "nosuchcard"),
        ("sim:h200@99.0", "99.0"),
        ("sim:h200@13", "13"),
        ("sim:h200,devices=x", "devices"),
        ("sim:h200,colour=green", "colour"),
    ],
)
def test_a_wrong_description_of_a_simulated_machine_is_refused(choice: str, words: str) -> None:
    line = run(TRY.format(use="cuda_gctx.Device(0)"), choice).splitlines()[0]
    assert line.startswith("ValueError False CUDA_GCTX_DRIVER=" + choice)
    assert words in line.removeprefix("ValueError False CUDA_GCTX_DRIVER=" + choice)


def test_a_machine_without_devices_says_what_to_do() -> None:
    line, *_ = run(TRY.format(use="cuda_gctx.Device.count()"), "sim:h200,devices=0").splitlines()
    assert line.startswith("CUDAError True cuInit answered CUDA_ERROR_NO_DEVICE")
    assert "CUDA_GCTX_DRIVER=sim" in line


def test_a_driver_that_was_not_found_is_a_cuda_error() -> None:
    assert issubclass(DriverNotFound, CUDAError)


def test_another_machine_can_be_used_after_a_failed_one(sim: Machines) -> None:
    with pytest.raises(ValueError, match="nosuchcard"):
        sim("nosuchcard")
    sim("h200")
    assert Device(0).sm_count == 132
