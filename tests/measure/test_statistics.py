"""Statistics of samples: one definition of a percentile, and the distributions of intervals and counts."""

from __future__ import annotations

import math

import pytest

from cuda_gctx.measure.statistics import chance_of_count, median, quantile, student
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
    [
        (0.01, 1, 31.8205),
        (0.025, 1, 12.7062),
        (0.01, 2, 6.96456),
        (0.01, 3, 4.54070),
        (0.0005, 3, 12.92398),
        (0.001, 4, 7.17318),
        (0.005, 5, 4.03214),
        (0.05, 9, 1.83311),
        (0.01, 30, 2.45726),
        (0.025, 200, 1.97190),
        (0.25, 7, 0.71114),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(chance: float, freedom: int, expected: float) -> None:
    assert student(chance, freedom) == pytest.approx(expected, rel=1e-4)


def test_more_certainty_and_less_freedom_widen_an_interval() -> None:
    assert student(0.001, 4) > student(0.01, 4) > student(0.01, 5) > student(0.01, 50) > 2.3


def test_the_chance_of_a_count_is_that_of_the_binomial_distribution() -> None:
    assert chance_of_count(10, 10, 0.5) == pytest.approx(2 / 2**10)
    assert chance_of_count(0, 100, 0.05) == pytest.approx(2 * 0.95**100)
    assert chance_of_count(10, 1000, 0.01) == 1.0
    assert chance_of_count(40, 1000, 0.01) < 1e-9
    # Of many events: 50,000 of 100,000 is the mean, and 51,000 is 6.3 deviations above it.
    assert chance_of_count(50_000, 100_000, 0.5) == 1.0
    assert chance_of_count(51_000, 100_000, 0.5) == pytest.approx(2.6e-10, rel=0.1)
    tail = sum(math.comb(20, k) * 0.1**k * 0.9 ** (20 - k) for k in range(5, 21))
    assert chance_of_count(5, 20, 0.1) == pytest.approx(2 * tail)
