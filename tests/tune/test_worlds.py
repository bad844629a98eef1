"""The tuner's decisions in synthetic worlds with known true times: how often it is wrong although it is sure.

A sample: `python tests/tune/worlds.py` runs all worlds many times, and fails where the tuner is wrong too often.
"""

from __future__ import annotations

import random
import re

import pytest

from cuda_gctx import Device
from cuda_gctx.measure.statistics import NOISE
from cuda_gctx.tune import Plan, TailLatency
from cuda_gctx.tune._batches import Trial
from cuda_gctx.tune._measurement import Sample
from cuda_gctx.tune._report import words

from .worlds import (
    LATENCIES,
    STEPWISE,
    TRUTHS,
    WITHOUT_A_GAIN,
    Nature,
    Stepwise,
    World,
    lognormal,
    measured,
    outcomes,
)

pytestmark = pytest.mark.sim_only

# The worlds in which an earlier rule was wrong, and the number of runs that shows it.
SAMPLE = [
    ("one_partition_is_best", "10%", 6),
    ("one_partition_is_best", "outliers", 2),
    ("sizes_make_a_bowl", "10%", 4),
    ("nothing_to_gain", "luck 2%", 4),
    ("nothing_to_gain", "10%", 2),
    ("nothing_to_gain", "threads 15%", 4),
    ("almost_a_gain", "heavy tail", 2),
    ("one_overlay_is_best", "drift", 2),
    ("streams_gain_a_little", "throttling", 2),
]


@pytest.mark.parametrize(("truth", "noise", "runs"), SAMPLE)
def test_a_choice_that_is_called_sure_is_the_best_but_for_the_margin(
    dev: Device, truth: str, noise: str, runs: int
) -> None:
    found = outcomes(dev, truth, noise, runs)
    assert not [one for one in found if one.is_wrong]
    if truth in WITHOUT_A_GAIN:
        assert not any(one.won for one in found)


@pytest.mark.parametrize("objective", ["makespan", "rate"])
@pytest.mark.parametrize("name", STEPWISE)
def test_plans_that_heat_the_chip_stall_or_start_slowly_are_not_sure_and_wrong(
    dev: Device, name: str, objective: str
) -> None:
    found = outcomes(dev, name, objective, 2)
    assert not [one for one in found if one.is_wrong]
    if name.startswith("power") or (name, objective) == ("rare stalls", "rate"):
        assert not any(one.won for one in found)  # faster in rounds only
    if name == "slow start":
        assert all(one.won and one.sure for one in found)


@pytest.mark.parametrize("name", LATENCIES)
def test_a_plan_with_rare_late_calls_does_not_win_a_p99(dev: Device, name: str) -> None:
    found = outcomes(dev, name, "latency", 3)
    assert not [one for one in found if one.is_wrong]
    assert all(one.won for one in found) if "a gain" in name else not any(one.won for one in found)


class Stalling(Stepwise):
    """A world in which the host stalls during every fourth batch of the sequence."""

    def batch(self, trial: Trial, steps: int, hosts: object = None) -> Sample:
        sample = super().batch(trial, steps, hosts)
        if isinstance(trial.name, Plan) and trial.name.kind == "sequence" and self.batches % 4 == 0:
            sample.latencies = tuple(9 * latency for latency in sample.latencies)
        return sample


def test_of_a_sequence_that_stalls_the_least_that_it_takes_is_enough_for_a_choice(dev: Device) -> None:
    objective = TailLatency("a", quantile=0.9, closed_loop=True)
    world = Stalling(TRUTHS["nothing_to_gain"], lognormal(0.0), random.Random(5), step_s=0.002, objective=objective)
    world.natures = {"streams": Nature(0.05)}
    report = measured(world, dev, objective=objective, budget_s=8)
    assert report.choice.kind == "streams"
    assert report.gain_low > 10
    assert not report.sure
    [slower] = [reason for reason in report.reasons if reason.startswith("in sequence: ")]
    assert re.fullmatch(
        r"in sequence: at least \d\d\.\d\dx slower than the choice \(too few samples for more\)", slower
    )
    doubt = "not sure: in sequence there are too few calls: the speedup may be larger than its interval"
    assert doubt in report.reasons


