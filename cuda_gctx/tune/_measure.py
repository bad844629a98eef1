"""Measuring a plan: batches of steps for an objective, within a budget.

- Between the steps of a batch lies only what the plan itself needs: the events that join its parts. When each part ran
  is observed in separate batches.
- All plans of a round get the same number of steps and the same gate. Steps that are enqueued behind a gate do not wait
  for launches, so the step time of launch-bound work depends on both.
- The first steps of a plan are not counted, because kernels are loaded and allocators grow. Neither is the first
  second, in which a chip that has rested runs faster than later.
- Where the device waits for the host, the work is launch-bound, and the sample says so. Such work is enqueued without a
  gate, as a program would do it: by a host thread for each part, unless the caller wants one thread or graphs. How fast
  two threads enqueue depends on how they are scheduled, so each round has new ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import ceil
from threading import Barrier
from threading import Event as Flag
from typing import Literal, NamedTuple, TypeAlias

from cuda_gctx._core import clock
from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.stream import Stream, StreamOptions
from cuda_gctx.measure.loop import (
    AHEAD,
    TIMED,
    Batch,
    CallTimer,
    Load,
    RandomCalls,
    is_apart,
    seconds_between,
    timed_batch,
)
from cuda_gctx.measure.statistics import NOISE, quantile
from cuda_gctx.partitions.causes import MOST_CONNECTIONS
from cuda_gctx.tune._hosts import Hosts
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._ranking import Intervals, Sample
from cuda_gctx.tune._work import Part, captured, entered

__all__ = ["BATCH_S", "LAUNCHES", "Launch", "OutOfTime", "Runner", "Shape", "Trial", "clock_for"]

# How the work is enqueued: by a host thread for each part if it is launch-bound, always by one host thread, or as
# graphs.
Launch: TypeAlias = Literal["auto", "calls", "graphs"]
LAUNCHES: tuple[Launch, ...] = ("auto", "calls", "graphs")

BATCH_S = 0.03
LEAST_STEPS, MOST_STEPS = 3, 200
# A batch of the slowest plan of a round may take so many times as long as BATCH_S.
MOST_STRETCH = 4
# A plan is warm when two batches in succession, of so many seconds, take equally long.
WARM_S, MOST_WARM_UPS, ALIKE = 0.005, 10, 0.05
MOST_SETTLING_S = 1.0
PROFILED_STEPS = 10
# The calls per batch: so many above the quantile, and so many of the longest other part.
TAIL_CALLS, OTHER_CALLS = 2, 10
LEAST_CALLS, MOST_CALLS = 50, 2000
# Of calls that take long, as many as fit into this time, and at least so many critical ones and other ones.
LONG_S, LEAST_LONG_CALLS, LEAST_LONG_OTHERS = 1.0, 7, 2
MOST_DEPTH = 64
# Calls arrive at this share of the rate that the part can take alone.
LOAD_OF_CRITICAL = 0.5
LEAST_CALL_S = 10e-6  # what the host takes to make a call and to look at the time
# In launch-bound work a step takes the device as long as the host. If the host takes less than this share of the
# device's time, the reason is another one.
LAUNCH_BOUND = 0.9

# A block around the call of a part on a stream in a step.
Around: TypeAlias = Callable[[Part, Stream, int], AbstractContextManager[None]]


def _least_steps(step_s: float) -> int:
    """The least number of steps of a batch: one if the steps are long."""
    return LEAST_STEPS if LEAST_STEPS * step_s <= MOST_STRETCH * BATCH_S else 1


def _evenly(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """The calls of a mix, those of each part evenly over the whole: parts, and how many calls in a row.

    If one part after the other was enqueued, the later ones would not begin while the driver's queue is full of the
    calls of the first one.
    """
    calls = sorted(
        (number / weight, position, name)
        for position, (name, weight) in enumerate(weights.items())
        for number in range(weight)
    )
    return [(name, len(list(run))) for name, run in groupby(name for *_, name in calls)]


class OutOfTime(Exception):
    """The budget does not allow another batch."""


@dataclass(eq=False)
class Trial:
    """An open plan, or one part alone: streams to measure on.

    clock: a stream that is idle when a latency begins.
    joint, share: in a plan of the kind together, the function that takes a share of a call of the other part into one
    of the first part.
    step_s, host_s: the device and host seconds of a step in the latest batch.
    """

    name: object
    parts: tuple[Part, ...]
    streams: Mapping[str, Stream]
    clock: Stream
    library_sms: bool = False
    joint: Part | None = None
    share: float = 0.0
    step_s: float = 0.0
    host_s: float = 0.0

    @property
    def in_sequence(self) -> bool:
        """Whether all parts are on one stream."""
        return len({stream.handle for stream in self.streams.values()}) == 1

    @classmethod
    def of(
        cls,
        plan: Plan,
        parts: Sequence[Part],
        streams: Mapping[str, Stream],
        clock: Stream,
        together: Callable[[Stream, float], object] | None = None,
    ) -> Trial:
        by_name = {part.name: part for part in parts}
        trial = cls(plan, tuple(by_name[name] for name in plan.parts), streams, clock, plan.library_sms)
        if plan.share is not None and together is not None:
            trial.share = share = plan.share
            trial.joint = Part("together", lambda stream: together(stream, share))
        return trial

    @property
    def main(self) -> Stream:
        """The stream of the first part."""
        return self.streams[self.parts[0].name]

    def mix(self, weights: Mapping[str, int]) -> list[tuple[Part, int]]:
        """The calls of a mix: of each part so many; together, as many calls of one part as take all of the other."""
        if self.joint is None:
            return [(part, weights[part.name]) for part in self.parts]
        assert isinstance(self.name, Plan)
        first, other = sorted(self.parts, key=lambda part: part.name != self.name.first)  # type: ignore[attr-defined]
        joint = min(weights[first.name], round(weights[other.name] / self.share))
        left = weights[other.name] - round(joint * self.share)
        calls = [(self.joint, joint), (first, weights[first.name] - joint), (other, left)]
        return [(part, count) for part, count in calls if count]


def clock_for(objective: Objective, device: Device, streams: Mapping[str, Stream], closing: ExitStack) -> Stream:
    """The stream by whose time calls of the critical part begin: for random arrivals one that waits for no other, in a
    closed loop that of the part, unless other parts are queued on it.

    closing: closes the stream.
    """
    own = streams.get(objective.part) if isinstance(objective, TailLatency) else None
    own = own or next(iter(streams.values()))
    if not isinstance(objective, TailLatency):
        return own
    if objective.closed_loop:
        shared = list(streams.values()).count(own) > 1
        return closing.enter_context(device.create_stream()) if shared else own
    urgent = StreamOptions(priority=device.priority_range[1])
    for _ in range(MOST_CONNECTIONS):
        idle = closing.enter_context(device.create_stream(urgent))
        if is_apart(idle, set(streams.values())):
            break
    return idle


class Shape(NamedTuple):
    """What the batches of a round have in common: the number of steps, and how long the gate stays closed."""

    steps: int
    gate_s: float


class Runner:
    """Measures trials for one objective until a deadline.

    alone_s, call_s: for each part that has been measured, what a call alone takes the device and the host, in seconds.
    hosts: the threads that enqueue the parts; None while one thread enqueues all of them. gated: whether batches begin
    with a gate; not in launch-bound work, whose times would depend on it.
    """

    def __init__(self, objective: Objective, deadline: float, launch: Launch = "calls", seed: int = 0) -> None:
        self.objective = objective
        self.deadline = deadline
        self.launch = launch
        self.alone_s: dict[str, float] = {}
        self.call_s: dict[str, float] = {}
        self.hosts: Hosts | None = None
        self.gated = True
        self._graphs = ExitStack()
        self._chance = random.Random(seed)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._graphs.close()

    def start_hosts(self, names: Sequence[str]) -> None:
        """From now on, a new host thread enqueues each part."""
        self.stop()
        self.hosts = Hosts(names)

    def stop(self) -> None:
        """Wait for the host threads, and end them."""
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None

    # ---- time

    def demand_time(self) -> None:
        """Raise OutOfTime if the budget is used up."""
        if clock.now() >= self.deadline:
            raise OutOfTime

    def steps_for(self, trial: Trial, most: int = MOST_STEPS) -> int:
        """The number of steps of a batch; OutOfTime if there is no time for one."""
        step_s = max(trial.step_s, trial.host_s, 1e-7)
        return self._affordable(trial, max(_least_steps(step_s), min(most, round(BATCH_S / step_s))))

    def _affordable(self, trial: Trial, steps: int) -> int:
        """At most so many steps, as far as the time suffices."""
        left = self.deadline - clock.now()
        step_s = max(trial.step_s, trial.host_s, 1e-7)
        if left <= step_s:
            raise OutOfTime
        return max(1, min(steps, int(left / step_s)))

    def shape(self, trials: Sequence[Trial]) -> Shape:
        """The shape of the batches of a round: as the fastest trial needs it, within limits for the slowest."""
        plans = [trial for trial in trials if len(trial.parts) > 1] or trials
        steps = max((self.steps_for(trial) for trial in plans), default=LEAST_STEPS)
        slowest_s = max((max(trial.step_s, trial.host_s) for trial in plans), default=0.0)
        limit = max(_least_steps(slowest_s), round(MOST_STRETCH * BATCH_S / max(slowest_s, 1e-7)))
        return Shape(min(steps, limit), self._gate_s(max((trial.host_s for trial in trials), default=0.0)))

    def _gate_s(self, host_s: float) -> float:
        """How long to close the gate."""
        return AHEAD.gate_s(host_s) if self.gated else 0.0

    # ---- batches

    def warm(self, trial: Trial) -> None:
        """Run the first steps of a trial, which are not counted, and estimate how long a step takes."""
        self.demand_time()
        sample = self._steps(trial, 1)
        if self.launch == "graphs":
            hint = trial.library_sms
            trial.parts = tuple(
                captured(part, trial.streams[part.name], hint, trial.name, self._graphs) for part in trial.parts
            )
            if trial.joint is not None:
                trial.joint = captured(trial.joint, trial.main, hint, trial.name, self._graphs)
        if sample.seconds >= BATCH_S:
            return  # what a first step takes in addition is little of a long one
        before = self._steps(trial, self.steps_for(trial, 2)).seconds
        for _ in range(MOST_WARM_UPS):
            steps = self.steps_for(trial, max(1, ceil(WARM_S / max(before, WARM_S / MOST_STEPS))))
            now = self._steps(trial, steps).seconds
            if abs(now - before) <= ALIKE * before:
                break
            before = now

    def settle_clocks(self, trial: Trial) -> list[Sample]:
        """Run batches until they take equally long: a chip that has rested is faster than one that is hot or at its
        power limit."""
        until = clock.now() + MOST_SETTLING_S
        samples: list[Sample] = []
        while clock.now() < until:
            samples.append(self.batch(trial, self.shape([trial])))
            last = [sample.seconds for sample in samples[-3:]]
            if len(last) == 3 and max(last) <= (1 + NOISE) * min(last):
                break
        return samples

    def batch(self, trial: Trial, shape: Shape) -> Sample:
        """Take one sample of a warm trial."""
        objective = self.objective
        if isinstance(objective, TailLatency) and any(part.name == objective.part for part in trial.parts):
            return self._latency(trial, objective)
        # A short part alone would be measured inaccurately with the number of steps that fits the plans.
        steps = shape.steps if len(trial.parts) > 1 else max(shape.steps, self.steps_for(trial))
        return self._steps(trial, self._affordable(trial, steps), shape.gate_s)

    def profile(self, trial: Trial) -> list[Intervals]:
        """When each part began and ended in some steps, in seconds since the first part began."""
        steps = self.steps_for(trial, PROFILED_STEPS)
        with ExitStack() as closing:
            marks: list[dict[str, list[Event]]] = [{} for _ in range(steps)]

            @contextmanager
            def around(part: Part, stream: Stream, step: int) -> Iterator[None]:
                marks[step][part.name] = [closing.enter_context(stream.record(options=TIMED))]
                yield
                marks[step][part.name].append(closing.enter_context(stream.record(options=TIMED)))

            self._joined(trial, steps, self._gate_s(trial.host_s), around)
            first = marks[0][trial.parts[0].name][0]
            return [
                {
                    name: (seconds_between(first, begin), seconds_between(first, end))
                    for name, (begin, end) in step.items()
                }
                for step in marks
            ]

    def _steps(self, trial: Trial, steps: int, gate_s: float | None = None) -> Sample:
        gate_s = self._gate_s(trial.host_s) if gate_s is None else gate_s
        # The throughput of one part alone is that of its calls, one after the other.
        if isinstance(self.objective, Throughput) and len(trial.parts) > 1:
            sample = self._unjoined(trial, steps, gate_s, self.objective.weights)
        else:
            sample = self._joined(trial, steps, gate_s)
        trial.step_s, trial.host_s = sample.seconds, sample.host_s
        return sample

    def _joined(
        self,
        trial: Trial,
        steps: int,
        gate_s: float,
        around: Around | None = None,
    ) -> Sample:
        """Run steps, each after the one before, whose parts start together, or one after the other on one stream."""
        main = trial.main
        one_stream = trial.in_sequence
        others = {} if one_stream else {part.name: trial.streams[part.name] for part in trial.parts[1:]}
        with ExitStack() as closing:
            ends = {name: closing.enter_context(stream.record()) for name, stream in others.items()}
            joined = closing.enter_context(main.record())
            before_last = closing.enter_context(main.record())

            def enqueue() -> Sequence[Event]:
                main.record(joined)
                if self.hosts is not None and others:
                    self._enqueue_by_hosts(self.hosts, trial, steps, joined, before_last, ends, around)
                else:
                    self._enqueue(trial, steps, joined, before_last, ends, around)
                return [before_last] if steps > 1 else []

            batch = timed_batch([main], enqueue, gate_s)
            return self._sample(trial, batch, batch.seconds[0], steps)

    @staticmethod
    def _call(trial: Trial, part: Part, step: int, around: Around | None) -> None:
        stream = trial.streams.get(part.name, trial.main)
        with nullcontext() if around is None else around(part, stream, step):
            part.enqueue(stream, trial.name)

    def _enqueue(
        self,
        trial: Trial,
        steps: int,
        joined: Event,
        before_last: Event,
        ends: Mapping[str, Event],
        around: Around | None,
    ) -> None:
        """Enqueue joined steps from this thread."""
        main = trial.main
        one_stream = trial.in_sequence
        calls = [part for part, _ in trial.mix({part.name: 1 for part in trial.parts})]
        with entered(main, trial.library_sms) if one_stream else nullcontext():
            for step in range(steps):
                for part in calls:
                    stream = trial.streams.get(part.name, main)
                    if part.name in ends:
                        stream.wait(joined)
                    with nullcontext() if one_stream else entered(stream, trial.library_sms):
                        self._call(trial, part, step, around)
                    if part.name in ends:
                        stream.record(ends[part.name])
                for end in ends.values():
                    main.wait(end)
                if ends:
                    main.record(joined)
                if step == steps - 2:
                    main.record(before_last)

    def _enqueue_by_hosts(
        self,
        hosts: Hosts,
        trial: Trial,
        steps: int,
        joined: Event,
        before_last: Event,
        ends: Mapping[str, Event],
        around: Around | None,
    ) -> None:
        """Enqueue joined steps from a thread for each part. In each step the threads meet twice: an event is waited for
        only after it has been recorded, and recorded again only after that.
        """
        main = trial.main
        meeting = Barrier(len(trial.parts))

        def run(part: Part) -> None:
            stream = trial.streams[part.name]
            with entered(stream, trial.library_sms):
                for step in range(steps):
                    if part.name in ends:
                        stream.wait(joined)
                    self._call(trial, part, step, around)
                    if part.name in ends:
                        stream.record(ends[part.name])
                    meeting.wait()
                    if part.name not in ends:
                        for end in ends.values():
                            main.wait(end)
                        main.record(joined)
                        if step == steps - 2:
                            main.record(before_last)
                    meeting.wait()

        hosts.run({part.name: partial(run, part) for part in trial.parts}, meeting)

    def _unjoined(self, trial: Trial, mixes: int, gate_s: float, weights: Mapping[str, int]) -> Sample:
        """Run mixes whose parts do not wait for each other."""
        streams = list(dict.fromkeys(trial.streams[part.name] for part in trial.parts))
        with ExitStack() as closing:
            before_last = {name: closing.enter_context(stream.record()) for name, stream in trial.streams.items()}

            def calls(part: Part, count: int) -> None:
                for _ in range(count):
                    part.enqueue(trial.streams.get(part.name, trial.main), trial.name)

            def run(part: Part) -> None:
                with entered(trial.streams[part.name], trial.library_sms):
                    for mix in range(mixes):
                        calls(part, weights[part.name])
                        if mix == mixes - 2:
                            trial.streams[part.name].record(before_last[part.name])

            def by_one_thread() -> None:
                for mix in range(mixes):
                    for part, count in rows:
                        with (
                            nullcontext() if trial.in_sequence else entered(trial.streams[part.name], trial.library_sms)
                        ):
                            calls(part, count)
                    if mix == mixes - 2:
                        for name, event in before_last.items():
                            trial.streams[name].record(event)

            by_name = {part.name: part for part in trial.parts}
            evenly = [] if trial.in_sequence else _evenly({name: weights[name] for name in by_name})
            rows = [(by_name[name], count) for name, count in evenly] or trial.mix(weights)

            def enqueue() -> Sequence[Event]:
                if self.hosts is not None and not trial.in_sequence:
                    self.hosts.run({part.name: partial(run, part) for part in trial.parts})
                else:
                    with entered(streams[0]) if trial.in_sequence else nullcontext():
                        by_one_thread()
                return list(before_last.values()) if mixes > 1 else []

            batch = timed_batch(streams, enqueue, gate_s)
            took = dict(zip(streams, batch.seconds, strict=True))
            sample = self._sample(trial, batch, max(batch.seconds), mixes)
            sample.calls = {name: (mixes * weights[name], took[stream]) for name, stream in trial.streams.items()}
            return sample

    def _sample(self, trial: Trial, batch: Batch, seconds: float, steps: int) -> Sample:
        """The sample of a batch of so many steps.

        The device can also finish all but the last step early because the host waits for room in the driver's queue.
        So a step is launch-bound only if it takes the host as long as the device, and the calls alone, which found
        room, take a good part of that.
        """
        host_s, step_s = batch.host_s / steps, seconds / steps
        weights = self.objective.weights if isinstance(self.objective, Throughput) else {}
        called_s = sum(self.call_s.get(part.name, host_s) * weights.get(part.name, 1) for part in trial.parts)
        launch_bound = batch.late and host_s >= LAUNCH_BOUND * step_s and called_s >= step_s / 2
        return Sample(step_s, launch_bound, host_s, steps=steps)

    # ---- latency

    def _depth(self, name: str, critical: str) -> int:
        """How many calls of another part are kept queued, so that it does not run dry during a critical call."""
        alone = self.alone_s
        return min(MOST_DEPTH, 2 + ceil(2 * alone.get(critical, 0) / max(alone.get(name, 0), 1e-6)))

    def calls_of_batch(self, critical: Part, others: Sequence[Part], objective: TailLatency) -> tuple[int, float]:
        """How many critical calls a batch has, and how long it lasts at the least."""
        alone_s = self.alone_s.get(critical.name, 0.0)
        wanted = min(max(LEAST_CALLS, ceil(TAIL_CALLS / (1 - objective.quantile))), MOST_CALLS)
        if wanted * alone_s > LONG_S:
            wanted = min(wanted, max(LEAST_LONG_CALLS, int(LONG_S / alone_s)))
        other_s = max((self.alone_s.get(part.name, 0.0) for part in others), default=0.0)
        return wanted, max(min(OTHER_CALLS * other_s, LONG_S), LEAST_LONG_OTHERS * other_s)

    def latency_batch_s(self, parts: Sequence[Part], objective: TailLatency) -> float:
        """How long a batch takes where the others do not keep the critical part waiting."""
        critical = next(part for part in parts if part.name == objective.part)
        wanted, window_s = self.calls_of_batch(critical, [part for part in parts if part is not critical], objective)
        each_s = 2 * self.alone_s.get(critical.name, 0.0) if objective.closed_loop else 1 / self.rate(objective)
        return max(wanted * each_s, window_s)

    def _arrivals(self, trial: Trial, critical: Part, objective: TailLatency) -> CallTimer | RandomCalls:
        """How the calls of the critical part come."""
        stream = trial.streams[critical.name]
        if objective.closed_loop:
            return CallTimer(stream, idle=trial.clock, most=MOST_CALLS)
        return RandomCalls(stream, trial.clock, self.rate(objective), MOST_CALLS, self._chance)

    def rate(self, objective: TailLatency) -> float:
        """How many calls of the critical part arrive per second: half of what it can take, unless a rate is given."""
        call_s = max(self.alone_s.get(objective.part, 0.0), self.call_s.get(objective.part, 0.0), LEAST_CALL_S)
        return objective.rate if objective.rate is not None else LOAD_OF_CRITICAL / call_s

    def _latency(self, trial: Trial, objective: TailLatency) -> Sample:
        """Make calls of one part while the others are kept queued: at random times, or one at a time."""
        critical = next(part for part in trial.parts if part.name == objective.part)
        others = [part for part in trial.parts if part is not critical]
        stream = trial.streams[critical.name]
        least_calls, window_s = self.calls_of_batch(critical, others, objective)
        call = partial((trial.joint or critical).enqueue, stream, trial.name)
        taken: list[float] = []

        def queued(part: Part) -> None:
            with entered(trial.streams[part.name], trial.library_sms):
                part.enqueue(trial.streams[part.name], trial.name)

        with ExitStack() as closing:
            loads = {}
            for part in others if trial.joint is None else ():
                depth = 1 if trial.in_sequence else self._depth(part.name, critical.name)
                load = Load(trial.streams[part.name], partial(queued, part), depth)
                loads[part.name] = closing.enter_context(load)
            calls = self._arrivals(trial, critical, objective)
            closing.callback(calls.close)
            for load in loads.values():
                load.fill()
            by_hosts = self.hosts is not None and not trial.in_sequence
            with self._feeding(loads) if by_hosts else nullcontext():
                while len(taken) < least_calls or calls.passed_s < window_s:
                    if not by_hosts:
                        for load in loads.values():
                            load.fill()
                    # Entered before the time begins: a program passes libraries the SM count once, not for each call.
                    with entered(stream, trial.library_sms):
                        taken += calls.make(call)
                    if not calls.left:
                        break
                    self.demand_time()
                taken += calls.rest()
        completed: dict[str, tuple[float, float]] = {name: load.completed() for name, load in loads.items()}
        if trial.joint is not None:
            completed = {part.name: (trial.share * len(taken), calls.passed_s) for part in others}
        return Sample(quantile(taken, objective.quantile), calls=completed, latencies=tuple(taken))

    @contextmanager
    def _feeding(self, loads: Mapping[str, Load]) -> Iterator[None]:
        """A block in which the thread of each part keeps its calls queued."""
        assert self.hosts is not None
        enough = Flag()

        def feed(load: Load) -> None:
            while not enough.is_set():
                load.fill()
                load.wait_for_room()

        running = self.hosts.start({name: partial(feed, load) for name, load in loads.items()})
        try:
            yield
        finally:
            enough.set()
            for future in running:
                future.exception()  # waits
        for future in running:
            future.result()
