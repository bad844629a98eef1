"""One trial: a contender serves a load at a rate, and what is kept of it; and what the cost model predicts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import ceil, inf
from statistics import median
from typing import Any

from serving.costs import Costs
from serving.entrants import ENTRANTS
from serving.loads import Load, load_of
from serving.loop import Contender, Limits, Record, Served, Serving
from serving.policy import ByCosts
from serving.search import GRID, SEEDS, Question, Trial, bracket, next_rate, on_grid, revision, written
from serving.virtual import VirtualExecutor
from serving.work import Done, Row, Segment, Step

# Predictions begin at a share of the rate at which prompts alone would keep the device busy, go down and up from there
# by factors, and end at others.
SHARE_OF_PROMPTS, COARSE, FINE, LOWEST, HIGHEST = 0.7, 1.5, GRID**4, 20.0, 3.0
# What the host takes before a step, by how much equal steps differ, and how much longer computing takes than where
# costs were measured, because clocks fall: as on an H200.
HOST_S, NOISE, WARM = 4e-4, 0.02, 1.08
TIMELINE_S = 1.0


def limits_of(question: Question) -> Limits:
    return Limits(question.gap_ms / 1e3, load_of(question.load, question.model).first_token_s)


def quantile(ordered: Sequence[float], share: float) -> float:
    """A percentile by nearest rank, of sorted values."""
    return ordered[max(0, ceil(share * len(ordered) - 1e-9) - 1)]


def spread(values: Iterable[float], unit: float, digits: int = 3) -> dict[str, float] | None:
    """Values in a unit: percentiles, the largest one and how many there are; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {"p50": quantile(ordered, 0.5), "p99": quantile(ordered, 0.99), "max": ordered[-1]}
    return {**{name: round(value / unit, digits) for name, value in found.items()}, "count": len(ordered)}


def serve(
    trial: Trial,
    costs: Costs,
    executor: Any,
    *,
    most_seconds: float = inf,
    on_end: Callable[[Served], None] = lambda served: None,
) -> Record:
    """Run a trial on an executor, until it is complete or cannot keep its limits any more, or for so many seconds.

    on_end: called with each sequence that has ended.
    """
    load, limits = load_of(trial.question.load, trial.question.model), limits_of(trial.question)
    serving = Serving(
        contender_of(trial, costs), executor, load.draw(trial.rate, trial.seed), load.sequences, seed=trial.seed
    )
    serving.on_end = on_end
    record = serving.run(limits, most_seconds=most_seconds)
    serving.drain()
    return record


def rehearse(trial: Trial, costs: Costs, truth: Costs | None = None) -> Record:
    """The same trial on the virtual clock. truth: what steps take, if that is not what the contender thinks."""
    return serve(trial, costs, VirtualExecutor(truth or costs))


def steps_of(trial: Trial, costs: Costs, rehearsed: Record) -> list[Done]:
    """The steps that a trial may need graphs for.

    Those that were rehearsed, those on slower cards, and the largest ones at every placement: decodes of all sequences,
    because a trial that falls behind has more answers at once than any rehearsal, and the prefills of a policy.
    """
    found = rehearsed.steps + [step for truth in costs.varied() for step in rehearse(trial, costs, truth).steps]
    contender = contender_of(trial, costs)
    if isinstance(contender, ByCosts):
        for placement, chunk in contender.placed:
            found.append(Done("prefill", Step(segments=(Segment(0, 0, chunk, True),)), placement, 0.0, 0.0))
    rows = tuple(Row(slot, 0) for slot in range(load_of(trial.question.load, trial.question.model).sequences))
    for placement in dict.fromkeys(one.placement for one in found):
        found.append(Done("decode", Step(rows=rows), placement, 0.0, 0.0))
    return found


def contender_of(trial: Trial, costs: Costs) -> Contender:
    """The contender of a trial, with its settings."""
    return ENTRANTS[trial.question.contender].make(json.loads(trial.settings), costs, limits_of(trial.question))


def row_of(trial: Trial, record: Record) -> dict[str, Any]:
    """What is kept of a trial."""
    question, limits = trial.question, limits_of(trial.question)
    return {
        "model": question.model,
        "load": question.load,
        "gap_ms": question.gap_ms,
        "first_token_limit_s": limits.first_token_s,
        "contender": question.contender,
        "revision": revision(question),
        "settings": trial.settings,
        "rate": trial.rate,
        "seed": trial.seed,
        "requests": load_of(question.load, question.model).requests,
        "kept": record.keeps(limits),
        "complete": record.complete,
        "out_of_time": record.out_of_time,
        "seconds": round(record.seconds, 3),
        "gaps_ms": spread(record.gaps, 1e-3),
        "gaps_kept": share_within(record.gaps, limits.gap_s),
        "first_tokens_s": spread(record.first_tokens, 1.0),
        "first_tokens_kept": share_within(record.first_tokens, limits.first_token_s),
        "output_tokens_per_s": round(record.tokens / record.seconds, 1) if record.seconds else 0.0,
        "slowdown_of_decode": slowdown_of_decode(record.steps),
        "turnaround_us": turnaround(record.steps),
        "placements": record.placements,
        "timeline": timeline(record.steps),
    }


