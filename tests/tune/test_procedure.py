"""The rules of the search, each by itself: what the answer is worth depends on every one of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, pairwise
from typing import Any

import pytest

from cuda_gctx import Device, Layout, Stream, tune
from cuda_gctx.tune import Plan, TailLatency, Throughput, _final, _measure, spin
from cuda_gctx.tune._final import Final
from cuda_gctx.tune._guard import sitting
from cuda_gctx.tune._measure import Trial
from cuda_gctx.tune._measurement import Sample
from cuda_gctx.tune._openings import Candidate
from cuda_gctx.tune._rounds import Rounds
from cuda_gctx.tune._sizes import Allocation
from cuda_gctx.tune._work import Part, Task

from .conftest import host_takes
from .worlds import TRUTHS, Unread, World, lognormal, measured

pytestmark = pytest.mark.sim_only

MS = 1_000_000


@pytest.fixture
def rounds(dev: Device) -> Iterator[Rounds]:
    """Rounds of which none was measured; the others have to keep half of their rate."""
    parts = tuple(Part(name, lambda stream: spin(stream, 1, 1)) for name in "ab")
    with sitting(dev, progress=False) as held:
        yield Rounds(Task(dev, parts, TailLatency("a", others=0.5)), held)


def candidate(rounds: Rounds, plan: Plan, seconds: float, share: float, place: int | None = None) -> Candidate:
    """A plan that was measured in two rounds: its latency, and the rate of b as a share of that alone."""
    allocation = None if place is None else Allocation("b", (("a", place),))
    trial = Trial(plan, rounds.task.parts, {}, None)  # type: ignore[arg-type]
    made = Candidate(plan=plan, trial=trial, allocation=allocation)
    for number in range(2):
        made.samples[number] = Sample(seconds, calls={"b": (int(1000 * share), 1.0)})
    rounds.found.plans.append(made)
    return made


def given(rounds: Rounds, *plans: tuple[float, float]) -> list[Candidate]:
    """The sequence, and partitions with these latencies and shares."""
    alone = Trial("alone", rounds.task.parts, {}, None)  # type: ignore[arg-type]
    for part in rounds.task.parts:
        rounds.found.alone[part.name] = Candidate(plan=None, trial=alone, samples={0: Sample(1e-3), 1: Sample(1e-3)})
    rounds.fair = {0, 1}
    candidate(rounds, Plan("sequence", ("a", "b")), 10.0, 1.0)
    found = []
    for place, (seconds, share) in enumerate(plans):
        plan = Plan("partitions", ("a", "b"), Layout(a=8 * (place + 1), b=None), {"a": "a", "b": "b"})
        found.append(candidate(rounds, plan, seconds, share, place))
    return found


def test_a_plan_is_behind_only_those_that_leave_the_others_as_much(rounds: Rounds) -> None:
    greedy, fair = given(rounds, (1.0, 0.1), (2.0, 0.6))
    assert rounds.behind(fair) == 1.0
    assert rounds.behind(greedy) == 1.0
    rounds.found.objective = TailLatency("a")
    assert rounds.behind(fair) == 2.0


def test_plans_that_leave_the_others_a_little_more_than_they_need_take_part_in_the_final_rounds(rounds: Rounds) -> None:
    # The share is measured with an error: of plans next to the limit, one may turn out to be below it.
    plans = given(rounds, (1.0, 0.501), (1.01, 0.502), (1.02, 0.503), (1.03, 0.53), (1.04, 0.556), (1.05, 0.6))
    finalists = Final(rounds).finalists()
    for plan in (plans[0], plans[3], plans[4], plans[5]):
        assert plan in finalists


def test_a_plan_that_is_a_tenth_behind_is_not_left_out_early(dev: Device) -> None:
    # Streams gain 8%, the best partitions 15%: the streams are 6% behind, and are compared in the final rounds.
    report = measured(World(TRUTHS["one_partition_is_best"], lognormal(0.003), random.Random(1)), dev)
    for kind in ("streams", "sequence"):
        assert next(r for r in report.results if r.plan.kind == kind).seconds.samples >= 15


def test_plans_that_are_certainly_slower_leave_the_final_rounds_and_the_sequence_stays(dev: Device) -> None:
    # Two partitions are equally good, which takes many rounds; streams are 7% behind them.
    report = measured(World(TRUTHS["one_partition_is_best"], lognormal(0.02), random.Random(1)), dev)
    assert report.choice.kind == "partitions"
    samples = {r.plan.kind: r.seconds.samples for r in report.results if r.plan.kind in ("sequence", "streams")}
    assert samples["streams"] < samples["sequence"] == report.result(report.choice).seconds.samples


def test_plans_that_leave_the_others_nearly_what_they_need_are_measured_on(rounds: Rounds) -> None:
    nearly, too_little = given(rounds, (1.0, 0.45), (1.0, 0.4))
    rounds.measure([], 1)
    assert (nearly.hopeless, too_little.hopeless) == (False, True)


def test_the_order_of_the_plans_is_another_one_in_each_round(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[str]] = [[]]
    measure, batch = Rounds.measure, _measure.Runner.batch

    def seen(self: Any, trial: Any, shape: Any) -> Any:
        orders[-1].append(str(trial.name))
        return batch(self, trial, shape)

    def watched(self: Any, candidates: Any, number: int, **options: Any) -> None:
        for _ in range(number):
            orders.append([])
            measure(self, candidates, 1, **options)
        orders.append([])  # of what is no round

    monkeypatch.setattr(_measure.Runner, "batch", seen)
    monkeypatch.setattr(Rounds, "measure", watched)
    tune.overlap(a=lambda s: spin(s, 132, MS), b=lambda s: spin(s, 132, MS), device=dev, sizes=[64], budget_s=4)
    taking_part = Counter(tuple(sorted(order)) for order in orders if len(order) > 2)
    same = [order for order in orders if tuple(sorted(order)) == taking_part.most_common(1)[0][0]]
    assert len(same) > 5
    assert len({tuple(order) for order in same}) > min(len(same), 6) // 2  # three plans have six orders


def slowly_enqueued(host_ns: int) -> Part:
    """A part of 20 us that takes the host longer."""

    def enqueue(stream: Stream) -> None:
        host_takes(host_ns)
        spin(stream, 1, 20_000)

    return Part("a", enqueue)


def test_steps_behind_the_gate_do_not_wait_for_launches(dev: Device) -> None:
    part = slowly_enqueued(30_000)
    with dev.create_stream() as stream, _measure.Runner("makespan", deadline=1e12) as runner:
        trial = Trial("", (part,), {"a": stream}, stream)
        gated = runner._steps(trial, 4, 10e-3)
        assert gated.seconds == pytest.approx(20e-6, rel=0.2)  # what the device needs
        assert runner._steps(trial, 4, 0.0).seconds > 28e-6  # what the host needs


def test_a_batch_of_one_step_does_not_show_whether_the_device_waits_for_launches(dev: Device) -> None:
    part = slowly_enqueued(300_000)
    with dev.create_stream() as stream, _measure.Runner("makespan", deadline=1e12) as runner:
        trial = Trial("", (part,), {"a": stream}, stream)
        assert [runner._steps(trial, steps, 0.0).launch_bound for steps in (1, 4)] == [False, True]


def test_a_sustained_rate_is_not_that_of_short_batches(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # A call fills the device and then leaves all of it but an SM. A mix takes as long as one call, but for the last
    # one, next to which nothing runs.
    def call(stream: Stream) -> None:
        spin(stream, 256, 4 * MS)
        spin(stream, 1, 4 * MS)

    monkeypatch.setattr(_final, "is_simulated", lambda device: False)  # with blocks of seconds
    report = tune.overlap(a=call, b=call, objective=Throughput(a=1, b=1), device=dev, sizes=[64], budget_s=20)
    assert report.choice.kind == "streams"
    assert 1.95 < report.gain < 2


def test_sm_clocks_are_read_for_each_plan_and_a_difference_is_reported(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = cycle([1500.0, 1900.0])
    monkeypatch.setattr(Unread, "__init__", lambda self, device: setattr(self, "sm_clock_mhz", next(readings)))
    report = measured(World(TRUTHS["one_partition_is_best"], lognormal(0.003), random.Random(1)), dev)
    [sequence] = [result for result in report.results if result.plan.kind == "sequence"]
    clocks = report.result(report.choice).sm_clock_mhz, sequence.sm_clock_mhz
    assert set(clocks) == {1500.0, 1900.0}
    reason = "the SM clock is {:g} MHz with the choice, and {:g} MHz in sequence"
    assert reason.format(*clocks) in report.reasons
    readings = cycle([1500.0])
    report = measured(World(TRUTHS["one_partition_is_best"], lognormal(0.003), random.Random(1)), dev)
    assert report.result(report.choice).sm_clock_mhz == 1500.0
    assert not any("SM clock" in reason for reason in report.reasons)


def test_what_counts_of_a_block_of_mixes_is_long_batches(dev: Device) -> None:
    parts = [Part(name, lambda stream: None) for name in "ab"]
    with dev.create_stream() as stream, _measure.Runner(Throughput(a=1, b=1), deadline=1e12) as runner:
        trial = Trial("", tuple(parts), {part.name: stream for part in parts}, stream)
        steps = []
        for trial.step_s in (1e-3, 5e-3, 30e-3, 1.0):
            steps.append((runner.shape([trial]).steps, runner.longest_shape(trial, 0.5).steps))
    assert steps == [(30, 500), (6, 100), (3, 16), (1, 1)]


@pytest.mark.parametrize("objective", ["makespan", Throughput(a=1, b=1), TailLatency("a")])
def test_idle_streams_are_waited_for_too(dev: Device, monkeypatch: pytest.MonkeyPatch, objective: Any) -> None:
    pending = []
    batch = _measure.Runner.batch

    def interrupted(self: Any, trial: Any, shape: Any) -> Any:
        found = batch(self, trial, shape)
        if isinstance(trial.name, Plan) and trial.name.kind == "streams":
            spin(trial.clock, 1, 50 * MS)
            pending.append(trial.clock.record())
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(_measure.Runner, "batch", interrupted)
    with suppress(KeyboardInterrupt):  # raised only as long as there is no answer
        tune.overlap(
            a=lambda s: spin(s, 132, MS), b=lambda s: spin(s, 132, MS), device=dev, sizes=[64], objective=objective
        )
    assert pending
    for event in pending:
        assert event.is_done
        event.close()


def test_finalists_take_part_with_each_opening_by_turns(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    trials: dict[str, list[int]] = {}
    batch = _measure.Runner.batch

    def seen(self: Any, trial: Any, shape: Any) -> Any:
        trials.setdefault(str(trial.name), []).append(id(trial))
        return batch(self, trial, shape)

    def ends(*_: object) -> None:
        raise _measure.OutOfTime

    monkeypatch.setattr(_measure.Runner, "batch", seen)
    monkeypatch.setattr(Final, "_alternate", ends)
    report = tune.overlap(
        a=lambda s: spin(s, 132, MS), b=lambda s: spin(s, 132, MS), device=dev, sizes=[64], budget_s=6
    )
    assert report.openings >= 2
    final = trials[str(report.choice)][-8:]
    assert len(set(final)) >= 2
    assert all(one != other for one, other in pairwise(final))


def test_batches_are_taken_until_they_take_equally_long(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([1.0, 0.9, 0.85, 0.82, 0.8, 0.8, 0.8, 0.8])
    monkeypatch.setattr(_measure.Runner, "batch", lambda *_: Sample(next(taken)))
    with dev.create_stream() as stream, _measure.Runner("makespan", deadline=1e12) as runner:
        settled = runner.settle_clocks(Trial("", (), {}, stream, step_s=1e-3))
    assert [sample.seconds for sample in settled][-3:] == [0.8, 0.8, 0.8]
