"""Latencies at a rate: computed from the times of single calls and of bursts, and checked against arrivals.

Calls that arrive at random times find the part idle or queue behind its earlier calls. The two take different times. A
call that finds the part idle waits for the blocks of the bulk work that occupy its SMs, and how long depends on the gap
since the call before. A queued call starts behind its predecessor, and need not wait for the blocks again. From both
times the latencies at any rate follow, so that a low rate takes no time to measure.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from cuda_gctx.measure.statistics import chance_of_count, quantile
from cuda_gctx.tune._judge import Block, Sample

__all__ = ["MOST_BUSY", "Calls", "computed_latencies", "latencies_at_rate", "refutes"]

# The computed queue holds while at most this share of the calls finds the part busy.
MOST_BUSY = 0.6
# The arrivals that are computed of each half of a block.
COMPUTED = 1000
# A call that finds the part idle takes as long as a measured one of nearly the same gap: one of so many.
NEAR = 5
# The check refutes a computed quantile if the calls beyond it are so improbable. A host that is late with an arrival,
# and a small difference, refute nothing.
CHECKED, CHANCE = (0.9, 0.99), 0.001
TOLERANCE, LATE_S = 0.1, 30e-6


@dataclass(frozen=True)
class Calls(Sample):
    """The measurement of calls of one part next to others.

    idle: the gap before each call that found the part idle, and how long the call took. queued: what calls of a burst
    took behind their predecessors. latencies: of calls that arrived at the asked rate.
    """

    idle: tuple[tuple[float, float], ...] = field(default=())
    queued: tuple[float, ...] = ()


def computed_latencies(
    idle: Sequence[tuple[float, float]], queued: Sequence[float], rate: float, count: int, chance: random.Random
) -> tuple[list[float], float]:
    """The latencies of calls that arrive at a rate, and the share of the calls that find the part busy.

    The arrivals are a Poisson process, and the part serves one call after the other.
    """
    by_gap = sorted(idle)
    gaps = [gap for gap, _ in by_gap]
    # The second half of the gaps is a whole period of the bulk work.
    later = by_gap[bisect_left(gaps, gaps[-1] / 2) :]
    latencies, busy = [], 0
    arrived, ended = chance.expovariate(rate), 0.0
    for _ in range(count):
        gap = arrived - ended
        if gap < 0:
            busy += 1
            ended += chance.choice(queued)
        elif gap > gaps[-1]:
            ended = arrived + chance.choice(later)[1]
        else:
            place = bisect_left(gaps, gap) + chance.randrange(NEAR) - NEAR // 2
            ended = arrived + by_gap[min(max(place, 0), len(by_gap) - 1)][1]
        latencies.append(ended - arrived)
        arrived += chance.expovariate(rate)
    return latencies, busy / count


def refutes(observed: Sequence[float], computed: Sequence[float]) -> bool:
    """Whether calls that arrived contradict computed latencies: too many or too few of them are beyond a quantile."""

    def contradict(limit: float, share: float, too_many: bool) -> bool:
        beyond = sum(one > limit for one in observed)
        if (beyond > (1 - share) * len(observed)) != too_many:
            return False
        return chance_of_count(beyond, len(observed), 1 - share) < CHANCE / len(CHECKED)

    for share in CHECKED:
        limit = quantile(computed, share)
        slack = max(TOLERANCE * limit, LATE_S)
        if contradict(limit + slack, share, True) or contradict(limit - slack, share, False):
            return True
    return False


class Settled(NamedTuple):
    """Blocks whose latencies are those at the asked rate, and how these are known."""

    blocks: list[Block]
    computed: bool
    enough: bool


def latencies_at_rate(blocks: Sequence[tuple[Calls, Calls]], rate: float, least: int, seed: int = 0) -> Settled:
    """The blocks of a finalist with latencies at a rate: computed, or of the arrivals where the queue does not hold.

    least: the arrivals that a block needs where they decide.
    """
    chance = random.Random(seed)
    halves: list[list[float]] = []
    busy = 0.0
    for half in chain.from_iterable(blocks):
        if half.idle and half.queued:
            latencies, share = computed_latencies(half.idle, half.queued, rate, COMPUTED, chance)
            halves.append(latencies)
            busy += share / (2 * len(blocks))
    observed = [half.latencies for half in chain.from_iterable(blocks)]
    holds = len(halves) == len(observed) and busy <= MOST_BUSY
    arrivals = list(chain.from_iterable(observed))
    if holds and not (arrivals and refutes(arrivals, list(chain.from_iterable(halves)))):
        found = [tuple(one) for one in halves]
        return Settled(_with(blocks, found), True, True)
    enough = all(len(first) + len(second) >= least for first, second in zip(observed[::2], observed[1::2], strict=True))
    if not all(observed):
        # Without arrivals in each half, what there is serves as an estimate of all.
        known = tuple(arrivals or chain.from_iterable(halves) or [half.seconds for pair in blocks for half in pair])
        return Settled(_with(blocks, [known] * len(observed)), False, False)
    return Settled(_with(blocks, observed), False, enough)


def _with(blocks: Sequence[tuple[Calls, Calls]], latencies: Sequence[tuple[float, ...]]) -> list[Block]:
    """The blocks with other latencies."""
    samples = [
        Sample(half.steps, half.seconds, found, half.rates)
        for half, found in zip(chain.from_iterable(blocks), latencies, strict=True)
    ]
    return [Block(first, second) for first, second in zip(samples[::2], samples[1::2], strict=True)]
