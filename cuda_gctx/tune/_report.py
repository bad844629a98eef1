"""What the tuner found, as values that can be printed, kept as JSON, and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_type_hints

from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.table import table
from cuda_gctx.measure.statistics import Latency, Spread
from cuda_gctx.tune import _objectives
from cuda_gctx.tune._objectives import Objective, TailLatency
from cuda_gctx.tune._plans import LIBRARIES_TOLD, Plan, sizes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PartTime", "Report", "Result", "title_of", "words"]

SCHEMA = 1
MOST_ROWS = 16
WIDTH = 80  # of the table, if that is possible
LONGEST_NAME = 44  # of a plan; longer ones are told by their sizes alone
LEAST_SAMPLES = 5

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
class PartTime:
    """A part within a plan.

    sm_count: the SMs that it may use.
    seconds: for a call, from when it could begin to its end; waiting for SMs that another part has is in it.
    calls_per_second: where the parts do not wait for each other.
    alone: the seconds that it takes on the same SMs with nothing beside it, where that was measured.
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
    alone: the seconds of each part by itself on the whole device.
    bound: no plan can take less, but for noise.
    gain: how many times as long the sequence takes, from pairs measured one right after the other.
    gain_low, gain_high: an interval for it.
    sure: whether noise is ruled out, between the plans that were measured.
    reasons: why, in words.
    complete: False after Ctrl-C, if the budget was too small, or if the contexts did not suffice for all divisions of
    the SMs, which the reasons tell then.
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
        """The report that to_json() wrote. ValueError for anything else, which names the field."""
        told = json.loads(text)
        if not isinstance(told, Mapping) or told.get("schema") != SCHEMA:
            raise ValueError(f"this JSON is no report of schema {SCHEMA}")
        try:
            report = _made(
                cls,
                {name: value for name, value in told.items() if name != "schema"},
                "",
                choice=_plan,
                objective=_objective,
                results=lambda told, where: tuple(_each(told, where, _result)),
                alone=lambda told, where: _by_name(told, where, _spread),
                reasons=lambda told, where: tuple(_each(told, where, lambda text, where: _plain(str, text, where))),
            )
            report._demand_consistency()
        except (TypeError, ValueError) as error:
            raise ValueError(f"this JSON is no report of schema {SCHEMA}: {error}") from error
        return report

    def _demand_consistency(self) -> None:
        names = set(self.alone)
        try:
            _objectives.checked(self.objective, list(self.alone))
        except ValueError as error:
            raise ValueError(f"objective: {error}") from error
        for number, result in enumerate(self.results):
            if not set(result.plan.parts) == set(result.parts) == names:
                raise ValueError(f"results[{number}] is about other parts than alone")
        if self.choice not in [result.plan for result in self.results]:
            raise ValueError("choice is none of the plans in results")
        for field, seconds in {
            "bound": self.bound,
            **{f"alone.{name}.median": spread.median for name, spread in self.alone.items()},
            **{f"results[{n}].seconds.median": result.seconds.median for n, result in enumerate(self.results)},
        }.items():
            if seconds == 0:
                raise ValueError(f"{field} must be more than 0")

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
            lines.append("  - not complete: not all that there was to measure was measured")
        return "\n".join(lines)

    def _gain(self) -> str:
        if self.choice.kind == "sequence":
            return ": nothing is faster by more than noise" if self.sure else ": nothing was seen to be surely faster"
        told = f": {self.gain:.2f} x as fast as in sequence ({self.gain_low:.2f} to {self.gain_high:.2f})"
        return told if self.sure else f"{told}, not sure"

    def _table(self) -> str:
        """One table, or two where it is too wide: the objective, and what the parts did."""
        shown = self.foremost(MOST_ROWS)
        plans, briefly = names_of_plans(self, shown)
        names = [f"{'> ' if r.plan == self.choice else '  '}{name}" for r, name in zip(shown, plans, strict=True)]
        sequence = next((r.seconds.median for r in self.results if r.plan.kind == "sequence"), None)
        tail = isinstance(self.objective, TailLatency)
        header = [title_of(self.objective), "p10 to p90", "/sequence"]
        header += ["overlap"] if self.objective == "makespan" else []
        first = len(header)
        header += ["p50", "largest"] if tail else []
        header += [f"{name}{'' if self.objective == 'makespan' else ', calls/s'}" for name in self._columns()]
        rows: list[list[str | None]] = []
        for result in shown:
            seconds, latency = result.seconds, result.latency
            row = [words(seconds.median), _range(seconds), f"{seconds.median / sequence:.3f}" if sequence else None]
            if self.objective == "makespan":
                row.append(None if result.overlap is None else f"{result.overlap:.2f}")
            if tail:
                row += [words(latency.p50), words(latency.largest)] if latency is not None else [None, None]
            rows.append(row + [_told(result.parts[name]) for name in self._columns()])

        def columns(which: slice) -> str:
            cells = [[name, *row[which]] for name, row in zip(names, rows, strict=True)]
            return table(["plan", *header[which]], cells)

        told = columns(slice(None))
        if max(map(len, told.splitlines())) > WIDTH:
            told = f"{columns(slice(first))}\n\n{columns(slice(first, None))}"
        if briefly:
            told += "\n\n  with / between them: the SMs of the parts, in the order of the first line"
        if any(result.plan.library_sms for result in shown):
            told += "\n\n  told: libraries know the SM counts"
        hidden = len(self.results) - len(shown)
        return told + (f"\n  and {hidden} more, slower than the fastest of these" if hidden else "")

    def _columns(self) -> list[str]:
        critical = self.objective.part if isinstance(self.objective, TailLatency) else None
        return [name for name in self.alone if name != critical]

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """A picture of the results, as a figure of matplotlib; also written to `path` if one is given."""
        from cuda_gctx.tune._plot import plot

        return plot(self, path)


