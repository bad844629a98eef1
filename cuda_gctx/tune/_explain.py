"""Why two pieces of work overlap or do not: measured by stamps in their streams, explained in sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from cuda_gctx._core import clock
from cuda_gctx._core.arguments import as_int
from cuda_gctx._core.driver import system
from cuda_gctx._core.loan import is_capturing
from cuda_gctx._core.probe import Stamps, run_probe, spin
from cuda_gctx._core.stream import Stream
from cuda_gctx._core.text import in_words, ranges, table
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT
from cuda_gctx.measure.loop import QUEUED, hold
from cuda_gctx.measure.statistics import median
from cuda_gctx.partitions import Partition
from cuda_gctx.partitions.causes import lack_of_concurrency, launches_block, too_few_queues
from cuda_gctx.partitions.verification import IsolationError, verify

__all__ = ["ExplainReport", "Window", "WorkReport", "explain"]

# A smaller share of the shorter work counts as no overlap: it is within the time of launches.
LEAST_OVERLAP = 0.1
# Work whose window is longer than this many times its time alone waited, or was slowed.
STRETCHED = 1.2
# A slowdown that is reported.
LEAST_SLOWDOWN = 1.1
# A few times the latency of a launch: shorter work cannot overlap much.
SHORT_NS = 20_000
# The work is repeated for so long while a search for room is made: long compared with a launch.
ROOM_NS, MOST_REPEATS = 200_000, 64
SPIN_NS = 200_000
# The work of a stream that is passed without work: long compared with a launch.
STAND_IN_NS = 500_000
TIMEOUT_NS = 10_000_000_000

Where = Partition | Stream | Any
Work = Callable[[Stream], object]


@dataclass(frozen=True)
class WorkReport:
    """One of the two pieces of work. Times are medians in ns.

    alone_ns: alone on the device, queued before it starts. called_ns: alone as the program calls it, which is longer
    if the device waits for launches. call_ns: the host time to queue it. first_call_ns: the same for the first call.
    together_ns: from the start of both to its end, both queued before they start.
    sm_ids: the SMs of its context, as seen by the probe; empty if the probe did not run.
    """

    name: str
    context: str
    sm_ids: tuple[int, ...]
    alone_ns: float
    called_ns: float
    call_ns: float
    first_call_ns: float
    together_ns: float

    @property
    def slowdown(self) -> float:
        """How many times as long it takes together with the other work."""
        return self.together_ns / max(self.alone_ns, 1)


@dataclass(frozen=True)
class Window:
    """When both ran in one joint run, in ns since the first of them could begin.

    queued: whether both were queued before the first could start, which excludes the host time.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    queued: bool

    @property
    def length(self) -> int:
        """From the begin of the first to the end of the last one."""
        return max(self.first[1], self.second[1])


@dataclass(frozen=True)
class ExplainReport:
    """Whether two pieces of work overlap, what that costs each of them, and if not, why. ``print()`` it.

    overlap: the share of the shorter one that runs while the other does, as the program calls them, from 0 to 1.
    overlap_queued: the same with both queued before they start.
    overlap_reversed: the same with the second queued first.
    in_sequence_ns, together_ns: the times sequentially and together, as the program calls them.
    streams_overlap: whether two small kernels overlap on the same streams.
    shared_sms: SMs that both may use.
    causes: why they do not overlap, or what overlapping costs, each with a suggestion.
    """

    device: str
    driver: str
    first: WorkReport
    second: WorkReport
    windows: tuple[Window, ...]
    overlap: float
    overlap_queued: float
    overlap_reversed: float
    in_sequence_ns: float
    together_ns: float
    streams_overlap: bool
    shared_sms: tuple[int, ...]
    causes: tuple[str, ...]

    @property
    def overlaps(self) -> bool:
        """Whether they overlap as the program calls them."""
        return self.overlap >= LEAST_OVERLAP

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "overlaps": self.overlaps}, indent=2)

    def __repr__(self) -> str:
        verdict = f"{self.overlap:.0%} overlap" if self.overlaps else "no overlap"
        return f"<ExplainReport: {verdict} of {self.first.name} and {self.second.name} on {self.device}>"

    def __str__(self) -> str:
        first, second = self.first, self.second
        shorter = min(first, second, key=lambda work: work.alone_ns)
        verdict = "overlap" if self.overlaps else "no overlap"
        figures = (
            f"{self.overlap:.0%} of {shorter.name}, the shorter one, overlaps with the other; together they take "
            f"{in_words(self.together_ns)}, sequentially {in_words(self.in_sequence_ns)}"
        )
        rows = [
            (
                work.name,
                work.context,
                in_words(work.alone_ns),
                in_words(work.together_ns),
                f"{work.slowdown:.2f}",
                in_words(work.call_ns),
                ranges(work.sm_ids) or None,
            )
            for work in (first, second)
        ]
        header = ("work", "context", "alone", "together", "slowdown", "host time", "SMs")
        lines = [f"{self.device}, driver {self.driver}: {verdict}", figures, table(header, rows), *self.causes]
        return "\n".join(lines)


