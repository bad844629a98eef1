"""Why a plan wins, and why there is nothing to win, as a report says it."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx import Device, Stream, tune
from cuda_gctx.measure import machine
from cuda_gctx.tune import Plan, Throughput, _batches, _measure, _work, spin

from .conftest import host_takes
from .pairs import (
    MS,
    WHOLE,
    of_kind,
    read_only,
    said,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


def test_reasons_say_what_could_be_won_and_what_fewer_sms_cost(dev: Device) -> None:
    report = read_only("each fills all")
    assert report.reasons[0] == (
        "product alone takes 804 us, and sequential takes 1.005 ms: hiding the rest would be a speedup of 1.25x"
    )
    assert any(r.startswith("product alone is ") and "SMs than on the whole device" in r for r in report.reasons)


def test_reasons_say_where_overlap_can_save_nothing(dev: Device) -> None:
    report = tune.overlap(
        long=lambda stream: spin(stream, 132, 2_000_000),
        short=lambda stream: spin(stream, 1, 1_000),
        device=dev,
        sizes=[8],
    )
    assert report.reasons[0].startswith("long alone takes ")
    assert report.reasons[0].endswith(": overlap can save less than 1%")


def test_work_that_is_launch_bound_is_called_so(dev: Device) -> None:
    def slowly(stream: Stream) -> None:
        host_takes(20_000)  # more than the kernel takes
        spin(stream, 1, 4_000)

    report = tune.overlap(a=slowly, b=slowly, device=dev, sizes=[8], budget_s=1)
    assert any(reason.startswith("launch-bound: the host needs ") for reason in report.reasons)
    assert of_kind(report, "sequence")[0].launch_bound
    assert str(report).splitlines()[0].endswith("; but launch-bound: use CUDA graphs first")
    assert "launch-bound" not in str(read_only("each fills half"))


def test_an_interruption_of_the_host_in_a_warm_up_makes_no_plan_faster(dev: Device) -> None:
    interrupted = False

    def launches(stream: Stream) -> None:
        host_takes(2 * MS if interrupted else 0)
        for _ in range(10):
            spin(stream, 1, 100)

    parts = (_work.Part("a", launches), _work.Part("b", launches))
    runner = _measure.Runner("makespan", deadline=1e12)
    with dev.create_stream() as one, dev.create_stream() as two:
        trials = [_batches.Trial(s, parts, {"a": s, "b": s}, s) for s in (one, two)]
        runner.warm(trials[0])
        interrupted = True
        runner.warm(trials[1])
        interrupted = False
        for _ in range(3):
            shape = runner.shape(trials)
            first, second = (runner.batch(trial, shape) for trial in trials)
            assert first.seconds == pytest.approx(second.seconds, rel=0.01)
            assert first.launch_bound == second.launch_bound


def test_the_plans_of_a_round_have_one_number_of_steps(dev: Device) -> None:
    parts = (_work.Part("a", work(1, 1)), _work.Part("b", work(1, 1)))
    runner = _measure.Runner("makespan", deadline=1e12)
    with dev.create_stream() as stream:
        fast, slow, alone = (
            _batches.Trial("", some, {part.name: stream for part in some}, stream, step_s=step_s, host_s=1e-5)
            for some, step_s in ((parts, 1e-3), (parts, 2e-3), (parts[:1], 1e-4))
        )
        assert runner.shape([fast, slow, alone]) == runner.shape([slow, fast]) == (30, 50e-6)
        slow.step_s = 1.0
        assert runner.shape([fast, slow]).steps == 1  # a batch of the slow one must not take half a minute
        slow.host_s = 1e-4
        assert runner.shape([fast, slow]).gate_s == 4e-4


def test_a_step_that_takes_the_host_long_but_the_device_longer_is_not_launch_bound(dev: Device) -> None:
    bulk, short = work(WHOLE, MS), work(16, MS // 50)
    report = tune.overlap(
        bulk=bulk, short=short, objective=Throughput(bulk=1, short=2000), device=dev, sizes=[8], budget_s=2
    )
    assert "launch-bound" not in said(report)
    assert not any(result.launch_bound for result in report.results)


def test_only_known_causes_of_no_overlap_are_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    [reason] = [reason for reason in tuned("each fills all", sizes=[64]).reasons if "no overlap" in reason]
    assert reason.startswith("no overlap on plain streams: 1 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for 2")


def test_a_step_shorter_than_its_parts_has_them_at_once(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile

    def apart(self: Any, trial: Any) -> Any:
        # As if the events around the parts kept them apart.
        return [{"left": (0.0, 1e-3), "right": (1e-3, 2e-3)} if len(s) == 2 else s for s in profiled(self, trial)]

    monkeypatch.setattr(_measure.Runner, "profile", apart)
    report = tuned("each fills half", sizes=[64])
    assert [round(result.overlap or 0, 2) for result in of_kind(report, "streams")] == [1]
    assert [result.overlap for result in of_kind(report, "sequence")] == [0]
    assert "no overlap" not in said(report)


def test_parts_that_were_seen_at_once_overlap_however_long_the_step_took(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(self: Any, trial: Any) -> Any:
        steps = [{"product": (0.0, 0.8e-3), "sigmoid": (0.5e-3, 0.7e-3)}]
        return [{part.name: step[part.name] for part in trial.parts} for step in steps]

    monkeypatch.setattr(_measure.Runner, "profile", at_once)
    report = tuned("each fills all", sizes=[64], budget_s=2)
    assert [result.overlap for result in of_kind(report, "streams")] == [pytest.approx(1, abs=0.02)]


def test_a_function_that_waits_for_the_device_is_named(dev: Device) -> None:
    def product(stream: Stream) -> None:
        spin(stream, 132, MS)
        stream.sync()

    report = tune.overlap(product, right=work(132, MS), device=dev, sizes=[64])
    assert any(reason.startswith("product waits for the device inside its function") for reason in report.reasons)
    assert "waits for the device" not in said(read_only("each fills half"))


def test_a_clock_that_is_another_one_at_the_end_is_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [dict.fromkeys(machine.power_state(dev)) | {"sm_clock_mhz": mhz} for mhz in (1980.0, 1500.0)]
    left = iter(states)
    monkeypatch.setattr(machine, "power_state", lambda device: next(left))
    report = tuned("each fills half", sizes=[64], budget_s=2)
    assert [one.sm_clock_mhz for one in report.conditions] == [1980, 1500]
    assert "between begin and end: SM clock 1980 and 1500 MHz" in report.reasons


def test_disjoint_sms_that_slow_each_other_are_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile
    slower = {}

    def shared(self: Any, trial: Any) -> Any:
        # As if they were held up by memory: the virtual SMs share nothing else.
        times = slower if isinstance(trial.name, Plan) and trial.name.kind == "partitions" else {}
        return [
            {name: (begin, begin + times.get(name, 1) * (end - begin)) for name, (begin, end) in step.items()}
            for step in profiled(self, trial)
        ]

    monkeypatch.setattr(_measure.Runner, "profile", shared)
    assert "although their SMs are disjoint" not in said(read_only("a chain"))
    slower.update(chain=1.3)
    assert "the others slow chain by 1.3x (product=116, chain=16), although their SMs are disjoint" in said(
        tuned("a chain", sizes=[16])
    )
    slower.update(product=1.5)
    assert "the parts slow each other, product by 1.5x and chain by 1.3x (product=116, chain=16), although" in said(
        tuned("a chain", sizes=[16])
    )


def test_parts_alone_in_their_partitions_are_measured_by_turns_with_the_plan(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = _measure.Runner.batch
    order = []

    def watched(self: Any, trial: Any, shape: Any) -> Any:
        order.append(str(trial.name))
        return measured(self, trial, shape)

    monkeypatch.setattr(_measure.Runner, "batch", watched)
    report = tuned("a chain", sizes=[16])
    alone = f"chain alone in {report.choice}"
    first = order.index(alone)
    assert order.count(alone) == 7
    turns = [name for name in order[first:] if name in (alone, str(report.choice))]
    assert turns != sorted(turns)
    assert turns != sorted(turns, reverse=True)
    assert {part.alone.samples for part in report.result(report.choice).parts.values() if part.alone} == {7}


def test_a_report_does_without_what_there_was_no_time_to_look_at(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile

    def out_of_time(self: Any, trial: Any) -> Any:
        if "=" in str(trial.name) and "alone" not in str(trial.name):
            raise _measure.OutOfTime
        return profiled(self, trial)

    monkeypatch.setattr(_measure.Runner, "profile", out_of_time)
    report = tuned("a chain", sizes=[16])
    assert not report.complete
    assert of_kind(report, "partitions") + of_kind(report, "overlay")
