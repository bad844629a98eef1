"""Why a plan won and the others lost, in words that follow from what was measured."""

from __future__ import annotations

from statistics import median

from cuda_gctx.tune._objectives import TailLatency, Throughput
from cuda_gctx.tune._report import Report, Result, title_of, words
from cuda_gctx.tune._search import Candidate, Search
from cuda_gctx.tune._statistics import NOISE

__all__ = ["reasons"]

# What is told: a slowdown of a part, an overlap that is none, and one that is not whole.
SLOWDOWN = 1.1
NO_OVERLAP, WHOLE_OVERLAP = 0.1, 0.9
# Another plan for a latency is told of if it leaves the others so much more, and costs at most so much.
LEAST_TRADE, MOST_TRADED = 0.1, 3


def reasons(search: Search, report: Report, chosen: Candidate) -> tuple[str, ...]:
    """The reasons, the most general first."""
    told = [_bound(report)]
    told += _hosts(search)
    told += _streams(search, report)
    told += _partitions(search, report)
    told += _libraries(search)
    told += _others(search, report, chosen)
    told += search.notes
    return tuple(told)


def _by_kind(report: Report, kind: str) -> Result | None:
    return next((result for result in report.results if result.plan.kind == kind), None)


def _bound(report: Report) -> str:
    sequence = _by_kind(report, "sequence")
    assert sequence is not None
    most = sequence.seconds.median / report.bound
    won = f"at most {most:.2f} x can be won" if most > 1 + NOISE else "nothing can be won"
    taken = words(sequence.seconds.median)
    return f"the bound is {words(report.bound)} ({_longest(report)} alone), in sequence it is {taken}: {won}"


def _longest(report: Report) -> str:
    if isinstance(report.objective, TailLatency):
        return report.objective.part
    weights = report.objective.weights if isinstance(report.objective, Throughput) else {}
    return max(report.alone, key=lambda name: report.alone[name].median * weights.get(name, 1))


def _hosts(search: Search) -> list[str]:
    """What the host is to blame for."""
    told = [
        f"{name} waits for the device inside its function, so that nothing can be enqueued beside it meanwhile"
        for name, facts in search.facts.items()
        if facts.waits
    ]
    if not isinstance(search.objective, TailLatency) and not told:
        samples = list(search.sequence().samples.values())
        if 2 * sum(sample.launch_bound for sample in samples) > len(samples):
            host_s = median(sample.host_s for sample in samples)
            device_s = sum(facts.device_s * search.weight(name) for name, facts in search.facts.items())
            told.append(
                f"launch-bound: the host needs {words(host_s)} to enqueue a {title_of(search.objective)} of "
                f"{words(device_s)}, so that the device waits for it; fewer launches help, or a CUDA graph"
            )
    return told


def _streams(search: Search, report: Report) -> list[str]:
    streams = _by_kind(report, "streams")
    if streams is None:
        return []
    objective = report.objective
    if isinstance(objective, TailLatency):
        alone = report.alone[objective.part].median
        slower = streams.seconds.median / alone
        if slower < SLOWDOWN:
            return []
        others = " and ".join(name for name in report.alone if name != objective.part)
        told = (
            f"on plain streams the {title_of(objective)} is {slower:.1f} x what it is alone, because it waits for SMs "
            f"of {others}"
        )
        urgent = next((r for r in report.results if r.plan.first == objective.part), None)
        if urgent is not None and urgent.seconds.median > SLOWDOWN * alone:
            slower = urgent.seconds.median / alone
            told += f"; with a priority it is {slower:.1f} x, because priority moves nobody off an SM"
        return [told]
    if streams.overlap is None or streams.launch_bound:
        return []
    if streams.overlap >= NO_OVERLAP:
        seen = f"on plain streams the parts ran at once for {streams.overlap:.0%} of the time that is possible"
        return [seen] if streams.overlap < WHOLE_OVERLAP else []
    return [f"no overlap seen on plain streams: {_longest(report)} fills all SMs"]