def _time(stamp: tuple[int, int] | None) -> int:
    return 0 if stamp is None else stamp[1]


class _Runs:
    """Runs of the two pieces of work, alone and together, between stamps."""

    def __init__(self, streams: Sequence[Stream], works: Sequence[Work]) -> None:
        self.streams, self._works = streams, works
        self._stamps = Stamps(streams[0].device, 4)
        self.call_ns = [0, 0]  # of the last run
        self.held = [False, False]  # whether a call ever waited for the device

    def call(self, which: int) -> None:
        stream = self.streams[which]
        began = clock.now()
        with current_stream_of_frameworks(stream):
            self._works[which](stream)
        self.call_ns[which] = round((clock.now() - began) * 1e9)

    def sync(self) -> None:
        for stream in self.streams:
            stream.sync()

    def run(self, order: Sequence[int], *, gate_s: float = 0) -> dict[int, tuple[int, int]]:
        """When each piece of work began and ended. With a gate, the device starts none before all are queued."""
        self.sync()
        with ExitStack() as closing:
            gate = None
            if gate_s:
                gate = closing.enter_context(hold([self.streams[which] for which in order], gate_s))
            for which in order:
                self._stamps.write(self.streams[which], 2 * which)
                gated = gate is not None and not gate.is_done
                self.call(which)
                if gated and gate is not None and gate.is_done:
                    self.held[which] = True
                self._stamps.write(self.streams[which], 2 * which + 1)
            self.sync()
        return self._read(order)

    def finds_room(self, other: Stream, repeats: int) -> bool:
        """Whether a block that needs half an SM finds room on `other` while the first work runs so many times."""
        self.sync()
        stream = self.streams[0]
        self._stamps.write(stream, 0)
        for _ in range(repeats):
            self.call(0)
        self._stamps.write(stream, 1)
        spin(other, 1, 0)
        self._stamps.write(other, 2)
        self.sync()
        other.sync()
        begin, end, through, _ = map(_time, self._stamps.read())
        return through - begin < 0.9 * (end - begin)

    def _read(self, order: Sequence[int]) -> dict[int, tuple[int, int]]:
        times = list(map(_time, self._stamps.read()))
        return {which: (times[2 * which], times[2 * which + 1]) for which in order}


def _window(times: dict[int, tuple[int, int]], queued: bool) -> Window:
    origin = min(begin for begin, _ in times.values())
    (a, b), (c, d) = times[0], times[1]
    return Window((a - origin, b - origin), (c - origin, d - origin), queued)


def _active(window: tuple[int, int], alone: float) -> tuple[float, float]:
    """When work can have run: its first stamp may be much earlier if it then waits for an event or for room."""
    begin, end = window
    return (begin if end - begin <= STRETCHED * alone else end - alone), end


def _overlap(windows: Sequence[Window], alone: Sequence[float]) -> float:
    """The share of the shorter work that runs while the other does."""
    shares = []
    for window in windows:
        (a, b), (c, d) = _active(window.first, alone[0]), _active(window.second, alone[1])
        shares.append((min(b, d) - max(a, c)) / max(min(b - a, d - c), 1))
    return min(max(median(shares), 0.0), 1.0)


def _stream_of(where: Where) -> Stream:
    if isinstance(where, Partition):
        return where.stream
    return where if isinstance(where, Stream) else Stream(where)


def _label(where: Where, stream: Stream) -> str:
    """The name of the place in which the work runs."""
    context = stream.context
    kind = f"green context {context.id}" if context.is_green else "primary context"
    return where.name if isinstance(where, Partition) else context.name or kind


def _names(works: Sequence[Work]) -> list[str]:
    names = ["<lambda>" if work is _stands_in else getattr(work, "__name__", "<lambda>") for work in works]
    names = [order if name == "<lambda>" else name for name, order in zip(names, ("first", "second"), strict=True)]
    return names if names[0] != names[1] else [f"{names[0]} (1)", f"{names[1]} (2)"]


