"""All that was measured of some parts and plans: a report, its reasons and its pictures are views of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from cuda_gctx.tune._objectives import Objective, Throughput
from cuda_gctx.tune._ranking import R, Ranking
from cuda_gctx.tune._work import PartFacts

__all__ = ["Measurement"]


@dataclass(eq=False)
class Measurement(Generic[R]):
    """What was measured so far, which may be looked at at any time.

    facts, alone: of each part by itself. plans: those that were opened; those without samples could not be measured.
    final: the number of the first final round, of which alone the decision is made; None before it.
    notes: what is to be reported. left_out: plans that could not be measured, by the reason.
    complete: whether all phases were run, with all divisions of the SMs.
    by_host_threads, as_graphs: how the work was enqueued, if not by one host thread.
    """

    parts: tuple[str, ...]
    objective: Objective
    as_graphs: bool = False
    by_host_threads: bool = False
    facts: dict[str, PartFacts] = field(default_factory=dict)
    alone: dict[str, R] = field(default_factory=dict)
    plans: list[R] = field(default_factory=list)
    final: int | None = None
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, list[object]] = field(default_factory=dict)
    complete: bool = False
    _ranking: tuple[object, Ranking[R]] | None = field(default=None, repr=False)

    def note(self, text: str) -> None:
        """Have something reported, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def can_answer(self) -> bool:
        """Whether enough is known for an answer: the parts alone, and the sequence."""
        return (
            len(self.alone) == len(self.parts)
            and all(record.samples for record in self.alone.values())
            and any(record.is_sequence for record in self.known())
        )

    @property
    def launched(self) -> str:
        """How the work was enqueued."""
        if self.as_graphs:
            return "as graphs"
        return "by a host thread for each part" if self.by_host_threads else "by one host thread"

    def weight(self, part: str) -> int:
        """How many calls of a part are one step."""
        return self.objective.weights[part] if isinstance(self.objective, Throughput) else 1

    def known(self) -> list[R]:
        """The plans that have been measured."""
        return [record for record in self.plans if record.samples]

    def sequence(self) -> R:
        return next(record for record in self.plans if record.samples and record.is_sequence)

    @property
    def ranking(self) -> Ranking[R]:
        """The comparison of all that has been measured so far."""
        records = (*self.alone.values(), *self.plans)
        state = [(len(one.samples), one.openings, len(one.sustained)) for one in records], self.final, self.objective
        if self._ranking is None or self._ranking[0] != state:
            self._ranking = state, Ranking(self.objective, self.plans, self.alone, self.final)
        return self._ranking[1]

    def best_of_kinds(self) -> list[R]:
        """The fastest plan of each kind, of those that can be chosen."""
        found: dict[str, R] = {}
        for record in sorted(self.ranking.acceptable(), key=self.ranking.relative):
            if record.plan is not None:
                found.setdefault(record.plan.kind, record)
        return list(found.values())
