"""The measuring loop: batches of work behind a gate, single calls, background load, and rounds in random order.

- A gate is a kernel that spins in front of the measured work, so that the host gets a head start, and the device then
  runs from kernel to kernel without waiting for launches.
- Times are those of device events. The host clock measures only what the host does.
- Contestants are measured in rounds, in random order, so that what changes with time (clocks, temperature, neighbours)
  affects all of them.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from cuda_gctx._core import clock
from cuda_gctx._core.extension import CUDAError, Event, EventOptions, Stream, spin

__all__ = [
    "AHEAD",
    "QUEUED",
    "TIMED",
    "Batch",
    "Bursts",
    "CallTimer",
    "HeadStart",
    "Load",
    "RandomCalls",
    "hold",
    "in_rounds",
    "is_apart",
    "seconds_between",
    "timed_batch",
]

TIMED = EventOptions(timing_enabled=True)
GATE_TO_HOST = 4  # how many times as long as the host needs the gate stays closed

Contestant = TypeVar("Contestant")


class HeadStart(NamedTuple):
    """The limits of how long a gate stays closed."""

    least_s: float
    most_s: float

    def gate_s(self, host_s: float) -> float:
        """How long to close a gate in front of work that the host enqueues in `host_s`."""
        return min(max(self.least_s, GATE_TO_HOST * host_s), self.most_s)


# For a batch of equal steps: after a few of them the host stays ahead.
AHEAD = HeadStart(50e-6, 0.02)
# For work that has to be enqueued completely before it starts, even if the host is interrupted meanwhile.
QUEUED = HeadStart(5e-3, 0.9)


def seconds_between(start: Event, end: Event) -> float:
    """The device time between two completed events, in seconds."""
    try:
        return (end - start) / 1000
    except CUDAError as error:
        if error.name != "CUDA_ERROR_INVALID_HANDLE":
            raise
        raise RuntimeError(
            f"this driver cannot time work on streams of different contexts: it does not measure between their events "
            f"({error})"
        ) from error


@dataclass(frozen=True)
class Batch:
    """One timed batch.

    seconds: for each stream, from the start on the first stream to the end of the stream's work.
    host_s: the time that the host took to enqueue it.
    gate_opened: whether the gate opened before all was enqueued.
    late: whether the device had finished the marked events when the host had just enqueued the rest.
    """

    seconds: tuple[float, ...]
    host_s: float
    gate_opened: bool
    late: bool


def hold(streams: Sequence[Stream], gate_s: float) -> Event:
    """Let streams wait for so many seconds from now on; returns the event that ends it.

    The gate is on the first stream, which is therefore the first to start. With 0 seconds there is none.
    """
    if gate_s > 0:
        spin(streams[0], 1, round(gate_s * 1e9))
    opened = streams[0].record()
    for stream in streams[1:]:
        stream.wait(opened)
    return opened


def timed_batch(streams: Sequence[Stream], enqueue: Callable[[], Sequence[Event]], gate_s: float) -> Batch:
    """Time what `enqueue` puts on the streams behind a gate, and wait for it.

    enqueue: returns the events by which `late` is judged; none if the batch has a single step.
    """
    with ExitStack() as closing:
        opened = closing.enter_context(hold(streams, gate_s))
        start = closing.enter_context(streams[0].record(options=TIMED))
        began = clock.now()
        marks = enqueue()
        host_s = clock.now() - began
        late = bool(marks) and all(mark.is_done for mark in marks)
        gate_opened = opened.is_done
        ends = [closing.enter_context(stream.record(options=TIMED)) for stream in streams]
        for end in ends:
            end.sync()
        return Batch(tuple(seconds_between(start, end) for end in ends), host_s, gate_opened, late)


APART_NS = 200_000  # longer than the host takes to look


# The host sleeps for so long to see whether the time of the device goes on.
SLEEP_S = 1e-3
LAUNCH_S = 5e-6


def stands_still(idle: Stream) -> bool:
    """Tells whether device time stands still between calls of the host, as virtual time does."""
    with idle.record(options=TIMED) as begin, idle.record(options=TIMED) as end:
        begin.sync()
        time.sleep(SLEEP_S)
        idle.record(end)
        end.sync()
        return seconds_between(begin, end) < SLEEP_S / 10


class Pause:
    """Lets the time of the device go on until a moment, while the host looks after something else.

    idle: a stream on which nothing else is queued.
    """

    def __init__(self, idle: Stream) -> None:
        self._idle = idle
        self._stands_still = stands_still(idle)

    def step(self, left_s: float) -> None:
        """Return soon, and at most `left_s` later by the device's clock."""
        # The launch takes time too: the rest passes with polls.
        if self._stands_still and left_s > 2 * LAUNCH_S:
            spin(self._idle, 1, round((left_s - LAUNCH_S) * 1e9))


