"""What the tuner found, as values that can be printed, kept as JSON, and drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_gctx._durations import in_words
from cuda_gctx._table import table
from cuda_gctx.tune import _objectives
from cuda_gctx.tune._objectives import Objective, TailLatency
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._statistics import Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Latency", "PartTime", "Report", "Result", "title_of", "words"]

SCHEMA = 1
MOST_ROWS = 16

Value = TypeVar("Value")


def words(seconds: float) -> str:
    """A time for people."""
    return in_words(seconds * 1e9)


def title_of(objective: Objective) -> str:
    """What the seconds of a result are."""
    if objective == "makespan":
        return "step"
    if isinstance(objective, TailLatency):
        return f"p{objective.quantile * 100:g} of {objective.part}"
    return "mix"


@dataclass(frozen=True)
class Latency:
    """The calls of the critical part, in seconds, those of all batches together."""

    p50: float
    p90: float
    p99: float
    largest: float
    calls: int


@dataclass(frozen=True)
class PartTime:
    """A part within a plan.

    sm_count: the SMs that it may use. seconds: for a call, from when it could begin to its end; waiting for SMs that
    another part has is in it. calls_per_second: where the parts do not wait for each other. alone: the seconds that the
    part takes on the same SMs with nothing beside it, where that was measured.
    """

    sm_count: int
    seconds: Spread | None
    calls_per_second: float | None
    alone: Spread | None


@dataclass(frozen=True)
class Result:
    """A plan as it was measured.

    seconds: what the objective is about: a step, a mix, or the quantile of the latency, of each batch.
    overlap: the time in which parts were seen to run at once, as a share of what is possible; for the makespan alone.
    """

    plan: Plan
    seconds: Spread
    parts: dict[str, PartTime]
    overlap: float | None
    latency: Latency | None
    launch_bound: bool


@dataclass(frozen=True)
class Report:
    """The answer of overlap().

    choice: the plan to use: the simplest one that no other beats by more than noise.
    results: all plans that were measured, the fastest first.
    alone: the seconds of each part by itself on the whole device; bound: no plan can take less.
    gain: how many times as long the sequence takes, from pairs measured one right after the other; gain_low and
    gain_high are an interval for it. sure: whether noise is ruled out.
    reasons: why, in words. complete: False after Ctrl-C, or if the budget was too small.
    """

    choice: Plan
    objective: Objective
    results: tuple[Result, ...]
    alone: dict[str, Spread]
    bound: float
    gain: float
    gain_low: float
    gain_high: float
    sure: bool
    reasons: tuple[str, ...]
    complete: bool
    device: str
    sm_count: int
    driver: str
    date: str

    @property
    def plan(self) -> Plan:
        """The same as choice."""
        return self.choice

    def result(self, plan: Plan) -> Result:
        """What was measured of a plan."""
        for result in self.results:
            if result.plan == plan:
                return result
        raise KeyError(f"no plan like this was measured: {plan}")

    def foremost(self, most: int) -> list[Result]:
        """The fastest so many, and in any case the choice and the fastest of each kind."""
        first_of_kind = {result.plan.kind: result for result in reversed(self.results)}
        kept = [self.result(self.choice), *first_of_kind.values()]
        return [result for i, result in enumerate(self.results) if i < most or result in kept]

    # ---- JSON

    def to_json(self) -> str:
        """The report as JSON, which from_json() reads."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told["schema"] = SCHEMA
        told["choice"] = self.choice.to_dict()
        told["objective"] = _objectives.to_json(self.objective)
        told["alone"] = {name: asdict(spread) for name, spread in self.alone.items()}
        told["results"] = [
            {
                **{field.name: getattr(result, field.name) for field in fields(result)},
                "plan": result.plan.to_dict(),
                "seconds": asdict(result.seconds),
                "parts": {name: asdict(part) for name, part in result.parts.items()},
                "latency": asdict(result.latency) if result.latency is not None else None,
            }
            for result in self.results
        ]
        return json.dumps(told, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that to_json() wrote. ValueError for anything else."""
        told = json.loads(text)
        if not isinstance(told, Mapping) or told.get("schema") != SCHEMA:
            raise ValueError(f"this JSON is no report of schema {SCHEMA}")
        try:
            return _made(
                cls,
                {name: value for name, value in told.items() if name != "schema"},
                choice=Plan.from_dict(told["choice"]),
                objective=_objectives.from_json(told["objective"]),
                results=tuple(map(_result, told["results"])),
                alone={name: _made(Spread, spread) for name, spread in told["alone"].items()},
                reasons=tuple(told["reasons"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this JSON is no report of schema {SCHEMA}: {error!r}") from error

    # ---- for people

    def __str__(self) -> str:
        chosen = self.result(self.choice).seconds.median / self.bound
        lines = [
            f"{self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}: {' beside '.join(self.alone)}",
            "",
            self._table(),
            "",
            f"bound  {words(self.bound)}; the choice takes {chosen:.2f} x as long",
            f"choice {self.choice}{self._gain()}",
        ]
        lines += [f"  - {reason}" for reason in self.reasons]
        if not self.complete:
            lines.append("  - not complete: it was ended before all was measured")
        return "\n".join(lines)

    def _gain(self) -> str:
        if self.choice.kind == "sequence":
            return ": nothing is faster by more than noise" if self.sure else ": nothing was seen to be surely faster"
        told = f": {self.gain:.2f} x as fast as in sequence ({self.gain_low:.2f} to {self.gain_high:.2f})"
        return told if self.sure else f"{told}, not sure"

    def _table(self) -> str:
        sequence = next((r.seconds.median for r in self.results if r.plan.kind == "sequence"), None)
        header = ["plan", title_of(self.objective), "p10 to p90", "to sequence"]
        tail = isinstance(self.objective, TailLatency)
        header += ["p50", "largest"] if tail else ["overlap"] if self.objective == "makespan" else []
        header += [f"{name}{'' if self.objective == 'makespan' else ', calls/s'}" for name in self._columns()]
        rows: list[list[object]] = []
        shown = self.foremost(MOST_ROWS)
        for result in shown:
            seconds = result.seconds
            row: list[object] = [
                f"{'> ' if result.plan == self.choice else '  '}{result.plan}",
                words(seconds.median),
                f"{words(seconds.p10)} to {words(seconds.p90)}",
                f"{seconds.median / sequence:.3f}" if sequence else None,
            ]
            if tail:
                row += [words(result.latency.p50), words(result.latency.largest)] if result.latency else [None, None]
            elif self.objective == "makespan":
                row.append(None if result.overlap is None else f"{result.overlap:.2f}")
            row += [_told(result.parts[name]) for name in self._columns()]
            rows.append(row)
        hidden = len(self.results) - len(shown)
        return table(header, rows) + (f"\n  and {hidden} more, slower than the fastest of these" if hidden else "")

    def _columns(self) -> list[str]:
        critical = self.objective.part if isinstance(self.objective, TailLatency) else None
        return [name for name in self.alone if name != critical]

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """A picture of the results, as a figure of matplotlib; also written to `path` if one is given."""
        from cuda_gctx.tune._plot import plot

        return plot(self, path)


def _told(part: PartTime) -> str | None:
    if part.calls_per_second is not None:
        return f"{part.calls_per_second:.4g}"
    return words(part.seconds.median) if part.seconds is not None else None


def _made(kind: type[Value], told: Mapping[str, Any], **read: Any) -> Value:
    """A dataclass of these fields; TypeError if it has others."""
    return kind(**{**told, **read})


def _optional(kind: type[Value], told: Any) -> Value | None:
    return None if told is None else _made(kind, told)


def _part(told: Any) -> PartTime:
    return _made(PartTime, told, seconds=_optional(Spread, told["seconds"]), alone=_optional(Spread, told["alone"]))


def _result(told: Any) -> Result:
    return _made(
        Result,
        told,
        plan=Plan.from_dict(told["plan"]),
        seconds=_made(Spread, told["seconds"]),
        parts={name: _part(part) for name, part in told["parts"].items()},
        latency=_optional(Latency, told["latency"]),
    )
