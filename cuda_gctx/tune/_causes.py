"""Why work overlaps or does not, and what that costs: the sentences of explain(), and of the reasons of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import Any

from cuda_gctx._core.extension import as_int
from cuda_gctx._core.text import ranges
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT
from cuda_gctx.measure.machine import CLOCK_TOLERANCE
from cuda_gctx.measure.statistics import NOISE, Estimate, median
from cuda_gctx.partitions.causes import lack_of_concurrency, launches_block, too_few_queues
from cuda_gctx.tune._explain import LEAST_OVERLAP, STAND_IN_NS, ExplainReport, Runs, Where, Work, measured
from cuda_gctx.tune._measurement import Measurement, Record, launch_bound
from cuda_gctx.tune._objectives import TailLatency, critical_part, weight_of
from cuda_gctx.tune._ranking import Choice, Ranking
from cuda_gctx.tune._report import Report, Result, relation, times, title_of, words

__all__ = ["beyond_noise", "explain", "reasons", "rivals"]

# A slowdown that is reported.
LEAST_SLOWDOWN = 1.1
# A few times the latency of a launch: shorter work cannot overlap much.
SHORT_NS = 20_000
# The work is repeated for so long while a search for room is made: long compared with a launch.
ROOM_NS, MOST_REPEATS = 200_000, 64
THAN, FROM = " than the choice", " than the sequence"

# Limits for reporting: an overlap that counts as none, and one that is complete.
NO_OVERLAP, WHOLE_OVERLAP = 0.1, 0.9
# Another plan for a latency is mentioned if it leaves the others so much more, at so much latency at most.
LEAST_TRADE, MOST_TRADED = 0.1, 3

WAITS = "a synchronize, .item(), .cpu() or a blocking copy, or more than about a thousand launches"
TWO_THREADS = "capture the work into graphs, or call the two from two threads"


# ---- of measurements of any kind


def waits(name: str) -> str:
    """A part whose function does not return before the device has finished."""
    return f"{name} waits for the device inside its function, so nothing else can be enqueued meanwhile ({WAITS})"


def what_they_share(sms: str) -> str:
    """What slows work next to other work, behind a sentence that says by how much. sms: those that both may use."""
    if sms:
        return f": they share {sms}"
    return ", although their SMs are disjoint: they share memory bandwidth, L2 cache or power"


# ---- of two pieces of work


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
    first waits for the work queued on the streams. Raises ValueError for streams of two devices, and RuntimeError
    during a capture or if work raises.
    """
    report, runs = measured(first, second, as_int("rounds", rounds, 1, 1000))
    why_not = chain(_of_streams(report, runs), _of_launches(report), _of_sms(report, runs))
    answer = _costs(report) if report.overlaps else islice(why_not, 1)  # the first cause that fits
    return replace(report, causes=(*answer, *_notes(report, runs)))


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
        yield f"{waits(' and '.join(waiting))}: remove the wait, or call the two from two threads"
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
    if report.overlap_queued >= LEAST_OVERLAP:
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
    what = what_they_share(shared) if _knows_sms(report) else ": which SMs they share is unknown"
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


# ---- of the plans of a report


def reasons(ranking: Ranking[Any], report: Report, choice: Choice[Record]) -> tuple[str, ...]:
    """The reasons, the most general first."""
    found, chosen = ranking.found, choice.record
    return (
        _bound(report),
        *_sustained(ranking, chosen),
        *_hosts(found, report, chosen),
        *_streams(found, report),
        *_partitions(ranking, report, chosen),
        *_libraries(ranking),
        *rivals(ranking, report, chosen),
        *_doubts(ranking, choice),
        _coverage(found, report),
        *_events(found, report),
    )


def _by_kind(report: Report, kind: str) -> Result | None:
    return next((result for result in report.results if result.plan.kind == kind), None)


def _bound(report: Report) -> str:
    sequence = _by_kind(report, "sequence")
    assert sequence is not None
    most = sequence.seconds.value / report.bound
    gain = f"hiding the rest would be a speedup of {most:.2f}x"
    limit = gain if most > 1 + NOISE else f"overlap can save less than {NOISE:.0%}"
    longest = max(report.alone, key=lambda name: report.alone[name].value * weight_of(report.objective, name))
    return (
        f"{critical_part(report.objective) or longest} alone takes {words(report.bound)}, and sequential takes "
        f"{words(sequence.seconds.value)}: {limit}"
    )


