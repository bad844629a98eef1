"""``explain``: why two pieces of work overlap or do not, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

from cuda_gctx._core.extension import as_int
from cuda_gctx._core.text import ranges
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT
from cuda_gctx.partitions.causes import lack_of_concurrency, launches_block, too_few_queues
from cuda_gctx.tune._elsewhere import elsewhere
from cuda_gctx.tune._explain import LEAST_OVERLAP, STAND_IN_NS, ExplainReport, Runs, Where, Work, measured
from cuda_gctx.tune._words import WAITS

__all__ = ["explain"]

# A slowdown that is reported.
LEAST_SLOWDOWN = 1.1
# A launch-bound program keeps the device waiting for more than this share of its time.
LEAST_WAITING = 0.1
# A few times the latency of a launch: shorter work cannot overlap much.
SHORT_NS = 20_000
# The work is repeated for so long while a search for room is made: long compared with a launch.
ROOM_NS, MOST_REPEATS = 200_000, 64
TWO_THREADS = "capture the work into graphs, or call the two from two threads"


def _waits(name: str) -> str:
    """A part whose function does not return before the device has finished."""
    return f"{name} waits for the device inside its function, so nothing else can be enqueued meanwhile ({WAITS})"


def _what_they_share(sms: str) -> str:
    """What slows work next to other work, behind a sentence that says by how much. sms: those that both may use."""
    if sms:
        return f": they share {sms}"
    return ", although their SMs are disjoint: they share memory bandwidth, L2 cache or power"


def explain(first: Where | tuple[Where, Work], second: Where | tuple[Where, Work], *, rounds: int = 5) -> ExplainReport:
    """Measure two pieces of work, each ``(where, work)``, alone and together, and report whether they overlap, and why
    not.

    first, second: the two pairs, or only the places.
    where: a Partition, a Stream, or the stream of another library.
    work: a function that is called with the Stream, enqueues work on it, and returns. During the call the stream is
    the current stream of torch and CuPy, if they are imported. It is called about ``5 * rounds`` times. Nothing else
    should be queued on the streams meanwhile.

    rounds: how often each is measured, 1 to 1000.

    A place without work runs a small kernel, which shows whether two streams of a running program can overlap. explain
    first waits for the work queued on the streams. Where cuda_gctx.trace() works, it also names the kernels that the
    work runs outside of its place. Raises ValueError for streams of two devices, and RuntimeError during a capture or
    if work raises.
    """
    report, runs = measured(first, second, as_int("rounds", rounds, 1, 1000))
    why_not = chain(_of_streams(report, runs), _of_launches(report), _of_sms(report, runs))
    answer = _costs(report) if report.overlaps else islice(why_not, 1)  # the first cause that fits
    return replace(report, causes=(*elsewhere(report, runs), *answer, *_notes(report, runs)))


def _knows_sms(report: ExplainReport) -> bool:
    return bool(report.first.sm_ids and report.second.sm_ids)


def _of_streams(report: ExplainReport, runs: Runs) -> Iterator[str]:
    """What keeps work on these streams from running at once, whatever it is."""
    both = (report.first, report.second)
    one, other = runs.streams
    if one == other:
        yield "both are on one stream, which runs its work in order: use a separate stream for each"
    if (blocked := launches_block()) is not None:
        yield blocked
    if waiting := [work.name for work, held in zip(both, runs.held, strict=True) if held]:
        yield f"{_waits(' and '.join(waiting))}: remove the wait, or call the two from two threads"
    if report.streams_overlap:
        return
    # The legacy default stream and blocking streams of its context wait for each other.
    for work, stream in zip(both, runs.streams, strict=True):
        if stream.handle in LEGACY_DEFAULT:
            yield (
                f"{work.name} is on the legacy default stream, which synchronizes with all blocking streams of its "
                "context: use another stream, and make both non-blocking"
            )
    if cause := too_few_queues(2, "streams") or runs.contexts_cause:
        yield cause
    if one.context != other.context:
        yield lack_of_concurrency(one.device, 2)
    yield (
        "two small kernels on the same streams do not overlap either: the streams share a hardware queue, or other "
        "work is running; create the two streams in succession and before others, and check "
        "CUDA_DEVICE_MAX_CONNECTIONS"
    )


def _of_launches(report: ExplainReport) -> Iterator[str]:
    """Whether the work ends before the other is launched."""
    first, second = report.first, report.second
    a, b, a_alone = first.name, second.name, in_words(first.alone_ns)
    if max(first.alone_ns, second.alone_ns) < SHORT_NS:
        yield (
            f"too short: {a} takes {a_alone} and {b} {in_words(second.alone_ns)}, little more than a launch, so one "
            "ends before the other begins; put more work into a call, or capture both into one graph"
        )
    waits_ns = first.called_ns - first.alone_ns
    if report.overlap_queued >= LEAST_OVERLAP and waits_ns > LEAST_WAITING * first.alone_ns:
        yield (
            f"launch-bound: {a} takes {in_words(first.called_ns)} as the program calls it, of which the device works "
            f"{a_alone} and otherwise waits for launches, and {a} ends before {b} is queued; if both are queued before "
            f"they start, {report.overlap_queued:.0%} of the shorter one overlaps: {TWO_THREADS}"
        )


def _of_sms(report: ExplainReport, runs: Runs) -> Iterator[str]:
    """Whether the second work finds no room, for which the first one runs again; otherwise one waits for the other."""
    a, b = report.first.name, report.second.name
    one, other = (stream.context for stream in runs.streams)
    is_apart = _knows_sms(report) and not report.shared_sms
    overlap = f"{report.overlap_reversed:.0%}" if report.overlap_reversed >= LEAST_OVERLAP else ""
    repeats = min(max(1, round(ROOM_NS / max(report.first.alone_ns, 1))), MOST_REPEATS)
    if (one == other or not is_apart) and not runs.finds_room(repeats):
        if one == other:
            advice = f"run each in its own partition, dev.partition(...), or give {a} fewer blocks"
        elif one.is_green and other.is_green:
            advice = (
                f"the two contexts share {len(report.shared_sms)} SMs, {ranges(report.shared_sms)}; create both in one "
                "split, dev.partition(...), so that they share none"
            )
        else:
            advice = (
                f"{b if one.is_green else a} runs on the primary context, which uses all SMs, including those of "
                "partitions; run it in a partition, or in the background partition"
            )
        order = f"; with {b} queued first, {overlap} of the shorter one overlaps" if overlap else ""
        yield (
            f"{a} fills the SMs: a block that needs half of an SM found no room, and {b} began when {a} ended (after "
            f"{in_words(report.first.together_ns)}){order}: {advice}"
        )
    apart = "they share no SM" if is_apart else f"{a} leaves room on the SMs of {b}"
    order = f" ({b} for {a}: with {b} queued first, they overlap by {overlap})" if overlap else ""
    needs = "" if is_apart else f", or {b} needs more of an SM than {a} leaves free"
    yield (
        f"{apart} and small kernels overlap on the two streams, but {b} ended {in_words(report.second.together_ns)} "
        f"after the start of both, and takes {in_words(report.second.alone_ns)} alone: probably one waits for an event "
        f"of the other{order}; look for wait() and wait_stream() between them{needs}"
    )


def _costs(report: ExplainReport) -> Iterator[str]:
    """What it costs that they overlap."""
    first, second = report.first, report.second
    shared = f"{len(report.shared_sms)} SMs; partitions would keep them apart" if report.shared_sms else ""
    what = _what_they_share(shared) if _knows_sms(report) else ": which SMs they share is unknown"
    slowed = [pair for pair in ((first, second), (second, first)) if pair[0].slowdown >= LEAST_SLOWDOWN]
    for work, other in slowed:
        # How late the second one begins, beyond the time to call the first.
        late = work.found_room_ns - other.found_room_ns
        waits = work is second and late >= SHORT_NS + first.call_ns
        room = f" (it finds room on an SM {in_words(late)} after the start of {first.name})" if waits else ""
        yield (
            f"{work.name} takes {in_words(work.together_ns)} together with {other.name} and "
            f"{in_words(work.alone_ns)} alone, {work.slowdown:.2f} times as long{room}{what}"
        )
    if not slowed:
        yield "neither slows the other by more than 10%"
    if report.overlap_queued - report.overlap > 0.25:
        yield (
            f"if both are queued before they start, {report.overlap_queued:.0%} of the shorter one overlaps: "
            f"the launches come late; {TWO_THREADS}"
        )


def _notes(report: ExplainReport, runs: Runs) -> Iterator[str]:
    """What else was seen."""
    for work, stands_in in zip((report.first, report.second), runs.stand_ins, strict=True):
        if stands_in and work.called_ns > 2 * STAND_IN_NS:
            yield (
                f"the small kernel on {work.name} completed after {in_words(work.called_ns)}, and takes "
                f"{in_words(STAND_IN_NS)}: other work occupies its SMs; run that work in the background partition, "
                "dev.partition(...), to keep SMs free of it"
            )
        if work.first_call_ns > 3 * work.call_ns + 1_000_000:
            yield (
                f"the first call of {work.name} took {in_words(work.first_call_ns)}, later ones "
                f"{in_words(work.call_ns)}: kernels are loaded at their first launch, which delays the whole "
                "device; call it once in advance, or set CUDA_MODULE_LOADING=EAGER"
            )
