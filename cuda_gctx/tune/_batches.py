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
from cuda_gctx.tune._work import Part, Task, entered

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


# ---- steps, each after the one before


@dataclass
class _Steps:
    """Steps whose parts start together, or one after the other on one stream; ends: of the parts on other streams."""

    trial: Trial
    number: int
    ends: Mapping[str, Event]
    joined: Event
    before_last: Event
    around: Around | None

    def call(self, part: Part, step: int) -> None:
        stream, end = self.trial.streams.get(part.name, self.trial.main), self.ends.get(part.name)
        if end is not None:
            stream.wait(self.joined)
        with nullcontext() if self.around is None else self.around(part, stream, step):
            self.trial.call(part)
        if end is not None:
            stream.record(end)

    def join(self, step: int) -> None:
        main = self.trial.main
        for end in self.ends.values():
            main.wait(end)
        if self.ends:
            main.record(self.joined)
        if step == self.number - 2:
            main.record(self.before_last)

    def by_one_thread(self) -> None:
        one_stream = self.trial.in_sequence
        calls = [part for part, _ in self.trial.mix({part.name: 1 for part in self.trial.parts})]
        with self.trial.on(self.trial.parts[0]) if one_stream else nullcontext():
            for step in range(self.number):
                for part in calls:
                    with nullcontext() if one_stream else self.trial.on(part):
                        self.call(part, step)
                self.join(step)

    def by(self, hosts: Hosts) -> None:
        """By a thread for each part. In each step the threads meet twice: an event is waited for only after it has been
        recorded, and recorded again only after that.
        """
        meeting = Barrier(len(self.trial.parts))

        def run(part: Part) -> None:
            with self.trial.on(part):
                for step in range(self.number):
                    self.call(part, step)
                    meeting.wait()
                    if part.name not in self.ends:
                        self.join(step)
                    meeting.wait()

        hosts.run({part.name: partial(run, part) for part in self.trial.parts}, meeting)


def steps_of(trial: Trial, number: int, gate_s: float, hosts: Hosts | None, around: Around | None = None) -> Batch:
    main = trial.main
    others = {} if trial.in_sequence else {part.name: trial.streams[part.name] for part in trial.parts[1:]}
    with ExitStack() as closing:
        ends = {name: closing.enter_context(stream.record()) for name, stream in others.items()}
        joined, before_last = (closing.enter_context(main.record()) for _ in range(2))
        steps = _Steps(trial, number, ends, joined, before_last, around)

        def enqueue() -> Sequence[Event]:
            main.record(joined)
            if hosts is not None and others:
                steps.by(hosts)
            else:
                steps.by_one_thread()
            return [before_last] if number > 1 else []

        return timed_batch([main], enqueue, gate_s)


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


# ---- mixes, whose parts do not wait for each other


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


def mixes(
    trial: Trial, number: int, gate_s: float, hosts: Hosts | None, weights: Mapping[str, int]
) -> tuple[Batch, dict[str, float]]:
    """Run mixes; returns also how long the calls of each part took."""
    streams = list(dict.fromkeys(trial.streams[part.name] for part in trial.parts))
    by_name = {part.name: part for part in trial.parts}
    evenly = [] if trial.in_sequence else _evenly({name: weights[name] for name in by_name})
    rows = [(by_name[name], count) for name, count in evenly] or trial.mix(weights)
    with ExitStack() as closing:
        before_last = {name: closing.enter_context(stream.record()) for name, stream in trial.streams.items()}

        def run(calls: Sequence[tuple[Part, int]], names: Sequence[str], once: bool) -> None:
            """Mixes of some calls of the parts with these names. once: these all work on one stream."""
            with trial.on(calls[0][0]) if once else nullcontext():
                for mix in range(number):
                    for part, count in calls:
                        with nullcontext() if once else trial.on(part):
                            for _ in range(count):
                                trial.call(part)
                    if mix == number - 2:
                        for name in names:
                            trial.streams[name].record(before_last[name])

        def enqueue() -> Sequence[Event]:
            if hosts is not None and not trial.in_sequence:
                each = {
                    part.name: partial(run, [(part, weights[part.name])], [part.name], True) for part in trial.parts
                }
                hosts.run(each)
            else:
                run(rows, list(before_last), trial.in_sequence)
            return list(before_last.values()) if number > 1 else []

        batch = timed_batch(streams, enqueue, gate_s)
        took = dict(zip(streams, batch.seconds, strict=True))
        return batch, {name: took[stream] for name, stream in trial.streams.items()}


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
