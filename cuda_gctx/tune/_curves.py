"""``curve``: what a part takes in partitions of different sizes, and next to a load on the other SMs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import pairwise
from os import PathLike
from typing import Any, Literal

from cuda_gctx._core import clock
from cuda_gctx._core.arguments import as_int, as_number, as_seconds
from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import system
from cuda_gctx._core.progress import Progress
from cuda_gctx._core.stream import Stream
from cuda_gctx._core.text import table
from cuda_gctx.draw.lines import Line, Point, draw_lines
from cuda_gctx.draw.svg import page, written
from cuda_gctx.measure.loop import in_rounds
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import LEAST_PAIRS, Estimate
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.partitions.layout import Layout, Request
from cuda_gctx.tune._guard import device_of, only_tuning, refuse_capture, sharing
from cuda_gctx.tune._json import conditions, each, made, optional, reading
from cuda_gctx.tune._measure import OutOfTime, Runner, Trial
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._report import words
from cuda_gctx.tune._sizes import Sizes
from cuda_gctx.tune._work import Part, examine, naming, part_of

__all__ = ["Curve", "CurvePoint", "curve", "measured_curve"]

SCHEMA = 1
MOST_ROUNDS = 15
PART = "part"  # the names of partitions
LOAD = "load"


@dataclass(frozen=True)
class CurvePoint:
    """A part in a partition of `sm_count` SMs, or on the whole device.

    seconds: of a call, back to back with others. latency, loaded: of a call that is made alone, from the request to
    its end: without the load, and while the load is kept queued on the other SMs. slowdown: their ratio, pair by pair.
    load_rate: the calls of the load per second meanwhile.
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
        return 1 / self.seconds.median


@dataclass(frozen=True)
class Curve:
    """The result of curve(): what a part takes over the number of SMs. ``print()`` it.

    points: by the number of SMs; the last one is the whole device. load: the name of the load, if there was one.
    complete: False if the budget was too short for all sizes, or for an interval at each.
    """

    part: str
    load: str | None
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
        raise KeyError(f"{sm_count} SMs were not measured, but {', '.join(str(p.sm_count) for p in self.points)}")

    def seconds(self, sm_count: float) -> float:
        """The time of a call in a number of SMs.

        sm_count: the number of SMs. Between measured sizes, the time is interpolated in work per SM; beyond them, it is
        that of the nearest.
        """
        sm_count = as_number("sm_count", sm_count)
        ordered = sorted(self.points, key=lambda point: point.sm_count)
        if sm_count <= ordered[0].sm_count:
            return ordered[0].seconds.median
        for low, high in pairwise(ordered):
            if sm_count <= high.sm_count:
                share = (sm_count - low.sm_count) / (high.sm_count - low.sm_count)
                work = (1 - share) * low.seconds.median * low.sm_count + share * high.seconds.median * high.sm_count
                return work / sm_count
        return ordered[-1].seconds.median

    # ---- JSON

    def to_json(self) -> str:
        """The curve as JSON, for from_json()."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Curve:
        """A curve that was written as JSON.

        text: what to_json() returned. Anything else raises a ValueError that names the field.
        """
        with reading(text, "curve", SCHEMA) as given:
            loaded = made(
                cls,
                given,
                "",
                points=lambda value, path: tuple(each(value, path, _point)),
                conditions=lambda value, path: tuple(each(value, path, conditions)),
            )
            if not loaded.points:
                raise ValueError("points is empty")
        return loaded

    # ---- for people

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        sizes = " and ".join(f"{words(p.seconds.median)} in {p.sm_count} SMs" for p in (first, last))
        return f"<Curve of {self.part}: {sizes} on {self.device}>"

    def __str__(self) -> str:
        whole = self.points[-1]
        lines = [f"{self.part} on {self.device}, {self.sm_count} SMs, driver {self.driver}, {self.date}"]
        header = ["SMs", "time of a call", "97.5% interval", "calls/s", "/whole device"]
        rows: list[list[object]] = [
            [
                point.sm_count,
                words(point.seconds.median),
                f"{words(point.seconds.low)} to {words(point.seconds.high)}",
                f"{point.rate:.4g}",
                f"{point.seconds.median / whole.seconds.median:.2f}",
            ]
            for point in self.points
        ]
        if self.load is not None:
            header += [f"next to {self.load}", "slowdown", f"{self.load}, calls/s"]
            for row, point in zip(rows, self.points, strict=True):
                row += [
                    words(point.loaded.median) if point.loaded is not None else None,
                    f"{point.slowdown.median:.2f} ({point.slowdown.low:.2f} to {point.slowdown.high:.2f})"
                    if point.slowdown is not None
                    else None,
                    f"{point.load_rate:.4g}" if point.load_rate is not None else None,
                ]
        lines.append(table(header, rows))
        if not self.complete:
            lines.append("incomplete: the budget was too short for all sizes, or for intervals")
        return "\n".join(lines)

    def svg(self, path: str | PathLike[str] | None = None) -> str:
        """The curve as a picture, also written to `path`: times over SMs, with the interval of each point."""
        lines = [Line(f"{self.part}, back to back", self._points("seconds"))]
        if self.load is not None:
            lines.append(Line(f"{self.part}, single calls", self._points("latency")))
            lines.append(Line(f"{self.part}, single calls next to {self.load}", self._points("loaded")))
        subtitle = f"{self.device}, driver {self.driver}, {self.date}"
        note = "The last point is the whole device."
        return written(draw_lines(self.part, subtitle, [line for line in lines if line.points], note), path)

    def _points(self, name: str) -> tuple[Point, ...]:
        found = [(point.sm_count, getattr(point, name)) for point in self.points]
        return tuple(Point(sms, e.median * 1e9, e.low * 1e9, e.high * 1e9) for sms, e in found if e is not None)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as an HTML page that loads nothing; also written to `path`."""
        return written(page(f"{self.part}: {self.device}", self.svg()), path)

    def _repr_html_(self) -> str:
        return self.svg()


