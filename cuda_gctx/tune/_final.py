"""The final rounds, which alone decide.

The fastest of many plans is partly a lucky one, and fresh samples remove the luck. Each finalist is opened several
times, and takes part in the rounds with each opening by turns: what its openings differ by belongs to the uncertainty
of the answer. At the end, the choice and the sequence alternate in blocks of seconds: a plan that heats the chip slows
all plans of a round, but itself only in such blocks. The decision is that of `_ranking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

from cuda_gctx._core import clock
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import ClockReading, is_simulated
from cuda_gctx.measure.statistics import LEAST_PAIRS, MANY_PAIRS, NOISE
from cuda_gctx.tune._measure import BATCH_S, OutOfTime
from cuda_gctx.tune._measurement import Sample
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._openings import Candidate
from cuda_gctx.tune._ranking import HOPELESS, settled
from cuda_gctx.tune._rounds import Rounds

__all__ = ["LEAST_FINALISTS", "OPENINGS", "Final"]

# The choice alternates with the sequence in so many blocks each. The first half of a block does not count: in it,
# clocks and temperature are those of the block before.
BLOCKS, BLOCK_S = 4, 2.0
FEWER_BLOCKS, SHORTER_BLOCK_S = 3, 1.0
SETTLING_SHARE = 1 / 2
# What counts of a block of mixes is so many batches, each as long as possible: at the end of a batch, nothing runs next
# to the last calls. The first and the last one show whether the gain still changes.
BATCHES_OF_MIXES = 2
# The blocks take at most this share of the budget.
BLOCKS_SHARE = 0.4
# Nothing heats a simulated device.
SIMULATED_BLOCK_S = 0.05
LEAST_FINALISTS, MOST_FINALISTS = 3, 8
MARGINS = (1.0, 1.05, 1.1, HOPELESS)
# How often a finalist is opened; more often if the openings differ.
OPENINGS, MOST_OPENINGS = 2, 4


class Final:
    """Compares the best plans that rounds have found."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.task, self.runner = rounds, rounds.task, rounds.runner
        self.found = rounds.found

    def finalists(self) -> list[Candidate]:
        """The sequence, the best of each kind that is not hopeless, and those next to the best."""
        ranking = self.rounds.ranking
        ordered = sorted(ranking.acceptable(leniently=True), key=ranking.relative)
        close = [c for c in ordered if self.rounds.behind(c) <= HOPELESS]
        chosen = [self.found.sequence(), *(one for one in ranking.best_of_kinds() if one in close)]
        if isinstance(self.found.objective, TailLatency):
            # The share of the others is measured too, with an error: keep plans that leave them just enough, and those
            # that leave them a little more.
            shares = [self.found.objective.others * margin for margin in MARGINS]
            sized = [c for c in ordered if c.allocation is not None or c.trial.joint is not None]
            for share in shares:
                chosen += [candidate for candidate in sized if ranking.others_share(candidate) >= share][:1]
            # Of plans with equal latencies, the one in which the others achieve most.
            chosen += sorted(close, key=ranking.others_share, reverse=True)[:1]
        chosen += close[:3]
        return list(dict.fromkeys(chosen))[:MOST_FINALISTS]

    def compare(self) -> None:
        """Measure the finalists until one of them is certainly the best, or the time is up."""
        finalists = self.finalists()
        for candidate in finalists:
            candidate.hopeless = False
        # Long steps: fewer finalists, and the parts alone are not measured again.
        blocks, block_s = self._blocks()
        reserve_s = 2 * blocks * block_s
        left_s = self.runner.deadline - clock.now() - reserve_s
        costs = accumulate(max(candidate.batch_s, self.rounds.batch_s()) for candidate in finalists)
        most = sum((LEAST_PAIRS + OPENINGS) * cost_s <= left_s for cost_s in costs)
        finalists = finalists[: max(LEAST_FINALISTS - 1, most)]
        parts_s = sum(max(candidate.batch_s, BATCH_S) for candidate in self.found.alone.values())
        affordable = MANY_PAIRS * (self.rounds.round_s(finalists) + parts_s) <= left_s
        alone = list(self.found.alone.values()) if affordable else []
        self.rounds.again(finalists, OPENINGS)
        self.found.final = self.rounds.number
        competing = [*alone, *finalists]
        round_s = self.rounds.round_s(competing)

        # Profiling the parts takes about as long as the rounds in which it is done.
        placed = self._placed(finalists) if self.rounds.left(round_s, reserve_s) >= MANY_PAIRS + LEAST_PAIRS else []
        self.rounds.measure([*dict.fromkeys([*competing, *placed])], LEAST_PAIRS, drop=False, look=placed)
        self.rounds.measure(competing, min(MANY_PAIRS - LEAST_PAIRS, self.rounds.left(round_s, reserve_s)), drop=False)
        with suppress(OutOfTime):  # undecided until the end
            self._decide(finalists, alone, blocks, block_s)

    def _decide(self, finalists: Sequence[Candidate], alone: Sequence[Candidate], blocks: int, block_s: float) -> None:
        """Measure on until it is certain that the choice is the best and holds for longer, or the time is up."""
        rivals = list(finalists)
        while True:
            ranking = self.rounds.ranking
            choice = ranking.choose(trying=blocks > 0)
            chosen = choice.record
            unconfirmed = not chosen.is_sequence and not chosen.sustained and blocks > 0
            if choice.decided and not unconfirmed:
                return
            if chosen.sustained and (not choice.held or self.found.sequence() in ranking.undecided(chosen)):
                self._alternate(chosen, blocks, block_s)
                continue
            # Each time twice as many rounds, as the intervals expect.
            certain = [r for r in rivals if ranking.is_slower(r, chosen) and not r.is_sequence]
            rivals = [rival for rival in rivals if rival not in certain]
            reserve_s = 2 * blocks * block_s if unconfirmed else 0.0
            spare = self.rounds.left(self.rounds.round_s((*alone, *rivals)), reserve_s)
            further = min(self.rounds.number - (self.found.final or 0), spare)
            if choice.decided or (further <= 0 and unconfirmed):
                self._alternate(chosen, blocks, block_s)
            elif further <= 0:
                return
            else:
                if any(ranking.between(*pair) > NOISE / 2 for pair in pairwise(rivals)):
                    self.rounds.again(rivals, MOST_OPENINGS)
                self.rounds.measure([*alone, *rivals], further, drop=False)

    def _placed(self, finalists: Sequence[Candidate]) -> list[Candidate]:
        """The finalists in partitions, or the best partitions, and their parts alone in these partitions."""
        best = self.rounds.best_partitions("partitions") or self.rounds.best_partitions()
        if best is None:
            return []
        placed = [candidate for candidate in finalists if candidate.allocation is not None]
        placed += [] if any(candidate.kind == "partitions" for candidate in placed) else [best]
        placed = list(dict.fromkeys(placed))
        alones = [alone for candidate in placed for alone in self.rounds.parts_alone(candidate)]
        # The same sizes with and without the SM count hint.
        placed += [c for c in self.found.known() if c.allocation == best.allocation and c not in placed]
        for candidate in placed:
            candidate.hopeless = False
        return [*placed, *alones]

    def _blocks(self) -> tuple[int, float]:
        """How many blocks the choice and the sequence get each, and their length; none if the budget is too short."""
        if is_simulated(self.task.device):
            return FEWER_BLOCKS, SIMULATED_BLOCK_S
        for blocks, block_s in ((BLOCKS, BLOCK_S), (FEWER_BLOCKS, SHORTER_BLOCK_S)):
            if 2 * blocks * block_s <= BLOCKS_SHARE * self.task.budget_s:
                return blocks, block_s
        self.found.note(f"no plan was measured for seconds on end: budget_s={self.task.budget_s:g} is too short")
        return 0, 0.0

    def _alternate(self, chosen: Candidate, blocks: int, block_s: float) -> None:
        """Measure a plan and the sequence in blocks by turns."""
        sequence = self.found.sequence()
        for number in range(blocks):
            found: dict[Candidate, tuple[list[Sample], float | None]] = {}
            for _, one in in_rounds((chosen, sequence), 1, self.rounds.random):
                self.rounds.show(f"measuring {one.plan} for {block_s:g} s")
                found[one] = self._block(one, len(chosen.sustained), block_s, number == blocks - 1)
            (own, own_mhz), (other, other_mhz) = found[chosen], found[sequence]
            if not settled(own) or not settled(other):  # a part failed
                return
            chosen.sustained.append((own, other))
            if own_mhz is not None and other_mhz is not None:
                chosen.sm_clocks_mhz = own_mhz, other_mhz

    def _block(self, candidate: Candidate, turn: int, block_s: float, read: bool) -> tuple[list[Sample], float | None]:
        """Batches without a pause, of which those of the first half settle; and the SM clock, if it is to be read."""
        trial = candidate.trials[candidate.turn(turn)]
        shape = self.runner.shape([trial])
        settling_s = SETTLING_SHARE * block_s
        longest = self.runner.longest_shape(trial, (block_s - settling_s) / BATCHES_OF_MIXES)
        began = clock.now()
        samples: list[Sample] = []
        with self.rounds.forgiving(candidate, trial):
            while (passed := clock.now() - began) < block_s or not settled(samples):
                if self.runner.hosts is not None:
                    self.rounds.start_hosts()
                settles = passed < settling_s
                sample = self.runner.batch(trial, shape if settles else longest)
                sample.settles = settles and sample.seconds < block_s
                samples.append(sample)
            if read:
                # The tool takes a while: the plan runs on, so that the clock is that under its load.
                with ClockReading(self.task.device) as reading:
                    while not reading.is_done:
                        self.runner.batch(trial, shape)
                    return samples, reading.sm_clock_mhz
        return samples, None
