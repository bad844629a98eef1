"""The search: which plans are measured, and in which order.

Partitions of sizes that were asked for are the first that are opened, so that no budget ends before they are measured.
Plans are measured in rounds, in random order, so that what changes with time (clocks, temperature, neighbours)
affects all of them. Plans that cannot win any more are left out of later rounds. The best then meet in final ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_gctx._core import clock
from cuda_gctx._core.errors import FeatureNotSupported
from cuda_gctx.measure.statistics import LEAST_PAIRS
from cuda_gctx.tune._final import LEAST_FINALISTS, OPENINGS, Final
from cuda_gctx.tune._guard import Sitting
from cuda_gctx.tune._measure import OutOfTime
from cuda_gctx.tune._objectives import TailLatency, critical_part
from cuda_gctx.tune._openings import Candidate
from cuda_gctx.tune._plans import Kind, Plan
from cuda_gctx.tune._ranking import HOPELESS
from cuda_gctx.tune._rounds import Rounds
from cuda_gctx.tune._sizes import Allocation, Sizes
from cuda_gctx.tune._work import Task, examine

__all__ = ["Search"]

COARSE_ROUNDS, REFINING_ROUNDS = 3, 2
# The share of the budget after which each phase has to end.
SEARCH_UNTIL, REFINE_UNTIL, RETRY_UNTIL = 0.4, 0.55, 0.6
# Partitions that are so much slower than the best plan are not refined.
NOT_REFINED = 1.4
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
        self.rounds = rounds = Rounds(task, held)
        self.task, self.found, self.opened, self.runner = task, rounds.found, rounds.opened, rounds.runner
        self._sizes: Sizes | None = None
        try:
            self._sizes = Sizes(task.device, task.names, task.sizes)
        except FeatureNotSupported as error:
            self.found.notes.append(f"partitions were not measured: {error}")
        self._stream = held.closing.enter_context(task.device.create_stream())

    # ---- the phases

    def run(self) -> None:
        """Run all phases. Ends early, and notes that, when the budget is used up."""
        self.found.complete = True
        for phase, share in (
            (self._first, SEARCH_UNTIL),
            (self._refine, REFINE_UNTIL),
            (self._try_again, RETRY_UNTIL),
            (Final(self.rounds).compare, 1.0),
        ):
            # Without the first phase there is nothing to compare, so it may take all of the time.
            until = 1.0 if not self.found.can_answer else share
            self.runner.deadline = self.rounds.began + until * self.task.budget_s
            try:
                phase()
            except OutOfTime:
                self.found.complete = False
            if not self.found.can_answer:
                break

    def _first(self) -> None:
        self.rounds.show("calling each part for the first time")
        for part in self.task.parts:
            trial = self.opened.alone("alone", part, self._stream)
            candidate = Candidate(plan=None, trial=trial)
            with self.opened.forgiving(candidate, trial):
                facts = examine(part, self._stream, self.runner.demand_time)
                self.found.facts[part.name] = facts
                self.runner.call_s[part.name] = facts.host_s
                self.runner.warm(trial)
            self.runner.alone_s[part.name] = trial.step_s
            self.found.alone[part.name] = candidate
        names = self.task.names
        self.opened.plan(Plan("sequence", names))
        self._open_asked()
        plans = [Plan("streams", names), *(Plan("priority", names, first=name) for name in names)]
        plans += [self._joined(share) for share in self._coarse_shares()]
        for plan in plans:
            self.opened.plan(plan)
        self.rounds.show("waiting for stable clocks")
        sequence = self.found.plans[0]
        with self.opened.forgiving(sequence, sequence.trial):
            settled = self.runner.settle_clocks(sequence.trial)
        base = [*self.found.alone.values(), *self.found.plans]
        self.rounds.measure(base, 1, drop=False)
        if self.rounds.open_gate(settled):
            self.rounds.measure(base, 1, drop=False)
        self.runner.deadline = self.rounds.began + self._search_until()
        self._divide(base)

    # ---- divisions of the SMs

    def _least_comparison_s(self) -> float:
        """How long it takes to compare a few plans with the sequence."""
        rivals_s = (LEAST_FINALISTS - 1) * self.rounds.batch_s()
        return 1.1 * (LEAST_PAIRS + OPENINGS) * (max(self.found.plans[0].batch_s, self.rounds.batch_s()) + rivals_s)

    def _search_until(self, share: float = SEARCH_UNTIL) -> float:
        """After how many seconds the sizes have to be known, so that time is left to compare a few finalists."""
        return max(0.0, min(share * self.task.budget_s, self.task.budget_s - self._least_comparison_s()))

    def _coarse(self, sizes: Sizes) -> list[Allocation]:
        """Divisions of the SMs that fit, are far apart, and have not been tried."""
        found = (one for one in sizes.coarse(self.rounds.durations(), self._urgent) if one not in self.opened.tried)
        return [one for one in found if sizes.plan(one, False) is not None]

    def _opening_s(self, rounds: int) -> float:
        """How long it takes to open a division of the SMs, and to measure it in so many rounds."""
        return self.rounds.batch_s() * len(self.opened.library_choices()) * (rounds + BATCHES_TO_OPEN)

    def _open_asked(self) -> None:
        """Open partitions of the sizes that were asked for, before the alternatives to them: the first of each kind,
        and as many others as the time for the search allows.
        """
        if self._sizes is None or not self._sizes.chosen:
            return
        left_s = self.rounds.began + self._search_until() - clock.now()
        affordable = min(int(left_s / self._opening_s(COARSE_ROUNDS)), CONTEXTS_AT_ONCE // len(self.task.parts))
        for allocation in self._coarse(self._sizes)[: max(KINDS_OF_PARTITIONS, affordable)]:
            self.opened.division(allocation, self._sizes)

    def _divide(self, base: Sequence[Candidate]) -> None:
        """Measure partitions of sizes that are far apart, as many as the time allows."""
        sizes = self._sizes
        if sizes is None:
            self.rounds.measure(base, min(COARSE_ROUNDS, self.rounds.left(len(base) * self.rounds.batch_s())))
            return
        for count in sizes.too_large():
            self.found.note(f"{count} SMs were not tried: no layout for these parts fits with a partition of that size")
        coarse = self._coarse(sizes)
        for rounds in range(COARSE_ROUNDS, 0, -1):
            base_s = rounds * self.rounds.round_s(candidate for candidate in base if not candidate.hopeless)
            most = int((self.runner.deadline - clock.now() - base_s) / self._opening_s(rounds))
            if most >= len(coarse):
                break
        most = max(1, most)
        if most < len(coarse) and (omitted := sizes.plan(coarse[most], False)) is not None:
            self.found.complete = False
            self.found.note(
                f"{len(coarse) - most} of {len(self.opened.tried) + len(coarse)} divisions of the SMs were not tried, "
                f"such as {omitted}: budget_s={self.task.budget_s:g} allows no more"
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
            self.rounds.measure([*base, *made], rounds)
            if not pending or self.opened.is_full:
                return
            self.opened.close_losers(self.rounds.best_partitions())
            if len(self.opened.pools) >= at_once:  # all of them are close to the best
                at_once = len(self.opened.pools) + max(1, CONTEXTS_AT_ONCE // len(self.task.parts))

    @property
    def _urgent(self) -> tuple[str, ...]:
        """The parts that an overlay may put first."""
        critical = critical_part(self.found.objective)
        return self.task.names if critical is None else (critical,)

    # ---- shares of the bulk work in a call of the urgent part

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
            best = self.rounds.best(joined)
            if not self._may_win(best):
                return
            tried = {one.trial.share for one in joined}
            near = {self._snapped(best.trial.share * 2**step) for step in (power, -power)} - tried
            made = [self.opened.plan(self._joined(share)) for share in sorted(near)]
            if not self.rounds.left(len(made) * self.rounds.batch_s() * REFINING_ROUNDS):
                raise OutOfTime
            self.rounds.measure([self.found.sequence(), best, *made], REFINING_ROUNDS)
            joined += [one for one in made if one.samples]

    # ---- plans next to the best ones

    def _may_win(self, best: Candidate) -> bool:
        """Whether the best plan of a kind is so close to the fastest one that plans next to it may win."""
        ranking = self.rounds.ranking
        return ranking.relative(best) <= NOT_REFINED * min(map(ranking.relative, ranking.acceptable()))

    def _refine(self) -> None:
        self.runner.deadline = min(self.runner.deadline, self.rounds.began + self._search_until(REFINE_UNTIL))
        self._refine_shares()
        if self._sizes is None:
            return
        for kind in ("overlay", "partitions"):
            self._refine_kind(self._sizes, kind)

    def _refine_kind(self, sizes: Sizes, kind: str) -> None:
        stride = sizes.first_stride()
        while stride >= 1 and not self.opened.is_full:
            best = self.rounds.best_partitions(kind)
            if best is None or best.allocation is None or not self._may_win(best):
                return
            near = [one for one in sizes.around(best.allocation, stride) if one not in self.opened.tried]
            if near:
                each_s = self._opening_s(REFINING_ROUNDS)
                if not self.rounds.left(each_s):
                    raise OutOfTime
                self._try(sizes, near[: self.rounds.left(each_s)], [self.found.sequence(), best], REFINING_ROUNDS)
            if self.rounds.best_partitions(kind) is best:
                stride //= 2

    def _try_again(self) -> None:
        """A second chance for the best plan of each kind that was left out: its first steps may have been slow ones."""
        found: dict[Kind | None, Candidate] = {}
        for candidate in sorted(self.found.known(), key=self.rounds.ranking.relative):
            if candidate.is_open:
                found.setdefault(candidate.kind, candidate)
        again = [one for one in found.values() if not one.is_sequence and self.rounds.behind(one) > HOPELESS]
        for candidate in again:
            self.rounds.show(f"trying {candidate.plan} again")
            until = clock.now() + self.runner.retry_s
            with self.opened.forgiving(candidate, candidate.trial):
                while clock.now() < until:
                    self.runner.batch(candidate.trial, self.runner.shape([candidate.trial]))
                candidate.samples.clear()
                candidate.hopeless = False
        if again:
            best = min((one for one in found.values() if one not in again), key=self.rounds.ranking.relative)
            self.rounds.measure([*dict.fromkeys([self.found.sequence(), best]), *again], REFINING_ROUNDS)
