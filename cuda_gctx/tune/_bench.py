"""The bench: runs plans on a device, as race and finals ask, and measures steps, mixes or calls of one part.

Between the steps of a batch lies only what the plan itself needs: the events that join its parts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from cuda_gctx._core.extension import CapturingError, CUDAError, Device, Event, Stream, StreamOptions, is_capturing
from cuda_gctx.measure.loop import AHEAD, Batch, Bursts, CallTimer, Load, RandomCalls, is_apart, timed_batch
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.partitions.causes import MOST_CONNECTIONS
from cuda_gctx.tune._guard import sharing
from cuda_gctx.tune._judge import Sample
from cuda_gctx.tune._objectives import Objective, TailLatency, Throughput, weight_of
from cuda_gctx.tune._parts import Launch, Part, PartError, captured, entered, naming, why_no_hint
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._queue import MOST_BUSY, Calls, computed_latencies
from cuda_gctx.tune._race import Amount, Excluded

__all__ = ["BATCH_S", "Bench", "NoMemory"]

BATCH_S = 0.03
MOST_STEPS = 200  # of a batch
ENOUGH = 0.95  # of the time that is asked for
# A mix starts all of its parts at once, and at its end nothing runs next to the last calls: so many at the least.
LEAST_MIXES = 3
# In launch-bound work a step takes the device as long as the host. If the host takes less than this share of the
# device's time, the reason is another one.
LAUNCH_BOUND = 0.9
# Gaps before bursts are distributed over so many calls of the bulk work, and are at most so long.
PERIODS, LONGEST_GAP_S = 2.5, 0.02
BURST = 3
# A sample of bursts is over after so many seconds if it has a few of them, unless more are asked for.
LONG_S, LEAST_BURSTS = 1.0, 20
# Arrivals take this share of a block; in the race so many calls of the bulk work, if others have to keep a rate.
ARRIVALS_SHARE, ARRIVING_CALLS = 0.4, 10
MOST_DEPTH = 64
# Calls arrive at this share of the rate that the part can take alone.
LOAD_OF_CRITICAL = 0.5
LEAST_CALL_S = 10e-6  # what the host takes to make a call and to look at the time
COMPUTED = 2000
LOOK_SHARE = 0.05  # of a call of the bulk work


class NoMemory(Excluded):
    """The device has no memory left for the contexts of a plan."""


@dataclass(eq=False)
class Opened:
    """A plan, or a part alone, with its streams.

    idle: a stream on which nothing else is queued. joint: in a plan of the kind also, what does the work of all parts.
    is_ready: whether graphs have been captured, if they are asked for.
    step_s, host_s: what a step took the device and the host in the latest batch. busy: the share of calls that find the
    part busy, as computed in the latest sample. gated: whether batches begin with a gate; not in launch-bound work,
    whose times would depend on it.
    """

    name: object
    parts: tuple[Part, ...]
    streams: Mapping[str, Stream]
    idle: Stream
    library_sms: bool = False
    joint: Part | None = None
    is_ready: bool = False
    step_s: float = 0.0
    host_s: float = 0.0
    busy: float = 0.0
    gated: bool = True

    @property
    def in_sequence(self) -> bool:
        """Whether all parts are on one stream."""
        return len({stream.handle for stream in self.streams.values()}) == 1

    @property
    def main(self) -> Stream:
        """The stream of the first part."""
        return self.streams[self.parts[0].name]

    def stream_of(self, part: Part) -> Stream:
        stream = self.streams.get(part.name)
        return self.main if stream is None else stream

    def call(self, part: Part) -> None:
        part.enqueue(self.stream_of(part), self.name)

    def call_alone(self, part: Part) -> None:
        """Call a part, with its stream as the current one of libraries."""
        with entered(self.stream_of(part), self.library_sms):
            self.call(part)


class Bench:
    """Runs plans for an objective.

    alone_s: what a call of each part alone takes. period: the steps of a batch are a multiple of it. needs_hint:
    whether libraries that take no SM count hint are an error.
    """

    def __init__(
        self,
        device: Device,
        parts: tuple[Part, ...],
        ways: Sequence[Part],
        objective: Objective,
        launch: Launch,
        closing: ExitStack,
        seed: int,
    ) -> None:
        self.device, self.parts, self.objective, self._launch = device, parts, objective, launch
        self.ways = {way.name: way for way in ways}
        self.alone_s: dict[str, float] = {}
        self.call_s: dict[str, float] = {}
        self.period = 1
        self.needs_hint = False
        self._closing = closing
        self._chance = random.Random(seed)
        self._opened: dict[object, Opened] = {}

    # ---- opening

    def alone(self, part: Part, stream: Stream) -> Opened:
        """A part alone on a stream."""
        return Opened("alone", (part,), {part.name: stream}, stream)

    def opened(self, plan: Plan) -> Opened:
        """The streams of a plan, opened at first use. NoMemory if there is none for its contexts."""
        if plan not in self._opened:
            self._opened[plan] = self._open(plan)
        return self._opened[plan]

    def _open(self, plan: Plan) -> Opened:
        try:
            with sharing():
                where: Device | PartitionPool = self.device
                if plan.layout is not None:
                    where = self._closing.enter_context(PartitionPool(self.device))
                streams = self._closing.enter_context(plan.open(where))
        except CUDAError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            raise NoMemory("no device memory is left for its contexts") from error
        if plan.library_sms and (reason := why_no_hint(streams[next(iter(plan.places))])) is not None:
            if self.needs_hint:
                raise RuntimeError(f'library_sms="on" is not possible here: {reason}')
            raise Excluded(f"the SM count hint cannot be set: {reason}")
        ordered = tuple(sorted(self.parts, key=lambda part: plan.parts.index(part.name)))
        joint = self.ways[plan.way] if plan.way is not None else None
        return Opened(plan, ordered, streams, self._idle(streams), plan.library_sms, joint)

    def _prepare(self, opened: Opened) -> None:
        """Replay graphs from now on in place of calling the functions, if graphs are asked for."""
        if self._launch == "graphs" and not opened.is_ready:

            def graph(part: Part) -> Part:
                stream = opened.stream_of(part)
                with entered(stream, opened.library_sms):
                    part.enqueue(stream, opened.name)
                stream.sync()
                return captured(part, stream, opened.library_sms, opened.name, self._closing)

            opened.joint = graph(opened.joint) if opened.joint is not None else None
            opened.parts = tuple(map(graph, opened.parts)) if opened.joint is None else opened.parts
        opened.is_ready = True

    def _idle(self, streams: Mapping[str, Stream]) -> Stream:
        """The stream by whose time calls of the critical part begin: one that waits for no other."""
        first = next(iter(streams.values()))
        if not isinstance(self.objective, TailLatency):
            return first
        urgent = StreamOptions(priority=self.device.priority_range[1])
        for _ in range(MOST_CONNECTIONS):
            idle = self._closing.enter_context(self.device.create_stream(urgent))
            if is_apart(idle, set(streams.values())):
                break
        return idle

    @contextmanager
    def _forgiving(self, opened: Opened) -> Iterator[None]:
        """Exclude partitions in which a part fails, if the device still works. Other errors name the plan."""
        try:
            with naming(opened.name):
                yield
        except PartError as error:
            if not isinstance(opened.name, Plan) or opened.name.layout is None or self._capturing(opened):
                raise
            try:
                self.device.sync()
            except CUDAError:
                raise error from error.__cause__
            raise Excluded(str(error).replace(f" ({opened.name})", "").splitlines()[0]) from error
        except (CUDAError, CapturingError) as error:
            capturing = self._capturing(opened)
            if not capturing:
                raise
            raise RuntimeError(
                f"{' or '.join(capturing)} leaves its stream capturing a graph ({opened.name}): end the capture in the "
                f"function"
            ) from error

    def _capturing(self, opened: Opened) -> list[str]:
        """The parts that left their stream capturing a graph."""
        found = []
        for name, stream in opened.streams.items():
            with suppress(CUDAError):  # of a device that has failed
                found += [name] if is_capturing(stream) else []
        return found

    def settle(self) -> None:
        """Wait for everything that was enqueued, so that streams and partitions can be closed."""
        for opened in self._opened.values():
            for stream in {*opened.streams.values(), opened.idle}:
                # An error of the device, or of a part that left a capture, has been raised already.
                with suppress(CUDAError, CapturingError):
                    stream.sync()

    # ---- running

    def run(self, plan: Plan, amount: Amount) -> Sample:
        """Run a plan, for race and finals."""
        with naming(plan):
            opened = self.opened(plan)
        with self._forgiving(opened):
            if not isinstance(self.objective, TailLatency):
                return self.steps(opened, amount)
            self._prepare(opened)
            return self._calls(opened, amount, self.objective)

    def steps(self, opened: Opened, amount: Amount) -> Sample:
        """Run steps, or mixes, one after the other."""
        self._prepare(opened)
        mixes = isinstance(self.objective, Throughput) and len(opened.parts) > 1
        steps, seconds, passed_s, late, batches = 0, 0.0, 0.0, 0, 0
        while not batches or passed_s < ENOUGH * amount.seconds:
            pace = max(opened.step_s, opened.host_s, 1e-7)
            wanted = (amount.seconds - passed_s) / pace if opened.step_s else 1
            number = max(1, math.ceil(wanted - 1e-9))
            if mixes:
                number = max(LEAST_MIXES if opened.step_s and amount.seconds else 1, number)
            else:
                number = min(number, MOST_STEPS, max(1, round(BATCH_S / pace)))
            number = math.ceil(number / self.period) * self.period
            batch = self._batch(opened, number, mixes)
            took = max(batch.seconds)
            opened.step_s, opened.host_s = took / number, batch.host_s / number
            is_late = self._is_launch_bound(opened, batch, number)
            opened.gated = opened.gated and not is_late
            steps, seconds, late, batches = steps + number, seconds + took, late + is_late, batches + 1
            passed_s += max(took, batch.host_s)
        return Sample(steps, max(seconds, 1e-9), launch_bound=2 * late > batches)

    def _is_launch_bound(self, opened: Opened, batch: Batch, number: int) -> bool:
        """Whether the device waited for the host.

        The device can also finish all but the last step early because the host waits for room in the driver's queue. So
        a step is launch-bound only if it takes the host as long as the device, and the calls alone, which found room,
        take a good part of that.
        """
        each_s = (self.call_s.get(p.name, 0.0) * weight_of(self.objective, p.name) for p in opened.parts)
        step_s = max(batch.seconds) / number
        calls_s = sum(each_s)
        if opened.gated and not batch.late:
            # The gate hid the calls: a program has none.
            return calls_s >= LAUNCH_BOUND * step_s
        return batch.host_s / number >= LAUNCH_BOUND * step_s and calls_s >= step_s / 2

    def _batch(self, opened: Opened, number: int, mixes: bool) -> Batch:
        """Run so many steps, whose parts start together and are waited for; or mixes, whose parts do not wait."""
        counts = {part.name: weight_of(self.objective, part.name) if mixes else 1 for part in opened.parts}
        apart = not opened.in_sequence and opened.joint is None
        streams = list(dict.fromkeys(opened.streams[part.name] for part in opened.parts)) if mixes else [opened.main]
        calls = [(opened.joint, 1)] if opened.joint is not None else [(p, counts[p.name]) for p in opened.parts]
        if mixes and apart:
            calls = _evenly(opened.parts, counts)
        with ExitStack() as closing:

            def event(stream: Stream) -> Event:
                return closing.enter_context(stream.record())

            joined = {p.name: event(opened.streams[p.name]) for p in opened.parts[1:]} if apart and not mixes else {}
            started, marks = event(opened.main), [event(stream) for stream in streams]

            def enqueue() -> Sequence[Event]:
                with ExitStack() as current:
                    if not apart:
                        current.enter_context(entered(opened.main, opened.library_sms))
                    for step in range(number):
                        if joined:
                            opened.main.record(started)
                        for part, count in calls:
                            stream = opened.stream_of(part)
                            if part.name in joined:
                                stream.wait(started)
                            for _ in range(count):
                                opened.call_alone(part) if apart else opened.call(part)
                            if part.name in joined:
                                stream.record(joined[part.name])
                        for end in joined.values():
                            opened.main.wait(end)
                        if step == number - 2:
                            for stream, mark in zip(streams, marks, strict=True):
                                stream.record(mark)
                return marks if number > 1 else []

            return timed_batch(streams, enqueue, AHEAD.gate_s(opened.host_s) if opened.gated else 0.0)

    # ---- calls of one part

    def rate(self, objective: TailLatency) -> float:
        """How many calls of the critical part arrive per second: half of what it can take, unless a rate is given."""
        call_s = max(self.alone_s.get(objective.part, 0.0), self.call_s.get(objective.part, 0.0), LEAST_CALL_S)
        return objective.rate if objective.rate is not None else LOAD_OF_CRITICAL / call_s

    def _depth(self, name: str, critical: str) -> int:
        """How many calls of another part are kept queued, so that it does not run dry during a critical call."""
        alone = self.alone_s
        return min(MOST_DEPTH, 2 + math.ceil(BURST * alone.get(critical, 0) / max(alone.get(name, 0), 1e-6)))

    def _bulk_s(self, critical: Part) -> float:
        """What the longest call of another part takes alone."""
        return max((self.alone_s.get(part.name, 0.0) for part in self.parts if part.name != critical.name), default=0.0)

    def _look_s(self, critical: Part) -> float:
        """How often the host looks after the load, so that none of the other parts is idle for long."""
        shortest = min((self.alone_s.get(p.name, 1.0) for p in self.parts if p.name != critical.name), default=1.0)
        return max(LEAST_CALL_S, LOOK_SHARE * shortest)

    @contextmanager
    def _loaded(self, opened: Opened, critical: Part) -> Iterator[tuple[Callable[[], None], dict[str, Load]]]:
        """Keep the other parts queued in a block: what keeps them so, and their loads."""
        with ExitStack() as closing:
            loads: dict[str, Load] = {}
            for part in self.parts if opened.joint is None else ():
                if part.name != critical.name:
                    depth = 1 if opened.in_sequence else self._depth(part.name, critical.name)
                    load = Load(opened.streams[part.name], partial(opened.call_alone, part), depth)
                    loads[part.name] = closing.enter_context(load)

            def fill() -> None:
                for load in loads.values():
                    load.fill()

            fill()
            yield fill, loads

    def _calls(self, opened: Opened, amount: Amount, objective: TailLatency) -> Sample:
        """Make calls of one part while the others are kept queued."""
        critical = next(part for part in opened.parts if part.name == objective.part)
        stream = opened.streams[critical.name]
        call = partial((opened.joint or critical).enqueue, stream, opened.name)
        calls = max(1, amount.calls)
        if objective.closed_loop:
            return self._closed_loop(opened, critical, call, calls, amount.seconds)
        rate = self.rate(objective)
        computes = opened.busy <= MOST_BUSY or not amount.seconds
        idle: list[tuple[float, float]] = []
        queued: list[float] = []
        observed: list[float] = []
        rates: dict[str, float] = {}
        passed_s = 0.0
        if computes:
            burst_s = (1 - ARRIVALS_SHARE) * amount.seconds
            idle, queued, rates, passed_s = self._bursts(opened, critical, call, calls, burst_s)
            _, opened.busy = computed_latencies(idle, queued, rate, COMPUTED, random.Random(0))
            opened.step_s = passed_s / len(idle)
        arrivals, least_s = 0, ARRIVALS_SHARE * amount.seconds
        if not amount.seconds and objective.others and amount.calls:
            least_s = min(LONG_S, ARRIVING_CALLS * self._bulk_s(critical))
        if not computes:
            arrivals, least_s = calls, amount.seconds
        if least_s:
            observed, rates, more_s = self._arrivals(opened, critical, call, rate, arrivals, least_s)
            passed_s += more_s
        return Calls(
            max(1, len(idle) + len(observed)),
            max(passed_s, 1e-9),
            tuple(observed),
            rates,
            idle=tuple(idle),
            queued=tuple(queued),
        )

    def _closed_loop(
        self, opened: Opened, critical: Part, call: Callable[[], None], calls: int, seconds: float
    ) -> Sample:
        """Make each call when the one before has completed."""
        stream = opened.streams[critical.name]
        taken: list[float] = []
        idle = opened.idle if opened.in_sequence else stream
        with self._loaded(opened, critical) as (fill, loads), CallTimer(stream, idle) as timer:
            while len(taken) < calls or timer.passed_s < seconds:
                fill()
                with entered(stream, opened.library_sms):
                    taken += timer.make(call)
                if not seconds and timer.passed_s > LONG_S and len(taken) >= LEAST_BURSTS:
                    break
        opened.step_s = timer.passed_s / len(taken)
        return Sample(len(taken), timer.passed_s, tuple(taken), self._rates(opened, loads, len(taken), timer.passed_s))

    def _rates(self, opened: Opened, loads: Mapping[str, Load], calls: int, seconds: float) -> dict[str, float]:
        """Calls per second of the other parts."""
        if opened.joint is not None:
            others = [part.name for part in self.parts if part.name != getattr(self.objective, "part", None)]
            return dict.fromkeys(others, calls / seconds if seconds else 0.0)
        counted = {name: load.completed() for name, load in loads.items()}
        return {name: count / passed if passed else 0.0 for name, (count, passed) in counted.items()}

    def _bursts(
        self, opened: Opened, critical: Part, call: Callable[[], None], calls: int, seconds: float
    ) -> tuple[list[tuple[float, float]], list[float], dict[str, float], float]:
        """Bursts after random gaps: the gap and the time of each first call, the times of the queued ones, the rates of
        the other parts, and the time.
        """
        stream = opened.streams[critical.name]
        bulk_s = self._bulk_s(critical)
        gap_s = min(max(PERIODS * bulk_s, 10 * self.alone_s.get(critical.name, 0.0)), LONGEST_GAP_S)
        idle: list[tuple[float, float]] = []
        queued: list[float] = []
        with self._loaded(opened, critical) as (fill, loads), ExitStack() as closing:
            bursts = Bursts(stream, opened.idle, gap_s, BURST, self._chance, fill, self._look_s(critical))
            closing.callback(bursts.close)
            passed_s = 0.0
            while len(idle) < calls or passed_s < seconds:
                fill()
                # Entered before the time begins: a program passes libraries the SM count once, not for each call.
                with entered(stream, opened.library_sms):
                    gap, first, later = bursts.make(call)
                idle.append((gap, first))
                queued += later
                passed_s = bursts.passed_s
                if not seconds and passed_s > LONG_S and len(idle) >= LEAST_BURSTS:
                    break
        return idle, queued, self._rates(opened, loads, len(idle) * BURST, passed_s), passed_s

    def _arrivals(
        self, opened: Opened, critical: Part, call: Callable[[], None], rate: float, calls: int, seconds: float
    ) -> tuple[list[float], dict[str, float], float]:
        """Calls that arrive at a rate: their latencies, the rates of the other parts, and the time."""
        stream = opened.streams[critical.name]
        most = max(calls, 2 * math.ceil(rate * seconds) + 10)
        taken: list[float] = []
        with self._loaded(opened, critical) as (fill, loads), ExitStack() as closing:
            arrivals = RandomCalls(stream, opened.idle, rate, most, self._chance, self._look_s(critical))
            closing.callback(arrivals.close)
            while arrivals.left and (most - arrivals.left < calls or arrivals.passed_s < seconds):
                fill()
                with entered(stream, opened.library_sms):
                    taken += arrivals.make(call)
            taken += arrivals.rest()
            made = most - arrivals.left
        return taken, self._rates(opened, loads, made, arrivals.passed_s), arrivals.passed_s


def _evenly(parts: Sequence[Part], weights: Mapping[str, int]) -> list[tuple[Part, int]]:
    """The calls of a mix, those of each part evenly over the whole: parts, and how many calls in a row.

    If one part after the other was enqueued, the later ones would not begin while the driver's queue is full of the
    calls of the first one.
    """
    calls = sorted(
        (number / weights[part.name], place) for place, part in enumerate(parts) for number in range(weights[part.name])
    )
    return [(parts[place], len(list(run))) for place, run in groupby(place for _, place in calls)]
