"""The race: every contestant once before any twice, then halves with twice the time; and the finals in blocks.

Neither knows a driver. Both take a function that runs a contestant, and a clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2
from typing import Generic, NamedTuple, TypeVar

from cuda_gctx.measure.statistics import median
from cuda_gctx.tune._judge import LEAST_ROUNDS, Block, Sample, Verdict

__all__ = ["Amount", "Excluded", "Raced", "finals", "race", "step_cost"]

K = TypeVar("K", bound=Hashable)

# A contestant that is so much slower than the best is dropped at once.
HOPELESS = 1.5
# A first step that takes so long, and so many times as long as the fastest one, is the counted sample.
LONG_STEP_S, FAR_BEHIND = 0.5, 3.0
# The finalists in addition to the sequence; the best of another kind takes part if it is so near.
LEAST_FINALISTS, MOST_FINALISTS, MOST_RACING = 2, 3, 4
NEAR, NEAR_OF_KIND = 1.05, 1.15
# The first counted sample of steps has so many pieces, of which the median counts: a stall in one of them is no loss.
PIECES = 3
# The share of a block that is not counted, because clocks and caches are those of the block before.
SETTLING = 0.2
# The first blocks have this share of the length that makes a small gain sure.
FIRST_LENGTH = 1 / 8
LARGE_GAIN = 1.2


class Amount(NamedTuple):
    """How much to run: at least so many seconds and calls, and at least one step."""

    seconds: float = 0.0
    calls: int = 0

    def times(self, factor: float) -> Amount:
        return Amount(self.seconds * factor, round(self.calls * factor))


Run = Callable[[K, Amount], Sample]


class Excluded(Exception):
    """A contestant cannot run; the others can."""


def step_cost(samples: Sequence[Sample]) -> float:
    """The time of a step in the pieces of a sample."""
    return median([one.step_s for one in samples])


@dataclass
class Raced(Generic[K]):
    """The result of a race.

    samples: the counted samples of each contestant, by stage. finalists: the best ones, the best first, without the
    sequence. untried: those without a counted sample. excluded: those that cannot run, and why.
    """

    samples: dict[K, list[list[Sample]]] = field(default_factory=dict)
    finalists: list[K] = field(default_factory=list)
    untried: list[K] = field(default_factory=list)
    excluded: dict[K, str] = field(default_factory=dict)


def race(
    contestants: Sequence[K],
    run: Run[K],
    clock: Callable[[], float],
    *,
    until: float,
    unit: Amount,
    warm_s: float,
    cost: Callable[[Sequence[Sample]], float] = step_cost,
    kind: Callable[[K], object] = lambda key: key,
    chance: random.Random,
    shown: Callable[[K], object] = lambda key: None,
    found: Raced[K] | None = None,
) -> Raced[K]:
    """Race contestants, of which the first one is the sequence.

    run: runs a contestant, and raises Excluded if it cannot. until: the deadline, by the clock. unit: the first counted
    sample. warm_s: how long a contestant runs before a sample, uncounted. cost: of the pieces of a sample, the smaller
    the better. kind: the best of each kind stays longer. shown: is called before a contestant runs. found: receives the
    results, for a caller that is interrupted.
    """
    found = Raced() if found is None else found
    base = contestants[0]
    step_s: dict[K, float] = {}

    def measured(key: K, stage: int) -> bool:
        """Take a counted sample; false if the contestant cannot run."""
        shown(key)
        try:
            if key not in step_s:
                first = run(key, Amount())
                step_s[key] = first.step_s
                # Loading explains no such difference: one long step is enough to drop the contestant.
                if first.step_s >= max(LONG_STEP_S, FAR_BEHIND * min(step_s.values())):
                    found.samples[key] = [[first]]
                    return True
            if warm_s > step_s[key]:
                step_s[key] = run(key, Amount(warm_s / (1 + bool(stage)))).step_s
            amount = unit.times(2**stage)
            if unit.seconds:
                amount = amount._replace(seconds=max(unit.seconds, step_s[key]) * 2**stage * 0.999)
            pieces = max(1, min(PIECES * 2**stage, int(amount.seconds / step_s[key] + 0.01)))
            samples = [run(key, amount.times(1 / pieces)) for _ in range(pieces)]
        except Excluded as error:
            found.excluded[key] = str(error)
            return False
        found.samples.setdefault(key, []).append(samples)
        return True

    def costs(keys: Sequence[K]) -> dict[K, float]:
        return {key: cost(found.samples[key][-1]) for key in keys}

    others = list(contestants[1:])
    chance.shuffle(others)
    order = [base, *others]
    for place, key in enumerate(order):
        if clock() >= until:
            found.untried = [one for one in contestants if one in order[place:]]
            break
        measured(key, 0)
    racing = [key for key in contestants[1:] if key in found.samples]
    racing = _halved(racing, costs(racing), kind)
    stage = 1
    while len(racing) > MOST_RACING:
        # Without time for this stage and the shortest finals, the finals go first.
        longest_s = max(step_s[key] for key in racing)
        least_s = LEAST_ROUNDS * (LEAST_FINALISTS + 1) * 2 * longest_s
        if clock() + len(racing) * 2**stage * max(unit.seconds, longest_s) + least_s > until:
            break
        order = list(racing)
        chance.shuffle(order)
        done = [key for key in order if measured(key, stage)]
        before, racing = racing, _halved([key for key in contestants if key in done], costs(done), kind)
        stage += 1
        if len(racing) == len(before):
            break
    found.finalists = _finalists(racing, costs(racing), kind)
    return found


def _leaders(ranked: Sequence[K], costs: Mapping[K, float], kind: Callable[[K], object]) -> list[K]:
    """The best of each kind, if it is near the best of all."""
    leaders: dict[object, K] = {}
    for key in ranked:
        leaders.setdefault(kind(key), key)
    return [key for key in leaders.values() if costs[key] <= NEAR_OF_KIND * costs[ranked[0]]]


def _halved(keys: Sequence[K], costs: Mapping[K, float], kind: Callable[[K], object]) -> list[K]:
    """The better half, the best of each kind that is near, and none that is hopeless; the best first."""
    ranked = sorted(keys, key=costs.__getitem__)
    if not ranked:
        return []
    most = max(MOST_RACING, ceil(len(ranked) / 2))
    kept = list(dict.fromkeys((*_leaders(ranked, costs, kind), *ranked)))[:most]
    hopeful = [key for key in ranked if key in kept and costs[key] <= HOPELESS * costs[ranked[0]]]
    return hopeful if len(hopeful) >= LEAST_FINALISTS else ranked[:LEAST_FINALISTS]


def _finalists(keys: Sequence[K], costs: Mapping[K, float], kind: Callable[[K], object]) -> list[K]:
    """The best, the best of other kinds that are near, and what is as good as the best."""
    ranked = sorted(keys, key=costs.__getitem__)
    if not ranked:
        return []
    chosen = _leaders(ranked, costs, kind)
    chosen += [key for key in ranked if costs[key] <= NEAR * costs[ranked[0]]]
    chosen += ranked[:LEAST_FINALISTS]
    return list(dict.fromkeys(chosen))[:MOST_FINALISTS]


def finals(
    finalists: Sequence[K],
    run: Run[K],
    clock: Callable[[], float],
    *,
    until: float,
    block_s: float,
    calls: int = 0,
    cost: Callable[[K], float],
    step_s: Callable[[K], float],
    verdict: Callable[[Mapping[K, Sequence[Block]], int], Verdict[K]],
    chance: random.Random,
    shown: Callable[[K, float], object] = lambda key, seconds: None,
) -> Verdict[K] | None:
    """Let the finalists meet in rounds of blocks until the verdict is sure, or the time is up.

    finalists: the first one is the sequence. block_s: the length that makes a small gain sure. If the race has seen a
    large one, the first blocks are shorter; blocks get longer as long as the verdict is not sure. calls: what a round
    needs for a quantile. cost, step_s: of a contestant, as the race has seen it. verdict: of the blocks, and of how
    many looks the budget allows.

    Returns the verdict on the last length; None if there was no time for two rounds.
    """
    # Where steps are long, fewer finalists meet.
    while len(finalists) > LEAST_FINALISTS + 1 and _shortest_s(finalists, step_s) > until - clock():
        slowest = max(finalists[1:], key=cost)
        finalists = [key for key in finalists if key != slowest]
    most_s = (until - clock()) / LEAST_ROUNDS / len(finalists)
    least_s = 2 * max(map(step_s, finalists))
    costs = [cost(key) for key in finalists]
    looks = 2 + max(0, floor(log2(max(1.0, most_s / block_s))))

    def block(key: K, seconds: float) -> Block:
        shown(key, seconds)
        # Not always the same, so that blocks do not keep step with what else has a period.
        settling_s = SETTLING * seconds * chance.uniform(0.5, 1.5)
        if step_s(key) <= settling_s:
            run(key, Amount(settling_s))
        half = Amount((1 - SETTLING) * seconds / 2, ceil(calls / 2))
        return Block(run(key, half), run(key, half))

    is_large = max(costs) >= LARGE_GAIN * min(costs)
    length = max(least_s, FIRST_LENGTH * block_s if is_large else min(block_s, 0.95 * most_s))
    looks += is_large
    last: Verdict[K] | None = None
    while True:
        blocks: dict[K, list[Block]] = {key: [] for key in finalists}
        longest_s, rounds, order = 0.0, 0, list(finalists)

        def can_double() -> bool:
            return clock() + LEAST_ROUNDS * longest_s * max(2.0, block_s / length) <= until  # noqa: B023

        # Further rounds where no longer blocks fit.
        while rounds < LEAST_ROUNDS or not can_double():
            began = clock()
            if began + longest_s > until:
                break
            # Each second round has the reverse order of the one before, so that a steady drift favours nobody.
            if rounds % 2:
                order.reverse()
            else:
                chance.shuffle(order)
            for key in order:
                blocks[key].append(block(key, length))
            rounds += 1
            longest_s = max(longest_s, clock() - began)
            if rounds == LEAST_ROUNDS:
                last = verdict(blocks, looks)
                if last.sure:
                    return last
        if rounds > LEAST_ROUNDS or (last is None and rounds > 1):
            last = verdict(blocks, looks)
        if last is None or last.sure or rounds < LEAST_ROUNDS or not can_double():
            return last
        length = max(2 * length, block_s)


def _shortest_s(finalists: Sequence[K], step_s: Callable[[K], float]) -> float:
    """How long the shortest finals take: a step in each half of each block."""
    return LEAST_ROUNDS * 2 * sum(map(step_s, finalists))
