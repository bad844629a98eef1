"""The search: which plans are measured, and in which order.

Partitions of sizes that were asked for are the first that are opened, so that no budget ends before they are measured.
Plans are measured in rounds, in random order, so that what changes with time (clocks, temperature, neighbours)
affects all of them. Plans that cannot win any more are left out of later rounds. The finalists then meet in separate
rounds, which alone decide: the fastest of many plans is partly a lucky one, and fresh samples remove the luck. Each
finalist is opened several times, and takes part in the rounds with each opening by turns: what its openings differ by
belongs to the uncertainty of the answer. At the end, the choice and the sequence alternate in blocks of seconds: a plan
that heats the chip slows all plans of a round, but itself only in such blocks. The decision is that of `_ranking`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

from cuda_gctx._core import clock
from cuda_gctx._core.errors import FeatureNotSupported
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import ClockReading, is_simulated
from cuda_gctx.measure.statistics import LEAST_PAIRS, MANY_PAIRS, NOISE
from cuda_gctx.tune._guard import Sitting
from cuda_gctx.tune._measure import BATCH_S, OutOfTime, Runner
from cuda_gctx.tune._measurement import AS_GRAPHS, BY_EACH_HOST, BY_ONE_HOST, Measurement, Sample, launch_bound
from cuda_gctx.tune._objectives import TailLatency, critical_part
from cuda_gctx.tune._openings import Candidate, Openings
from cuda_gctx.tune._plans import Kind, Plan
from cuda_gctx.tune._ranking import HOPELESS, Ranking, settled
from cuda_gctx.tune._sizes import Allocation, Sizes
from cuda_gctx.tune._work import Task, examine

__all__ = ["Search"]

COARSE_ROUNDS, REFINING_ROUNDS = 3, 2
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
# The share of the budget after which each phase has to end.
SEARCH_UNTIL, REFINE_UNTIL, RETRY_UNTIL = 0.4, 0.55, 0.6
# A plan is left out after two rounds, or at once if it is so much slower than the best; and partitions that are so much
# slower are not refined.
HOPELESS_AT_ONCE, NOT_REFINED = 1.5, 1.4
# How long a plan that starts slowly may take until it is warm.
RETRY_S, RETRY_SHARE = 0.5, 0.01
LEAST_FINALISTS, MOST_FINALISTS = 3, 8
MARGINS = (1.0, 1.05, 1.1, HOPELESS)
# How often a finalist is opened; more often if the openings differ.
OPENINGS, MOST_OPENINGS = 2, 4
# A context takes 5 MiB of device memory (docs/appendix/hardware-facts.md, "Lifetime"). When there are more of them,
# partitions that cannot win are closed before further ones are opened.
CONTEXTS_AT_ONCE = 96
# A division of the SMs costs its warm-up and a profile in addition to its rounds: so many batches.
BATCHES_TO_OPEN = 2
# Partitions for each part, and overlays; divisions of the SMs come from these by turns.
KINDS_OF_PARTITIONS = 2
# The smallest share of the bulk work that a call of the urgent part takes in: so often half of it.
HALVINGS = 6


class Search:
    """Measures plans for a task. Results are available at any time, also after an interruption."""

    def __init__(self, task: Task, held: Sitting) -> None:
        self.task = task
        launched = AS_GRAPHS if task.launch == "graphs" else BY_ONE_HOST
        self.found: Measurement[Candidate] = Measurement(task.names, task.objective, launched)
        self._began = clock.now()
        self._random = random.Random(task.seed)
        self._held = held
        self._ranking: Ranking[Candidate] | None = None
        self._round = 0
        self._fair_rounds: set[int] = set()  # those in which every plan that was not left out took part
        self._settled: list[Sample] = []  # of the sequence, before the first round
        self._sizes: Sizes | None = None
        try:
            self._sizes = Sizes(task.device, task.names, task.sizes)
        except FeatureNotSupported as error:
            self.found.notes.append(f"partitions were not measured: {error}")
        runner = Runner(task.objective, self._began + task.budget_s, task.launch, task.seed)
        self._runner = held.closing.enter_context(runner)
        self._runner.retry_s = min(RETRY_S, RETRY_SHARE * task.budget_s)
        self.opened = Openings(task, self.found, self._runner, self._show, held.closing)

    @property
    def ranking(self) -> Ranking[Candidate]:
        """The comparison of all that has been measured so far."""
        if self._ranking is None or not self._ranking.is_current:
            self._ranking = Ranking(self.found)
        return self._ranking

    # ---- the phases

    def run(self) -> None:
        """Run all phases. Ends early, and notes that, when the budget is used up."""
        self.found.complete = True
        for phase, share in (
            (self._first, SEARCH_UNTIL),
            (self._refine, REFINE_UNTIL),
            (self._try_again, RETRY_UNTIL),
            (self._compare, 1.0),
        ):
            # Without the first phase there is nothing to compare, so it may take all of the time.
            until = 1.0 if not self.found.can_answer else share
            self._runner.deadline = self._began + until * self.task.budget_s
            try:
                phase()
            except OutOfTime:
                self.found.complete = False
            if not self.found.can_answer:
                break

    def _first(self) -> None:
        self._show("calling each part for the first time")
        first = self._held.closing.enter_context(self.task.device.create_stream())
        whole = dict.fromkeys(self.task.names, self.task.device.sm_count)
        for part in self.task.parts:
            trial = self.opened.alone("alone", part, first)
            candidate = Candidate(plan=None, trial=trial, sm_counts=whole)
            with self.opened.forgiving(candidate, trial):
                facts = examine(part, first, self._runner.demand_time)
                self.found.facts[part.name] = facts
                self._runner.call_s[part.name] = facts.host_s
                self._runner.warm(trial)
            self._runner.alone_s[part.name] = trial.step_s
            self.found.alone[part.name] = candidate
        names = self.task.names
        self.opened.plan(Plan("sequence", names), whole)
        self._open_asked()
        plans = [Plan("streams", names), *(Plan("priority", names, first=name) for name in names)]
        plans += [self._joined(share) for share in self._coarse_shares()]
        for plan in plans:
            self.opened.plan(plan, whole)
        self._show("waiting for stable clocks")
        with self.opened.forgiving(self.found.plans[0], self.found.plans[0].trial):
            self._settled = self._runner.settle_clocks(self.found.plans[0].trial)
        base = [*self.found.alone.values(), *self.found.plans]
        self._rounds(base, 1, drop=False)
        if self._open_gate():
            self._rounds(base, 1, drop=False)
        self._runner.deadline = self._began + self._search_until()
        self._divide(base)

    def _open_gate(self) -> bool:
        """Whether the work is launch-bound, and is measured without a gate from now on, by a host thread for each part
        if threads may be used. Earlier samples do not count then.
        """
        runner = self._runner
        if not runner.gated or not self._is_launch_bound():
            return False
        runner.gated = False
        if runner.launch == "auto":
            self._start_hosts()
        for candidate in (*self.found.alone.values(), *self.found.plans):
            candidate.samples.clear()
            candidate.steps.clear()
            if runner.hosts is not None:
                with self.opened.forgiving(candidate, candidate.trial):
                    runner.warm(candidate.trial)
        return True

    def _start_hosts(self) -> None:
        """Start new host threads, and let them enqueue steps that do not count: first calls of a thread take longer."""
        self.found.launched = BY_EACH_HOST
        self._runner.start_hosts(self.task.names)
        [streams] = [c for c in self.found.plans if c.kind == "streams"]
        with self.opened.forgiving(streams, streams.trial):
            self._runner.warm(streams.trial)

    def _is_launch_bound(self) -> bool:
        """Whether the device waits for the host in sequence, or would if the parts overlapped completely.

        Behind a gate the second does not show: the first steps are enqueued before they begin, which is all of a short
        batch.
        """
        if any(facts.waits for facts in self.found.facts.values()):
            return False
        if (critical := critical_part(self.found.objective)) is not None:
            others = [facts for name, facts in self.found.facts.items() if name != critical]
            return any(facts.host_s >= facts.device_s for facts in others)
        # Graphs take the host less than the functions do.
        if self._runner.launch != "graphs" and self.found.called_s() >= max(self._durations().values()):
            return True
        return launch_bound([*self._settled, *self.found.sequence().samples.values()])

    # ---- what the time allows

    def _batch_s(self) -> float:
        """How long a batch of a plan takes at the least: a few steps, one long step, or the calls of a latency."""
        if isinstance(self.found.objective, TailLatency):
            return max(BATCH_S, self._runner.latency_batch_s(self.task.parts, self.found.objective))
        sequence = self.found.plans[0]
        return max(BATCH_S, sequence.trial.pace_s, sequence.batch_s)

    def _round_s(self, candidates: Iterable[Candidate]) -> float:
        """How long a round of some plans takes."""
        batch_s = self._batch_s()
        return sum(max(candidate.batch_s, batch_s) for candidate in candidates)

    def _least_comparison_s(self) -> float:
        """How long it takes to compare a few plans with the sequence."""
        rivals_s = (LEAST_FINALISTS - 1) * self._batch_s()
        return 1.1 * (LEAST_PAIRS + OPENINGS) * (max(self.found.plans[0].batch_s, self._batch_s()) + rivals_s)

    def _search_until(self, share: float = SEARCH_UNTIL) -> float:
        """After how many seconds the sizes have to be known, so that time is left to compare a few finalists."""
        return max(0.0, min(share * self.task.budget_s, self.task.budget_s - self._least_comparison_s()))

    def _left(self, per_round_s: float, reserve_s: float = 0.0) -> int:
        """How many rounds of a length fit before the deadline, if some time is kept."""
        return max(0, int((self._runner.deadline - clock.now() - reserve_s) / max(per_round_s, 1e-6)))

    def _durations(self) -> dict[str, float]:
        """How long the calls of a step of each part take alone."""
        return {name: alone_s * self.found.weight(name) for name, alone_s in self._runner.alone_s.items()}

    def _coarse(self, sizes: Sizes) -> list[Allocation]:
        """Divisions of the SMs that fit, are far apart, and have not been tried."""
        found = (one for one in sizes.coarse(self._durations(), self._urgent) if one not in self.opened.tried)
        return [one for one in found if sizes.plan(one, False) is not None]

    def _opening_s(self, rounds: int) -> float:
        """How long it takes to open a division of the SMs, and to measure it in so many rounds."""
        return self._batch_s() * len(self.opened.library_choices()) * (rounds + BATCHES_TO_OPEN)

    def _open_asked(self) -> None:
        """Open partitions of the sizes that were asked for, before the alternatives to them: the first of each kind,
        and as many others as the time for the search allows.
        """
        if self._sizes is None or not self._sizes.chosen:
            return
        left_s = self._began + self._search_until() - clock.now()
        affordable = min(int(left_s / self._opening_s(COARSE_ROUNDS)), CONTEXTS_AT_ONCE // len(self.task.parts))
        for allocation in self._coarse(self._sizes)[: max(KINDS_OF_PARTITIONS, affordable)]:
            self.opened.division(allocation, self._sizes)

    def _divide(self, base: Sequence[Candidate]) -> None:
        """Measure partitions of sizes that are far apart, as many as the time allows."""
        sizes = self._sizes
        if sizes is None:
            self._rounds(base, min(COARSE_ROUNDS, self._left(len(base) * self._batch_s())))
            return
        for count in sizes.too_large():
            self.found.note(f"{count} SMs were not tried: no layout for these parts fits with a partition of that size")
        coarse = self._coarse(sizes)
        for rounds in range(COARSE_ROUNDS, 0, -1):
            base_s = rounds * self._round_s(candidate for candidate in base if not candidate.hopeless)
            most = int((self._runner.deadline - clock.now() - base_s) / self._opening_s(rounds))
            if most >= len(coarse):
                break
        most = max(1, most)
        if most < len(coarse) and (omitted := sizes.plan(coarse[most], False)) is not None:
            self.found.complete = False
            self.found.note(
                f"{len(coarse) - most} of {len(self.opened.tried) + len(coarse)} divisions of the SMs were not tried, "
                f"such as {omitted[0]}: budget_s={self.task.budget_s:g} allows no more"
            )
        self._try(sizes, coarse[:most], base, rounds)

    def _try(self, sizes: Sizes, allocations: Sequence[Allocation], base: Sequence[Candidate], rounds: int) -> None:
        """Open divisions of the SMs, some at a time, and measure them together with other plans."""
        at_once = max(1, CONTEXTS_AT_ONCE // len(self.task.parts))
        pending = list(allocations)
        while True:
            made: list[Candidate] = []
            while pending and len(self.opened.pools) < at_once:
                made += self.opened.division(pending.pop(0), sizes)
            self._rounds([*base, *made], rounds)
            if not pending or self.opened.is_full:
                return
            self.opened.close_losers(self._best_partitions())
            if len(self.opened.pools) >= at_once:  # all of them are close to the best
                at_once = len(self.opened.pools) + max(1, CONTEXTS_AT_ONCE // len(self.task.parts))

    # ---- shares of the bulk work in a call of the urgent part

    @property
    def _urgent(self) -> tuple[str, ...]:
        """The parts that an overlay may put first."""
        critical = critical_part(self.found.objective)
        return self.task.names if critical is None else (critical,)

    @property
    def _urgent_and_bulk(self) -> tuple[str, str]:
        """The part whose calls take in the other, the last one unless a latency is minimized; and the other."""
        first, last = self.task.names
        return (first, last) if critical_part(self.found.objective) == first else (last, first)

    def _joined(self, share: float) -> Plan:
        return Plan("together", self.task.names, first=self._urgent_and_bulk[0], share=share)

    def _snapped(self, share: float) -> float:
        """The nearest share with which a whole number of calls takes all of the bulk work of a step or mix."""
        if isinstance(self.found.objective, TailLatency):
            return min(1.0, share)
        urgent, bulk = map(self.found.weight, self._urgent_and_bulk)
        return min(1.0, bulk / min(urgent, max(bulk, round(bulk / share))))

    def _coarse_shares(self) -> list[float]:
        """Shares that are far apart."""
        if self.task.together is None:
            return []
        return list(dict.fromkeys(self._snapped(2.0**-power) for power in range(HALVINGS + 1)))

    def _refine_shares(self) -> None:
        """Try shares between the best one and those next to it, each time half as far away."""
        joined = [candidate for candidate in self.found.known() if candidate.kind == "together"]
        if not joined:
            return
        for power in (0.5, 0.25, 0.125):
            best = self._best(joined)
            if not self._may_win(best):
                return
            tried = {one.trial.share for one in joined}
            near = {self._snapped(best.trial.share * 2**step) for step in (power, -power)} - tried
            made = [self.opened.plan(self._joined(share), best.sm_counts) for share in sorted(near)]
            if not self._left(len(made) * self._batch_s() * REFINING_ROUNDS):
                raise OutOfTime
            self._rounds([self.found.sequence(), best, *made], REFINING_ROUNDS)
            joined += [one for one in made if one.samples]

    def _may_win(self, best: Candidate) -> bool:
        """Whether the best plan of a kind is so close to the fastest one that plans next to it may win."""
        return self.ranking.relative(best) <= NOT_REFINED * min(map(self.ranking.relative, self.ranking.acceptable()))

    def _refine(self) -> None:
        self._runner.deadline = min(self._runner.deadline, self._began + self._search_until(REFINE_UNTIL))
        self._refine_shares()
        if self._sizes is None:
            return
        for kind in ("overlay", "partitions"):
            self._refine_kind(self._sizes, kind)

    def _refine_kind(self, sizes: Sizes, kind: str) -> None:
        stride = sizes.first_stride()
        while stride >= 1 and not self.opened.is_full:
            best = self._best_partitions(kind)
            if best is None or best.allocation is None or not self._may_win(best):
                return
            near = [one for one in sizes.around(best.allocation, stride) if one not in self.opened.tried]
            if near:
                each_s = self._opening_s(REFINING_ROUNDS)
                if not self._left(each_s):
                    raise OutOfTime
                self._try(sizes, near[: self._left(each_s)], [self.found.sequence(), best], REFINING_ROUNDS)
            if self._best_partitions(kind) is best:
                stride //= 2

    def _try_again(self) -> None:
        """A second chance for the best plan of each kind that was left out: its first steps may have been slow ones."""
        found: dict[Kind | None, Candidate] = {}
        for candidate in sorted(self.found.known(), key=self.ranking.relative):
            if candidate.is_open:
                found.setdefault(candidate.kind, candidate)
        again = [one for one in found.values() if not one.is_sequence and self._behind(one) > HOPELESS]
        for candidate in again:
            self._show(f"trying {candidate.plan} again")
            until = clock.now() + self._runner.retry_s
            with self.opened.forgiving(candidate, candidate.trial):
                while clock.now() < until:
                    self._runner.batch(candidate.trial, self._runner.shape([candidate.trial]))
                candidate.samples.clear()
                candidate.hopeless = False
        if again:
            best = min((one for one in found.values() if one not in again), key=self.ranking.relative)
            self._rounds([*dict.fromkeys([self.found.sequence(), best]), *again], REFINING_ROUNDS)

    def _compare(self) -> None:
        finalists = self.finalists()
        for candidate in finalists:
            candidate.hopeless = False
        # Long steps: fewer finalists, and the parts alone are not measured again.
        blocks, block_s = self._blocks()
        reserve_s = 2 * blocks * block_s
        left_s = self._runner.deadline - clock.now() - reserve_s
        costs = accumulate(max(candidate.batch_s, self._batch_s()) for candidate in finalists)
        most = sum((LEAST_PAIRS + OPENINGS) * cost_s <= left_s for cost_s in costs)
        finalists = finalists[: max(LEAST_FINALISTS - 1, most)]
        parts_s = sum(max(candidate.batch_s, BATCH_S) for candidate in self.found.alone.values())
        affordable = MANY_PAIRS * (self._round_s(finalists) + parts_s) <= left_s
        alone = list(self.found.alone.values()) if affordable else []
        self.opened.again(finalists, OPENINGS)
        self.found.final = self._round
        competing = [*alone, *finalists]
        round_s = self._round_s(competing)

        # Profiling the parts takes about as long as the rounds in which it is done.
        placed = self._placed(finalists) if self._left(round_s, reserve_s) >= MANY_PAIRS + LEAST_PAIRS else []
        self._rounds([*dict.fromkeys([*competing, *placed])], LEAST_PAIRS, drop=False, look=placed)
        self._rounds(competing, min(MANY_PAIRS - LEAST_PAIRS, self._left(round_s, reserve_s)), drop=False)
        with suppress(OutOfTime):  # undecided until the end
            self._decide(finalists, alone, blocks, block_s)

    def _decide(self, finalists: Sequence[Candidate], alone: Sequence[Candidate], blocks: int, block_s: float) -> None:
        """Measure on until it is certain that the choice is the best and holds for longer, or the time is up."""
        rivals = list(finalists)
        while True:
            choice = self.ranking.choose(trying=blocks > 0)
            chosen = choice.record
            unconfirmed = not chosen.is_sequence and not chosen.sustained and blocks > 0
            if choice.decided and not unconfirmed:
                return
            if chosen.sustained and (not choice.held or self.found.sequence() in self.ranking.undecided(chosen)):
                self._alternate(chosen, blocks, block_s)
                continue
            # Each time twice as many rounds, as the intervals expect.
            certain = [r for r in rivals if self.ranking.ratio(r, chosen).is_slower and not r.is_sequence]
            rivals = [rival for rival in rivals if rival not in certain]
            spare = self._left(self._round_s((*alone, *rivals)), 2 * blocks * block_s if unconfirmed else 0.0)
            further = min(self._round - (self.found.final or 0), spare)
            if choice.decided or (further <= 0 and unconfirmed):
                self._alternate(chosen, blocks, block_s)
            elif further <= 0:
                return
            else:
                if any(self.ranking.between(*pair) > NOISE / 2 for pair in pairwise(rivals)):
                    self.opened.again(rivals, MOST_OPENINGS)
                self._rounds([*alone, *rivals], further, drop=False)

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
        pair = (chosen, self.found.sequence())
        for number in range(blocks):
            found: dict[Candidate, list[Sample]] = {}
            clocks: dict[Candidate, float | None] = {}
            for _, one in in_rounds(pair, 1, self._random):
                self._show(f"measuring {one.plan} for {block_s:g} s")
                found[one], clocks[one] = self._block(one, len(chosen.sustained), block_s, number == blocks - 1)
            if not all(map(settled, found.values())):  # a part failed
                return
            chosen.sustained.append((found[chosen], found[pair[1]]))
            own, other = clocks[chosen], clocks[pair[1]]
            if own is not None and other is not None:
                chosen.sm_clocks_mhz = own, other

    def _block(self, candidate: Candidate, turn: int, block_s: float, read: bool) -> tuple[list[Sample], float | None]:
        """Batches without a pause, of which those of the first half settle; and the SM clock, if it is to be read."""
        trial = candidate.trials[candidate.turn(turn)]
        shape = self._runner.shape([trial])
        settling_s = SETTLING_SHARE * block_s
        longest = self._runner.longest_shape(trial, (block_s - settling_s) / BATCHES_OF_MIXES)
        began = clock.now()
        samples: list[Sample] = []
        with self.opened.forgiving(candidate, trial):
            while (passed := clock.now() - began) < block_s or not settled(samples):
                if self._runner.hosts is not None:
                    self._start_hosts()
                settles = passed < settling_s
                sample = self._runner.batch(trial, shape if settles else longest)
                sample.settles = settles and sample.seconds < block_s
                samples.append(sample)
            if read:
                # The tool takes a while: the plan runs on, so that the clock is that under its load.
                with ClockReading(self.task.device) as reading:
                    while not reading.is_done:
                        self._runner.batch(trial, shape)
                    return samples, reading.sm_clock_mhz
        return samples, None

    def _placed(self, finalists: Sequence[Candidate]) -> list[Candidate]:
        """The finalists in partitions, or the best partitions, and their parts alone in these partitions."""
        best = self._best_partitions("partitions") or self._best_partitions()
        if best is None:
            return []
        placed = [candidate for candidate in finalists if candidate.allocation is not None]
        placed += [] if any(candidate.kind == "partitions" for candidate in placed) else [best]
        placed = list(dict.fromkeys(placed))
        alones = [alone for candidate in placed for alone in self.opened.parts_alone(candidate)]
        # The same sizes with and without the SM count hint.
        placed += [c for c in self.found.known() if c.allocation == best.allocation and c.is_open and c not in placed]
        for candidate in placed:
            candidate.hopeless = False
        return [*placed, *alones]

    # ---- rounds

    def _show(self, what: str) -> None:
        self._held.bar.show((clock.now() - self._began) / self.task.budget_s, what)

    def _rounds(
        self, candidates: Sequence[Candidate], number: int, drop: bool = True, look: Sequence[Candidate] = ()
    ) -> None:
        """Measure each candidate in each round, in random order.

        drop: leave out those that cannot win any more. look: those that are profiled in each round, not only once.
        """
        for _ in range(number):
            current, is_first = self._round, not self.found.can_answer
            self._round += 1
            taking_part = [candidate for candidate in candidates if not candidate.hopeless]
            if self.found.by_host_threads:
                # How fast threads enqueue depends on how they are scheduled: one start of them says nothing about the
                # next one.
                self._start_hosts()
            shape = self._runner.shape([candidate.trials[candidate.turn(current)] for candidate in taking_part])
            order = [candidate for _, candidate in in_rounds(taking_part, 1, self._random)]
            if is_first:  # what every answer needs comes first, as the time may end
                order.sort(key=lambda candidate: candidate.plan is not None and not candidate.is_sequence)
            for candidate in order:
                self._show(f"measuring {candidate.plan or 'each part alone'}")
                began = clock.now()
                trial = candidate.trials[candidate.turn(current)]
                with self.opened.forgiving(candidate, trial):
                    candidate.samples[current] = self._runner.batch(trial, shape)
                    candidate.opening_of[current] = candidate.turn(current)
                    candidate.batch_s = clock.now() - began
                    profiled = self.found.objective == "makespan" and trial.joint is None
                    if profiled and (not candidate.steps or candidate in look):
                        candidate.steps[current] = self._runner.profile(candidate.trial)
            if drop or is_first:
                self._fair_rounds.add(current)
            if drop:
                self._drop()

    def _behind(self, candidate: Candidate) -> float:
        """How many times as long a plan took as the best of the same round, in its best round.

        If the objective demands a rate of the others, only plans that leave them as much are rivals.
        """
        rivals = self.found.known()
        if isinstance(self.found.objective, TailLatency) and self.found.objective.others:
            share = self.ranking.others_share(candidate)
            rivals = [rival for rival in rivals if self.ranking.others_share(rival) >= share]
        return min(
            (
                candidate.samples[number].seconds
                / min(rival.samples[number].seconds for rival in rivals if number in rival.samples)
                for number in candidate.samples.keys() & self._fair_rounds
            ),
            default=1.0,
        )

    def _drop(self) -> None:
        for candidate in self.found.known():
            # The sequence and the plain streams stay, because the report compares with them.
            if candidate.kind not in ("sequence", "streams"):
                limit = HOPELESS if len(candidate.samples) > 1 else HOPELESS_AT_ONCE
                accepted = self.ranking.accepts(candidate, leniently=True)
                candidate.hopeless = self._behind(candidate) > limit or not accepted

    # ---- the decision

    def _best_partitions(self, kind: str | None = None) -> Candidate | None:
        """The best plan with partitions, or of a kind of these, of those that are open."""
        found = [c for c in self.found.known() if c.allocation is not None and c.is_open and kind in (None, c.kind)]
        return self._best(found) if found else None

    def _best(self, candidates: Iterable[Candidate]) -> Candidate:
        """The fastest of some plans, of those that can be chosen if there are any."""
        return min(candidates, key=lambda c: (not self.ranking.accepts(c), self.ranking.relative(c)))

    def finalists(self) -> list[Candidate]:
        """The sequence, the best of each kind that is not hopeless, and those next to the best."""
        ordered = sorted(self.ranking.acceptable(leniently=True), key=self.ranking.relative)
        close = [c for c in ordered if c.is_open and self._behind(c) <= HOPELESS]
        chosen = [
            self.found.sequence(),
            *(candidate for candidate in self.ranking.best_of_kinds() if candidate in close),
        ]
        if isinstance(self.found.objective, TailLatency):
            # The share of the others is measured too, with an error: keep plans that leave them just enough, and those
            # that leave them a little more.
            shares = [self.found.objective.others * margin for margin in MARGINS]
            sized = [c for c in ordered if (c.allocation is not None or c.trial.joint is not None) and c.is_open]
            for share in shares:
                chosen += [candidate for candidate in sized if self.ranking.others_share(candidate) >= share][:1]
            # Of plans with equal latencies, the one in which the others achieve most.
            chosen += sorted(close, key=self.ranking.others_share, reverse=True)[:1]
        chosen += close[:3]
        return list(dict.fromkeys(chosen))[:MOST_FINALISTS]
