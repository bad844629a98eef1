"""Measuring plans within a budget: which batches, of how many steps or calls, and what counts of them.

- All plans of a round get the same number of steps and the same gate, on which the step time of launch-bound work
  depends.
- The first steps of a plan are not counted, because kernels are loaded and allocators grow.
- Where the device waits for the host, the work is launch-bound, and the sample says so. Such work is enqueued without a
  gate, as a program would do it: by a host thread for each part, unless the caller wants one thread or graphs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Event
from typing import NamedTuple

from cuda_gctx._core import clock
from cuda_gctx.measure.loop import AHEAD, CallTimer, Load, RandomCalls
from cuda_gctx.measure.statistics import NOISE, quantile
from cuda_gctx.tune._batches import Trial, profile, steps_of
from cuda_gctx.tune._hosts import Hosts
from cuda_gctx.tune._measurement import Intervals, Sample
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput, weight_of
from cuda_gctx.tune._work import Launch, Part, entered

__all__ = ["BATCH_S", "OutOfTime", "Runner", "Shape"]

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


def _least_steps(step_s: float) -> int:
    """The least number of steps of a batch: one if the steps are long."""
    return LEAST_STEPS if LEAST_STEPS * step_s <= MOST_STRETCH * BATCH_S else 1


class OutOfTime(Exception):
    """The budget does not allow another batch."""


class Shape(NamedTuple):
    """What the batches of a round have in common: the number of steps, and how long the gate stays closed."""

    steps: int
    gate_s: float


class Runner:
    """Measures trials for one objective until a deadline.

    alone_s, call_s: for each part that has been measured, what a call alone takes the device and the host, in seconds.
    hosts: the threads that enqueue the parts; None while one thread enqueues all of them. gated: whether batches begin
    with a gate; not in launch-bound work, whose times would depend on it. retry_s: how long a plan that is opened again
    may take until it is as fast as before. most_calls: of a batch of latencies.
    """

    def __init__(self, objective: Objective, deadline: float, launch: Launch = "calls", seed: int = 0) -> None:
        self.objective = objective
        self.deadline = deadline
        self.launch = launch
        self.alone_s: dict[str, float] = {}
        self.call_s: dict[str, float] = {}
        self.hosts: Hosts | None = None
        self.gated = True
        self.retry_s = 0.0
        self.most_calls = MOST_CALLS
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

    def demand_time(self) -> None:
        """Raise OutOfTime if the budget is used up."""
        if clock.now() >= self.deadline:
            raise OutOfTime

    def steps_for(self, trial: Trial, most: int = MOST_STEPS) -> int:
        """The number of steps of a batch; OutOfTime if there is no time for one."""
        step_s = trial.pace_s
        return self._affordable(trial, max(_least_steps(step_s), min(most, round(BATCH_S / step_s))))

    def _affordable(self, trial: Trial, steps: int) -> int:
        """At most so many steps, as far as the time suffices."""
        left_s, step_s = self.deadline - clock.now(), trial.pace_s
        if left_s <= step_s:
            raise OutOfTime
        return max(1, min(steps, int(left_s / step_s)))

    def shape(self, trials: Sequence[Trial]) -> Shape:
        """The shape of the batches of a round: as the fastest trial needs it, within limits for the slowest."""
        plans = [trial for trial in trials if len(trial.parts) > 1] or trials
        steps = max((self.steps_for(trial) for trial in plans), default=LEAST_STEPS)
        slowest_s = max((trial.pace_s for trial in plans), default=BATCH_S)
        limit = max(_least_steps(slowest_s), round(MOST_STRETCH * BATCH_S / slowest_s))
        return Shape(min(steps, limit), self._gate_s(max((trial.host_s for trial in trials), default=0.0)))

    def longest_shape(self, trial: Trial, seconds: float) -> Shape:
        """The shape of batches that take so many seconds, if they are of mixes; the usual one if they are of steps, or
        if each batch is to have new host threads.
        """
        shape = self.shape([trial])
        if self.hosts is not None or not isinstance(self.objective, Throughput):
            return shape
        return shape._replace(steps=max(shape.steps, int(seconds / trial.pace_s)))

    def _gate_s(self, host_s: float) -> float:
        return AHEAD.gate_s(host_s) if self.gated else 0.0

    def warm(self, trial: Trial) -> None:
        """Run the first steps of a trial, which are not counted, and estimate how long a step takes."""
        self.demand_time()
        sample = self._steps(trial, 1)
        if self.launch == "graphs":
            trial.capture(self._graphs)
        if sample.seconds >= BATCH_S:
            return  # what a first step takes in addition is little of a long one
        before = self._steps(trial, self.steps_for(trial, 2)).seconds
        for _ in range(MOST_WARM_UPS):
            steps = self.steps_for(trial, max(1, math.ceil(WARM_S / max(before, WARM_S / MOST_STEPS))))
            now = self._steps(trial, steps).seconds
            if abs(now - before) <= ALIKE * before:
                break
            before = now

    def warm_like(self, trial: Trial, first: Trial) -> None:
        """Let another opening of a plan run until it is as fast as the first one, if that happens soon."""
        fast_s = math.inf if isinstance(self.objective, TailLatency) else (1 + ALIKE) * first.step_s
        self.run_for(trial, self.retry_s, lambda samples: samples[-1].seconds <= fast_s)

    def settle_clocks(self, trial: Trial) -> list[Sample]:
        """Run batches until they take equally long: a chip that has rested is faster than one that is hot or at its
        power limit."""

        def are_alike(samples: Sequence[Sample]) -> bool:
            last = [sample.seconds for sample in samples[-3:]]
            return len(last) == 3 and max(last) <= (1 + NOISE) * min(last)

        return self.run_for(trial, MOST_SETTLING_S, are_alike)

    def run_for(self, trial: Trial, seconds: float, is_enough: Callable[[list[Sample]], bool]) -> list[Sample]:
        """Take samples for so many seconds, or until they are enough."""
        until, samples = clock.now() + seconds, list[Sample]()
        while clock.now() < until:
            samples.append(self.batch(trial, self.shape([trial])))
            if is_enough(samples):
                break
        return samples

    def batch(self, trial: Trial, shape: Shape) -> Sample:
        """Take one sample of a warm trial."""
        if isinstance(self.objective, TailLatency) and any(part.name == self.objective.part for part in trial.parts):
            return self._latency(trial, self.objective)
        return self.back_to_back(trial, shape)

    def back_to_back(self, trial: Trial, shape: Shape) -> Sample:
        """Take one sample of steps, or mixes, one after the other."""
        # A short part alone would be measured inaccurately with the number of steps that fits the plans.
        steps = shape.steps if len(trial.parts) > 1 else max(shape.steps, self.steps_for(trial))
        return self._steps(trial, self._affordable(trial, steps), shape.gate_s)

    def profile(self, trial: Trial) -> list[Intervals]:
        """When each part began and ended in some steps, in seconds since the first part began."""
        return profile(trial, self.steps_for(trial, PROFILED_STEPS), self._gate_s(trial.host_s), self.hosts)

    def _steps(self, trial: Trial, steps: int, gate_s: float | None = None) -> Sample:
        gate_s = self._gate_s(trial.host_s) if gate_s is None else gate_s
        # The throughput of one part alone is that of its calls, one after the other.
        mixes = isinstance(self.objective, Throughput) and len(trial.parts) > 1
        weights = {part.name: weight_of(self.objective, part.name) for part in trial.parts}
        batch = steps_of(trial, steps, gate_s, self.hosts, weights if mixes else None)
        took = dict(zip(dict.fromkeys(trial.streams[name] for name in weights), batch.seconds, strict=False))
        calls = {name: (float(steps * n), took[trial.streams[name]]) for name, n in weights.items() if mixes}
        host_s, step_s = batch.host_s / steps, max(batch.seconds) / steps
        # The device can also finish all but the last step early because the host waits for room in the driver's queue.
        # So a step is launch-bound only if it takes the host as long as the device, and the calls alone, which found
        # room, take a good part of that.
        each_s = (self.call_s.get(name, host_s) * weight for name, weight in weights.items())
        launch_bound = batch.late and host_s >= LAUNCH_BOUND * step_s and sum(each_s) >= step_s / 2
        trial.step_s, trial.host_s = step_s, host_s
        return Sample(step_s, launch_bound, host_s, calls, steps=steps)

    def _depth(self, name: str, critical: str) -> int:
        """How many calls of another part are kept queued, so that it does not run dry during a critical call."""
        alone = self.alone_s
        return min(MOST_DEPTH, 2 + math.ceil(2 * alone.get(critical, 0) / max(alone.get(name, 0), 1e-6)))

    def calls_of_batch(self, critical: Part, others: Sequence[Part], objective: TailLatency) -> tuple[int, float]:
        """How many critical calls a batch has, and how long it lasts at the least."""
        alone_s = self.alone_s.get(critical.name, 0.0)
        wanted = min(max(LEAST_CALLS, math.ceil(TAIL_CALLS / (1 - objective.quantile))), self.most_calls)
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

    def rate(self, objective: TailLatency) -> float:
        """How many calls of the critical part arrive per second: half of what it can take, unless a rate is given."""
        call_s = max(self.alone_s.get(objective.part, 0.0), self.call_s.get(objective.part, 0.0), LEAST_CALL_S)
        return objective.rate if objective.rate is not None else LOAD_OF_CRITICAL / call_s

    def _latency(self, trial: Trial, objective: TailLatency) -> Sample:
        """Make calls of one part while the others are kept queued: at random times, or one at a time."""
        critical = next(part for part in trial.parts if part.name == objective.part)
        others = [part for part in trial.parts if part is not critical]
        stream, hosts = trial.streams[critical.name], None if trial.in_sequence else self.hosts
        most, least_s = self.calls_of_batch(critical, others, objective)
        call, taken = partial((trial.joint or critical).enqueue, stream, trial.name), list[float]()
        with ExitStack() as closing:
            loads: dict[str, Load] = {}
            for part in others if trial.joint is None else ():
                depth = 1 if trial.in_sequence else self._depth(part.name, critical.name)
                load = Load(trial.streams[part.name], partial(_enqueue, trial, part), depth)
                loads[part.name] = closing.enter_context(load)
            arrivals = (
                CallTimer(stream, idle=trial.clock, most=MOST_CALLS)
                if objective.closed_loop
                else RandomCalls(stream, trial.clock, self.rate(objective), MOST_CALLS, self._chance)
            )
            closing.callback(arrivals.close)
            for load in loads.values():
                load.fill()
            with ExitStack() as feeding:
                if hosts is not None:
                    enough = Event()
                    feeds = {name: partial(_feed, load, enough) for name, load in loads.items()}
                    feeding.enter_context(hosts.running(feeds))
                    feeding.callback(enough.set)
                while len(taken) < most or arrivals.passed_s < least_s:
                    for load in loads.values() if hosts is None else ():
                        load.fill()
                    # Entered before the time begins: a program passes libraries the SM count once, not for each call.
                    with entered(stream, trial.library_sms):
                        taken += arrivals.make(call)
                    if not arrivals.left:
                        break
                    self.demand_time()
            taken += arrivals.rest()
        completed: dict[str, tuple[float, float]] = {name: load.completed() for name, load in loads.items()}
        if trial.joint is not None:
            completed = {part.name: (trial.share * len(taken), arrivals.passed_s) for part in others}
        return Sample(quantile(taken, objective.quantile), calls=completed, latencies=tuple(sorted(taken)))


def _enqueue(trial: Trial, part: Part) -> None:
    with trial.on(part):
        trial.call(part)


def _feed(load: Load, enough: Event) -> None:
    """Keep calls queued, until it is enough."""
    while not enough.is_set():
        load.fill()
        load.wait_for_room()
