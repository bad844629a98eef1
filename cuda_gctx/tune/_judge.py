"""The verdict on the blocks of the finals: which plan to use, by how much it is faster, and for how long that held.

A pure function of blocks. It sees no sample of the race, no device and no clock. Finalists meet in rounds. Each round
has one block of every finalist, so that a slow change of clocks affects all of them.

The level of a finalist is the logarithm of its time of a step, or of the quantile of its latencies. The interval of a
difference between two finalists is Student's, over rounds. A quantile is that of the calls of all rounds together, and
what a round contributes to it follows from leaving the round out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import exp, expm1, inf, log, sqrt
from typing import Generic, NamedTuple, TypeVar

from cuda_gctx.measure.statistics import nearest_rank, student

__all__ = ["EQUAL", "LEAST_ROUNDS", "Block", "Sample", "Verdict", "judge", "least_calls"]

K = TypeVar("K", bound=Hashable)

LEAST_ROUNDS = 4
# The chance of any wrong statement, divided by the finalists and by the block lengths that the budget allows.
CHANCE = 0.01
# The same for a choice that is not sure, whose interval is over halves of blocks.
CHANCE_OF_CHOICE = 0.05
# Of missing a change within blocks, and of seeing one that is none.
CHANCE_OF_CHANGE, CHANCE_OF_NO_CHANGE = 0.03, 0.01
# A change of a larger share of the gain leaves the choice open, even if it may be noise.
MOST_OF_GAIN = 1 / 3
# Plans that differ by less are equally good: the simpler one wins.
EQUAL = log(1.02)
# A change goes on for so long at the most, so that a small one in a short block may become a large one. Heat sinks have
# time constants of this length.
CHANGES_FOR_S = 20.0
# Changes between the halves of a block that count as none at any length, and that never count as none.
LEAST_CHANGE, MOST_CHANGE = 2e-4, 3e-3
# A gain of so much is sure in short blocks too: no known effect of clocks and power is as large.
LARGE = log(1.2)
# Calls of a round beyond the quantile.
BEYOND = 5


def least_calls(share: float) -> int:
    """The calls that a round needs for a quantile."""
    return round(BEYOND / (1 - share))


@dataclass(frozen=True)
class Sample:
    """The measurement of some steps, mixes or calls.

    steps: how many there were. seconds: the time of all of them. latencies: of the calls, if these are the matter.
    rates: calls per second of other parts meanwhile. launch_bound: whether the device waited for the host.
    """

    steps: float
    seconds: float
    latencies: tuple[float, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    launch_bound: bool = False

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


class Block(NamedTuple):
    """The two halves of a block, without a pause between them."""

    first: Sample
    second: Sample


class _Level(NamedTuple):
    """A logarithm: its value, and what each round contributes."""

    value: float
    rounds: tuple[float, ...]

    def minus(self, other: _Level) -> _Level:
        return _Level(
            self.value - other.value, tuple(one - two for one, two in zip(self.rounds, other.rounds, strict=True))
        )

    def within(self, chance: float) -> float:
        """Half the width of the interval that excludes the truth with a chance, on both sides together."""
        count = len(self.rounds)
        if count < 2:
            return inf
        mean = sum(self.rounds) / count
        error = sqrt(sum((one - mean) ** 2 for one in self.rounds) / (count - 1) / count)
        return student(chance / 2, count - 1) * error


def _level(rounds: Sequence[Sequence[Sample]], share: float | None) -> _Level:
    return _mean_level(rounds) if share is None else _quantile_level(rounds, share)


def _mean_level(rounds: Sequence[Sequence[Sample]]) -> _Level:
    """The level of a time of a step. rounds: the samples of each round."""
    logs = tuple(log(sum(one.seconds for one in samples) / sum(one.steps for one in samples)) for samples in rounds)
    return _Level(sum(logs) / len(logs), logs)


def _quantile_level(rounds: Sequence[Sequence[Sample]], share: float) -> _Level:
    """The level of a quantile of pooled calls, by the jackknife over rounds."""
    pooled = sorted(
        (latency, number)
        for number, samples in enumerate(rounds)
        for latency in chain.from_iterable(one.latencies for one in samples)
    )
    sizes = Counter(number for _, number in pooled)
    count, value = len(rounds), log(_quantile_without(pooled, None, len(pooled), share))
    if count < 2:
        return _Level(value, (value,))
    without = [log(_quantile_without(pooled, number, len(pooled) - sizes[number], share)) for number in range(count)]
    return _Level(value, tuple(count * value - (count - 1) * one for one in without))


def _quantile_without(pooled: Sequence[tuple[float, int]], left_out: int | None, count: int, share: float) -> float:
    """The quantile of sorted calls without those of a round, of which `count` are left."""
    beyond = count - nearest_rank(count, share)
    kept = (latency for latency, number in reversed(pooled) if number != left_out)
    return next(islice(kept, beyond - 1, None))


@dataclass(frozen=True)
class Verdict(Generic[K]):
    """The answer of the finals.

    choice: the finalist to use; None if the blocks do not decide. best: the best estimate.
    gain, low, high: the speedup of the choice, or of the best estimate, over the sequence, and its interval.
    loses: the largest share of time that the choice may lose to another finalist.
    sure: whether the choice is separated from the others and sustained, in a complete race.
    horizon_s: the length of the blocks. doubts: why the choice is None or not sure. refused: the finalists that leave
    other parts too little.
    """

    choice: K | None
    best: K
    gain: float
    low: float
    high: float
    loses: float
    sure: bool
    horizon_s: float
    doubts: tuple[str, ...] = ()
    refused: tuple[K, ...] = ()


def judge(
    blocks: Mapping[K, Sequence[Block]],
    simplest: Sequence[K],
    *,
    share: float | None = None,
    least_rates: Mapping[str, float] | None = None,
    lengths: int = 1,
    least_s: float = 0.0,
    complete: bool = True,
    doubts: Sequence[str] = (),
) -> Verdict[K]:
    """Judge the blocks of the last length.

    blocks: of each finalist, in the order of the rounds. simplest: the finalists, the simplest first; the first one is
    the sequence. share: the quantile of the latencies; None for times of steps. least_rates: what other parts have to
    achieve. lengths: the largest number of block lengths that the budget allows. least_s: shorter blocks are sure only
    of large gains. complete: whether every contestant has been measured.
    doubts: further reasons why the verdict is not sure.
    """
    base = simplest[0]
    rounds = len(blocks[base])
    divided = max(1, len(simplest) - 1) * lengths

    def level(key: K, halves: Callable[[Block], Sequence[Sample]]) -> _Level:
        return _level([halves(block) for block in blocks[key]], share)

    whole = {key: level(key, tuple) for key in simplest}
    first = {key: level(key, lambda block: (block.first,)) for key in simplest}
    second = {key: level(key, lambda block: (block.second,)) for key in simplest}
    halves = {key: _level([[half] for block in blocks[key] for half in block], share) for key in simplest}
    horizon_s = min(sum(half.seconds for half in block) for key in simplest for block in blocks[key])

    refused, kept = _refused(blocks, simplest, least_rates or {})
    doubts = [*doubts, *kept]
    rivals = [key for key in simplest if key not in refused]
    best = min(rivals or simplest, key=lambda key: whole[key].value)
    if not rivals:
        doubts.append("no finalist leaves the other parts the rate that they have to keep")

    def lead(key: K, other: K, finely: bool = False) -> tuple[float, float]:
        """By how much the other one is slower, and half the width of the interval."""
        apart = whole[other].minus(whole[key])
        if not finely:
            return apart.value, apart.within(CHANCE / divided)
        # Halves of a block may be alike, so that blocks have to support what halves say.
        by_halves = halves[other].minus(halves[key]).within(CHANCE_OF_CHOICE / divided)
        return apart.value, max(by_halves, apart.within(CHANCE_OF_CHOICE))

    def loss(key: K, finely: bool = False) -> float:
        """The most by which a rival may be faster."""
        leads = (lead(key, one, finely) for one in rivals if one != key)
        return max((within - value for value, within in leads), default=0.0)

    candidate = next((key for key in rivals if loss(key) <= EQUAL), None)
    separated = candidate is not None
    if candidate is None:
        candidate = next((key for key in rivals if loss(key, finely=True) <= EQUAL), None)
    ahead, within = lead(best, base, finely=True)
    # A gain is worth a choice that loses a part of it to a plan that is hardly better; a large one, whatever it loses.
    if candidate is None and rivals and best != base and ahead > within:
        gained = ahead - within
        candidate = best if gained >= LARGE or loss(best, finely=True) <= gained / 2 else None
    if not separated:
        doubts.append("the blocks do not tell the finalists apart")

    judged = best if candidate is None else candidate
    fixed, firm, moving = _sustained(judged, base, rivals, first, second, lead, horizon_s)
    if moving is not None:
        doubts.append(moving)
    elif not firm:
        doubts.append("the noise hides whether the gain lasts")
    choice = candidate if fixed else None
    ahead, within = lead(judged, base) if judged != base else (0.0, 0.0)
    large = ahead - within >= LARGE
    short = horizon_s < least_s and not large
    if short:
        doubts.append(f"the blocks have {horizon_s:.2g} s, and need {least_s:.2g} s")
    if rounds < LEAST_ROUNDS:
        doubts.append(f"there was time for {rounds} rounds, and {LEAST_ROUNDS} are needed")
    if not complete:
        doubts.append("some plans were not tried")
    return Verdict(
        choice=choice,
        best=best,
        gain=exp(ahead),
        low=exp(ahead - within),
        high=exp(ahead + within) if within < 700 else inf,
        loses=expm1(min(loss(judged), 700)),
        sure=choice is not None and not doubts,
        horizon_s=horizon_s,
        doubts=tuple(dict.fromkeys(doubts)),
        refused=tuple(refused),
    )


def _refused(
    blocks: Mapping[K, Sequence[Block]], keys: Sequence[K], least_rates: Mapping[str, float]
) -> tuple[set[K], list[str]]:
    """The finalists that leave other parts too little, and a doubt if that is not certain."""
    refused: set[K] = set()
    doubts: list[str] = []
    for key in keys:
        for part, least in least_rates.items():
            rates = tuple(log(max(sum(h.rates[part] for h in block) / 2 / least, 1e-9)) for block in blocks[key])
            kept = _Level(sum(rates) / len(rates), rates)
            if kept.value < 0:
                refused.add(key)
            if abs(kept.value) < kept.within(CHANCE_OF_CHANGE) and abs(kept.value) > MOST_CHANGE:
                doubts.append(f"whether {part} keeps its rate is not certain")
    return refused, list(dict.fromkeys(doubts))


def _sustained(
    judged: K,
    base: K,
    rivals: Sequence[K],
    first: Mapping[K, _Level],
    second: Mapping[K, _Level],
    lead: Callable[[K, K], tuple[float, float]],
    horizon_s: float,
) -> tuple[bool, bool, str | None]:
    """Whether no change within the blocks can overturn the lead, whether none is larger than it may be, and the change
    that goes on, in words.
    """
    fixed, firm, moving = True, True, None
    goes_on = horizon_s / 2 / CHANGES_FOR_S
    allowed = max(LEAST_CHANGE, min(MOST_CHANGE, EQUAL * goes_on))
    gain, gain_within = lead(judged, base)
    gained = gain - gain_within if judged != base else 0.0
    for other in dict.fromkeys((base, *rivals)):
        if other == judged:
            continue
        change = second[other].minus(second[judged]).minus(first[other].minus(first[judged]))
        within = change.within(CHANCE_OF_CHANGE)
        value, uncertain = lead(judged, other)
        # As a loss to a rival, a change is small compared with the gain.
        robust = max(0.0, value - uncertain, gained / 2) * goes_on
        # A rival that falls behind further is no danger. The gain over the sequence is reported, so both ways count.
        size = abs(change.value) if other == base or judged == base else max(0.0, -change.value)
        firm = firm and size + within <= max(allowed, robust / 2)
        if size > (EQUAL if judged == base else max(allowed, MOST_OF_GAIN * value)) and base in (judged, other):
            fixed = False
        if size > change.within(CHANCE_OF_NO_CHANGE) and size > allowed:
            fixed = fixed and size + within <= robust
            if moving is None:
                sign = 1 if judged != base else -1
                moving = f"still changing: {100 * expm1(sign * change.value):+.2g}% per {horizon_s / 2:.2g} s"
    return fixed, firm and moving is None, moving
