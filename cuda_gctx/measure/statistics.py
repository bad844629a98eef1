"""Statistics of samples: spread, percentiles, ratios with a confidence interval, and what openings differ by.

A ratio is taken over pairs of samples of the same round, so that a change of clocks affects both sides alike. Its
interval covers the noise of samples of the same open streams and contexts. By how much a plan differs when it is opened
again is estimated separately (Luck), and widens the interval and the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, comb, exp, log, sqrt

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
    "summary",
]

# Each interval contains the true median with 97.5%: it may be computed twice, the second time with more samples, and
# both hold with 95%. With fewer pairs than LEAST_PAIRS no such interval exists.
CERTAINTY = 0.975
LEAST_PAIRS = 7
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
    """How many times as long one thing takes as another: the median over pairs, and a confidence interval.

    margin: a smaller difference counts as none.
    """

    median: float
    low: float
    high: float
    pairs: int
    margin: float = NOISE

    @property
    def is_known(self) -> bool:
        """Whether there are enough pairs for the interval to be valid."""
        return self.pairs >= LEAST_PAIRS

    @property
    def is_slower(self) -> bool:
        """Whether the first one is slower by more than the margin."""
        return self.is_known and self.low > 1 + self.margin

    @property
    def is_not_slower(self) -> bool:
        """Whether the first one is certainly not slower by more than the margin.

        NOISE of it is for what was seen, the rest for other openings.
        """
        return self.is_known and self.high <= 1 + NOISE

    def covering(self, others: Sequence[float]) -> Ratio:
        """The ratio with an interval that contains other ratios, such as those of each opening."""
        return replace(self, low=min(self.low, *others), high=max(self.high, *others)) if others else self

    def widened(self, by: float) -> Ratio:
        """The ratio with a margin, and an interval, that also cover a relative difference between openings."""
        return replace(self, low=self.low / (1 + by), high=self.high * (1 + by), margin=NOISE + by)


def _rank(pairs: int) -> int:
    """The number of ratios to drop at each end: the interval of the sign test, which assumes no distribution."""
    dropped, tail = 0, 0.0
    while dropped < pairs // 2:
        tail += comb(pairs, dropped) / 2**pairs
        if 2 * tail > 1 - CERTAINTY:
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
        """The estimate from samples. With fewer than LEAST_PAIRS of them the interval is that of all samples."""
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
# Quantiles of Student's distribution for 99.8%, by degrees of freedom: of several rivals none may win by luck.
STUDENT = (318.3, 22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93, 3.85, 3.79, 3.73, 3.69)
STUDENT_OF_MANY = 3.6
# Openings differ if their variance is so many times what the noise of their samples explains. Less is within the
# interval of the samples.
LEAST_OF_NOISE = 1.7


@dataclass(frozen=True)
class Luck:
    """By how much a thing differs each time it is opened (streams, contexts), beyond the noise of its samples.

    deviation: the standard deviation, relative. freedom: from how many differences that is known.
    """

    deviation: float = 0.0
    freedom: int = 0

    def between(self, openings: int) -> float:
        """By how much two things that are equal may differ, if each was opened so many times."""
        if not self.freedom or not self.deviation:
            return 0.0
        student = STUDENT[self.freedom - 1] if self.freedom <= len(STUDENT) else STUDENT_OF_MANY
        return exp(student * self.deviation * sqrt(2 / openings)) - 1

    @classmethod
    def of(cls, things: Sequence[Sequence[Mapping[int, float]]]) -> Luck:
        """The luck in samples by round, of each opening of each thing.

        What a round does to all things alike is left out.
        """
        import numpy as np

        rounds: dict[int, list[float]] = {}
        for openings in things:
            for samples in openings:
                for number, seconds in samples.items():
                    rounds.setdefault(number, []).append(log(seconds))
        # Of the rounds in which nearly all took part: in others, the middle is that of other things.
        most = max(map(len, rounds.values()), default=0)
        middle = {number: float(np.median(found)) for number, found in rounds.items() if len(found) == most}
        between, noise, freedom, counted = 0.0, 0.0, 0, 0
        for openings in things:
            levels = [[log(s) - middle[n] for n, s in samples.items() if n in middle] for samples in openings]
            levels = [values for values in levels if len(values) >= LEAST_OF_OPENING]
            if len(levels) < 2:
                continue
            centres = [median(values) for values in levels]
            residuals = [abs(x - centre) for values, centre in zip(levels, centres, strict=True) for x in values]
            # The centres have been fitted, which makes the residuals smaller.
            samples_of_all = len(residuals)
            scale = OF_ABSOLUTE * median(residuals) * sqrt(samples_of_all / (samples_of_all - len(levels)))
            share = len(levels) - 1
            between += share * float(np.var(centres, ddof=1))
            noise += share * OF_MEDIANS * scale**2 * sum(1 / len(values) for values in levels) / len(levels)
            freedom, counted = freedom + share, counted + 1
        if counted < 2:
            return cls()
        if between <= LEAST_OF_NOISE * noise:
            return cls(0.0, freedom)
        # The middle of a round is taken from the same things, which hides a share of what they have in common.
        hidden = (counted - 1) / counted
        return cls(sqrt(max(0.0, between - noise) / (freedom * hidden)), max(1, round(freedom * hidden)))
