"""One trial: a contender serves a load at a rate, and what is kept of it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from serving.answers import TOLERANCE, answer_of, distance_of
from serving.costs import Costs
from serving.entrants import ENTRANTS
from serving.loads import Load
from serving.loop import Limits, Record, Served, Serving
from serving.work import Segment, Step

# A trial captures the graphs that it lacks, which costs gaps. One that fails so is repeated, at most so many times.
DISTURBED = 3


def run_trial(
    card: Any, costs: Costs, load: Load, gap_ms: float, contender: str, settings: Mapping[str, Any], rate: float,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Serve a load on a card; returns what is kept of it, as a row."""
    limits = Limits(gap_ms / 1e3, load.first_token_s)
    card.hints = dict.fromkeys(costs.hints, True)
    for _ in range(1 + DISTURBED):
        card.late_captures = 0
        answers: list[tuple[Any, int]] = []
        deciding = ENTRANTS[contender].make(settings, costs, limits)
        serving = Serving(deciding, card, load.draw(rate, seed), load.sequences, seed=seed)
        serving.on_end = lambda served: _note(card, served, answers)  # noqa: B023
        record = _served(serving, limits)
        if record.keeps(limits) or not card.late_captures:
            break
    distances = [distance_of(card, *one) for one in answers]
    return {
        "model": costs.model,
        "load": load.name,
        "gap_ms": gap_ms,
        "contender": contender,
        "settings": dict(settings),
        "rate": round(rate, 4),
        "seed": seed,
        "kept": record.keeps(limits),
        "gaps_ms": spread(record.gaps, 1e-3),
        "first_tokens_s": spread(record.first_tokens, 1.0),
        "tokens_per_s": round(record.tokens / record.seconds, 1) if record.seconds else 0.0,
        "placements": record.placements,
        "late_captures": card.late_captures,
        "wrong_answers": sum(not one <= TOLERANCE for one in distances),
    }


def _note(card: Any, served: Served, answers: list[tuple[Any, int]]) -> None:
    """Keep the first answer that ends, to be checked."""
    if not answers:
        answers.append(answer_of(card, served))


def _served(serving: Serving, limits: Limits) -> Record:
    """Serve without Python's collector, which would stop the loop for tens of milliseconds."""
    gc.collect()
    gc.disable()
    try:
        record = serving.run(limits)
        serving.drain()
    finally:
        gc.enable()
    return record


def spread(values: Iterable[float], unit: float) -> dict[str, float] | None:
    """Percentiles by nearest rank, and the largest value, in a unit; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {f"p{share}": ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 99)}
    return {name: round(value / unit, 3) for name, value in {**found, "max": ordered[-1]}.items()}


def rate_of_prompts(load: Load, costs: Costs) -> float:
    """The requests per second at which prompts alone keep the whole device busy."""
    steps = [Step(segments=(Segment(0, 0, request.prompt),)) for request in load.draw(1.0, 1)]
    return len(steps) / sum(map(costs.seconds, steps))