def _sms(streams: Sequence[Stream]) -> tuple[list[tuple[int, ...]], str | None]:
    """The SMs of the context of each stream, and why contexts with disjoint SMs did not run concurrently."""
    contexts = [stream.context for stream in streams]
    named = {str(i): context for i, context in enumerate(contexts) if contexts.index(context) == i}
    try:
        report = verify(named)
    except IsolationError as error:
        report = error.report
    except RuntimeError:
        return [(), ()], None  # other work occupies the SMs
    seen = {proof.name: proof.sm_ids for proof in report.contexts}
    return [seen[str(contexts.index(context))] for context in contexts], report.cause


def _run_at_once(streams: Sequence[Stream]) -> bool:
    """Whether two small kernels overlap on these streams."""
    (first,), (second,) = run_probe(list(streams), [1, 1], SPIN_NS, TIMEOUT_NS)
    return first[1] < second[2] and second[1] < first[2]


def _stands_in(stream: Stream) -> None:
    spin(stream, 1, STAND_IN_NS)


def _piece(given: Where | tuple[Where, Work]) -> tuple[Where, Work]:
    if not isinstance(given, tuple):
        return given, _stands_in
    if len(given) != 2 or not callable(given[1]):
        raise TypeError(
            "explain takes streams or partitions, or pairs (stream, work), where work is called with the stream"
        )
    return given


def explain(first: Where | tuple[Where, Work], second: Where | tuple[Where, Work], *, rounds: int = 5) -> ExplainReport:
    """Measure two pieces of work, each ``(where, work)``, alone and together, and report whether they overlap and why.

    first, second: the two; without work, only the place.
    where: a Partition, a Stream, or the stream of another library.
    work: a function that is called with the Stream, enqueues work on it, and returns. During the call the stream is
    the current stream of torch and CuPy, if they are imported. It is called about ``5 * rounds`` times. Nothing else
    should be queued on the streams meanwhile.

    rounds: how often each is measured, 1 to 1000.

    A place without work gets a small kernel, which shows whether two streams of a running program can overlap. First,
    explain waits for what is queued on them. Raises ValueError for streams of two devices, and RuntimeError during a
    capture or if work raises.
    """
    rounds = as_int("rounds", rounds, 1, 1000)
    pieces = [_piece(first), _piece(second)]
    places, works = [place for place, _ in pieces], [work for _, work in pieces]
    streams = [_stream_of(place) for place in places]
    if streams[0].device != streams[1].device:
        raise ValueError("the streams are on two devices, whose timers cannot be compared")
    for stream in streams:
        if is_capturing(stream):
            raise RuntimeError(f"{stream!r} is capturing a graph: call explain before or after the capture")
    labels = [_label(*pair) for pair in zip(places, streams, strict=True)]
    return _Diagnosis(streams, works, labels, rounds).report()


