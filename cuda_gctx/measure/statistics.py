"""Statistics of samples: quantiles, Student's distribution, and the binomial distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, exp, lgamma, log, log1p, sqrt

__all__ = ["chance_of_count", "median", "nearest_rank", "quantile", "student"]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def quantile(values: Sequence[float], share: float) -> float:
    """A percentile by nearest rank: the smallest sample that at least this share of the samples does not exceed."""
    ordered = sorted(values)
    return float(ordered[nearest_rank(len(ordered), share)])


def nearest_rank(count: int, share: float) -> int:
    """The place of a percentile in so many sorted samples."""
    return max(0, ceil(share * count - 1e-9) - 1)


# ---- Student's distribution, by the incomplete beta function

TINY = 1e-300


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (Lentz)."""
    c, d = 1.0, 1.0 / (1 - (a + b) * x / (a + 1) or TINY)
    value = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or TINY)
            c = (1 + term / c) or TINY
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function."""
    if not 0 < x < 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


@lru_cache(maxsize=4096)
def student(chance: float, freedom: int) -> float:
    """The quantile of Student's distribution that is exceeded with a chance below one half."""
    low, high = 0.0, 1.0
    while _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + high * high)) / 2 > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        beyond = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle)) / 2
        low, high = (middle, high) if beyond > chance else (low, middle)
    return (low + high) / 2


# ---- the binomial distribution


def chance_of_count(count: int, of: int, share: float) -> float:
    """The chance that a count differs from its mean by as much as this one, in its direction, twice.

    count: how many of `of` independent events happened, each with the chance `share`.
    """
    deviation = sqrt(of * share * (1 - share))
    span = range(count, min(of, count + ceil(12 * deviation) + 12) + 1)
    if count < of * share:
        span = range(max(0, count - ceil(12 * deviation) - 12), count + 1)
    ways = lgamma(of + 1)

    def chance(k: int) -> float:  # by logarithms, because the numbers of ways exceed a float
        return exp(ways - lgamma(k + 1) - lgamma(of - k + 1) + k * log(share) + (of - k) * log1p(-share))

    return min(1.0, 2 * sum(map(chance, span)))
