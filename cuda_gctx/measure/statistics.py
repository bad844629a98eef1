"""What samples say: their spread, and by how much one thing is faster than another, as an interval.

Comparisons are of pairs, measured one right after the other, so that a change of clocks meets both sides alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb
from statistics import median

__all__ = ["CERTAINTY", "LEAST_PAIRS", "NOISE", "Ratio", "Spread", "quantile", "ratio_of"]

# How often an interval holds the true median: 95%, although there may be two of them, one after more samples than the
# other. Below so many pairs no such interval exists.
CERTAINTY = 0.975
LEAST_PAIRS = 7
# A difference of less than this is called noise whatever the samples say: clocks and temperatures drift by as much.
NOISE = 0.01


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True)
class Spread:
    """Samples in seconds: the median, the 10th and the 90th percentile, and how many there are."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some samples."""
        return cls(median(values), quantile(values, 0.1), quantile(values, 0.9), len(values))


@dataclass(frozen=True)
class Ratio:
    """How many times as long one thing takes as another: the median over pairs, and an interval for it."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def is_known(self) -> bool:
        """Whether there are enough pairs for the interval to mean something."""
        return self.pairs >= LEAST_PAIRS

    @property
    def is_slower(self) -> bool:
        """Whether the first one is slower by more than noise."""
        return self.is_known and self.low > 1 + NOISE


def _rank(pairs: int) -> int:
    """How many ratios to leave out on either side: the interval of the sign test, which assumes no distribution."""
    left, tail = 0, 0.0
    while left < pairs // 2:
        tail += comb(pairs, left) / 2**pairs
        if 2 * tail > 1 - CERTAINTY:
            break
        left += 1
    return max(0, left - 1)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio of the first to the second over pairs of times."""
    ratios = sorted(slow / fast for slow, fast in pairs)
    rank = _rank(len(ratios))
    return Ratio(median(ratios), ratios[rank], ratios[-1 - rank], len(ratios))
