"""Rounds: a batch of each plan in random order, within the time that is left, and what the last ones showed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from cuda_gctx._core import clock
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.tune._guard import Sitting
from cuda_gctx.tune._measure import BATCH_S
from cuda_gctx.tune._measurement import BY_EACH_HOST, Sample, launch_bound
from cuda_gctx.tune._objectives import TailLatency, critical_part
from cuda_gctx.tune._openings import Candidate, Openings
from cuda_gctx.tune._ranking import HOPELESS, Ranking
from cuda_gctx.tune._work import Task

__all__ = ["Rounds"]

# A plan is left out after two rounds, or at once if it is so much slower than the best.
HOPELESS_AT_ONCE = 1.5


class Rounds(Openings):
    """Measures the plans of a task in rounds.

    number: of the next round. fair: the rounds in which every plan that was not left out took part.
    """

    def __init__(self, task: Task, held: Sitting) -> None:
        super().__init__(task, held)
        self.number = 0
        self.fair: set[int] = set()
        self.random = random.Random(task.seed)
        self._ranking: Ranking[Candidate] | None = None

    @property
    def ranking(self) -> Ranking[Candidate]:
        """The comparison of all that has been measured so far."""
        if self._ranking is None or not self._ranking.is_current:
            self._ranking = Ranking(self.found)
        return self._ranking

    def batch_s(self) -> float:
        """How long a batch of a plan takes at the least: a few steps, one long step, or the calls of a latency."""
        if isinstance(self.found.objective, TailLatency):
            return max(BATCH_S, self.runner.latency_batch_s(self.task.parts, self.found.objective))
        sequence = self.found.plans[0]
        return max(BATCH_S, sequence.trial.pace_s, sequence.batch_s)

    def round_s(self, candidates: Iterable[Candidate]) -> float:
        """How long a round of some plans takes."""
        batch_s = self.batch_s()
        return sum(max(candidate.batch_s, batch_s) for candidate in candidates)

    def left(self, per_round_s: float, reserve_s: float = 0.0) -> int:
        """How many rounds of a length fit before the deadline, if some time is kept."""
        return max(0, int((self.runner.deadline - clock.now() - reserve_s) / max(per_round_s, 1e-6)))

    def durations(self) -> dict[str, float]:
        """How long the calls of a step of each part take alone."""
        return {name: alone_s * self.found.weight(name) for name, alone_s in self.runner.alone_s.items()}

    def open_gate(self, settled: Sequence[Sample]) -> bool:
        """Whether the work is launch-bound, and is measured without a gate from now on, by a host thread for each part
        if threads may be used. Earlier samples do not count then.
        """
        runner = self.runner
        if not runner.gated or not self._is_launch_bound(settled):
            return False
        runner.gated = False
        if runner.launch == "auto":
            self.start_hosts()
        for candidate in (*self.found.alone.values(), *self.found.plans):
            candidate.samples.clear()
            candidate.steps.clear()
            if runner.hosts is not None:
                self.warm(candidate)
        return True

    def start_hosts(self) -> None:
        """Start new host threads, and let them enqueue steps that do not count: first calls of a thread take longer."""
        self.found.launched = BY_EACH_HOST
        self.runner.start_hosts(self.task.names)
        [streams] = [c for c in self.found.plans if c.kind == "streams"]
        self.warm(streams)

    def _is_launch_bound(self, settled: Sequence[Sample]) -> bool:
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
        if self.runner.launch != "graphs" and self.found.called_s() >= max(self.durations().values()):
            return True
        return launch_bound([*settled, *self.found.sequence().samples.values()])

    def measure(
        self, candidates: Sequence[Candidate], number: int, drop: bool = True, look: Sequence[Candidate] = ()
    ) -> None:
        """Measure each candidate in each round, in random order.

        drop: leave out those that cannot win any more. look: those that are profiled in each round, not only once.
        """
        for _ in range(number):
            current, is_first = self.number, not self.found.can_answer
            self.number += 1
            taking_part = [candidate for candidate in candidates if not candidate.hopeless]
            if self.found.by_host_threads:
                # How fast threads enqueue depends on how they are scheduled: one start of them says nothing about the
                # next one.
                self.start_hosts()
            shape = self.runner.shape([candidate.trials[candidate.turn(current)] for candidate in taking_part])
            order = [candidate for _, candidate in in_rounds(taking_part, 1, self.random)]
            if is_first:  # what every answer needs comes first, as the time may end
                order.sort(key=lambda candidate: candidate.plan is not None and not candidate.is_sequence)
            for candidate in order:
                self.show(f"measuring {candidate.plan or 'each part alone'}")
                began = clock.now()
                trial = candidate.trials[candidate.turn(current)]
                with self.forgiving(candidate, trial):
                    candidate.samples[current] = self.runner.batch(trial, shape)
                    candidate.opening_of[current] = candidate.turn(current)
                    candidate.batch_s = clock.now() - began
                    profiled = self.found.objective == "makespan" and trial.joint is None
                    if profiled and (not candidate.steps or candidate in look):
                        candidate.steps[current] = self.runner.profile(candidate.trial)
            if drop or is_first:
                self.fair.add(current)
            if drop:
                self._drop()

    def behind(self, candidate: Candidate) -> float:
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
                for number in candidate.samples.keys() & self.fair
            ),
            default=1.0,
        )

    def _drop(self) -> None:
        for candidate in self.found.known():
            # The sequence and the plain streams stay, because the report compares with them.
            if candidate.kind not in ("sequence", "streams"):
                limit = HOPELESS if len(candidate.samples) > 1 else HOPELESS_AT_ONCE
                accepted = self.ranking.accepts(candidate, leniently=True)
                candidate.hopeless = self.behind(candidate) > limit or not accepted

    def best_partitions(self, kind: str | None = None) -> Candidate | None:
        """The best plan with partitions, or of a kind of these."""
        found = [c for c in self.found.known() if c.allocation is not None and kind in (None, c.kind)]
        return self.best(found) if found else None

    def best(self, candidates: Iterable[Candidate]) -> Candidate:
        """The fastest of some plans, of those that can be chosen if there are any."""
        return min(candidates, key=lambda c: (not self.ranking.accepts(c), self.ranking.relative(c)))