def _hosts(found: Measurement[Any], report: Report, chosen: Record) -> Iterator[str]:
    step, streams = title_of(found.objective), _by_kind(report, "streams")
    waiting = [name for name, facts in found.facts.items() if facts.waits]
    yield from map(waits, waiting)
    if not isinstance(found.objective, TailLatency) and not waiting:
        # What the calls take the host while the driver's queue has room; otherwise the host waits for the device.
        alone = [facts.device_s * found.weight(name) for name, facts in found.facts.items()]
        for record, device_s in ((found.sequence(), sum(alone)), (chosen, max(alone))):
            samples = list(record.samples.values())
            if launch_bound(samples) and found.called_s() > device_s / 2:
                yield (
                    f"launch-bound: the host needs {words(median([sample.host_s for sample in samples]))} to enqueue a "
                    f"{step} of {words(device_s)}, so the device waits for the host: use fewer launches, or a CUDA "
                    "graph"
                )
                break
    if found.by_host_threads and streams is not None:
        taken = f"{words(streams.seconds.p10)} to {words(streams.seconds.p90)}"
        yield (
            f"bound by the host's threads: on plain streams the {step} takes {taken} (p10 to p90 of "
            f"{streams.seconds.samples} rounds, each with new threads), and a program may get any of that; "
            f'launch="graphs" measures it without these threads'
        )


def _streams(found: Measurement[Any], report: Report) -> Iterator[str]:
    streams = _by_kind(report, "streams")
    if streams is None or streams.overlap is None or streams.launch_bound:
        return
    if any(facts.waits for facts in found.facts.values()):
        return
    if streams.overlap < NO_OVERLAP:
        cause = launches_block() or too_few_queues(len(report.alone), "streams")
        yield "no overlap on plain streams" + (f": {cause}" if cause is not None else "")
    elif streams.overlap < WHOLE_OVERLAP:
        yield f"on plain streams the parts overlapped for {streams.overlap:.0%} of the possible time"


def _partitions(ranking: Ranking[Any], report: Report, chosen: Record) -> Iterator[str]:
    """What the chosen or best partitions cost the parts: fewer SMs, and what disjoint SMs still share."""
    placed = [c for c in ranking.records if any(alone.samples for alone in c.alone_here.values())]
    if not placed:
        return
    disjoint = [c for c in placed if c.kind == "partitions"] or placed
    best = chosen if chosen in placed else min(disjoint, key=lambda c: (not ranking.accepts(c), ranking.relative(c)))
    assert best.plan is not None
    result, what = report.result(best.plan), title_of(report.objective)
    slowed: dict[str, float] = {}
    for name, part in result.parts.items():
        if part.alone is None:
            continue
        slower = part.alone.value / report.alone[name].value
        if slower > LEAST_SLOWDOWN:
            yield f"{name} alone is {slower:.2g}x slower in {part.sm_count} SMs than on the whole device"
        here, together = best.alone_here[name].spent(name, ranking.final), best.spent(name, ranking.final)
        if name == critical_part(report.objective):
            ratio = result.seconds.value / part.alone.value
            yield (
                f"in {part.sm_count} SMs the {what} is {words(part.alone.value)} alone, and {ratio:.2f}x that next to "
                "the others"
            )
        elif here and together:
            slowed[name] = median(together) / median(here)
        elif part.seconds is not None:
            slowed[name] = part.seconds.value / part.alone.value
    each = [f"{name} by {slower:.1f}x" for name, slower in slowed.items() if slower > LEAST_SLOWDOWN]
    if each:
        whom = "the parts slow each other," if len(each) > 1 else "the others slow"
        sms = "" if result.plan.kind == "partitions" else "SMs"
        yield f"{whom} {' and '.join(each)} ({result.plan}){what_they_share(sms)}"


def beyond_noise(ratio: Estimate) -> str:
    """What is added to a ratio that tells neither of the two plans to be faster."""
    noise = ratio.is_known and not ratio.is_slower and not ratio.inverse.is_slower
    return ", no difference beyond noise" if noise else ""


def _libraries(ranking: Ranking[Any]) -> Iterator[str]:
    """What the SM count hint did, at the best sizes."""
    placed = [(one, one.plan.library_sms) for one in ranking.acceptable() if one.allocation is not None and one.plan]
    hinted = {one.allocation: one for one, hint in placed if hint}
    pairs = [(hinted[one.allocation], one) for one, hint in placed if not hint and one.allocation in hinted]
    if pairs:
        # The pair of finalists is known best.
        best = min(pairs, key=lambda pair: (not ranking.ratio(*pair).is_known, min(map(ranking.relative, pair))))
        ratio, without = ranking.ratio(*best), best[1]
        yield f"the SM count hint for libraries ({without.plan}) makes it {relation(ratio)}{beyond_noise(ratio)}"


