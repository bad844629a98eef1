"""Statistics of samples: spread, percentiles, ratios with a confidence interval, and what openings differ by.

A ratio is taken over pairs of samples of the same round, so that a change of clocks affects both sides alike. Its
interval covers the noise of samples of the same open streams and contexts. By how much a plan differs when it is opened
again is estimated separately (Luck), and widens the interval and the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, comb, exp, log, pi, sqrt, tan
from statistics import NormalDist

__all__ = [
    "CERTAINTY",
    "LEAST_PAIRS",
    "NOISE",
    "Estimate",
    "Latency",
    "Luck",
    "Ratio",
    "Spread",
    "median",
    "quantile",
    "ratio_of",
    "ratio_of_rounds",
    "student",
    "summary",
]

# Each interval contains the true median with 97.5%: it may be computed twice, the second time with more samples, and
# both hold with 95%. With fewer pairs than LEAST_PAIRS no such interval exists.
CERTAINTY = 0.975
LEAST_PAIRS = 7
# With more pairs an interval contains it with 99%: one of several rivals may win by luck.
CERTAINTY_OF_MANY, MANY_PAIRS = 0.99, 15
# With fewer samples, an opening has no level that could differ from another's.
LEAST_OF_OPENING = 3
# A difference below this counts as noise whatever the samples say: clocks and temperatures drift by as much.
NOISE = 0.01


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


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
        """The spread of samples.

        values: the samples, in any order and unit.
        """
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
        """The percentiles of latencies.

        values: the latencies of single calls in seconds, in any order.
        """
        p50, p90, p99 = (quantile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(p50, p90, p99, float(max(values)), len(values))


def summary(values: Sequence[float], unit: float = 1.0, digits: int | None = None) -> dict[str, float]:
    """Samples for a document: median, extremes and percentiles, divided by `unit`, rounded to `digits`."""
    statistics = {
        "median": median(values),
        "min": min(values),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
        "p99": quantile(values, 0.99),
        "max": max(values),
    }
    scaled = {name: float(value) / unit for name, value in statistics.items()}
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

    def covering(self, others: Sequence[float]) -> Ratio:
        """The ratio with an interval that contains other ratios, such as those of each opening."""
        return replace(self, low=min(self.low, *others), high=max(self.high, *others)) if others else self

    def widened(self, by: float) -> Ratio:
        """The ratio with an interval that also covers a relative difference between openings."""
        return replace(self, low=self.low / (1 + by), high=self.high * (1 + by))


def _rank(pairs: int) -> int:
    """The number of ratios to drop at each end: the interval of the sign test, which assumes no distribution."""
    dropped, tail = 0, 0.0
    certainty = CERTAINTY_OF_MANY if pairs >= MANY_PAIRS else CERTAINTY
    while dropped < pairs // 2:
        tail += comb(pairs, dropped) / 2**pairs
        if 2 * tail > 1 - certainty:
            break
        dropped += 1
    return max(0, dropped - 1)


@dataclass(frozen=True)
class Estimate:
    """A median of samples, with its confidence interval (97.5%, without assuming a distribution)."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The estimate from samples. With fewer than LEAST_PAIRS of them the interval is that of all samples.

        values: the samples, in any order and unit.
        """
        ordered = sorted(values)
        rank = _rank(len(ordered))
        return cls(median(ordered), float(ordered[rank]), float(ordered[-1 - rank]), len(ordered))


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio of the first to the second over pairs of times."""
    found = Estimate.of([one / other for one, other in pairs])
    return Ratio(found.median, found.low, found.high, found.samples)


def ratio_of_rounds(first: Mapping[int, float], second: Mapping[int, float]) -> Ratio | None:
    """The ratio over the rounds in which both were measured; None if there is no such round."""
    rounds = sorted(first.keys() & second.keys())
    return ratio_of([(first[number], second[number]) for number in rounds]) if rounds else None


