"""Statistics of samples: one definition of a percentile, and intervals that hold as often as they claim."""

from __future__ import annotations

import pytest

from cuda_gctx.measure.statistics import Latency, Spread, median, quantile, ratio_of_rounds, summary

from ..common import run_python


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
    spread, latency, found = Spread.of(values), Latency.of(values), summary(values)
    assert (spread.p10, spread.p90, latency.p99) == (found["p10"], found["p90"], found["p99"]) == (100.0, 900.0, 990.0)
    assert spread.median == found["median"] == median(values) == 500.5
    assert (found["min"], found["max"], found["samples"]) == (1.0, 1000.0, 1000)
    assert (latency.largest, latency.calls) == (1000.0, 1000)
    assert summary([1234.5], unit=1000, digits=2)["max"] == 1.23


def test_ratios_are_of_samples_of_the_same_round() -> None:
    ratio = ratio_of_rounds({1: 2.0, 2: 8.0, 3: 100.0}, {1: 1.0, 2: 2.0, 4: 0.001})
    assert ratio is not None
    assert (ratio.median, ratio.pairs) == (3.0, 2)
    assert ratio_of_rounds({1: 1.0}, {2: 1.0}) is None


def test_importing_them_does_not_load_numpy() -> None:
    done = run_python("import sys, cuda_gctx.measure.statistics; print('numpy' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
