"""The decision: which of the measured plans is chosen, how certain that is, and what the choice may lose.

Everything here is a function of measurements, and needs no device. Plans are compared in the rounds in which both were
measured, and with the sequence, where there are any, in longer blocks in which the two alternate: a plan that heats the
chip slows the others in rounds, and itself in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from typing import Generic

from cuda_gctx.measure.statistics import (
    LEAST_OF_OPENING,
    LEAST_PAIRS,
    MANY_PAIRS,
    NOISE,
    Estimate,
    Luck,
    calls_for,
    certainty_of,
    certainty_of_each,
    median,
    quantile,
    ratio_of,
    ratio_of_quantiles,
    ratio_of_totals,
)
from cuda_gctx.tune._measurement import Measurement, R, Record, Sample, rate_of
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput

__all__ = ["HOPELESS", "Choice", "Ranking", "settled", "value_of"]

# Blocks without which nothing is known about a plan that runs for longer.
LEAST_BLOCKS = 2
# A plan that is so much slower than the best of each of its rounds is left out of later ones.
HOPELESS = 1.15
# A batch that takes so many times the median of its plan contains a stall.
STALL = 1.5


def settled(block: Sequence[Sample]) -> list[Sample]:
    """The batches of a block that count."""
    return [sample for sample in block if not sample.settles]


def joined(samples: Sequence[Sample]) -> Sample:
    """Samples as one: the mean time of a step, and all calls."""
    steps = sum(sample.steps for sample in samples)
    seconds = sum(sample.seconds * sample.steps for sample in samples) / steps
    return Sample(seconds, steps=steps, latencies=tuple(latency for one in samples for latency in one.latencies))


def value_of(objective: Objective, samples: Sequence[Sample]) -> float:
    """What an objective minimizes, of samples together: the median step, the mean time of a mix, the quantile of all
    calls.
    """
    if samples and all(sample.latencies for sample in samples) and isinstance(objective, TailLatency):
        return quantile(joined(samples).latencies, objective.quantile)
    if isinstance(objective, Throughput):
        return joined(samples).seconds
    return median([sample.seconds for sample in samples])


def compared(objective: Objective, pairs: Sequence[tuple[Sample, Sample]]) -> Estimate:
    """How many times as long the first of each pair takes as the second, by the quantiles of all calls, by the total
    times for equal work, or by the median ratio; a pair has the samples of a round.
    """
    if isinstance(objective, TailLatency) and all(sample.latencies for pair in pairs for sample in pair):
        theirs, ours = ([pair[side].latencies for pair in pairs] for side in (0, 1))
        return ratio_of_quantiles(theirs, ours, objective.quantile)
    if isinstance(objective, Throughput):  # of equal work
        work = [min(one.steps, other.steps) for one, other in pairs]
        return ratio_of_totals([(a.seconds * n, b.seconds * n) for (a, b), n in zip(pairs, work, strict=True)])
    return ratio_of(_seconds(pairs))


def _seconds(pairs: Sequence[tuple[Sample, Sample]]) -> list[tuple[float, float]]:
    return [(one.seconds, other.seconds) for one, other in pairs]


def in_common(first: Mapping[int, Sample], second: Mapping[int, Sample]) -> list[tuple[Sample, Sample]]:
    """The samples of the rounds in which both were measured."""
    return [(sample, second[number]) for number, sample in first.items() if number in second]


@dataclass(frozen=True)
class Choice(Generic[R]):
    """The simplest plan that no other beats by more than noise, and what is known about it.

    decided: whether it is certain that the choice is not slower than another plan by more than 1%. held: whether it
    was also measured in blocks next to the sequence, or is the sequence. regret: by how much it may be slower than the
    best plan that was compared, at the most, as a share; None if that is unknown. why: what keeps the choice from being
    decided, except other plans.
    """

    record: R
    decided: bool
    held: bool
    regret: float | None
    why: tuple[str, ...]

    @property
    def sure(self) -> bool:
        """Whether the choice is certainly the best one, also for longer."""
        return self.decided and self.held


class Ranking(Generic[R]):
    """Compares the plans of a measurement, as far as they have been measured when it is made.

    found: the measurement, which contains the sequence.
    measured: the samples of a plan; only those of the final rounds if there are enough.
    relative: the value of a plan as a share of the sequence's in the same rounds: clocks fall while the chip gets hot.
    ratio: how many times as long one plan takes as another; the interval also covers what openings differ by.
    in_rounds: the same in the rounds in which both were measured, in batches between those of other plans.
    """

    def __init__(self, found: Measurement[R]) -> None:
        self.found, self.objective, self.final = found, found.objective, found.final
        self.records, self.sequence = found.known(), found.sequence()
        self._state = found.state
        self._is_tail = isinstance(found.objective, TailLatency)
        self.measured = cache(lambda record: record.measured(self.final))
        self.relative = cache(lambda record: self._plain(record, self.sequence).value)
        self.ratio = cache(self._ratio)
        self.in_rounds = cache(self._in_rounds)

    @property
    def is_current(self) -> bool:
        """Whether nothing was measured since."""
        return self._state == self.found.state

    # ---- the rate of the others

    def others_share(self, record: R) -> float:
        """The rate of the parts that are not critical, as a share of their rate alone; the smallest of them."""
        rates = {name: rate_of(name, record.samples.values()) for name in self.found.alone}
        return min((rate * self.value(self.found.alone[name]) for name, rate in rates.items() if rate), default=0.0)

    def accepts(self, record: R, *, leniently: bool = False) -> bool:
        """Whether a plan leaves the others what the objective demands. The sequence always does.

        leniently: or nearly as much, while there are few samples.
        """
        if not isinstance(self.objective, TailLatency) or record.is_sequence:
            return True
        return self.others_share(record) >= self.objective.others / (HOPELESS if leniently else 1)

    def acceptable(self, *, leniently: bool = False) -> list[R]:
        """The plans that can be chosen."""
        return [record for record in self.records if self.accepts(record, leniently=leniently)]

    def best_of_kinds(self) -> list[R]:
        """The fastest plan of each kind, of those that can be chosen."""
        found: dict[str | None, R] = {}
        for record in sorted(self.acceptable(), key=self.relative):
            found.setdefault(record.kind, record)
        return list(found.values())

    # ---- comparisons

    def value(self, record: Record) -> float:
        """What the objective minimizes."""
        return value_of(self.objective, list(self.measured(record).values()))

    def _ratio(self, slow: R, fast: R) -> Estimate:
        if slow is fast:
            return Estimate(1.0, 1.0, 1.0, len(self.measured(slow)), True)
        if slow is self.sequence and (sustained := self.sustained(fast)) is not None:
            return sustained.widened(self.between(slow, fast))
        if fast is self.sequence and self.sustained(slow) is not None:
            return self.ratio(fast, slow).inverse
        return self.in_rounds(slow, fast)

    def _in_rounds(self, slow: R, fast: R) -> Estimate:
        return self._plain(slow, fast).covering(self._by_openings(slow, fast)).widened(self.between(slow, fast))

    def sustained(self, record: R) -> Estimate | None:
        """How many times as long the sequence takes, in the blocks in which it alternated with the plan; None if there
        are too few of them.
        """
        if len(record.sustained) < LEAST_BLOCKS:
            return None
        blocks = [(self._block(theirs), self._block(ours)) for ours, theirs in record.sustained]
        if self._is_tail:
            found = compared(self.objective, blocks)
            return found if found.is_known else None
        return ratio_of_totals(_seconds(blocks))

    def _block(self, block: Sequence[Sample]) -> Sample:
        """The settled part of a block as one sample: of a makespan its median batch."""
        whole = joined(counted := settled(block))
        return replace(whole, seconds=value_of(self.objective, counted)) if self.objective == "makespan" else whole

    def _plain(self, slow: R, fast: R) -> Estimate:
        if pairs := self._pairs(slow, fast):
            return compared(self.objective, pairs)
        value = self.value(slow) / self.value(fast)
        return Estimate(value, value, value, 0, False)

    def _pairs(self, one: R, other: R) -> list[tuple[Sample, Sample]]:
        """The samples of the final rounds in which both were measured, or of all rounds if there is none."""
        return in_common(self.measured(one), self.measured(other)) or in_common(one.samples, other.samples)

    def _by_openings(self, slow: R, fast: R) -> list[float]:
        """The ratio for each opening of the two."""
        openings = zip(slow.by_opening(self.final), fast.by_opening(self.final), strict=False)
        pairs = [both for one, other in openings if len(both := in_common(one, other)) >= LEAST_OF_OPENING]
        ratios = [compared(self.objective, both) for both in pairs]
        return [ratio.value for ratio in ratios if ratio.is_known or not self._is_tail]

    # ---- openings

    @cached_property
    def compared(self) -> list[R]:
        """The plans among which the choice is made: those of the final rounds, if there are enough of these.

        The time may end within a round. A plan that lacks it is still compared: what is not known of it keeps the
        choice from being decided, and what is known counts.
        """
        final, sequence = self.final, self.sequence
        every = final is None or self.measured(sequence) is sequence.samples
        return [record for record in self.acceptable() if every or max(record.samples) >= (final or 0)]

    @cached_property
    def _opened(self) -> list[R]:
        """The plans of which the luck is known."""
        return [record for record in self.compared if record.openings > 1]

    @cached_property
    def luck(self) -> Luck:
        """By how much openings of a plan differ, as seen in the final rounds."""
        if self.final is None:
            return Luck()
        rounds = max(self.sequence.samples) + 1 - self.final
        openings = [record.by_opening(self.final) for record in self._opened]
        seconds = [[{n: sample.seconds for n, sample in one.items()} for one in each] for each in openings]
        # At the first look, luck and noise cannot be distinguished.
        return Luck.of(seconds, of_noise=rounds > MANY_PAIRS)

    def between(self, one: R, other: R) -> float:
        """By how much two plans may differ, although they are equal, because of their openings."""
        numbers = [self._opened.index(r) if self.luck.own and r in self._opened else None for r in (one, other)]
        return self.luck.between(*numbers)

    @property
    def openings(self) -> int:
        """How often each plan of the final rounds was opened."""
        return min((record.openings for record in self._opened), default=1)

    @property
    def margin(self) -> float:
        """The relative difference that counts as none, for typical plans."""
        return NOISE + self.luck.between()

    # ---- the choice

    def is_refuted(self, record: R) -> bool:
        """Whether a plan gains in rounds, and nothing in blocks."""
        blocks = self.sustained(record)
        return blocks is not None and self._gains_in_rounds(record) and blocks.value <= 1 + NOISE

    def gains(self, record: R) -> bool:
        """Whether a plan is faster than the sequence by more than noise, in blocks or, if not refuted, in rounds."""
        if record is self.sequence or self.is_refuted(record):
            return False
        return self.is_slower(self.sequence, record) or self._gains_in_rounds(record)

    def _gains_in_rounds(self, record: R) -> bool:
        return self._is_slower(self.in_rounds(self.sequence, record), self.sequence, record)

    def gains_in_most_rounds(self, record: R) -> bool:
        """Whether a plan has a lower latency than the sequence in most rounds, and over all of them as far as is seen.

        When the host stalls for 10 ms, all calls of a round are late, and a few such rounds leave the quantile of all
        calls unknown. They say nothing about the plan. Rounds in which the quantile of a plan cannot be seen do not
        count.
        """
        objective = self.objective
        if not isinstance(objective, TailLatency) or record is self.sequence or self.is_refuted(record):
            return False
        pairs = self._pairs(self.sequence, record)
        needed = calls_for(objective.quantile, certainty_of(LEAST_PAIRS))
        counted = _seconds([pair for pair in pairs if min(len(sample.latencies) for sample in pair) >= needed])
        if not counted or self.relative(record) * (1 + NOISE) > 1:
            return False
        return ratio_of(counted).widened(self.between(self.sequence, record)).is_slower

    def choose(self, *, trying: bool = False) -> Choice[R]:
        """The simplest plan that no other beats by more than noise, and whether it is certain that none does.

        If stalls leave it unknown whether any plan beats the sequence, it is the fastest that does in most rounds.

        trying: whether the choice can still be measured in blocks. If not, and another plan gained nothing there, no
        plan is chosen that was not measured in them.
        """
        compared = self.compared
        known = [record for record in compared if self.gains(record)]
        better = known or [record for record in compared if self.gains_in_most_rounds(record)]
        if not trying and any(map(self.is_refuted, compared)):
            better = [record for record in better if self.sustained(record) is not None]
        share = self.others_share if self._is_tail else lambda record: 0.0
        better.sort(key=lambda r: (r.complexity[0], -share(r), r.complexity, self.relative(r)))
        unbeaten = (r for r in better if not any(self.is_slower(r, other) for other in better if other is not r))
        simplest = next(unbeaten, None) if known else None
        chosen = simplest or min(better, key=self.relative, default=self.sequence)
        why = tuple(self._doubts(chosen))
        decided = len(compared) > 1 and not why and not self.undecided(chosen)
        held = chosen.is_sequence or self.sustained(chosen) is not None
        return Choice(chosen, decided, held, self._regret(chosen), why)

    def undecided(self, chosen: R) -> list[R]:
        """The plans of which it is not certain that the chosen one is not slower by more than noise."""
        return [other for other in self._rivals(chosen) if self.most(chosen, other) > 1 + NOISE]

    # ---- ends of ratios

    def is_slower(self, slow: R, fast: R) -> bool:
        """Whether a plan is certainly slower than another one by more than noise."""
        return self._is_slower(self.ratio(slow, fast), slow, fast)

    def _is_slower(self, ratio: Estimate, slow: R, fast: R) -> bool:
        return ratio.low > 1 + NOISE and (ratio.is_known or self._is_bounded(fast, slow))

    def most(self, slow: R, fast: R) -> float:
        """How many times as long one plan takes as another at the most; infinite if that is unknown."""
        ratio = self.ratio(slow, fast)
        return ratio.high if ratio.is_known or self._is_bounded(slow, fast) else inf

    def _is_bounded(self, one: R, other: R) -> bool:
        """Whether it is known how much longer the calls of one plan take than those of the other at the most.

        The largest samples bound no quantile of few calls, the smallest do: of the other plan, fewer calls are enough.
        In few rounds, it does not show whether the calls of a round are alike.
        """
        pairs = self._pairs(one, other)
        ours, theirs = ([pair[side].latencies for pair in pairs] for side in (0, 1))
        if not isinstance(self.objective, TailLatency) or len(pairs) < LEAST_OF_OPENING or not all(ours + theirs):
            return False
        certainty = certainty_of_each(len(pairs))
        own, its = (Estimate.of(side, self.objective.quantile, certainty) for side in (ours, theirs))
        return own.is_known and its.low > min(map(min, theirs))

    def _rivals(self, chosen: R) -> list[R]:
        """The plans that may be better than the choice: a plan that gains nothing in blocks is none of another one."""
        return [r for r in self.compared if r is not chosen and (chosen.is_sequence or not self.is_refuted(r))]

    def _regret(self, chosen: R) -> float | None:
        most = max((self.most(chosen, other) for other in self._rivals(chosen)), default=inf)
        return max(0.0, most - 1) if most < inf else None

    def _doubts(self, chosen: R) -> Iterator[str]:
        """What keeps the choice from being decided, except other plans."""
        if isinstance(self.objective, TailLatency):
            rounds = self.measured(chosen)
            calls = sum(len(sample.latencies) for sample in rounds.values())
            needed = calls_for(self.objective.quantile, certainty_of_each(len(rounds)))
            if 0 < calls < needed:
                yield (
                    f"a p{self.objective.quantile * 100:g} needs {needed} calls of each plan, and there was time for "
                    f"{calls}: increase budget_s or choose a lower quantile"
                )
            if chosen is not self.sequence and not self.gains(chosen):
                yield (
                    "in some rounds all calls were late, which leaves the latency over all rounds uncertain; in most "
                    "rounds that of the choice is lower than in sequence"
                )
            elif not self.ratio(self.sequence, chosen).is_known:
                yield "in sequence there are too few calls: the speedup may be larger than its interval"
            return
        found = [one for one in self._by_the_other(chosen) if one[0] > 1 + max(NOISE, self.between(chosen, one[2]))]
        if found:
            ratio, instead, other = max(found, key=lambda one: one[0])
            stalls = sum(map(self._stalls, (chosen, other)))
            why = f", because of {stalls} batches that take far longer than the others" if stalls else ""
            faster = f"by the {instead}, {other.plan} is {ratio:.2f}x faster than the choice"
            yield f"mean and median disagree: {faster}{why}"
        counted = [(settled(theirs), settled(ours)) for ours, theirs in chosen.sustained]
        if counted := [blocks for blocks in counted if min(map(len, blocks)) > 1]:
            first, last = (
                ratio_of_totals([(self._half(theirs, half), self._half(ours, half)) for theirs, ours in counted]).value
                for half in (0, 1)
            )
            if abs(first / last - 1) > NOISE:
                yield f"the gain changes within the blocks, from {first:.2f}x to {last:.2f}x: it needs longer ones"

    def _half(self, block: Sequence[Sample], half: int) -> float:
        """What the first or the last half of a block takes."""
        middle = len(block) // 2
        return self._block(block[middle:] if half else block[:middle]).seconds

    def _by_the_other(self, chosen: R) -> Iterator[tuple[float, str, R]]:
        """How many times as long the choice takes as other plans by what the objective does not compare: mean or
        median.
        """
        by, instead = (ratio_of_totals, "mean") if self.objective == "makespan" else (ratio_of, "median")
        for other in self.compared:
            rounds = _seconds(in_common(self.measured(chosen), self.measured(other)))
            if other is chosen or len(rounds) < LEAST_PAIRS or self.in_rounds(chosen, other).value > 1 + NOISE:
                continue
            yield by(rounds).value, instead, other
            if other is self.sequence and len(chosen.sustained) >= LEAST_BLOCKS:
                counted, whole = (
                    _seconds([(joined(of(mine)), joined(of(its))) for mine, its in chosen.sustained])
                    for of in (settled, list)
                )
                yield by(counted).value, instead, other
                # Rare stalls, of which the rounds have none, may lie in the parts of blocks that do not count.
                yield ratio_of_totals(whole).value, "mean of blocks", other

    def _stalls(self, record: R) -> int:
        """How many batches of a plan take far longer than the others."""
        samples = [*self.measured(record).values(), *(one for ours, _ in record.sustained for one in ours)]
        middle = median([sample.seconds for sample in samples])
        return sum(sample.seconds > STALL * middle for sample in samples)
