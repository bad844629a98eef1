"""The results of the tuner, as values that can be printed, stored as JSON, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from cuda_gctx._core.text import table
from cuda_gctx.draw.bars import Bar, draw_bars
from cuda_gctx.draw.svg import Pictured
from cuda_gctx.tune._json import Document
from cuda_gctx.tune._objectives import Objective, TailLatency, checked
from cuda_gctx.tune._plans import ALL, HINT, Plan
from cuda_gctx.tune._words import words

__all__ = ["Report", "Result", "title_of"]

MOST_ROWS, MOST_BARS, MOST_LINES = 7, 14, 20
# The axis of a picture ends a little behind the sequence: the bars of far slower plans are cut off.
BEHIND = 1.6
WIDTH = 160


def title_of(objective: Objective) -> str:
    """What the seconds of a result measure."""
    if objective == "makespan":
        return "step"
    if isinstance(objective, TailLatency):
        return f"p{objective.quantile * 100:g} of {objective.part}"
    return "mix"


@dataclass(frozen=True)
class Result:
    """The measurement of a plan.

    seconds: what the objective minimizes: a step, a mix, or the quantile of the latencies.
    relative: the same as a share of the sequence's: in the blocks of the finals, or in the race.
    finalist: whether the plan took part in the finals.
    p50: the median latency, if the objective is a latency.
    rates: the calls per second of the other parts, if the objective is a latency and they were counted.
    keeps: whether the other parts keep the rates that the objective demands.
    """

    plan: Plan
    seconds: float
    relative: float
    finalist: bool
    p50: float | None
    rates: Mapping[str, float]
    keeps: bool
    launch_bound: bool


@dataclass(frozen=True)
class Report(Document, Pictured):
    """The result of overlap(). ``print()`` it; the picture has a bar for each plan.

    choice: the plan to use; None if the evidence does not decide.
    best: the best estimate, which is no advice where `choice` is None.
    gain: the speedup of the choice, or of the best estimate, over the sequence, in blocks by turns if there was time.
    gain_low, gain_high: its confidence interval; None if there was no time for blocks.
    loses: the largest share of time that the choice may lose to another finalist; None while a plan is untried.
    sure: whether every plan was measured, the choice is separated from the other finalists, and its gain is sustained.
    complete: whether every plan was measured.
    horizon_s: the length of the blocks in which the gain was seen; None if there was no time for blocks.
    untried: the plans that were not measured.
    results: all measured plans, the fastest first; those that may not be chosen last.
    alone: the seconds of a call of each part alone on the whole device.
    bound: the longest part alone. A plan can hardly take less.
    launch: "calls" or "graphs".
    reasons: explanations.
    """

    schema = 6

    choice: Plan | None
    best: Plan
    objective: Objective
    gain: float
    gain_low: float | None
    gain_high: float | None
    loses: float | None
    sure: bool
    complete: bool
    horizon_s: float | None
    untried: tuple[Plan, ...]
    results: tuple[Result, ...]
    alone: dict[str, float]
    bound: float
    launch: str
    reasons: tuple[str, ...]
    device: str
    sm_count: int
    driver: str
    date: str

    def result(self, plan: Plan) -> Result:
        """The measurement of a plan.

        plan: the plan. Raises KeyError if it was not measured.
        """
        for result in self.results:
            if result.plan == plan:
                return result
        raise KeyError(f"this plan was not measured: {plan}")

    @property
    def launch_bound(self) -> bool:
        """Whether the device waits for the host in the plan that is chosen, or is best."""
        return self.result(self.choice or self.best).launch_bound

    def _demand_consistency(self) -> None:
        names = set(self.alone)
        try:
            checked(self.objective, list(self.alone))
        except ValueError as error:
            raise ValueError(f"objective: {error}") from error
        measured = [result.plan for result in self.results]
        for number, plan in enumerate(measured):
            if set(plan.parts) != names:
                raise ValueError(f"results[{number}] has other parts than alone")
        for name, chosen in (("choice", self.choice), ("best", self.best)):
            if chosen is not None and chosen not in measured:
                raise ValueError(f"{name} is not a plan of results")
        if not any(plan.kind == "sequence" for plan in measured):
            raise ValueError("results has no sequence")
        if self.sure and (self.choice is None or not self.complete):
            raise ValueError("sure needs a choice, and a complete measurement")
        low, high = self.gain_low, self.gain_high
        if (low is not None and low > self.gain * (1 + 1e-9)) or (high is not None and high < self.gain * (1 - 1e-9)):
            raise ValueError(f"gain: the interval from {low} to {high} does not contain {self.gain:g}")
        seconds = {f"alone.{name}": one for name, one in self.alone.items()}
        seconds |= {f"results[{number}].seconds": one.seconds for number, one in enumerate(self.results)}
        for field_, value in {"bound": self.bound, **seconds}.items():
            if value == 0:
                raise ValueError(f"{field_} must be more than 0")

    # ---- for people

    def __repr__(self) -> str:
        return f"<Report: {self._answer()}; {' and '.join(self.alone)} on {self.device}>"

    def __str__(self) -> str:
        shown = self.result(self.choice or self.best)
        lines = [
            self._answer(),
            f"{title_of(self.objective)} {words(shown.seconds)}, {shown.seconds / self.bound:.2f}x the longest part "
            f"alone ({words(self.bound)})",
            f"{self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}: {' and '.join(self.alone)}",
            "",
            *self._table(),
            "",
        ]
        room = MOST_LINES - len(lines)
        shortened = [f"- {shorten(reason, WIDTH, placeholder=' ...')}" for reason in self.reasons]
        if len(shortened) > room:
            shortened = [*shortened[: room - 1], f"- and {len(shortened) - room + 1} more: see report.reasons"]
        return "\n".join([*lines, *shortened])

    def _answer(self) -> str:
        """What to do, how much it gains, and how certain that is."""
        gain = f"{self.gain:.2f}x"
        if self.gain_low is not None and self.gain_high is not None:
            gain += f" ({self.gain_low:.2f} to {self.gain_high:.2f})"
        if self.choice is None:
            text = f"undecided; best estimate: {self.best}, {gain} over sequential"
            change = next((one for reason in self.reasons for one in reason.split("; ") if "still changing" in one), "")
            return text + (f"; {change.removeprefix('not sure: ')}" if change else "")
        if self.choice.kind == "sequence":
            text = f"choice: in sequence; no other plan{self._demand()} is faster by more than 2%"
        else:
            text = f"choice: {self.choice}; {gain} over sequential"
        if self.sure:
            text += f", sure, sustained for {self.horizon_s:.2g} s"
        elif self.loses is not None:
            text += f", not sure; another plan may be faster by at most {self.loses:.1%}"
        else:
            text += ", not sure"
        return text + ("; launch-bound: capture it as a graph" if self.launch_bound and self.launch == "calls" else "")

    def _demand(self) -> str:
        """The demand on plans that some of the faster ones do not meet, in words."""
        if all(one.keeps or one.relative >= 1 for one in self.results):
            return ""
        assert isinstance(self.objective, TailLatency)
        return f" that leaves the others {self.objective.others:.0%} of their rate"

    def _foremost(self, most: int) -> list[Result]:
        """The choice or best estimate, the fastest results, and the sequence."""
        first = self.result(self.choice or self.best)
        sequence = next(result for result in self.results if result.plan.kind == "sequence")
        others = [result for result in self.results if result not in (first, sequence)]
        kept = [*others[: most - 2], *([] if first is sequence else [sequence])]
        return [first, *sorted(kept, key=lambda one: (not one.keeps, one.relative))]

    def _table(self) -> list[str]:
        shown = self._foremost(MOST_ROWS)
        columns: dict[str, Sequence[object]] = {
            "plan": [f"{'> ' if one.plan == self.choice else '  '}{self._name(one.plan)}" for one in shown],
            title_of(self.objective): [words(one.seconds) for one in shown],
            "/sequence": [f"{one.relative:.3f}" for one in shown],
            "in": ["blocks" if one.finalist else "race" for one in shown],
        }
        if isinstance(self.objective, TailLatency):
            columns["p50"] = [None if one.p50 is None else words(one.p50) for one in shown]
            for name in self.alone:
                if name != self.objective.part:
                    rates = [one.rates.get(name) for one in shown]
                    columns[f"{name}, calls/s"] = [None if rate is None else f"{rate:.4g}" for rate in rates]
        hidden = len(self.results) - len(shown)
        more = [f"  and {hidden} further plans"] if hidden else []
        if isinstance(self.objective, TailLatency) and not all(one.keeps for one in self.results):
            more.append(f"  a plan is chosen only if the others keep {self.objective.others:.0%} of their rate")
        return [*table(list(columns), list(zip(*columns.values(), strict=True))).splitlines(), *more]

    @staticmethod
    def _name(plan: Plan) -> str:
        return shorten(str(plan).replace(HINT, "hint"), 60, placeholder="...")

    # ---- the picture

    def _title_of_page(self) -> str:
        return f"{' and '.join(self.alone)}: {self.device}"

    def _picture(self) -> str:
        tail = isinstance(self.objective, TailLatency)
        shown = self._foremost(MOST_BARS)
        bars = []
        for result in shown:
            text = words(result.seconds)
            text += "".join(f"; {name} {rate:.4g} calls/s" for name, rate in result.rates.items())
            bars.append(Bar(self._name(result.plan), result.seconds * 1e9, text, result.plan == self.choice))
        sequence = next(result.seconds for result in shown if result.plan.kind == "sequence")
        slowest = max(bar.ns for bar in bars)
        notes = [f"{ALL}: on the whole device with the highest priority, over the others"]
        return draw_bars(
            " and ".join(self.alone),
            f"{self.device}, driver {self.driver}, {self.date}: {self._answer()}",
            title_of(self.objective),
            bars,
            self.bound * 1e9,
            slowest * 1.5 if tail else min(slowest * 1.02, BEHIND * sequence * 1e9),
            logarithmic=tail,
            notes=notes if any(result.plan.kind == "overlay" for result in shown) else (),
        )
