"""``overlap``: find the fastest way to run several pieces of work concurrently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from cuda_gctx._core.extension import Device, Stream, as_int, as_seconds
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import median, quantile
from cuda_gctx.measure.summaries import Spread
from cuda_gctx.tune._causes import reasons
from cuda_gctx.tune._guard import device_of, place_and_date, sitting
from cuda_gctx.tune._measurement import Intervals, Measurement, Record, launch_bound, rate_of
from cuda_gctx.tune._objectives import Objective, checked, critical_part
from cuda_gctx.tune._ranking import Ranking, value_of
from cuda_gctx.tune._report import PartTime, Report, Result
from cuda_gctx.tune._search import Search
from cuda_gctx.tune._work import LAUNCHES, Task, demand_choice, libraries_loaded, parts_of

__all__ = ["overlap"]


def overlap(
    *work: Callable[[Stream], object],
    together: Callable[[Stream, float], object] | None = None,
    device: Device | None = None,
    objective: Objective = "makespan",
    sizes: Iterable[int] | None = None,
    library_sms: Literal["off", "on", "auto"] = "auto",
    launch: Literal["auto", "calls", "graphs"] = "auto",
    budget_s: float = 60.0,
    progress: bool | None = None,
    seed: int = 0,
    **named: Callable[[Stream], object],
) -> Report:
    """Find the fastest way to run two or more parts: in sequence, on streams, or in partitions of which sizes.

    A part is a function that enqueues work on the Stream that it receives, and returns without waiting. That stream is
    the current stream of torch and CuPy during the call. Parts have the names of their functions, or the keywords by
    which they are passed.

    work, named: the parts, by position or by name.
    together: for two parts, a function f(stream, share) that does the work of one call of the urgent part and, in the
    same step, a share (above 0, at most 1) of one call of the other part, as chunked prefill does. The urgent part is
    that of the TailLatency, otherwise the last one. Shares are searched like sizes.
    device: the device to measure; None: device 0.
    objective: "makespan" (the time of a step in which all parts start together and are waited for),
    Throughput(decode=8, prefill=1), or TailLatency("decode", quantile=0.99).
    sizes: the SM counts to try for partitions, instead of all aligned sizes.
    library_sms: whether to set the SM count hint of libraries in partitions; "auto" measures both if torch or CuPy is
    imported.
    launch: how the work is enqueued: "auto" (launch-bound work by one host thread for each part, which are called
    concurrently; other work by one thread), "calls" (always by one thread), or "graphs" (each part is captured once on
    each of its streams, and replayed).
    budget_s: the longest time to measure, in seconds; one step may exceed it.
    progress: whether to show progress on stderr; None: if stderr is a terminal.
    seed: the seed of the random order in which plans are measured.

    Ctrl-C ends the measurement and returns the results so far. Raises PartError if a part raises, RuntimeError if
    the budget is too short to measure each part alone and the sequence and during a capture, and ValueError for invalid
    arguments.
    """
    parts = parts_of(work, named)
    objective = checked(objective, [part.name for part in parts])
    budget_s = as_seconds("budget_s", budget_s)
    seed = as_int("seed", seed)
    demand_choice("library_sms", library_sms, ("off", "on", "auto"))
    demand_choice("launch", launch, LAUNCHES)
    if library_sms == "on" and not libraries_loaded():
        raise ValueError('library_sms="on" needs torch or CuPy with a GPU, and neither is imported: import it first')
    if together is not None and not callable(together):
        raise TypeError(f"together must be a function of a stream and a share, not {type(together).__name__}")
    if together is not None and len(parts) != 2:
        raise ValueError(f"together moves work of one part into the other: pass two parts, not {len(parts)}")
    device = device_of(device)
    task = Task(device, parts, objective, together, sizes, library_sms, launch, budget_s, seed)
    with sitting(device, progress) as held:
        search = Search(task, held)
        try:
            search.run()
        except KeyboardInterrupt:
            search.found.complete = False
            if not search.found.can_answer:
                raise
        finally:
            search.settle()
    if not search.found.can_answer:
        raise RuntimeError(
            f"budget_s={budget_s:g} is too short to measure each part alone and the sequence: increase it"
        )
    return _report(search.ranking, device, held.conditions)


def _report(ranking: Ranking[Any], device: Device, conditions: Sequence[Conditions]) -> Report:
    found, objective = ranking.found, ranking.objective
    choice = ranking.choose()
    chosen = choice.record
    assert chosen.plan is not None
    gain = ranking.ratio(ranking.sequence, chosen)
    alone = {name: _spread(found, record) for name, record in found.alone.items()}
    results = [_result(ranking, device, record, alone) for record in found.known()]
    results.sort(key=lambda result: result.relative)
    critical = critical_part(objective)
    weighted = {name: spread.value * found.weight(name) for name, spread in alone.items()}
    report = Report(
        choice=chosen.plan,
        objective=objective,
        results=tuple(results),
        alone=alone,
        bound=max(weighted.values()) if critical is None else weighted[critical],
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        sure=choice.sure,
        regret=choice.regret,
        margin=ranking.margin,
        openings=ranking.openings,
        launch=found.launched,
        reasons=(),
        complete=found.complete,
        **place_and_date(device),
        conditions=tuple(conditions),
    )
    return replace(report, reasons=reasons(ranking, report, choice))


def _spread(found: Measurement[Any], record: Record) -> Spread:
    samples = list(record.measured(found.final).values())
    return Spread.of([sample.seconds for sample in samples], value_of(found.objective, samples))


def _result(ranking: Ranking[Any], device: Device, record: Record, alone: dict[str, Spread]) -> Result:
    assert record.plan is not None
    found = ranking.found
    samples = list(record.measured(found.final).values())
    latencies = [seconds for sample in samples for seconds in sample.latencies]
    parts = {}
    for name in record.plan.parts:
        counted = [sample.calls[name] for sample in samples if sample.calls.get(name, (0, 0.0))[1] > 0]
        spent = record.spent(name, found.final)
        spent += [seconds / calls for calls, seconds in counted if calls]
        spent += latencies if not counted and not spent else []
        here = record.alone_here.get(name)
        parts[name] = PartTime(
            sm_count=record.plan.sm_counts.get(name, device.sm_count),
            seconds=Spread.of(spent) if spent else None,
            calls_per_second=rate_of(name, samples),
            alone=_spread(found, here) if here is not None and here.samples else None,
        )
    seconds = _spread(found, record)
    return Result(
        plan=record.plan,
        seconds=seconds,
        relative=ranking.relative(record),
        parts=parts,
        overlap=_overlap(record, record.profiled(found.final), alone, seconds.value),
        p50=quantile(latencies, 0.5) if latencies else None,
        largest=max(latencies, default=None),
        sm_clock_mhz=_clock(found, record),
        launch_bound=launch_bound(samples),
    )


def _clock(found: Measurement[Any], record: Record) -> float | None:
    """The SM clock in the blocks of a plan; that of the sequence is from the blocks next to the choice."""
    if not record.is_sequence:
        return record.sm_clocks_mhz[0] if record.sm_clocks_mhz is not None else None
    return next((c.sm_clocks_mhz[1] for c in found.known() if c.sm_clocks_mhz is not None), None)


def _overlap(record: Record, steps: Sequence[Intervals], alone: dict[str, Spread], seconds: float) -> float | None:
    """The time in which parts overlapped, as a share of the possible time: the median over steps."""
    if not steps:
        return None
    seen = median([_overlap_of(step, record, alone) for step in steps])
    if record.is_sequence:
        return seen
    # A step that takes less than the sum of its parts overlaps them, even if the events of the profiled steps kept them
    # apart.
    lengths = [spread.value for spread in alone.values()]
    return max(seen, min(1.0, (sum(lengths) - seconds) / (sum(lengths) - max(lengths))))


def _overlap_of(step: Intervals, record: Record, alone: dict[str, Spread]) -> float:
    # With shared SMs a part may have waited for them first: only its time alone counts as running.
    waits = record.kind != "partitions"
    spans = [(max(begin, end - alone[name].value) if waits else begin, end) for name, (begin, end) in step.items()]
    covered, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    lengths = [end - begin for begin, end in spans]
    possible = sum(lengths) - max(lengths)
    return (sum(lengths) - covered) / possible if possible > 0 else 0.0