def _estimate(value: Any, where: str) -> Estimate:
    return made(Estimate, value, where)


def _point(value: Any, where: str) -> CurvePoint:
    maybe = optional(_estimate)
    return made(CurvePoint, value, where, seconds=_estimate, latency=maybe, loaded=maybe, slowdown=maybe)


@dataclass(eq=False)
class _Size:
    """One size while it is measured; samples by round."""

    sm_count: int
    alone: Trial
    both: Trial | None
    seconds: dict[int, float] = field(default_factory=dict)
    latency: dict[int, float] = field(default_factory=dict)
    loaded: dict[int, float] = field(default_factory=dict)
    calls: list[tuple[int, float]] = field(default_factory=list)

    def point(self) -> CurvePoint:
        both = sorted(self.latency.keys() & self.loaded.keys())
        calls, seconds = sum(n for n, _ in self.calls), sum(s for _, s in self.calls)
        return CurvePoint(
            self.sm_count,
            Estimate.of(list(self.seconds.values())),
            Estimate.of(list(self.latency.values())) if self.latency else None,
            Estimate.of(list(self.loaded.values())) if self.loaded else None,
            Estimate.of([self.loaded[n] / self.latency[n] for n in both]) if both else None,
            calls / seconds if seconds > 0 else None,
        )


def curve(
    part: Callable[[Stream], object],
    *,
    device: Device | None = None,
    sizes: Iterable[int] | None = None,
    load: Callable[[Stream], object] | None = None,
    launch: Literal["calls", "graphs"] = "calls",
    budget_s: float = 20.0,
    progress: bool | None = None,
    seed: int = 0,
) -> Curve:
    """Measure what a part takes in partitions of different sizes and on the whole device, and next to a load.

    part: a function that enqueues work on the Stream that it is called with, as for overlap().
    sizes: the SM counts, instead of all aligned ones.
    load: other work, which is kept queued on all other SMs; on the whole device there is no room for it.
    launch: "graphs" captures the part once for each size, and replays it.
    device: the device to measure; None: device 0.
    budget_s: the longest time to measure, in seconds.
    progress: whether to show progress on stderr; None: if stderr is a terminal.
    seed: the seed of the random order in which sizes are measured.

    All sizes are measured in rounds in random order, each in 7 to 15 rounds. With a budget that does not suffice for 7,
    fewer sizes are measured.

    Returns a Curve. Raises PartError if a part raises, RuntimeError if the budget is too short to measure the part once
    and during a capture, and ValueError for invalid arguments.
    """
    work = part_of(part, "part")
    other = part_of(load, LOAD) if load is not None else None
    budget_s = as_seconds("budget_s", budget_s)
    seed = as_int("seed", seed)
    if launch not in ("calls", "graphs"):
        raise ValueError(f"launch must be calls or graphs, not {launch!r}")
    device = device_of(device)
    if sizes is not None:  # refused before anything is measured
        sizes = [size.sm_count for size in Sizes(device, [PART, LOAD], sizes).sizes]
    refuse_capture(device)
    with only_tuning(device), Progress(progress) as bar:
        before = Conditions.of(device)
        device.sync()
        measured = measured_curve(device, work, other, sizes, launch, budget_s, bar, seed)
        return replace(measured, conditions=(before, Conditions.of(device)))


