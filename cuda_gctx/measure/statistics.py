"""Statistics of samples: quantiles, ratios with a confidence interval, and what openings differ by.

A ratio is one of medians, totals or pooled quantiles, with a confidence interval for that quantity. It compares samples
of the same rounds, so that a change of clocks affects both sides alike. The interval covers the noise of samples of the
same open streams and contexts. Luck estimates separately how much a plan differs when it is opened again, and widens
the interval and the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from math import ceil, comb, exp, log, log1p, log2, pi, sqrt, tan
from statistics import NormalDist

__all__ = [
    "LEAST_PAIRS",
    "MANY_PAIRS",
    "NOISE",
    "Estimate",
    "Luck",
    "calls_for",
    "certainty_of",
    "certainty_of_each",
    "median",
    "quantile",
    "ratio_of",
    "ratio_of_quantiles",
    "ratio_of_totals",
    "student",
]

# With fewer pairs than LEAST_PAIRS no interval of 97.5% exists.
CERTAINTY, LEAST_PAIRS = 0.975, 7
# From MANY_PAIRS on, samples are looked at again each time that there are twice as many. The chances of error of all
# looks add up to this one.
CHANCE_OF_LOOKS, MANY_PAIRS = 0.01, 15
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
    ordered = sorted(values)
    return float(ordered[_nearest_rank(len(ordered), share)])


def _nearest_rank(samples: int, share: float) -> int:
    return max(0, ceil(share * samples - 1e-9) - 1)


@lru_cache(maxsize=4096)
def certainty_of(pairs: int) -> float:
    """The certainty of an interval over so many pairs. It grows with the number of looks before."""
    if pairs < MANY_PAIRS:
        return CERTAINTY
    looks = ceil(log2(pairs / MANY_PAIRS) - 1e-9)
    return float(1 - CHANCE_OF_LOOKS / 2 ** (looks + 1))


def certainty_of_each(pairs: int) -> float:
    """The certainty of each of the two intervals from whose ends a ratio over so many pairs has its interval."""
    return 1 - (1 - certainty_of(pairs)) / 2


@dataclass(frozen=True)
class Estimate:
    """A value, such as a quantile or how many times as long one thing takes as another, and a confidence interval,
    which contains it.

    samples: their number, or that of pairs. is_known: whether there are enough of them for a valid interval. Otherwise
    that of a quantile ends at the largest sample.
    """

    value: float
    low: float
    high: float
    samples: int
    is_known: bool

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:  # they would be of two quantities
            raise ValueError(f"the interval from {self.low:g} to {self.high:g} does not contain {self.value:g}")

    @classmethod
    def of(cls, blocks: Sequence[Sequence[float]], share: float, certainty: float) -> Estimate:
        """The quantile of the samples of blocks, such as the calls of each round.

        blocks: the samples, by block. share: which quantile. certainty: that of the interval.

        Blocks may differ by more than chance: clocks drift, and calls of a round are alike. Then the calls count as
        fewer independent samples, and the interval is wider.
        """
        ordered = sorted(chain.from_iterable(blocks))  # fast, if the samples of each block are in order
        value = float(ordered[_nearest_rank(len(ordered), share)])
        exceeding = [sum(sample > value for sample in block) for block in blocks]
        mean = sum(exceeding) / len(ordered)
        effect = 1.0
        if len(blocks) > 1 and 0 < mean < 1:
            apart = sum((n - mean * len(block)) ** 2 for n, block in zip(exceeding, blocks, strict=True))
            by_chance = mean * (1 - mean) * len(ordered) * (len(blocks) - 1) / len(blocks)
            effect = max(1.0, apart / by_chance)
        independent = max(1, int(len(ordered) / effect))
        least, most = _exceeding(independent, share, certainty)
        of_all = len(ordered) / independent
        low = float(ordered[max(0, len(ordered) - 1 - ceil(most * of_all))])
        high = float(ordered[len(ordered) - max(1, int(least * of_all))])
        return cls(value, min(low, value), max(high, value), len(ordered), least > 0)

    # ---- of a ratio

    @property
    def is_slower(self) -> bool:
        """Whether the first one is slower by more than noise."""
        return self.is_known and self.low > 1 + NOISE

    @property
    def inverse(self) -> Estimate:
        """How many times as long the other one takes."""
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def covering(self, others: Sequence[float]) -> Estimate:
        """The ratio with an interval that contains other ratios, such as those of each opening."""
        return replace(self, low=min(self.low, *others), high=max(self.high, *others)) if others else self

    def widened(self, by: float) -> Estimate:
        """The ratio with an interval that also covers a relative difference between openings."""
        return replace(self, low=self.low / (1 + by), high=self.high * (1 + by))


@lru_cache(maxsize=4096)
def _rank(pairs: int) -> int:
    """The number of ratios to drop at each end: the interval of the sign test, which assumes no distribution."""
    dropped, tail = 0, 0.0
    while dropped < pairs // 2:
        tail += comb(pairs, dropped) / 2**pairs
        if 2 * tail > 1 - certainty_of(pairs):
            break
        dropped += 1
    return max(0, dropped - 1)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """The median ratio of the first to the second over pairs of times.

    With fewer than LEAST_PAIRS pairs the interval is that of all ratios.
    """
    ordered = sorted(one / other for one, other in pairs)
    rank = _rank(len(ordered))
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank], len(ordered), len(ordered) >= LEAST_PAIRS)


# Totals are compared over so many blocks of successive rounds at the most: what is alike within a block is no evidence.
MOST_BLOCKS = 20


def ratio_of_totals(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """The ratio of the sum of the first to the sum of the second.

    The interval is a jackknife over blocks of successive pairs: it leaves out one block after the other.
    """
    count = min(len(pairs), MOST_BLOCKS)
    borders = [len(pairs) * number // count for number in range(count + 1)]
    blocks = [
        (sum(one for one, _ in pairs[begin:end]), sum(other for _, other in pairs[begin:end]))
        for begin, end in pairwise(borders)
    ]
    first, second = sum(one for one, _ in blocks), sum(other for _, other in blocks)
    value = first / second
    if len(blocks) < 2:
        return Estimate(value, value, value, len(pairs), False)
    without = [log((first - one) / (second - other)) for one, other in blocks]
    centre = sum(without) / len(without)
    deviation = sqrt((len(blocks) - 1) / len(blocks) * sum((one - centre) ** 2 for one in without))
    within = exp(student((1 - certainty_of(len(pairs))) / 2, len(blocks) - 1) * deviation)
    return Estimate(value, value / within, value * within, len(pairs), True)


@lru_cache(maxsize=4096)
def _exceeding(samples: int, share: float, certainty: float) -> tuple[int, int]:
    """Between which numbers of samples exceed their true quantile, with a certainty."""
    chance, beyond = (1 - certainty) / 2, 1 - share
    deviation = sqrt(samples * beyond * share)
    if deviation > 20:  # the binomial distribution is a normal one
        z = NormalDist().inv_cdf(1 - chance)
        return max(0, int(samples * beyond - z * deviation)), min(samples, ceil(samples * beyond + z * deviation))
    term, total, least = samples * log1p(-beyond), 0.0, 0
    for most in range(samples + 1):
        total += exp(term)
        least = most + 1 if total <= chance else least
        if total >= 1 - chance:
            return least, most
        term += log((samples - most) / (most + 1) * beyond / share) if most < samples else 0.0
    return least, samples


def calls_for(share: float, certainty: float) -> int:
    """How many samples the interval of a quantile needs."""
    return ceil(log((1 - certainty) / 2) / log(share))


def ratio_of_quantiles(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], share: float) -> Estimate:
    """The ratio of a quantile of all samples of the first to that of the second. Each side has one block per round."""
    pairs = min(len(first), len(second))
    one, other = (Estimate.of(blocks, share, certainty_of_each(pairs)) for blocks in (first, second))
    known = one.is_known and other.is_known
    return Estimate(one.value / other.value, one.low / other.high, one.high / other.low, pairs, known)


# The factor of the median's variance over that of the mean, for normal noise; and of a deviation over the median of the
# absolute deviations.
OF_MEDIANS, OF_ABSOLUTE = 1.571, 1.4826
# Of all rivals of a plan, none may win by luck but for this probability.
CHANCE = 0.01
# Two openings of a plan differ by at most a factor of two: cards have shown 7%. Two plans that were opened twice each
# would not exclude a factor of thirty.
MOST_LUCK = 1.0
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
    """How much things differ from one opening (streams, contexts) to the next, beyond the noise of their samples.

    own: the variance of the openings of each thing, relative. typical: that of half of the things. freedom: from how
    many differences these are known. openings: how often each was opened, at the least.
    """

    own: tuple[float, ...] = ()
    typical: float = 0.0
    freedom: int = 0
    openings: int = 1

    def between(self, number: int | None = None, other: int | None = None) -> float:
        """How much two equal things may differ, as a share: typical ones, or those with these numbers.

        If the openings of a thing differ more than is typical, its own variance counts. If they differ less, the
        typical variance counts, because two openings can be alike by chance.
        """
        if not self.freedom:
            return 0.0
        variances = [max(self.typical, self.own[which] if which is not None else 0.0) for which in (number, other)]
        chance = CHANCE / max(1, len(self.own) - 1)
        return min(MOST_LUCK, exp(student(chance, self.freedom) * sqrt(sum(variances) / self.openings)) - 1)

    @classmethod
    def of(cls, things: Sequence[Sequence[Mapping[int, float]]], *, of_noise: bool = True) -> Luck:
        """The luck in the samples of each opening of each thing, by round, without what a round does to all of them.

        of_noise: subtract the variance that noise of the samples explains. Few samples cannot distinguish the two.
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