def is_apart(stream: Stream, others: Iterable[Stream]) -> bool:
    """Tells whether a stream has a hardware queue alone, so that it waits behind no work of other streams."""
    with ExitStack() as closing:
        ends = []
        for other in others:
            spin(other, 1, APART_NS)
            ends.append(closing.enter_context(other.record()))
        mark = closing.enter_context(stream.record())
        mark.sync()
        waited = any(end.is_done for end in ends)
        for end in ends:
            end.sync()
        return not waited


class CallTimer:
    """Times calls one at a time, like a client that waits for each answer.

    A call begins when the host sees that an event on an idle stream is complete. It ends with an event behind its work.
    The device times both events. The time includes one way to the host and back.

    idle: the stream of the first event, on which nothing else is queued. most: the number of calls, for `left`.
    """

    def __init__(self, stream: Stream, idle: Stream | None = None, most: int = 0) -> None:
        self._stream, self._idle = stream, idle or stream
        self.left = most
        self.passed_s = 0.0
        with ExitStack() as closing:
            self._first = closing.enter_context(self._idle.record(options=TIMED))
            self._begin = closing.enter_context(self._idle.record(options=TIMED))
            self.end = closing.enter_context(stream.record(options=TIMED))
            self._closing = closing.pop_all()

    def __enter__(self) -> CallTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Destroy the events."""
        self._closing.close()

    def seconds(self, enqueue: Callable[[], object]) -> float:
        """Make one call and wait for it; returns how long it took."""
        self._idle.record(self._begin)
        # An event that the device processes late would hide that the work behind it is late too.
        self._begin.sync()
        enqueue()
        self._stream.record(self.end)
        self.end.sync()
        return seconds_between(self._begin, self.end)

    def make(self, enqueue: Callable[[], object]) -> list[float]:
        """Make one call, wait for it, and count it; returns its latency."""
        found = [self.seconds(enqueue)]
        self.passed_s = seconds_between(self._first, self.end)
        self.left -= 1
        return found

    def rest(self) -> list[float]:
        """The latencies of calls that are still pending: none, because each call is waited for."""
        return []


LOOK_S = 1e-4  # how often the host looks after a load
PATIENCE_S = 0.1  # for a burst of calls


class RandomCalls:
    """Times calls that arrive at random times, like those of many independent clients.

    A latency begins when a call arrives, by the device's clock, even if earlier calls are still running or the host is
    late. The arrivals are a Poisson process.

    idle: a stream on which nothing else is queued, and which waits for no other one. rate: calls per second. most: the
    number of calls that arrive. look_s: the host looks after the load at least so often.
    """

    def __init__(
        self, stream: Stream, idle: Stream, rate: float, most: int, chance: random.Random, look_s: float = LOOK_S
    ) -> None:
        self._stream, self._idle, self._rate, self._chance = stream, idle, rate, chance
        self._look_s = look_s
        self._pause = Pause(idle)
        self.left = most
        self.passed_s = 0.0
        self._due_s = chance.expovariate(rate)
        self._pending: deque[tuple[float, Event]] = deque()
        self._spare: list[Event] = []
        with ExitStack() as closing:
            self._begin = closing.enter_context(idle.record(options=TIMED))
            self._now = closing.enter_context(idle.record(options=TIMED))
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Destroy the events."""
        self._closing.close()

    def make(self, enqueue: Callable[[], object]) -> list[float]:
        """Make the calls that have arrived; returns the latencies of those that have completed."""
        if self._due_s > self.passed_s and self.left:
            self._pause.step(min(self._due_s - self.passed_s, self._look_s))
        self._idle.record(self._now)
        self._now.sync()
        self.passed_s = seconds_between(self._begin, self._now)
        while self._due_s <= self.passed_s and self.left:
            enqueue()
            end = self._spare.pop() if self._spare else None
            if end is None:
                end = self._closing.enter_context(self._stream.record(options=TIMED))
            else:
                self._stream.record(end)
            self._pending.append((self._due_s, end))
            self._due_s += self._chance.expovariate(self._rate)
            self.left -= 1
        return self._completed()

    def rest(self) -> list[float]:
        """Wait for the calls that were made; returns their latencies."""
        if self._pending:
            self._pending[-1][1].sync()
        return self._completed()

    def _completed(self) -> list[float]:
        found = []
        while self._pending and self._pending[0][1].is_done:
            due_s, end = self._pending.popleft()
            found.append(seconds_between(self._begin, end) - due_s)
            self._spare.append(end)
        return found


