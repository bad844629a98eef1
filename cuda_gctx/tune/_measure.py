"""Measuring one plan: batches of steps whose time the device tells, not the host.

What makes a batch true:

- Its streams wait at a gate, a kernel that spins, until the host has a head start. From there on the host runs ahead,
  and the device goes from step to step. Where the host cannot keep ahead the work is launch-bound: that is seen, and
  told.
- Nothing but what the plan itself needs lies between the steps: two timing events around the whole batch, and the
  events that join the parts. When each part ran is looked at in batches of their own.
- The first steps of a plan are not counted: kernels are loaded, allocators grow. Nor is the first second, in which a
  chip that has rested is faster than it will be.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import ceil

from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.probe import spin
from cuda_gctx._core.stream import Stream
from cuda_gctx.measure.statistics import NOISE, quantile
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._work import TIMED, Part, entered, seconds_between

__all__ = ["Bench", "Intervals", "OutOfTime", "Sample", "Trial"]

BATCH_S = 0.03
LEAST_STEPS, MOST_STEPS = 3, 200
WARM_S = 0.005
MOST_SETTLING_S = 1.0
PROFILED_STEPS = 10
GATE_TO_STEP = 4  # how many steps of the host a gate covers
LEAST_GATE_S, MOST_GATE_S = 50e-6, 0.02
# Of the tail behind the quantile, a batch sees about so many calls; and so many calls of the longest other part.
TAIL_CALLS, OTHER_CALLS = 2, 10
LEAST_CALLS, MOST_CALLS = 50, 2000
MOST_DEPTH = 64
# Launch-bound, a step takes the device as long as the host; less than this share of it is another reason.
LAUNCH_BOUND = 0.9

Intervals = dict[str, tuple[float, float]]


class OutOfTime(Exception):
    """The budget does not allow another batch."""


@dataclass
class Sample:
    """What a batch gave.

    seconds: what the objective is about. calls: of each part, how many ended in how many seconds.
    """

    seconds: float
    launch_bound: bool = False
    host_s: float = 0.0
    calls: dict[str, tuple[int, float]] = field(default_factory=dict)
    latencies: tuple[float, ...] = ()


@dataclass(eq=False)
class Trial:
    """A plan that is open, or one part alone: streams to measure on.

    clock: a stream that is idle when a latency begins.
    """

    name: object
    parts: tuple[Part, ...]
    streams: Mapping[str, Stream]
    clock: Stream
    library_sms: bool = False
    step_s: float = 0.0
    host_s: float = 0.0

    @property
    def in_sequence(self) -> bool:
        """Whether all parts are on one stream."""
        return len({stream.handle for stream in self.streams.values()}) == 1

    @classmethod
    def of(cls, plan: Plan, parts: Sequence[Part], streams: Mapping[str, Stream], clock: Stream) -> Trial:
        by_name = {part.name: part for part in parts}
        return cls(plan, tuple(by_name[name] for name in plan.parts), streams, clock, plan.library_sms)


class Bench:
    """Measures trials for one objective, within a budget.

    alone_s: for each part, the seconds of a call alone, as far as they are known.
    """

    def __init__(self, device: Device, objective: Objective, deadline: float) -> None:
        self.objective = objective
        self.deadline = deadline
        self.alone_s: dict[str, float] = {}
        self._gate = device.create_stream()

    def close(self) -> None:
        self._gate.close()

    # ---- time

    def demand_time(self) -> None:
        """OutOfTime when the budget is used up."""
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def steps_for(self, trial: Trial, most: int = MOST_STEPS) -> int:
        """How many steps make a batch; OutOfTime if there is no time for one."""
        left = self.deadline - time.monotonic()
        step_s = max(trial.step_s, trial.host_s, 1e-7)
        if left <= step_s:
            raise OutOfTime
        return max(1, min(max(LEAST_STEPS, min(most, round(BATCH_S / step_s))), int(left / step_s)))

    # ---- batches

    def warm(self, trial: Trial) -> None:
        """The first steps of a trial, which are not counted; finds out how long a step takes."""
        self.demand_time()
        self._steps(trial, 1)
        sample = self._steps(trial, self.steps_for(trial, 2))
        trial.step_s, trial.host_s = sample.seconds, sample.host_s
        if sample.seconds < WARM_S:
            sample = self._steps(trial, self.steps_for(trial, ceil(WARM_S / max(sample.seconds, WARM_S / MOST_STEPS))))
            trial.step_s, trial.host_s = sample.seconds, sample.host_s

    def settle_clocks(self, trial: Trial) -> None:
        """Works until batches take as long as those before: a chip that has rested is fast, and hot or power-limited
        later."""
        until = time.monotonic() + MOST_SETTLING_S
        last: list[float] = []
        while time.monotonic() < until:
            last = [*last[-2:], self.batch(trial).seconds]
            if len(last) == 3 and max(last) <= (1 + NOISE) * min(last):
                return

    def batch(self, trial: Trial) -> Sample:
        """One sample of a trial that is warm."""
        objective = self.objective
        if isinstance(objective, TailLatency) and any(part.name == objective.part for part in trial.parts):
            return self._latency(trial, objective)
        return self._steps(trial, self.steps_for(trial))

    def profile(self, trial: Trial) -> list[Intervals]:
        """When each part began and ended in steps that are joined, in seconds from the begin of the first."""
        steps = self.steps_for(trial, PROFILED_STEPS)
        with ExitStack() as closing:
            marks: list[dict[str, list[Event]]] = [{} for _ in range(steps)]

            @contextmanager
            def around(part: Part, stream: Stream, step: int) -> Iterator[None]:
                marks[step][part.name] = [closing.enter_context(stream.record(options=TIMED))]
                yield
                marks[step][part.name].append(closing.enter_context(stream.record(options=TIMED)))

            self._joined(trial, steps, around)
            first = marks[0][trial.parts[0].name][0]
            return [
                {
                    name: (seconds_between(first, begin), seconds_between(first, end))
                    for name, (begin, end) in step.items()
                }
                for step in marks
            ]

    def _steps(self, trial: Trial, steps: int) -> Sample:
        # The throughput of one part alone is that of its calls, one after the other.
        if isinstance(self.objective, Throughput) and len(trial.parts) > 1:
            return self._unjoined(trial, steps, self.objective.weights)
        return self._joined(trial, steps)

    def _hold(self, trial: Trial) -> Event:
        """An event that is over when the host has had its head start."""
        gate_s = min(max(LEAST_GATE_S, GATE_TO_STEP * trial.host_s), MOST_GATE_S)
        spin(self._gate, 1, round(gate_s * 1e9))
        return self._gate.record()

    def _joined(
        self,
        trial: Trial,
        steps: int,
        around: Callable[[Part, Stream, int], AbstractContextManager[None]] | None = None,
    ) -> Sample:
        """Steps in which all parts start together, or one after the other on one stream; each after the one before."""
        main = trial.streams[trial.parts[0].name]
        one_stream = trial.in_sequence
        others = {} if one_stream else {part.name: trial.streams[part.name] for part in trial.parts[1:]}
        with ExitStack() as closing:
            ends = {name: closing.enter_context(stream.record()) for name, stream in others.items()}
            joined = closing.enter_context(main.record())
            before_last = closing.enter_context(main.record())
            main.wait(closing.enter_context(self._hold(trial)))
            start = closing.enter_context(main.record(options=TIMED))
            began = time.perf_counter()
            with entered(main, trial.library_sms) if one_stream else nullcontext():
                main.record(joined)
                for step in range(steps):
                    for part in trial.parts:
                        stream = trial.streams[part.name]
                        if part.name in others:
                            stream.wait(joined)
                        with nullcontext() if one_stream else entered(stream, trial.library_sms):
                            if around is None:
                                part.enqueue(stream, trial.name)
                            else:
                                with around(part, stream, step):
                                    part.enqueue(stream, trial.name)
                        if part.name in others:
                            stream.record(ends[part.name])
                    for end in ends.values():
                        main.wait(end)
                    if others:
                        main.record(joined)
                    if step == steps - 2:
                        main.record(before_last)
            host_s = (time.perf_counter() - began) / steps
            behind = steps > 1 and before_last.is_done
            stop = closing.enter_context(main.record(options=TIMED))
            stop.sync()
            step_s = seconds_between(start, stop) / steps
            return Sample(step_s, _waited_for_host(behind, host_s, step_s), host_s)

    def _unjoined(self, trial: Trial, mixes: int, weights: Mapping[str, int]) -> Sample:
        """Mixes whose parts do not wait for each other."""
        main = trial.streams[trial.parts[0].name]
        with ExitStack() as closing:
            before_last = {name: closing.enter_context(stream.record()) for name, stream in trial.streams.items()}
            gate = closing.enter_context(self._hold(trial))
            for stream in set(trial.streams.values()):
                stream.wait(gate)
            start = closing.enter_context(main.record(options=TIMED))
            began = time.perf_counter()
            with entered(main) if trial.in_sequence else nullcontext():
                for mix in range(mixes):
                    for part in trial.parts:
                        stream = trial.streams[part.name]
                        with nullcontext() if trial.in_sequence else entered(stream, trial.library_sms):
                            for _ in range(weights[part.name]):
                                part.enqueue(stream, trial.name)
                        if mix == mixes - 2:
                            stream.record(before_last[part.name])
            host_s = (time.perf_counter() - began) / mixes
            behind = mixes > 1 and all(event.is_done for event in before_last.values())
            stops = {part.name: trial.streams[part.name].record(options=TIMED) for part in trial.parts}
            for stop in stops.values():
                closing.enter_context(stop).sync()
            took = {name: seconds_between(start, stop) for name, stop in stops.items()}
            calls = {name: (mixes * weights[name], seconds) for name, seconds in took.items()}
            mix_s = max(took.values()) / mixes
            return Sample(mix_s, _waited_for_host(behind, host_s, mix_s), host_s, calls)

    # ---- latency

    def _depth(self, name: str, critical: str) -> int:
        """How many calls of another part are kept queued, so that it does not run dry during a critical call."""
        alone = self.alone_s
        return min(MOST_DEPTH, 2 + ceil(2 * alone.get(critical, 0) / max(alone.get(name, 0), 1e-6)))

    def _latency(self, trial: Trial, objective: TailLatency) -> Sample:
        """Calls of one part, one at a time, while the others are kept queued.

        A call begins when the host has seen an event on an idle stream and ends with an event behind its work: both are
        told by the device, and the way to the host and back is in between once, as it is for a host with a clock.
        """
        critical = next(part for part in trial.parts if part.name == objective.part)
        others = {
            part: 1 if trial.in_sequence else self._depth(part.name, critical.name)
            for part in trial.parts
            if part is not critical
        }
        stream = trial.streams[critical.name]
        wanted = min(max(LEAST_CALLS, ceil(TAIL_CALLS / (1 - objective.quantile))), MOST_CALLS)
        window_s = OTHER_CALLS * max((self.alone_s.get(part.name, 0.0) for part in others), default=0.0)
        taken: list[float] = []
        with ExitStack() as closing:
            queues = {part: _Queue(part, trial, depth, closing) for part, depth in others.items()}
            start = closing.enter_context(trial.clock.record(options=TIMED))
            first = closing.enter_context(trial.clock.record(options=TIMED))
            end = closing.enter_context(stream.record(options=TIMED))
            try:
                while True:
                    for queue in queues.values():
                        queue.fill(first)
                    # Entered before the time begins: a program of one's own tells libraries once, not for each call.
                    with entered(stream, trial.library_sms):
                        trial.clock.record(start)
                        start.sync()
                        critical.enqueue(stream, trial.name)
                        stream.record(end)
                        end.sync()
                    taken.append(seconds_between(start, end))
                    passed = seconds_between(first, end)
                    if len(taken) >= MOST_CALLS or (len(taken) >= wanted and passed >= window_s):
                        break
                    self.demand_time()
            finally:
                for queue in queues.values():
                    queue.stream.sync()
            for queue in queues.values():
                queue.count(first)
            calls = {part.name: queue.counted() for part, queue in queues.items()}
        return Sample(quantile(taken, objective.quantile), calls=calls, latencies=tuple(taken))


def _waited_for_host(behind: bool, host_s: float, device_s: float) -> bool:
    """Whether the device waited for the host.

    behind: it was done with all but the last step when that had only just been enqueued. So it may be where a step
    takes the host long to enqueue, although it takes the device longer.
    """
    return behind and host_s >= LAUNCH_BOUND * device_s


class _Queue:
    """Keeps so many calls of a part queued, and counts those that are over."""

    def __init__(self, part: Part, trial: Trial, depth: int, closing: ExitStack) -> None:
        self.stream = trial.streams[part.name]
        self._part = part
        self._trial = trial
        self._free = [closing.enter_context(self.stream.record(options=TIMED)) for _ in range(depth)]
        self._queued: deque[Event] = deque()
        self._ends: list[float] = []

    def count(self, first: Event) -> None:
        """Takes note of the calls that are over."""
        while self._queued and self._queued[0].is_done:
            event = self._queued.popleft()
            self._ends.append(seconds_between(first, event))
            self._free.append(event)

    def fill(self, first: Event) -> None:
        self.count(first)
        while self._free:
            with entered(self.stream, self._trial.library_sms):
                self._part.enqueue(self.stream, self._trial.name)
            event = self._free.pop()
            self.stream.record(event)
            self._queued.append(event)

    def counted(self) -> tuple[int, float]:
        """How many calls followed the first one to end, in how many seconds."""
        return len(self._ends) - 1, self._ends[-1] - self._ends[0]
