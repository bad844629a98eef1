"""Two pieces of work, alone and together: their runs between stamps in their streams, and what explain() reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from cuda_gctx._core import clock
from cuda_gctx._core.extension import Stamps, Stream, is_capturing, run_probe, spin
from cuda_gctx._core.text import ranges, table
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.measure.loop import QUEUED, hold
from cuda_gctx.measure.statistics import median
from cuda_gctx.partitions import Partition
from cuda_gctx.partitions.verification import IsolationError, verify
from cuda_gctx.tune._guard import driver_version

__all__ = ["LEAST_OVERLAP", "STAND_IN_NS", "ExplainReport", "Runs", "Where", "Work", "WorkReport", "measured"]

# A smaller share of the shorter work counts as no overlap: it is within the time of launches.
LEAST_OVERLAP = 0.1
# The work of a stream that is passed without work: long compared with a launch.
STAND_IN_NS = 500_000
# Work whose window is longer than this many times its time alone waited, or was slowed.
STRETCHED = 1.2
SPIN_NS = 200_000
TIMEOUT_NS = 10_000_000_000

Work = Callable[[Stream], object]
Where = Partition | Stream | Any
Window = tuple[tuple[int, int], tuple[int, int]]  # when both ran in a joint run, in ns since the first could begin


@dataclass(frozen=True)
class WorkReport:
    """One of the two pieces of work. Times are medians in ns.

    alone_ns: alone on the device, queued before it starts. called_ns: alone as the program calls it, which is longer
    if the device waits for launches. call_ns: the host time to queue it. first_call_ns: the same for the first call.
    found_room_ns, together_ns: from the start of both until it could begin, as the program calls them, and to its end,
    both queued before they start.
    sm_ids: the SMs of its context, as seen by the probe; empty if the probe did not run.
    """

    name: str
    context: str
    sm_ids: tuple[int, ...]
    alone_ns: float
    called_ns: float
    call_ns: float
    first_call_ns: float
    found_room_ns: float
    together_ns: float

    @property
    def slowdown(self) -> float:
        """The ratio of its time next to the other work to its time alone."""
        return self.together_ns / max(self.alone_ns, 1)


@dataclass(frozen=True)
class ExplainReport:
    """Whether two pieces of work overlap, how much that slows each of them, and, if they do not, why. ``print()`` it.

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
        rows: list[list[object]] = []
        for work in (first, second):
            alone, together, call = map(in_words, (work.alone_ns, work.together_ns, work.call_ns))
            sms = ranges(work.sm_ids) or None
            rows.append([work.name, work.context, alone, together, f"{work.slowdown:.2f}", call, sms])
        header = ["work", "context", "alone", "together", "slowdown", "host time", "SMs"]
        lines = [f"{self.device}, driver {self.driver}: {verdict}", figures, table(header, rows), *self.causes]
        return "\n".join(lines)


class Runs:
    """The runs of two pieces of work, each on its stream.

    stand_ins: whether the work is the small kernel of a place without work. call_ns: what the host took in the last
    run. held: whether a call ever waited for the device. contexts_cause: why contexts with disjoint SMs did not run
    concurrently, if they did not.
    """

    def __init__(self, streams: Sequence[Stream], works: Sequence[Work]) -> None:
        self.streams, self._works = streams, works
        self.stand_ins = [work is _stands_in for work in works]
        self._stamps = Stamps(streams[0].device, 4)
        self.call_ns = [0, 0]
        self.held = [False, False]
        self.contexts_cause: str | None = None

    def call(self, which: int) -> None:
        stream = self.streams[which]
        began = clock.now()
        with current_stream_of_frameworks(stream):
            self._works[which](stream)
        self.call_ns[which] = round((clock.now() - began) * 1e9)

    def sync(self) -> None:
        for stream in self.streams:
            stream.sync()

    def _run(self, order: Sequence[int], gate_s: float) -> None:
        """Run pieces of work between stamps. With a gate, the device starts none before all are queued."""
        self.sync()
        with ExitStack() as closing:
            gates = [closing.enter_context(hold([self.streams[which] for which in order], gate_s))] if gate_s else []
            for which in order:
                self._stamps.write(self.streams[which], 2 * which)
                closed = [gate for gate in gates if not gate.is_done]
                self.call(which)
                self.held[which] |= any(gate.is_done for gate in closed)
                self._stamps.write(self.streams[which], 2 * which + 1)
            self.sync()

    def took(self, which: int, gate_s: float = 0) -> int:
        """Run one alone; returns how long it took."""
        self._run([which], gate_s)
        begin, end = self._times()[2 * which : 2 * which + 2]
        return end - begin

    def window(self, order: Sequence[int], gate_s: float = 0) -> Window:
        """Run both in an order; returns when they ran."""
        self._run(order, gate_s)
        times = self._times()
        a, b, c, d = (time - min(times) for time in times)
        return (a, b), (c, d)

    def finds_room(self, repeats: int) -> bool:
        """Whether a block that needs half an SM finds room in the context of the second work while the first one runs
        so many times.
        """
        self.sync()
        stream = self.streams[0]
        with self.streams[1].context.create_stream() as third:
            self._stamps.write(stream, 0)
            for _ in range(repeats):
                self.call(0)
            self._stamps.write(stream, 1)
            spin(third, 1, 0)
            self._stamps.write(third, 2)
            self.sync()
            third.sync()
        begin, end, through, _ = self._times()
        return through - begin < 0.9 * (end - begin)

    def _times(self) -> list[int]:
        """Begin and end of the first work, and of the second."""
        return [0 if stamp is None else stamp[1] for stamp in self._stamps.read()]


