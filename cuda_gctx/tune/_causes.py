"""Why work overlaps or does not, and what that costs: the sentences of explain(), and of the reasons of a report."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_gctx._core.text import ranges
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT
from cuda_gctx.measure.statistics import median
from cuda_gctx.partitions.causes import lack_of_concurrency, launches_block, too_few_queues
from cuda_gctx.tune._explain_report import LEAST_OVERLAP, ExplainReport, Runs

__all__ = ["LEAST_SLOWDOWN", "STAND_IN_NS", "causes_of", "launch_bound", "not_at_once", "waits", "what_they_share"]

# A slowdown that is reported.
LEAST_SLOWDOWN = 1.1
# A few times the latency of a launch: shorter work cannot overlap much.
SHORT_NS = 20_000
# The work is repeated for so long while a search for room is made: long compared with a launch.
ROOM_NS, MOST_REPEATS = 200_000, 64
# The work of a stream that is passed without work: long compared with a launch.
STAND_IN_NS = 500_000

WAITS = "a synchronize, .item(), .cpu() or a blocking copy, or more than about a thousand launches"


# ---- of measurements of any kind


def waits(name: str) -> str:
    """A part whose function does not return before the device has finished."""
    return f"{name} waits for the device inside its function, so nothing else can be enqueued meanwhile ({WAITS})"


def launch_bound(needs: str) -> str:
    """The device waits for the host. needs: what the host takes for which work."""
    return f"launch-bound: {needs}, so the device waits for the host: use fewer launches, or a CUDA graph"


def not_at_once(count: int) -> str | None:
    """What keeps work on so many streams of one device from running at once, if it is known."""
    return launches_block() or too_few_queues(count, "streams")


def what_they_share(sms: str) -> str:
    """What slows work next to other work, behind a sentence that says by how much. sms: those that both may use."""
    if sms:
        return f": they share {sms}"
    return ", although their SMs are disjoint: they share memory bandwidth, L2 cache or power"


# ---- of two pieces of work


def causes_of(
    report: ExplainReport, runs: Runs, stand_ins: Sequence[bool], contexts_cause: str | None
) -> tuple[str, ...]:
    """The causes in a report, which has everything else.

    stand_ins: which of the two is the small kernel of a place without work. contexts_cause: why contexts with disjoint
    SMs did not run concurrently, if they did not.
    """
    diagnosis = _Diagnosis(report, runs, stand_ins, contexts_cause)
    causes = diagnosis.costs() if report.overlaps else [diagnosis.why_not()]
    return (*causes, *diagnosis.notes())


class _Diagnosis:
    """Conclusions from a report. May run the first work again, to search for room."""

    def __init__(
        self, report: ExplainReport, runs: Runs, stand_ins: Sequence[bool], contexts_cause: str | None
    ) -> None:
        self.report, self.first, self.second = report, report.first, report.second
        self.runs = runs
        self.stand_ins = stand_ins
        self.contexts_cause = contexts_cause

    @property
    def _knows_sms(self) -> bool:
        return bool(self.first.sm_ids and self.second.sm_ids)

    # ---- why not

    def why_not(self) -> str:
        """Why they do not overlap: the first cause that fits."""
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
        if self.runs.streams[0] != self.runs.streams[1]:
            return None
        return "both are on one stream, which runs its work in order: use a separate stream for each"

    def _waiting_call(self) -> str | None:
        waiting = [name for name, held in zip((self.first.name, self.second.name), self.runs.held, strict=True) if held]
        if not waiting:
            return None
        return f"{waits(' and '.join(waiting))}: remove the wait, or call the two from two threads"

    def _default_stream(self) -> str | None:
        """The legacy default stream and blocking streams of its context wait for each other."""
        legacy = [stream.handle in LEGACY_DEFAULT for stream in self.runs.streams]
        if self.report.streams_overlap or not any(legacy):
            return None
        name = (self.first if legacy[0] else self.second).name
        return (
            f"{name} is on the legacy default stream, which synchronizes with all blocking streams of its context: use "
            "another stream, and make both non-blocking"
        )

    def _queues(self) -> str | None:
        if self.report.streams_overlap:
            return None
        cause = too_few_queues(2, "streams") or self.contexts_cause
        if cause is None and self.runs.streams[0].context != self.runs.streams[1].context:
            cause = lack_of_concurrency(self.runs.streams[0].device, 2)
        return cause or (
            "two small kernels on the same streams do not overlap either: the streams share a hardware queue, or other "
            "work is running; create the two streams in succession and before others, and check "
            "CUDA_DEVICE_MAX_CONNECTIONS"
        )

    def _late_launch(self) -> str | None:
        a, b = self.first.name, self.second.name
        a_alone, b_alone = in_words(self.first.alone_ns), in_words(self.second.alone_ns)
        if max(self.first.alone_ns, self.second.alone_ns) < SHORT_NS:
            return (
                f"too short: {a} takes {a_alone} and {b} {b_alone}, little more than a launch, so one ends before the "
                "other begins; put more work into a call, or capture both into one graph"
            )
        if self.report.overlap_queued < LEAST_OVERLAP:
            return None
        return (
            f"launch-bound: {a} takes {in_words(self.first.called_ns)} as the program calls it, of which the device "
            f"works {a_alone} and otherwise waits for launches, and {a} ends before {b} is queued; if both are queued "
            f"before they start, {self.report.overlap_queued:.0%} of the shorter one overlaps: capture the work into "
            "graphs, or call the two from two threads"
        )

    def _full_sms(self) -> str | None:
        first, second = self.runs.streams
        if first.context != second.context and self._knows_sms and not self.report.shared_sms:
            return None
        repeats = min(max(1, round(ROOM_NS / max(self.first.alone_ns, 1))), MOST_REPEATS)
        with second.context.create_stream() as other:
            if self.runs.finds_room(other, repeats):
                return None
        a, b = self.first.name, self.second.name
        text = (
            f"{a} fills the SMs: a block that needs half of an SM found no room, and {b} began when {a} ended "
            f"(after {in_words(self.first.together_ns)})"
        )
        if self.report.overlap_reversed >= LEAST_OVERLAP:
            text += f"; with {b} queued first, {self.report.overlap_reversed:.0%} of the shorter one overlaps"
        if first.context == second.context:
            return f"{text}: run each in its own partition, dev.partition(...), or give {a} fewer blocks"
        if first.context.is_green and second.context.is_green:
            return (
                f"{text}: the two contexts share {len(self.report.shared_sms)} SMs, {ranges(self.report.shared_sms)}; "
                "create both in one split, dev.partition(...), so that they share none"
            )
        primary = a if not first.context.is_green else b
        return (
            f"{text}: {primary} runs on the primary context, which uses all SMs, including those of partitions; run it "
            "in a partition, or in the background partition"
        )

    def _dependency(self) -> str:
        a, b = self.first.name, self.second.name
        is_apart = self._knows_sms and not self.report.shared_sms
        apart = "they share no SM" if is_apart else f"{a} leaves room on the SMs of {b}"
        text = (
            f"{apart} and small kernels overlap on the two streams, but {b} ended {in_words(self.second.together_ns)} "
            f"after the start of both, and takes {in_words(self.second.alone_ns)} alone: probably one waits for an "
            "event of the other"
        )
        if self.report.overlap_reversed >= LEAST_OVERLAP:
            text += f" ({b} for {a}: with {b} queued first, they overlap by {self.report.overlap_reversed:.0%})"
        text += "; look for wait() and wait_stream() between them"
        return text if is_apart else f"{text}, or {b} needs more of an SM than {a} leaves free"

    # ---- what it costs

    def costs(self) -> list[str]:
        """What it costs that they overlap."""
        sentences = []
        for work, other in ((self.first, self.second), (self.second, self.first)):
            if work.slowdown >= LEAST_SLOWDOWN:
                late = self._wait() if work is self.second else ""
                sentences.append(
                    f"{work.name} takes {in_words(work.together_ns)} together with {other.name} and "
                    f"{in_words(work.alone_ns)} alone, {work.slowdown:.2f} times as long{late}{self._shared_what()}"
                )
        if not sentences:
            sentences.append("neither slows the other by more than 10%")
        if self.report.overlap_queued - self.report.overlap > 0.25:
            sentences.append(
                f"if both are queued before they start, {self.report.overlap_queued:.0%} of the shorter one overlaps: "
                "the launches come late; capture the work into graphs, or call the two from two threads"
            )
        return sentences

    def _wait(self) -> str:
        """How late the second begins, beyond the time to call the first."""
        as_called = [window for window in self.report.windows if not window.queued]
        late = median([window.second[0] - window.first[0] for window in as_called])
        if late < SHORT_NS + self.first.call_ns:
            return ""
        return f" (it finds room on an SM {in_words(late)} after the start of {self.first.name})"

    def _shared_what(self) -> str:
        if not self._knows_sms:
            return ": which SMs they share is unknown"
        shared = len(self.report.shared_sms)
        return what_they_share(f"{shared} SMs; partitions would keep them apart" if shared else "")

    def notes(self) -> list[str]:
        """What else was seen."""
        sentences = []
        for work, stands_in in zip((self.first, self.second), self.stand_ins, strict=True):
            if stands_in and work.called_ns > 2 * STAND_IN_NS:
                sentences.append(
                    f"the small kernel on {work.name} completed after {in_words(work.called_ns)}, and takes "
                    f"{in_words(STAND_IN_NS)}: other work occupies its SMs; run that work in the background partition, "
                    "dev.partition(...), to keep SMs free of it"
                )
            if work.first_call_ns > 3 * work.call_ns + 1_000_000:
                sentences.append(
                    f"the first call of {work.name} took {in_words(work.first_call_ns)}, later ones "
                    f"{in_words(work.call_ns)}: kernels are loaded at their first launch, which delays the whole "
                    "device; call it once in advance, or set CUDA_MODULE_LOADING=EAGER"
                )
        return sentences
