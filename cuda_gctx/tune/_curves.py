"""``curve``: what a part takes in partitions of different sizes, and next to a load on the other SMs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from cuda_gctx._core import clock
from cuda_gctx._core.extension import Device, Stream, as_int, as_seconds
from cuda_gctx._core.text import table
from cuda_gctx.draw.lines import Line, Point, draw_lines
from cuda_gctx.draw.svg import Pictured
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import LEAST_PAIRS, Estimate, calls_for, certainty_of, ratio_of_quantiles
from cuda_gctx.partitions import PartitionPool, partition_sizes
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.tune._batches import Trial
from cuda_gctx.tune._guard import Sitting, device_of, place_and_date, sharing, sitting
from cuda_gctx.tune._json import Document
from cuda_gctx.tune._measure import BATCH_S, OutOfTime
from cuda_gctx.tune._measurement import Sample, rate_of
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._openings import Openings
from cuda_gctx.tune._report import times, words
from cuda_gctx.tune._sizes import Sizes
from cuda_gctx.tune._work import Part, Task, demand_choice, examine, naming, part_of

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
        points = {point.sm_count: point for point in self.points}
        if as_int("sm_count", sm_count) not in points:
            raise KeyError(f"{sm_count} SMs were not measured; measured: {', '.join(map(str, points))}")
        return points[sm_count]

    def _demand_consistency(self) -> None:
        if not self.points:
            raise ValueError("points is empty")

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        sizes = " and ".join(f"{words(p.seconds.value)} in {p.sm_count} SMs" for p in (first, last))
        return f"<Curve of {self.part}: {sizes} on {self.device}>"

    def __str__(self) -> str:
        whole = self.points[-1].seconds.value
        columns: dict[str, Callable[[CurvePoint], object]] = {
            "SMs": lambda point: point.sm_count,
            "time of a call": lambda point: words(point.seconds.value),
            "97.5% interval": lambda point: f"{words(point.seconds.low)} to {words(point.seconds.high)}",
            "calls/s": lambda point: f"{point.rate:.4g}",
            "/whole device": lambda point: f"{point.seconds.value / whole:.2f}",
        }
        if self.load is not None:
            columns |= {
                f"p{self.quantile * 100:g} next to {self.load}": lambda point: (
                    point.loaded and words(point.loaded.value)
                ),
                "slowdown": lambda point: point.slowdown and times(point.slowdown),
                f"{self.load}, calls/s": lambda point: None if point.load_rate is None else f"{point.load_rate:.4g}",
            }
        lines = [
            f"{self.part} on {self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}",
            table([*columns], [[cell(point) for cell in columns.values()] for point in self.points]),
        ]
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
    both: Trial | None = None
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
    work, other = part_of(part, PART), part_of(load, LOAD) if load is not None else None
    objective = TailLatency(PART, quantile, 0.0, rate, closed_loop)
    budget_s, seed = as_seconds("budget_s", budget_s), as_int("seed", seed)
    demand_choice("launch", launch, ("calls", "graphs"))
    device = device_of(device)
    requests = Sizes(device, [PART, LOAD], sizes, partition_sizes(device)).requests()
    parts = tuple(Part(name, one.function) for name, one in ((PART, work), (LOAD, other)) if one is not None)
    with sitting(device, progress) as held:
        task = Task(device, parts, objective, launch=launch, budget_s=budget_s, seed=seed)
        measuring = _Measuring(task, objective, held, [one.name for one in (work, other) if one is not None])
        measuring.run(requests)
    points = sorted((size.point(quantile) for size in measuring.sizes if size.seconds), key=lambda one: one.sm_count)
    if not points or points[-1].sm_count != device.sm_count:
        raise RuntimeError(f"budget_s={budget_s:g} is too short to measure {work.name} once: increase it")
    return Curve(
        part=work.name,
        load=other.name if other is not None else None,
        quantile=objective.quantile,
        points=tuple(points),
        complete=measuring.complete,
        **place_and_date(device),
        conditions=tuple(held.conditions),
    )


class _Measuring(Openings):
    """Measures a part in partitions, and its single calls without and with a load, until a deadline.

    names: those of the part and the load for people.
    """

    def __init__(self, task: Task, objective: TailLatency, held: Sitting, names: Sequence[str]) -> None:
        super().__init__(task, held)
        self.objective, self.names = objective, names
        self.sizes: list[_Size] = []
        self.complete = False
        # As many calls as all rounds together need for the quantile, and not more.
        enough = calls_for(objective.quantile, certainty_of(LEAST_PAIRS))
        self.runner.most_calls = max(LEAST_CALLS, ceil(2 * enough / LEAST_PAIRS))

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
        stream, runner = self.held.closing.enter_context(self.task.device.create_stream()), self.runner
        for part, name in zip(self.task.parts, self.names, strict=True):
            with naming(f"{name} alone"):
                facts = examine(part, stream, runner.demand_time)
            runner.call_s[part.name], runner.alone_s[part.name] = facts.host_s, facts.device_s
            if part.name == PART:  # launch-bound: what it takes would depend on the gate
                runner.gated = facts.waits or facts.host_s < facts.device_s
        whole = Trial("whole device", self.task.parts[:1], {PART: stream}, stream)
        runner.warm(whole)
        self.sizes.append(_Size(self.task.device.sm_count, whole))

    def _open(self, requests: Sequence[tuple[int, Request]]) -> bool:
        """Open partitions, those far apart first; returns whether the time suffices for all of them."""
        complete, until = True, clock.now() + OPENING_SHARE * self.task.budget_s
        for place in _far_apart(len(requests)):
            if clock.now() > until:
                return False
            count, request = requests[place]
            self.show(f"opening {count} SMs")
            pool = self.held.closing.enter_context(PartitionPool(self.task.device))
            with sharing():
                parts = pool.prepare(Layout.of({PART: request}))
            streams = {PART: parts.part.stream}
            size = _Size(parts.part.sm_count, self._sized(f"{count} SMs", streams))
            if len(self.task.parts) > 1 and "background" in parts:
                size.both = self._sized(f"{count} SMs", {**streams, LOAD: parts.background.stream})
            try:
                for trial in filter(None, (size.alone, size.both)):
                    self.runner.warm(trial)
            except OutOfTime:
                return False
            if LEAST_PAIRS * sum(map(self._round_s, [*self.sizes, size])) > self.runner.deadline - clock.now():
                complete = False
            else:
                self.sizes.append(size)
        return complete

    def _sized(self, name: str, streams: Mapping[str, Stream]) -> Trial:
        return Trial(name, self.task.parts[: len(streams)], streams, self.idle(streams))

    def _round_s(self, size: _Size) -> float:
        """How long a round of a size takes."""
        call_s = self.runner.alone_s[PART] = size.alone.pace_s
        calls_s = self.runner.latency_batch_s(self.task.parts[:1], self.objective) if size.both is not None else 0.0
        return max(BATCH_S, call_s) + 2 * calls_s

    def _measure(self, size: _Size) -> None:
        self.show(f"measuring {self.names[0]} in {size.sm_count} SMs")
        shape = self.runner.shape([size.alone])
        size.seconds.append(self.runner.back_to_back(size.alone, shape).seconds)
        if size.both is not None:
            self.runner.alone_s[PART] = size.alone.step_s  # half of what it can take in this size
            size.latency.append(self.runner.batch(size.alone, shape))
            size.loaded.append(self.runner.batch(size.both, shape))


def _far_apart(count: int) -> list[int]:
    """The numbers below a count, so that the first ones are far apart: the last, the first, the middle, and so on."""
    found = dict.fromkeys([count - 1, 0][:count])
    step = count / 2
    while len(found) < count:
        found |= dict.fromkeys(min(count - 1, round(number * step)) for number in range(1, int(count / step) + 1))
        step /= 2
    return list(found)
