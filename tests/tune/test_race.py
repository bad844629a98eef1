"""The race and the finals: who is measured, in which order, and what is left out."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cuda_gctx.tune._judge import Block, Sample, Verdict, judge
from cuda_gctx.tune._race import Amount, Excluded, Raced, finals, race, step_cost

from .worlds import CONTESTANTS, World, kind_of, one_best, run_in


class Course:
    """Contestants with fixed times. order: who ran, with the counted and uncounted ones."""

    def __init__(self, times: Mapping[Any, float], failing: Sequence[Any] = ()) -> None:
        self.times, self.failing, self.now = times, failing, 0.0
        self.order: list[tuple[Any, Amount]] = []

    def run(self, key: Any, amount: Amount) -> Sample:
        if key in self.failing:
            raise Excluded(f"{key} fails")
        steps = max(1, -(-int(1e9 * amount.seconds) // int(1e9 * self.times[key])))
        self.now += steps * self.times[key]
        self.order.append((key, amount))
        return Sample(steps, steps * self.times[key])

    def race(self, budget_s: float = 1000.0, seed: int = 0, **options: Any) -> Raced[Any]:
        return race(
            list(self.times),
            self.run,
            lambda: self.now,
            until=budget_s,
            unit=Amount(0.03),
            warm_s=0.01,
            chance=random.Random(seed),
            **options,
        )


MANY = {"sequence": 4e-3, **{f"plan {number}": (3 + 0.1 * number) * 1e-3 for number in range(20)}}


@pytest.mark.parametrize("seed", range(5))
def test_every_contestant_has_a_counted_sample_before_any_has_two(seed: int) -> None:
    counted: list[Any] = []
    found: Raced[Any] = Raced()
    course = Course(MANY)
    run = course.run

    def watched(key: Any, amount: Amount) -> Sample:
        counted.append({one: len(samples) for one, samples in found.samples.items()})
        return run(key, amount)

    course.run = watched  # type: ignore[method-assign]
    course.race(seed=seed, found=found)
    for samples in counted:
        if max(samples.values(), default=0) > 1:
            assert len(samples) == len(MANY)
    assert found.untried == []
    assert found.finalists[0] == "plan 0"


def test_the_first_step_of_a_contestant_does_not_count() -> None:
    class SlowAtFirst(Course):
        def run(self, key: Any, amount: Amount) -> Sample:
            first = all(one != key for one, _ in self.order)
            sample = super().run(key, amount)
            return Sample(sample.steps, 5 * sample.seconds) if first else sample

    found = SlowAtFirst(MANY).race()
    assert all(step_cost(samples[0]) == pytest.approx(MANY[key]) for key, samples in found.samples.items())


def test_a_budget_that_ends_early_leaves_contestants_untried_but_not_the_sequence() -> None:
    found = Course(MANY).race(budget_s=0.4)
    assert "sequence" in found.samples
    assert len(found.untried) > 5
    assert set(found.untried) | set(found.samples) == set(MANY)


def test_hopeless_contestants_run_once() -> None:
    times = {"sequence": 0.01, "good": 1e-3, "fair": 1.2e-3, **{f"bad {n}": 2e-3 for n in range(8)}}
    course = Course(times)
    found = course.race()
    assert found.finalists == ["good", "fair"]
    assert all(len(samples) == 1 for key, samples in found.samples.items() if str(key).startswith("bad"))


def test_a_contestant_that_cannot_run_is_excluded_with_the_reason() -> None:
    found = Course(MANY, failing=["plan 3"]).race()
    assert found.excluded == {"plan 3": "plan 3 fails"}
    assert "plan 3" not in {*found.samples, *found.untried}


def test_the_best_of_another_kind_that_is_near_is_a_finalist() -> None:
    times = {"sequence": 4e-3, **{f"plan {n}": 3e-3 + n * 1e-5 for n in range(20)}, "other": 3.3e-3}
    found = Course(times).race(kind=lambda key: key.split()[0])
    assert "other" in found.finalists


def test_a_race_of_long_steps_leaves_time_for_the_finals() -> None:
    times = {"sequence": 0.4, **{f"plan {n}": 0.25 + 0.01 * n for n in range(16)}}
    course = Course(times)
    found = course.race(budget_s=30.0)
    assert found.untried == []
    assert course.now < 30.0 - 4 * 3 * 2 * 0.26


def run_finals(times: Mapping[Any, float], budget_s: float, block_s: float) -> tuple[Course, Verdict[Any] | None, list]:
    course, lengths = Course(times), []

    def verdict(blocks: Mapping[Any, Sequence[Block]], looks: int) -> Verdict[Any]:
        lengths.append((blocks["sequence"][0].first.seconds, len(blocks["sequence"])))
        return judge(blocks, list(times), lengths=looks, least_s=0.7 * block_s)

    found = finals(
        list(times),
        course.run,
        lambda: course.now,
        until=budget_s,
        block_s=block_s,
        cost=times.__getitem__,
        step_s=times.__getitem__,
        verdict=verdict,
        chance=random.Random(0),
    )
    return course, found, lengths


def test_a_large_gain_is_sure_after_short_blocks() -> None:
    course, found, lengths = run_finals({"sequence": 4e-3, "plan": 2e-3}, 60.0, 3.0)
    assert found is not None
    assert found.sure
    assert course.now < 5.0
    assert len(lengths) == 1


def test_a_small_gain_is_sure_after_long_blocks_only() -> None:
    _, found, lengths = run_finals({"sequence": 4e-3, "plan": 3.8e-3}, 60.0, 3.0)
    assert found is not None
    assert found.sure
    assert found.horizon_s >= 2.1
    assert lengths[-1][1] >= 4


def test_all_finalists_are_in_each_round() -> None:
    course, found, _ = run_finals({"sequence": 4e-3, "a": 3.9e-3, "b": 3.9e-3}, 20.0, 1.0)
    assert found is not None
    counted = [key for key, amount in course.order if amount.seconds == pytest.approx(0.4)]
    rounds = [set(counted[place : place + 6]) for place in range(0, len(counted), 6)]
    assert all(len(one) == 3 for one in rounds)


def test_there_is_no_verdict_without_time_for_two_rounds() -> None:
    assert run_finals({"sequence": 1.0, "plan": 0.5}, 4.0, 0.2)[1] is None


def test_names_of_contestants_change_nothing() -> None:
    renamed = dict(zip(CONTESTANTS, ((key[0], *key[1:], "renamed") for key in CONTESTANTS), strict=True))
    times = one_best(1.5)
    one = run_in(World(random.Random(3), times=times), seed=5)
    course = World(random.Random(3), times={renamed[key]: factor for key, factor in times.items()})
    course.contestants = list(renamed.values())
    found = race(
        course.contestants,
        course.run,
        lambda: course.now,
        until=course.now + 60.0,
        unit=Amount(0.03),
        warm_s=0.2,
        kind=kind_of,
        chance=random.Random(5),
    )
    assert found.finalists == [renamed[key] for key in one.raced.finalists]
