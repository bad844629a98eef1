"""The search: which plans are measured, and in which order.

Partitions of sizes that were asked for are the first that are opened, so that no budget ends before they are measured.
Plans are measured in rounds, in random order, so that what changes with time (clocks, temperature, neighbours)
affects all of them. Plans that cannot win any more are left out of later rounds. The best then meet in final ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_gctx._core import clock
from cuda_gctx._core.extension import FeatureNotSupported
from cuda_gctx.measure.statistics import LEAST_PAIRS
from cuda_gctx.partitions import partition_sizes
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
# A division of the SMs costs its warm-up and a profile in addition to its rounds: so many batches.
BATCHES_TO_OPEN = 2
# Partitions for each part, and overlays; divisions of the SMs come from these by turns.
KINDS_OF_PARTITIONS = 2
# The smallest share of the bulk work that a call of the urgent part takes in: so often half of it.
HALVINGS = 6


class Search(Rounds):
    """Measures plans for a task. Results are available at any time, also after an interruption."""

    def __init__(self, task: Task, held: Sitting) -> None:
        super().__init__(task, held)
        self._stream = held.closing.enter_context(task.device.create_stream())
        critical = critical_part(task.objective)
        # The parts that an overlay may put first.
        self._urgent = task.names if critical is None else (critical,)
        try:
            self._sizes = Sizes(task.device, task.names, task.sizes, partition_sizes(task.device))
        except FeatureNotSupported as error:
            self._sizes = Sizes(task.device, task.names, None, ())
            self.found.notes.append(f"partitions were not measured: {error}")

    def run(self) -> None:
        """Run all phases. Ends early, and notes that, when the budget is used up."""
        self.found.complete = True
        for phase, share in (
            (self._first, SEARCH_UNTIL),
            (self._refine, REFINE_UNTIL),
            (self._try_again, RETRY_UNTIL),
            (Final(self).compare, 1.0),
        ):
            # Without the first phase there is nothing to compare, so it may take all of the time.
            until = 1.0 if not self.found.can_answer else share
            self.runner.deadline = self.began + until * self.task.budget_s
            try:
                phase()
            except OutOfTime:
                self.found.complete = False
            if not self.found.can_answer:
                break

    def _first(self) -> None:
        self.show("calling each part for the first time")
        for part in self.task.parts:
            trial = self.part("alone", part, self._stream)
            candidate = Candidate(plan=None, trial=trial)
            with self.forgiving(candidate, trial):
                facts = examine(part, self._stream, self.runner.demand_time)
                self.found.facts[part.name] = facts
                self.runner.call_s[part.name] = facts.host_s
                self.runner.warm(trial)
            self.runner.alone_s[part.name] = trial.step_s
            self.found.alone[part.name] = candidate
        names = self.task.names
        sequence = self.plan(Plan("sequence", names))
        if self._sizes.chosen:
            self._open_asked()
        for plan in (
            Plan("streams", names),
            *(Plan("priority", names, first=name) for name in names),
            *map(self._joined, self._coarse_shares()),
        ):
            self.plan(plan)
        self.show("waiting for stable clocks")
        with self.forgiving(sequence, sequence.trial):
            settled = self.runner.settle_clocks(sequence.trial)
        base = [*self.found.alone.values(), *self.found.plans]
        self.measure(base, 1, drop=False)
        if self.open_gate(settled):
            self.measure(base, 1, drop=False)
        self.runner.deadline = self.began + self._search_until()
        self._divide(base)

    def _search_until(self, share: float = SEARCH_UNTIL) -> float:
        """After how many seconds the sizes have to be known, so that time is left to compare a few finalists with the
        sequence.
        """
        batch_s = self.batch_s()
        round_s = max(self.found.plans[0].batch_s, batch_s) + (LEAST_FINALISTS - 1) * batch_s
        return max(0.0, min(share * self.task.budget_s, self.task.budget_s - 1.1 * (LEAST_PAIRS + OPENINGS) * round_s))

    def _coarse(self) -> list[Allocation]:
        """Divisions of the SMs that fit, are far apart, and have not been tried."""
        found = (one for one in self._sizes.coarse(self.durations(), self._urgent) if one not in self.tried)
        return [one for one in found if self._sizes.plan(one, False) is not None]

    def _opening_s(self, rounds: int) -> float:
        """How long it takes to open a division of the SMs, and to measure it in so many rounds."""
        return self.batch_s() * len(self.library_choices()) * (rounds + BATCHES_TO_OPEN)

    def _open_asked(self) -> None:
        """Open partitions of the sizes that were asked for, before the alternatives to them: the first of each kind,
        and as many others as the time for the search allows.
        """
        left_s = self.began + self._search_until() - clock.now()
        for allocation in self._coarse()[: max(KINDS_OF_PARTITIONS, int(left_s / self._opening_s(COARSE_ROUNDS)))]:
            self.division(allocation, self._sizes)

    def _divide(self, base: Sequence[Candidate]) -> None:
        """Measure partitions of sizes that are far apart, as many as the time allows."""
        for count in self._sizes.too_large():
            self.found.note(f"{count} SMs were not tried: no layout for these parts fits with a partition of that size")
        coarse = self._coarse()
        for rounds in range(COARSE_ROUNDS, 0, -1):
            base_s = rounds * self.round_s(candidate for candidate in base if not candidate.hopeless)
            most = int((self.runner.deadline - clock.now() - base_s) / self._opening_s(rounds))
            if most >= len(coarse):
                break
        most = max(1, most)
        if most < len(coarse) and (omitted := self._sizes.plan(coarse[most], False)) is not None:
            self.found.complete = False
            self.found.note(
                f"{len(coarse) - most} of {len(self.tried) + len(coarse)} divisions of the SMs were not tried, "
                f"such as {omitted}: budget_s={self.task.budget_s:g} allows no more"
            )
        self._try(coarse[:most], base, rounds)

    def _try(self, allocations: Sequence[Allocation], base: Sequence[Candidate], rounds: int) -> None:
        """Open divisions of the SMs, and measure them together with other plans."""
        made = [candidate for allocation in allocations for candidate in self.division(allocation, self._sizes)]
        self.measure([*base, *made], rounds)

    @property
    def _urgent_and_bulk(self) -> tuple[str, str]:
        """The part whose calls take in the other, the last one unless a latency is minimized; and the other."""
        first, last = self.task.names
        return (first, last) if self._urgent == (first,) else (last, first)

    def _joined(self, share: float) -> Plan:
        return Plan("together", self.task.names, first=self._urgent_and_bulk[0], share=share)

    def _snapped(self, share: float) -> float:
        """The nearest share with which a whole number of calls takes all of the bulk work of a step or mix."""
        if isinstance(self.task.objective, TailLatency):
            return min(1.0, share)
        urgent, bulk = map(self.found.weight, self._urgent_and_bulk)
        return min(1.0, bulk / min(urgent, max(bulk, round(bulk / share))))

    def _coarse_shares(self) -> list[float]:
        """Shares that are far apart."""
        powers = range(HALVINGS + 1 if self.task.together is not None else 0)
        return list(dict.fromkeys(self._snapped(2.0**-power) for power in powers))

    def _refine_shares(self) -> None:
        """Try shares between the best one and those next to it, each time half as far away."""
        joined = [candidate for candidate in self.found.known() if candidate.kind == "together"]
        for power in (0.5, 0.25, 0.125):
            if not joined or not self._may_win(best := self.best(joined)):
                return
            tried = {one.trial.share for one in joined}
            near = {self._snapped(best.trial.share * 2**step) for step in (power, -power)} - tried
            made = [self.plan(self._joined(share)) for share in sorted(near)]
            if not self.left(len(made) * self.batch_s() * REFINING_ROUNDS):
                raise OutOfTime
            self.measure([self.found.sequence(), best, *made], REFINING_ROUNDS)
            joined += [one for one in made if one.samples]

    def _may_win(self, best: Candidate) -> bool:
        """Whether the best plan of a kind is so close to the fastest one that plans next to it may win."""
        return self.ranking.relative(best) <= NOT_REFINED * min(map(self.ranking.relative, self.ranking.acceptable()))

    def _refine(self) -> None:
        self.runner.deadline = min(self.runner.deadline, self.began + self._search_until(REFINE_UNTIL))
        self._refine_shares()
        for kind in ("overlay", "partitions"):
            self._refine_kind(kind)

    def _refine_kind(self, kind: str) -> None:
        stride = max(1, len(self._sizes.sizes) // 8)
        while stride >= 1 and not self.is_full:
            best = self.best_partitions(kind)
            if best is None or best.allocation is None or not self._may_win(best):
                return
            near = [one for one in self._sizes.around(best.allocation, stride) if one not in self.tried]
            if near:
                affordable = self.left(self._opening_s(REFINING_ROUNDS))
                if not affordable:
                    raise OutOfTime
                self._try(near[:affordable], [self.found.sequence(), best], REFINING_ROUNDS)
            if self.best_partitions(kind) is best:
                stride //= 2

    def _try_again(self) -> None:
        """A second chance for the best plan of each kind that was left out: its first steps may have been slow ones."""
        found: dict[Kind | None, Candidate] = {}
        for candidate in sorted(self.found.known(), key=self.ranking.relative):
            found.setdefault(candidate.kind, candidate)
        again = [one for one in found.values() if not one.is_sequence and self.behind(one) > HOPELESS]
        for candidate in again:
            self.show(f"trying {candidate.plan} again")
            with self.forgiving(candidate, candidate.trial):
                self.runner.run_for(candidate.trial, self.runner.retry_s, lambda _: False)
                candidate.samples.clear()
                candidate.hopeless = False
        if again:
            best = min((one for one in found.values() if one not in again), key=self.ranking.relative)
            self.measure([*dict.fromkeys([self.found.sequence(), best]), *again], REFINING_ROUNDS)