class Short(Stepwise):
    """A world in which parts are short alone."""

    def nature(self, kind: str, sms: dict[str, int]) -> Nature:
        return self.natures["overlay"] if kind == "alone" else super().nature(kind, sms)


def test_a_latency_that_is_a_tenth_is_found_in_two_seconds(dev: Device) -> None:
    objective = TailLatency("a", quantile=0.9, closed_loop=True)
    natures = {"streams": Nature(1.0), "priority": Nature(1.0), "overlay": Nature(0.06), "partitions": Nature(0.06)}
    kinds = set()
    for seed in range(16):
        world = Short(TRUTHS["nothing_to_gain"], lognormal(0.0), random.Random(seed), step_s=0.9e-3, deviation=0.2)
        world.natures, world.objective = natures, objective
        kinds.add(measured(world, dev, objective=objective, budget_s=2, sizes=[16]).choice.kind)
    assert kinds <= {"overlay", "partitions"}


def test_clear_differences_are_found_and_called_sure(dev: Device) -> None:
    found = outcomes(dev, "one_partition_is_best", "0.3%", 2) + outcomes(dev, "one_overlay_is_best", "0.3%", 2)
    assert all(one.sure and one.won and one.covered and one.regret == 0 for one in found)
    assert all(NOISE <= one.margin < 0.02 for one in found)


def test_what_openings_differ_by_widens_the_margin_and_the_interval(dev: Device) -> None:
    lucky = World(TRUTHS["sizes_make_a_bowl"], lognormal(0.003), random.Random(4), luck=0.01)
    report = measured(lucky, dev)
    assert report.margin > 0.02
    assert report.openings == 4  # twice at first
    assert report.gain_low < 1.25 < report.gain_high
    assert report.gain_high / report.gain_low > 1.04
    assert f"what {report.openings} openings of a plan differ by" in "\n".join(report.reasons)
    steady = measured(World(TRUTHS["sizes_make_a_bowl"], lognormal(0.003), random.Random(4)), dev)
    assert NOISE <= steady.margin < 0.015
    assert steady.gain_high / steady.gain_low < 1.03


def test_a_report_of_launch_bound_work_states_what_starts_of_the_host_threads_differ_by(dev: Device) -> None:
    reports = [
        measured(World(TRUTHS["streams_gain_a_little"], lognormal(0.003), random.Random(seed), threads=0.2), dev)
        for seed in (1, 2)
    ]
    medians, ranges = [], []
    for report in reports:
        assert report.launch == "by a host thread for each part"
        [streams] = [result for result in report.results if result.plan.kind == "streams"]
        medians.append(streams.seconds.value)
        ranges.append((streams.seconds.p10, streams.seconds.p90))
        [reason] = [reason for reason in report.reasons if reason.startswith("bound by the host's threads")]
        low, high = (words(seconds) for seconds in ranges[-1])
        assert f"of {streams.seconds.samples} rounds, each with new threads" in reason
        assert f"{low} to {high}" in reason
        assert 'launch="graphs"' in reason
        assert "with new host threads in each round" in "\n".join(report.reasons)
    # Each contains what another process finds, and the truth.
    for low, high in ranges:
        assert low < 4e-3 / 1.03 < high
        assert all(low < other < high for other in medians)


@pytest.mark.parametrize("step_s", [0.2, 1.0])
def test_long_steps_get_an_answer(dev: Device, step_s: float) -> None:
    truth = TRUTHS["one_partition_is_best"]
    world = World(truth, lognormal(0.01), random.Random(3), step_s=step_s)
    report = measured(world, dev, sizes=None)
    assert world.now - 1000 < 60 + 2 * step_s
    assert report.choice.kind != "sequence"
    assert report.gain_low > 1.01
    assert report.result(report.choice).seconds.samples >= 7
