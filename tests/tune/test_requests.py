"""Requests that are refused, with what would work, and objectives as values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cuda_gctx import Device, Event, Stream, tune
from cuda_gctx.measure.loop import Batch, timed_batch
from cuda_gctx.tune import TailLatency, Throughput, _parts, spin
from cuda_gctx.tune._parts import Part, examine, period_of

from ..common import refusal
from .pairs import (
    MS,
    WHOLE,
    nothing,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


def test_a_function_that_enqueues_nothing_is_refused(dev: Device) -> None:
    with dev.create_stream() as other:
        for function in (nothing, lambda stream: spin(other, WHOLE, MS)):
            error = refusal(ValueError, lambda f=function: tune.overlap(a=work(1, MS), b=f, device=dev))  # type: ignore[misc]
            assert str(error).startswith("part 'b' enqueued no work on the stream")


def test_a_short_part_is_not_refused_when_the_host_stalls(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty batch whose gate has opened takes as long as the host; 5 us of work are shorter than such a stall.
    def stalls(streams: Sequence[Stream], enqueue: Callable[[], Sequence[Event]], gate_s: float) -> Batch:
        batch = timed_batch(streams, enqueue, gate_s)
        if enqueue is tuple and next(stalled):
            return replace(batch, seconds=(100e-6,), gate_opened=True)
        return batch

    monkeypatch.setattr(_parts, "timed_batch", stalls)
    with dev.create_stream() as stream:
        for disturbed in (2, 3, 100):
            stalled = iter([True] * disturbed + [False] * 100)
            facts = examine(Part("short", work(8, 5_000)), stream, lambda: None)
            assert facts.device_s == pytest.approx(5e-6, rel=0.5)
        for disturbed in (0, 2):
            stalled = iter([True] * disturbed + [False] * 100)
            error = refusal(ValueError, lambda: examine(Part("empty", nothing), stream, lambda: None))
            assert "part 'empty' enqueued no work" in str(error)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (lambda: tune.overlap(nothing), ValueError, "from 2 to 8 parts, not 1"),
        (lambda: tune.overlap(nothing, nothing), ValueError, "two parts are named nothing"),
        (lambda: tune.overlap(nothing, lambda stream: None), ValueError, "needs one: overlap(control="),
        (lambda: tune.overlap(nothing, 3), TypeError, "not int"),  # type: ignore[arg-type]
        (lambda: tune.overlap(a=nothing, b=3), TypeError, "b must be a function"),  # type: ignore[arg-type]
        (lambda: tuned("a chain", objective="fast"), ValueError, "not 'fast'"),
        (lambda: tuned("a chain", objective=TailLatency("other")), ValueError, "the parts are product, chain"),
        (lambda: tuned("a chain", objective=Throughput(chain=2)), ValueError, "a number of calls for each part"),
        (lambda: tuned("a chain", sizes=[9]), ValueError, "cannot have 9 SMs; near to it are 8, 10"),
        (lambda: tuned("a chain", sizes=[]), ValueError, "at least one"),
        (lambda: tuned("a chain", sizes=8), TypeError, "like [8, 16], not int"),
        (lambda: tuned("a chain", sizes="8"), TypeError, "like [8, 16], not str"),
        (lambda: tuned("a chain", sizes=["8"]), TypeError, "sizes[0] must be an int, not str"),
        (lambda: tuned("a chain", sizes=[8, None]), TypeError, "sizes[1] must be an int, not NoneType"),
        (lambda: tuned("a chain", sizes=[True]), TypeError, "sizes[0] must be an int, not bool"),
        (lambda: tuned("a chain", library_sms="on"), ValueError, "neither is imported"),
        (lambda: tuned("a chain", library_sms=True), ValueError, "off, on, auto"),
        (lambda: tuned("a chain", launch="auto"), ValueError, "calls, graphs"),
        (lambda: tuned("a chain", also=nothing), TypeError, "also must be a mapping"),
        (lambda: tuned("a chain", also={"both": 3}), TypeError, "also['both'] must be a function"),
        (lambda: tuned("a chain", also={"chain": nothing}), ValueError, "has the name of a part"),
        (lambda: tuned("a chain", also={"": nothing}), ValueError, "not readable"),
        (lambda: tuned("a chain", budget_s=0), ValueError, "positive"),
        (lambda: tuned("a chain", budget_s="1"), TypeError, "not str"),
        (lambda: tune.overlap(a=nothing, b=nothing, device=0), TypeError, "not int"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", quantile=1.0), ValueError, "0.99 is the p99"),
        (lambda: TailLatency("a", others=1.0), ValueError, "less than 1"),
        (lambda: TailLatency(3), TypeError, "part must be the name of a part, not int"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", quantile="p99"), TypeError, "quantile must be a number, not str"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", others=None), TypeError, "others must be a number, not NoneType"),  # type: ignore[arg-type]
        (lambda: Throughput(a=0), ValueError, "from 1 to"),
        (lambda: Throughput(a=1.5), TypeError, "a must be an int from 1 to 10000, not float"),  # type: ignore[arg-type]
    ],
)
def test_bad_requests_are_refused_with_what_would_work(
    dev: Device, given: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    assert words in str(refusal(kind, given))


@pytest.mark.parametrize("objective", [Throughput(self=2, other=1), TailLatency("self", 0.9, others=0.5)])
def test_an_objective_is_a_value(objective: Throughput | TailLatency) -> None:
    for same in (copy.copy(objective), copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert same == objective
        assert hash(same) == hash(objective)
        assert repr(same) == repr(objective)
    for name in ("weights", "part", "colour"):
        with pytest.raises(AttributeError):
            setattr(objective, name, 1)
    if isinstance(objective, Throughput):
        with pytest.raises(TypeError):
            objective.weights["self"] = 3  # type: ignore[index]
        with pytest.raises(AttributeError):
            del objective.weights
    assert objective not in (Throughput(self=1, other=1), TailLatency("self"), "makespan")


def test_a_function_that_takes_no_stream_is_refused_with_how_parts_are_called(dev: Device) -> None:
    error = refusal(RuntimeError, lambda: tune.overlap(a=lambda: None, b=work(1, MS), device=dev))  # type: ignore[arg-type, misc]
    assert "takes 0 positional arguments but 1 was given" in str(error)
    assert str(error).endswith("; parts are called with one argument, as f(stream)")


def test_all_that_is_wrong_with_the_parts_is_reported_at_once() -> None:
    error = refusal(ValueError, lambda: tune.overlap(lambda stream: None))
    assert "from 2 to 8 parts, not 1; a function without a name, such as a lambda, needs one" in str(error)


def test_calls_that_alternate_between_costs_have_a_period() -> None:
    assert period_of([1.0, 3.0] * 6) == 2
    assert period_of([1.0, 1.01, 3.0] * 4) == 3
    assert period_of([1.0] * 12) == 1
    assert period_of([1.0, 1.05] * 6) == 1  # alike
    assert period_of([1.0, 3.0, 2.0, 5.0, 7.0, 1.5, 2.5, 4.0, 6.0, 8.0, 9.0, 1.2]) == 1  # no short period


def test_the_period_of_a_part_is_found_at_its_first_calls(dev: Device) -> None:
    calls: list[int] = []

    def by_turns(stream: Stream) -> None:
        calls.append(0)
        spin(stream, 8, MS // 5 if len(calls) % 2 else MS)

    with dev.create_stream() as stream:
        assert examine(Part("by_turns", by_turns), stream, lambda: None).period == 2
    report = tune.overlap(by_turns, other=work(8, MS), device=dev, sizes=[64], budget_s=2)
    assert any("repeat their cost after 2" in reason for reason in report.reasons)
