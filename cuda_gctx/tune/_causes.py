"""Why work overlaps or does not, and what that costs: the sentences of explain(), and of the reasons of a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuda_gctx._core.arguments import as_int
from cuda_gctx._core.text import ranges
from cuda_gctx.draw.durations import in_words
from cuda_gctx.interop._frameworks import LEGACY_DEFAULT
from cuda_gctx.measure.machine import CLOCK_TOLERANCE
from cuda_gctx.measure.statistics import NOISE, median
from cuda_gctx.partitions.causes import lack_of_concurrency, launches_block, too_few_queues
from cuda_gctx.tune._explain import LEAST_OVERLAP, STAND_IN_NS, ExplainReport, Runs, Where, Work, measured
from cuda_gctx.tune._measurement import Measurement, Record, launch_bound
from cuda_gctx.tune._objectives import TailLatency, critical_part, weight_of
from cuda_gctx.tune._ranking import Choice, Ranking
from cuda_gctx.tune._report import Report, Result, relation, times, title_of, words

__all__ = ["explain", "reasons"]

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


# ---- of measurements of any kind


def waits(name: str) -> str:
    """A part whose function does not return before the device has finished."""
    return f"{name} waits for the device inside its function, so nothing else can be enqueued meanwhile ({WAITS})"


def not_at_once(count: int) -> str | None:
    """What keeps work on so many streams of one device from running at once, if it is known."""
    return launches_block() or too_few_queues(count, "streams")


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
    return replace(report, causes=_Diagnosis(report, runs).causes())


class _Diagnosis:
    """Conclusions from a report. May run the first work again, to search for room."""

    def __init__(self, report: ExplainReport, runs: Runs) -> None:
        self.report, self.runs = report, runs
        self.first, self.second = report.first, report.second

    def causes(self) -> tuple[str, ...]:
        """Why they do not overlap, or what overlapping costs, and what else was seen."""
        return (*(self.costs() if self.report.overlaps else [self.why_not()]), *self.notes())

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
        cause = too_few_queues(2, "streams") or self.runs.contexts_cause
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
        for work, stands_in in zip((self.first, self.second), self.runs.stand_ins, strict=True):
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


# ---- of the plans of a report


def reasons(ranking: Ranking[Any], report: Report, choice: Choice[Record]) -> tuple[str, ...]:
    """The reasons, the most general first."""
    found, chosen = ranking.found, choice.record
    sentences = [
        _bound(report),
        *_sustained(ranking, chosen),
        *_hosts(found, report, chosen),
        *_streams(found, report),
        *_partitions(ranking, report, chosen),
        *_libraries(ranking),
        *_others(ranking, report, chosen),
        *(f"not sure: {why}" for why in choice.why),
        *_undecided(ranking, chosen),
        _coverage(found, report),
        *_changes(report),
    ]
    for why, names in found.left_out.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        sentences.append(f"{names[0]}{more} excluded: {why.splitlines()[0]}")
    sentences += found.notes
    return tuple(sentences)


def _by_kind(report: Report, kind: str) -> Result | None:
    return next((result for result in report.results if result.plan.kind == kind), None)


def _bound(report: Report) -> str:
    sequence = _by_kind(report, "sequence")
    assert sequence is not None
    most = sequence.seconds.value / report.bound
    limit = f"hiding the rest would be a speedup of {most:.2f}x" if most > 1 + NOISE else "there is nothing to hide"
    taken = words(sequence.seconds.value)
    return f"{_longest(report)} alone takes {words(report.bound)}, and sequential takes {taken}: {limit}"


def _longest(report: Report) -> str:
    longest = max(report.alone, key=lambda name: report.alone[name].value * weight_of(report.objective, name))
    return critical_part(report.objective) or longest


def _hosts(found: Measurement[Any], report: Report, chosen: Record) -> list[str]:
    sentences = [waits(name) for name, facts in found.facts.items() if facts.waits]
    if not isinstance(found.objective, TailLatency) and not sentences:
        # What the calls take the host while the driver's queue has room; otherwise the host waits for the device.
        alone = [facts.device_s * found.weight(name) for name, facts in found.facts.items()]
        for record, device_s in ((found.sequence(), sum(alone)), (chosen, max(alone))):
            samples = list(record.samples.values())
            if launch_bound(samples) and found.called_s() > device_s / 2:
                host_s = median([sample.host_s for sample in samples])
                work = f"a {title_of(found.objective)} of {words(device_s)}"
                sentences.append(
                    f"launch-bound: the host needs {words(host_s)} to enqueue {work}, so the device waits for the "
                    "host: use fewer launches, or a CUDA graph"
                )
                break
    streams = _by_kind(report, "streams")
    if found.by_host_threads and streams is not None:
        taken = f"{words(streams.seconds.p10)} to {words(streams.seconds.p90)}"
        sentences.append(
            f"bound by the host's threads: on plain streams the {title_of(found.objective)} takes {taken} (p10 to p90 "
            f"of {streams.seconds.samples} rounds, each with new threads), and a program may get any of that; "
            f'launch="graphs" measures it without these threads'
        )
    return sentences


def _streams(found: Measurement[Any], report: Report) -> list[str]:
    streams = _by_kind(report, "streams")
    if streams is None:
        return []
    objective = report.objective
    if isinstance(objective, TailLatency):
        alone = report.alone[objective.part].value
        slower = streams.seconds.value / alone
        if slower < LEAST_SLOWDOWN:
            return []
        text = f"on plain streams the {title_of(objective)} is {slower:.1f}x that alone"
        priorities = (r for r in report.results if r.plan.kind == "priority")
        urgent = next((r for r in priorities if r.plan.first == objective.part), None)
        if urgent is not None and urgent.seconds.value > LEAST_SLOWDOWN * alone:
            slower = urgent.seconds.value / alone
            text += f"; with a priority it is {slower:.1f}x (a priority does not preempt running blocks)"
        return [text]
    if streams.overlap is None or streams.launch_bound or any(facts.waits for facts in found.facts.values()):
        return []
    if streams.overlap >= NO_OVERLAP:
        seen = f"on plain streams the parts overlapped for {streams.overlap:.0%} of the possible time"
        return [seen] if streams.overlap < WHOLE_OVERLAP else []
    cause = not_at_once(len(report.alone))
    return ["no overlap on plain streams" + (f": {cause}" if cause is not None else "")]


def _partitions(ranking: Ranking[Any], report: Report, chosen: Record) -> list[str]:
    """What the chosen or best partitions cost the parts: fewer SMs, and what disjoint SMs still share."""
    placed = [c for c in ranking.records if any(alone.samples for alone in c.alone_here.values())]
    if not placed:
        return []
    disjoint = [c for c in placed if c.kind == "partitions"] or placed
    best = chosen if chosen in placed else min(disjoint, key=lambda c: (not ranking.accepts(c), ranking.relative(c)))
    assert best.plan is not None
    result = report.result(best.plan)
    sentences = []
    if result.plan.kind == "overlay" and isinstance(report.objective, TailLatency):
        ratio = result.seconds.value / report.bound
        sentences.append(f"over the others ({result.plan}) the {title_of(report.objective)} is {ratio:.2f}x that alone")
    stretched: dict[str, float] = {}
    for name, part in result.parts.items():
        if part.alone is None:
            continue
        slower = part.alone.value / report.alone[name].value
        if slower > LEAST_SLOWDOWN:
            sentences.append(f"{name} alone is {slower:.2g}x slower in {part.sm_count} SMs than on the whole device")
        here, together = best.alone_here[name].spent(name, ranking.final), best.spent(name, ranking.final)
        if name == critical_part(report.objective):
            ratio = result.seconds.value / part.alone.value
            sentences.append(
                f"in {part.sm_count} SMs the {title_of(report.objective)} is {words(part.alone.value)} alone, and "
                f"{ratio:.2f}x that next to the others"
            )
        elif here and together:
            stretched[name] = median(together) / median(here)
        elif part.seconds is not None:
            stretched[name] = part.seconds.value / part.alone.value
    slowed = {name: slower for name, slower in stretched.items() if slower > LEAST_SLOWDOWN}
    if slowed:
        each = " and ".join(f"{name} by {slower:.1f}x" for name, slower in slowed.items())
        whom = f"the parts slow each other, {each}" if len(slowed) > 1 else f"the others slow {each}"
        sms = "" if result.plan.kind == "partitions" else "SMs"
        sentences.append(f"{whom} ({result.plan}){what_they_share(sms)}")
    return sentences


def _libraries(ranking: Ranking[Any]) -> list[str]:
    """What the SM count hint did, at the best sizes."""
    by_allocation: dict[object, dict[bool, Record]] = {}
    for record in ranking.acceptable():
        if record.allocation is not None and record.plan is not None:
            by_allocation.setdefault(record.allocation, {})[record.plan.library_sms] = record
    pairs = [pair for pair in by_allocation.values() if len(pair) == 2]
    if not pairs:
        return []
    # The pair of finalists is known best.
    best = min(
        pairs,
        key=lambda p: (
            not ranking.ratio(p[True], p[False]).is_known,
            min(map(ranking.relative, p.values())),
        ),
    )
    ratio = ranking.ratio(best[True], best[False])
    noise = ratio.is_known and not ratio.is_slower and not ratio.inverse.is_slower
    only = ", no difference beyond noise" if noise else ""
    return [f"the SM count hint for libraries ({best[False].plan}) makes it {relation(ratio)}{only}"]


def _others(ranking: Ranking[Any], report: Report, chosen: Record) -> list[str]:
    """How the choice compares with the closest plans and with the sequence."""
    sentences = []
    fastest = min(ranking.records, key=ranking.relative)
    rivals = [r for r in (*ranking.compared, *ranking.best_of_kinds(), fastest) if r is not chosen]
    for rival in dict.fromkeys(rivals):
        ratio = ranking.ratio(rival, chosen)
        between = f"{rival.plan}: {relation(ratio, THAN)}"
        if not ranking.accepts(rival):
            sentences.append(f"{between}, but the others would only achieve {ranking.others_share(rival):.0%}")
            continue
        if ratio.is_known and not ratio.is_slower:
            between += ", no difference beyond noise"
            between += ", and the choice is simpler" if rival.complexity > chosen.complexity else ""
        sentences.append(between)
    if isinstance(report.objective, TailLatency):
        for name, part in report.result(report.choice).parts.items():
            if part.calls_per_second is not None:
                share = part.calls_per_second * report.alone[name].value
                sentences.append(
                    f"meanwhile {name} achieves {part.calls_per_second:.4g} calls/s, {share:.0%} of its rate alone"
                )
        sentences += _trade(ranking, chosen)
    return sentences


def _undecided(ranking: Ranking[Any], chosen: Record) -> list[str]:
    """The plans that may be faster than the choice."""
    sentences = []
    for other in ranking.undecided(chosen):
        ratio = ranking.ratio(chosen, other)
        limit = f"up to {ratio.high:.2f}x " if ratio.is_known else ""
        sentences.append(f"undecided: {other.plan} may be {limit}faster{THAN}")
    return sentences


def _coverage(found: Measurement[Any], report: Report) -> str:
    """What the intervals are intervals of."""
    covered = "noise in this process"
    if report.openings > 1:
        covered += f" and what {report.openings} openings of a plan differ by"
    if found.by_host_threads:
        covered += ", with new host threads in each round"
    margin = f"differences below {report.margin:.1%} count as none"
    return f"the intervals cover {covered}, not another process or day; {margin}; work was enqueued {report.launch}"


def _sustained(ranking: Ranking[Any], chosen: Record) -> list[str]:
    """What the choice gains in blocks by turns with the sequence, and in rounds between other plans."""
    if not chosen.sustained:
        return []
    sequence = ranking.sequence
    sustained = relation(ranking.ratio(chosen, sequence), FROM)
    sentences = [
        f"in {len(chosen.sustained)} blocks without a pause the choice is {sustained}, and in rounds between other "
        f"plans {relation(ranking.in_rounds(chosen, sequence))}"
    ]
    if chosen.sm_clocks_mhz is not None:
        own, other = chosen.sm_clocks_mhz
        if abs(own - other) > CLOCK_TOLERANCE * max(own, other):
            sentences.append(f"the SM clock is {own:g} MHz with the choice, and {other:g} MHz in sequence")
    return sentences


def _changes(report: Report) -> list[str]:
    if len(report.conditions) < 2:
        return []
    changed = report.conditions[0].differences(report.conditions[-1])
    return [f"between begin and end: {'; '.join(changed)}"] if changed else []


def _trade(ranking: Ranking[Any], chosen: Record) -> list[str]:
    """What the others would achieve in partitions that leave them more, and what that would cost."""
    limit = MOST_TRADED * ranking.relative(chosen)
    traded = [c for c in ranking.acceptable() if c.allocation is not None and ranking.relative(c) <= limit]
    # Of plans that leave the others equally much, the one with the lowest latency.
    most = max(traded, key=lambda c: (round(ranking.others_share(c), 2), -ranking.relative(c)), default=chosen)
    if ranking.others_share(most) - ranking.others_share(chosen) < LEAST_TRADE:
        return []
    share, slower = ranking.others_share(most), ranking.ratio(most, chosen)
    return [f"with {most.plan} the others would achieve {share:.0%} of that, and the latency would be {times(slower)}"]