def rivals(ranking: Ranking[Any], report: Report, chosen: Record) -> Iterator[str]:
    """How the choice compares with the closest plans and with the sequence."""
    fastest = min(ranking.records, key=ranking.relative)
    for rival in dict.fromkeys((*ranking.compared, *ranking.best_of_kinds(), fastest)):
        if rival is chosen:
            continue
        ratio = ranking.ratio(rival, chosen)
        between, but = relation(ratio, THAN), beyond_noise(ratio)
        if not ratio.is_known and ranking.is_slower(rival, chosen):
            between = f"at least {ratio.low:.2f}x slower{THAN} (too few samples for more)"
        if not ranking.accepts(rival):
            but = f", but the others would only achieve {ranking.others_share(rival):.0%}"
        elif but:
            but += ", and the choice is simpler" if rival.complexity > chosen.complexity else ""
        elif rival not in ranking.compared and ranking.is_slower(chosen, rival):
            but = ", but measured in too few rounds"
        yield f"{rival.plan}: {between}{but}"
    if isinstance(report.objective, TailLatency):
        for name, part in report.result(report.choice).parts.items():
            if part.calls_per_second is not None:
                share = part.calls_per_second * report.alone[name].value
                yield f"meanwhile {name} achieves {part.calls_per_second:.4g} calls/s, {share:.0%} of its rate alone"
        yield from _trade(ranking, chosen)


def _doubts(ranking: Ranking[Any], choice: Choice[Record]) -> Iterator[str]:
    """Why the choice is not sure, and the plans that may be faster."""
    yield from (f"not sure: {why}" for why in choice.why)
    for other in ranking.undecided(choice.record):
        most = ranking.most(choice.record, other)
        limit = f"up to {most:.2f}x " if most < inf else ""
        yield f"undecided: {other.plan} may be {limit}faster{THAN}"


def _coverage(found: Measurement[Any], report: Report) -> str:
    """What the intervals are intervals of."""
    covered = "noise in this process"
    if report.openings > 1:
        covered += f" and what {report.openings} openings of a plan differ by"
    if found.by_host_threads:
        covered += ", with new host threads in each round"
    margin = f"differences below {report.margin:.1%} count as none"
    return f"the intervals cover {covered}, not another process or day; {margin}; work was enqueued {report.launch}"


def _sustained(ranking: Ranking[Any], chosen: Record) -> Iterator[str]:
    """What the choice gains in blocks by turns with the sequence, and in rounds between other plans."""
    if not chosen.sustained:
        return
    sustained = relation(ranking.ratio(chosen, ranking.sequence), FROM)
    yield (
        f"in {len(chosen.sustained)} blocks without a pause the choice is {sustained}, and in rounds between other "
        f"plans {relation(ranking.in_rounds(chosen, ranking.sequence))}"
    )
    if chosen.sm_clocks_mhz is not None:
        own, other = chosen.sm_clocks_mhz
        if abs(own - other) > CLOCK_TOLERANCE * max(own, other):
            yield f"the SM clock is {own:g} MHz with the choice, and {other:g} MHz in sequence"


def _events(found: Measurement[Any], report: Report) -> Iterator[str]:
    """What changed or failed while the plans were measured."""
    if changed := report.conditions[0].differences(report.conditions[-1]):
        yield f"between begin and end: {'; '.join(changed)}"
    for why, names in found.left_out.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more} excluded: {why.splitlines()[0]}"
    yield from found.notes


def _trade(ranking: Ranking[Any], chosen: Record) -> Iterator[str]:
    """What the others would achieve in partitions that leave them more, and what that would cost."""
    limit = MOST_TRADED * ranking.relative(chosen)
    traded = [c for c in ranking.acceptable() if c.allocation is not None and ranking.relative(c) <= limit]
    # Of plans that leave the others equally much, the one with the lowest latency.
    most = max(traded, key=lambda c: (round(ranking.others_share(c), 2), -ranking.relative(c)), default=chosen)
    share, slower = ranking.others_share(most), ranking.ratio(most, chosen)
    if share - ranking.others_share(chosen) >= LEAST_TRADE:
        yield f"with {most.plan} the others would achieve {share:.0%} of that, and the latency would be {times(slower)}"
