"""Batches of work on the streams of a plan: steps, mixes, and single calls next to a load.

- Between the steps of a batch lies only what the plan itself needs: the events that join its parts.
- Steps that are enqueued behind a gate do not wait for launches, so the step time of launch-bound work depends on the
  gate. Without one, work is enqueued as a program would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Barrier
from threading import Event as Flag
from typing import TypeAlias

from cuda_gctx._core.device import Device
from cuda_gctx._core.event import Event
from cuda_gctx._core.stream import Stream, StreamOptions
from cuda_gctx.measure.loop import TIMED, Batch, CallTimer, Load, RandomCalls, is_apart, seconds_between, timed_batch
from cuda_gctx.partitions.causes import MOST_CONNECTIONS
from cuda_gctx.tune._hosts import Hosts
from cuda_gctx.tune._measurement import Intervals
from cuda_gctx.tune._objectives import Objective, TailLatency
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._work import Part, Task, captured, entered

__all__ = ["Trial", "clock_for", "latencies", "mixes", "profile", "steps_of"]

# A block around the call of a part on a stream in a step.
Around: TypeAlias = Callable[[Part, Stream, int], AbstractContextManager[None]]


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

    @classmethod
    def of(cls, plan: Plan, task: Task, streams: Mapping[str, Stream], clock: Stream) -> Trial:
        trial = cls(plan, task.parts, streams, clock, plan.library_sms)
        if plan.share is not None and (together := task.together) is not None:
            trial.share = share = plan.share
            trial.joint = Part("together", lambda stream: together(stream, share))
        return trial

    @property
    def pace_s(self) -> float:
        """How long a step of a batch takes, by the slower one of the device and the host; never 0."""
        return max(self.step_s, self.host_s, 1e-7)

    @property
    def in_sequence(self) -> bool:
        """Whether all parts are on one stream."""
        return len({stream.handle for stream in self.streams.values()}) == 1

    @property
    def main(self) -> Stream:
        """The stream of the first part."""
        return self.streams[self.parts[0].name]

    def capture(self, closing: ExitStack) -> None:
        """From now on, replay graphs in place of calling the functions; closing: destroys the graphs."""

        def graph(part: Part) -> Part:
            return captured(part, self.streams.get(part.name, self.main), self.library_sms, self.name, closing)

        self.parts = tuple(map(graph, self.parts))
        self.joint = graph(self.joint) if self.joint is not None else None

    def call(self, part: Part) -> None:
        """Enqueue a call of a part, or of what is done together."""
        part.enqueue(self.streams.get(part.name, self.main), self.name)

    def on(self, part: Part) -> AbstractContextManager[None]:
        """A block in which libraries work on the stream of a part."""
        return entered(self.streams.get(part.name, self.main), self.library_sms)

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


# ---- steps, each after the one before, and mixes, whose parts do not wait for each other


@dataclass
class _Steps:
    """Steps or mixes that are enqueued, by one thread or by a thread for each part.

    ends: in steps, of the parts on other streams than the first one. joined: recorded when all parts of a step have
    ended. before_last: recorded before the last step. around: a block around each call.
    """

    trial: Trial
    number: int
    ends: Mapping[str, Event]
    joined: Event
    before_last: Mapping[str, Event]
    around: Around | None

    def enqueue(
        self, calls: Sequence[tuple[Part, int]], names: Sequence[str], meet: Callable[[], object] | None = None
    ) -> None:
        """Enqueue the steps of the parts with these names.

        calls: of a step, how many of each part. meet: waits for the threads of the other parts, twice in each step: an
        event is waited for only after it has been recorded, and recorded again only after that.
        """
        once = self.trial.in_sequence or len(names) == 1
        with self.trial.on(calls[0][0]) if once else nullcontext():
            for step in range(self.number):
                for part, count in calls:
                    with nullcontext() if once else self.trial.on(part):
                        self._call(part, count, step)
                if meet is not None:
                    meet()
                if self.ends and self.trial.parts[0].name in names:
                    for end in self.ends.values():
                        self.trial.main.wait(end)
                    self.trial.main.record(self.joined)
                if meet is not None:
                    meet()
                for name in names if step == self.number - 2 else ():
                    if name in self.before_last:
                        self.trial.streams[name].record(self.before_last[name])

    def _call(self, part: Part, count: int, step: int) -> None:
        stream, end = self.trial.streams.get(part.name, self.trial.main), self.ends.get(part.name)
        if end is not None:
            stream.wait(self.joined)
        for _ in range(count):
            if self.around is None:
                self.trial.call(part)
            else:
                with self.around(part, stream, step):
                    self.trial.call(part)
        if end is not None:
            stream.record(end)


def _batch(
    trial: Trial,
    number: int,
    gate_s: float,
    hosts: Hosts | None,
    weights: Mapping[str, int],
    *,
    joined: bool,
    around: Around | None = None,
) -> Batch:
    """A batch of so many steps, whose parts start together and are waited for, or else of mixes."""
    names, apart = [part.name for part in trial.parts], not trial.in_sequence
    streams = [trial.main] if joined else list(dict.fromkeys(trial.streams[name] for name in names))
    calls = trial.mix(weights) if joined or not apart else _evenly(trial.parts, weights)
    with ExitStack() as closing:

        def event(name: str) -> Event:
            return closing.enter_context(trial.streams[name].record())

        ends = {name: event(name) for name in names[1:] if joined and apart}
        before_last = {name: event(name) for name in (names[:1] if joined else names)}
        steps = _Steps(trial, number, ends, event(names[0]), before_last, around)

        def enqueue() -> Sequence[Event]:
            trial.main.record(steps.joined)
            if hosts is not None and apart:
                meeting = Barrier(len(names))
                meet = meeting.wait if joined else None
                own = {part.name: [(part, weights[part.name])] for part in trial.parts}
                hosts.run({name: partial(steps.enqueue, one, [name], meet) for name, one in own.items()}, meeting)
            else:
                steps.enqueue(calls, names)
            return list(before_last.values()) if number > 1 else []

        return timed_batch(streams, enqueue, gate_s)


def steps_of(trial: Trial, number: int, gate_s: float, hosts: Hosts | None, around: Around | None = None) -> Batch:
    """Run steps, each with one call of each part."""
    return _batch(trial, number, gate_s, hosts, {part.name: 1 for part in trial.parts}, joined=True, around=around)


def _evenly(parts: Sequence[Part], weights: Mapping[str, int]) -> list[tuple[Part, int]]:
    """The calls of a mix, those of each part evenly over the whole: parts, and how many calls in a row.

    If one part after the other was enqueued, the later ones would not begin while the driver's queue is full of the
    calls of the first one.
    """
    calls = sorted(
        (number / weights[part.name], place) for place, part in enumerate(parts) for number in range(weights[part.name])
    )
    return [(parts[place], len(list(run))) for place, run in groupby(place for _, place in calls)]


def mixes(
    trial: Trial, number: int, gate_s: float, hosts: Hosts | None, weights: Mapping[str, int]
) -> tuple[Batch, dict[str, float]]:
    """Run mixes; returns also how long the calls of each part took."""
    batch = _batch(trial, number, gate_s, hosts, weights, joined=False)
    took = dict(zip(dict.fromkeys(trial.streams[part.name] for part in trial.parts), batch.seconds, strict=True))
    return batch, {name: took[stream] for name, stream in trial.streams.items()}


def profile(trial: Trial, number: int, gate_s: float, hosts: Hosts | None) -> list[Intervals]:
    """When each part began and ended in some steps, in seconds since the first part began."""
    with ExitStack() as closing:
        marks: list[dict[str, list[Event]]] = [{} for _ in range(number)]

        @contextmanager
        def around(part: Part, stream: Stream, step: int) -> Iterator[None]:
            marks[step][part.name] = [closing.enter_context(stream.record(options=TIMED))]
            yield
            marks[step][part.name].append(closing.enter_context(stream.record(options=TIMED)))

        steps_of(trial, number, gate_s, hosts, around)
        first = marks[0][trial.parts[0].name][0]
        return [
            {name: (seconds_between(first, begin), seconds_between(first, end)) for name, (begin, end) in step.items()}
            for step in marks
        ]


# ---- single calls of one part, next to the others


def latencies(
    trial: Trial,
    critical: Part,
    arriving: Callable[[], CallTimer | RandomCalls],
    enough: tuple[int, float],
    depths: Mapping[str, int],
    hosts: Hosts | None,
    demand_time: Callable[[], None],
) -> tuple[list[float], dict[str, tuple[float, float]]]:
    """Make calls of one part while the others are kept queued; returns their latencies, and the calls of the others and
    the seconds that these took.

    arriving: begins the arrivals. enough: after how many calls, and how many seconds, to end. depths: how many calls of
    each other part are queued. demand_time: raises if there is no time for another call.
    """
    others = [part for part in trial.parts if part is not critical]
    stream, taken = trial.streams[critical.name], list[float]()
    call = partial((trial.joint or critical).enqueue, stream, trial.name)

    def queued(part: Part) -> None:
        with trial.on(part):
            trial.call(part)

    with ExitStack() as closing:
        loads = {
            part.name: closing.enter_context(Load(trial.streams[part.name], partial(queued, part), depths[part.name]))
            for part in (others if trial.joint is None else ())
        }
        arrivals = arriving()
        closing.callback(arrivals.close)
        for load in loads.values():
            load.fill()
        by_hosts = hosts is not None and not trial.in_sequence
        with _feeding(hosts, loads) if hosts is not None and by_hosts else nullcontext():
            while len(taken) < enough[0] or arrivals.passed_s < enough[1]:
                if not by_hosts:
                    for load in loads.values():
                        load.fill()
                # Entered before the time begins: a program passes libraries the SM count once, not for each call.
                with entered(stream, trial.library_sms):
                    taken += arrivals.make(call)
                if not arrivals.left:
                    break
                demand_time()
            taken += arrivals.rest()
    if trial.joint is not None:
        return taken, {part.name: (trial.share * len(taken), arrivals.passed_s) for part in others}
    return taken, {name: load.completed() for name, load in loads.items()}


@contextmanager
def _feeding(hosts: Hosts, loads: Mapping[str, Load]) -> Iterator[None]:
    """A block in which the thread of each part keeps its calls queued."""
    enough = Flag()

    def feed(load: Load) -> None:
        while not enough.is_set():
            load.fill()
            load.wait_for_room()

    running = hosts.start({name: partial(feed, load) for name, load in loads.items()})
    try:
        yield
    finally:
        enough.set()
        for future in running:
            future.exception()  # waits
    for future in running:
        future.result()
