"""Why a plan won and the others lost, as sentences derived from the measurements."""

from __future__ import annotations

from typing import Any

from cuda_gctx.measure.machine import CLOCK_TOLERANCE
from cuda_gctx.measure.statistics import NOISE, median
from cuda_gctx.tune._causes import LEAST_SLOWDOWN, launch_bound, not_at_once, waits, what_they_share
from cuda_gctx.tune._measurement import Measurement
from cuda_gctx.tune._objectives import TailLatency, Throughput
from cuda_gctx.tune._ranking import Choice, Record
from cuda_gctx.tune._report import Report, Result, relation, times, title_of, words

__all__ = ["reasons"]

THAN, FROM = " than the choice", " than the sequence"

# Limits for reporting: an overlap that counts as none, and one that is complete.
NO_OVERLAP, WHOLE_OVERLAP = 0.1, 0.9
# Another plan for a latency is mentioned if it leaves the others so much more, at so much latency at most.
LEAST_TRADE, MOST_TRADED = 0.1, 3


def reasons(found: Measurement[Any], report: Report, choice: Choice[Record]) -> tuple[str, ...]:
    """The reasons, the most general first."""
    chosen = choice.record
    sentences = [_bound(report), *_sustained(found, chosen)]
    sentences += _hosts(found, report, chosen)
    sentences += _streams(found, report)
    sentences += _partitions(found, report, chosen)
    sentences += _libraries(found)
    sentences += _others(found, report, chosen)
    sentences += [f"not sure: {why}" for why in choice.why]
    sentences += _undecided(found, chosen)
    sentences.append(_coverage(found, report))
    sentences += _changes(report)
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
    if isinstance(report.objective, TailLatency):
        return report.objective.part
    weights = report.objective.weights if isinstance(report.objective, Throughput) else {}
    return max(report.alone, key=lambda name: report.alone[name].value * weights.get(name, 1))


def _hosts(found: Measurement[Any], report: Report, chosen: Record) -> list[str]:
    """What the host limits."""
    sentences = [waits(name) for name, facts in found.facts.items() if facts.waits]
    if not isinstance(found.objective, TailLatency) and not sentences:
        # What the calls take the host while the driver's queue has room; otherwise the host waits for the device.
        called_s = sum(facts.host_s * found.weight(name) for name, facts in found.facts.items())
        alone = [facts.device_s * found.weight(name) for name, facts in found.facts.items()]
        for record, device_s in ((found.sequence(), sum(alone)), (chosen, max(alone))):
            samples = list(record.samples.values())
            if 2 * sum(sample.launch_bound for sample in samples) > len(samples) and called_s > device_s / 2:
                host_s = median([sample.host_s for sample in samples])
                work = f"a {title_of(found.objective)} of {words(device_s)}"
                sentences.append(launch_bound(f"the host needs {words(host_s)} to enqueue {work}"))
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


def _partitions(found: Measurement[Any], report: Report, chosen: Record) -> list[str]:
    """What the chosen or best partitions cost the parts: fewer SMs, and what disjoint SMs still share."""
    placed = [c for c in found.known() if any(alone.samples for alone in c.alone_here.values())]
    if not placed:
        return []
    disjoint = [c for c in placed if c.plan is not None and c.plan.kind == "partitions"] or placed
    best = (
        chosen
        if chosen in placed
        else min(disjoint, key=lambda c: (not found.ranking.accepts(c), found.ranking.relative(c)))
    )
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
        here, together = best.alone_here[name].spent(name, found.final), best.spent(name, found.final)
        if isinstance(report.objective, TailLatency) and name == report.objective.part:
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


def _libraries(found: Measurement[Any]) -> list[str]:
    """What the SM count hint did, at the best sizes."""
    by_allocation: dict[object, dict[bool, Record]] = {}
    for record in found.ranking.acceptable():
        if record.allocation is not None and record.plan is not None:
            by_allocation.setdefault(record.allocation, {})[record.plan.library_sms] = record
    pairs = [pair for pair in by_allocation.values() if len(pair) == 2]
    if not pairs:
        return []
    # The pair of finalists is known best.
    best = min(
        pairs,
        key=lambda p: (
            not found.ranking.ratio(p[True], p[False]).is_known,
            min(map(found.ranking.relative, p.values())),
        ),
    )
    ratio = found.ranking.ratio(best[True], best[False])
    noise = ratio.is_known and not ratio.is_slower and not ratio.inverse.is_slower
    only = ", no difference beyond noise" if noise else ""
    return [f"the SM count hint for libraries ({best[False].plan}) makes it {relation(ratio)}{only}"]


def _others(found: Measurement[Any], report: Report, chosen: Record) -> list[str]:
    """How the choice compares with the closest plans and with the sequence."""
    sentences = []
    fastest = min(found.known(), key=lambda record: found.ranking.relative(record))
    rivals = [r for r in (*found.ranking.compared, *found.best_of_kinds(), fastest) if r is not chosen]
    for rival in dict.fromkeys(rivals):
        ratio = found.ranking.ratio(rival, chosen)
        between = f"{rival.plan}: {relation(ratio, THAN)}"
        if not found.ranking.accepts(rival):
            sentences.append(f"{between}, but the others would only achieve {found.ranking.others_share(rival):.0%}")
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
        sentences += _trade(found, chosen)
    return sentences


def _undecided(found: Measurement[Any], chosen: Record) -> list[str]:
    """The plans that may be faster than the choice."""
    sentences = []
    for other in found.ranking.undecided(chosen):
        ratio = found.ranking.ratio(chosen, other)
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


def _sustained(found: Measurement[Any], chosen: Record) -> list[str]:
    """What the choice gains in blocks by turns with the sequence, and in rounds between other plans."""
    ranking, sequence = found.ranking, found.sequence()
    if not chosen.sustained:
        return []
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
    """What changed during the measurement."""
    if len(report.conditions) < 2:
        return []
    changed = report.conditions[0].differences(report.conditions[-1])
    return [f"between begin and end: {'; '.join(changed)}"] if changed else []


def _trade(found: Measurement[Any], chosen: Record) -> list[str]:
    """What the others would achieve in partitions that leave them more, and what that would cost."""
    limit = MOST_TRADED * found.ranking.relative(chosen)
    traded = [c for c in found.ranking.acceptable() if c.allocation is not None and found.ranking.relative(c) <= limit]
    # Of plans that leave the others equally much, the one with the lowest latency.
    most = max(
        traded, key=lambda c: (round(found.ranking.others_share(c), 2), -found.ranking.relative(c)), default=chosen
    )
    if found.ranking.others_share(most) - found.ranking.others_share(chosen) < LEAST_TRADE:
        return []
    share, slower = found.ranking.others_share(most), found.ranking.ratio(most, chosen)
    return [f"with {most.plan} the others would achieve {share:.0%} of that, and the latency would be {times(slower)}"]