# ---- the measurement


def measured(
    first: Where | tuple[Where, Work], second: Where | tuple[Where, Work], rounds: int
) -> tuple[ExplainReport, Runs]:
    """The report of explain() without its causes, and the runs."""
    pieces = [_piece(first), _piece(second)]
    places, works = [place for place, _ in pieces], [work for _, work in pieces]
    streams = [_stream_of(place) for place in places]
    if streams[0].device != streams[1].device:
        raise ValueError("the streams are on two devices, and timers of different devices cannot be compared")
    for stream in filter(is_capturing, streams):
        raise RuntimeError(f"{stream!r} is capturing a graph: call explain before or after the capture")
    runs, names, labels = Runs(streams, works), _names(works), map(_label, places, streams)
    for which in (0, 1):
        runs.call(which)
        runs.sync()
    first_call_ns = list(runs.call_ns)
    sms, runs.contexts_cause = _sms(streams)
    (one,), (other,) = run_probe(streams, [1, 1], SPIN_NS, TIMEOUT_NS)
    calls, called, alone, as_called, queued, reversed_ = ([] for _ in range(6))  # pairs, by round
    for _ in range(rounds):
        called.append((runs.took(0), runs.took(1)))
        calls.append(tuple(runs.call_ns))
        as_called.append(runs.window([0, 1]))
        gate_s = QUEUED.gate_s(sum(map(max, zip(*calls, strict=True))) / 1e9)
        alone.append((runs.took(0, gate_s), runs.took(1, gate_s)))
        queued.append(runs.window([0, 1], gate_s))
        reversed_.append(runs.window([1, 0], gate_s))
    alone_ns, called_ns, call_ns = (list(map(median, zip(*each, strict=True))) for each in (alone, called, calls))
    found_room_ns = [median([window[which][0] for window in as_called]) for which in (0, 1)]
    together_ns = [median([window[which][1] for window in queued]) for which in (0, 1)]
    times = (alone_ns, called_ns, call_ns, first_call_ns, found_room_ns, together_ns)
    first, second = map(WorkReport, names, labels, sms, *times)
    report = ExplainReport(
        device=streams[0].device.name,
        driver=driver_version(),
        first=first,
        second=second,
        overlap=_overlap(as_called, called_ns),
        overlap_queued=_overlap(queued, alone_ns),
        overlap_reversed=_overlap(reversed_, alone_ns),
        in_sequence_ns=sum(called_ns),
        together_ns=median([max(end for _, end in window) for window in as_called]),
        streams_overlap=one[1] < other[2] and other[1] < one[2],
        shared_sms=tuple(sorted(set(first.sm_ids) & set(second.sm_ids))),
        causes=(),
    )
    return report, runs


def _overlap(windows: Sequence[Window], alone: Sequence[float]) -> float:
    """The share of the shorter work that runs while the other does."""
    shares = []
    for window in windows:
        # The first stamp of work may be much earlier than its begin, if it then waits for an event or for room.
        (a, b), (c, d) = (
            (begin if end - begin <= STRETCHED * least else end - least, end)
            for (begin, end), least in zip(window, alone, strict=True)
        )
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


def _stands_in(stream: Stream) -> None:
    spin(stream, 1, STAND_IN_NS)


def _piece(given: Where | tuple[Where, Work]) -> tuple[Where, Work]:
    piece = given if isinstance(given, tuple) else (given, _stands_in)
    is_place = isinstance(piece[0], Partition) or hasattr(piece[0], "__cuda_stream__")
    if len(piece) != 2 or not is_place or not callable(piece[1]):
        raise TypeError(
            "explain takes streams or partitions, or pairs (stream, work), where work is called with the stream, not "
            f"{given!r}"
        )
    return piece