# The factor of the median's variance over that of the mean, for normal noise; and of a deviation over the median of the
# absolute deviations.
OF_MEDIANS, OF_ABSOLUTE = 1.571, 1.4826
# Of all rivals of a plan, none may win by luck but for this probability.
CHANCE = 0.01
# Openings differ if their variance is so many times what the noise of their samples explains. Less is within the
# interval of the samples.
LEAST_OF_NOISE = 1.7


def student(chance: float, freedom: int) -> float:
    """The quantile of Student's distribution that is exceeded with a small chance."""
    share = 1 - 2 * chance
    if freedom == 1:
        return float(tan(pi / 2 * share))
    if freedom == 2:
        return float(share * sqrt(2 / (1 - share**2)))
    z = NormalDist().inv_cdf(1 - chance)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom ** (order + 1) for order, term in enumerate(terms)))


@dataclass(frozen=True)
class Luck:
    """By how much things differ each time they are opened (streams, contexts), beyond the noise of their samples.

    own: the variance of the openings of each thing, relative. typical: that of half of the things. freedom: from how
    many differences these are known. openings: how often each was opened, at the least.
    """

    own: tuple[float, ...] = ()
    typical: float = 0.0
    freedom: int = 0
    openings: int = 1

    def between(self, number: int | None = None, other: int | None = None) -> float:
        """By how much two equal things may differ, as a share: typical ones, or those with these numbers.

        A thing whose own openings differ more than is typical counts with its own variance. One whose openings differ
        less counts as typical, because two openings can be alike by chance.
        """
        if not self.freedom:
            return 0.0
        variances = [max(self.typical, self.own[which] if which is not None else 0.0) for which in (number, other)]
        chance = CHANCE / max(1, len(self.own) - 1)
        return exp(student(chance, self.freedom) * sqrt(sum(variances) / self.openings)) - 1

    @classmethod
    def of(cls, things: Sequence[Sequence[Mapping[int, float]]], *, of_noise: bool = True) -> Luck:
        """The luck in samples by round, of each opening of each thing. What a round does to all alike is left out.

        of_noise: leave out what noise of the samples explains. Few samples cannot distinguish the two.
        """
        rounds: dict[int, list[float]] = {}
        for openings in things:
            for samples in openings:
                for number, seconds in samples.items():
                    rounds.setdefault(number, []).append(log(seconds))
        # Of the rounds in which nearly all took part: in others, the middle is that of other things.
        most = max(map(len, rounds.values()), default=0)
        middle = {number: median(found) for number, found in rounds.items() if len(found) == most}
        variances, noises, freedom = [], [], 0
        for openings in things:
            levels = [[log(s) - middle[n] for n, s in samples.items() if n in middle] for samples in openings]
            if len(levels) < 2 or any(len(values) < LEAST_OF_OPENING for values in levels):
                return cls()
            centres = [median(values) for values in levels]
            residuals = [abs(x - centre) for values, centre in zip(levels, centres, strict=True) for x in values]
            # The centres have been fitted, which makes the residuals smaller.
            scale = OF_ABSOLUTE * median(residuals) * sqrt(len(residuals) / (len(residuals) - len(levels)))
            centre = sum(centres) / len(centres)
            variances.append(sum((one - centre) ** 2 for one in centres) / (len(centres) - 1))
            noises.append(OF_MEDIANS * scale**2 * sum(1 / len(values) for values in levels) / len(levels))
            freedom += len(levels) - 1
        counted = len(things)
        if counted < 2:
            return cls()
        # The middle of a round is taken from the same things, which hides a share of what they have in common.
        hidden = (counted - 1) / counted
        each = freedom / counted
        # The median of a variance with so many degrees of freedom is less than its mean.
        of_median = (1 - 2 / (9 * each)) ** 3
        usual, noise = median(variances) / of_median / hidden, median(noises)
        if of_noise:
            usual = usual - noise if usual > LEAST_OF_NOISE * noise else 0.0
            variances = [v - n if v > LEAST_OF_NOISE * n else 0.0 for v, n in zip(variances, noises, strict=True)]
        return cls(tuple(variances), usual, max(1, round(freedom * hidden)), min(map(len, things)))