def names_of_plans(report: Report, results: Sequence[Result]) -> tuple[list[str], bool]:
    """What plans are called beside each other, and whether briefly: by the sizes alone, in the order of the parts."""
    briefly = max(len(str(result.plan)) for result in results) > LONGEST_NAME

    def name(plan: Plan) -> str:
        if not briefly or plan.layout is None:
            return str(plan).replace(LIBRARIES_TOLD, "told")
        sizes = sizes_of(plan)
        return "/".join(sizes[part] for part in report.alone) + (", told" if plan.library_sms else "")

    return [name(result.plan) for result in results], briefly


def _range(seconds: Spread) -> str | None:
    """From p10 to p90, where there are samples enough for that."""
    if seconds.samples < LEAST_SAMPLES:
        return None
    low, high = words(seconds.p10), words(seconds.p90)
    unit = high.split()[-1]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def _told(part: PartTime) -> str | None:
    if part.calls_per_second is not None:
        return f"{part.calls_per_second:.4g}"
    return words(part.seconds.median) if part.seconds is not None else None


# ---- from JSON: a reader takes what was told and where, and raises TypeError or ValueError that says where

Reader: TypeAlias = Callable[[Any, str], Any]


def _plain(kind: Any, told: Any, where: str) -> Any:
    """A text, a truth value or a number, which is never negative here; None where the kind allows it."""
    if told is None and type(None) in get_args(kind):
        return None
    kind = next((one for one in get_args(kind) if one is not type(None)), kind)
    if not isinstance(told, (int, float) if kind is float else kind) or (isinstance(told, bool) and kind is not bool):
        raise TypeError(f"{where} must be of type {kind.__name__}, not {type(told).__name__}")
    if kind in (int, float) and not 0 <= told < math.inf:
        raise ValueError(f"{where} must be a number of 0 or more, not {told}")
    return told


def _made(kind: type[Value], told: Any, where: str, **readers: Reader) -> Value:
    """A dataclass, of all its fields and no others."""
    kinds = get_type_hints(kind)
    at = f"{where}." if where else ""
    given = set(_mapping(told, where))
    for name in sorted(kinds.keys() ^ given):
        raise ValueError(f"{at}{name} is {'unknown' if name in given else 'missing'}")
    return kind(
        **{
            name: readers[name](told[name], at + name)
            if name in readers
            else _plain(kinds[name], told[name], at + name)
            for name in kinds
        }
    )


def _mapping(told: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(told, Mapping):
        raise TypeError(f"{where} must be an object, not {type(told).__name__}")
    return told


def _each(told: Any, where: str, read: Reader) -> list[Any]:
    if not isinstance(told, list):
        raise TypeError(f"{where} must be a list, not {type(told).__name__}")
    return [read(value, f"{where}[{number}]") for number, value in enumerate(told)]


def _by_name(told: Any, where: str, read: Reader) -> dict[str, Any]:
    return {name: read(value, f"{where}.{name}") for name, value in _mapping(told, where).items()}


def _optional(read: Reader) -> Reader:
    return lambda told, where: None if told is None else read(told, where)


def _plan(told: Any, where: str) -> Plan:
    try:
        return Plan.from_dict(told)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _objective(told: Any, where: str) -> Objective:
    try:
        return _objectives.from_json(told)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _spread(told: Any, where: str) -> Spread:
    return _made(Spread, told, where)


def _latency(told: Any, where: str) -> Latency:
    return _made(Latency, told, where)


def _part(told: Any, where: str) -> PartTime:
    return _made(PartTime, told, where, seconds=_optional(_spread), alone=_optional(_spread))


def _result(told: Any, where: str) -> Result:
    return _made(
        Result,
        told,
        where,
        plan=_plan,
        seconds=_spread,
        parts=lambda told, where: _by_name(told, where, _part),
        latency=_optional(_latency),
    )
