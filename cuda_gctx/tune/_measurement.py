"""All that was measured of some parts and plans: the decision, a report and its reasons are views of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

from cuda_gctx.measure.statistics import LEAST_PAIRS
from cuda_gctx.tune._objectives import Objective, weight_of
from cuda_gctx.tune._plans import KINDS, Kind, Plan
from cuda_gctx.tune._sizes import Allocation
from cuda_gctx.tune._work import PartFacts

__all__ = [
    "AS_GRAPHS",
    "BY_EACH_HOST",
    "BY_ONE_HOST",
    "Intervals",
    "Measurement",
    "R",
    "Record",
    "Sample",
    "launch_bound",
    "rate_of",
]

# How the work was enqueued, as reports say it.
AS_GRAPHS, BY_EACH_HOST, BY_ONE_HOST = "as graphs", "by a host thread for each part", "by one host thread"

Intervals: TypeAlias = dict[str, tuple[float, float]]  # when each part began and ended


@dataclass
class Sample:
    """The result of a batch.

    seconds: what the objective minimizes, of this batch alone. steps: how many of them it had. calls: for each part,
    how many completed, and in how many seconds. latencies: of each call, if the objective is a latency. settles:
    whether it is of the first part of a block, in which clocks and temperature are those of the block before.
    """

    seconds: float
    launch_bound: bool = False
    host_s: float = 0.0
    calls: dict[str, tuple[float, float]] = field(default_factory=dict)
    latencies: tuple[float, ...] = ()
    steps: int = 1
    settles: bool = False


def launch_bound(samples: Collection[Sample]) -> bool:
    """Whether the device waited for the host in most of the samples."""
    return 2 * sum(sample.launch_bound for sample in samples) > len(samples)


def rate_of(part: str, samples: Collection[Sample]) -> float | None:
    """How many calls of a part completed per second; None if they were not counted."""
    counted = [sample.calls[part] for sample in samples if part in sample.calls]
    seconds = sum(seconds for _, seconds in counted)
    return sum(calls for calls, _ in counted) / seconds if seconds > 0 else None


@dataclass(eq=False)
class Record:
    """What was measured of a plan, or of a part alone (`plan` is None).

    samples: by round. opening_of: which opening of the plan took part in a round; the first one, if not stated.
    sustained: blocks of the plan, each with the block of the sequence next to it.
    sm_clocks_mhz: the SM clock during a block of the plan and during that of the sequence, where they are known.
    allocation: what divides the SMs, if they are divided.
    steps: when the parts ran in some joined steps, by round. alone_here: the parts alone on the SMs that the plan gives
    them.
    """

    plan: Plan | None
    samples: dict[int, Sample] = field(default_factory=dict)
    opening_of: dict[int, int] = field(default_factory=dict)
    openings: int = 1
    sustained: list[tuple[list[Sample], list[Sample]]] = field(default_factory=list)
    sm_clocks_mhz: tuple[float, float] | None = None
    allocation: Allocation | None = None
    steps: dict[int, list[Intervals]] = field(default_factory=dict)
    alone_here: dict[str, Record] = field(default_factory=dict)

    def measured(self, final: int | None) -> dict[int, Sample]:
        """The samples; only those of the final rounds, which begin with `final`, if there are enough."""
        fresh = {number: one for number, one in self.samples.items() if final is not None and number >= final}
        return fresh if len(fresh) >= LEAST_PAIRS else self.samples

    def by_opening(self, final: int | None) -> list[dict[int, Sample]]:
        """The samples of the final rounds, for each opening."""
        openings: list[dict[int, Sample]] = [{} for _ in range(self.openings)]
        for number, sample in self.measured(final).items():
            openings[self.opening_of.get(number, 0)][number] = sample
        return openings

    def profiled(self, final: int | None) -> list[Intervals]:
        """The profiled steps; only those of the final rounds if there are any."""
        fresh = [steps for number, steps in self.steps.items() if final is not None and number >= final]
        return list(chain.from_iterable(fresh or self.steps.values()))

    def spent(self, name: str, final: int | None) -> list[float]:
        """How long a part took in the profiled steps, from when it could begin to its end."""
        return [step[name][1] - step[name][0] for step in self.profiled(final)]

    @property
    def kind(self) -> Kind | None:
        """Of the plan; None for a part alone."""
        return None if self.plan is None else self.plan.kind

    @property
    def is_sequence(self) -> bool:
        return self.kind == "sequence"

    @property
    def complexity(self) -> tuple[int, bool]:
        """The smaller, the simpler the plan."""
        assert self.plan is not None
        return KINDS.index(self.plan.kind), self.plan.library_sms


R = TypeVar("R", bound=Record)


@dataclass(eq=False)
class Measurement(Generic[R]):
    """What was measured so far, which may be looked at at any time.

    facts, alone: of each part by itself. plans: those that were opened; those without samples could not be measured.
    final: the number of the first final round, of which alone the decision is made; None before it.
    notes: what is to be reported. left_out: plans that could not be measured, by the reason.
    complete: whether all phases were run, with all divisions of the SMs.
    launched: how the work was enqueued.
    """

    parts: tuple[str, ...]
    objective: Objective
    launched: str = BY_ONE_HOST
    facts: dict[str, PartFacts] = field(default_factory=dict)
    alone: dict[str, R] = field(default_factory=dict)
    plans: list[R] = field(default_factory=list)
    final: int | None = None
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, list[object]] = field(default_factory=dict)
    complete: bool = False

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
    def by_host_threads(self) -> bool:
        return self.launched == BY_EACH_HOST

    def weight(self, part: str) -> int:
        """How many calls of a part are one step."""
        return weight_of(self.objective, part)

    def called_s(self) -> float:
        """How long it takes the host to call all that is one step."""
        return sum(facts.host_s * self.weight(name) for name, facts in self.facts.items())

    def known(self) -> list[R]:
        """The plans that have been measured."""
        return [record for record in self.plans if record.samples]

    def sequence(self) -> R:
        return next(record for record in self.plans if record.samples and record.is_sequence)

    @property
    def state(self) -> object:
        """Another value after anything was measured."""
        records = (*self.alone.values(), *self.plans)
        return [(len(one.samples), one.openings, len(one.sustained)) for one in records], self.final, self.objective