def share_within(values: Sequence[float], limit: float) -> float | None:
    return round(sum(value <= limit for value in values) / len(values), 5) if values else None


def _overlaps(steps: Sequence[Done]) -> list[tuple[Done, bool]]:
    """The steps of the decode lane, and whether most of each ran next to a step of the prefill lane."""
    prefills = sorted((one.begin, one.end) for one in steps if one.lane == "prefill")
    found, first = [], 0
    for one in sorted((one for one in steps if one.lane == "decode"), key=lambda one: one.begin):
        while first < len(prefills) and prefills[first][1] <= one.begin:
            first += 1
        next_to, at = 0.0, first
        while at < len(prefills) and prefills[at][0] < one.end:
            next_to += min(one.end, prefills[at][1]) - max(one.begin, prefills[at][0])
            at += 1
        found.append((one, next_to > (one.end - one.begin) / 2))
    return found


def slowdown_of_decode(steps: Sequence[Done]) -> float | None:
    """How many times as long a decode step takes next to a prefill, at the same place, batch and context (in 8k)."""
    times: dict[Any, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for one, next_to in _overlaps(steps):
        if one.step.segments:
            continue
        key = (one.placement.decode_sms, len(one.step.rows), one.step.context // 8192)
        times[key][next_to].append(one.end - one.begin)
    ratios = [median(next_to) / median(alone) for alone, next_to in times.values() if alone and next_to]
    return round(median(ratios), 3) if ratios else None


def turnaround(steps: Sequence[Done]) -> dict[str, float] | None:
    """Microseconds between the end of a step, as the host saw it, and the begin of the next one, if that came soon."""
    lanes: dict[str, list[Done]] = defaultdict(list)
    for one in steps:
        lanes["one" if one.placement.kind == "one" else one.lane].append(one)
    waits = []
    for mine in lanes.values():
        ordered = sorted(mine, key=lambda one: one.begin)
        waits += [after.begin - before.end for before, after in pairwise(ordered)]
    return spread((wait for wait in waits if wait < 5e-3), 1e-6, 1)


def timeline(steps: Sequence[Done]) -> list[list[Any]]:
    """The second in which both prompts and answers advance most: lane, begin, end, decodes, tokens, SMs."""
    prefills = [one for one in steps if one.step.segments]
    if not prefills:
        return []
    starts = [one.begin for one in prefills[:: max(1, len(prefills) // 50)]]

    def inside(begin: float) -> list[Done]:
        return [one for one in steps if one.begin >= begin and one.end <= begin + TIMELINE_S]

    def advance(begin: float) -> int:
        steps = [one.step for one in inside(begin)]
        return sum(len(step.rows) for step in steps) * sum(step.prompt_tokens for step in steps)

    begin = max(starts, key=advance)
    return [
        [
            one.lane,
            round(one.begin - begin, 6),
            round(one.end - begin, 6),
            len(one.step.rows),
            one.step.prompt_tokens,
            one.placement.kind,
            one.placement.decode_sms,
            one.placement.prefill_sms,
        ]
        for one in inside(begin)
    ]


def predict(question: Question, costs: Costs) -> dict[str, Any]:
    """The settings of a contender in the order of the goodput that the cost model gives them, and where to start with
    each seed, on a card that is warm.

    All settings are rehearsed at one rate, and those that keep it at higher ones. The first one is searched further.
    """
    limits = limits_of(question)
    warm = costs.heated(WARM)
    settings = [written(one) for one in ENTRANTS[question.contender].settings(costs, limits)]
    rates = dict.fromkeys(settings, 0.0)
    start = on_grid(SHARE_OF_PROMPTS / seconds_of_a_prompt(load_of(question.load, question.model), costs))

    def keeps(setting: str, rate: float, seed: int = SEEDS[0]) -> bool:
        executor = VirtualExecutor(warm, host_s=HOST_S, noise=NOISE)
        return serve(Trial(question, setting, rate, seed), costs, executor).keeps(limits)

    def keeping(those: Iterable[str], rate: float) -> list[str]:
        return [one for one in those if keeps(one, rate)]

    rate = start
    found = keeping(settings, rate)
    while not found and rate > start / LOWEST:
        rate /= COARSE
        found = keeping(settings, rate)
    while found and rate < start * HIGHEST:
        rates |= dict.fromkeys(found, rate)
        rate *= FINE
        found = keeping(found, rate)
    order = sorted(rates, key=lambda one: -rates[one])
    starts = []
    for seed in SEEDS:
        tried: list[tuple[float, bool]] = []
        begin = starts[0] if starts else rates[order[0]] or start
        while (following := next_rate(tried, begin)) is not None:
            tried.append((following, keeps(order[0], following, seed)))
        starts.append(bracket(tried)[0] or begin)
    return {"starts": starts, "settings": order, "rates": rates}


def seconds_of_a_prompt(load: Load, costs: Costs) -> float:
    """Seconds that the prompt of a request takes on the whole device, on average."""
    requests = load.draw(1.0, 1)
    steps = [Step(segments=(Segment(0, 0, request.prompt),)) for request in requests]
    return sum(map(costs.seconds, steps)) / len(steps)
