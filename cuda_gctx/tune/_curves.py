"""``curve``: what a part takes in partitions of different sizes, and next to a load on the other SMs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Literal

from cuda_gctx._core import clock
from cuda_gctx._core.arguments import as_int, as_number, as_seconds
from cuda_gctx._core.device import Device
from cuda_gctx._core.stream import Stream
from cuda_gctx._core.text import table
from cuda_gctx.draw.lines import Line, Point, draw_lines
from cuda_gctx.draw.svg import Pictured
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import LEAST_PAIRS, Estimate, calls_for, certainty_of, ratio_of_quantiles
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.tune._batches import Trial, clock_for
from cuda_gctx.tune._guard import Sitting, device_of, place_and_date, sharing, sitting
from cuda_gctx.tune._json import Document
from cuda_gctx.tune._measure import BATCH_S, OutOfTime, Runner
from cuda_gctx.tune._measurement import Sample, rate_of
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._report import times, words
from cuda_gctx.tune._sizes import Sizes
from cuda_gctx.tune._work import Part, Task, examine, naming, part_of

__all__ = ["Curve", "CurvePoint", "curve"]

MOST_ROUNDS = 15
PART = "part"  # the names of partitions
LOAD = "load"
OPENING_SHARE = 0.2  # of the budget
LEAST_CALLS = 10  # of a batch


@dataclass(frozen=True)
class CurvePoint:
    """A part in a partition of `sm_count` SMs, or on the whole device.

    seconds: the median of a call, back to back with others. latency, loaded: the quantile of the latencies of all
    single calls, from when a call arrives to its end: without the load, and while the load is kept queued on the other
    SMs. slowdown: their ratio. load_rate: the calls of the load per second meanwhile.
    """

    sm_count: int
    seconds: Estimate
    latency: Estimate | None
    loaded: Estimate | None
    slowdown: Estimate | None
    load_rate: float | None

    @property
    def rate(self) -> float:
        """Calls per second, back to back."""
        return 1 / self.seconds.value


@dataclass(frozen=True)
class Curve(Document, Pictured):
    """The result of curve(): what a part takes over the number of SMs. ``print()`` it; the picture has the interval of
    each point.

    points: by the number of SMs; the last one is the whole device. load: the name of the load, if there was one.
    quantile: of the latencies.
    complete: False if the budget was too short for all sizes, or for an interval at each.
    """

    schema = 2

    part: str
    load: str | None
    quantile: float
    points: tuple[CurvePoint, ...]
    complete: bool
    device: str
    sm_count: int
    driver: str
    date: str
    conditions: tuple[Conditions, ...]

    def point(self, sm_count: int) -> CurvePoint:
        """The point of a size.

        sm_count: the number of SMs.

        Raises KeyError if that size was not measured.
        """
        sm_count = as_int("sm_count", sm_count)
        for point in self.points:
            if point.sm_count == sm_count:
                return point
        raise KeyError(f"{sm_count} SMs were not measured; measured: {', '.join(str(p.sm_count) for p in self.points)}")

    def seconds(self, sm_count: float) -> float:
        """The time of a call in a number of SMs.

        sm_count: the number of SMs. Between measured sizes, the time is interpolated in work per SM; beyond them, it is
        that of the nearest.
        """
        sm_count = as_number("sm_count", sm_count)
        ordered = sorted(self.points, key=lambda point: point.sm_count)
        if sm_count <= ordered[0].sm_count:
            return ordered[0].seconds.value
        for low, high in pairwise(ordered):
            if sm_count <= high.sm_count:
                share = (sm_count - low.sm_count) / (high.sm_count - low.sm_count)
                work = (1 - share) * low.seconds.value * low.sm_count + share * high.seconds.value * high.sm_count
                return work / sm_count
        return ordered[-1].seconds.value

    def _demand_consistency(self) -> None:
        if not self.points:
            raise ValueError("points is empty")

    # ---- for people

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        sizes = " and ".join(f"{words(p.seconds.value)} in {p.sm_count} SMs" for p in (first, last))
        return f"<Curve of {self.part}: {sizes} on {self.device}>"

    def __str__(self) -> str:
        whole = self.points[-1]
        lines = [f"{self.part} on {self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}"]
        header = ["SMs", "time of a call", "97.5% interval", "calls/s", "/whole device"]
        rows: list[list[object]] = [
            [
                point.sm_count,
                words(point.seconds.value),
                f"{words(point.seconds.low)} to {words(point.seconds.high)}",
                f"{point.rate:.4g}",
                f"{point.seconds.value / whole.seconds.value:.2f}",
            ]
            for point in self.points
        ]
        if self.load is not None:
            header += [f"p{self.quantile * 100:g} next to {self.load}", "slowdown", f"{self.load}, calls/s"]
            for row, point in zip(rows, self.points, strict=True):
                row += [
                    words(point.loaded.value) if point.loaded is not None else None,
                    times(point.slowdown) if point.slowdown is not None else None,
                    f"{point.load_rate:.4g}" if point.load_rate is not None else None,
                ]
        lines.append(table(header, rows))
        if not self.complete:
            lines.append("incomplete: the budget was too short for all sizes, or for intervals")
        return "\n".join(lines)

    def _title_of_page(self) -> str:
        return f"{self.part}: {self.device}"

    def _picture(self) -> str:
        lines = [Line(f"{self.part}, back to back", self._points("seconds"))]
        if self.load is not None:
            lines.append(Line(f"{self.part}, p{self.quantile * 100:g} of single calls", self._points("latency")))
            lines.append(Line(f"{self.part}, the same next to {self.load}", self._points("loaded")))
        subtitle = f"{self.device}, driver {self.driver}, {self.date}"
        note = "The last point is the whole device."
        return draw_lines(self.part, subtitle, [line for line in lines if line.points], note)

    def _points(self, name: str) -> tuple[Point, ...]:
        found = [(point.sm_count, getattr(point, name)) for point in self.points]
        return tuple(Point(sms, e.value * 1e9, e.low * 1e9, e.high * 1e9) for sms, e in found if e is not None)


@dataclass(eq=False)
class _Size:
    """A size while it is measured: back to back, alone, and next to the load."""

    sm_count: int
    alone: Trial
    both: Trial | None
    seconds: list[float] = field(default_factory=list)
    latency: list[Sample] = field(default_factory=list)
    loaded: list[Sample] = field(default_factory=list)

    def point(self, quantile: float) -> CurvePoint:
        """The result of its samples. The calls of all rounds are pooled."""
        seconds = Estimate.of([self.seconds], 0.5, certainty_of(len(self.seconds)))
        rounds = len(self.loaded)  # the last round may be incomplete
        if not rounds:
            return CurvePoint(self.sm_count, seconds, None, None, None, None)
        alone, loaded = ([sample.latencies for sample in side[:rounds]] for side in (self.latency, self.loaded))
        latency, next_to = (Estimate.of(side, quantile, certainty_of(rounds)) for side in (alone, loaded))
        slowdown = ratio_of_quantiles(loaded, alone, quantile)
        return CurvePoint(self.sm_count, seconds, latency, next_to, slowdown, rate_of(LOAD, self.loaded))


def curve(
    part: Callable[[Stream], object],
    *,
    device: Device | None = None,
    sizes: Iterable[int] | None = None,
    load: Callable[[Stream], object] | None = None,
    quantile: float = 0.5,
    rate: float | None = None,
    closed_loop: bool = False,
    launch: Literal["calls", "graphs"] = "calls",
    budget_s: float = 20.0,
    progress: bool | None = None,
    seed: int = 0,
) -> Curve:
    """Measure the time of a part in partitions of different sizes and on the whole device, alone and next to a load.

    part: a function that enqueues work on the Stream that it is called with, as for overlap().
    sizes: the SM counts, instead of all aligned ones.
    load: other work, which is kept queued on all other SMs; on the whole device there is no room for it.
    quantile: the quantile of the latencies without and with the load.
    rate: how many calls arrive per second on average, at random times; None: half of what the part can take in a size.
    closed_loop: start each call when the previous one has completed.
    launch: "graphs" captures the part once for each size, and replays it.
    device: the device to measure; None: device 0.
    budget_s: the longest time to measure, in seconds.
    progress: whether to show progress on stderr; None: if stderr is a terminal.
    seed: the seed of the random order in which sizes are measured.

    All sizes are measured in rounds in random order, each in 7 to 15 rounds. If the budget is too short for 7 rounds of
    all sizes, sizes that are far apart are measured first, and those that take too long are omitted.

    Returns a Curve. Raises PartError if a part raises, RuntimeError if the budget is too short to measure the part once
    and during a capture, and ValueError for invalid arguments.
    """
    work = part_of(part, "part")
    other = part_of(load, LOAD) if load is not None else None
    objective = TailLatency(PART, quantile, 0.0, rate, closed_loop)
    budget_s = as_seconds("budget_s", budget_s)
    seed = as_int("seed", seed)
    if launch not in ("calls", "graphs"):
        raise ValueError(f"launch must be calls or graphs, not {launch!r}")
    device = device_of(device)
    requests = Sizes(device, [PART, LOAD], sizes).requests()
    parts = (work,) if other is None else (work, other)
    task = Task(device, parts, objective, launch=launch, budget_s=budget_s, seed=seed)
    with sitting(device, progress) as held:
        measuring = _Measuring(task, objective, held)
        measuring.run(requests)
    points = [size.point(quantile) for size in measuring.sizes if size.seconds]
    if device.sm_count not in [point.sm_count for point in points]:
        raise RuntimeError(f"budget_s={budget_s:g} is too short to measure {work.name} once: increase it")
    return Curve(
        part=work.name,
        load=other.name if other is not None else None,
        quantile=objective.quantile,
        points=tuple(sorted(points, key=lambda point: point.sm_count)),
        complete=measuring.complete,
        **place_and_date(device),
        conditions=tuple(held.conditions),
    )


class _FewCalls(Runner):
    """Makes as many calls in a batch as all rounds together need for the quantile, and not more."""

    def calls_of_batch(self, critical: Part, others: Sequence[Part], objective: TailLatency) -> tuple[int, float]:
        calls, least_s = super().calls_of_batch(critical, others, objective)
        enough = calls_for(objective.quantile, certainty_of(LEAST_PAIRS))
        return min(calls, max(LEAST_CALLS, ceil(2 * enough / LEAST_PAIRS))), least_s


class _Measuring:
    """Measures a part in partitions, back to back and by single calls next to a load, until a deadline.

    task: its parts are the part and, if there is one, the load, with their own names.
    """

    def __init__(self, task: Task, objective: TailLatency, held: Sitting) -> None:
        self.task, self.objective, self.held = task, objective, held
        self.sizes: list[_Size] = []
        self.complete = False
        self._until, closing = clock.now() + task.budget_s, held.closing
        self._runner = closing.enter_context(Runner("makespan", self._until, task.launch))
        self._calls = closing.enter_context(_FewCalls(objective, self._until, task.launch, task.seed))
        self._runner.call_s = self._calls.call_s
        self._parts = [Part(name, work.function) for name, work in zip((PART, LOAD), task.parts, strict=False)]

    def run(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Open the sizes, and measure them in rounds."""
        try:
            self._examine()
            self.complete = self._open(requests)
            for _, size in in_rounds(self.sizes, MOST_ROUNDS, random.Random(self.task.seed)):
                self._measure(size)
        except OutOfTime:
            self.complete = self.complete and all(len(size.seconds) >= LEAST_PAIRS for size in self.sizes)
        finally:
            self.task.device.sync()

    def _examine(self) -> None:
        stream = self.held.closing.enter_context(self.task.device.create_stream())
        for part, work in zip(self._parts, self.task.parts, strict=True):
            with naming(f"{work.name} alone"):
                facts = examine(part, stream, self._runner.demand_time)
            self._calls.call_s[part.name], self._calls.alone_s[part.name] = facts.host_s, facts.device_s
            if part.name == PART:  # launch-bound: what it takes would depend on the gate
                self._runner.gated = facts.waits or facts.host_s < facts.device_s
        whole = Trial("whole device", (self._parts[0],), {PART: stream}, stream)
        self._runner.warm(whole)
        self.sizes.append(_Size(self.task.device.sm_count, whole, None))

    def _open(self, requests: Sequence[tuple[int, Request]]) -> bool:
        """Open partitions, those far apart first; returns whether the time suffices for all of them."""
        complete, until = True, clock.now() + OPENING_SHARE * self.task.budget_s
        for place in _far_apart(len(requests)):
            if clock.now() > until:
                return False
            count, request = requests[place]
            self.held.bar.show((clock.now() - until) / self.task.budget_s + OPENING_SHARE, f"opening {count} SMs")
            pool = self.held.closing.enter_context(PartitionPool(self.task.device))
            with sharing():
                parts = pool.prepare(Layout.of({PART: request}))
            size = _Size(parts.part.sm_count, self._trial(f"{count} SMs", {PART: parts.part.stream}), None)
            if len(self._parts) > 1 and "background" in parts:
                size.both = self._trial(f"{count} SMs", {PART: parts.part.stream, LOAD: parts.background.stream})
            try:
                for trial in filter(None, (size.alone, size.both)):
                    self._runner.warm(trial)
            except OutOfTime:
                return False
            if LEAST_PAIRS * sum(map(self._round_s, [*self.sizes, size])) > self._until - clock.now():
                complete = False
            else:
                self.sizes.append(size)
        return complete

    def _trial(self, name: str, streams: Mapping[str, Stream]) -> Trial:
        idle = clock_for(self.objective, self.task.device, streams, self.held.closing)
        return Trial(name, tuple(self._parts[: len(streams)]), streams, idle)

    def _round_s(self, size: _Size) -> float:
        """How long a round of a size takes."""
        call_s = size.alone.pace_s
        self._calls.alone_s[PART] = call_s
        calls_s = self._calls.latency_batch_s(self._parts[:1], self.objective) if size.both is not None else 0.0
        return max(BATCH_S, call_s) + 2 * calls_s

    def _measure(self, size: _Size) -> None:
        shown = f"measuring {self.task.names[0]} in {size.sm_count} SMs"
        self.held.bar.show(1 - (self._until - clock.now()) / self.task.budget_s, shown)
        shape = self._runner.shape([size.alone])
        size.seconds.append(self._runner.batch(size.alone, shape).seconds)
        if size.both is not None:
            self._calls.alone_s[PART] = size.alone.step_s  # half of what it can take in this size
            size.latency.append(self._calls.batch(size.alone, shape))
            size.loaded.append(self._calls.batch(size.both, shape))


def _far_apart(count: int) -> list[int]:
    """The numbers below a count, so that the first ones are far apart: the last, the first, the middle, and so on."""
    found = dict.fromkeys([count - 1, 0][:count])
    step = count / 2
    while len(found) < count:
        found |= dict.fromkeys(min(count - 1, round(number * step)) for number in range(1, int(count / step) + 1))
        step /= 2
    return list(found)