def _partitions(search: Search, report: Report) -> list[str]:
    """What the best partitions cost the parts: fewer SMs, and what disjoint SMs still share."""
    result = next((r for r in report.results if any(part.alone for part in r.parts.values())), None)
    if result is None:
        return []
    told = []
    candidate = next(c for c in search.known() if c.plan == result.plan)
    stretched: dict[str, float] = {}
    for name, part in result.parts.items():
        if part.alone is None:
            continue
        slower = part.alone.median / report.alone[name].median
        if slower > SLOWDOWN:
            told.append(f"{name} alone is {slower:.2g} x slower in {part.sm_count} SMs than on the whole device")
        here = candidate.alone_here[name].spent(name)
        if isinstance(report.objective, TailLatency) and name == report.objective.part:
            ratio = result.seconds.median / part.alone.median
            told.append(
                f"in {part.sm_count} SMs the {title_of(report.objective)} is {words(part.alone.median)} alone, and "
                f"{ratio:.2f} x that beside the others"
            )
        elif here:
            stretched[name] = median(candidate.spent(name)) / median(here)
        elif part.seconds is not None:
            stretched[name] = part.seconds.median / part.alone.median
    worst = max(stretched, key=stretched.__getitem__, default=None)
    if worst is not None and stretched[worst] > SLOWDOWN:
        whom = "they slow each other" if len(stretched) > 1 else f"{worst} is slowed"
        told.append(
            f"{whom} by {stretched[worst]:.1f} x ({result.plan}) although their SMs are disjoint: memory bandwidth, L2 "
            f"or power is shared"
        )
    return told


def _libraries(search: Search) -> list[str]:
    """What telling libraries the SM counts did, at the best sizes."""
    by_allocation: dict[object, dict[bool, Candidate]] = {}
    for candidate in search.known():
        if candidate.allocation is not None and candidate.plan is not None:
            by_allocation.setdefault(candidate.allocation, {})[candidate.plan.library_sms] = candidate
    pairs = [pair for pair in by_allocation.values() if len(pair) == 2]
    if not pairs:
        return []
    best = min(pairs, key=lambda pair: min(candidate.seconds() for candidate in pair.values()))
    ratio = best[True].seconds() / best[False].seconds()
    if abs(ratio - 1) <= NOISE:
        return [f"telling libraries their SM counts makes no difference ({best[False].plan})"]
    told = f"{ratio:.2f} x slower" if ratio > 1 else f"{1 / ratio:.2f} x faster"
    return [f"telling libraries their SM counts makes it {told} ({best[False].plan})"]


def _others(search: Search, report: Report, chosen: Candidate) -> list[str]:
    """How the choice compares with the plans that came near, and with the sequence."""
    told = []
    fastest = min(search.known(), key=lambda candidate: candidate.seconds(search.final))
    rivals = [r for r in (*search.finalists(), *search.best_of_kinds(), fastest) if r is not chosen]
    for rival in dict.fromkeys(rivals):
        ratio = search.ratio(rival, chosen)
        between = f"{rival.plan}: {ratio.median:.2f} x as long as the choice"
        if not search.accepts(rival):
            told.append(f"{between}, but the others would achieve {search.others_share(rival):.0%}")
            continue
        if not ratio.is_known:
            between += ", by too few rounds to be sure"
        else:
            between += f" ({ratio.low:.2f} to {ratio.high:.2f})"
            if not ratio.is_slower:
                between += ", no difference beyond noise"
                between += ", and the choice is simpler" if rival.complexity > chosen.complexity else ""
        told.append(between)
    if isinstance(report.objective, TailLatency):
        for name, part in report.result(report.choice).parts.items():
            if part.calls_per_second is not None:
                share = part.calls_per_second * report.alone[name].median
                told.append(
                    f"meanwhile {name} achieves {part.calls_per_second:.4g} calls/s, {share:.0%} of what it does alone"
                )
        told += _trade(search, chosen)
    return told


def _trade(search: Search, chosen: Candidate) -> list[str]:
    """What the others would achieve in partitions that leave them more, and what it would cost."""
    most = max((c for c in search.known() if c.allocation is not None), key=search.others_share, default=chosen)
    gained = search.others_share(most) - search.others_share(chosen)
    if gained < LEAST_TRADE or most.seconds(search.final) > MOST_TRADED * chosen.seconds(search.final):
        return []
    slower = most.seconds(search.final) / chosen.seconds(search.final)
    share = search.others_share(most)
    return [f"with {most.plan} the others would achieve {share:.0%} of that, and the latency would be {slower:.2f} x"]
