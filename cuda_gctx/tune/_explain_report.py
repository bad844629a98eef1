"""Two pieces of work: their runs, between stamps in their streams, and what explain() reports of these."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from cuda_gctx._core import clock
from cuda_gctx._core.probe import Stamps, spin
from cuda_gctx._core.stream import Stream
from cuda_gctx._core.text import ranges, table
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.measure.loop import hold

__all__ = ["LEAST_OVERLAP", "ExplainReport", "Runs", "Window", "Work", "WorkReport"]

Work = Callable[[Stream], object]

# A smaller share of the shorter work counts as no overlap: it is within the time of launches.
LEAST_OVERLAP = 0.1


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


# ---- the runs


def _time(stamp: tuple[int, int] | None) -> int:
    return 0 if stamp is None else stamp[1]


class Runs:
    """The runs of two pieces of work, each on its stream."""

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
