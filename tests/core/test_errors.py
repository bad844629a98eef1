"""Errors: what they carry, that each says what to do, and what is reported where nothing can be raised."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import (
    CUDAError,
    CUDAWarning,
    Device,
    DriverNotFound,
    FeatureNotSupported,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    StreamOptions,
)
from cuda_software_driver import session

from ..common import green, refusal, small_contexts, split

Machines = Callable[..., Any]


def test_the_kinds_of_errors_are_what_a_user_would_catch() -> None:
    assert issubclass(CUDAError, RuntimeError)
    assert issubclass(DriverNotFound, CUDAError)
    assert issubclass(FeatureNotSupported, CUDAError)
    assert issubclass(FeatureNotSupported, NotImplementedError)
    assert issubclass(SplitError, ValueError)
    assert issubclass(ResourceOverlapError, ValueError)
    assert issubclass(ResourceOverlapWarning, UserWarning)
    assert issubclass(CUDAWarning, UserWarning)


@pytest.mark.parametrize(
    ("function", "code", "number", "use"),
    [
        ("cuGreenCtxCreate", "CUDA_ERROR_OUT_OF_MEMORY", 2, lambda dev: small_contexts(dev, 1)),
        ("cuDevResourceGenerateDesc", "CUDA_ERROR_INVALID_VALUE", 1, lambda dev: small_contexts(dev, 1)),
        ("cuStreamCreateWithPriority", "CUDA_ERROR_ILLEGAL_ADDRESS", 700, lambda dev: dev.create_stream()),
        ("cuEventCreate", "CUDA_ERROR_LAUNCH_FAILED", 719, lambda dev: dev.create_event()),
        ("cuDeviceGetName", "CUDA_ERROR_UNKNOWN", 999, lambda dev: dev.name),
        ("cuDevSmResourceSplitByCount", "CUDA_ERROR_NOT_PERMITTED", 800, lambda dev: split(dev.resources.sm, 8)),
    ],
)
def test_a_failed_call_is_reported_with_code_name_and_call(
    sim: Machines, function: str, code: str, number: int, use: Callable[[Device], object]
) -> None:
    machine = sim("h200", driver="13.0")
    dev = Device(0)
    machine.fail(function, nth=1, code=code)
    error = refusal(CUDAError, lambda: use(dev))
    assert (error.code, error.name, error.call) == (number, code, function)
    assert f"{function} answered {code} (" in str(error)


def test_a_code_that_the_driver_does_not_know_has_a_name_all_the_same(sim: Machines) -> None:
    machine = sim()
    machine.fail("cuDeviceGetName", nth=1, code=123456)
    error = refusal(CUDAError, lambda: Device(0).name)
    assert error.code == 123456
    assert "123456" in error.name
    assert "123456" in str(error)


ERRORS: list[Any] = [
    CUDAError("cuInit answered X", code=3, name="X", call="cuInit"),
    DriverNotFound("none"),
    FeatureNotSupported("too old", needs="13.1", found="13.0", code=801, name="Y", call="z"),
    SplitError("too much"),
    ResourceOverlapError("taken"),
    ResourceOverlapWarning("shared"),
    CUDAWarning("lost"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_errors_travel_between_processes(error: Exception, again: Callable[[Any], Any]) -> None:
    same = again(error)
    assert type(same) is type(error)
    assert str(same) == str(error)
    for name in ("code", "name", "call", "needs", "found"):
        assert getattr(same, name, None) == getattr(error, name, None)


def test_the_suggestion_of_a_refused_split_travels_too(sim: Machines) -> None:
    sim()
    error = refusal(SplitError, lambda: split(Device(0).resources.sm, [120, 24]))
    same = pickle.loads(pickle.dumps(error))
    assert same.suggestion == error.suggestion
    assert same.suggestion is not None
    assert same.advice == error.advice


@pytest.mark.parametrize(
    ("counts", "options", "advice"),
    [
        ([120, 24], {}, ""),
        ([66, 66], {}, "with backfill=True it would fit, with no promise of thread-block clusters above 2"),
        ([8] * 17, {}, "no request of 17 groups fits, 16 of the smallest size do"),
        (
            [32],
            {"coscheduled_sm_count": 16},
            "it drops co-scheduling and locality; coscheduled_sm_count=16 needs the structured split of CUDA driver "
            "13.1 or newer, this driver is 13.0",
        ),
    ],
)
def test_a_refused_split_has_its_advice_as_a_field(
    sim: Machines, counts: list[int], options: dict[str, Any], advice: str
) -> None:
    sim("h100", driver="13.0")
    error = refusal(SplitError, lambda: split(Device(0).resources.sm, counts, **options))
    assert error.advice == advice
    assert error.args[0].endswith(advice)
    assert SplitError("too much").advice == ""


@pytest.mark.parametrize("kind", [CUDAError, FeatureNotSupported, DriverNotFound, SplitError])
def test_errors_can_be_raised_by_other_code(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="mine"):
        raise kind("mine")


def overlapping(dev: Device, exclusive: bool) -> object:
    (group,), _ = split(dev.resources.sm, 16)
    with green(dev, group):
        return green(dev, group, exclusive=exclusive)


def close_while_current(dev: Device) -> object:
    (ctx,) = small_contexts(dev, 1)
    try:
        with ctx.current():
            return ctx.close()
    finally:
        ctx.close()


def blocking_stream(dev: Device) -> object:
    (ctx,) = small_contexts(dev, 1)
    with ctx:
        return ctx.create_stream(StreamOptions(nonblocking=False))


def difference(dev: Device) -> object:
    with dev.create_event() as a, dev.create_event() as b:
        return a - b


# What is done, and what the message advises.
ADVICE: dict[str, tuple[Callable[[Device], object], str]] = {
    "split too much": (lambda dev: split(dev.resources.sm, 133), "a request that fits is"),
    "split too many": (lambda dev: split(dev.resources.sm, [8] * 17), "16 of the smallest size"),
    "split an odd count": (
        lambda dev: split(dev.resources.sm, 11, backfill=True),
        r"a request that fits is \[1[02]\] \(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\)$",
    ),
    "coscheduling": (
        lambda dev: split(dev.resources.sm, 32, coscheduled_sm_count=16),
        "needs the structured split of CUDA driver 13.1",
    ),
    "two Nones": (lambda dev: SMResourceOptions([None, None]), "only one group"),
    "resources as keywords": (
        lambda dev: dev.create_context(resources=[]),
        r"its options \(resources, exclusive, name\) are one dict: create_context\(\{\"resources\"",
    ),
    "resources without options": (
        lambda dev: dev.create_context(dev.resources.sm),  # type: ignore[arg-type]
        r'ContextOptions or a dict of its fields, like \{"resources": \.\.\.\}, not SMResource',
    ),
    "no options": (lambda dev: dev.create_context(), r'create_context\(\{"resources": \[...\]'),
    "dry run": (
        lambda dev: green(dev, *dev.resources.sm.split(SMResourceOptions([8]), dry_run=True)[0]),
        "repeat the split without dry_run",
    ),
    "no brackets": (lambda dev: cuda_gctx.ContextOptions(dev.resources.sm), "put it in brackets"),  # type: ignore[arg-type]
    "two splits": (
        lambda dev: green(dev, split(dev.resources.sm, 8)[0][0], split(dev.resources.sm, 10, backfill=True)[1]),
        "groups of one split",
    ),
    "overlap": (lambda dev: overlapping(dev, False), "close the other one first, or take all groups from one split"),
    "exclusive overlap": (lambda dev: overlapping(dev, True), "or take all groups from one split"),
    "workqueues": (lambda dev: dev.resources.workqueue, "need CUDA driver 13.1 or newer; this driver is 13.0"),
    "close while current": (close_while_current, "leave its 'with' block, or make another context current by"),
    "blocking stream": (blocking_stream, "keep nonblocking=True"),
    "priority": (lambda dev: dev.create_stream(StreamOptions(priority=9)), "the lowest is 0, the highest -5"),
    "device": (lambda dev: Device(9), "this machine has 1"),
    "time of an event": (difference, r"EventOptions\(timing_enabled=True\)"),
    "stream 0": (lambda dev: cuda_gctx.Stream.from_handle(0), "use 1 for the legacy default stream"),
    "scope": (
        lambda dev: cuda_gctx.WorkqueueResourceOptions("mine"),
        "one of .*device_ctx.*green_ctx_balanced",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_every_message_says_what_to_do(sim: Machines, case: str) -> None:
    sim("h200", driver="13.0")
    action, advice = ADVICE[case]
    with pytest.raises(Exception, match=advice):
        action(Device(0))


# ---- where nothing can be raised


@pytest.mark.sim_only
def test_what_a_destructor_could_not_do_is_reported_once() -> None:
    with session("h200", check=False) as machine:
        stream = Device(0).create_stream()
        machine.fail("cuStreamDestroy", nth=1, code="CUDA_ERROR_LAUNCH_FAILED")
        with pytest.warns(CUDAWarning, match="cuStreamDestroy answered CUDA_ERROR_LAUNCH_FAILED") as caught:
            stream.close()
        assert len(caught) == 1
        assert stream.is_closed
        machine.clear_faults()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Device(0).create_stream().close()


@pytest.mark.sim_only
def test_what_the_collector_could_not_destroy_is_reported_too() -> None:
    with session("h200", check=False) as machine:
        contexts = small_contexts(Device(0), 2)

        def drop_and_close() -> None:
            del contexts[0]
            gc.collect()
            contexts[0].close()

        machine.fail("cuGreenCtxDestroy", nth=1)
        with pytest.warns(CUDAWarning, match="cuGreenCtxDestroy answered CUDA_ERROR_OUT_OF_MEMORY"):
            drop_and_close()


@pytest.mark.sim_only
def test_closing_goes_on_when_destroying_fails() -> None:
    with session("h200", check=False) as machine:
        (ctx,) = small_contexts(Device(0), 1)
        stream, event = ctx.create_stream(), ctx.create_event()
        machine.fail("cuStreamDestroy")
        machine.fail("cuEventDestroy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CUDAWarning)
            for thing in (stream, event, ctx):
                thing.close()
        assert stream.is_closed
        assert event.is_closed
        assert ctx.is_closed
        assert not machine.ledger().live_of("green context")
