"""Batches of work on the streams of a plan: steps, and mixes, whose parts do not wait for each other.

Between the steps of a batch lies only what the plan itself needs: the events that join its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Barrier
from typing import TypeAlias

from cuda_gctx._core.extension import Event, Stream
from cuda_gctx.measure.loop import TIMED, Batch, seconds_between, timed_batch
from cuda_gctx.tune._hosts import Hosts
from cuda_gctx.tune._measurement import Intervals
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._work import Part, captured, entered

__all__ = ["Trial", "profile", "steps_of"]

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

    def stream_of(self, part: Part) -> Stream:
        """The stream of a part, or of what is done together."""
        stream = self.streams.get(part.name)
        return self.main if stream is None else stream

    def capture(self, closing: ExitStack) -> None:
        """From now on, replay graphs in place of calling the functions; closing: destroys the graphs."""

        def graph(part: Part) -> Part:
            return captured(part, self.stream_of(part), self.library_sms, self.name, closing)

        self.parts = tuple(map(graph, self.parts))
        self.joint = graph(self.joint) if self.joint is not None else None

    def call(self, part: Part) -> None:
        """Enqueue a call of a part, or of what is done together."""
        part.enqueue(self.stream_of(part), self.name)

    def on(self, part: Part) -> AbstractContextManager[None]:
        """A block in which libraries work on the stream of a part."""
        return entered(self.stream_of(part), self.library_sms)

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


def _meet_nobody() -> None:
    """What a thread does that waits for no other one."""


def steps_of(
    trial: Trial,
    number: int,
    gate_s: float,
    hosts: Hosts | None,
    weights: Mapping[str, int] | None = None,
    around: Around | None = None,
) -> Batch:
    """Run steps, each with one call of each part, which start together and are waited for; or mixes.

    weights: how many calls of each part are a mix. hosts: the threads that enqueue the parts; without them, the
    caller's does. around: a block around each call.
    """
    names, apart, joined = [part.name for part in trial.parts], not trial.in_sequence, weights is None
    counts = dict.fromkeys(names, 1) if weights is None else weights
    streams = [trial.main] if joined else list(dict.fromkeys(trial.streams[name] for name in names))
    calls = trial.mix(counts) if joined or not apart else _evenly(trial.parts, counts)
    with ExitStack() as closing:

        def event(name: str) -> Event:
            return closing.enter_context(trial.streams[name].record())

        # Of the parts of a step on other streams than the first one, of all of them, and before the last step.
        ends = {name: event(name) for name in names[1:] if joined and apart}
        before_last = {name: event(name) for name in (names[:1] if joined else names)}
        ended = event(names[0])

        def call(part: Part, count: int, step: int) -> None:
            stream, end = trial.stream_of(part), ends.get(part.name)
            if end is not None:
                stream.wait(ended)
            for _ in range(count):
                if around is None:
                    trial.call(part)
                else:
                    with around(part, stream, step):
                        trial.call(part)
            if end is not None:
                stream.record(end)

        def run(calls: Sequence[tuple[Part, int]], names: Sequence[str], meet: Callable[[], object]) -> None:
            """Enqueue the steps of some parts.

            meet: waits for the threads of the other parts, twice in each step: an event is waited for only after it has
            been recorded, and recorded again only after that.
            """
            once = not apart or len(names) == 1
            with trial.on(calls[0][0]) if once else nullcontext():
                for step in range(number):
                    for part, count in calls:
                        with nullcontext() if once else trial.on(part):
                            call(part, count, step)
                    meet()
                    if ends and trial.parts[0].name in names:
                        for end in ends.values():
                            trial.main.wait(end)
                        trial.main.record(ended)
                    meet()
                    for name in names if step == number - 2 else ():
                        if name in before_last:
                            trial.streams[name].record(before_last[name])

        def enqueue() -> Sequence[Event]:
            trial.main.record(ended)
            if hosts is not None and apart:
                meeting = Barrier(len(names))
                meet = meeting.wait if joined else _meet_nobody
                own = {part.name: [(part, counts[part.name])] for part in trial.parts}
                with hosts.running({name: partial(run, one, [name], meet) for name, one in own.items()}, meeting):
                    pass
            else:
                run(calls, names, _meet_nobody)
            return list(before_last.values()) if number > 1 else []

        return timed_batch(streams, enqueue, gate_s)


def _evenly(parts: Sequence[Part], weights: Mapping[str, int]) -> list[tuple[Part, int]]:
    """The calls of a mix, those of each part evenly over the whole: parts, and how many calls in a row.

    If one part after the other was enqueued, the later ones would not begin while the driver's queue is full of the
    calls of the first one.
    """
    calls = sorted(
        (number / weights[part.name], place) for place, part in enumerate(parts) for number in range(weights[part.name])
    )
    return [(parts[place], len(list(run))) for place, run in groupby(place for _, place in calls)]


def profile(trial: Trial, number: int, gate_s: float, hosts: Hosts | None) -> list[Intervals]:
    """When each part began and ended in some steps, in seconds since the first part began."""
    with ExitStack() as closing:
        marks: list[dict[str, list[Event]]] = [{} for _ in range(number)]

        @contextmanager
        def around(part: Part, stream: Stream, step: int) -> Iterator[None]:
            marks[step][part.name] = [closing.enter_context(stream.record(options=TIMED))]
            yield
            marks[step][part.name].append(closing.enter_context(stream.record(options=TIMED)))

        steps_of(trial, number, gate_s, hosts, around=around)
        first = marks[0][trial.parts[0].name][0]
        return [
            {name: (seconds_between(first, begin), seconds_between(first, end)) for name, (begin, end) in step.items()}
            for step in marks
        ]
