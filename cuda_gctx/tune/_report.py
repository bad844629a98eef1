"""The results of the tuner, as values that can be printed, stored as JSON, and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from textwrap import fill

from cuda_gctx._core.extension import as_int
from cuda_gctx._core.text import table
from cuda_gctx.draw.bars import Bar, Piece, draw_bars
from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.svg import Pictured
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import Estimate
from cuda_gctx.measure.summaries import Spread
from cuda_gctx.tune._json import Document
from cuda_gctx.tune._measurement import AS_GRAPHS
from cuda_gctx.tune._objectives import Objective, TailLatency, checked, critical_part, weight_of
from cuda_gctx.tune._plans import ALL, HINT, Plan, sizes_of

__all__ = ["PartTime", "Report", "Result", "relation", "times", "title_of", "words"]

MOST_ROWS, MOST_BARS = 16, 14
# The axis of a picture ends a little behind the sequence and the choice: the bars of far slower plans are cut off.
BEHIND = 1.6
WIDTH = 80  # of the table, if possible
LONGEST_NAME = 44  # of a plan; longer ones are shortened to the sizes


def words(seconds: float) -> str:
    """A time as text."""
    return in_words(seconds * 1e9)


def times(ratio: Estimate, what: str = "") -> str:
    """A ratio of `what` with its interval: "1.35x (1.31 to 1.40)"."""
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.is_known else "inconclusive: too few samples"
    return f"{ratio.value:.2f}x{what} ({interval})"


def relation(ratio: Estimate, than: str = "") -> str:
    """A ratio of times in words, with its interval: "1.35x slower than the choice (1.31 to 1.40)"."""
    return times(ratio, f" slower{than}") if ratio.value >= 1 else times(ratio.inverse, f" faster{than}")


def title_of(objective: Objective) -> str:
    """What the seconds of a result measure."""
    if objective == "makespan":
        return "step"
    if isinstance(objective, TailLatency):
        return f"p{objective.quantile * 100:g} of {objective.part}"
    return "mix"


@dataclass(frozen=True)
class PartTime:
    """A part within a plan.

    sm_count: the number of SMs that it may use.
    seconds: of a call, from when it could begin to its end, including the wait for SMs that another part occupies.
    calls_per_second: if the parts do not wait for each other.
    alone: the seconds on the same SMs without the other parts, if that was measured.
    """

    sm_count: int
    seconds: Spread | None
    calls_per_second: float | None
    alone: Spread | None


@dataclass(frozen=True)
class Result:
    """The measurement of a plan.

    seconds: what the objective minimizes: the median step, the mean time of a mix, or the quantile of the latencies of
    all calls; with the 10th and 90th percentile of the batches.
    relative: the time as a share of the sequence's in the same rounds. Plans are compared by this, because clocks fall
    while the chip gets hot, and plans that were left out early were measured with higher ones.
    overlap: the time in which parts overlapped, as a share of the possible time; only for the makespan.
    p50, largest: the median and the largest latency of all calls, if the objective is a latency.
    sm_clock_mhz: the SM clock while the plan ran for some time; None if that was not measured.
    """

    plan: Plan
    seconds: Spread
    relative: float
    parts: dict[str, PartTime]
    overlap: float | None
    p50: float | None
    largest: float | None
    sm_clock_mhz: float | None
    launch_bound: bool


@dataclass(frozen=True)
class Report(Document, Pictured):
    """The result of overlap(). ``print()`` it; the picture has a bar per plan, its parts, its spread, and the bound.

    choice: the plan to use: the simplest one that no other beats by more than the margin.
    results: all measured plans, fastest first (by `relative`).
    alone: the seconds of each part alone on the whole device.
    bound: the longest part alone. A plan can take less only by noise and clocks, if the work is launch-bound, or if a
    library with an SM count hint is faster than without one.
    gain: the speedup over the sequence, in blocks of one to two seconds by turns if these were measured; otherwise the
    median ratio over pairs of batches of the same round.
    gain_low, gain_high: its confidence interval. It covers the noise in this process, and the differences between
    openings of a plan.
    sure: whether no other finalist is faster than the choice by more than 1%, openings included, as measured in such
    blocks; if not, the reasons say why.
    regret: the largest share of time that this choice may lose, compared with the other finalists; None if too few
    samples were taken.
    margin: the relative difference that counts as none between typical plans: 1%, and what equal ones may differ by
    because each was opened `openings` times only.
    launch: how the work was enqueued.
    reasons: explanations.
    complete: False after Ctrl-C, or if the budget or the device memory was too small for all divisions of the SMs; the
    reasons then say so.
    conditions: commit, clocks, power limit and temperature at the beginning and at the end.
    """

    schema = 5

    choice: Plan
    objective: Objective
    results: tuple[Result, ...]
    alone: dict[str, Spread]
    bound: float
    gain: float
    gain_low: float
    gain_high: float
    sure: bool
    regret: float | None
    margin: float
    openings: int
    launch: str
    reasons: tuple[str, ...]
    complete: bool
    device: str
    sm_count: int
    driver: str
    date: str
    conditions: tuple[Conditions, ...]

    def result(self, plan: Plan) -> Result:
        """The measurement of a plan.

        plan: the plan. Raises KeyError if it was not measured.
        """
        for result in self.results:
            if result.plan == plan:
                return result
        raise KeyError(f"this plan was not measured: {plan}")

    def foremost(self, most: int) -> list[Result]:
        """The choice, the fastest results, `most` of them, and always the fastest of each kind."""
        most = as_int("most", most, 0)
        chosen = self.result(self.choice)
        first_of_kind = {result.plan.kind: result for result in reversed(self.results)}
        kept = [result for i, result in enumerate(self.results) if i < most or result in first_of_kind.values()]
        return [chosen, *(result for result in kept if result != chosen)]

    def compare(self, other: Report) -> str:
        """The same plans in two reports, as a table; the first lines are both choices and the differences in
        conditions.

        ValueError if the reports are of other work, another objective or another card, or if the power limit or the
        highest clocks differ. Different clocks at the end are stated: then only the shares of the sequence compare.
        """
        ours, theirs = self.conditions[-1:], other.conditions[-1:]
        states = [first.other_state(second) for first, second in zip(ours, theirs, strict=False)]
        for what, first, second in (
            ("card", self.device, other.device),
            ("objective", self.objective, other.objective),
            ("parts", set(self.alone), set(other.alone)),
            *((", ".join(state), "of one run", "of the other") for state in states if state),
        ):
            if first != second:
                raise ValueError(f"these reports cannot be compared: {what} is {first} and {second}")
        lines = [f"first: {self._answer()}", f"second: {other._answer()}"]
        changed = [text for first, second in zip(ours, theirs, strict=False) for text in first.differences(second)]
        if changed:
            lines.append(f"other power states at the end, so only shares of the sequence compare: {'; '.join(changed)}")
        elif not any(conditions.sm_clock_mhz is not None for conditions in (*ours, *theirs)):
            lines.append("the power states are unknown")
        again = {result.plan: result for result in other.results}
        rows = []
        for result in self.foremost(MOST_ROWS):
            if (same := again.get(result.plan)) is not None:
                seconds = [words(one.seconds.value) for one in (result, same)]
                shares = [result.relative, same.relative, same.relative / result.relative]
                rows.append([str(result.plan), *seconds, *(f"{share:.3f}" for share in shares)])
        header = ("plan", f"{title_of(self.objective)}, first", "second", "/sequence, first", "second", "ratio")
        return "\n".join([*lines, table(header, rows)])

    def _demand_consistency(self) -> None:
        names = set(self.alone)
        try:
            checked(self.objective, list(self.alone))
        except ValueError as error:
            raise ValueError(f"objective: {error}") from error
        for number, result in enumerate(self.results):
            if not set(result.plan.parts) == set(result.parts) == names:
                raise ValueError(f"results[{number}] has other parts than alone")
        if self.choice not in [result.plan for result in self.results]:
            raise ValueError("choice is not a plan of results")
        try:
            _ = self._gain
        except ValueError as error:
            raise ValueError(f"gain: {error}") from error
        seconds = {f"alone.{name}.value": spread.value for name, spread in self.alone.items()}
        seconds |= {f"results[{number}].seconds.value": one.seconds.value for number, one in enumerate(self.results)}
        for field in [field for field, value in {"bound": self.bound, **seconds}.items() if value == 0]:
            raise ValueError(f"{field} must be more than 0")

    # ---- for people

    @property
    def _gain(self) -> Estimate:
        """The gain with its interval. ValueError if these are not one quantity."""
        samples = self.result(self.choice).seconds.samples
        return Estimate(self.gain, self.gain_low, self.gain_high, samples, True)

    def __repr__(self) -> str:
        return f"<Report: {self._answer()}; {' and '.join(self.alone)} on {self.device}>"

    def __str__(self) -> str:
        chosen = self.result(self.choice).seconds.value / self.bound
        title = title_of(self.objective)
        lines = [
            self._answer(),
            f"{title} {words(self.result(self.choice).seconds.value)}, {chosen:.2f}x the longest part alone "
            f"({words(self.bound)})",
            f"{self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}: {' and '.join(self.alone)}",
            "",
            self._table(),
            "",
        ]
        lines += [f"- {reason}" for reason in self.reasons]
        if not self.complete:
            lines.append("- incomplete: some measurements are missing")
        return "\n".join(lines)

    def _answer(self) -> str:
        """What to do, how much it gains, and how certain that is."""
        if self.choice.kind == "sequence":
            certainty = "is faster by more than noise" if self.sure else "was measured to be faster with certainty"
            text = f"choice: in sequence; no other plan {certainty}"
        else:
            text = f"choice: {self.choice}; {times(self._gain, ' speedup over sequential')}"
        if not self.sure:
            text += "; what it may lose is unknown" if self.regret is None else f"; it loses at most {self.regret:.1%}"
        waits = self.result(self.choice).launch_bound and self.launch != AS_GRAPHS
        return text + ("; but launch-bound: use CUDA graphs first" if waits else "")

    def _table(self) -> str:
        """One table that fits a terminal: beyond that, plans are shortened to their sizes, and columns are left out."""
        shown = self.foremost(MOST_ROWS)
        columns = self._columns(shown)
        order = ["p50", "largest", "overlap", *map(self._title, reversed(self.alone))]
        expendable = [title for title in order if title in columns]
        for number, briefly in product(range(len(expendable) + 1), (False, True)):
            names, is_brief = names_of_plans(self, shown, briefly=briefly)
            left = {title: cells for title, cells in columns.items() if title not in expendable[:number]}
            marked = [f"{'> ' if r.plan == self.choice else '  '}{name}" for r, name in zip(shown, names, strict=True)]
            text = table(["plan", *left], list(zip(marked, *left.values(), strict=True)))
            if max(map(len, text.splitlines())) <= WIDTH:
                break
        notes = self._notes(shown, "line above the table", briefly=is_brief)
        if number:
            notes.append(f"left out for width: {', '.join(expendable[:number])}; to_json() has all columns")
        below = [fill(note, WIDTH, initial_indent="  ", subsequent_indent="  ") for note in notes]
        return "\n".join([text, *([""] if below else []), *below])

    def _columns(self, shown: Sequence[Result]) -> dict[str, list[str | None]]:
        """The columns behind that of the plans, by title."""
        columns: dict[str, list[str | None]] = {
            title_of(self.objective): [words(r.seconds.value) for r in shown],
            "/sequence": [f"{r.relative:.3f}" for r in shown],
        }
        if self.objective == "makespan":
            columns["overlap"] = [None if r.overlap is None else f"{r.overlap:.2f}" for r in shown]
        if isinstance(self.objective, TailLatency):
            columns["p50"] = [words(r.p50) if r.p50 is not None else None for r in shown]
            columns["largest"] = [words(r.largest) if r.largest is not None else None for r in shown]
        for name in self.alone:
            if name != critical_part(self.objective):
                columns[self._title(name)] = [_cell(r.parts[name]) for r in shown]
        return columns

    def _title(self, part: str) -> str:
        return f"{part}{'' if self.objective == 'makespan' else ', calls/s'}"

    def _notes(self, shown: Sequence[Result], title: str, *, briefly: bool) -> list[str]:
        """What the names of plans mean, which plans may be chosen, and how many are not shown."""
        objective, hidden = self.objective, len(self.results) - len(shown)
        notes = []
        if briefly:
            notes.append(f"with /: the SMs of the parts, in the order of the {title}")
        if any(result.plan.kind == "overlay" for result in shown):
            notes.append(f"{ALL}: on the whole device with the highest priority, over the others")
        if any(result.plan.library_sms for result in shown):
            notes.append("hint: libraries use the SM counts of their partitions")
        if isinstance(objective, TailLatency) and objective.others:
            notes.append(f"a plan is chosen only if the others keep {objective.others:.0%} of their rate")
        return notes + ([f"and {hidden} slower plans"] if hidden else [])

    # ---- pictures

    def _title_of_page(self) -> str:
        return f"{' and '.join(self.alone)}: {self.device}"

    def _picture(self) -> str:
        tail = isinstance(self.objective, TailLatency)
        results = self.foremost(MOST_BARS)
        names, briefly = names_of_plans(self, results)
        bars = []
        for name, result in zip(names, results, strict=True):
            text = words(result.seconds.value)
            for part, time in result.parts.items() if tail else ():
                text += f"; {part} {time.calls_per_second:.4g} calls/s" if time.calls_per_second is not None else ""
            ns, low_ns, high_ns = (1e9 * s for s in (result.seconds.value, result.seconds.p10, result.seconds.p90))
            pieces = () if tail else _pieces(self, result)
            bars.append(Bar(name, ns, low_ns, high_ns, text, result.plan == self.choice, pieces))
        slowest = max(bar.high_ns for bar in bars)
        near = max(r.seconds.p90 for r in results if r.plan == self.choice or r.plan.kind in ("sequence", "streams"))
        return draw_bars(
            " and ".join(self.alone),
            f"{self.device}, driver {self.driver}, {self.date}: {self._answer()}",
            title_of(self.objective),
            bars,
            self.bound * 1e9,
            slowest * 1.5 if tail else min(slowest * 1.02, BEHIND * near * 1e9),
            logarithmic=tail,
            notes=self._notes(results, "title", briefly=briefly),
        )


def _pieces(report: Report, result: Result) -> tuple[Piece, ...]:
    """What each part takes: from the start of the step, or in a sequence from the end of the part before.

    The calls of a mix in sequence alternate, so each part takes as long as the mix.
    """
    pieces: list[Piece] = []
    start = 0.0
    for name in report.alone:
        part = result.parts[name]
        if part.seconds is not None:
            calls_ns = weight_of(report.objective, name) * 1e9
            spread = part.seconds
            end, low, high = (start + seconds * calls_ns for seconds in (spread.value, spread.p10, spread.p90))
            pieces.append(Piece(name, start, end, low, high))
            start = end if result.plan.kind == "sequence" and report.objective == "makespan" else 0.0
    return tuple(pieces)


def names_of_plans(report: Report, results: Sequence[Result], *, briefly: bool = False) -> tuple[list[str], bool]:
    """The names of plans, and whether they are shortened to the sizes, in the order of the parts: on request, or if
    they are long.
    """
    briefly = briefly or max(len(str(result.plan)) for result in results) > LONGEST_NAME
    briefly = briefly and any(result.plan.layout is not None for result in results)

    def name(plan: Plan) -> str:
        if not briefly or plan.layout is None:
            return str(plan).replace(HINT, "hint")
        sizes = sizes_of(plan)
        return "/".join(sizes[part] for part in report.alone) + (", hint" if plan.library_sms else "")

    return [name(result.plan) for result in results], briefly


def _cell(part: PartTime) -> str | None:
    if part.calls_per_second is not None:
        return f"{part.calls_per_second:.4g}"
    return words(part.seconds.value) if part.seconds is not None else None
