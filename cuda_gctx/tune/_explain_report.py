"""What explain() reports: the measurements of two pieces of work, and why they overlap or do not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cuda_gctx._core.text import ranges, table
from cuda_gctx.draw.durations import in_words

__all__ = ["LEAST_OVERLAP", "ExplainReport", "Window", "WorkReport"]

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