class _Diagnosis:
    """The measurements, and the conclusions."""

    def __init__(self, streams: list[Stream], works: list[Work], labels: list[str], rounds: int) -> None:
        self.streams, self.labels = streams, labels
        self.names = _names(works)
        self.stand_ins = [work is _stands_in for work in works]
        self.runs = runs = _Runs(streams, works)
        self.first_call_ns = []
        for which in (0, 1):
            runs.call(which)
            self.first_call_ns.append(runs.call_ns[which])
            runs.sync()
        self.sms, self.contexts_cause = _sms(streams)
        self.at_once = _run_at_once(streams)

        calls: list[list[int]] = [[], []]
        called: list[list[int]] = [[], []]
        alone: list[list[int]] = [[], []]
        self.as_called: list[Window] = []
        self.queued: list[Window] = []
        self.reversed: list[Window] = []
        for _ in range(rounds):
            for which in (0, 1):
                begin, end = runs.run([which])[which]
                called[which].append(end - begin)
                calls[which].append(runs.call_ns[which])
            self.as_called.append(_window(runs.run([0, 1]), False))
            gate_s = QUEUED.gate_s((max(calls[0]) + max(calls[1])) / 1e9)
            for which in (0, 1):
                begin, end = runs.run([which], gate_s=gate_s)[which]
                alone[which].append(end - begin)
            self.queued.append(_window(runs.run([0, 1], gate_s=gate_s), True))
            self.reversed.append(_window(runs.run([1, 0], gate_s=gate_s), True))
        self.call_ns = [median(times) for times in calls]
        self.called_ns = [median(times) for times in called]
        self.alone_ns = [median(times) for times in alone]
        self.together_ns = [
            median([window.first[1] for window in self.queued]),
            median([window.second[1] for window in self.queued]),
        ]
        self.overlap = _overlap(self.as_called, self.called_ns)
        self.overlap_queued = _overlap(self.queued, self.alone_ns)
        self.overlap_reversed = _overlap(self.reversed, self.alone_ns)
        self.shared = tuple(sorted(set(self.sms[0]) & set(self.sms[1])))

    def report(self) -> ExplainReport:
        works = [
            WorkReport(
                name=self.names[i],
                context=self.labels[i],
                sm_ids=self.sms[i],
                alone_ns=self.alone_ns[i],
                called_ns=self.called_ns[i],
                call_ns=self.call_ns[i],
                first_call_ns=self.first_call_ns[i],
                together_ns=self.together_ns[i],
            )
            for i in (0, 1)
        ]
        causes = self._costs() if self.overlap >= LEAST_OVERLAP else [self._cause()]
        return ExplainReport(
            device=self.streams[0].device.name,
            driver=".".join(map(str, system.driver_version)),
            first=works[0],
            second=works[1],
            windows=(*self.as_called, *self.queued),
            overlap=self.overlap,
            overlap_queued=self.overlap_queued,
            overlap_reversed=self.overlap_reversed,
            in_sequence_ns=sum(self.called_ns),
            together_ns=median([window.length for window in self.as_called]),
            streams_overlap=self.at_once,
            shared_sms=self.shared,
            causes=(*causes, *self._notes()),
        )

    # ---- why not

    def _cause(self) -> str:
        return (
            self._same_stream()
            or launches_block()
            or self._waiting_call()
            or self._default_stream()
            or self._queues()
            or self._late_launch()
            or self._full_sms()
            or self._dependency()
        )

    def _same_stream(self) -> str | None:
        if self.streams[0] != self.streams[1]:
            return None
        return "both are on one stream, which runs its work in order: use a separate stream for each"

    def _waiting_call(self) -> str | None:
        waiting = [name for name, held in zip(self.names, self.runs.held, strict=True) if held]
        if not waiting:
            return None
        return (
            f"{' and '.join(waiting)} did not return before the device had finished the queued work: the call waits "
            "for the device (a synchronize, .item(), .cpu(), a blocking copy), or queues more than about a thousand "
            "launches; remove the wait, or call the two from two threads"
        )

    def _default_stream(self) -> str | None:
        """The legacy default stream and blocking streams of its context wait for each other."""
        legacy = [stream.handle in LEGACY_DEFAULT for stream in self.streams]
        if self.at_once or not any(legacy):
            return None
        name = self.names[legacy.index(True)]
        return (
            f"{name} is on the legacy default stream, which synchronizes with all blocking streams of its context: use "
            "another stream, and make both non-blocking"
        )

    def _queues(self) -> str | None:
        if self.at_once:
            return None
        cause = too_few_queues(2, "streams") or self.contexts_cause
        if cause is None and self.streams[0].context != self.streams[1].context:
            cause = lack_of_concurrency(self.streams[0].device, 2)
        return cause or (
            "two small kernels on the same streams do not overlap either: the streams share a hardware queue, or other "
            "work is running; create the two streams in succession and before others, and check "
            "CUDA_DEVICE_MAX_CONNECTIONS"
        )

    def _late_launch(self) -> str | None:
        a, b = self.names
        if max(self.alone_ns) < SHORT_NS:
            return (
                f"too short: {a} takes {in_words(self.alone_ns[0])} and {b} {in_words(self.alone_ns[1])}, little "
                "more than a launch, so one ends before the other begins; put more work into a call, or capture both "
                "into one graph"
            )
        if self.overlap_queued < LEAST_OVERLAP:
            return None
        return (
            f"launch-bound: {a} takes {in_words(self.called_ns[0])} as the program calls it, of which the device "
            f"works {in_words(self.alone_ns[0])} and otherwise waits for launches, and {a} ends before {b} is queued; "
            f"if both are queued before they start, {self.overlap_queued:.0%} of the shorter one overlaps: capture the "
            "work into graphs, or call the two from two threads"
        )

    def _full_sms(self) -> str | None:
        first, second = self.streams
        if first.context != second.context and self.sms[0] and self.sms[1] and not self.shared:
            return None
        repeats = min(max(1, round(ROOM_NS / max(self.alone_ns[0], 1))), MOST_REPEATS)
        with second.context.create_stream() as other:
            if self.runs.finds_room(other, repeats):
                return None
        a, b = self.names
        text = (
            f"{a} fills the SMs: a block that needs half of an SM found no room, and {b} began when {a} ended "
            f"(after {in_words(self.together_ns[0])})"
        )
        if self.overlap_reversed >= LEAST_OVERLAP:
            text += f"; with {b} queued first, {self.overlap_reversed:.0%} of the shorter one overlaps"
        if first.context == second.context:
            return f"{text}: run each in its own partition, dev.partition(...), or give {a} fewer blocks"
        if first.context.is_green and second.context.is_green:
            return (
                f"{text}: the two contexts share {len(self.shared)} SMs, {ranges(self.shared)}; create both in one "
                "split, dev.partition(...), so that they share none"
            )
        primary = a if not first.context.is_green else b
        return (
            f"{text}: {primary} runs on the primary context, which uses all SMs, including those of partitions; run it "
            "in a partition, or in the background partition"
        )

    def _dependency(self) -> str:
        a, b = self.names
        apart = "they share no SM" if not self.shared and all(self.sms) else f"{a} leaves room on the SMs of {b}"
        text = (
            f"{apart} and small kernels overlap on the two streams, but {b} ended {in_words(self.together_ns[1])} "
            f"after the start of both, and takes {in_words(self.alone_ns[1])} alone: probably one waits for an event "
            "of the other"
        )
        if self.overlap_reversed >= LEAST_OVERLAP:
            text += f" ({b} for {a}: with {b} queued first, they overlap by {self.overlap_reversed:.0%})"
        text += "; look for wait() and wait_stream() between them"
        return text if not self.shared and all(self.sms) else f"{text}, or {b} needs more of an SM than {a} leaves free"

    # ---- what it costs

    def _costs(self) -> list[str]:
        sentences = []
        for i in (0, 1):
            slowdown = self.together_ns[i] / max(self.alone_ns[i], 1)
            if slowdown >= LEAST_SLOWDOWN:
                sentences.append(
                    f"{self.names[i]} takes {in_words(self.together_ns[i])} together with {self.names[1 - i]} and "
                    f"{in_words(self.alone_ns[i])} alone, {slowdown:.2f} times as long{self._wait(i)}: "
                    f"{self._shared_what()}"
                )
        if not sentences:
            sentences.append("neither slows the other by more than 10%")
        if self.overlap_queued - self.overlap > 0.25:
            sentences.append(
                f"if both are queued before they start, {self.overlap_queued:.0%} of the shorter one overlaps: the "
                "launches come late; capture the work into graphs, or call the two from two threads"
            )
        return sentences

    def _wait(self, which: int) -> str:
        """How late the second begins, beyond the time to call the first."""
        late = median([window.second[0] - window.first[0] for window in self.as_called])
        if which == 0 or late < SHORT_NS + self.call_ns[0]:
            return ""
        return f" (it finds room on an SM {in_words(late)} after the start of {self.names[0]})"

    def _shared_what(self) -> str:
        if self.shared:
            return f"they share {len(self.shared)} SMs; partitions would keep them apart"
        if not all(self.sms):
            return "which SMs they share is unknown"
        return "they share no SM, but memory bandwidth, L2 cache and power, whatever the sizes of the partitions"

    def _notes(self) -> list[str]:
        sentences = []
        for i in (0, 1):
            if self.stand_ins[i] and self.called_ns[i] > 2 * STAND_IN_NS:
                sentences.append(
                    f"the small kernel on {self.names[i]} completed after {in_words(self.called_ns[i])}, and takes "
                    f"{in_words(STAND_IN_NS)}: other work occupies its SMs; run that work in the background partition, "
                    "dev.partition(...), to keep SMs free of it"
                )
            if self.first_call_ns[i] > 3 * self.call_ns[i] + 1_000_000:
                sentences.append(
                    f"the first call of {self.names[i]} took {in_words(self.first_call_ns[i])}, later ones "
                    f"{in_words(self.call_ns[i])}: kernels are loaded at their first launch, which delays the whole "
                    "device; call it once in advance, or set CUDA_MODULE_LOADING=EAGER"
                )
        return sentences