class Bursts:
    """Times bursts of calls, each after a random gap since the end of the burst before.

    The first call of a burst finds the part idle, and its time begins when it arrives. The others are queued behind it,
    and take what passes between the end of their predecessor and their own.

    idle: a stream on which nothing else is queued, and which waits for no other one. longest_gap_s: the gaps are
    distributed evenly from 0 on. size: the calls of a burst. meanwhile: what the host does each `look_s`.
    """

    def __init__(
        self,
        stream: Stream,
        idle: Stream,
        longest_gap_s: float,
        size: int,
        chance: random.Random,
        meanwhile: Callable[[], object],
        look_s: float = LOOK_S,
    ) -> None:
        self._stream, self._idle, self._longest_gap_s, self._chance = stream, idle, longest_gap_s, chance
        self._meanwhile, self._look_s = meanwhile, look_s
        self._pause = Pause(idle)
        with ExitStack() as closing:
            record = closing.enter_context
            self._start, self._now = (record(idle.record(options=TIMED)) for _ in range(2))
            self._ends = [record(stream.record(options=TIMED)) for _ in range(size)]
            self._before = record(stream.record(options=TIMED))
            self._closing = closing.pop_all()
        self._before.sync()

    def close(self) -> None:
        """Destroy the events."""
        self._closing.close()

    def make(self, enqueue: Callable[[], object]) -> tuple[float, float, list[float]]:
        """Make a burst; returns the gap before it, and the times of the first call and of the queued ones."""
        gap_s = self._chance.uniform(0, self._longest_gap_s)
        passed_s = 0.0
        while passed_s < gap_s:
            self._pause.step(min(gap_s - passed_s, self._look_s))
            self._meanwhile()
            self._idle.record(self._now)
            self._now.sync()
            passed_s = seconds_between(self._before, self._now)
        for end in self._ends:
            enqueue()
            self._stream.record(end)
        began = clock.now()
        # Load that is queued again and again may starve the part: after a while it is left to run dry.
        while not self._ends[-1].is_done and clock.now() - began < PATIENCE_S:
            self._meanwhile()
        self._ends[-1].sync()
        first, last = self._ends[0], self._ends[-1]
        # From the arrival on, even if the host was late.
        first_s = seconds_between(self._before, first) - gap_s
        queued = [seconds_between(one, other) for one, other in pairwise(self._ends)]
        self._ends[-1], self._before = self._before, last
        return gap_s, first_s, queued

    @property
    def passed_s(self) -> float:
        """The time since the first burst could begin, to the end of the last one."""
        return seconds_between(self._start, self._before)


class Load:
    """Keeps a fixed number of calls queued on a stream, and counts those that have completed."""

    def __init__(self, stream: Stream, enqueue: Callable[[], object], depth: int) -> None:
        self.stream = stream
        self._enqueue = enqueue
        self._closing = ExitStack()
        with ExitStack() as closing:
            self._idle = [closing.enter_context(stream.record(options=TIMED)) for _ in range(depth)]
            self._since = closing.enter_context(stream.record(options=TIMED))
            self._closing = closing.pop_all()
        self._queued: deque[Event] = deque()
        self._ends: list[float] = []

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the queued calls, and count them."""
        with self._closing:
            self.stream.sync()
            self.count()

    @property
    def has_completed_a_call(self) -> bool:
        """Tells whether a call has completed since the last fill()."""
        return bool(self._queued) and self._queued[0].is_done

    def count(self) -> None:
        """Note the calls that have completed."""
        while self.has_completed_a_call:
            event = self._queued.popleft()
            self._ends.append(seconds_between(self._since, event))
            self._idle.append(event)

    def fill(self) -> None:
        """Enqueue as many calls as have completed."""
        self.count()
        while self._idle:
            self._enqueue()
            event = self._idle.pop()
            self.stream.record(event)
            self._queued.append(event)

    def completed(self) -> tuple[int, float]:
        """How many calls completed after the first one, and in how many seconds."""
        return (len(self._ends) - 1, self._ends[-1] - self._ends[0]) if self._ends else (0, 0.0)


def in_rounds(
    contestants: Iterable[Contestant], rounds: int, order: random.Random | None = None
) -> Iterator[tuple[int, Contestant]]:
    """Each contestant once per round: in random order, or by turns without `order`."""
    entries = list(contestants)
    for number in range(rounds):
        if order is not None:
            order.shuffle(entries)
        for entry in entries:
            yield number, entry
