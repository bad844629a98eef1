"""The tuner ends with its budget or at Ctrl-C with what it has measured, and leaves nothing behind."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from cuda_gctx import Device, tune
from cuda_gctx._core import clock
from cuda_gctx.measure.loop import TIMED
from cuda_gctx.tune import Plan, Report, TailLatency, _batches, _measure, _work, spin

from ..common import refusal
from .conftest import host_takes
from .pairs import (
    MS,
    WHOLE,
    Failing,
    Machines,
    calls_until,
    chain,
    of_kind,
    said,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


def test_ctrl_c_before_anything_is_known_goes_on(dev: Device) -> None:
    right = Failing(3, KeyboardInterrupt())
    refusal(KeyboardInterrupt, lambda: tune.overlap(left=work(1, MS), right=right, device=dev))


def test_ctrl_c_gives_what_was_measured_so_far(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in (lambda name: "=" in name, lambda name: "alone in" in name):
        nth = calls_until(event, monkeypatch) + 1
        right = Failing(nth, KeyboardInterrupt())
        report = tune.overlap(left=work(WHOLE // 2, MS), right=right, device=dev)
        assert right.calls == nth
        assert not report.complete
        assert {"sequence", "streams"} <= {result.plan.kind for result in report.results}
        assert report == Report.from_json(report.to_json())
        assert "incomplete" in str(report)


class Ticking:
    """A host clock on which each look at it takes a millisecond."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 0.001
        return self.seconds


def test_what_was_enqueued_before_ctrl_c_is_waited_for(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200")
    nth = calls_until(lambda name: name.startswith("left="), monkeypatch)
    right = Failing(nth + 1, KeyboardInterrupt())
    tune.overlap(left=work(50 * WHOLE, MS), right=right, device=Device(0))
    with (
        Device(0).create_stream() as stream,
        stream.record(options=TIMED) as start,
    ):
        spin(stream, WHOLE, MS)
        with stream.record(options=TIMED) as end:
            end.sync()
            assert end - start < 1.1


def test_a_batch_is_no_longer_than_the_time_that_is_left(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr(clock, "now", ticking.now)
    with dev.create_stream() as stream:
        trial = _batches.Trial("alone", (), {}, stream, step_s=0.01)
        runner = _measure.Runner("makespan", deadline=0.0255)
        assert runner.steps_for(trial) == 2
        ticking.seconds = 0.02
        with pytest.raises(_measure.OutOfTime):
            runner.steps_for(trial)


def test_the_budget_ends_it(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr(clock, "now", ticking.now)
    error = refusal(RuntimeError, lambda: tuned("each fills half", budget_s=0.02))
    assert "budget_s=0.02 is too short" in str(error)
    began = ticking.seconds
    report = tuned("each fills half", budget_s=0.3)
    assert ticking.seconds - began < 0.32
    assert not report.complete
    assert not report.sure or report.choice.kind == "streams"
    assert tuned("each fills half", budget_s=10).complete


def test_sizes_that_were_asked_for_are_measured_before_the_time_goes_to_alternatives(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_measure.Runner, "settle_clocks", lambda self, trial: host_takes(1_000 * MS) or [])
    report = tune.overlap(
        bulk=work(WHOLE, MS),
        critical=work(16, MS // 200),
        objective=TailLatency("critical", quantile=0.9),
        sizes=[16],
        budget_s=3,
    )
    found = {result.plan for result in of_kind(report, "partitions")}
    assert {plan.sm_counts["critical"] for plan in found if plan.sm_counts} == {16, 116}
    assert len(of_kind(report, "overlay")) == 1
    assert report.choice.kind in ("overlay", "partitions")


# ---- what it leaves behind


def test_a_second_run_makes_no_contexts_and_loses_no_memory(sim: Machines) -> None:
    machine = sim("h200")
    tuned("a chain", sizes=[16])
    made, streams = machine.ledger().green_contexts_made, len(machine.ledger().live_of("stream"))
    assert made > 0
    assert streams > 0  # those that the contexts keep
    tuned("a chain", sizes=[16])
    assert machine.ledger().green_contexts_made == made
    assert machine.memory(device=0)["lost"] == 0
    assert len(machine.ledger().live_of("stream")) == streams
    assert not machine.ledger().live_of("event")


def test_device_memory_that_is_used_up_is_a_reason_and_no_error(sim: Machines) -> None:
    machine = sim("h200")
    machine.limit_contexts(6)
    report = tuned("each fills half")
    machine.clear_faults()
    assert report.choice.kind == "streams"
    assert "more partitions were not tried: no device memory is left for their contexts" in report.reasons
    assert not report.complete


def test_device_memory_may_be_used_up_near_the_best_sizes(sim: Machines) -> None:
    machine = sim("h200")
    machine.limit_contexts(9)
    report = tune.overlap(one=work(80, MS), other=work(264, MS), device=Device(0))
    machine.clear_faults()
    assert "more partitions were not tried: no device memory is left for their contexts" in report.reasons
    assert not report.complete


def test_many_parts_are_ended_by_the_budget(dev: Device) -> None:
    parts = {f"part{number}": work(16, MS) for number in range(5)}
    many = tune.overlap(device=dev, **parts)
    few = tune.overlap(device=dev, budget_s=5, **parts)
    assert many.complete
    assert len(of_kind(many, "partitions")) > len(of_kind(few, "partitions")) > 0
    assert not few.complete
    assert re.search(
        r"\d+ of \d+ divisions of the SMs were not tried, such as .*: budget_s=5 allows no more", said(few)
    )


# ---- what a step is


def test_in_a_step_all_parts_start_when_the_step_before_has_ended(dev: Device) -> None:
    parts = [_work.Part("short", work(1, MS // 10)), _work.Part("long", work(1, MS)), _work.Part("chain", chain)]
    plan = Plan("streams", ("short", "long", "chain"))
    for order in (parts, parts[::-1]):
        with plan.open(dev) as streams, dev.create_stream() as idle:
            runner = _measure.Runner("makespan", deadline=1e12)
            steps = runner.profile(_batches.Trial(plan, tuple(order), streams, idle))
        assert len(steps) == 10
        for before, after in pairwise(steps):
            last = max(end for _, end in before.values())
            assert all(last <= begin < last + 50e-6 for begin, _ in after.values())


# ---- plans