def measured_curve(
    device: Device,
    work: Part,
    load: Part | None,
    sizes: Iterable[int] | None,
    launch: Literal["calls", "graphs"],
    budget_s: float,
    bar: Progress,
    seed: int,
    most_rounds: int = MOST_ROUNDS,
) -> Curve:
    """The curve of a part, without the conditions; the caller has made sure that nothing else is being tuned."""
    with ExitStack() as closing:
        until = clock.now() + budget_s
        runner = closing.enter_context(Runner("makespan", until, launch))
        calls = closing.enter_context(Runner(TailLatency(PART, quantile=0.5, closed_loop=True), until, launch))
        measured, complete = _measure(
            device, work, load, sizes, runner, calls, budget_s, bar, seed, closing, most_rounds
        )
    points = sorted((size.point() for size in measured if size.seconds), key=lambda point: point.sm_count)
    return Curve(
        part=work.name,
        load=load.name if load is not None else None,
        points=tuple(points),
        complete=complete,
        device=device.name,
        sm_count=device.sm_count,
        driver=".".join(map(str, system.driver_version)),
        date=date.today().isoformat(),
        conditions=(),
    )


def _measure(
    device: Device,
    work: Part,
    load: Part | None,
    sizes: Iterable[int] | None,
    runner: Runner,
    calls: Runner,
    budget_s: float,
    bar: Progress,
    seed: int,
    closing: ExitStack,
    most_rounds: int,
) -> tuple[list[_Size], bool]:
    critical = Part(PART, work.function)
    stream = closing.enter_context(device.create_stream())
    names = {PART: critical} if load is None else {PART: critical, LOAD: Part(LOAD, load.function)}
    for name, part in names.items():
        with naming(f"{work.name if name == PART else load.name if load is not None else ''} alone"):
            facts = examine(part, stream, runner.demand_time)
        for each_runner in (runner, calls):
            each_runner.call_s[name] = facts.host_s
            each_runner.alone_s[name] = facts.device_s
        if name == PART:  # launch-bound: what it takes would depend on the gate
            runner.gated = facts.waits or facts.host_s < facts.device_s
    whole = _Size(device.sm_count, Trial("whole device", (critical,), {PART: stream}, stream), None)
    runner.warm(whole.alone)
    step_s = max(whole.alone.step_s, whole.alone.host_s)
    counts = _sizes(device, sizes, step_s, load is not None, budget_s)
    complete = len(counts) == len(_sizes(device, sizes, 0.0, False, budget_s))
    measured = [whole]
    began = clock.now()
    try:
        for count, request in counts:
            pool = closing.enter_context(PartitionPool(device))
            with sharing():
                parts = pool.prepare(Layout.of({PART: request}))
            alone = Trial(f"{count} SMs", (critical,), {PART: parts.part.stream}, parts.part.stream)
            both = None
            if load is not None and "background" in parts:
                streams = {PART: parts.part.stream, LOAD: parts.background.stream}
                both = Trial(f"{count} SMs", (critical, names[LOAD]), streams, parts.part.stream)
            for trial in (alone, both):
                if trial is not None:
                    runner.warm(trial)
            measured.append(_Size(parts.part.sm_count, alone, both))
        order = random.Random(seed)
        for number, size in in_rounds(measured, most_rounds, order):
            bar.show((clock.now() - began) / budget_s, f"measuring {work.name} in {size.sm_count} SMs")
            size.seconds[number] = runner.batch(size.alone, runner.shape([size.alone])).seconds
            if size.both is not None:
                size.latency[number] = calls.batch(size.alone, runner.shape([size.alone])).seconds
                sample = calls.batch(size.both, runner.shape([size.both]))
                size.loaded[number] = sample.seconds
                size.calls += [sample.calls[LOAD]] if sample.calls.get(LOAD, (0, 0.0))[1] > 0 else []
    except OutOfTime:
        complete = complete and all(len(size.seconds) >= LEAST_PAIRS for size in measured)
    finally:
        for size in measured:
            for trial in (size.alone, size.both):
                for used in trial.streams.values() if trial is not None else ():
                    used.sync()
    if not whole.seconds:
        raise RuntimeError(f"budget_s={budget_s:g} is too short to measure {work.name} once: increase it")
    return measured, complete


def _sizes(
    device: Device, sizes: Iterable[int] | None, step_s: float, loaded: bool, budget_s: float
) -> Sequence[tuple[int, Request]]:
    """The sizes to measure, and how to request them: as many as the budget allows, evenly apart."""
    requests = Sizes(device, [PART, LOAD], sizes).requests()
    # A round of a size: a batch of steps, and with a load about two times as many calls again.
    each_s = max(0.05, step_s) * (4 if loaded else 1) * (LEAST_PAIRS + 1)
    most = max(2, int(budget_s / each_s) - 1) if step_s else len(requests)
    if len(requests) <= most:
        return requests
    return [requests[round(number * (len(requests) - 1) / (most - 1))] for number in range(most)]
