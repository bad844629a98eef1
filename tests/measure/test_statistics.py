"""Statistics of samples: one definition of a percentile, and intervals that hold as often as they claim."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from cuda_gctx.measure.statistics import (
    Estimate,
    Luck,
    certainty_of,
    median,
    quantile,
    ratio_of,
    student,
)
from cuda_gctx.measure.summaries import Spread, summary


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.1, 1.0), (0.11, 2.0), (0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (1.0, 10.0)]
)
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    values = [float(value) for value in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4)]
    assert quantile(values, share) == expected


def test_a_percentile_of_exactly_a_sample_is_not_rounded_up() -> None:
    # 0.07 * 100 is a little more than 7 as a float.
    assert quantile([float(value) for value in range(1, 101)], 0.07) == 7.0


def test_all_summaries_agree() -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    spread, found = Spread.of(values), summary(values)
    assert (spread.p10, spread.p90) == (found["p10"], found["p90"]) == (100.0, 900.0)
    assert found["p99"] == 990.0
    assert spread.value == found["median"] == median(values) == 500.5
    assert (found["min"], found["max"], found["samples"]) == (1.0, 1000.0, 1000)
    assert summary([1234.5], unit=1000, digits=2)["max"] == 1.23


@pytest.mark.parametrize(
    ("chance", "freedom", "expected"),
    [(0.01, 1, 31.82), (0.01, 2, 6.965), (0.01, 3, 4.541), (0.001, 4, 7.173), (0.00143, 7, 4.5), (0.01, 30, 2.457)],
)
def test_quantiles_of_student_are_those_of_the_tables(chance: float, freedom: int, expected: float) -> None:
    assert student(chance, freedom) == pytest.approx(expected, rel=0.05)


def openings(levels: Sequence[float], noise: float, numbers: random.Random) -> list[dict[int, float]]:
    """Samples of a thing by round, for openings that take part by turns."""
    found: list[dict[int, float]] = [{} for _ in levels]
    for number in range(60):
        turn = number % len(levels)
        found[turn][number] = levels[turn] * math.exp(numbers.gauss(0, noise))
    return found


def test_luck_is_what_openings_differ_by_and_not_noise() -> None:
    numbers = random.Random(5)
    same = Luck.of([openings([1.0, 1.0], 0.03, numbers) for _ in range(5)])
    assert same.between() < 0.01
    lucky = Luck.of([openings([1.0 + d, 1.0 - d], 0.003, numbers) for d in (0.02, -0.01, 0.03, -0.02, 0.015)])
    assert 0.03 < lucky.between() < 0.3
    assert Luck.of([openings([1.0, 1.2], 0.003, numbers)]).between() == 0  # nothing to compare with
    assert Luck().between() == 0
    few = Luck.of([openings([1.0, 1.0], 0.1, numbers), openings([1.0, 1.3], 0.1, numbers)])
    assert few.between() == 1.0  # a gain of more than two times is not luck


def test_typical_luck_is_the_variance_of_the_openings() -> None:
    numbers = random.Random(7)
    things = [openings([math.exp(numbers.gauss(0, 0.05)) for _ in range(4)], 0.0005, numbers) for _ in range(80)]
    assert Luck.of(things).typical == pytest.approx(0.05**2, rel=0.25)


def test_a_thing_whose_openings_differ_more_than_others_does_not_widen_the_others() -> None:
    numbers = random.Random(6)
    steady = [openings([1.0, 1.0001], 0.001, numbers) for _ in range(5)]
    luck = Luck.of([*steady, openings([0.8, 1.2], 0.001, numbers)])
    assert luck.between(0, 1) < 0.01
    assert luck.between(0, 5) > 0.5


def test_an_estimate_has_the_interval_of_its_median() -> None:
    found = Estimate.of([[float(value) for value in range(1, 16)]], 0.5, 0.975)
    assert (found.value, found.samples, found.is_known) == (8.0, 15, True)
    assert 1.0 < found.low < 8.0 < found.high < 15.0


def test_an_interval_covers_what_samples_cannot_tell() -> None:
    assert ratio_of([(2.0, 1.0)] * 7) == Estimate(2.0, 2.0, 2.0, 7, True)
    assert not ratio_of([(2.0, 1.0)] * 6).is_slower  # too few to be sure of anything
    ratios = [1.01 + n / 100 for n in range(12)]
    found = ratio_of([(ratio, 1.0) for ratio in ratios])
    assert (found.low, found.high) == (ratios[1], ratios[10])  # the sign test for twelve
    assert found.is_slower
    assert not ratio_of([(1.009, 1.0)] * 20).is_slower  # clocks drift by as much


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    held = 0
    for _ in range(400):
        found = ratio_of([(numbers.lognormvariate(0, 0.1) * 1.2, 1.0) for _ in range(15)])
        held += found.low <= 1.2 <= found.high
    assert held >= 360, f"seed {seed}"


def test_more_rivals_leave_more_to_luck() -> None:
    two, three, four = (Luck((0.01,) * number, 0.01, 8, 2).between() for number in (2, 3, 4))
    assert 0 < two < three < four


@pytest.mark.parametrize("pairs", [9, 10, 15, 24, 40, 101])
def test_the_interval_of_pairs_is_the_narrowest_that_is_certain_enough(pairs: int) -> None:
    def missed(first: int) -> float:
        """The chance that the true median is outside of the sorted ratios from `first` to that from the end."""
        return 2 * sum(math.comb(pairs, below) for below in range(first)) / 2**pairs

    first = int(ratio_of([(float(ratio), 1.0) for ratio in range(1, pairs + 1)]).low)
    assert missed(first) <= 1 - certainty_of(pairs)
    assert missed(first + 1) > 1 - certainty_of(pairs)


@pytest.mark.parametrize("samples", [50_000, 200_000])
def test_of_many_samples_as_many_exceed_a_quantile_as_of_a_normal_distribution(samples: int) -> None:
    found = Estimate.of([[float(number) for number in range(1, samples + 1)]], 0.99, 0.95)
    deviation = math.sqrt(samples * 0.01 * 0.99)
    assert found.low == pytest.approx(samples * 0.99 - 1.96 * deviation, abs=3)
    assert found.high == pytest.approx(samples * 0.99 + 1.96 * deviation, abs=3)
