"""The reasons of a report: what bounds the gain, how the finalists compare, and what would decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cuda_gctx.partitions.causes import launches_block, too_few_queues
from cuda_gctx.tune._judge import Verdict
from cuda_gctx.tune._objectives import TailLatency, critical_part, weight_of
from cuda_gctx.tune._parts import PartFacts
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._words import WAITS, words

if TYPE_CHECKING:
    from cuda_gctx.tune._report import Report

__all__ = ["reasons"]

# Less is not worth a sentence.
SMALL = 1.01


def reasons(
    report: Report, facts: Mapping[str, PartFacts], verdict: Verdict[Plan] | None, budget_s: float
) -> tuple[str, ...]:
    """The reasons, the most general first."""
    return (
        *_undecided(report, verdict, budget_s),
        _bound(report),
        *_host(report, facts),
        *_rates(report),
        *_streams(report, facts),
    )


def _undecided(report: Report, verdict: Verdict[Plan] | None, budget_s: float) -> Iterator[str]:
    """Why the answer is open or not sure, and what would decide it."""
    if report.untried:
        count = len(report.untried)
        yield f"{count} of {count + len(report.results)} plans were not tried, such as {report.untried[0]}"
    doubts = list(verdict.doubts) if verdict is not None else ["there was no time for blocks of the finalists"]
    doubts = [doubt for doubt in doubts if not (report.untried and "not tried" in doubt)]
    if doubts:
        yield f"not sure: {'; '.join(doubts)}"
    if report.choice is None:
        changes = any("still changing" in doubt for doubt in doubts)
        why = "blocks that outlast the change" if changes else "more time"
        yield f"to decide: {why}, as with budget_s={2 * budget_s:g}, or fewer sizes="


def _bound(report: Report) -> str:
    sequence = next(result for result in report.results if result.plan.kind == "sequence")
    most = sequence.seconds / report.bound
    gain = f"hiding the rest would be a speedup of {most:.2f}x" if most > SMALL else "overlap can save nothing"
    longest = max(report.alone, key=lambda name: report.alone[name] * weight_of(report.objective, name))
    return (
        f"{critical_part(report.objective) or longest} alone takes {words(report.bound)}, and in sequence "
        f"{words(sequence.seconds)}: {gain}"
    )


def _host(report: Report, facts: Mapping[str, PartFacts]) -> Iterator[str]:
    for name, one in facts.items():
        if one.waits:
            held = "so nothing else can be enqueued meanwhile"
            yield f"{name} waits for the device inside its function, {held} ({WAITS})"
    if report.launch_bound and report.launch == "calls":
        yield 'launch-bound: the device waits for the host; capture the work as a graph, or measure launch="graphs"'
    for name, one in facts.items():
        if one.period > 1:
            yield f"the calls of {name} repeat their cost after {one.period}, so {one.period} steps count as one sample"


def _rates(report: Report) -> Iterator[str]:
    shown = report.result(report.choice or report.best)
    if not isinstance(report.objective, TailLatency):
        return
    for name, rate in shown.rates.items():
        share = rate * report.alone[name]
        yield f"with {shown.plan}, {name} achieves {rate:.4g} calls/s, {share:.0%} of its rate alone"


def _streams(report: Report, facts: Mapping[str, PartFacts]) -> Iterator[str]:
    """Why streams alone gain nothing, if the environment is the cause."""
    streams = [result.relative for result in report.results if result.plan.kind == "streams"]
    cause = launches_block() or too_few_queues(len(report.alone), "streams")
    if cause is not None and streams and min(streams) > 1 / SMALL and not any(one.waits for one in facts.values()):
        yield f"plain streams gain nothing: {cause}"
