"""Statistics of samples: spread, percentiles, and the ratio of two things with a confidence interval.

A ratio is taken over pairs of samples of the same round, so that a change of clocks affects both sides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, comb

__all__ = [
    "CERTAINTY",
    "LEAST_PAIRS",
    "NOISE",
    "Latency",
    "Ratio",
    "Spread",
    "median",
    "quantile",
    "ratio_of",
    "summary",
]

# Each interval contains the true median with 97.5%: it may be computed twice, the second time with more samples, and
# both hold with 95%. With fewer pairs than LEAST_PAIRS no such interval exists.
CERTAINTY = 0.975
LEAST_PAIRS = 7
# A difference below this counts as noise whatever the samples say: clocks and temperatures drift by as much.
NOISE = 0.01


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    import numpy as np

    return float(np.median(np.asarray(values, dtype=float)))


def quantile(values: Sequence[float], share: float) -> float:
    """A percentile by nearest rank: the smallest sample that at least this share of the samples does not exceed."""
    import numpy as np

    ordered = np.sort(np.asarray(values, dtype=float))
    return float(ordered[max(0, ceil(share * len(ordered) - 1e-9) - 1)])


@dataclass(frozen=True)
class Spread:
    """Samples in seconds: median, 10th and 90th percentile, and the number of samples."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize samples."""
        return cls(median(values), quantile(values, 0.1), quantile(values, 0.9), len(values))


@dataclass(frozen=True)
class Latency:
    """Latencies of single calls in seconds: percentiles, the largest one, and the number of calls."""

    p50: float
    p90: float
    p99: float
    largest: float
    calls: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        """Summarize latencies."""
        p50, p90, p99 = (quantile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(p50, p90, p99, float(max(values)), len(values))


def summary(values: Sequence[float], unit: float = 1.0, digits: int | None = None) -> dict[str, float]:
    """Samples for a document: median, extremes and percentiles, divided by `unit`, rounded to `digits`."""
    found = {
        "median": median(values),
        "min": min(values),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
        "p99": quantile(values, 0.99),
        "max": max(values),
    }
    scaled = {name: float(value) / unit for name, value in found.items()}
    if digits is not None:
        scaled = {name: round(value, digits) for name, value in scaled.items()}
    return {**scaled, "samples": len(values)}


@dataclass(frozen=True)
class Ratio:
    """How many times as long one thing takes as another: the median over pairs, and a confidence interval."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def is_known(self) -> bool:
        """Whether there are enough pairs for the interval to be valid."""
        return self.pairs >= LEAST_PAIRS

    @property
    def is_slower(self) -> bool:
        """Whether the first one is slower by more than noise."""
        return self.is_known and self.low > 1 + NOISE

    @property
    def is_not_slower(self) -> bool:
        """Whether the first one is certainly not slower by more than noise."""
        return self.is_known and self.high <= 1 + NOISE


def _rank(pairs: int) -> int:
    """The number of ratios to drop at each end: the interval of the sign test, which assumes no distribution."""
    dropped, tail = 0, 0.0
    while dropped < pairs // 2:
        tail += comb(pairs, dropped) / 2**pairs
        if 2 * tail > 1 - CERTAINTY:
            break
        dropped += 1
    return max(0, dropped - 1)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio of the first to the second over pairs of times."""
    import numpy as np

    times = np.asarray(pairs, dtype=float)
    ratios = np.sort(times[:, 0] / times[:, 1])
    rank = _rank(len(ratios))
    return Ratio(median(ratios.tolist()), float(ratios[rank]), float(ratios[-1 - rank]), len(ratios))


def ratio_of_rounds(first: Mapping[int, float], second: Mapping[int, float]) -> Ratio | None:
    """The ratio over the rounds in which both were measured; None if there is no such round."""
    rounds = sorted(first.keys() & second.keys())
    return ratio_of([(first[number], second[number]) for number in rounds]) if rounds else None
